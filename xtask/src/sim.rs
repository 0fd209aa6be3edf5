//! Every scheduling policy under every scenario, simulated.
//!
//! The simulation itself is the program `sim` (`tests/sim`).

use std::process::Command;

use clap::Args;

use crate::shell;

/// What to simulate.
#[derive(Args)]
pub(crate) struct Options {
    /// Scenarios whose names begin so [default: all].
    #[arg(long, value_delimiter = ',')]
    scenario: Vec<String>,
    /// Policies whose names begin so [default: all].
    #[arg(long, value_delimiter = ',')]
    policy: Vec<String>,
    /// Seeds; each figure is the median over them [default: 5, or 9 with --full].
    #[arg(long)]
    seeds: Option<u64>,
    /// Loads, in loads of the scenario [default: 1].
    #[arg(long, value_delimiter = ',')]
    loads: Vec<f64>,
    /// More seeds, and every scenario at eight loads: minutes.
    #[arg(long)]
    full: bool,
    /// Print JSON, an array of rows, and no table.
    #[arg(long)]
    json: bool,
}

/// Builds the simulator and runs it.
///
/// # Errors
/// It cannot be built, or nothing has such a name.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let mut cargo = shell::cargo();
    // A debug build takes twenty times as long.
    cargo.args(["build", "--quiet", "--release", "-p", "sluice-tests", "--bin", "sim"]);
    shell::run(&mut cargo)?;
    shell::run(&mut command(options))
}

fn command(options: &Options) -> Command {
    let mut sim = Command::new(shell::target().join("release/sim"));
    let loads: Vec<String> = options.loads.iter().map(f64::to_string).collect();
    for (name, values) in
        [("--scenario", &options.scenario), ("--policy", &options.policy), ("--loads", &loads)]
    {
        if !values.is_empty() {
            sim.arg(name).arg(values.join(","));
        }
    }
    if let Some(seeds) = options.seeds {
        sim.arg("--seeds").arg(seeds.to_string());
    }
    sim.args(options.full.then_some("--full")).args(options.json.then_some("--json"));
    sim
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_passed_on() {
        let options = Options {
            scenario: vec!["a".into(), "b".into()],
            policy: Vec::new(),
            seeds: Some(3),
            loads: vec![0.5, 1.0],
            full: true,
            json: false,
        };
        let line = shell::line(&command(&options));
        assert_eq!(line, "sim --scenario a,b --loads 0.5,1 --seeds 3 --full");
    }
}
