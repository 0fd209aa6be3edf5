//! HTTP/1.1 with clients: connections that go on and that end, headers that stay on one side, and
//! messages that could be read in two ways.

use std::collections::BTreeSet;

use serde_json::json;
use sluice_tests::client::{Client, chat, post};
use sluice_tests::engine::{Gpu, Options, Server};
use sluice_tests::gateway::{Gateway, Plan};

use crate::recorder::Recorder;

#[test]
fn one_connection_carries_two_hundred_requests_to_changing_pods() {
    let pods = fast_pods(3);
    let gateway = Gateway::start(&Plan::pool("base", &pods).spec("  workers: 1"));
    let mut client = Client::connect(gateway.address);
    let mut names = BTreeSet::new();
    for index in 0..200 {
        client.post(CHAT, &chat("base", 1 + index % 3, index % 2 == 0));
        let response = client.response();
        assert_eq!((response.status, response.complete), (200, true), "request {index}");
        assert_eq!(response.header("connection"), None);
        if index % 2 == 1 {
            names.insert(response.json()["system_fingerprint"].to_string());
        }
    }
    assert_eq!(names.len(), 3, "one pod got all: {names:?}");
    // The pods' connections go on as well: one for requests, others for the gateway's own
    // questions.
    for pod in &pods {
        let stats = pod.stats();
        assert!(stats.connections <= 4, "{} connections", stats.connections);
    }
    assert_eq!(gateway.wait_idle()["connections"], 1);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let pods = fast_pods(2);
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let request = |model: &str, tokens, stream| {
        let body = chat(model, tokens, stream).to_string();
        format!(
            "POST {CHAT} HTTP/1.1\r\nhost: g\r\n{JSON}content-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let models = "GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n";
    let rounds = 5;
    let all = [
        request("base", 7, true),
        models.to_owned(),
        request("base", 2, false),
        "\r\n".to_owned(),
        request("nope", 1, false),
    ];
    let mut client = Client::connect(gateway.address);
    client.send(all.concat().repeat(rounds));
    for _ in 0..rounds {
        let stream = client.response();
        assert!(stream.text().contains("w0007") && stream.text().contains("[DONE]"));
        assert_eq!(client.response().json()["object"], "list");
        let whole = client.response().json();
        assert_eq!(whole["usage"]["completion_tokens"], 2);
        assert_eq!(client.response().status, 404);
    }
    assert_eq!(
        pods.iter().map(|pod| pod.stats().requests_to(CHAT)).sum::<u64>(),
        2 * rounds as u64
    );
    gateway.wait_idle();
}

// More than is kept of what comes behind a request whose answer is under way.
#[test]
fn more_pipelined_requests_than_are_kept_lose_nothing() {
    let pods = fast_pods(1);
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let body = json!({"model": "base", "max_tokens": 1, "prompt": "y ".repeat(500)}).to_string();
    let request = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: g\r\n{JSON}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let count = 300;
    let mut client = Client::connect(gateway.address);
    let mut writer = client.stream.try_clone().unwrap();
    std::thread::spawn(move || {
        std::io::Write::write_all(&mut writer, request.repeat(count).as_bytes())
    });
    for index in 0..count {
        assert_eq!(client.response().status, 200, "request {index}");
    }
    assert_eq!(pods[0].stats().requests_to(COMPLETIONS), count as u64);
}

#[test]
fn an_http10_client_gets_plain_bytes_until_the_end() {
    let pods = fast_pods(1);
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    for (tokens, stream, extra) in
        [(5, true, ""), (5, false, ""), (3, true, "connection: keep-alive\r\n")]
    {
        let body = chat("base", tokens, stream).to_string();
        let mut client = Client::connect(gateway.address);
        // Without a Host header, which HTTP/1.0 did not have.
        client.send(format!(
            "POST {CHAT} HTTP/1.0\r\n{JSON}{extra}content-length: {}\r\n\r\n{body}",
            body.len()
        ));
        let response = client.response();
        assert_eq!((response.status, response.complete), (200, true));
        assert_eq!(response.header("transfer-encoding"), None);
        assert_eq!(response.header("connection"), Some("close"));
        assert!(client.is_closed());
        if stream {
            let events = response.events();
            // Role, tokens, usage, the end.
            assert_eq!((events.len() as u32, &*events[events.len() - 1]), (tokens + 3, "[DONE]"));
            assert!(
                response.text().starts_with("data: {") && response.text().ends_with("[DONE]\n\n")
            );
        } else {
            assert_eq!(response.json()["usage"]["completion_tokens"], tokens);
        }
    }
    let mut client = Client::connect(gateway.address);
    client.send("GET /v1/models HTTP/1.0\r\n\r\n");
    assert_eq!(client.response().status, 200);
    assert!(client.is_closed());
}

#[test]
fn a_client_that_wants_to_end_the_connection_is_told_that_it_ends() {
    let pods = fast_pods(1);
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let body = chat("base", 2, true).to_string();
    let stream =
        format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\n{JSON}content-length: {}\r\n", body.len());
    for (request, status) in [
        (format!("{stream}Connection: close\r\n\r\n{body}"), 200),
        (format!("{stream}connection: keep-alive , CLOSE\r\n\r\n{body}"), 200),
        (format!("{stream}connection: x\r\nconnection: close\r\n\r\n{body}"), 200),
        ("GET /v1/models HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n".to_owned(), 200),
        ("GET /nope HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n".to_owned(), 404),
    ] {
        let mut client = Client::connect(gateway.address);
        client.send(request);
        let response = client.response();
        assert_eq!((response.status, response.complete), (status, true));
        assert_eq!(response.header("connection"), Some("close"));
        assert!(client.is_closed());
    }
}

// Field reports 40: what concerns one connection stays on it, in both directions.
#[test]
fn field_report_40_headers_of_one_connection_do_not_reach_the_other() {
    let pod = Recorder::answering(
        "HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Private\r\nX-Private: 1\r\n\
         Keep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\nUpgrade: h2c\r\n\
         Proxy-Connection: keep-alive\r\nTE: trailers\r\n\
         X-Request-Id: of-the-pod\r\nX-Kept: A=b; C\r\nx-kept: Second\r\n\
         Set-Cookie: a\r\nSet-Cookie: b\r\n\
         Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    );
    let gateway = Gateway::start(&pod.plan());
    let mut client = Client::connect(gateway.address);
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nHost: g\r\nConnection: X-Hop, keep-alive\r\n\
         CONNECTION: x-hop-too\r\nX-Hop: 1\r\n\
         x-hop-too: 2\r\nKeep-Alive: timeout=9\r\nTE: trailers\r\nTrailer: x\r\n\
         Upgrade: websocket\r\n\
         Proxy-Authorization: Basic eA==\r\nProxy-Connection: close\r\nX-Kept: 3\r\n\
         content-length: 16\r\n\r\n{}",
        r#"{"model":"base"}"#
    ));
    let response = client.response();
    let seen = pod.last();
    for name in [
        "connection",
        "x-hop",
        "x-hop-too",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
        "proxy-authorization",
        "proxy-connection",
    ] {
        assert!(seen.header(name).is_empty(), "{name}: {}", seen.head);
    }
    assert_eq!((seen.header("host"), seen.header("x-kept")), (vec!["g"], vec!["3"]));
    assert_eq!(seen.header("content-length"), ["16"]);
    let told: Vec<(&str, &str)> =
        response.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
    let (id, rest) = told.split_last().unwrap();
    assert_eq!(
        rest,
        [
            ("x-kept", "A=b; C"),
            ("x-kept", "Second"),
            ("set-cookie", "a"),
            ("set-cookie", "b"),
            ("content-type", "application/json"),
            ("content-length", "2")
        ]
    );
    assert!(id.0 == "x-request-id" && id.1 != "of-the-pod", "{id:?}");
    // Naming them in Connection does not take away what the pod needs.
    let body = r#"{"model":"base"}"#;
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nHost: g\r\n\
         Connection: host, authorization, content-length, content-type\r\n\
         Authorization: Bearer k\r\nContent-Type: application/json\r\n\
         Content-Length: 16\r\n\r\n{body}"
    ));
    assert_eq!(client.response().status, 200);
    let seen = pod.last();
    for name in ["host", "authorization", "content-type", "content-length"] {
        assert_eq!(seen.header(name).len(), 1, "{name}: {}", seen.head);
    }
}

