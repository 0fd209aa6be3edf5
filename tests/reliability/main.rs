//! `reliability`: what must hold, at full size. Each part starts its own pods and gateway, prints what it saw, and
//! fails if that is not what it should be.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a check fails by panic as a test does"
)]

mod bodies;

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use hdrhistogram::Histogram;
use sluice_tests::chaos::Chaos;
use sluice_tests::client::{Client, chat};
use sluice_tests::engine::{Gpu, Options, Server};
use sluice_tests::gateway::{Gateway, PATIENCE, Plan};
use sluice_tests::hostile::{Attack, Running};
use sluice_tests::load::Load;
use sluice_tests::tls::{Authority, Identity};

/// What must hold, at full size.
#[derive(Parser)]
#[command(name = "reliability", after_help = "Example: reliability chaos --requests 10000")]
struct Cli {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// Large request bodies at once: the memory that they take.
    Bodies {
        /// Of each body.
        #[arg(long, default_value_t = 20_000_000)]
        bytes: usize,
        /// Clients at once.
        #[arg(long, default_value_t = 16)]
        clients: usize,
    },
    /// Requests while pods are killed, restarted, stalled and answer nonsense.
    Chaos {
        /// Requests in all.
        #[arg(long, default_value_t = 10_000)]
        requests: u64,
        /// Clients at once.
        #[arg(long, default_value_t = 32)]
        clients: u64,
        /// What is drawn by lot follows from it.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// The conformance tests of HTTP/2, in clear text and over TLS.
    H2spec {
        /// The program h2spec.
        #[arg(long)]
        program: PathBuf,
    },
    /// Thousands of slow and mute clients beside normal ones.
    Hostile {
        /// Clients whose heads do not end.
        #[arg(long, default_value_t = 2000)]
        slow_heads: usize,
        /// Clients whose bodies do not end.
        #[arg(long, default_value_t = 2000)]
        slow_bodies: usize,
        /// Clients that do not read.
        #[arg(long, default_value_t = 500)]
        mute: usize,
        /// For how long normal requests are measured, without and with them, in turns.
        #[arg(long, default_value_t = 20)]
        seconds: u64,
    },
    /// One gateway takes over from another, again and again, under load.
    Takeover {
        /// How often.
        #[arg(long, default_value_t = 20)]
        times: usize,
    },
}

fn main() -> ExitCode {
    let done = match Cli::parse().part {
        Part::Bodies { bytes, clients } => bodies::bodies(bytes, clients),
        Part::Chaos { requests, clients, seed } => chaos(&Chaos { requests, clients, seed }),
        Part::H2spec { program } => h2spec(&program),
        Part::Hostile { slow_heads, slow_bodies, mute, seconds } => {
            let every = Duration::from_secs(1);
            let attack = Attack { slow_heads, slow_bodies, mute, every, again: true };
            hostile(attack, Duration::from_secs(seconds))
        }
        Part::Takeover { times } => takeover(times),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("reliability: FAILED: {what}");
            ExitCode::FAILURE
        }
    }
}

fn chaos(chaos: &Chaos) -> Result<(), String> {
    let started = Instant::now();
    let report = chaos.run()?;
    let seen: Vec<String> =
        report.seen.iter().map(|(what, count)| format!("{count} {what}")).collect();
    println!(
        "chaos: {} requests in {:.0} s, {} faults of pods: {}; nothing in flight, nothing held",
        chaos.requests,
        started.elapsed().as_secs_f64(),
        report.faults,
        seen.join(", ")
    );
    Ok(())
}

fn h2spec(program: &Path) -> Result<(), String> {
    let pods = Server::start_all(vec![Options::default()]).expect("a pod starts");
    let authority = Authority::new();
    let identity = authority.issue("server", &["127.0.0.1"]);
    let plan = |protocol: &str| Plan {
        listener: format!(", protocol: {protocol}"),
        ..Plan::pool("base", &pods).spec(&Identity::spec(&[&identity]))
    };
    for (protocol, words) in [("h2c", &[][..]), ("https", &["--tls", "--insecure"])] {
        let gateway = Gateway::start(&plan(protocol));
        let port = gateway.address.port().to_string();
        let output = Command::new(program)
            .args(["--host", "127.0.0.1", "--port", &port, "--path", "/v1/models", "--strict"])
            .args(["--timeout", "5"])
            .args(words)
            .output()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let last = text.trim_end().lines().last().unwrap_or_default();
        println!("h2spec, {protocol}: {last}");
        if !output.status.success() || !last.contains(", 0 failed") {
            return Err(text.split("Failures:").last().unwrap_or_default().to_owned());
        }
    }
    Ok(())
}

fn takeover(times: usize) -> Result<(), String> {
    let pods = Server::start_all(vec![Options::default(), Options::default()]).expect("pods start");
    let plan = Plan::pool("base", &pods).spec("  workers: 2");
    let mut gateway = Gateway::start(&plan);
    let load = Load::start([gateway.address].into_iter());
    for _ in 0..times {
        load.wait_for_more();
        let new = gateway.successor(&plan);
        let status = gateway.wait_exit(PATIENCE);
        if status.code() != Some(0) || !gateway.log().contains("; 0 connections were cut") {
            return Err(format!("the old one ended with {status}:\n{}", gateway.log()));
        }
        gateway = new;
    }
    load.wait_for_more();
    let answered = load.answered();
    load.stop();
    println!("takeover: {times} times, {answered} requests, none failed");
    Ok(())
}

