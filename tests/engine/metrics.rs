//! `/metrics` as each kind of model server prints it. Pure: text from numbers.

use std::str::FromStr;

use super::exposition::{Dialect, Histogram, Writer};
use super::kv::BLOCK_TOKENS;
use super::model::{Counters, Limits};

/// Whose names and form.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Style {
    /// vLLM 0.8: `gpu_cache_usage_perc`, separate adapter lists.
    V08,
    /// vLLM 0.11 and later; adapter lists as from 0.16.
    #[default]
    V011,
    /// vLLM's Rust front-end: OpenMetrics.
    OpenMetrics,
    /// No such path.
    None,
    /// SGLang.
    Sglang,
    /// Text Generation Inference.
    Tgi,
    /// llama.cpp's server.
    LlamaCpp,
    /// trtllm-serve.
    TrtLlm,
    /// Triton with the TensorRT-LLM backend.
    Triton,
}

impl Style {
    /// All names, for help texts.
    pub const NAMES: &str = "v0.8, v0.11, openmetrics, none, sglang, tgi, llamacpp, trtllm, triton";

    /// `content-type` of the page.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::V011 => "text/plain; version=1.0.0; charset=utf-8",
            Self::Tgi => "text/plain; charset=utf-8",
            _ => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

impl FromStr for Style {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Ok(match name {
            "v0.8" => Self::V08,
            "v0.11" => Self::V011,
            "openmetrics" => Self::OpenMetrics,
            "none" => Self::None,
            "sglang" => Self::Sglang,
            "tgi" => Self::Tgi,
            "llamacpp" => Self::LlamaCpp,
            "trtllm" => Self::TrtLlm,
            "triton" => Self::Triton,
            _ => return Err(format!("not one of {}", Self::NAMES)),
        })
    }
}

/// What one engine has to show.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Requests in the batch.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Blocks that requests hold.
    pub kv_used: u32,
    /// Totals.
    pub counters: Counters,
    /// Times.
    pub times: Times,
}

/// What a whole pod has to show.
#[derive(Clone, Debug)]
pub struct Page<'a> {
    /// The first served name.
    pub model: &'a str,
    /// The same for all engines.
    pub limits: &'a Limits,
    /// One for each engine.
    pub engines: &'a [Sample],
    /// Adapter series, when adapters are on.
    pub loras: Option<&'a LoraSeries>,
    /// Unix seconds of the start.
    pub created: f64,
    /// Print NaN for every value.
    pub nan: bool,
}

/// Histograms of one engine, in seconds.
#[derive(Clone, Debug)]
pub struct Times {
    /// Arrival to first token.
    pub first_token: Histogram,
    /// Between tokens.
    pub inter_token: Histogram,
    /// Arrival to last token.
    pub request: Histogram,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            first_token: Histogram::new(FIRST_TOKEN_BOUNDS),
            inter_token: Histogram::new(INTER_TOKEN_BOUNDS),
            request: Histogram::new(REQUEST_BOUNDS),
        }
    }
}

/// The series of `vllm:lora_requests_info`: one for each combination of lists ever seen, its value
/// the time when it was last true. None ever goes away.
#[derive(Clone, Debug, Default)]
pub struct LoraSeries {
    series: Vec<(String, String, f64)>,
}

impl LoraSeries {
    /// These lists are true at this time, in unix seconds.
    pub fn update(&mut self, running: String, waiting: String, unix: f64) {
        let full = self.series.len() >= MAX_LORA_SERIES;
        let known = self.series.iter_mut().find(|(r, w, _)| *r == running && *w == waiting);
        match known {
            Some((_, _, time)) => *time = unix,
            None if full => {}
            None => self.series.push((running, waiting, unix)),
        }
    }
}

