//! The document: `InferenceGatewayConfig` as users write it, in a file or in Kubernetes.
//!
//! These types are the one source of the schema: checks, reference page and default document come
//! from it (`schema`, `shape`, `reference`). A field that has no effect in this version says so in
//! `x-note`, which becomes a note at its line; one that must not be ignored says why in
//! `x-refused`, which is an error there. The daemon does not read these types; `effective` turns
//! them into [`Config`](super::Config).

mod auth;
mod managed;
mod policy;
mod rewrite;
mod scheduler;
mod status;
mod upstream;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::auth::{
    ApiKeys, Auth, AuthMode, Claim, ClaimType, Jwt, LocalJwks, Provider, RemoteJwks,
};
pub use self::managed::{
    BackendRef, Bbr, Certificate, MetricsExport, Observability, PodDefaults, Tls,
};
pub(super) use self::policy::exact;
pub use self::policy::{
    ActiveRequestParameters, Cost, LoadAwareParameters, PickerName, PrefixParameters, Profile,
    SaturationLimits, ScorerParameters, TokenLoadParameters, WeightMap,
};
pub use self::rewrite::{
    MatchType, ModelMatch, ModelRewrite, Objective, PoolKind, PoolRef, RewriteMatch, RewriteRule,
    RewriteTarget,
};
pub use self::scheduler::{
    AppProtocol, ConfigMapRef, Engine, KvEvents, LabelSelector, Metrics, Mode, Operator, Picker,
    Pod, Requirement, Scheduler,
};
pub use self::status::{Condition, SchedulerStatus, Status};
pub use self::upstream::{HealthCheck, PodTls, RetryBudget};
use super::units::{Block, KubeDuration, Size};
use super::{KernelLog, Protocol, Steering};

/// One gateway: where it listens and which pools it serves.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InferenceGatewayConfig {
    /// The schema's version. A document of the managed product is taken as it is.
    #[schemars(extend("x-example" = "gateway.sluice.dev/v1alpha1"))]
    pub api_version: ApiVersion,
    /// The kind of object.
    #[schemars(extend("x-example" = "InferenceGatewayConfig"))]
    pub kind: Kind,
    /// The object's name and what Kubernetes keeps with it.
    pub metadata: Metadata,
    /// The settings.
    pub spec: Spec,
    /// What Kubernetes reports of an object; read back with it, never used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Opaque>,
}

/// The schema's version.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub enum ApiVersion {
    /// Ours.
    #[serde(rename = "gateway.sluice.dev/v1alpha1")]
    Sluice,
    /// The managed product's.
    #[serde(rename = "inference.sagemaker.aws.amazon.com/v1alpha1")]
    Managed,
}

/// The kind of object.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub enum Kind {
    /// The only one.
    InferenceGatewayConfig,
}

/// Kubernetes' object metadata; a gateway uses the name only.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
// What a cluster adds to an object; it comes along when an object is read back from one.
#[schemars(extend("x-ignored" = [
    "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers",
    "generateName", "generation", "managedFields", "ownerReferences", "resourceVersion",
    "selfLink", "uid"
]))]
pub struct Metadata {
    /// The gateway's name.
    #[schemars(length(min = 1, max = 253), extend("format" = "name", "x-example" = "edge"))]
    pub name: String,
    /// The object's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), extend("format" = "name"))]
    pub namespace: Option<String>,
    /// Labels of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<Opaque>,
    /// Annotations of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Opaque>,
}

/// The settings.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// Where clients connect.
    #[serde(default = "Spec::listeners")]
    // Steering has 64 numbers for listeners, and each takes one for IPv4 and one for IPv6.
    #[schemars(length(min = 1, max = 32))]
    pub listeners: Vec<Listener>,
    /// Where operators connect: `/metrics`, `/healthz`, `/readyz`, `/status`.
    #[serde(default)]
    pub admin: Admin,
    /// How the model is read from a request's body.
    #[serde(default)]
    pub bbr: Bbr,
    /// What the kernel may do.
    #[serde(default)]
    pub kernel: Kernel,
    /// How long, how much, how often.
    #[serde(default)]
    pub limits: Limits,
    /// Other gateways before the same pods, told what this one has in flight there and telling it the same. Without
    /// it, each gateway sees of the others' requests what the pods' metrics show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<Exchange>,
    /// Worker threads; 0 is one for each core.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1024))]
    pub workers: u32,
    /// One line of JSON in the log for each request that reached a pool or was refused.
    #[serde(default)]
    pub access_log: bool,
    /// Asks pods for the usage of every stream of chat or completions, so that all tokens are counted: also where the
    /// client has not asked, who then does not get it. Such streams go through the gateway's process.
    #[serde(default)]
    pub include_usage: bool,
    /// For looking into what the gateway does; all off by default.
    #[serde(default)]
    pub debug: Debugging,
    /// The pools, one for each base model.
    #[schemars(length(min = 1, max = 100))]
    pub schedulers: Vec<Scheduler>,
    /// Ways to compare pods that a scheduler's `profile` may name, besides `latency` and `throughput`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 132))]
    pub profiles: Vec<Profile>,
    /// Models that are served as others: canaries, and adapters under one name. Objects InferenceModelRewrite come behind
    /// these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub model_rewrites: Vec<ModelRewrite>,
    /// How important requests are, by the objective that they name. Objects InferenceObjective come behind these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub objectives: Vec<Objective>,
    /// HTTPS for clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// Who may send requests; everyone who reaches the port by default, which the log warns of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// The managed product's telemetry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observability: Option<Observability>,
    /// Kubernetes settings of the managed product's own pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-note" = "has no effect: the gateway is one process and makes no pods"))]
    pub pod_defaults: Option<PodDefaults>,
}

