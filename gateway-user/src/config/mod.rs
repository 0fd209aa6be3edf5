//! The configuration: one `InferenceGatewayConfig`, from a file or from Kubernetes.
//!
//! Here are the effective settings, which the rest of the daemon reads. What users write is the
//! [`document`], and its types are the one source of the schema; the names, bounds and defaults of
//! the managed product's fields are kept, ours stand beside them and are all optional. A text
//! becomes a [`Config`] in these steps:
//!
//! 1. `tree`: YAML to a tree with places; size, depth and aliases bounded.
//! 2. `shape`: the tree against the schema; unknown fields, types and bounds, all of them.
//! 3. `effective`: the document to a [`Config`]; defaults, and what no single field can tell.
//!
//! What is accepted but has no effect becomes a [`Note`]; nothing is dropped in silence. What would
//! be unsafe to ignore is an error. [`parse`] is pure; only [`load`] reads a file.

mod auth;
mod crd;
pub mod document;
mod effective;
mod error;
mod picker;
mod policy;
mod reference;
mod render;
mod rewrite;
mod schema;
mod shape;
#[cfg(test)]
mod tests;
mod tree;
pub mod units;

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::auth::{ApiKeys, Auth, Claim, KeySource, Provider, RateLimits};
pub use self::crd::custom_resource_definition;
use self::document::ConfigMapRef;
pub(crate) use self::effective::context_range;
pub use self::error::{Error, Errors, Note};
pub use self::reference::{default_document, reference_page};
pub use self::rewrite::{ModelRewrite, Objective, RewriteRule};
pub use self::schema::schema;
use crate::schedule::Policy;

/// A configuration and what of its document has no effect.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The effective settings.
    pub config: Config,
    /// What has no effect, in the order of the lines. To be logged at start.
    pub notes: Vec<Note>,
    /// What files mean that the document names, such as a picker's configuration.
    pub meanings: Vec<Note>,
}

/// A file that a document names.
#[derive(Clone, Debug)]
pub struct NamedFile {
    /// Its name in messages.
    pub name: String,
    /// Its content.
    pub text: String,
}

/// ConfigMaps of a cluster.
pub trait ConfigMaps {
    /// What a key of one of them holds, with a name for messages.
    ///
    /// # Errors
    /// Why it cannot be had.
    fn read(&self, wanted: &ConfigMapRef) -> Result<NamedFile, String>;
}

/// Reads a configuration from a file.
///
/// # Errors
/// Everything that is wrong with the file, or that it cannot be read.
pub fn load(path: &Path) -> Result<Loaded, Errors> {
    let name = path.display().to_string();
    let bytes = read_bounded(path).map_err(|why| Errors::whole(&name, why))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    decode(bytes, &name, &|file| {
        let path = folder.join(file);
        let text = String::from_utf8(read_bounded(&path)?).map_err(|_| "is not UTF-8 text")?;
        Ok(NamedFile { name: path.display().to_string(), text })
    })
}

/// The content of a file, or why it cannot be had.
fn read_bounded(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    // One byte more than allowed tells that there is more, without reading it.
    let limit = tree::MAX_BYTES as u64 + 1;
    File::open(path)
        .and_then(|f| f.take(limit).read_to_end(&mut bytes))
        .map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() > tree::MAX_BYTES {
        return Err(tree::too_large());
    }
    Ok(bytes)
}

/// Reads a configuration from a text; `name` is the document's name in messages.
///
/// # Errors
/// Everything that is wrong with the text.
pub fn parse(text: &str, name: &str) -> Result<Loaded, Errors> {
    parse_with(text, name, &|_| Err("is not read: this document is not from a file".into()))
}

/// As [`parse`]; `read` gives the name for messages and the content of a file that the document names, or why
/// it cannot be had.
///
/// # Errors
/// Everything that is wrong with the text, or with the files that it names.
pub fn parse_with(
    text: &str,
    name: &str,
    read: &dyn Fn(&str) -> Result<NamedFile, String>,
) -> Result<Loaded, Errors> {
    let root = tree::read(text, name)?;
    let shape = shape::check(&root);
    effective::build(&root, shape, name, read)
}

