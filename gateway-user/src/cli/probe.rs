//! `sluice probe`: which kernel features work here, and why others do not.

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::say;
use crate::kernel::{self, Feature, VerifiedProgram};

/// What `sluice probe` can be told.
#[derive(Args, Clone, Copy, Debug)]
pub struct Options {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Load every kernel program by itself, and print what the verifier made of it.
    #[arg(long)]
    programs: bool,
}

/// Probes and prints. A missing feature or a refused program is an answer, not a failure.
pub fn run(options: &Options) -> ExitCode {
    if !options.programs {
        return print(&kernel::probe(), options.json, feature);
    }
    match kernel::verify_programs() {
        Ok(programs) => print(&programs, options.json, program),
        Err(unfit) => {
            eprintln!("sluice: {unfit}");
            ExitCode::FAILURE
        }
    }
}

fn print<T: Serialize>(rows: &[T], json: bool, line: impl Fn(&T) -> String) -> ExitCode {
    if !json {
        return say(&rows.iter().map(line).collect::<String>());
    }
    match serde_json::to_string_pretty(rows) {
        Ok(page) => say(&page),
        Err(error) => {
            eprintln!("sluice: {error}");
            ExitCode::FAILURE
        }
    }
}

fn feature(feature: &Feature) -> String {
    let mark = if feature.available { "yes" } else { "no" };
    format!("{:<28} {mark:<4} {}\n", feature.name, feature.reason)
}

fn program(row: &VerifiedProgram) -> String {
    let VerifiedProgram { program, kind, log, .. } = row;
    let name = format!("{program} ({kind}, log {log})");
    if !row.loaded {
        return format!("{name:<40} no   {}\n", row.reason);
    }
    let figure = |figure: Option<u32>| figure.map_or_else(|| "?".to_owned(), |n| n.to_string());
    let (insns, bytes) = (figure(row.verified_insns), figure(row.xlated_bytes));
    format!("{name:<40} yes  {insns} instructions verified, {bytes} bytes\n")
}
