//! Models that are served as others (`modelRewrites`): what pods are asked, what clients see, and who may ask.

use std::io::Write as _;
use std::net::SocketAddr;
use std::thread;

use serde_json::{Value, json};
use sluice_tests::client::{Client, Response, chat, get, get_with, post, post_with};
use sluice_tests::gateway::{Gateway, Plan};
use sluice_tests::http2::{Connection, run};
use sluice_tests::pod::{LAST, RawPod, STREAM, Taken, answer, chunk, plan};

use crate::auth::Folder;
use crate::recorder::Recorder;

const CHAT: &str = "/v1/chat/completions";
const JSON: &str = "content-type: application/json\r\n";

/// `llama` is served by `base`, whatever else there is.
const LLAMA: &str = "  modelRewrites:\n  - {name: r, rules: [{matches: [{model: {value: llama}}], \
                     targets: [{modelRewrite: base}]}]}";

/// The one next request, which is answered so.
fn taken(pods: &[RawPod], bytes: impl AsRef<[u8]>) -> Taken {
    let mut taken = pods[0].take();
    taken.send(bytes);
    taken
}

#[test]
fn a_share_of_the_requests_goes_to_the_canary() {
    let pod =
        |model: &str| Recorder::answering(answer(200, JSON, &format!("{{\"model\":\"{model}\"}}")));
    let pods = [pod("base"), pod("canary")];
    let pools = [("base", 0), ("canary", 1)];
    let pools = pools.map(|(name, index): (&str, usize)| (name.into(), vec![pods[index].addr]));
    let spec = "  modelRewrites:\n  - {name: split, rules: [{matches: [{model: {value: llama}}], \
                targets: [{modelRewrite: base, weight: 70}, {modelRewrite: canary, weight: 30}]}]}";
    let gateway = Gateway::start(&Plan { pools: pools.to_vec(), ..Plan::pool("", &[]) }.spec(spec));
    let address = gateway.address;
    let ask = move || {
        let mut client = Client::connect(address);
        for _ in 0..REQUESTS / CLIENTS {
            client.post(
                "/v1/completions",
                &json!({"model": "llama", "prompt": "x", "max_tokens": 1}),
            );
            let response = client.response();
            assert_eq!((response.status, response.complete), (200, true), "{}", response.text());
            assert_eq!(response.json()["model"], "llama");
        }
    };
    let clients: Vec<_> = (0..CLIENTS).map(|_| thread::spawn(ask)).collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    let had = |index: usize| pods[index].recorded().len() as f64;
    assert_eq!(had(0) + had(1), f64::from(REQUESTS));
    // 4.5 standard deviations: by chance further off once in 147,000 runs.
    let expected = f64::from(REQUESTS) * 0.3;
    let bound = 4.5 * (f64::from(REQUESTS) * 0.3 * 0.7).sqrt();
    assert!((had(1) - expected).abs() <= bound, "{} of {REQUESTS}", had(1));
    // Counted by what was asked and served; all else is by what is served.
    gateway.wait_idle();
    for (target, index) in [("base", 0), ("canary", 1)] {
        let labels = format!("{{rewrite=\"split\",model=\"llama\",target=\"{target}\"}}");
        let sample = format!("sluice_model_rewrites_total{labels}");
        assert_eq!(gateway.metric(&sample), Some(had(index)), "{target}");
        let labels = format!("{{pool=\"pool-{index}\",model=\"{target}\"}}");
        let sample = format!("sluice_pool_model_requests_total{labels}");
        assert_eq!(gateway.metric(&sample), Some(had(index)), "{target}");
    }
}

/// Requests of the split, and the clients that send them.
const REQUESTS: u32 = 10_000;
const CLIENTS: u32 = 4;

