//! `bench-load`: drives a gateway, or the pods themselves, and measures.
//!
//! Prints one JSON [`Report`] on stdout. One thread, so that it can be pinned to one processor.
//! A request's time counts from when it *should* have been sent: a gateway that stalls cannot hide
//! the requests that waited meanwhile (no coordinated omission).

mod chunks;
mod client;
mod handshakes;
mod pace;
mod prompt;
mod rate;
mod streams;
mod times;
mod usage;
mod wire;

use std::net::SocketAddr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use sluice_tests::bench::report::Report;
use tokio::task::LocalSet;

fn main() -> anyhow::Result<()> {
    let Cli { common, mode } = Cli::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let run = async {
        match mode {
            Mode::Handshakes(options) => handshakes::run(&common, &options).await,
            Mode::Idle => usage::idle(&common).await,
            Mode::Rate(options) => rate::run(&common, &options).await,
            Mode::Streams(options) => streams::run(&common, &options).await,
        }
    };
    let report: Report = LocalSet::new().block_on(&runtime, run)?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

/// Load generator of the benchmarks.
#[derive(Parser)]
#[command(
    name = "bench-load",
    after_help = "Example: bench-load --to 127.0.0.1:8080 --gateway 4711 rate --rate 300"
)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    mode: Mode,
}

/// What every mode needs to know.
#[derive(Args)]
struct Common {
    /// Where to connect; with several, connections go round.
    #[arg(long, value_delimiter = ',')]
    to: Vec<SocketAddr>,
    /// Process id of the gateway.
    #[arg(long)]
    gateway: Option<i32>,
    /// Process id of the mock pods.
    #[arg(long)]
    pod: Option<i32>,
    /// Seconds to run before the window.
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Seconds of the window.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// What the connections speak.
    #[arg(long, value_enum, default_value_t = Speech::Http1)]
    speech: Speech,
    /// Model that the requests name.
    #[arg(long, default_value = "bench")]
    model: String,
}

/// What connections speak.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Speech {
    /// HTTP/1.1 in clear text.
    Http1,
    /// HTTP/1.1 over TLS.
    Https,
    /// HTTP/2 over TLS.
    Http2,
}

#[derive(Subcommand)]
enum Mode {
    /// Do whole TLS handshakes, one after the other on each of some connections.
    Handshakes(handshakes::Options),
    /// Send nothing; measure what the processes use by themselves.
    Idle,
    /// Send requests at a fixed rate, whatever becomes of the earlier ones.
    Rate(rate::Options),
    /// Hold many streams open at once.
    Streams(streams::Options),
}
