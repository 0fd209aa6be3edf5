//! Pictures of a simulation: TTFT under every policy, and how it grows with the load. Pure.

use std::fmt::Write;

use serde::Deserialize;

use crate::svg::{DARK, LIGHT, Log, TEXT, axis, circle, label};

/// What is drawn of a row.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Row {
    scenario: String,
    policy: String,
    load: f64,
    ttft_ms: Quantiles,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Quantiles {
    p50: f64,
    p99: f64,
}

/// TTFT of every policy, a panel a scenario, from the median to the 99th percentile, at the load that is
/// nearest to the scenario's own.
pub(super) fn policies(rows: &[Row]) -> String {
    let panels: Vec<Vec<&Row>> = scenarios(rows)
        .into_iter()
        .map(|rows| {
            let off = |row: &&Row| (row.load - 1.0).abs();
            let nearest = rows.iter().map(off).fold(f64::INFINITY, f64::min);
            rows.into_iter().filter(|row| off(row) <= nearest).collect()
        })
        .collect();
    let heights = panels.iter().map(|rows| PANEL_EXTRA + LINE * rows.len() as f64);
    let mut text = begin(TOP + heights.sum::<f64>(), "TTFT, from the median (dot) to p99 (ring)");
    let scale = scale(panels.iter().flatten().copied());
    let mut top = TOP;
    for rows in &panels {
        title(&mut text, top, rows);
        let (first, end) = (top + 26.0, top + 26.0 + LINE * rows.len() as f64);
        for (value, shown) in scale.ticks() {
            axis(&mut text, LEFT + scale.at(value), first, end, &shown);
        }
        for (number, row) in rows.iter().enumerate() {
            let middle = first + LINE * (number as f64 + 0.5);
            let color = if row.policy.starts_with("sluice") { DARK } else { OTHERS };
            label(&mut text, LEFT - 8.0, middle + 4.0, "end", &row.policy);
            let [p50, p99] = [row.ttft_ms.p50, row.ttft_ms.p99].map(|ms| LEFT + scale.at(ms * 1e3));
            let _ = writeln!(
                text,
                "<line x1=\"{p50:.1}\" x2=\"{p99:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\" \
                 stroke=\"{color}\" stroke-width=\"2\"/>"
            );
            circle(&mut text, p50, middle, true, color);
            circle(&mut text, p99, middle, false, color);
        }
        top = end + PANEL_EXTRA - 26.0;
    }
    text.push_str("</svg>\n");
    text
}

/// The 99th percentile of TTFT by load, a panel a scenario, a line a policy. `None` of one load only.
pub(super) fn loads(rows: &[Row]) -> Option<String> {
    let mut panels = scenarios(rows);
    panels.retain(|rows| rows.windows(2).any(|pair| matches!(pair, [a, b] if a.load != b.load)));
    if panels.is_empty() {
        return None;
    }
    let height = TOP + LEGEND + panels.len() as f64 * (CURVES + PANEL_EXTRA);
    let mut text = begin(height, "TTFT p99 by load, in loads of the scenario");
    let mut top = TOP;
    for (number, (policy, color)) in COLOURS.iter().enumerate() {
        let (x, y) = (12.0 + 230.0 * (number % 4) as f64, top + 16.0 * (number / 4) as f64);
        circle(&mut text, x + 5.0, y, true, color);
        label(&mut text, x + 14.0, y + 4.0, "start", policy);
    }
    top += LEGEND;
    for rows in &panels {
        title(&mut text, top, rows);
        curves(&mut text, top + 26.0, rows);
        top += CURVES + PANEL_EXTRA;
    }
    text.push_str("</svg>\n");
    Some(text)
}

