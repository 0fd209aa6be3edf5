//! The document to the effective [`Config`]: defaults that depend on other fields, and rules that
//! span fields.
//!
//! Single values are right already (`shape`). An error that rests on a default is kept back when
//! the map in question has an error of its own: `prot: 8001` must not also be told that port 8000
//! is taken.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

use super::document::{self, InferenceGatewayConfig, Mode, ScorerParameters, WeightMap};
use super::error::{Error, Errors, Note, Path, quoted};
use super::shape::Shape;
use super::tree::Node;
use super::units::Size;
use super::{
    Config, Kernel, Limits, Listener, Loaded, MetricsSource, Pod, Saturation, Scheduler, Steering,
    VirtualAddress, policy,
};
use crate::schedule::{Picker, Policy, Preset};

/// Turns a checked document into the configuration, or into all its errors.
pub(super) fn build(root: &Node, shape: Shape, file: &str) -> Result<Loaded, Errors> {
    let Shape { value, errors: wrong_shapes, notes, broken } = shape;
    let mut builder = Builder { root, notes, errors: Vec::new() };
    let mut config = None;
    if !broken {
        match serde_json::from_value::<InferenceGatewayConfig>(value) {
            Ok(document) => config = Some(builder.config(document)),
            // What the shape check left out was required; it said so.
            Err(_) if !wrong_shapes.is_empty() => {}
            Err(error) => builder.fail(&Path::default(), &[], error.to_string()),
        }
    }
    let Builder { errors, mut notes, .. } = builder;
    let mut list: Vec<Error> = errors
        .into_iter()
        .filter(|(basis, _)| !wrong_shapes.iter().any(|(path, _)| taints(path, basis)))
        .map(|(_, error)| error)
        .collect();
    list.extend(wrong_shapes.into_iter().map(|(_, error)| error));
    list.sort_by_key(|error| (error.line, error.column));
    notes.sort_by_key(|note| note.line);
    match config {
        Some(config) if list.is_empty() => Ok(Loaded { config, notes }),
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
    notes: Vec<Note>,
    /// With the maps whose defaults the error rests on.
    errors: Vec<(Vec<Path>, Error)>,
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
        let profiles = self.profiles(&spec.profiles, &path.field("profiles"));
        let admin = SocketAddr::new(spec.admin.address, spec.admin.port);
        let listeners = self.listeners(spec.listeners, admin, steering, &path.field("listeners"));
        self.check_direct(&spec.schedulers, &listeners, steering, &path.field("schedulers"));
        Config {
            name: metadata.name,
            listeners,
            admin,
            kernel,
            limits: self.limits(&spec.limits, spec.bbr.max_request_body_bytes, &path),
            schedulers: self.schedulers(spec.schedulers, &profiles, &path.field("schedulers")),
            profiles,
            workers: usize::try_from(spec.workers).unwrap_or(usize::MAX),
            access_log: spec.access_log,
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

    fn check_bbr(&mut self, spec: &document::Spec, path: &Path) {
        if !spec.bbr.enabled && spec.schedulers.len() > 1 {
            let path = path.field("bbr").field("enabled");
            self.fail(&path, &[], "must be true with two schedulers or more");
        }
    }

    fn profiles(&mut self, profiles: &[document::Profile], path: &Path) -> Vec<(String, Policy)> {
        let mut names = Taken::default();
        for (name, _) in policy::BUILT_IN {
            names.0.insert(name.to_owned(), Path::default());
        }
        let mut effective = Vec::new();
        for (index, profile) in profiles.iter().enumerate() {
            let path = path.index(index);
            self.take(&mut names, profile.name.clone(), &path.field("name"), &[]);
            let weighs = [
                ("weights", profile.weights.is_some()),
                ("parameters", profile.parameters.is_some()),
                ("picker", profile.picker.is_some()),
            ];
            for (field, _) in weighs.iter().filter(|(_, given)| *given && profile.cost.is_some()) {
                self.fail(&path.field(field), &[], "is not for a profile with cost");
            }
            if profile.cost.is_none() && profile.weights.is_none() {
                let basis = std::slice::from_ref(&path);
                self.fail(&path, basis, "needs cost or weights");
            }
            effective.push((profile.name.clone(), policy::of_profile(profile)));
        }
        effective
    }

    /// How a pool's pods compare: the profile's name, if it has one, and what it means.
    fn policy(
        &mut self,
        scheduler: &document::Scheduler,
        profiles: &[(String, Policy)],
        path: &Path,
    ) -> (Option<String>, Policy) {
        let weights = |map: &WeightMap| {
            policy::of_weights(map, &ScorerParameters::default(), Picker::MaxScore)
        };
        let given: Vec<&str> = ["profile", "weights", "pickerConfig"]
            .into_iter()
            .filter(|field| self.root.find(&path.field(field)).is_some())
            .collect();
        if let [first, others @ ..] = given.as_slice() {
            for other in others {
                self.fail(&path.field(other), &[], format!("is not for a pool with {first}"));
            }
        }
        if let Some(map) = &scheduler.weights {
            return (None, weights(map));
        }
        let direct = scheduler.mode == Mode::Connection;
        let Some(name) = scheduler.profile.as_deref() else {
            // Nothing is known of what is said on whole connections, so that no cost can be told.
            return match direct {
                true => (None, weights(&WeightMap::default())),
                false => (Some(DEFAULT_PROFILE.to_owned()), Policy::Cost(Preset::LATENCY)),
            };
        };
        let built_in = policy::BUILT_IN.iter().find(|(built_in, _)| *built_in == name);
        let named = profiles.iter().find(|(profile, _)| profile == name);
        let policy = match (built_in, named) {
            (Some((_, preset)), _) => Policy::Cost(*preset),
            (None, Some((_, policy))) => policy.clone(),
            (None, None) => {
                let names: Vec<_> = policy::BUILT_IN.iter().map(|(name, _)| *name).collect();
                let text = format!(
                    "{} is neither {} nor one of spec.profiles",
                    quoted(name),
                    names.join(" nor ")
                );
                self.fail(&path.field("profile"), &[], text);
                Policy::Cost(Preset::LATENCY)
            }
        };
        if direct && matches!(policy, Policy::Cost(_)) {
            let text = format!(
                "{} tells what a request costs, and with mode: connection no request is read",
                quoted(name)
            );
            self.fail(&path.field("profile"), &[], text);
        }
        (Some(name.to_owned()), policy)
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
            let document::Listener { name, address, port, protocol: _, virtual_addresses } =
                listener;
            let name = name.unwrap_or_else(|| format!("http-{port}"));
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
            effective.push(Listener { name, address, port, virtual_addresses });
        }
        effective
    }

    fn limits(&mut self, limits: &document::Limits, max_body: Size, spec: &Path) -> Limits {
        let body_path = spec.field("bbr").field("maxRequestBodyBytes");
        let buffered = limits.max_buffered_bytes;
        let max_body = if self.root.find(&body_path).is_none() {
            max_body.min(buffered)
        } else {
            if max_body > buffered {
                let text = format!(
                    "{max_body} can never be buffered: limits.maxBufferedBytes is {buffered}"
                );
                self.fail(&body_path, &[spec.field("limits"), spec.field("bbr")], text);
            }
            max_body
        };
        Limits {
            max_connections: usize::try_from(limits.max_connections).unwrap_or(usize::MAX),
            max_head_bytes: bytes(limits.max_head_bytes),
            max_body_bytes: bytes(max_body),
            max_buffered_bytes: bytes(buffered),
            header_timeout: limits.header_timeout.0,
            body_timeout: limits.body_timeout.0,
            idle_timeout: limits.idle_timeout.0,
            connect_timeout: limits.connect_timeout.0,
            first_byte_timeout: limits.first_byte_timeout.0,
            stream_idle_timeout: limits.stream_idle_timeout.0,
            max_attempts: limits.max_attempts,
            drain_timeout: limits.drain_timeout.0,
        }
    }

    fn schedulers(
        &mut self,
        schedulers: Vec<document::Scheduler>,
        profiles: &[(String, Policy)],
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
            let (profile, policy) = self.policy(&scheduler, profiles, &path);
            let saturation = Saturation {
                queue_depth: scheduler.saturation.queue_depth,
                kv_cache: scheduler.saturation.kv_cache,
                in_flight: scheduler.saturation.in_flight,
            };
            effective.push(Scheduler {
                profile,
                policy,
                saturation,
                max_wait: scheduler.saturation.expected_wait.0,
                admission_wait: scheduler.saturation.wait.0,
                pods: self.pods(&scheduler, &path),
                metrics: self.metrics(&scheduler, &path.field("metrics")),
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
        if !scheduler.lora_adapters.is_empty() {
            let text = "cannot be told apart with mode: connection, where the gateway reads no \
                        request";
            self.fail(&path.field("loraAdapters"), &[], text);
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
        if scheduler.pods.is_empty() {
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
            effective.push(Pod { name, address, gpu: pod.gpu.clone() });
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
        self.notes.push(Note { line, field: path.to_string(), text: text.into() });
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

fn can_connect(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !ip.is_unspecified() && !ip.is_multicast() && !broadcast
}

/// Pods of a pool with `mode: connection`.
const MAX_DIRECT_PODS: usize = gateway_common::direct::MAX_PODS as usize;

/// The profile of a pool that names none.
const DEFAULT_PROFILE: &str = "latency";
