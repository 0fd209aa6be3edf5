//! Pods that a cluster names, come and go as it says, and an object that changes.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde_json::{Value, json};
use sluice_tests::client::{chat, post};
use sluice_tests::engine::{Options, Server};
use sluice_tests::gateway::{Gateway, pods};
use sluice_tests::load::{Load, assert_answer};

use crate::api::Api;
use crate::status::{condition, is, wait_status};

/// The KUBECONFIG with every right.
pub(crate) fn kubeconfig() -> PathBuf {
    std::env::var_os("KUBECONFIG").unwrap().into()
}

/// Model servers at one port and at addresses of their own, as pods are.
pub(crate) fn servers(count: u8) -> Vec<Server> {
    let at = |last: u8, port: u16| Options {
        listen: SocketAddr::new(Ipv4Addr::new(127, 0, 0, last).into(), port),
        ..Options::default()
    };
    let first = Server::start(at(2, 0)).unwrap();
    let port = first.addr.port();
    let others = Server::start_all((3..count + 2).map(|last| at(last, port)).collect());
    std::iter::once(first).chain(others.unwrap()).collect()
}

/// A gateway's object whose one scheduler has these fields besides its name and model.
pub(crate) fn object(scheduler: Value) -> Value {
    let mut entry = json!({ "name": "pool", "modelName": "base" });
    entry.as_object_mut().unwrap().extend(scheduler.as_object().unwrap().clone());
    json!({
        "apiVersion": "gateway.sluice.dev/v1alpha1",
        "kind": "InferenceGatewayConfig",
        "metadata": { "name": "edge" },
        "spec": {
            "listeners": [{ "name": "http", "address": "127.0.0.1", "port": 0 }],
            "admin": { "port": 0 },
            "kernel": { "steering": "off" },
            "schedulers": [entry],
        },
    })
}

/// Selects pods by their label `app`.
pub(crate) fn selecting(app: &str, port: u16) -> Value {
    object(json!({ "modelSelector": { "matchLabels": { "app": app } }, "targetPort": port }))
}

fn names(status: &Value) -> Vec<&str> {
    pods(status).filter_map(|pod| pod["name"].as_str()).collect()
}

/// Waits until the gateway has exactly these pods.
pub(crate) fn wait_for(gateway: &Gateway, expected: &[&str]) -> Value {
    gateway.wait(&format!("the pods {expected:?}"), |status| names(status) == expected)
}

fn ask(gateway: &Gateway) {
    assert_answer(&post(gateway.address, "/v1/chat/completions", &chat("base", 1, false)));
}

