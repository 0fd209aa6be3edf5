//! The rights that the chart grants are enough, and each of them is used.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_tests::gateway::{Gateway, PATIENCE};
use tokio::time::sleep;

use crate::api::{Api, repository, yaml};
use crate::chart::{path, render};
use crate::pods::{kubeconfig, selecting, servers, wait_for};
use crate::status::wait_status;

/// One thing that may be done: a verb, a group and a resource of it.
type Right = (String, String, String);

/// All that the rules of some roles allow.
fn granted(roles: &[Value]) -> BTreeSet<Right> {
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let mut granted = BTreeSet::new();
    for rule in roles.iter().flat_map(|role| role["rules"].as_array().unwrap()) {
        for verb in texts(&rule["verbs"]) {
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    granted.insert((verb.clone(), group.clone(), resource));
                }
            }
        }
    }
    granted
}

/// The requests that a user has made so far, by the API server's own log, and those of them that were denied.
fn asked(user: &str) -> (BTreeSet<Right>, Vec<Value>) {
    let folder = PathBuf::from(std::env::var_os("SLUICE_TEST_CLUSTER").unwrap());
    let (mut asked, mut denied) = (BTreeSet::new(), Vec::new());
    // A long one is put aside, and another begun.
    let logs = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    for log in logs.filter(|file| {
        let name = file.file_name().unwrap().to_str().unwrap();
        name.starts_with("audit") && name.ends_with(".log")
    }) {
        let log = fs::read_to_string(log).unwrap();
        // The last line may be on its way.
        let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
        for line in whole.lines().filter(|line| line.contains(user)) {
            let line: Value = serde_json::from_str(line).unwrap();
            if line["user"]["username"] != user {
                continue;
            }
            if line["annotations"]["authorization.k8s.io/decision"] != "allow" {
                denied.push(line.clone());
            }
            let object = &line["objectRef"];
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let mut resource = text(&object["resource"]);
            if let Some(part) = object["subresource"].as_str() {
                resource = format!("{resource}/{part}");
            }
            asked.insert((text(&line["verb"]), text(&object["apiGroup"]), resource));
        }
    }
    (asked, denied)
}

/// A definition of a resource that only older installations have; its fields are not looked at.
fn definition(group: &str, kind: &str) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{group}"),
            "annotations": { "api-approved.kubernetes.io": "unapproved, for tests" },
        },
        "spec": {
            "group": group, "scope": "Namespaced", "names": { "kind": kind, "plural": plural },
            "versions": [{ "name": "v1alpha2", "served": true, "storage": true, "schema": {
                "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
            } }],
        },
    })
}

/// A KUBECONFIG of this account.
pub(crate) async fn kubeconfig_of(api: &Api, account: &str) -> PathBuf {
    let token =
        json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
    let account = format!("/api/v1/namespaces/{}/serviceaccounts/{account}", api.namespace);
    let token = api.create(&format!("{account}/token"), &token).await.unwrap();
    let token = token["status"]["token"].as_str().unwrap();
    let text = fs::read_to_string(kubeconfig()).unwrap();
    let (before, rest) = text.split_once("token: ").unwrap();
    let (_, after) = rest.split_once('}').unwrap();
    let own = kubeconfig().with_file_name(format!("kubeconfig-{}", api.namespace));
    fs::write(&own, format!("{before}token: {token}}}{after}")).unwrap();
    own
}

