//! One entry of `schedulers`: a pool, its pods, and how one of them is picked.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Opaque;
use super::policy::{SaturationLimits, WeightMap};
use super::upstream::{HealthCheck, PodTls};
use crate::config::RateLimits;
use crate::config::units::KubeDuration;

/// One pool: the pods that serve one base model.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scheduler {
    /// The pool's name.
    #[schemars(length(min = 1, max = 63), extend("format" = "name", "x-example" = "llama-8b"))]
    pub name: String,
    /// The base model, as clients name it in `model`. No two pools may share a name.
    #[schemars(
        length(min = 1, max = 253),
        extend("format" = "model", "x-example" = "meta-llama/Llama-3.1-8B-Instruct")
    )]
    pub model_name: String,
    /// Other names that the pods know the base model by (vLLM: `--served-model-name`). The name reaches them
    /// unchanged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 50),
        inner(length(min = 1, max = 253)),
        transform = model_items,
        extend("x-example" = ["llama-8b"])
    )]
    pub aliases: Vec<String>,
    /// Names of LoRA adapters served behind this model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 50),
        inner(length(min = 1, max = 253)),
        transform = model_items,
        extend("x-example" = ["support-tone"])
    )]
    pub lora_adapters: Vec<String>,
    /// The pods. An entry is a map, or in a file a text such as `"10.0.0.11:8000"`.
    #[serde(default)]
    #[schemars(length(min = 1, max = 4096))]
    pub pods: Vec<Pod>,
    /// The port of pods that name none.
    #[serde(default = "Scheduler::port")]
    #[schemars(range(min = 1, max = 65535), extend("format" = "port"))]
    pub target_port: u16,
    /// What pods speak.
    #[serde(default)]
    pub app_protocol: AppProtocol,
    /// With `appProtocol: https`, whom to trust, and what to show of the gateway. Files are read again when they change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<PodTls>,
    /// Where pods' metrics are read.
    #[serde(default)]
    pub metrics: Metrics,
    /// A page of each pod's that is asked for besides its metrics, and that tells whether it is well by answering with
    /// success. Without it, a pod is out when nothing listens, its metrics time out, or its answers to requests say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheck>,
    /// Where pods tell of each change of their prefix caches (vLLM, SGLang: `--kv-events-config`). Without it, what
    /// they hold is guessed from what was sent to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_events: Option<KvEvents>,
    /// A file with the key that the pods want (vLLM, SGLang: `--api-key`), sent to them as a bearer token with each request,
    /// in place of the client's, and with all that the gateway asks them itself. Read again when it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 4096), extend("format" = "path", "x-example" = "/etc/sluice/pods.key"))]
    pub api_key_file: Option<String>,
    /// How much all clients together may use; nothing is limited by default.
    #[serde(default, skip_serializing_if = "RateLimits::is_none")]
    pub limits: RateLimits,
    /// How pods compare: `latency` (early first tokens; the default with `mode: request`), `throughput`, or
    /// one of `spec.profiles`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        extend("format" = "name", "x-example" = "latency")
    )]
    pub profile: Option<String>,
    /// Instead of a profile, what each scorer counts for. One that is left out keeps its default; 0 turns it off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<WeightMap>,
    /// Instead of a profile, a file with an EndpointPickerConfig of the Gateway API inference extension or of
    /// llm-d; a relative path begins at this document's folder. `sluice check` says what it means here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096), extend("format" = "label"))]
    pub picker_config: Option<String>,
    /// When a pod takes no more requests.
    #[serde(default)]
    pub saturation: SaturationLimits,
    /// What is balanced. With `connection`, a client's whole connection goes to one pod's own socket, and the
    /// gateway reads nothing of it: for pods on this host, in the gateway's network namespace.
    #[serde(default)]
    pub mode: Mode,
    /// With `mode: connection`, the listener that serves this pool and no other: what connects there
    /// reaches a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), extend("format" = "name"))]
    pub listener: Option<String>,
    /// Labels of the pods in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-note" = "has no effect in a file: the pods are those listed"))]
    pub model_selector: Option<LabelSelector>,
    /// The managed product's picker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "llm-d", "x-note" = "has no effect: \
        the gateway picks the pod itself"))]
    pub scheduler: Option<Picker>,
    /// Whose metric names pods use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "vllm", "x-note" = "has no effect: \
        the engine is known by its metrics"))]
    pub engine_type: Option<Engine>,
    /// A ConfigMap with an EndpointPickerConfig, instead of weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-note" = "has no effect in a file: pickerConfig names a file with what it holds"))]
    pub config_map_ref: Option<ConfigMapRef>,
    /// Copies of the managed product's picker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2147483647), extend("default" = 2, "x-note" = "has no effect: \
        every worker picks the pod itself"))]
    pub replicas: Option<u32>,
    /// Environment variables of the managed product's picker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-note" = "has no effect: there is no picker of its own"))]
    pub env: Option<Vec<Opaque>>,
    /// Sources of such environment variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-note" = "has no effect: there is no picker of its own"))]
    pub env_from: Option<Vec<Opaque>>,
    /// Longest time for a whole request; `0s` is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-note" = "has no effect in this version: \
        limits.firstByteTimeout and limits.streamIdleTimeout bound an answer"))]
    pub route_timeout: Option<KubeDuration>,
    /// How much the managed product's picker logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 5), extend("x-note" = "has no effect: \
        the gateway has one log"))]
    pub log_level: Option<u32>,
}

