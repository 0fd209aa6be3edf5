//! `sim`: every scenario under every policy, and how they compare.

use std::fs;
use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::Context;
use clap::Parser;
use sluice_tests::sim::policy::Name;
use sluice_tests::sim::report::{Row, curves, markdown, table};
use sluice_tests::sim::{Figures, SCENARIOS, Scenario, run};

/// Simulates fleets of model servers and compares who gets which request.
#[derive(Parser)]
#[command(name = "sim", after_help = "Example: sim --scenario a-mixed --policy round-robin,sluice")]
struct Cli {
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
    /// More seeds, and every scenario at eight loads.
    #[arg(long)]
    full: bool,
    /// So many gateways, whatever the scenario says.
    #[arg(long)]
    gateways: Option<u32>,
    /// So many times the pods and the requests.
    #[arg(long, default_value_t = 1)]
    times: u32,
    /// Print JSON, an array of rows, and no table.
    #[arg(long)]
    json: bool,
    /// Write the rows, as JSON, to this file too.
    #[arg(long)]
    rows: Option<PathBuf>,
    /// Write the tables, as Markdown, to this file too.
    #[arg(long)]
    markdown: Option<PathBuf>,
    /// Write TTFT by load, as Markdown, to this file too.
    #[arg(long)]
    curves: Option<PathBuf>,
    /// Threads [default: one for each processor].
    #[arg(long)]
    threads: Option<usize>,
}

/// One simulation.
struct Job {
    row: usize,
    scenario: Scenario,
    policy: Name,
    seed: u64,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let scenarios: Vec<&'static Scenario> =
        SCENARIOS.iter().filter(|scenario| begins(scenario.name, &cli.scenario)).collect();
    let policies: Vec<Name> =
        Name::ALL.into_iter().filter(|policy| begins(policy.as_str(), &cli.policy)).collect();
    if scenarios.is_empty() || policies.is_empty() {
        let scenarios: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        let policies: Vec<&str> = Name::ALL.into_iter().map(Name::as_str).collect();
        eprintln!("sim: scenarios: {}\nsim: policies: {}", scenarios.join(" "), policies.join(" "));
        return ExitCode::FAILURE;
    }
    let loads = match (&*cli.loads, cli.full) {
        ([], true) => SWEEP.to_vec(),
        ([], false) => vec![1.0],
        (loads, _) => loads.to_vec(),
    };
    let seeds = cli.seeds.unwrap_or(if cli.full { 9 } else { 5 });
    let mut rows = Vec::new();
    let mut jobs = Vec::new();
    for scenario in scenarios {
        for &load in &loads {
            for &policy in &policies {
                let wanted = Scenario {
                    gateways: cli.gateways.unwrap_or(scenario.gateways),
                    times: cli.times.max(1),
                    ..scenario.at(load)
                };
                let job = |seed| Job { row: rows.len(), scenario: wanted, policy, seed };
                jobs.extend((1..=seeds).map(job));
                rows.push((scenario.name, policy, load));
            }
        }
    }
    let runs = work(&jobs, rows.len(), cli.threads);
    let rows: Vec<Row> = rows
        .into_iter()
        .zip(&runs)
        .map(|((scenario, policy, load), runs)| Row::of(scenario, policy, load, runs))
        .collect();
    match print(&cli, &rows) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn print(cli: &Cli, rows: &[Row]) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(rows)?;
    let texts =
        [(&cli.rows, &json), (&cli.markdown, &markdown(rows)), (&cli.curves, &curves(rows))];
    for (file, text) in texts {
        if let Some(file) = file {
            fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
        }
    }
    if cli.json {
        println!("{json}");
    } else {
        print!("{}", table(rows));
    }
    Ok(())
}

fn begins(name: &str, wanted: &[String]) -> bool {
    wanted.is_empty() || wanted.iter().any(|wanted| name.starts_with(wanted.as_str()))
}

/// Runs all, and returns the figures by row, in the order of seeds.
fn work(jobs: &[Job], rows: usize, threads: Option<usize>) -> Vec<Vec<Figures>> {
    let threads = threads.or_else(|| thread::available_parallelism().ok().map(NonZero::get));
    let (next, begun) = (AtomicUsize::new(0), Instant::now());
    let done = Mutex::new(Vec::with_capacity(jobs.len()));
    thread::scope(|scope| {
        for _ in 0..threads.unwrap_or(1).max(1) {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let figures = run(&job.scenario, job.policy, job.seed);
                    let Ok(mut done) = done.lock() else { return };
                    done.push((job.row, job.seed, figures));
                    // About twenty lines, however many runs.
                    if done.len() % (jobs.len() / 20).max(1) == 0 {
                        let (name, policy) = (job.scenario.name, job.policy.as_str());
                        let seconds = begun.elapsed().as_secs_f64();
                        let count = (done.len(), jobs.len());
                        eprintln!("sim: {}/{} {seconds:.1} s {name} {policy}", count.0, count.1);
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|(row, seed, _)| (*row, *seed));
    let mut figures = vec![Vec::new(); rows];
    for (row, _, run) in done {
        figures.get_mut(row).into_iter().for_each(|runs| runs.push(run.clone()));
    }
    figures
}

/// Loads of a sweep, in loads of the scenario.
const SWEEP: [f64; 8] = [0.4, 0.6, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5];
