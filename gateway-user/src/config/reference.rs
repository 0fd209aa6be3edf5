//! Two texts drawn from the schema: the reference page and a commented default document.
//!
//! `docs/configuration.md` is [`reference_page`]; a test compares them. Neither text is written by
//! hand, so neither can disagree with what is read.

use std::fmt::Write;

use serde_json::Value;

use super::schema::Part;

/// The reference page, `docs/configuration.md`.
#[must_use]
pub fn reference_page() -> String {
    let mut page = PAGE_HEAD.to_owned();
    section(&mut page, Part::root(), "");
    page
}

/// A document with every setting that has an effect, its default or an example, and what it is.
#[must_use]
pub fn default_document() -> String {
    let mut out = String::from(DOCUMENT_HEAD);
    for line in map_lines(Part::root(), 0) {
        out.push_str(&line);
        out.push('\n');
    }
    out
}

/// The table of a map's fields, then those of the maps within.
fn section(page: &mut String, part: Part<'_>, path: &str) {
    let Some(fields) = part.fields() else { return };
    let title = if path.is_empty() { "The document" } else { path };
    // Writing to a String cannot fail.
    let _ = write!(page, "\n## {title}\n\n{}\n\n", one_line(part.text("description")));
    page.push_str("| field | values | default | meaning |\n|---|---|---|---|\n");
    let required: Vec<_> = part.required().collect();
    for (name, field) in fields {
        let field = Part(field);
        let path = join(path, name);
        let default = match shown_default(field) {
            _ if required.contains(&name.as_str()) => "required".into(),
            Some(default) => format!("`{default}`"),
            None => "-".into(),
        };
        let values = values(field, &path);
        let _ = writeln!(page, "| `{name}` | {values} | {default} | {} |", meaning(field));
    }
    for (name, field) in fields {
        let path = join(path, name);
        section(page, Part(field), &path);
        if let Some(items) = Part(field).items() {
            section(page, items, &format!("{path}[]"));
        }
    }
}

/// What a field may hold, for the page.
fn values(part: Part<'_>, path: &str) -> String {
    let choices: Vec<_> = part.choices().map(|choice| format!("`{choice}`")).collect();
    if !choices.is_empty() {
        return choices.join(", ");
    }
    let range = range(part).map_or_else(String::new, |range| format!(" {range}"));
    let length = length(part).map_or_else(String::new, |length| format!(" of {length} characters"));
    match (part.kind(), part.format()) {
        ("object", _) if part.fields().is_some() => format!("[map](#{})", anchor(path)),
        ("object", _) => "map".into(),
        ("array", _) => {
            let items = part.items();
            let of = items.map_or_else(String::new, |i| values(i, &format!("{path}[]")));
            format!("list{range}: {of}")
        }
        ("boolean", _) => "`true`, `false`".into(),
        ("integer", "port") => format!("port{range}"),
        ("integer", _) => format!("whole number{range}"),
        ("number", _) => format!("number{range}"),
        (_, "duration") => format!("duration{range}"),
        (_, "size") => format!("size{range}"),
        (_, "ip") => "IP address".into(),
        (_, "cidr") => "IP address or block".into(),
        (_, "https") => format!("https address{length}"),
        (_, "url") => format!("http or https address{length}"),
        (_, format @ ("name" | "path")) => format!("{format}{length}"),
        _ => format!("text{length}"),
    }
}

/// What a field is, for the page, with what of it has no effect.
fn meaning(part: Part<'_>) -> String {
    let mut text = one_line(part.text("description"));
    if let Some(Value::Object(meanings)) = part.get("x-meanings")
        && meanings.len() > 1
    {
        for (value, meaning) in meanings {
            let meaning = one_line(meaning.as_str().unwrap_or_default());
            let _ = write!(text, " `{value}`: {}.", meaning.trim_end_matches('.'));
        }
    }
    let unless = part.get("x-unless").map(plain);
    let condition = unless.map_or_else(String::new, |value| format!("other than `{value}`, "));
    let note = part.text("x-note");
    if !note.is_empty() {
        let _ = write!(text, " *Note: {condition}{note}.*");
    }
    let refused = part.text("x-refused");
    if !refused.is_empty() {
        let _ = write!(text, " *Refused: {condition}{refused}.*");
    }
    text.replace('|', "\\|")
}