/// Reads the specification of an object in a cluster, where pods are found by their labels and not listed.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse_object(name: &str, spec: &serde_json::Value) -> Result<Loaded, Errors> {
    object(name, spec, None)
}

/// As [`parse_object`], with the ConfigMaps that the specification may name.
///
/// # Errors
/// Everything that is wrong with it, or with what it names.
pub fn parse_object_with(
    name: &str,
    spec: &serde_json::Value,
    maps: &dyn ConfigMaps,
) -> Result<Loaded, Errors> {
    object(name, spec, Some(maps))
}

fn object(
    name: &str,
    spec: &serde_json::Value,
    maps: Option<&dyn ConfigMaps>,
) -> Result<Loaded, Errors> {
    let document = serde_json::json!({
        "apiVersion": "gateway.sluice.dev/v1alpha1",
        "kind": "InferenceGatewayConfig",
        "metadata": { "name": name },
        "spec": spec,
    });
    // JSON is YAML; so an object means what the same text means in a file.
    let root = tree::read(&document.to_string(), name)?;
    let shape = shape::check(&root);
    let read = |_: &str| Err("is not read: this document is not from a file".into());
    effective::build_object(&root, shape, name, &read, maps)
}

fn decode(
    bytes: Vec<u8>,
    name: &str,
    read: &dyn Fn(&str) -> Result<NamedFile, String>,
) -> Result<Loaded, Errors> {
    match String::from_utf8(bytes) {
        Ok(text) => parse_with(&text, name, read),
        Err(error) => {
            let offset = error.utf8_error().valid_up_to();
            Err(Errors::whole(name, format!("is not UTF-8 text, from byte {offset} on")))
        }
    }
}

/// The whole configuration with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The gateway's name (`metadata.name`).
    pub name: String,
    /// Where clients connect. Default: one listener, `0.0.0.0:8080`, http.
    pub listeners: Vec<Listener>,
    /// Where operators connect: `/metrics`, `/healthz`, `/readyz`, `/status`. Default
    /// `127.0.0.1:9901`.
    pub admin: SocketAddr,
    /// What listeners that speak TLS show. Default: none does.
    pub tls: Option<Tls>,
    /// What the kernel may do.
    pub kernel: Kernel,
    /// How long, how much, how often.
    pub limits: Limits,
    /// The pools, one for each base model.
    pub schedulers: Vec<Scheduler>,
    /// Profiles besides the built-in ones, by name, that schedulers may use.
    pub profiles: Vec<(String, Policy)>,
    /// Models that are served as others; of several that match, the first counts. Default: none.
    pub model_rewrites: Vec<ModelRewrite>,
    /// How important requests are that name one of these. Default: none.
    pub objectives: Vec<Objective>,
    /// The gateways that this one tells what it has in flight, and hears. Default: none.
    pub exchange: Option<Exchange>,
    /// Who may send requests. Default: everyone who reaches the port, which the log warns of.
    pub auth: Option<Auth>,
    /// Worker threads; 0 is one for each core.
    pub workers: usize,
    /// One log line for each request that reached a pool or was refused. Default: no.
    pub access_log: bool,
    /// Streams of clients that have not asked for usage are counted by the pods' usage all the same. Default: no.
    pub include_usage: bool,
    /// Responses tell why their pod was picked. Default: no.
    pub explain_header: bool,
}

/// One address that clients connect to.
#[derive(Clone, Debug, PartialEq)]
pub struct Listener {
    /// Its name in logs and metrics.
    pub name: String,
    /// The address to bind; `0.0.0.0` by default, `::` takes IPv4 as well.
    pub address: IpAddr,
    /// The port to bind; 8080 by default.
    pub port: u16,
    /// Further addresses and ports that are served without being bound: sk_lookup steers them here.
    pub virtual_addresses: Vec<VirtualAddress>,
    /// What is spoken; `http` by default.
    pub protocol: Protocol,
}

/// What a listener speaks.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Clear text: HTTP/1.1, and HTTP/2 of clients that know that it is spoken.
    #[default]
    Http,
    /// TLS with the certificates of `spec.tls`: HTTP/1.1 and HTTP/2.
    Https,
    /// HTTP/2 in clear text, and nothing else.
    H2c,
}