fn curves(text: &mut String, top: f64, rows: &[&Row]) {
    let most = rows.iter().map(|row| row.load).fold(0.0, f64::max);
    let scale = Log::around(rows.iter().map(|row| row.ttft_ms.p99 * 1e3), CURVES);
    let across = |load: f64| LEFT + load / most * WIDE;
    let down = |ms: f64| top + CURVES - scale.at(ms * 1e3);
    for (value, shown) in scale.ticks() {
        let y = top + CURVES - scale.at(value);
        let _ = writeln!(
            text,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>",
            LEFT + WIDE
        );
        label(text, LEFT - 8.0, y + 4.0, "end", &shown);
    }
    let mut loads: Vec<f64> = rows.iter().map(|row| row.load).collect();
    loads.sort_by(f64::total_cmp);
    loads.dedup();
    for load in loads {
        axis(text, across(load), top, top + CURVES, &load.to_string());
    }
    for (policy, color) in COLOURS {
        let of_policy = || rows.iter().filter(|row| row.policy == policy);
        let points: Vec<String> = of_policy()
            .map(|row| format!("{:.1},{:.1}", across(row.load), down(row.ttft_ms.p99)))
            .collect();
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>",
            points.join(" ")
        );
        for row in of_policy() {
            circle(text, across(row.load), down(row.ttft_ms.p99), true, color);
        }
    }
}

/// The rows of each scenario, in the order in which these came.
fn scenarios(rows: &[Row]) -> Vec<Vec<&Row>> {
    let alike = rows.chunk_by(|one, next| one.scenario == next.scenario);
    alike.map(|rows| rows.iter().collect()).collect()
}

fn scale<'a>(rows: impl Iterator<Item = &'a Row>) -> Log {
    let ends = rows.flat_map(|row| [row.ttft_ms.p50, row.ttft_ms.p99]);
    Log::around(ends.map(|ms| ms * 1e3), WIDE)
}

fn begin(height: f64, what: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<title>{what}</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"12\" y=\"22\" fill=\"{TEXT}\">{what}</text>\n"
    )
}

fn title(text: &mut String, top: f64, rows: &[&Row]) {
    let name = rows.first().map_or("", |row| row.scenario.as_str());
    let y = top + 16.0;
    let _ = writeln!(text, "<text x=\"12\" y=\"{y}\" font-weight=\"bold\">{name}</text>");
}

const WIDTH: f64 = 960.0;
/// Of the picture's title.
const TOP: f64 = 44.0;
/// Of the names of policies.
const LEGEND: f64 = 36.0;
/// Height of a policy.
const LINE: f64 = 18.0;
/// Of a panel's title and of its axis.
const PANEL_EXTRA: f64 = 56.0;
/// Height of a panel's curves.
const CURVES: f64 = 180.0;
const LEFT: f64 = 160.0;
const WIDE: f64 = 760.0;
const OTHERS: &str = "#b0762f";

const COLOURS: [(&str, &str); 8] = [
    ("round-robin", "#b02f2f"),
    ("random", "#d9a0a0"),
    ("least-request", "#b0762f"),
    ("power-of-two", "#e0c080"),
    ("reference-default", "#6b4fa0"),
    ("prefill-batch-product", "#4f9a5a"),
    ("sluice-latency", DARK),
    ("sluice-throughput", LIGHT),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn row(scenario: &str, policy: &str, load: f64) -> Row {
        let ttft_ms = Quantiles { p50: 80.0, p99: 900.0 };
        Row { scenario: scenario.into(), policy: policy.into(), load, ttft_ms }
    }

    #[test]
    fn every_policy_of_every_scenario_is_drawn_once() {
        let mut rows = Vec::new();
        for scenario in ["a", "b"] {
            for load in [0.5, 1.0] {
                rows.extend(COLOURS.map(|(policy, _)| row(scenario, policy, load)));
            }
        }
        let picture = policies(&rows);
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
        for (policy, _) in COLOURS {
            assert_eq!(picture.matches(&format!(">{policy}<")).count(), 2, "{policy}");
        }
        let picture = loads(&rows).unwrap();
        assert_eq!(picture.matches("<polyline ").count(), 2 * COLOURS.len());
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    }

    #[test]
    fn one_load_is_no_curve() {
        assert!(loads(&[row("a", "random", 1.0), row("b", "random", 2.0)]).is_none());
    }
}
