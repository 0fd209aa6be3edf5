//! When to come back: what a client is told that found every pod of a pool full.
//!
//! The pool's requests end at some rate; one that is refused now finds a place when those before it have
//! got theirs. Those that were refused shortly before are before it: they come back as well, and telling
//! all of them the same moment would only have them refused together again.
//!
//! No clock: times are passed in.

use std::time::Duration;

use super::Excess;

/// How fast a pool gets done, and who was told to come back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Drain {
    /// Requests that ended, decayed by time; over [`WINDOW`], that is a rate.
    recent: f64,
    /// Refused, and not yet made good for by requests that ended since.
    refused: f64,
    last: Duration,
}

impl Drain {
    /// A request ended, and with it a place is free.
    pub fn completed(&mut self, now: Duration) {
        self.pass(now);
        self.recent += 1.0;
        self.refused = (self.refused - 1.0).max(0.0);
    }

    /// Requests that end in a second.
    pub fn rate(&mut self, now: Duration) -> f64 {
        self.pass(now);
        self.recent / WINDOW.as_secs_f64()
    }

    /// A request was refused by a pool that has `excess`, with `expected` the time in which a request ends, for
    /// when none has lately. Returns when to come back.
    pub fn refused(&mut self, excess: Excess, expected: Duration, now: Duration) -> Duration {
        let rate = self.rate(now);
        self.refused = (self.refused + 1.0).min(MOST_REFUSED);
        let before = self.refused + f64::from(excess.requests);
        let seconds = match rate * expected.as_secs_f64().max(1.0) {
            // Not even one in the time that one takes.
            rate_of_one if rate_of_one < 1.0 => expected.as_secs_f64(),
            _ => before / rate,
        };
        let seconds = seconds.max(excess.wait.as_secs_f64());
        Duration::from_secs_f64(seconds.clamp(LEAST.as_secs_f64(), MOST.as_secs_f64()).ceil())
    }

    fn pass(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.last).as_secs_f64();
        self.last = self.last.max(now);
        self.recent *= (-passed / WINDOW.as_secs_f64()).exp();
        // Who was told to come back has done so, or never will.
        self.refused *= (-passed / MOST.as_secs_f64()).exp();
    }
}

/// Over about this time a rate is measured.
const WINDOW: Duration = Duration::from_secs(10);

/// The least and the most that a client is told; the header counts whole seconds.
const LEAST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(60);

/// As many refused requests count as can matter for the longest time.
const MOST_REFUSED: f64 = 1e6;

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(requests: u32) -> Excess {
        Excess { requests, wait: Duration::ZERO }
    }

    /// A drain at which `rate` requests a second have ended for a minute.
    fn steady(rate: u64) -> (Drain, Duration) {
        let mut drain = Drain::default();
        let every = Duration::from_secs(1) / rate as u32;
        (1..=rate * 60).for_each(|n| drain.completed(every * n as u32));
        (drain, Duration::from_secs(60))
    }

    #[test]
    fn a_rate_is_measured() {
        for rate in [1, 5, 50] {
            let (mut drain, now) = steady(rate);
            let found = drain.rate(now);
            assert!((found / rate as f64 - 1.0).abs() < 0.1, "{found} of {rate}");
            assert!(drain.rate(now + 10 * WINDOW) < 0.01);
        }
    }

    #[test]
    fn the_time_goes_by_the_rate_and_by_those_before() {
        let second = Duration::from_secs(1);
        for (rate, excess, seconds) in
            [(10, 0, 1..=1), (10, 99, 10..=11), (1, 9, 10..=11), (1, 500, 60..=60)]
        {
            let (mut drain, now) = steady(rate);
            let found = drain.refused(requests(excess), second, now).as_secs();
            assert!(seconds.contains(&found), "{rate} {excess}: {found}");
        }
    }

    #[test]
    fn those_refused_together_come_back_one_after_the_other() {
        let (mut drain, now) = steady(10);
        let told: Vec<u64> = (0..200)
            .map(|_| drain.refused(requests(0), Duration::from_secs(1), now).as_secs())
            .collect();
        assert!(told.is_sorted() && told[0] == 1 && (19..=22).contains(&told[199]), "{told:?}");
        // And are made good for by those that end.
        (0..200).for_each(|_| drain.completed(now));
        assert_eq!(drain.refused(requests(0), Duration::from_secs(1), now).as_secs(), 1);
    }

    #[test]
    fn with_nothing_ended_lately_it_is_an_answers_time() {
        for (expected, seconds) in [(0, 1), (1, 1), (7, 7), (3600, 60)] {
            let mut drain = Drain::default();
            let found = drain.refused(requests(5), Duration::from_secs(expected), Duration::ZERO);
            assert_eq!(found, Duration::from_secs(seconds), "{expected}");
        }
        let mut drain = Drain::default();
        assert!(drain.refused(requests(u32::MAX), Duration::MAX, Duration::MAX) <= MOST);
    }

    #[test]
    fn nobody_is_called_back_before_a_pod_is_expected_to_be_free() {
        let (mut drain, now) = steady(10);
        let after = |drain: &mut Drain, seconds| {
            let excess = Excess { requests: 0, wait: Duration::from_secs_f32(seconds) };
            drain.refused(excess, Duration::from_secs(1), now).as_secs()
        };
        assert_eq!([0.0, 7.2, 1000.0].map(|seconds| after(&mut drain, seconds)), [1, 8, 60]);
    }
}
