//! The JSON schema of the document, drawn from its types.
//!
//! schemars describes what serde accepts. Three things are put into Kubernetes' form: no
//! references, absent instead of null, and plain lists of allowed values. Keys that begin with `x-`
//! are ours:
//!
//! | key | meaning |
//! |---|---|
//! | `x-minimum`, `x-maximum` | bounds of a duration or size, in its own form |
//! | `x-note` | the field has no effect; the text says why |
//! | `x-refused` | the field must not be ignored; the text says why |
//! | `x-unless` | the value at which neither of these two holds |
//! | `x-shorthand` | the map may be written as one text, in a file |
//! | `x-ignored` | fields that Kubernetes adds to an object |
//! | `x-example` | what the default document shows |

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use schemars::transform::transform_subschemas;
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use super::document::InferenceGatewayConfig;

/// The JSON schema of `InferenceGatewayConfig`.
#[must_use]
pub fn schema() -> &'static Value {
    static SCHEMA: LazyLock<Value> = LazyLock::new(of::<InferenceGatewayConfig>);
    &SCHEMA
}

/// A part of the schema, with names for what is in it.
#[derive(Clone, Copy)]
pub(super) struct Part<'a>(pub(super) &'a Value);

impl<'a> Part<'a> {
    pub(super) fn root() -> Part<'static> {
        Part(schema())
    }

    /// `object`, `array`, `string`, `integer`, `number`, `boolean`; empty for any, and for sizes.
    pub(super) fn kind(self) -> &'a str {
        self.text("type")
    }

    /// `duration`, `size`, `port`, `ip`, `cidr`, `name`, ...; empty for none.
    pub(super) fn format(self) -> &'a str {
        self.text("format")
    }

    pub(super) fn text(self, key: &str) -> &'a str {
        self.0.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn get(self, key: &str) -> Option<&'a Value> {
        self.0.get(key)
    }

    /// A map's fields; `None` for a map of free keys.
    pub(super) fn fields(self) -> Option<&'a Map<String, Value>> {
        self.0.get("properties").and_then(Value::as_object)
    }

    pub(super) fn items(self) -> Option<Part<'a>> {
        self.0.get("items").map(Part)
    }

    pub(super) fn required(self) -> impl Iterator<Item = &'a str> {
        self.texts("required")
    }

    /// The allowed values; none if any value is.
    pub(super) fn choices(self) -> impl Iterator<Item = &'a str> {
        self.texts("enum")
    }

    pub(super) fn texts(self, key: &str) -> impl Iterator<Item = &'a str> {
        let list = self.0.get(key).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str)
    }
}

/// The schema of one type.
pub(super) fn of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::default().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    simplify(&mut schema);
    schema.to_value()
}

fn simplify(schema: &mut Schema) {
    if let Some(object) = schema.as_object_mut() {
        unwrap_option(object);
        list_choices(object);
        object.remove("title");
        if object.get("default").is_some_and(Value::is_null) {
            object.remove("default");
        }
        // Widths of Rust's numbers; the bounds say it better.
        let width = object.get("format").and_then(Value::as_str);
        if width.is_some_and(|format| ["uint16", "uint32", "int64", "float"].contains(&format)) {
            object.remove("format");
        }
    }
    transform_subschemas(&mut simplify, schema);
}

/// An `Option` is described as "this or null"; a field that is absent is simply not there.
fn unwrap_option(object: &mut Map<String, Value>) {
    if let Some(Value::Array(kinds)) = object.get("type") {
        let mut kinds = kinds.iter().filter(|kind| *kind != "null").cloned();
        if let (Some(kind), None) = (kinds.next(), kinds.next()) {
            object.insert("type".into(), kind);
        }
    }
    if let Some(Value::Array(values)) = object.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    let Some(Value::Array(forms)) = object.get("anyOf") else { return };
    let mut forms = forms.iter().filter(|form| form.get("type") != Some(&json!("null")));
    if let (Some(Value::Object(form)), None) = (forms.next().cloned(), forms.next()) {
        object.remove("anyOf");
        for (key, value) in form {
            object.entry(key).or_insert(value);
        }
    }
}

/// An enum is described as one of several constants, each with its text; Kubernetes knows lists of
/// values.
fn list_choices(object: &mut Map<String, Value>) {
    let Some(Value::Array(variants)) = object.remove("oneOf") else { return };
    let text = |variant: &Value, key| variant.get(key).and_then(Value::as_str).map(String::from);
    let values: Vec<String> = variants.iter().filter_map(|v| text(v, "const")).collect();
    let meanings: Map<String, Value> = variants
        .iter()
        .filter_map(|v| Some((text(v, "const")?, text(v, "description")?.into())))
        .collect();
    object.insert("type".into(), "string".into());
    object.insert("enum".into(), values.into());
    object.insert("x-meanings".into(), meanings.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Visits every part with its path.
    fn visit(part: Part<'_>, path: &str, see: &mut dyn FnMut(&str, Part<'_>)) {
        see(path, part);
        for (name, field) in part.fields().into_iter().flatten() {
            visit(Part(field), &format!("{path}.{name}"), see);
        }
        if let Some(items) = part.items() {
            visit(items, &format!("{path}[]"), see);
        }
    }

    #[test]
    fn every_field_has_a_text_and_bounds() {
        visit(Part::root(), "", &mut |path, part| {
            let has = |key| part.get(key).is_some();
            assert!(has("description") || path.ends_with("[]"), "{path} has no description");
            assert!(!has("$ref") && !has("anyOf") && !has("oneOf"), "{path}: {}", part.0);
            assert_ne!(part.get("default"), Some(&Value::Null), "{path}");
            match (part.kind(), part.format()) {
                ("string", "duration") | ("", "size") => {
                    assert!(has("x-minimum") && has("x-maximum") || has("x-note"), "{path}");
                }
                ("string", "ip" | "cidr") => {}
                ("string", _) => assert!(has("maxLength") || has("enum"), "{path}: {}", part.0),
                ("integer" | "number", _) => assert!(has("minimum") && has("maximum"), "{path}"),
                ("array", _) => {
                    let opaque = part
                        .items()
                        .is_some_and(|i| i.get("x-kubernetes-preserve-unknown-fields").is_some());
                    assert!(has("maxItems") || opaque, "{path}");
                }
                ("object", _) => {}
                ("boolean", _) => {}
                other => panic!("{path}: {other:?}"),
            }
        });
    }

    #[test]
    fn units_of_bounds_are_right() {
        visit(Part::root(), "", &mut |path, part| {
            for key in ["x-minimum", "x-maximum", "default"] {
                let Some(text) = part.get(key).and_then(Value::as_str) else { continue };
                match part.format() {
                    "duration" => {
                        assert!(
                            text.parse::<super::super::units::KubeDuration>().is_ok(),
                            "{path}"
                        );
                    }
                    "size" => assert!(text.parse::<super::super::units::Size>().is_ok(), "{path}"),
                    _ => assert_eq!(key, "default", "{path}"),
                }
            }
        });
    }
}
