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
    /// When it last looked.
    looked: Option<Instant>,
    /// The object whose status named no writer when it was last seen.
    vacant: Option<String>,
}

impl Candidate {
    /// One that has seen nothing yet.
    pub(super) fn new(identity: String) -> Self {
        Self { identity, seen: None, looked: None, vacant: None }
    }

    /// Whether to look at a lease that it does not hold. `uid` is that of the object, and `is_vacant` says that the
    /// object's status names no writer.
    ///
    /// Pods that come and go are no reason to look, and that nobody writes is one once: where the status cannot be
    /// written, or where the resource definition has no place for the name, it stays so for ever.
    pub(super) fn is_due(&mut self, uid: &str, is_vacant: bool, now: Instant) -> bool {
        let is_news = is_vacant && self.vacant.as_deref() != Some(uid);
        self.vacant = is_vacant.then(|| uid.to_owned());
        let is_recent = self.looked.is_some_and(|looked| now.duration_since(looked) < RENEW);
        if is_recent && !is_news {
            return false;
        }
        self.looked = Some(now);
        true
    }

    /// What is to be done, now that the lease is this; `time` is now, as it is to be written.
    ///
    /// `is_idle`: this gateway serves nothing. One that does knows more of what is served, and goes first.
    pub(super) fn step(
        &mut self,
        lease: Option<&Spec>,
        is_idle: bool,
        now: Instant,
        time: &str,
    ) -> Step {
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
        let mut lasts = match lease.holder_identity.is_empty() {
            true => Duration::ZERO,
            false => Duration::from_secs(lease.lease_duration_seconds.into()),
        };
        if is_idle {
            lasts += Duration::from_secs(LASTS.into());
        }
        if now.duration_since(since) < lasts {
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
            me.step(lease.as_ref(), false, start + Duration::from_secs(seconds), "now")
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
        let next = Candidate::new("next".into()).step(Some(&given), false, Instant::now(), "now");
        assert_eq!(next, Step::Hold(spec("next", "now", 5)));
    }

    #[test]
    fn another_holder_has_all_its_time() {
        let mut me = Candidate::new("me".into());
        let start = Instant::now();
        let mut at = |seconds, holder| {
            me.step(Some(&spec(holder, "x", 0)), false, start + Duration::from_secs(seconds), "now")
        };
        assert_eq!(at(0, "a"), Step::Wait);
        assert_eq!(at(14, "b"), Step::Wait);
        assert_eq!(at(28, "b"), Step::Wait);
        assert_eq!(at(29, "b"), Step::Hold(spec("me", "now", 1)));
    }

    #[test]
    fn who_serves_nothing_lets_others_go_first() {
        let mut me = Candidate::new("me".into());
        let start = Instant::now();
        let mut at = |seconds, lease: Option<Spec>, is_idle| {
            let now = start + Duration::from_secs(seconds);
            me.step(lease.as_ref(), is_idle, now, "now")
        };
        let wait = Step::Wait;
        let (given, held) = (Some(spec("", "x", 1)), Some(spec("other", "x", 1)));
        assert_eq!(at(0, given.clone(), true), wait);
        assert_eq!(at(14, given.clone(), true), wait);
        assert_eq!(at(15, given.clone(), true), Step::Hold(spec("me", "now", 2)));
        assert_eq!(at(20, held.clone(), true), wait);
        assert_eq!(at(49, held.clone(), true), wait);
        assert_eq!(at(50, held.clone(), true), Step::Hold(spec("me", "now", 2)));
        // It serves by now.
        assert_eq!(at(50, held, false), Step::Hold(spec("me", "now", 2)));
        // Nobody ever had it, or it has it already.
        assert_eq!(at(60, None, true), Step::Hold(spec("me", "now", 0)));
        assert_eq!(at(61, Some(spec("me", "x", 1)), true), Step::Hold(spec("me", "now", 1)));
    }

    #[test]
    fn others_leases_are_looked_at_seldom() {
        let mut me = Candidate::new("me".into());
        let start = Instant::now();
        for (what, milliseconds, uid, is_vacant, expected) in [
            ("the first time", 0, "1", false, true),
            ("pods come and go", 500, "1", false, false),
            ("some time later", 5000, "1", false, true),
            ("the writer has left", 5500, "1", true, true),
            ("and still", 6000, "1", true, false),
            ("some time later", 10_500, "1", true, true),
            ("there is one", 11_000, "1", false, false),
            ("which leaves as well", 11_500, "1", true, true),
            ("another object, of which nobody has said anything", 12_000, "2", true, true),
            ("and still", 12_500, "2", true, false),
        ] {
            let now = start + Duration::from_millis(milliseconds);
            assert_eq!(me.is_due(uid, is_vacant, now), expected, "{what}, {milliseconds} ms");
        }
    }
}
