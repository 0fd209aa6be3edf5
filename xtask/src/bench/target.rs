//! What is measured: each target's name, and how it is configured and started.

use std::fmt::{self, Write};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;

use super::bed::{Bed, MODEL, ensure_free};
use crate::process::Process;
use crate::shell;

/// One of the things to measure.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Target {
    /// No gateway: clients connect to the pods.
    Direct,
    /// A plain proxy that reads no bodies: what any gateway should be near to.
    Haproxy,
    /// The gateway of this repository.
    Sluice,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Direct => "direct",
            Self::Haproxy => "haproxy",
            Self::Sluice => "sluice",
        })
    }
}

/// A target that runs.
pub(super) struct Gateway {
    /// None for [`Target::Direct`].
    pub(super) process: Option<Process>,
    /// Where clients connect.
    pub(super) addresses: Vec<SocketAddr>,
}

impl Target {
    /// Starts it in front of those pods; with the default settings of an operator who cares about
    /// speed, one worker, and no access log.
    pub(super) fn start(self, bed: &Bed, pods: &[SocketAddr]) -> anyhow::Result<Gateway> {
        let listen = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let (mut command, listen) = match self {
            Self::Direct => return Ok(Gateway { process: None, addresses: pods.to_vec() }),
            Self::Haproxy => {
                let listen = listen(HAPROXY_PORT);
                let file = bed.folder.join("haproxy.cfg");
                fs::write(&file, haproxy(listen, pods))?;
                let mut command = Command::new(shell::find("haproxy").context("no haproxy")?);
                command.arg("-db").arg("-f").arg(file);
                (command, listen)
            }
            Self::Sluice => {
                let listen = listen(SLUICE_PORT);
                let file = bed.folder.join("sluice.yaml");
                fs::write(&file, sluice(listen, pods))?;
                let mut command = Command::new(bed.program("sluice"));
                command.arg("run").arg("--config").arg(file);
                (command, listen)
            }
        };
        ensure_free(&listen)?;
        let log = bed.folder.join(format!("{self}.log"));
        let process = Process::start(&mut command, Some(bed.gateway_processor), log)?;
        Ok(Gateway { process: Some(process), addresses: vec![listen] })
    }
}

fn haproxy(listen: SocketAddr, pods: &[SocketAddr]) -> String {
    let mut config = format!(
        "global\n  nbthread 1\n  maxconn 9000\n\
         defaults\n  mode http\n  timeout connect 5s\n  timeout client 300s\n  timeout server 300s\n\
         \x20 option http-no-delay\n  http-reuse always\n\
         frontend clients\n  bind {listen}\n  default_backend pods\n\
         backend pods\n  balance roundrobin\n"
    );
    for (number, pod) in pods.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(config, "  server pod{number} {pod}");
    }
    config
}

fn sluice(listen: SocketAddr, pods: &[SocketAddr]) -> String {
    let mut config = format!(
        "apiVersion: gateway.sluice.dev/v1alpha1\n\
         kind: InferenceGatewayConfig\n\
         metadata: {{name: bench}}\n\
         spec:\n\
         \x20 workers: 1\n\
         \x20 listeners:\n\
         \x20 - {{name: http, address: \"{}\", port: {}, protocol: http}}\n\
         \x20 admin: {{address: \"127.0.0.1\", port: 0}}\n\
         \x20 schedulers:\n\
         \x20 - name: bench\n\
         \x20   modelName: {MODEL}\n\
         \x20   pods:\n",
        listen.ip(),
        listen.port()
    );
    for pod in pods {
        let _ = writeln!(config, "    - {{address: \"{}\", port: {}}}", pod.ip(), pod.port());
    }
    config
}

/// Both below the ports that the kernel hands out by itself.
const HAPROXY_PORT: u16 = 28_101;
const SLUICE_PORT: u16 = 28_102;
