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

/// TTFT p95 and p99 and tokens a second by load, a line for each scenario and policy, in Markdown.
pub fn curves(rows: &[Row]) -> String {
    let mut loads: Vec<f64> = rows.iter().map(|row| row.load).collect();
    loads.sort_by(f64::total_cmp);
    loads.dedup();
    let shown: Vec<String> = loads.iter().map(f64::to_string).collect();
    let mut text = format!("| scenario | policy | {} |\n", shown.join(" | "));
    text.push_str(&"|---".repeat(2 + loads.len()));
    text.push_str("|\n");
    for rows in rows.chunk_by(|one, next| one.scenario == next.scenario) {
        let mut policies: Vec<&str> = Vec::new();
        let Some(first) = rows.first() else { continue };
        policies.extend(rows.iter().filter(|row| row.load == first.load).map(|row| row.policy));
        for policy in policies {
            let _ = write!(text, "| {} | {policy} |", first.scenario);
            for load in &loads {
                let row = rows.iter().find(|row| row.policy == policy && row.load == *load);
                let _ = match row.map(|row| &row.figures) {
                    Some(Figures { ttft_ms, tokens_per_s, .. }) => {
                        let (p95, p99) = (ttft_ms.p95, ttft_ms.p99);
                        write!(text, " {p95:.0} / {p99:.0}, {tokens_per_s:.0} |")
                    }
                    None => write!(text, " |"),
                };
            }
            text.push('\n');
        }
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
    fn curves_have_a_cell_for_each_load() {
        let row = |scenario, load, policy| Row::of(scenario, policy, load, &[Figures::default()]);
        let mut rows = Vec::new();
        for load in [0.5, 1.0] {
            rows.extend([Name::RoundRobin, Name::Random].map(|policy| row("x", load, policy)));
        }
        rows.push(row("y", 1.0, Name::Random));
        let text = curves(&rows);
        assert_eq!(text.lines().count(), 2 + 2 + 1);
        assert!(text.starts_with("| scenario | policy | 0.5 | 1 |\n|---|---|---|---|\n"), "{text}");
        assert!(text.contains("| x | random | 0 / 0, 0 | 0 / 0, 0 |\n"), "{text}");
        assert!(text.contains("| y | random | | 0 / 0, 0 |\n"), "{text}");
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
