//! ConfigMaps that schedulers name by `configMapRef`: each holds the configuration of a reference picker.
//!
//! They are followed only while some scheduler names one, and where it is one, only that one: a namespace has many, and
//! each may have a megabyte.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use super::follow::Object;
use super::objects::Meta;
use crate::config::document::ConfigMapRef;
use crate::config::{ConfigMaps, NamedFile};

/// A ConfigMap.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct PickerMap {
    /// Its name and so on.
    pub metadata: Meta,
    /// What it holds, by its keys.
    pub data: BTreeMap<String, String>,
}

impl Object for PickerMap {
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl ConfigMaps for BTreeMap<String, PickerMap> {
    fn read(&self, wanted: &ConfigMapRef) -> Result<NamedFile, String> {
        let ConfigMapRef { name, key } = wanted;
        let key = key.as_deref().unwrap_or(DEFAULT_KEY);
        let Some(map) = self.get(name) else {
            return Err(format!("this namespace has no ConfigMap `{name}`"));
        };
        match map.data.get(key) {
            Some(text) => {
                Ok(NamedFile { name: format!("ConfigMap {name}, {key}"), text: text.clone() })
            }
            None => Err(format!("the ConfigMap `{name}` has no key `{key}`")),
        }
    }
}

/// The field selector of the ConfigMaps that these specifications name; nothing if they name none.
pub(super) fn query<'a>(specs: impl IntoIterator<Item = &'a Value>) -> Option<String> {
    let named: BTreeSet<&str> = specs.into_iter().flat_map(names).collect();
    let mut named = named.into_iter();
    match (named.next(), named.next()) {
        (None, _) => None,
        (Some(only), None) => Some(format!("metadata.name={only}")),
        // There is no selector for one of several.
        (Some(_), Some(_)) => Some(String::new()),
    }
}

/// Those of `maps` that a specification names.
pub(super) fn named(
    spec: &Value,
    maps: &BTreeMap<String, PickerMap>,
) -> BTreeMap<String, PickerMap> {
    let of = |name: &str| maps.get_key_value(name);
    names(spec).filter_map(of).map(|(name, map)| (name.clone(), map.clone())).collect()
}

fn names(spec: &Value) -> impl Iterator<Item = &str> {
    let schedulers = spec.get("schedulers").and_then(Value::as_array).into_iter().flatten();
    let named = schedulers.filter_map(|scheduler| scheduler.pointer("/configMapRef/name"));
    // What else it may be would be no field selector.
    named.filter_map(Value::as_str).filter(|name| {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        !name.is_empty() && name.chars().all(is_plain)
    })
}

/// As in the managed product.
const DEFAULT_KEY: &str = "default-plugins.yaml";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(names: &[&str]) -> Value {
        let scheduler = |name: &&str| json!({ "configMapRef": { "name": name } });
        json!({ "schedulers": names.iter().map(scheduler).collect::<Vec<_>>() })
    }

    #[test]
    fn only_what_is_named_is_asked_for() {
        for (specs, expected) in [
            (vec![], None),
            (vec![json!({}), json!(null), json!({ "schedulers": [{}, 5] })], None),
            (vec![spec(&["a"])], Some("metadata.name=a")),
            (vec![spec(&["a", "a"]), spec(&["a"])], Some("metadata.name=a")),
            (vec![spec(&["a"]), spec(&["b"])], Some("")),
            (vec![spec(&["a,metadata.name=b"])], None),
        ] {
            assert_eq!(query(&specs).as_deref(), expected, "{specs:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_told() {
        let map = json!({ "metadata": { "name": "a" }, "data": { "default-plugins.yaml": "x", "own": "y" } });
        let map: PickerMap = serde_json::from_value(map).unwrap();
        let maps = BTreeMap::from([("a".to_owned(), map)]);
        let read = |name: &str, key: Option<&str>| {
            let wanted = ConfigMapRef { name: name.into(), key: key.map(Into::into) };
            maps.read(&wanted).map(|file| (file.name, file.text))
        };
        let text = |name: &str, text: &str| Ok((name.to_owned(), text.to_owned()));
        assert_eq!(read("a", None), text("ConfigMap a, default-plugins.yaml", "x"));
        assert_eq!(read("a", Some("own")), text("ConfigMap a, own", "y"));
        assert_eq!(read("a", Some("z")), Err("the ConfigMap `a` has no key `z`".into()));
        assert_eq!(read("b", None), Err("this namespace has no ConfigMap `b`".into()));
    }
}
