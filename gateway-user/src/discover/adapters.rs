//! ConfigMaps with which the inference extension's body-based router is told which adapters a base model has: here too, an
//! adapter's name leads to the pool of its base model.
//!
//! They have the label `inference.networking.k8s.io/bbr-managed: "true"`, and in their data `baseModel`, a name, and
//! `adapters`, a list of names in YAML. Several may be about one model. What is wrong with one leaves it out, and a name
//! that is another's leaves that name out. Pure.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use super::extension::leave_out;
use super::objects::Meta;
use crate::config::Loaded;
use crate::request::scan::MAX_MODEL;

/// The label that these ConfigMaps have, as a selector.
pub(super) const LABELS: &str = "inference.networking.k8s.io/bbr-managed=true";

/// A ConfigMap.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct ConfigMap {
    /// Its name, age and so on.
    pub metadata: Meta,
    /// What is in it.
    pub data: Option<BTreeMap<String, String>>,
}

/// Takes the adapters into the configuration, and says which were left out. Of two ConfigMaps with one name in them the
/// older one is right.
pub(super) fn add_adapters(maps: &BTreeMap<String, ConfigMap>, loaded: &mut Loaded) {
    let mut maps: Vec<_> =
        maps.values().filter(|map| map.metadata.deletion_timestamp.is_none()).collect();
    maps.sort_by_key(|map| (&map.metadata.creation_timestamp, &map.metadata.name));
    let mut owners: HashMap<String, usize> = HashMap::new();
    for (scheduler, index) in loaded.config.schedulers.iter().zip(0..) {
        let names = scheduler.aliases.iter().chain(&scheduler.lora_adapters);
        for name in names.chain([&scheduler.model_name]) {
            owners.insert(name.clone(), index);
        }
    }
    for map in maps {
        let name = &map.metadata.name;
        let read = read(map).and_then(|(base, adapters)| {
            let index = owners.get(&base).copied();
            let base_of = |index: &usize| {
                let scheduler = loaded.config.schedulers.get(*index);
                scheduler.filter(|of| !of.lora_adapters.contains(&base)).is_some()
            };
            let index = index.filter(base_of);
            let index = index.ok_or_else(|| format!("no pool serves its baseModel {base}"))?;
            Ok((index, adapters))
        });
        let (index, adapters) = match read {
            Ok(read) => read,
            Err(why) => {
                leave_out("ConfigMap", name, &why, loaded);
                continue;
            }
        };
        if loaded.config.schedulers.get(index).is_some_and(|of| of.direct.is_some()) {
            leave_out("ConfigMap", name, "its pool has mode: connection", loaded);
            continue;
        }
        let mut others = Vec::new();
        let has = loaded.config.schedulers.get(index).map_or(0, |of| of.lora_adapters.len());
        if has + adapters.len() > MOST {
            let why = format!("its pool would have over {MOST} adapters");
            leave_out("ConfigMap", name, &why, loaded);
            continue;
        }
        for adapter in adapters {
            match owners.get(&adapter) {
                None => {
                    owners.insert(adapter.clone(), index);
                    if let Some(scheduler) = loaded.config.schedulers.get_mut(index) {
                        scheduler.lora_adapters.push(adapter);
                    }
                }
                Some(owner) if *owner == index => {}
                Some(_) => others.push(adapter),
            }
        }
        if !others.is_empty() {
            let why = format!("of it, {}: another pool has that name", others.join(", "));
            leave_out("ConfigMap", name, &why, loaded);
        }
    }
}

