//! The tree against the schema: unknown fields, wrong types, values out of bounds, all of them.
//!
//! What is wrong is left out of the plain value that comes back, so that the checks behind this can
//! go on with the rest. Fields without effect become notes here, since the schema says which they
//! are.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Map, Value as Json, json};

use super::error::{Error, Note, Path, quoted};
use super::schema::Part;
use super::tree::{Entry, Node, Value};
use super::units::{Block, KubeDuration, Size};

/// What a document's shape tells.
pub(super) struct Shape {
    /// What is right, as plain data.
    pub(super) value: Json,
    /// Errors, with the path of the field that each is about.
    pub(super) errors: Vec<(Path, Error)>,
    /// What has no effect.
    pub(super) notes: Vec<Note>,
    /// Whether something is missing that nothing behind this can do without.
    pub(super) broken: bool,
}

/// Compares a document with the schema.
pub(super) fn check(root: &Node) -> Shape {
    let mut checker = Checker::new(Part::root());
    let path = Path::default();
    let value = match &root.value {
        Value::Map(entries) if !looks_like_ours(entries) => {
            let text = format!("is not an InferenceGatewayConfig: {NOT_OURS}");
            checker.fail(&path, root.error(&path, text));
            None
        }
        Value::Map(_) => {
            root.duplicate_keys(&path, &mut checker.errors);
            checker.value(root, Part::root(), &path)
        }
        _ => {
            let text = format!("is {}, must be a map; {NOT_OURS}", root.describe());
            checker.fail(&path, root.error(&path, text));
            None
        }
    };
    let Checker { errors, notes, broken, .. } = checker;
    Shape { broken: broken || value.is_none(), value: value.unwrap_or_default(), errors, notes }
}

/// Compares a part of another document, which stands at `path`, with a schema of its own.
pub(super) fn check_part(node: &Node, part: Part<'_>, path: &Path) -> Shape {
    let mut checker = Checker::new(part);
    let value = checker.value(node, part, path);
    let Checker { errors, notes, broken, .. } = checker;
    Shape { broken: broken || value.is_none(), value: value.unwrap_or_default(), errors, notes }
}

struct Checker<'a> {
    /// The schema of the whole, in which a misplaced field's home is looked for.
    whole: Part<'a>,
    errors: Vec<(Path, Error)>,
    notes: Vec<Note>,
    broken: bool,
}

impl<'a> Checker<'a> {
    fn new(whole: Part<'a>) -> Self {
        Self { whole, errors: Vec::new(), notes: Vec::new(), broken: false }
    }

