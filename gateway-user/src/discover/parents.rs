//! What the gateway says of an `InferencePool` that it serves: its own entry in the pool's `status.parents`.
//!
//! The parent is the `InferenceGatewayConfig`: without one there is nothing to name, and nothing is said. Other
//! controllers' entries stay as they are. The list is one value to the API server, so that it is written as a whole, with
//! the version of the pool that it was read from: whoever is slower is refused, and reads it again.
//!
//! Pure.

use serde_json::{Value, json};

use super::CONTROLLER;
use super::conditions::{Report, Unapplied};
use super::objects::{InferencePool, Meta};

/// What the gateway's object is to a pool.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Standing {
    /// It does not serve it.
    None,
    /// It serves it.
    Served,
    /// It will, as soon as it serves anything.
    Pending,
    /// It cannot, for this reason.
    LeftOut(String),
}

/// What the gateway's object is to the pool of this name, by what the objects have come to.
pub(super) fn standing(name: &str, report: &Report) -> Standing {
    if let Some((_, why)) = report.resolved.left_out.iter().find(|(of, _)| of == name) {
        return Standing::LeftOut(why.clone());
    }
    let mut pools = report.resolved.pools.iter().filter(|pool| pool.is_inference_pool);
    match pools.any(|pool| pool.name == name) {
        true if report.applied == Err(Unapplied::Nothing) => Standing::Pending,
        true => Standing::Served,
        false => Standing::None,
    }
}

/// The list of a pool's parents as it should be, at the time `now`; nothing if it is so already.
///
/// `object` is the gateway's, if there is one; `exists` tells which of its kind there are.
pub(super) fn parents(
    pool: &InferencePool,
    object: Option<&Meta>,
    standing: &Standing,
    exists: impl Fn(&str) -> bool,
    now: &str,
) -> Option<Vec<Value>> {
    let before = pool.status.parents.as_array().map_or(&[][..], Vec::as_slice);
    let namespace = &pool.metadata.namespace;
    // Those of other objects are other gateways' business, as long as there are such objects.
    let stays = |entry: &&Value| match own(entry, namespace) {
        Some(name) => exists(name) && object.is_none_or(|object| object.name != name),
        None => true,
    };
    let mut list: Vec<Value> = before.iter().filter(stays).cloned().collect();
    if let Some(object) = object
        && *standing != Standing::None
        && list.len() < MAX_PARENTS
    {
        let old = before.iter().find(|entry| own(entry, namespace) == Some(&object.name));
        let new = entry(pool, object, standing, old, now);
        // What the resource definition has no place for does not come back, and is no change.
        let pruned = old.filter(|old| **old == without_controller(&new)).cloned();
        list.push(pruned.unwrap_or(new));
    }
    let is_same = list.len() == before.len() && list.iter().all(|entry| before.contains(entry));
    (!is_same).then_some(list)
}

/// Whether a pool has an entry of ours for an object that there is not.
pub(super) fn has_orphan(pool: &InferencePool, exists: impl Fn(&str) -> bool) -> bool {
    let list = pool.status.parents.as_array().map_or(&[][..], Vec::as_slice);
    list.iter().filter_map(|entry| own(entry, &pool.metadata.namespace)).any(|name| !exists(name))
}

/// The name of the object that an entry of ours is for.
fn own<'a>(entry: &'a Value, namespace: &str) -> Option<&'a str> {
    let parent = entry.get("parentRef")?;
    // Older resource definitions have no place for the controller's name; the group and kind are nobody else's.
    let is_own = entry.get("controllerName").is_none_or(|of| of == CONTROLLER)
        && parent.get("group")? == GROUP
        && parent.get("kind")? == KIND
        && parent.get("namespace").is_none_or(|of| of == namespace);
    parent.get("name")?.as_str().filter(|_| is_own)
}

fn without_controller(entry: &Value) -> Value {
    let mut entry = entry.clone();
    if let Some(fields) = entry.as_object_mut() {
        fields.remove("controllerName");
    }
    entry
}

fn entry(
    pool: &InferencePool,
    object: &Meta,
    standing: &Standing,
    old: Option<&Value>,
    now: &str,
) -> Value {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        let old = old.and_then(|old| old.get("conditions")?.as_array());
        let old = old.into_iter().flatten().find(|condition| {
            condition.get("type").is_some_and(|of| of == kind)
                && condition.get("status").is_some_and(|of| of == status)
        });
        let since = old.and_then(|old| old.get("lastTransitionTime")?.as_str()).unwrap_or(now);
        json!({
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "observedGeneration": pool.metadata.generation,
            "lastTransitionTime": since,
        })
    };
    let accepted = match standing {
        Standing::Pending => {
            condition("Accepted", "Unknown", "Pending", "the gateway serves nothing yet")
        }
        Standing::LeftOut(why) => condition("Accepted", "False", "NotSupportedByParent", why),
        Standing::None | Standing::Served => condition("Accepted", "True", "Accepted", ""),
    };
    let text = "the gateway chooses the pods itself and asks no endpoint picker";
    json!({
        "parentRef": {
            "group": GROUP,
            "kind": KIND,
            "name": object.name,
            "namespace": pool.metadata.namespace,
        },
        "controllerName": CONTROLLER,
        "conditions": [accepted, condition("ResolvedRefs", "True", "ResolvedRefs", text)],
    })
}

