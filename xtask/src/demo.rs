//! The demonstration: four simulated model servers of different speed and a gateway, in one command.
//!
//! Everything runs on this machine and listens on 127.0.0.1 only; when the command ends, whatever the way,
//! so does all that it started. Configuration and logs stay in the target folder.

mod chat;
mod live;
mod load;
mod pods;
mod setup;
mod summary;
mod view;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::AtomicU32;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use clap::Args;
use clap::builder::RangedU64ValueParser;

use crate::shell;
use crate::stop::Stop;
use live::Live;
use load::{Results, Tally, WINDOW};
use pods::{ADAPTERS, MODEL};
use setup::{Place, Running};
use summary::Summary;
use view::{Status, paths};

/// What the demonstration sends and prints.
#[derive(Args)]
pub(crate) struct Options {
    /// Send so many streamed chat requests, print a summary and end; exit code 0 if all succeeded
    /// [default: a light load until Ctrl-C]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u32>::new().range(1..))]
    pub(crate) requests: Option<u32>,
    /// Print the summary as one JSON object.
    #[arg(long, requires = "requests")]
    pub(crate) json: bool,
    /// Port of the gateway on 127.0.0.1; 0 takes a free one.
    #[arg(long, default_value_t = 8080)]
    pub(crate) port: u16,
    /// Port of the gateway's admin pages on 127.0.0.1; 0 takes a free one.
    #[arg(long, default_value_t = 9901)]
    pub(crate) admin_port: u16,
    /// Send nothing: only your own requests are served.
    #[arg(long, conflicts_with = "requests")]
    pub(crate) no_load: bool,
    /// Build for speed: takes longer to build.
    #[arg(long)]
    pub(crate) release: bool,
    /// Use the programs as they were built last.
    #[arg(long)]
    pub(crate) no_build: bool,
}

/// Runs it.
///
/// # Errors
/// Something could not be built or started, or ended on its own, or a request of `--requests` failed.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    // First, so that Ctrl-C ends a build as usual.
    let place = Place::prepare(options)?;
    let stop = Stop::on_signals()?;
    let running = Running::start(place, &stop)?;
    let (results, next) = (Results::default(), AtomicU32::new(0));
    thread::scope(|scope| {
        // In here, so that the gateway ends before its clients are waited for: they cannot hang then.
        let mut running = running;
        let outcome = match options.requests {
            Some(requests) => {
                let senders = load::send(scope, running.address, requests, &results, &stop, &next);
                let is_done = || senders.iter().all(|sender| sender.is_finished());
                send(options, requests, &mut running, &results, &stop, is_done)
            }
            None => {
                if !options.no_load {
                    load::keep_busy(scope, running.address, &results, &stop, &next);
                }
                watch(options, &mut running, &results, &stop)
            }
        };
        stop.set();
        outcome
    })
}

/// Shows the table until Ctrl-C.
fn watch(
    options: &Options,
    running: &mut Running,
    results: &Results,
    stop: &Stop,
) -> anyhow::Result<()> {
    let (status, _) = running.look()?;
    let mut text = introduction(running, &status);
    let load = if options.no_load {
        "The demo sends nothing (--no-load).".to_owned()
    } else {
        "The demo keeps a few streams open; --no-load turns that off.".to_owned()
    };
    let _ = write!(
        text,
        "\n{load} Ctrl-C ends everything.\n\
         Times and rates are of the last {} s; a pod's TTFT is that of the demo's own requests,\n\
         the gateway's that of all.\n\n",
        WINDOW.as_secs()
    );
    if std::io::stdout().write_all(text.as_bytes()).is_err() {
        return Ok(());
    }
    let mut live = Live::new();
    loop {
        let (status, metrics) = running.look()?;
        // Nobody reads any more: `cargo xtask demo | head`.
        if live.show(&status, &metrics, &results.tally()).is_err() || stop.wait(REDRAW) {
            return Ok(());
        }
    }
}

/// Waits for the answers and prints the summary.
fn send(
    options: &Options,
    requests: u32,
    running: &mut Running,
    results: &Results,
    stop: &Stop,
    is_done: impl Fn() -> bool,
) -> anyhow::Result<()> {
    shell::progress(format_args!("sending {requests} streamed chat requests"));
    let mut live = Live::new();
    // A table in place, or else a word now and then.
    let table = live.is_terminal() && !options.json;
    let pause = if table { REDRAW } else { PROGRESS };
    let mut shown = Instant::now();
    while !is_done() {
        if stop.wait(POLL) {
            bail!("interrupted");
        }
        if shown.elapsed() < pause {
            continue;
        }
        shown = Instant::now();
        let (status, metrics) = running.look()?;
        let tally = results.tally();
        if table {
            live.show(&status, &metrics, &tally)?;
        } else {
            shell::progress(format_args!("{} of {requests} answered", tally.ok + tally.errors));
        }
    }
    let tally = results.tally();
    let (status, paths) = settled(running, &tally)?;
    let summary = Summary::new(&tally, &paths, status.steering.to_string());
    let text = if options.json { serde_json::to_string(&summary)? } else { summary.table() };
    writeln!(std::io::stdout(), "{text}")?;
    let Tally { ok, errors, last_error, .. } = tally;
    ensure!(
        ok == u64::from(requests),
        "{errors} of {requests} requests failed; the last: {}",
        last_error.unwrap_or_default()
    );
    Ok(())
}

/// The gateway's state and its answers by path, once it has counted every one: it does so behind the last
/// byte.
fn settled(
    running: &mut Running,
    tally: &Tally,
) -> anyhow::Result<(Status, BTreeMap<String, u64>)> {
    let start = Instant::now();
    loop {
        let (status, metrics) = running.look()?;
        let paths = paths(&metrics);
        if paths.values().sum::<u64>() >= tally.ok || start.elapsed() > SETTLE {
            return Ok((status, paths));
        }
        thread::sleep(POLL);
    }
}

fn introduction(running: &Running, status: &Status) -> String {
    let Running { address, admin, config, programs, features, .. } = running;
    let (sluice, config) = (near(&programs.join("sluice")), near(config));
    let mut text = format!(
        "
Sluice serves {MODEL} and its adapters {adapters} at http://{address}

  curl -N http://{address}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{\"model\": \"{MODEL}\", \"stream\": true, \
         \"messages\": [{{\"role\": \"user\", \"content\": \"hello\"}}]}}'

  OpenAI clients   base_url http://{address}/v1, any api_key
  admin pages      http://{admin}/status, /metrics, /readyz
  status           {sluice} status --admin {admin}
  configuration    {config}
  gateway by hand  {sluice} run --config {config}

Simulated model servers (kill one, and requests go to the others):
",
        adapters = ADAPTERS.join(" and "),
    );
    // Writing to a string cannot fail.
    for (name, gpu, pid) in running.pods() {
        let _ = writeln!(text, "  {name:<16} {gpu:<6} process {pid}");
    }
    let _ = writeln!(text, "\nSteering: {}\nKernel features:", status.steering);
    for feature in features {
        let mark = if feature.available { "on" } else { "off" };
        let _ = writeln!(text, "  {:<16} {mark:<4} {}", feature.name, feature.reason);
    }
    text
}

/// A path as one would type it from here.
fn near(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path).display().to_string()
}

/// Between two tables.
const REDRAW: Duration = Duration::from_secs(1);
/// Between two words on progress where no table can be shown.
const PROGRESS: Duration = Duration::from_secs(5);
/// Between two looks whether the answers are there.
const POLL: Duration = Duration::from_millis(20);
/// How long the gateway may take to count an answer that was delivered.
const SETTLE: Duration = Duration::from_secs(2);
