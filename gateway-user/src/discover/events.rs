//! What people should see of an object as it happens: `kubectl describe` shows it below the object.
//!
//! Each [`Note`] is drawn from two states of the object's status, so that every one of many gateways would say the same,
//! and only the one that writes the status says it. The [`Journal`] makes one event of equal notes, with their count, and
//! lets few through in a minute: pods that come and go all the time must not fill the API server, nor keep back what is said
//! of the object.
//!
//! Pure: no IO, no clock.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::objects::Meta;
use crate::config::document::{Condition, Status};

/// Something that a person should see.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Note {
    /// Somebody should do something.
    pub(super) is_warning: bool,
    /// What, for programs.
    pub(super) reason: String,
    /// What, for people.
    pub(super) message: String,
}

impl Note {
    /// Whether it is said of a pool's pods, which may come and go all the time.
    fn is_of_pods(&self) -> bool {
        let reasons = ["NoPods", "PodsFound", "SignalsMissing", "SignalsFound"];
        reasons.contains(&self.reason.as_str())
    }
}

/// What is to be written for a note.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Entry {
    /// A new event.
    New(Value),
    /// One that is there has happened again: its name, and what changes.
    Again(String, Value),
}

/// Events that were written, and how many more may be.
#[derive(Debug)]
pub(super) struct Journal {
    /// This gateway.
    instance: String,
    known: VecDeque<Known>,
    /// Events that may be written now, and when that was counted.
    left: f64,
    counted: Instant,
}

#[derive(Debug)]
struct Known {
    note: Note,
    /// The object that it is of.
    uid: String,
    name: String,
    count: u32,
    at: Instant,
}

/// What has happened between two states of an object's status.
pub(super) fn notes(before: &Status, after: &Status) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut say = |is_warning, reason: &str, message: String| {
        notes.push(Note { is_warning, reason: reason.to_owned(), message });
    };
    let of = |status: &'_ Status, kind: &str| -> Option<Condition> {
        status.conditions.iter().find(|condition| condition.kind == kind).cloned()
    };
    let is = |condition: &Option<Condition>| condition.as_ref().is_some_and(|c| c.status == "True");
    let generation = after.observed_generation.unwrap_or_default();
    let is_other = before.observed_generation != after.observed_generation;
    for (kind, is_good) in [
        ("Accepted", true),
        ("Programmed", true),
        ("ResolvedRefs", true),
        ("SignalsMissing", false),
        ("FieldIgnored", false),
    ] {
        let (old, new) = (of(before, kind), of(after, kind));
        let Some(condition) = &new else { continue };
        let (was, now) = (is(&old), is(&new));
        let has_reason = old.as_ref().map(|old| &old.reason) == Some(&condition.reason);
        let text = || match condition.message.is_empty() {
            true => format!("generation {generation}"),
            false => condition.message.clone(),
        };
        match (now == is_good, kind) {
            // Said of the object already, by `Accepted`.
            (false, "Programmed")
                if matches!(condition.reason.as_str(), "Invalid" | "Starting") => {}
            (false, _) if is_other || !has_reason => say(true, &condition.reason, text()),
            (false, _) => {}
            (true, "Accepted") if is_other || !was => {
                say(false, &condition.reason, format!("generation {generation} is valid"));
            }
            (true, "Programmed") if old.is_some() && !was || is_other => {
                say(false, &condition.reason, format!("generation {generation} is served"));
            }
            (true, "SignalsMissing") if was => {
                say(false, &condition.reason, "all pods tell what choosing one needs".into());
            }
            (true, _) => {}
        }
    }
    for pool in &after.schedulers {
        let old = before.schedulers.iter().find(|old| old.name == pool.name);
        let had = old.map(|old| old.ready > 0);
        match (had, pool.ready > 0) {
            (None | Some(true), false) => {
                // Without numbers, so that the same again is the same.
                let why = pool.message.as_deref().filter(|_| pool.matched == 0);
                let why = why.unwrap_or("no pod is ready");
                say(true, "NoPods", format!("pool {}: {why}", pool.name));
            }
            (Some(false), true) => {
                say(false, "PodsFound", format!("pool {} has pods that are ready", pool.name));
            }
            _ => {}
        }
    }
    notes
}

impl Journal {
    /// Of the gateway with this name.
    pub(super) fn new(instance: String) -> Self {
        let counted = Instant::now();
        Self { instance, known: VecDeque::new(), left: A_MINUTE, counted }
    }

