//! The `sluice` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    gateway_user::cli::main()
}
