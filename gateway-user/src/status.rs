//! What `/status` says and `sluice status` prints: pools, pods, signals with their age, scores.

use std::fmt::Write as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::direct::DirectView;
use crate::flow::path::Paths;
use crate::gateway::Gateway;
use crate::kernel::{Flows, Usage};
use crate::metrics::{Label as _, Path};
use crate::pool::{PodStatus, Pool};
use crate::publish::Steered;
use crate::staleness::Stale;

/// The whole gateway at one moment.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Status {
    /// The daemon's version.
    pub version: String,
    /// Seconds since the daemon started.
    pub uptime_s: f64,
    /// It takes requests.
    pub ready: bool,
    /// Why it is not ready.
    pub reason: Option<String>,
    /// Why the configuration that was read last is not in force, if it is not. A gateway of an earlier version does not
    /// say.
    #[serde(default)]
    pub config_trouble: Option<String>,
    /// Parts of it that wait for a takeover.
    #[serde(default)]
    pub config_waiting: Vec<String>,
    /// That the API server has not been heard for long, from which the pods come. A gateway of an earlier version does not
    /// say.
    #[serde(default)]
    pub cluster_trouble: Option<String>,
    /// How connections reach the workers.
    pub steering: SteeringStatus,
    /// How responses may travel, and why others do not.
    pub paths: Vec<PathStatus>,
    /// What the kernel holds for flows; nothing without a kernel path.
    pub flows: Option<Usage>,
    /// Client connections open now.
    pub connections: usize,
    /// Bytes of request bodies held now.
    pub buffered_bytes: usize,
    /// The pools.
    pub pools: Vec<PoolView>,
}

/// A path of responses.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct PathStatus {
    /// `local`, `splice` or `relay`.
    pub name: String,
    /// Responses may take it.
    pub available: bool,
    /// Why not.
    pub reason: Option<String>,
    /// Responses that it has carried. A gateway of an earlier version does not say.
    #[serde(default)]
    pub responses: u64,
}

/// How connections reach the workers.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SteeringStatus {
    /// `sk_lookup` or `userspace`.
    pub path: String,
    /// Why not by sk_lookup.
    pub reason: Option<String>,
    /// What the kernel counted for each listener.
    pub listeners: Vec<ListenerView>,
}

/// One listener.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ListenerView {
    /// Its name.
    pub name: String,
    /// Where it is bound.
    pub address: String,
    /// Connections that sk_lookup steered.
    pub steered: u64,
    /// Workers' sockets passed over, as they listened no more. A gateway of an earlier version does not say.
    #[serde(default)]
    pub retried: u64,
    /// Connections refused, as no worker's socket was there.
    pub dropped: u64,
}

/// One pool.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct PoolView {
    /// Its name.
    pub name: String,
    /// Its base model.
    pub model: String,
    /// Names that lead to it.
    pub names: Vec<String>,
    /// Its direct mode, if its connections go whole to its pods.
    pub direct: Option<DirectView>,
    /// Its pods.
    pub pods: Vec<PodPage>,
}

/// One pod.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct PodPage {
    /// Its name.
    pub name: String,
    /// Where requests go.
    pub address: String,
    /// The GPU, as configured.
    pub gpu: Option<String>,
    /// The kind of server, once seen.
    pub engine: Option<String>,
    /// It may be given requests.
    pub ready: bool,
    /// What is wrong with it.
    pub trouble: Option<String>,
    /// Its score for a request without an adapter; none when it is filtered out.
    pub score: Option<f32>,
    /// Each scorer's part, unweighted.
    pub scores: Vec<(String, f32)>,
    /// Requests that this gateway has in flight there.
    pub in_flight: u32,
    /// Requests ever given to it.
    pub requests: u64,
    /// Requests that failed there.
    pub failures: u64,
    /// Tokens that it has generated through this gateway.
    pub tokens: u64,
    /// Age of the signals.
    pub signals_age_ms: Option<u64>,
    /// KV cache in use, 0..1.
    pub kv_usage: Option<f32>,
    /// Requests waiting in its engine.
    pub waiting: Option<u32>,
    /// Requests running in its engine.
    pub running: Option<u32>,
    /// Adapters that it lists or runs.
    pub adapters: Vec<String>,
}