/// A map's fields as lines of the default document, without indentation.
fn map_lines(part: Part<'_>, depth: usize) -> Vec<String> {
    let required: Vec<_> = part.required().collect();
    let mut lines = Vec::new();
    for (name, field) in part.fields().into_iter().flatten() {
        let field = Part(field);
        let required = required.contains(&name.as_str());
        if !is_shown(field, required) {
            continue;
        }
        let mut text = one_line(field.text("description"));
        let choices: Vec<_> = field.choices().collect();
        let bounds = match field.kind() {
            // What else it might be has no effect.
            _ if field.get("x-unless").is_some() => None,
            "array" => None,
            _ if choices.len() > 1 => Some(choices.join(" | ")),
            _ => range(field),
        };
        if let Some(bounds) = bounds {
            let _ = write!(text, " [{bounds}]");
        }
        let width = LINE_WIDTH.saturating_sub(depth * 2 + 2);
        lines.extend(wrap(&text, width).map(|line| format!("# {line}")));
        lines.extend(field_lines(name, field, required, depth));
    }
    lines
}

/// A field and what it holds.
fn field_lines(name: &str, field: Part<'_>, required: bool, depth: usize) -> Vec<String> {
    if let Some(example) = field.get("x-example") {
        return vec![format!("{name}: {}", yaml(example))];
    }
    let default = field.get("default");
    let items = field.items().filter(|items| items.fields().is_some());
    match (field.kind(), default, items) {
        ("object", _, _) => block(name, map_lines(field, depth + 1), "  ", "  "),
        ("array", default, Some(items)) if required || default.is_some() => {
            block(name, map_lines(items, depth + 1), "- ", "  ")
        }
        ("array", _, _) => vec![format!("#{name}: []")],
        (_, Some(default), _) => vec![format!("{name}: {}", yaml(default))],
        _ => vec![format!("#{name}:")],
    }
}

/// A name and the lines under it; the first setting carries the mark.
fn block(name: &str, lines: Vec<String>, mark: &str, indent: &str) -> Vec<String> {
    let mut out = vec![format!("{name}:")];
    let mut mark = Some(mark);
    for line in lines {
        let lead = if line.starts_with('#') { indent } else { mark.take().unwrap_or(indent) };
        out.push(format!("{lead}{line}"));
    }
    out
}

/// Whether the default document shows a field: not if it has no effect, nor if it is another's map.
fn is_shown(field: Part<'_>, required: bool) -> bool {
    let has = |key| field.get(key).is_some();
    let effective = !has("x-note") && !has("x-refused");
    if has("x-unless") {
        return has("default");
    }
    effective && (required || field.kind() != "object" || has("default"))
}

/// The bounds of a number, duration or size, or of a list's length.
fn range(part: Part<'_>) -> Option<String> {
    bounds(part, "x-minimum", "x-maximum")
        .or_else(|| bounds(part, "minimum", "maximum"))
        .or_else(|| bounds(part, "minItems", "maxItems"))
}

/// The bounds of a text's length.
fn length(part: Part<'_>) -> Option<String> {
    bounds(part, "minLength", "maxLength")
}

fn bounds(part: Part<'_>, low: &str, high: &str) -> Option<String> {
    let high = plain(part.get(high)?);
    let low = part.get(low).map_or_else(|| "0".into(), plain);
    Some(format!("{low}..{high}"))
}

