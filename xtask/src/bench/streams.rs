//! Many streams at once: what each costs in memory, and whether all of them live.

use anyhow::ensure;
use clap::Args;
use serde::Serialize;

use super::Common;
use super::bed::Bed;
use super::host::Host;
use super::report::Report;
use super::spread::table;
use super::target::Target;
use crate::shell;

/// How many, how fast, how long.
#[derive(Args)]
pub(super) struct Options {
    /// Streams to hold open.
    #[arg(long, default_value_t = 2_000)]
    streams: u32,
    /// Tokens per second of each stream.
    #[arg(long, default_value_t = 1.0)]
    rate: f64,
    /// Seconds that they are held, after the last one was opened.
    #[arg(long, default_value_t = 20)]
    seconds: u32,
    #[command(flatten)]
    common: Common,
}

/// Measures and prints.
///
/// # Errors
/// Through the gateway not every stream was alive at the end.
pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    let Options { streams, rate, seconds, common } = options;
    let bed = Bed::prepare(&common.targets, common.quiet)?;
    let mut rows = Vec::new();
    for target in &common.targets {
        shell::progress(format_args!("{target}: {streams} streams for {seconds} s"));
        let mut running = bed.start(*target, PODS)?;
        let look = ["--warmup", "1", "--seconds", "0.5", "idle"].map(String::from);
        let before = running.measure(&look)?;
        let [streams, rate, seconds] = [streams.to_string(), rate.to_string(), seconds.to_string()];
        let args = [
            "--warmup",
            "2",
            "--seconds",
            &seconds, //
            "streams",
            "--streams",
            &streams,
            "--rate",
            &rate,
        ];
        let report = running.measure(&args.map(String::from))?;
        if let Some(error) = &report.first_error {
            shell::progress(format_args!("{target}: {} streams failed: {error}", report.errors));
        }
        rows.push(Row::new(*target, &before, &report));
    }
    if common.json {
        let outcome = serde_json::json!({"host": Host::read(), "streams": rows});
        println!("{}", serde_json::to_string_pretty(&outcome)?);
    } else {
        println!("{}\n", Host::read());
        println!("{streams} streams of {rate} tokens/s, {seconds} s");
        let mut cells = vec![HEADER.map(String::from).to_vec()];
        cells.extend(rows.iter().map(Row::cells));
        table(&cells);
    }
    let broken: u64 = rows.iter().map(|row| row.streams - row.alive).sum();
    ensure!(broken == 0, "{broken} streams were not alive at the end");
    Ok(())
}

#[derive(Serialize)]
struct Row {
    target: Target,
    streams: u64,
    alive: u64,
    rss_mb: f64,
    /// Above the memory without a stream.
    rss_kb_per_stream: f64,
    cpu_us_per_token: f64,
    token_p50_us: f64,
    token_p99_us: f64,
    steal_percent: f64,
    other_percent: f64,
}

impl Row {
    fn new(target: Target, before: &Report, report: &Report) -> Self {
        let Report { gateway, token_us, streams, alive, .. } = *report;
        let grown = gateway.rss_kb.saturating_sub(before.gateway.rss_kb);
        Self {
            target,
            streams,
            alive,
            rss_mb: gateway.rss_kb as f64 / 1_024.0,
            rss_kb_per_stream: grown as f64 / streams.max(1) as f64,
            cpu_us_per_token: gateway.cpu_us / report.tokens.max(1) as f64,
            token_p50_us: token_us.p50,
            token_p99_us: token_us.p99,
            steal_percent: report.steal_percent,
            other_percent: report.other_percent,
        }
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.target.to_string(),
            format!("{} of {}", self.alive, self.streams),
            format!("{:.1}", self.rss_mb),
            format!("{:.1}", self.rss_kb_per_stream),
            format!("{:.1}", self.cpu_us_per_token),
            format!("{:.0}", self.token_p50_us),
            format!("{:.0}", self.token_p99_us),
            format!("{:.1}", self.steal_percent),
            format!("{:.1}", self.other_percent),
        ]
    }
}

const HEADER: [&str; 9] = [
    "target",
    "alive",
    "RSS MB",
    "KB/stream",
    "CPU us/token",
    "token p50 us",
    "token p99 us",
    "steal %",
    "other %",
];

/// Behind each gateway.
const PODS: u8 = 4;
