//! What people and other controllers are told besides the object's status: events, and the status of pools.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_tests::engine::{Faults, MetricsFault, Server};
use sluice_tests::gateway::{Gateway, PATIENCE};
use tokio::time::sleep;

use crate::api::Api;
use crate::pods::{kubeconfig, object, selecting, servers, wait_for};
use crate::status::{condition, is, wait_status};

/// The reasons of the events of the object, the warnings with a mark.
async fn events(api: &Api) -> Vec<(String, Value)> {
    let object = api.get(&api.config("edge")).await.unwrap();
    let selector = format!("involvedObject.uid={}", object["metadata"]["uid"].as_str().unwrap());
    let path = format!("/api/v1/namespaces/{}/events?fieldSelector={selector}", api.namespace);
    let list = api.get(&path).await.unwrap()["items"].as_array().unwrap().clone();
    let reason = |event: &Value| {
        let mark = if event["type"] == "Warning" { "!" } else { "" };
        format!("{mark}{}", event["reason"].as_str().unwrap())
    };
    list.into_iter().map(|event| (reason(&event), event)).collect()
}

/// Waits for an event with this reason and as many times.
async fn wait_event(api: &Api, reason: &str, count: u64) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let events = events(api).await;
        let found = events.iter().find(|(of, event)| of == reason && event["count"] == count);
        if let Some((_, event)) = found {
            return event.clone();
        }
        assert!(Instant::now() < deadline, "no event {reason} ×{count} in {events:#?}");
        sleep(Duration::from_millis(50)).await;
    }
}

