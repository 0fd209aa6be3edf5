//! The resource definition by which a cluster takes `InferenceGatewayConfig`, drawn from the schema.
//!
//! Kubernetes knows fewer words than the schema: what it lacks becomes text, and what no single field can tell becomes
//! a rule that the API server checks. It is given no defaults, which it would write into every object, so that an
//! upgrade could not change them and nobody could tell what a user chose. What it lets pass and the gateway does not
//! take is told in the object's status.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::document::Status;
use super::schema::{Part, of, schema};

/// `CustomResourceDefinition` as YAML: `deploy/crds/inferencegatewayconfigs.yaml`, which `sluice crd` prints.
#[must_use]
pub fn custom_resource_definition() -> String {
    let options = serde_saphyr::ser_options! { compact_list_indent: true };
    // A string takes whatever is written, and JSON has no type that YAML lacks.
    let text = serde_saphyr::to_string_with_options(&definition(), options).unwrap_or_default();
    format!("{HEAD}{text}")
}

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "inferencegatewayconfigs.gateway.sluice.dev" },
        "spec": {
            "group": "gateway.sluice.dev",
            "scope": "Namespaced",
            "names": {
                "kind": "InferenceGatewayConfig",
                "listKind": "InferenceGatewayConfigList",
                "plural": "inferencegatewayconfigs",
                "singular": "inferencegatewayconfig",
                "shortNames": ["igwc"],
            },
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "subresources": { "status": {} },
                "additionalPrinterColumns": columns(),
                "schema": { "openAPIV3Schema": root() },
            }],
        },
    })
}

/// What `kubectl get igwc` shows; the last one with `-o wide` only.
fn columns() -> Value {
    let condition =
        |kind: &str, field: &str| format!(".status.conditions[?(@.type==\"{kind}\")].{field}");
    json!([
        { "name": "Pools", "type": "integer", "jsonPath": ".status.pools", "description": "Pools that are served." },
        { "name": "Pods", "type": "string", "jsonPath": ".status.pods",
          "description": "Pods that are ready, of those that the selectors match." },
        { "name": "Accepted", "type": "string", "jsonPath": condition("Accepted", "status"),
          "description": "Whether the object is valid." },
        { "name": "Programmed", "type": "string", "jsonPath": condition("Programmed", "status"),
          "description": "Whether a gateway serves it." },
        { "name": "Ready", "type": "string", "jsonPath": condition("Ready", "status"),
          "description": "Whether every pool has a pod." },
        { "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" },
        { "name": "Reason", "type": "string", "jsonPath": condition("Ready", "message"), "priority": 1,
          "description": "Why it is not ready." },
    ])
}

fn root() -> Value {
    let whole = schema();
    let spec = Part(whole).fields().and_then(|fields| fields.get("spec")).unwrap_or(&Value::Null);
    json!({
        "type": "object",
        "description": text(Part(whole), ""),
        "required": ["spec"],
        "properties": {
            "apiVersion": { "type": "string" },
            "kind": { "type": "string" },
            "metadata": { "type": "object" },
            "spec": structural(Part(spec), "spec"),
            "status": structural(Part(&of::<Status>()), "status"),
        },
    })
}

