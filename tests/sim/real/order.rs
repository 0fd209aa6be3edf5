//! Whether policies come in the same order where they run and where they are simulated. Pure.

use std::fmt::Write;

use serde::Serialize;
use sluice_tests::sim::report::Row;

/// The order of the policies by one figure of a scenario.
#[derive(Debug, Serialize)]
pub(crate) struct Order {
    /// The scenario.
    pub(crate) scenario: &'static str,
    /// The figure.
    pub(crate) figure: &'static str,
    /// Policies and milliseconds as measured, the least first.
    pub(crate) real: Vec<(&'static str, f64)>,
    /// The same as simulated.
    pub(crate) simulated: Vec<(&'static str, f64)>,
    /// Pairs of policies that come in the same order in both, or are equal in both.
    pub(crate) same: usize,
    /// Pairs that are equal in one of the two only.
    pub(crate) equal_in_one: usize,
    /// Pairs that come in opposite orders, the one that was really faster first.
    pub(crate) opposite: Vec<(&'static str, &'static str)>,
}

impl Order {
    /// By TTFT p99 and p95 of rows of one scenario.
    pub(crate) fn of(scenario: &'static str, real: &[Row], simulated: &[Row]) -> Vec<Self> {
        let p99 = |row: &Row| row.figures.ttft_ms.p99;
        let p95 = |row: &Row| row.figures.ttft_ms.p95;
        vec![
            Self::by("TTFT p99", p99, scenario, real, simulated),
            Self::by("TTFT p95", p95, scenario, real, simulated),
        ]
    }

    fn by(
        figure: &'static str,
        value: fn(&Row) -> f64,
        scenario: &'static str,
        real: &[Row],
        simulated: &[Row],
    ) -> Self {
        let sorted = |rows: &[Row]| {
            let mut values: Vec<_> = rows.iter().map(|row| (row.policy, value(row))).collect();
            values.sort_by(|one, other| one.1.total_cmp(&other.1));
            values
        };
        let mut order = Self {
            scenario,
            figure,
            real: sorted(real),
            simulated: sorted(simulated),
            same: 0,
            equal_in_one: 0,
            opposite: Vec::new(),
        };
        for (at, &(fast, real_fast)) in order.real.iter().enumerate() {
            for &(slow, real_slow) in order.real.iter().skip(at + 1) {
                let of = |name| order.simulated.iter().find(|(policy, _)| *policy == name);
                let (Some(one), Some(other)) = (of(fast), of(slow)) else { continue };
                let really = clearly_less(real_fast, real_slow);
                match (really, clearly_less(one.1, other.1), clearly_less(other.1, one.1)) {
                    (true, true, _) | (false, false, false) => order.same += 1,
                    (true, _, true) => order.opposite.push((fast, slow)),
                    _ => order.equal_in_one += 1,
                }
            }
        }
        order
    }

    /// In words.
    pub(crate) fn text(&self) -> String {
        let Self { scenario, figure, same, equal_in_one, opposite, .. } = self;
        let mut text = format!("{scenario}, {figure}\n");
        for (kind, values) in [("real", &self.real), ("simulated", &self.simulated)] {
            let _ = write!(text, "  {kind:10}");
            let mut before = None;
            for (policy, value) in values {
                let sign = match before {
                    None => "",
                    Some(before) if clearly_less(before, *value) => " < ",
                    Some(_) => " ~ ",
                };
                // Writing to a string cannot fail, here and above.
                let _ = write!(text, "{sign}{policy} {value:.0}");
                before = Some(*value);
            }
            text.push('\n');
        }
        let verdict = if opposite.is_empty() { "no pair is opposite" } else { "OPPOSITE" };
        let _ = write!(text, "  {same} pairs alike, {equal_in_one} equal in one only; {verdict}");
        let pairs: Vec<String> =
            opposite.iter().map(|(fast, slow)| format!(" {fast} < {slow} is real")).collect();
        text + &pairs.join(",") + "\n"
    }
}

/// Less by more than noise.
fn clearly_less(one: f64, other: f64) -> bool {
    one * NOISE < other
}

/// The p99 of some hundred requests is that of a handful: what is nearer than this is equal.
const NOISE: f64 = 1.15;

#[cfg(test)]
mod tests {
    use sluice_tests::sim::Figures;
    use sluice_tests::sim::figures::Quantiles;
    use sluice_tests::sim::policy::Name;

    use super::*;

    fn row(policy: Name, p99: f64) -> Row {
        let ttft_ms = Quantiles { p99, ..Quantiles::default() };
        Row::of("x", policy, 1.0, &[Figures { ttft_ms, ..Figures::default() }])
    }

    #[test]
    fn pairs_are_alike_equal_or_opposite() {
        let rows = |values: [f64; 3]| -> Vec<Row> {
            let names = [Name::Random, Name::LeastRequest, Name::SluiceLatency];
            names.into_iter().zip(values).map(|(name, value)| row(name, value)).collect()
        };
        for (real, simulated, same, equal, opposite) in [
            ([300.0, 200.0, 100.0], [90.0, 60.0, 30.0], 3, 0, vec![]),
            ([300.0, 200.0, 100.0], [90.0, 60.0, 59.0], 2, 1, vec![]),
            ([100.0, 101.0, 102.0], [1.02, 1.01, 1.0], 3, 0, vec![]),
            ([300.0, 200.0, 100.0], [60.0, 90.0, 30.0], 2, 0, vec![("least-request", "random")]),
        ] {
            let order = &Order::of("x", &rows(real), &rows(simulated))[0];
            assert_eq!((order.same, order.equal_in_one), (same, equal), "{order:?}");
            assert_eq!(order.opposite, opposite);
            assert_eq!(order.text().contains("OPPOSITE"), !opposite.is_empty());
        }
    }

    #[test]
    fn a_policy_that_did_not_run_is_no_pair() {
        let real = [row(Name::Random, 1.0)];
        let simulated = [row(Name::Random, 1.0), row(Name::RoundRobin, 2.0)];
        let order = &Order::of("x", &real, &simulated)[0];
        assert_eq!((order.same, order.equal_in_one, order.opposite.len()), (0, 0, 0));
        assert!(order.text().contains("random 1 < round-robin 2"), "{}", order.text());
    }
}
