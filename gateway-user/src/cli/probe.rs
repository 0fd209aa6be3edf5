//! `sluice probe`: which kernel features work here, and why others do not.

use std::process::ExitCode;

use clap::Args;

use super::say;
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
        return match serde_json::to_string_pretty(&features) {
            Ok(page) => say(&page),
            Err(error) => {
                eprintln!("sluice: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let lines = features.iter().map(|feature| {
        let mark = if feature.available { "yes" } else { "no" };
        format!("{:<28} {mark:<4} {}\n", feature.name, feature.reason)
    });
    say(&lines.collect::<String>())
}