fn lie(server: &Server, metrics: MetricsFault) {
    server.fault(Faults { metrics, ..Faults::default() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn pods_that_do_not_tell_their_load_are_named() {
    let (api, servers) = (Api::new().await, servers(3));
    api.apply(&api.config("edge"), &selecting("a", servers[0].addr.port())).await.unwrap();
    // One answers no metrics, and one tells nothing of what it has.
    lie(&servers[0], MetricsFault::Error);
    lie(&servers[1], MetricsFault::Nan);
    for (name, server) in ["p0", "p1", "p2"].iter().zip(&servers) {
        api.make_pod(name, "a", server.addr.ip()).await;
    }
    let _gateway = Gateway::of_cluster(&kubeconfig(), &api.namespace);
    let status = wait_status(&api, "both", |status| {
        is(status, "SignalsMissing", "True", "SignalsMissing")
            && status["schedulers"][0]["withoutSignals"] == 2
    });
    let status = status.await;
    let message = condition(&status, "SignalsMissing")["message"].as_str().unwrap();
    let expected = "pool: p0: cannot read the pod's metrics: it answered with HTTP status 500\n\
                    pool: p1: vllm does not tell how full its KV cache is, how many requests wait, \
                    how many requests run";
    assert_eq!(message, expected);
    assert!(is(&status, "Ready", "True", "Ready"), "they are served all the same: {status:#}");
    let said = status["schedulers"][0]["message"].as_str().unwrap();
    assert!(said.starts_with("p0: cannot read the pod's metrics"), "{said}");
    wait_event(&api, "!SignalsMissing", 1).await;

    lie(&servers[0], MetricsFault::None);
    lie(&servers[1], MetricsFault::None);
    wait_status(&api, "none", |status| is(status, "SignalsMissing", "False", "SignalsFound")).await;
    wait_event(&api, "SignalsFound", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_happens_is_an_event_once() {
    let (api, servers) = (Api::new().await, servers(1));
    let port = servers[0].addr.port();
    api.apply(&api.config("edge"), &selecting("a", port)).await.unwrap();
    let gateways: Vec<_> =
        (0..2).map(|_| Gateway::of_cluster(&kubeconfig(), &api.namespace)).collect();
    let accepted = wait_event(&api, "Accepted", 1).await;
    assert_eq!(accepted["message"], "generation 1 is valid");
    assert_eq!(accepted["reportingComponent"], "sluice.dev/gateway");
    assert_eq!(accepted["source"]["component"], "sluice");
    wait_event(&api, "Writer", 1).await;
    let none = wait_event(&api, "!NoPods", 1).await;
    assert_eq!(none["message"], "pool pool: no pod of this namespace has the labels app=a");

    api.make_pod("p", "a", servers[0].addr.ip()).await;
    wait_event(&api, "PodsFound", 1).await;
    api.delete(&api.pod("p")).await;
    // The same again is counted, and no other event.
    wait_event(&api, "!NoPods", 2).await;
    api.make_pod("p", "a", servers[0].addr.ip()).await;
    wait_event(&api, "PodsFound", 2).await;

    let mut wrong = selecting("a", port);
    wrong["spec"]["schedulers"][0]["metrics"] =
        json!({ "staleAfter": "500ms", "idleInterval": "1s" });
    api.apply(&api.config("edge"), &wrong).await.unwrap();
    let invalid = wait_event(&api, "!Invalid", 1).await;
    assert!(invalid["message"].as_str().unwrap().contains("is not above idleInterval"));
    let mut other = selecting("a", port);
    other["spec"]["listeners"][0]["name"] = "other".into();
    api.apply(&api.config("edge"), &other).await.unwrap();
    wait_event(&api, "!NeedsTakeover", 1).await;

    let mut reasons: Vec<_> = events(&api).await.into_iter().map(|(reason, _)| reason).collect();
    reasons.sort();
    assert_eq!(
        reasons,
        [
            "!Invalid",
            "!NeedsTakeover",
            "!NoPods",
            "Accepted",
            "Accepted",
            "PodsFound",
            "Programmed",
            "Writer"
        ]
    );
    drop(gateways);
}

fn pool_path(api: &Api, name: &str) -> String {
    let namespace = &api.namespace;
    format!("/apis/inference.networking.k8s.io/v1/namespaces/{namespace}/inferencepools/{name}")
}

async fn make_pool(api: &Api, name: &str, port: u16) {
    let pool = json!({
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
        "metadata": { "name": name },
        "spec": {
            "selector": { "matchLabels": { "app": "a" } },
            "targetPorts": [{ "number": port }],
            "endpointPickerRef": { "name": "none", "port": { "number": 9002 } },
        },
    });
    api.apply(&pool_path(api, name), &pool).await.unwrap();
}

/// Each parent of a pool, and why it is or is not accepted.
async fn wait_parents(api: &Api, name: &str, expected: &[&str]) -> Value {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let pool = api.get(&pool_path(api, name)).await.unwrap();
        let parents = &pool["status"]["parents"];
        let said = |entry: &Value| {
            let (parent, accepted) = (&entry["parentRef"], &entry["conditions"][0]);
            let [kind, name] = [&parent["kind"], &parent["name"]].map(text);
            format!("{kind} {name} {}", text(&accepted["reason"]))
        };
        let found: Vec<_> = parents.as_array().into_iter().flatten().map(said).collect();
        if found == expected {
            return pool;
        }
        assert!(Instant::now() < deadline, "waited in vain for {expected:?}: {pool:#}");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_pool_says_who_serves_it() {
    let (api, servers) = (Api::new().await, servers(1));
    let port = servers[0].addr.port();
    api.make_pod("p", "a", servers[0].addr.ip()).await;
    make_pool(&api, "served", port).await;
    // Another controller's entry, which is nobody's business here.
    let theirs = json!({ "status": { "parents": [{
        "parentRef": { "kind": "Gateway", "name": "front" },
        "controllerName": "example.net/gateway",
        "conditions": [{
            "type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    }] } });
    api.merge(&format!("{}/status", pool_path(&api, "served")), &theirs).await.unwrap();
    let front = "Gateway front Accepted";

    api.apply(&api.config("edge"), &object(json!({ "targetPort": port }))).await.unwrap();
    let gateways: Vec<_> =
        (0..2).map(|_| Gateway::of_cluster(&kubeconfig(), &api.namespace)).collect();
    let ours = "InferenceGatewayConfig edge Accepted";
    let pool = wait_parents(&api, "served", &[front, ours]).await;
    let entry = &pool["status"]["parents"][1];
    assert_eq!(entry["controllerName"], "sluice.dev/gateway");
    assert_eq!(entry["parentRef"]["group"], "gateway.sluice.dev");
    assert_eq!(entry["parentRef"]["namespace"], api.namespace);
    let resolved = &entry["conditions"][1];
    assert_eq!((&resolved["type"], &resolved["status"]), (&json!("ResolvedRefs"), &json!("True")));
    assert_eq!(resolved["observedGeneration"], pool["metadata"]["generation"]);
    assert!(pool["metadata"]["ownerReferences"].is_null());

    // A pool whose model another one has.
    make_pool(&api, "too-late", port).await;
    let annotation =
        json!({ "metadata": { "annotations": { "gateway.sluice.dev/model-name": "served" } } });
    api.merge(&pool_path(&api, "too-late"), &annotation).await.unwrap();
    wait_parents(&api, "too-late", &["InferenceGatewayConfig edge NotSupportedByParent"]).await;

    // A scheduler of the pool's name that finds pods by itself does not serve the pool.
    let mut own = selecting("a", port);
    own["spec"]["schedulers"][0]["name"] = "served".into();
    api.apply(&api.config("edge"), &own).await.unwrap();
    wait_parents(&api, "served", &[front]).await;
    api.apply(&api.config("edge"), &object(json!({ "targetPort": port }))).await.unwrap();
    wait_parents(&api, "served", &[front, ours]).await;

    // The parent is gone.
    api.delete(&api.config("edge")).await;
    wait_parents(&api, "served", &[front]).await;
    wait_parents(&api, "too-late", &[]).await;
    // Without an object there is no parent to name, though the pool is served.
    let writes = || {
        let audit = api.audit();
        audit.iter().filter(|one| one.resource == "inferencepools/status").count()
    };
    let before = writes();
    for ready in [false, true] {
        api.set_ready("p", ready).await;
        let expected: &[&str] = if ready { &["p"] } else { &[] };
        gateways.iter().for_each(|gateway| drop(wait_for(gateway, expected)));
    }
    // Longer than a gateway waits before it writes anything.
    sleep(Duration::from_secs(2)).await;
    assert_eq!(writes(), before);
    drop(gateways);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_entry_goes_with_its_object_though_its_writer_is_gone() {
    let (api, servers) = (Api::new().await, servers(1));
    let port = servers[0].addr.port();
    api.make_pod("p", "a", servers[0].addr.ip()).await;
    make_pool(&api, "served", port).await;
    let object = object(json!({ "targetPort": port }));
    let made = api.apply(&api.config("edge"), &object).await.unwrap();
    let mut gateways: Vec<_> =
        (0..2).map(|_| Gateway::of_cluster(&kubeconfig(), &api.namespace)).collect();
    wait_parents(&api, "served", &["InferenceGatewayConfig edge Accepted"]).await;
    let lease =
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/sluice-edge", api.namespace);
    // Nobody collects garbage here: what would have it collected is there.
    let owner = &api.get(&lease).await.unwrap()["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["name"], &owner["uid"]), (&json!("edge"), &made["metadata"]["uid"]));

    let writes = |gateway: &Gateway| gateway.log().contains("this gateway writes the status");
    let writer = gateways.iter().position(writes).unwrap();
    drop(gateways.remove(writer));
    api.delete(&api.config("edge")).await;
    wait_parents(&api, "served", &[]).await;
    drop(gateways);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_is_only_said_is_written_seldom() {
    let (api, servers) = (Api::new().await, servers(1));
    api.apply(&api.config("edge"), &selecting("a", servers[0].addr.port())).await.unwrap();
    api.make_pod("p", "a", servers[0].addr.ip()).await;
    let gateway = Gateway::of_cluster(&kubeconfig(), &api.namespace);
    wait_status(&api, "a pod", |status| status["pods"] == "1/1").await;
    let writes = || {
        let audit = api.audit();
        let status = audit.iter().filter(|one| one.resource == "inferencegatewayconfigs/status");
        status.count()
    };
    let (before, begun) = (writes(), Instant::now());
    // Another pod, ready and not, is a number in the status and no more.
    api.make_pod("q", "a", "127.0.0.99".parse().unwrap()).await;
    for round in 0..8 {
        api.set_ready("q", round % 2 == 0).await;
        sleep(Duration::from_millis(700)).await;
    }
    wait_status(&api, "the last state", |status| status["pods"] == "1/2").await;
    let most = 2 + begun.elapsed().as_secs() as usize / 5;
    assert!(writes() - before <= most, "{} writes", writes() - before);
    drop(gateway);
}
