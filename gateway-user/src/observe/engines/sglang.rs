//! SGLang: one series for each scheduler process that reports, so one request may be counted
//! several times.

use super::Reading;
use super::gauge::{Gauge, count, fraction, size, tokens};
use crate::observe::exposition::Samples;
use crate::schedule::Signals;

/// Tensor- and pipeline-parallel ranks of one data-parallel rank work on the same requests, so the
/// data-parallel rank alone tells the parts; series with a priority repeat parts of the one
/// without.
pub(super) fn read(body: &[u8]) -> Reading {
    let mut reading = Reading::default();
    let mut running = Gauge::default();
    let mut waiting = Gauge::default();
    // What the prefix cache holds but could give up is not in use by this number.
    let mut usage = Gauge::default();
    let mut kv_tokens = Gauge::default();
    let mut page_size = Gauge::default();
    let mut pages = Gauge::default();
    let mut slots_used = Gauge::default();
    let mut slots = Gauge::default();

    let mut samples = Samples::new(body, &PREFIXES);
    for sample in samples.by_ref() {
        if sample.raw_label("priority").is_some_and(|priority| !priority.is_empty()) {
            continue;
        }
        let gauge = match sample.name {
            "sglang:num_running_reqs" => {
                reading.note_model(&sample, "model_name");
                &mut running
            }
            "sglang:num_queue_reqs" => &mut waiting,
            "sglang:token_usage" => &mut usage,
            "sglang:max_total_num_tokens" => &mut kv_tokens,
            "sglang:page_size" => &mut page_size,
            "sglang:num_pages" => &mut pages,
            "sglang:lora_pool_slots_used" => &mut slots_used,
            "sglang:lora_pool_slots_total" => &mut slots,
            _ => continue,
        };
        gauge.add_part(sample.raw_label("dp_rank").unwrap_or_default(), sample.value);
    }

    Reading {
        signals: Signals {
            kv_usage: usage.max().and_then(fraction),
            waiting: waiting.sum().and_then(count),
            running: running.sum().and_then(count),
            // Each rank has slots of its own: a request is as badly off as in the fullest.
            adapter_slots: slots.max().and_then(count),
            adapters_active: slots_used.max().and_then(count),
        },
        block_size: page_size.max().and_then(size),
        blocks: pages.sum().and_then(size),
        kv_tokens: kv_tokens.sum().and_then(tokens),
        is_split: running.parts() > 1,
        unreadable: samples.unreadable(),
        ..reading
    }
}

const PREFIXES: [&str; 7] = [
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:token_usage",
    "sglang:max_total_num_tokens",
    "sglang:page_size",
    "sglang:num_pages",
    "sglang:lora_pool_slots_",
];
