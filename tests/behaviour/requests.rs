//! What the gateway makes of requests, good and bad.

use serde_json::json;
use sluice_tests::client::{Client, chat, post};
use sluice_tests::engine::{Options, Server};
use sluice_tests::gateway::{Gateway, Plan};

#[test]
fn a_chat_is_answered_streamed_and_not() {
    let pods = Server::start_all(vec![Options::default(), Options::default()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let mut client = Client::connect(gateway.address);
    for stream in [true, false, true] {
        client.post("/v1/chat/completions", &chat("base", 3, stream));
        let response = client.response();
        assert_eq!((response.status, response.complete), (200, true));
        assert!(response.text().contains("w0003"), "{}", response.text());
    }
    let status = gateway.wait_idle();
    assert_eq!(status["pools"][0]["names"], json!(["base"]));
    let unknown = post(gateway.address, "/v1/chat/completions", &chat("nope", 1, false));
    assert_eq!(
        (unknown.status, &unknown.json()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
}
