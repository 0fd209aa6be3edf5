//! The YAML text as a tree that knows where everything stands.
//!
//! The document's types are not read from the YAML directly, since that stops at the first mistake.
//! The text becomes this tree first; `shape` compares it with the schema and finds all of them.
//! Size, depth and aliases are bounded here, so that nothing behind it needs to care.

use std::collections::HashMap;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{DuplicateKeyPolicy, Location, Options, Spanned};

use super::error::{Error, Errors, Path, Step, quoted};
use super::shape::MAX_ERRORS;

/// Longest document, in bytes.
pub(super) const MAX_BYTES: usize = 4 * 1024 * 1024;

/// A value and its place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) line: u32,
    pub(super) column: u32,
    pub(super) value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A map's key, its place, and what it stands for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: u32,
    pub(super) column: u32,
    pub(super) node: Node,
}

/// Reads one YAML document.
pub(super) fn read(text: &str, file: &str) -> Result<Node, Errors> {
    if text.len() > MAX_BYTES {
        return Err(Errors::whole(file, too_large()));
    }
    if !has_content(text) {
        return Err(Errors::whole(file, "is empty; `sluice check --defaults` prints a document"));
    }
    match serde_saphyr::from_str_with_options(text, options()) {
        Ok(node) => Ok(node),
        Err(error) => Err(Errors { file: file.to_owned(), list: vec![syntax(&error, text)] }),
    }
}

/// What to say of a document over [`MAX_BYTES`].
pub(super) fn too_large() -> String {
    format!("is larger than {} MiB", MAX_BYTES / (1024 * 1024))
}

impl Node {
    /// The node at a path, if the document has it.
    pub(super) fn find(&self, path: &Path) -> Option<&Self> {
        path.steps().iter().try_fold(self, Self::step)
    }

    /// The node at a path, or what comes nearest above it: where an absent field would stand.
    pub(super) fn nearest(&self, path: &Path) -> &Self {
        let mut node = self;
        for step in path.steps() {
            let Some(next) = node.step(step) else { break };
            node = next;
        }
        node
    }

    fn step(&self, step: &Step) -> Option<&Self> {
        match (&self.value, step) {
            (Value::Map(entries), Step::Field(name)) => {
                entries.iter().find(|entry| entry.key == *name).map(|entry| &entry.node)
            }
            (Value::List(items), Step::Index(index)) => items.get(*index),
            _ => None,
        }
    }

    /// Reports every key that a map holds twice.
    pub(super) fn duplicate_keys(&self, path: &Path, errors: &mut Vec<(Path, Error)>) {
        match &self.value {
            Value::Map(entries) => {
                let mut first_lines = HashMap::new();
                for entry in entries {
                    let path = path.field(&entry.key);
                    if errors.len() >= MAX_ERRORS {
                        return;
                    } else if let Some(first) = first_lines.get(entry.key.as_str()) {
                        let text = format!("is given twice, first in line {first}");
                        errors.push((path.clone(), entry.error(&path, text)));
                    } else {
                        first_lines.insert(entry.key.as_str(), entry.line);
                    }
                    entry.node.duplicate_keys(&path, errors);
                }
            }
            Value::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    item.duplicate_keys(&path.index(index), errors);
                }
            }
            _ => {}
        }
    }

    /// An error at this value.
    pub(super) fn error(&self, path: &Path, text: impl Into<String>) -> Error {
        Error {
            file: None,
            line: self.line,
            column: self.column,
            field: path.to_string(),
            text: text.into(),
        }
    }

    /// The value in a few words, as a message names it.
    pub(super) fn describe(&self) -> String {
        match &self.value {
            Value::Null => "an empty value".into(),
            Value::Bool(value) => value.to_string(),
            Value::Int(value) => value.to_string(),
            Value::Float(value) => value.to_string(),
            Value::Text(text) => quoted(text),
            Value::List(_) => "a list".into(),
            Value::Map(_) => "a map".into(),
        }
    }

    /// The plain value, without places.
    pub(super) fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(value) => (*value).into(),
            // Numbers of more than 64 bits are text to JSON; no field takes one.
            Value::Int(value) => i64::try_from(*value)
                .map(serde_json::Value::from)
                .or_else(|_| u64::try_from(*value).map(serde_json::Value::from))
                .unwrap_or_else(|_| value.to_string().into()),
            Value::Float(value) => (*value).into(),
            Value::Text(text) => text.as_str().into(),
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Map(entries) => entries
                .iter()
                .map(|entry| (entry.key.clone(), entry.node.to_json()))
                .collect::<serde_json::Map<_, _>>()
                .into(),
        }
    }
}

