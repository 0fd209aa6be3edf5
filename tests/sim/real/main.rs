//! `sim-real`: a few small scenarios of the simulator with real gateways, in real time, and the same
//! scenarios simulated.
//!
//! Every policy has a gateway and pods of its own, and all get the same requests at the same moments: what
//! else the machine does hits all of them alike. Pods take the time of GPUs and little of the processor's.
//! It shows whether the simulator orders policies as they are, never how fast a gateway is.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests fail by panicking")]

mod client;
mod fleet;
mod machine;
mod order;
mod play;
mod requests;
mod scenarios;

use std::process::ExitCode;

use clap::Parser;
use serde::Serialize;
use serde_json::json;
use sluice_tests::sim::report::{Row, table};
use sluice_tests::sim::{Scenario, run};

use fleet::{Fleet, POLICIES};
use order::Order;

/// Runs small scenarios with real gateways, and simulates the same ones.
#[derive(Parser)]
#[command(
    name = "sim-real",
    after_help = "Example: sim-real --scenario a-,e- --policy sluice,random"
)]
struct Cli {
    /// Scenarios whose names begin so [default: all].
    #[arg(long, value_delimiter = ',')]
    scenario: Vec<String>,
    /// Policies whose names begin so [default: all].
    #[arg(long, value_delimiter = ',')]
    policy: Vec<String>,
    /// Seconds in which requests come, of each scenario.
    #[arg(long, default_value_t = 90.0)]
    seconds: f64,
    /// What the requests are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON: the rows, the orders of the policies, and how busy the machine was.
    #[arg(long)]
    json: bool,
}

/// A row, and where it comes from.
#[derive(Serialize)]
struct Told<'a> {
    ran: &'static str,
    #[serde(flatten)]
    row: &'a Row,
}

fn main() -> ExitCode {
    match compare(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sim-real: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn compare(cli: &Cli) -> anyhow::Result<()> {
    let begins = |name: &str, wanted: &[String]| {
        wanted.is_empty() || wanted.iter().any(|wanted| name.starts_with(wanted.as_str()))
    };
    let scenarios: Vec<Scenario> = scenarios::all(cli.seconds)
        .into_iter()
        .filter(|scenario| begins(scenario.name, &cli.scenario))
        .collect();
    let (mut real, mut simulated, mut orders) = (Vec::new(), Vec::new(), Vec::new());
    let mut machines = Vec::new();
    for scenario in scenarios {
        let mut fleets = Vec::new();
        for policy in POLICIES.into_iter().filter(|policy| begins(policy.as_str(), &cli.policy)) {
            match Fleet::start(&scenario, policy)? {
                Some(fleet) => fleets.push(fleet),
                None => {
                    eprintln!("sim-real: HAProxy is not installed: {} is missing", policy.as_str())
                }
            }
        }
        let (rows, machine) = play::play(&scenario, cli.seed, &fleets)?;
        machines.push(machine);
        let of = |fleet: &Fleet| {
            let figures = run(&scenario, fleet.policy, cli.seed);
            Row::of(scenario.name, fleet.policy, 1.0, &[figures])
        };
        let same: Vec<Row> = fleets.iter().map(of).collect();
        orders.extend(Order::of(scenario.name, &rows, &same));
        real.extend(rows);
        simulated.extend(same);
    }
    if cli.json {
        let told = |ran: &'static str, rows| -> Vec<Told<'_>> {
            let rows: &[Row] = rows;
            rows.iter().map(|row| Told { ran, row }).collect()
        };
        let (real, simulated) = (told("real", &real), told("simulated", &simulated));
        let rows: Vec<Told<'_>> = real.into_iter().chain(simulated).collect();
        let all = json!({"rows": rows, "orders": orders, "machine": machines});
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        print!("# Real\n\n{}# Simulated\n\n{}# Orders\n\n", table(&real), table(&simulated));
        orders.iter().for_each(|order| println!("{}", order.text()));
        machines.iter().for_each(|machine| println!("{}", machine.text()));
    }
    Ok(())
}
