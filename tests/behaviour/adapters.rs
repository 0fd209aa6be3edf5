//! LoRA adapters: a name that clients use like a model's, and the pods where the adapter is
//! resident first.

#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;

use serde_json::{Value, json};
use sluice_tests::client::{Client, Response, chat, get, post};
use sluice_tests::engine::{Options, Server};
use sluice_tests::gateway::{Gateway, Plan};
use sluice_tests::pod::{RawPod, Signals, answer, plan};

fn options(adapters: &[&str]) -> Options {
    let adapters = adapters.iter().map(|name| (*name).to_owned()).collect();
    Options { adapters, speed: 20.0, ..Options::default() }
}

fn ask(gateway: &Gateway, model: &str) -> Response {
    post(gateway.address, "/v1/chat/completions", &chat(model, 1, true))
}

fn asked(engine: &Server) -> u64 {
    engine.stats().requests_to("/v1/chat/completions")
}

/// Has an engine load an adapter, or forget it.
fn change(engine: SocketAddr, what: &str, name: &str) {
    let body = json!({"lora_name": name, "lora_path": "somewhere"});
    let response = post(engine, &format!("/v1/{what}_lora_adapter"), &body);
    assert_eq!(response.status, 200, "{}", response.text());
}

/// Names that the gateway lists.
fn names(gateway: &Gateway) -> Vec<String> {
    let list = get(gateway.address, "/v1/models").json();
    let ids = list["data"].as_array().unwrap().iter().map(|card| card["id"].as_str().unwrap());
    ids.map(str::to_owned).collect()
}

#[test]
fn an_adapter_is_served_by_the_pool_of_its_base_model() {
    let one = Server::start(options(&["sql"])).unwrap();
    let other =
        Server::start(Options { models: vec!["other".into()], ..options(&["poem"]) }).unwrap();
    let pools = vec![("base".into(), vec![one.addr]), ("other".into(), vec![other.addr])];
    let gateway = Gateway::start(&Plan { pools, ..plan(&[]) });
    gateway.wait("the adapters to be known", |_| names(&gateway).len() == 4);
    assert_eq!(names(&gateway), ["base", "other", "poem", "sql"]);
    for (model, expected) in
        [("sql", (1, 0)), ("poem", (1, 1)), ("base", (2, 1)), ("other", (2, 2))]
    {
        let response = ask(&gateway, model);
        assert_eq!((response.status, response.complete), (200, true), "{model}");
        // The body goes on as it came: the pod answers in the adapter's name.
        assert!(response.text().contains(&format!("\"model\":\"{model}\"")));
        assert_eq!((asked(&one), asked(&other)), expected, "{model}");
    }
    let list = get(gateway.address, "/v1/models").json();
    let parent = |id: &str| {
        let cards = list["data"].as_array().unwrap();
        cards.iter().find(|card| card["id"] == id).unwrap()["parent"].clone()
    };
    assert_eq!(
        (parent("sql"), parent("poem"), parent("base")),
        (json!("base"), json!("other"), Value::Null)
    );
}

#[test]
fn the_pod_where_the_adapter_is_resident_comes_first() {
    let engines = Server::start_all(vec![options(&[]), options(&["sql"]), options(&[])]).unwrap();
    let plan = Plan::pool("base", &engines).scheduler("    loraAdapters: [sql]");
    let gateway = Gateway::start(&plan);
    gateway.wait("the adapter to be seen", |status| {
        status["pools"][0]["pods"][1]["adapters"] == json!(["sql"])
    });
    // Busier than the others, and still the only one that need not load it.
    let mut busy: Vec<_> = (0..4).map(|_| Client::connect(engines[1].addr)).collect();
    for client in &mut busy {
        client.post("/v1/chat/completions", &chat("base", 100_000, true));
    }
    gateway.wait("the load to be seen", |status| status["pools"][0]["pods"][1]["running"] == 4);
    for _ in 0..10 {
        assert_eq!(ask(&gateway, "sql").status, 200);
    }
    assert_eq!((asked(&engines[0]), asked(&engines[1]), asked(&engines[2])), (0, 14, 0));
    // The base model goes where there is room.
    for _ in 0..10 {
        assert_eq!(ask(&gateway, "base").status, 200);
    }
    assert_eq!(asked(&engines[1]), 14);
}

