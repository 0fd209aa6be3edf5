//! What is printed: a table for people, rows for programs. Pure.

use std::fmt::Write;

use serde::Serialize;

use super::figures::Figures;
use super::policy::Name;

/// A scenario under a policy: the medians over all seeds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The scenario.
    pub scenario: &'static str,
    /// The policy.
    pub policy: &'static str,
    /// The load, in loads of the scenario.
    pub load: f64,
    /// Runs that the medians are of.
    pub seeds: usize,
    /// The figures.
    #[serde(flatten)]
    pub figures: Figures,
}

impl Row {
    /// The row for these runs.
    pub fn of(scenario: &'static str, policy: Name, load: f64, runs: &[Figures]) -> Self {
        let figures = Figures::median(runs);
        Self { scenario, policy: policy.as_str(), load, seeds: runs.len(), figures }
    }
}

/// The table of rows that stand in the order of scenarios and loads.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    for rows in rows.chunk_by(|one, next| one.scenario == next.scenario && one.load == next.load) {
        let Some(first) = rows.first() else { continue };
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            text,
            "{}, load {}, {:.0} requests, medians over {} seeds\n{HEAD}",
            first.scenario, first.load, first.figures.requests, first.seeds
        );
        for Row { policy, figures: f, .. } in rows {
            let (ttft, tpot, e2e) = (&f.ttft_ms, &f.tpot_ms, &f.e2e_ms);
            let _ = writeln!(
                text,
                "{policy:21} {:>7.0} {:>7.0} {:>7.0}  {:>5.1} {:>6.1}  {:>6.0} {:>7.0} {:>7.0} {:>7.2} \
                 {:>5.1} {:>5.2} {:>5.0} {:>4.0}",
                ttft.p50,
                ttft.p95,
                ttft.p99,
                tpot.p50,
                tpot.p99,
                e2e.p50,
                e2e.p99,
                f.tokens_per_s,
                f.goodput,
                100.0 * f.hit_rate,
                f.imbalance,
                f.rejected,
                f.failed,
            );
        }
        text.push('\n');
    }
    text
}

/// The same as tables in Markdown, the lowest TTFT p99 of each in bold.
pub fn markdown(rows: &[Row]) -> String {
    let mut text = String::new();
    for rows in rows.chunk_by(|one, next| one.scenario == next.scenario && one.load == next.load) {
        let Some(first) = rows.first() else { continue };
        let least = rows.iter().map(|row| row.figures.ttft_ms.p99).fold(f64::INFINITY, f64::min);
        let _ = writeln!(
            text,
            "### {}, load {}\n\n{:.0} requests, medians over {} seeds.\n\n{MARKDOWN_HEAD}",
            first.scenario, first.load, first.figures.requests, first.seeds
        );
        for Row { policy, figures: f, .. } in rows {
            let (ttft, tpot, e2e) = (&f.ttft_ms, &f.tpot_ms, &f.e2e_ms);
            let bold = if ttft.p99 <= least { "**" } else { "" };
            let _ = writeln!(
                text,
                "| {policy} | {:.0} | {:.0} | {bold}{:.0}{bold} | {:.1} | {:.1} | {:.1} | {:.1} | {:.0} \
                 | {:.2} | {:.1} | {:.2} | {:.0} | {:.0} |",
                ttft.p50,
                ttft.p95,
                ttft.p99,
                tpot.p50,
                tpot.p99,
                e2e.p50 / 1e3,
                e2e.p99 / 1e3,
                f.tokens_per_s,
                f.goodput,
                100.0 * f.hit_rate,
                f.imbalance,
                f.rejected,
                f.failed,
            );
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

const MARKDOWN_HEAD: &str = "\
| policy | TTFT p50, ms | p95 | p99 | TPOT p50, ms | p99 | E2E p50, s | p99 | tokens/s | goodput/s | hits, % | imbalance | 429 | failed |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

const HEAD: &str = "\
policy                TTFT p50     p95     p99   TPOT    p99  E2E p50     p99 tokens/s  good/s  hit% imbal   429 fail";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_load_of_a_scenario_has_its_own_table() {
        let row = |load, policy| Row::of("x", policy, load, &[Figures::default()]);
        let rows = [row(0.5, Name::Random), row(0.5, Name::RoundRobin), row(1.0, Name::Random)];
        let text = table(&rows);
        assert_eq!(text.matches("load 0.5,").count(), 1);
        assert_eq!(text.matches("\nrandom ").count(), 2);
        assert_eq!(text.lines().count(), 2 * 3 + 3);
        for line in text.lines().filter(|line| line.starts_with('r')) {
            assert_eq!(line.split_whitespace().count(), 14);
        }
    }

    #[test]
    fn markdown_has_a_cell_for_each_figure() {
        let text = markdown(&[Row::of("x", Name::Random, 1.0, &[Figures::default()])]);
        let columns: Vec<usize> = text
            .lines()
            .filter(|line| line.starts_with('|'))
            .map(|line| line.matches('|').count())
            .collect();
        assert_eq!(columns, [15, 15, 15]);
        assert!(text.contains("| random | 0 | 0 | **0** |"), "{text}");
    }

    #[test]
    fn a_row_has_the_fields_that_programs_read() {
        let value = serde_json::to_value(Row::of("x", Name::Random, 1.0, &[])).unwrap();
        for field in ["scenario", "policy", "tokens_per_s", "goodput", "hit_rate", "rejected"] {
            assert!(!value[field].is_null(), "{field}");
        }
        for field in ["p50", "p95", "p99"] {
            assert!(value["ttft_ms"][field].is_number() && value["tpot_ms"][field].is_number());
        }
    }
}
