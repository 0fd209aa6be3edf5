//! Objects of the inference extension and of llm-d that say which model is served, and to whom first; and ConfigMaps that
//! name adapters.

use std::time::Duration;

use serde_json::{Value, json};
use sluice_tests::client::{Client, Response, chat, get, post};
use sluice_tests::engine::{Options, Server};
use sluice_tests::gateway::Gateway;
use sluice_tests::load::Load;
use tokio::time::sleep;

use crate::api::Api;
use crate::pods::{kubeconfig, object, wait_for};
use crate::status::{condition, wait_status};

const CHAT: &str = "/v1/chat/completions";
/// Both groups, the one in which the resources were first and the one to which they went.
const GROUPS: [&str; 2] = ["inference.networking.x-k8s.io", "llm-d.ai"];

/// A pool of one pod that knows several models and adapters, and a gateway before it.
struct Rig {
    api: Api,
    gateway: Gateway,
    server: Server,
}

impl Rig {
    async fn start(more: Value) -> Self {
        let options = Options {
            models: ["base", "one", "two", "three"].map(Into::into).into(),
            speed: 20.0,
            ..Options::default()
        };
        let (api, server) = (Api::new().await, Server::start(options).unwrap());
        let mut scheduler = json!({
            "modelSelector": { "matchLabels": { "app": "a" } }, "targetPort": server.addr.port(),
        });
        scheduler.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        api.apply(&api.config("edge"), &object(scheduler)).await.unwrap();
        api.make_pod("p", "a", server.addr.ip()).await;
        let gateway = Gateway::of_cluster(&kubeconfig(), &api.namespace);
        wait_for(&gateway, &["p"]);
        Self { api, gateway, server }
    }

    fn path(&self, group: &str, plural: &str, name: &str) -> String {
        format!("/apis/{group}/v1alpha2/namespaces/{}/{plural}/{name}", self.api.namespace)
    }

    /// Has `model`, or every one, be served by these, each with its weight.
    async fn rewrite(&self, group: &str, name: &str, model: Option<&str>, targets: &[(&str, u32)]) {
        let targets: Vec<_> = targets
            .iter()
            .map(|(target, weight)| json!({ "modelRewrite": target, "weight": weight }))
            .collect();
        let mut rule = json!({ "targets": targets });
        if let Some(model) = model {
            rule["matches"] = json!([{ "model": { "value": model } }]);
        }
        let object = json!({
            "apiVersion": format!("{group}/v1alpha2"), "kind": "InferenceModelRewrite",
            "metadata": { "name": name },
            "spec": { "poolRef": { "name": "pool" }, "rules": [rule] },
        });
        self.api.apply(&self.path(group, "inferencemodelrewrites", name), &object).await.unwrap();
    }

    async fn forget(&self, group: &str, name: &str) {
        self.api.delete(&self.path(group, "inferencemodelrewrites", name)).await;
    }

    fn ask(&self, model: &str) -> Response {
        post(self.gateway.address, CHAT, &chat(model, 1, false))
    }

    /// Waits until requests for `model` are served by `target`; none is a name that nothing serves.
    fn wait_served(&self, model: &str, target: Option<&str>) {
        self.gateway.wait(&format!("{model} to be served by {target:?}"), |_| {
            // By a rule for this name, or for all.
            let asked = |target: &str| self.count(model, target) + self.count("*", target);
            let before = target.map(asked);
            let response = self.ask(model);
            match target {
                None => response.status == 404,
                Some(target) => {
                    response.status == 200
                        && response.json()["model"] == model
                        && (target == model || Some(asked(target)) > before)
                }
            }
        });
    }

