//! A program that a task starts: a gateway, pods, a load generator.
//!
//! It ends with the value that stands for it, and the kernel ends it should this process be killed:
//! nothing is left behind, whatever the way out.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, getpid, getppid};

use crate::shell;

/// A running program.
pub(crate) struct Process {
    child: Child,
    name: String,
    log: PathBuf,
    /// Held open: a program that writes to a closed pipe may end.
    stdout: Option<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts it, on that processor only if one is named; what it says goes to the log file.
    ///
    /// # Errors
    /// It could not be started.
    pub(crate) fn start(
        command: &mut Command,
        processor: Option<usize>,
        log: PathBuf,
    ) -> anyhow::Result<Self> {
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        command.stdout(file.try_clone()?).stderr(file);
        Self::spawn(command, processor, log)
    }

    /// The same, but what it prints on stdout is for [`Self::line`].
    ///
    /// # Errors
    /// As [`Self::start`].
    pub(crate) fn printing(
        command: &mut Command,
        processor: Option<usize>,
        log: PathBuf,
    ) -> anyhow::Result<Self> {
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        command.stdout(Stdio::piped()).stderr(file);
        Self::spawn(command, processor, log)
    }

    /// Runs it to its end and returns what it printed on stdout.
    ///
    /// # Errors
    /// It failed; the end of its log is in the message.
    pub(crate) fn output(
        command: &mut Command,
        processor: Option<usize>,
        log: PathBuf,
    ) -> anyhow::Result<String> {
        let mut process = Self::printing(command, processor, log)?;
        let mut printed = String::new();
        if let Some(stdout) = &mut process.stdout {
            stdout.read_to_string(&mut printed)?;
        }
        let status = process.child.wait()?;
        ensure!(status.success(), "{}: {status}: {}", process.name, process.said());
        Ok(printed)
    }

    fn spawn(
        command: &mut Command,
        processor: Option<usize>,
        log: PathBuf,
    ) -> anyhow::Result<Self> {
        let name = shell::line(command);
        let set = processor.map(only).transpose()?;
        // Ctrl-C is for this process, which ends the others in order.
        command.stdin(Stdio::null()).process_group(0);
        let parent = getpid();
        let prepare = move || {
            set_pdeathsig(Signal::SIGKILL)?;
            // The parent may take its signals on a thread of its own; the program takes them as usual.
            SigSet::empty().thread_set_mask()?;
            if let Some(set) = &set {
                sched_setaffinity(Pid::from_raw(0), set)?;
            }
            // The parent may have gone before the kernel knew whom to tell.
            if getppid() == parent { Ok(()) } else { Err(Errno::ESRCH.into()) }
        };
        // SAFETY: between fork and exec it makes a few system calls, and allocates nothing.
        unsafe { command.pre_exec(prepare) };
        let mut child = command.spawn().with_context(|| format!("start {name}"))?;
        let stdout = child.stdout.take().map(BufReader::new);
        Ok(Self { child, name, log, stdout })
    }

    /// The next line that it prints.
    ///
    /// # Errors
    /// It ended instead; the end of its log is in the message.
    pub(crate) fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        if let Some(stdout) = &mut self.stdout {
            stdout.read_line(&mut line)?;
        }
        if line.is_empty() {
            let status = self.child.wait()?;
            bail!("{} ended: {status}: {}", self.name, self.said());
        }
        Ok(line.trim_end().to_owned())
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Checks that it still runs.
    ///
    /// # Errors
    /// It has ended; the end of its log is in the message.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
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

fn only(processor: usize) -> nix::Result<CpuSet> {
    let mut set = CpuSet::new();
    set.set(processor)?;
    Ok(set)
}

/// A program that was asked to end and did not is killed after this.
const PATIENCE: Duration = Duration::from_secs(3);
/// Lines of a log that a message shows.
const LOG_LINES: usize = 8;
