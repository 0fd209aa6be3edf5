//! Kubernetes' objects, all together, to one configuration with its pods.
//!
//! The object's schedulers come first, then every `InferencePool` of the namespace that none of them stands for: a pool
//! is as good as a scheduler with its name, its selector and its ports. What is wrong with one of these pools leaves that
//! pool out; what is wrong with the object leaves it out as a whole, so that whoever applies this keeps what it had.
//!
//! Pure: equal objects give an equal result, whatever the order they came in.

mod pods;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use serde::Deserialize;
use serde_json::{Value, json};

use super::adapters::{ConfigMap, add_adapters};
use super::extension::{Extension, add_objectives, add_rewrites};
use super::objects::{GatewayConfig, InferencePool, Meta, Node, Pod};
use super::pickers::PickerMap;
use crate::config::document::LabelSelector;
use crate::config::{self, Errors, Loaded};

/// All objects of one namespace that matter, each kind by its name; and the nodes.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// `InferenceGatewayConfig`s.
    pub configs: BTreeMap<String, GatewayConfig>,
    /// `InferencePool`s, version v1.
    pub pools: BTreeMap<String, InferencePool>,
    /// `InferencePool`s, version v1alpha2.
    pub legacy_pools: BTreeMap<String, InferencePool>,
    /// `InferenceModelRewrite`s of the inference extension's group.
    pub legacy_rewrites: BTreeMap<String, Extension>,
    /// `InferenceModelRewrite`s of llm-d's.
    pub rewrites: BTreeMap<String, Extension>,
    /// `InferenceObjective`s of the inference extension's group.
    pub legacy_objectives: BTreeMap<String, Extension>,
    /// `InferenceObjective`s of llm-d's.
    pub objectives: BTreeMap<String, Extension>,
    /// `ConfigMap`s that name adapters.
    pub adapters: BTreeMap<String, ConfigMap>,
    /// Pods.
    pub pods: BTreeMap<String, Pod>,
    /// Nodes.
    pub nodes: BTreeMap<String, Node>,
    /// ConfigMaps, as far as they are wanted.
    pub pickers: BTreeMap<String, PickerMap>,
}

/// Whose configuration is asked for.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The object's name. `None`: the only one, or the oldest.
    pub name: Option<String>,
    /// The node that the gateway runs on, if that is known.
    pub node: Option<String>,
}

/// What the objects come to.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The object that it is from; `None` if there is none.
    pub object: Option<Meta>,
    /// The status that the object has.
    pub reported: Value,
    /// The configuration with its pods, or what is wrong with the object. `None`: there is neither an object nor a
    /// pool.
    pub config: Option<Result<Loaded, Errors>>,
    /// The pools, in the configuration's order; those of an object that is wrong as well, as far as they can be told.
    pub pools: Vec<PoolFacts>,
    /// `InferencePool`s that were left out, and why.
    pub left_out: Vec<(String, String)>,
}

/// What is known of one pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolFacts {
    /// Its name.
    pub name: String,
    /// Pods that it lists or that its selector matches, each as often as it has target ports.
    pub matched: u32,
    /// Those of them that may get requests.
    pub ready: u32,
    /// Those that may and are on the gateway's node.
    pub local: u32,
    /// Its pods are those of the `InferencePool` of its name.
    pub is_inference_pool: bool,
    /// What a person should know.
    pub findings: Vec<Finding>,
}

/// What a person should know of a pool.
#[derive(Clone, Debug, PartialEq)]
pub enum Finding {
    /// It neither lists pods nor selects any, and no `InferencePool` has its name.
    NoSelector,
    /// No pod has the labels.
    NoPods(String),
    /// Pods have the labels, and none is ready.
    NoneReady(u32),
    /// The pod's address is none, or is another pod's: its name and the address.
    BadAddress(String, String),
    /// The `InferencePool`'s pods are said to speak this, and are asked by HTTP/1.1.
    Protocol(String),
    /// More pods than a pool may have: how many were left out.
    TooMany(u32),
}

impl Finding {
    /// Whether the pool can serve nothing for this.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        !matches!(self, Self::BadAddress(..) | Self::Protocol(_) | Self::TooMany(_))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSelector => {
                f.write_str("has no modelSelector and no pods, and no InferencePool has its name")
            }
            Self::NoPods(labels) => write!(f, "no pod of this namespace has the labels {labels}"),
            Self::NoneReady(matched) => write!(f, "none of its {matched} pods is ready"),
            Self::BadAddress(pod, address) => {
                write!(f, "pod {pod} is left out: its address {address} is another pod's, or none")
            }
            Self::Protocol(protocol) => {
                write!(f, "its appProtocol {protocol} has no effect: pods are asked by HTTP/1.1")
            }
            Self::TooMany(count) => {
                write!(f, "{count} pods are left out, a pool has at most {MAX_PODS}")
            }
        }
    }
}

