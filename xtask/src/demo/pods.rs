//! What the demonstration consists of: four pods, a gateway, and the document that joins them.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

/// A simulated model server.
pub(super) struct Pod {
    /// Its name, in answers as in the gateway's metrics.
    pub(super) name: &'static str,
    /// How fast: a profile of the simulated server.
    pub(super) gpu: &'static str,
    /// LoRA adapters that it serves beside the base model.
    pub(super) adapters: &'static [&'static str],
}

impl Pod {
    /// The arguments of the simulated server.
    pub(super) fn args(&self, listen: SocketAddr) -> Vec<String> {
        let listen = listen.to_string();
        let mut args = vec!["--listen", &listen, "--name", self.name, "--gpu", self.gpu];
        let adapters = self.adapters.join(",");
        args.extend(["--model", MODEL]);
        if !adapters.is_empty() {
            args.extend(["--adapters", &adapters]);
        }
        args.into_iter().map(String::from).collect()
    }
}

/// The gateway's configuration, with the commands that start all of it by hand.
pub(super) fn document(
    programs: &Path,
    gateway: SocketAddr,
    admin: SocketAddr,
    pods: &[SocketAddr],
) -> String {
    let programs = programs.display();
    let mut text = format!(
        "# Written by `cargo xtask demo`, which also runs what these commands would:\n\
         #   {programs}/sluice run --config THIS_FILE\n"
    );
    // Writing to a string cannot fail.
    for (pod, address) in PODS.iter().zip(pods) {
        let _ = writeln!(text, "#   {programs}/engine {}", pod.args(*address).join(" "));
    }
    let _ = write!(
        text,
        "apiVersion: gateway.sluice.dev/v1alpha1\n\
         kind: InferenceGatewayConfig\n\
         metadata:\n\
         \x20 name: demo\n\
         spec:\n\
         \x20 listeners:\n\
         \x20 - {{name: http, address: {}, port: {}}}\n\
         \x20 admin: {{address: {}, port: {}}}\n\
         \x20 # So that Ctrl-C does not wait for your own streams.\n\
         \x20 limits: {{drainTimeout: 1s}}\n\
         \x20 schedulers:\n\
         \x20 - name: {MODEL}\n\
         \x20   modelName: {MODEL}\n\
         \x20   loraAdapters: [{}]\n\
         \x20   pods:\n",
        gateway.ip(),
        gateway.port(),
        admin.ip(),
        admin.port(),
        ADAPTERS.join(", "),
    );
    for (Pod { name, gpu, .. }, address) in PODS.iter().zip(pods) {
        let (ip, port) = (address.ip(), address.port());
        let _ = writeln!(text, "    - {{name: {name}, address: {ip}, port: {port}, gpu: {gpu}}}");
    }
    text
}

/// The base model.
pub(super) const MODEL: &str = "llama-8b";

/// LoRA adapters of it.
pub(super) const ADAPTERS: [&str; 2] = ["sql", "support"];

/// From the fastest to the slowest.
pub(super) const PODS: [Pod; 4] = [
    Pod { name: "pod-1", gpu: "h100", adapters: &["sql"] },
    Pod { name: "pod-2", gpu: "l40s", adapters: &["sql", "support"] },
    Pod { name: "pod-3", gpu: "a10", adapters: &["support"] },
    Pod { name: "pod-4", gpu: "l4", adapters: &[] },
];
