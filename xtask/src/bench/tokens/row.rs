//! The rows of the result: each figure of a carrier and load over the repeats. Pure.

use std::collections::BTreeSet;

use serde::{Serialize, Serializer};

use super::{Cell, Load, Sample};
use crate::bench::carried::Carried;
use crate::bench::report::Report;
use crate::bench::spread::Spread;
use crate::bench::target::Target;

/// What one carrier came to under one load.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) name: Target,
    pub(super) streams: u32,
    /// Tokens per second of each stream.
    rate: u32,
    #[serde(flatten)]
    pub(super) figures: Figures,
    /// Streams that failed, lost a token or fell behind, in all repeats.
    pub(super) errors: u64,
    /// What the first of them said.
    first_error: Option<String>,
    /// What carried our own gateway's answers, by its own count, in all repeats.
    carried_by: Carried,
    /// Repeats of which the quietest measurement was noisy still.
    noisy: usize,
    /// Why there are no figures.
    invalid: Option<String>,
}

/// Medians of the repeats; none of a row that is no result.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Figures {
    #[serde(serialize_with = "median")]
    pub(super) tokens_per_s: Option<Spread>,
    #[serde(serialize_with = "median")]
    pub(super) gateway_cpu_us_per_token: Option<Spread>,
    #[serde(serialize_with = "median")]
    pub(super) kworker_cpu_us_per_token: Option<Spread>,
    /// Gateway, pods, client and the kernel's workers, above direct in the same repeat.
    #[serde(serialize_with = "median")]
    pub(super) path_cpu_us_per_token: Option<Spread>,
    pub(super) wire_latency_us: Latency,
    #[serde(serialize_with = "median")]
    pub(super) wakeups_per_token: Option<Spread>,
    /// At the window's end; the greatest of the repeats.
    #[serde(serialize_with = "greatest")]
    pub(super) rss_mb: Option<Spread>,
    /// Of one processor.
    #[serde(serialize_with = "median")]
    pub(super) gateway_cpu_percent: Option<Spread>,
    /// Gateway and the kernel's workers, above direct's.
    #[serde(skip)]
    pub(super) gateway_and_kworker: Option<Spread>,
    /// Gateway, pods, client and the kernel's workers.
    #[serde(skip)]
    pub(super) whole_cpu: Option<Spread>,
    /// Above direct in the same repeat.
    #[serde(skip)]
    pub(super) added: Latency,
}

/// From the pod's write of a token to its arrival at the client's socket.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Latency {
    #[serde(serialize_with = "median")]
    pub(super) p50: Option<Spread>,
    #[serde(serialize_with = "median")]
    pub(super) p99: Option<Spread>,
}

/// Of every cell, in the same order.
pub(super) fn rows(cells: &[Cell]) -> Vec<Row> {
    cells.iter().map(|cell| Row::new(cell, direct(cells, cell.load))).collect()
}

/// No gateway's samples under a load, one a repeat; empty without a valid one.
fn direct(cells: &[Cell], load: Load) -> &[Sample] {
    let cell = cells.iter().find(|cell| cell.load == load && cell.target == Target::Direct);
    let valid = cell.filter(|cell| cell.samples.iter().all(|sample| sample.refused.is_none()));
    valid.map_or(&[], |cell| &cell.samples)
}

impl Row {
    fn new(cell: &Cell, direct: &[Sample]) -> Self {
        let Cell { load, target, samples } = cell;
        let whys: BTreeSet<&str> =
            samples.iter().filter_map(|sample| sample.refused.as_deref()).collect();
        let invalid = (!whys.is_empty()).then(|| Vec::from_iter(whys).join("; "));
        let mut carried_by = Carried::default();
        samples.iter().for_each(|sample| carried_by.add(&sample.carried));
        let noisy = |sample: &&Sample| sample.noise.is_some_and(|noise| noise.is_high());
        Self {
            name: *target,
            streams: load.streams,
            rate: load.rate,
            figures: match invalid {
                None => Figures::of(samples, direct),
                Some(_) => Figures::default(),
            },
            errors: samples.iter().map(|sample| errors(&sample.report)).sum(),
            first_error: samples.iter().find_map(|sample| sample.report.first_error.clone()),
            carried_by,
            noisy: samples.iter().filter(noisy).count(),
            invalid,
        }
    }

    /// Whether it was measured under that load.
    pub(super) fn is_of(&self, load: Load) -> bool {
        (self.streams, self.rate) == (load.streams, load.rate)
    }

