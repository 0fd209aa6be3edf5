//! Every check, in the order in which they run: those that kill servers come last.

mod adapters;
mod answers;
mod clients;
mod failures;
mod leaving;
mod load;

use std::sync::atomic::{AtomicBool, Ordering};

use crate::rig::Rig;

/// One check.
#[derive(Debug)]
pub(crate) struct Check {
    /// What `--only` takes.
    pub(crate) name: &'static str,
    /// What must hold.
    pub(crate) about: &'static str,
    /// Does it; returns what was seen.
    pub(crate) run: fn(&mut Rig) -> String,
}

/// All checks.
pub(crate) const CHECKS: &[Check] = &[
    Check {
        name: "models",
        about: "the list of models is that of the pods, adapters included",
        run: answers::models,
    },
    Check {
        name: "answers",
        about: "chats and completions, streamed and not, say what a pod says",
        run: answers::answers,
    },
    Check {
        name: "bytes",
        about: "bodies pass byte for byte in both directions, chunk framing included",
        run: answers::bytes,
    },
    Check {
        name: "errors",
        about: "a pod's refusals reach the client as they are; the gateway's own say what is wrong",
        run: answers::errors,
    },
    Check {
        name: "curl",
        about: "curl gets whole answers, by HTTP/1.0 as well",
        run: clients::curl,
    },
    Check {
        name: "sdk",
        about: "the openai SDK works, its errors and streams too",
        run: clients::sdk,
    },
    Check {
        name: "idle",
        about: "no request is lost when a pod closes an idle connection",
        run: clients::idle,
    },
    Check {
        name: "usage",
        about: "tokens counted by the gateway are those of the answers and of the engines",
        run: load::usage,
    },
    Check {
        name: "adapters",
        about: "an adapter's name reaches a pod, and shows in /status while it works",
        run: adapters::adapters,
    },
    Check {
        name: "hot-load",
        about: "an adapter loaded on one pod at run time draws its requests there; unloaded, none",
        run: adapters::hot_load,
    },
    Check {
        name: "signals",
        about: "running, waiting and KV cache in /status follow the engines and stay fresh",
        run: load::signals,
    },
    Check {
        name: "spread",
        about: "requests go to both pods, and away from one that others keep busy",
        run: load::spread,
    },
    Check {
        name: "queue",
        about: "queued streams wait with keep-alive comments, and come whole",
        run: load::queue,
    },
    Check {
        name: "disconnect",
        about: "a client that leaves a running answer frees the engine",
        run: leaving::disconnect,
    },
    Check {
        name: "prefill",
        about: "a client that leaves before the first token frees the engine",
        run: leaving::prefill,
    },
    Check {
        name: "metrics",
        about: "the metrics page is well formed and adds up",
        run: clients::metrics,
    },
    Check {
        name: "kill",
        about: "an engine killed at work: its streams end with an error, all else goes elsewhere",
        run: failures::kill,
    },
    Check {
        name: "restart",
        about: "a pod that comes back is given requests again",
        run: failures::restart,
    },
    Check {
        name: "drain",
        about: "a pod that shuts down finishes its streams; new requests never see it",
        run: failures::drain,
    },
    Check {
        name: "dead",
        about: "without any pod, clients are told so at once and in JSON",
        run: failures::dead,
    },
];

/// Stops the threads of a scope that a panic leaves, which would wait for them forever.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Milliseconds, for people.
fn ms(took: std::time::Duration) -> String {
    format!("{:.0} ms", took.as_secs_f64() * 1e3)
}

/// The least and the greatest of some times.
fn range(times: &[std::time::Duration]) -> String {
    match (times.iter().min(), times.iter().max()) {
        (Some(least), Some(most)) => format!("{} to {}", ms(*least), ms(*most)),
        _ => "never".into(),
    }
}
