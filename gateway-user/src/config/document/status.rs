//! What a gateway reports of an object in a cluster. A file has no such part, and what stands there is never read.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What became of the object.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// The generation of the object that this was said of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Pools that are served.
    pub pools: u32,
    /// Pods that are ready, of those that the selectors match: `3/4`.
    #[schemars(length(max = 32))]
    pub pods: String,
    /// The gateway that says so, of all that follow the object; none after it has ended.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub writer: String,
    /// What holds of the object, each by its type: `Accepted`, `ResolvedRefs`, `Programmed`, `Ready`, and of our own
    /// `NoPods`, `SignalsMissing` and `FieldIgnored`.
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
    /// The pools.
    #[schemars(length(max = 200))]
    pub schedulers: Vec<SchedulerStatus>,
}

/// What became of one pool.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerStatus {
    /// Its name.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Pods that its selector matches, each as often as it has target ports, and pods that it lists.
    #[serde(default)]
    pub matched: u32,
    /// Those of them that may get requests.
    #[serde(default)]
    pub ready: u32,
    /// Pods of which the gateway that wrote this lacks something that choosing one needs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub without_signals: u32,
    /// What a person should know of it; empty if all is well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// One thing that holds of an object, does not, or is unknown; in Kubernetes' own form.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What may hold.
    #[serde(rename = "type")]
    #[schemars(length(max = 316))]
    pub kind: String,
    /// Whether it does: `True`, `False` or `Unknown`.
    #[schemars(length(max = 16))]
    pub status: String,
    /// The generation of the object that this was said of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When it last changed, as RFC 3339.
    #[schemars(length(max = 64))]
    pub last_transition_time: String,
    /// Why, for programs.
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// Why, for people.
    #[schemars(length(max = 32768))]
    pub message: String,
}
