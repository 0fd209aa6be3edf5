//! What is measured: each target's name, and how it is configured and started.

use std::fmt::{self, Write};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;

use super::bed::{Bed, MODEL, ensure_free};
use super::peers;
use super::tls::Identity;
use crate::process::Process;
use crate::shell;

/// One of the things to measure.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Target {
    /// No gateway: clients connect to the pods.
    Direct,
    /// A plain proxy that reads no bodies: what any gateway should be near to.
    Haproxy,
    /// Another plain proxy.
    Nginx,
    /// Another plain proxy, of which gateways for Kubernetes are made.
    Envoy,
    /// A router for model servers.
    SglangRouter,
    /// A router for model servers.
    VllmRouter,
    /// The gateway of this repository, as it is by default.
    Sluice,
    /// The same, its daemon carrying every answer.
    Relay,
    /// The same, the kernel carrying answers from any pod.
    Splice,
    /// The same, the kernel carrying answers from pods on this host.
    Local,
    /// The same, its kernel program giving connections to the pods: nothing stands between.
    Steered,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.pad(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// A target that runs.
pub(super) struct Gateway {
    /// None for [`Target::Direct`].
    pub(super) process: Option<Process>,
    /// Where clients connect.
    pub(super) addresses: Vec<SocketAddr>,
    /// Where its metrics are, of our own gateway.
    pub(super) admin: Option<SocketAddr>,
}

impl Target {
    /// Whether it is the gateway of this repository.
    pub(super) fn is_ours(self) -> bool {
        matches!(self, Self::Sluice | Self::Relay | Self::Splice | Self::Local | Self::Steered)
    }

    /// Installs what it needs if that is in the distribution.
    ///
    /// # Errors
    /// It is missing, and cannot be installed so.
    pub(super) fn ensure(self) -> anyhow::Result<()> {
        match self {
            Self::Haproxy => shell::ensure_program("haproxy", "haproxy"),
            Self::Nginx => shell::ensure_program("nginx", "nginx"),
            Self::Envoy | Self::SglangRouter | Self::VllmRouter => peers::program(self).map(drop),
            _ => Ok(()),
        }
    }

    /// Starts it in front of those pods; with the default settings of an operator who cares about
    /// speed, one worker, and no access log.
    pub(super) fn start(self, bed: &Bed, pods: &[SocketAddr]) -> anyhow::Result<Gateway> {
        let [listen, admin] = [PORT, ADMIN_PORT].map(listen);
        let config = |extension: &str, text: String| {
            let file = bed.folder.join(format!("{self}.{extension}"));
            fs::write(&file, text).map(|()| file)
        };
        let mut command = match self {
            Self::Direct => {
                return Ok(Gateway { process: None, addresses: pods.to_vec(), admin: None });
            }
            Self::Haproxy => {
                let mut command = Command::new(shell::find("haproxy").context("no haproxy")?);
                command
                    .arg("-db")
                    .arg("-f")
                    .arg(config("cfg", haproxy(listen, pods, bed.identity.as_ref()))?);
                command
            }
            Self::Nginx => {
                let mut command = Command::new(shell::find("nginx").context("no nginx")?);
                let text = nginx(&bed.folder, listen, pods);
                command.args(["-e", "stderr", "-c"]).arg(config("conf", text)?);
                command
            }
            Self::Envoy => {
                let mut command = Command::new(peers::program(self)?);
                command
                    .arg("-c")
                    .arg(config("yaml", peers::envoy(listen, pods, bed.identity.as_ref()))?);
                command.args(peers::ENVOY_ARGS);
                command
            }
            Self::SglangRouter | Self::VllmRouter => {
                let mut command = Command::new(peers::program(self)?);
                command.args(peers::router_args(self, listen, admin, pods));
                command
            }
            Self::Sluice | Self::Relay | Self::Splice | Self::Local | Self::Steered => {
                let mut command = Command::new(bed.program("sluice"));
                let text = self.sluice(listen, admin, pods, bed.identity.as_ref());
                command.arg("run").arg("--config").arg(config("yaml", text)?);
                command
            }
        };
        ensure_free(&listen)?;
        ensure_free(&admin)?;
        let log = bed.folder.join(format!("{self}.log"));
        let process = Process::start(&mut command, Some(bed.gateway_processor), log)?;
        let admin = self.is_ours().then_some(admin);
        Ok(Gateway { process: Some(process), addresses: vec![listen], admin })
    }

    fn sluice(
        self,
        listen: SocketAddr,
        admin: SocketAddr,
        pods: &[SocketAddr],
        identity: Option<&Identity>,
    ) -> String {
        let mut config = format!(
            "apiVersion: gateway.sluice.dev/v1alpha1\n\
             kind: InferenceGatewayConfig\n\
             metadata: {{name: bench}}\n\
             spec:\n\
             \x20 workers: 1\n\
             \x20 listeners:\n\
             \x20 - {{name: http, address: \"{}\", port: {}, protocol: {}}}\n\
             \x20 admin: {{address: \"{}\", port: {}}}\n",
            listen.ip(),
            listen.port(),
            if identity.is_some() { "https" } else { "http" },
            admin.ip(),
            admin.port()
        );
        if let Some(Identity { certificate, key, .. }) = identity {
            let (certificate, key) = (certificate.display(), key.display());
            // Writing to a string cannot fail.
            let _ = writeln!(
                config,
                "  tls: {{certificates: [{{certificateFile: \"{certificate}\", keyFile: \"{key}\"}}]}}"
            );
        }
        config.push_str(match self {
            Self::Relay => "  kernel: {paths: [relay]}\n",
            Self::Splice => "  kernel: {paths: [splice, relay]}\n",
            Self::Local => "  kernel: {paths: [local, relay]}\n",
            _ => "",
        });
        // Writing to a string cannot fail.
        let _ = write!(config, "  schedulers:\n  - name: bench\n    modelName: {MODEL}\n");
        if self == Self::Steered {
            config.push_str("    mode: connection\n    listener: http\n");
        }
        config.push_str("    pods:\n");
        for pod in pods {
            let _ = writeln!(config, "    - {{address: \"{}\", port: {}}}", pod.ip(), pod.port());
        }
        config
    }
}

fn haproxy(listen: SocketAddr, pods: &[SocketAddr], identity: Option<&Identity>) -> String {
    let tls =
        identity.map(|identity| format!(" ssl crt {} alpn h2,http/1.1", identity.both.display()));
    let tls = tls.unwrap_or_default();
    let mut config = format!(
        "global\n  nbthread 1\n  maxconn 9000\n\
         defaults\n  mode http\n  timeout connect 5s\n  timeout client 300s\n  timeout server 300s\n\
         \x20 option http-no-delay\n  http-reuse always\n\
         frontend clients\n  bind {listen}{tls}\n  default_backend pods\n\
         backend pods\n  balance roundrobin\n"
    );
    for (number, pod) in pods.iter().enumerate() {
        let _ = writeln!(config, "  server pod{number} {pod}");
    }
    config
}

/// Without a master process: the one that is left does what a worker does, and ends as any.
fn nginx(folder: &Path, listen: SocketAddr, pods: &[SocketAddr]) -> String {
    let folder = folder.display();
    let mut config = format!(
        "daemon off;\nmaster_process off;\npid \"{folder}/nginx.pid\";\nerror_log stderr warn;\n\
         worker_rlimit_nofile 20000;\nevents {{ worker_connections 10240; }}\n\
         http {{\n  access_log off;\n  keepalive_requests 1000000;\n  keepalive_timeout 300s;\n\
         \x20 client_max_body_size 16m;\n  client_body_buffer_size 256k;\n"
    );
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        let _ = writeln!(config, "  {kind}_temp_path \"{folder}/nginx-{kind}\";");
    }
    config.push_str("  upstream pods {\n");
    for pod in pods {
        let _ = writeln!(config, "    server {pod};");
    }
    let _ = write!(
        config,
        "    keepalive 1024;\n    keepalive_requests 1000000;\n    keepalive_timeout 300s;\n  }}\n\
         \x20 server {{\n    listen {listen} backlog=4096;\n\
         \x20   location / {{\n      proxy_pass http://pods;\n      proxy_http_version 1.1;\n\
         \x20     proxy_set_header Connection \"\";\n      proxy_buffering off;\n\
         \x20     proxy_read_timeout 300s;\n    }}\n  }}\n}}\n"
    );
    config
}

/// An address of a gateway.
pub(super) fn listen(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Where clients find a gateway. Below the ports that the kernel hands out by itself, as the next;
/// one gateway runs at a time.
pub(super) const PORT: u16 = 28_101;
/// Where a gateway's own pages are.
pub(super) const ADMIN_PORT: u16 = 28_102;
