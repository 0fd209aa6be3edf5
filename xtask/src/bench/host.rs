//! The machine and the versions, as a reader of the numbers must know them.

use std::fmt;
use std::fs;
use std::process::Command;

use serde::Serialize;

use crate::shell;

/// What the numbers belong to.
#[derive(Serialize)]
pub(super) struct Host {
    date: String,
    processor: String,
    processors: usize,
    kernel: String,
    haproxy: String,
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
            haproxy: shell::find("haproxy")
                .map(|haproxy| said(Command::new(haproxy).arg("-v")))
                .unwrap_or_default(),
            commit: said(Command::new("git").current_dir(shell::root()).args(git)),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { date, processor, processors, kernel, haproxy, commit } = self;
        writeln!(f, "{date}, {processors} x {processor}, Linux {kernel}, commit {commit}")?;
        write!(f, "{haproxy}")
    }
}

/// The first line that a program prints.
fn said(command: &mut Command) -> String {
    let output = shell::output(command).unwrap_or_default();
    output.lines().next().unwrap_or_default().to_owned()
}
