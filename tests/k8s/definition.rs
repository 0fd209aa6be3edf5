//! The resource definition: what it takes, what it refuses, and what it shows.

use std::fs;

use gateway_user::config;
use serde_json::{Value, json};

use crate::api::{Api, repository, yaml};

fn object(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "gateway.sluice.dev/v1alpha1",
        "kind": "InferenceGatewayConfig",
        "metadata": { "name": name },
        "spec": spec,
    })
}

fn smallest() -> Value {
    json!({ "schedulers": [{
        "name": "a", "modelName": "model-a", "modelSelector": { "matchLabels": { "app": "a" } },
    }] })
}

/// Every document that is right as a file is right in a cluster, comes back whole, and means the same.
#[tokio::test]
async fn takes_every_setting() {
    let api = Api::new().await;
    let mut names = Vec::new();
    for entry in fs::read_dir(repository().join("tests/golden/config/valid")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let loaded = config::load(&path).unwrap();
        // As it is printed: an address with a port in one text is for files.
        let document: Value = serde_json::from_str(&loaded.config.to_json()).unwrap();
        let applied = api.apply(&api.config(&name), &object(&name, document["spec"].clone())).await;
        let stored = applied.unwrap_or_else(|error| panic!("{name}: {error}"))["spec"].clone();
        assert_eq!(plain(&stored), plain(&document["spec"]), "{name}");
        let again = config::parse_object(&loaded.config.name, &stored).unwrap().config;
        assert_eq!(again, loaded.config, "{name}");
        names.push(name);
    }
    assert!(names.iter().any(|name| name == "everything"), "{names:?}");
}

/// A value in which 1 and 1.0 are equal, as they are in JSON.
fn plain(value: &Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().into(),
        Value::Array(list) => list.iter().map(plain).collect(),
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), plain(value))).collect(),
        other => other.clone(),
    }
}

/// An object of the managed product applies with nothing but `apiVersion` changed.
#[tokio::test]
async fn takes_what_the_managed_product_takes() {
    let api = Api::new().await;
    let file = repository().join("tests/golden/config/valid/managed.yaml");
    let mut document = yaml(&fs::read_to_string(file).unwrap());
    document["apiVersion"] = "gateway.sluice.dev/v1alpha1".into();
    // Where a file has its pods, which the managed product does not know.
    for scheduler in document["spec"]["schedulers"].as_array_mut().unwrap() {
        scheduler.as_object_mut().unwrap().remove("pods");
    }
    let name = document["metadata"]["name"].as_str().unwrap().to_owned();
    // The rest is what that cluster said of it.
    document["metadata"] = json!({ "name": name });
    document.as_object_mut().unwrap().remove("status");
    let stored = api.apply(&api.config(&name), &document).await.unwrap();
    assert_eq!(stored["spec"], document["spec"]);
    let loaded = config::parse_object(&name, &stored["spec"]).unwrap();
    assert_eq!(
        loaded.config.schedulers.len(),
        document["spec"]["schedulers"].as_array().unwrap().len()
    );
}

