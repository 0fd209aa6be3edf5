//! A Kubernetes API server of one's own, for tests and for trying out: kube-apiserver and its etcd, without nodes and
//! without controllers; and Helm, for the chart.
//!
//! They are built from their Go modules, at the versions of `tests/k8s`, once. Both listen on 127.0.0.1 at free ports,
//! keep all that they write in one folder, and end with the task that started them.

mod cluster;
mod go;
pub(crate) mod programs;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use self::cluster::Cluster;
use crate::shell;
use crate::stop::Stop;

/// What to do.
#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Build the programs and start nothing.
    Build,
    /// Start an API server, print how to reach it, and keep it until Ctrl-C or `down`.
    Up,
    /// End the one that `up` started.
    Down,
    /// Run the tests that need an API server, with one of their own.
    Test {
        /// Passed on to the test program, such as a part of a test's name.
        #[arg(last = true)]
        args: Vec<String>,
    },
}

/// Does it.
///
/// # Errors
/// Go is missing, something cannot be built or does not start, or a test failed.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    match &options.action {
        Action::Build => programs::ensure().map(drop),
        Action::Up => up(),
        Action::Down => down(),
        Action::Test { args } => test(args),
    }
}

fn up() -> anyhow::Result<()> {
    let folder = shell::target().join("k8s/run");
    ensure!(runner(&folder).is_none(), "one runs already; end it with: cargo xtask k8s down");
    let programs = programs::ensure()?;
    // Before there are threads and children: the signals are for this process alone.
    let stop = Stop::on_signals()?;
    let mut cluster = Cluster::start(&programs, &folder)?;
    fs::write(folder.join(PID), std::process::id().to_string())?;
    println!("export KUBECONFIG={}", cluster.kubeconfig.display());
    while !stop.wait(Duration::from_secs(1)) {
        cluster.check()?;
    }
    drop(cluster);
    fs::remove_dir_all(&folder)?;
    Ok(())
}

fn down() -> anyhow::Result<()> {
    let folder = shell::target().join("k8s/run");
    let Some(pid) = runner(&folder) else { bail!("none runs") };
    kill(pid, Signal::SIGTERM)?;
    let asked = Instant::now();
    while runner(&folder).is_some() {
        ensure!(asked.elapsed() < PATIENCE, "process {pid} has not ended");
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// The process that keeps the API server of a folder, if it still is one of ours.
fn runner(folder: &Path) -> Option<Pid> {
    let pid: i32 = fs::read_to_string(folder.join(PID)).ok()?.trim().parse().ok()?;
    let program =
        |pid: &str| fs::read_link(format!("/proc/{pid}/exe")).ok()?.file_name().map(PathBuf::from);
    (program(&pid.to_string())? == program("self")?).then(|| Pid::from_raw(pid))
}

/// Runs the tests that need an API server, with one of their own.
///
/// # Errors
/// Go is missing, something cannot be built or does not start, or a test failed.
pub(crate) fn test(args: &[String]) -> anyhow::Result<()> {
    let programs = programs::ensure()?;
    // Of the whole workspace, whose choice of features everything else was built with.
    shell::run(shell::cargo().args(["build", "--workspace", "--bins"]))?;
    let folder = shell::target().join(format!("k8s/test-{}", std::process::id()));
    let mut cluster = Cluster::start(&programs, &folder)?;
    // The folder stays when a test fails: the API server's log is in it.
    let mut run = |args: &[&str]| {
        let mut tests = shell::cargo();
        tests.args(["test", "--workspace", "--test", "k8s", "--"]).args(args);
        tests.env("KUBECONFIG", &cluster.kubeconfig).env(DEFINITIONS, &programs.definitions);
        tests.env(CLUSTER, &cluster.folder).env(HELM, &programs.helm);
        attend(&mut tests, &mut cluster)
            .with_context(|| format!("the logs are in {}", folder.display()))
    };
    if args.is_empty() {
        run(&["--skip", ALONE])?;
        run(&[ALONE, "--test-threads", "1"])?;
    } else {
        run(&args.iter().map(String::as_str).collect::<Vec<_>>())?;
    }
    drop(cluster);
    fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())
}

/// Runs tests that may end the cluster's programs, which are started again.
fn attend(tests: &mut Command, cluster: &mut Cluster) -> anyhow::Result<()> {
    let line = shell::line(tests);
    shell::progress(&line);
    let mut tests = tests.spawn().with_context(|| format!("start {line}"))?;
    let status = loop {
        if let Some(status) = tests.try_wait()? {
            break status;
        }
        if let Err(error) = cluster.revive() {
            tests.kill()?;
            tests.wait()?;
            return Err(error);
        }
        sleep(Duration::from_millis(100));
    };
    ensure!(status.success(), "{line}: {status}");
    Ok(())
}

/// In the folder of a running API server: who keeps it.
const PID: &str = "pid";
/// How long `down` waits: two programs, each of which may take [`crate::process`]'s patience.
const PATIENCE: Duration = Duration::from_secs(15);
/// Tells the tests where the resource definitions of other projects are.
const DEFINITIONS: &str = "SLUICE_TEST_DEFINITIONS";
/// Tells the tests in which folder the API server and its store keep what they write.
const CLUSTER: &str = "SLUICE_TEST_CLUSTER";
/// Tests that end the store or the API server, which no other test would survive.
const ALONE: &str = "store::";
/// Tells the tests where Helm is.
const HELM: &str = "SLUICE_TEST_HELM";
