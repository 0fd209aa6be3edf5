//! The access log: a line of JSON for each request that came to a pool or was refused.
//!
//! The lines go where the log goes, by a target of their own, so that they are JSON whatever the rest of the log is and
//! whatever RUST_LOG says of it. What is unknown is absent. Never a word of a prompt or an answer, and no credential.
//!
//! A thread of its own writes them: whoever reads them slowly costs no request anything, but lines, which are counted.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::Instant;
use tracing::info;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

use super::usage::Usage;
use crate::auth::Caller;
use crate::connection::PATH_SHOWN;
use crate::error::Refusal;
use crate::flow::Exchange;
use crate::gateway::RequestId;
use crate::metrics::{Label as _, Record};
use crate::pool::Pool;

/// The target of its lines.
pub const TARGET: &str = "access";

/// Where the lines are written. When the guard is dropped, what is in the queue is
/// written, for a second at most: a reader that stands still does not hold up the end.
pub fn writer() -> (NonBlocking, WorkerGuard) {
    let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(QUEUED_LINES);
    let (writer, guard) = builder.thread_name("access-log").finish(std::io::stderr());
    // There is one in a process.
    let _ = DROPPED.set(writer.error_counter());
    (writer, guard)
}

/// Lines that were dropped as the queue was full.
pub fn dropped() -> u64 {
    DROPPED.get().map_or(0, |dropped| dropped.dropped_lines() as u64)
}

/// A request, as far as it has been read.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Its id.
    pub id: &'a RequestId,
    /// Its path without the query; `None` when the head was not understood.
    pub url: Option<&'a str>,
    /// The model that it named.
    pub model: Option<&'a str>,
    /// The model that was served in its place.
    pub served: Option<&'a str>,
    /// The adapter that this leads to.
    pub adapter: Option<&'a str>,
    /// Who sent it, where that is asked.
    pub caller: Option<&'a Caller>,
    /// Bytes of its body as they came.
    pub body: usize,
    /// When its head was complete.
    pub started: Instant,
}

impl<'a> Asked<'a> {
    /// Of which no more is known.
    pub fn new(id: &'a RequestId, url: Option<&'a str>) -> Self {
        let (model, served, adapter, caller) = (None, None, None, None);
        Self { id, url, model, served, adapter, caller, body: 0, started: Instant::now() }
    }

    /// Whose the answer is, if that is known: a key's, or within it a subject's.
    pub fn owner(&self) -> Option<Box<str>> {
        let Caller { key, subject } = self.caller?;
        Some(match subject {
            Some(subject) => format!("{}/{subject}", key.name).into(),
            None => (&*key.name).into(),
        })
    }

    fn key(&self) -> Option<&str> {
        self.caller.map(|caller| &*caller.key.name)
    }

    fn subject(&self) -> Option<&str> {
        self.caller?.subject.as_deref()
    }
}

/// A request that came to no pool.
pub fn refused(asked: &Asked<'_>, refusal: &Refusal) {
    info!(
        target: TARGET,
        id = &**asked.id,
        key = asked.key(),
        subject = asked.subject(),
        url = asked.url.map(shown),
        model = asked.model.map(shown),
        outcome = "refused",
        status = refusal.status,
        reason = refusal.reason().as_str(),
        code = refusal.code,
        bytes_in = asked.body,
        duration_ms = millis(asked.started.elapsed()),
    );
}

/// A request that came to a pool.
pub(super) fn finished(
    asked: &Asked<'_>,
    exchange: &Exchange,
    pool: &Pool,
    usage: &Usage,
    record: &Record,
) {
    info!(
        target: TARGET,
        id = &**asked.id,
        key = asked.key(),
        subject = asked.subject(),
        url = asked.url.map(shown),
        model = asked.model.map(shown),
        served_model = asked.served,
        adapter = asked.adapter,
        pool = &*pool.name,
        pod = exchange.pod.as_ref().map(|pod| &*pod.name),
        outcome = record.outcome.as_str(),
        status = record.status,
        reason = record.rejection.map(|rejection| rejection.as_str()),
        retries = record.retries,
        stream = exchange.stream,
        path = record.flow.map(|(path, _)| path.as_str()),
        path_reason = record.flow.map(|(_, reason)| reason.as_str()),
        bytes_in = asked.body,
        bytes_out = record.relayed_bytes + record.carried_bytes.map_or(0, |(_, bytes)| bytes),
        prompt_tokens = usage.prompt_tokens,
        cached_tokens = usage.cached_tokens,
        completion_tokens = usage.completion_tokens,
        queued_ms = millis(exchange.queued),
        ttft_ms = record.ttft.map(millis),
        duration_ms = millis(record.duration),
    );
}

/// As much of what a client sent as is worth a line.
fn shown(text: &str) -> &str {
    text.char_indices().nth(PATH_SHOWN).map_or(text, |(end, _)| text.get(..end).unwrap_or(text))
}

/// Milliseconds, to the microsecond.
fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}

static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Lines that may wait to be written: about 2 MB.
const QUEUED_LINES: usize = 4096;
