//! The picture of a run: processor time and latency of every carrier, as SVG. Pure.

use std::fmt::Write;

use anyhow::{Context, ensure};

use super::row::Row;
use super::{CARRIERS, LOADS};
use crate::svg::{DARK, LIGHT, Linear, Log, TEXT, axis, circle, label, rect};

/// Draws the rows.
///
/// # Errors
/// Not all of it was measured, or a row is no result: half a picture would be taken for a whole.
pub(super) fn draw(rows: &[Row]) -> anyhow::Result<String> {
    let mut panels = Vec::new();
    for load in LOADS.iter().filter(|load| !load.open) {
        let of_load: Vec<&Row> = rows.iter().filter(|row| row.is_of(*load)).collect();
        for carrier in CARRIERS {
            let measured = of_load.iter().any(|row| row.name == carrier);
            ensure!(measured, "not drawn: {carrier} was not measured at {load}");
        }
        let lines: anyhow::Result<Vec<Line>> = of_load.iter().map(|row| Line::of(row)).collect();
        let title = format!("{} streams x {} tokens/s", load.streams, load.rate);
        panels.push(Panel { title, lines: lines? });
    }
    Ok(svg(&panels))
}

struct Panel {
    title: String,
    lines: Vec<Line>,
}

/// One carrier.
struct Line {
    name: String,
    gateway: f64,
    path: f64,
    p50: f64,
    p99: f64,
}

impl Line {
    fn of(row: &Row) -> anyhow::Result<Self> {
        if let Some(why) = row.refused() {
            anyhow::bail!("not drawn: {why}");
        }
        let figures = &row.figures;
        let value = |spread: Option<crate::bench::spread::Spread>| {
            spread.map(|spread| spread.median).with_context(|| format!("not drawn: {}", row.name))
        };
        Ok(Self {
            name: row.name.to_string(),
            gateway: value(figures.gateway_cpu_us_per_token)?,
            path: value(figures.path_cpu_us_per_token)?,
            p50: value(figures.wire_latency_us.p50)?,
            p99: value(figures.wire_latency_us.p99)?,
        })
    }
}

fn svg(panels: &[Panel]) -> String {
    let heights: Vec<f64> =
        panels.iter().map(|panel| PANEL_EXTRA + LINE * panel.lines.len() as f64).collect();
    let height = TOP + heights.iter().sum::<f64>();
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>Processor time and latency of a token, by what carries it</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    let (left, right) = (CPU_LEFT, WIRE_LEFT);
    rect(&mut text, left, 14.0, 12.0, GATEWAY);
    label(&mut text, left + 18.0, 23.0, "start", "gateway CPU, us a token");
    rect(&mut text, left + 180.0, 14.0, 12.0, PATH);
    label(&mut text, left + 198.0, 23.0, "start", "path CPU above direct");
    circle(&mut text, right + 5.0, 19.0, true, GATEWAY);
    label(&mut text, right + 15.0, 23.0, "start", "wire latency p50");
    circle(&mut text, right + 150.0, 19.0, false, GATEWAY);
    label(&mut text, right + 160.0, 23.0, "start", "p99");

    // One scale each for all panels, so that they can be compared.
    let lines = || panels.iter().flat_map(|panel| &panel.lines);
    let cpu = Linear::upto(
        lines().map(|line| line.gateway.max(line.path)).fold(0.0, f64::max),
        CPU_WIDTH,
    );
    let wire = Log::around(lines().flat_map(|line| [line.p50, line.p99]), WIRE_WIDTH);
    let mut top = TOP;
    for (panel, height) in panels.iter().zip(heights) {
        panel.draw(&mut text, top, &cpu, &wire);
        top += height;
    }
    text.push_str("</svg>\n");
    text
}

impl Panel {
    fn draw(&self, text: &mut String, top: f64, cpu: &Linear, wire: &Log) {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            text,
            "<text x=\"12\" y=\"{}\" font-weight=\"bold\">{}</text>",
            top + 16.0,
            self.title
        );
        let (first, end) = (top + 28.0, top + 28.0 + LINE * self.lines.len() as f64);
        for (value, shown) in cpu.ticks() {
            axis(text, CPU_LEFT + cpu.at(value), first, end, &shown);
        }
        for (value, shown) in wire.ticks() {
            axis(text, WIRE_LEFT + wire.at(value), first, end, &shown);
        }
        for (number, line) in self.lines.iter().enumerate() {
            line.draw(text, first + LINE * number as f64, cpu, wire);
        }
    }
}

impl Line {
    fn draw(&self, text: &mut String, top: f64, cpu: &Linear, wire: &Log) {
        let middle = top + LINE / 2.0;
        label(text, CPU_LEFT - 8.0, middle + 4.0, "end", &self.name);
        for (value, above, color) in [(self.gateway, 3.0, GATEWAY), (self.path, 14.0, PATH)] {
            let width = cpu.at(value);
            rect(text, CPU_LEFT, top + above, width, color);
            let at = CPU_LEFT + width + 4.0;
            let shown = format!("{:.1}", value.max(0.0));
            let _ = writeln!(
                text,
                "<text x=\"{at:.1}\" y=\"{:.1}\" font-size=\"10\" fill=\"{TEXT}\">{shown}</text>",
                top + above + 9.0
            );
        }
        let [p50, p99] = [self.p50, self.p99].map(|value| WIRE_LEFT + wire.at(value));
        let _ = writeln!(
            text,
            "<line x1=\"{p50:.1}\" x2=\"{p99:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\" \
             stroke=\"{GATEWAY}\" stroke-width=\"2\"/>"
        );
        circle(text, p50, middle, true, GATEWAY);
        circle(text, p99, middle, false, GATEWAY);
    }
}

const WIDTH: f64 = 960.0;
/// Of the legend.
const TOP: f64 = 40.0;
/// Height of a carrier.
const LINE: f64 = 28.0;
/// Of a panel's title and of its axis.
const PANEL_EXTRA: f64 = 62.0;
const CPU_LEFT: f64 = 120.0;
const CPU_WIDTH: f64 = 360.0;
const WIRE_LEFT: f64 = 560.0;
const WIRE_WIDTH: f64 = 360.0;
const GATEWAY: &str = DARK;
const PATH: &str = LIGHT;

#[cfg(test)]
mod tests {
    use super::super::row::rows;
    use super::super::row::tests::{cell, sample};
    use super::*;

    #[test]
    fn only_a_whole_and_valid_run_is_drawn() {
        let whole = || {
            let mut cells = Vec::new();
            for load in LOADS.iter().filter(|load| !load.open) {
                for carrier in CARRIERS {
                    let mut cell = cell(carrier, vec![sample([1.0; 4], 5.0, 20.0)]);
                    cell.load = *load;
                    cells.push(cell);
                }
            }
            cells
        };
        let picture = draw(&rows(&whole())).unwrap();
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
        for carrier in CARRIERS {
            assert_eq!(picture.matches(&format!(">{carrier}<")).count(), 2, "{carrier}");
        }
        let mut some = whole();
        some.pop();
        assert!(draw(&rows(&some)).is_err());
        let mut wrong = whole();
        wrong[5].samples[0].refused = Some("carried by relay".to_owned());
        assert!(draw(&rows(&wrong)).is_err());
    }
}