impl Status {
    /// Reads the state of `gateway`.
    pub fn read(gateway: &Gateway, steered: &Steered) -> Self {
        steered.count(gateway);
        let now = Instant::now();
        let reason = gateway.unready();
        let configured = gateway.configured();
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_s: now.saturating_duration_since(gateway.started).as_secs_f64(),
            ready: reason.is_none(),
            reason,
            config_trouble: configured.trouble.clone(),
            config_waiting: configured.waiting.iter().map(ToString::to_string).collect(),
            cluster_trouble: match gateway.staleness.now() {
                Stale::No => None,
                stale => Some(stale.to_string()),
            },
            steering: steered.status(),
            paths: paths(gateway),
            flows: gateway.paths.flows.as_ref().map(Flows::usage),
            connections: gateway.connections(),
            buffered_bytes: gateway.buffered_bytes(),
            pools: (gateway.pools().iter())
                .map(|pool| PoolView::read(gateway, steered, pool, now))
                .collect(),
        }
    }

    /// A table for people.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let state = match &self.reason {
            None => "ready".into(),
            Some(reason) => format!("not ready: {reason}"),
        };
        let steering = match &self.steering.reason {
            None => self.steering.path.clone(),
            Some(reason) => format!("{} ({reason})", self.steering.path),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "sluice {}, up {:.0} s, {state}\nsteering: {steering}\n{}\nconnections: {}, request bodies held: {} bytes",
            self.version,
            self.uptime_s,
            path_lines(&self.paths),
            self.connections,
            self.buffered_bytes
        );
        if let Some(trouble) = &self.config_trouble {
            let _ = writeln!(out, "the configuration has changed and is not in force: {trouble}");
        }
        if !self.config_waiting.is_empty() {
            let waiting = self.config_waiting.join(", ");
            let _ = writeln!(out, "changed, and waiting for a takeover: {waiting}");
        }
        if let Some(trouble) = &self.cluster_trouble {
            let _ = writeln!(out, "{trouble}");
        }
        for pool in &self.pools {
            let _ = writeln!(out, "\npool {} ({})", pool.name, pool.names.join(", "));
            if let Some(direct) = &pool.direct {
                direct.write(&mut out);
            }
            let _ = writeln!(
                out,
                "  {:<20} {:<12} {:>6} {:>9} {:>6} {:>8} {:>8} {:>8} {:>9} {:>9}",
                "pod",
                "engine",
                "score",
                "in flight",
                "KV %",
                "waiting",
                "running",
                "age ms",
                "requests",
                "failures"
            );
            for pod in &pool.pods {
                let _ = writeln!(
                    out,
                    "  {:<20} {:<12} {:>6} {:>9} {:>6} {:>8} {:>8} {:>8} {:>9} {:>9}",
                    pod.name,
                    pod.engine.as_deref().unwrap_or("?"),
                    show(pod.score.map(|score| format!("{score:.2}"))),
                    pod.in_flight,
                    show(pod.kv_usage.map(|usage| format!("{:.0}", usage * 100.0))),
                    show(pod.waiting),
                    show(pod.running),
                    show(pod.signals_age_ms),
                    pod.requests,
                    pod.failures,
                );
                if let Some(trouble) = &pod.trouble {
                    let _ = writeln!(out, "      {trouble}");
                }
            }
        }
        out
    }
}

fn paths(gateway: &Gateway) -> Vec<PathStatus> {
    let Paths { local, splice, .. } = &gateway.paths;
    [(Path::Local, local.as_ref()), (Path::Splice, splice.as_ref()), (Path::Relay, None)]
        .map(|(path, off)| PathStatus {
            name: path.as_str().into(),
            available: off.is_none(),
            reason: off.map(|off| off.text.clone()),
            responses: gateway.counted.responses(path),
        })
        .into()
}

/// How responses travel: the paths with their counts, and why others are not taken, each reason once.
fn path_lines(paths: &[PathStatus]) -> String {
    let taken: Vec<String> = (paths.iter())
        .filter(|path| path.available)
        .map(|path| format!("{} {}", path.name, path.responses))
        .collect();
    let mut lines = format!("responses: {}", taken.join(", "));
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for path in paths {
        let Some(reason) = path.reason.as_deref() else { continue };
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, names)) => names.push(&path.name),
            None => reasons.push((reason, vec![&path.name])),
        }
    }
    for (reason, names) in reasons {
        // Writing to a String cannot fail.
        let _ = write!(lines, "\n  no {}: {reason}", names.join(", no "));
    }
    lines
}

impl PoolView {
    fn read(gateway: &Gateway, steered: &Steered, pool: &Arc<Pool>, now: Instant) -> Self {
        let routes = gateway.routes();
        let names = routes
            .all()
            .into_iter()
            .filter(|(_, to)| Arc::ptr_eq(&to.pool, pool))
            .map(|(name, _)| name.to_owned())
            .collect();
        Self {
            name: pool.name.to_string(),
            model: pool.model.to_string(),
            names,
            direct: steered.direct(pool),
            pods: pool.status(now).into_iter().map(PodPage::from).collect(),
        }
    }
}

impl From<PodStatus> for PodPage {
    fn from(status: PodStatus) -> Self {
        let PodStatus { pod, view, engine, tier: _, score, parts, adapters, trouble, lacks: _ } =
            status;
        Self {
            name: pod.name.to_string(),
            address: pod.address.to_string(),
            gpu: pod.gpu.as_deref().map(Into::into),
            engine: engine.map(|engine| engine.name().into()),
            ready: view.ready,
            trouble,
            score,
            scores: parts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            in_flight: view.in_flight,
            requests: pod.requests(),
            failures: pod.failures(),
            tokens: pod.tokens(),
            signals_age_ms: view.age.map(|age| age.as_millis() as u64),
            kv_usage: view.signals.kv_usage,
            waiting: view.signals.waiting,
            running: view.signals.running,
            adapters: adapters.iter().map(ToString::to_string).collect(),
        }
    }
}

/// A dash stands for unknown: it is not zero.
fn show(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_said_once() {
        let path = |name: &str, reason: Option<&str>, responses| PathStatus {
            name: name.into(),
            available: reason.is_none(),
            reason: reason.map(Into::into),
            responses,
        };
        let (relay, lacks) = (path("relay", None, 7), Some("this process lacks CAP_BPF"));
        let table = [
            (
                path("local", None, 3),
                path("splice", None, 0),
                "responses: local 3, splice 0, relay 7",
            ),
            (
                path("local", lacks, 0),
                path("splice", lacks, 0),
                "responses: relay 7\n  no local, no splice: this process lacks CAP_BPF",
            ),
            (
                path("local", None, 3),
                path("splice", Some("kernel 6.1.9 can deliver twice"), 0),
                "responses: local 3, relay 7\n  no splice: kernel 6.1.9 can deliver twice",
            ),
        ];
        for (local, splice, said) in table {
            assert_eq!(path_lines(&[local, splice, relay.clone()]), said);
        }
    }
}