// Field reports 38: what one server takes for a body and the next for a request reaches nobody.
#[test]
fn field_report_38_a_request_cannot_hide_in_another() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan());
    let body = r#"{"model":"base"}"#;
    let hidden = format!("POST /hidden HTTP/1.1\r\nhost: g\r\ncontent-length: 16\r\n\r\n{body}");
    let chunks = format!("10\r\n{body}\r\n0\r\n\r\n");
    let table = [
        ("content-length: 16\r\ntransfer-encoding: chunked\r\n", 400),
        ("transfer-encoding: chunked\r\ncontent-length: 16\r\n", 400),
        ("transfer-encoding: chunked\r\ncontent-length: 0\r\n", 400),
        ("content-length: 16\r\ncontent-length: 16\r\n", 400),
        ("content-length: 16\r\ncontent-length: 17\r\n", 400),
        ("content-length: 16, 16\r\n", 400),
        ("content-length: 16 16\r\n", 400),
        ("content-length: +16\r\n", 400),
        ("content-length: 0x10\r\n", 400),
        ("content-length: -16\r\n", 400),
        ("content-length: 1 6\r\n", 400),
        ("content-length: 18446744073709551632\r\n", 400),
        ("content-length:\r\n", 400),
        ("content-length : 16\r\n", 400),
        ("content-length\r\n", 400),
        ("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", 400),
        ("transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n", 400),
        ("transfer-encoding: chunked, chunked\r\n", 501),
        ("transfer-encoding: chunked, identity\r\n", 501),
        ("transfer-encoding: identity, chunked\r\n", 501),
        ("transfer-encoding: gzip, chunked\r\n", 501),
        ("transfer-encoding: xchunked\r\n", 501),
        ("transfer-encoding: \"chunked\"\r\n", 501),
        ("transfer-encoding: chunked;q=1\r\n", 501),
        ("transfer-encoding:\r\n", 501),
        ("transfer-encoding : chunked\r\n", 400),
        ("transfer-encoding\r\n : chunked\r\n", 400),
        ("x: y\r\n transfer-encoding: chunked\r\n", 400),
        ("x: y\rtransfer-encoding: chunked\r\n", 400),
        ("x: y\0transfer-encoding: chunked\r\n", 400),
        ("transfer-encoding: \u{b}chunked\r\n", 400),
    ];
    for (headers, status) in table {
        for behind in [format!("{body}{hidden}"), format!("{chunks}{hidden}")] {
            println!("{headers:?}");
            let mut client = Client::connect(gateway.address);
            client.send(format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\n{headers}\r\n{behind}"));
            let response = client.response();
            assert_eq!(response.status, status, "{}", response.text());
            assert_eq!(response.header("connection"), Some("close"));
            assert!(client.is_closed(), "a second response");
        }
    }
    // HTTP/1.0 has no chunks; there the length would count.
    let mut client = Client::connect(gateway.address);
    client.send(format!(
        "POST {CHAT} HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n{chunks}{hidden}"
    ));
    assert_eq!(client.response().status, 400);
    assert!(client.is_closed());
    assert!(pod.recorded().is_empty());
}