impl Entry {
    /// An error at this key.
    pub(super) fn error(&self, path: &Path, text: impl Into<String>) -> Error {
        Error {
            file: None,
            line: self.line,
            column: self.column,
            field: path.to_string(),
            text: text.into(),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, referenced, .. } = Spanned::<Value>::deserialize(deserializer)?;
        let (line, column) = place(referenced);
        Ok(Self { line, column, value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Value, E> {
        Ok(i128::try_from(value).map_or_else(|_| Value::Text(value.to_string()), Value::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(Spanned { value: key, referenced, .. }) =
            map.next_key::<Spanned<String>>()?
        {
            let (line, column) = place(referenced);
            entries.push(Entry { key, line, column, node: map.next_value()? });
        }
        Ok(Value::Map(entries))
    }
}

fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            // Higher, so that the limit above is what a message names.
            flow_nesting_limit: 2 * MAX_DEPTH,
            max_aliases: MAX_ALIASES,
            max_merge_keys: MAX_ALIASES,
            max_nodes: MAX_NODES,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_REPLAYED,
            max_replay_stack_depth: MAX_ALIAS_DEPTH,
        },
        // Seen by `duplicate_keys`, which knows both lines and goes on.
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        // YAML 1.2, as people read it: `off` and `1_000` are text, `010` is not eight.
        strict_booleans: true,
        underscored_numbers_as_strings: true,
        leading_zero_numbers_as_strings: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

/// Whether any line says something; comments and document marks do not.
fn has_content(text: &str) -> bool {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    text.lines().map(str::trim).any(|l| !l.is_empty() && !l.starts_with('#') && l != "---")
}

/// What the YAML library found, in a user's words.
fn syntax(error: &serde_saphyr::Error, text: &str) -> Error {
    use serde_saphyr::Error as Yaml;

    let error = error.without_snippet();
    let (line, column) = error.location().map_or((0, 0), place);
    let inner = match error {
        Yaml::AliasError { error, .. } => error.without_snippet(),
        error => error,
    };
    let message = match inner {
        _ if tab_indents(text, line) => "a tab cannot indent YAML; use spaces".into(),
        Yaml::MultipleDocuments { .. } => {
            "a second document begins here; give one to a file".into()
        }
        Yaml::Budget { breach: BudgetBreach::Depth { .. }, .. } => {
            format!("is nested deeper than {MAX_DEPTH} levels")
        }
        Yaml::Budget { breach: BudgetBreach::Nodes { .. }, .. } => {
            format!("has more than {MAX_NODES} values")
        }
        Yaml::Budget { .. } => "is larger or more deeply nested than a configuration may be".into(),
        Yaml::AliasReplayLimitExceeded { .. } => {
            format!("its aliases repeat more than {MAX_REPLAYED} values")
        }
        Yaml::AliasReplayStackDepthExceeded { .. } => {
            format!("has aliases within aliases, more than {MAX_ALIAS_DEPTH} deep")
        }
        Yaml::UnknownAnchor { .. } => "there is no anchor of this name above".into(),
        // Values of all kinds are read; only keys must be text.
        Yaml::NullIntoString { .. } | Yaml::Unexpected { .. } => {
            "a field's name must be text".into()
        }
        Yaml::UnsupportedTag { tag, .. } => format!("there is no type {}", quoted(tag)),
        Yaml::NonFiniteFloat { value, .. } => format!("{} is not a number", quoted(value)),
        Yaml::ExternalMessage { msg, .. } | Yaml::Message { msg, .. } => format!("not YAML: {msg}"),
        other => format!("not YAML: {}", without_place(&other.to_string())),
    };
    Error { file: None, line, column, field: String::new(), text: message }
}

/// The library's text without "at line 3, column 7", which the error carries itself.
fn without_place(message: &str) -> &str {
    message.split_once(" at line ").map_or(message, |(text, _)| text)
}

fn tab_indents(text: &str, line: u32) -> bool {
    let index = (line as usize).checked_sub(1);
    let line = index.and_then(|index| text.lines().nth(index)).unwrap_or_default();
    line.split(|c: char| c != ' ' && c != '\t').next().unwrap_or_default().contains('\t')
}

fn place(location: Location) -> (u32, u32) {
    let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    (narrow(location.line()), narrow(location.column()))
}

/// Levels of lists and maps; our own document has 9.
const MAX_DEPTH: usize = 32;

/// Values in a document: 100 pools of 1,000 pods fit.
const MAX_NODES: usize = 500_000;

/// Aliases in a document.
const MAX_ALIASES: usize = 1_000;

/// Values that aliases may repeat, all together: what stops "a billion laughs".
const MAX_REPLAYED: usize = 100_000;

/// Aliases within what an alias stands for.
const MAX_ALIAS_DEPTH: usize = 8;
