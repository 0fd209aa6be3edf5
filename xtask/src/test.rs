//! All tests in one command, and first what they need: a Python with the OpenAI SDK that clients
//! use, and Prometheus' own checker of metric pages.
//!
//! Some tests need root (network namespaces, kernel programs). Each of those notes in the file
//! that [`PRIVILEGED`] names whether it ran, as `ran NAME` or `skipped NAME: reason`: cargo hides
//! the output of a test that passed, and a test that silently did nothing must not count.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fmt, fs};

use anyhow::{Context, ensure};
use clap::Args;

use crate::shell;

/// Which tests.
#[derive(Args, Default)]
pub(crate) struct Options {
    /// Fail if a test that needs root was skipped. Set in CI.
    #[arg(long, env = "CI", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) require_privileged: bool,
    /// Passed on to `cargo test` in place of `--workspace`.
    #[arg(last = true)]
    pub(crate) cargo_args: Vec<String>,
}

/// What the test programs said.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
    /// Of those that passed or failed, the ones that used root's rights.
    pub(crate) privileged: usize,
    /// Tests that needed root's rights and had none.
    pub(crate) skipped: usize,
    /// What the failed ones said, and their names.
    pub(crate) failures: Vec<String>,
    /// The lines that come are about them.
    in_failures: bool,
}

/// Runs the tests.
///
/// # Errors
/// A need cannot be met, or a test failed.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let (totals, result) = execute(options);
    println!("{totals}");
    result
}

/// Runs the tests; the totals hold for what ran even if the result is a failure.
pub(crate) fn execute(options: &Options) -> (Totals, anyhow::Result<()>) {
    let mut totals = Totals::default();
    let result = prepare().and_then(|python| test(options, &python, &mut totals));
    (totals, result)
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, ignored, privileged, skipped, .. } = self;
        write!(
            f,
            "tests: {passed} passed, {failed} failed, {ignored} ignored; \
             privileged: {privileged} ran, {skipped} skipped"
        )
    }
}

/// Installs what the tests need; returns the Python that has the SDK.
fn prepare() -> anyhow::Result<PathBuf> {
    shell::ensure_program("promtool", "prometheus")?;
    shell::ensure_program("ip", "iproute2")?;
    python()
}

/// A Python with exactly the packages of `requirements.txt`.
fn python() -> anyhow::Result<PathBuf> {
    let requirements = shell::root().join("xtask/requirements.txt");
    environment(&shell::target().join("test-python"), &requirements)
}

/// A virtual environment with exactly the packages that a file lists, made once; returns its interpreter.
///
/// # Errors
/// Python is missing and cannot be installed, or a package cannot be had.
pub(crate) fn environment(folder: &Path, requirements: &Path) -> anyhow::Result<PathBuf> {
    let wanted =
        fs::read_to_string(requirements).with_context(|| requirements.display().to_string())?;
    let python = folder.join("bin/python");
    let stamp = folder.join("requirements.txt");
    if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(python);
    }
    shell::progress(format_args!("make the Python environment {}", folder.display()));
    shell::ensure_program("python3", "python3")?;
    let has_venv = Command::new("python3").args(["-c", "import ensurepip"]).output()?;
    if !has_venv.status.success() {
        shell::install("python3-venv")?;
    }
    shell::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))?;
    shell::run(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"])
            .arg(requirements),
    )?;
    // Last, so that an installation that broke off is not taken for a whole one.
    fs::write(&stamp, wanted)?;
    Ok(python)
}

fn test(options: &Options, python: &Path, totals: &mut Totals) -> anyhow::Result<()> {
    // Behaviour tests start the real programs, which `cargo test` alone does not build.
    shell::run(shell::cargo().args(["build", "--workspace", "--bins"]))?;
    let log = shell::target().join("privileged-tests.log");
    fs::write(&log, "")?;
    let mut command = shell::cargo();
    command.args(["test", "--no-fail-fast"]);
    if options.cargo_args.is_empty() {
        command.arg("--workspace");
    }
    command.args(&options.cargo_args).env(PYTHON, python).env(PRIVILEGED, &log);
    if !options.require_privileged && !nix::unistd::geteuid().is_root() {
        command.env(UNPRIVILEGED, "1");
    }
    let line = shell::line(&command);
    shell::progress(&line);
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| line.clone())?;
    let stdout = child.stdout.take().context("no pipe to cargo")?;
    for said in BufReader::new(stdout).lines() {
        let said = said?;
        println!("{said}");
        totals.add_line(&said);
    }
    let status = child.wait()?;
    totals.add_privileged(&fs::read_to_string(&log)?);
    ensure!(status.success(), "{line}: {status}");
    ensure!(
        totals.skipped == 0 || !options.require_privileged,
        "{} tests need root's rights and were skipped",
        totals.skipped
    );
    Ok(())
}

impl Totals {
    /// Adds a line of a test program: what it says of failed tests, and the counts at its end.
    fn add_line(&mut self, line: &str) {
        let counts = line.strip_prefix("test result: ");
        self.in_failures = counts.is_none() && (self.in_failures || line == "failures:");
        if self.in_failures && !line.is_empty() {
            self.failures.push(line.to_owned());
        }
        let Some(counts) = counts else { return };
        for count in counts.split(['.', ';']) {
            let Some((number, what)) = count.trim().split_once(' ') else { continue };
            let number = number.parse().unwrap_or(0);
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }

    /// Adds what the privileged tests noted, and shows why some were skipped.
    fn add_privileged(&mut self, log: &str) {
        for line in log.lines() {
            match line.split_once(' ') {
                Some(("ran", _)) => self.privileged += 1,
                Some(("skipped", why)) => {
                    self.skipped += 1;
                    shell::progress(format_args!("skipped {why}"));
                }
                _ => {}
            }
        }
    }
}

/// Tells the tests which Python has the SDK.
const PYTHON: &str = "SLUICE_TEST_PYTHON";
/// Tells the tests where to note that a privileged test ran.
const PRIVILEGED: &str = "SLUICE_TEST_PRIVILEGED_LOG";
/// Lets the tests that need root be skipped, not fail.
const UNPRIVILEGED: &str = "SLUICE_UNPRIVILEGED";

#[cfg(test)]
mod tests {
    use super::Totals;

    #[test]
    fn sums_the_summaries_of_several_programs() {
        let mut totals = Totals::default();
        for line in [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s",
            "test framing::splits ... FAILED",
            "",
            "failures:",
            "",
            "---- framing::splits stdout ----",
            "left: 1",
            "",
            "failures:",
            "    framing::splits",
            "",
            "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.52s",
            "running 1 test",
        ] {
            totals.add_line(line);
        }
        let failures = [
            "failures:",
            "---- framing::splits stdout ----",
            "left: 1",
            "failures:",
            "    framing::splits",
        ];
        let failures = failures.map(str::to_owned).to_vec();
        let expected = Totals { passed: 4, failed: 2, ignored: 1, failures, ..Totals::default() };
        assert_eq!(totals, expected);
    }

    #[test]
    fn counts_privileged_tests_by_what_they_noted() {
        let mut totals = Totals::default();
        totals.add_privileged("ran steer::moves\nskipped local::pairs: no CAP_BPF\nran netns\n");
        assert_eq!(totals, Totals { privileged: 2, skipped: 1, ..Totals::default() });
    }
}
