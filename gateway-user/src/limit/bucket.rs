//! A token bucket: how much may go by in a minute, all at once or bit by bit. Pure: time is passed in.
//!
//! What is taken may turn out to have been too little, as the tokens of an answer are known at its end only: then the
//! bucket is in debt, and nothing is taken before that has been paid back by the time that passes.

use std::time::Duration;

use tokio::time::Instant;

/// So much in a minute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    per_minute: u64,
    /// What may be taken now; below 0 is a debt.
    level: f64,
    /// When `level` was right.
    at: Instant,
}

/// Why nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Short {
    /// There will be enough in so long.
    Wait(Duration),
    /// It is more than the bucket ever holds.
    Never,
}

/// What clients are told of a bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct State {
    /// The most that it holds.
    pub(super) limit: u64,
    /// What may be taken now.
    pub(super) remaining: u64,
    /// Until it is full again.
    pub(super) reset: Duration,
}

impl Bucket {
    /// A full one.
    pub(super) fn new(per_minute: u64, now: Instant) -> Self {
        Self { per_minute, level: per_minute as f64, at: now }
    }

    /// Has it let so much go by in a minute from now on. What has been taken stays taken.
    pub(super) fn set_rate(&mut self, per_minute: u64, now: Instant) {
        self.refill(now);
        self.level += per_minute as f64 - self.per_minute as f64;
        self.per_minute = per_minute;
    }

    /// Whether `amount` could be taken now.
    ///
    /// # Errors
    /// [`Short`], with the time until it could.
    pub(super) fn check(&mut self, amount: u64, now: Instant) -> Result<(), Short> {
        self.refill(now);
        if amount > self.per_minute {
            return Err(Short::Never);
        }
        let missing = amount as f64 - self.level;
        // Time comes in whole nanoseconds, and what it has brought can be short by a part of one.
        if missing <= ROUNDING {
            return Ok(());
        }
        Err(Short::Wait(self.time_for(missing)))
    }

    /// Takes `amount`, be it there or not.
    pub(super) fn take(&mut self, amount: u64) {
        self.level -= amount as f64;
    }

    /// Gives back what has been taken in vain.
    pub(super) fn give(&mut self, amount: u64) {
        self.level += amount as f64;
    }

    /// How it stands.
    pub(super) fn state(&mut self, now: Instant) -> State {
        self.refill(now);
        State {
            limit: self.per_minute,
            remaining: (self.level + ROUNDING).max(0.0) as u64,
            reset: self.time_for(self.per_minute as f64 - self.level),
        }
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        let full = self.per_minute as f64;
        self.level = (self.level + passed * full / MINUTE).min(full);
        // Another thread's `now` may be a little older.
        self.at = self.at.max(now);
    }

    fn time_for(&self, amount: f64) -> Duration {
        let seconds = amount.max(0.0) * MINUTE / self.per_minute.max(1) as f64;
        // A debt of years is not worth an error.
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

/// Seconds in which the whole of a bucket comes in.
const MINUTE: f64 = 60.0;

/// What sums of fractions may be off.
const ROUNDING: f64 = 1e-6;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn at_the_cap_and_one_more() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut bucket = Bucket::new(60, start);
        for _ in 0..60 {
            bucket.check(1, start).unwrap();
            bucket.take(1);
        }
        assert_eq!(bucket.check(1, start), Err(Short::Wait(Duration::from_secs(1))));
        assert_eq!(bucket.check(1, at(999)), Err(Short::Wait(Duration::from_millis(1))));
        assert_eq!(bucket.check(1, at(1000)), Ok(()));
        bucket.take(1);
        assert_eq!(bucket.check(2, at(1000)), Err(Short::Wait(Duration::from_secs(2))));
    }

    #[test]
    fn table() {
        let start = Instant::now();
        // Rate, taken at once, seconds later, what is left then, seconds until it is full.
        for (rate, taken, later, remaining, reset) in [
            (60, 0, 0, 60, 0),
            (60, 60, 0, 0, 60),
            (60, 60, 30, 30, 30),
            (60, 60, 600, 60, 0),
            (60, 1, 0, 59, 1),
            (60, 90, 0, 0, 90),
            (60, 90, 30, 0, 60),
            (60, 90, 31, 1, 59),
            (1, 1, 59, 0, 1),
            (1, 1, 60, 1, 0),
            (90_000, 1500, 0, 88_500, 1),
        ] {
            let mut bucket = Bucket::new(rate, start);
            bucket.take(taken);
            let state = bucket.state(start + Duration::from_secs(later));
            let shown = (state.limit, state.remaining, state.reset.as_secs_f64().round() as u64);
            assert_eq!(shown, (rate, remaining, reset), "{rate} {taken} {later}");
        }
    }

    #[test]
    fn more_than_it_holds_is_never_there() {
        let now = Instant::now();
        let mut bucket = Bucket::new(10, now);
        assert_eq!(bucket.check(10, now), Ok(()));
        assert_eq!(bucket.check(11, now), Err(Short::Never));
    }

    #[test]
    fn what_is_given_back_does_not_overflow_it() {
        let now = Instant::now();
        let mut bucket = Bucket::new(10, now);
        bucket.take(3);
        bucket.give(5);
        assert_eq!(bucket.state(now).remaining, 10);
    }

    #[test]
    fn a_new_rate_keeps_what_was_taken() {
        let now = Instant::now();
        let mut bucket = Bucket::new(10, now);
        bucket.take(4);
        bucket.set_rate(20, now);
        assert_eq!(bucket.state(now).remaining, 16);
        bucket.set_rate(5, now);
        assert_eq!(bucket.state(now).remaining, 1);
    }

    proptest! {
        /// Whatever is asked and when, no more goes by than a full bucket and what the time brings.
        #[test]
        fn never_more_than_the_rate(
            rate in 1_u64..1000,
            asked in prop::collection::vec((0_u64..5000, 0_u64..300), 1..100),
        ) {
            let start = Instant::now();
            let mut bucket = Bucket::new(rate, start);
            let (mut millis, mut total) = (0, 0);
            for (pause, amount) in asked {
                millis += pause;
                let now = start + Duration::from_millis(millis);
                match bucket.check(amount, now) {
                    Ok(()) => {
                        bucket.take(amount);
                        total += amount;
                    }
                    Err(Short::Wait(after)) => {
                        let then = now + after + Duration::from_nanos(1);
                        prop_assert_eq!(bucket.check(amount, then), Ok(()));
                        // Looked at in the future, the bucket must not be asked about the past.
                        millis += after.as_millis() as u64 + 1;
                    }
                    Err(Short::Never) => prop_assert!(amount > rate),
                }
            }
            let most = rate as f64 * (1.0 + millis as f64 / 60_000.0);
            prop_assert!(total as f64 <= most + 0.01, "{} of {}", total, most);
        }
    }
}
