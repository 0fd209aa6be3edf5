//! Objects InferenceModelRewrite and InferenceObjective as entries of the configuration, which has fields of their form.
//!
//! Both groups have them: the inference extension's, where they were first, and llm-d's, to which they went. Of two of one
//! name the latter is meant. They come behind what the configuration says itself, the oldest first. What is wrong with one
//! leaves that one out. Pure.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::objects::Meta;
use crate::config::{self, Config, Loaded, Note};

/// An InferenceModelRewrite or an InferenceObjective.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Extension {
    /// Its name, age and so on.
    pub metadata: Meta,
    /// What the user wrote.
    pub spec: Value,
}

/// Takes the rewrites into the configuration, and says which were left out.
pub(super) fn add_rewrites(
    legacy: &BTreeMap<String, Extension>,
    current: &BTreeMap<String, Extension>,
    loaded: &mut Loaded,
) {
    for object in by_age(legacy, current) {
        let taken = |config: &Config, name: &str| {
            config.model_rewrites.iter().any(|rewrite| rewrite.name == name)
        };
        match read(object, "modelRewrites", &loaded.config, taken) {
            Ok(mut read) => loaded.config.model_rewrites.append(&mut read.model_rewrites),
            Err(why) => leave_out("InferenceModelRewrite", &object.metadata.name, &why, loaded),
        }
    }
}

/// Takes the objectives into the configuration, and says which were left out.
pub(super) fn add_objectives(
    legacy: &BTreeMap<String, Extension>,
    current: &BTreeMap<String, Extension>,
    loaded: &mut Loaded,
) {
    for object in by_age(legacy, current) {
        let taken = |config: &Config, name: &str| {
            config.objectives.iter().any(|objective| objective.name == name)
        };
        match read(object, "objectives", &loaded.config, taken) {
            Ok(mut read) => loaded.config.objectives.append(&mut read.objectives),
            Err(why) => leave_out("InferenceObjective", &object.metadata.name, &why, loaded),
        }
    }
}

/// Has the status and the log say that an object has no effect.
pub(super) fn leave_out(kind: &str, name: &str, why: &str, loaded: &mut Loaded) {
    let (field, text) = (format!("{kind} {name}"), format!("is left out: {why}"));
    loaded.notes.push(Note { file: None, line: 0, field, text });
}

/// Each name once, the oldest object first; of those of one age, by name.
fn by_age<'a>(
    legacy: &'a BTreeMap<String, Extension>,
    current: &'a BTreeMap<String, Extension>,
) -> Vec<&'a Extension> {
    let all: BTreeMap<_, _> = legacy.iter().chain(current).collect();
    let mut all: Vec<_> = all.into_values().collect();
    all.retain(|object| object.metadata.deletion_timestamp.is_none());
    all.sort_by_key(|object| (&object.metadata.creation_timestamp, &object.metadata.name));
    all
}