#[test]
fn the_pod_is_asked_for_the_target_and_the_client_is_told_its_own_name() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods).spec(LLAMA).spec("  accessLog: true"));
    let mut client = Client::connect(gateway.address);
    // The spelling of all else stays, and of the answer what is said.
    let body = r#"{ "seed":12345678901234567890, "mod\u0065l" : "ll\u0061ma","x":{"model":"llama"},"messages":[]}"#;
    client.post_bytes(CHAT, body.as_bytes());
    let said = r#"{"id":"1", "model" : "base","choices":[{"message":{"content":"\"model\":\"base\""},"model":"base"}]}"#;
    let mut asked = taken(&pods, answer(200, JSON, said));
    let expected = body.replace(r#""ll\u0061ma""#, r#""base""#);
    assert_eq!(String::from_utf8_lossy(&asked.body), expected);
    assert_eq!(asked.header("content-length"), Some(expected.len().to_string().as_str()));
    asked.keep();
    let response = client.response();
    let seen = said.replace(r#""model" : "base""#, r#""model" : "llama""#);
    assert_eq!((response.complete, response.text()), (true, seen.clone()));
    assert_eq!(response.header("content-length"), None);
    // In HTTP/1.0 it ends with the connection.
    let mut old = Client::connect(gateway.address);
    let length = body.len();
    old.send(format!("POST {CHAT} HTTP/1.0\r\n{JSON}content-length: {length}\r\n\r\n{body}"));
    taken(&pods, answer(200, JSON, said)).keep();
    let response = old.response();
    assert_eq!((response.complete, response.text()), (true, seen.clone()));
    run(async {
        let connection = Connection::plain(gateway.address).await;
        let exchange = connection.post(CHAT, &json!({"model": "llama"})).await;
        taken(&pods, answer(200, JSON, said)).keep();
        let (head, mut body) = exchange.head().await.unwrap();
        let mut text = String::new();
        while let Some(piece) = body.data().await {
            text.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
        }
        assert_eq!((head.status, text), (200, seen.clone()));
    });
    // What has no such name is as it was, whatever its length says.
    for (headers, body) in [("content-type: text/plain\r\n", said), (JSON, ""), (JSON, "{}")] {
        client.post(CHAT, &chat("llama", 1, false));
        asked = taken(&pods, answer(200, headers, body));
        asked.keep();
        let response = client.response();
        assert_eq!((response.complete, response.text()), (true, body.to_owned()));
    }
    // A name that no rule is about goes as it came.
    client.post(CHAT, &chat("base", 1, false));
    asked = taken(&pods, answer(200, JSON, said));
    asked.keep();
    let response = client.response();
    assert_eq!(
        (response.header("content-length"), response.text()),
        (Some("100"), said.to_owned())
    );
    let log = gateway.log();
    let line = log.lines().find(|line| line.contains("served_model")).expect("a line of the log");
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!(
        (&line["model"], &line["served_model"]),
        (&json!("llama"), &json!("base")),
        "{line}"
    );
}

#[test]
fn a_stream_is_renamed_wherever_it_is_cut() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods).spec(LLAMA));
    let mut client = Client::connect(gateway.address);
    let event = |name: &str| {
        format!(
            ": \"model\":\"base\"\n\n\
             data: {{\"id\":\"é\",\"model\":\"{name}\",\"choices\":[{{\"delta\":{{\"content\":\"\\\"model\\\":\\\"base\\\"\"}}}}]}}\n\n\
             event: message_start\r\ndata: {{\"message\":{{\"model\": \"{name}\"}}}}\r\n\r\n\
             event: response.created\ndata: {{\"response\":{{\"model\":\"{name}\",\"tools\":[{{\"model\":\"base\"}}]}}}}\n\n\
             data: [DONE]\n\n"
        )
    };
    let (sent, seen) = (event("base"), event("llama"));
    for size in [1, 2, 3, 5, 7, 11, 17, 40, 90, 200, 1000] {
        client.post(CHAT, &chat("llama", 1, true));
        let mut asked = taken(&pods, STREAM);
        for piece in sent.as_bytes().chunks(size) {
            asked.send(chunk(piece));
        }
        asked.send(LAST);
        asked.keep();
        let response = client.response();
        assert_eq!((response.complete, response.text()), (true, seen.clone()), "{size}");
    }
    gateway.wait_idle();
    let relayed = "sluice_flow_responses_total{path=\"relay\",reason=\"rewritten\"}";
    gateway.wait_metric(relayed, 11.0);
    // Cut off, it is cut off.
    client.post(CHAT, &chat("llama", 1, true));
    let mut asked = taken(&pods, STREAM);
    asked.send(chunk("data: {\"model\":\"ba"));
    asked.close();
    let response = client.response();
    assert_eq!(
        (response.complete, response.text().as_str()),
        (false, "data: {\"model\":\"llama\"")
    );
}