impl Scheduler {
    /// The port of pods that name none.
    pub fn port() -> u16 {
        8000
    }
}

/// One model server endpoint.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-shorthand" = "endpoint"))]
pub struct Pod {
    /// Its IP address. Host names are not looked up.
    #[schemars(extend("format" = "ip", "x-example" = "10.0.0.11"))]
    pub address: IpAddr,
    /// Its port; the scheduler's `targetPort` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535), extend("format" = "port", "x-example" = 8000))]
    pub port: Option<u16>,
    /// Its name in logs, metrics and status; `address:port` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), extend("format" = "label"))]
    pub name: Option<String>,
    /// Its GPU. A name that is known, such as `h100` or `L40S`, tells its speed until that has been measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), extend("format" = "label", "x-example" = "h100"))]
    pub gpu: Option<String>,
    /// Lengths of prompts that it is meant for, in tokens, as `llm-d.ai/context-length-range` has them. For the
    /// weight `contextLength`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 21), extend("format" = "label", "x-example" = "0-8192"))]
    pub context_length_range: Option<String>,
}

/// What pods speak.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub enum AppProtocol {
    /// HTTP/1.1.
    #[default]
    #[serde(rename = "http")]
    Http,
    /// HTTP/1.1 over TLS, at every port where they are asked anything but KV events.
    #[serde(rename = "https")]
    Https,
    // Model servers that speak h2c speak HTTP/1.1 on the same port; one that does not fails loudly.
    /// HTTP/2 in clear text, which has no effect in this version: requests go out as HTTP/1.1.
    #[serde(rename = "kubernetes.io/h2c")]
    H2c,
}

/// Where pods' metrics are read.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Metrics {
    /// The port; each pod's own by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535), extend("format" = "port"))]
    pub port: Option<u16>,
    /// The path.
    #[schemars(length(min = 1, max = 1024), extend("format" = "path"))]
    pub path: String,
    /// Pause between scrapes of a busy pod; up to ten times that while no request is placed in its pool.
    #[schemars(extend("x-minimum" = "10ms", "x-maximum" = "1m"))]
    pub busy_interval: KubeDuration,
    /// Pause between scrapes of an idle pod; not below `busyInterval`.
    #[schemars(extend("x-minimum" = "10ms", "x-maximum" = "1m"))]
    pub idle_interval: KubeDuration,
    /// Signals older than this are unknown; above `idleInterval`.
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "1h"))]
    pub stale_after: KubeDuration,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            port: None,
            path: "/metrics".into(),
            busy_interval: KubeDuration(Duration::from_millis(50)),
            idle_interval: KubeDuration(Duration::from_secs(1)),
            stale_after: KubeDuration(Duration::from_secs(3)),
        }
    }
}

/// Where pods publish their KV events.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KvEvents {
    /// The port of each pod's ZeroMQ publisher, which has to listen there: an endpoint such as `tcp://*:5557`. Not for
    /// pods with several data-parallel ranks behind one port, as each of these publishes at a port of its own.
    #[schemars(range(min = 1, max = 65535), extend("format" = "port"))]
    pub port: u16,
    /// What the topics of its messages start with; all by default.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253), extend("format" = "label", "x-example" = "kv@"))]
    pub topic: String,
    /// The port where each pod sends old messages again (vLLM: `replay_endpoint`), so that one that was lost can be
    /// made up for; none by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535), extend("format" = "port", "x-example" = 5558))]
    pub replay_port: Option<u16>,
}

impl Default for KvEvents {
    fn default() -> Self {
        Self { port: 5557, topic: String::new(), replay_port: None }
    }
}

/// What is balanced.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Each request by itself.
    #[default]
    Request,
    /// Each connection as a whole.
    Connection,
}

/// Which labels pods must have: all that is asked here. In Kubernetes' own form.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LabelSelector {
    /// Labels with their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Further demands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub match_expressions: Vec<Requirement>,
}

/// What is asked of one label.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Requirement {
    /// The label.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// What is asked of it.
    pub operator: Operator,
    /// With `In` and `NotIn`, the values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(max = 63)))]
    pub values: Vec<String>,
}

/// What is asked of a label.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub enum Operator {
    /// It has one of the values.
    In,
    /// It has none of them, or is not there.
    NotIn,
    /// It is there.
    Exists,
    /// It is not there.
    DoesNotExist,
}

/// The managed product's picker.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Picker {
    /// That of llm-d.
    LlmD,
    /// That of the Gateway API inference extension.
    Epp,
}

/// Whose metric names pods use.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

/// A key of a ConfigMap.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConfigMapRef {
    /// The ConfigMap's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The key in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), extend("default" = "default-plugins.yaml"))]
    pub key: Option<String>,
}

/// Says of a list that its entries are models' names.
fn model_items(schema: &mut schemars::Schema) {
    if let Some(items) = schema.get_mut("items").and_then(serde_json::Value::as_object_mut) {
        items.insert("format".into(), "model".into());
    }
}
