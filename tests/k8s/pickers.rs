//! A ConfigMap with a reference picker's configuration, which a scheduler names.

use serde_json::{Value, json};
use sluice_tests::gateway::{Gateway, pods};

use crate::api::Api;
use crate::pods::{kubeconfig, selecting, servers, wait_for};
use crate::status::{condition, is, wait_status};

async fn set(api: &Api, name: &str, scorer: &str) {
    let text = format!(
        "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\n\
         plugins: [{{type: {scorer}}}]\n\
         schedulingProfiles: [{{name: default, plugins: [{{pluginRef: {scorer}, weight: 2}}]}}]\n"
    );
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": name }, "data": { "default-plugins.yaml": text },
    });
    let path = format!("/api/v1/namespaces/{}/configmaps/{name}", api.namespace);
    api.apply(&path, &map).await.unwrap();
}

/// The scorers by which the first pod is compared.
fn scorers(status: &Value) -> Vec<String> {
    let pod = pods(status).next();
    let parts = pod.and_then(|pod| pod["scores"].as_array()).into_iter().flatten();
    parts.map(|part| part[0].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_configmap_says_how_pods_compare() {
    let (api, servers) = (Api::new().await, servers(2));
    let mut object = selecting("a", servers[0].addr.port());
    object["spec"]["schedulers"][0]["configMapRef"] = json!({ "name": "plugins" });
    api.apply(&api.config("edge"), &object).await.unwrap();
    api.make_pod("p0", "a", servers[0].addr.ip()).await;
    let namespace = api.namespace.clone();
    let gateway = std::thread::spawn(move || Gateway::of_cluster(&kubeconfig(), &namespace));
    let missing =
        wait_status(&api, "its lack", |status| is(status, "Accepted", "False", "Invalid"));
    let missing = missing.await;
    assert_eq!(
        condition(&missing, "Accepted")["message"],
        "spec.schedulers[0].configMapRef: this namespace has no ConfigMap `plugins`"
    );
    set(&api, "plugins", "queue-scorer").await;
    let gateway = gateway.join().unwrap();
    wait_for(&gateway, &["p0"]);
    gateway.wait("the queue alone", |status| scorers(status) == ["queue"]);
    wait_status(&api, "what is right", |status| is(status, "Programmed", "True", "Programmed"))
        .await;

    // It changes, and the object does not.
    set(&api, "plugins", "kv-cache-utilization-scorer").await;
    gateway.wait("the KV cache alone", |status| scorers(status) == ["kv-cache-utilization"]);
    // What is wrong in it leaves what was, and the pods are followed all the same.
    set(&api, "plugins", "5").await;
    let wrong = wait_status(&api, "an error", |status| is(status, "Accepted", "False", "Invalid"));
    let wrong = wrong.await;
    let message = condition(&wrong, "Accepted")["message"].as_str().unwrap();
    assert!(message.starts_with("ConfigMap plugins, default-plugins.yaml: "), "{message}");
    api.make_pod("p1", "a", servers[1].addr.ip()).await;
    let status = wait_for(&gateway, &["p0", "p1"]);
    assert_eq!(scorers(&status), ["kv-cache-utilization"]);

    // Another one, and then one for each of two.
    object["spec"]["schedulers"][0]["configMapRef"] = json!({ "name": "others" });
    set(&api, "others", "queue-scorer").await;
    api.apply(&api.config("edge"), &object).await.unwrap();
    gateway.wait("the queue again", |status| scorers(status) == ["queue"]);
    set(&api, "plugins", "kv-cache-utilization-scorer").await;
    let mut second = object["spec"]["schedulers"][0].clone();
    second["name"] = "second".into();
    second["modelName"] = "second".into();
    second["configMapRef"] = json!({ "name": "plugins" });
    object["spec"]["schedulers"].as_array_mut().unwrap().insert(0, second);
    api.apply(&api.config("edge"), &object).await.unwrap();
    gateway.wait("both", |status| {
        status["pools"].as_array().unwrap().len() == 2
            && scorers(status) == ["kv-cache-utilization"]
    });
}
