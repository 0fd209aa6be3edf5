//! The reference picker's configuration, an EndpointPickerConfig, in terms of this gateway.
//!
//! The file is read strictly, as the picker itself does: an unknown field, plugin or parameter is an
//! error with its place. What is known there and has no effect here becomes a note; what would send
//! requests to pods that were not meant for them, if it were ignored, is an error. What has an effect
//! is told as well, in plain words, for `sluice check`.
//!
//! [`plugins`] knows the plugins, this file how the document holds together. Pure.

mod plugins;
#[cfg(test)]
mod tests;

use serde_json::{Value as Json, json};

use self::plugins::{Plugin, Role};
use super::error::{Error, Errors, Note, Path, quoted};
use super::schema::Part;
use super::shape::{self, nearest};
use super::tree::{self, Node, Value};
use crate::schedule::{Picker, Policy, Scorer, Weighted};

/// What a picker's configuration amounts to here.
#[derive(Debug)]
pub(super) struct Picked {
    pub(super) policy: Policy,
    /// Thresholds of its saturation detector, as far as the file names them.
    pub(super) queue_depth: Option<u32>,
    pub(super) kv_cache: Option<f32>,
    pub(super) in_flight: Option<u32>,
    /// What has an effect, and which.
    pub(super) meanings: Vec<Note>,
    /// What has none.
    pub(super) notes: Vec<Note>,
}

/// Reads a file; `file` is its name in errors.
///
/// # Errors
/// Everything that is wrong with it, or cannot be served.
pub(super) fn read(text: &str, file: &str) -> Result<Picked, Errors> {
    let root = tree::read(text, file)?;
    let top = Path::default();
    let mut errors = Vec::new();
    root.duplicate_keys(&top, &mut errors);
    let schema = schema();
    let shape = shape::check_part(&root, Part(&schema), &top);
    errors.extend(shape.errors);
    let mut reader = Reader {
        root: &root,
        errors,
        picked: Picked {
            policy: Policy::Scorers { scorers: Vec::new(), picker: Picker::MaxScore },
            queue_depth: None,
            kv_cache: None,
            in_flight: None,
            meanings: Vec::new(),
            notes: shape.notes,
        },
        named: Vec::new(),
    };
    if !shape.broken {
        reader.document();
    }
    let Reader { errors, mut picked, .. } = reader;
    let mut list: Vec<Error> = errors.into_iter().map(|(_, error)| error).collect();
    list.sort_by_key(|error| (error.line, error.column));
    if !list.is_empty() {
        return Err(Errors { file: file.to_owned(), list });
    }
    picked.meanings.sort_by_key(|note| note.line);
    picked.notes.sort_by_key(|note| note.line);
    Ok(picked)
}

struct Reader<'a> {
    root: &'a Node,
    errors: Vec<(Path, Error)>,
    picked: Picked,
    /// The plugins by the names that refer to them.
    named: Vec<Named<'a>>,
}

struct Named<'a> {
    name: &'a str,
    plugin: &'static Plugin,
    parameters: Json,
    path: Path,
    used: bool,
}

impl<'a> Reader<'a> {
    fn document(&mut self) {
        let top = Path::default();
        for (index, gate) in self.list(&top.field("featureGates")).iter().enumerate() {
            self.gate(gate, &top.field("featureGates").index(index));
        }
        for (index, plugin) in self.list(&top.field("plugins")).iter().enumerate() {
            self.plugin(plugin, &top.field("plugins").index(index));
        }
        for path in [
            top.field("saturationDetector").field("pluginRef"),
            top.field("flowControl").field("saturationDetector").field("pluginRef"),
        ] {
            if let Some(name) = self.text(&path) {
                self.detector(name, &path);
            }
        }
        // In the form that it had before it was a plugin.
        let own = top.field("saturationDetector");
        if let Some(node) = self.root.find(&own) {
            self.limits("saturationDetector", &node.to_json(), &own);
        }
        let profiles = top.field("schedulingProfiles");
        match self.list(&profiles) {
            [] => self.without_profile(),
            [_] => self.profile(&profiles.index(0).field("plugins")),
            [_, ..] => {
                let text = "has several profiles: a pool takes one here, and what chooses between them is \
                            not supported; give each a pool of its own";
                self.fail(&profiles, text);
            }
        }
        self.unused();
    }

