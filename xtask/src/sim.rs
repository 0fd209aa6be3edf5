//! Every scheduling policy under every scenario, simulated.
//!
//! The simulation itself is the program `sim` (`tests/sim`).

mod plot;
mod real;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use clap::Args;

use crate::shell;

/// What to simulate.
#[derive(Args)]
pub(crate) struct Options {
    /// Scenarios whose names begin so [default: all].
    #[arg(long, value_delimiter = ',')]
    scenario: Vec<String>,
    /// Policies whose names begin so [default: all].
    #[arg(long, value_delimiter = ',')]
    policy: Vec<String>,
    /// Seeds; each figure is the median over them [default: 5, or 9 with --full].
    #[arg(long)]
    seeds: Option<u64>,
    /// Loads, in loads of the scenario [default: 1].
    #[arg(long, value_delimiter = ',')]
    loads: Vec<f64>,
    /// More seeds, and every scenario at eight loads: minutes.
    #[arg(long)]
    full: bool,
    /// So many gateways, whatever the scenario says.
    #[arg(long)]
    gateways: Option<u32>,
    /// So many times the pods and the requests.
    #[arg(long)]
    times: Option<u32>,
    /// Print JSON, an array of rows, and no table.
    #[arg(long)]
    json: bool,
    /// Put the tables into docs/scheduling.md and draw docs/images/sim-policies.svg; then sweep the loads, for
    /// the table by load and docs/images/sim-loads.svg.
    #[arg(long)]
    plot: bool,
    /// Run a few small scenarios with real gateways in real time, and simulate the same ones: minutes.
    #[arg(long, conflicts_with_all = ["seeds", "loads", "full", "gateways", "times", "plot"])]
    real: bool,
    /// With --real, how long requests come in each scenario [default: 90].
    #[arg(long, requires = "real")]
    seconds: Option<f64>,
}

/// Builds the simulator and runs it.
///
/// # Errors
/// It cannot be built, or nothing has such a name.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if options.real {
        return real::run(options);
    }
    let mut cargo = shell::cargo();
    // A debug build takes twenty times as long.
    cargo.args(["build", "--quiet", "--release", "-p", "sluice-tests", "--bin", "sim"]);
    shell::run(&mut cargo)?;
    let mut sim = command(options);
    if !options.plot {
        return shell::run(&mut sim);
    }
    let [rows, tables, swept, curves] =
        ["sim-rows.json", "sim-tables.md", "sim-swept.json", "sim-curves.md"]
            .map(|name| shell::target().join(name));
    shell::run(sim.arg("--rows").arg(&rows).arg("--markdown").arg(&tables))?;
    let mut sweep = Command::new(shell::target().join("release/sim"));
    shell::run(sweep.args(SWEEP).arg("--rows").arg(&swept).arg("--curves").arg(&curves))?;
    let page = shell::root().join("docs/scheduling.md");
    let text = with_part(&read(&page)?, CURVES_MARK, Some(CURVES_END), &read(&curves)?)?;
    fs::write(&page, with_part(&text, MARK, None, &read(&tables)?)?)?;
    let folder = shell::root().join("docs/images");
    fs::create_dir_all(&folder)?;
    let rows: Vec<plot::Row> = serde_json::from_str(&read(&rows)?)?;
    let swept: Vec<plot::Row> = serde_json::from_str(&read(&swept)?)?;
    let pictures =
        [("sim-policies.svg", Some(plot::policies(&rows))), ("sim-loads.svg", plot::loads(&swept))];
    for (name, picture) in pictures {
        let Some(picture) = picture else { continue };
        fs::write(folder.join(name), picture)?;
        shell::progress(format_args!("drew docs/images/{name}"));
    }
    Ok(())
}

fn read(file: &Path) -> anyhow::Result<String> {
    fs::read_to_string(file).with_context(|| format!("read {}", file.display()))
}

/// The page with `text` in place of what is behind `mark`, as far as `end` or the page's end.
fn with_part(page: &str, mark: &str, end: Option<&str>, text: &str) -> anyhow::Result<String> {
    let lost = || format!("docs/scheduling.md has lost a mark: {mark}");
    let (before, behind) = page.split_once(mark).with_context(lost)?;
    let rest = match end {
        Some(end) => {
            let (_, rest) = behind.split_once(end).with_context(lost)?;
            format!("\n{end}{rest}")
        }
        None => String::new(),
    };
    Ok(format!("{before}{mark}\n\n{text}{rest}"))
}

/// What is swept for the page: the loads of every scenario with one gateway, under the policies that matter.
const SWEEP: [&str; 8] = [
    "--loads",
    "0.5,0.75,1,1.25,1.5",
    "--seeds",
    "3",
    "--scenario",
    "a-,b-,c-,d-,e-,f-,g-",
    "--policy",
    "round,reference,prefill,sluice-l",
];

/// Behind these the page is written by this task.
const MARK: &str = "<!-- What follows is written by cargo xtask sim --plot. -->";
const CURVES_MARK: &str = "<!-- TTFT by load, written by cargo xtask sim --plot. -->";
const CURVES_END: &str = "<!-- End of TTFT by load. -->";

fn command(options: &Options) -> Command {
    let mut sim = Command::new(shell::target().join("release/sim"));
    let loads: Vec<String> = options.loads.iter().map(f64::to_string).collect();
    for (name, values) in
        [("--scenario", &options.scenario), ("--policy", &options.policy), ("--loads", &loads)]
    {
        if !values.is_empty() {
            sim.arg(name).arg(values.join(","));
        }
    }
    let counts = [
        ("--seeds", options.seeds),
        ("--gateways", options.gateways.map(u64::from)),
        ("--times", options.times.map(u64::from)),
    ];
    for (name, count) in counts {
        if let Some(count) = count {
            sim.arg(name).arg(count.to_string());
        }
    }
    sim.args(options.full.then_some("--full")).args(options.json.then_some("--json"));
    sim
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_replaced_and_the_page_is_kept() {
        let page = format!("# Page\n\n{CURVES_MARK}\nold\n{CURVES_END}\n\n{MARK}\n\nold\n");
        let page = with_part(&page, CURVES_MARK, Some(CURVES_END), "curves\n").unwrap();
        let page = with_part(&page, MARK, None, "new\n").unwrap();
        let expected =
            format!("# Page\n\n{CURVES_MARK}\n\ncurves\n\n{CURVES_END}\n\n{MARK}\n\nnew\n");
        assert_eq!(page, expected);
        assert!(with_part("# Page", MARK, None, "new").is_err());
    }

    #[test]
    fn options_are_passed_on() {
        let options = Options {
            scenario: vec!["a".into(), "b".into()],
            policy: Vec::new(),
            seeds: Some(3),
            loads: vec![0.5, 1.0],
            full: true,
            gateways: None,
            times: Some(4),
            json: false,
            plot: true,
            real: false,
            seconds: None,
        };
        let line = shell::line(&command(&options));
        assert_eq!(line, "sim --scenario a,b --loads 0.5,1 --seeds 3 --times 4 --full");
    }
}