    fn fail(&mut self, path: &Path, error: Error) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push((path.clone(), error));
        }
    }

    /// Checks a value of any kind. `None` if it is wrong as a whole.
    fn value(&mut self, node: &Node, part: Part<'_>, path: &Path) -> Option<Json> {
        let wrong = match (part.kind(), &node.value) {
            (_, Value::Null) => "has no value; give it one, or remove the line".to_owned(),
            ("object", Value::Map(entries)) => return self.map(node, entries, part, path),
            ("object", Value::Text(text)) if !part.text("x-shorthand").is_empty() => {
                match endpoint(text) {
                    Ok(value) => return Some(value),
                    Err(wrong) => wrong,
                }
            }
            ("array", Value::List(items)) => return self.list(node, items, part, path),
            ("object" | "array", _) => {
                let noun = match (part.kind(), part.text("x-shorthand")) {
                    ("array", _) => "a list",
                    (_, "endpoint") => "a map, or a text with address and port",
                    _ => "a map",
                };
                format!("is {}, must be {noun}", node.describe())
            }
            _ => match scalar(node, part) {
                Ok(value) => return Some(value),
                Err(wrong) => wrong,
            },
        };
        self.fail(path, node.error(path, wrong));
        None
    }

    fn map(&mut self, node: &Node, entries: &[Entry], part: Part<'_>, path: &Path) -> Option<Json> {
        let Some(fields) = part.fields() else { return self.free_map(node, entries, part, path) };
        let mut map = Map::new();
        let mut misspelt = Vec::new();
        for entry in entries {
            let path = path.field(&entry.key);
            let Some(field) = fields.get(&entry.key) else {
                let ignored = part.texts("x-ignored").any(|name| name == entry.key);
                if !ignored && self.errors.len() < MAX_ERRORS {
                    let (text, meant) = unknown(&entry.key, part, self.whole);
                    misspelt.extend(meant);
                    self.fail(&path, entry.error(&path, text));
                }
                continue;
            };
            let field = Part(field);
            let value = self.value(&entry.node, field, &path);
            self.remark(entry, value.as_ref(), field, &path);
            if let Some(value) = value {
                map.insert(entry.key.clone(), value);
            }
        }
        for name in part.required() {
            if entries.iter().any(|entry| entry.key == name) {
                continue;
            }
            self.broken = true;
            if !misspelt.contains(&name) {
                let path = path.field(name);
                let what = fields.get(name).map(|field| Part(field).text("description"));
                let text = format!("is missing: {}", lower_first(what.unwrap_or_default()));
                self.fail(&path, node.error(&path, text));
            }
        }
        Some(map.into())
    }

    /// Says of a field that it has no effect, or that it must not be ignored.
    fn remark(&mut self, entry: &Entry, value: Option<&Json>, field: Part<'_>, path: &Path) {
        let harmless = field.get("x-unless");
        if harmless.is_some() && (value.is_none() || value == harmless) {
            return;
        }
        // A value among others is what is refused, and is named; else the field is.
        let refused = field.text("x-refused");
        if !refused.is_empty() && harmless.is_some() {
            let text = format!("{} {refused}", entry.node.describe());
            self.fail(path, entry.node.error(path, text));
        } else if !refused.is_empty() {
            self.fail(path, entry.error(path, refused));
        }
        let text = field.text("x-note");
        if !text.is_empty() {
            let note =
                Note { file: None, line: entry.line, field: path.to_string(), text: text.into() };
            self.notes.push(note);
        }
    }

    /// A map whose keys are the user's: labels, or a part of Kubernetes' schema.
    fn free_map(
        &mut self,
        node: &Node,
        entries: &[Entry],
        part: Part<'_>,
        path: &Path,
    ) -> Option<Json> {
        let Some(kind) = part.get("additionalProperties") else { return Some(node.to_json()) };
        let mut map = Map::new();
        for entry in entries {
            let value = self.value(&entry.node, Part(kind), &path.field(&entry.key));
            map.insert(entry.key.clone(), value.unwrap_or_default());
        }
        Some(map.into())
    }

    fn list(&mut self, node: &Node, items: &[Node], part: Part<'_>, path: &Path) -> Option<Json> {
        if let Some(wrong) = wrong_count(items.len(), part, "minItems", "maxItems", "entries") {
            self.fail(path, node.error(path, wrong));
        }
        let kind = part.items()?;
        let mut list = Vec::new();
        for (index, item) in items.iter().enumerate() {
            match self.value(item, kind, &path.index(index)) {
                Some(value) => list.push(value),
                // Later entries would be taken for this one.
                None => self.broken = true,
            }
        }
        Some(list.into())
    }
}

/// Checks a value that is neither map nor list; the error completes "field: ".
fn scalar(node: &Node, part: Part<'_>) -> Result<Json, String> {
    let shown = node.describe();
    match (part.kind(), &node.value) {
        ("boolean", Value::Bool(value)) => Ok((*value).into()),
        ("boolean", _) => Err(format!("{shown} is not true or false")),
        ("integer", Value::Int(value)) => within(*value, part),
        ("integer", _) if part.format() == "port" => {
            Err(format!("{shown} is not a port (1..65535)"))
        }
        ("integer", _) => Err(format!("{shown} is not a whole number")),
        ("number", Value::Int(value)) => within_number(*value as f64, part),
        ("number", Value::Float(value)) => within_number(*value, part),
        ("number", _) => Err(format!("{shown} is not a number")),
        ("string", Value::Text(text)) => string(text, part),
        ("string", Value::Int(_)) if part.format() == "duration" => {
            Err(format!("{shown} has no unit; write it as {shown}s"))
        }
        ("string", Value::Bool(_) | Value::Int(_) | Value::Float(_)) => {
            Err(format!("{shown} is not text; put it in quotes"))
        }
        ("", Value::Text(text)) if part.format() == "size" => size(text, part),
        ("", Value::Int(value)) if part.format() == "size" => size(&value.to_string(), part),
        // JSON's way to write 1e9.
        ("", Value::Float(value)) if part.format() == "size" && value.fract() == 0.0 => {
            size(&format!("{value:.0}"), part)
        }
        ("", _) if part.format() == "size" => Err(format!("{shown} is not a size in bytes")),
        ("string", _) => Err(format!("is {shown}, must be text")),
        _ => Ok(node.to_json()),
    }
}

