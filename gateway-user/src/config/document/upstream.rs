//! How pods are spoken to, beyond their addresses.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::units::KubeDuration;

/// TLS to the pods of a pool, with `appProtocol: https`. The files are read again when they change; connections keep what
/// they were made with.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PodTls {
    /// A file with the certificates that vouch for the pods'; the system's by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 2, max = 4096),
        extend("format" = "path", "x-example" = "/etc/sluice/pods-ca.crt")
    )]
    pub ca_file: Option<String>,
    /// The name that pods' certificates must be for, and that they are asked for; each pod's IP address by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        extend("format" = "label", "x-example" = "llama.models.svc")
    )]
    pub server_name: Option<String>,
    /// Takes any certificate: whoever is on the way to a pod can read requests and answer them.
    #[schemars(extend("x-unless" = false, "x-note" = "whoever answers at a pod's address is taken for the pod"))]
    pub insecure_skip_verify: bool,
    /// PEM: the certificate, and its chain, that the gateway shows to pods that ask for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 4096), extend("format" = "path"))]
    pub certificate_file: Option<String>,
    /// PEM: its private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 4096), extend("format" = "path"))]
    pub key_file: Option<String>,
}

/// How many of a pool's requests may be sent to another pod.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RetryBudget {
    /// As a share of the pool's requests of the last ten seconds, or of those in flight where these are more. With a half,
    /// all that was at one of two pods may be tried at the other.
    #[schemars(range(min = 0.0, max = 10.0))]
    pub ratio: f32,
    /// And so many in each second.
    #[schemars(range(min = 0, max = 1000000))]
    pub min_per_second: u32,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self { ratio: 0.5, min_per_second: 10 }
    }
}

/// How pods are asked whether they are well.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HealthCheck {
    /// The path, at the port for requests. vLLM's `/health` says nothing of a shutdown under way; SGLang's
    /// `/health_generate` has the engine make a token.
    #[schemars(length(min = 1, max = 1024), extend("format" = "path"))]
    pub path: String,
    /// From one check to the next; up to a tenth less, by lot.
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "1h"))]
    pub interval: KubeDuration,
    /// For the whole answer, connecting included; not above `interval`.
    #[schemars(extend("x-minimum" = "10ms", "x-maximum" = "1m"))]
    pub timeout: KubeDuration,
    /// Checks in a row that must fail for a pod to get no more requests.
    #[schemars(range(min = 1, max = 100))]
    pub unhealthy_after: u32,
    /// Checks in a row that must succeed for it to get some again.
    #[schemars(range(min = 1, max = 100))]
    pub healthy_after: u32,
}

impl Default for HealthCheck {
    fn default() -> Self {
        Self {
            path: "/health".into(),
            interval: KubeDuration(Duration::from_secs(5)),
            timeout: KubeDuration(Duration::from_secs(2)),
            unhealthy_after: 3,
            healthy_after: 2,
        }
    }
}
