//! As much of Kubernetes' objects as the gateway needs.
//!
//! A pod's whole object is tens of kilobytes, of which this keeps some hundred bytes. Whatever is missing is empty: an
//! object that a newer API server sends in another form must not end the watch that it came by.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::config::document::LabelSelector;

/// What every object has.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    /// Its name, unique among its kind in a namespace.
    pub name: String,
    /// Its namespace; none of a node.
    pub namespace: String,
    /// What no other object ever has, not even one of the same name.
    pub uid: String,
    /// Which state of the object this is.
    pub resource_version: String,
    /// Which state of its specification.
    pub generation: i64,
    /// When it was made, as RFC 3339; of two, the smaller text is the older one.
    pub creation_timestamp: String,
    /// Set when it is being deleted.
    pub deletion_timestamp: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
}

impl Meta {
    /// Whether more has changed since `before` than what is only said of the object, as its status.
    #[must_use]
    pub fn has_changed(&self, before: &Self) -> bool {
        let resource_version = self.resource_version.clone();
        *self != Self { resource_version, ..before.clone() }
    }
}

/// A pod.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Pod {
    /// Its name, labels and so on.
    pub metadata: Meta,
    /// Where it runs.
    pub spec: PodSpec,
    /// What became of it.
    pub status: PodStatus,
}

/// Where a pod runs.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Its node; empty until it has one.
    pub node_name: String,
}

/// What became of a pod.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// Its address; empty until it has one.
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    /// What holds of it.
    pub conditions: Vec<Condition>,
}

/// What holds of an object, or does not.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Condition {
    /// What.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
}

impl Pod {
    /// Whether Kubernetes says that it may get requests.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let ready = |condition: &Condition| condition.kind == "Ready" && condition.status == "True";
        self.metadata.deletion_timestamp.is_none() && self.status.conditions.iter().any(ready)
    }
}

/// A node, of which only labels are asked for.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Node {
    /// Its name and labels.
    pub metadata: Meta,
}

impl Node {
    /// The GPUs that it has, as the label of whoever knows them calls them.
    #[must_use]
    pub fn gpu(&self) -> Option<&str> {
        GPU_LABELS.iter().find_map(|label| self.metadata.labels.get(*label)).map(String::as_str)
    }
}

/// An `InferenceGatewayConfig`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct GatewayConfig {
    /// Its name, generation and so on.
    pub metadata: Meta,
    /// What the user wrote; [`config`](crate::config) knows what it means.
    pub spec: Value,
    /// What gateways said of it before.
    pub status: Value,
}

/// An `InferencePool`, of version v1 or v1alpha2.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct InferencePool {
    /// Its name and so on.
    pub metadata: Meta,
    /// Which pods are in it.
    pub spec: PoolSpec,
    /// What gateways and other controllers said of it.
    pub status: PoolStatus,
}

/// What was said of a pool.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct PoolStatus {
    /// An entry for each parent, whoever wrote it. v1alpha2 has it in another form, which nobody reads.
    pub parents: Value,
}

/// Which pods are in a pool: the fields of both versions.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolSpec {
    selector: BTreeMap<String, Value>,
    target_ports: Vec<TargetPort>,
    target_port_number: Option<u16>,
    /// What its pods speak, where that is not HTTP/1.1.
    pub app_protocol: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct TargetPort {
    number: u16,
}

impl PoolSpec {
    /// The labels that its pods have.
    #[must_use]
    pub fn selector(&self) -> LabelSelector {
        // v1 has `matchLabels` in between, v1alpha2 the labels themselves.
        let labels = match self.selector.get("matchLabels") {
            Some(Value::Object(labels)) => labels.iter().collect::<Vec<_>>(),
            _ => self.selector.iter().collect(),
        };
        let text =
            |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
        LabelSelector {
            match_labels: labels.into_iter().filter_map(text).collect(),
            match_expressions: Vec::new(),
        }
    }

    /// The ports of each pod, every one of which is a model server by itself.
    #[must_use]
    pub fn ports(&self) -> Vec<u16> {
        let mut ports: Vec<u16> = self.target_ports.iter().map(|port| port.number).collect();
        ports.extend(self.target_port_number.filter(|_| self.target_ports.is_empty()));
        ports.retain(|port| *port != 0);
        ports
    }
}

/// Labels of nodes that name their GPUs, the most exact ones first: NVIDIA's and AMD's own, then those of clouds.
const GPU_LABELS: [&str; 6] = [
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "beta.amd.com/gpu.product-name",
    "eks.amazonaws.com/instance-gpu-name",
    "karpenter.k8s.aws/instance-gpu-name",
    "cloud.google.com/gke-accelerator",
];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_may_get_requests_or_not() {
        let ready = json!([{ "type": "Initialized", "status": "True" }, { "type": "Ready", "status": "True" }]);
        for (pod, expected) in [
            (json!({ "status": { "conditions": ready } }), true),
            (
                json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }),
                false,
            ),
            (
                json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] } }),
                false,
            ),
            (
                json!({ "status": { "conditions": [{ "type": "ContainersReady", "status": "True" }] } }),
                false,
            ),
            (json!({ "status": { "phase": "Running" } }), false),
            (json!({}), false),
            (
                json!({
                    "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" },
                    "status": { "conditions": ready },
                }),
                false,
            ),
        ] {
            let read: Pod = serde_json::from_value(pod.clone()).unwrap();
            assert_eq!(read.is_ready(), expected, "{pod}");
        }
    }

    #[test]
    fn a_status_changes_nothing_else() {
        let meta = |generation, version: &str| Meta {
            generation,
            resource_version: version.into(),
            ..Meta::default()
        };
        assert!(!meta(1, "2").has_changed(&meta(1, "1")));
        assert!(meta(2, "2").has_changed(&meta(1, "1")));
        let labels = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        assert!(Meta { labels, ..meta(1, "2") }.has_changed(&meta(1, "1")));
    }

    #[test]
    fn both_versions_of_a_pool() {
        let labels = BTreeMap::from([("app".to_owned(), "vllm".to_owned())]);
        for (spec, ports) in [
            (
                json!({ "selector": { "matchLabels": { "app": "vllm" } }, "targetPorts": [{ "number": 8000 }, { "number": 8001 }] }),
                vec![8000, 8001],
            ),
            (json!({ "selector": { "app": "vllm" }, "targetPortNumber": 9000 }), vec![9000]),
            (json!({ "selector": { "app": "vllm" } }), vec![]),
            (json!({ "selector": { "app": "vllm" }, "targetPorts": [{}] }), vec![]),
        ] {
            let read: PoolSpec = serde_json::from_value(spec.clone()).unwrap();
            assert_eq!(read.selector().match_labels, labels, "{spec}");
            assert_eq!(read.ports(), ports, "{spec}");
        }
    }

    #[test]
    fn the_gpus_of_a_node() {
        for (labels, gpu) in [
            (json!({}), None),
            (json!({ "cloud.google.com/gke-accelerator": "nvidia-l4" }), Some("nvidia-l4")),
            (
                json!({ "cloud.google.com/gke-accelerator": "nvidia-l4", "nvidia.com/gpu.product": "NVIDIA-L4" }),
                Some("NVIDIA-L4"),
            ),
        ] {
            let node: Node =
                serde_json::from_value(json!({ "metadata": { "labels": labels } })).unwrap();
            assert_eq!(node.gpu(), gpu, "{labels}");
        }
    }
}
