//! `soak`: mixed traffic through a gateway for as long as wanted, every byte of it compared.
//!
//! It starts the pods and the gateway itself, one carrier of bodies after the other. The first byte
//! that is not what the pod wrote ends it, named by request, pod and offset.

#![allow(clippy::indexing_slicing, reason = "a field that /status lacks is null")]

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use sluice_tests::gateway::{Gateway, Plan, pods};
use sluice_tests::script::ScriptPod;
use sluice_tests::soak::{Counts, Progress, Traffic};

/// Mixed traffic through a gateway, every byte of it compared.
#[derive(Parser)]
#[command(name = "soak", after_help = "Example: soak --gigabytes 10 --path local")]
struct Cli {
    /// Gigabytes of answers for each carrier.
    #[arg(long)]
    gigabytes: Option<f64>,
    /// Requests for each carrier; both limits hold if both are given.
    #[arg(long)]
    requests: Option<u64>,
    /// What carries the bodies.
    #[arg(long, value_enum, default_value = "all")]
    path: Carrier,
    /// Clients and pods leave in the middle of answers.
    #[arg(long)]
    aborts: bool,
    /// Clients at once.
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Pods.
    #[arg(long, default_value_t = 4)]
    pods: usize,
    /// Bytes of an answer, about.
    #[arg(long, default_value_t = 300_000)]
    length: u64,
    /// What everything drawn by lot follows from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Carrier {
    Relay,
    Splice,
    Local,
    All,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let carriers = match cli.path {
        Carrier::All => vec![Carrier::Relay, Carrier::Splice, Carrier::Local],
        one => vec![one],
    };
    for carrier in carriers {
        if let Err(what) = soak(&cli, carrier) {
            eprintln!("soak: FAILED: {what}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn soak(cli: &Cli, carrier: Carrier) -> Result<(), String> {
    let (name, paths) = match carrier {
        Carrier::Splice => ("splice", vec!["splice", "relay"]),
        Carrier::Local => ("local", vec!["local", "relay"]),
        Carrier::Relay | Carrier::All => ("relay", vec!["relay"]),
    };
    let servers = ScriptPod::start_all(cli.pods);
    let addresses = servers.iter().map(|pod| pod.address).collect();
    let plan = Plan { pools: vec![("base".into(), addresses)], paths, ..Plan::pool("base", &[]) };
    let gateway = Gateway::start(&plan);
    // Ten unless something else is said.
    let gigabytes = cli.gigabytes.or(cli.requests.is_none().then_some(10.0));
    let traffic = Traffic {
        connections: cli.connections,
        requests: cli.requests.unwrap_or(u64::MAX),
        bytes: gigabytes.map_or(u64::MAX, |count| (count * 1e9) as u64),
        length: cli.length,
        aborts: cli.aborts,
        straight: false,
        seed: cli.seed,
    };
    let (progress, over) = (Progress::default(), AtomicBool::new(false));
    let started = Instant::now();
    let ran = thread::scope(|scope| {
        let progress_line = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                thread::park_timeout(EVERY);
                say(name, progress.counts(), started);
            }
        });
        let ran = traffic.run(gateway.address, &progress);
        over.store(true, Ordering::Relaxed);
        progress_line.thread().unpark();
        ran
    });
    ran.map_err(|problem| format!("{name}: {problem}"))?;
    left_over(&gateway, &servers).map_err(|what| format!("{name}: left over: {what}"))?;
    let moved = gateway.metric(&format!("sluice_flow_bytes_total{{path=\"{name}\"}}"));
    let moved = moved.unwrap_or(0.0);
    eprintln!("soak: {name}: {} bytes moved by it", moved as u64);
    if name != "relay" && moved == 0.0 {
        return Err(format!("{name}: the kernel moved nothing"));
    }
    Ok(())
}

/// Waits until nothing is left of the traffic.
fn left_over(gateway: &Gateway, servers: &[ScriptPod]) -> Result<(), String> {
    let deadline = Instant::now() + LEAVE;
    loop {
        let status = gateway.status();
        let flows = &status["flows"];
        let empty = flows.is_null()
            || ["connections", "pairs", "clients"].into_iter().all(|of| flows[of] == 0);
        let busy: u64 = servers.iter().map(ScriptPod::busy).sum();
        let none = status["connections"] == 0
            && status["buffered_bytes"] == 0
            && pods(&status).all(|pod| pod["in_flight"] == 0)
            && empty
            && busy == 0;
        if none {
            break;
        }
        if Instant::now() > deadline {
            return Err(format!("{busy} answers of pods, and: {status:#}"));
        }
        thread::sleep(EVERY / 10);
    }
    // Listeners, connections to pods that are kept, and what the runtime has.
    let folder = format!("/proc/{}/fd", gateway.pid());
    let open = std::fs::read_dir(Path::new(&folder)).map_or(0, Iterator::count);
    if open > DESCRIPTORS { Err(format!("{open} descriptors")) } else { Ok(()) }
}

fn say(name: &str, counts: Counts, started: Instant) {
    let Counts { requests, bytes, whole, left, cut, refused } = counts;
    let rate = bytes as f64 / 1e6 / started.elapsed().as_secs_f64().max(0.001);
    eprintln!(
        "soak: {name}: {requests} requests, {:.3} GB, {rate:.0} MB/s; {whole} whole, {left} left by \
         the client, {cut} cut by the pod, {refused} refused",
        bytes as f64 / 1e9
    );
}

/// Between two lines of progress.
const EVERY: Duration = Duration::from_secs(5);
/// How long leavings may take to go.
const LEAVE: Duration = Duration::from_secs(60);
/// More than a gateway with some idle connections to a few pods has.
const DESCRIPTORS: usize = 400;
