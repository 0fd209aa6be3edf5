//! What the object's status says, and who writes it.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_tests::gateway::{Gateway, PATIENCE, binary};
use tokio::time::sleep;

use crate::api::Api;
use crate::pods::{kubeconfig, selecting, servers, wait_for};
use crate::proxy::Proxy;
use crate::rights::kubeconfig_of;

/// Waits until the object's status is as it should be.
pub(crate) async fn wait_status(api: &Api, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let object = api.get(&api.config("edge")).await.unwrap();
        if is(&object["status"]) {
            return object["status"].clone();
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}: {:#}", object["status"]);
        sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) fn condition<'a>(status: &'a Value, kind: &str) -> &'a Value {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut conditions = conditions.filter(|condition| condition["type"] == kind);
    conditions.next().unwrap_or(&Value::Null)
}

pub(crate) fn is(status: &Value, kind: &str, value: &str, reason: &str) -> bool {
    let condition = condition(status, kind);
    condition["status"] == value && condition["reason"] == reason
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn it_tells_the_truth() {
    let (api, servers) = (Api::new().await, servers(1));
    let port = servers[0].addr.port();
    api.apply(&api.config("edge"), &selecting("a", port)).await.unwrap();
    let gateway = Gateway::of_cluster(&kubeconfig(), &api.namespace);

    let none = wait_status(&api, "no pods", |status| is(status, "Ready", "False", "NoPods")).await;
    assert!(
        is(&none, "Accepted", "True", "Accepted") && is(&none, "NoPods", "True", "NoPods"),
        "{none:#}"
    );
    assert!(is(&none, "Programmed", "True", "Programmed"), "{none:#}");
    assert_eq!(
        condition(&none, "Ready")["message"],
        "pool: no pod of this namespace has the labels app=a"
    );
    assert_eq!(
        (&none["pools"], &none["pods"], &none["observedGeneration"]),
        (&json!(1), &json!("0/0"), &json!(1))
    );

    api.make_pod("p", "a", servers[0].addr.ip()).await;
    let ready = wait_status(&api, "a pod", |status| is(status, "Ready", "True", "Ready")).await;
    assert_eq!(ready["pods"], "1/1");
    assert_eq!(ready["schedulers"], json!([{ "name": "pool", "matched": 1, "ready": 1 }]));
    let since = |status: &Value, kind: &str| condition(status, kind)["lastTransitionTime"].clone();
    assert_eq!(since(&ready, "Accepted"), since(&none, "Accepted"), "it has not changed");

    api.set_ready("p", false).await;
    wait_status(&api, "a pod that is not ready", |status| is(status, "Ready", "False", "NotReady"))
        .await;
    api.set_ready("p", true).await;

    // Wrong in a way that no rule of the API server tells.
    let mut wrong = selecting("a", port);
    wrong["spec"]["schedulers"][0]["metrics"] =
        json!({ "staleAfter": "500ms", "idleInterval": "1s" });
    api.apply(&api.config("edge"), &wrong).await.unwrap();
    let status =
        wait_status(&api, "an error", |status| is(status, "Accepted", "False", "Invalid")).await;
    assert!(is(&status, "Programmed", "False", "Invalid"), "{status:#}");
    let message = condition(&status, "Accepted")["message"].as_str().unwrap();
    assert!(
        message.starts_with("spec.schedulers[0].metrics.staleAfter: 500ms is not above"),
        "{message}"
    );
    assert_eq!(status["observedGeneration"], 2);

    // What waits for a takeover, and what has no effect.
    let mut other = selecting("a", port);
    other["spec"]["listeners"][0]["name"] = "other".into();
    other["spec"]["podDefaults"] = json!({ "labels": { "team": "ml" } });
    api.apply(&api.config("edge"), &other).await.unwrap();
    let status = wait_status(&api, "what waits", |status| {
        is(status, "Programmed", "False", "NeedsTakeover")
    })
    .await;
    let message = condition(&status, "Programmed")["message"].as_str().unwrap();
    assert!(
        message.starts_with("spec.listeners cannot change while the gateway runs"),
        "{message}"
    );
    assert!(is(&status, "FieldIgnored", "True", "FieldIgnored"), "{status:#}");
    drop(gateway);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn one_of_several_writes_it() {
    let (api, servers) = (Api::new().await, servers(1));
    api.apply(&api.config("edge"), &selecting("a", servers[0].addr.port())).await.unwrap();
    let mut gateways: Vec<_> =
        (0..3).map(|_| Gateway::of_cluster(&kubeconfig(), &api.namespace)).collect();
    wait_status(&api, "a status", |status| is(status, "Accepted", "True", "Accepted")).await;
    let lease =
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/sluice-edge", api.namespace);
    let before = api.get(&lease).await.unwrap()["spec"].clone();

    // Without it, another one does.
    let writes = |gateway: &Gateway| gateway.log().contains("this gateway writes the status");
    let writers = || gateways.iter().filter(|gateway| writes(gateway)).count();
    let deadline = Instant::now() + PATIENCE;
    while writers() == 0 {
        assert!(Instant::now() < deadline, "none says that it writes");
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(writers(), 1);
    let writer = gateways.iter().position(writes).unwrap();
    drop(gateways.remove(writer));
    api.make_pod("p", "a", servers[0].addr.ip()).await;
    for gateway in &gateways {
        wait_for(gateway, &["p"]);
    }
    let status = wait_status(&api, "the next writer", |status| status["pods"] == "1/1").await;
    let after = api.get(&lease).await.unwrap()["spec"].clone();
    assert_ne!(after["holderIdentity"], before["holderIdentity"]);
    assert_eq!(after["holderIdentity"], status["writer"]);
    assert_eq!(after["leaseTransitions"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn who_ends_gives_the_lease_back() {
    let (api, servers) = (Api::new().await, servers(1));
    api.apply(&api.config("edge"), &selecting("a", servers[0].addr.port())).await.unwrap();
    let mut first = Gateway::of_cluster(&kubeconfig(), &api.namespace);
    let one = wait_status(&api, "a writer", |status| status["writer"].is_string()).await;
    let second = Gateway::of_cluster(&kubeconfig(), &api.namespace);
    let lease =
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/sluice-edge", api.namespace);
    assert_eq!(api.get(&lease).await.unwrap()["spec"]["holderIdentity"], one["writer"]);
    first.signal("TERM");
    first.wait_exit(PATIENCE);
    // Nobody has to wait for its end.
    let spec = api.get(&lease).await.unwrap()["spec"].clone();
    assert_ne!(spec["holderIdentity"], one["writer"]);
    let two = wait_status(&api, "the next writer", |status| {
        status["writer"].is_string() && status["writer"] != one["writer"]
    });
    let two = two.await;
    assert_eq!(api.get(&lease).await.unwrap()["spec"]["holderIdentity"], two["writer"]);
    // What holds has held all the time.
    assert_eq!(one["conditions"], two["conditions"]);
    drop(second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn people_read_it_without_a_gateway() {
    let (api, servers) = (Api::new().await, servers(1));
    let ask = |file: &Path, more: &[&str]| {
        let mut command = Command::new(binary("sluice"));
        command.args(["status", "--kubernetes", "--namespace", &api.namespace]).args(more);
        command.env("KUBECONFIG", file).output().unwrap()
    };
    let print = || {
        let output = ask(&kubeconfig(), &[]);
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(print().contains("has no such InferenceGatewayConfig, and no InferencePool"));
    api.apply(&api.config("edge"), &selecting("a", servers[0].addr.port())).await.unwrap();
    api.make_pod("p", "a", servers[0].addr.ip()).await;
    let page = print();
    assert!(page.contains("generation 1: no gateway has said anything of it"), "{page}");
    assert!(page.contains("pool pool (base): 1 of 1 pods ready"), "{page}");
    assert!(page.contains(&servers[0].addr.to_string()), "{page}");
    let _gateway = Gateway::of_cluster(&kubeconfig(), &api.namespace);
    let status = wait_status(&api, "a status", |status| status["pods"] == "1/1").await;
    let page = print();
    let writer = status["writer"].as_str().unwrap();
    assert!(page.contains(&format!("generation 1, as gateway {writer} sees it")), "{page}");
    assert!(page.contains("  Programmed      True\n"), "{page}");

    // What is not there, and what cannot be asked.
    let output = ask(&kubeconfig(), &["--name", "other"]);
    assert!(!output.status.success(), "{output:?}");
    assert!(ask(&kubeconfig(), &["--name", "edge"]).status.success());
    let proxy = Proxy::start("nobody");
    proxy.down();
    let output = ask(&proxy.kubeconfig, &[]);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("does not answer all questions\n  InferenceGatewayConfigs: "),
        "{error}"
    );
    let account =
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "nobody" } });
    let path = format!("/api/v1/namespaces/{}/serviceaccounts/nobody", api.namespace);
    api.apply(&path, &account).await.unwrap();
    let output = ask(&kubeconfig_of(&api, "nobody").await, &[]);
    let page = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{output:?}");
    for kind in ["InferenceGatewayConfigs", "InferencePools", "Nodes"] {
        assert!(page.contains(&format!("  {kind} cannot be read: ")), "{page}");
    }
    assert!(!page.contains("has no such"), "{page}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_port_where_nothing_listens_is_told() {
    let (api, servers) = (Api::new().await, servers(1));
    let port = servers[0].addr.port();
    api.apply(&api.config("edge"), &selecting("a", port)).await.unwrap();
    // Ready by Kubernetes' word, which has looked at another port or at none.
    api.make_pod("p", "a", "127.0.0.77".parse().unwrap()).await;
    let gateway = Gateway::of_cluster(&kubeconfig(), &api.namespace);
    let said =
        wait_status(&api, "the reason", |status| is(status, "Ready", "False", "Unreachable"));
    let message = condition(&said.await, "Ready")["message"].clone();
    assert!(message.as_str().unwrap().contains("connection refused"), "{message}");
    // One that answers is enough.
    api.make_pod("q", "a", servers[0].addr.ip()).await;
    wait_status(&api, "a pod", |status| is(status, "Ready", "True", "Ready")).await;
    drop(gateway);
}
