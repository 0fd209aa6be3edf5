//! The bed that benchmarks run on: programs, processors, pods, and one measurement at a time.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{PathBuf, absolute};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::Pid;

use super::carried::Carried;
use super::report::Report;
use super::target::{ADMIN_PORT, Gateway, PORT, Target, listen};
use super::tls::Identity;
use crate::http::Connection;
use crate::process::Process;
use crate::shell;

/// Where and with what to measure.
pub(super) struct Bed {
    /// Configurations and logs.
    pub(super) folder: PathBuf,
    /// The processor that the gateway has to itself.
    pub(super) gateway_processor: usize,
    /// What gateways show clients that speak TLS, if that is measured.
    pub(super) identity: Option<Identity>,
    load_processor: usize,
    quiet: Duration,
}

impl Bed {
    /// Builds the programs for release and makes sure that the targets can be started.
    ///
    /// # Errors
    /// Something cannot be built or installed, or there is one processor only.
    pub(super) fn prepare(targets: &[Target], quiet: u32) -> anyhow::Result<Self> {
        // From the root, for a program may look from elsewhere.
        let folder = absolute(shell::target())?.join("bench");
        fs::create_dir_all(&folder)?;
        let allowed = sched_getaffinity(Pid::from_raw(0))?;
        let mut processors = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu) == Ok(true));
        let (Some(gateway_processor), Some(load_processor)) =
            (processors.next(), processors.next())
        else {
            bail!("a benchmark needs two processors: one for the gateway, one for pods and load");
        };
        // Now, for else every target in turn would seem to be at fault.
        for address in [listen(PORT), listen(ADMIN_PORT), pod(1)] {
            ensure_free(&address)?;
        }
        targets.iter().try_for_each(|target| target.ensure())?;
        let mut build = shell::cargo();
        build.args(["build", "--release", "--package", "sluice-tests"]);
        build.args(["--bin", "bench-load", "--bin", "bench-pod"]);
        if targets.iter().any(|target| target.is_ours()) {
            build.args(["--package", "gateway-user", "--bin", "sluice"]);
        }
        shell::run(&mut build)?;
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        let quiet = Duration::from_secs(quiet.into());
        Ok(Self { folder, gateway_processor, identity: None, load_processor, quiet })
    }

    /// The same for gateways that speak TLS.
    ///
    /// # Errors
    /// A certificate cannot be made.
    pub(super) fn secure(self) -> anyhow::Result<Self> {
        let identity = Some(Identity::make(&self.folder)?);
        Ok(Self { identity, ..self })
    }

    /// A program of this repository, built for release.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        shell::target().join("release").join(name)
    }

    /// Starts a target in front of so many pods, and waits until it answers.
    ///
    /// # Errors
    /// One of them ended, or there is no answer in time.
    pub(super) fn start(&self, target: Target, pods: u8) -> anyhow::Result<Running<'_>> {
        let addresses: Vec<SocketAddr> = (1..=pods).map(pod).collect();
        let mut command = Command::new(self.program("bench-pod"));
        command.args(["--model", MODEL]).args(addresses.iter().map(SocketAddr::to_string));
        addresses.iter().try_for_each(ensure_free)?;
        let log = self.folder.join("pods.log");
        let mut pods = Process::start(&mut command, Some(self.load_processor), log)?;
        for address in &addresses {
            wait_for_answer(*address, &mut pods)?;
        }
        let mut gateway = target.start(self, &addresses)?;
        if let Some(process) = &mut gateway.process {
            for address in &gateway.addresses {
                match &self.identity {
                    None => wait_for_answer(*address, process)?,
                    Some(_) => wait_for_listener(*address, process)?,
                }
            }
        }
        Ok(Running { bed: self, gateway, pods })
    }
}

/// A target and its pods; both end when it is dropped.
pub(super) struct Running<'a> {
    bed: &'a Bed,
    // In this order: the gateway ends first, so that it sees no dying pods.
    gateway: Gateway,
    pods: Process,
}

