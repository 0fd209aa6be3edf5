//! Which of many gateways writes: the one that holds the `Lease`.
//!
//! Pure. No two machines' clocks are compared: a lease is over when its holder has not renewed it for as long as it says,
//! by the clock of whoever looks.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// As much of a `Lease` as matters.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Spec {
    /// Who has it; empty if nobody does.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) holder_identity: String,
    /// For how long, in seconds, unless it is renewed.
    pub(super) lease_duration_seconds: u32,
    /// When it was renewed, by the holder's clock.
    pub(super) renew_time: String,
    /// How often it has changed hands.
    pub(super) lease_transitions: u32,
}

/// What is to be done about the lease.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Nothing: somebody has it.
    Wait,
    /// Write this, as the holder.
    Hold(Spec),
}

/// What this gateway has seen of the lease.
#[derive(Debug)]
pub(super) struct Candidate {
    identity: String,
    /// Holder and time of renewal as they were seen first, and when.
    seen: Option<(String, String, Instant)>,
}

impl Candidate {
    /// One that has seen nothing yet.
    pub(super) fn new(identity: String) -> Self {
        Self { identity, seen: None }
    }

    /// What is to be done, now that the lease is this; `time` is now, as it is to be written.
    pub(super) fn step(&mut self, lease: Option<&Spec>, now: Instant, time: &str) -> Step {
        let Some(lease) = lease else { return Step::Hold(self.spec(0, time)) };
        if lease.holder_identity == self.identity {
            return Step::Hold(self.spec(lease.lease_transitions, time));
        }
        let since = match &self.seen {
            Some((holder, renewed, since))
                if *holder == lease.holder_identity && *renewed == lease.renew_time =>
            {
                *since
            }
            _ => {
                let (holder, renewed) = (lease.holder_identity.clone(), lease.renew_time.clone());
                self.seen = Some((holder, renewed, now));
                now
            }
        };
        let lasts = Duration::from_secs(lease.lease_duration_seconds.into());
        if !lease.holder_identity.is_empty() && now.duration_since(since) < lasts {
            return Step::Wait;
        }
        Step::Hold(self.spec(lease.lease_transitions.saturating_add(1), time))
    }

    /// What is to be written when this gateway leaves; nothing if the lease is another's.
    pub(super) fn release(&self, lease: &Spec) -> Option<Spec> {
        let is_own = lease.holder_identity == self.identity;
        is_own.then(|| Spec { holder_identity: String::new(), ..lease.clone() })
    }

    fn spec(&self, transitions: u32, time: &str) -> Spec {
        Spec {
            holder_identity: self.identity.clone(),
            lease_duration_seconds: LASTS,
            renew_time: time.to_owned(),
            lease_transitions: transitions,
        }
    }
}

/// Seconds that a lease lasts unless it is renewed, which is done three times in it.
const LASTS: u32 = 15;
/// From one renewal to the next.
pub(super) const RENEW: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(holder: &str, renewed: &str, transitions: u32) -> Spec {
        Spec {
            holder_identity: holder.into(),
            lease_duration_seconds: 15,
            renew_time: renewed.into(),
            lease_transitions: transitions,
        }
    }

    #[test]
    fn one_holds_it_until_it_renews_it_no_more() {
        let mut me = Candidate::new("me".into());
        let start = Instant::now();
        let mut at = |seconds, lease: Option<Spec>| {
            me.step(lease.as_ref(), start + Duration::from_secs(seconds), "now")
        };
        // It is renewed, however wrong the holder's clock is.
        assert_eq!(at(0, Some(spec("other", "1999", 3))), Step::Wait);
        assert_eq!(at(14, Some(spec("other", "1999", 3))), Step::Wait);
        assert_eq!(at(16, Some(spec("other", "2099", 3))), Step::Wait);
        assert_eq!(at(30, Some(spec("other", "2099", 3))), Step::Wait);
        // It is not.
        assert_eq!(at(31, Some(spec("other", "2099", 3))), Step::Hold(spec("me", "now", 4)));
        // Its own, whatever the time.
        assert_eq!(at(99, Some(spec("me", "x", 4))), Step::Hold(spec("me", "now", 4)));
        // Nobody's, and none.
        assert_eq!(at(100, Some(spec("", "x", 4))), Step::Hold(spec("me", "now", 5)));
        assert_eq!(at(101, None), Step::Hold(spec("me", "now", 0)));
    }

    #[test]
    fn who_leaves_gives_back_its_own() {
        let me = Candidate::new("me".into());
        let given = me.release(&spec("me", "x", 4)).unwrap();
        assert_eq!(given, spec("", "x", 4));
        assert!(!serde_json::to_string(&given).unwrap().contains("holder"));
        assert_eq!(me.release(&spec("other", "x", 4)), None);
        // Whoever comes next has it at once.
        let next = Candidate::new("next".into()).step(Some(&given), Instant::now(), "now");
        assert_eq!(next, Step::Hold(spec("next", "now", 5)));
    }

    #[test]
    fn another_holder_has_all_its_time() {
        let mut me = Candidate::new("me".into());
        let start = Instant::now();
        let mut at = |seconds, holder| {
            me.step(Some(&spec(holder, "x", 0)), start + Duration::from_secs(seconds), "now")
        };
        assert_eq!(at(0, "a"), Step::Wait);
        assert_eq!(at(14, "b"), Step::Wait);
        assert_eq!(at(28, "b"), Step::Wait);
        assert_eq!(at(29, "b"), Step::Hold(spec("me", "now", 1)));
    }
}