impl Spec {
    /// One listener, `0.0.0.0:8080`.
    pub fn listeners() -> Vec<Listener> {
        vec![Listener { name: Some("http".into()), ..Listener::default() }]
    }
}

/// One address that clients connect to.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Listener {
    /// Its name in logs and metrics; `http-PORT` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), extend("format" = "name", "x-example" = "http"))]
    pub name: Option<String>,
    /// The address to bind. `::` takes IPv4 as well.
    #[serde(default = "Listener::address")]
    #[schemars(extend("format" = "ip"))]
    pub address: IpAddr,
    /// The port to bind; 0 lets the system choose.
    #[serde(default = "Listener::port")]
    #[schemars(range(min = 0, max = 65535), extend("format" = "port"))]
    pub port: u16,
    /// What is spoken.
    #[serde(default)]
    pub protocol: Protocol,
    /// Further addresses that are served without being bound, such as a service's virtual address:
    /// sk_lookup steers them here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub virtual_addresses: Vec<VirtualAddress>,
}

impl Listener {
    fn address() -> IpAddr {
        Ipv4Addr::UNSPECIFIED.into()
    }

    fn port() -> u16 {
        8080
    }
}

impl Default for Listener {
    fn default() -> Self {
        Self {
            name: None,
            address: Self::address(),
            port: Self::port(),
            protocol: Protocol::default(),
            virtual_addresses: Vec::new(),
        }
    }
}

/// Addresses served without being on an interface. Without steering, single ones are bound; blocks are not
/// served.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VirtualAddress {
    /// One address, or a block such as `10.96.0.0/16`.
    pub address: Block,
    /// The port.
    #[schemars(range(min = 1, max = 65535), extend("format" = "port"))]
    pub port: u16,
}

/// Where operators connect.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Admin {
    /// The address to bind. These pages carry no authentication: think before opening them.
    #[serde(default = "Admin::address")]
    #[schemars(extend("format" = "ip"))]
    pub address: IpAddr,
    /// The port to bind; 0 lets the system choose.
    #[serde(default = "Admin::port")]
    #[schemars(range(min = 0, max = 65535), extend("format" = "port"))]
    pub port: u16,
}

impl Admin {
    fn address() -> IpAddr {
        Ipv4Addr::LOCALHOST.into()
    }

    fn port() -> u16 {
        9901
    }
}

impl Default for Admin {
    fn default() -> Self {
        Self { address: Self::address(), port: Self::port() }
    }
}

/// What the kernel may do.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Kernel {
    /// Whether sk_lookup steers connections to the workers.
    #[serde(default)]
    pub steering: Steering,
    /// How much the kernel programs say in the log.
    #[serde(default)]
    pub log_level: KernelLog,
    /// How a response may travel: by the first of `local`, `splice` and `relay` that fits it and is named here,
    /// in whichever order. `relay` must be among them.
    #[serde(default = "Kernel::paths")]
    #[schemars(length(min = 1, max = 3))]
    pub paths: Vec<FlowPath>,
}

impl Kernel {
    fn paths() -> Vec<FlowPath> {
        vec![FlowPath::Local, FlowPath::Splice, FlowPath::Relay]
    }
}

impl Default for Kernel {
    fn default() -> Self {
        Self {
            steering: Steering::default(),
            log_level: KernelLog::default(),
            paths: Self::paths(),
        }
    }
}

/// How a response travels from a pod to a client.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FlowPath {
    /// Within the kernel, from the pod's own socket: for pods on the gateway's node.
    Local,
    /// Within the kernel, from the gateway's socket: for pods anywhere.
    Splice,
    /// Through the gateway's process; always works.
    Relay,
}

