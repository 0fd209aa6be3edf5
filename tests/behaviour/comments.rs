//! Comments of the gateway's own while a stream's first content takes its time, where the operator wants them. What they
//! leave of the stream behind them is tested with every carrier (`datapath::comments`).

use std::time::{Duration, Instant};

use http::Request;
use serde_json::{Value, json};
use sluice_tests::client::{Client, chat};
use sluice_tests::gateway::{Gateway, PATIENCE};
use sluice_tests::http2::{Connection, run};
use sluice_tests::pod::{LAST, RawPod, STREAM, Taken, answer, chunk, plan};

fn start(pods: &[RawPod]) -> Gateway {
    Gateway::start(&plan(pods).spec("  limits: {keepAliveComments: 100ms}\n  accessLog: true"))
}

/// A client that has been told 200 and got a comment, before its pod has said anything.
fn waiting(gateway: &Gateway, path: &str) -> Client {
    let mut client = Client::connect(gateway.address);
    client.post(path, &chat("base", 9, true));
    comforted(&mut client);
    client
}

fn comforted(client: &mut Client) {
    let head = client.head();
    assert_eq!(head.status, 200);
    assert_eq!(head.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert!(head.header("x-request-id").is_some());
    assert!(client.read_until(COMMENT).ends_with(COMMENT));
}

/// The rest of the stream, without comments; it must have an end.
fn rest(client: &mut Client) -> String {
    let mut response = sluice_tests::client::Response {
        status: 200,
        headers: vec![("transfer-encoding".into(), "chunked".into())],
        body: Vec::new(),
        complete: false,
    };
    client.body(&mut response);
    assert!(response.complete);
    response.text().trim_start_matches(": keep-alive\n\n").to_owned()
}

fn outcome(name: &str) -> String {
    format!("sluice_pool_requests_total{{pool=\"pool-0\",outcome=\"{name}\"}}")
}

/// What one of the pods has been asked.
fn taken(pods: &[RawPod]) -> Taken {
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "no pod is asked");
        if let Some(taken) = pods.iter().find_map(|pod| pod.take_within(Duration::from_millis(5))) {
            return taken;
        }
    }
}

#[test]
fn field_report_6_a_silent_prefill_is_bridged_and_another_pod_may_still_take_over() {
    let pods = RawPod::start_all(2);
    let gateway = start(&pods);
    let mut client = waiting(&gateway, "/v1/chat/completions");
    let mut first = taken(&pods);
    // Its head says nothing yet, and it dies in its prefill.
    first.send(STREAM);
    std::thread::sleep(Duration::from_millis(150));
    first.reset();
    let mut second = taken(&pods);
    second.send([STREAM.as_bytes(), &chunk("data: 1\n\n"), &chunk("data: [DONE]\n\n")].concat());
    second.send(LAST);
    second.keep();
    assert_eq!(rest(&mut client), "data: 1\n\ndata: [DONE]\n\n");
    // The connection goes on, and what is no stream is as ever.
    client.post("/v1/chat/completions", &chat("base", 9, false));
    let mut taken = taken(&pods);
    assert!(client.is_silent(Duration::from_millis(300)));
    taken.send(answer(200, "", "{}"));
    taken.keep();
    assert_eq!(client.response().text(), "{}");
    gateway.wait_idle();
    gateway.wait_metric(&outcome("ok"), 2.0);
}

