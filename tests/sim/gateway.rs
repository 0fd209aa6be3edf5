//! What one gateway knows of the pods: signals as old as its last look, and its own requests.

use gateway_user::schedule::Signals;

/// One pod, as a gateway sees it.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// It is not known to be gone.
    pub ready: bool,
    /// The present request has been tried there.
    pub tried: bool,
    /// Requests that this gateway has in flight there.
    pub in_flight: u32,
    /// What its metrics said.
    pub signals: Signals,
    /// Adapters of its running and waiting requests, as its metrics said.
    pub adapters: Vec<u32>,
    /// When they said it.
    pub at: Option<u64>,
    /// KV cache in all, in blocks of 16 tokens, from its metrics.
    pub kv_blocks: u32,
    /// When it is asked next.
    pub due: u64,
    /// The present pause between two looks.
    pub(in crate::sim) pause: u64,
    /// A request was placed since the last look.
    pub(in crate::sim) placed: bool,
}

/// How a gateway looks at metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looks {
    /// Not at all.
    Never,
    /// Every 50 ms.
    Steadily,
    /// As `observe` does: every 50 ms while there is load to place, more and more seldom otherwise.
    Paced,
}

impl Seen {
    /// A request was placed. Returns when the pod must now be asked, if that is sooner than it was.
    pub(super) fn place(&mut self, now: u64, looks: Looks) -> Option<u64> {
        self.in_flight += 1;
        self.placed = true;
        let soon = now.max(self.at.unwrap_or(0) + LIGHT);
        let sooner = looks == Looks::Paced && soon < self.due;
        sooner.then(|| {
            self.due = soon;
            soon
        })
    }

    /// When to look next, after a look at `now` that got an answer or did not.
    pub(super) fn pace(&mut self, now: u64, looks: Looks, jitter: f64) -> u64 {
        let placed = std::mem::take(&mut self.placed);
        let load = self.signals.waiting.unwrap_or(0) + self.signals.running.unwrap_or(0);
        self.pause = match looks {
            _ if looks == Looks::Steadily || placed => BUSY,
            _ if self.in_flight + load > 0 => (self.pause * 3 / 2).clamp(BUSY, STEADY),
            _ => (self.pause * 3 / 2).clamp(BUSY, IDLE),
        };
        self.due = now + (self.pause as f64 * (0.9 + 0.2 * jitter)) as u64;
        self.due
    }
}

/// Between two looks at a pod that is given requests (`busyInterval`), microseconds.
pub const BUSY: u64 = 50_000;
/// Between two reports to the other gateways, where these exchange what they have in flight, if nothing was sent;
/// the least time between two, if something was; and how long one is under way. Microseconds.
pub const TELL: u64 = 20_000;
pub(super) const TELL_SOON: u64 = 5_000;
pub(super) const UNDER_WAY: u64 = 1_000;
/// At a pod that is busy and given none.
const STEADY: u64 = 500_000;
/// At an idle pod (`idleInterval`).
const IDLE: u64 = 1_000_000;
/// Least time between two looks at a pod that was idle.
const LIGHT: u64 = 200_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_as_dense_as_there_is_load_to_place() {
        let mut seen = Seen::default();
        assert_eq!(seen.pace(0, Looks::Steadily, 0.5), BUSY);
        for _ in 0..20 {
            seen.pace(0, Looks::Paced, 0.5);
        }
        assert_eq!(seen.due, IDLE);
        seen.at = Some(0);
        assert_eq!(seen.place(10, Looks::Paced), Some(LIGHT));
        assert_eq!(seen.place(20, Looks::Paced), None, "it is due already");
        assert_eq!(seen.pace(LIGHT, Looks::Paced, 0.5), LIGHT + BUSY);
        for _ in 0..20 {
            seen.pace(0, Looks::Paced, 0.5);
        }
        assert_eq!(seen.due, STEADY, "its own are in flight");
    }
}
