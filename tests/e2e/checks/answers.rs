//! What clients get, compared with what a pod says.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::gateway::Gateway;
use crate::rig::Rig;
use crate::tap::Tap;
use crate::wire;

pub(super) fn models(rig: &mut Rig) -> String {
    rig.revive();
    let names = |address| {
        let page = wire::get(address, "/v1/models");
        assert_eq!(page.status, 200, "{}", page.text());
        let cards = page.json()["data"].as_array().cloned().expect("a list");
        let card = |card: &Value| match card["parent"].as_str() {
            Some(base) => format!("{} of {base}", card["id"]),
            None => card["id"].to_string(),
        };
        cards.iter().map(card).collect::<BTreeSet<_>>()
    };
    let ours = names(rig.gateway.address);
    for pod in &rig.pods {
        assert_eq!(ours, names(pod.address), "{} lists others", pod.name);
    }
    let one = wire::get(rig.gateway.address, "/v1/models/sql-lora");
    assert_eq!((one.status, &one.json()["parent"]), (200, &json!("tiny-llama")));
    let none = wire::get(rig.gateway.address, "/v1/models/nope");
    assert_eq!((none.status, &none.json()["error"]["code"]), (404, &json!("model_not_found")));
    let ours: Vec<_> = ours.into_iter().collect();
    format!("{}; as on both pods", ours.join(", "))
}

pub(super) fn answers(rig: &mut Rig) -> String {
    rig.revive();
    let mut seen = Vec::new();
    for (path, body) in [
        ("/v1/chat/completions", wire::chat("tiny-llama", "Say something.", 24, false)),
        ("/v1/chat/completions", wire::chat("tiny-llama", "Say something.", 24, true)),
        ("/v1/chat/completions", wire::chat("sql-lora", "Say something.", 24, true)),
        ("/v1/completions", completion(false)),
        ("/v1/completions", completion(true)),
    ] {
        let direct = wire::post(rig.pods[0].address, path, &body);
        let through = wire::post(rig.gateway.address, path, &body);
        for answer in [&direct, &through] {
            assert_eq!((answer.status, answer.complete), (200, true), "{}", answer.text());
            assert_eq!(wire::usage(answer).1, 24, "{}", answer.text());
        }
        assert_eq!(wire::text(&direct), wire::text(&through), "{path} {body}");
        assert_eq!(wire::usage(&direct), wire::usage(&through));
        let stream = body["stream"] == true;
        assert_eq!(wire::is_whole_stream(&through), stream);
        // Tokens may come in one event or two, by the machine's mood; nothing else may differ.
        let same = wire::normal(&direct) == wire::normal(&through);
        assert!(
            same || (stream && shapes(&direct.events()) == shapes(&through.events())),
            "{path}: direct\n{}\nthrough\n{}",
            direct.text(),
            through.text()
        );
        let kind = if stream { "streamed" } else { "whole" };
        let events =
            if stream { format!(", {} events", through.events().len()) } else { String::new() };
        let bytes =
            if same { "the same bytes" } else { "the same text, with tokens together elsewhere" };
        seen.push(format!("{path} {kind} ({}{events}): {bytes}", body["model"]));
    }
    seen.join("\n")
}

pub(super) fn bytes(rig: &mut Rig) -> String {
    rig.revive();
    let tap = Tap::start(rig.pods[0].address);
    let gateway = Gateway::start("tapped", &rig.binary, &[("tapped", tap.address)], &rig.logs);
    gateway.wait("the tapped pod's adapters", |status| {
        status["pools"][0]["pods"][0]["adapters"].as_array().is_some_and(|all| all.len() == 2)
    });
    let mut seen = Vec::new();
    for (path, body) in bodies() {
        let raw = exchange(&gateway, path, body.as_bytes());
        let call = tap.take_post();
        let (sent_head, sent_body) = split(&call.request);
        let (pod_head, pod_body) = split(&call.answer);
        let (head, answer) = split(&raw);
        assert!(sent_body == body.as_bytes(), "{path}: the request's body was changed");
        assert!(
            pod_body == answer,
            "{path}: the answer was changed\npod:\n{}\nclient:\n{}",
            String::from_utf8_lossy(pod_body),
            String::from_utf8_lossy(answer)
        );
        let (pod_lines, lines) = (lines(pod_head), lines(head));
        let lost: Vec<_> = pod_lines.difference(&lines).filter(|line| !hop(line)).collect();
        assert!(lost.is_empty(), "{path}: lost {lost:?}");
        let new: Vec<_> = lines
            .difference(&pod_lines)
            .filter(|line| !line.starts_with("x-request-id: ") && *line != "connection: close")
            .collect();
        assert!(new.is_empty(), "{path}: added {new:?}");
        let status = head_text(head).lines().next().unwrap_or_default().to_owned();
        seen.push(format!("{path} {} B: {status}, {} B", sent_body.len(), answer.len()));
        assert!(head_text(sent_head).contains("content-length: "));
    }
    format!("{} exchanges, recorded between gateway and pod:\n{}", seen.len(), seen.join("\n"))
}

