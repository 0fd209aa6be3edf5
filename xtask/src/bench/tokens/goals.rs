//! What is asked of the kernel paths and of the relay, and whether it was reached. Pure.

use super::row::{Figures, Row};
use super::{LOADS, Load};
use crate::bench::spread::Spread;
use crate::bench::target::Target;
use crate::bench::verdict::Verdict;

/// Of every load under which a carrier and what it is compared with were measured.
pub(super) fn verdicts(rows: &[Row]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for load in LOADS {
        let find = |target| rows.iter().find(|row| row.is_of(load) && row.name == target);
        let figures = |target| find(target).map(|row| &row.figures);
        for target in [Target::Local, Target::Splice, Target::Relay, Target::Steered] {
            let Some(ours) = figures(target) else { continue };
            let name = format!("{target} at {load}");
            let (direct, haproxy) = (figures(Target::Direct), figures(Target::Haproxy));
            let goals = Goals { name, ours, direct, haproxy };
            match target {
                _ if load.open => verdicts.extend(goals.open()),
                Target::Local => verdicts.extend(goals.local()),
                Target::Splice => verdicts.extend(goals.splice(load)),
                Target::Relay => verdicts.extend(goals.relay()),
                _ => verdicts.extend(goals.steered()),
            }
        }
    }
    verdicts
}

/// A carrier, and what it is compared with; without the other there is no verdict.
struct Goals<'a> {
    name: String,
    ours: &'a Figures,
    direct: Option<&'a Figures>,
    haproxy: Option<&'a Figures>,
}

impl Goals<'_> {
    fn local(&self) -> Vec<Verdict> {
        let mut verdicts = vec![
            self.at_most("gateway CPU", 1.0, "us/token", self.ours.gateway_cpu_us_per_token),
            self.at_most("wake-ups", 0.05, "per token", self.ours.wakeups_per_token),
        ];
        if self.direct.is_some() {
            let added = &self.ours.added;
            verdicts.push(self.at_most("added wire latency p50", 10.0, "us", added.p50));
            verdicts.push(self.at_most("added wire latency p99", 100.0, "us", added.p99));
        }
        verdicts.extend(self.than_haproxy("gateway CPU", 0.04, gateway, gateway));
        verdicts.extend(self.than_haproxy("path CPU", 0.4, path, path));
        verdicts
    }

    fn splice(&self, load: Load) -> Vec<Verdict> {
        let mut verdicts =
            vec![self.at_most("gateway CPU", 1.0, "us/token", self.ours.gateway_cpu_us_per_token)];
        let both = |figures: &Figures| figures.gateway_and_kworker;
        verdicts.extend(self.than_haproxy("gateway and kworker CPU", 0.6, both, gateway));
        verdicts.extend(self.than_haproxy("path CPU", 0.7, path, path));
        let p50 = |figures: &Figures| figures.wire_latency_us.p50;
        let limit = if load.streams > 100 { 1.0 } else { 0.6 };
        verdicts.extend(self.than_haproxy("wire latency p50", limit, p50, p50));
        verdicts
    }

    fn relay(&self) -> Vec<Verdict> {
        self.than_haproxy("gateway CPU", 1.2, gateway, gateway).into_iter().collect()
    }

    /// Equal, as far as no gateway is equal to itself from one repeat to the next.
    fn steered(&self) -> Vec<Verdict> {
        let Some(direct) = self.direct else { return Vec::new() };
        let equal = |what: &str, value: fn(&Figures) -> Option<Spread>| {
            let highest = value(direct).map(|spread| {
                let max = spread.max;
                Spread { median: max, min: max, max }
            });
            let what = format!("{}: {what}", self.name);
            Verdict::ratio(what, NOISE, "x direct's highest", value(self.ours), highest)
        };
        vec![
            equal("wire latency p50", |figures| figures.wire_latency_us.p50),
            equal("wire latency p99", |figures| figures.wire_latency_us.p99),
            equal("CPU of pod, client and gateway", |figures| figures.whole_cpu),
        ]
    }

    fn open(&self) -> Vec<Verdict> {
        vec![
            self.at_most("RSS", 250.0, "MB", self.ours.rss_mb),
            self.at_most("gateway CPU", 5.0, "% of a core", self.ours.gateway_cpu_percent),
        ]
    }

    fn at_most(&self, what: &str, limit: f64, unit: &'static str, ours: Option<Spread>) -> Verdict {
        Verdict::at_most(format!("{}: {what}", self.name), limit, unit, ours)
    }

    fn than_haproxy(
        &self,
        what: &str,
        limit: f64,
        ours: fn(&Figures) -> Option<Spread>,
        theirs: fn(&Figures) -> Option<Spread>,
    ) -> Option<Verdict> {
        let what = format!("{}: {what}", self.name);
        Some(Verdict::ratio(what, limit, "x haproxy", ours(self.ours), theirs(self.haproxy?)))
    }
}

