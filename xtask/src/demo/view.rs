//! What the gateway tells of itself: the parts of `/status` and `/metrics` that are shown. Pure.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::exposition::{label, samples};

/// `/status`.
#[derive(Deserialize)]
pub(super) struct Status {
    pub(super) ready: bool,
    pub(super) reason: Option<String>,
    pub(super) steering: Steering,
    pools: Vec<Pool>,
}

/// How connections reach the gateway's workers.
#[derive(Deserialize)]
pub(super) struct Steering {
    /// `sk_lookup` or `userspace`.
    pub(super) path: String,
    /// Why not by sk_lookup.
    pub(super) reason: Option<String>,
}

#[derive(Deserialize)]
struct Pool {
    pods: Vec<PodStatus>,
}

/// A pod as the gateway sees it.
#[derive(Deserialize)]
pub(super) struct PodStatus {
    pub(super) name: String,
    pub(super) gpu: Option<String>,
    pub(super) ready: bool,
    pub(super) trouble: Option<String>,
    pub(super) score: Option<f64>,
    pub(super) in_flight: u32,
    pub(super) tokens: u64,
    pub(super) signals_age_ms: Option<u64>,
    pub(super) kv_usage: Option<f64>,
    pub(super) waiting: Option<u32>,
    pub(super) adapters: Vec<String>,
}

impl Status {
    /// Every pod.
    pub(super) fn pods(&self) -> impl Iterator<Item = &PodStatus> {
        self.pools.iter().flat_map(|pool| &pool.pods)
    }
}

impl std::fmt::Display for Steering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { path, reason } = self;
        match reason {
            None => write!(f, "{path}"),
            Some(reason) => write!(f, "{path}: {reason}"),
        }
    }
}

/// One line of `sluice probe --json`.
#[derive(Deserialize)]
pub(super) struct Feature {
    pub(super) name: String,
    pub(super) available: bool,
    pub(super) reason: String,
}

/// Answers by the path that their bodies took.
pub(super) fn paths(page: &str) -> BTreeMap<String, u64> {
    let mut paths = BTreeMap::new();
    for (labels, count) in samples(page, "sluice_flow_responses_total") {
        if let Some(path) = label(labels, "path") {
            *paths.entry(path.to_owned()).or_default() += count as u64;
        }
    }
    paths
}

/// A histogram: bounds in seconds with how many values were not above, all pools together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Histogram {
    buckets: Vec<(f64, f64)>,
}

impl Histogram {
    /// The gateway's histogram of TTFT.
    pub(super) fn ttft(page: &str) -> Self {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (labels, count) in samples(page, "sluice_pool_time_to_first_token_seconds_bucket") {
            let bound = match label(labels, "le") {
                Some("+Inf") => f64::INFINITY,
                Some(bound) => bound.parse().unwrap_or(f64::NAN),
                None => continue,
            };
            match buckets.iter_mut().find(|(known, _)| *known == bound) {
                Some((_, all)) => *all += count,
                None => buckets.push((bound, count)),
            }
        }
        buckets.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        Self { buckets }
    }

    /// What was counted since an earlier time.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let before = |bound: f64| earlier.buckets.iter().find(|(known, _)| *known == bound);
        let buckets = self
            .buckets
            .iter()
            .map(|&(bound, count)| (bound, count - before(bound).map_or(0.0, |(_, old)| *old)));
        Self { buckets: buckets.collect() }
    }

    /// The value that this share of all values is not above, in seconds, as if they lay evenly within
    /// their bucket; what `histogram_quantile` of Prometheus gives.
    pub(super) fn quantile(&self, share: f64) -> Option<f64> {
        let &(_, all) = self.buckets.last()?;
        if all <= 0.0 {
            return None;
        }
        let wanted = share * all;
        let (mut low, mut below) = (0.0, 0.0);
        for &(high, count) in &self.buckets {
            if count >= wanted {
                let inside = (wanted - below) / (count - below).max(f64::MIN_POSITIVE);
                return Some(if high.is_finite() { low + (high - low) * inside } else { low });
            }
            (low, below) = (high, count);
        }
        Some(low)
    }
}

/// The value that this share of `values` is not above, by the nearest rank.
pub(super) fn percentile<T: Copy + Ord>(values: &[T], share: f64) -> Option<T> {
    let mut values = values.to_vec();
    values.sort_unstable();
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_by_nearest_rank() {
        let hundred: Vec<u32> = (1..=100).rev().collect();
        for (values, share, expected) in [
            (&[][..], 0.5, None),
            (&[7], 0.5, Some(7)),
            (&[7], 0.99, Some(7)),
            (&[9, 1, 5], 0.5, Some(5)),
            (&[1, 2], 0.5, Some(1)),
            (&[1, 2], 0.99, Some(2)),
            (&hundred, 0.5, Some(50)),
            (&hundred, 0.99, Some(99)),
            (&hundred, 1.0, Some(100)),
            (&hundred, 0.0, Some(1)),
        ] {
            assert_eq!(percentile(values, share), expected, "{share} of {values:?}");
        }
    }

    const PAGE: &str = "\
# TYPE sluice_pool_time_to_first_token_seconds histogram
sluice_pool_time_to_first_token_seconds_bucket{le=\"0.1\",pool=\"a\"} 2
sluice_pool_time_to_first_token_seconds_bucket{le=\"0.2\",pool=\"a\"} 6
sluice_pool_time_to_first_token_seconds_bucket{le=\"+Inf\",pool=\"a\"} 8
sluice_pool_time_to_first_token_seconds_bucket{le=\"0.1\",pool=\"b\"} 0
sluice_pool_time_to_first_token_seconds_bucket{le=\"0.2\",pool=\"b\"} 2
sluice_pool_time_to_first_token_seconds_bucket{le=\"+Inf\",pool=\"b\"} 2
sluice_flow_responses_total{path=\"relay\",reason=\"best\"} 3
sluice_flow_responses_total{path=\"relay\",reason=\"off\"} 4
sluice_flow_responses_total{path=\"splice\",reason=\"best\"} 0
sluice_flow_responses_total_created 5
";

    #[test]
    fn quantiles_of_a_histogram() {
        let ttft = Histogram::ttft(PAGE);
        let sum = Histogram { buckets: vec![(0.1, 2.0), (0.2, 8.0), (f64::INFINITY, 10.0)] };
        assert_eq!(ttft, sum);
        for (share, expected) in [(0.1, 0.05), (0.2, 0.1), (0.5, 0.15), (0.99, 0.2)] {
            let value = ttft.quantile(share).unwrap();
            assert!((value - expected).abs() < 1e-9, "{share}: {value}");
        }
        assert_eq!(ttft.since(&ttft).quantile(0.5), None);
        assert_eq!(ttft.since(&Histogram::default()), ttft);
        assert_eq!(Histogram::ttft("").quantile(0.5), None);
    }

    #[test]
    fn answers_by_path() {
        let paths: Vec<_> = paths(PAGE).into_iter().collect();
        assert_eq!(paths, [("relay".to_owned(), 7), ("splice".to_owned(), 0)]);
    }
}