    fn gate(&mut self, gate: &'a Node, path: &Path) {
        let Value::Text(text) = &gate.value else { return };
        let (name, value) = text.split_once('=').unwrap_or((text, "true"));
        let Some((_, effect)) = GATES.iter().find(|(known, _)| *known == name) else {
            let known: Vec<&str> = GATES.iter().map(|(known, _)| *known).collect();
            let text =
                format!("{} is no feature gate; known are {}", quoted(name), known.join(", "));
            return self.fail(path, text);
        };
        match value {
            "true" => self.note(path, format!("{name} {effect}")),
            "false" => {}
            _ => self.fail(path, format!("{} is neither true nor false", quoted(value))),
        }
    }

    fn plugin(&mut self, node: &'a Node, path: &Path) {
        let text = |field| match &node.find(&Path::default().field(field))?.value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        };
        let Some(kind) = text("type") else { return };
        let Some(plugin) = plugins::find(kind) else {
            return self.fail(&path.field("type"), unknown(kind));
        };
        let name = text("name").unwrap_or(kind);
        if self.named.iter().any(|named| named.name == name) {
            return self.fail(path, format!("{} is the name of another plugin", quoted(name)));
        }
        if let Role::Refused(why) = plugin.role {
            return self.fail(&path.field("type"), format!("{kind} {why}"));
        }
        let at = path.field("parameters");
        let schema = plugin.schema();
        let parameters = match self.root.find(&at) {
            Some(node) => {
                let shape = shape::check_part(node, Part(&schema), &at);
                self.errors.extend(shape.errors);
                self.picked.notes.extend(shape.notes);
                shape.value
            }
            None => Json::Null,
        };
        self.named.push(Named { name, plugin, parameters, path: path.clone(), used: false });
    }

    /// The one profile: its scorers with their weights, and its picker.
    fn profile(&mut self, plugins: &Path) {
        let mut scorers = Vec::new();
        let mut picker: Option<Picker> = None;
        let mut left_out = 0;
        for (index, _) in self.list(plugins).iter().enumerate() {
            let path = plugins.index(index);
            let at = path.field("pluginRef");
            let Some(name) = self.text(&at) else { continue };
            let Some((plugin, parameters)) = self.take(name) else {
                let names: Vec<&str> = self.named.iter().map(|named| named.name).collect();
                let text =
                    format!("{} is no plugin of this file: {}", quoted(name), names.join(", "));
                self.fail(&at, text);
                continue;
            };
            let weight = self.weight(&path);
            let is_scorer = matches!(plugin.role, Role::Scorer(_) | Role::NoScorer(_));
            if weight.is_some() && !is_scorer {
                self.note(&path.field("weight"), format!("has no effect: {name} is no scorer"));
            }
            match plugin.role {
                Role::Scorer(make) => {
                    let scorer = make(&parameters);
                    self.scorer(&mut scorers, scorer, name, weight.unwrap_or(1.0), &path);
                }
                Role::NoScorer(why) => {
                    left_out += 1;
                    self.note(&path, format!("{name} {why}"));
                }
                Role::Picker(kind) if picker.is_some() => {
                    self.fail(&at, format!("{name} is a second picker ({})", kind.name()));
                }
                Role::Picker(kind) => {
                    picker = Some(kind);
                    self.mean(&path, format!("{name}: {}", plugins::of_picker(kind)));
                }
                Role::Detector => {
                    self.limits(name, &parameters, &at);
                }
                Role::Nothing(why) if !why.is_empty() => self.note(&path, format!("{name} {why}")),
                Role::Nothing(_) | Role::Refused(_) => {}
            }
        }
        if scorers.is_empty() && left_out > 0 {
            self.fail(plugins, "no scorer is left that is supported");
        }
        self.picked.policy =
            Policy::Scorers { scorers, picker: picker.unwrap_or(Picker::MaxScore) };
    }

    fn scorer(
        &mut self,
        scorers: &mut Vec<Weighted>,
        scorer: Scorer,
        name: &str,
        weight: f64,
        path: &Path,
    ) {
        if scorers.iter().any(|other| other.scorer.name() == scorer.name()) {
            let text = format!("{name} is a second scorer of its kind, and one counts here");
            return self.fail(&path.field("pluginRef"), text);
        }
        let what = plugins::of_scorer(scorer);
        if weight > 0.0 {
            scorers.push(Weighted { scorer, weight: weight as f32 });
            self.mean(path, format!("{name} counts {weight}: {what}"));
        } else {
            self.mean(path, format!("{name} counts nothing, with weight 0"));
        }
    }

    /// Without profiles every scorer and picker of the file counts; without plugins, what the reference
    /// picker takes by default.
    fn without_profile(&mut self) {
        let top = Path::default();
        let all: Vec<(&str, &'static Plugin, Json, Path)> = (self.named.iter())
            .map(|named| (named.name, named.plugin, named.parameters.clone(), named.path.clone()))
            .collect();
        let mut scorers = Vec::new();
        let mut picker = None;
        for (name, plugin, parameters, path) in &all {
            match plugin.role {
                Role::Scorer(make) => {
                    self.take(name);
                    self.scorer(&mut scorers, make(parameters), name, 1.0, path);
                }
                Role::Picker(kind) => {
                    self.take(name);
                    picker = Some(kind);
                    self.mean(path, format!("{name}: {}", plugins::of_picker(kind)));
                }
                _ => {}
            }
        }
        if scorers.is_empty() && picker.is_none() {
            for (name, weight) in plugins::DEFAULT {
                let Some(Role::Scorer(make)) = plugins::find(name).map(|plugin| plugin.role) else {
                    continue;
                };
                self.scorer(&mut scorers, make(&Json::Null), name, weight, &top);
            }
        }
        self.picked.policy =
            Policy::Scorers { scorers, picker: picker.unwrap_or(Picker::MaxScore) };
    }

    fn detector(&mut self, name: &'a str, path: &Path) {
        match self.take(name) {
            Some((plugin, parameters)) if matches!(plugin.role, Role::Detector) => {
                self.limits(name, &parameters, path);
            }
            Some(_) => self.fail(path, format!("{} is no saturation detector", quoted(name))),
            None => self.fail(path, format!("{} is no plugin of this file", quoted(name))),
        }
    }

    /// Thresholds: those that the file names, as those of a detector that is there by default refuse nothing
    /// of priority 0 and above.
    fn limits(&mut self, name: &str, parameters: &Json, path: &Path) {
        let number = |field| parameters.get(field).and_then(Json::as_f64);
        let count = |field| number(field).map(|number| (number.ceil() as u32).clamp(1, MOST));
        let by_tokens = parameters.get("concurrencyMode").and_then(Json::as_str) == Some("tokens");
        let kv_cache = number("kvCacheUtilThreshold").map(|share| (share as f32).clamp(0.01, 1.0));
        let (queue_depth, in_flight) =
            (count("queueDepthThreshold"), count("maxConcurrency").filter(|_| !by_tokens));
        let mut said = Vec::new();
        if let Some(depth) = queue_depth.filter(|depth| *depth < MOST) {
            said.push(format!("{depth} requests wait in its engine"));
        }
        if let Some(share) = kv_cache.filter(|share| *share < 1.0) {
            said.push(format!("{share} of its KV cache is in use"));
        }
        self.picked.queue_depth = queue_depth.or(self.picked.queue_depth);
        self.picked.kv_cache = kv_cache.or(self.picked.kv_cache);
        if let Some(most) = in_flight.filter(|most| *most < MOST) {
            said.push(format!("this gateway has {most} requests in flight there"));
        }
        self.picked.in_flight = in_flight.or(self.picked.in_flight);
        if !said.is_empty() {
            let text = format!(
                "{name}: a pod takes no more when {}; a request that finds no pod gets 429, whatever its \
                 priority",
                said.join(" or ")
            );
            self.mean(path, text);
        }
    }

    /// Says of plugins that nothing refers to whether they matter.
    fn unused(&mut self) {
        let unused: Vec<(Path, String)> = (self.named.iter())
            .filter(|named| !named.used)
            .filter_map(|named| {
                let why = match named.plugin.role {
                    Role::Nothing("") => return None,
                    Role::Nothing(why) | Role::NoScorer(why) => why,
                    _ => "has no effect: no profile names it",
                };
                Some((named.path.clone(), format!("{} {why}", named.name)))
            })
            .collect();
        for (path, text) in unused {
            self.note(&path, text);
        }
    }

    /// The plugin that a name refers to: one of the file, or one that is known by its type alone.
    fn take(&mut self, name: &str) -> Option<(&'static Plugin, Json)> {
        if let Some(named) = self.named.iter_mut().find(|named| named.name == name) {
            named.used = true;
            return Some((named.plugin, named.parameters.clone()));
        }
        plugins::find(name)
            .filter(|plugin| !matches!(plugin.role, Role::Refused(_)))
            .map(|p| (p, Json::Null))
    }

    fn weight(&self, path: &Path) -> Option<f64> {
        match self.root.find(&path.field("weight"))?.value {
            Value::Int(weight) => Some(weight as f64),
            Value::Float(weight) => Some(weight),
            _ => None,
        }
    }

    fn list(&self, path: &Path) -> &'a [Node] {
        match self.root.find(path).map(|node| &node.value) {
            Some(Value::List(items)) => items,
            _ => &[],
        }
    }

    fn text(&self, path: &Path) -> Option<&'a str> {
        match &self.root.find(path)?.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    fn fail(&mut self, path: &Path, text: impl Into<String>) {
        self.errors.push((path.clone(), self.root.nearest(path).error(path, text)));
    }

    fn note(&mut self, path: &Path, text: impl Into<String>) {
        let note = self.at(path, text.into());
        self.picked.notes.push(note);
    }

    fn mean(&mut self, path: &Path, text: impl Into<String>) {
        let note = self.at(path, text.into());
        self.picked.meanings.push(note);
    }

    fn at(&self, path: &Path, text: String) -> Note {
        let field = if path.steps().is_empty() { "the file".to_owned() } else { path.to_string() };
        Note { file: None, line: self.root.nearest(path).line, field, text }
    }
}

