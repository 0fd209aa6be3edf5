use serde::de::DeserializeOwned;

use super::*;
use crate::config::Pod as Endpoint;

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A pod with the label `app`, ready unless something else is said of it.
fn pod(name: &str, app: &str, ip: &str) -> Value {
    json!({
        "metadata": { "name": name, "uid": format!("uid-{name}"), "labels": { "app": app },
                      "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "nodeName": "node-1" },
        "status": { "podIP": ip, "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

fn with(mut value: Value, pointer: &str, new: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    value.pointer_mut(parent).unwrap()[key] = new;
    value
}

fn pool(name: &str, spec: Value) -> (String, InferencePool) {
    (name.to_owned(), read(json!({ "metadata": { "name": name }, "spec": spec })))
}

fn snapshot(spec: Option<Value>, pods: &[Value]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    if let Some(spec) = spec {
        let object = json!({ "metadata": { "name": "edge", "generation": 3 }, "spec": spec });
        snapshot.configs.insert("edge".into(), read(object));
    }
    for value in pods {
        let pod: Pod = read(value.clone());
        snapshot.pods.insert(pod.metadata.name.clone(), pod);
    }
    snapshot
}

fn one(selector: Value) -> Value {
    json!({ "schedulers": [{ "name": "a", "modelName": "model-a", "modelSelector": selector }] })
}

fn app(name: &str) -> Value {
    one(json!({ "matchLabels": { "app": name } }))
}

fn here() -> Asked {
    Asked { name: None, node: Some("node-1".into()) }
}

/// The pods of the first pool, as `name address`.
fn found(resolved: &Resolved) -> Vec<String> {
    let loaded = resolved.config.as_ref().unwrap().as_ref().unwrap();
    let pods = loaded.config.schedulers[0].pods.iter();
    pods.map(|pod| format!("{} {}", pod.name, pod.address)).collect()
}

#[test]
fn field_report_69_71_picker_report_22_which_pods_may_get_requests() {
    let ready = pod("p", "x", "10.0.0.1");
    let label = |key: &str, value: &str| {
        with(ready.clone(), &format!("/metadata/labels/{key}"), value.into())
    };
    let conditions = |status: &str| {
        with(ready.clone(), "/status/conditions", json!([{ "type": "Ready", "status": status }]))
    };
    for (what, pod, expected, matched) in [
        ("ready", ready.clone(), vec!["p 10.0.0.1:8000"], 1),
        (
            "IPv6",
            with(ready.clone(), "/status/podIP", "fd00::1".into()),
            vec!["p [fd00::1]:8000"],
            1,
        ),
        ("not ready", conditions("False"), vec![], 1),
        ("its node is lost", conditions("Unknown"), vec![], 1),
        (
            "leaves",
            with(ready.clone(), "/metadata/deletionTimestamp", "2026-01-02T00:00:00Z".into()),
            vec![],
            1,
        ),
        ("has no address yet", with(ready.clone(), "/status/podIP", "".into()), vec![], 1),
        (
            "has no address that can be",
            with(ready.clone(), "/status/podIP", "0.0.0.0".into()),
            vec![],
            1,
        ),
        ("of another app", label("app", "y"), vec![], 0),
        ("with a label more", label("team", "ml"), vec!["p 10.0.0.1:8000"], 1),
    ] {
        let resolved = resolve(&snapshot(Some(app("x")), &[pod]), &here());
        assert_eq!(found(&resolved), expected, "{what}");
        let facts = &resolved.pools[0];
        let count = u32::try_from(expected.len()).unwrap();
        assert_eq!((facts.matched, facts.ready, facts.local), (matched, count, count), "{what}");
        assert_eq!(facts.findings.is_empty(), !expected.is_empty(), "{what}: {:?}", facts.findings);
    }
}

#[test]
fn what_a_person_is_told_of_a_pool() {
    let away = with(pod("p", "x", "10.0.0.1"), "/status/conditions", json!([]));
    let both = [pod("p", "x", "10.0.0.1"), pod("q", "x", "10.0.0.1")];
    for (spec, pods, expected) in [
        (app("x"), &both[..1], vec![]),
        (app("z"), &both[..], vec!["no pod of this namespace has the labels app=z"]),
        (app("x"), &[away], vec!["none of its 1 pods is ready"]),
        (
            app("x"),
            &both[..],
            vec!["pod p is left out: its address 10.0.0.1 is another pod's, or none"],
        ),
        (
            json!({ "schedulers": [{ "name": "a", "modelName": "m" }] }),
            &both[..],
            vec!["has no modelSelector and no pods, and no InferencePool has its name"],
        ),
        (
            one(json!({})),
            &both[..],
            vec!["has no modelSelector and no pods, and no InferencePool has its name"],
        ),
    ] {
        let resolved = resolve(&snapshot(Some(spec.clone()), pods), &here());
        let said: Vec<_> = resolved.pools[0].findings.iter().map(ToString::to_string).collect();
        assert_eq!(said, expected, "{spec}");
    }
}

#[test]
fn of_two_pods_with_one_address_the_newer_has_it() {
    let old = pod("a", "x", "10.0.0.1");
    let new = with(
        pod("b", "x", "10.0.0.1"),
        "/metadata/creationTimestamp",
        "2026-01-02T00:00:00Z".into(),
    );
    let resolved = resolve(&snapshot(Some(app("x")), &[old, new]), &here());
    assert_eq!(found(&resolved), ["b 10.0.0.1:8000"]);
    assert_eq!((resolved.pools[0].matched, resolved.pools[0].ready), (2, 1));
}

#[test]
fn listed_pods_and_found_ones() {
    let mut spec = app("x");
    spec["schedulers"][0]["pods"] = json!([{ "address": "10.0.0.9" }, { "address": "10.0.0.1" }]);
    let resolved = resolve(
        &snapshot(Some(spec), &[pod("p", "x", "10.0.0.1"), pod("q", "x", "10.0.0.2")]),
        &here(),
    );
    assert_eq!(
        found(&resolved),
        ["10.0.0.9:8000 10.0.0.9:8000", "10.0.0.1:8000 10.0.0.1:8000", "q 10.0.0.2:8000"]
    );
    assert_eq!((resolved.pools[0].matched, resolved.pools[0].ready), (4, 3));
}

#[test]
fn what_is_known_of_a_pod() {
    let far = with(pod("far", "x", "10.0.0.2"), "/spec/nodeName", "node-2".into());
    let near = with(
        pod("near", "x", "10.0.0.1"),
        "/metadata/labels",
        json!({ "app": "x", "llm-d.ai/context-length-range": "0-8192" }),
    );
    let mut snapshot = snapshot(Some(app("x")), &[far, near]);
    let node = json!({ "metadata": { "name": "node-2", "labels": { "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3" } } });
    snapshot.nodes.insert("node-2".into(), read(node));
    let resolved = resolve(&snapshot, &here());
    assert_eq!(resolved.pools[0].local, 1);
    let loaded = resolved.config.unwrap().unwrap();
    let known: Vec<_> = loaded.config.schedulers[0]
        .pods
        .iter()
        .map(|Endpoint { name, gpu, context_range, .. }| {
            (name.as_str(), gpu.as_deref(), *context_range)
        })
        .collect();
    assert_eq!(
        known,
        [("far", Some("NVIDIA-H100-80GB-HBM3"), None), ("near", None, Some((0, 8192)))]
    );
}

#[test]
fn a_pool_is_as_good_as_the_object() {
    let spec = json!({ "selector": { "matchLabels": { "app": "x" } }, "targetPorts": [{ "number": 8000 }, { "number": 8001 }] });
    let pods = [pod("p", "x", "10.0.0.1")];
    let expected = ["p:8000 10.0.0.1:8000", "p:8001 10.0.0.1:8001"];

    // Alone.
    let mut alone = snapshot(None, &pods);
    alone.pools.extend([pool("a", spec.clone())]);
    let resolved = resolve(&alone, &here());
    assert_eq!(found(&resolved), expected);
    assert_eq!((resolved.pools[0].matched, resolved.pools[0].ready, resolved.object), (2, 2, None));
    assert_eq!(resolved.config.unwrap().unwrap().config.schedulers[0].model_name, "a");

    // As the pods of the scheduler of its name, whose settings hold.
    let mut named =
        snapshot(Some(json!({ "schedulers": [{ "name": "a", "modelName": "model-a" }] })), &pods);
    named.pools.extend([pool("a", spec.clone())]);
    let resolved = resolve(&named, &here());
    assert_eq!(found(&resolved), expected);
    let config = resolved.config.unwrap().unwrap().config;
    assert_eq!((config.schedulers.len(), config.schedulers[0].model_name.as_str()), (1, "model-a"));

    // Not in place of a selector that is written: the managed product makes a pool for each scheduler.
    let mut both = snapshot(Some(app("x")), &pods);
    both.pools.extend([pool("a", spec.clone())]);
    assert_eq!(found(&resolve(&both, &here())), ["p 10.0.0.1:8000"]);

    // Beside others.
    let mut beside = snapshot(Some(app("x")), &pods);
    beside.pools.extend([pool("b", spec)]);
    let resolved = resolve(&beside, &here());
    let names: Vec<_> = resolved.pools.iter().map(|facts| facts.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(resolved.config.unwrap().unwrap().config.schedulers[1].pods.len(), 2);
}

#[test]
fn what_a_pool_says_its_pods_speak() {
    for (protocol, expected) in [
        (json!(null), None),
        (json!("http"), None),
        (json!("kubernetes.io/h2c"), Some("kubernetes.io/h2c")),
    ] {
        let mut snapshot = snapshot(None, &[pod("p", "x", "10.0.0.1")]);
        let mut spec = json!({ "selector": { "matchLabels": { "app": "x" } }, "targetPorts": [{ "number": 8000 }] });
        if !protocol.is_null() {
            spec["appProtocol"] = protocol.clone();
        }
        snapshot.pools.extend([pool("b", spec)]);
        let resolved = resolve(&snapshot, &here());
        let findings: Vec<_> =
            expected.map(|of| Finding::Protocol(of.into())).into_iter().collect();
        assert_eq!(resolved.pools[0].findings, findings, "{protocol}");
        assert_eq!(found(&resolved), ["p 10.0.0.1:8000"], "it is served all the same");
    }
}

#[test]
fn the_older_version_of_a_pool() {
    let mut both = snapshot(None, &[pod("p", "x", "10.0.0.1"), pod("q", "y", "10.0.0.2")]);
    let old = json!({ "selector": { "app": "x" }, "targetPortNumber": 9000 });
    both.legacy_pools.extend([pool("a", old.clone()), pool("b", old)]);
    let new = json!({ "selector": { "matchLabels": { "app": "y" } }, "targetPorts": [{ "number": 8000 }] });
    both.pools.extend([pool("a", new)]);
    let resolved = resolve(&both, &here());
    assert_eq!(found(&resolved), ["q 10.0.0.2:8000"]);
    let config = resolved.config.unwrap().unwrap().config;
    assert_eq!(config.schedulers[1].pods[0].address.to_string(), "10.0.0.1:9000");
}

#[test]
fn a_pool_that_is_wrong_is_left_out_alone() {
    let spec = json!({ "selector": { "matchLabels": { "app": "x" } }, "targetPorts": [{ "number": 8000 }] });
    let mut snapshot = snapshot(Some(app("x")), &[]);
    let long = "l".repeat(64);
    snapshot.pools.extend([pool(&long, spec.clone()), pool("b", spec.clone()), pool("c", spec)]);
    let annotations = |model: &str| BTreeMap::from([(MODEL.to_owned(), model.to_owned())]);
    snapshot.pools.get_mut("b").unwrap().metadata.annotations = annotations("model-a");
    snapshot.pools.get_mut("c").unwrap().metadata.annotations = annotations("model-c");
    let resolved = resolve(&snapshot, &here());
    let names: Vec<_> = resolved.left_out.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["b", &long]);
    assert_eq!(resolved.left_out[0].1, "its model model-a is another pool's");
    let config = resolved.config.unwrap().unwrap().config;
    assert_eq!(config.schedulers[1].model_name, "model-c");
}

#[test]
fn pools_do_not_make_an_object_wrong() {
    let of = |name: &str| {
        pool(
            name,
            json!({ "selector": { "matchLabels": { "app": name } }, "targetPorts": [{ "number": 8000 }] }),
        )
    };
    // More than a gateway may have.
    let spec = |count: usize| {
        let scheduler = |n: usize| json!({ "name": format!("a{n}"), "modelName": format!("m{n}"), "pods": [{ "address": "10.0.0.1" }] });
        json!({ "schedulers": (0..count).map(scheduler).collect::<Vec<_>>() })
    };
    for (written, pools, expected) in [(98, 2, 100), (98, 4, 100), (100, 2, 100), (0, 101, 100)] {
        let mut snapshot = snapshot((written > 0).then(|| spec(written)), &[]);
        snapshot.pools.extend((0..pools).map(|n| of(&format!("b{n:03}"))));
        let resolved = resolve(&snapshot, &here());
        let served = resolved.config.unwrap().unwrap().config.schedulers;
        assert_eq!(
            (served.len(), resolved.pools.len()),
            (expected, expected),
            "{written}, {pools}"
        );
        assert_eq!(resolved.left_out.len(), written + pools - expected, "{written}, {pools}");
        let last = served.last().unwrap();
        assert_eq!(last.name, resolved.pools.last().unwrap().name);
        for (name, why) in resolved.left_out {
            assert_eq!(why, "a gateway has at most 100 pools", "{name}");
        }
    }

    // The only listener serves another pool alone.
    let direct = json!({
        "listeners": [{ "name": "one", "port": 8001 }],
        "schedulers": [{ "name": "a", "modelName": "a", "mode": "connection", "listener": "one",
                         "modelSelector": { "matchLabels": { "app": "a" } } }],
    });
    let mut snapshot = snapshot(Some(direct), &[]);
    snapshot.pools.extend([of("b")]);
    let resolved = resolve(&snapshot, &here());
    assert_eq!(resolved.config.unwrap().unwrap().config.schedulers.len(), 1);
    let text = "cannot be reached: every listener serves another pool alone";
    assert_eq!(resolved.left_out, [("b".to_owned(), text.to_owned())]);
}

#[test]
fn a_newer_pool_takes_nothing_from_an_older_one() {
    let spec = json!({ "selector": { "matchLabels": { "app": "x" } }, "targetPorts": [{ "number": 8000 }] });
    let mut snapshot = snapshot(None, &[]);
    for (name, day) in [("a", 3), ("b", 1), ("c", 2)] {
        let (_, mut pool) = pool(name, spec.clone());
        pool.metadata.annotations = BTreeMap::from([(MODEL.to_owned(), "model".to_owned())]);
        pool.metadata.creation_timestamp = format!("2026-01-0{day}T00:00:00Z");
        snapshot.pools.insert(name.to_owned(), pool);
    }
    let resolved = resolve(&snapshot, &here());
    let served: Vec<_> = resolved.pools.iter().map(|pool| pool.name.as_str()).collect();
    let left_out: Vec<_> = resolved.left_out.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((served, left_out), (vec!["b"], vec!["c", "a"]));
}

#[test]
fn what_can_be_no_label_is_not_asked_for() {
    let wrong = json!({ "selector": { "matchLabels": { "app": "a b" } }, "targetPorts": [{ "number": 8000 }] });
    let mut snapshot = snapshot(Some(app("x")), &[]);
    snapshot.pools.extend([pool("b", wrong)]);
    let resolved = resolve(&snapshot, &here());
    assert_eq!(resolved.config.unwrap().unwrap().config.schedulers.len(), 1);
    let text = "its selector: \"a b\" is not the value of a label";
    assert_eq!(resolved.left_out, [("b".to_owned(), text.to_owned())]);
    let queries: Vec<_> =
        selectors(&[app("x"), app("x y")], &snapshot).iter().map(LabelSelector::query).collect();
    assert_eq!(queries, ["app=x"]);

    snapshot.configs.get_mut("edge").unwrap().spec = app("x y");
    let errors = resolve(&snapshot, &here()).config.unwrap().unwrap_err();
    let said: Vec<_> = errors.list.iter().map(ToString::to_string).collect();
    assert_eq!(said, ["spec.schedulers[0].modelSelector: \"x y\" is not the value of a label"]);
}

#[test]
fn an_object_that_is_wrong_says_all_of_it() {
    let mut spec = app("x");
    spec["listeners"] = json!([{ "port": 70000 }]);
    spec["schedulers"][0]["modelNam"] = "m".into();
    let resolved = resolve(&snapshot(Some(spec), &[pod("p", "x", "10.0.0.1")]), &here());
    let errors = resolved.config.unwrap().unwrap_err();
    let fields: Vec<_> = errors.list.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["spec.schedulers[0].modelNam", "spec.listeners[0].port"]);
    // The pods are counted all the same.
    assert_eq!((resolved.pools[0].matched, resolved.pools[0].ready), (1, 1));
}

#[test]
fn an_earlier_specification_finds_the_pods_of_now() {
    let mut wrong = app("y");
    wrong["workers"] = json!(-1);
    let pods = [pod("p", "x", "10.0.0.1"), pod("q", "y", "10.0.0.2")];
    let mut snapshot = snapshot(Some(wrong), &pods);
    assert!(resolve(&snapshot, &here()).config.unwrap().is_err());
    let resolve_as =
        |spec, snapshot: &Snapshot| resolve_as(spec, &BTreeMap::new(), snapshot, &here());
    let earlier = resolve_as(app("x"), &snapshot);
    assert_eq!(found(&earlier), ["p 10.0.0.1:8000"]);
    assert_eq!(earlier.object.unwrap().generation, 3, "it is still of this object");
    snapshot.pods = [("r".to_owned(), read(pod("r", "x", "10.0.0.3")))].into();
    assert_eq!(found(&resolve_as(app("x"), &snapshot)), ["r 10.0.0.3:8000"]);
}

#[test]
fn what_is_no_specification_at_all() {
    for spec in [
        json!(null),
        json!("text"),
        json!([]),
        json!({}),
        json!({ "schedulers": 5 }),
        json!({ "schedulers": [null] }),
    ] {
        let resolved = resolve(&snapshot(Some(spec.clone()), &[]), &here());
        assert!(resolved.config.unwrap().is_err(), "{spec}");
    }
}

#[test]
fn which_object_it_is() {
    let nothing = resolve(&Snapshot::default(), &here());
    assert!(nothing.config.is_none() && nothing.object.is_none());

    let mut two = snapshot(Some(app("x")), &[]);
    let newer = json!({ "metadata": { "name": "a-newer", "creationTimestamp": "2026-01-01T00:00:00Z" }, "spec": app("y") });
    two.configs.insert("a-newer".into(), read(newer));
    let name = |asked: &Asked| resolve(&two, asked).object.map(|object| object.name);
    assert_eq!(name(&here()).as_deref(), Some("edge"));
    assert_eq!(
        name(&Asked { name: Some("a-newer".into()), node: None }).as_deref(),
        Some("a-newer")
    );

    // Asked for, and not there yet: nothing is served in its place.
    two.pools.extend([pool("b", json!({ "selector": { "app": "x" }, "targetPortNumber": 8000 }))]);
    let missing = resolve(&two, &Asked { name: Some("other".into()), node: None });
    assert!(missing.config.is_none());
}

#[test]
fn the_selectors_that_pods_are_wanted_for() {
    let mut snapshot = snapshot(Some(app("x")), &[]);
    snapshot.pools.extend([pool("b", json!({ "selector": { "matchLabels": { "app": "y" } } }))]);
    let spec = specification(&snapshot, &here()).unwrap();
    let queries = |specs: &[&Value]| -> Vec<String> {
        selectors(specs.iter().copied(), &snapshot).iter().map(LabelSelector::query).collect()
    };
    assert_eq!(queries(&[spec]), ["app=x", "app=y"]);
    assert_eq!(queries(&[spec, &app("z")]), ["app=x", "app=z", "app=y"]);
    assert_eq!(queries(&[]), ["app=y"]);
}

#[test]
fn what_is_said_of_files_is_not_said_here() {
    let mut spec = app("x");
    spec["podDefaults"] = json!({ "labels": { "a": "b" } });
    let loaded = resolve(&snapshot(Some(spec), &[]), &here()).config.unwrap().unwrap();
    let notes: Vec<_> =
        loaded.notes.iter().map(|note| format!("{}: {}", note.field, note.text)).collect();
    assert_eq!(
        notes,
        ["spec.podDefaults: has no effect: the gateway is one process and makes no pods"]
    );
}

#[test]
fn a_configmap_says_how_pods_compare() {
    let mut spec = app("x");
    spec["schedulers"][0]["configMapRef"] = json!({ "name": "plugins" });
    let mut snapshot = snapshot(Some(spec), &[pod("p", "x", "10.0.0.1")]);
    let said = |snapshot: &Snapshot| {
        let errors = resolve(snapshot, &here()).config.unwrap().unwrap_err();
        errors.list.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        said(&snapshot),
        ["spec.schedulers[0].configMapRef: this namespace has no ConfigMap `plugins`"]
    );
    let map = |text: &str| -> PickerMap {
        read(json!({ "metadata": { "name": "plugins" }, "data": { "default-plugins.yaml": text } }))
    };
    snapshot.pickers.insert("plugins".into(), map("kind: EndpointPickerConfig\nplugins: 5\n"));
    assert!(
        said(&snapshot)[0].starts_with("ConfigMap plugins, default-plugins.yaml:"),
        "{:?}",
        said(&snapshot)
    );
    let text = "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\n\
                plugins: [{type: queue-scorer}]\n\
                schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer, weight: 2}]}]\n";
    snapshot.pickers.insert("plugins".into(), map(text));
    let loaded = resolve(&snapshot, &here()).config.unwrap().unwrap();
    let crate::schedule::Policy::Scorers { scorers, .. } = &loaded.config.schedulers[0].policy
    else {
        panic!("{:?}", loaded.config.schedulers[0].policy)
    };
    assert_eq!(scorers.len(), 1, "{scorers:?}");
}

/// What the inference extension's objects say comes behind what the configuration says, also of pools that are none of
/// its schedulers.
#[test]
fn objects_beside_the_configuration() {
    let mut snapshot = snapshot(Some(app("x")), &[]);
    snapshot.pools.extend([pool("p", json!({ "selector": { "matchLabels": { "app": "y" } } }))]);
    let object = |name: &str, spec: Value| -> (String, Extension) {
        (name.to_owned(), read(json!({ "metadata": { "name": name }, "spec": spec })))
    };
    let rewrite = |pool: &str| json!({ "poolRef": { "name": pool }, "rules": [{ "targets": [{ "modelRewrite": "b" }] }] });
    snapshot.legacy_rewrites.extend([object("of-p", rewrite("p")), object("lost", rewrite("q"))]);
    snapshot.rewrites.extend([object("of-a", rewrite("a"))]);
    let spec = json!({ "poolRef": { "name": "p" }, "priority": -3 });
    snapshot.objectives.extend([object("low", spec)]);
    let map = json!({
        "metadata": { "name": "m" }, "data": { "baseModel": "model-a", "adapters": "[sql]" },
    });
    snapshot.adapters.insert("m".into(), read(map));
    let resolved = resolve(&snapshot, &here());
    let loaded = resolved.config.unwrap().unwrap();
    let names: Vec<_> = loaded.config.model_rewrites.iter().map(|of| of.name.as_str()).collect();
    assert_eq!(names, ["of-a", "of-p"]);
    assert_eq!(loaded.config.objectives[0].priority, -3);
    assert_eq!(loaded.config.schedulers[0].lora_adapters, ["sql"]);
    let notes: Vec<_> = loaded.notes.iter().map(ToString::to_string).collect();
    assert_eq!(notes, ["InferenceModelRewrite lost: is left out: there is no pool q"]);
}
