//! The share of failures in the last minute.
//!
//! A ratio since the start would hide a failure that began an hour in; one between two scrapes
//! would differ with each that scrapes. So requests are counted in slots of [`SLOT`], and the last
//! [`SLOTS`] of them make the ratio.

use std::time::Duration;

/// Requests and failures of the last minute. Time is passed in, from any fixed start.
#[derive(Debug, Default)]
pub(super) struct Window {
    slots: [Slot; SLOTS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Which stretch of [`SLOT`] since the start this counts; an older one is out of the window.
    epoch: u64,
    requests: u64,
    failures: u64,
}

impl Window {
    /// Counts one request that ended at `now`.
    pub(super) fn count(&mut self, now: Duration, failed: bool) {
        let epoch = epoch(now);
        let Some(slot) = self.slots.get_mut((epoch % SLOTS as u64) as usize) else {
            return;
        };
        if slot.epoch != epoch {
            *slot = Slot { epoch, ..Slot::default() };
        }
        slot.requests += 1;
        slot.failures += u64::from(failed);
    }

    /// Failures over requests; `None` when there were no requests.
    pub(super) fn ratio(&self, now: Duration) -> Option<f64> {
        let now = epoch(now);
        let live = self.slots.iter().filter(|slot| slot.epoch + SLOTS as u64 > now);
        let (requests, failures) = live.fold((0, 0), |(requests, failures), slot| {
            (requests + slot.requests, failures + slot.failures)
        });
        (requests > 0).then(|| failures as f64 / requests as f64)
    }
}

fn epoch(now: Duration) -> u64 {
    now.as_secs() / SLOT.as_secs()
}

/// How finely the minute is cut: the window is 50 s to 60 s long.
const SLOT: Duration = Duration::from_secs(10);
const SLOTS: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_a_minute_is_forgotten() {
        let at = Duration::from_secs;
        let mut window = Window::default();
        assert_eq!(window.ratio(at(0)), None);
        window.count(at(0), true);
        window.count(at(9), false);
        assert_eq!(window.ratio(at(9)), Some(0.5));
        window.count(at(30), false);
        window.count(at(30), false);
        assert_eq!(window.ratio(at(59)), Some(0.25));
        assert_eq!(window.ratio(at(60)), Some(0.0));
        assert_eq!(window.ratio(at(89)), Some(0.0));
        assert_eq!(window.ratio(at(90)), None);
        window.count(at(60 * 60), true);
        assert_eq!(window.ratio(at(60 * 60)), Some(1.0));
    }
}
