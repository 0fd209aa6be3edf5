//! What must hold, at full size: the program `reliability` (`tests/reliability`) with the build that is released.

use std::process::Command;

use clap::Args;

use crate::shell;

/// Which part.
#[derive(Args)]
pub(crate) struct Options {
    /// `chaos`, `hostile`, `takeover`, and the part's own options [default: all three]
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
    let mut cargo = shell::cargo();
    cargo.args(["build", "--quiet", "-p", "gateway-user", "-p", "sluice-tests"]);
    cargo.args(["--bin", "sluice", "--bin", "reliability"]);
    shell::run(cargo.args((!options.dev).then_some("--release")))?;
    let programs = shell::target().join(if options.dev { "debug" } else { "release" });
    let part =
        |words: &[String]| shell::run(Command::new(programs.join("reliability")).args(words));
    if !options.part.is_empty() {
        return part(&options.part);
    }
    ["chaos", "takeover", "hostile"].iter().try_for_each(|name| part(&[(*name).to_owned()]))
}