#[test]
fn without_a_resident_pod_the_freest_one_is_asked() {
    let pods = RawPod::start_all(3);
    for (pod, kv_usage) in pods.iter().zip([0.8, 0.1, 0.5]) {
        pod.tell(Signals { running: 4, waiting: 0, kv_usage });
    }
    let gateway = Gateway::start(&plan(&pods).scheduler("    loraAdapters: [sql]"));
    let mut client = Client::connect(gateway.address);
    for _ in 0..5 {
        client.post("/v1/chat/completions", &chat("sql", 1, false));
        let mut taken = pods[1].take();
        taken.send(answer(200, "", "{}"));
        taken.keep();
        assert_eq!(client.response().status, 200);
    }
}

// Field report 72.
#[test]
fn field_report_72_an_adapter_that_is_loaded_at_run_time_is_found_and_forgotten() {
    let engines = Server::start_all(vec![options(&[]), options(&[])]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &engines));
    let unknown = ask(&gateway, "sql");
    assert_eq!(
        (unknown.status, &unknown.json()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
    // A busy pod is asked for its models more often.
    let mut busy = Client::connect(engines[1].addr);
    busy.post("/v1/chat/completions", &chat("base", 100_000, true));

    change(engines[1].addr, "load", "sql");
    gateway.wait("the adapter to be known", |_| names(&gateway) == ["base", "sql"]);
    for _ in 0..5 {
        assert_eq!(ask(&gateway, "sql").status, 200);
    }
    assert_eq!((asked(&engines[0]), asked(&engines[1])), (0, 6));
    let model = get(gateway.address, "/v1/models/sql").json();
    assert_eq!((&model["id"], &model["parent"]), (&json!("sql"), &json!("base")));

    change(engines[1].addr, "unload", "sql");
    gateway.wait("the adapter to be gone", |_| names(&gateway) == ["base"]);
    let unknown = ask(&gateway, "sql");
    // Not an answer of the base model in its name.
    assert_eq!(
        (unknown.status, &unknown.json()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
    assert_eq!(asked(&engines[1]), 6);
    assert_eq!(ask(&gateway, "base").status, 200);
    // The count of its requests has gone with the name; what was asked in vain names no series.
    let page = gateway.get("/metrics").unwrap();
    assert!(!page.contains("model=\"sql\""), "{page}");
}

#[test]
fn a_configured_name_is_not_taken_over_by_what_a_pod_lists() {
    let one = Server::start(options(&[])).unwrap();
    let other =
        Server::start(Options { models: vec!["other".into()], ..options(&["base", "sql"]) })
            .unwrap();
    let pools = vec![("base".into(), vec![one.addr]), ("other".into(), vec![other.addr])];
    let gateway = Gateway::start(&Plan { pools, ..plan(&[]) });
    gateway.wait("the adapters to be known", |_| names(&gateway) == ["base", "other", "sql"]);
    assert_eq!(ask(&gateway, "base").status, 200);
    assert_eq!((asked(&one), asked(&other)), (1, 0));
}

/// The adapter of a pod that is gone is not lost while another pod has it.
#[test]
fn an_adapter_survives_the_loss_of_one_of_its_pods() {
    let engines =
        Server::start_all(vec![options(&["sql"]), options(&["sql"]), options(&[])]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &engines));
    gateway.wait("the adapter to be seen on both", |status| {
        (0..2).all(|pod| status["pools"][0]["pods"][pod]["adapters"] == json!(["sql"]))
    });
    engines[0].die(None);
    for _ in 0..20 {
        let response = ask(&gateway, "sql");
        assert_eq!((response.status, response.complete), (200, true), "{}", response.text());
    }
    assert_eq!(asked(&engines[2]), 0, "the pod without the adapter was asked");
}
