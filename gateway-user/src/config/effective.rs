//! The document to the effective [`Config`]: defaults that depend on other fields, and rules that
//! span fields.
//!
//! Single values are right already (`shape`). An error that rests on a default is kept back when
//! the map in question has an error of its own: `prot: 8001` must not also be told that port 8000
//! is taken.

mod auth;
mod compare;
mod rewrite;
mod upstream;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

use self::compare::free_name;
use self::upstream::retry_budget;
use super::document::{self, InferenceGatewayConfig, LabelSelector, Mode};
use super::error::{Error, Errors, Note, Path, quoted};
use super::shape::Shape;
use super::tree::Node;
use super::units::Size;
use super::{
    Certificate, Config, ConfigMaps, EventSource, Exchange, Kernel, Limits, Listener, Loaded,
    MetricsSource, NamedFile, Pod, Protocol, Saturation, Scheduler, Steering, Tls, VirtualAddress,
};
use crate::schedule::Policy;

/// Turns a checked document into the configuration, or into all its errors.
///
/// `read` gives the content of a file that the document names.
pub(super) fn build(
    root: &Node,
    shape: Shape,
    file: &str,
    read: &dyn Fn(&str) -> Result<NamedFile, String>,
) -> Result<Loaded, Errors> {
    finish(Builder::new(root, read, false), shape, file)
}

/// As [`build`], for an object in a cluster.
pub(super) fn build_object(
    root: &Node,
    mut shape: Shape,
    name: &str,
    read: &dyn Fn(&str) -> Result<NamedFile, String>,
    maps: Option<&dyn ConfigMaps>,
) -> Result<Loaded, Errors> {
    // Said of files.
    let is_of_files = |note: &Note| {
        note.field.ends_with("].modelSelector")
            || maps.is_some() && note.field.ends_with("].configMapRef")
    };
    shape.notes.retain(|note| !is_of_files(note));
    let builder = Builder::new(root, read, true);
    finish(Builder { maps, ..builder }, shape, name)
}

fn finish(mut builder: Builder<'_>, shape: Shape, file: &str) -> Result<Loaded, Errors> {
    let Shape { value, errors: wrong_shapes, notes, broken } = shape;
    builder.notes = notes;
    let mut config = None;
    if !broken {
        match serde_json::from_value::<InferenceGatewayConfig>(value) {
            Ok(document) => config = Some(builder.config(document)),
            // What the shape check left out was required; it said so.
            Err(_) if !wrong_shapes.is_empty() => {}
            Err(error) => builder.fail(&Path::default(), &[], error.to_string()),
        }
    }
    let Builder { errors, mut notes, meanings, .. } = builder;
    let mut list: Vec<Error> = errors
        .into_iter()
        .filter(|(basis, _)| !wrong_shapes.iter().any(|(path, _)| taints(path, basis)))
        .map(|(_, error)| error)
        .collect();
    list.extend(wrong_shapes.into_iter().map(|(_, error)| error));
    list.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
    notes.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
    match config {
        Some(config) if list.is_empty() => Ok(Loaded { config, notes, meanings }),
        _ => Err(Errors { file: file.to_owned(), list }),
    }
}

/// Whether an error at a path makes what is known of one of these maps doubtful.
fn taints(path: &Path, basis: &[Path]) -> bool {
    let map = path.parent();
    // Of `spec` itself no default is part of a rule.
    map.steps().len() > 1 && basis.iter().any(|basis| basis.steps().starts_with(map.steps()))
}

struct Builder<'a> {
    root: &'a Node,
    read: &'a dyn Fn(&str) -> Result<NamedFile, String>,
    notes: Vec<Note>,
    /// What the files mean that the document names.
    meanings: Vec<Note>,
    /// With the maps whose defaults the error rests on.
    errors: Vec<(Vec<Path>, Error)>,
    /// Whether pods are found by their labels.
    cluster: bool,
    /// Where there are such.
    maps: Option<&'a dyn ConfigMaps>,
}

impl<'a> Builder<'a> {
    fn new(
        root: &'a Node,
        read: &'a dyn Fn(&str) -> Result<NamedFile, String>,
        cluster: bool,
    ) -> Self {
        let (notes, meanings, errors) = Default::default();
        Self { root, read, notes, meanings, errors, cluster, maps: None }
    }
}

