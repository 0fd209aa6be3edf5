//! A network namespace for one test: its own loopback, addresses and ports, gone when the test
//! ends.
//!
//! Needs root. Without it the test fails, unless `SLUICE_UNPRIVILEGED=1` says that this is known;
//! then it is noted as skipped, on stderr and in the file that `SLUICE_TEST_PRIVILEGED_LOG` names.

#![allow(clippy::panic, reason = "a test that cannot be set up has failed")]

use std::io::Write as _;
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use std::{env, fs, io, panic, thread};

use nix::sched::{CloneFlags, unshare};

use crate::tun::Tun;

/// Runs `test` in a network namespace of its own, where every address of `blocks` is local.
///
/// The namespace is the thread's: what `test` spawns inherits it, what ran before stays outside.
///
/// # Panics
/// The test panicked, or this process may not make namespaces.
pub fn run(blocks: &[&str], test: impl FnOnce() + Send + 'static) {
    let name = thread::current().name().unwrap_or("a test").to_owned();
    if let Some(lacks) = lacks_privileges() {
        assert!(
            env::var_os("SLUICE_UNPRIVILEGED").is_some_and(|v| v == "1"),
            "{name} needs root ({lacks}); SLUICE_UNPRIVILEGED=1 leaves it out"
        );
        note(&format!("skipped {name}: {lacks}"));
        return;
    }
    let blocks: Vec<String> = blocks.iter().map(|block| (*block).to_owned()).collect();
    let thread = thread::Builder::new().name(name.clone()).spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap_or_else(|error| panic!("unshare: {error}"));
        ip(&["link", "set", "lo", "up"]);
        for block in &blocks {
            ip(&["route", "add", "local", block, "dev", "lo"]);
        }
        test();
    });
    match thread.unwrap_or_else(|error| panic!("no thread: {error}")).join() {
        Ok(()) => note(&format!("ran {name}")),
        Err(failed) => panic::resume_unwind(failed),
    }
}

/// A second namespace, joined to that of the thread that made it: by a cable, with `10.8.0.1` and
/// `fd08::1` here, `10.8.0.2` and `fd08::2` there, or by a long line.
#[derive(Debug)]
pub struct Neighbour {
    jobs: Sender<Box<dyn FnOnce() + Send>>,
}

impl Neighbour {
    /// Makes it; within [`run`].
    ///
    /// # Panics
    /// It cannot be made.
    pub fn start() -> Self {
        let neighbour = Self::alone();
        let thread = neighbour.run(nix::unistd::gettid);
        let peer = ["peer", "name", "cable", "netns", &thread.to_string()];
        ip(&[&["link", "add", "cable", "type", "veth"][..], &peer].concat());
        plug("1");
        neighbour.run(|| plug("2"));
        neighbour
    }

    /// Makes one that is far away: `10.8.1.1` is here and `10.8.1.2` there, and each packet is `delay` under
    /// way.
    ///
    /// # Panics
    /// It cannot be made.
    pub fn far(delay: Duration) -> Self {
        let neighbour = Self::alone();
        let there = neighbour.run(|| Tun::start("10.8.1.2/24"));
        Tun::start("10.8.1.1/24").join(there, delay);
        neighbour
    }

    /// Makes one that is joined to nothing.
    fn alone() -> Self {
        let (jobs, todo) = channel::<Box<dyn FnOnce() + Send>>();
        let (say, told) = channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap_or_else(|error| panic!("unshare: {error}"));
            ip(&["link", "set", "lo", "up"]);
            let _ = say.send(());
            todo.into_iter().for_each(|job| job());
        });
        told.recv().unwrap_or_else(|error| panic!("no namespace: {error}"));
        Self { jobs }
    }

    /// Runs something there and waits for it. What it spawns and binds stays there.
    ///
    /// # Panics
    /// It panicked.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        let job = Box::new(move || {
            let _ = done.send(job());
        });
        let sent = self.jobs.send(job).ok();
        let result = sent.and_then(|()| result.recv().ok());
        result.unwrap_or_else(|| panic!("it failed in the other namespace"))
    }
}

/// Gives this end of the cable its addresses.
fn plug(last: &str) {
    ip(&["link", "set", "cable", "up"]);
    ip(&["address", "add", &format!("10.8.0.{last}/24"), "dev", "cable"]);
    ip(&["address", "add", &format!("fd08::{last}/64"), "dev", "cable", "nodad"]);
}

/// Runs iproute2 in the calling thread's namespace.
pub(crate) fn ip(args: &[&str]) {
    let output = Command::new("ip").args(args).output();
    let output = output.unwrap_or_else(|error| panic!("ip (iproute2) does not start: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {}: {said}", args.join(" "));
}

/// What stands between this thread and a namespace with kernel programs.
fn lacks_privileges() -> Option<String> {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let hex = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or("0");
    let has = u64::from_str_radix(hex.trim(), 16).unwrap_or(0);
    let wanted = [("CAP_NET_ADMIN", 12), ("CAP_SYS_ADMIN", 21)];
    wanted.iter().find(|(_, bit)| has & (1 << bit) == 0).map(|(name, _)| format!("no {name}"))
}

/// Past the test harness, which keeps back what a passing test prints.
fn note(line: &str) {
    if line.starts_with("skipped") {
        let _ = writeln!(io::stderr(), "NOT RUN: {line}");
    }
    let Some(path) = env::var_os("SLUICE_TEST_PRIVILEGED_LOG") else { return };
    let file = fs::OpenOptions::new().append(true).create(true).open(path);
    let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    written.unwrap_or_else(|error| panic!("SLUICE_TEST_PRIVILEGED_LOG: {error}"));
}
