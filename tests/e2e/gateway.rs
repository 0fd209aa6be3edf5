//! The gateway under test, as an operator sees it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use sluice_tests::gateway::free_port;

use crate::process::Program;
use crate::wire;

/// A running gateway.
#[derive(Debug)]
pub(crate) struct Gateway {
    /// Where clients connect.
    pub(crate) address: SocketAddr,
    /// Where operators connect.
    pub(crate) admin: SocketAddr,
    program: Program,
}

impl Gateway {
    /// Starts a gateway with one pool, and waits until it listens.
    pub(crate) fn start(
        name: &str,
        binary: &Path,
        pods: &[(&str, SocketAddr)],
        logs: &Path,
    ) -> Self {
        let local = || SocketAddr::from(([127, 0, 0, 1], free_port()));
        let (address, admin) = (local(), local());
        let config = logs.join(format!("{name}.yaml"));
        std::fs::write(&config, document(address, admin, pods)).expect("a writable folder");
        let mut command = Command::new(binary);
        command.args(["run", "--log-format", "json", "--config"]).arg(&config);
        let mut program = Program::start(name, &command, &logs.join(format!("{name}.log")));
        let deadline = Instant::now() + Duration::from_secs(30);
        while wire::try_get(admin, "/healthz").is_none_or(|page| page.status != 200) {
            let words = program.last_words(20);
            assert!(program.exited().is_none(), "the gateway ended:\n{words}");
            assert!(Instant::now() < deadline, "the gateway does not listen:\n{words}");
            thread::sleep(TICK);
        }
        Self { address, admin, program }
    }

    /// `/status`.
    pub(crate) fn status(&self) -> Value {
        wire::get(self.admin, "/status").json()
    }

    /// One pod in `/status`.
    pub(crate) fn pod(&self, name: &str) -> Value {
        pod(&self.status(), name)
    }

    /// The sum of all samples of a metric whose labels hold every one of `labels`.
    pub(crate) fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let page = wire::get(self.admin, "/metrics").text();
        wire::samples(&page, name, labels).unwrap_or_default()
    }

    /// Requests that ended so.
    pub(crate) fn outcomes(&self, outcome: &str) -> f64 {
        self.metric("sluice_pool_requests_total", &[&format!("outcome=\"{outcome}\"")])
    }

    /// The access log's line of a request.
    pub(crate) fn access(&self, id: &str) -> Value {
        let mark = format!("\"id\":\"{id}\"");
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let log = self.program.log();
            if let Some(line) = log.lines().find(|line| line.contains(&mark)) {
                return serde_json::from_str(line).expect("a log line is JSON");
            }
            assert!(Instant::now() < deadline, "no log line of request {id}");
            thread::sleep(TICK);
        }
    }

    /// Waits until `/status` is as it should be; returns how long that took.
    pub(crate) fn wait(&self, what: &str, is: impl Fn(&Value) -> bool) -> Duration {
        let started = Instant::now();
        loop {
            let status = self.status();
            if is(&status) {
                return started.elapsed();
            }
            assert!(started.elapsed() < PATIENCE, "waited in vain for {what}: {status:#}");
            thread::sleep(TICK);
        }
    }

    /// What it has logged last.
    pub(crate) fn last_words(&self, lines: usize) -> String {
        self.program.last_words(lines)
    }
}

/// One pod of a status page.
pub(crate) fn pod(status: &Value, name: &str) -> Value {
    pods(status).find(|pod| pod["name"] == name).cloned().expect("the pod is in /status")
}

/// Every pod of a status page.
pub(crate) fn pods(status: &Value) -> impl Iterator<Item = &Value> {
    let pools = status["pools"].as_array().into_iter().flatten();
    pools.flat_map(|pool| pool["pods"].as_array().into_iter().flatten())
}

fn document(address: SocketAddr, admin: SocketAddr, pods: &[(&str, SocketAddr)]) -> String {
    let mut text = format!(
        "apiVersion: gateway.sluice.dev/v1alpha1\n\
         kind: InferenceGatewayConfig\n\
         metadata: {{name: e2e}}\n\
         spec:\n\
         \x20 listeners: [{{name: http, address: 127.0.0.1, port: {}}}]\n\
         \x20 admin: {{address: 127.0.0.1, port: {}}}\n\
         \x20 kernel: {{steering: \"off\"}}\n\
         \x20 accessLog: true\n\
         \x20 schedulers:\n\
         \x20 - name: tiny\n\
         \x20   modelName: tiny-llama\n\
         \x20   pods:\n",
        address.port(),
        admin.port()
    );
    for (name, pod) in pods {
        let (ip, port) = (pod.ip(), pod.port());
        text += &format!("    - {{name: {name}, address: {ip}, port: {port}}}\n");
    }
    text
}

/// The machine may be busy with other things.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks.
pub(crate) const TICK: Duration = Duration::from_millis(20);
