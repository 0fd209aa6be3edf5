//! A distribution of durations.

use hdrhistogram::Histogram;
use sluice_tests::bench::report::Quantiles;

/// Durations from 1 ns to a minute, to three digits.
pub(crate) struct Times {
    histogram: Option<Histogram<u64>>,
}

impl Default for Times {
    fn default() -> Self {
        // These bounds are valid, so there is a histogram.
        Self { histogram: Histogram::new_with_bounds(1, 60_000_000_000, 3).ok() }
    }
}

impl Times {
    /// Adds one; what is out of bounds counts as the nearest bound.
    pub(crate) fn record(&mut self, ns: u64) {
        if let Some(histogram) = &mut self.histogram {
            histogram.saturating_record(ns);
        }
    }

    /// What they come to.
    pub(crate) fn quantiles(&self) -> Quantiles {
        let Some(histogram) = &self.histogram else { return Quantiles::default() };
        let us = |ns: u64| ns as f64 / 1e3;
        Quantiles {
            count: histogram.len(),
            p50: us(histogram.value_at_quantile(0.5)),
            p99: us(histogram.value_at_quantile(0.99)),
            max: us(histogram.max()),
        }
    }
}
