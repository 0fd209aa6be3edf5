//! What stays when somebody takes something away: rights, or the object.

use std::fs;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_tests::client::{chat, post_with};
use sluice_tests::engine::{Options, Server};
use sluice_tests::gateway::{Gateway, PATIENCE, pods};
use sluice_tests::load::Load;
use tokio::time::sleep;

use crate::api::Api;
use crate::pods::{kubeconfig, selecting, servers, wait_for};
use crate::rights::kubeconfig_of;
use crate::status::{is, wait_status};

/// An `InferencePool` with pods of an app, and its path.
fn pool(api: &Api, name: &str, app: &str, port: u16) -> (String, Value) {
    let group = "inference.networking.k8s.io/v1";
    let pool = json!({
        "apiVersion": group, "kind": "InferencePool", "metadata": { "name": name },
        "spec": {
            "selector": { "matchLabels": { "app": app } }, "targetPorts": [{ "number": port }],
            "endpointPickerRef": { "name": "none", "port": { "number": 9002 } },
        },
    });
    (format!("/apis/{group}/namespaces/{}/inferencepools/{name}", api.namespace), pool)
}

/// The object goes, and with it not what it had closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn without_its_object_a_pool_is_no_more_open_than_before() {
    let api = Api::new().await;
    let models = ["base", "other"].map(str::to_owned).to_vec();
    let listen = (Ipv4Addr::LOCALHOST, 0).into();
    let server = Server::start(Options { models, listen, ..Options::default() }).unwrap();
    let port = server.addr.port();
    let keys = std::env::temp_dir().join(format!("sluice-kept-{}.yaml", api.namespace));
    fs::write(&keys, format!("- {{name: alice, sha256: {SK_A}}}\n")).unwrap();
    let mut edge = selecting("a", port);
    edge["spec"]["auth"] = json!({ "apiKeys": { "file": keys } });
    api.apply(&api.config("edge"), &edge).await.unwrap();
    let (path, other) = pool(&api, "other", "a", port);
    api.apply(&path, &other).await.unwrap();
    api.make_pod("p", "a", server.addr.ip()).await;
    let gateway = Gateway::of_cluster(&kubeconfig(), &api.namespace);
    wait_for(&gateway, &["p", "p"]);
    let ask = |model: &str, lines: &str| {
        post_with(gateway.address, "/v1/chat/completions", lines, &chat(model, 1, false)).status
    };
    let with_key = "authorization: Bearer sk-a\r\n";
    let asked = |model: &str| (ask(model, ""), ask(model, with_key));
    assert_eq!((asked("base"), asked("other")), ((401, 200), (401, 200)));

    api.delete(&api.config("edge")).await;
    wait_for(&gateway, &["p"]);
    assert_eq!((asked("base"), asked("other")), ((401, 404), (401, 200)));
    // Neither does the next one open it that is wrong,
    let mut wrong = selecting("a", port);
    wrong["spec"]["schedulers"][0]["metrics"] =
        json!({ "staleAfter": "500ms", "idleInterval": "1s" });
    api.apply(&api.config("edge"), &wrong).await.unwrap();
    wait_status(&api, "an error", |status| is(status, "Accepted", "False", "Invalid")).await;
    assert_eq!((asked("base"), asked("other")), ((401, 404), (401, 200)));
    // nor pools that come and go.
    api.delete(&api.config("edge")).await;
    api.delete(&path).await;
    wait_for(&gateway, &[]);
    api.apply(&path, &other).await.unwrap();
    wait_for(&gateway, &["p"]);
    assert_eq!(asked("other"), (401, 200));
    // One that says so does.
    edge["spec"]["auth"] = json!({ "mode": "off" });
    api.apply(&api.config("edge"), &edge).await.unwrap();
    wait_for(&gateway, &["p", "p"]);
    assert_eq!((asked("base"), asked("other")), ((200, 200), (200, 200)));
    fs::remove_file(keys).unwrap();
}

/// The rights go, and with them no pod.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn without_its_rights_a_gateway_keeps_the_pods_it_knows() {
    let (api, servers) = (Api::new().await, servers(3));
    let port = servers[0].addr.port();
    let (core, rbac) = ("/api/v1", "/apis/rbac.authorization.k8s.io/v1");
    let at = |group: &str, plural: &str| {
        format!("{group}/namespaces/{}/{plural}/gateway", api.namespace)
    };
    let account =
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "gateway" } });
    let all = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "gateway" },
        "rules": [{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": "gateway" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "gateway" },
        "subjects": [{ "kind": "ServiceAccount", "name": "gateway", "namespace": api.namespace }],
    });
    api.apply(&at(core, "serviceaccounts"), &account).await.unwrap();
    api.apply(&at(rbac, "roles"), &all).await.unwrap();
    let bound = at(rbac, "rolebindings");
    api.apply(&bound, &binding).await.unwrap();
    let own = kubeconfig_of(&api, "gateway").await;

    api.apply(&api.config("edge"), &selecting("a", port)).await.unwrap();
    api.make_pod("p", "a", servers[0].addr.ip()).await;
    api.make_pod("q", "b", servers[1].addr.ip()).await;
    may(&api, true).await;
    let gateway = Gateway::of_cluster(&own, &api.namespace);
    wait_for(&gateway, &["p"]);
    let load = Load::start([gateway.address].into_iter());
    load.wait_for_more();

    api.delete(&bound).await;
    may(&api, false).await;
    // Other pods are to be found, so that all are listed.
    let (path, other) = pool(&api, "other", "b", port);
    api.apply(&path, &other).await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !gateway.log().contains("what is known so far stays in force") {
        assert!(Instant::now() < deadline, "{}", gateway.log());
        sleep(Duration::from_millis(50)).await;
    }
    assert!(gateway.log().contains("forbidden"), "{}", gateway.log());
    load.wait_for_more();
    let names = |status: &Value| -> Vec<String> {
        pods(status).map(|pod| pod["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&gateway.status()), ["p"]);
    // Those that it is still told of come and go meanwhile.
    api.make_pod("p2", "a", servers[2].addr.ip()).await;
    wait_for(&gateway, &["p", "p2"]);

    api.apply(&bound, &binding).await.unwrap();
    wait_for(&gateway, &["p", "p2", "q"]);
    load.wait_for_more();
    load.stop();
    let status = gateway.wait_idle();
    assert!(pods(&status).all(|pod| pod["failures"] == 0), "{status:#}");
}

/// Waits until the account may list pods, or may not.
async fn may(api: &Api, expected: bool) {
    let asked = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": format!("system:serviceaccount:{}:gateway", api.namespace),
            "resourceAttributes": { "namespace": api.namespace, "verb": "list", "resource": "pods" },
        },
    });
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let deadline = Instant::now() + PATIENCE;
    while api.create(path, &asked).await.unwrap()["status"]["allowed"] != expected {
        assert!(Instant::now() < deadline, "it may not be {expected}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// The SHA-256 of `sk-a`.
const SK_A: &str = "a4a6d307ad00fa67176e1099fdbc4f4a09bb527a7f24718a5030f2f173d11f7f";