fn gateway(figures: &Figures) -> Option<Spread> {
    figures.gateway_cpu_us_per_token
}

fn path(figures: &Figures) -> Option<Spread> {
    figures.path_cpu_us_per_token
}

/// Differences of a virtual machine with itself are below this.
const NOISE: f64 = 1.15;

#[cfg(test)]
mod tests {
    use super::super::row::rows;
    use super::super::row::tests::{cell, sample};
    use super::*;

    /// Of one repeat each: direct, haproxy, and a target with those figures.
    fn passes(target: Target, cpu: [f64; 4], p50: f64, p99: f64) -> Vec<bool> {
        let cells = [
            cell(Target::Direct, vec![sample([0.0, 10.0, 5.0, 0.0], 5.0, 20.0)]),
            cell(Target::Haproxy, vec![sample([25.0, 12.0, 8.0, 0.0], 130.0, 1_000.0)]),
            cell(target, vec![sample(cpu, p50, p99)]),
        ];
        verdicts(&rows(&cells)).iter().map(|verdict| verdict.pass).collect()
    }

    #[test]
    fn every_goal_can_be_reached_and_missed() {
        for (target, good, bad) in [
            (
                Target::Local,
                passes(Target::Local, [0.5, 15.0, 10.0, 0.0], 14.0, 119.0),
                passes(Target::Local, [1.1, 20.0, 15.0, 0.0], 16.0, 121.0),
            ),
            (
                Target::Splice,
                passes(Target::Splice, [0.5, 11.0, 5.0, 12.0], 77.0, 500.0),
                passes(Target::Splice, [1.1, 15.0, 10.0, 15.0], 79.0, 500.0),
            ),
            (
                Target::Relay,
                passes(Target::Relay, [29.0, 10.0, 5.0, 0.0], 130.0, 900.0),
                passes(Target::Relay, [31.0, 10.0, 5.0, 0.0], 130.0, 900.0),
            ),
            (
                Target::Steered,
                passes(Target::Steered, [0.1, 11.0, 5.0, 0.0], 5.5, 22.0),
                passes(Target::Steered, [0.1, 14.0, 5.0, 0.0], 6.0, 24.0),
            ),
        ] {
            assert!(!good.is_empty() && good.iter().all(|pass| *pass), "{target}: {good:?}");
            // Wake-ups are the same in all samples.
            let missed = bad.iter().filter(|pass| !**pass).count();
            let same = usize::from(target == Target::Local);
            assert_eq!((bad.len(), missed), (good.len(), good.len() - same), "{target}: {bad:?}");
        }
    }

    #[test]
    fn a_carrier_that_is_not_compared_has_no_verdict() {
        let rows = rows(&[cell(Target::Relay, vec![sample([1.0; 4], 5.0, 20.0)])]);
        assert!(verdicts(&rows).is_empty());
        let [local] = [cell(Target::Local, vec![sample([0.1; 4], 5.0, 20.0)])];
        assert_eq!(verdicts(&super::super::row::rows(&[local])).len(), 2);
    }
}
