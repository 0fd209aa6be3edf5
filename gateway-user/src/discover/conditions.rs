//! What is known of the object, as its status.
//!
//! | type | `True` | `False`, by its reason |
//! |---|---|---|
//! | `Accepted` | the object is valid | `Invalid`: every error is in the message |
//! | `ResolvedRefs` | every pool has a selector or pods | `NoSelector`, or `PoolLeftOut` for an `InferencePool` |
//! | `Programmed` | a gateway serves this generation | `Invalid`: it serves an older one, or none yet; `Refused`: so it does, for what the message says; `NeedsTakeover`: some parts are older |
//! | `Ready` | every pool has a pod that is ready and answers | `NoPods`, `NotReady`, `Unreachable`, or that of `Accepted` |
//! | `NoPods` | a selector matches nothing | all match something |
//! | `SignalsMissing` | of a pod something is not known that choosing one needs | all tell it, or have not been asked yet |
//! | `FieldIgnored` | fields have no effect; the message names them | all have one |
//!
//! Pure: the time is the caller's, and what did not change keeps the time when it last did.

use super::resolve::{Finding, PoolFacts, Resolved};
use super::signals::Lack;
use crate::config::Note;
use crate::config::document::{Condition, SchedulerStatus, Status};

/// Why a gateway does not serve what the objects came to, or not wholly.
#[derive(Clone, Debug, PartialEq)]
pub enum Unapplied {
    /// It serves nothing yet.
    Nothing,
    /// It could not be taken, for this reason.
    Refused(String),
    /// These parts cannot change while the gateway runs.
    NeedsTakeover(String),
}

/// What one gateway knows of an object.
#[derive(Clone, Debug)]
pub struct Report {
    /// What the objects have come to.
    pub resolved: Resolved,
    /// Whether the gateway serves this configuration, or why not.
    pub applied: Result<(), Unapplied>,
    /// What it does not know of pods.
    pub lacks: Vec<Lack>,
}

/// The status of the object that this came from; `before` is its status so far, and `now` the time, as RFC 3339.
#[must_use]
pub fn status(report: &Report, before: &Status, now: &str) -> Status {
    let Report { resolved, applied, lacks } = report;
    let generation = resolved.object.as_ref().map(|object| object.generation);
    let pools = &resolved.pools;
    let sum =
        |count: fn(&PoolFacts) -> u32| pools.iter().map(|pool| u64::from(count(pool))).sum::<u64>();
    let mut conditions: Vec<Condition> = verdicts(resolved, applied, lacks)
        .into_iter()
        .map(|Verdict { kind, holds, reason, message }| Condition {
            kind: kind.to_owned(),
            status: if holds { "True" } else { "False" }.to_owned(),
            observed_generation: generation,
            last_transition_time: now.to_owned(),
            reason: reason.to_owned(),
            message: cut(message, MAX_MESSAGE),
        })
        .collect();
    for condition in &mut conditions {
        let old = before.conditions.iter().find(|old| old.kind == condition.kind);
        if let Some(old) = old.filter(|old| old.status == condition.status) {
            condition.last_transition_time.clone_from(&old.last_transition_time);
        }
    }
    Status {
        observed_generation: generation,
        pools: u32::try_from(pools.len()).unwrap_or(u32::MAX),
        pods: format!("{}/{}", sum(|pool| pool.ready), sum(|pool| pool.matched)),
        writer: before.writer.clone(),
        conditions,
        schedulers: pools.iter().take(MAX_POOLS).map(|pool| scheduler(pool, lacks)).collect(),
    }
}

fn scheduler(pool: &PoolFacts, lacks: &[Lack]) -> SchedulerStatus {
    let PoolFacts { name, matched, ready, local: _, is_inference_pool: _, findings } = pool;
    let mut message: Vec<_> = findings.iter().map(ToString::to_string).collect();
    let lacks = lacks.iter().filter(|lack| lack.pool == *name);
    let without_signals = u32::try_from(lacks.clone().count()).unwrap_or(u32::MAX);
    message.extend(lacks.take(MAX_LACKS).map(|lack| format!("{}: {}", lack.pod, lack.what)));
    let message = message.join("; ");
    SchedulerStatus {
        name: name.clone(),
        matched: *matched,
        ready: *ready,
        without_signals,
        message: (!message.is_empty()).then(|| cut(message, MAX_POOL_MESSAGE)),
    }
}

struct Verdict {
    kind: &'static str,
    holds: bool,
    reason: &'static str,
    message: String,
}

