//! Mixed traffic by the gigabyte through each carrier of bodies, every byte compared.
//!
//! The traffic itself is the program `soak` (`tests/soak`).

use std::process::Command;

use clap::{Args, ValueEnum};

use crate::shell;

/// How much of what.
#[derive(Args)]
pub(crate) struct Options {
    /// Gigabytes of answers for each carrier [default: 10, or no limit with --requests].
    #[arg(long)]
    gigabytes: Option<f64>,
    /// Requests for each carrier.
    #[arg(long)]
    requests: Option<u64>,
    /// What carries the bodies; the kernel's need root.
    #[arg(long, value_enum, default_value = "all")]
    path: Path,
    /// Clients and pods leave in the middle of answers.
    #[arg(long)]
    aborts: bool,
    /// What everything drawn by lot follows from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The development build and not the one that is released.
    #[arg(long)]
    dev: bool,
    /// Passed on to the program `soak`.
    #[arg(last = true)]
    rest: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Path {
    Relay,
    Splice,
    Local,
    All,
}

/// Builds gateway and traffic and runs it to the end.
///
/// # Errors
/// Something cannot be built, or a byte was wrong.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let mut cargo = shell::cargo();
    cargo.args(["build", "--quiet", "-p", "gateway-user", "-p", "sluice-tests"]);
    cargo.args(["--bin", "sluice", "--bin", "soak"]).args((!options.dev).then_some("--release"));
    shell::run(&mut cargo)?;
    let programs = shell::target().join(if options.dev { "debug" } else { "release" });
    let mut soak = Command::new(programs.join("soak"));
    if let Some(gigabytes) = options.gigabytes {
        soak.arg("--gigabytes").arg(gigabytes.to_string());
    }
    if let Some(requests) = options.requests {
        soak.arg("--requests").arg(requests.to_string());
    }
    let path = options.path.to_possible_value();
    soak.arg("--path").arg(path.as_ref().map_or("all", |value| value.get_name()));
    soak.args(options.aborts.then_some("--aborts"));
    soak.arg("--seed").arg(options.seed.to_string()).args(&options.rest);
    shell::run(&mut soak)
}
