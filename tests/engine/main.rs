//! The simulated model server as a program.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use sluice_tests::engine::{Faults, Gpu, Limits, Options, Server, Style};

fn main() -> Result<()> {
    let args = Args::parse();
    let mut groups: Vec<Vec<Options>> = vec![Vec::new(); args.threads.max(1)];
    let threads = groups.len();
    for (at, options) in args.pods()?.into_iter().enumerate() {
        if let Some(group) = groups.get_mut(at % threads) {
            group.push(options);
        }
    }
    let mut servers = Vec::new();
    for group in groups {
        servers.extend(Server::start_all(group)?);
    }
    for server in servers.iter().take(8) {
        println!("{} listens on {}", server.name(), server.addr);
    }
    if servers.len() > 8 {
        println!("… {} pods in all", servers.len());
    }
    loop {
        // The pods have threads of their own; a signal ends the process.
        std::thread::park();
    }
}

/// Simulated model servers that speak like vLLM, run like a GPU and fail on command.
///
/// Options that describe a pod may be given several times: the first is for the first --listen, the
/// second for the second, and the last one for all that follow.
#[derive(Parser)]
#[command(name = "engine", after_help = EXAMPLES)]
struct Args {
    /// Where a pod listens; again for more pods.
    #[arg(long, default_value = "127.0.0.1:9001")]
    listen: Vec<SocketAddr>,
    /// So many pods on consecutive ports from each --listen.
    #[arg(long, default_value_t = 1)]
    pods: u16,
    /// Name of a pod, which answers carry as system_fingerprint [default: pod-PORT].
    #[arg(long)]
    name: Vec<String>,
    /// Names of the base model, comma-separated.
    #[arg(long, default_value = "base")]
    model: Vec<String>,
    /// GPU profile: see below.
    #[arg(long, default_value = "h100")]
    gpu: Vec<String>,
    /// Adapters of a pod, comma-separated.
    #[arg(long)]
    adapters: Vec<String>,
    /// Simulated seconds in a second.
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// v0.8, v0.11, openmetrics, none, sglang, tgi, llamacpp, trtllm or triton.
    #[arg(long, default_value = "v0.11")]
    metrics_style: Vec<Style>,
    /// Engines behind one port.
    #[arg(long, default_value_t = 1)]
    data_parallel: usize,
    /// Publish changes of the KV cache over ZeroMQ on a port this far from the pod's own.
    #[arg(long)]
    kv_events_offset: Option<u16>,
    /// Close a connection after so many seconds without a request.
    #[arg(long, default_value_t = 5.0)]
    keep_alive: f64,
    /// Tell cached tokens in usage.
    #[arg(long)]
    enable_prompt_tokens_details: bool,
    /// Answer 503 when so many requests wait.
    #[arg(long)]
    max_num_queued_reqs: Option<usize>,
    /// Microseconds that the front-end is busy with each event; 0 sends a step's tokens at once.
    #[arg(long, default_value_t = 0)]
    event_us: u64,
    /// Put "ts", unix nanoseconds, in every token event.
    #[arg(long)]
    stamp: bool,

    /// Most sequences in a batch [default: by GPU].
    #[arg(long)]
    max_num_seqs: Option<u32>,
    /// Most tokens in a step [default: by GPU].
    #[arg(long)]
    max_num_batched_tokens: Option<u32>,
    /// Most tokens of a prompt and its answer.
    #[arg(long)]
    max_model_len: Option<u32>,
    /// KV cache in blocks of 16 tokens [default: by GPU].
    #[arg(long)]
    kv_blocks: Option<u32>,
    /// Most adapters in a batch.
    #[arg(long, default_value_t = 4)]
    max_loras: u32,
    /// Remember no prompts.
    #[arg(long)]
    no_prefix_caching: bool,
    /// Time before the engine, in milliseconds [default: by GPU].
    #[arg(long)]
    base_ms: Option<f64>,
    /// Prompt tokens a second, 0 for no time [default: by GPU].
    #[arg(long)]
    prefill_per_s: Option<u64>,
    /// A decode step, in milliseconds [default: by GPU].
    #[arg(long)]
    decode_ms: Option<f64>,
    /// What each sequence adds to it, in milliseconds [default: by GPU].
    #[arg(long)]
    decode_per_seq_ms: Option<f64>,