/// Turns all objects into the configuration.
#[must_use]
pub fn resolve(snapshot: &Snapshot, asked: &Asked) -> Resolved {
    let spec = specification(snapshot, asked).cloned();
    resolve_as(spec.unwrap_or_else(|| json!({})), &snapshot.pickers, snapshot, asked)
}

/// As [`resolve`], with another specification than the object's, such as an earlier one, and what it names.
#[must_use]
pub fn resolve_as(
    spec: Value,
    pickers: &BTreeMap<String, PickerMap>,
    snapshot: &Snapshot,
    asked: &Asked,
) -> Resolved {
    let object = chosen(snapshot, asked);
    // What is no map, or has no list of schedulers, is told below.
    let written = Sources::deserialize(&spec).unwrap_or_default().schedulers;
    let mut sources: Vec<Source> =
        written.iter().map(|scheduler| Source::of(scheduler, snapshot)).collect();
    let (mut added, mut left_out): (Vec<(Value, Source)>, Vec<_>) = (Vec::new(), Vec::new());
    // An object that was asked for and is not there yet: pools alone would be less than what is wanted.
    if asked.name.is_none() || object.is_some() {
        let mut taken: HashSet<String> = written.iter().flat_map(Written::models).collect();
        // What an older pool has, no newer one takes away.
        let mut pools: Vec<_> = pools(snapshot).into_iter().collect();
        pools.sort_by_key(|(name, pool)| (&pool.metadata.creation_timestamp, *name));
        for (name, pool) in pools {
            if sources.iter().any(|source| source.name == *name) {
                continue;
            }
            let model = pool.metadata.annotations.get(MODEL).unwrap_or(name);
            let scheduler = json!({ "name": name, "modelName": model });
            // By itself, so that one pool cannot spoil the rest.
            let alone = json!({ "schedulers": [scheduler] });
            if let Err(errors) = config::parse_object(name, &alone) {
                let text = errors.list.first().map(|error| error.text.clone());
                left_out.push((name.clone(), text.unwrap_or_default()));
            } else if let Some(fault) = pool.spec.selector().fault() {
                left_out.push((name.clone(), format!("its selector: {fault}")));
            } else if !taken.insert(model.clone()) {
                left_out.push((name.clone(), format!("its model {model} is another pool's")));
            } else {
                added.push((scheduler, Source::of_pool(name, pool)));
            }
        }
    }
    if object.is_none() && added.is_empty() {
        let (reported, pools) = (Value::Null, Vec::new());
        return Resolved { object: None, reported, config: None, pools, left_out };
    }
    let name = object.map_or("sluice", |object| object.metadata.name.as_str());
    let (mut config, added) = together(name, &spec, pickers, added, &mut left_out);
    sources.extend(added.into_iter().map(|(_, source)| source));
    if let Ok(loaded) = &mut config {
        add_adapters(&snapshot.adapters, loaded);
        add_rewrites(&snapshot.legacy_rewrites, &snapshot.rewrites, loaded);
        add_objectives(&snapshot.legacy_objectives, &snapshot.objectives, loaded);
    }
    let mut pools = Vec::new();
    for (index, source) in sources.iter().enumerate() {
        let scheduler = match &mut config {
            Ok(loaded) => loaded.config.schedulers.get_mut(index),
            Err(_) => None,
        };
        pools.push(pods::find(source, snapshot, asked.node.as_deref(), scheduler));
    }
    Resolved {
        object: object.map(|object| object.metadata.clone()),
        reported: object.map(|object| object.status.clone()).unwrap_or_default(),
        config: Some(config),
        pools,
        left_out,
    }
}

/// The object's configuration and the pools' schedulers, but for those that it would be wrong with.
fn together(
    name: &str,
    spec: &Value,
    pickers: &BTreeMap<String, PickerMap>,
    added: Vec<(Value, Source)>,
    left_out: &mut Vec<(String, String)>,
) -> (Result<Loaded, Errors>, Vec<(Value, Source)>) {
    let written = spec.get("schedulers").and_then(Value::as_array).map_or(0, Vec::len);
    let parse = |added: &[(Value, Source)]| {
        let mut spec = spec.clone();
        if let Some(map) = spec.as_object_mut()
            && !added.is_empty()
            && let Value::Array(list) = map.entry("schedulers").or_insert_with(|| json!([]))
        {
            list.extend(added.iter().map(|(scheduler, _)| scheduler.clone()));
        }
        config::parse_object_with(name, &spec, pickers)
    };
    let all = parse(&added);
    if all.is_ok() || added.is_empty() {
        return (all, added);
    }
    let mut config = parse(&[]);
    let is_empty = spec.as_object().is_some_and(serde_json::Map::is_empty);
    if config.is_err() && !is_empty {
        return (all, added);
    }
    let mut kept = Vec::new();
    for one in added {
        let name = one.1.name.clone();
        if written.saturating_add(kept.len()) >= MAX_POOLS {
            left_out.push((name, format!("a gateway has at most {MAX_POOLS} pools")));
            continue;
        }
        kept.push(one);
        match parse(&kept) {
            Ok(loaded) => config = Ok(loaded),
            Err(errors) => {
                kept.pop();
                let text = errors.list.first().map(|error| error.text.clone());
                left_out.push((name, text.unwrap_or_default()));
            }
        }
    }
    (config, kept)
}

