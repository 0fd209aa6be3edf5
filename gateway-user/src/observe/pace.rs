//! How long to leave a pod in peace. Pure: it is told how long things took.

use std::time::Duration;

use fastrand::Rng;

/// The pauses between two questions for metrics.
///
/// Short while there is something to see, growing to the long one when there is not. Producing
/// metrics costs the pod time in the process that also serves requests (some 20 ms for vLLM), so an
/// answer that took long earns a pause in proportion.
#[derive(Debug)]
pub(super) struct Pace {
    busy: Duration,
    idle: Duration,
    current: Duration,
    rng: Rng,
}

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    /// Unless the pod becomes busy meanwhile.
    pub(super) full: Duration,
    /// Even then.
    pub(super) least: Duration,
}

/// How the last question went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Requests are running, waiting or in flight, and the gateway places more.
    Busy,
    /// Requests are running, and the gateway had none to place since the last question: what it would be told
    /// decides nothing.
    Steady,
    /// No answer.
    Failed,
    /// None of these.
    Idle,
}

impl Pace {
    pub(super) fn new(busy: Duration, idle: Duration, rng: Rng) -> Self {
        let busy = busy.clamp(SHORTEST, LONGEST);
        Self { busy, idle: idle.clamp(busy, LONGEST), current: busy, rng }
    }

    /// The pause after a question that took `took` and went as `seen`.
    pub(super) fn pause(&mut self, seen: Seen, took: Duration) -> Pause {
        self.current = match seen {
            Seen::Busy => self.busy,
            Seen::Failed | Seen::Idle => self.current.mul_f64(GROWTH).min(self.idle),
            Seen::Steady => {
                let longest = self.busy.saturating_mul(STEADY).min(self.idle);
                self.current.mul_f64(GROWTH).min(longest)
            }
        };
        let earned = took.saturating_mul(REST).min(self.idle);
        let jitter = self.jitter();
        let full = self.current.max(earned).mul_f64(jitter);
        let least = match seen {
            Seen::Busy | Seen::Failed => full,
            Seen::Idle | Seen::Steady => {
                self.busy.saturating_mul(LIGHT).min(self.current).max(earned).mul_f64(jitter)
            }
        };
        Pause { full, least }
    }

    /// `duration`, a little longer or shorter: many gateways must not ask in step.
    pub(super) fn spread(&mut self, duration: Duration) -> Duration {
        duration.mul_f64(self.jitter())
    }

    fn jitter(&mut self) -> f64 {
        1.0 + JITTER * (2.0 * self.rng.f64() - 1.0)
    }
}

/// By how much a pause may differ from the nominal one, up or down.
const JITTER: f64 = 0.1;

/// How much longer each pause without anything to see is than the one before.
const GROWTH: f64 = 1.5;

/// A pod is asked for a tenth of the time at most: it rests for nine times as long as the answer
/// took.
const REST: u32 = 9;

/// A pod that was found idle is asked no sooner than after so many of the short pauses, though requests have
/// come: those that end between two looks are no load to follow closely, and what is in flight the
/// gateway knows itself.
const LIGHT: u32 = 4;

/// The longest pause while requests run and none are placed, in short pauses: half a second by
/// default.
const STEADY: u32 = 10;

/// Shortest pause, whatever the configuration says.
const SHORTEST: Duration = Duration::from_millis(10);

/// Longest pause, whatever the configuration says.
const LONGEST: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn pace() -> Pace {
        Pace::new(50 * MS, 1000 * MS, Rng::with_seed(7))
    }

    fn about(duration: Duration, nominal: Duration) -> bool {
        (nominal.mul_f64(0.9)..=nominal.mul_f64(1.1)).contains(&duration)
    }

    #[test]
    fn busy_is_steady_and_idle_grows() {
        let mut pace = pace();
        assert!(about(pace.pause(Seen::Busy, MS).full, 50 * MS));
        assert!(about(pace.pause(Seen::Idle, MS).full, 75 * MS));
        for _ in 0..20 {
            pace.pause(Seen::Idle, MS);
        }
        let pause = pace.pause(Seen::Idle, MS);
        assert!(about(pause.full, 1000 * MS), "{pause:?}");
        assert!(about(pause.least, 200 * MS), "{pause:?}");
        assert!(about(pace.pause(Seen::Busy, MS).full, 50 * MS));
    }

    #[test]
    fn what_decides_nothing_is_asked_less_often() {
        let mut pace = pace();
        assert!(about(pace.pause(Seen::Steady, MS).full, 75 * MS));
        for _ in 0..20 {
            pace.pause(Seen::Steady, MS);
        }
        let pause = pace.pause(Seen::Steady, MS);
        assert!(about(pause.full, 500 * MS), "{pause:?}");
        assert!(about(pause.least, 200 * MS), "{pause:?}");
        assert!(about(pace.pause(Seen::Busy, MS).full, 50 * MS));
    }

    /// Case 57, picker case 26: asking must not become a load of its own.
    #[test]
    fn field_report_57_a_slow_answer_earns_rest() {
        let mut pace = pace();
        for (took, nominal) in [(5, 50), (20, 180), (100, 900), (500, 1000), (10_000, 1000)] {
            let pause = pace.pause(Seen::Busy, took * MS);
            assert!(about(pause.full, nominal * MS), "{took}: {pause:?}");
            assert!(about(pause.least, nominal * MS), "{took}: {pause:?}");
        }
        let pause = pace.pause(Seen::Idle, 20 * MS);
        assert!(about(pause.least, 180 * MS), "{pause:?}");
    }

    #[test]
    fn a_failure_backs_off_even_when_busy() {
        let mut pace = pace();
        for nominal in [75.0, 112.5, 168.75] {
            let pause = pace.pause(Seen::Failed, MS);
            assert!(about(pause.full, MS.mul_f64(nominal)), "{nominal}: {pause:?}");
            assert_eq!(pause.least, pause.full);
        }
    }

    #[test]
    fn senseless_settings() {
        let mut pace = Pace::new(Duration::ZERO, Duration::ZERO, Rng::with_seed(1));
        assert!(pace.pause(Seen::Busy, Duration::ZERO).full >= 9 * MS);
        let mut pace = Pace::new(Duration::MAX, Duration::ZERO, Rng::with_seed(1));
        assert!(pace.pause(Seen::Busy, Duration::MAX).full > MS);
    }

    #[test]
    fn jitter_spreads_and_replays() {
        let draw = || {
            let mut pace = pace();
            (0..100).map(|_| pace.spread(1000 * MS)).collect::<Vec<_>>()
        };
        let found = draw();
        assert_eq!(found, draw());
        assert!(found.iter().all(|&pause| about(pause, 1000 * MS)));
        let (least, most) = (found.iter().min().unwrap(), found.iter().max().unwrap());
        assert!(*most - *least > 150 * MS, "{least:?}..{most:?}");
    }
}