/// How long, how much, how often.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limits {
    /// Client connections at once, all listeners together.
    #[schemars(range(min = 1, max = 1048576))]
    pub max_connections: u32,
    /// Of these, those of one client address (of IPv6, of one /64); all that come through one load balancer have its.
    #[schemars(range(min = 1, max = 1048576))]
    pub max_connections_per_address: u32,
    /// Requests at once on one HTTP/2 connection.
    #[schemars(range(min = 1, max = 65535))]
    pub max_streams_per_connection: u32,
    /// Longest request head.
    #[schemars(extend("x-minimum" = "1Ki", "x-maximum" = "1Mi"))]
    pub max_head_bytes: Size,
    /// Memory for the request bodies of all connections together. An eighth of it is for bodies up to 256 KiB.
    #[schemars(extend("x-minimum" = "1Mi", "x-maximum" = "1Ti"))]
    pub max_buffered_bytes: Size,
    /// Longest that a request body in gzip or zstd may be when decoded, which is done to see what it asks for; it is
    /// forwarded as it came. Never more than `maxBufferedBytes`.
    #[schemars(extend("x-minimum" = "1Ki", "x-maximum" = "4Gi"))]
    pub max_decompressed_bytes: Size,
    /// From a connection's start, or a further request's first byte, to the end of the head; up to a quarter more, by
    /// lot.
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "1h"))]
    pub header_timeout: KubeDuration,
    /// In each such span, which is up to a quarter longer by lot, 1 KiB/s of a request's body must come, and the whole in
    /// twenty of them.
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "1h"))]
    pub body_timeout: KubeDuration,
    /// How long a connection may wait between requests.
    #[schemars(extend("x-minimum" = "1s", "x-maximum" = "24h"))]
    pub idle_timeout: KubeDuration,
    /// For the TCP connection to a pod.
    #[schemars(extend("x-minimum" = "10ms", "x-maximum" = "1m"))]
    pub connect_timeout: KubeDuration,
    /// From when a request is sent to the first content of the pod's answer; long, as a long prefill is silent.
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "24h"))]
    pub first_byte_timeout: KubeDuration,
    /// Longest silence within a pod's answer, and longest wait for a client that does not read it.
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "24h"))]
    pub stream_idle_timeout: KubeDuration,
    /// How often the client of a stream gets a comment while it waits for the first content, from the first such span
    /// on. It is told 200 then, whatever comes: an error is an event of the stream. `0s` is never.
    #[schemars(extend("x-minimum" = "0s", "x-maximum" = "1h"))]
    pub keep_alive_comments: KubeDuration,
    /// How many pods are asked for one request; those that refuse the connection do not count.
    #[schemars(range(min = 1, max = 10))]
    pub max_attempts: u32,
    /// How many of a pool's requests may be sent to another pod after one has failed them, so that what makes all pods fail
    /// is not made worse. Those that refuse the connection do not count.
    pub retry_budget: RetryBudget,
    /// How long streams may go on after SIGTERM.
    #[schemars(extend("x-minimum" = "0s", "x-maximum" = "24h"))]
    pub drain_timeout: KubeDuration,
}

impl Default for Limits {
    fn default() -> Self {
        let seconds = |count| KubeDuration(Duration::from_secs(count));
        Self {
            max_connections: 65_536,
            max_streams_per_connection: 100,
            max_connections_per_address: 16_384,
            max_head_bytes: Size(64 << 10),
            max_buffered_bytes: Size(1 << 30),
            max_decompressed_bytes: Size(64 << 20),
            header_timeout: seconds(10),
            body_timeout: seconds(30),
            idle_timeout: seconds(300),
            connect_timeout: seconds(2),
            first_byte_timeout: seconds(30 * 60),
            stream_idle_timeout: seconds(5 * 60),
            keep_alive_comments: seconds(0),
            max_attempts: 3,
            retry_budget: RetryBudget::default(),
            drain_timeout: seconds(30),
        }
    }
}

/// Gateways that tell each other what they have in flight, by UDP. All that they say is signed with one key.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Exchange {
    /// The address to hear the others at.
    #[serde(default = "Exchange::address")]
    #[schemars(extend("format" = "ip"))]
    pub address: IpAddr,
    /// The UDP port there.
    #[serde(default = "Exchange::port")]
    #[schemars(range(min = 1, max = 65535), extend("format" = "port"))]
    pub port: u16,
    /// The others, as `ip:port`. This gateway may be among them, so that all can have the same list.
    #[schemars(length(min = 1, max = 64), inner(length(min = 3, max = 64)), extend("x-example" = ["10.0.0.12:9903"]))]
    pub peers: Vec<String>,
    /// A file with the key that all of them have, at least 16 bytes; read at start. Who else has it can mislead them about
    /// the pods' load and caches.
    #[schemars(length(min = 2, max = 4096), extend("format" = "path", "x-example" = "/etc/sluice/exchange.key"))]
    pub key_file: String,
}

impl Exchange {
    fn address() -> IpAddr {
        Ipv4Addr::UNSPECIFIED.into()
    }

    fn port() -> u16 {
        9903
    }
}

/// For looking into what the gateway does.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Debugging {
    /// Each response of a pod, and each 429 or 503 for want of one, carries `x-sluice-explain`: the pods with their filters and scores, and
    /// why the one was picked. It names pods and their load to whoever sends requests.
    pub explain_header: bool,
}

/// A part of another schema (Kubernetes' own); accepted as it is.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Opaque(pub serde_json::Value);

impl JsonSchema for Opaque {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Opaque".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
    }
}