impl Builder<'_> {
    fn config(&mut self, document: InferenceGatewayConfig) -> Config {
        let InferenceGatewayConfig { api_version: _, kind: _, metadata, spec, status } = document;
        let top = Path::default();
        let path = top.field("spec");
        if status.is_some() {
            self.note(&top.field("status"), "has no effect: it is what a cluster reported");
        }
        let steering = spec.kernel.steering;
        let kernel = self.kernel(&spec.kernel, &path.field("kernel").field("paths"));
        self.check_bbr(&spec, &path);
        let mut profiles = self.profiles(&spec.profiles, &path.field("profiles"));
        let auth = spec.auth.clone().map(|auth| self.auth(auth, &spec.schedulers, &path));
        let admin = SocketAddr::new(spec.admin.address, spec.admin.port);
        let listeners = self.listeners(spec.listeners, admin, steering, &path.field("listeners"));
        let tls = self.tls(spec.tls, &listeners, &path);
        self.check_direct(&spec.schedulers, &listeners, steering, &path.field("schedulers"));
        let (rewrites, of) = (spec.model_rewrites, &spec.schedulers);
        let model_rewrites = self.model_rewrites(rewrites, of, &path.field("modelRewrites"));
        let objectives = self.objectives(spec.objectives, of, &path.field("objectives"));
        Config {
            name: metadata.name,
            listeners,
            admin,
            tls,
            kernel,
            limits: self.limits(&spec.limits, spec.bbr.max_request_body_bytes, &path),
            schedulers: self.schedulers(spec.schedulers, &mut profiles, &path.field("schedulers")),
            profiles,
            model_rewrites,
            objectives,
            exchange: spec
                .exchange
                .map(|exchange| self.exchange(exchange, &path.field("exchange"))),
            auth,
            workers: usize::try_from(spec.workers).unwrap_or(usize::MAX),
            access_log: spec.access_log,
            include_usage: spec.include_usage,
            explain_header: spec.debug.explain_header,
        }
    }

    fn kernel(&mut self, kernel: &document::Kernel, path: &Path) -> Kernel {
        let document::Kernel { steering, log_level, paths } = kernel;
        if !paths.contains(&document::FlowPath::Relay) {
            let text = "must name relay: what the kernel cannot carry has no other way";
            self.fail(path, &[], text);
        }
        Kernel {
            steering: *steering,
            log: *log_level,
            local: paths.contains(&document::FlowPath::Local),
            splice: paths.contains(&document::FlowPath::Splice),
        }
    }

    fn exchange(&mut self, exchange: document::Exchange, path: &Path) -> Exchange {
        let document::Exchange { address, port, peers, key_file } = exchange;
        let path = path.field("peers");
        let mut places = Taken::default();
        let mut effective = Vec::new();
        for (index, peer) in peers.iter().enumerate() {
            let path = path.index(index);
            let place = peer.parse::<SocketAddr>().ok();
            let place = place.map(|place| SocketAddr::new(place.ip().to_canonical(), place.port()));
            match place.filter(|place| place.port() != 0 && can_connect(place.ip())) {
                Some(place) if self.take(&mut places, place, &path, &[]) => effective.push(place),
                Some(_) => {}
                None => {
                    let text = format!(
                        "{} is not the address and port of a gateway, such as `10.0.0.12:9903`",
                        quoted(peer)
                    );
                    self.fail(&path, &[], text);
                }
            }
        }
        Exchange { address: SocketAddr::new(address, port), peers: effective, key_file }
    }

    fn check_bbr(&mut self, spec: &document::Spec, path: &Path) {
        if !spec.bbr.enabled && spec.schedulers.len() > 1 {
            let path = path.field("bbr").field("enabled");
            self.fail(&path, &[], "must be true with two schedulers or more");
        }
    }

    fn listeners(
        &mut self,
        listeners: Vec<document::Listener>,
        admin: SocketAddr,
        steering: Steering,
        path: &Path,
    ) -> Vec<Listener> {
        let mut names = Taken::default();
        let mut places = Taken::default();
        let mut blocks = Taken::default();
        if admin.port() != 0 {
            places.0.insert(admin, path.parent().field("admin"));
        }
        let mut effective = Vec::new();
        for (index, listener) in listeners.into_iter().enumerate() {
            let path = path.index(index);
            let document::Listener { name, address, port, protocol, virtual_addresses } = listener;
            let name = name.unwrap_or_else(|| match protocol {
                Protocol::Http => format!("http-{port}"),
                Protocol::Https => format!("https-{port}"),
                Protocol::H2c => format!("h2c-{port}"),
            });
            let basis = [path.clone(), path.parent().parent().field("admin")];
            self.take(&mut names, name.clone(), &path.field("name"), &basis);
            if port != 0 {
                let place = SocketAddr::new(address, port);
                self.take(&mut places, place, &path, &basis);
            }
            let path = path.field("virtualAddresses");
            if !virtual_addresses.is_empty() && steering == Steering::Off {
                self.note(
                    &path,
                    "are bound one by one, and blocks are not served, as steering is off",
                );
            }
            let mut effective_addresses = Vec::new();
            for (index, address) in virtual_addresses.into_iter().enumerate() {
                let document::VirtualAddress { address: block, port } = address;
                self.take(&mut blocks, Place { block, port }, &path.index(index), &[]);
                let address = block.address;
                effective_addresses.push(VirtualAddress { address, prefix: block.prefix, port });
            }
            let virtual_addresses = effective_addresses;
            effective.push(Listener { name, address, port, virtual_addresses, protocol });
        }
        effective
    }

    fn tls(
        &mut self,
        tls: Option<document::Tls>,
        listeners: &[Listener],
        spec: &Path,
    ) -> Option<Tls> {
        let path = spec.field("tls");
        let document::Tls { certificates, client_ca_file, .. } = tls.clone().unwrap_or_default();
        let secure = listeners.iter().position(|listener| listener.protocol == Protocol::Https);
        match (secure, certificates.is_empty()) {
            (Some(index), true) => {
                let protocol = spec.field("listeners").index(index).field("protocol");
                let text = "needs spec.tls.certificates";
                self.fail(&protocol, &[path], text);
                return None;
            }
            (None, _) if tls.is_some() => {
                // What the managed product's documents say, which end TLS in front.
                let text = "has no effect: no listener has `protocol: https`";
                self.note(&path, text);
            }
            _ => {}
        }
        let of = |of: document::Certificate| Certificate {
            certificate_file: of.certificate_file,
            key_file: of.key_file,
        };
        let certificates: Vec<_> = certificates.into_iter().map(of).collect();
        (!certificates.is_empty()).then_some(Tls { certificates, client_ca_file })
    }

    fn limits(&mut self, limits: &document::Limits, max_body: Size, spec: &Path) -> Limits {
        let body_path = spec.field("bbr").field("maxRequestBodyBytes");
        // An eighth is for small bodies; a body that may need it is larger than those.
        let buffered = limits.max_buffered_bytes;
        let room = Size(buffered.0 - buffered.0 / 8);
        let max_body = if self.root.find(&body_path).is_none() {
            max_body.min(room)
        } else {
            if max_body > room {
                let text = format!(
                    "{max_body} can never be buffered: limits.maxBufferedBytes is {buffered}, \
                     an eighth of it for small bodies"
                );
                self.fail(&body_path, &[spec.field("limits"), spec.field("bbr")], text);
            }
            max_body
        };
        Limits {
            max_connections: usize::try_from(limits.max_connections).unwrap_or(usize::MAX),
            max_streams: limits.max_streams_per_connection,
            max_connections_per_address: limits.max_connections_per_address,
            max_head_bytes: bytes(limits.max_head_bytes),
            max_body_bytes: bytes(max_body),
            max_buffered_bytes: bytes(buffered),
            max_decompressed_bytes: bytes(limits.max_decompressed_bytes.min(buffered)),
            header_timeout: limits.header_timeout.0,
            body_timeout: limits.body_timeout.0,
            idle_timeout: limits.idle_timeout.0,
            connect_timeout: limits.connect_timeout.0,
            first_byte_timeout: limits.first_byte_timeout.0,
            stream_idle_timeout: limits.stream_idle_timeout.0,
            keep_alive_comments: Some(limits.keep_alive_comments.0)
                .filter(|every| !every.is_zero()),
            max_attempts: limits.max_attempts,
            retry_budget: retry_budget(limits.retry_budget),
            drain_timeout: limits.drain_timeout.0,
        }
    }

    fn schedulers(
        &mut self,
        schedulers: Vec<document::Scheduler>,
        profiles: &mut Vec<(String, Policy)>,
        path: &Path,
    ) -> Vec<Scheduler> {
        let mut names = Taken::default();
        let mut models = Taken::default();
        let mut effective = Vec::new();
        for (index, scheduler) in schedulers.into_iter().enumerate() {
            let path = path.index(index);
            self.take(&mut names, scheduler.name.clone(), &path.field("name"), &[]);
            // One request names one model: whatever clients may write there leads to one pool.
            self.take(&mut models, scheduler.model_name.clone(), &path.field("modelName"), &[]);
            for (field, list) in
                [("aliases", &scheduler.aliases), ("loraAdapters", &scheduler.lora_adapters)]
            {
                for (index, name) in list.iter().enumerate() {
                    let path = path.field(field).index(index);
                    self.take(&mut models, name.clone(), &path, &[]);
                }
            }
            self.check_weights(&scheduler, &path);
            let fault = scheduler.model_selector.as_ref().and_then(LabelSelector::fault);
            if let Some(text) = fault {
                self.fail(&path.field("modelSelector"), &[], text);
            }
            let (mut profile, mut policy) = self.policy(&scheduler, profiles, &path);
            let mut saturation = Saturation {
                queue_depth: scheduler.saturation.queue_depth,
                kv_cache: scheduler.saturation.kv_cache,
                in_flight: scheduler.saturation.in_flight,
            };
            let picker = match (&scheduler.picker_config, &scheduler.config_map_ref, self.maps) {
                (Some(file), ..) => {
                    let read = (self.read)(file).map_err(|why| format!("{} {why}", quoted(file)));
                    Some(("pickerConfig", read))
                }
                (None, Some(wanted), Some(maps)) => Some(("configMapRef", maps.read(wanted))),
                _ => None,
            };
            if let Some((field, read)) = picker {
                let picked = self.picker_config(field, read, &mut saturation, &path);
                let name = free_name(&scheduler.name, profiles);
                profiles.push((name.clone(), picked.clone()));
                (profile, policy) = (Some(name), picked);
            }
            effective.push(Scheduler {
                profile,
                policy,
                saturation,
                max_wait: scheduler.saturation.expected_wait.0,
                admission_wait: scheduler.saturation.wait.0,
                pods: self.pods(&scheduler, &path),
                metrics: self.metrics(&scheduler, &path.field("metrics")),
                health: self.health_check(&scheduler, &path),
                tls: self.pod_tls(&scheduler, &path),
                kv_events: scheduler.kv_events.map(|events| {
                    let document::KvEvents { port, topic, replay_port } = events;
                    EventSource { port, topic, replay_port }
                }),
                api_key_file: scheduler.api_key_file,
                limits: scheduler.limits,
                direct: match scheduler.mode {
                    Mode::Request => None,
                    Mode::Connection => scheduler.listener,
                },
                name: scheduler.name,
                model_name: scheduler.model_name,
                aliases: scheduler.aliases,
                lora_adapters: scheduler.lora_adapters,
            });
        }
        effective
    }

    /// Whole connections: who may have them, and from which listener.
    fn check_direct(
        &mut self,
        schedulers: &[document::Scheduler],
        listeners: &[Listener],
        steering: Steering,
        path: &Path,
    ) {
        let mut owners = Taken::default();
        let mut pods = Taken::default();
        for (index, scheduler) in schedulers.iter().enumerate() {
            let path = path.index(index);
            let (mode, field) = (path.field("mode"), path.field("listener"));
            match (scheduler.mode, &scheduler.listener) {
                (Mode::Request, None) => {}
                (Mode::Request, Some(_)) => {
                    self.fail(&field, &[], "is for mode: connection only");
                }
                (Mode::Connection, None) => {
                    let text = "connection needs listener: one of spec.listeners, which then \
                                serves this pool alone";
                    self.fail(&mode, std::slice::from_ref(&path), text);
                }
                (Mode::Connection, Some(name)) => {
                    if !listeners.iter().any(|listener| listener.name == *name) {
                        let text = format!("{} is not one of spec.listeners", quoted(name));
                        self.fail(&field, &[], text);
                    }
                    self.take(&mut owners, name.clone(), &field, &[]);
                    self.check_direct_pool(scheduler, listeners, steering, &mut pods, &path);
                }
            }
        }
        // Requests of the others would have no way in.
        let all_taken = listeners.iter().all(|listener| owners.0.contains_key(&listener.name));
        for (index, scheduler) in schedulers.iter().enumerate() {
            if all_taken && scheduler.mode == Mode::Request {
                let path = path.index(index);
                let text = "cannot be reached: every listener serves another pool alone";
                self.fail(&path, std::slice::from_ref(&path), text);
            }
        }
    }

    fn check_direct_pool(
        &mut self,
        scheduler: &document::Scheduler,
        listeners: &[Listener],
        steering: Steering,
        taken: &mut Taken<SocketAddr>,
        path: &Path,
    ) {
        let mode = path.field("mode");
        if steering == Steering::Off {
            self.fail(&mode, &[], "connection cannot be served with kernel.steering: off");
        }
        let own = listeners.iter().find(|own| Some(&own.name) == scheduler.listener.as_ref());
        if own.is_some_and(|own| own.protocol != Protocol::Http) {
            let text = "cannot be served by a listener whose protocol is not http: the pods' own sockets speak no TLS";
            self.fail(&path.field("listener"), &[], text);
        }
        if !scheduler.lora_adapters.is_empty() {
            let text = "cannot be told apart with mode: connection, where the gateway reads no \
                        request";
            self.fail(&path.field("loraAdapters"), &[], text);
        }
        if !scheduler.limits.is_none() {
            let text = "cannot be kept with mode: connection, where the gateway reads no request";
            self.fail(&path.field("limits"), &[], text);
        }
        if scheduler.kv_events.is_some() {
            let text = "are of no use with mode: connection, where the gateway reads no request";
            self.fail(&path.field("kvEvents"), &[], text);
        }
        if scheduler.pods.len() > MAX_DIRECT_PODS {
            let text = format!("are more than {MAX_DIRECT_PODS}, the most with mode: connection");
            self.fail(&path.field("pods"), &[], text);
        }
        for (index, pod) in scheduler.pods.iter().enumerate() {
            let path = path.field("pods").index(index);
            let basis = std::slice::from_ref(&path);
            let ip = pod.address.to_canonical();
            let address = SocketAddr::new(ip, pod.port.unwrap_or(scheduler.target_port));
            // A listening socket has one place in the kernel's map.
            self.take(taken, address, &path, basis);
            let own = listeners.iter().find(|listener| {
                listener.port == address.port()
                    && (listener.address.is_unspecified() || listener.address == ip)
            });
            if let Some(listener) = own {
                let text =
                    format!("{address} is the gateway's own listener {}", quoted(&listener.name));
                self.fail(&path, basis, text);
            }
        }
    }

    fn check_weights(&mut self, scheduler: &document::Scheduler, path: &Path) {
        let both = [path.field("weights"), path.field("configMapRef")];
        if both.iter().all(|path| self.root.find(path).is_some()) {
            let text = "either weights or configMapRef, not both";
            self.fail(&path.field("configMapRef"), &[], text);
        }
        let lru = scheduler.weights.is_some_and(|weights| weights.lru > 0.0);
        if lru && scheduler.scheduler == Some(document::Picker::Epp) {
            let path = path.field("weights").field("lru");
            self.fail(&path, &[], "is for scheduler: llm-d only");
        }
    }

    fn pods(&mut self, scheduler: &document::Scheduler, path: &Path) -> Vec<Pod> {
        // Never ignored: every request for this model would fail, and nothing would find pods
        // later.
        if scheduler.pods.is_empty() && !self.cluster {
            let selector = if scheduler.model_selector.is_some() {
                "; modelSelector finds pods in Kubernetes only"
            } else {
                ""
            };
            let text = format!("are missing: in a file each scheduler lists its pods{selector}");
            self.fail(&path.field("pods"), std::slice::from_ref(path), text);
        }
        let mut places = Taken::default();
        let mut names = Taken::default();
        let mut effective = Vec::new();
        for (index, pod) in scheduler.pods.iter().enumerate() {
            let pod_path = path.field("pods").index(index);
            // The same address in two notations is the same pod.
            let ip = pod.address.to_canonical();
            if !can_connect(ip) {
                let text = format!("{ip} is not an address that a pod can have");
                self.fail(&pod_path.field("address"), &[], text);
            }
            let address = SocketAddr::new(ip, pod.port.unwrap_or(scheduler.target_port));
            let name = pod.name.clone().unwrap_or_else(|| address.to_string());
            let basis = std::slice::from_ref(&pod_path);
            if self.take(&mut places, address, &pod_path, basis) {
                self.take(&mut names, name.clone(), &pod_path.field("name"), basis);
            }
            let context_range = pod.context_length_range.as_deref().and_then(|text| {
                let range = context_range(text);
                if range.is_none() {
                    let text = format!("`{text}` is not two numbers of tokens such as `0-8192`");
                    self.fail(&pod_path.field("contextLengthRange"), &[], text);
                }
                range
            });
            effective.push(Pod { name, address, uid: None, gpu: pod.gpu.clone(), context_range });
        }
        effective
    }

    fn metrics(&mut self, scheduler: &document::Scheduler, path: &Path) -> MetricsSource {
        let document::Metrics { port, path: page, busy_interval, idle_interval, stale_after } =
            &scheduler.metrics;
        let basis = std::slice::from_ref(path);
        if idle_interval < busy_interval {
            let text = format!("{idle_interval} is below busyInterval ({busy_interval})");
            self.fail(&path.field("idleInterval"), basis, text);
        }
        // Otherwise an idle pod would be unknown most of the time, and get no requests to end that.
        if stale_after <= idle_interval {
            let text = format!("{stale_after} is not above idleInterval ({idle_interval})");
            self.fail(&path.field("staleAfter"), basis, text);
        }
        MetricsSource {
            port: *port,
            path: page.clone(),
            busy_interval: busy_interval.0,
            idle_interval: idle_interval.0,
            stale_after: stale_after.0,
        }
    }

    /// Claims something that only one may have; false if it is taken.
    fn take<K: Claim>(&mut self, taken: &mut Taken<K>, key: K, at: &Path, basis: &[Path]) -> bool {
        match taken.0.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(at.clone());
                true
            }
            Entry::Occupied(entry) => {
                let (shown, first) = (entry.key().show(), entry.get());
                let text = match self.root.nearest(first).line {
                    _ if first.steps().is_empty() => format!("{shown} is built in"),
                    line => format!("{shown} is taken already, in line {line} ({first})"),
                };
                self.fail(at, basis, text);
                false
            }
        }
    }

    fn fail(&mut self, path: &Path, basis: &[Path], text: impl Into<String>) {
        self.errors.push((basis.to_vec(), self.root.nearest(path).error(path, text)));
    }

    fn note(&mut self, path: &Path, text: impl Into<String>) {
        let line = self.root.nearest(path).line;
        self.notes.push(Note { file: None, line, field: path.to_string(), text: text.into() });
    }
}

