//! How one pod is set up.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::faults::Faults;
use super::gpu::Gpu;
use super::metrics::Style;
use super::model::Limits;

/// One pod. Change what differs from the default: `Options { speed: 10.0, ..Options::default() }`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Its name, which answers carry as `system_fingerprint`; empty: `pod-` and the port.
    pub name: String,
    /// The names of the base model, the first one being the real one.
    pub models: Vec<String>,
    /// Adapters that are there from the start.
    pub adapters: Vec<String>,
    /// How fast.
    pub gpu: Gpu,
    /// How much at once.
    pub limits: Limits,
    /// Simulated seconds in a second.
    pub speed: f64,
    /// Engines behind the one port.
    pub data_parallel: usize,
    /// Whose metrics.
    pub metrics: Style,
    /// Where changes of the KV cache are published over ZeroMQ (`--kv-events-config`), of the first engine; port 0 takes a
    /// free one.
    pub kv_events: Option<SocketAddr>,
    /// After so long without a request an open connection is closed; uvicorn's 5 s.
    pub keep_alive: Duration,
    /// Tell cached tokens in usage (`--enable-prompt-tokens-details`).
    pub prompt_tokens_details: bool,
    /// Refuse requests with 503 when so many wait (`--max-num-queued-reqs`).
    pub max_queued: Option<usize>,
    /// Put `"ts"`, the unix time in nanoseconds, in every token event.
    pub stamp: bool,
    /// How long the front-end is busy with each event: the tokens of a step go out one after the
    /// other.
    pub event_time: Duration,
    /// Be away for so long first.
    pub start_after: Duration,
    /// Until then answer 503 instead of refusing connections.
    pub start_busy: bool,
    /// What is wrong from the start.
    pub faults: Faults,
    /// The process ends with the pod, when a fault kills that.
    pub exit_process: bool,
    /// For the ids of answers.
    pub seed: u64,
}

impl Options {
    /// The defaults on this GPU, with its limits.
    pub fn on(gpu: &Gpu) -> Self {
        Self { limits: Limits::of(gpu), gpu: gpu.clone(), ..Self::default() }
    }
}

impl Default for Options {
    fn default() -> Self {
        let gpu = Gpu::default();
        Self {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            name: String::new(),
            models: vec!["base".to_owned()],
            adapters: Vec::new(),
            limits: Limits::of(&gpu),
            gpu,
            speed: 1.0,
            data_parallel: 1,
            metrics: Style::default(),
            kv_events: None,
            keep_alive: Duration::from_secs(5),
            prompt_tokens_details: false,
            max_queued: None,
            stamp: false,
            event_time: Duration::ZERO,
            start_after: Duration::ZERO,
            start_busy: false,
            faults: Faults::default(),
            exit_process: false,
            seed: 0,
        }
    }
}
