//! What the gateway makes of requests, good and bad: which are refused, how, and that no pod hears
//! of those.

use serde_json::{Value, json};
use sluice_tests::client::{Client, Response, chat, post};
use sluice_tests::engine::{Faults, Options, Server};
use sluice_tests::gateway::{Gateway, Plan};

use crate::recorder::Recorder;

#[test]
fn a_chat_is_answered_streamed_and_not() {
    let pods = Server::start_all(vec![Options::default(), Options::default()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let mut client = Client::connect(gateway.address);
    for stream in [true, false, true] {
        client.post(CHAT, &chat("base", 3, stream));
        let response = client.response();
        assert_eq!((response.status, response.complete), (200, true));
        assert!(response.text().contains("w0003"), "{}", response.text());
    }
    let status = gateway.wait_idle();
    assert_eq!(status["pools"][0]["names"], json!(["base"]));
}

// Field reports 31, 32: what cannot be routed for certain is refused, and the field is named.
#[test]
fn field_report_31_32_a_body_without_one_certain_model_is_refused() {
    let pods = Server::start_all(vec![Options::default(), Options::default()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let nested =
        |depth| format!(r#"{{"model":"base","x":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
    let (deep, deepest) = (nested(128), nested(100_000));
    let table: &[(&[u8], &str, Option<&str>)] = &[
        (b"", "invalid_body", None),
        (b"   ", "invalid_body", None),
        (b"{", "invalid_body", None),
        (b"model=base", "invalid_body", None),
        (b"null", "invalid_body", None),
        (b"17", "invalid_body", None),
        (br#""base""#, "invalid_body", None),
        (br#"[{"model":"base"}]"#, "invalid_body", None),
        (br#"{"model":"base""#, "invalid_body", None),
        (br#"{"model":"base"}}"#, "invalid_body", None),
        (br#"{"model":"base"}{"model":"base"}"#, "invalid_body", None),
        (br#"{"model":"base",}"#, "invalid_body", None),
        (br#"{'model':'base'}"#, "invalid_body", None),
        (br#"{"model":"base","temperature":NaN}"#, "invalid_body", None),
        (b"{\"model\":\"base\",\"x\":\"a\nb\"}", "invalid_body", None),
        (b"\xef\xbb\xbf{\"model\":\"base\"}", "invalid_body", None),
        (b"\xff\xfe{\0\"\0", "invalid_body", None),
        (deep.as_bytes(), "invalid_body", None),
        (deepest.as_bytes(), "invalid_body", None),
        (br#"{"messages":[]}"#, "model_missing", Some("model")),
        (br#"{"Model":"base"}"#, "model_missing", Some("model")),
        (br#"{"x":{"model":"base"}}"#, "model_missing", Some("model")),
        (br#"{"model":null}"#, "invalid_model", Some("model")),
        (br#"{"model":""}"#, "invalid_model", Some("model")),
        (br#"{"model":7}"#, "invalid_model", Some("model")),
        (br#"{"model":true}"#, "invalid_model", Some("model")),
        (br#"{"model":["base"]}"#, "invalid_model", Some("model")),
        (br#"{"model":{"name":"base"}}"#, "invalid_model", Some("model")),
        (br#"{"model":"\ud800"}"#, "invalid_model", Some("model")),
        (b"{\"model\":\"\xff\"}", "invalid_model", Some("model")),
        (br#"{"model":"base","model":"base"}"#, "invalid_model", Some("model")),
        (br#"{"model":"base","model":"other"}"#, "invalid_model", Some("model")),
        (br#"{"model":"base","mod\u0065l":"other"}"#, "invalid_model", Some("model")),
        (br#"{"\u006dodel":"base","model":null}"#, "invalid_model", Some("model")),
    ];
    for (body, code, param) in table {
        let mut client = Client::connect(gateway.address);
        client.post_bytes(CHAT, body);
        let shown = String::from_utf8_lossy(body.get(..60).unwrap_or(body));
        println!("{shown}");
        client.response().assert_error(400, code, *param);
    }
    let long = json!({"model": "x".repeat(1025)});
    post(gateway.address, CHAT, &long).assert_error(400, "invalid_model", Some("model"));
    assert_eq!(
        gateway.metric(r#"sluice_gateway_refused_total{reason="bad_request"}"#),
        Some(table.len() as f64 + 1.0)
    );
    assert!(pods.iter().all(|pod| asked(pod) == 0));
}

// What looks odd and is plain JSON all the same.
#[test]
fn unusual_bodies_reach_the_pod_as_they_are() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan());
    let nested = format!(r#"{{"model":"base","x":{}{}}}"#, "[".repeat(127), "]".repeat(127));
    let table: &[&[u8]] = &[
        br#"{"model":"base","stream":"true"}"#,
        br#"{"model":"base","stream":1}"#,
        br#"{"model":"base","metadata":{"model":"other","model":"third"}}"#,
        br#"{"model":"base","messages":[{"model":"other"},{"model":null}]}"#,
        br#"{"mod\u0065l":"b\u0061se"}"#,
        b" \r\n\t{ \"model\" :\t\"base\" } \n",
        br#"{"model":"base","max_tokens":1e400,"seed":123456789012345678901234567890}"#,
        br#"{"model":"base","prompt":[[1,2,3],[4,5]]}"#,
        b"{\"model\":\"base\",\"prompt\":\"\xff\xfe \\ud800\"}",
        nested.as_bytes(),
    ];
    let mut client = Client::connect(gateway.address);
    for body in table {
        client.post_bytes(CHAT, body);
        assert_eq!(client.response().status, 200, "{}", String::from_utf8_lossy(body));
        assert_eq!(pod.last().body, *body);
    }
    assert_eq!(pod.recorded().len(), table.len());
}

// Field reports 46, 47: no other model's pod answers for it.
#[test]
fn field_report_46_47_an_unknown_model_is_named_and_no_pod_is_asked() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let mut client = Client::connect(gateway.address);
    for model in ["nope", "Base", "base ", " base", "bas", "meta/\"x\"\r\nx: y", "é\u{1F600}"] {
        client.post(CHAT, &chat(model, 1, false));
        let response = client.response();
        response.assert_error(404, "model_not_found", Some("model"));
        let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(model), "{message}");
        assert_eq!(response.header("x"), None);
    }
    client.post(CHAT, &chat(&"m".repeat(1000), 1, false));
    let response = client.response();
    response.assert_error(404, "model_not_found", Some("model"));
    assert!(response.body.len() < 600, "{}", response.text());
    let refused = gateway.metric(r#"sluice_gateway_refused_total{reason="unknown_model"}"#);
    assert_eq!((refused, asked(&pods[0])), (Some(8.0), 0));
}

// Field reports 49: whatever names a model is routed by it.
#[test]
fn every_post_that_names_a_model_is_routed() {
    let (one, two) = (Recorder::start(), Recorder::start());
    let mut plan = one.plan();
    plan.pools.push(("other".into(), vec![two.addr]));
    let gateway = Gateway::start(&plan);
    let mut client = Client::connect(gateway.address);
    let paths = [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/moderations",
        "/v1/rerank",
        "/v2/rerank",
        "/rerank",
        "/score",
        "/v1/score",
        "/pooling",
        "/classify",
        "/tokenize",
        "/detokenize",
        "/invocations",
        "/v1/chat/completions/render",
        "/v1/chat/completions/",
        "/v1/chat/completions?api-version=2024-10-21&x=%20",
        "//v1//chat",
        "/",
    ];
    for path in paths {
        for (model, pod) in [("base", &one), ("other", &two)] {
            client.post(path, &json!({"model": model}));
            assert_eq!(client.response().status, 200, "{path}");
            assert_eq!(pod.last().line(), format!("POST {path} HTTP/1.1"));
        }
    }
    assert_eq!((one.recorded().len(), two.recorded().len()), (paths.len(), paths.len()));
}

// Field reports 52: what the engine says about a request is the client's to read, unchanged.
#[test]
fn field_report_52_an_error_of_the_engine_is_passed_on_byte_for_byte() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let no_prompt = json!({"model": "base", "max_tokens": 1});
    let too_long = chat("base", 100_000_000, false);
    for (path, body) in [(CHAT, &no_prompt), (CHAT, &too_long), ("/v1/rerank", &no_prompt)] {
        let (direct, through) = (post(pods[0].addr, path, body), post(gateway.address, path, body));
        assert!((400..500).contains(&direct.status), "{}", direct.status);
        assert_eq!(through.status, direct.status);
        assert_eq!(through.text(), direct.text());
        assert_eq!(through.header("content-type"), direct.header("content-type"));
        assert!(through.header("x-request-id").is_some());
    }
    for status in [401, 403, 422, 501] {
        pods[0].fault(Faults { status: Some(status), ..Faults::default() });
        let body = chat("base", 1, true);
        let (direct, through) =
            (post(pods[0].addr, CHAT, &body), post(gateway.address, CHAT, &body));
        assert_eq!((through.status, through.text()), (status, direct.text()));
    }
    gateway.wait_idle();
}

#[test]
fn the_request_id_is_the_clients_own_or_a_new_one() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan());
    let mut client = Client::connect(gateway.address);
    let mut send = |id: Option<&str>| {
        let id = id.map(|id| format!("X-Request-Id: {id}\r\n")).unwrap_or_default();
        let body = r#"{"model":"base"}"#;
        client.send(format!(
            "POST {CHAT} HTTP/1.1\r\nhost: g\r\n{id}content-length: {}\r\n\r\n{body}",
            body.len()
        ));
        let response = client.response();
        let told = response.header("x-request-id").unwrap().to_owned();
        // The pod is told the same one, once.
        assert_eq!(pod.last().header("x-request-id"), [told.as_str()]);
        told
    };
    for own in ["abc", "req_0123-4567", &"i".repeat(128)] {
        assert_eq!(send(Some(own)), own);
    }
    let mut made: Vec<String> =
        [None, Some(""), Some("a b"), Some("caf\u{e9}"), Some(&*"i".repeat(129))]
            .map(&mut send)
            .into();
    made.sort_unstable();
    made.dedup();
    assert_eq!(made.len(), 5, "{made:?}");
    assert!(made.iter().all(|id| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit())));
    // A refusal carries it as well.
    client.send(
        "POST /v1/x HTTP/1.1\r\nhost: g\r\nx-request-id: mine\r\ncontent-length: 2\r\n\r\n{}",
    );
    let refused = client.response();
    refused.assert_error(400, "model_missing", Some("model"));
    assert_eq!(refused.header("x-request-id"), Some("mine"));
}

// What belongs to the client and the pod alone passes as it came: case, order, values, duplicates. What the gateway does not
// check of credentials does too, behind the rest.
#[test]
fn end_to_end_headers_reach_the_pod_untouched() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan());
    let mut client = Client::connect(gateway.address);
    let credentials = "authorization: Bearer sk-Secret==\r\nX-API-Key: k\r\n";
    let passed = "Host: api.example\r\n\
                  OpenAI-Organization: org\r\nCookie: a=1; b=\"2\"\r\nX-Dup: one\r\nx-dup: two\r\n\
                  Accept: text/event-stream, */*;q=0.1\r\nX-Empty: \r\ntraceparent: 00-ab-cd-01\r\n\
                  anthropic-version: 2023-06-01\r\nContent-Type: application/json\r\n";
    let body = r#"{"model":"base"}"#;
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\n{credentials}{passed}Content-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert_eq!(client.response().status, 200);
    let head = pod.last().head;
    assert!(head.starts_with(&format!("POST {CHAT} HTTP/1.1\r\n{passed}{credentials}")), "{head}");
}

// RFC 9112 section 3, and what other servers have been fooled with.
#[test]
fn a_malformed_head_is_refused_and_the_connection_ends() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan());
    let table: &[(&str, u16, &str)] = &[
        ("GET / HTTP/1.1\r\nhost: g\r\nbad header: 1\r\n\r\n", 400, "malformed_request"),
        ("GET / HTTP/1.1\r\nhost: g\r\nx : 1\r\n\r\n", 400, "malformed_request"),
        ("GET / HTTP/1.1\r\nhost: g\r\n folded\r\n\r\n", 400, "malformed_request"),
        ("GET / HTTP/1.1\r\nhost: g\r\nx: a\0b\r\n\r\n", 400, "malformed_request"),
        ("GET / HTTP/1.1\r\nhost: g\r\nx: a\rb\r\n\r\n", 400, "malformed_request"),
        ("GET / HTTP/1.1\r\nhost: g\r\n: 1\r\n\r\n", 400, "malformed_request"),
        ("GET / HTTP/1.1\r\n\r\n", 400, "malformed_request"),
        ("GET / HTTP/1.1\r\nhost: g\r\nhost: h\r\n\r\n", 400, "malformed_request"),
        ("GET  / HTTP/1.1\r\nhost: g\r\n\r\n", 400, "malformed_request"),
        ("GET / x HTTP/1.1\r\nhost: g\r\n\r\n", 400, "malformed_request"),
        ("G@T / HTTP/1.1\r\nhost: g\r\n\r\n", 400, "malformed_request"),
        ("GET v1/models HTTP/1.1\r\nhost: g\r\n\r\n", 400, "malformed_request"),
        ("OPTIONS * HTTP/1.1\r\nhost: g\r\n\r\n", 400, "malformed_request"),
        ("CONNECT pod:80 HTTP/1.1\r\nhost: g\r\n\r\n", 400, "malformed_request"),
        ("\x16\x03\x01\x02\0\x01\0\x01\u{7f}", 400, "malformed_request"),
        ("GET / HTTP/2.0\r\nhost: g\r\n\r\n", 505, "http_version"),
        ("PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", 505, "http_version"),
        ("GET / HTTP/1.1\r\nhost: g\r\nexpect: the-worst\r\n\r\n", 400, "malformed_request"),
    ];
    for (text, status, code) in table {
        println!("{text:?}");
        let mut client = Client::connect(gateway.address);
        client.send(text);
        let response = client.response();
        response.assert_error(*status, code, None);
        assert_eq!(response.header("connection"), Some("close"));
        assert!(client.is_closed());
    }
    assert!(pod.recorded().is_empty());
}

#[test]
fn a_head_of_too_many_or_too_long_headers_is_refused() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan());
    let request = |headers: &str| {
        let mut client = Client::connect(gateway.address);
        let body = r#"{"model":"base"}"#;
        client.send(format!(
            "POST {CHAT} HTTP/1.1\r\nhost: g\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        ));
        let response = client.response();
        if response.status != 200 {
            assert!(client.is_closed());
        }
        response
    };
    let many = |count: usize| "a: b\r\n".repeat(count);
    let long = |length: usize| format!("x: {}\r\n", "y".repeat(length));
    assert_eq!(request(&many(126)).status, 200);
    request(&many(127)).assert_error(431, "too_many_headers", None);
    request(&many(10_000)).assert_error(431, "too_many_headers", None);
    let room = 65536
        - format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\nx: \r\ncontent-length: 16\r\n\r\n").len();
    assert_eq!(request(&long(room)).status, 200);
    request(&long(room + 1)).assert_error(431, "head_too_large", None);
    request(&long(10_000_000)).assert_error(431, "head_too_large", None);
    let mut client = Client::connect(gateway.address);
    client.send(format!("GET /{} HTTP/1.1\r\nhost: g\r\n\r\n", "p".repeat(70_000)));
    client.response().assert_error(431, "head_too_large", None);
    assert_eq!(pod.recorded().len(), 2);
    assert_eq!(
        gateway.metric(r#"sluice_gateway_refused_total{reason="head_too_large"}"#),
        Some(5.0)
    );
}

#[test]
fn other_methods_and_paths_are_refused_and_the_connection_goes_on() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan());
    let mut client = Client::connect(gateway.address);
    let mut ask = |line: &str| -> Response {
        client.send(format!("{line} HTTP/1.1\r\nhost: g\r\n\r\n"));
        client.response()
    };
    for method in ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "get", "BREW"] {
        let response = ask(&format!("{method} {CHAT}"));
        response.assert_error(405, "method_not_allowed", None);
        assert_eq!(response.header("allow"), Some("GET, POST"));
    }
    for path in ["/", "/v1", CHAT, "/metrics", "/status", "/v1/files/x", "/v1/modelsx"] {
        ask(&format!("GET {path}")).assert_error(404, "unknown_url", None);
    }
    let long = format!("GET /{}", "p".repeat(10_000));
    assert!(ask(&long).body.len() < 500);
    // No body: nothing names a model.
    ask(&format!("POST {CHAT}")).assert_error(400, "invalid_body", None);
    assert!(pod.recorded().is_empty());
}

// Reports against the picker 11: prompts come as texts and as token ids, one or many.
#[test]
fn picker_report_11_prompts_of_every_form_are_served() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let mut client = Client::connect(gateway.address);
    let prompts =
        [json!("text"), json!(["one", "two"]), json!([1, 2, 3]), json!([[1, 2], [3, 4, 5]])];
    for prompt in prompts {
        for (path, field) in [("/v1/completions", "prompt"), ("/v1/embeddings", "input")] {
            let mut body = json!({"model": "base", "max_tokens": 1});
            body[field] = prompt.clone();
            client.post(path, &body);
            let response = client.response();
            assert_eq!(response.status, 200, "{path} {prompt}: {}", response.text());
            assert!(matches!(response.json()["usage"]["prompt_tokens"], Value::Number(_)));
        }
    }
}

/// Requests that came to a pod, other than the gateway's own questions.
fn asked(pod: &Server) -> u64 {
    let requests = pod.stats().requests;
    let own = |path: &str| matches!(path, "/metrics" | "/v1/models" | "/health");
    requests.iter().filter(|(path, _)| !own(path)).map(|(_, count)| count).sum()
}

const CHAT: &str = "/v1/chat/completions";