// A refused request's body is never taken for the next request.
#[test]
fn field_report_38_a_refused_body_is_not_read_as_a_request() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan().spec("  bbr: {maxRequestBodyBytes: 1Ki}"));
    let body = r#"{"model":"base"}"#;
    let hidden = format!("POST /hidden HTTP/1.1\r\nhost: g\r\ncontent-length: 16\r\n\r\n{body}");
    let post = |headers: &str, body: &str| {
        format!(
            "POST {CHAT} HTTP/1.1\r\nhost: g\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let long = format!("{hidden}{}", " ".repeat(2000));
    let table = [
        // The connection may go on, behind the body.
        (post("", &format!("{{\"model\":\"{}\"}}", "nope")), 404),
        (post("", &hidden), 400),
        (post("content-encoding: br\r\n", &hidden), 415),
        (post("", &long), 413),
        (post("content-type: multipart/form-data\r\n", &hidden), 400),
        (post("", &hidden).replace("POST /v1", "PUT /v1"), 405),
        (post("", &hidden).replace("POST /v1", "GET /v1"), 404),
        (post("", &hidden).replace(&format!("POST {CHAT}"), "GET /v1/models"), 200),
    ];
    for (message, status) in table {
        println!("{message:?}");
        let mut client = Client::connect(gateway.address);
        client.send(&message);
        assert_eq!(client.response().status, status);
        if !client.is_silent(std::time::Duration::from_millis(50)) {
            assert!(client.is_closed(), "a second response");
        }
    }
    assert!(pod.recorded().is_empty());
}

// A client that sends a body where none is expected still gets the whole answer.
#[test]
fn an_unexpected_large_body_does_not_cost_the_answer() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan());
    let body = vec![b'x'; 3_000_000];
    for (line, status) in
        [("GET /v1/models", 200), ("GET /nope", 404), ("DELETE /v1/models/x", 405)]
    {
        let mut client = Client::connect(gateway.address);
        client
            .send(format!("{line} HTTP/1.1\r\nhost: g\r\ncontent-length: {}\r\n\r\n", body.len()));
        client.send(&body);
        let response = client.response();
        assert_eq!((response.status, response.complete), (status, true), "{line}");
        assert_eq!(response.header("connection"), Some("close"));
    }
}