#[test]
fn the_usage_that_nobody_asked_for_is_taken_out_all_the_same() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods).spec(LLAMA).spec("  includeUsage: true"));
    let mut client = Client::connect(gateway.address);
    for options in ["", r#","stream_options":{}"#, r#","stream_options":{"include_usage":false}"#] {
        for body in [
            format!(r#"{{"model":"llama","stream":true{options}}}"#),
            format!(r#"{{"stream":true{options},"model":"llama"}}"#),
        ] {
            client.post_bytes(CHAT, body.as_bytes());
            let mut asked = taken(&pods, STREAM);
            let read: Value = serde_json::from_slice(&asked.body).unwrap();
            assert_eq!(
                read,
                json!({"model": "base", "stream": true, "stream_options": {"include_usage": true}}),
                "{body}"
            );
            asked.send(chunk("data: {\"model\":\"base\",\"choices\":[{}]}\n\n"));
            let usage =
                "data: {\"model\":\"base\",\"choices\":[],\"usage\":{\"completion_tokens\":3}}\n\n";
            asked.send([&chunk(usage)[..], &chunk("data: [DONE]\n\n"), LAST.as_bytes()].concat());
            asked.keep();
            let response = client.response();
            let seen = "data: {\"model\":\"llama\",\"choices\":[{}]}\n\ndata: [DONE]\n\n";
            // Where the client has sent options, the pod may tell it unasked.
            let text = response.text().replace(&usage.replace("base", "llama"), "");
            assert_eq!(text, seen, "{body}");
        }
    }
}

#[test]
fn wherever_a_name_stands_it_is_replaced() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan().spec(LLAMA));
    let mut client = Client::connect(gateway.address);
    let mut send = |head: String, body: &[u8]| {
        let length = body.len();
        let head = format!("POST {head}host: g\r\ncontent-length: {length}\r\n\r\n");
        client.send([head.as_bytes(), body].concat());
        assert_eq!(client.response().status, 200);
        pod.last()
    };
    let form = |model: &str| {
        format!(
            "--X\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nllama\r\n\
             --X\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n--X--\r\n"
        )
    };
    let multipart =
        "/v1/audio/transcriptions HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=X\r\n";
    let last = send(multipart.into(), form("llama").as_bytes());
    assert_eq!(String::from_utf8_lossy(&last.body), form("base"));
    // What was compressed is not any more.
    for (head, body, expected) in [
        (
            format!("{CHAT} HTTP/1.1\r\n{JSON}"),
            r#"{"model":"llama"}"#.to_owned(),
            r#"{"model":"base"}"#.to_owned(),
        ),
        (multipart.into(), form("llama"), form("base")),
    ] {
        let last = send(format!("{head}content-encoding: gzip\r\n"), &gzip(body.as_bytes()));
        assert_eq!(String::from_utf8_lossy(&last.body), expected);
        assert!(last.header("content-encoding").is_empty());
        assert_eq!(last.header("content-length"), [expected.len().to_string()]);
    }
    // And what needs no change is forwarded as it came.
    let untouched = gzip(br#"{"model":"base"}"#);
    let last = send(format!("{CHAT} HTTP/1.1\r\ncontent-encoding: gzip\r\n"), &untouched);
    assert!(last.body == untouched && last.header("content-encoding") == ["gzip"]);
    for (path, body, expected_path, expected) in [
        (
            "/openai/deployments/llama/embeddings?a=b",
            "{}",
            "/v1/embeddings?a=b",
            r#"{"model":"base"}"#,
        ),
        (
            "/openai/deployments/llama/embeddings",
            r#"{"model":"llama"}"#,
            "/v1/embeddings",
            r#"{"model":"base"}"#,
        ),
        (
            "/v2/models/llama/generate?x",
            r#"{"text_input":"a"}"#,
            "/v2/models/base/generate?x",
            r#"{"text_input":"a"}"#,
        ),
        ("/v2/models/base/generate", r#"{"a":1}"#, "/v2/models/base/generate", r#"{"a":1}"#),
    ] {
        let last = send(format!("{path} HTTP/1.1\r\n"), body.as_bytes());
        assert!(
            last.head.starts_with(&format!("POST {expected_path} HTTP/1.1\r\n")),
            "{}",
            last.head
        );
        assert_eq!(String::from_utf8_lossy(&last.body), expected, "{path}");
    }
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_rule_for_all_serves_what_no_other_does() {
    let pod = Recorder::start();
    let spec = "  modelRewrites:\n  \
        - {name: all, rules: [{targets: [{modelRewrite: base}]}]}\n  \
        - {name: exact, poolRef: {name: pool-0}, rules: [{matches: [{model: {value: one}}], \
           targets: [{modelRewrite: tuned}]}]}\n  \
        - {name: later, rules: [{matches: [{model: {value: one}}], targets: [{modelRewrite: base}]}]}\n  \
        - {name: nowhere, rules: [{matches: [{model: {value: lost}}], targets: [{modelRewrite: gone}]}]}";
    let gateway = Gateway::start(&pod.plan().spec(spec));
    let served = |body: &Value| {
        let response = post(gateway.address, CHAT, body);
        assert_eq!(response.status, 200, "{}", response.text());
        let last: Value = serde_json::from_slice(&pod.last().body).unwrap();
        last["model"].as_str().unwrap().to_owned()
    };
    assert_eq!(served(&json!({"model": "whatever"})), "base");
    assert_eq!(served(&json!({"model": "base"})), "base");
    assert_eq!(served(&json!({"messages": []})), "base");
    // Its pool's pods may know a name that the gateway does not.
    assert_eq!(served(&json!({"model": "one"})), "tuned");
    post(gateway.address, CHAT, &json!({"model": "lost"})).assert_error(
        404,
        "model_not_found",
        Some("model"),
    );
    // A server that asks for no model is told none.
    assert_eq!(post(gateway.address, "/generate", &json!({"text": "x"})).status, 200);
    assert_eq!(pod.last().body, br#"{"text":"x"}"#);
    gateway.wait_idle();
    for (labels, count) in [
        ("rewrite=\"all\",model=\"*\",target=\"base\"", 3.0),
        ("rewrite=\"exact\",model=\"one\",target=\"tuned\"", 1.0),
    ] {
        let sample = format!("sluice_model_rewrites_total{{{labels}}}");
        assert_eq!(gateway.metric(&sample), Some(count), "{labels}");
    }
    let page = gateway.get("/metrics").unwrap();
    assert!(!page.contains("whatever"), "a name of the client's is no label: {page}");
    let tuned = "sluice_pool_model_requests_total{pool=\"pool-0\",model=\"tuned\"}";
    assert_eq!(gateway.metric(tuned), Some(1.0));
    // Names that are served are listed.
    let list = get(gateway.address, "/v1/models").json();
    let ids: Vec<_> =
        list["data"].as_array().unwrap().iter().map(|card| card["id"].clone()).collect();
    assert_eq!(ids, ["base", "one"]);
    assert_eq!(get(gateway.address, "/v1/models/one").json()["root"], "base");
}

#[test]
fn a_key_is_for_what_clients_ask_for() {
    let pod = Recorder::start();
    let folder = Folder::new();
    let keys = folder.keys(&[
        ("alice", "sk-a", ", models: [llama]"),
        ("bob", "sk-b", ", models: [base]"),
        ("carol", "sk-c", ", models: [tuned]"),
    ]);
    let spec = "  modelRewrites:\n  \
        - {name: r, rules: [{matches: [{model: {value: llama}}], targets: [{modelRewrite: base}]}]}\n  \
        - {name: p, poolRef: {name: pool-0}, rules: [{matches: [{model: {value: second}}], \
           targets: [{modelRewrite: tuned}]}, {targets: [{modelRewrite: tuned}]}]}";
    let gateway = Gateway::start(&pod.plan().spec(spec).spec(&keys));
    let ask = |key: &str, body: Value| -> Response {
        post_with(gateway.address, CHAT, &format!("x-api-key: {key}\r\n"), &body)
    };
    for (key, body, may) in [
        ("sk-a", json!({"model": "llama"}), true),
        // Not what is behind it, under any other name.
        ("sk-a", json!({"model": "base"}), false),
        ("sk-a", json!({"model": "second"}), false),
        ("sk-a", json!({"model": "anything"}), false),
        ("sk-a", json!({"messages": []}), false),
        ("sk-b", json!({"model": "llama"}), false),
        ("sk-b", json!({"model": "base"}), true),
        ("sk-b", json!({"messages": []}), false),
        // Without a name, what is served is what is asked for.
        ("sk-c", json!({"messages": []}), true),
        ("sk-c", json!({"model": "second"}), false),
    ] {
        let before = pod.recorded().len();
        let response = ask(key, body.clone());
        assert_eq!(
            response.status,
            if may { 200 } else { 403 },
            "{key} {body}: {}",
            response.text()
        );
        assert_eq!(pod.recorded().len() - before, usize::from(may), "{key} {body}");
    }
    let listed = |key: &str| {
        let list = get_with(gateway.address, "/v1/models", &format!("x-api-key: {key}\r\n")).json();
        let ids = list["data"].as_array().unwrap().iter().map(|card| card["id"].clone());
        ids.collect::<Vec<_>>()
    };
    assert_eq!((listed("sk-a"), listed("sk-b")), (vec![json!("llama")], vec![json!("base")]));
}

#[test]
fn a_stored_response_has_the_name_that_was_asked_for() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods).spec(LLAMA));
    let mut client = Client::connect(gateway.address);
    let made = r#"{"id":"resp_1","model":"base"}"#;
    let seen = r#"{"id":"resp_1","model":"llama"}"#;
    client.post("/v1/responses", &json!({"model": "llama", "input": "x"}));
    taken(&pods, answer(200, JSON, made)).keep();
    assert_eq!(client.response().text(), seen);
    client.send("GET /v1/responses/resp_1 HTTP/1.1\r\nhost: g\r\n\r\n");
    taken(&pods, answer(200, JSON, made)).keep();
    assert_eq!(client.response().text(), seen);
}

