//! vLLM: 0.6 and later, V0 and V1 engines, one or several behind one API server, and the Rust front
//! end.

use super::gauge::{Gauge, count, fraction, size, tokens};
use super::{MAX_ADAPTERS, MAX_NAME_BYTES, Reading};
use crate::observe::exposition::{Sample, Samples};
use crate::schedule::Signals;

pub(super) fn read(body: &[u8]) -> Reading {
    let mut reading = Reading::default();
    let mut running = Gauge::default();
    let mut waiting = Gauge::default();
    let mut kv = Gauge::default();
    let mut old_kv = Gauge::default();
    let mut config = CacheConfig::default();
    let mut adapters = Adapters::default();

    let mut samples = Samples::new(body, &PREFIXES);
    for sample in samples.by_ref() {
        match sample.name {
            "vllm:num_requests_running" => {
                reading.note_model(&sample, "model_name");
                running.add(&sample);
            }
            "vllm:num_requests_waiting" => waiting.add(&sample),
            "vllm:kv_cache_usage_perc" => kv.add(&sample),
            "vllm:gpu_cache_usage_perc" => old_kv.add(&sample),
            "vllm:cache_config_info" => config.add(&sample),
            "vllm:lora_requests_info" => adapters.add(&sample),
            "vllm:engine_sleep_state" => {
                reading.asleep |=
                    sample.raw_label("sleep_state") == Some(b"awake") && sample.value == 0.0;
            }
            _ => {}
        }
    }

    let block_size = config.block_size.max().and_then(size);
    let blocks = config.blocks.sum().and_then(size);
    let product = || Some(u64::from(block_size?) * u64::from(blocks?));
    let slots = adapters.slots();
    let active = adapters.names();
    Reading {
        signals: Signals {
            kv_usage: kv.max().and_then(fraction).or_else(|| old_kv.max().and_then(fraction)),
            waiting: waiting.sum().and_then(count),
            running: running.sum().and_then(count),
            adapter_slots: slots,
            adapters_active: active.as_ref().map(|names| names.len() as u32),
        },
        adapters_active: active.unwrap_or_default(),
        block_size,
        blocks,
        kv_tokens: config.tokens.sum().and_then(tokens).or_else(product),
        is_split: running.parts() > 1,
        unreadable: samples.unreadable(),
        ..reading
    }
}

/// The labels of `cache_config_info`: Python values as text, `None` where not known yet.
#[derive(Default)]
struct CacheConfig<'a> {
    block_size: Gauge<'a>,
    blocks: Gauge<'a>,
    tokens: Gauge<'a>,
}

impl<'a> CacheConfig<'a> {
    fn add(&mut self, sample: &Sample<'a>) {
        let engine = sample.raw_label("engine").unwrap_or_default();
        for (gauge, label) in [
            (&mut self.block_size, "block_size"),
            (&mut self.blocks, "num_gpu_blocks"),
            (&mut self.tokens, "kv_cache_size_tokens"),
        ] {
            if let Some(text) = sample.label(label) {
                gauge.add_part(engine, text.parse().unwrap_or(f64::NAN));
            }
        }
    }
}

/// The newest series of `lora_requests_info`.
///
/// Its value is the time of the last update, or a sum of such times: good only for comparing. Older
/// combinations of adapters stay in the body for ever. Of the two lists only the union means the
/// same in every version: the adapters with live requests.
#[derive(Default)]
struct Adapters<'a> {
    newest: Option<Sample<'a>>,
    spoiled: bool,
}

impl<'a> Adapters<'a> {
    fn add(&mut self, sample: &Sample<'a>) {
        if !sample.value.is_finite() {
            self.spoiled = true;
        } else if self.newest.is_none_or(|newest| sample.value >= newest.value) {
            self.newest = Some(*sample);
        }
    }

    /// `max_lora`; the Rust front end does not say it.
    fn slots(&self) -> Option<u32> {
        self.newest?.label("max_lora")?.parse().ok()
    }

    /// None at all when the series is absent: LoRA is off, or nobody has used an adapter yet.
    fn names(&self) -> Option<Vec<Box<str>>> {
        let Some(newest) = self.newest else { return (!self.spoiled).then(Vec::new) };
        let lists = [newest.label("running_lora_adapters"), newest.label("waiting_lora_adapters")];
        let mut names: Vec<&str> = lists
            .iter()
            .flatten()
            .flat_map(|list| list.split(',').map(str::trim).take(MAX_ADAPTERS))
            .filter(|name| !name.is_empty() && name.len() <= MAX_NAME_BYTES)
            .collect();
        names.sort_unstable();
        names.dedup();
        names.truncate(MAX_ADAPTERS);
        Some(names.into_iter().map(Box::from).collect())
    }
}

const PREFIXES: [&str; 7] = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "vllm:lora_requests_info",
    "vllm:cache_config_info",
    "vllm:engine_sleep_state",
];