fn verdicts(resolved: &Resolved, applied: &Result<(), Unapplied>, lacks: &[Lack]) -> Vec<Verdict> {
    let verdict = |kind, holds, reason, message: String| Verdict { kind, holds, reason, message };
    let wrong = match &resolved.config {
        Some(Err(errors)) => {
            let said: Vec<_> = errors.list.iter().map(ToString::to_string).collect();
            Some(said.join("\n"))
        }
        _ => None,
    };
    let accepted = match &wrong {
        None => verdict("Accepted", true, "Accepted", String::new()),
        Some(said) => verdict("Accepted", false, "Invalid", said.clone()),
    };
    let programmed = match (&wrong, applied) {
        (Some(_), Err(Unapplied::Nothing)) => {
            let text = "not valid, and nothing was served before".to_owned();
            verdict("Programmed", false, "Invalid", text)
        }
        (Some(_), _) => {
            let text = "not valid, so what was served before is served still".to_owned();
            verdict("Programmed", false, "Invalid", text)
        }
        (None, Err(Unapplied::Nothing)) => {
            verdict("Programmed", false, "Starting", "nothing is served yet".into())
        }
        (None, Err(Unapplied::Refused(why))) => {
            verdict("Programmed", false, "Refused", why.clone())
        }
        (None, Err(Unapplied::NeedsTakeover(parts))) => {
            let text =
                format!("{parts} cannot change while the gateway runs: a takeover brings it in");
            verdict("Programmed", false, "NeedsTakeover", text)
        }
        (None, Ok(())) => verdict("Programmed", true, "Programmed", String::new()),
    };
    let selectorless = of_pools(resolved, |finding| matches!(finding, Finding::NoSelector));
    let left_out: Vec<_> = resolved
        .left_out
        .iter()
        .map(|(name, why)| format!("InferencePool {name} is left out: {why}"))
        .collect();
    let resolved_refs = match (selectorless.is_empty(), left_out.is_empty()) {
        (false, _) => {
            let all = [selectorless.as_slice(), left_out.as_slice()].concat();
            verdict("ResolvedRefs", false, "NoSelector", all.join("\n"))
        }
        (true, false) => verdict("ResolvedRefs", false, "PoolLeftOut", left_out.join("\n")),
        (true, true) => verdict("ResolvedRefs", true, "ResolvedRefs", String::new()),
    };
    let no_pods = of_pools(resolved, |finding| matches!(finding, Finding::NoPods(_)));
    let fatal = of_pools(resolved, Finding::is_fatal);
    let unreachable: Vec<_> =
        resolved.pools.iter().filter_map(|pool| unreachable(pool, lacks)).collect();
    let ready = match (&wrong, fatal.is_empty()) {
        (Some(_), _) => verdict("Ready", false, "Invalid", "not valid, see Accepted".into()),
        (None, true) if !unreachable.is_empty() => {
            verdict("Ready", false, "Unreachable", unreachable.join("\n"))
        }
        (None, true) => verdict("Ready", true, "Ready", String::new()),
        (None, false) if no_pods.is_empty() && selectorless.is_empty() => {
            verdict("Ready", false, "NotReady", fatal.join("\n"))
        }
        (None, false) => verdict("Ready", false, "NoPods", fatal.join("\n")),
    };
    let no_pods = match no_pods.is_empty() {
        true => verdict("NoPods", false, "PodsFound", String::new()),
        false => verdict("NoPods", true, "NoPods", no_pods.join("\n")),
    };
    let lacking: Vec<_> = lacks.iter().take(MAX_LACKS).map(ToString::to_string).collect();
    let signals = match lacking.is_empty() {
        true => verdict("SignalsMissing", false, "SignalsFound", String::new()),
        false => verdict("SignalsMissing", true, "SignalsMissing", lacking.join("\n")),
    };
    let mut ignored: Vec<_> = match &resolved.config {
        Some(Ok(loaded)) => {
            let line = |note: &Note| {
                let file = note.file.as_ref().map(|file| format!("{file}: ")).unwrap_or_default();
                format!("{file}{} {}", note.field, note.text)
            };
            loaded.notes.iter().map(line).collect()
        }
        _ => Vec::new(),
    };
    ignored.extend(of_pools(resolved, |finding| matches!(finding, Finding::Protocol(_))));
    let ignored = match ignored.is_empty() {
        true => verdict("FieldIgnored", false, "AllHaveEffect", String::new()),
        false => verdict("FieldIgnored", true, "FieldIgnored", ignored.join("\n")),
    };
    vec![accepted, resolved_refs, programmed, ready, no_pods, signals, ignored]
}

/// What is found of that kind, with the pools' names.
fn of_pools(resolved: &Resolved, kind: impl Fn(&Finding) -> bool) -> Vec<String> {
    let of_pool = |pool: &PoolFacts| {
        let finding = pool.findings.iter().find(|finding| kind(finding))?;
        Some(format!("{}: {finding}", pool.name))
    };
    resolved.pools.iter().filter_map(of_pool).collect()
}