fn string(text: &str, part: Part<'_>) -> Result<Json, String> {
    let shown = quoted(text);
    if part.choices().next().is_some() {
        return choice(text, part);
    }
    let count = text.chars().count();
    if let Some(wrong) = wrong_count(count, part, "minLength", "maxLength", "characters") {
        return Err(wrong);
    }
    match part.format() {
        "duration" => {
            let parse = |text: &str| text.parse::<KubeDuration>();
            let value = parse(text).map_err(|error| format!("{shown} {error}"))?;
            let low = parse(part.text("x-minimum")).ok();
            let high = parse(part.text("x-maximum")).ok();
            bounded(value, low, high)?;
            Ok(value.to_string().into())
        }
        "cidr" => match text.parse::<Block>() {
            Ok(block) => Ok(block.to_string().into()),
            Err(error) => Err(format!("{shown} {error}")),
        },
        "ip" => match text.parse::<IpAddr>() {
            Ok(address) => Ok(address.to_string().into()),
            Err(_) if text.parse::<SocketAddr>().is_ok() => {
                Err(format!("{shown} has a port; give it as `port`"))
            }
            Err(_) => Err(format!("{shown} is not an IP address; host names are not looked up")),
        },
        "name" if !is_name(text) => Err(format!(
            "{shown} is not a name (lower-case letters, digits, `-` and `.`, \
             a letter or digit at both ends)"
        )),
        "model" if text.chars().any(char::is_control) || text.trim() != text => {
            Err(format!("{shown} has control characters, or spaces at an end"))
        }
        "label" if text.chars().any(char::is_control) => {
            Err(format!("{shown} has control characters"))
        }
        "path" if !is_path(text) => {
            Err(format!("{shown} is not a path (`/`, then visible ASCII without spaces or `#`)"))
        }
        "https" if text.strip_prefix("https://").is_none_or(str::is_empty) => {
            Err(format!("{shown} is not an address that begins with https://"))
        }
        "url"
            if !["https://", "http://"]
                .iter()
                .any(|scheme| text.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty())) =>
        {
            Err(format!("{shown} is not an address that begins with https:// or http://"))
        }
        _ => Ok(text.into()),
    }
}

fn choice(text: &str, part: Part<'_>) -> Result<Json, String> {
    if part.choices().any(|value| value == text) {
        return Ok(text.into());
    }
    let all: Vec<_> = part.choices().collect();
    let Some((last, others)) = all.split_last() else { return Ok(text.into()) };
    if others.is_empty() {
        return Err(format!("{} must be {last}", quoted(text)));
    }
    Err(format!("{} is none of {} and {last}", quoted(text), others.join(", ")))
}

/// An address and perhaps a port in one text, as a map.
fn endpoint(text: &str) -> Result<Json, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(json!({ "address": address.to_string() }));
    }
    match text.parse::<SocketAddr>() {
        Ok(SocketAddr::V6(address)) if address.scope_id() != 0 => {
            Err(format!("{} has a zone, which is not supported", quoted(text)))
        }
        Ok(address) if address.port() == 0 => Err("0 is not a port (1..65535)".into()),
        Ok(address) => Ok(json!({ "address": address.ip().to_string(), "port": address.port() })),
        Err(_) => Err(format!(
            "{} is not an address such as 10.0.0.11, 10.0.0.11:8000 or [fd00::11]:8000; \
             host names are not looked up",
            quoted(text)
        )),
    }
}

fn within(value: i128, part: Part<'_>) -> Result<Json, String> {
    let bound = |key: &str| part.get(key).and_then(Json::as_i64).map(i128::from);
    let low = bound("minimum").unwrap_or(0);
    let high = bound("maximum").unwrap_or(i64::MAX.into());
    match i64::try_from(value) {
        Ok(number) if (low..=high).contains(&value) => Ok(number.into()),
        _ if part.format() == "port" => Err(format!("{value} is not a port ({low}..{high})")),
        _ => Err(format!("{value} is not within {low}..{high}")),
    }
}

fn within_number(value: f64, part: Part<'_>) -> Result<Json, String> {
    let bound = |key: &str| part.get(key).and_then(Json::as_f64);
    let (low, high) = (bound("minimum").unwrap_or(f64::MIN), bound("maximum").unwrap_or(f64::MAX));
    // False for NaN as well.
    if (low..=high).contains(&value) {
        return Ok(value.into());
    }
    Err(format!("{value} is not within {low}..{high}"))
}