/// What one object means, read by itself so that it cannot spoil the rest.
fn read(
    object: &Extension,
    field: &str,
    config: &Config,
    taken: impl Fn(&Config, &str) -> bool,
) -> Result<Config, String> {
    let name = &object.metadata.name;
    let mut entry = object.spec.clone();
    let Some(map) = entry.as_object_mut() else { return Err("it has no spec".into()) };
    map.insert("name".into(), name.as_str().into());
    let pool = object.spec.pointer("/poolRef/name").and_then(Value::as_str).unwrap_or_default();
    let known = config.schedulers.iter().find(|scheduler| scheduler.name == pool);
    match known {
        // The resource asks for it.
        None if pool.is_empty() => return Err("it has no poolRef".into()),
        None => return Err(format!("there is no pool {pool}")),
        Some(pool) if pool.direct.is_some() => {
            return Err(format!("pool {} has mode: connection", pool.name));
        }
        Some(_) => {}
    }
    if taken(config, name) {
        return Err(format!("the configuration has another {name} in spec.{field}"));
    }
    let alone = json!({ "schedulers": [{ "name": pool, "modelName": "any" }], field: [entry] });
    match config::parse_object(name, &alone) {
        Ok(loaded) => Ok(loaded.config),
        Err(errors) => {
            let first = errors.list.first();
            let said = first.map(|error| {
                let place = error.field.split_once("[0].").map_or("", |(_, place)| place);
                format!("spec.{place}: {}", error.text)
            });
            Err(said.unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, age: u32, spec: Value) -> (String, Extension) {
        let time = format!("2026-01-01T00:00:{age:02}Z");
        let object = json!({
            "metadata": { "name": name, "creationTimestamp": time },
            "spec": spec,
        });
        (name.to_owned(), serde_json::from_value(object).unwrap())
    }

    fn rewrite(pool: &str, model: &str) -> Value {
        json!({
            "poolRef": { "group": "inference.networking.k8s.io", "kind": "InferencePool", "name": pool },
            "rules": [{ "matches": [{ "model": { "type": "Exact", "value": model } }],
                        "targets": [{ "modelRewrite": "b", "weight": 100 }] }],
        })
    }

    fn loaded(spec: &str) -> Loaded {
        let text = format!(
            "apiVersion: gateway.sluice.dev/v1alpha1\nkind: InferenceGatewayConfig\n\
             metadata: {{name: test}}\nspec:\n  listeners: [{{name: http}}, {{name: raw, port: 1}}]\n{spec}\n  \
             schedulers:\n  - {{name: pool, modelName: m, pods: ['127.0.0.1:1']}}\n  \
             - {{name: whole, modelName: w, mode: connection, listener: raw, pods: ['127.0.0.1:2']}}\n"
        );
        config::parse(&text, "test.yaml").unwrap()
    }

    fn notes(loaded: &Loaded) -> Vec<String> {
        loaded.notes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_oldest_comes_first_behind_the_configurations_own() {
        let mut loaded = loaded("  modelRewrites: [{name: own, rules: []}]");
        let legacy = BTreeMap::from([
            object("young", 9, rewrite("pool", "young")),
            object("old", 1, rewrite("pool", "old")),
            object("both", 0, rewrite("pool", "legacy")),
        ]);
        let current = BTreeMap::from([
            object("middle", 5, rewrite("pool", "middle")),
            object("both", 7, rewrite("pool", "current")),
            object("a", 5, rewrite("pool", "a")),
        ]);
        add_rewrites(&legacy, &current, &mut loaded);
        let rewrites = &loaded.config.model_rewrites;
        let names: Vec<_> = rewrites.iter().map(|rewrite| rewrite.name.as_str()).collect();
        assert_eq!(names, ["own", "old", "a", "middle", "both", "young"]);
        assert_eq!(rewrites[4].rules[0].models, ["current"]);
        assert_eq!(rewrites[4].rules[0].targets, [("b".to_owned(), Some(100))]);
        assert_eq!(rewrites[4].pool.as_deref(), Some("pool"));
        assert_eq!(notes(&loaded), [""; 0]);
    }

    #[test]
    fn what_is_wrong_with_one_leaves_that_one_out() {
        let mut empty = rewrite("pool", "a");
        empty["rules"][0]["targets"] = json!([]);
        let mut more = rewrite("pool", "a");
        more["rules"][0]["matches"][0]["headers"] = json!([]);
        for (spec, why) in [
            (Value::Null, "it has no spec"),
            (json!({ "rules": [] }), "it has no poolRef"),
            (rewrite("none", "a"), "there is no pool none"),
            (rewrite("whole", "a"), "pool whole has mode: connection"),
            (rewrite("pool", ""), "spec.rules[0].matches[0].model.value: is empty"),
            (empty, "spec.rules[0].targets: is empty"),
            (more, "spec.rules[0].matches[0].headers: unknown field; known here: model"),
        ] {
            let mut loaded = loaded("");
            let objects = BTreeMap::from([
                object("wrong", 1, spec),
                object("right", 2, rewrite("pool", "b")),
            ]);
            add_rewrites(&BTreeMap::new(), &objects, &mut loaded);
            assert_eq!(loaded.config.model_rewrites.len(), 1, "{why}");
            assert_eq!(
                notes(&loaded),
                [format!("InferenceModelRewrite wrong: is left out: {why}")]
            );
        }
        let mut loaded = loaded("  modelRewrites: [{name: own, rules: []}]");
        let objects = BTreeMap::from([object("own", 1, rewrite("pool", "a"))]);
        add_rewrites(&objects, &BTreeMap::new(), &mut loaded);
        assert!(notes(&loaded)[0].contains("another own in spec.modelRewrites"));
    }

    #[test]
    fn objectives() {
        let mut loaded = loaded("");
        let objective =
            |priority: Value| json!({ "poolRef": { "name": "pool" }, "priority": priority });
        let objects = BTreeMap::from([
            object("low", 1, objective(json!(-10))),
            object("plain", 2, json!({ "poolRef": { "name": "pool" } })),
            object("wrong", 3, objective(json!("high"))),
        ]);
        add_objectives(&BTreeMap::new(), &objects, &mut loaded);
        let found: Vec<_> =
            loaded.config.objectives.iter().map(|o| (&*o.name, o.priority)).collect();
        assert_eq!(found, [("low", -10), ("plain", 0)]);
        assert_eq!(notes(&loaded).len(), 1);
    }
}