/// What listeners that speak TLS show their clients.
#[derive(Clone, Debug, PartialEq)]
pub struct Tls {
    /// At least one.
    pub certificates: Vec<Certificate>,
    /// PEM: who must have signed clients' certificates. `None`: clients need none.
    pub client_ca_file: Option<String>,
}

/// A certificate with its key.
#[derive(Clone, Debug, PartialEq)]
pub struct Certificate {
    /// PEM: the certificate and its chain.
    pub certificate_file: String,
    /// PEM: its private key.
    pub key_file: String,
}

/// Addresses served without being on an interface, such as a service's virtual address.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VirtualAddress {
    /// First address of the block.
    pub address: IpAddr,
    /// Leading bits that must match: 32 or 128 is one address.
    pub prefix: u8,
    /// The port.
    pub port: u16,
}

/// Gateways that tell each other what they have in flight.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// Where the others are heard, by UDP. Default `0.0.0.0:9903`.
    pub address: SocketAddr,
    /// Where they hear; this gateway may be among them.
    pub peers: Vec<SocketAddr>,
    /// The file with the key that all have.
    pub key_file: String,
}

/// What the kernel may do.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// Whether sk_lookup steers connections to the workers.
    pub steering: Steering,
    /// How much the kernel programs say in the log.
    pub log: KernelLog,
    /// Responses of pods on this node may go from their sockets to the clients'.
    pub local: bool,
    /// Responses may go from the gateway's connections to the clients' within the kernel.
    pub splice: bool,
}

/// Whether sk_lookup steers connections to the workers.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Steering {
    /// Wherever it works; else ordinary listeners, with one line in the log.
    #[default]
    Auto,
    /// Never.
    Off,
}

/// How much the kernel programs say in the log.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KernelLog {
    /// Nothing; the logging code is removed when the programs are loaded.
    #[default]
    Off,
    /// What went wrong.
    Warn,
    /// Every decision.
    Debug,
}

/// How long, how much, how often.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Client connections at once, all listeners together. Default 65,536.
    pub max_connections: usize,
    /// Requests at once on one HTTP/2 connection. Default 100.
    pub max_streams: u32,
    /// Those of one client address, of IPv6 of one /64. Default 16,384.
    pub max_connections_per_address: u32,
    /// Longest request head, in bytes. Default 64 KiB.
    pub max_head_bytes: usize,
    /// Longest request body, in bytes (`bbr.maxRequestBodyBytes`). Default 64 MiB; never more than
    /// `max_buffered_bytes`.
    pub max_body_bytes: usize,
    /// Memory for request bodies of all connections together, in bytes. Default 1 GiB.
    pub max_buffered_bytes: usize,
    /// Longest that a compressed request body may be when decoded, in bytes. Default 64 MiB; never more than
    /// `max_buffered_bytes`.
    pub max_decompressed_bytes: usize,
    /// From a connection's start, or a further request's first byte, to the end of the head. Default 10 s.
    pub header_timeout: Duration,
    /// In each such span 1 KiB/s of a request's body must come, and the whole in twenty of them. Default 30 s.
    pub body_timeout: Duration,
    /// How long a connection may wait between requests. Default 300 s.
    pub idle_timeout: Duration,
    /// For the TCP connection to a pod. Default 2 s.
    pub connect_timeout: Duration,
    /// From when a request is sent to the first content of the pod's answer; long, as a long prefill is silent.
    /// Default 30 min.
    pub first_byte_timeout: Duration,
    /// Longest silence within a pod's answer, and longest wait for a client that does not read it. Default 5 min.
    pub stream_idle_timeout: Duration,
    /// How often the client of a stream gets a comment while it waits for the first content. Default: never.
    pub keep_alive_comments: Option<Duration>,
    /// How many pods are asked for one request; those that refuse the connection do not count. Default 3.
    pub max_attempts: u32,
    /// How many of a pool's requests may go to another pod after one has failed them.
    pub retry_budget: RetryBudget,
    /// How long streams may go on after SIGTERM. Default 30 s.
    pub drain_timeout: Duration,
}

/// How many of a pool's requests may go to another pod after one has failed them; those that were refused the connection do
/// not count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryBudget {
    /// Of the requests of the last ten seconds, or of those in flight if these are more. Default 0.5.
    pub ratio: f32,
    /// And so many in each of these seconds. Default 10.
    pub min_per_second: u32,
}

