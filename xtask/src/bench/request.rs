//! What a request costs, and how much later its answer comes than without a gateway.

use std::thread::sleep;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use serde::Serialize;

use super::Common;
use super::bed::Bed;
use super::host::Host;
use super::report::{Quantiles, Report};
use super::spread::{Spread, table, times};
use super::target::Target;
use super::verdict::Verdict;
use crate::shell;

/// How long and how often.
#[derive(Args)]
pub(super) struct Options {
    /// Seconds that each measurement takes.
    #[arg(long, default_value_t = 10)]
    pub(super) seconds: u32,
    /// Measurements of each test and target; they take turns.
    #[arg(long, default_value_t = 3)]
    pub(super) repeats: u32,
    #[command(flatten)]
    pub(super) common: Common,
}

/// Measures and prints.
pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    let Options { seconds, repeats, common } = options;
    ensure!(*seconds > 0 && *repeats > 0, "nothing to measure");
    let bed = Bed::prepare(&common.targets, common.quiet)?;
    print(&measure_all(&bed, options, &TESTS)?, common.json)
}

/// Measures some tests, turn by turn.
pub(super) fn measure_all(
    bed: &Bed,
    options: &Options,
    tests: &'static [Test],
) -> anyhow::Result<Outcome> {
    let Options { seconds, repeats, common } = options;
    let mut results: Vec<TestResult> =
        tests.iter().map(|test| TestResult::new(test, &common.targets)).collect();
    for repeat in 0..*repeats {
        for result in &mut results {
            // Each repeat begins with another target, so that none is always the first.
            let first = repeat as usize % result.targets.len().max(1);
            let order = (0..result.targets.len()).cycle().skip(first).take(result.targets.len());
            for index in order {
                let Some(TargetResult { target, samples }) = result.targets.get_mut(index) else {
                    continue;
                };
                let sample = measure(bed, result.test, *target, *seconds)?;
                shell::progress(format_args!(
                    "{}/{repeats} {:14} {target:8} {:5.0} us/request, {}",
                    repeat + 1,
                    result.test.name,
                    sample.cpu_per_response(),
                    noise(&sample),
                ));
                samples.push(sample);
            }
        }
    }
    Ok(Outcome::new(results))
}

fn measure(bed: &Bed, test: &Test, target: Target, seconds: u32) -> anyhow::Result<Report> {
    let mut running = bed.start(target, PODS)?;
    sleep(SETTLE);
    // Pods speak clear text.
    let speech = if target == Target::Direct { "http1" } else { test.speech };
    let words = ["--speech", speech, "--seconds", &seconds.to_string(), "rate"];
    let mut args: Vec<String> = words.map(String::from).to_vec();
    for (name, value) in [
        ("--rate", test.rate.to_string()),
        ("--connections", test.connections.to_string()),
        ("--size", test.size.to_string()),
        ("--tokens", test.tokens.to_string()),
    ] {
        args.extend([name.to_owned(), value]);
    }
    if test.streamed {
        args.push("--stream".into());
    }
    running.measure(&args)
}

fn noise(report: &Report) -> String {
    let Report { errors, steal_percent, other_percent, .. } = report;
    let first = report.first_error.as_ref().map(|error| format!(" ({error})")).unwrap_or_default();
    format!("{errors} errors{first}, {steal_percent:.1} % stolen, {other_percent:.1} % others")
}

/// A load, and what is asked of the gateway under it.
#[derive(Serialize)]
pub(super) struct Test {
    pub(super) name: &'static str,
    /// What clients speak, as the load generator calls it.
    pub(super) speech: &'static str,
    /// Requests per second.
    pub(super) rate: u32,
    pub(super) connections: u32,
    /// Bytes of a body.
    pub(super) size: u32,
    pub(super) streamed: bool,
    pub(super) tokens: u32,
    /// Processor time per request, times that of the plain proxy.
    pub(super) cpu_limit: f64,
    pub(super) delay_limit: DelayLimit,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DelayLimit {
    /// Added latency, median and 99th percentile, times that of the plain proxy.
    TimesHaproxy(f64),
    /// Added time to the first token, median.
    Microseconds(f64),
}

impl Test {
    /// The time that matters to a client.
    fn delay(&self, report: &Report) -> Quantiles {
        if self.streamed { report.ttft_us } else { report.latency_us }
    }
}

impl Report {
    fn cpu_per_response(&self) -> f64 {
        self.gateway.cpu_us / self.responses.max(1) as f64
    }
}

#[derive(Serialize)]
struct TestResult {
    #[serde(flatten)]
    test: &'static Test,
    targets: Vec<TargetResult>,
}

#[derive(Serialize)]
struct TargetResult {
    target: Target,
    /// One for each repeat.
    samples: Vec<Report>,
}

impl TestResult {
    fn new(test: &'static Test, targets: &[Target]) -> Self {
        let targets =
            targets.iter().map(|target| TargetResult { target: *target, samples: vec![] });
        Self { test, targets: targets.collect() }
    }