pub(super) fn errors(rig: &mut Rig) -> String {
    rig.revive();
    let chat = |field: &str, value: Value| {
        let mut body = wire::chat("tiny-llama", "Say something.", 4, false);
        body[field] = value;
        body.to_string()
    };
    let long = "word ".repeat(20_000);
    let passed = [
        ("max_tokens -1", chat("max_tokens", json!(-1))),
        ("max_tokens 5000", chat("max_tokens", json!(5000))),
        ("temperature \"x\"", chat("temperature", json!("x"))),
        ("n 0", chat("n", json!(0))),
        ("no messages", r#"{"model":"tiny-llama"}"#.into()),
        ("empty messages", chat("messages", json!([]))),
        ("a prompt too long", chat("messages", json!([{"role": "user", "content": long}]))),
        ("logprobs out of range", chat("top_logprobs", json!(99))),
    ];
    let mut seen = Vec::new();
    for (what, body) in &passed {
        let path = "/v1/chat/completions";
        let direct = wire::post_bytes(rig.pods[0].address, path, body.as_bytes());
        let through = wire::post_bytes(rig.gateway.address, path, body.as_bytes());
        assert_eq!(through.status, direct.status, "{what}");
        assert!(through.body == direct.body, "{what}: {} but {}", direct.text(), through.text());
        seen.push(format!("{what}: {} the same {} B", through.status, through.body.len()));
    }
    let lost = wire::post(rig.gateway.address, "/v1/nope", &json!({"model": "tiny-llama"}));
    assert_eq!((lost.status, lost.text().as_str()), (404, "{\"detail\":\"Not Found\"}"));
    let own = [
        ("an unknown model", 404, "model_not_found", r#"{"model":"nope","messages":[]}"#),
        ("no model", 400, "model_missing", r#"{"messages":[]}"#),
        ("no JSON", 400, "", r#"{"model": "tiny-llama", "messages": [}"#),
        ("an empty body", 400, "", ""),
    ];
    for (what, status, code, body) in own {
        let path = "/v1/chat/completions";
        let through = wire::post_bytes(rig.gateway.address, path, body.as_bytes());
        let direct = wire::post_bytes(rig.pods[0].address, path, body.as_bytes());
        assert_eq!(through.status, status, "{what}: {}", through.text());
        let error = through.json()["error"].clone();
        assert!(error["message"].is_string(), "{what}: {}", through.text());
        assert!(code.is_empty() || error["code"] == code, "{what}: {error}");
        let from = if through.body == direct.body { "the pod" } else { "the gateway" };
        seen.push(format!(
            "{what}: {status} by {from} (a pod says {}): {}",
            direct.status, error["message"]
        ));
    }
    seen.join("\n")
}

fn completion(stream: bool) -> Value {
    let mut body = json!({
        "model": "tiny-llama", "prompt": "Once upon a time", "max_tokens": 24,
        "temperature": 0, "ignore_eos": true, "stream": stream,
    });
    if stream {
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

/// Bodies as clients write them: oddly spaced, escaped, large, and for every way to answer.
fn bodies() -> Vec<(&'static str, String)> {
    let chat = "/v1/chat/completions";
    let big = "lorem ".repeat(30_000);
    vec![
        (chat, wire::chat("tiny-llama", "Say something.", 40, true).to_string()),
        (chat, wire::chat("chat-lora", "Say something.", 40, false).to_string()),
        (
            chat,
            "{\n  \"stream\" : true,\t\"messages\":[{\"content\":\
             \"\\u00e9 \u{1F600} \\\"model\\\":\\\"x\\\"\",\
             \"role\":\"user\"}],\"n\":2,\"logprobs\":true,\"top_logprobs\":3,\"max_tokens\":20, \
             \"model\":\"tiny\\u002dllama\"}\r\n"
                .into(),
        ),
        ("/v1/completions", completion(true).to_string()),
        (
            "/v1/completions",
            r#"{"model":"sql-lora","prompt":"a b c","echo":true,"max_tokens":9,"logprobs":2}"#
                .into(),
        ),
        (
            "/v1/responses",
            r#"{"model":"tiny-llama","input":"hi","max_output_tokens":20,"stream":true}"#.into(),
        ),
        (
            "/v1/messages",
            json!({"model": "tiny-llama", "max_tokens": 20, "stream": true,
                   "messages": [{"role": "user", "content": "hi"}]})
            .to_string(),
        ),
        ("/tokenize", r#"{"model":"tiny-llama","prompt":"one two three"}"#.into()),
        (chat, wire::chat("tiny-llama", &big, 4, true).to_string()),
        (chat, r#"{"model":"tiny-llama","max_tokens":"many"}"#.into()),
    ]
}

/// Sends one request on a connection of its own; returns all that came.
fn exchange(gateway: &Gateway, path: &str, body: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(gateway.address).expect("the gateway accepts");
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("the gateway reads");
    stream.write_all(body).expect("the gateway reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the answer ends well");
    answer
}

fn split(message: &[u8]) -> (&[u8], &[u8]) {
    let at = memchr::memmem::find(message, b"\r\n\r\n").expect("a head ends with an empty line");
    message.split_at(at + 4)
}

fn head_text(head: &[u8]) -> String {
    String::from_utf8_lossy(head).to_ascii_lowercase()
}

fn lines(head: &[u8]) -> BTreeSet<String> {
    head_text(head).trim_end().split("\r\n").map(str::to_owned).collect()
}

/// A line that is about one connection only.
fn hop(line: &str) -> bool {
    ["connection:", "keep-alive:"].iter().any(|name| line.starts_with(name))
}

/// What kinds of events a stream has, in their order: each by its keys, runs of the same as one.
fn shapes(events: &[String]) -> Vec<String> {
    let mut all: Vec<String> = events
        .iter()
        .map(|event| match serde_json::from_str::<Value>(event) {
            Ok(mut value) => {
                for field in ["id", "created", "usage"] {
                    if let Some(inner) = value.get_mut(field) {
                        *inner = Value::Null;
                    }
                }
                for path in ["/choices/0/delta/content", "/choices/0/text"] {
                    if let Some(inner) = value.pointer_mut(path) {
                        *inner = Value::Null;
                    }
                }
                value.to_string()
            }
            Err(_) => event.clone(),
        })
        .collect();
    all.dedup();
    all
}