/// What only one may have, and the path of who has it; the empty path is the gateway itself.
struct Taken<K>(HashMap<K, Path>);

impl<K> Default for Taken<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

/// What only one may have, as a message names it.
trait Claim: Eq + Hash {
    fn show(&self) -> String;
}

impl Claim for String {
    fn show(&self) -> String {
        quoted(self)
    }
}

impl Claim for SocketAddr {
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Claim for Place {
    fn show(&self) -> String {
        format!("{} port {}", self.block, self.port)
    }
}

/// A virtual address, compared as a whole: a block within a block is the kernel's longest match to
/// tell.
#[derive(Eq, Hash, PartialEq)]
struct Place {
    block: super::units::Block,
    port: u16,
}

fn bytes(size: Size) -> usize {
    usize::try_from(size.0).unwrap_or(usize::MAX)
}

/// Two numbers with a hyphen between them, the smaller first.
pub(crate) fn context_range(text: &str) -> Option<(u32, u32)> {
    let (least, most) = text.split_once('-')?;
    let (least, most) = (least.trim().parse().ok()?, most.trim().parse().ok()?);
    (least <= most).then_some((least, most))
}

fn can_connect(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !ip.is_unspecified() && !ip.is_multicast() && !broadcast
}

/// Pods of a pool with `mode: connection`.
const MAX_DIRECT_PODS: usize = gateway_common::direct::MAX_PODS as usize;