    /// What is to be written for a note on an object at this moment, whose time is `time`; nothing if there were too many.
    pub(super) fn enter(
        &mut self,
        note: Note,
        object: &Meta,
        now: Instant,
        time: &str,
    ) -> Option<Entry> {
        let passed = now.saturating_duration_since(self.counted).as_secs_f64();
        self.counted = now;
        self.left = (self.left + passed * A_MINUTE / 60.0).min(A_MINUTE);
        // Pods that come and go leave some for what somebody has to do something about.
        let reserved = if note.is_of_pods() { RESERVED } else { 0.0 };
        if self.left < 1.0 + reserved {
            return None;
        }
        self.left -= 1.0;
        self.known.retain(|known| now.saturating_duration_since(known.at) < KEPT);
        let known = self.known.iter_mut().find(|of| of.note == note && of.uid == object.uid);
        if let Some(known) = known {
            known.count = known.count.saturating_add(1);
            known.at = now;
            let change = json!({ "count": known.count, "lastTimestamp": time });
            return Some(Entry::Again(known.name.clone(), change));
        }
        let name = format!("{}.{:016x}", cut(&object.name, MAX_NAME), fastrand::u64(..));
        let event = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "name": name, "namespace": object.namespace },
            "involvedObject": {
                "apiVersion": "gateway.sluice.dev/v1alpha1",
                "kind": "InferenceGatewayConfig",
                "namespace": object.namespace,
                "name": object.name,
                "uid": object.uid,
            },
            "type": if note.is_warning { "Warning" } else { "Normal" },
            "reason": note.reason,
            "message": cut(&note.message, MAX_MESSAGE),
            "source": { "component": "sluice" },
            "reportingComponent": super::CONTROLLER,
            "reportingInstance": cut(&self.instance, MAX_INSTANCE),
            "firstTimestamp": time,
            "lastTimestamp": time,
            "count": 1,
        });
        if self.known.len() >= MAX_KNOWN {
            self.known.pop_front();
        }
        self.known.push_back(Known { note, uid: object.uid.clone(), name, count: 1, at: now });
        Some(Entry::New(event))
    }

    /// The event of this name is not there any more.
    pub(super) fn forget(&mut self, name: &str) {
        self.known.retain(|known| known.name != name);
    }
}

fn cut(text: &str, most: usize) -> &str {
    text.get(..text.floor_char_boundary(most)).unwrap_or(text)
}

