//! `/v1/models`: every name that a client may use, from the gateway's own state.

use serde_json::{Value, json};
use sluice_tests::client::{Client, chat, get, post};
use sluice_tests::engine::{Options, Server};
use sluice_tests::gateway::{Gateway, Plan, pods};

// Field reports 50: one list of all pools, whatever a single pod says.
#[test]
fn field_report_50_the_list_is_every_name_once() {
    let pods = two_pools();
    let gateway = Gateway::start(&plan(&pods));
    listed(&gateway, "tone");
    let expected = json!({
        "alias/base": [null, "meta/base"],
        "cold": ["meta/base", "meta/base"],
        "meta/base": [null, "meta/base"],
        "other": [null, "other"],
        "other-alias": [null, "other"],
        "tone": ["meta/base", "meta/base"],
    });
    for path in ["/v1/models", "/v1/models/", "/v1/models?limit=5", "/v1/models/?x"] {
        let response = get(gateway.address, path);
        assert_eq!(
            (response.status, response.header("content-type")),
            (200, Some("application/json"))
        );
        assert!(response.header("x-request-id").is_some());
        let page = response.json();
        assert_eq!(page["object"], "list");
        let cards = page["data"].as_array().unwrap();
        let names: Vec<&str> = cards.iter().map(|card| card["id"].as_str().unwrap()).collect();
        // Sorted, so that two gateways show the same.
        assert!(names.is_sorted(), "{names:?}");
        let list: serde_json::Map<String, Value> = cards
            .iter()
            .map(|card| {
                assert_eq!((&card["object"], card["created"].is_u64()), (&json!("model"), true));
                (card["id"].as_str().unwrap().to_owned(), json!([card["parent"], card["root"]]))
            })
            .collect();
        assert_eq!((cards.len(), Value::Object(list)), (6, expected.clone()));
    }
}

#[test]
fn one_model_is_found_by_its_name_with_slashes_plain_or_encoded() {
    let pods = two_pools();
    let gateway = Gateway::start(&plan(&pods));
    listed(&gateway, "tone");
    for (path, name) in [
        ("other", "other"),
        ("meta/base", "meta/base"),
        ("meta%2Fbase", "meta/base"),
        ("meta%2fbase/?x=1", "meta/base"),
        ("alias/base", "alias/base"),
        ("tone", "tone"),
    ] {
        let response = get(gateway.address, &format!("/v1/models/{path}"));
        assert_eq!((response.status, &response.json()["id"]), (200, &json!(name)), "{path}");
    }
    for path in ["nope", "meta", "base", "meta%2base", "%", "meta%2Fbase%00"] {
        let response = get(gateway.address, &format!("/v1/models/{path}"));
        response.assert_error(404, "model_not_found", Some("model"));
    }
}

#[test]
fn a_head_request_tells_the_length_and_no_body() {
    let pods = two_pools();
    let gateway = Gateway::start(&plan(&pods));
    listed(&gateway, "tone");
    let mut client = Client::connect(gateway.address);
    for (path, status) in
        [("/v1/models", 200), ("/v1/models/nope", 404), ("/nope", 404), ("/health", 200)]
    {
        client.send(format!("HEAD {path} HTTP/1.1\r\nhost: g\r\n\r\n"));
        let head = client.head();
        client.send(format!("GET {path} HTTP/1.1\r\nhost: g\r\n\r\n"));
        // Had a body come with the head, this would be no response.
        let whole = client.response();
        assert_eq!((head.status, whole.status), (status, status));
        // The path is part of some errors, and so is the method.
        if path != "/nope" {
            assert_eq!(head.header("content-length"), whole.header("content-length"), "{path}");
        }
    }
}

#[test]
fn an_adapter_leads_to_its_pool_and_keeps_its_name() {
    let pods = two_pools();
    let gateway = Gateway::start(&plan(&pods));
    listed(&gateway, "tone");
    let response = post(gateway.address, CHAT, &chat("tone", 1, false));
    assert_eq!((response.status, &response.json()["model"]), (200, &json!("tone")));
    // A pod cannot take another pool's name by listing an adapter that is called so.
    for (model, pod) in [("other", &pods[1]), ("meta/base", &pods[0])] {
        let before = pod.stats().requests_to(CHAT);
        assert_eq!(post(gateway.address, CHAT, &chat(model, 1, false)).status, 200);
        assert_eq!(pod.stats().requests_to(CHAT), before + 1);
    }
    gateway.wait_idle();
}

// Field reports 50: the list does not hang on a pod that has gone.
#[test]
fn field_report_50_configured_names_stay_listed_when_every_pod_is_gone() {
    let mut pods = two_pools();
    let gateway = Gateway::start(&plan(&pods));
    listed(&gateway, "tone");
    pods.clear();
    let status = gateway.wait("the pods to be out of reach", |status| {
        self::pods(status).all(|pod| pod["ready"] == false)
    });
    // What only pods knew has gone with them.
    assert_eq!(status["pools"][0]["names"], json!(["alias/base", "cold", "meta/base"]));
    assert_eq!(get(gateway.address, "/v1/models").json()["data"].as_array().unwrap().len(), 5);
    let refused = post(gateway.address, CHAT, &chat("meta/base", 1, false));
    refused.assert_error(503, "no_pod_available", None);
    assert_eq!(refused.header("retry-after"), Some("1"));
    get(gateway.address, "/health").assert_error(503, "not_ready", None);
}

/// The first has an adapter, and one that is called as the other's base model.
fn two_pools() -> Vec<Server> {
    let adapters = vec!["tone".to_owned(), "other".to_owned()];
    let models = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Server::start_all(vec![
        Options { models: models(&["meta/base", "alias/base"]), adapters, ..Options::default() },
        Options { models: models(&["other", "other-alias"]), ..Options::default() },
    ])
    .unwrap()
}

fn plan(pods: &[Server]) -> Plan {
    let pool =
        |model: &str, extra: &str, pod: &Server| (format!("{model}\n{extra}"), vec![pod.addr]);
    let mut plan = Plan::pool("base", &[]);
    plan.pools = vec![
        pool("meta/base", "    aliases: [alias/base]\n    loraAdapters: [cold]", &pods[0]),
        pool("other", "    aliases: [other-alias]", &pods[1]),
    ];
    plan
}

/// Waits until the first pool's names include this one.
fn listed(gateway: &Gateway, name: &str) {
    gateway.wait("the adapter to be listed", |status| {
        status["pools"][0]["names"].as_array().is_some_and(|names| names.contains(&json!(name)))
    });
}

const CHAT: &str = "/v1/chat/completions";