    fn samples(&self, target: Target) -> &[Report] {
        let found = self.targets.iter().find(|result| result.target == target);
        found.map_or(&[], |result| &result.samples)
    }

    fn cpu(&self, target: Target) -> Option<Spread> {
        Spread::of(self.samples(target).iter().map(Report::cpu_per_response))
    }

    /// A quantile above that of the direct way, in the same repeat.
    fn added(&self, target: Target, quantile: fn(Quantiles) -> f64) -> Option<Spread> {
        let delay = |report| quantile(self.test.delay(report));
        let pairs = self.samples(target).iter().zip(self.samples(Target::Direct));
        Spread::of(pairs.map(|(through, direct)| delay(through) - delay(direct)))
    }

    fn summary(&self, target: Target) -> Summary {
        let samples = self.samples(target);
        let each = |value: fn(&Report) -> f64| Spread::of(samples.iter().map(value));
        let delay = |quantile: fn(Quantiles) -> f64| {
            Spread::of(samples.iter().map(|report| quantile(self.test.delay(report))))
        };
        Summary {
            test: self.test.name,
            target,
            cpu_us: self.cpu(target),
            switches: each(|report| {
                report.gateway.switches as f64 / report.responses.max(1) as f64
            }),
            p50_us: delay(p50),
            p99_us: delay(p99),
            added_p50_us: self.added(target, p50),
            added_p99_us: self.added(target, p99),
            per_second: each(|report| report.responses as f64 / report.seconds),
            rss_mb: each(|report| report.gateway.rss_kb as f64 / 1_024.0),
            steal_percent: each(|report| report.steal_percent),
            other_percent: each(|report| report.other_percent),
            errors: samples.iter().map(|report| report.errors).sum(),
        }
    }

    /// The gateway against what is asked of it, as far as the targets for that were measured.
    fn verdicts(&self) -> Vec<Verdict> {
        let name = self.test.name;
        let against = |what, limit, ours: Option<Spread>, theirs: Option<Spread>| {
            ours.and(theirs)?;
            Some(Verdict::ratio(format!("{name}: {what}"), limit, "x haproxy", ours, theirs))
        };
        let added = |quantile| {
            (self.added(Target::Sluice, quantile), self.added(Target::Haproxy, quantile))
        };
        let (cpu, haproxy_cpu) = (self.cpu(Target::Sluice), self.cpu(Target::Haproxy));
        let mut verdicts = vec![against("CPU", self.test.cpu_limit, cpu, haproxy_cpu)];
        match self.test.delay_limit {
            DelayLimit::TimesHaproxy(limit) => {
                let ((ours_50, theirs_50), (ours_99, theirs_99)) = (added(p50), added(p99));
                verdicts.push(against("added latency p50", limit, ours_50, theirs_50));
                verdicts.push(against("added latency p99", limit, ours_99, theirs_99));
            }
            DelayLimit::Microseconds(limit) => {
                let ours = self.added(Target::Sluice, p50);
                let what = format!("{name}: added TTFT p50");
                verdicts.push(ours.map(|_| Verdict::at_most(what, limit, "us", ours)));
            }
        }
        verdicts.into_iter().flatten().collect()
    }
}

/// One row of the tables.
#[derive(Serialize)]
struct Summary {
    test: &'static str,
    target: Target,
    cpu_us: Option<Spread>,
    switches: Option<Spread>,
    p50_us: Option<Spread>,
    p99_us: Option<Spread>,
    added_p50_us: Option<Spread>,
    added_p99_us: Option<Spread>,
    per_second: Option<Spread>,
    rss_mb: Option<Spread>,
    steal_percent: Option<Spread>,
    other_percent: Option<Spread>,
    errors: u64,
}

impl Summary {
    fn row(&self, haproxy: Option<&Self>) -> Vec<String> {
        let show = |spread: Option<Spread>| spread.map_or("-".to_owned(), |s| s.to_string());
        let short =
            |spread: Option<Spread>| spread.map_or("-".to_owned(), |s| format!("{:.1}", s.median));
        let ratio = |value: fn(&Self) -> Option<Spread>| {
            times(haproxy.and_then(|haproxy| value(self)?.ratio(&value(haproxy)?)))
        };
        let gateway = self.target != Target::Direct;
        let only = |text: String| if gateway { text } else { "-".to_owned() };
        vec![
            self.target.to_string(),
            only(show(self.cpu_us)),
            only(ratio(|summary| summary.cpu_us)),
            only(show(self.switches)),
            show(self.p50_us),
            show(self.p99_us),
            only(show(self.added_p50_us)),
            only(ratio(|summary| summary.added_p50_us)),
            only(show(self.added_p99_us)),
            only(ratio(|summary| summary.added_p99_us)),
            short(self.per_second),
            only(short(self.rss_mb)),
            short(self.steal_percent),
            short(self.other_percent),
            self.errors.to_string(),
        ]
    }
}

/// All that a run found.
#[derive(Serialize)]
pub(super) struct Outcome {
    host: Host,
    summaries: Vec<Summary>,
    pub(super) verdicts: Vec<Verdict>,
    tests: Vec<TestResult>,
}

impl Outcome {
    fn new(tests: Vec<TestResult>) -> Self {
        let summaries = tests
            .iter()
            .flat_map(|test| test.targets.iter().map(|result| test.summary(result.target)));
        Self {
            host: Host::read(),
            summaries: summaries.collect(),
            verdicts: tests.iter().flat_map(TestResult::verdicts).collect(),
            tests,
        }
    }
}

/// Prints what was measured.
pub(super) fn print(outcome: &Outcome, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(outcome)?);
        return Ok(());
    }
    println!("{}\n", outcome.host);
    for TestResult { test, .. } in &outcome.tests {
        let delay = if test.streamed { "TTFT" } else { "latency" };
        println!(
            "{}: {delay} from the scheduled send time, median (min..max) of repeats",
            test.name
        );
        let mut rows = vec![HEADER.map(String::from).to_vec()];
        let of_test = || outcome.summaries.iter().filter(|summary| summary.test == test.name);
        let haproxy = of_test().find(|summary| summary.target == Target::Haproxy);
        rows.extend(of_test().map(|summary| summary.row(haproxy)));
        table(&rows);
    }
    outcome.verdicts.iter().for_each(Verdict::print);
    let busiest = outcome.tests.iter().flat_map(|test| &test.targets);
    let others = busiest.flat_map(|result| &result.samples).map(|sample| sample.other_percent);
    let worst = others.fold(0.0, f64::max);
    if worst > BUSY_PERCENT {
        println!(
            "\nwarning: other programs used up to {worst:.0} % of the machine meanwhile; \
             the latencies are theirs as well"
        );
    }
    Ok(())
}

