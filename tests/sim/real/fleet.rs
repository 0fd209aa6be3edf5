//! One policy's own fleet: simulated model servers, and a real gateway before them.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, bail};
use sluice_tests::engine::{Gpu, Limits, Options, Server};
use sluice_tests::gateway::{Gateway, Plan, free_port};
use sluice_tests::sim::Scenario;
use sluice_tests::sim::policy::Name;
use sluice_tests::sim::traffic::Shape;

use crate::requests::{MODEL, adapter};

/// The policies that a gateway can be configured to have, in the order of tables.
pub(crate) const POLICIES: [Name; 6] = [
    Name::RoundRobin,
    Name::Random,
    Name::LeastRequest,
    Name::ReferenceDefault,
    Name::SluiceLatency,
    Name::SluiceThroughput,
];

/// A fleet. It ends when dropped, the gateway first, so that it sees no dying pods.
pub(crate) struct Fleet {
    /// Who picks.
    pub(crate) policy: Name,
    /// Where clients connect.
    pub(crate) address: SocketAddr,
    gateway: Proxy,
    pods: Vec<Server>,
}

enum Proxy {
    Ours(Box<Gateway>),
    Haproxy(Haproxy),
}

impl Fleet {
    /// Starts the scenario's pods, on a thread of their own, and a gateway with this policy. `None` where
    /// nothing here has the policy: round robin is HAProxy's, and that is not installed.
    ///
    /// # Errors
    /// Something cannot be started.
    pub(crate) fn start(scenario: &Scenario, policy: Name) -> anyhow::Result<Option<Self>> {
        let haproxy = haproxy();
        if policy == Name::RoundRobin && haproxy.is_none() {
            return Ok(None);
        }
        let pods = Server::start_all(pods(scenario)?)?;
        let addresses: Vec<SocketAddr> = pods.iter().map(|pod| pod.addr).collect();
        let (address, gateway) = match haproxy {
            Some(program) if policy == Name::RoundRobin => {
                let haproxy = Haproxy::start(&program, &addresses)?;
                (haproxy.address, Proxy::Haproxy(haproxy))
            }
            _ => {
                let gateway = Gateway::start(&plan(scenario, policy, addresses)?);
                (gateway.address, Proxy::Ours(Box::new(gateway)))
            }
        };
        Ok(Some(Self { policy, address, gateway, pods }))
    }

    /// The gateway's process.
    pub(crate) fn pid(&self) -> u32 {
        match &self.gateway {
            Proxy::Ours(gateway) => gateway.pid(),
            Proxy::Haproxy(haproxy) => haproxy.child.id(),
        }
    }

    /// Tokens, prompt tokens and cached prompt tokens of all pods so far.
    pub(crate) fn counted(&self) -> [u64; 3] {
        let pages: Vec<String> = self.pods.iter().map(Server::metrics).collect();
        [
            "vllm:generation_tokens_total",
            "vllm:prefix_cache_queries_total",
            "vllm:prefix_cache_hits_total",
        ]
        .map(|name| pages.iter().map(|page| sum(page, name)).sum::<f64>() as u64)
    }
}

/// The sum of a metric's samples.
fn sum(page: &str, name: &str) -> f64 {
    let samples = page
        .lines()
        .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])));
    samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// The same pods as the simulator has.
fn pods(scenario: &Scenario) -> anyhow::Result<Vec<Options>> {
    let adapters: Vec<String> = match scenario.shape {
        Shape::Adapters { adapters, .. } => (0..adapters).map(adapter).collect(),
        _ => Vec::new(),
    };
    let mut pods = Vec::new();
    for (name, count) in scenario.fleet {
        let gpu = Gpu::named(name).with_context(|| format!("no GPU {name}"))?;
        let gpu = Gpu { lora_load_us: scenario.lora_load_us, ..gpu.clone() };
        let limits = Limits { max_loras: scenario.max_loras, ..Limits::of(&gpu) };
        for _ in 0..count * scenario.times {
            pods.push(Options {
                name: pods.len().to_string(),
                models: vec![MODEL.to_owned()],
                adapters: adapters.clone(),
                limits,
                seed: pods.len() as u64,
                ..Options::on(&gpu)
            });
        }
    }
    Ok(pods)
}

