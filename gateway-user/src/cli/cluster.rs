//! `sluice status --kubernetes`: what an `InferenceGatewayConfig` comes to and what the gateways say of it, from the API
//! server. No gateway is asked.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize as _, Serialize};
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

use super::say;
use crate::config::document::Status;
use crate::discover::cluster::{CONFIGS, PODS};
use crate::discover::{Cluster, Options, Resolved, Trouble};

/// Reads and prints. It is a failure that the object which was asked for is not there, or cannot be read.
pub(super) fn run(options: &Options, json: bool) -> ExitCode {
    let view = match read(options) {
        Ok(view) => view,
        Err(error) => return failed(&error),
    };
    let page = match json {
        true => serde_json::to_string(&view).map_err(anyhow::Error::from),
        false => Ok(view.table()),
    };
    let printed = match page {
        Ok(page) => say(&page),
        Err(error) => failed(&error),
    };
    let is_missing = view.name.is_none() && options.name.is_some();
    if is_missing || view.lacks(CONFIGS) { ExitCode::FAILURE } else { printed }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("sluice: {error:#}");
    ExitCode::FAILURE
}

fn read(options: &Options) -> anyhow::Result<View> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let mut cluster = Cluster::follow(options).await?;
        let hearing = cluster.hearing();
        // What fails again and again is not waited for to the end.
        let given_up = async {
            sleep(ENOUGH).await;
            let end = Instant::now() + PATIENCE.saturating_sub(ENOUGH);
            while Instant::now() < end && hearing.troubles().iter().all(is_answer) {
                sleep(LOOK).await;
            }
        };
        tokio::select! {
            resolved = cluster.next(None) => {
                Ok(View::new(&cluster.namespace, resolved, &hearing.troubles()))
            }
            () = given_up => {
                let mut why = String::from("the API server does not answer all questions");
                for Trouble { kind, message, .. } in hearing.troubles() {
                    let _ = write!(why, "\n  {kind}: {message}"); // a String takes all
                }
                anyhow::bail!(why)
            }
        }
    })
}

/// Whether the API server has said that it does not tell, and will not in a moment.
fn is_answer(trouble: &Trouble) -> bool {
    matches!(trouble.code, Some(403 | 404))
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
    /// What could not be read, and why.
    unknown: Vec<Unknown>,
}

#[derive(Debug, Serialize)]
struct Unknown {
    kind: &'static str,
    why: String,
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
    fn new(namespace: &str, resolved: Resolved, troubles: &[Trouble]) -> Self {
        // Most clusters lack some kind of object, and then it has none.
        let matters = |trouble: &&Trouble| trouble.code != Some(404) || trouble.kind == CONFIGS;
        let unknown: Vec<_> = (troubles.iter().filter(matters))
            .map(|trouble| Unknown { kind: trouble.kind, why: trouble.message.clone() })
            .collect();
        let has_pods = unknown.iter().all(|unknown| unknown.kind != PODS);
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
                    // What is said of pods that nobody has read is not so.
                    findings: (facts.findings.iter().filter(|_| has_pods))
                        .map(ToString::to_string)
                        .collect(),
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
            unknown,
        }
    }

    /// Whether this kind of objects could not be read.
    fn lacks(&self, kind: &str) -> bool {
        self.unknown.iter().any(|unknown| unknown.kind == kind)
    }

    /// For people.
    fn table(&self) -> String {
        let mut out = String::new();
        let Self { namespace, name, generation, errors, status, pools, unknown } = self;
        // Writing to a String cannot fail.
        let _ = match (name, pools.is_empty()) {
            (Some(name), _) => {
                writeln!(out, "InferenceGatewayConfig {namespace}/{name}{}", self.said())
            }
            (None, _) if self.lacks(CONFIGS) => writeln!(out, "namespace {namespace}"),
            (None, true) => writeln!(
                out,
                "namespace {namespace} has no such InferenceGatewayConfig, and no InferencePool"
            ),
            (None, false) => writeln!(
                out,
                "namespace {namespace} has InferencePools and no InferenceGatewayConfig, so nothing has a status"
            ),
        };
        for Unknown { kind, why } in unknown {
            let _ = writeln!(out, "  {kind} cannot be read: {why}");
        }
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
            let count = match self.lacks(PODS) {
                true => "pods not known".to_owned(),
                false => format!("{} of {} pods ready", pool.ready, pool.matched),
            };
            let _ = writeln!(out, "\npool {}{model}: {count}", pool.name);
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
/// For what fails, and how often that is looked at after this.
const ENOUGH: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(100);
/// Columns before a condition's message.
const INDENT: usize = 42;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::discover::resolve::Asked;
    use crate::discover::{Snapshot, resolve};

    fn view(spec: serde_json::Value, status: serde_json::Value) -> View {
        view_without(spec, status, &[])
    }

    fn view_without(
        spec: serde_json::Value,
        status: serde_json::Value,
        troubles: &[Trouble],
    ) -> View {
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
        View::new("ns", resolve(&snapshot, &Asked::default()), troubles)
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
        let empty = empty(&[]).table();
        assert!(empty.starts_with("namespace ns has no such InferenceGatewayConfig"), "{empty}");
    }

    fn empty(troubles: &[Trouble]) -> View {
        View::new("ns", resolve(&Snapshot::default(), &Asked::default()), troubles)
    }

    #[test]
    fn what_cannot_be_read_is_not_said_to_be_none() {
        let trouble = |kind, code| Trouble { kind, code: Some(code), message: "no".into() };
        let page = view_without(app("y"), json!(null), &[trouble(PODS, 403)]).table();
        assert!(page.contains("  Pods cannot be read: no\n"), "{page}");
        assert!(page.contains("pool a (m): pods not known\n"), "{page}");
        assert!(!page.contains("no pod of this namespace"), "{page}");
        for code in [403, 404] {
            let page = empty(&[trouble(CONFIGS, code)]).table();
            let expected = "namespace ns\n  InferenceGatewayConfigs cannot be read: no\n";
            assert_eq!(page, expected, "{code}");
        }
        // Not every cluster has the inference extension.
        assert!(empty(&[trouble("InferencePools", 404)]).unknown.is_empty());
        assert!(empty(&[trouble("InferencePools", 403)]).lacks("InferencePools"));
    }
}
