//! What carrying tokens costs: each way of carrying them beside no gateway and beside others.
//!
//! Streams are open before the window and stay open behind it, so only tokens pass meanwhile. Which
//! measurements count is told by what disturbed them (`noise`), never by what they gave; and one of
//! our own gateway counts only if the path that was asked for carried the answers.

mod goals;
mod plot;
mod row;

use std::collections::BTreeSet;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use serde::Serialize;

use super::bed::{Bed, Running};
use super::carried::Carried;
use super::host::Host;
use super::noise::{Noise, quietest};
use super::peers;
use super::report::Report;
use super::spread::table;
use super::target::Target;
use super::verdict::Verdict;
use crate::shell;
use row::Row;

/// How long, how often, and what of it.
#[derive(Args)]
pub(super) struct Options {
    /// Seconds that each measurement takes, after opening the streams and a second of warm-up.
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Measurements of each load and carrier; they take turns, and the median counts.
    #[arg(long, default_value_t = 3)]
    repeats: u32,
    /// What to measure [default: direct, haproxy, nginx, relay, splice, local, steered, and envoy,
    /// sglang-router and vllm-router if they are installed]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<Target>,
    /// Under which loads, by their streams [default: 100 (x 50 tokens/s), 1000 (x 20) and 5000
    /// (x 2; splice and local only)]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = known_streams)]
    streams: Vec<u32>,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
    /// Draw docs/images/tokens.svg, if all of it was measured and is valid.
    #[arg(long)]
    plot: bool,
    /// Seconds to wait at most, before each measurement, for other programs to be quiet.
    #[arg(long, default_value_t = 10)]
    quiet: u32,
}

/// Measures and prints.
///
/// # Errors
/// Something could not be built or installed, or a carrier gave no valid result.
pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    let Options { seconds, repeats, quiet, .. } = *options;
    ensure!(seconds > 0 && repeats > 0, "nothing to measure");
    let mut cells = cells(options);
    ensure!(!cells.is_empty(), "nothing to measure: only splice and local are at 5000 streams");
    let targets: BTreeSet<Target> = cells.iter().map(|cell| cell.target).collect();
    let bed = Bed::prepare(&Vec::from_iter(targets), quiet)?;
    for repeat in 0..repeats as usize {
        for cells in cells.chunk_by_mut(|one, next| one.load == next.load) {
            // Each repeat begins with another, so that none is always the first.
            let first = repeat % cells.len();
            cells.rotate_left(first);
            for cell in cells.iter_mut() {
                let sample = cell.measure(&bed, seconds);
                let Cell { load, target, .. } = cell;
                let turn = format_args!("{}/{repeats} {load:8} {target:13}", repeat + 1);
                shell::progress(format_args!("{turn} {sample}"));
                cell.samples.push(sample);
            }
            cells.rotate_right(first);
        }
    }
    let outcome = Outcome::new(cells);
    outcome.print(options.json)?;
    if options.plot {
        let file = shell::root().join("docs/images/tokens.svg");
        let drawn = plot::draw(&outcome.rows)?;
        file.parent().map(fs::create_dir_all).transpose()?;
        fs::write(&file, drawn)?;
        shell::progress(format_args!("drew {}", file.display()));
    }
    let refused: Vec<String> = outcome.rows.iter().filter_map(Row::refused).collect();
    ensure!(refused.is_empty(), "no result: {}", refused.join("; "));
    Ok(())
}

/// What is to be measured.
fn cells(options: &Options) -> Vec<Cell> {
    let chosen =
        |load: &&Load| options.streams.is_empty() || options.streams.contains(&load.streams);
    let loads = LOADS.iter().filter(chosen);
    loads
        .flat_map(|load| load.targets(&options.only).map(|target| Cell::new(*load, target)))
        .collect()
}

fn known_streams(text: &str) -> Result<u32, String> {
    let streams = LOADS.map(|load| load.streams);
    let given = text.parse().ok().filter(|given| streams.contains(given));
    given.ok_or_else(|| format!("one of {}", streams.map(|count| count.to_string()).join(", ")))
}

/// Streams, all open through the window, and how fast each is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Load {
    streams: u32,
    /// Tokens per second of each.
    rate: u32,
    /// Whether it is about what open streams cost, of our own kernel paths only.
    open: bool,
}

impl std::fmt::Display for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{}x{}", self.streams, self.rate))
    }
}

impl Load {
    /// Those of the wanted targets that are measured under it; all of them if none is wanted.
    fn targets(self, wanted: &[Target]) -> impl Iterator<Item = Target> {
        let mut targets = wanted.to_vec();
        if wanted.is_empty() {
            targets = CARRIERS.to_vec();
            let peers = [Target::Envoy, Target::SglangRouter, Target::VllmRouter];
            targets.extend(peers.into_iter().filter(|peer| peers::program(*peer).is_ok()));
        }
        targets
            .into_iter()
            .filter(move |target| !self.open || matches!(target, Target::Splice | Target::Local))
    }

    /// Behind each gateway. By default ours sends no pod more than 1,024 requests at once.
    fn pods(self) -> u8 {
        if self.open { 8 } else { 4 }
    }

    /// For the load generator.
    fn args(self, seconds: u32) -> Vec<String> {
        let Self { streams, rate, .. } = self;
        // Not so fast that opening is a load of its own.
        let open = (streams / 500).max(1);
        let mut args = vec!["--warmup".to_owned(), "1".to_owned()];
        for (name, value) in
            [("--seconds", seconds), ("--streams", streams), ("--rate", rate), ("--open", open)]
        {
            args.extend([name.to_owned(), value.to_string()]);
        }
        // The first two pairs are every mode's.
        args.insert(4, "streams".to_owned());
        args
    }
}