impl Page<'_> {
    /// The text.
    pub fn text(&self, style: Style) -> String {
        let dialect = match style {
            Style::V08 | Style::V011 => Dialect::Python,
            Style::OpenMetrics => Dialect::OpenMetrics,
            _ => Dialect::Plain,
        };
        let mut out = Writer { text: String::new(), dialect, nan: self.nan, created: self.created };
        match style {
            Style::V08 | Style::V011 | Style::OpenMetrics => self.vllm(&mut out, style),
            Style::Sglang => self.sglang(&mut out),
            Style::Tgi => self.tgi(&mut out),
            Style::LlamaCpp => self.llamacpp(&mut out),
            Style::TrtLlm => self.trtllm(&mut out),
            Style::Triton => self.triton(&mut out),
            Style::None => {}
        }
        if style == Style::OpenMetrics {
            out.text.push_str("# EOF\n");
        }
        out.text
    }

    fn vllm(&self, out: &mut Writer, style: Style) {
        let (old, rust) = (style == Style::V08, style == Style::OpenMetrics);
        if !rust {
            out.gauge("python_info", [(r#"implementation="CPython",major="3",minor="11""#, 1.0)]);
            out.gauge("process_resident_memory_bytes", [("", 6.827e8)]);
            out.gauge("process_start_time_seconds", [("", self.created)]);
            out.gauge("process_open_fds", [("", 46.0)]);
        }
        let model = self.model;
        let labels: Vec<String> = (0..self.engines.len())
            .map(|engine| {
                if rust {
                    format!("model_name=\"{model}\",engine=\"{engine}\"")
                } else {
                    format!("engine=\"{engine}\",model_name=\"{model}\"")
                }
            })
            .collect();
        let each = |value: &dyn Fn(&Sample) -> f64| -> Vec<(&str, f64)> {
            labels.iter().map(String::as_str).zip(self.engines.iter().map(value)).collect()
        };
        let total = |value: fn(&Counters) -> u64| each(&|sample| value(&sample.counters) as f64);
        out.gauge("vllm:num_requests_running", each(&|s| s.running as f64));
        out.gauge("vllm:num_requests_waiting", each(&|s| s.waiting as f64));
        if !old {
            let by_reason: Vec<(String, f64)> = labels
                .iter()
                .zip(self.engines)
                .flat_map(|(labels, sample)| {
                    [("capacity", sample.waiting), ("deferred", 0)]
                        .map(|(reason, n)| (format!("{labels},reason=\"{reason}\""), n as f64))
                })
                .collect();
            out.gauge("vllm:num_requests_waiting_by_reason", refer(&by_reason));
            let sleep: Vec<(String, f64)> = labels
                .iter()
                .flat_map(|labels| {
                    [("awake", 1.0), ("weights_offloaded", 0.0), ("discard_all", 0.0)]
                        .map(|(state, on)| (format!("{labels},sleep_state=\"{state}\""), on))
                })
                .collect();
            out.gauge("vllm:engine_sleep_state", refer(&sleep));
        }
        let usage = each(&|s| self.usage(s));
        out.gauge(
            if old { "vllm:gpu_cache_usage_perc" } else { "vllm:kv_cache_usage_perc" },
            usage,
        );
        let cache = if old { "vllm:gpu_prefix_cache" } else { "vllm:prefix_cache" };
        out.counter(&format!("{cache}_queries"), total(|c| c.prefix_queries));
        out.counter(&format!("{cache}_hits"), total(|c| c.prefix_hits));
        out.counter("vllm:num_preemptions", total(|c| c.preemptions));
        out.counter("vllm:prompt_tokens", total(|c| c.prompt_tokens));
        if !old {
            out.counter("vllm:prompt_tokens_cached", total(|c| c.prefix_hits));
        }
        out.counter("vllm:generation_tokens", total(|c| c.generation_tokens));
        // Aborted requests are not counted there, whatever the label promises.
        let success: Vec<(String, f64)> = labels
            .iter()
            .zip(self.engines)
            .flat_map(|(labels, sample)| {
                [("stop", 0), ("length", sample.counters.finished), ("abort", 0), ("error", 0)]
                    .map(|(why, n)| (with(labels, "finished_reason", why), n as f64))
            })
            .collect();
        out.counter("vllm:request_success", refer(&success));
        let histogram = |pick: fn(&Times) -> &Histogram| {
            labels.iter().map(String::as_str).zip(self.engines.iter().map(move |s| pick(&s.times)))
        };
        out.histogram("vllm:time_to_first_token_seconds", histogram(|t| &t.first_token));
        let inter_token = if old { "time_per_output_token" } else { "inter_token_latency" };
        out.histogram(&format!("vllm:{inter_token}_seconds"), histogram(|t| &t.inter_token));
        out.histogram("vllm:e2e_request_latency_seconds", histogram(|t| &t.request));
        if let Some(loras) = self.loras {
            let max = self.limits.max_loras;
            let max = if rust { String::new() } else { format!("max_lora=\"{max}\",") };
            let series: Vec<(String, f64)> = loras
                .series
                .iter()
                .map(|(running, waiting, time)| {
                    let lists = format!(
                        "running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{waiting}\""
                    );
                    (format!("{max}{lists}"), *time)
                })
                .collect();
            out.gauge("vllm:lora_requests_info", refer(&series));
        }
        let Limits { kv_blocks, prefix_caching, .. } = self.limits;
        let caching = if *prefix_caching { "True" } else { "False" };
        let config = |engine: usize| {
            let (block, tokens) = (BLOCK_TOKENS, u64::from(*kv_blocks) * u64::from(BLOCK_TOKENS));
            let engine = if old { String::new() } else { format!("engine=\"{engine}\",") };
            let size =
                if old { String::new() } else { format!("kv_cache_size_tokens=\"{tokens}\",") };
            let labels = format!(
                "block_size=\"{block}\",cache_dtype=\"auto\",enable_prefix_caching=\"{caching}\",\
                 {engine}gpu_memory_utilization=\"0.9\",is_attention_free=\"False\",{size}\
                 num_cpu_blocks=\"None\",num_gpu_blocks=\"{kv_blocks}\",\
                 num_gpu_blocks_override=\"None\",sliding_window=\"None\""
            );
            (labels, 1.0)
        };
        let configs: Vec<_> = (0..self.engines.len()).map(config).collect();
        out.gauge("vllm:cache_config_info", refer(&configs));
    }

    fn sglang(&self, out: &mut Writer) {
        let model = self.model;
        let labels: Vec<String> = (0..self.engines.len())
            .map(|rank| {
                format!(
                    "dp_rank=\"{rank}\",engine_type=\"unified\",model_name=\"{model}\",\
                     moe_ep_rank=\"{rank}\",pp_rank=\"0\",tp_rank=\"{rank}\""
                )
            })
            .collect();
        let tokens = u64::from(self.limits.kv_blocks * BLOCK_TOKENS) as f64;
        let each = |value: &dyn Fn(&Sample) -> f64| -> Vec<(&str, f64)> {
            labels.iter().map(String::as_str).zip(self.engines.iter().map(value)).collect()
        };
        out.gauge("sglang:num_running_reqs", each(&|s| s.running as f64));
        out.gauge("sglang:num_queue_reqs", each(&|s| s.waiting as f64));
        out.gauge("sglang:num_used_tokens", each(&|s| self.usage(s) * tokens));
        out.gauge("sglang:token_usage", each(&|s| self.usage(s)));
        let rate = |s: &Sample| {
            let Counters { prefix_hits, prefix_queries, .. } = s.counters;
            if prefix_queries == 0 { 0.0 } else { prefix_hits as f64 / prefix_queries as f64 }
        };
        out.gauge("sglang:cache_hit_rate", each(&rate));
        out.gauge("sglang:max_total_num_tokens", each(&|_| tokens));
        out.gauge("sglang:page_size", each(&|_| f64::from(BLOCK_TOKENS)));
        let all = format!("engine_type=\"unified\",model_name=\"{model}\"");
        out.counter("sglang:prompt_tokens", [(all.as_str(), self.sum(|c| c.prompt_tokens))]);
        out.counter(
            "sglang:generation_tokens",
            [(all.as_str(), self.sum(|c| c.generation_tokens))],
        );
        let first_token = self.engines.iter().map(|s| (all.as_str(), &s.times.first_token)).take(1);
        out.histogram("sglang:time_to_first_token_seconds", first_token);
    }

    fn tgi(&self, out: &mut Writer) {
        let block = u64::from(BLOCK_TOKENS) as f64;
        let used: f64 = self.engines.iter().map(|s| f64::from(s.kv_used) * block).sum();
        let started = self.sum(|c| c.finished) + self.running() + self.waiting();
        out.gauge("tgi_queue_size", [("", self.waiting())]);
        out.gauge("tgi_batch_current_size", [("", self.running())]);
        out.gauge("tgi_batch_current_max_tokens", [("", used)]);
        out.gauge("tgi_batch_total_tokens", [("", f64::from(self.limits.kv_blocks) * block)]);
        out.gauge("tgi_request_count", [("", started)]);
        out.gauge("tgi_request_success", [("", self.sum(|c| c.finished))]);
    }

    fn llamacpp(&self, out: &mut Writer) {
        out.gauge("llamacpp:prompt_tokens_total", [("", self.sum(|c| c.prompt_tokens))]);
        out.gauge("llamacpp:tokens_predicted_total", [("", self.sum(|c| c.generation_tokens))]);
        out.gauge("llamacpp:n_decode_total", [("", self.sum(|c| c.steps))]);
        out.gauge("llamacpp:requests_processing", [("", self.running())]);
        out.gauge("llamacpp:requests_deferred", [("", self.waiting())]);
    }

    fn trtllm(&self, out: &mut Writer) {
        let labels = format!("engine_type=\"trtllm\",model_name=\"{}\"", self.model);
        let labels = labels.as_str();
        out.gauge("trtllm_num_requests_waiting", [(labels, self.waiting())]);
        out.gauge("trtllm_num_requests_running", [(labels, self.running())]);
        let usage = self.engines.iter().map(|s| self.usage(s)).fold(0.0, f64::max);
        out.gauge("trtllm_kv_cache_utilization", [(labels, usage)]);
        out.gauge("trtllm_kv_cache_tokens_per_block", [(labels, f64::from(BLOCK_TOKENS))]);
    }

    fn triton(&self, out: &mut Writer) {
        let of = |key: &str, values: &[(&str, f64)]| -> Vec<(String, f64)> {
            let label = |kind| format!("{key}=\"{kind}\",model=\"tensorrt_llm\",version=\"1\"");
            values.iter().map(|(kind, value)| (label(kind), *value)).collect()
        };
        let (running, waiting) = (self.running(), self.waiting());
        let requests = of(
            "request_type",
            &[("active", running + waiting), ("scheduled", running), ("waiting", waiting)],
        );
        out.gauge("nv_trt_llm_request_metrics", refer(&requests));
        let used: f64 = self.engines.iter().map(|s| f64::from(s.kv_used)).sum();
        let max = f64::from(self.limits.kv_blocks) * self.engines.len() as f64;
        let tokens = f64::from(BLOCK_TOKENS);
        let blocks = of(
            "kv_cache_block_type",
            &[
                ("fraction", used / max),
                ("tokens_per", tokens),
                ("used", used),
                ("free", max - used),
                ("max", max),
            ],
        );
        out.gauge("nv_trt_llm_kv_cache_block_metrics", refer(&blocks));
    }

    fn usage(&self, sample: &Sample) -> f64 {
        f64::from(sample.kv_used) / f64::from(self.limits.kv_blocks)
    }

    fn running(&self) -> f64 {
        self.engines.iter().map(|sample| sample.running as f64).sum()
    }

    fn waiting(&self) -> f64 {
        self.engines.iter().map(|sample| sample.waiting as f64).sum()
    }

    fn sum(&self, value: fn(&Counters) -> u64) -> f64 {
        self.engines.iter().map(|sample| value(&sample.counters) as f64).sum()
    }
}

/// Labels with one more, which stands before `model_name` as sorted labels do.
fn with(labels: &str, name: &str, value: &str) -> String {
    labels.replacen("model_name=", &format!("{name}=\"{value}\",model_name="), 1)
}

fn refer(samples: &[(String, f64)]) -> Vec<(&str, f64)> {
    samples.iter().map(|(labels, value)| (labels.as_str(), *value)).collect()
}

/// vLLM's bounds.
const FIRST_TOKEN_BOUNDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const INTER_TOKEN_BOUNDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
const REQUEST_BOUNDS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
/// Combinations of adapters kept.
const MAX_LORA_SERIES: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapter_series_pile_up() {
        let mut loras = LoraSeries::default();
        for (lists, unix) in [("a", 1.0), ("a,b", 2.0), ("a", 3.0)] {
            loras.update(lists.into(), lists.into(), unix);
        }
        assert_eq!(
            loras.series,
            [("a".into(), "a".into(), 3.0), ("a,b".into(), "a,b".into(), 2.0)]
        );
    }
}