fn unknown(kind: &str) -> String {
    let names = plugins::names();
    match nearest(kind, &names) {
        Some(near) => {
            format!("{} is no plugin that is known here; did you mean {near}?", quoted(kind))
        }
        None => format!("{} is no plugin that is known here", quoted(kind)),
    }
}

/// The document's shape. What has no effect whatever it holds is taken as it is.
fn schema() -> Json {
    let text = |length: u32| json!({"type": "string", "minLength": 1, "maxLength": length});
    let anything = |note: &str| json!({"type": "object", "x-note": note});
    json!({
        "type": "object",
        "required": ["apiVersion", "kind"],
        "properties": {
            "apiVersion": {"type": "string", "description": "The schema's version.",
                "enum": ["inference.networking.x-k8s.io/v1alpha1", "llm-d.ai/v1alpha1"]},
            "kind": {"type": "string", "description": "The kind of document.",
                "enum": ["EndpointPickerConfig"]},
            "featureGates": {"type": "array", "maxItems": 64, "items": text(253)},
            "plugins": {"type": "array", "maxItems": 256, "items": {
                "type": "object",
                "required": ["type"],
                "properties": {
                    "name": text(253),
                    "type": {"type": "string", "minLength": 1, "maxLength": 253,
                        "description": "The plugin's type."},
                    "parameters": {"type": "object"},
                },
            }},
            "schedulingProfiles": {"type": "array", "maxItems": 64, "items": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string", "minLength": 1, "maxLength": 253,
                        "description": "The profile's name."},
                    "plugins": {"type": "array", "maxItems": 256, "items": {
                        "type": "object",
                        "required": ["pluginRef"],
                        "properties": {
                            "pluginRef": {"type": "string", "minLength": 1, "maxLength": 253,
                                "description": "A plugin's name."},
                            "weight": {"type": "number", "minimum": 0, "maximum": MOST_WEIGHT},
                        },
                    }},
                },
            }},
            "saturationDetector": {"type": "object", "properties": {
                "pluginRef": text(253),
                "queueDepthThreshold": {"type": "number", "minimum": 0, "maximum": f64::MAX},
                "kvCacheUtilThreshold": {"type": "number", "minimum": 0, "maximum": f64::MAX},
                "metricsStalenessThreshold": {"type": "string", "maxLength": 63,
                    "x-note": plugins::OWN_STALE},
            }},
            "parser": {"type": "object", "x-note": "has no effect: requests are read as OpenAI's API has them"},
            "requestHandler": anything("has no effect: requests are read as OpenAI's API has them"),
            "dataLayer": anything("has no effect: each pod is asked for its metrics"),
            "flowControl": anything("has no effect but for a saturation detector: nothing is queued by \
                priority"),
        },
    })
}

/// Feature gates, and what becomes of them.
const GATES: [(&str, &str); 6] = [
    ("flowControl", "has no effect: nothing is queued by priority"),
    ("dataLayer", "has no effect: each pod is asked for its metrics"),
    ("experimentalDatalayer", "has no effect: each pod is asked for its metrics"),
    ("enableLegacyMetrics", "has no effect: the gateway has its own metrics"),
    ("haPopulateNonLeaderDatastore", "has no effect: each gateway decides for itself"),
    ("prepareDataPlugins", "has no effect: there are no such steps"),
];

/// Largest count taken; what is larger never comes to be.
const MOST: u32 = 1_000_000;

/// Largest weight, as for weights of our own.
const MOST_WEIGHT: u32 = 2_147_483_647;
