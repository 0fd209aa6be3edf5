//! `sluice status`: asks a running gateway.

use std::process::ExitCode;

use clap::Args;

use super::{ask, say};
use crate::status::Status;

/// What `sluice status` can be told.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The gateway's admin address.
    #[arg(long, default_value = "127.0.0.1:9901", env = "SLUICE_ADMIN", value_parser = ask::host_and_port)]
    admin: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print the scores as the kernel's map has them, as JSON.
    #[arg(long)]
    scores: bool,
}

/// Asks and prints.
pub fn run(options: &Options) -> ExitCode {
    let path = if options.scores { "/status/scores" } else { "/status" };
    let page = match ask::ask(&options.admin, path, None) {
        Ok(page) => page,
        Err(error) => {
            eprintln!(
                "sluice: no answer from a gateway's admin address {}: {error}. Is it running there? \
                 --admin names another.",
                options.admin
            );
            return ExitCode::FAILURE;
        }
    };
    if options.json || options.scores {
        return say(&page);
    }
    match serde_json::from_str::<Status>(&page) {
        Ok(status) => say(&status.table()),
        Err(error) => {
            eprintln!(
                "sluice: what answers at {} is no gateway of this version: {error}",
                options.admin
            );
            ExitCode::FAILURE
        }
    }
}
