//! What a gateway uses while nobody asks anything of it.

use clap::Args;
use serde::Serialize;

use super::Common;
use super::bed::Bed;
use super::host::Host;
use super::report::Report;
use super::spread::table;
use super::target::Target;
use crate::shell;

/// How long, and behind how many pods.
#[derive(Args)]
pub(super) struct Options {
    /// Seconds that a measurement takes.
    #[arg(long, default_value_t = 20)]
    seconds: u32,
    /// Pods; each shows a metrics page of 50 KB, as a real model server does.
    #[arg(long, default_value_t = 16)]
    pods: u8,
    #[command(flatten)]
    common: Common,
}

/// Measures and prints.
pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    let Options { seconds, pods, common } = options;
    let bed = Bed::prepare(&common.targets, common.quiet)?;
    let mut rows = Vec::new();
    for target in common.targets.iter().filter(|target| **target != Target::Direct) {
        shell::progress(format_args!("{target}: idle for {seconds} s before {pods} pods"));
        let mut running = bed.start(*target, *pods)?;
        let args = ["--warmup", SETTLE, "--seconds", &seconds.to_string(), "idle"];
        rows.push(Row::new(*target, &running.measure(&args.map(String::from))?));
    }
    if common.json {
        let outcome = serde_json::json!({"host": Host::read(), "pods": pods, "idle": rows});
        println!("{}", serde_json::to_string_pretty(&outcome)?);
        return Ok(());
    }
    println!("{}\n", Host::read());
    println!("idle, {pods} pods, {seconds} s");
    let mut cells = vec![HEADER.map(String::from).to_vec()];
    cells.extend(rows.iter().map(Row::cells));
    table(&cells);
    Ok(())
}

#[derive(Serialize)]
struct Row {
    target: Target,
    rss_mb: f64,
    /// Of one processor.
    cpu_percent: f64,
    switches_per_second: f64,
    /// Of the pods, which answer the gateway's questions.
    pods_cpu_percent: f64,
    steal_percent: f64,
    other_percent: f64,
}

impl Row {
    fn new(target: Target, report: &Report) -> Self {
        let Report { seconds, gateway, pod, steal_percent, other_percent, .. } = *report;
        Self {
            target,
            rss_mb: gateway.rss_kb as f64 / 1_024.0,
            cpu_percent: gateway.cpu_us / seconds / 1e4,
            switches_per_second: gateway.switches as f64 / seconds,
            pods_cpu_percent: pod.cpu_us / seconds / 1e4,
            steal_percent,
            other_percent,
        }
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.target.to_string(),
            format!("{:.1}", self.rss_mb),
            format!("{:.2}", self.cpu_percent),
            format!("{:.0}", self.switches_per_second),
            format!("{:.2}", self.pods_cpu_percent),
            format!("{:.1}", self.steal_percent),
            format!("{:.1}", self.other_percent),
        ]
    }
}

const HEADER: [&str; 7] =
    ["target", "RSS MB", "CPU % of a core", "switches/s", "CPU % of pods", "steal %", "other %"];
/// Seconds for the gateway to come to rest after its start.
const SETTLE: &str = "3";
