//! llama.cpp's server: slots in use, requests put off; how full its KV cache is only older releases
//! say.

use super::Reading;
use super::gauge::{Gauge, count, fraction};
use crate::observe::exposition::Samples;
use crate::schedule::Signals;

pub(super) fn read(body: &[u8]) -> Reading {
    let mut running = Gauge::default();
    let mut waiting = Gauge::default();
    let mut kv = Gauge::default();

    let mut samples = Samples::new(body, &PREFIXES);
    for sample in samples.by_ref() {
        match sample.name {
            "llamacpp:requests_processing" => running.add(&sample),
            "llamacpp:requests_deferred" => waiting.add(&sample),
            "llamacpp:kv_cache_usage_ratio" => kv.add(&sample),
            _ => {}
        }
    }

    Reading {
        signals: Signals {
            kv_usage: kv.max().and_then(fraction),
            waiting: waiting.sum().and_then(count),
            running: running.sum().and_then(count),
            ..Signals::default()
        },
        unreadable: samples.unreadable(),
        ..Reading::default()
    }
}

const PREFIXES: [&str; 2] = ["llamacpp:requests_", "llamacpp:kv_cache_usage_ratio"];