fn p50(quantiles: Quantiles) -> f64 {
    quantiles.p50
}

fn p99(quantiles: Quantiles) -> f64 {
    quantiles.p99
}

const TESTS: [Test; 3] = [
    Test {
        name: "1 KB at 300/s",
        speech: "http1",
        rate: 300,
        connections: 128,
        size: 1_024,
        streamed: false,
        tokens: 1,
        cpu_limit: 1.25,
        delay_limit: DelayLimit::TimesHaproxy(1.25),
    },
    Test {
        name: "1 KB at 1000/s",
        speech: "http1",
        rate: 1_000,
        connections: 128,
        size: 1_024,
        streamed: false,
        tokens: 1,
        cpu_limit: 1.25,
        delay_limit: DelayLimit::TimesHaproxy(1.25),
    },
    Test {
        name: "220 KB at 50/s",
        speech: "http1",
        rate: 50,
        connections: 64,
        size: 220 * 1_024,
        streamed: true,
        tokens: 4,
        cpu_limit: 2.0,
        delay_limit: DelayLimit::Microseconds(1_000.0),
    },
];

const HEADER: [&str; 15] = [
    "target",
    "CPU us/request",
    "x haproxy",
    "switches/request",
    "p50 us",
    "p99 us",
    "added p50 us",
    "x haproxy",
    "added p99 us",
    "x haproxy",
    "answers/s",
    "RSS MB",
    "steal %",
    "other %",
    "errors",
];

/// Behind each gateway.
const PODS: u8 = 4;
/// Processor time of other programs above which latencies say little of the gateway.
const BUSY_PERCENT: f64 = 10.0;
/// For a gateway to come to rest after its start.
const SETTLE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(min: f64, median: f64, max: f64) -> Spread {
        Spread { median, min, max }
    }

    #[test]
    fn added_time_is_above_the_direct_one_of_the_same_repeat() {
        let report = |p50| Report {
            latency_us: Quantiles { p50, ..Quantiles::default() },
            ..Report::default()
        };
        let mut result = TestResult::new(&TESTS[0], &[Target::Direct, Target::Haproxy]);
        result.targets[0].samples = vec![report(100.0), report(300.0)];
        result.targets[1].samples = vec![report(150.0), report(310.0)];
        assert_eq!(result.added(Target::Haproxy, p50), Some(spread(10.0, 30.0, 50.0)));
        assert_eq!(result.added(Target::Sluice, p50), None);
    }
}