/// Roles of the chart, and the name of the account that has them, all applied.
async fn grant(api: &Api) -> (Vec<Value>, String) {
    let mut roles = Vec::new();
    let mut account = String::new();
    // By name, which is where the rights are narrowest.
    let named = ["config.name=edge"];
    for object in render("sluice", &api.namespace, "default.yaml", &named).unwrap() {
        let kind = object["kind"].as_str().unwrap();
        if !kind.contains("Role") && kind != "ServiceAccount" {
            continue;
        }
        api.apply(&path(&object, &api.namespace), &object).await.unwrap();
        match kind {
            "Role" | "ClusterRole" => roles.push(object),
            "ServiceAccount" => account = object["metadata"]["name"].as_str().unwrap().to_owned(),
            _ => {}
        }
    }
    (roles, account)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_charts_are_enough_and_all_are_used() {
    let (api, servers) = (Api::new().await, servers(1));
    let older = definition("inference.networking.x-k8s.io", "InferencePool");
    api.define(&older).await;
    let (roles, account) = grant(&api).await;
    let granted = granted(&roles);
    let own = kubeconfig_of(&api, &account).await;

    // All that a gateway may have to do with: an object, a pool of each version, a pod.
    let port = servers[0].addr.port();
    let mut edge = selecting("a", port);
    let by_pool =
        json!({ "name": "other", "modelName": "other", "configMapRef": { "name": "picker" } });
    edge["spec"]["schedulers"].as_array_mut().unwrap().push(by_pool);
    api.apply(&api.config("edge"), &edge).await.unwrap();
    let picker = fs::read_to_string(repository().join("tests/golden/config/picker/default.yaml"));
    let picker = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "picker" },
        "data": { "default-plugins.yaml": picker.unwrap() },
    });
    api.apply(&path(&picker, &api.namespace), &picker).await.unwrap();
    let pool = |group: &str, version: &str, spec: Value| {
        json!({
            "apiVersion": format!("{group}/{version}"), "kind": "InferencePool",
            "metadata": { "name": "other" }, "spec": spec,
        })
    };
    let picker = json!({ "name": "none", "port": { "number": 9002 } });
    let pools = [
        pool(
            "inference.networking.k8s.io",
            "v1",
            json!({ "selector": { "matchLabels": { "app": "b" } },
                    "targetPorts": [{ "number": port }], "endpointPickerRef": picker }),
        ),
        pool(
            "inference.networking.x-k8s.io",
            "v1alpha2",
            json!({ "selector": { "app": "c" }, "targetPortNumber": port,
                    "extensionRef": { "name": "none" } }),
        ),
    ];
    for pool in &pools {
        api.apply(&path(pool, &api.namespace), pool).await.unwrap();
    }
    api.make_pod("p", "a", servers[0].addr.ip()).await;
    let gateway = Gateway::of_cluster(&own, &api.namespace);
    wait_for(&gateway, &["p"]);
    wait_status(&api, "a status", |status| status["pods"] == "1/1").await;
    // What happens again is told by the same event.
    for _ in 0..2 {
        for (ready, pods) in [(false, "0/1"), (true, "1/1")] {
            api.set_ready("p", ready).await;
            wait_status(&api, "another status", |status| status["pods"] == pods).await;
        }
    }

    let lease =
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/sluice-edge", api.namespace);
    let first = api.get(&lease).await.unwrap()["spec"]["renewTime"].clone();
    let user = format!("system:serviceaccount:{}:{account}", api.namespace);
    let deadline = Instant::now() + PATIENCE;
    let unused = loop {
        let (asked, denied) = asked(&user);
        assert!(denied.is_empty(), "denied: {denied:#?}");
        let not_granted: Vec<_> = asked.difference(&granted).collect();
        assert!(not_granted.is_empty(), "allowed by other roles: {not_granted:?}");
        let unused: Vec<Right> = granted.difference(&asked).cloned().collect();
        // The last thing that it does, after some seconds.
        let is_renewed = api.get(&lease).await.unwrap()["spec"]["renewTime"] != first;
        if is_renewed && unused.is_empty() || Instant::now() > deadline {
            assert!(is_renewed, "the lease is not renewed");
            break unused;
        }
        sleep(Duration::from_secs(1)).await;
    };
    assert!(unused.is_empty(), "granted and not used: {unused:?}");
    let log = gateway.log();
    assert!(!log.contains("forbidden") && !log.contains("is not written"), "{log}");
}

/// What docs/kubernetes.md shows of them is what the chart has.
#[test]
fn the_documented_ones_are_the_charts() {
    let page = fs::read_to_string(repository().join("docs/kubernetes.md")).unwrap();
    let (_, rest) = page.split_once("\n## Rights\n").unwrap();
    let block = rest.split("```").nth(1).unwrap().strip_prefix("yaml\n").unwrap();
    let documented: Vec<Value> = block.split("---\n").map(yaml).collect();
    let rendered = render("sluice", "serving", "default.yaml", &[]).unwrap();
    for kind in ["Role", "ClusterRole"] {
        let of = |objects: &[Value]| -> Vec<Value> {
            objects.iter().filter(|object| object["kind"] == kind).cloned().collect()
        };
        assert_eq!(granted(&of(&documented)), granted(&of(&rendered)), "{kind}");
    }
}