/// The specification of the object that is asked for, if it is there.
#[must_use]
pub fn specification<'a>(snapshot: &'a Snapshot, asked: &Asked) -> Option<&'a Value> {
    chosen(snapshot, asked).map(|object| &object.spec)
}

/// The selectors that pods are wanted for by these specifications, and by the pools.
#[must_use]
pub fn selectors<'a>(
    specs: impl IntoIterator<Item = &'a Value>,
    snapshot: &Snapshot,
) -> Vec<LabelSelector> {
    let written = specs.into_iter().filter_map(|spec| Sources::deserialize(spec).ok());
    let of_object = written.flat_map(|sources| sources.schedulers);
    let of_pools = pools(snapshot).into_values().map(|pool| Some(pool.spec.selector()));
    of_object
        .map(|scheduler| scheduler.model_selector)
        .chain(of_pools)
        .flatten()
        // By one that is wrong, the API server would tell of no pods at all.
        .filter(|selector| !selector.is_empty() && selector.fault().is_none())
        .collect()
}

fn chosen<'a>(snapshot: &'a Snapshot, asked: &Asked) -> Option<&'a GatewayConfig> {
    match &asked.name {
        Some(name) => snapshot.configs.get(name),
        None => snapshot
            .configs
            .values()
            .min_by_key(|object| (&object.metadata.creation_timestamp, &object.metadata.name)),
    }
}

/// Every pool once: v1 is what v1alpha2 became.
fn pools(snapshot: &Snapshot) -> BTreeMap<&String, &InferencePool> {
    snapshot.legacy_pools.iter().chain(&snapshot.pools).collect()
}

/// As much of the specification as says where pods come from.
#[derive(Debug, Default, Deserialize)]
struct Sources {
    #[serde(default)]
    schedulers: Vec<Written>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Written {
    name: String,
    model_name: String,
    aliases: Vec<String>,
    lora_adapters: Vec<String>,
    model_selector: Option<LabelSelector>,
    target_port: Option<u16>,
    pods: Vec<Value>,
}

impl Written {
    /// Every name that leads to it.
    fn models(&self) -> impl Iterator<Item = String> + '_ {
        std::iter::once(&self.model_name).chain(&self.aliases).chain(&self.lora_adapters).cloned()
    }
}

/// Where the pods of one pool come from.
#[derive(Debug, Default)]
struct Source {
    name: String,
    selector: Option<LabelSelector>,
    ports: Vec<u16>,
    /// Pods that are listed.
    listed: usize,
    /// They are those of an `InferencePool`.
    is_pool: bool,
    /// What they are said to speak, if it is another protocol than the gateway's.
    protocol: Option<String>,
}

impl Source {
    fn of(written: &Written, snapshot: &Snapshot) -> Self {
        let own = Self {
            name: written.name.clone(),
            selector: written.model_selector.clone(),
            ports: vec![written.target_port.unwrap_or_else(config::document::Scheduler::port)],
            listed: written.pods.len(),
            is_pool: false,
            protocol: None,
        };
        if own.selector.is_some() || own.listed > 0 {
            return own;
        }
        // It stands for the pool of its name.
        match pools(snapshot).get(&written.name) {
            Some(pool) => Self::of_pool(&written.name, pool),
            None => own,
        }
    }

    fn of_pool(name: &str, pool: &InferencePool) -> Self {
        let selector = Some(pool.spec.selector());
        let ports = pool.spec.ports();
        let protocol = Some(&pool.spec.app_protocol);
        let protocol = protocol.filter(|of| !of.is_empty() && *of != "http").cloned();
        Self { name: name.to_owned(), selector, ports, listed: 0, is_pool: true, protocol }
    }
}

/// The annotation of an `InferencePool` by which clients name its model; by the pool's name without it.
const MODEL: &str = "gateway.sluice.dev/model-name";
/// Pools of one gateway, as many as a file may have.
const MAX_POOLS: usize = 100;
/// Pods of one pool, as many as a file may list.
const MAX_PODS: usize = 4096;