fn size(text: &str, part: Part<'_>) -> Result<Json, String> {
    let parse = |text: &str| text.parse::<Size>();
    let value = parse(text).map_err(|error| format!("{} {error}", quoted(text)))?;
    bounded(value, parse(part.text("x-minimum")).ok(), parse(part.text("x-maximum")).ok())?;
    Ok(value.to_string().into())
}

fn bounded<T: Copy + Ord + std::fmt::Display>(
    value: T,
    low: Option<T>,
    high: Option<T>,
) -> Result<(), String> {
    let (Some(low), Some(high)) = (low, high) else { return Ok(()) };
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(format!("{value} is not within {low}..{high}"))
}

fn wrong_count(count: usize, part: Part<'_>, low: &str, high: &str, noun: &str) -> Option<String> {
    let bound = |key| part.get(key).and_then(Json::as_u64).and_then(|n| usize::try_from(n).ok());
    let (low, high) = (bound(low).unwrap_or(0), bound(high).unwrap_or(usize::MAX));
    if count == 0 && low > 0 {
        return Some("is empty".into());
    }
    if (low..=high).contains(&count) {
        return None;
    }
    let most = if low > 1 { format!("{low}..{high}") } else { format!("at most {high}") };
    Some(format!("has {count} {noun}, {most} are allowed"))
}

/// What to say of a field that the schema does not have, and which one it seems to mean.
fn unknown<'a>(name: &str, part: Part<'a>, whole: Part<'_>) -> (String, Option<&'a str>) {
    let known: Vec<&str> =
        part.fields().into_iter().flat_map(|fields| fields.keys().map(String::as_str)).collect();
    if let Some(near) = nearest(name, &known) {
        let list = known.join(", ");
        return (format!("unknown field; did you mean {near}? Known here: {list}"), Some(near));
    }
    let mut homes = Vec::new();
    find_homes(name, whole, "", &mut homes);
    let text = match homes.as_slice() {
        _ if known.is_empty() => "unknown field; none is known here".into(),
        [home] => format!("unknown field here; it belongs to {home}"),
        _ => format!("unknown field; known here: {}", known.join(", ")),
    };
    (text, None)
}

/// The known name that a misspelt one is likely to mean.
pub(super) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    // The distance takes time by the product of the lengths, and a key may be as long as the
    // document.
    if name.len() > MAX_GUESSED {
        return None;
    }
    let plain = |name: &str| name.to_ascii_lowercase().replace(['_', '-'], "");
    let written = plain(name);
    let (distance, near) = known
        .iter()
        .map(|known| (strsim::damerau_levenshtein(&written, &plain(known)), *known))
        .min_by_key(|(distance, _)| *distance)?;
    // A third of the letters: `modlName`, `timeout` for `idleTimeout` is too far.
    (distance * 3 <= near.len()).then_some(near)
}

/// Where else the schema has a field of this name.
fn find_homes(name: &str, part: Part<'_>, path: &str, homes: &mut Vec<String>) {
    for (field, below) in part.fields().into_iter().flatten() {
        if field == name {
            homes.push(if path.is_empty() { "the document itself".into() } else { path.into() });
        }
        let here = if path.is_empty() { field.clone() } else { format!("{path}.{field}") };
        find_homes(name, Part(below), &here, homes);
        if let Some(items) = Part(below).items() {
            find_homes(name, items, &format!("{here}[]"), homes);
        }
    }
}

fn looks_like_ours(entries: &[Entry]) -> bool {
    ["apiVersion", "kind", "spec"].iter().any(|name| entries.iter().any(|e| e.key == *name))
}

fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    text.bytes().all(|b| plain(b) || b == b'-' || b == b'.')
        && text.bytes().next().is_some_and(plain)
        && text.bytes().next_back().is_some_and(plain)
}

fn is_path(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|b| b.is_ascii_graphic() && b != b'#')
}

fn lower_first(text: &str) -> String {
    let text = text.split_once(". ").map_or(text, |(first, _)| first).trim_end_matches('.');
    let mut chars = text.chars();
    match chars.next() {
        // Not "jSON".
        Some(first) if chars.as_str().starts_with(|c: char| c.is_lowercase() || c == ' ') => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => text.to_owned(),
    }
}

/// Longest misspelt name that is compared with the known ones, in bytes.
const MAX_GUESSED: usize = 64;

/// Errors collected for one document: nobody reads more, and a document may be large.
pub(super) const MAX_ERRORS: usize = 1000;

const NOT_OURS: &str = "a document has apiVersion, kind, metadata and spec, and the settings \
    stand under spec; `sluice check --defaults` prints one";
