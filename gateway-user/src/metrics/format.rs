//! Which exposition format a scraper gets.

/// An exposition format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format 0.0.4: what people and `promtool check metrics` read.
    #[default]
    Text,
    /// OpenMetrics text 1.0: what Prometheus itself asks for.
    OpenMetrics,
}

impl Format {
    /// What an `Accept` header asks for: the better weighed of the two formats, OpenMetrics when
    /// both are equal, text when neither is named.
    pub fn negotiate(accept: Option<&str>) -> Self {
        let accept = accept.unwrap_or_default();
        let weight = |media_type: &str| {
            accept.split(',').filter_map(|range| weight_of(range, media_type)).max().unwrap_or(0)
        };
        let open_metrics = weight("application/openmetrics-text");
        if open_metrics > 0 && open_metrics >= weight("text/plain") {
            Self::OpenMetrics
        } else {
            Self::Text
        }
    }

    /// The `Content-Type` of the answer.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The weight of `media_type` in thousandths, when `range` names it. A weight that is none counts
/// as 0.
fn weight_of(range: &str, media_type: &str) -> Option<u32> {
    let mut parts = range.split(';').map(str::trim);
    if !parts.next()?.eq_ignore_ascii_case(media_type) {
        return None;
    }
    let Some(weight) = parts.find_map(|part| part.strip_prefix("q=")) else {
        return Some(1000);
    };
    let weight: f32 = weight.parse().unwrap_or(0.0);
    Some((weight.clamp(0.0, 1.0) * 1000.0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        let prometheus = "application/vnd.google.protobuf;proto=x;q=0.6,application/openmetrics-text;\
                          version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let table = [
            (None, Format::Text),
            (Some(""), Format::Text),
            (Some("*/*"), Format::Text),
            (Some(prometheus), Format::OpenMetrics),
            (Some("text/plain"), Format::Text),
            (Some("Text/Plain; version=0.0.4"), Format::Text),
            (Some("text/plain;q=0.5, application/openmetrics-text;q=0.4"), Format::Text),
            (Some("text/plain;q=0.4, application/openmetrics-text"), Format::OpenMetrics),
            (Some("text/plain;q=nan"), Format::Text),
            (Some("text/plain;q=-9"), Format::Text),
            (Some("text/plain;q=1e400"), Format::Text),
            (Some("application/openmetrics-text, text/plain"), Format::OpenMetrics),
            (Some("application/openmetrics-text;q=0"), Format::Text),
            (Some("text/html"), Format::Text),
        ];
        for (accept, expected) in table {
            assert_eq!(Format::negotiate(accept), expected, "{accept:?}");
        }
    }
}
