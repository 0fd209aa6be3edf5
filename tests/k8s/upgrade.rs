//! A gateway is replaced by another pod on its node, as a DaemonSet with a surge does it.

use serde_json::{Value, json};
use sluice_tests::client::{Client, chat};
use sluice_tests::gateway::{Gateway, PATIENCE, free_port};
use sluice_tests::load::Load;

use crate::api::Api;
use crate::pods::{kubeconfig, selecting, servers, wait_for};

/// The daemon's answer to what the kubelet does: it starts the new pod beside the old one, ends the old one once the new
/// one is ready, and starts again whatever ends before that.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_pod_takes_over_from_the_one_before_it() {
    let (api, servers) = (Api::new().await, servers(1));
    let mut edge = selecting("a", servers[0].addr.port());
    // By this the successor finds the gateway that is there.
    edge["spec"]["admin"]["port"] = json!(free_port());
    api.apply(&api.config("edge"), &edge).await.unwrap();
    api.make_pod("p", "a", servers[0].addr.ip()).await;
    let takeover =
        |namespace: &str| Gateway::of_cluster_with(&kubeconfig(), namespace, &["--takeover"]);
    let mut old = takeover(&api.namespace);
    wait_for(&old, &["p"]);
    let load = Load::start([old.address].into_iter());
    let mut client = Client::connect(old.address);
    client.post("/v1/chat/completions", &chat("base", 400, true));
    client.read_until("data: ");

    let new = takeover(&api.namespace);
    assert_eq!(new.address, old.address);
    old.signal("TERM");
    load.wait_for_more();
    // Neither the handover nor that signal has cut it.
    client.read_until("[DONE]");
    load.wait_for_more();
    assert!(old.wait_exit(PATIENCE).success());
    assert!(old.log().contains("stopped; 0 connections were cut"), "{}", old.log());

    // Relieved and with nothing left to do, it stays until it is told to go.
    let mut old = new;
    let new = takeover(&api.namespace);
    while !old.log().contains("relieved and done") {
        load.wait_for_more();
    }
    assert!(old.exited().is_none());
    old.signal("TERM");
    assert!(old.wait_exit(PATIENCE).success());
    load.wait_for_more();
    load.stop();
    let failures = |status: &Value| status["pools"][0]["pods"][0]["failures"].clone();
    assert_eq!(failures(&new.wait_idle()), 0);
}
