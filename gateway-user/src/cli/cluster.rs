//! `sluice status --kubernetes`: what an `InferenceGatewayConfig` comes to and what the gateways say of it, from the API
//! server. No gateway is asked.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize as _, Serialize};
use tokio::task::LocalSet;
use tokio::time::timeout;

use super::say;
use crate::config::document::Status;
use crate::discover::{Cluster, Options, Resolved};

/// Reads and prints.
pub(super) fn run(options: &Options, json: bool) -> ExitCode {
    match read(options) {
        Ok(view) if json => match serde_json::to_string(&view) {
            Ok(page) => say(&page),
            Err(error) => failed(&error.into()),
        },
        Ok(view) => say(&view.table()),
        Err(error) => failed(&error),
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("sluice: {error:#}");
    ExitCode::FAILURE
}

fn read(options: &Options) -> anyhow::Result<View> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let mut cluster = Cluster::follow(options).await?;
        let resolved = timeout(PATIENCE, cluster.next(None)).await.with_context(|| {
            format!("the API server has not answered all questions in {} s", PATIENCE.as_secs())
        })?;
        Ok(View::new(&cluster.namespace, resolved))
    })
}

/// All that is printed.
#[derive(Debug, Serialize)]
struct View {
    namespace: String,
    /// The object's name, and the generation that it has.
    name: Option<String>,
    generation: Option<i64>,
    /// What is wrong with it.
    errors: Vec<String>,
    /// What the gateways say of it.
    status: Status,
    pools: Vec<PoolLine>,
}

#[derive(Debug, Serialize)]
struct PoolLine {
    name: String,
    model: Option<String>,
    matched: u32,
    ready: u32,
    findings: Vec<String>,
    /// Those that may get requests.
    pods: Vec<PodLine>,
}

#[derive(Debug, Serialize)]
struct PodLine {
    name: String,
    address: String,
    gpu: Option<String>,
}

impl View {
    fn new(namespace: &str, resolved: Resolved) -> Self {
        let Resolved { object, reported, config, pools, left_out } = resolved;
        let (schedulers, mut errors) = match config {
            None => (Vec::new(), Vec::new()),
            Some(Ok(loaded)) => (loaded.config.schedulers, Vec::new()),
            Some(Err(errors)) => {
                (Vec::new(), errors.list.iter().map(ToString::to_string).collect())
            }
        };
        errors.extend(left_out.iter().map(|(name, why)| format!("InferencePool {name}: {why}")));
        let mut schedulers = schedulers.into_iter();
        let pools = pools
            .into_iter()
            .map(|facts| {
                let scheduler = schedulers.next();
                PoolLine {
                    name: facts.name,
                    model: scheduler.as_ref().map(|scheduler| scheduler.model_name.clone()),
                    matched: facts.matched,
                    ready: facts.ready,
                    findings: facts.findings.iter().map(ToString::to_string).collect(),
                    pods: (scheduler.into_iter().flat_map(|scheduler| scheduler.pods))
                        .map(|pod| PodLine {
                            name: pod.name,
                            address: pod.address.to_string(),
                            gpu: pod.gpu,
                        })
                        .collect(),
                }
            })
            .collect();
        Self {
            namespace: namespace.to_owned(),
            generation: object.as_ref().map(|object| object.generation),
            name: object.map(|object| object.name),
            errors,
            status: Status::deserialize(&reported).unwrap_or_default(),
            pools,
        }
    }

    /// For people.
    fn table(&self) -> String {
        let mut out = String::new();
        let Self { namespace, name, generation, errors, status, pools } = self;
        // Writing to a String cannot fail.
        let _ = match (name, pools.is_empty()) {
            (Some(name), _) => {
                writeln!(out, "InferenceGatewayConfig {namespace}/{name}{}", self.said())
            }
            (None, true) => writeln!(
                out,
                "namespace {namespace} has no such InferenceGatewayConfig, and no InferencePool"
            ),
            (None, false) => writeln!(
                out,
                "namespace {namespace} has InferencePools and no InferenceGatewayConfig, so nothing has a status"
            ),
        };
        for condition in &status.conditions {
            let reason = match condition.reason == condition.kind {
                true => "",
                false => condition.reason.as_str(),
            };
            let message = condition.message.replace('\n', &format!("\n{:INDENT$}", ""));
            let line =
                format!("  {:<15} {:<8} {reason:<14} {message}", condition.kind, condition.status);
            let _ = writeln!(out, "{}", line.trim_end());
        }
        // Said by `Accepted` already, if a gateway has seen it.
        if status.observed_generation != *generation || name.is_none() {
            for error in errors {
                let _ = writeln!(out, "  {error}");
            }
        }
        for pool in pools {
            let model = pool.model.as_ref().map(|model| format!(" ({model})")).unwrap_or_default();
            let _ = writeln!(
                out,
                "\npool {}{model}: {} of {} pods ready",
                pool.name, pool.ready, pool.matched
            );
            let known = status.schedulers.iter().find(|known| known.name == pool.name);
            let said = known.and_then(|known| known.message.as_deref()).unwrap_or_default();
            // What a gateway knows of it, and what is newer than that.
            let mut lines: Vec<&str> = said.split("; ").filter(|line| !line.is_empty()).collect();
            lines.extend(pool.findings.iter().map(String::as_str).filter(|f| !said.contains(f)));
            for line in lines {
                let _ = writeln!(out, "  {line}");
            }
            for pod in &pool.pods {
                let line = format!(
                    "  {:<40} {:<24} {}",
                    pod.name,
                    pod.address,
                    pod.gpu.as_deref().unwrap_or_default()
                );
                let _ = writeln!(out, "{}", line.trim_end());
            }
        }
        out
    }