/// Events that one gateway writes in a minute, and at once.
const A_MINUTE: f64 = 20.0;
/// Those of them that are not for pods that come and go.
const RESERVED: f64 = 5.0;
/// Notes that are remembered, to be counted when they come again.
const MAX_KNOWN: usize = 64;
/// For how long: an API server keeps an event for an hour.
const KEPT: Duration = Duration::from_secs(50 * 60);
/// Longest message, name of an object within an event's, and gateway's name, in bytes: the API server's bounds.
const MAX_MESSAGE: usize = 1024;
const MAX_NAME: usize = 200;
const MAX_INSTANCE: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::document::SchedulerStatus;

    fn status(generation: i64, conditions: &[(&str, &str, &str)], pools: &[(&str, u32)]) -> Status {
        Status {
            observed_generation: Some(generation),
            conditions: conditions
                .iter()
                .map(|(kind, status, reason)| Condition {
                    kind: (*kind).into(),
                    status: (*status).into(),
                    reason: (*reason).into(),
                    ..Condition::default()
                })
                .collect(),
            schedulers: pools
                .iter()
                .map(|(name, ready)| SchedulerStatus {
                    name: (*name).into(),
                    ready: *ready,
                    ..SchedulerStatus::default()
                })
                .collect(),
            ..Status::default()
        }
    }

    #[test]
    fn what_has_happened_between_two_states() {
        let well = [("Accepted", "True", "Accepted"), ("Programmed", "True", "Programmed")];
        let wrong = [("Accepted", "False", "Invalid"), ("Programmed", "False", "Invalid")];
        let waits = [("Accepted", "True", "Accepted"), ("Programmed", "False", "NeedsTakeover")];
        let silent = [("SignalsMissing", "True", "SignalsMissing")];
        let heard = [("SignalsMissing", "False", "SignalsFound")];
        let ignored = [("FieldIgnored", "True", "FieldIgnored")];
        for (what, before, after, expected) in [
            ("nothing", status(1, &well, &[("a", 1)]), status(1, &well, &[("a", 2)]), &[][..]),
            (
                "the first one",
                Status::default(),
                status(1, &well, &[("a", 1), ("b", 0)]),
                &["Accepted", "Programmed", "!NoPods"],
            ),
            (
                "another one",
                status(1, &well, &[]),
                status(2, &well, &[]),
                &["Accepted", "Programmed"],
            ),
            ("a wrong one", status(1, &well, &[]), status(2, &wrong, &[]), &["!Invalid"]),
            ("wrong again", status(2, &wrong, &[]), status(3, &wrong, &[]), &["!Invalid"]),
            ("mended", status(3, &wrong, &[]), status(4, &well, &[]), &["Accepted", "Programmed"]),
            (
                "needs a takeover",
                status(1, &well, &[]),
                status(2, &waits, &[]),
                &["Accepted", "!NeedsTakeover"],
            ),
            ("was taken over", status(2, &waits, &[]), status(2, &well, &[]), &["Programmed"]),
            ("pods go", status(1, &[], &[("a", 1)]), status(1, &[], &[("a", 0)]), &["!NoPods"]),
            ("and come", status(1, &[], &[("a", 0)]), status(1, &[], &[("a", 1)]), &["PodsFound"]),
            ("a pool goes", status(1, &[], &[("a", 0)]), status(1, &[], &[]), &[]),
            ("silence", status(1, &heard, &[]), status(1, &silent, &[]), &["!SignalsMissing"]),
            ("still", status(1, &silent, &[]), status(1, &silent, &[]), &[]),
            ("heard", status(1, &silent, &[]), status(1, &heard, &[]), &["SignalsFound"]),
            ("ignored", status(1, &[], &[]), status(1, &ignored, &[]), &["!FieldIgnored"]),
        ] {
            let said: Vec<_> = notes(&before, &after)
                .into_iter()
                .map(|note| format!("{}{}", if note.is_warning { "!" } else { "" }, note.reason))
                .collect();
            assert_eq!(said, expected, "{what}");
        }
    }

    fn note(message: &str) -> Note {
        Note { is_warning: true, reason: "NoPods".into(), message: message.into() }
    }

    fn object(uid: &str) -> Meta {
        Meta { name: "edge".into(), namespace: "ns".into(), uid: uid.into(), ..Meta::default() }
    }

    #[test]
    fn equal_notes_are_one_event() {
        let mut journal = Journal::new("me".into());
        let start = Instant::now();
        let mut enter = |message, uid, seconds| {
            let now = start + Duration::from_secs(seconds);
            match journal.enter(note(message), &object(uid), now, "now").unwrap() {
                Entry::New(event) => format!("new {}", event["message"].as_str().unwrap()),
                Entry::Again(_, change) => format!("again {}", change["count"]),
            }
        };
        assert_eq!(enter("a", "1", 0), "new a");
        assert_eq!(enter("a", "1", 1), "again 2");
        assert_eq!(enter("b", "1", 2), "new b");
        assert_eq!(enter("a", "1", 3), "again 3");
        assert_eq!(enter("a", "2", 4), "new a", "it is of another object");
        assert_eq!(enter("a", "1", 4000), "new a", "the API server has forgotten it");
    }

    #[test]
    fn few_are_written_in_a_minute_and_few_are_remembered() {
        let mut journal = Journal::new("me".into());
        let start = Instant::now();
        let mut enter = |number: u32, seconds| {
            let now = start + Duration::from_secs(seconds);
            journal.enter(note(&number.to_string()), &object("1"), now, "now").is_some()
        };
        assert_eq!((0..100).filter(|number| enter(*number, 0)).count(), 15);
        assert_eq!((100..200).filter(|number| enter(*number, 30)).count(), 10);
        for minute in 0..10 {
            (0..15).for_each(|number| {
                assert!(enter(minute * 20 + number, 120 + u64::from(minute) * 60))
            });
        }
        assert!(journal.known.len() <= MAX_KNOWN);
    }

    #[test]
    fn pods_that_come_and_go_keep_nothing_else_back() {
        let mut journal = Journal::new("me".into());
        let now = Instant::now();
        let mut enter = |reason: &str, number: u32| {
            let note = Note { reason: reason.into(), ..note(&number.to_string()) };
            journal.enter(note, &object("1"), now, "now").is_some()
        };
        let reasons = ["NoPods", "PodsFound", "SignalsMissing", "SignalsFound"];
        for number in 0..100 {
            for reason in reasons {
                enter(reason, number);
            }
        }
        assert!(["Invalid", "Refused", "NeedsTakeover", "Accepted"].iter().all(|of| enter(of, 0)));
        assert_eq!((0..100).filter(|number| enter("Invalid", *number)).count(), 1);
    }

    #[test]
    fn a_pool_is_said_to_have_no_pods_without_numbers() {
        let none = |matched, message: &str| {
            let mut after = status(1, &[], &[("a", 0)]);
            after.schedulers[0].matched = matched;
            after.schedulers[0].message = Some(message.into());
            notes(&Status::default(), &after).remove(0).message
        };
        assert_eq!(none(0, "no pod has the labels x=y"), "pool a: no pod has the labels x=y");
        assert_eq!(none(3, "none of its 3 pods is ready"), "pool a: no pod is ready");
    }

    #[test]
    fn an_event_is_within_the_api_servers_bounds() {
        let mut journal = Journal::new("m".repeat(300));
        let object = Meta { name: "n".repeat(253), ..object("1") };
        let entry = journal.enter(note(&"ä".repeat(2000)), &object, Instant::now(), "now");
        let Some(Entry::New(event)) = entry else { panic!("{entry:?}") };
        assert_eq!(event["message"].as_str().unwrap().len(), 1024);
        assert!(event["metadata"]["name"].as_str().unwrap().len() <= 253);
        assert!(event["reportingInstance"].as_str().unwrap().len() <= 128);
    }
}
