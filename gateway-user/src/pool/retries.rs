//! How many requests may be sent to another pod after one has failed them. Pure: time is passed in.
//!
//! What makes every pod fail (an overload, a request that kills each engine that reads it) is made worse by trying
//! again, up to `maxAttempts` times as bad. So retries may be a share of the requests of the last ten seconds, as in
//! Linkerd's and Envoy's budgets; of those in flight where these are more, as a request here can take minutes and all that a
//! dying pod had fails at once. And a few in each second, so that a pool that is little used has some.

use std::time::Duration;

use crate::config::RetryBudget;

/// Requests and retries of the last [`SPAN`] seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Retries {
    seconds: [Second; SPAN as usize],
}

/// What came in one second.
#[derive(Clone, Copy, Debug, Default)]
struct Second {
    /// Which one; others have been here before.
    number: u64,
    requests: u32,
    retries: u32,
}

impl Retries {
    /// Counts a request.
    pub(super) fn began(&mut self, at: Duration) {
        let second = self.second(at);
        second.requests = second.requests.saturating_add(1);
    }

    /// Counts one that is sent to another pod.
    pub(super) fn retried(&mut self, at: Duration) {
        let second = self.second(at);
        second.retries = second.retries.saturating_add(1);
    }

    /// Whether one more may be. `in_flight`: requests that the pool has.
    pub(super) fn allow(&self, budget: RetryBudget, in_flight: u32, at: Duration) -> bool {
        let now = at.as_secs();
        let recent = self.seconds.iter().filter(|second| now.saturating_sub(second.number) < SPAN);
        let (requests, retries) = recent.fold((0_u32, 0_u32), |(requests, retries), second| {
            (requests.saturating_add(second.requests), retries.saturating_add(second.retries))
        });
        let share = f64::from(budget.ratio) * f64::from(requests.max(in_flight));
        let least = f64::from(budget.min_per_second) * SPAN as f64;
        // Of a share such as 0.1, ten are one.
        f64::from(retries) + 1.0 <= share + least + ROUNDING
    }

    fn second(&mut self, at: Duration) -> &mut Second {
        let number = at.as_secs();
        let [first, rest @ ..] = &mut self.seconds;
        let place = (number % SPAN) as usize;
        let second = match place.checked_sub(1).and_then(|place| rest.get_mut(place)) {
            Some(second) => second,
            None => first,
        };
        // Another thread's `at` may be a little older.
        if second.number < number {
            *second = Second { number, ..Second::default() };
        }
        second
    }
}

/// Seconds that are looked back on.
const SPAN: u64 = 10;

/// What a product of fractions may be off.
const ROUNDING: f64 = 1e-4;

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(budget: RetryBudget, requests: u32, in_flight: u32, at: &[u64]) -> Vec<bool> {
        let mut retries = Retries::default();
        for _ in 0..requests {
            retries.began(Duration::ZERO);
        }
        let at = at.iter().map(|second| Duration::from_secs(*second));
        at.map(|at| {
            let allowed = retries.allow(budget, in_flight, at);
            if allowed {
                retries.retried(at);
            }
            allowed
        })
        .collect()
    }

    #[test]
    fn at_the_cap_and_one_more() {
        let budget = |ratio, min_per_second| RetryBudget { ratio, min_per_second };
        for (budget, requests, in_flight, most) in [
            (budget(0.0, 0), 1000, 1000, 0),
            (budget(0.2, 0), 4, 0, 0),
            (budget(0.2, 0), 5, 0, 1),
            (budget(0.1, 0), 30, 0, 3),
            (budget(0.5, 0), 100, 0, 50),
            // Those in flight count where they are more than those that came, and not beside them.
            (budget(0.5, 0), 100, 100, 50),
            (budget(0.5, 0), 10, 100, 50),
            (budget(0.0, 1), 0, 0, 10),
            (budget(0.5, 2), 10, 0, 25),
            (budget(2.0, 0), 3, 0, 6),
        ] {
            let found = allowed(budget, requests, in_flight, &vec![0; most + 1]);
            assert_eq!(found.iter().filter(|allowed| **allowed).count(), most, "{budget:?}");
            assert!(!found[most], "{budget:?}");
        }
    }

    #[test]
    fn what_is_ten_seconds_old_is_forgotten() {
        let budget = RetryBudget { ratio: 0.5, min_per_second: 0 };
        for (requests, at, found) in [
            (2, vec![0, 9, 9], vec![true, false, false]),
            // The requests are as old as the retry.
            (2, vec![0, 10], vec![true, false]),
            (4, vec![0, 5, 9, 9, 10], vec![true, true, false, false, false]),
        ] {
            assert_eq!(allowed(budget, requests, 0, &at), found, "{at:?}");
        }
        let few = RetryBudget { ratio: 0.0, min_per_second: 1 };
        let mut at = vec![0; 10];
        at.extend([0, 9, 10, 25, 25]);
        let mut found = vec![true; 10];
        found.extend([false, false, true, true, true]);
        assert_eq!(allowed(few, 0, 0, &at), found);
    }

    #[test]
    fn time_may_seem_to_go_back() {
        let mut retries = Retries::default();
        let budget = RetryBudget { ratio: 1.0, min_per_second: 0 };
        retries.began(Duration::from_secs(11));
        retries.began(Duration::from_secs(1));
        for second in [10, 11] {
            assert!(retries.allow(budget, 0, Duration::from_secs(second)));
            retries.retried(Duration::from_secs(second));
        }
        assert!(!retries.allow(budget, 0, Duration::from_secs(12)));
    }
}
