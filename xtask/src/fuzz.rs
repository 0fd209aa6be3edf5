//! Runs the fuzz targets of `tests/fuzz`, each for a while.
//!
//! Without a sanitizer, so that the stable compiler will do: the code under test is safe Rust, and
//! what is looked for is a panic, a hang, or an answer that differs from the reference.

use std::process::Command;

use anyhow::{Context, ensure};
use clap::Args;

use crate::shell;

/// Which targets, and for how long.
#[derive(Args)]
pub(crate) struct Options {
    /// Seconds for each target.
    #[arg(long, default_value_t = 60)]
    pub(crate) seconds: u32,
    /// What is drawn by lot follows from it [default: another one each time]
    #[arg(long)]
    pub(crate) seed: Option<u32>,
    /// Targets to run [default: all]
    pub(crate) targets: Vec<String>,
}

/// Runs the targets one after the other.
///
/// # Errors
/// The fuzzer cannot be installed, or a target found something; the output names the file with
/// the input.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let folder = shell::root().join("tests/fuzz");
    ensure!(folder.join("Cargo.toml").is_file(), "there is no tests/fuzz");
    let tools = shell::target().join("tools");
    shell::run(
        shell::cargo().args(["install", "--quiet", "--locked", "--root"]).arg(&tools).args([
            "--version",
            CARGO_FUZZ,
            "cargo-fuzz",
        ]),
    )?;
    let fuzz = || {
        let mut command = Command::new(tools.join("bin/cargo-fuzz"));
        command.current_dir(&folder);
        command
    };
    let listed = shell::output(fuzz().args(["list", "--fuzz-dir", "."]))?;
    let targets: Vec<&str> = match options.targets.is_empty() {
        true => listed.lines().collect(),
        false => options.targets.iter().map(String::as_str).collect(),
    };
    for target in &targets {
        let mut run = fuzz();
        run.args(["run", "--fuzz-dir", ".", "--sanitizer", "none", target, "--"]);
        run.arg(format!("-max_total_time={}", options.seconds));
        run.args(options.seed.map(|seed| format!("-seed={seed}")));
        // A line for each new input and a dictionary at the end: of interest only where something was found.
        let log = shell::target().join(format!("fuzz-{target}.log"));
        shell::run_quietly(&mut run, &log).with_context(|| format!("the fuzz target {target}"))?;
    }
    println!("{} fuzz targets ran {} s each and found nothing", targets.len(), options.seconds);
    Ok(())
}

/// The fuzz driver's version.
const CARGO_FUZZ: &str = "=0.13.1";