/// The beginning of a text that is too long for its place.
fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        let end = text.floor_char_boundary(most.saturating_sub(4));
        text.truncate(end);
        text.push_str(" ...");
    }
    text
}

/// Longest message of a condition, in bytes: a list of objects has to stay readable.
const MAX_MESSAGE: usize = 4096;
/// Pools that the status lists, as many as the resource definition lets it.
const MAX_POOLS: usize = 200;
/// Pods that a message names, each with what is not known of it.
const MAX_LACKS: usize = 32;
/// Longest message of a pool, in bytes.
const MAX_POOL_MESSAGE: usize = 1024;

/// What there is to say of a pool whose pods are ready by Kubernetes' word, and none of which answers the gateway.
fn unreachable(pool: &PoolFacts, lacks: &[Lack]) -> Option<String> {
    let mut down = lacks.iter().filter(|lack| lack.is_down && lack.pool == pool.name).peekable();
    let why = down.peek()?.what.clone();
    let all = usize::try_from(pool.ready).is_ok_and(|ready| down.count() >= ready);
    all.then(|| format!("{}: no pod is reachable: {why}", pool.name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::discover::resolve::{Asked, Snapshot, resolve};

    fn resolved(spec: serde_json::Value, ready: bool) -> Resolved {
        let mut snapshot = Snapshot::default();
        let object = json!({ "metadata": { "name": "edge", "generation": 3 }, "spec": spec });
        snapshot.configs.insert("edge".into(), serde_json::from_value(object).unwrap());
        let ready = if ready { "True" } else { "False" };
        let pod = json!({
            "metadata": { "name": "p", "labels": { "app": "x" } },
            "status": { "podIP": "10.0.0.1", "conditions": [{ "type": "Ready", "status": ready }] },
        });
        snapshot.pods.insert("p".into(), serde_json::from_value(pod).unwrap());
        resolve(&snapshot, &Asked::default())
    }

    fn report(resolved: Resolved, applied: Result<(), Unapplied>) -> Report {
        Report { resolved, applied, lacks: Vec::new() }
    }

    fn app(name: &str) -> serde_json::Value {
        json!({ "schedulers": [{ "name": "a", "modelName": "m", "modelSelector": { "matchLabels": { "app": name } } }] })
    }

    #[test]
    fn what_holds() {
        let mut ignoring = app("x");
        ignoring["podDefaults"] = json!({});
        let mut wrong = app("x");
        wrong["workers"] = json!(-1);
        let bare = json!({ "schedulers": [{ "name": "a", "modelName": "m" }] });
        let fine = Ok(());
        let refused = Err(Unapplied::Refused("port 80 is taken".into()));
        let waits = Err(Unapplied::NeedsTakeover("spec.admin".into()));
        for (what, spec, ready, applied, pods, expected) in [
            (
                "well",
                app("x"),
                true,
                &fine,
                "1/1",
                [
                    "Accepted",
                    "ResolvedRefs",
                    "Programmed",
                    "Ready",
                    "!PodsFound",
                    "!SignalsFound",
                    "!AllHaveEffect",
                ],
            ),
            (
                "a field",
                ignoring,
                true,
                &fine,
                "1/1",
                [
                    "Accepted",
                    "ResolvedRefs",
                    "Programmed",
                    "Ready",
                    "!PodsFound",
                    "!SignalsFound",
                    "FieldIgnored",
                ],
            ),
            (
                "no such pod",
                app("y"),
                true,
                &fine,
                "0/0",
                [
                    "Accepted",
                    "ResolvedRefs",
                    "Programmed",
                    "!NoPods",
                    "NoPods",
                    "!SignalsFound",
                    "!AllHaveEffect",
                ],
            ),
            (
                "not ready",
                app("x"),
                false,
                &fine,
                "0/1",
                [
                    "Accepted",
                    "ResolvedRefs",
                    "Programmed",
                    "!NotReady",
                    "!PodsFound",
                    "!SignalsFound",
                    "!AllHaveEffect",
                ],
            ),
            (
                "no selector",
                bare,
                true,
                &fine,
                "0/0",
                [
                    "Accepted",
                    "!NoSelector",
                    "Programmed",
                    "!NoPods",
                    "!PodsFound",
                    "!SignalsFound",
                    "!AllHaveEffect",
                ],
            ),
            (
                "wrong",
                wrong,
                true,
                &fine,
                "1/1",
                [
                    "!Invalid",
                    "ResolvedRefs",
                    "!Invalid",
                    "!Invalid",
                    "!PodsFound",
                    "!SignalsFound",
                    "!AllHaveEffect",
                ],
            ),
            (
                "refused",
                app("x"),
                true,
                &refused,
                "1/1",
                [
                    "Accepted",
                    "ResolvedRefs",
                    "!Refused",
                    "Ready",
                    "!PodsFound",
                    "!SignalsFound",
                    "!AllHaveEffect",
                ],
            ),
            (
                "needs a takeover",
                app("x"),
                true,
                &waits,
                "1/1",
                [
                    "Accepted",
                    "ResolvedRefs",
                    "!NeedsTakeover",
                    "Ready",
                    "!PodsFound",
                    "!SignalsFound",
                    "!AllHaveEffect",
                ],
            ),
        ] {
            let report = report(resolved(spec, ready), applied.clone());
            let status = status(&report, &Status::default(), "now");
            let said: Vec<_> = status
                .conditions
                .iter()
                .map(|c| format!("{}{}", if c.status == "True" { "" } else { "!" }, c.reason))
                .collect();
            assert_eq!(said, expected, "{what}");
            assert_eq!((status.pods.as_str(), status.pools), (pods, 1), "{what}");
            assert_eq!(status.observed_generation, Some(3));
        }
    }

    #[test]
    fn what_is_left_out_is_told_besides() {
        let bare = json!({ "schedulers": [{ "name": "a", "modelName": "m" }] });
        let mut resolved = resolved(bare, true);
        resolved.left_out.push(("b".into(), "its model m is another pool's".into()));
        let status = status(&report(resolved, Ok(())), &Status::default(), "now");
        let said = status.conditions.iter().find(|c| c.kind == "ResolvedRefs").unwrap();
        assert_eq!(said.reason, "NoSelector");
        assert_eq!(
            said.message,
            "a: has no modelSelector and no pods, and no InferencePool has its name\n\
             InferencePool b is left out: its model m is another pool's"
        );
    }

    #[test]
    fn a_time_is_when_it_changed() {
        let well = report(resolved(app("x"), true), Ok(()));
        let first = status(&well, &Status::default(), "first");
        let same = status(&well, &first, "later");
        assert_eq!(same, first);
        let changed = status(&report(resolved(app("x"), false), Ok(())), &first, "later");
        let times: Vec<_> =
            changed.conditions.iter().map(|c| c.last_transition_time.as_str()).collect();
        assert_eq!(times, ["first", "first", "first", "later", "first", "first", "first"]);
    }

    #[test]
    fn what_pods_do_not_tell_is_named() {
        let lack = |pool: &str, pod: &str| Lack {
            pool: pool.into(),
            pod: pod.into(),
            what: "vllm does not tell how full its KV cache is".into(),
            is_down: false,
        };
        let mut report = report(resolved(app("x"), true), Ok(()));
        report.lacks = vec![lack("a", "p"), lack("b", "q")];
        let status = status(&report, &Status::default(), "now");
        let missing = status.conditions.iter().find(|c| c.kind == "SignalsMissing").unwrap();
        assert_eq!((missing.status.as_str(), missing.observed_generation), ("True", Some(3)));
        assert_eq!(
            missing.message,
            "a: p: vllm does not tell how full its KV cache is\n\
             b: q: vllm does not tell how full its KV cache is"
        );
        let pool = &status.schedulers[0];
        assert_eq!(pool.without_signals, 1);
        assert_eq!(pool.message.as_deref(), Some("p: vllm does not tell how full its KV cache is"));
    }

    #[test]
    fn pods_that_nobody_reaches_are_not_ready_whatever_kubernetes_says() {
        let lack = |is_down| Lack {
            pool: "a".into(),
            pod: "p".into(),
            what: "connection refused".into(),
            is_down,
        };
        for (lacks, expected) in [
            (
                vec![lack(true)],
                ("False", "Unreachable", "a: no pod is reachable: connection refused"),
            ),
            // It serves, though it does not tell its load.
            (vec![lack(false)], ("True", "Ready", "")),
            (vec![Lack { pool: "b".into(), ..lack(true) }], ("True", "Ready", "")),
        ] {
            let report = Report { lacks, ..report(resolved(app("x"), true), Ok(())) };
            let status = status(&report, &Status::default(), "now");
            let ready = status.conditions.iter().find(|c| c.kind == "Ready").unwrap();
            let said = (ready.status.as_str(), ready.reason.as_str(), ready.message.as_str());
            assert_eq!(said, expected);
        }
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        assert_eq!(cut("äöü".into(), 100), "äöü");
        assert_eq!(cut("äöüäöü".into(), 9), "äö ...");
    }
}
