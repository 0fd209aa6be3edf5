//! Benchmarks: the gateway beside a plain proxy and beside no gateway, in one run.
//!
//! What one machine measures on one day says little by its absolute numbers, so each run measures
//! the others too, turn by turn, and the ratios are the result. The gateway has one processor to
//! itself; pods and load generator share another. The method is told in `docs/benchmarks.md`.

mod bed;
mod host;
mod idle;
// The tests crate would bring the gateway with it; this one file of it is shared.
#[expect(unreachable_pub, reason = "it is public in the crate that it belongs to")]
#[path = "../../../tests/bench/report.rs"]
mod report;
mod request;
mod spread;
mod streams;
mod target;

use clap::{Args, Subcommand};

use target::Target;

/// Which benchmark.
#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Memory and processor time without any request, 16 pods.
    #[command(after_help = "Example: cargo xtask bench idle --seconds 20")]
    Idle(idle::Options),
    /// Cost and delay of a request: short ones at two rates, and long streamed prompts.
    #[command(after_help = "Example: cargo xtask bench request --seconds 5 --repeats 3 --json")]
    Request(request::Options),
    /// Memory with 2,000 streams open, and whether each of them lives.
    #[command(after_help = "Example: cargo xtask bench streams --streams 2000")]
    Streams(streams::Options),
}

/// What every benchmark takes.
#[derive(Args)]
struct Common {
    /// What to measure, in this order.
    #[arg(long, value_delimiter = ',', default_values = ["direct", "haproxy", "sluice"])]
    targets: Vec<Target>,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
    /// Seconds to wait at most, before each measurement, for other programs to be quiet.
    #[arg(long, default_value_t = 10)]
    quiet: u32,
}

/// Builds what is measured, measures, and prints the result on stdout.
///
/// # Errors
/// Something could not be built or started, or ended on its own, or a stream broke.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    match &options.bench {
        Bench::Idle(options) => idle::run(options),
        Bench::Request(options) => request::run(options),
        Bench::Streams(options) => streams::run(options),
    }
}