    /// Why it is no result.
    pub(super) fn refused(&self) -> Option<String> {
        let Self { name, streams, rate, errors, .. } = self;
        let why = match &self.invalid {
            Some(why) => why.clone(),
            None if *errors > 0 => {
                let first = self.first_error.as_deref().unwrap_or("they fell behind");
                format!("{errors} streams failed: {first}")
            }
            None => return None,
        };
        Some(format!("{name} at {streams}x{rate}: {why}"))
    }

    /// As a table shows it.
    pub(super) fn cells(&self) -> Vec<String> {
        let show = |spread: Option<Spread>| spread.map_or("-".to_owned(), |s| s.to_string());
        let Figures { wire_latency_us: wire, .. } = &self.figures;
        let figures = &self.figures;
        vec![
            self.name.to_string(),
            show(figures.gateway_cpu_us_per_token),
            show(figures.kworker_cpu_us_per_token),
            show(figures.path_cpu_us_per_token),
            show(wire.p50),
            show(wire.p99),
            show(figures.wakeups_per_token),
            figures.tokens_per_s.map_or("-".to_owned(), |spread| format!("{:.0}", spread.median)),
            figures.rss_mb.map_or("-".to_owned(), |spread| format!("{:.1}", spread.max)),
            figures
                .gateway_cpu_percent
                .map_or("-".to_owned(), |spread| format!("{:.1}", spread.median)),
            self.errors.to_string(),
            self.noisy.to_string(),
            // Why is said below the tables.
            match &self.invalid {
                Some(_) => "no result".to_owned(),
                None => self.carried_by.to_string(),
            },
        ]
    }
}

impl Figures {
    fn of(samples: &[Sample], direct: &[Sample]) -> Self {
        let reports = || samples.iter().map(|sample| &sample.report);
        let each = |value: fn(&Report) -> f64| Spread::of(reports().map(value));
        let above_direct = |value: fn(&Report) -> f64| {
            let pairs = reports().zip(direct.iter().map(|sample| &sample.report));
            Spread::of(pairs.map(|(through, direct)| value(through) - value(direct)))
        };
        Self {
            tokens_per_s: each(|report| report.tokens as f64 / report.seconds),
            gateway_cpu_us_per_token: each(|report| per_token(report, report.gateway.cpu_us)),
            kworker_cpu_us_per_token: each(|report| per_token(report, report.kworker_us)),
            path_cpu_us_per_token: above_direct(whole_cpu),
            wire_latency_us: Latency {
                p50: each(|report| report.wire_us.p50),
                p99: each(|report| report.wire_us.p99),
            },
            wakeups_per_token: each(|report| per_token(report, report.gateway.switches as f64)),
            rss_mb: each(|report| report.gateway.rss_kb as f64 / 1_024.0),
            gateway_cpu_percent: each(|report| report.gateway.cpu_us / report.seconds / 1e4),
            gateway_and_kworker: above_direct(|report| {
                per_token(report, report.gateway.cpu_us + report.kworker_us)
            }),
            whole_cpu: each(whole_cpu),
            added: Latency {
                p50: above_direct(|report| report.wire_us.p50),
                p99: above_direct(|report| report.wire_us.p99),
            },
        }
    }
}

fn whole_cpu(report: &Report) -> f64 {
    let Report { gateway, pod, load, kworker_us, .. } = report;
    per_token(report, gateway.cpu_us + pod.cpu_us + load.cpu_us + kworker_us)
}

fn per_token(report: &Report, value: f64) -> f64 {
    value / report.tokens.max(1) as f64
}

/// Every stream that is not as it should be, once.
fn errors(report: &Report) -> u64 {
    report.errors.max(report.streams - report.alive.min(report.streams))
}

#[expect(clippy::ref_option, reason = "serde asks for this form")]
fn median<S: Serializer>(spread: &Option<Spread>, serializer: S) -> Result<S::Ok, S::Error> {
    spread.map(|spread| rounded(spread.median)).serialize(serializer)
}

#[expect(clippy::ref_option, reason = "serde asks for this form")]
fn greatest<S: Serializer>(spread: &Option<Spread>, serializer: S) -> Result<S::Ok, S::Error> {
    spread.map(|spread| rounded(spread.max)).serialize(serializer)
}

/// To a thousandth: more is not measured.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