/// A default of the page; maps, and lists of maps, have theirs in their own tables.
fn shown_default(part: Part<'_>) -> Option<String> {
    match part.get("default")? {
        Value::Object(_) => None,
        Value::Array(items) if items.is_empty() || items.iter().any(Value::is_object) => None,
        Value::Array(items) => {
            Some(format!("[{}]", items.iter().map(plain).collect::<Vec<_>>().join(", ")))
        }
        value => Some(plain(value)),
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), String::from)
}

/// A value on one line. JSON is YAML, but needs no quotes for plain words.
fn yaml(value: &Value) -> String {
    let is_word = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/')
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"/.-_".contains(&b))
            // Numbers, and what some readers of YAML take for numbers and booleans.
            && text.parse::<f64>().is_err()
            && !text.starts_with('0')
            && !["on", "off", "yes", "no", "true", "false", "null", "y", "n"].contains(&text)
    };
    match value {
        Value::String(text) if is_word(text) => text.clone(),
        value => value.to_string(),
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.into() } else { format!("{path}.{name}") }
}

/// The anchor that a heading gets.
fn anchor(path: &str) -> String {
    path.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Breaks a text into lines at spaces.
fn wrap(text: &str, width: usize) -> impl Iterator<Item = String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.into_iter()
}

const LINE_WIDTH: usize = 98;

const DOCUMENT_HEAD: &str = "\
# Every setting with its default, or an example where it has none. Ranges are in brackets.
# A line that begins with `#` and a name is a setting that is not set.
";

const PAGE_HEAD: &str = "\
<!-- Generated from the types in gateway-user/src/config/document. Do not edit: change the types,
     then run `UPDATE_GOLDEN=1 cargo test -p gateway-user config::`. -->

# Configuration

A gateway reads one `InferenceGatewayConfig` from a YAML file: `sluice run --config gateway.yaml`.
The smallest one names a model and its pods:

```yaml
apiVersion: gateway.sluice.dev/v1alpha1
kind: InferenceGatewayConfig
metadata:
  name: edge
spec:
  schedulers:
  - name: llama-8b
    modelName: meta-llama/Llama-3.1-8B-Instruct
    pods:
    - \"10.0.0.11:8000\"
    - \"10.0.0.12:8000\"
```

`sluice check --config gateway.yaml` prints the whole configuration with every default, or every
error with its line. `sluice check --defaults` prints a document to start from.
`deploy/examples/static.yaml` is one for bare metal.

- Fields that are not listed here are errors, and so are values out of range. Nothing is dropped in
  silence: what is accepted but has no effect is printed as a note by `sluice check`, and logged at
  start.
- A document of the managed product is read as it is; its fields keep their names, bounds and
  defaults. Where ignoring one of them would be unsafe, the document is refused.
- A pool takes an EndpointPickerConfig of the Gateway API inference extension or of llm-d by
  `pickerConfig`. `sluice check` prints, marked `means`, what each of its scorers, pickers and
  thresholds comes to, and, marked `note`, what has no effect here; what would be unsafe to ignore
  is an error.
- Durations are written as in Kubernetes and Go: `10s`, `1m30s`, `500ms`. Sizes are Kubernetes
  quantities in bytes: `64Mi`, `1Gi`, `256M`, or a plain number.
- Text that YAML may read as something else is put in quotes: `\"10.0.0.11:8000\"`, `\"off\"`.
- A document has at most 4 MiB.
";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_are_shown() {
        let table = [
            (json!({}), None),
            (json!({"default": true}), Some("true")),
            (json!({"default": "10s"}), Some("10s")),
            (json!({"default": ["local", "relay"]}), Some("[local, relay]")),
            (json!({"default": []}), None),
            (json!({"default": [{"port": 8080}]}), None),
            (json!({"default": {"port": 9901}}), None),
        ];
        for (part, shown) in table {
            assert_eq!(shown_default(Part(&part)).as_deref(), shown, "{part}");
        }
    }
}
