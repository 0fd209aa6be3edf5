//! Fields that the managed product has outside its schedulers, with its names, bounds and defaults.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Opaque;
use crate::config::units::Size;

/// How the model is read from a request's body ("body-based router").
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bbr {
    /// Whether requests go by their model. Must be true with two schedulers or more.
    // A note: with one pool, a request for another model gets 404 rather than that pool's own
    // refusal.
    #[serde(default = "Bbr::enabled")]
    #[schemars(extend("x-unless" = true, "x-note" = "has no effect: the model is read always, \
        and an unknown one gets 404"))]
    pub enabled: bool,
    /// Copies of the managed product's router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2147483647), extend("x-note" = "has no effect: \
        every worker reads the model itself"))]
    pub replicas: Option<u32>,
    /// Longest request body.
    #[serde(default = "Bbr::max_body")]
    #[schemars(extend("x-minimum" = "1", "x-maximum" = "256Mi"))]
    pub max_request_body_bytes: Size,
    /// Where requests go that match no scheduler.
    // A note: such a request gets 404, and reaches no pod that it was not meant for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-note" = "has no effect in this version: \
        a request for an unknown model gets 404"))]
    pub default_backend: Option<BackendRef>,
}

impl Bbr {
    fn enabled() -> bool {
        true
    }

    fn max_body() -> Size {
        // The managed product's default is its bound, 256 MiB: too much to hold for one request unasked.
        Size(64 << 20)
    }
}

impl Default for Bbr {
    fn default() -> Self {
        Self {
            enabled: Self::enabled(),
            replicas: None,
            max_request_body_bytes: Self::max_body(),
            default_backend: None,
        }
    }
}

/// A service by name.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendRef {
    /// The service's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535), extend("format" = "port", "default" = 8000))]
    pub port: Option<u16>,
}

/// HTTPS for clients.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tls {
    /// A certificate in AWS Certificate Manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048), extend("x-note" = "has no effect: the certificate is shown by the load balancer in front"))]
    pub acm_arn: Option<String>,
    /// What listeners with `protocol: https` show. The first one that is for the name a client asks for; without one,
    /// the first of all. The files are read again when they change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub certificates: Vec<Certificate>,
    /// Clients must show a certificate that one of those in this PEM file has signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096), extend("format" = "path", "x-example" = "/etc/sluice/clients-ca.crt"))]
    pub client_ca_file: Option<String>,
}

/// A certificate with its key, as a Kubernetes Secret of type `kubernetes.io/tls` holds them.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Certificate {
    /// PEM: the certificate, and behind it those that lead to one that clients trust.
    #[schemars(length(min = 1, max = 4096), extend("format" = "path", "x-example" = "/etc/sluice/tls/tls.crt"))]
    pub certificate_file: String,
    /// PEM: its private key.
    #[schemars(length(min = 1, max = 4096), extend("format" = "path", "x-example" = "/etc/sluice/tls/tls.key"))]
    pub key_file: String,
}

/// The managed product's telemetry.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Observability {
    /// Its metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MetricsExport>,
}

/// The managed product's metrics.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MetricsExport {
    /// Whether they are collected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true, "x-unless" = true, "x-note" = "has no effect: \
        the admin address serves metrics always"))]
    pub enabled: Option<bool>,
}

/// Kubernetes settings of the managed product's own pods.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodDefaults {
    /// Requests and limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Opaque>,
    /// Labels of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Taints that are tolerated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerations: Option<Vec<Opaque>>,
    /// Where the pods may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Opaque>,
    /// Labels of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Environment variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<Vec<Opaque>>,
    /// Sources of environment variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_from: Option<Vec<Opaque>>,
}
