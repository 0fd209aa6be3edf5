//! Who a pod is: not its address and not its name. And one that comes and goes faster than its requests.

use std::net::IpAddr;

use serde_json::{Value, json};
use sluice_tests::client::{chat, get, post};
use sluice_tests::engine::{Options, Server};
use sluice_tests::gateway::{Gateway, pods};
use sluice_tests::load::{Load, assert_answer};

use crate::api::Api;
use crate::pods::{kubeconfig, selecting, servers, wait_for};

fn engine(ip: IpAddr, port: u16, adapter: &str) -> Server {
    let adapters = vec![adapter.to_owned()];
    let listen = (ip, port).into();
    let options = Options { listen, adapters, prompt_tokens_details: true, ..Options::default() };
    Server::start(options).unwrap()
}

fn models(gateway: &Gateway) -> Vec<String> {
    let page = get(gateway.address, "/v1/models").json();
    let names = page["data"].as_array().unwrap().iter();
    names.map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn nothing_is_known_of_a_new_pod_at_an_old_address() {
    let api = Api::new().await;
    let ip = "127.0.0.9".parse().unwrap();
    let old = engine(ip, 0, "old");
    let port = old.addr.port();
    api.apply(&api.config("edge"), &selecting("a", port)).await.unwrap();
    api.make_pod("p", "a", ip).await;
    let gateway = Gateway::of_cluster(&kubeconfig(), &api.namespace);
    gateway.wait("its adapter", |_| models(&gateway) == ["base", "old"]);

    let text = "What a gateway should know of a pod, and for how long. ".repeat(200);
    let question = json!({
        "model": "base", "max_tokens": 1, "messages": [{ "role": "user", "content": text }],
    });
    let ask = || assert_answer(&post(gateway.address, "/v1/chat/completions", &question));
    let cached = || gateway.metric("sluice_pool_prefix_cached_tokens_total{pool=\"pool\"}");
    ask();
    ask();
    let before = cached();
    assert!(before.unwrap() > 1000.0, "{before:?}");

    // Its successor has its name and its address, and neither its memory nor its adapter.
    api.delete(&api.pod("p")).await;
    wait_for(&gateway, &[]);
    old.stop();
    let new = engine(ip, port, "new");
    api.make_pod("p", "a", ip).await;
    wait_for(&gateway, &["p"]);
    ask();
    assert_eq!(cached(), before, "nothing is expected of a new pod");
    assert_eq!(new.stats().requests_to("/v1/chat/completions"), 1);
    gateway.wait("the new adapter", |_| models(&gateway) == ["base", "new"]);
    let status = gateway.wait_idle();
    let pod = pods(&status).next().unwrap();
    assert_eq!((&pod["requests"], &pod["failures"]), (&json!(1), &json!(0)), "{pod:#}");
    let gone = post(gateway.address, "/v1/chat/completions", &chat("old", 1, false));
    gone.assert_error(404, "model_not_found", Some("model"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_pod_that_comes_and_goes_faster_than_its_requests() {
    let (api, servers) = (Api::new().await, servers(2));
    api.apply(&api.config("edge"), &selecting("a", servers[0].addr.port())).await.unwrap();
    for (name, server) in ["p0", "p1"].iter().zip(&servers) {
        api.make_pod(name, "a", server.addr.ip()).await;
    }
    let gateway = Gateway::of_cluster(&kubeconfig(), &api.namespace);
    wait_for(&gateway, &["p0", "p1"]);
    let load = Load::start([gateway.address].into_iter());
    for round in 0..60 {
        api.set_ready("p0", round % 2 == 1).await;
        // Below zero it would be four thousand million.
        let in_flight = |pod: &Value| pod["in_flight"].as_u64().unwrap();
        let status = gateway.status();
        assert!(pods(&status).map(in_flight).sum::<u64>() < 100, "{status:#}");
    }
    wait_for(&gateway, &["p0", "p1"]);
    load.wait_for_more();
    load.stop();
    let status = gateway.wait_idle();
    assert!(pods(&status).all(|pod| pod["failures"] == 0), "{status:#}");
}
