//! Before a gateway serves.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use sluice_tests::gateway::binary;

use crate::api::Api;
use crate::pods::{kubeconfig, object};
use crate::status::{condition, wait_status};

/// A gateway that may end before it listens.
fn begin(api: &Api) -> Child {
    let mut command = Command::new(binary("sluice"));
    command.args(["run", "--kubernetes", "--namespace", &api.namespace]);
    command.env("KUBECONFIG", kubeconfig()).stderr(Stdio::piped()).spawn().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn while_it_waits_for_an_object_it_can_be_stopped() {
    let api = Api::new().await;
    let mut gateway = begin(&api);
    let mut log = BufReader::new(gateway.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(log.any(|line| line.contains("has neither an InferenceGatewayConfig nor")));
    kill(Pid::from_raw(gateway.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    // By a signal that it had not taken it would have ended without a status, and the first process of a container not at all.
    assert!(gateway.wait().unwrap().success());
    assert!(log.any(|line| line.contains("stopped before there was anything to serve")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_object_that_cannot_be_used_is_told_of_before_it_ends() {
    let api = Api::new().await;
    let mut edge = object(json!({ "pods": [{ "address": "127.0.0.1", "port": 1 }] }));
    edge["spec"]["auth"] = json!({ "apiKeys": { "file": "/nowhere/keys.yaml" } });
    api.apply(&api.config("edge"), &edge).await.unwrap();
    let mut gateway = begin(&api);
    let status = wait_status(&api, "the reason", |status| {
        condition(status, "Programmed")["reason"] == "Refused"
    });
    let status = status.await;
    let message = condition(&status, "Programmed")["message"].as_str().unwrap();
    assert!(message.contains("/nowhere/keys.yaml"), "{message}");
    assert_eq!(gateway.wait().unwrap().code(), Some(1));
}
