//! `sluice key`: a fresh API key, and the entry for the file that lists it.

use std::process::ExitCode;

use aws_lc_rs::rand;
use clap::Args;
use serde_json::json;

use super::say;
use crate::auth::keys;

/// What `sluice key` can be told.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// What logs and metrics are to call the key, such as the team or the program that has it.
    name: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Makes a key and prints it: once, and nothing keeps it.
pub fn run(options: &Options) -> ExitCode {
    let Options { name, json } = options;
    if !keys::is_name(name) {
        eprintln!("sluice: a key's name has 1 to 63 letters, digits, `-`, `_`, `.`, `@` or `/`");
        return ExitCode::FAILURE;
    }
    let mut secret = [0; 32];
    if rand::fill(&mut secret).is_err() {
        eprintln!("sluice: the system gives no random numbers");
        return ExitCode::FAILURE;
    }
    let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let key = format!("sk-{secret}");
    let sha256 = keys::hex(&key);
    if *json {
        return say(&json!({"name": name, "key": key, "sha256": sha256}).to_string());
    }
    say(&format!(
        "The key, which is shown here only:\n{key}\n\n\
         The entry for the file that spec.auth.apiKeys names:\n- {{name: {name:?}, sha256: {sha256}}}"
    ))
}
