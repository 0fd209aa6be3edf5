//! The text formats in which metrics are printed. Pure.

use std::fmt::Write as _;

/// Whose habits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Dialect {
    /// Python's client: the classic format, with `_created` gauges.
    Python,
    /// The classic format and no more.
    Plain,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

/// Counts by upper bound.
#[derive(Clone, Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    count: u64,
    sum: f64,
}

impl Histogram {
    /// An empty one with these upper bounds.
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len()], count: 0, sum: 0.0 }
    }

    /// Counts a value.
    pub fn observe(&mut self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
        self.count += 1;
        self.sum += value;
    }

    /// Values counted.
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// The exposition format, in the dialect of a style.
pub(super) struct Writer {
    pub(super) text: String,
    pub(super) dialect: Dialect,
    /// Print NaN for every value.
    pub(super) nan: bool,
    /// Unix seconds of the start.
    pub(super) created: f64,
}

impl Writer {
    /// A family of that name and kind.
    pub(super) fn gauge<'a>(
        &mut self,
        name: &str,
        samples: impl IntoIterator<Item = (&'a str, f64)>,
    ) {
        self.declare(name, "gauge");
        for (labels, value) in samples {
            self.sample(name, labels, value);
        }
    }

    /// A family of that name and kind.
    pub(super) fn counter<'a>(
        &mut self,
        name: &str,
        samples: impl IntoIterator<Item = (&'a str, f64)>,
    ) {
        let total = format!("{name}_total");
        // OpenMetrics declares the name without the suffix.
        self.declare(if self.dialect == Dialect::OpenMetrics { name } else { &total }, "counter");
        let mut labels = Vec::new();
        for (label, value) in samples {
            self.sample(&total, label, value);
            labels.push(label);
        }
        self.created(name, &labels);
    }

    /// A family of that name and kind.
    pub(super) fn histogram<'a>(
        &mut self,
        name: &str,
        series: impl Iterator<Item = (&'a str, &'a Histogram)>,
    ) {
        self.declare(name, "histogram");
        let mut labels = Vec::new();
        for (label, histogram) in series {
            let mut below = 0;
            for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
                below += count;
                self.bucket(name, label, &number(*bound), below);
            }
            self.bucket(name, label, "+Inf", histogram.count);
            self.sample(&format!("{name}_count"), label, histogram.count as f64);
            self.sample(&format!("{name}_sum"), label, histogram.sum);
            labels.push(label);
        }
        self.created(name, &labels);
    }

    fn bucket(&mut self, name: &str, labels: &str, bound: &str, count: u64) {
        // Sorted, `le` stands behind `engine` and `engine_type`, and before `model_name`.
        let labels = match labels.split_once("model_name=") {
            Some((before, model)) => format!("{before}le=\"{bound}\",model_name={model}"),
            None => format!("le=\"{bound}\""),
        };
        self.sample(&format!("{name}_bucket"), &labels, count as f64);
    }

    /// The gauges that Python's client prints beside counters and histograms.
    fn created(&mut self, name: &str, labels: &[&str]) {
        if self.dialect == Dialect::Python {
            let created = self.created;
            self.gauge(&format!("{name}_created"), labels.iter().map(|labels| (*labels, created)));
        }
    }

    fn declare(&mut self, name: &str, kind: &str) {
        let _ = write!(self.text, "# HELP {name} Simulated.\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let value = if self.nan { "NaN".to_owned() } else { number(value) };
        let _ = if labels.is_empty() {
            writeln!(self.text, "{name} {value}")
        } else {
            writeln!(self.text, "{name}{{{labels}}} {value}")
        };
    }
}

/// A number as Python's client prints it: `12.0`, and from seven digits on `1.764441377524e+09`.
fn number(value: f64) -> String {
    let text = format!("{value:?}");
    match text.split_once('.') {
        Some((whole, part)) if whole.len() > 6 && !whole.starts_with('-') => {
            let (first, rest) = whole.split_at(1);
            let mantissa = format!("{first}.{rest}{part}");
            let mantissa = mantissa.trim_end_matches('0').trim_end_matches('.');
            format!("{mantissa}e+{:02}", rest.len())
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_python_prints_them() {
        for (value, text) in [
            (0.0, "0.0"),
            (12.0, "12.0"),
            (0.37214, "0.37214"),
            (999_999.0, "999999.0"),
            (1_000_000.0, "1e+06"),
            (1_834_112.0, "1.834112e+06"),
            (1_764_441_377.524, "1.764441377524e+09"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn histograms_are_cumulative() {
        let mut histogram = Histogram::new(&[0.1, 1.0]);
        for value in [0.05, 0.1, 0.5, 3.0] {
            histogram.observe(value);
        }
        let mut out =
            Writer { text: String::new(), dialect: Dialect::Plain, nan: false, created: 0.0 };
        out.histogram("t", [("engine=\"0\",model_name=\"m\"", &histogram)].into_iter());
        let buckets: Vec<_> = out.text.lines().filter(|line| line.contains("bucket")).collect();
        assert_eq!(
            buckets,
            [
                "t_bucket{engine=\"0\",le=\"0.1\",model_name=\"m\"} 2.0",
                "t_bucket{engine=\"0\",le=\"1.0\",model_name=\"m\"} 3.0",
                "t_bucket{engine=\"0\",le=\"+Inf\",model_name=\"m\"} 4.0",
            ]
        );
    }
}
