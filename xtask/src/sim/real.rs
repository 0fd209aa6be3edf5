//! The scheduling policies that real gateways have, in real time beside the simulator's.
//!
//! What runs is the program `sim-real` (`tests/sim/real`).

use std::process::Command;

use super::Options;
use crate::shell;

/// Builds gateway and program, and runs it.
///
/// # Errors
/// One of them cannot be built, or something cannot be started.
pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    if shell::find("haproxy").is_none() {
        shell::progress("round-robin will be missing; HAProxy has it: apt-get install haproxy");
    }
    let mut cargo = shell::cargo();
    cargo.args(["build", "--quiet", "--release", "-p", "gateway-user", "--bin", "sluice"]);
    cargo.args(["-p", "sluice-tests", "--bin", "sim-real"]);
    shell::run(&mut cargo)?;
    shell::run(&mut command(options))
}

fn command(options: &Options) -> Command {
    let mut command = Command::new(shell::target().join("release/sim-real"));
    for (name, values) in [("--scenario", &options.scenario), ("--policy", &options.policy)] {
        if !values.is_empty() {
            command.arg(name).arg(values.join(","));
        }
    }
    if let Some(seconds) = options.seconds {
        command.arg("--seconds").arg(seconds.to_string());
    }
    command.args(options.json.then_some("--json"));
    command
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn options_are_passed_on() {
        let words = ["sim", "--real", "--scenario", "a-,e-", "--seconds", "30", "--json"];
        let line = Line::parse_from(words);
        assert_eq!(
            shell::line(&command(&line.options)),
            "sim-real --scenario a-,e- --seconds 30 --json"
        );
        assert!(Line::try_parse_from(["sim", "--real", "--full"]).is_err());
        assert!(Line::try_parse_from(["sim", "--seconds", "30"]).is_err());
    }
}
