//! `sluice probe`: which kernel features work here, and why others do not.

use std::process::ExitCode;

use clap::Args;

use crate::kernel;

/// What `sluice probe` can be told.
#[derive(Args, Clone, Copy, Debug)]
pub struct Options {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Probes and prints. A missing feature is an answer, not a failure.
pub fn run(options: &Options) -> ExitCode {
    let features = kernel::probe();
    if options.json {
        match serde_json::to_string_pretty(&features) {
            Ok(page) => println!("{page}"),
            Err(error) => {
                eprintln!("sluice: {error}");
                return ExitCode::FAILURE;
            }
        }
        return ExitCode::SUCCESS;
    }
    for feature in &features {
        let mark = if feature.available { "yes" } else { "no" };
        println!("{:<28} {mark:<4} {}", feature.name, feature.reason);
    }
    ExitCode::SUCCESS
}