/// A part of the schema in Kubernetes' words.
fn structural(part: Part<'_>, path: &str) -> Value {
    let mut object = Map::new();
    for key in KEPT {
        if let Some(value) = part.get(key) {
            object.insert(key.into(), value.clone());
        }
    }
    let text = text(part, path);
    if !text.is_empty() {
        object.insert("description".into(), text.into());
    }
    if let Some(fields) = part.fields() {
        let below = |(name, field): (&String, &Value)| {
            (name.clone(), structural(Part(field), &format!("{path}.{name}")))
        };
        object.insert("properties".into(), fields.iter().map(below).collect::<Map<_, _>>().into());
    } else if let Some(kind) = part.get("additionalProperties").filter(|kind| kind.is_object()) {
        object.insert("additionalProperties".into(), structural(Part(kind), &format!("{path}.*")));
    }
    if let Some(items) = part.items() {
        object.insert("items".into(), structural(items, &format!("{path}[]")));
    }
    let mut rules = Vec::new();
    match part.format() {
        "duration" => {
            object.insert("pattern".into(), DURATION.into());
            object.insert("maxLength".into(), 32.into());
            if let [low, high] = ["x-minimum", "x-maximum"].map(|key| part.text(key))
                && !low.is_empty()
            {
                rules.push((
                    format!("duration(self) >= duration('{low}') && duration(self) <= duration('{high}')"),
                    format!("must be within {low}..{high}"),
                ));
            }
        }
        "size" => {
            object.insert("anyOf".into(), json!([{ "type": "integer" }, { "type": "string" }]));
            object.insert("pattern".into(), SIZE.into());
        }
        "ip" => {
            object.insert("pattern".into(), "^[0-9a-fA-F.:]+$".into());
            object.insert("maxLength".into(), 45.into());
        }
        "cidr" => {
            object.insert("pattern".into(), "^[0-9a-fA-F.:]+(/[0-9]{1,3})?$".into());
            object.insert("maxLength".into(), 49.into());
        }
        "name" => {
            object.insert("pattern".into(), "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$".into());
        }
        "path" => {
            object.insert("pattern".into(), "^/[^\\s#]*$".into());
        }
        "https" => {
            object.insert("pattern".into(), "^https://.+$".into());
        }
        "url" => {
            object.insert("pattern".into(), "^https?://.+$".into());
        }
        _ => {}
    }
    if let Some((_, key)) = KEYED.iter().find(|(list, _)| *list == path) {
        object.insert("x-kubernetes-list-type".into(), "map".into());
        object.insert("x-kubernetes-list-map-keys".into(), json!([key]));
    }
    let own = RULES.iter().filter(|(of, _, _)| *of == path);
    rules.extend(own.map(|(_, rule, message)| ((*rule).to_owned(), (*message).to_owned())));
    if !rules.is_empty() {
        let rules = rules.iter().map(|(rule, message)| json!({ "rule": rule, "message": message }));
        object.insert("x-kubernetes-validations".into(), rules.collect());
    }
    object.into()
}

/// What a field is, with all that the schema says of it and Kubernetes has no word for.
fn text(part: Part<'_>, path: &str) -> String {
    let mut text = part.text("description").split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some(Value::Object(meanings)) = part.get("x-meanings")
        && meanings.len() > 1
    {
        for (value, meaning) in meanings {
            let meaning = meaning.as_str().unwrap_or_default().trim_end_matches('.');
            // Writing to a String cannot fail.
            let _ = write!(text, " {value}: {meaning}.");
        }
    }
    let default = match part.get("default") {
        Some(Value::String(value)) if !value.is_empty() => Some(value.clone()),
        Some(value @ (Value::Number(_) | Value::Bool(_))) => Some(value.to_string()),
        _ => None,
    };
    if let Some(default) = default.filter(|_| !path.starts_with("status")) {
        let _ = write!(text, " Default: {default}.");
    }
    let note = part.text("x-note");
    // Said of documents that are files.
    if !note.is_empty() && !note.contains("in a file") {
        let unless = part
            .get("x-unless")
            .map(|value| value.as_str().map_or(value.to_string(), String::from));
        let unless = unless.map_or_else(String::new, |value| format!("other than {value}, "));
        let _ = write!(text, " Note: {unless}{note}.");
    }
    text
}

/// What is the same in both; `description` is made by [`text`].
const KEPT: [&str; 13] = [
    "description",
    "type",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "required",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
];

/// Lists whose entries are known by a field: two with one name are refused, and each is applied by itself.
const KEYED: [(&str, &str); 6] = [
    ("spec.schedulers", "name"),
    ("spec.profiles", "name"),
    ("spec.modelRewrites", "name"),
    ("spec.objectives", "name"),
    ("status.conditions", "type"),
    ("status.schedulers", "name"),
];

