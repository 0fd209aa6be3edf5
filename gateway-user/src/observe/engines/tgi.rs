//! Text Generation Inference: no labels, and gauges that are absent before the first request.

use super::Reading;
use super::gauge::{Gauge, count, ratio, tokens};
use crate::observe::exposition::Samples;
use crate::schedule::Signals;

/// The KV cache's use is an estimate from above: what the running batch may grow to, out of the
/// token budget.
pub(super) fn read(body: &[u8]) -> Reading {
    let mut running = Gauge::default();
    let mut waiting = Gauge::default();
    let mut reserved = Gauge::default();
    let mut budget = Gauge::default();

    let mut samples = Samples::new(body, &PREFIXES);
    for sample in samples.by_ref() {
        match sample.name {
            "tgi_batch_current_size" => running.add(&sample),
            "tgi_queue_size" => waiting.add(&sample),
            "tgi_batch_current_max_tokens" => reserved.add(&sample),
            "tgi_batch_total_tokens" => budget.add(&sample),
            _ => {}
        }
    }

    Reading {
        signals: Signals {
            kv_usage: reserved.max().zip(budget.max()).and_then(|(used, all)| ratio(used, all)),
            waiting: waiting.sum().and_then(count),
            running: running.sum().and_then(count),
            ..Signals::default()
        },
        kv_tokens: budget.max().and_then(tokens),
        unreadable: samples.unreadable(),
        ..Reading::default()
    }
}

const PREFIXES: [&str; 3] = ["tgi_batch_current_", "tgi_queue_size", "tgi_batch_total_tokens"];
