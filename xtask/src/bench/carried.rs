//! What carried the answers of our own gateway, by its own count. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use super::target::Target;
use crate::exposition::{label, samples};

/// Answers by what carried them: `path (reason)`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub(super) struct Carried(BTreeMap<String, u64>);

impl Carried {
    /// What a metrics page tells.
    pub(super) fn of(page: &str) -> Self {
        let mut carried = Self::default();
        for (labels, count) in samples(page, "sluice_flow_responses_total") {
            if let (Some(path), Some(reason)) = (label(labels, "path"), label(labels, "reason")) {
                carried.0.insert(format!("{path} ({reason})"), count as u64);
            }
        }
        carried
    }

    /// What was counted since an earlier look.
    pub(super) fn since(&self, before: &Self) -> Self {
        let grown = self.0.iter().filter_map(|(what, count)| {
            let count = count.saturating_sub(*before.0.get(what).unwrap_or(&0));
            (count > 0).then(|| (what.clone(), count))
        });
        Self(grown.collect())
    }

    /// Adds those of another measurement.
    pub(super) fn add(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(what.clone()).or_default() += count;
        }
    }

    /// All of them.
    pub(super) fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// Why this is no result of the target: another path carried more than a hundredth.
    pub(super) fn refused(&self, target: Target, streams: u64) -> Option<String> {
        let wrong = match target {
            Target::Relay | Target::Splice | Target::Local => {
                let wanted = format!("{target} ");
                let right = self.0.iter().filter(|(what, _)| what.starts_with(&wanted));
                streams.saturating_sub(right.map(|(_, count)| *count).sum())
            }
            // None may have passed the gateway, by whatever path.
            Target::Steered => self.count(),
            _ => 0,
        };
        (wrong * 100 > streams).then(|| match self.0.is_empty() {
            true => format!("the gateway counted none of {streams} answers"),
            false => format!("carried by {self}"),
        })
    }
}

impl std::fmt::Display for Carried {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<String> =
            self.0.iter().map(|(what, count)| format!("{what}: {count}")).collect();
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(counts: &[(&str, u64)]) -> Carried {
        Carried(counts.iter().map(|(what, count)| ((*what).to_owned(), *count)).collect())
    }

    #[test]
    fn only_what_came_since_counts() {
        let page = "sluice_flow_responses_total{path=\"relay\",reason=\"off\"} 5\n\
                    sluice_flow_responses_total{path=\"splice\",reason=\"best\"} 7\n\
                    sluice_flow_responses_total{path=\"local\",reason=\"best\"} 1\n";
        let before = carried(&[("relay (off)", 2), ("splice (best)", 7)]);
        let since = Carried::of(page).since(&before);
        assert_eq!(since.to_string(), "local (best): 1, relay (off): 3");
        assert_eq!(since.count(), 4);
    }

    #[test]
    fn a_row_belongs_to_the_path_that_was_asked_for() {
        let relayed = &[("relay (off)", 100)][..];
        let spliced = &[("splice (best)", 100)][..];
        let nearly = &[("relay (slow_client)", 1), ("splice (best)", 99)][..];
        let partly = &[("relay (slow_client)", 2), ("splice (best)", 98)][..];
        for (target, counts, refused) in [
            (Target::Direct, &[][..], false),
            (Target::Haproxy, &[][..], false),
            (Target::Sluice, relayed, false),
            (Target::Relay, relayed, false),
            (Target::Relay, spliced, true),
            (Target::Splice, relayed, true),
            (Target::Splice, spliced, false),
            (Target::Splice, nearly, false),
            (Target::Splice, partly, true),
            (Target::Splice, &[][..], true),
            (Target::Local, spliced, true),
            (Target::Steered, &[][..], false),
            (Target::Steered, relayed, true),
        ] {
            let carried = carried(counts);
            let why = carried.refused(target, 100);
            assert_eq!(why.is_some(), refused, "{target} by {carried}: {why:?}");
        }
    }
}
