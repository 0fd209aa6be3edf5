//! Checks the crates that are depended on: licences, bans, where they come from, and known faults.
//!
//! The list of known faults is a repository of its own, which not every machine can reach: where it cannot be
//! had, that is said, and the rest is checked all the same.

use std::process::Command;

use crate::shell;

/// Runs the checks of `deny.toml`.
///
/// # Errors
/// The checker cannot be installed, or found something.
pub(crate) fn run() -> anyhow::Result<()> {
    let tools = shell::target().join("tools");
    shell::run(
        shell::cargo().args(["install", "--quiet", "--locked", "--root"]).arg(&tools).args([
            "--version",
            CARGO_DENY,
            "cargo-deny",
        ]),
    )?;
    let deny = |manifest: &str| {
        let mut command = Command::new(tools.join("bin/cargo-deny"));
        command.current_dir(shell::root()).arg("--manifest-path").arg(manifest);
        command
    };
    let config = shell::root().join("deny.toml");
    for manifest in ["Cargo.toml", "gateway-ebpf/Cargo.toml", "tests/fuzz/Cargo.toml"] {
        let mut check = deny(manifest);
        check.args(["--locked", "check", "--hide-inclusion-graph", "--config"]).arg(&config);
        shell::run(check.args(["bans", "licenses", "sources"]))?;
    }
    if let Err(error) =
        shell::output(deny("Cargo.toml").args(["fetch", "db"]).arg("--config").arg(&config))
    {
        println!("known faults were not looked for, as their list cannot be had: {error:#}");
        return Ok(());
    }
    let mut check = deny("Cargo.toml");
    check.args(["--locked", "check", "--hide-inclusion-graph", "--config"]).arg(&config);
    shell::run(check.arg("advisories"))
}

/// The checker's version.
const CARGO_DENY: &str = "=0.19.0";
