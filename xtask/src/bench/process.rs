//! A program that runs while something is measured, on a processor of its choice.
//!
//! It ends with the value that stands for it, and the kernel ends it should this process be killed:
//! nothing is left behind, whatever the way out.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::shell;

/// A running program.
pub(super) struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Process {
    /// Starts it on that processor; what it says goes to the log file.
    ///
    /// # Errors
    /// It could not be started.
    pub(super) fn start(
        command: &mut Command,
        processor: usize,
        log: PathBuf,
    ) -> anyhow::Result<Self> {
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        Self::spawn(command, processor, log)
    }

    /// Runs it to its end on that processor and returns what it printed.
    ///
    /// # Errors
    /// It failed; the end of its log is in the message.
    pub(super) fn output(
        command: &mut Command,
        processor: usize,
        log: PathBuf,
    ) -> anyhow::Result<String> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log)?);
        let mut process = Self::spawn(command, processor, log)?;
        let mut printed = String::new();
        if let Some(mut stdout) = process.child.stdout.take() {
            stdout.read_to_string(&mut printed)?;
        }
        let status = process.child.wait()?;
        ensure!(status.success(), "{}: {status}: {}", process.name, process.said());
        Ok(printed)
    }

    fn spawn(command: &mut Command, processor: usize, log: PathBuf) -> anyhow::Result<Self> {
        let name = shell::line(command);
        let mut set = CpuSet::new();
        set.set(processor)?;
        let prepare = move || {
            set_pdeathsig(Signal::SIGKILL)?;
            sched_setaffinity(Pid::from_raw(0), &set)?;
            Ok(())
        };
        // SAFETY: between fork and exec it makes two system calls, and allocates nothing.
        unsafe { command.pre_exec(prepare) };
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        Ok(Self { child, name, log })
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Checks that it still runs.
    ///
    /// # Errors
    /// It has ended; the end of its log is in the message.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended by itself: {status}: {}", self.name, self.said());
        }
        Ok(())
    }

    fn said(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines.len().saturating_sub(LOG_LINES);
        lines.get(last..).unwrap_or_default().join("\n")
    }

    fn end(&mut self) -> anyhow::Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        kill(Pid::from_raw(self.child.id().try_into()?), Signal::SIGTERM)?;
        let asked = Instant::now();
        while asked.elapsed() < PATIENCE {
            if self.child.try_wait()?.is_some() {
                return Ok(());
            }
            sleep(Duration::from_millis(10));
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            shell::progress(format_args!("end {}: {error:#}", self.name));
        }
    }
}

/// A program that was asked to end and did not is killed after this.
const PATIENCE: Duration = Duration::from_secs(3);
/// Lines of a log that a message shows.
const LOG_LINES: usize = 8;