/// One pool: the pods that serve one base model.
#[derive(Clone, Debug, PartialEq)]
pub struct Scheduler {
    /// The pool's name.
    pub name: String,
    /// The base model, as clients name it.
    pub model_name: String,
    /// Other names that the pods know the base model by; the name reaches them unchanged.
    pub aliases: Vec<String>,
    /// Names of LoRA adapters served behind this model.
    pub lora_adapters: Vec<String>,
    /// The file with the key that the pods want. Default: none.
    pub api_key_file: Option<String>,
    /// How much all clients together may use. Default: as much as they like.
    pub limits: RateLimits,
    /// The listener whose connections go whole to a pod's own socket (`mode: connection`).
    pub direct: Option<String>,
    /// The profile by which pods compare; `None`: weights of its own.
    pub profile: Option<String>,
    /// What that means.
    pub policy: Policy,
    /// When a pod takes no more requests.
    pub saturation: Saturation,
    /// Nor when the next request is expected to wait longer than this before the pod begins with it. Default
    /// 120 s.
    pub max_wait: Duration,
    /// How long a request waits in the gateway for a pod that takes it. Default 0: not at all.
    pub admission_wait: Duration,
    /// The pods.
    pub pods: Vec<Pod>,
    /// Where their metrics are read.
    pub metrics: MetricsSource,
    /// Where they publish their KV events, if they do.
    pub kv_events: Option<EventSource>,
    /// How they are asked whether they are well. Default: they are not.
    pub health: Option<HealthCheck>,
    /// How they speak TLS. Default: they do not.
    pub tls: Option<PodTls>,
}

/// How pods are asked whether they are well.
#[derive(Clone, Debug, PartialEq)]
pub struct HealthCheck {
    /// The path. Default `/health`.
    pub path: String,
    /// From one check to the next. Default 5 s.
    pub interval: Duration,
    /// For the whole answer. Default 2 s.
    pub timeout: Duration,
    /// Checks in a row that must fail for a pod to get no more requests. Default 3.
    pub unhealthy_after: u32,
    /// Checks in a row that must succeed for it to get some again. Default 2.
    pub healthy_after: u32,
}

/// TLS to the pods of a pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodTls {
    /// PEM: who must have signed their certificates. Default: whom the system trusts.
    pub ca_file: Option<String>,
    /// The name that their certificates must be for. Default: each pod's IP address.
    pub server_name: Option<String>,
    /// Any certificate is taken. Default: no.
    pub insecure_skip_verify: bool,
    /// What the gateway shows to pods that ask for it. Default: nothing.
    pub certificate: Option<Certificate>,
}

/// When a pod takes no more requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saturation {
    /// Requests waiting in the engine. Default 128.
    pub queue_depth: u32,
    /// KV cache in use, 0..1. Default 1 (never by KV alone).
    pub kv_cache: f32,
    /// Requests that this gateway has in flight there. Default 1024.
    pub in_flight: u32,
}

/// One model server endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    /// Its name in logs, metrics and status; `ip:port` by default.
    pub name: String,
    /// Where requests go.
    pub address: SocketAddr,
    /// What tells it from others that have had its address: Kubernetes' UID. None in a file.
    pub uid: Option<String>,
    /// The GPU, as a label for people.
    pub gpu: Option<String>,
    /// Lengths of prompts that it is meant for, in tokens: shortest and longest.
    pub context_range: Option<(u32, u32)>,
}

/// Where pods' metrics are read.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricsSource {
    /// The port; the pod's own by default.
    pub port: Option<u16>,
    /// The path. Default `/metrics`.
    pub path: String,
    /// Pause between scrapes of a busy pod. Default 50 ms.
    pub busy_interval: Duration,
    /// Pause between scrapes of an idle pod. Default 1 s.
    pub idle_interval: Duration,
    /// Signals older than this are unknown. Default 3 s.
    pub stale_after: Duration,
}

/// Where pods publish their KV events.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EventSource {
    /// The port of each pod's publisher. Default 5557.
    pub port: u16,
    /// What the topics of its messages start with. Default: all.
    pub topic: String,
    /// The port where each pod sends old messages again. Default: none.
    pub replay_port: Option<u16>,
}
