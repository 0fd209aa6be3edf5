//! The gateway's metrics page, as far as tasks read it. Pure.

/// The samples with this name: labels as they stand, and value.
pub(crate) fn samples<'a>(page: &'a str, name: &str) -> impl Iterator<Item = (&'a str, f64)> {
    page.lines().filter_map(move |line| {
        let (labels, value) = line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once('}')?;
        Some((labels, value.trim().parse().ok()?))
    })
}

/// The value of a label. Enough for the gateway's own labels, none of which has a quote in its value.
pub(crate) fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    labels.split(',').find_map(|label| {
        let value = label.strip_prefix(name)?.strip_prefix('=')?;
        value.strip_prefix('"')?.strip_suffix('"')
    })
}

#[cfg(test)]
mod tests {
    use super::{label, samples};

    #[test]
    fn samples_are_found_by_their_whole_name() {
        let page =
            "# TYPE a_total counter\na_total{x=\"1\",y=\"two\"} 3\na_total_more{x=\"9\"} 4\n";
        let found: Vec<_> = samples(page, "a_total").collect();
        assert_eq!(found, [("x=\"1\",y=\"two\"", 3.0)]);
        for (name, value) in [("x", Some("1")), ("y", Some("two")), ("z", None)] {
            assert_eq!(label(found[0].0, name), value);
        }
    }
}