fn hostile(attack: Attack, each: Duration) -> Result<(), String> {
    let engine = || Options { speed: 20.0, ..Options::on(&Gpu::default()) };
    let pods = Server::start_all(vec![engine(), engine()]).expect("pods start");
    // Those that do not read stay throughout: what they ask for is much, and not what is measured.
    let limits = "  limits: {headerTimeout: 5s, bodyTimeout: 5s, streamIdleTimeout: 5m}";
    let mut plan = Plan::pool("base", &pods).spec(limits);
    plan.pools.push(("large".into(), vec![large()]));
    let gateway = Gateway::start(&plan);
    // Warm.
    measure(gateway.address, Duration::from_secs(2), || ());
    let before = gateway.resident();
    let mut most = before;
    let (mut without, mut with) = (histogram(), histogram());
    let mut opened = 0;
    let mut longest = [0; 3];
    for _ in 0..TURNS {
        without.add(measure(gateway.address, each / TURNS, || ())).expect("of one kind");
        let running = attack.start(gateway.address, "large");
        wait_open(&running, attack.count() as u64)?;
        thread::sleep(SETTLE);
        let mut watch = || most = most.max(gateway.resident());
        with.add(measure(gateway.address, each / TURNS, &mut watch)).expect("of one kind");
        opened += running.seen.opened.load(Ordering::Relaxed);
        for (longest, seen) in longest.iter_mut().zip(&running.seen.longest) {
            *longest = seen.load(Ordering::Relaxed).max(*longest);
        }
        drop(running);
        gateway.wait("the attackers to be gone", |status| status["connections"] == 0);
    }
    let status = gateway.wait_idle();
    let ms =
        |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
    println!(
        "hostile: {} slow heads, {} slow bodies, {} mute at once, {opened} connections in all",
        attack.slow_heads, attack.slow_bodies, attack.mute
    );
    println!("| normal requests | count | p50 ms | p99 ms |\n|---|---|---|---|");
    for (name, of) in [("without", &without), ("with", &with)] {
        println!("| {name} | {} | {:.2} | {:.2} |", of.len(), ms(of, 0.5), ms(of, 0.99));
    }
    println!("p99 ratio: {:.2}", ms(&with, 0.99) / ms(&without, 0.99));
    println!("memory: {} MB more at most", (most - before) / 1_000_000);
    println!("the longest suffered: heads {} ms, bodies {} ms", longest[0], longest[1]);
    // Twice the limits is late on any machine; a body's last answer is waited for as well.
    if longest.iter().any(|longest| *longest > 15_000) {
        return Err("some were not let go in time".into());
    }
    if status["buffered_bytes"] != 0 {
        return Err(format!("bodies are left: {status:#}"));
    }
    Ok(())
}

/// Normal requests for so long: each client keeps a connection, and asks for a short answer.
fn measure(gateway: SocketAddr, lasting: Duration, mut meanwhile: impl FnMut()) -> Histogram<u64> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let over = &over;
                scope.spawn(move || {
                    let (mut client, mut own) = (Client::connect(gateway), histogram());
                    while !over.load(Ordering::Relaxed) {
                        let started = Instant::now();
                        client.post("/v1/chat/completions", &chat("base", 4, number % 2 == 0));
                        let response = client.response();
                        assert_eq!((response.status, response.complete), (200, true));
                        own.saturating_record(started.elapsed().as_micros() as u64);
                        thread::sleep(Duration::from_millis(20));
                    }
                    own
                })
            })
            .collect();
        let until = Instant::now() + lasting;
        while Instant::now() < until {
            meanwhile();
            thread::sleep(Duration::from_millis(100));
        }
        over.store(true, Ordering::Relaxed);
        let mut all = histogram();
        for client in clients {
            all.add(client.join().expect("no request fails")).expect("of one kind");
        }
        all
    })
}

fn wait_open(running: &Running, count: u64) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    // Some are let go while the last ones come.
    while running.seen.open() < count * 95 / 100 {
        if Instant::now() > deadline {
            return Err(format!("only {} of {count} connect", running.seen.open()));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000, 3).expect("bounds in order")
}

/// A pod whose answers are larger than what the gateway writes ahead of a client that does not read.
fn large() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::Builder::new()
                .stack_size(64 * 1024)
                .spawn(move || large_answers(stream))
                .expect("a thread");
        }
    });
    address
}

fn large_answers(mut stream: std::net::TcpStream) {
    use std::io::{Read as _, Write as _};
    let mut request = [0; 4096];
    while matches!(stream.read(&mut request), Ok(1..)) {
        let head = request.starts_with(b"POST ");
        let mut write = |bytes: &[u8]| stream.write_all(bytes).is_ok();
        let went = match head {
            false => write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"),
            true => {
                write(b"HTTP/1.1 200 OK\r\ncontent-length: 1048576\r\n\r\n")
                    && write(&vec![b'x'; 1 << 20])
            }
        };
        if !went {
            return;
        }
    }
}

/// Until what the mute ones asked for has come as far as it comes.
const SETTLE: Duration = Duration::from_secs(2);

/// Normal clients.
const CLIENTS: u32 = 16;

/// Without and with, in turns, so that what else the machine does falls on both.
const TURNS: u32 = 2;