/// The gateway's configuration for a policy.
fn plan(scenario: &Scenario, policy: Name, pods: Vec<SocketAddr>) -> anyhow::Result<Plan> {
    let (spec, scheduler) = match policy {
        Name::Random => (profile([0, 0, 0, 1], "random"), OTHERS),
        Name::LeastRequest => (profile([0, 0, 0, 1], "max-score"), OTHERS),
        Name::ReferenceDefault => (profile([2, 2, 3, 0], "max-score"), OTHERS),
        Name::SluiceLatency => (String::new(), "    profile: latency\n"),
        Name::SluiceThroughput => (String::new(), "    profile: throughput\n"),
        other => bail!("no configuration of the gateway is {}", other.as_str()),
    };
    let mut scheduler = scheduler.to_owned();
    if let Shape::Adapters { adapters, .. } = scenario.shape {
        let names: Vec<String> = (0..adapters).map(adapter).collect();
        scheduler.push_str(&format!("    loraAdapters: [{}]\n", names.join(", ")));
    }
    let plan = Plan { pools: vec![(MODEL.to_owned(), pods)], ..Plan::pool(MODEL, &[]) };
    Ok(plan.spec(&spec).scheduler(&scheduler))
}

/// A profile with these weights of queue, KV cache, prefix cache and own requests, and no others.
fn profile([queue, kv_cache, prefix, active_request]: [u32; 4], picker: &str) -> String {
    format!(
        "  profiles:\n  - name: compared\n    weights: {{queue: {queue}, kvCache: {kv_cache}, \
         prefix: {prefix}, activeRequest: {active_request}, runningRequests: 0, loraAffinity: 0}}\n    \
         picker: {picker}\n"
    )
}

/// HAProxy, one pod after the other.
struct Haproxy {
    address: SocketAddr,
    child: Child,
    config: PathBuf,
}

impl Haproxy {
    fn start(program: &Path, pods: &[SocketAddr]) -> anyhow::Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut text = format!(
            "global\n  maxconn 9000\n\
             defaults\n  mode http\n  timeout connect 5s\n  timeout client 600s\n  timeout server 600s\n\
             \x20 option http-no-delay\n\
             frontend clients\n  bind {address}\n  default_backend pods\n\
             backend pods\n  balance roundrobin\n"
        );
        for (number, pod) in pods.iter().enumerate() {
            text.push_str(&format!("  server pod{number} {pod}\n"));
        }
        let config = std::env::temp_dir().join(format!("sluice-sim-{}.cfg", std::process::id()));
        fs::write(&config, text).with_context(|| config.display().to_string())?;
        let child = Command::new(program)
            .arg("-db")
            .arg("-f")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("start haproxy")?;
        let mut haproxy = Self { address, child, config };
        for _ in 0..500 {
            if TcpStream::connect(address).is_ok() {
                return Ok(haproxy);
            }
            if let Some(status) = haproxy.child.try_wait()? {
                bail!("haproxy ended: {status}");
            }
            sleep(Duration::from_millis(20));
        }
        bail!("haproxy does not listen");
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.config);
    }
}

/// Where it is installed.
fn haproxy() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into()])
        .map(|folder| folder.join("haproxy"))
        .find(|file| file.is_file())
}

/// Nothing is refused, and metrics are always 50 ms old: what the simulated ones have.
const OTHERS: &str = "    profile: compared\n    metrics: {busyInterval: 50ms, idleInterval: 50ms}\n    \
     saturation: {queueDepth: 1000000, inFlight: 1000000, expectedWait: 24h}\n";