/// Requests that a model server has had.
fn asked(server: &Server) -> u64 {
    server.stats().requests_to("/v1/chat/completions")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn field_report_71_picker_report_22_pods_come_and_go_under_load() {
    let (api, servers) = (Api::new().await, servers(3));
    let port = servers[0].addr.port();
    api.apply(&api.config("edge"), &selecting("a", port)).await.unwrap();
    for (name, server) in ["p0", "p1"].iter().zip(&servers) {
        api.make_pod(name, "a", server.addr.ip()).await;
    }
    api.make_pod("other", "b", servers[2].addr.ip()).await;
    let gateway = Gateway::of_cluster(&kubeconfig(), &api.namespace);
    wait_for(&gateway, &["p0", "p1"]);
    let load = Load::start([gateway.address].into_iter());
    load.wait_for_more();

    api.set_ready("p0", false).await;
    wait_for(&gateway, &["p1"]);
    // A request that was placed before may be on its way.
    load.wait_for_more();
    load.wait_for_more();
    let before = asked(&servers[0]);
    load.wait_for_more();
    load.wait_for_more();
    assert_eq!(asked(&servers[0]), before, "a pod that is not ready gets no request");

    api.set_ready("p0", true).await;
    wait_for(&gateway, &["p0", "p1"]);
    api.make_pod("p2", "a", servers[2].addr.ip()).await;
    wait_for(&gateway, &["p0", "p1", "p2"]);
    // Another selector, and with it another watch.
    api.apply(&api.config("edge"), &selecting("b", port)).await.unwrap();
    wait_for(&gateway, &["other"]);
    api.apply(&api.config("edge"), &selecting("a", port)).await.unwrap();
    wait_for(&gateway, &["p0", "p1", "p2"]);
    api.delete(&api.pod("p1")).await;
    wait_for(&gateway, &["p0", "p2"]);
    load.wait_for_more();
    load.stop();
    let status = gateway.wait_idle();
    assert!(pods(&status).all(|pod| pod["failures"] == 0), "{status:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_address_of_a_pod_that_is_gone_is_another_pods() {
    let (api, servers) = (Api::new().await, servers(1));
    let ip = servers[0].addr.ip();
    api.apply(&api.config("edge"), &selecting("a", servers[0].addr.port())).await.unwrap();
    api.make_pod("p", "a", ip).await;
    let gateway = Gateway::of_cluster(&kubeconfig(), &api.namespace);
    wait_for(&gateway, &["p"]);
    ask(&gateway);
    let requests = |status: &Value| status["pools"][0]["pods"][0]["requests"].clone();
    assert_eq!(requests(&gateway.wait_idle()), 1);
    api.delete(&api.pod("p")).await;
    // Of the same name as well.
    api.make_pod("p", "a", ip).await;
    gateway.wait("the new pod", |status| names(status) == ["p"] && requests(status) == 0);
    ask(&gateway);
    assert_eq!(requests(&gateway.wait_idle()), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_object_that_is_wrong_changes_nothing() {
    let (api, servers) = (Api::new().await, servers(1));
    let port = servers[0].addr.port();
    api.apply(&api.config("edge"), &selecting("a", port)).await.unwrap();
    api.make_pod("p", "a", servers[0].addr.ip()).await;
    let gateway = Gateway::of_cluster(&kubeconfig(), &api.namespace);
    wait_for(&gateway, &["p"]);
    // What no rule of the API server can tell.
    let mut wrong = selecting("b", port);
    wrong["spec"]["schedulers"][0]["metrics"] =
        json!({ "staleAfter": "500ms", "idleInterval": "1s" });
    api.apply(&api.config("edge"), &wrong).await.unwrap();
    gateway.wait_metric("sluice_config_reloads_total{result=\"failed\"}", 1.0);
    assert!(gateway.log().contains("is not above idleInterval"), "{}", gateway.log());
    assert_eq!(names(&gateway.status()), ["p"]);
    ask(&gateway);
    // And what is right again holds.
    api.apply(&api.config("edge"), &selecting("b", port)).await.unwrap();
    wait_for(&gateway, &[]);
    // Without an object nothing is served.
    api.delete(&api.config("edge")).await;
    gateway.wait("no pool", |status| status["pools"] == json!([]));
}

/// What is served goes on as it was written last, with the pods of now.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_pods_are_followed_while_the_object_is_wrong() {
    let (api, servers) = (Api::new().await, servers(2));
    let port = servers[0].addr.port();
    api.apply(&api.config("edge"), &selecting("a", port)).await.unwrap();
    api.make_pod("p0", "a", servers[0].addr.ip()).await;
    let gateway = Gateway::of_cluster(&kubeconfig(), &api.namespace);
    wait_for(&gateway, &["p0"]);
    let load = Load::start([gateway.address].into_iter());
    load.wait_for_more();

    // Wrong, and of other pods.
    let mut wrong = selecting("b", port);
    wrong["spec"]["schedulers"][0]["metrics"] =
        json!({ "staleAfter": "500ms", "idleInterval": "1s" });
    api.apply(&api.config("edge"), &wrong).await.unwrap();
    gateway.wait_metric("sluice_config_reloads_total{result=\"failed\"}", 1.0);
    api.make_pod("p1", "a", servers[1].addr.ip()).await;
    wait_for(&gateway, &["p0", "p1"]);
    api.delete(&api.pod("p0")).await;
    wait_for(&gateway, &["p1"]);
    load.wait_for_more();
    load.wait_for_more();
    let before = asked(&servers[0]);
    load.wait_for_more();
    load.wait_for_more();
    assert_eq!(asked(&servers[0]), before, "a pod that has left gets no request");
    assert!(asked(&servers[1]) > 0, "a pod that has come gets some");
    let status = wait_status(&api, "the pods that are served", |status| {
        is(status, "Accepted", "False", "Invalid") && status["pods"] == "1/1"
    });
    assert!(is(&status.await, "Programmed", "False", "Invalid"));
    // Pods are no news of the object.
    assert_eq!(gateway.metric("sluice_config_reloads_total{result=\"failed\"}"), Some(1.0));

    api.apply(&api.config("edge"), &selecting("a", port)).await.unwrap();
    gateway.wait_metric("sluice_config_reloads_total{result=\"done\"}", 1.0);
    wait_for(&gateway, &["p1"]);
    load.wait_for_more();
    load.stop();
    let status = gateway.wait_idle();
    assert!(pods(&status).all(|pod| pod["failures"] == 0), "{status:#}");
}

/// The same where the object is valid, and a file that it names cannot be used.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_pods_are_followed_while_the_object_is_refused() {
    let (api, servers) = (Api::new().await, servers(2));
    let port = servers[0].addr.port();
    api.apply(&api.config("edge"), &selecting("a", port)).await.unwrap();
    api.make_pod("p0", "a", servers[0].addr.ip()).await;
    api.make_pod("other", "b", servers[1].addr.ip()).await;
    let gateway = Gateway::of_cluster(&kubeconfig(), &api.namespace);
    wait_for(&gateway, &["p0"]);
    let mut refused = selecting("b", port);
    refused["spec"]["auth"] = json!({ "apiKeys": { "file": "/nowhere/keys.yaml" } });
    api.apply(&api.config("edge"), &refused).await.unwrap();
    wait_status(&api, "a refusal", |status| is(status, "Programmed", "False", "Refused")).await;
    api.make_pod("p1", "a", servers[1].addr.ip()).await;
    wait_for(&gateway, &["p0", "p1"]);
    api.delete(&api.pod("p0")).await;
    wait_for(&gateway, &["p1"]);
    wait_status(&api, "the pods that are served", |status| status["pods"] == "1/1").await;
    ask(&gateway);
}

/// Nothing was served before, and nothing is: the object says why.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_first_object_that_is_wrong_is_told_so() {
    let (api, servers) = (Api::new().await, servers(1));
    let port = servers[0].addr.port();
    let mut wrong = selecting("a", port);
    wrong["spec"]["schedulers"][0]["metrics"] =
        json!({ "staleAfter": "500ms", "idleInterval": "1s" });
    api.apply(&api.config("edge"), &wrong).await.unwrap();
    api.make_pod("p", "a", servers[0].addr.ip()).await;
    let namespace = api.namespace.clone();
    let gateway = std::thread::spawn(move || Gateway::of_cluster(&kubeconfig(), &namespace));
    let status =
        wait_status(&api, "an error", |status| is(status, "Accepted", "False", "Invalid")).await;
    let programmed = condition(&status, "Programmed");
    assert_eq!(programmed["message"], "not valid, and nothing was served before");
    api.apply(&api.config("edge"), &selecting("a", port)).await.unwrap();
    let gateway = gateway.join().unwrap();
    wait_for(&gateway, &["p"]);
    wait_status(&api, "what is right", |status| is(status, "Programmed", "True", "Programmed"))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_pool_of_the_inference_extension_names_the_pods() {
    let (api, servers) = (Api::new().await, servers(2));
    let port = servers[0].addr.port();
    api.apply(&api.config("edge"), &object(json!({}))).await.unwrap();
    let pool = json!({
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
        "metadata": { "name": "pool" },
        "spec": {
            "selector": { "matchLabels": { "app": "a" } },
            "targetPorts": [{ "number": port }],
            "endpointPickerRef": { "name": "none", "port": { "number": 9002 } },
        },
    });
    let path = format!(
        "/apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools/pool",
        api.namespace
    );
    api.make_pod("p0", "a", servers[0].addr.ip()).await;
    let gateway = Gateway::of_cluster(&kubeconfig(), &api.namespace);
    wait_for(&gateway, &[]);
    api.apply(&path, &pool).await.unwrap();
    wait_for(&gateway, &["p0"]);
    ask(&gateway);
    assert_eq!(asked(&servers[0]), 1);
    api.delete(&path).await;
    wait_for(&gateway, &[]);
}