#[test]
fn an_absolute_target_is_forwarded_as_a_path() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan());
    let mut client = Client::connect(gateway.address);
    let body = r#"{"model":"base"}"#;
    for (target, path) in [
        ("http://g:80/v1/chat?x=1", "/v1/chat?x=1"),
        ("HTTPS://g/v1//chat/", "/v1//chat/"),
        ("http://g", "/"),
    ] {
        client
            .send(format!("POST {target} HTTP/1.1\r\nhost: g\r\ncontent-length: 16\r\n\r\n{body}"));
        assert_eq!(client.response().status, 200);
        assert_eq!(pod.last().line(), format!("POST {path} HTTP/1.1"));
    }
}

// A pod's bytes behind its answer's end are nobody's answer.
#[test]
fn bytes_behind_a_pods_answer_are_not_the_next_answer() {
    let whole = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n";
    let pod = Recorder::answering(format!("{whole}{{}}{whole}[]"));
    let gateway = Gateway::start(&pod.plan());
    let mut client = Client::connect(gateway.address);
    for count in 1..=5 {
        client.post(CHAT, &chat("base", 1, false));
        let response = client.response();
        assert_eq!((response.status, response.text().as_str()), (200, "{}"));
        assert_eq!(pod.recorded().len(), count);
    }
    assert_eq!(post(gateway.address, CHAT, &chat("base", 1, false)).text(), "{}");
}

/// Pods that take a few milliseconds for a short answer.
fn fast_pods(count: usize) -> Vec<Server> {
    let options = || Options { speed: 20.0, ..Options::on(&Gpu::default()) };
    Server::start_all((0..count).map(|_| options()).collect()).unwrap()
}

const JSON: &str = "content-type: application/json\r\n";
const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
