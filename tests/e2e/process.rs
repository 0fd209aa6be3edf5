//! Programs that run beside the checks. Each leads a process group of its own, so that what it
//! starts ends with it, and none outlives the checks: not after a failure, a signal, or a kill of
//! the checks themselves.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};

/// A running program.
#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts a program; what it says goes into `log`.
    pub(crate) fn start(name: &str, command: &Command, log: &Path) -> Self {
        let out = File::create(log).expect("the folder of the logs is writable");
        let err = out.try_clone().expect("a file can be opened twice");
        // The kernel ends it if the checks are killed and cannot.
        let mut guarded = Command::new("setpriv");
        guarded.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program());
        guarded.args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => guarded.env(key, value),
                None => guarded.env_remove(key),
            };
        }
        let mut groups = groups();
        let child = guarded
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .expect("setpriv starts");
        groups.push(child.id());
        Self { name: name.into(), child, log: log.into() }
    }

    /// The id of the first process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has. What it has left behind is ended then.
    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().expect("a child can be waited for")?;
        self.end();
        Some(status)
    }

    /// Sends a signal to the first process alone.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(pid(self.pid()), signal).expect("the program runs");
    }

    /// Its processes: id and command line.
    pub(crate) fn members(&self) -> Vec<(u32, String)> {
        members(self.pid())
    }

    /// Ends it and all that it started.
    pub(crate) fn end(&mut self) {
        let mut groups = groups();
        let Some(at) = groups.iter().position(|group| *group == self.pid()) else { return };
        let left = end_groups(&[groups.swap_remove(at)]);
        let _ = self.child.wait();
        assert!(left.is_empty(), "{} left processes: {left:?}", self.name);
    }

    /// All that it has said.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The last lines that it has said.
    pub(crate) fn last_words(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<_> = log.lines().collect();
        all.get(all.len().saturating_sub(lines)..).unwrap_or_default().join("\n")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.end();
    }
}

/// Has a signal that ends the checks end every program first.
pub(crate) fn end_all_on_signals() {
    // With the task that started the checks, they end too.
    let _ = set_pdeathsig(Signal::SIGTERM);
    thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime for signals").block_on(async {
            let listen = |kind| signal(kind).expect("signals can be handled");
            let mut interrupt = listen(SignalKind::interrupt());
            let mut terminate = listen(SignalKind::terminate());
            let mut hangup = listen(SignalKind::hangup());
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
        });
        // Held to the end: nothing is started any more.
        let groups = groups();
        end_groups(&groups);
        eprintln!("e2e: interrupted; {} programs ended", groups.len());
        std::process::exit(130);
    });
}

/// Ends what still runs; tells what would not end, though nothing survives that for long.
pub(crate) fn end_all() -> Result<String, String> {
    let groups = std::mem::take(&mut *groups());
    let left = end_groups(&groups);
    if left.is_empty() { Ok("no process is left".into()) } else { Err(format!("{left:?}")) }
}

/// Ends whole groups; returns what is left.
fn end_groups(groups: &[u32]) -> Vec<(u32, String)> {
    let all = || groups.iter().flat_map(|group| members(*group));
    // Python's tracker removes the shared memory of those that it sees end, and then ends too.
    for (id, line) in all() {
        if !line.contains("resource_tracker") {
            let _ = kill(pid(id), Signal::SIGKILL);
        }
    }
    wait_until(Duration::from_secs(5), || all().next().is_none());
    for group in groups {
        let _ = killpg(pid(*group), Signal::SIGKILL);
    }
    wait_until(Duration::from_secs(5), || all().next().is_none());
    all().collect()
}

fn wait_until(within: Duration, is: impl Fn() -> bool) {
    let deadline = Instant::now() + within;
    while !is() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(50));
    }
}

fn members(group: u32) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        // Behind the name, which may hold anything: state, parent, group.
        let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').collect::<Vec<_>>());
        let Some([state, _, own, ..]) = fields.as_deref() else { continue };
        if own.parse() == Ok(group) && *state != "Z" {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            found.push((id, line.trim().to_owned()));
        }
    }
    found
}

fn pid(id: u32) -> Pid {
    Pid::from_raw(id.try_into().expect("process ids are small"))
}

fn groups() -> std::sync::MutexGuard<'static, Vec<u32>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The groups that were started and not ended yet.
static GROUPS: Mutex<Vec<u32>> = Mutex::new(Vec::new());