#[test]
fn a_conversation_that_a_pod_keeps_goes_on_there() {
    let pods = RawPod::start_all(2);
    let pools = [("base", 0), ("canary", 1)];
    let pools =
        pools.map(|(name, index): (&str, usize)| (name.into(), vec![pods[index].address])).to_vec();
    // By lot it would go there once in a million.
    let split = |base: u32, canary: u32| {
        format!(
            "  modelRewrites:\n  - {{name: split, rules: [{{matches: [{{model: {{value: llama}}}}], \
             targets: [{{modelRewrite: base, weight: {base}}}, {{modelRewrite: canary, weight: {canary}}}]}}]}}"
        )
    };
    let plan = |spec: &str| Plan { pools: pools.clone(), ..Plan::pool("", &[]) }.spec(spec);
    let gateway = Gateway::start(&plan(&split(1, 1_000_000)));
    let mut client = Client::connect(gateway.address);
    let mut say = |pod: usize, previous: Option<&str>, id: &str| {
        let mut body = json!({"model": "llama", "input": "x"});
        if let Some(previous) = previous {
            body["previous_response_id"] = previous.into();
        }
        client.post("/v1/responses", &body);
        let made = format!("{{\"id\":\"{id}\",\"model\":\"served\"}}");
        taken(&pods[pod..], answer(200, JSON, &made)).keep();
        assert_eq!(client.response().text(), made.replace("served", "llama"));
    };
    say(1, None, "resp_1");
    gateway.reload(&plan(&split(1_000_000, 1)));
    say(0, None, "resp_2");
    say(1, Some("resp_1"), "resp_3");
    say(1, Some("resp_3"), "resp_4");
    say(0, Some("resp_2"), "resp_5");
    // What nobody keeps goes by lot.
    say(0, Some("resp_unknown"), "resp_6");
}

#[test]
fn a_change_holds_for_the_next_request() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan().spec(LLAMA));
    let ask = |address: SocketAddr| post(address, CHAT, &json!({"model": "llama"}));
    assert_eq!(ask(gateway.address).status, 200);
    let count = "sluice_model_rewrites_total{rewrite=\"r\",model=\"llama\",target=\"base\"}";
    assert_eq!(gateway.metric(count), Some(1.0));
    gateway.reload(&pod.plan().spec(&LLAMA.replace("modelRewrite: base", "modelRewrite: other")));
    ask(gateway.address).assert_error(404, "model_not_found", Some("model"));
    gateway.reload(&pod.plan());
    ask(gateway.address).assert_error(404, "model_not_found", Some("model"));
    assert_eq!(gateway.metric(count), None, "the series goes with the rewrite");
}
