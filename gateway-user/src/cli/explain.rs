//! `sluice explain`: which pod a request would go to now, and why.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::{ask, say};
use crate::config;
use crate::explain::Explained;

/// What `sluice explain` can be told.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The request's body: JSON, as a client sends it; `-` reads it from the input.
    #[arg(long, value_name = "FILE")]
    request: PathBuf,
    /// The gateway's admin address [default: 127.0.0.1:9901].
    #[arg(long, env = "SLUICE_ADMIN", value_parser = ask::host_and_port)]
    admin: Option<String>,
    /// The gateway's configuration, which names its admin address; comes before --admin.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Asks and prints. Nothing is sent to a pod.
pub fn run(options: &Options) -> ExitCode {
    explain(options).unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}

fn explain(options: &Options) -> Result<ExitCode, String> {
    let Options { request, admin, config, json } = options;
    let body = read(request)
        .map_err(|error| format!("sluice: cannot read {}: {error}", request.display()))?;
    let admin = match (config, admin) {
        (Some(path), _) => {
            config::load(path).map_err(|errors| errors.to_string())?.config.admin.to_string()
        }
        (None, Some(admin)) => admin.clone(),
        (None, None) => DEFAULT_ADMIN.to_owned(),
    };
    let page = ask::ask(&admin, "/explain", Some(&body))
        .map_err(|error| format!("sluice: the gateway at {admin} explains nothing: {error}"))?;
    if *json {
        return Ok(say(&page));
    }
    let explained: Explained = serde_json::from_str(&page).map_err(|error| {
        format!("sluice: what answers at {admin} is no gateway of this version: {error}")
    })?;
    Ok(say(&explained.table()))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        io::stdin().take(MOST).read_to_end(&mut bytes)?;
    } else {
        File::open(path)?.take(MOST).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Where a gateway's admin address is by default.
const DEFAULT_ADMIN: &str = "127.0.0.1:9901";

/// Longest body read, in bytes: the most that a gateway can be configured to take.
const MOST: u64 = 256 * 1024 * 1024;