#[test]
fn field_report_6_comments_on_http_2() {
    let pods = [RawPod::start()];
    let gateway = start(&pods);
    run(async {
        let connection = Connection::plain(gateway.address).await;
        let exchange = connection.post("/v1/completions", &chat("base", 9, true)).await;
        let mut taken = pods[0].take();
        let (head, mut body) = exchange.head().await.unwrap();
        assert_eq!((head.status, head.header("transfer-encoding")), (200, None));
        for _ in 0..2 {
            assert_eq!(body.data().await.unwrap().unwrap(), ": keep-alive\n\n");
        }
        taken.send([STREAM.as_bytes(), &chunk("data: 1\n\n"), LAST.as_bytes()].concat());
        taken.keep();
        let mut rest = Vec::new();
        while let Some(piece) = body.data().await {
            rest.extend_from_slice(&piece.unwrap());
        }
        let rest = String::from_utf8(rest).unwrap();
        assert_eq!(rest.trim_start_matches(": keep-alive\n\n"), "data: 1\n\n");
        // What fails is told there as well, and ends in order.
        let exchange = connection.post("/v1/completions", &chat("base", 9, true)).await;
        let mut taken = pods[0].take();
        let (_, mut body) = exchange.head().await.unwrap();
        taken.send(answer(400, "", r#"{"error":{"message":"too long"}}"#));
        taken.keep();
        let mut rest = Vec::new();
        while let Some(piece) = body.data().await {
            rest.extend_from_slice(&piece.unwrap());
        }
        assert!(String::from_utf8(rest).unwrap().contains("too long"));
        let health = connection.begin(Request::get("http://gateway/health"), true).await.unwrap();
        assert_eq!(health.response().await.unwrap().status, 200);
    });
    gateway.wait_idle();
}

// The status is gone by then: the error is an event, and the stream ends behind it without `[DONE]`.
#[test]
fn field_report_7_what_fails_after_a_comment_is_told_by_an_event() {
    let pods = [RawPod::start()];
    let gateway = start(&pods);
    let own = |code: &str, kind: &str| json!({"code": code, "type": kind, "param": null});
    for (path, end, expected, told) in [
        (
            "/v1/chat/completions",
            answer(400, "", r#"{"error":{"message":"m","type":"t","param":"p","code":400}}"#),
            json!({"message": "m", "type": "t", "param": "p", "code": 400}),
            "client_error",
        ),
        (
            "/v1/messages",
            answer(500, "", "Internal Server Error"),
            json!({"message": "Internal Server Error", "type": "server_error", "code": 500, "param": null}),
            "pod_error",
        ),
        (
            "/v1/responses",
            answer(429, "", r#"{"error":{"message":"m","type":"t","param":null,"code":429}}"#),
            json!({"message": "m", "type": "t", "param": null, "code": 429}),
            "client_error",
        ),
        // No stream, though one was asked for.
        (
            "/v1/completions",
            answer(200, "content-type: application/json\r\n", "{}"),
            own("pod_failed", "server_error"),
            "pod_error",
        ),
        // No answer at all.
        ("/v1/completions", String::new(), own("pod_failed", "server_error"), "pod_error"),
    ] {
        let before = gateway.metric(&outcome(told)).unwrap_or(0.0);
        let mut client = waiting(&gateway, path);
        let mut taken = pods[0].take();
        match end.is_empty() {
            true => taken.close(),
            false => {
                taken.send(&end);
                taken.keep();
            }
        }
        let text = rest(&mut client);
        let data = match path {
            "/v1/messages" => text.strip_prefix("event: error\ndata: ").unwrap(),
            _ => text.strip_prefix("data: ").unwrap(),
        };
        let event: Value = serde_json::from_str(data.strip_suffix("\n\n").unwrap()).unwrap();
        assert_eq!(event.get("type").is_some(), path == "/v1/messages");
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(event["error"].get(name), Some(value), "{name} in {event}");
        }
        gateway.wait_metric(&outcome(told), before + 1.0);
    }
    // The log has the status that the client would have got.
    let statuses: Vec<_> =
        crate::access::lines(&gateway, 5).iter().map(|line| line["status"].clone()).collect();
    assert_eq!(statuses, [400, 500, 429, 200, 502].map(Value::from));
    gateway.wait_idle();
}

#[test]
fn what_a_pod_does_not_send_in_chunks_comes_in_the_gateways() {
    let pods = [RawPod::start()];
    let gateway = start(&pods);
    let event = "data: 1\n\n";
    for length in ["content-length: 18\r\n", ""] {
        let mut client = waiting(&gateway, "/v1/chat/completions");
        let mut taken = pods[0].take();
        taken.send(format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{length}\r\n"));
        taken.send(event);
        assert!(client.read_until(event).ends_with(&format!("9\r\n{event}\r\n")));
        taken.send(event);
        taken.close();
        assert_eq!(rest(&mut client), event);
    }
    // One that is cut has no end.
    let mut client = waiting(&gateway, "/v1/chat/completions");
    let mut taken = pods[0].take();
    taken.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 18\r\n\r\n");
    taken.send(event);
    taken.close();
    client.read_until(event);
    assert!(client.is_closed());
    gateway.wait_metric(&outcome("aborted"), 1.0);
}

#[test]
fn a_client_that_leaves_between_comments_lets_its_pod_go() {
    let pods = [RawPod::start()];
    let gateway = start(&pods);
    let client = waiting(&gateway, "/v1/chat/completions");
    let taken = pods[0].take();
    drop(client);
    taken.wait_closed();
    gateway.wait_idle();
    gateway.wait_metric(&outcome("client_gone"), 1.0);
}

#[test]
fn without_the_setting_or_a_stream_of_events_there_is_no_comment() {
    let pods = [RawPod::start()];
    let (with, without) = (start(&pods), Gateway::start(&plan(&pods)));
    for (gateway, path, version) in [
        (&without, "/v1/chat/completions", "1.1"),
        (&with, "/v1/embeddings", "1.1"),
        (&with, "/v1/chat/completions", "1.0"),
    ] {
        let mut client = Client::connect(gateway.address);
        let body = chat("base", 9, true).to_string();
        let length = body.len();
        client.send(format!(
            "POST {path} HTTP/{version}\r\nhost: g\r\ncontent-length: {length}\r\n\r\n{body}"
        ));
        let mut taken = pods[0].take();
        assert!(client.is_silent(Duration::from_millis(300)), "{path} {version}");
        taken.send([STREAM.as_bytes(), &chunk("data: 1\n\n"), LAST.as_bytes()].concat());
        taken.keep();
        assert_eq!(client.response().text(), "data: 1\n\n");
    }
}

const COMMENT: &str = "e\r\n: keep-alive\n\n\r\n";
