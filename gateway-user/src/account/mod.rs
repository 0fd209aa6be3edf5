//! What is left of a request when it is over: counts, times, and what was learned of the pod.

pub mod log;
pub mod tail;
pub mod usage;

use std::sync::Arc;

use tokio::time::Instant;

use crate::account::log::Asked;
use crate::flow::Exchange;
use crate::limit::Admitted;
use crate::listen::Worker;
use crate::metrics::Record;
use crate::pool::Pool;

/// A request that is over.
#[derive(Debug)]
pub struct Exchanged<'a> {
    /// How it went.
    pub exchange: Exchange,
    /// The pool that it was for.
    pub pool: &'a Arc<Pool>,
    /// What was asked.
    pub asked: Asked<'a>,
    /// What was taken of its limits; none if it was sent away before.
    pub admitted: Option<Admitted>,
    /// When its body was complete.
    pub ready: Instant,
}

/// Counts a request. Called exactly once for each that reached a pool.
pub fn finish(done: Exchanged<'_>, worker: &Worker) {
    let Exchanged { exchange, pool, asked, admitted, ready } = done;
    let started = asked.started;
    let now = Instant::now();
    let usage = exchange.tail.usage();
    // Without usage, a chunk of a stream stands for a token. A stream that is not chunked tells
    // nothing, and nothing known is not 0.
    let counted = Some(exchange.chunks).filter(|chunks| exchange.stream && *chunks > 0);
    let tokens = usage.completion_tokens.or(counted);
    if let (Some(pod), Some(tokens)) = (&exchange.pod, tokens) {
        pod.generated(tokens);
    }
    let between =
        |from: Option<Instant>, to: Option<Instant>| Some(to?.saturating_duration_since(from?));
    // Receiving the body is the client's time, waiting for the pod and for room there is the pods'; the rest is ours.
    // Of a request that other pods failed first, their time is not known apart.
    let overhead = between(Some(ready), exchange.sent)
        .zip(between(exchange.first_received, exchange.first_written))
        .map(|(before, after)| before.saturating_sub(exchange.queued) + after)
        .filter(|_| exchange.retries == 0);
    let record = Record {
        status: exchange.status,
        outcome: exchange.outcome,
        rejection: exchange.rejection,
        flow: exchange.flow.map(|(plan, bytes)| plan.outcome(bytes)),
        relayed_bytes: exchange.flow.map_or(0, |(_, bytes)| bytes.relayed),
        carried_bytes: exchange.flow.and_then(|(plan, bytes)| Some((plan.path()?, bytes.carried))),
        duration: now.saturating_duration_since(started),
        ttft: exchange.stream.then(|| between(Some(started), exchange.first_received)).flatten(),
        decode: exchange
            .stream
            .then(|| between(exchange.first_received, exchange.last_received))
            .flatten(),
        prompt_tokens: usage.prompt_tokens,
        cached_tokens: usage.cached_tokens,
        completion_tokens: tokens,
        overhead,
        retries: exchange.retries,
    };
    pool.metrics.finished(&record);
    if let Some(admitted) = admitted {
        admitted.settle_by(&record, exchange.pod.is_some());
    }
    if let Some(caller) = asked.caller {
        let metrics = &caller.key.metrics;
        metrics.finished(record.outcome, record.prompt_tokens, record.completion_tokens);
    }
    if let Some(model) = asked.served.or(asked.model) {
        pool.metrics.used(model, &record);
    }
    if worker.gateway.config().access_log {
        log::finished(&asked, &exchange, pool, &usage, &record);
    }
}
