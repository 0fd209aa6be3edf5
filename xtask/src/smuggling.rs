//! Asks hyper, nginx and HAProxy how they read the messages of the smuggling tests.
//!
//! The tests themselves compare the gateway with what is recorded, so that they need no other proxy.

use std::process::Command;

use clap::Args;

use crate::shell;

/// What to do with the answers.
#[derive(Args)]
pub(crate) struct Options {
    /// Record them, and do not compare them with what is recorded.
    #[arg(long)]
    record: bool,
}

/// Installs nginx and HAProxy if they are missing, and asks.
///
/// # Errors
/// They cannot be had, or read a message in another way than recorded.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    shell::ensure_program("nginx", "nginx")?;
    shell::ensure_program("haproxy", "haproxy")?;
    shell::run(shell::cargo().args([
        "build",
        "--quiet",
        "-p",
        "sluice-tests",
        "--bin",
        "smuggling",
    ]))?;
    let mut smuggling = Command::new(shell::target().join("debug/smuggling"));
    smuggling.args(options.record.then_some("--record"));
    shell::run(smuggling.arg(shell::root().join("tests/golden/smuggling/readings.txt")))
}
