//! What must hold, at full size: the program `reliability` (`tests/reliability`) with the build that is released.

use std::process::Command;

use clap::Args;

use crate::shell;

/// Which part.
#[derive(Args)]
pub(crate) struct Options {
    /// `bodies`, `chaos`, `hostile`, `takeover`, and the part's own options [default: all four]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    part: Vec<String>,
    /// The development build and not the one that is released.
    #[arg(long)]
    dev: bool,
}

/// Builds gateway and checks, and runs them.
///
/// # Errors
/// Something cannot be built, or does not hold.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if !options.part.is_empty() {
        return part(&options.part, options.dev);
    }
    ["chaos", "bodies", "takeover", "hostile"]
        .iter()
        .try_for_each(|name| part(&[(*name).to_owned()], options.dev))
}

/// Runs one part, of the development build or of the one that is released.
///
/// # Errors
/// As [`run`].
pub(crate) fn part(words: &[String], dev: bool) -> anyhow::Result<()> {
    let mut cargo = shell::cargo();
    cargo.args(["build", "--quiet", "-p", "gateway-user", "-p", "sluice-tests"]);
    cargo.args(["--bin", "sluice", "--bin", "reliability"]);
    shell::run(cargo.args((!dev).then_some("--release")))?;
    let programs = shell::target().join(if dev { "debug" } else { "release" });
    shell::run(Command::new(programs.join("reliability")).args(words))
}
