//! How a pool's pods are spoken to, beyond their addresses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