/// A load and a carrier.
struct Cell {
    load: Load,
    target: Target,
    /// One for each repeat.
    samples: Vec<Sample>,
}

impl Cell {
    fn new(load: Load, target: Target) -> Self {
        Self { load, target, samples: Vec::new() }
    }

    /// Measures once, as quietly as the machine is; what fails is a sample that counts for nothing.
    fn measure(&self, bed: &Bed, seconds: u32) -> Sample {
        let measured = bed.start(self.target, self.load.pods()).and_then(|mut running| {
            sleep(SETTLE);
            quietest(|| self.measure_once(&mut running, seconds))
        });
        match measured {
            Ok((sample, noise, attempts)) => Sample { noise: Some(noise), attempts, ..sample },
            Err(error) => Sample { refused: Some(format!("{error:#}")), ..Sample::default() },
        }
    }

    fn measure_once(
        &self,
        running: &mut Running<'_>,
        seconds: u32,
    ) -> anyhow::Result<(Sample, Noise)> {
        let streams = u64::from(self.load.streams);
        let before = running.carried()?;
        let report = running.measure(&self.load.args(seconds))?;
        // An answer is counted when it is over; the load generator has just left all of them.
        let (left, mut carried) = (Instant::now(), Carried::default());
        while self.target.is_ours() && left.elapsed() < PATIENCE && carried.count() < streams {
            sleep(Duration::from_millis(50));
            carried = running.carried()?.since(&before);
            if self.target == Target::Steered && left.elapsed() > SETTLE {
                break;
            }
        }
        let noise = Noise::of(&report);
        let refused = refused(self.target, &report, &carried);
        Ok((Sample { report, carried, refused, noise: None, attempts: 0 }, noise))
    }
}

/// Why a measurement is no result of the target.
fn refused(target: Target, report: &Report, carried: &Carried) -> Option<String> {
    if report.tokens == 0 {
        let error = report.first_error.as_deref().unwrap_or("no reason is known");
        return Some(format!("no tokens came: {error}"));
    }
    carried.refused(target, report.streams)
}

/// One measurement.
#[derive(Default, Serialize)]
struct Sample {
    report: Report,
    /// What carried our own gateway's answers.
    carried: Carried,
    /// Why it is no result.
    refused: Option<String>,
    noise: Option<Noise>,
    /// Measurements of which this was the quietest.
    attempts: u32,
}

impl std::fmt::Display for Sample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(why) = &self.refused {
            write!(f, "no result: {why}; ")?;
        }
        let Report { tokens, gateway, wire_us, errors, first_error, streams, alive, .. } =
            &self.report;
        let cpu = gateway.cpu_us / (*tokens).max(1) as f64;
        write!(f, "{cpu:5.2} us/token, {:4.0} us (p99 {:.0})", wire_us.p50, wire_us.p99)?;
        write!(f, ", {alive} of {streams} alive, {errors} errors")?;
        if let Some(error) = first_error {
            write!(f, " ({error})")?;
        }
        match self.noise.filter(Noise::is_high) {
            Some(noise) => write!(f, ", noisy after {} attempts: {noise}", self.attempts),
            None => Ok(()),
        }
    }
}

/// All that a run found.
#[derive(Serialize)]
struct Outcome {
    host: Host,
    rows: Vec<Row>,
    targets: Vec<Verdict>,
    samples: Vec<Samples>,
}

/// The measurements behind a row.
#[derive(Serialize)]
struct Samples {
    name: Target,
    load: Load,
    repeats: Vec<Sample>,
}

impl Outcome {
    fn new(cells: Vec<Cell>) -> Self {
        let rows = row::rows(&cells);
        let targets = goals::verdicts(&rows);
        let samples = cells.into_iter().map(|cell| {
            let Cell { load, target: name, samples: repeats } = cell;
            Samples { name, load, repeats }
        });
        Self { host: Host::read(), targets, samples: samples.collect(), rows }
    }

    fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            println!("{}", serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        println!("{}\n", self.host);
        for load in LOADS {
            let mut cells = vec![row::HEADER.map(String::from).to_vec()];
            let of_load: Vec<&Row> = self.rows.iter().filter(|row| row.is_of(load)).collect();
            if of_load.is_empty() {
                continue;
            }
            let Load { streams, rate, .. } = load;
            println!("{streams} streams x {rate} tokens/s, median (min..max) of repeats");
            cells.extend(of_load.iter().map(|row| row.cells()));
            table(&cells);
        }
        self.targets.iter().for_each(Verdict::print);
        Ok(())
    }
}

/// What is measured by default, beside the peers that are installed.
const CARRIERS: [Target; 7] = [
    Target::Direct,
    Target::Haproxy,
    Target::Nginx,
    Target::Relay,
    Target::Splice,
    Target::Local,
    Target::Steered,
];

const LOADS: [Load; 3] = [
    Load { streams: 100, rate: 50, open: false },
    Load { streams: 1_000, rate: 20, open: false },
    Load { streams: 5_000, rate: 2, open: true },
];

/// For a gateway to come to rest after its start, or after the streams were left.
const SETTLE: Duration = Duration::from_millis(500);
/// For our own gateway to count the answers that were left.
const PATIENCE: Duration = Duration::from_secs(5);
