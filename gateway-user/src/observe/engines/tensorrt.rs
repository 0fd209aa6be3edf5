//! TensorRT-LLM: behind Triton, or with its own server, whose `/metrics` may be JSON instead of
//! text.

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::gauge::{Gauge, count, fraction, ratio, size};
use super::{EngineKind, Reading};
use crate::observe::exposition::Samples;
use crate::schedule::Signals;

/// Triton. With another back end than TensorRT-LLM it knows its own queue only.
pub(super) fn read_triton(body: &[u8]) -> Reading {
    let mut reading = Reading::default();
    let mut active = Gauge::default();
    let mut scheduled = Gauge::default();
    let mut waiting = Gauge::default();
    let mut max_requests = Gauge::default();
    let mut pending = Gauge::default();
    let mut blocks = Blocks::default();

    let mut samples = Samples::new(body, &TRITON_PREFIXES);
    for sample in samples.by_ref() {
        match sample.name {
            "nv_trt_llm_request_metrics" => {
                reading.note_model(&sample, "model");
                match sample.raw_label("request_type") {
                    Some(b"active") => active.add(&sample),
                    Some(b"scheduled") => scheduled.add(&sample),
                    Some(b"waiting") => waiting.add(&sample),
                    Some(b"max") => max_requests.add(&sample),
                    _ => {}
                }
            }
            "nv_trt_llm_kv_cache_block_metrics" => match sample.raw_label("kv_cache_block_type") {
                Some(b"fraction") => blocks.fraction.add(&sample),
                Some(b"max") => blocks.max.add(&sample),
                Some(b"tokens_per") => blocks.tokens_per.add(&sample),
                Some(b"used") => blocks.used.add(&sample),
                _ => {}
            },
            "nv_inference_pending_request_count" => pending.add(&sample),
            _ => {}
        }
    }

    let waiting = if waiting.seen() {
        waiting.sum()
    } else if active.seen() {
        active.sum().zip(scheduled.sum()).map(|(active, scheduled)| (active - scheduled).max(0.0))
    } else if scheduled.seen() {
        None
    } else {
        pending.sum()
    };
    reading.signals.waiting = waiting.and_then(count);
    reading.signals.running = scheduled.sum().and_then(count);
    reading.max_num_seqs = max_requests.sum().and_then(size);
    reading.unreadable = samples.unreadable();
    blocks.write(reading)
}

/// `trtllm-serve`, in text.
pub(super) fn read_serve(body: &[u8]) -> Reading {
    let mut reading = Reading::default();
    let mut running = Gauge::default();
    let mut waiting = Gauge::default();
    let mut blocks = Blocks::default();

    let mut samples = Samples::new(body, &SERVE_PREFIXES);
    for sample in samples.by_ref() {
        match sample.name {
            "trtllm_num_requests_running" => {
                reading.note_model(&sample, "model_name");
                running.add(&sample);
            }
            "trtllm_num_requests_waiting" => waiting.add(&sample),
            "trtllm_kv_cache_utilization" => blocks.fraction.add(&sample),
            "trtllm_kv_cache_max_blocks" => blocks.max.add(&sample),
            "trtllm_kv_cache_tokens_per_block" => blocks.tokens_per.add(&sample),
            _ => {}
        }
    }

    reading.signals.waiting = waiting.sum().and_then(count);
    reading.signals.running = running.sum().and_then(count);
    reading.unreadable = samples.unreadable();
    blocks.write(reading)
}

/// `trtllm-serve`, in JSON: a list of what each iteration since the last call was like. Idle, it is
/// empty: then nothing is known.
pub(super) fn read_iterations(body: &[u8]) -> Option<Reading> {
    let last = match serde_json::from_slice(body).ok()? {
        Iterations { seen: false, .. } => Iteration::default(),
        // A list of something else.
        Iterations { last, .. } if last == Iteration::default() => return None,
        Iterations { last, .. } => last,
    };
    let kv = last.kv_cache_stats;
    let blocks = kv.max_num_blocks.and_then(size);
    let block_size = kv.tokens_per_block.and_then(size);
    Some(Reading {
        engine: EngineKind::TrtllmServe,
        signals: Signals {
            kv_usage: kv.used_num_blocks.zip(kv.max_num_blocks).and_then(|(u, m)| ratio(u, m)),
            waiting: last.num_queued_requests.and_then(count),
            running: last.num_active_requests.and_then(count),
            ..Signals::default()
        },
        block_size,
        blocks,
        kv_tokens: block_size.zip(blocks).map(|(size, n)| u64::from(size) * u64::from(n)),
        max_num_seqs: last.max_num_active_requests.and_then(size),
        ..Reading::default()
    })
}

/// The KV cache's blocks, as both servers' text has them.
#[derive(Default)]
struct Blocks<'a> {
    fraction: Gauge<'a>,
    max: Gauge<'a>,
    tokens_per: Gauge<'a>,
    used: Gauge<'a>,
}

impl Blocks<'_> {
    fn write(&self, reading: Reading) -> Reading {
        let from_counts = || ratio(self.used.sum()?, self.max.sum()?);
        let block_size = self.tokens_per.max().and_then(size);
        let blocks = self.max.sum().and_then(size);
        Reading {
            signals: Signals {
                kv_usage: self.fraction.max().and_then(fraction).or_else(from_counts),
                ..reading.signals
            },
            block_size,
            blocks,
            kv_tokens: block_size.zip(blocks).map(|(size, n)| u64::from(size) * u64::from(n)),
            ..reading
        }
    }
}

/// The newest of a list of iterations: the last.
struct Iterations {
    seen: bool,
    last: Iteration,
}

impl<'de> Deserialize<'de> for Iterations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(LastIteration)
    }
}

struct LastIteration;

impl<'de> Visitor<'de> for LastIteration {
    type Value = Iterations;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of iteration statistics")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Iterations, A::Error> {
        let mut iterations = Iterations { seen: false, last: Iteration::default() };
        while let Some(last) = list.next_element()? {
            iterations = Iterations { seen: true, last };
        }
        Ok(iterations)
    }
}

#[derive(Default, Deserialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
struct Iteration {
    #[serde(deserialize_with = "number")]
    num_active_requests: Option<f64>,
    #[serde(deserialize_with = "number")]
    num_queued_requests: Option<f64>,
    #[serde(deserialize_with = "number")]
    max_num_active_requests: Option<f64>,
    kv_cache_stats: KvCacheStats,
}

#[derive(Default, Deserialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
struct KvCacheStats {
    #[serde(deserialize_with = "number")]
    max_num_blocks: Option<f64>,
    #[serde(deserialize_with = "number")]
    used_num_blocks: Option<f64>,
    #[serde(deserialize_with = "number")]
    tokens_per_block: Option<f64>,
}

/// A number, or unknown if it is anything else.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    Ok(Value::deserialize(deserializer)?.as_f64())
}

const TRITON_PREFIXES: [&str; 3] = [
    "nv_trt_llm_request_metrics",
    "nv_trt_llm_kv_cache_block_metrics",
    "nv_inference_pending_request_count",
];

const SERVE_PREFIXES: [&str; 2] = ["trtllm_num_requests_", "trtllm_kv_cache_"];