    /// Requests for `model` for which `target` was chosen, by whatever rewrite.
    fn count(&self, model: &str, target: &str) -> u64 {
        let page = self.gateway.get("/metrics").unwrap();
        let of = format!("model=\"{model}\",target=\"{target}\"}} ");
        let samples = page.lines().filter(|line| line.starts_with("sluice_model_rewrites_total"));
        samples
            .filter_map(|line| line.split_once(&of)?.1.split('.').next()?.parse::<u64>().ok())
            .sum()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_rewrite_is_applied_changed_and_deleted_under_load() {
    let rig = Rig::start(json!({})).await;
    let load = Load::start([rig.gateway.address].into_iter());
    load.wait_for_more();
    for group in GROUPS {
        rig.wait_served("canary", None);
        rig.rewrite(group, "canary", Some("canary"), &[("one", 1)]).await;
        rig.wait_served("canary", Some("one"));
        rig.rewrite(group, "canary", Some("canary"), &[("two", 1)]).await;
        rig.wait_served("canary", Some("two"));
        let names = get(rig.gateway.address, "/v1/models").json();
        assert!(names.to_string().contains("\"canary\""), "{names}");
        rig.forget(group, "canary").await;
        rig.wait_served("canary", None);
        // What the load asks for is served by others, and no request is lost.
        rig.rewrite(group, "split", Some("base"), &[("base", 1), ("three", 1)]).await;
        rig.gateway.wait("the load to be split", |_| rig.count("base", "three") > 5);
        load.wait_for_more();
        rig.forget(group, "split").await;
        rig.gateway.wait("the series to be gone", |_| rig.count("base", "three") == 0);
        load.wait_for_more();
    }
    load.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn exact_comes_before_all_and_older_before_newer() {
    let rig = Rig::start(json!({})).await;
    let [legacy, current] = GROUPS;
    // Their names are in the other order.
    rig.rewrite(legacy, "z-all", None, &[("one", 1)]).await;
    rig.wait_served("x", Some("one"));
    // An object's age is told in whole seconds.
    sleep(Duration::from_millis(1100)).await;
    rig.rewrite(current, "m-exact", Some("x"), &[("two", 1)]).await;
    rig.wait_served("x", Some("two"));
    sleep(Duration::from_millis(1100)).await;
    rig.rewrite(legacy, "a-exact", Some("x"), &[("three", 1)]).await;
    rig.rewrite(legacy, "a-other", Some("y"), &[("three", 1)]).await;
    rig.wait_served("y", Some("three"));
    let before = rig.count("x", "two");
    for _ in 0..20 {
        assert_eq!(rig.ask("x").status, 200);
    }
    assert_eq!(rig.count("x", "two"), before + 20, "the older one counts");
    rig.forget(current, "m-exact").await;
    rig.wait_served("x", Some("three"));
    rig.forget(legacy, "a-exact").await;
    rig.gateway.wait("the rule for all to count again", |_| {
        let before = rig.count("*", "one");
        rig.ask("x").status == 200 && rig.count("*", "one") > before
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_object_that_is_wrong_is_left_out_and_named() {
    let rig = Rig::start(json!({})).await;
    let [legacy, current] = GROUPS;
    let wrong = json!({
        "apiVersion": "llm-d.ai/v1alpha2", "kind": "InferenceModelRewrite",
        "metadata": { "name": "lost" },
        "spec": { "poolRef": { "name": "elsewhere" }, "rules": [] },
    });
    let path = rig.path(current, "inferencemodelrewrites", "lost");
    rig.api.apply(&path, &wrong).await.unwrap();
    rig.rewrite(legacy, "right", Some("canary"), &[("one", 1)]).await;
    rig.wait_served("canary", Some("one"));
    let said = "InferenceModelRewrite lost is left out: there is no pool elsewhere";
    let names = |status: &Value| {
        let ignored = condition(status, "FieldIgnored");
        ignored["status"] == "True" && ignored["message"] == said
    };
    let status = wait_status(&rig.api, "the object to be named", names).await;
    assert_eq!(condition(&status, "Programmed")["status"], "True", "{status:#}");
    rig.api.delete(&path).await;
    let is_well = |status: &Value| condition(status, "FieldIgnored")["status"] == "False";
    wait_status(&rig.api, "nothing to be left out", is_well).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn adapters_of_config_maps_lead_to_their_base_model() {
    let rig = Rig::start(json!({})).await;
    let path = |name: &str| format!("/api/v1/namespaces/{}/configmaps/{name}", rig.api.namespace);
    let map = |name: &str, labels: Value, adapters: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "labels": labels },
            "data": { "baseModel": "base", "adapters": adapters },
        })
    };
    let managed = json!({ "inference.networking.k8s.io/bbr-managed": "true" });
    let listed = || {
        let list = get(rig.gateway.address, "/v1/models").json();
        let ids = list["data"].as_array().unwrap().iter().map(|card| card["id"].clone());
        ids.map(|id| id.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    rig.api.apply(&path("b"), &map("b", json!({}), "- not-managed\n")).await.unwrap();
    rig.api.apply(&path("a"), &map("a", managed.clone(), "- sql\n- poem\n")).await.unwrap();
    rig.gateway.wait("the adapters", |_| listed() == ["base", "poem", "sql"]);
    // It is the pod that does not know it.
    let before = rig.server.stats().requests_to(CHAT);
    assert_eq!(rig.ask("sql").status, 404);
    assert_eq!(rig.server.stats().requests_to(CHAT), before + 1);
    assert_eq!(rig.ask("not-managed").status, 404);
    assert_eq!(rig.server.stats().requests_to(CHAT), before + 1);
    rig.api.apply(&path("a"), &map("a", managed, "- sql\n")).await.unwrap();
    rig.gateway.wait("one adapter", |_| listed() == ["base", "sql"]);
    rig.api.delete(&path("a")).await;
    rig.gateway.wait("no adapter", |_| listed() == ["base"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn objectives_say_who_waits() {
    let rig = Rig::start(json!({ "saturation": { "inFlight": 1, "wait": "1m" } })).await;
    let address = rig.gateway.address;
    let headers = ["x-gateway-inference-objective", "x-llm-d-inference-objective"];
    for (group, header) in GROUPS.into_iter().zip(headers) {
        let path = rig.path(group, "inferenceobjectives", "low");
        let objective = |priority: i32| {
            json!({
                "apiVersion": format!("{group}/v1alpha2"), "kind": "InferenceObjective",
                "metadata": { "name": "low" },
                "spec": { "poolRef": { "name": "pool" }, "priority": priority },
            })
        };
        let mut running = Client::connect(address);
        running.post(CHAT, &chat("base", 100_000, true));
        rig.gateway
            .wait("a request that runs", |status| status["pools"][0]["pods"][0]["in_flight"] == 1);
        // Whether one that names it is sent away, or else waits.
        let is_shed = || {
            let mut client = Client::connect(address);
            client.post_with(CHAT, &format!("{header}: low\r\n"), &chat("base", 1, false));
            !client.is_silent(Duration::from_millis(200)) && client.response().status == 429
        };
        assert!(!is_shed(), "an objective that is not there is none");
        rig.api.apply(&path, &objective(-1)).await.unwrap();
        rig.gateway.wait("the objective", |_| is_shed());
        rig.api.apply(&path, &objective(1)).await.unwrap();
        rig.gateway.wait("another priority", |_| !is_shed());
        rig.api.apply(&path, &objective(-1)).await.unwrap();
        rig.gateway.wait("the first one again", |_| is_shed());
        rig.api.delete(&path).await;
        rig.gateway.wait("no objective", |_| !is_shed());
        drop(running);
        rig.gateway.wait_idle();
    }
}