    /// Whose word the status is, and of which state of the object.
    fn said(&self) -> String {
        let generation = self.generation.unwrap_or_default();
        match (self.status.observed_generation, self.status.writer.as_str()) {
            (None, _) => format!(", generation {generation}: no gateway has said anything of it"),
            (Some(seen), _) if seen != generation => {
                format!(", generation {generation}: no gateway has seen it, this is of {seen}")
            }
            (Some(_), "") => {
                format!(", generation {generation}: no gateway writes the status any more")
            }
            (Some(_), writer) => format!(", generation {generation}, as gateway {writer} sees it"),
        }
    }
}

/// For all that is read.
const PATIENCE: Duration = Duration::from_secs(15);
/// Columns before a condition's message.
const INDENT: usize = 42;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::discover::resolve::Asked;
    use crate::discover::{Snapshot, resolve};

    fn view(spec: serde_json::Value, status: serde_json::Value) -> View {
        let mut snapshot = Snapshot::default();
        let object = json!({
            "metadata": { "name": "edge", "generation": 3 }, "spec": spec, "status": status,
        });
        snapshot.configs.insert("edge".into(), serde_json::from_value(object).unwrap());
        for (name, ready) in [("p0", "True"), ("p1", "False")] {
            let pod = json!({
                "metadata": { "name": name, "labels": { "app": "x" } },
                "status": {
                    "podIP": "10.0.0.1",
                    "conditions": [{ "type": "Ready", "status": ready }],
                },
            });
            snapshot.pods.insert(name.into(), serde_json::from_value(pod).unwrap());
        }
        View::new("ns", resolve(&snapshot, &Asked::default()))
    }

    fn app(name: &str) -> serde_json::Value {
        json!({ "schedulers": [{ "name": "a", "modelName": "m", "modelSelector": { "matchLabels": { "app": name } } }] })
    }

    #[test]
    fn readable_at_a_glance() {
        let status = json!({
            "observedGeneration": 3, "writer": "gw-1",
            "conditions": [
                { "type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "" },
                { "type": "Programmed", "status": "False", "reason": "Refused", "message": "one\ntwo", "lastTransitionTime": "" },
            ],
            "schedulers": [{ "name": "a", "message": "p0: vllm does not tell how many requests wait" }],
        });
        let expected = [
            "InferenceGatewayConfig ns/edge, generation 3, as gateway gw-1 sees it",
            "  Accepted        True",
            "  Programmed      False    Refused        one",
            "                                          two",
            "",
            "pool a (m): 1 of 2 pods ready",
            "  p0: vllm does not tell how many requests wait",
            "  p0                                       10.0.0.1:8000",
            "",
        ];
        assert_eq!(view(app("x"), status).table(), expected.join("\n"));
    }

    #[test]
    fn what_no_gateway_has_seen() {
        let none = view(app("y"), json!(null)).table();
        assert!(none.contains("generation 3: no gateway has said anything of it\n"), "{none}");
        assert!(none.contains("  no pod of this namespace has the labels app=y\n"), "{none}");
        let mut wrong = app("x");
        wrong["workers"] = json!(-1);
        let old = view(wrong, json!({ "observedGeneration": 2, "writer": "gw-1" })).table();
        assert!(old.contains("no gateway has seen it, this is of 2\n  spec.workers: "), "{old}");
        let left = view(app("x"), json!({ "observedGeneration": 3 })).table();
        assert!(left.contains("no gateway writes the status any more"), "{left}");
        let empty = View::new("ns", resolve(&Snapshot::default(), &Asked::default())).table();
        assert!(empty.starts_with("namespace ns has no such InferenceGatewayConfig"), "{empty}");
    }
}
