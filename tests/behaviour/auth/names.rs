//! A key that is for certain models is for no other, by whichever way a request names one.

use std::time::Duration;

use serde_json::json;
use sluice_tests::client::{Client, get_with, post_with};
use sluice_tests::gateway::Gateway;
use sluice_tests::pod::{LAST, RawPod, STREAM, answer, chunk, plan};

use super::Folder;

const KEYS: [(&str, &str, &str); 3] = [
    ("all", "sk-all", ""),
    ("base", "sk-base", ", models: [base]"),
    ("both", "sk-both", ", models: [base, sql]"),
];

// SGLang and TGI take the adapter from another field than `model`, and Triton the model from the path.
#[test]
fn adapters_and_models_that_are_named_elsewhere_need_to_be_allowed() {
    let pods = [RawPod::start()];
    let folder = Folder::new();
    let gateway = Gateway::start(&plan(&pods).spec(&folder.keys(&KEYS)));
    for (path, body, [all, base, both]) in [
        ("/generate", json!({"text": "x"}), [true, true, true]),
        ("/generate", json!({"text": "x", "lora_path": null}), [true, true, true]),
        ("/generate", json!({"text": "x", "lora_path": "sql"}), [true, false, true]),
        ("/generate", json!({"text": "x", "lora_path": "other"}), [true, false, false]),
        ("/generate", json!({"text": ["x"], "lora_path": ["sql"]}), [true, false, false]),
        ("/v1/chat/completions", json!({"model": "base", "lora_path": "sql"}), [true, false, true]),
        (
            "/generate",
            json!({"inputs": "x", "parameters": {"adapter_id": "sql"}}),
            [true, false, true],
        ),
        (
            "/generate_stream",
            json!({"inputs": "x", "parameters": {"adapter_id": "other"}}),
            [true, false, false],
        ),
        ("/v2/models/base/generate", json!({"text_input": "x"}), [true, true, true]),
        ("/v2/models/base/versions/1/infer", json!({"model": "base"}), [true, true, true]),
    ] {
        for (key, allowed) in [("sk-all", all), ("sk-base", base), ("sk-both", both)] {
            let mut client = Client::connect(gateway.address);
            client.post_with(path, &format!("x-api-key: {key}\r\n"), &body);
            if allowed {
                let mut taken = pods[0].take();
                assert_eq!(taken.body, body.to_string().as_bytes());
                assert!(taken.head.starts_with(&format!("POST {path} ")));
                taken.send(answer(200, "", "{}"));
                taken.keep();
                assert_eq!(client.response().status, 200, "{key}: {path} {body}");
            } else {
                client.response().assert_error(403, "model_not_allowed", Some("model"));
            }
        }
    }
    let lines = "x-api-key: sk-base\r\n";
    // A path's model is not another one than the body's, and one that is not served is not.
    let other = json!({"model": "base"});
    let refused = post_with(gateway.address, "/v2/models/sql/generate", lines, &other);
    refused.assert_error(400, "invalid_model", Some("model"));
    for path in ["/v2/models/sql/generate", "//v2/models/sql/infer", "/v2%2Fmodels%2Fsql%2Finfer"] {
        let refused = post_with(gateway.address, path, lines, &json!({"text_input": "x"}));
        refused.assert_error(404, "model_not_found", Some("model"));
    }
    let steers = post_with(gateway.address, "/v2/repository/models/sql/load", lines, &other);
    steers.assert_error(404, "unknown_url", None);
    assert!(pods[0].take_within(Duration::ZERO).is_none());
}

// Who has made it is forgotten when the gateway starts anew; another's conversation would go on.
#[test]
fn what_a_response_goes_on_from_must_be_known_where_callers_are_told_apart() {
    let pods = [RawPod::start()];
    let folder = Folder::new();
    let gateway = Gateway::start(&plan(&pods).spec(&folder.keys(&KEYS)));
    let body = json!({"model": "base", "input": "x", "previous_response_id": "resp_old"});
    let lines = "x-api-key: sk-all\r\n";
    let refused = post_with(gateway.address, "/v1/responses", lines, &body);
    refused.assert_error(404, "response_not_found", None);
    let refused = get_with(gateway.address, "/v1/responses/resp_old", lines);
    refused.assert_error(404, "response_not_found", None);
    assert!(pods[0].take_within(Duration::ZERO).is_none());
}

#[test]
fn a_websocket_ends_when_its_key_does() {
    let pods = [RawPod::start()];
    let folder = Folder::new();
    let gateway = Gateway::start(&plan(&pods).spec(&folder.keys(&KEYS)));
    let opened = |key: &str| {
        let mut client = Client::connect(gateway.address);
        client.send(format!(
            "GET /v1/realtime?model=base HTTP/1.1\r\nhost: g\r\nconnection: upgrade\r\n\
             upgrade: websocket\r\nx-api-key: {key}\r\n\r\n"
        ));
        let mut taken = pods[0].take();
        taken.send(
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        );
        assert_eq!(client.head().status, 101);
        (client, taken)
    };
    let (mut stays, mut other) = opened("sk-all");
    let (mut narrowed, _pod) = opened("sk-both");
    let (mut revoked, gone) = opened("sk-base");
    // An ordinary stream is finished, as it has been let in.
    let mut stream = Client::connect(gateway.address);
    let body = json!({"model": "base", "stream": true});
    stream.post_with("/v1/chat/completions", "x-api-key: sk-base\r\n", &body);
    let mut streaming = pods[0].take();
    streaming.send([STREAM.as_bytes(), &chunk("data: 1\n\n")].concat());
    folder.keys(&[("all", "sk-all", ""), ("both", "sk-both", ", models: [sql]")]);
    assert!(revoked.is_closed() && narrowed.is_closed());
    gone.wait_closed();
    other.send("still");
    assert_eq!(stays.read_until("still"), "still");
    streaming.send(LAST);
    assert!(stream.response().complete);
    let ended = "sluice_pool_requests_total{pool=\"pool-0\",outcome=\"client_error\"}";
    gateway.wait_metric(ended, 2.0);
}
