//! The command line: one file for each command.

mod ask;
pub mod check;
mod cluster;
pub mod explain;
pub mod key;
pub mod probe;
pub mod status;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use tracing::Metadata;
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

use crate::account::log as access;
use crate::config;
use crate::config::units::{KubeDuration, UnitError};
use crate::discover;
use crate::run::{self, Source};
use crate::staleness::QUIET;

/// An inference gateway: sends each LLM request to the pod with the most room for it, by live GPU signals.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, max_term_width = 100)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
    /// How log lines look. RUST_LOG chooses which: `RUST_LOG=debug sluice run ...`.
    #[arg(long, global = true, value_enum, default_value = "text", env = "SLUICE_LOG_FORMAT")]
    log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the pools of a configuration until SIGTERM.
    #[command(after_help = "Example: sluice run --config gateway.yaml\n\n\
        The configuration may change while it runs: its file is looked at once a second, and at once with SIGHUP.")]
    Run {
        /// The configuration, see `sluice check --defaults`.
        #[arg(long, value_name = "FILE", required_unless_present = "kubernetes")]
        config: Option<PathBuf>,
        #[command(flatten)]
        cluster: Cluster,
        /// Take the listeners of the gateway that runs with this admin address, without refusing a
        /// connection; it finishes its streams and leaves. With none running, start as usual.
        #[arg(long)]
        takeover: bool,
    },
    /// Check a configuration and print what is in effect, with every default.
    #[command(after_help = "Example: sluice check --config gateway.yaml")]
    Check(check::Options),
    /// Print the resource definition by which a Kubernetes cluster takes configurations of this version.
    #[command(after_help = "Example: sluice crd | kubectl apply --server-side -f -")]
    Crd,
    /// Make an API key and print it, with the entry for the file that lists keys.
    #[command(after_help = "Example: sluice key team-a\n\n\
        The hash of a key that there is already: printf %s \"$KEY\" | sha256sum")]
    Key(key::Options),
    /// Print which kernel features work here, and why others do not.
    #[command(after_help = "Example: sluice probe --json")]
    Probe(probe::Options),
    /// Ask a running gateway for its pools, pods, signals and scores; or a Kubernetes cluster for what becomes of its
    /// InferenceGatewayConfig.
    #[command(after_help = "Example: sluice status --admin 127.0.0.1:9901 --json\n\
        Example: sluice status --kubernetes --namespace serving")]
    Status(status::Options),
    /// Ask a running gateway which pod a request would go to now, and why.
    #[command(after_help = "Example: sluice explain --request chat.json --admin 127.0.0.1:9901")]
    Explain(explain::Options),
}

/// A cluster as the source of the configuration.
#[derive(Debug, clap::Args)]
struct Cluster {
    /// Take the configuration and the pods from the Kubernetes cluster that this is a pod of, or that KUBECONFIG names.
    #[arg(long, conflicts_with = "config")]
    kubernetes: bool,
    /// With --kubernetes: the namespace of the objects and pods [default: this pod's own]
    #[arg(long, value_name = "NAMESPACE", requires = "kubernetes")]
    namespace: Option<String>,
    /// With --kubernetes: the InferenceGatewayConfig [default: the only one, or the oldest]
    #[arg(long, value_name = "NAME", requires = "kubernetes")]
    name: Option<String>,
    /// With --kubernetes: the node that this runs on.
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node: Option<String>,
    /// With --kubernetes: not to be ready when the API server has not been heard for longer than this, such as 10m
    /// [default: ready whatever happens to the API server]
    #[arg(long, value_name = "TIME", env = "SLUICE_MAX_CLUSTER_AGE", value_parser = max_age)]
    max_cluster_age: Option<Duration>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Does what the command line asks for.
pub fn main() -> ExitCode {
    let Args { command, log_format } = Args::parse();
    // What is left to write is written at the end.
    let _guard = start_log(log_format, &command);
    match command {
        Command::Run { config, cluster, takeover } => serve(config, cluster, takeover),
        Command::Check(options) => check::run(&options).unwrap_or_else(|error| {
            eprintln!("sluice: {error:#}");
            ExitCode::FAILURE
        }),
        Command::Crd => say(&config::custom_resource_definition()),
        Command::Key(options) => key::run(&options),
        Command::Probe(options) => probe::run(&options),
        Command::Status(options) => status::run(&options),
        Command::Explain(options) => explain::run(&options),
    }
}

fn serve(file: Option<PathBuf>, cluster: Cluster, takeover: bool) -> ExitCode {
    let source = match file {
        Some(file) => match config::load(&file) {
            Ok(loaded) => Source::File(Box::new(loaded), file),
            Err(errors) => {
                eprintln!("{errors}");
                return ExitCode::FAILURE;
            }
        },
        None => {
            let Cluster { kubernetes: _, namespace, name, node, max_cluster_age } = cluster;
            let options = discover::Options { namespace, name, node, max_age: max_cluster_age };
            Source::Cluster(options)
        }
    };
    match run::run(source, takeover) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sluice: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn max_age(text: &str) -> Result<Duration, String> {
    let KubeDuration(age) = text.parse().map_err(|error: UnitError| error.to_string())?;
    match age >= QUIET {
        true => Ok(age),
        false => {
            Err("at least 2m is wanted: without a change the API server is heard once a minute"
                .into())
        }
    }
}

/// Prints a command's result. A reader that has seen enough, such as `head`, is no failure.
pub(crate) fn say(page: &str) -> ExitCode {
    use std::io::{ErrorKind, Write as _};
    match writeln!(std::io::stdout(), "{}", page.trim_end()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("sluice: cannot write the output: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

fn start_log(format: LogFormat, command: &Command) -> WorkerGuard {
    // A page that is read once is not to be looked for among what a daemon would say.
    let level = if matches!(command, Command::Status(_)) { "error" } else { "info" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let is_access = |metadata: &Metadata<'_>| metadata.target() == access::TARGET;
    let log = layer()
        .with_writer(std::io::stderr)
        // A file or a journal would keep the escapes for colours.
        .with_ansi(std::io::stderr().is_terminal());
    let log = match format {
        LogFormat::Text => log.boxed(),
        LogFormat::Json => log.json().flatten_event(true).boxed(),
    };
    let log = log.with_filter(filter).with_filter(filter_fn(move |metadata| !is_access(metadata)));
    let (writer, guard) = access::writer();
    let lines = layer().json().flatten_event(true).with_level(false).with_writer(writer);
    let lines = lines.with_filter(filter_fn(is_access));
    tracing_subscriber::registry().with(log).with(lines).init();
    guard
}
