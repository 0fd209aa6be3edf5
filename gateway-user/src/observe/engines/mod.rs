//! What each kind of model server says about its load: the body of its `/metrics` in, one
//! [`Reading`] out.
//!
//! The kind is told by the names in the body, so nobody has to configure it. What is missing,
//! unreadable or senseless (NaN, negative, infinite, a KV cache 80 times full) is unknown, never 0:
//! a pod that looks idle by mistake would get all the traffic. Pure; names, meanings and versions
//! are those of the servers' own sources.

mod gauge;
mod llamacpp;
mod sglang;
mod tensorrt;
mod tgi;
mod vllm;

use crate::observe::exposition::{Sample, Samples, Shape, shape, unescape};
use crate::schedule::Signals;

/// What one scrape of a pod's metrics tells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Who answered.
    pub engine: EngineKind,
    /// The load. For [`EngineKind::Unknown`] nothing is known.
    pub signals: Signals,
    /// Adapters with live requests, sorted; at most [`MAX_ADAPTERS`]. Empty too where the server
    /// does not name them.
    pub adapters_active: Vec<Box<str>>,
    /// An engine has put its weights or its KV cache away (vLLM's sleep mode): it looks idle but
    /// serves nobody.
    pub asleep: bool,
    /// There are several engines, each with a KV cache of its own (data-parallel ranks).
    pub is_split: bool,
    /// Tokens in one KV cache block.
    pub block_size: Option<u32>,
    /// KV cache blocks, all engines together.
    pub blocks: Option<u32>,
    /// Tokens that fit into the KV cache, all engines together. Hybrid models make it less than
    /// blocks times size.
    pub kv_tokens: Option<u64>,
    /// Requests that may run at once.
    pub max_num_seqs: Option<u32>,
    /// Models named in the labels; at most [`MAX_MODELS`].
    pub models: Vec<Box<str>>,
    /// Lines with one of our metrics that could not be read.
    pub unreadable: u32,
}

/// A kind of model server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineKind {
    /// llama.cpp's `llama-server --metrics`.
    LlamaCpp,
    /// SGLang with `--enable-metrics`.
    Sglang,
    /// Text Generation Inference.
    Tgi,
    /// Triton, with the TensorRT-LLM back end or another.
    Triton,
    /// TensorRT-LLM's own `trtllm-serve`.
    TrtllmServe,
    /// Metrics of none of these.
    #[default]
    Unknown,
    /// vLLM of any age, and its Rust front end.
    Vllm,
}

impl EngineKind {
    /// Its name, as `/status` shows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::LlamaCpp => "llama.cpp",
            Self::Sglang => "sglang",
            Self::Tgi => "tgi",
            Self::Triton => "triton",
            Self::TrtllmServe => "trtllm-serve",
            Self::Unknown => "unknown",
            Self::Vllm => "vllm",
        }
    }
}

/// The body holds no metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", match .0 {
    Shape::Empty => "an empty answer",
    Shape::Html => "an HTML page",
    Shape::Json => "JSON without iteration statistics",
    Shape::Metrics | Shape::Other => "text that is no metrics",
})]
pub struct NotMetrics(pub Shape);

/// Reads the body of an answer to `GET /metrics`.
///
/// # Errors
///
/// [`NotMetrics`] for a page, foreign JSON, nothing or other text. Metrics of a server that we do
/// not know are a reading in which everything is unknown.
pub fn read(body: &[u8]) -> Result<Reading, NotMetrics> {
    let shape = shape(body);
    match shape {
        Shape::Empty | Shape::Html => return Err(NotMetrics(shape)),
        Shape::Json => return tensorrt::read_iterations(body).ok_or(NotMetrics(shape)),
        Shape::Metrics | Shape::Other => {}
    }
    let engine = detect(body);
    let reading = match engine {
        EngineKind::LlamaCpp => llamacpp::read(body),
        EngineKind::Sglang => sglang::read(body),
        EngineKind::Tgi => tgi::read(body),
        EngineKind::Triton => tensorrt::read_triton(body),
        EngineKind::TrtllmServe => tensorrt::read_serve(body),
        EngineKind::Unknown if shape == Shape::Other => return Err(NotMetrics(shape)),
        EngineKind::Unknown => Reading::default(),
        EngineKind::Vllm => vllm::read(body),
    };
    Ok(Reading { engine, ..reading })
}

/// Whose metrics these are, by the first name that only one server has.
fn detect(body: &[u8]) -> EngineKind {
    let mut engine = EngineKind::Unknown;
    for sample in Samples::new(body, &ENGINE_PREFIXES) {
        engine = match sample.name.as_bytes() {
            [b'v', b'l', ..] => return EngineKind::Vllm,
            [b's', ..] => return EngineKind::Sglang,
            [b't', b'g', ..] => return EngineKind::Tgi,
            [b't', ..] => return EngineKind::TrtllmServe,
            [b'l', ..] => return EngineKind::LlamaCpp,
            // Triton shows its own metrics before those of a vLLM that it hosts.
            _ => EngineKind::Triton,
        };
    }
    engine
}

impl Reading {
    /// Notes the model that a sample is about.
    fn note_model(&mut self, sample: &Sample<'_>, label: &str) {
        let Some(raw) = sample.raw_label(label).filter(|raw| !raw.is_empty()) else { return };
        if raw.len() > MAX_NAME_BYTES || self.models.len() >= MAX_MODELS {
            return;
        }
        let name = unescape(raw);
        if !self.models.iter().any(|known| **known == *name) {
            self.models.push(name.into());
        }
    }
}

/// Most adapters kept from one reading: far more than fit into a GPU at once.
pub const MAX_ADAPTERS: usize = 1024;

/// Most model names kept from one reading.
pub const MAX_MODELS: usize = 16;

/// Longest name of a model or adapter kept, in bytes, escapes included.
const MAX_NAME_BYTES: usize = 512;

/// What the names of each server begin with.
const ENGINE_PREFIXES: [&str; 6] = ["vllm:", "sglang:", "tgi_", "trtllm_", "llamacpp:", "nv_"];

#[cfg(test)]
mod tests;