const GROUP: &str = "gateway.sluice.dev";
const KIND: &str = "InferenceGatewayConfig";
/// Entries that the resource definition lets a pool have.
const MAX_PARENTS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(parents: Value) -> InferencePool {
        let pool = json!({
            "metadata": { "name": "a", "namespace": "ns", "generation": 2 },
            "status": { "parents": parents },
        });
        serde_json::from_value(pool).unwrap()
    }

    fn object(name: &str) -> Meta {
        Meta { name: name.into(), namespace: "ns".into(), ..Meta::default() }
    }

    fn foreign(controller: &str) -> Value {
        json!({
            "parentRef": { "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge" },
            "controllerName": controller,
            "conditions": [],
        })
    }

    /// Each entry's parent, and what is said by it.
    fn said(list: &[Value]) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let line = |entry: &Value| {
            let accepted = &entry["conditions"][0];
            let parent = &entry["parentRef"];
            let [kind, name, reason] =
                [&parent["kind"], &parent["name"], &accepted["reason"]].map(text);
            format!("{kind} {name} {reason}")
        };
        list.iter().map(line).collect()
    }

    #[test]
    fn only_the_gateways_own_entry_changes() {
        let exists = |name: &str| name == "edge" || name == "other";
        let edge = object("edge");
        let change = |list: Value, object: Option<&Meta>, standing: &Standing| {
            parents(&pool(list), object, standing, exists, "now")
        };
        let written = |name: &str| {
            let list =
                parents(&pool(json!(null)), Some(&object(name)), &Standing::Served, exists, "then");
            list.unwrap().remove(0)
        };
        let ours = "InferenceGatewayConfig edge Accepted";
        let (theirs, others) = ("Gateway edge -", "InferenceGatewayConfig other Accepted");
        // The same kind and name by another controller is not ours.
        let mut alike = written("edge");
        alike["controllerName"] = "example.net/gateway".into();
        let why = Standing::LeftOut("its model m is another pool's".into());
        for (what, list, object, standing, expected) in [
            ("none yet", json!(null), Some(&edge), &Standing::Served, Some(vec![ours])),
            ("there already", json!([written("edge")]), Some(&edge), &Standing::Served, None),
            (
                "beside others",
                json!([foreign("x.y/z"), written("other"), alike]),
                Some(&edge),
                &Standing::Served,
                Some(vec![theirs, others, ours, ours]),
            ),
            (
                "not served any more",
                json!([foreign("x.y/z"), written("edge"), written("other")]),
                Some(&edge),
                &Standing::None,
                Some(vec![theirs, others]),
            ),
            ("never served", json!([foreign("x.y/z")]), Some(&edge), &Standing::None, None),
            (
                "left out",
                json!([written("edge")]),
                Some(&edge),
                &why,
                Some(vec!["InferenceGatewayConfig edge NotSupportedByParent"]),
            ),
            (
                "not yet",
                json!([]),
                Some(&edge),
                &Standing::Pending,
                Some(vec!["InferenceGatewayConfig edge Pending"]),
            ),
            (
                "of an object that is gone",
                json!([written("gone"), written("other")]),
                None,
                &Standing::Served,
                Some(vec![others]),
            ),
            ("no object", json!(null), None, &Standing::Served, None),
        ] {
            let found = change(list, object, standing);
            assert_eq!(
                found.as_deref().map(said),
                expected.map(|list| list.iter().map(ToString::to_string).collect()),
                "{what}"
            );
        }
        let full: Vec<Value> = (0..32).map(|index| foreign(&format!("x.y/{index}"))).collect();
        assert_eq!(change(json!(full), Some(&edge), &Standing::Served), None, "there is no place");
    }

    #[test]
    fn a_time_is_when_it_changed() {
        let time = |list: &[Value], index: usize| {
            list[0]["conditions"][index]["lastTransitionTime"].as_str().unwrap().to_owned()
        };
        let edge = object("edge");
        let first = parents(&pool(json!([])), Some(&edge), &Standing::Pending, |_| true, "first");
        let first = first.unwrap();
        let later = parents(&pool(json!(first)), Some(&edge), &Standing::Served, |_| true, "later")
            .unwrap();
        assert_eq!((time(&later, 0).as_str(), time(&later, 1).as_str()), ("later", "first"));
        assert_eq!(later[0]["conditions"][0]["observedGeneration"], 2);
    }

    #[test]
    fn a_definition_without_the_controllers_name_keeps_one_entry() {
        let edge = object("edge");
        let first = parents(&pool(json!([])), Some(&edge), &Standing::Served, |_| true, "first");
        let kept = json!([without_controller(&first.unwrap()[0])]);
        let change = |list: &Value, standing| {
            parents(&pool(list.clone()), Some(&edge), &standing, |_| true, "later")
        };
        assert_eq!(change(&kept, Standing::Served), None, "it is as it was left");
        let pending = change(&kept, Standing::Pending).unwrap();
        assert_eq!(said(&pending), ["InferenceGatewayConfig edge Pending"]);
        // Those that were written before are gone with the first change.
        let twice = json!([kept[0], kept[0]]);
        assert_eq!(change(&twice, Standing::Served).unwrap().len(), 1);
        assert_eq!(change(&kept, Standing::None), Some(Vec::new()));
    }

    #[test]
    fn entries_whose_object_is_gone_are_found() {
        let edge = object("edge");
        let ours = parents(&pool(json!([])), Some(&edge), &Standing::Served, |_| true, "");
        let ours = ours.unwrap().remove(0);
        let has = |list: Value| has_orphan(&pool(list), |name| name != "edge");
        assert!(has(json!([foreign("x.y/z"), ours])));
        assert!(has(json!([without_controller(&ours)])));
        assert!(!has(json!([foreign("x.y/z")])), "it is another controller's");
        assert!(!has(json!(null)));
        assert!(!has_orphan(&pool(json!([ours])), |name| name == "edge"), "the object is there");
    }
}