pub(super) const HEADER: [&str; 13] = [
    "carrier",
    "gateway CPU us/token",
    "kworker",
    "path CPU us/token",
    "wire p50 us",
    "wire p99 us",
    "wake-ups/token",
    "tokens/s",
    "RSS MB",
    "CPU %",
    "errors",
    "noisy",
    "carried by",
];

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bench::report::{Quantiles, Usage};
    use crate::bench::tokens::LOADS;

    /// A sample of 1,000 tokens in 2 s, with so much CPU a token of gateway, pod, client, kworkers.
    pub(crate) fn sample(cpu: [f64; 4], p50: f64, p99: f64) -> Sample {
        let usage = |us| Usage { cpu_us: us * 1_000.0, switches: 20, rss_kb: 2_048 };
        let [gateway, pod, load, kworker] = cpu;
        let report = Report {
            seconds: 2.0,
            tokens: 1_000,
            streams: 100,
            alive: 100,
            wire_us: Quantiles { p50, p99, ..Quantiles::default() },
            gateway: usage(gateway),
            pod: usage(pod),
            load: usage(load),
            kworker_us: kworker * 1_000.0,
            ..Report::default()
        };
        Sample { report, ..Sample::default() }
    }

    /// A cell under the first load.
    pub(crate) fn cell(target: Target, samples: Vec<Sample>) -> Cell {
        Cell { load: LOADS[0], target, samples }
    }

    fn median(spread: Option<Spread>) -> f64 {
        (spread.unwrap().median * 1e3).round() / 1e3
    }

    #[test]
    fn figures_are_per_token_and_above_direct_of_the_same_repeat() {
        let rows = rows(&[
            cell(
                Target::Direct,
                vec![
                    sample([0.0, 10.0, 5.0, 1.0], 5.0, 20.0),
                    sample([0.0, 30.0, 5.0, 1.0], 7.0, 40.0),
                    sample([0.0, 20.0, 5.0, 1.0], 6.0, 30.0),
                ],
            ),
            cell(
                Target::Splice,
                vec![
                    sample([0.5, 11.0, 6.0, 12.0], 50.0, 200.0),
                    sample([0.7, 31.0, 6.0, 13.0], 60.0, 300.0),
                    sample([0.6, 22.0, 6.0, 14.0], 70.0, 400.0),
                ],
            ),
        ]);
        let figures = &rows[1].figures;
        assert_eq!(median(figures.tokens_per_s), 500.0);
        assert_eq!(median(figures.gateway_cpu_us_per_token), 0.6);
        assert_eq!(median(figures.kworker_cpu_us_per_token), 13.0);
        // 13.5, 14.7 and 16.6.
        assert_eq!(median(figures.path_cpu_us_per_token), 14.7);
        // 11.5, 12.7 and 13.6.
        assert_eq!(median(figures.gateway_and_kworker), 12.7);
        assert_eq!(median(figures.wire_latency_us.p50), 60.0);
        // 45, 53 and 64.
        assert_eq!(median(figures.added.p50), 53.0);
        assert_eq!(median(figures.wakeups_per_token), 0.02);
        assert_eq!(median(figures.rss_mb), 2.0);
        assert_eq!(median(rows[0].figures.path_cpu_us_per_token), 0.0);
        assert!(rows[1].refused().is_none());
    }

    #[test]
    fn a_repeat_that_is_no_result_refuses_the_row() {
        let mut wrong = sample([1.0; 4], 50.0, 200.0);
        wrong.refused = Some("carried by relay (off): 100".to_owned());
        let good = || sample([1.0; 4], 5.0, 20.0);
        let row = |target, samples| rows(&[cell(target, samples)]).remove(0);

        let refused = row(Target::Local, vec![good(), wrong]);
        assert_eq!(refused.figures, Figures::default());
        assert_eq!(refused.refused().unwrap(), "local at 100x50: carried by relay (off): 100");
        let mut lossy = good();
        lossy.report.alive = 98;
        assert_eq!(row(Target::Relay, vec![good(), lossy]).errors, 2);
    }

    #[test]
    fn there_is_nothing_above_a_direct_that_was_not_measured() {
        let rows = rows(&[cell(Target::Relay, vec![sample([1.0; 4], 5.0, 20.0)])]);
        assert_eq!(rows[0].figures.path_cpu_us_per_token, None);
        let json = serde_json::to_value(&rows[0]).unwrap();
        assert!(json["path_cpu_us_per_token"].is_null());
        assert_eq!(json["wire_latency_us"]["p50"], 5.0);
        assert_eq!(json["name"], "relay");
    }
}