impl Running<'_> {
    /// Runs the load generator with those arguments, when the machine is quiet.
    ///
    /// # Errors
    /// The load generator failed, or the gateway or the pods ended.
    pub(super) fn measure(&mut self, args: &[String]) -> anyhow::Result<Report> {
        self.wait_for_quiet()?;
        let report = self.load(args)?;
        self.pods.check()?;
        if let Some(gateway) = &mut self.gateway.process {
            gateway.check()?;
        }
        Ok(report)
    }

    /// What has carried our own gateway's answers until now; nothing of another gateway.
    ///
    /// # Errors
    /// It does not tell.
    pub(super) fn carried(&self) -> anyhow::Result<Carried> {
        let Some(admin) = self.gateway.admin else { return Ok(Carried::default()) };
        let page = Connection::new(admin).page("/metrics")?.context("no metrics page")?;
        Ok(Carried::of(&page))
    }

    fn load(&self, args: &[String]) -> anyhow::Result<Report> {
        let mut command = Command::new(self.bed.program("bench-load"));
        let to: BTreeSet<String> =
            self.gateway.addresses.iter().map(SocketAddr::to_string).collect();
        command.args(["--model", MODEL, "--pod", &self.pods.pid().to_string()]);
        command.arg("--to").arg(to.into_iter().collect::<Vec<_>>().join(","));
        if let Some(gateway) = &self.gateway.process {
            command.args(["--gateway", &gateway.pid().to_string()]);
        }
        command.args(args);
        let log = self.bed.folder.join("load.log");
        let printed = Process::output(&mut command, Some(self.bed.load_processor), log)?;
        serde_json::from_str(&printed).with_context(|| format!("from bench-load: {printed}"))
    }

    /// Waits, but not for ever, until the other programs of the machine leave it alone.
    fn wait_for_quiet(&self) -> anyhow::Result<()> {
        let look = ["--warmup", "0", "--seconds", "0.5", "idle"].map(String::from);
        let start = Instant::now();
        while start.elapsed() < self.bed.quiet {
            if self.load(&look)?.other_percent < QUIET_PERCENT {
                return Ok(());
            }
        }
        shell::progress("other programs are busy; measuring all the same");
        Ok(())
    }
}

fn pod(number: u8) -> SocketAddr {
    (Ipv4Addr::new(127, 0, 1, number), POD_PORT).into()
}

/// Checks that nobody listens there: another's answers would be taken for ours.
pub(super) fn ensure_free(address: &SocketAddr) -> anyhow::Result<()> {
    let taken = TcpStream::connect_timeout(address, Duration::from_secs(1)).is_ok();
    ensure!(!taken, "something listens at {address} already; does another benchmark run?");
    Ok(())
}

/// Waits until a chat request at that address gets a 200.
fn wait_for_answer(address: SocketAddr, process: &mut Process) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        process.check()?;
        match answer(address) {
            Ok(200) => return Ok(()),
            Ok(status) if start.elapsed() > PATIENCE => bail!("{address} answers {status}"),
            Err(error) if start.elapsed() > PATIENCE => {
                return Err(error).with_context(|| format!("no answer from {address}"));
            }
            _ => sleep(Duration::from_millis(20)),
        }
    }
}

/// Waits until somebody listens at that address.
fn wait_for_listener(address: SocketAddr, process: &mut Process) -> anyhow::Result<()> {
    let start = Instant::now();
    while let Err(error) = TcpStream::connect_timeout(&address, PATIENCE) {
        process.check()?;
        if start.elapsed() > PATIENCE {
            return Err(error).with_context(|| format!("nobody listens at {address}"));
        }
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The status of the answer to a short chat request.
fn answer(address: SocketAddr) -> anyhow::Result<u16> {
    let body = format!(
        "{{\"model\":\"{MODEL}\",\"stream\":false,\"max_tokens\":1,\
         \"messages\":[{{\"role\":\"user\",\"content\":\"up?\"}}]}}"
    );
    Connection::new(address).request("POST", "/v1/chat/completions", &body, &mut |_| Ok(()))
}

/// The model that pods serve and requests name.
pub(super) const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";

/// Of every pod; each has an address of its own.
const POD_PORT: u16 = 28_000;
/// A gateway that gives no answer for so long will not.
const PATIENCE: Duration = Duration::from_secs(10);
/// Processor time of other programs below which a measurement may begin.
const QUIET_PERCENT: f64 = 6.0;
