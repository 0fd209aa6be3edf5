//! The machine and the versions, as a reader of the numbers must know them.

use std::fmt;
use std::fs;
use std::process::Command;

use serde::Serialize;

use super::peers;
use crate::shell;

/// What the numbers belong to.
#[derive(Serialize)]
pub(super) struct Host {
    date: String,
    processor: String,
    processors: usize,
    kernel: String,
    haproxy: String,
    nginx: String,
    /// Gateways from PyPI.
    peers: &'static [&'static str],
    commit: String,
}

impl Host {
    /// This machine, now.
    pub(super) fn read() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let models: Vec<&str> = cpuinfo
            .lines()
            .filter_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map(|(_, model)| model)
            .collect();
        let git = ["describe", "--always", "--dirty"];
        Self {
            date: said(Command::new("date").args(["-u", "+%F"])),
            processor: models.first().copied().unwrap_or("unknown").to_owned(),
            processors: models.len(),
            kernel: said(Command::new("uname").arg("-r")),
            haproxy: version("haproxy"),
            nginx: version("nginx"),
            peers: peers::versions(),
            commit: said(Command::new("git").current_dir(shell::root()).args(git)),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { date, processor, processors, kernel, haproxy, nginx, peers, commit } = self;
        writeln!(f, "{date}, {processors} x {processor}, Linux {kernel}, commit {commit}")?;
        let versions = [haproxy.as_str(), nginx].into_iter().chain(peers.iter().copied());
        let versions = versions.filter(|version| !version.is_empty());
        write!(f, "{}", versions.collect::<Vec<_>>().join("; "))
    }
}

/// What a program says of itself, wherever it says it; nothing if it is not installed.
fn version(program: &str) -> String {
    let Some(file) = shell::find(program) else { return String::new() };
    let Ok(output) = Command::new(file).arg("-v").output() else { return String::new() };
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    said.lines().next().unwrap_or_default().to_owned()
}

/// The first line that a program prints.
fn said(command: &mut Command) -> String {
    let output = shell::output(command).unwrap_or_default();
    output.lines().next().unwrap_or_default().to_owned()
}