#[tokio::test]
async fn refuses_what_is_wrong() {
    let api = Api::new().await;
    let mut differing = Vec::new();
    let two = json!([{ "name": "a", "modelName": "m" }, { "name": "b", "modelName": "m" }]);
    for (pointer, value, expected) in [
        ("/listener", json!([]), "unknown field \"spec.listener\""),
        (
            "/schedulers",
            json!([]),
            "spec.schedulers: Invalid value: 0: spec.schedulers in body should have at least 1 items",
        ),
        (
            "/schedulers",
            json!([{ "name": "a", "modelName": "m" }, { "name": "a", "modelName": "n" }]),
            "spec.schedulers[1]: Duplicate value",
        ),
        ("/schedulers", two, "two schedulers have the same modelName"),
        (
            "/schedulers/0/modelName",
            json!(""),
            "spec.schedulers[0].modelName in body should be at least 1 chars long",
        ),
        ("/schedulers/0/name", json!("Llama"), "spec.schedulers[0].name in body should match"),
        (
            "/schedulers/0/targetPort",
            json!(65536),
            "spec.schedulers[0].targetPort in body should be less than or equal to 65535",
        ),
        (
            "/schedulers/0/modelSelector",
            json!({}),
            "is empty: it would match every pod of the namespace",
        ),
        (
            "/schedulers/0/modelSelector",
            json!({ "matchExpressions": [{ "key": "a", "operator": "In" }] }),
            "values are for the operators In and NotIn",
        ),
        ("/schedulers/0/engineType", json!("tgi"), "supported values: \"vllm\", \"sglang\""),
        ("/schedulers/0/profile", json!("latency"), ""),
        ("/schedulers/0/listener", json!("http"), "mode: connection needs listener"),
        ("/schedulers/0/mode", json!("connection"), "mode: connection needs listener"),
        ("/schedulers/0/saturation", json!({ "wait": "2m" }), "must be within 0s..1m"),
        (
            "/schedulers/0/saturation",
            json!({ "wait": "2 minutes" }),
            "spec.schedulers[0].saturation.wait in body should match",
        ),
        ("/limits", json!({ "headerTimeout": "1ms" }), "must be within 100ms..1h"),
        (
            "/limits",
            json!({ "maxHeadBytes": "64 KiB" }),
            "spec.limits.maxHeadBytes in body should match",
        ),
        ("/limits", json!({ "maxHeadBytes": "64Ki" }), ""),
        ("/limits", json!({ "maxHeadBytes": 65536 }), ""),
        ("/kernel", json!({ "paths": ["local"] }), "must name relay"),
        ("/kernel", json!({ "steering": "of" }), "supported values: \"auto\", \"off\""),
        (
            "/auth",
            json!({ "jwt": { "provider": { "name": "p", "issuer": "https://i", "audiences": ["a"] } } }),
            "either remoteJWKS or localJWKS",
        ),
        (
            "/auth",
            json!({ "jwt": { "provider": { "name": "p", "issuer": "http://i", "audiences": ["a"], "remoteJWKS": { "uri": "https://i/k" } } } }),
            "spec.auth.jwt.provider.issuer in body should match",
        ),
        (
            "/auth",
            json!({ "jwt": { "provider": { "name": "p", "issuer": "https://i", "remoteJWKS": { "uri": "https://i/k" } } } }),
            "at least one of audiences and requiredClaims",
        ),
    ] {
        let mut spec = smallest();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        spec.pointer_mut(parent).unwrap()[key] = value.clone();
        let said = api.try_config(&object("wrong", spec)).await.err().unwrap_or_default();
        if said.is_empty() != expected.is_empty() || !said.contains(expected) {
            differing.push(format!("{pointer} {value}: {said:?}"));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
    let mut both = smallest();
    both["schedulers"][0]["weights"] = json!({ "queue": 1 });
    both["schedulers"][0]["configMapRef"] = json!({ "name": "c" });
    let said = api.try_config(&object("wrong", both)).await.unwrap_err();
    assert!(said.contains("either weights or configMapRef, not both"), "{said}");
    let mut off = smallest();
    off["bbr"] = json!({ "enabled": false });
    off["schedulers"].as_array_mut().unwrap().push(json!({ "name": "b", "modelName": "n" }));
    let said = api.try_config(&object("wrong", off)).await.unwrap_err();
    assert!(said.contains("bbr.enabled must be true with two schedulers or more"), "{said}");
}

#[tokio::test]
async fn shows_what_matters_at_a_glance() {
    let api = Api::new().await;
    let path = api.config("edge");
    api.apply(&path, &object("edge", smallest())).await.unwrap();
    let condition = |kind: &str, status: &str| {
        json!({ "type": kind, "status": status, "reason": "R", "message": format!("why {kind}"),
                "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1 })
    };
    let mut status = object("edge", Value::Null);
    status.as_object_mut().unwrap().remove("spec");
    status["status"] = json!({
        "observedGeneration": 1, "pools": 2, "pods": "3/4",
        "conditions": [condition("Accepted", "True"), condition("Programmed", "True"), condition("Ready", "False")],
        "schedulers": [{ "name": "a", "matched": 4, "ready": 3, "message": "none" }],
    });
    let stored = api.apply(&format!("{path}/status"), &status).await.unwrap();
    assert_eq!(stored["status"], status["status"]);
    let row = api.table(&path).await;
    let cell = |name: &str| row.iter().find(|(column, _)| column == name).unwrap().1.clone();
    let shown = ["Name", "Pools", "Pods", "Accepted", "Programmed", "Ready", "Reason"].map(cell);
    assert_eq!(json!(shown), json!(["edge", 2, "3/4", "True", "True", "False", "why Ready"]));
}