/// What no single field can tell: where, the rule in CEL, and what is said when it does not hold.
const RULES: [(&str, &str, &str); 11] = [
    (
        "spec",
        "!has(self.bbr) || !has(self.bbr.enabled) || self.bbr.enabled || size(self.schedulers) < 2",
        "bbr.enabled must be true with two schedulers or more",
    ),
    (
        "spec.schedulers",
        "self.all(a, self.exists_one(b, b.modelName == a.modelName))",
        "two schedulers have the same modelName",
    ),
    (
        "spec.schedulers[]",
        "!has(self.weights) || !has(self.configMapRef)",
        "either weights or configMapRef, not both",
    ),
    (
        "spec.schedulers[]",
        "!has(self.weights) || !has(self.profile)",
        "either weights or profile, not both",
    ),
    (
        "spec.schedulers[]",
        "!has(self.scheduler) || self.scheduler != 'epp' || !has(self.weights) || !has(self.weights.lru) || self.weights.lru == 0.0",
        "weights.lru is for scheduler: llm-d only",
    ),
    (
        "spec.schedulers[]",
        "(has(self.mode) && self.mode == 'connection') == has(self.listener)",
        "mode: connection needs listener, and nothing else has one",
    ),
    (
        "spec.schedulers[].modelSelector",
        "has(self.matchLabels) && size(self.matchLabels) > 0 || has(self.matchExpressions) && size(self.matchExpressions) > 0",
        "is empty: it would match every pod of the namespace",
    ),
    (
        "spec.schedulers[].modelSelector.matchExpressions[]",
        "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
        "values are for the operators In and NotIn, which need some",
    ),
    (
        "spec.kernel.paths",
        "'relay' in self",
        "must name relay: what the kernel cannot carry has no other way",
    ),
    (
        "spec.auth.jwt.provider",
        "has(self.audiences) && size(self.audiences) > 0 || has(self.requiredClaims) && size(self.requiredClaims) > 0",
        "at least one of audiences and requiredClaims must be set",
    ),
    (
        "spec.auth.jwt.provider",
        "has(self.remoteJWKS) != has(self.localJWKS)",
        "either remoteJWKS or localJWKS",
    ),
];

/// Go's form of a duration, as far as the API server's own arithmetic takes it.
const DURATION: &str = "^(0|([0-9]+(\\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$";
const SIZE: &str = "^[0-9]+(\\.[0-9]+)?(([KMGTPE]i)|[kMGTPE]|[eE][0-9]+)?$";

const HEAD: &str = "\
# Generated from the types in gateway-user/src/config/document. Do not edit: change the types, then run
# `UPDATE_GOLDEN=1 cargo test -p gateway-user config::`.
";

#[cfg(test)]
mod tests {
    use super::super::tests::{differs, repository};
    use super::*;

    #[test]
    fn the_definition_is_current() {
        let file = repository().join("deploy/crds/inferencegatewayconfigs.yaml");
        assert_eq!(differs(&file, &custom_resource_definition()), None);
    }

    #[test]
    fn every_rule_and_key_has_its_place() {
        let text = definition().to_string();
        for (path, _, message) in RULES {
            assert!(text.contains(message), "{path}");
        }
        assert_eq!(text.matches("x-kubernetes-list-map-keys").count(), KEYED.len());
    }

    /// What the API server would refuse, or drop without a word.
    #[test]
    fn it_is_structural() {
        fn check(value: &Value, path: &str) {
            let Value::Object(object) = value else { panic!("{path}: {value}") };
            let has = |key| object.contains_key(key);
            let loose = ["x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"];
            assert!(has("type") || loose.iter().any(|key| has(key)), "{path} has no type");
            assert!(!has("properties") || !has("additionalProperties"), "{path}");
            for key in object.keys() {
                let own = ["properties", "additionalProperties", "items", "pattern", "anyOf"];
                let known = KEPT.contains(&key.as_str()) || own.contains(&key.as_str());
                assert!(known || key.starts_with("x-kubernetes-"), "{path}: {key}");
            }
            for (name, field) in value["properties"].as_object().into_iter().flatten() {
                check(field, &format!("{path}.{name}"));
            }
            for key in ["additionalProperties", "items"] {
                if has(key) {
                    check(&object[key], &format!("{path}.{key}"));
                }
            }
        }
        check(&root(), "");
    }
}
