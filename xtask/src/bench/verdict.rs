//! Whether what was asked for was reached.

use serde::Serialize;

use super::spread::{Spread, times};

/// One thing asked for, and what came of it.
#[derive(Debug, Serialize)]
pub(super) struct Verdict {
    what: String,
    pub(super) pass: bool,
    /// None if there is no such result.
    value: Option<f64>,
    limit: f64,
    unit: &'static str,
    /// The repeats lie so far apart that another run may say otherwise.
    uncertain: bool,
}

impl Verdict {
    /// At most so many times the median of the others.
    pub(super) fn ratio(
        what: String,
        limit: f64,
        unit: &'static str,
        ours: Option<Spread>,
        theirs: Option<Spread>,
    ) -> Self {
        let (Some(ours), Some(theirs)) = (ours, theirs) else {
            return Self::without_result(what, limit, unit);
        };
        let value = ours.ratio(&theirs);
        let surely = ours.max <= limit * theirs.min || ours.min > limit * theirs.max;
        let pass = value.is_some_and(|value| value <= limit);
        Self { what, pass, value, limit, unit, uncertain: !surely }
    }

    /// A median of at most so much.
    pub(super) fn at_most(
        what: String,
        limit: f64,
        unit: &'static str,
        ours: Option<Spread>,
    ) -> Self {
        let Some(ours) = ours else { return Self::without_result(what, limit, unit) };
        let surely = ours.max <= limit || ours.min > limit;
        let (pass, value) = (ours.median <= limit, Some(ours.median));
        Self { what, pass, value, limit, unit, uncertain: !surely }
    }

    fn without_result(what: String, limit: f64, unit: &'static str) -> Self {
        Self { what, pass: false, value: None, limit, unit, uncertain: false }
    }

    /// Prints it as a line.
    pub(super) fn print(&self) {
        let Self { what, pass, value, limit, unit, uncertain } = self;
        let outcome = if *pass { "pass" } else { "miss" };
        let note = if *uncertain { "; the repeats lie on both sides" } else { "" };
        println!("{outcome}  {what}: {} {unit} (at most {limit}){note}", times(*value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(min: f64, median: f64, max: f64) -> Option<Spread> {
        Some(Spread { median, min, max })
    }

    #[test]
    fn a_verdict_is_certain_when_all_repeats_agree() {
        let haproxy = spread(90.0, 100.0, 110.0);
        for (ours, pass, uncertain) in [
            (spread(100.0, 105.0, 110.0), true, false),
            (spread(100.0, 120.0, 130.0), true, true),
            (spread(130.0, 135.0, 140.0), false, true),
            (spread(140.0, 150.0, 160.0), false, false),
        ] {
            let verdict = Verdict::ratio(String::new(), 1.25, "x haproxy", ours, haproxy);
            assert_eq!((verdict.pass, verdict.uncertain), (pass, uncertain), "{ours:?}");
            let verdict = Verdict::at_most(String::new(), 125.0, "us", ours);
            assert_eq!(verdict.pass, pass, "{ours:?}");
        }
        let verdict = Verdict::at_most(String::new(), 125.0, "us", spread(120.0, 121.0, 126.0));
        assert!(verdict.pass && verdict.uncertain, "{verdict:?}");
    }

    #[test]
    fn what_has_no_result_is_missed() {
        let some = spread(1.0, 1.0, 1.0);
        for (ours, theirs) in [(None, some), (some, None), (some, spread(0.0, 0.0, 0.0))] {
            assert!(!Verdict::ratio(String::new(), 9.0, "x haproxy", ours, theirs).pass);
        }
        assert!(!Verdict::at_most(String::new(), 9.0, "us", None).pass);
    }
}
