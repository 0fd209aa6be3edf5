//! The rights that the documentation names are enough.

use std::fs;

use serde_json::{Value, json};
use sluice_tests::gateway::Gateway;

use crate::api::{Api, repository, yaml};
use crate::pods::{kubeconfig, selecting, servers, wait_for};
use crate::status::wait_status;

/// Role and ClusterRole of docs/kubernetes.md.
fn documented() -> Vec<Value> {
    let page = fs::read_to_string(repository().join("docs/kubernetes.md")).unwrap();
    let (_, rest) = page.split_once("\n## Rights\n").unwrap();
    let block = rest.split("```").nth(1).unwrap().strip_prefix("yaml\n").unwrap();
    block.split("---\n").map(yaml).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_is_documented_is_enough() {
    let (api, servers) = (Api::new().await, servers(1));
    let namespace = &api.namespace;
    let account = format!("/api/v1/namespaces/{namespace}/serviceaccounts/sluice");
    let object =
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "sluice" } });
    api.apply(&account, &object).await.unwrap();
    for mut role in documented() {
        let kind = role["kind"].as_str().unwrap().to_owned();
        let name = format!("{}-{namespace}", role["metadata"]["name"].as_str().unwrap());
        role["metadata"] = json!({ "name": name });
        let within =
            if kind == "Role" { format!("namespaces/{namespace}/") } else { String::new() };
        let at = |kind: &str| {
            let plural = kind.to_ascii_lowercase();
            format!("/apis/rbac.authorization.k8s.io/v1/{within}{plural}s/{name}")
        };
        api.apply(&at(&kind), &role).await.unwrap();
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": format!("{kind}Binding"),
            "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": "sluice", "namespace": namespace }],
        });
        api.apply(&at(&format!("{kind}Binding")), &binding).await.unwrap();
    }
    let token =
        json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
    let token = api.create(&format!("{account}/token"), &token).await.unwrap();
    let token = token["status"]["token"].as_str().unwrap();
    let text = fs::read_to_string(kubeconfig()).unwrap();
    let (before, rest) = text.split_once("token: ").unwrap();
    let (_, after) = rest.split_once('}').unwrap();
    let own = kubeconfig().with_file_name("kubeconfig-rights");
    fs::write(&own, format!("{before}token: {token}}}{after}")).unwrap();

    api.apply(&api.config("edge"), &selecting("a", servers[0].addr.port())).await.unwrap();
    api.make_pod("p", "a", servers[0].addr.ip()).await;
    let gateway = Gateway::of_cluster(&own, namespace);
    wait_for(&gateway, &["p"]);
    wait_status(&api, "a status", |status| status["pods"] == "1/1").await;
    let log = gateway.log();
    assert!(!log.contains("forbidden") && !log.contains("is not written"), "{log}");
}
