//! `e2e`: the gateway in front of two real vLLM servers, checked from outside.
//!
//! Started by `cargo xtask e2e --real-vllm`, which installs the servers. Each check is a function
//! that panics on what is wrong, as tests do, and otherwise says what it saw. They run one after
//! the other: they share two slow servers, and the later ones kill those.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "checks fail by panic as tests do"
)]

mod checks;
mod gateway;
mod pod;
mod process;
mod report;
mod rig;
mod tap;
mod wire;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use crate::checks::CHECKS;
use crate::report::Report;
use crate::rig::Rig;

fn main() -> ExitCode {
    let options = Options::parse();
    if options.list {
        for check in CHECKS {
            println!("{:12} {}", check.name, check.about);
        }
        return ExitCode::SUCCESS;
    }
    if let Some(name) = options.only.iter().find(|name| CHECKS.iter().all(|own| own.name != **name))
    {
        eprintln!("no check is called {name}; see --list");
        return ExitCode::FAILURE;
    }
    process::end_all_on_signals();
    let report = report::guarded(|| run(&options));
    let left = process::end_all();
    let report = match report {
        Ok(mut report) => {
            report.add("leftovers", 0.0, left.map_err(|left| format!("still running: {left}")));
            report
        }
        Err(why) => {
            eprintln!("e2e: the servers could not be started: {why}");
            Report::failed("start", why)
        }
    };
    report.print(options.json);
    if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(options: &Options) -> Report {
    let mut rig = Rig::start(options);
    let mut report = Report::new(rig.versions());
    for check in CHECKS {
        if !options.only.is_empty() && !options.only.iter().any(|name| name == check.name) {
            continue;
        }
        report.run(check, &mut rig);
    }
    if options.keep {
        rig.revive();
        eprintln!("{}", rig.endpoints());
        eprintln!("e2e: Ctrl-C ends them");
        report.print(options.json);
        loop {
            std::thread::park();
        }
    }
    report
}

/// What to check, and where things are.
#[derive(Debug, Parser)]
#[command(name = "e2e", after_help = "Example: cargo xtask e2e --real-vllm --only adapters")]
pub(crate) struct Options {
    /// Name the checks and do nothing.
    #[arg(long)]
    list: bool,
    /// Only these checks.
    #[arg(long)]
    only: Vec<String>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// Leave the servers running after the checks, until Ctrl-C.
    #[arg(long)]
    keep: bool,
    /// The Python that has vLLM and the SDK.
    #[arg(long, required_unless_present = "list", default_value = "")]
    python: PathBuf,
    /// The folder with the model and its adapters.
    #[arg(long, required_unless_present = "list", default_value = "")]
    models: PathBuf,
    /// Where the servers may keep what they compile.
    #[arg(long, required_unless_present = "list", default_value = "")]
    cache: PathBuf,
    /// The folder with the scripts.
    #[arg(long, required_unless_present = "list", default_value = "")]
    scripts: PathBuf,
    /// The gateway's binary.
    #[arg(long, required_unless_present = "list", default_value = "")]
    gateway: PathBuf,
    /// Where the programs' output goes.
    #[arg(long, required_unless_present = "list", default_value = "")]
    logs: PathBuf,
}
