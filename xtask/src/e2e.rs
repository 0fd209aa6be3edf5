//! Checks against model servers as their projects ship them: install, build, run.
//!
//! The checks themselves are the program `e2e` (`tests/e2e`); docs/e2e.md says what they showed.

mod install;

use std::fs;
use std::process::Command;

use anyhow::{Context, ensure};
use clap::Args;

use crate::shell;

/// Which servers, and which checks.
#[derive(Args)]
pub(crate) struct Options {
    /// Install and start a real vLLM on the CPU with a tiny random model (1 GB to download, 2.6 GB
    /// on disk, kept for the next run).
    #[arg(long)]
    real_vllm: bool,
    /// Install, and start nothing.
    #[arg(long)]
    install_only: bool,
    /// Only these checks; `--list` names them.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Name the checks.
    #[arg(long)]
    list: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// Leave the servers running after the checks, until Ctrl-C.
    #[arg(long)]
    keep: bool,
    /// Check the gateway as it is released, and not the development build.
    #[arg(long)]
    release: bool,
}

/// Installs what is missing, builds the gateway, runs the checks.
///
/// # Errors
/// Something cannot be installed or built, or a check failed.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    ensure!(options.real_vllm, "name the servers to test against: --real-vllm");
    if options.list {
        return shell::run(Command::new(build(options)?.join("e2e")).arg("--list"));
    }
    // First, as it tells at once what this machine lacks.
    let installed = install::ensure()?;
    if options.install_only {
        return Ok(());
    }
    let programs = build(options)?;
    let mut checks = Command::new(programs.join("e2e"));
    let logs = shell::target().join("real-vllm/logs");
    fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
    checks.arg("--python").arg(&installed.python);
    checks.arg("--models").arg(&installed.models);
    checks.arg("--cache").arg(&installed.cache);
    checks.arg("--scripts").arg(install::scripts());
    checks.arg("--gateway").arg(programs.join("sluice"));
    checks.arg("--logs").arg(&logs);
    for name in &options.only {
        checks.arg("--only").arg(name);
    }
    checks.args(options.json.then_some("--json")).args(options.keep.then_some("--keep"));
    shell::run(&mut checks)
}

/// Builds the gateway and the checks; returns the folder of the programs.
fn build(options: &Options) -> anyhow::Result<std::path::PathBuf> {
    let mut cargo = shell::cargo();
    cargo.args(["build", "--quiet", "-p", "gateway-user", "-p", "sluice-tests"]);
    cargo.args(["--bin", "sluice", "--bin", "e2e"]).args(options.release.then_some("--release"));
    shell::run(&mut cargo)?;
    Ok(shell::target().join(if options.release { "release" } else { "debug" }))
}
