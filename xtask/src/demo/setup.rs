//! Builds and starts what the demonstration shows.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf, absolute};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::Options;
use super::pods::{PODS, document};
use super::view::{Feature, Status};
use crate::http::Connection;
use crate::process::Process;
use crate::shell;
use crate::stop::Stop;

/// Where the demonstration is to run.
pub(super) struct Place {
    address: SocketAddr,
    admin: SocketAddr,
    programs: PathBuf,
}

impl Place {
    /// Checks that the ports are free, and builds the programs.
    ///
    /// # Errors
    /// A port is taken, or something cannot be built.
    pub(super) fn prepare(options: &Options) -> anyhow::Result<Self> {
        let Options { port, admin_port, release, no_build, .. } = *options;
        // Before the build, which takes longer than anybody likes to wait for a failure.
        let address = free(port, "the gateway", "--port")?;
        let admin = free(admin_port, "the gateway's admin pages", "--admin-port")?;
        if !no_build {
            build(release)?;
        }
        let programs = absolute(shell::target())?.join(if release { "release" } else { "debug" });
        Ok(Self { address, admin, programs })
    }
}

/// The running programs. They end when it is dropped, the gateway first, so that it sees no dying pods.
pub(super) struct Running {
    gateway: Process,
    pods: Vec<Process>,
    /// Where clients connect.
    pub(super) address: SocketAddr,
    /// Where operators connect.
    pub(super) admin: SocketAddr,
    /// The gateway's configuration.
    pub(super) config: PathBuf,
    /// Where the programs are.
    pub(super) programs: PathBuf,
    /// What the kernel can do here.
    pub(super) features: Vec<Feature>,
    pages: Connection,
}

impl Running {
    /// Starts the programs, and returns once every pod is known to be ready.
    ///
    /// # Errors
    /// Something cannot be started, or is not ready in time.
    pub(super) fn start(place: Place, stop: &Stop) -> anyhow::Result<Self> {
        let Place { address, admin, programs } = place;
        let folder = absolute(shell::target())?.join("demo").join(address.port().to_string());
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;

        let features = probe(&programs)?;
        let (mut pods, mut addresses) = (Vec::new(), Vec::new());
        for pod in &PODS {
            let mut command = Command::new(programs.join("engine"));
            command.args(pod.args((Ipv4Addr::LOCALHOST, 0).into()));
            let mut process =
                Process::printing(&mut command, None, folder.join(format!("{}.log", pod.name)))?;
            let said = process.line()?;
            let listens = said.rsplit(' ').next().and_then(|address| address.parse().ok());
            addresses.push(listens.with_context(|| format!("no address in {said:?}"))?);
            pods.push(process);
        }

        let config = folder.join("gateway.yaml");
        fs::write(&config, document(&programs, address, admin, &addresses))?;
        let mut command = Command::new(programs.join("sluice"));
        // Its log is a file.
        command.arg("run").arg("--config").arg(&config).env("NO_COLOR", "1");
        let gateway = Process::start(&mut command, None, folder.join("gateway.log"))?;
        let pages = Connection::new(admin);
        let mut running = Self { gateway, pods, address, admin, config, programs, features, pages };
        running.wait_ready(stop)?;
        Ok(running)
    }

    /// The gateway's state and its metrics, now.
    ///
    /// # Errors
    /// The gateway has ended or does not answer.
    pub(super) fn look(&mut self) -> anyhow::Result<(Status, String)> {
        self.gateway.check()?;
        let status = self.pages.page("/status")?.context("no status page")?;
        let metrics = self.pages.page("/metrics")?.context("no metrics page")?;
        Ok((serde_json::from_str(&status).context("/status")?, metrics))
    }

    /// Name, GPU and process of each pod.
    pub(super) fn pods(&self) -> impl Iterator<Item = (&'static str, &'static str, u32)> {
        PODS.iter().zip(&self.pods).map(|(pod, process)| (pod.name, pod.gpu, process.pid()))
    }

    fn wait_ready(&mut self, stop: &Stop) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            self.gateway.check()?;
            for pod in &mut self.pods {
                pod.check()?;
            }
            let missing = match self.look() {
                Ok((status, _)) => missing(&status),
                Err(error) => Some(format!("{error:#}")),
            };
            let Some(missing) = missing else { return Ok(()) };
            if start.elapsed() > PATIENCE {
                bail!(
                    "the gateway is not ready: {missing}; see the logs beside {}",
                    self.config.display()
                );
            }
            if stop.wait(POLL) {
                bail!("interrupted");
            }
        }
    }
}

/// What is still to come before every request can be served.
fn missing(status: &Status) -> Option<String> {
    if !status.ready {
        return Some(status.reason.clone().unwrap_or_default());
    }
    PODS.iter().find_map(|pod| {
        let Some(seen) = status.pods().find(|seen| seen.name == pod.name) else {
            return Some(format!("it does not know {}", pod.name));
        };
        if !seen.ready || seen.signals_age_ms.is_none() {
            let trouble = seen.trouble.as_deref().unwrap_or("no signals yet");
            return Some(format!("{}: {trouble}", pod.name));
        }
        let unseen = pod.adapters.iter().find(|name| !seen.adapters.iter().any(|own| own == *name));
        unseen.map(|name| format!("{}: the adapter {name} is not there yet", pod.name))
    })
}

/// An address of this machine where nobody listens yet; port 0 is any.
fn free(port: u16, what: &str, option: &str) -> anyhow::Result<SocketAddr> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(listener) => Ok(listener.local_addr()?),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => bail!(
            "port {port} on 127.0.0.1, for {what}, is taken by another program; choose another with \
             {option} PORT ({option} 0 takes any that is free)"
        ),
        Err(error) => Err(error).with_context(|| {
            format!("cannot listen on 127.0.0.1:{port} for {what}; {option} PORT chooses another")
        }),
    }
}

fn build(release: bool) -> anyhow::Result<()> {
    let mut command = shell::cargo();
    command.args(["build", "--package", "gateway-user", "--bin", "sluice"]);
    command.args(["--package", "sluice-tests", "--bin", "engine"]);
    if release {
        command.arg("--release");
    }
    shell::run(&mut command)
}

fn probe(programs: &Path) -> anyhow::Result<Vec<Feature>> {
    let page = shell::output(Command::new(programs.join("sluice")).args(["probe", "--json"]))?;
    serde_json::from_str(&page).context("from sluice probe")
}

/// From the start of the gateway to its being ready, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks.
const POLL: Duration = Duration::from_millis(50);