    /// Be away for so many milliseconds first.
    #[arg(long, default_value_t = 0)]
    start_after_ms: u64,
    /// Until then answer 503 instead of refusing connections.
    #[arg(long)]
    start_busy: bool,
    /// Faults from the start, as JSON; see below.
    #[arg(long, default_value = "{}")]
    fault: Vec<String>,
    /// End the process when a fault kills a pod.
    #[arg(long)]
    exit_process: bool,
    /// Threads to spread the pods over.
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

impl Args {
    fn pods(&self) -> Result<Vec<Options>> {
        let mut pods = Vec::new();
        for first in &self.listen {
            for more in 0..self.pods {
                let port = first.port().checked_add(more).context("no such port")?;
                pods.push(self.pod(pods.len(), SocketAddr::new(first.ip(), port))?);
            }
        }
        Ok(pods)
    }

    /// The pod at this place in the list.
    fn pod(&self, at: usize, listen: SocketAddr) -> Result<Options> {
        let name = nth(&self.gpu, at).context("no --gpu")?;
        let names = Gpu::names().collect::<Vec<_>>().join(", ");
        let mut gpu = Gpu::named(name)
            .with_context(|| format!("no GPU profile `{name}`; there are {names}"))?
            .clone();
        let us = |ms: f64| (ms * 1e3) as u64;
        gpu.base_us = self.base_ms.map_or(gpu.base_us, us);
        gpu.prefill_per_s = self.prefill_per_s.unwrap_or(gpu.prefill_per_s);
        gpu.decode_us = self.decode_ms.map_or(gpu.decode_us, us);
        gpu.decode_per_seq_us = self.decode_per_seq_ms.map_or(gpu.decode_per_seq_us, us);
        let of = Limits::of(&gpu);
        let limits = Limits {
            max_num_seqs: self.max_num_seqs.unwrap_or(of.max_num_seqs),
            max_num_batched_tokens: self
                .max_num_batched_tokens
                .unwrap_or(of.max_num_batched_tokens),
            max_model_len: self.max_model_len.unwrap_or(of.max_model_len),
            kv_blocks: self.kv_blocks.unwrap_or(of.kv_blocks),
            prefix_caching: !self.no_prefix_caching,
            max_loras: self.max_loras,
        };
        let kv_events = self.kv_events_offset.map(|offset| {
            let port = listen.port().checked_add(offset).context("no such port")?;
            anyhow::Ok(SocketAddr::new(listen.ip(), port))
        });
        let fault = nth(&self.fault, at).map_or("{}", String::as_str);
        Ok(Options {
            listen,
            // A name is for one pod only.
            name: self.name.get(at).cloned().unwrap_or_default(),
            models: split(nth(&self.model, at)),
            adapters: split(nth(&self.adapters, at)),
            gpu,
            limits,
            speed: self.speed,
            data_parallel: self.data_parallel,
            metrics: nth(&self.metrics_style, at).copied().unwrap_or_default(),
            kv_events: kv_events.transpose()?,
            keep_alive: Duration::from_secs_f64(self.keep_alive),
            prompt_tokens_details: self.enable_prompt_tokens_details,
            max_queued: self.max_num_queued_reqs,
            stamp: self.stamp,
            event_time: Duration::from_micros(self.event_us),
            start_after: Duration::from_millis(self.start_after_ms),
            start_busy: self.start_busy,
            faults: Faults::default().with(fault.as_bytes()).context("bad --fault")?,
            exit_process: self.exit_process,
            seed: at as u64,
        })
    }
}

/// The value for the pod at this place: its own, or the last one.
fn nth<T>(values: &[T], at: usize) -> Option<&T> {
    values.get(at).or(values.last())
}

fn split(list: Option<&String>) -> Vec<String> {
    let items = list.into_iter().flat_map(|list| list.split(','));
    items.filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

const EXAMPLES: &str = "\
GPU profiles (an 8B model unless the name says otherwise):
  h100, l40s, a10, l4, 32b-2xh100, 70b-fp8-2xh100, 70b-4xh100, 235b-fp8-4xh100, 235b-fp8-8xh100;
  instant takes no time

Faults (--fault, POST /_fault, or the request header x-engine-fault; DELETE /_fault heals):
  {\"status\":503,\"times\":3}   {\"stall_after\":4}   {\"crash_after\":2}   {\"metrics\":\"nan\"}
Orders, each with {\"for_ms\":500} or for ever: POST /_refuse, POST /_die, POST /_kill_engine

Example: two pods, one of them slow, and a request to the first
  engine --listen 127.0.0.1:9001 --gpu h100 --adapters sql,chat --listen 127.0.0.1:9002 --gpu l4
  curl -N 127.0.0.1:9001/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"model\":\"sql\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}'
  curl 127.0.0.1:9001/metrics; curl 127.0.0.1:9001/_stats";