/// The base model and the adapters in one.
fn read(map: &ConfigMap) -> Result<(String, Vec<String>), String> {
    let field =
        |key: &str| map.data.as_ref().and_then(|data| data.get(key)).map(|text| text.trim());
    let base = field("baseModel").filter(|base| !base.is_empty()).ok_or("it has no baseModel")?;
    let adapters: Vec<String> = match field("adapters") {
        None | Some("") => Vec::new(),
        Some(text) => serde_saphyr::from_str(text)
            .map_err(|_| "its adapters are not a list of names in YAML".to_owned())?,
    };
    let adapters = adapters.iter().map(|name| name.trim()).filter(|name| !name.is_empty());
    let adapters: Vec<String> = adapters.map(str::to_owned).collect();
    let is_name = |name: &String| name.len() <= MAX_MODEL && !name.chars().any(char::is_control);
    match adapters.iter().all(is_name) {
        true => Ok((base.to_owned(), adapters)),
        false => Err("one of its adapters has no name that a model can have".into()),
    }
}

/// Adapters of one pool, each of which is a name in the metrics.
const MOST: usize = 1000;

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::config;

    fn map(name: &str, age: u32, data: Value) -> (String, ConfigMap) {
        let time = format!("2026-01-01T00:00:{age:02}Z");
        let object =
            json!({ "metadata": { "name": name, "creationTimestamp": time }, "data": data });
        (name.to_owned(), serde_json::from_value(object).unwrap())
    }

    fn adapters(base: &str, list: &str) -> Value {
        json!({ "baseModel": base, "adapters": list })
    }

    fn loaded() -> Loaded {
        let text = "apiVersion: gateway.sluice.dev/v1alpha1\nkind: InferenceGatewayConfig\n\
                    metadata: {name: test}\nspec:\n  listeners: [{name: http}, {name: raw, port: 1}]\n  \
                    schedulers:\n  - {name: a, modelName: org/a, aliases: [a], loraAdapters: [own], pods: ['127.0.0.1:1']}\n  \
                    - {name: b, modelName: b, pods: ['127.0.0.1:3']}\n  \
                    - {name: whole, modelName: w, mode: connection, listener: raw, pods: ['127.0.0.1:2']}\n";
        config::parse(text, "test.yaml").unwrap()
    }

    #[test]
    fn adapters_lead_to_their_base_model() {
        let mut loaded = loaded();
        let maps = BTreeMap::from([
            map("z", 1, adapters(" org/a\n", "- x\n- \" y \"\n- own\n- ''\n")),
            map("more", 2, adapters("a", "[z, x]")),
            map("other", 3, adapters("b", "- x\n- q\n")),
            map("none", 4, json!({ "baseModel": "b" })),
        ]);
        add_adapters(&maps, &mut loaded);
        let of = |index: usize| loaded.config.schedulers[index].lora_adapters.clone();
        assert_eq!(of(0), ["own", "x", "y", "z"]);
        assert_eq!(of(1), ["q"]);
        let notes: Vec<_> = loaded.notes.iter().map(ToString::to_string).collect();
        assert_eq!(notes, ["ConfigMap other: is left out: of it, x: another pool has that name"]);
    }

    #[test]
    fn what_is_wrong_with_one_leaves_it_out() {
        for (data, why) in [
            (Value::Null, "it has no baseModel"),
            (adapters(" ", "- x"), "it has no baseModel"),
            (adapters("b", "x: y"), "its adapters are not a list of names in YAML"),
            (adapters("b", "- {a: b}"), "its adapters are not a list of names in YAML"),
            (adapters("b", "- \"a\\nb\""), "one of its adapters has no name that a model can have"),
            (adapters("c", "- x"), "no pool serves its baseModel c"),
            (adapters("own", "- x"), "no pool serves its baseModel own"),
            (adapters("w", "- x"), "its pool has mode: connection"),
        ] {
            let mut loaded = loaded();
            let maps = BTreeMap::from([map("m", 1, data), map("right", 2, adapters("b", "- y"))]);
            add_adapters(&maps, &mut loaded);
            let notes: Vec<_> = loaded.notes.iter().map(ToString::to_string).collect();
            assert_eq!(notes, [format!("ConfigMap m: is left out: {why}")]);
            assert_eq!(loaded.config.schedulers[1].lora_adapters, ["y"]);
        }
    }
}
