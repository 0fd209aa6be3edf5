//! Every interface of model servers that clients use, through the real gateway: which pod, and what it gets.

use std::io::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use sluice_tests::client::{Client, chat};
use sluice_tests::engine::{Options, Server, Style};
use sluice_tests::gateway::{Gateway, Plan};
use sluice_tests::pod::{LAST, RawPod, STREAM, Taken, answer, chunk, plan};

use crate::recorder::Recorder;

// Whatever the path, a model in the body leads to its pool, and pod and client get the other's bytes.
#[test]
fn field_report_49_every_interface_is_routed_by_its_model() {
    let (one, two) = (Recorder::start(), Recorder::start());
    let mut plan = one.plan();
    plan.pools.push(("other".into(), vec![two.addr]));
    let gateway = Gateway::start(&plan);
    let mut client = Client::connect(gateway.address);
    let messages = json!([{"role": "user", "content": "hi"}]);
    let table = [
        ("/v1/chat/completions", json!({"messages": messages, "stream": true})),
        ("/v1/completions", json!({"prompt": [1, 2, 3]})),
        ("/v1/completions", json!({"prompt": ["a", "b"]})),
        ("/v1/embeddings", json!({"input": ["a", "b"]})),
        ("/v2/embed", json!({"texts": ["a"]})),
        (
            "/v1/responses",
            json!({"input": "hi", "instructions": "x", "previous_response_id": "resp_0"}),
        ),
        ("/rerank", json!({"query": "a", "documents": ["b"]})),
        ("/v1/rerank", json!({"query": "a", "documents": ["b"]})),
        ("/v2/rerank", json!({"query": "a", "documents": ["b"]})),
        ("/score", json!({"text_1": "a", "text_2": "b"})),
        ("/v1/score", json!({"text_1": "a", "text_2": ["b"]})),
        ("/classify", json!({"input": "a"})),
        ("/pooling", json!({"input": "a"})),
        ("/tokenize", json!({"prompt": "a"})),
        ("/detokenize", json!({"tokens": [1]})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 5, "system": "s"})),
        ("/v1/messages/count_tokens", json!({"messages": messages})),
        ("/generate", json!({"text": "a", "sampling_params": {"max_new_tokens": 5}})),
        ("/generate_stream", json!({"inputs": "a", "parameters": {}})),
        ("/", json!({"inputs": "a"})),
        ("/inference/v1/generate", json!({"token_ids": [1]})),
        ("/v1/images/generations", json!({"prompt": "a"})),
        ("/v1/moderations", json!({"input": "a"})),
        ("/v1/audio/speech", json!({"input": "a", "voice": "b"})),
        ("/v1/something/new/", json!({"x": 1})),
    ];
    for (path, body) in table {
        for (model, pod) in [("base", &one), ("other", &two)] {
            let mut body = body.clone();
            body["model"] = json!(model);
            let bytes = body.to_string();
            client.post_bytes(path, bytes.as_bytes());
            let response = client.response();
            assert_eq!((response.status, response.text()), (200, "{}".into()), "{path} {model}");
            let last = pod.last();
            assert_eq!(last.line(), format!("POST {path} HTTP/1.1"));
            assert!(last.body == bytes.as_bytes(), "{path}: the body was changed");
        }
    }
    assert_eq!((one.recorded().len(), two.recorded().len()), (25, 25));
    // What steers a model server is nobody's business here.
    for path in ["/v1/load_lora_adapter", "/openai/deployments/base/unload_lora_adapter", "/sleep"]
    {
        let mut client = Client::connect(gateway.address);
        client.post(path, &json!({"model": "base"}));
        client.response().assert_error(404, "unknown_url", None);
    }
    assert_eq!(one.recorded().len(), 25);
}

#[test]
fn servers_own_interfaces_need_no_model_where_one_is_served() {
    let (one, two) = (Recorder::start(), Recorder::start());
    let gateway = Gateway::start(&one.plan());
    let mut client = Client::connect(gateway.address);
    let paths = ["/generate", "/generate_stream", "/", "/tokenize", "/detokenize", "/invocations"];
    for path in paths {
        client.post(path, &json!({"inputs": "a"}));
        assert_eq!(client.response().status, 200, "{path}");
        assert_eq!(one.last().line(), format!("POST {path} HTTP/1.1"));
        // A name that is not served is no reason to serve another.
        client.post(path, &json!({"inputs": "a", "model": "other"}));
        client.response().assert_error(404, "model_not_found", Some("model"));
    }
    client.post("/v1/chat/completions", &json!({"messages": []}));
    client.response().assert_error(400, "model_missing", Some("model"));
    assert_eq!(one.recorded().len(), paths.len());
    let mut plan = one.plan();
    plan.pools.push(("other".into(), vec![two.addr]));
    let gateway = Gateway::start(&plan);
    let mut client = Client::connect(gateway.address);
    for path in paths {
        client.post(path, &json!({"inputs": "a"}));
        client.response().assert_error(400, "model_missing", Some("model"));
    }
}

#[test]
fn a_deployment_in_the_path_is_the_model() {
    let (one, two) = (Recorder::start(), Recorder::start());
    let mut plan = one.plan();
    plan.pools.push(("org/other".into(), vec![two.addr]));
    let gateway = Gateway::start(&plan);
    let mut client = Client::connect(gateway.address);
    let azure = |name: &str| format!("/openai/deployments/{name}/chat/completions?api-version=1");
    let expected = "POST /v1/chat/completions?api-version=1 HTTP/1.1";
    for (name, body, sent, pod) in [
        ("base", r#"{"messages":[]}"#, r#"{"model":"base","messages":[]}"#, &one),
        ("org%2Fother", "{ }", r#"{"model":"org/other" }"#, &two),
        ("base", r#"{"x":1e999,"model":"base"}"#, r#"{"x":1e999,"model":"base"}"#, &one),
    ] {
        client.post_bytes(&azure(name), body.as_bytes());
        assert_eq!(client.response().status, 200, "{name}");
        let last = pod.last();
        assert_eq!((last.line(), &*String::from_utf8_lossy(&last.body)), (expected, sent));
        assert_eq!(last.header("content-length"), [sent.len().to_string()]);
    }
    // Never is one authorised and another one served.
    client.post(&azure("base"), &json!({"model": "org/other"}));
    client.response().assert_error(400, "invalid_model", Some("model"));
    client.post(&azure("nobody"), &json!({}));
    client.response().assert_error(404, "model_not_found", Some("model"));
    assert_eq!((one.recorded().len(), two.recorded().len()), (2, 1));
}

/// Takes the next request of whichever pod gets it.
fn taken(pods: &[RawPod]) -> (usize, Taken) {
    loop {
        for (index, pod) in pods.iter().enumerate() {
            if let Some(taken) = pod.take_within(Duration::from_millis(5)) {
                return (index, taken);
            }
        }
    }
}

fn response_body(id: &str) -> String {
    let usage = json!({"input_tokens": 9, "output_tokens": 8});
    json!({"id": id, "object": "response", "output": [], "usage": usage}).to_string()
}

#[test]
fn what_is_asked_of_a_response_goes_to_the_pod_that_made_it() {
    let pods = RawPod::start_all(4);
    let gateway = Gateway::start(&plan(&pods));
    let mut client = Client::connect(gateway.address);
    let mut makers = Vec::new();
    for number in 0..8 {
        let id = format!("resp_{number}");
        let streams = number % 2 == 1;
        client.post("/v1/responses", &json!({"model": "base", "input": "hi", "stream": streams}));
        let (index, mut taken) = taken(&pods);
        if streams {
            let created =
                format!("event: response.created\ndata: {{\"response\":{{\"id\":\"{id}\"}}}}\n\n");
            taken
                .send([STREAM.as_bytes(), &chunk(&created[..40]), &chunk(&created[40..])].concat());
            // It is known before it is complete.
            let mut other = Client::connect(gateway.address);
            assert!(client.read_until("resp_").len() > 5);
            other.send(format!(
                "POST /v1/responses/{id}/cancel HTTP/1.1\r\nhost: g\r\ncontent-length: 0\r\n\r\n"
            ));
            let mut cancel = pods[index].take();
            assert!(cancel.body.is_empty());
            assert!(cancel.head.starts_with(&format!("POST /v1/responses/{id}/cancel ")));
            cancel.send(answer(200, "", &response_body(&id)));
            cancel.keep();
            assert_eq!(other.response().status, 200);
            taken.send(LAST);
            client = Client::connect(gateway.address);
        } else {
            let body = response_body(&id);
            // Its id may come later than its first byte.
            taken.send(format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{}",
                body.len(),
                &body[..1]
            ));
            std::thread::sleep(Duration::from_millis(5));
            taken.send(&body[1..]);
            assert_eq!(client.response().status, 200);
        }
        taken.keep();
        makers.push((id, index));
    }
    gateway.wait_idle();
    let tokens =
        "sluice_pool_model_tokens_total{pool=\"pool-0\",model=\"base\",kind=\"generated\"}";
    let counted = gateway.metric(tokens);
    for (id, index) in &makers {
        client.post_bytes(&format!("/v1/responses/{id}/cancel"), b"{\"x\":1}");
        let mut taken = pods[*index].take();
        assert_eq!(taken.body, b"{\"x\":1}");
        taken.send(answer(200, "", &response_body(id)));
        taken.keep();
        assert_eq!(client.response().status, 200);
        for suffix in ["", "/input_items", "?stream=false"] {
            client.send(format!("GET /v1/responses/{id}{suffix} HTTP/1.1\r\nhost: g\r\n\r\n"));
            let mut taken = pods[*index].take();
            assert!(
                taken.head.starts_with(&format!("GET /v1/responses/{id}{suffix} ")),
                "{}",
                taken.head
            );
            taken.send(answer(200, "", &response_body(id)));
            taken.keep();
            assert_eq!(client.response().text(), response_body(id));
        }
        client.send(format!("DELETE /v1/responses/{id} HTTP/1.1\r\nhost: g\r\n\r\n"));
        let mut taken = pods[*index].take();
        assert!(taken.head.starts_with(&format!("DELETE /v1/responses/{id} ")), "{}", taken.head);
        taken.send(answer(200, "", "{\"deleted\":true}"));
        taken.keep();
        assert_eq!(client.response().text(), "{\"deleted\":true}");
        // What goes on from it has the pod that knows it, as long as that one can.
        client.post(
            "/v1/responses",
            &json!({"model": "base", "input": "x", "previous_response_id": id}),
        );
        let mut taken = pods[*index].take();
        taken.send(answer(200, "", "{}"));
        taken.keep();
        assert_eq!(client.response().status, 200);
    }
    gateway.wait_idle();
    assert_eq!(gateway.metric(tokens), counted, "an answer is counted once");
    for method in ["GET", "DELETE"] {
        client.send(format!("{method} /v1/responses/resp_nobody HTTP/1.1\r\nhost: g\r\n\r\n"));
        client.response().assert_error(404, "response_not_found", None);
    }
    for path in ["/v1/responses", "/v1/models/base", "/v1/%72esponses/resp_0"] {
        client.send(format!("DELETE {path} HTTP/1.1\r\nhost: g\r\n\r\n"));
        client.response().assert_error(405, "method_not_allowed", None);
    }
}

// Its first answer has no tokens; who asks later how it went, and how often, is nothing that was generated.
#[test]
fn a_response_made_in_the_background_is_counted_once() {
    let pods = RawPod::start_all(2);
    let gateway = Gateway::start(&plan(&pods));
    let mut client = Client::connect(gateway.address);
    let own = "sluice_pool_model_tokens_total{pool=\"pool-0\",model=\"base\",kind=\"generated\"}";
    let body = |status: &str, usage: &str| {
        format!("{{\"id\":\"resp_b\",\"status\":\"{status}\",\"output\":[],\"usage\":{usage}}}")
    };
    client.post("/v1/responses", &json!({"model": "base", "input": "x", "background": true}));
    let (index, mut made) = taken(&pods);
    made.send(answer(200, "", &body("queued", "null")));
    made.keep();
    assert_eq!(client.response().status, 200);
    let usage = r#"{"input_tokens":9,"output_tokens":8}"#;
    for (status, usage, counted) in [
        ("in_progress", "null", 0.0),
        // Not final: more may come.
        ("in_progress", usage, 0.0),
        ("completed", usage, 8.0),
        ("completed", usage, 8.0),
    ] {
        client.send("GET /v1/responses/resp_b HTTP/1.1\r\nhost: g\r\n\r\n");
        let mut asked = pods[index].take();
        asked.send(answer(200, "", &body(status, usage)));
        asked.keep();
        assert_eq!(client.response().text(), body(status, usage));
        gateway.wait_idle();
        assert_eq!(gateway.metric(own).unwrap_or(0.0), counted, "{status}");
    }
}

#[test]
fn with_one_pod_a_response_is_asked_of_that_pod_whoever_knows_it() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let mut client = Client::connect(gateway.address);
    client.send("GET /v1/responses/resp_old HTTP/1.1\r\nhost: g\r\n\r\n");
    let mut taken = pods[0].take();
    taken.send(answer(404, "", "{\"error\":{}}"));
    taken.keep();
    assert_eq!(client.response().status, 404);
    assert_eq!(gateway.wait_idle()["buffered_bytes"], 0);
}

const WORD: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"word\"}}]}\n\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":8}}\n\n";

// The operator has every stream counted; the client does not see that.
#[test]
fn field_report_67_usage_is_asked_for_and_taken_out_again() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods).spec("  includeUsage: true"));
    let mut client = Client::connect(gateway.address);
    let mut prompts = 0;
    for (path, extra, asks) in [
        ("/v1/chat/completions", "", false),
        ("/v1/completions", "", false),
        ("/v1/chat/completions", r#","stream_options":{"include_usage":false}"#, false),
        ("/v1/chat/completions", r#","stream_options":{"include_usage":true}"#, true),
        ("/v1/chat/completions", r#","stream_options":{"include_usage":null}"#, false),
        // The model servers take these for true.
        ("/v1/chat/completions", r#","stream_options":{"include_usage":1}"#, true),
        ("/v1/chat/completions", r#","stream_options":{"include_usage":"Yes"}"#, true),
        ("/v1/chat/completions", r#","stream":1"#, false),
        ("/v1/chat/completions", r#","stream":"true""#, false),
        // vLLM, which this pod says it is, gives it to whoever sends options and does not say.
        ("/v1/chat/completions", r#","stream_options":{}"#, true),
        ("/v1/completions", r#","stream_options":{"continuous_usage_stats":false}"#, true),
    ] {
        for size in [1, 7, 4096] {
            let body = format!(r#"{{"model":"base","n":1e999,"stream":true{extra}}}"#);
            client.post_bytes(path, body.as_bytes());
            let mut taken = pods[0].take();
            let text = String::from_utf8(taken.body.clone()).unwrap();
            let read: Value = serde_json::from_str(&text.replace("1e999", "1")).unwrap();
            match extra.contains(":1}") || extra.contains("Yes") {
                true => assert_eq!(text, body, "what is asked for already is left alone"),
                false => assert_eq!(read["stream_options"]["include_usage"], true, "{text}"),
            }
            assert_eq!(taken.header("content-length"), Some(&*text.len().to_string()));
            assert!(text.contains("\"n\":1e999,\"stream\":true"), "{text}");
            let whole = [WORD, WORD, USAGE, "data: [DONE]\n\n"].concat();
            taken.send(STREAM);
            for piece in whole.as_bytes().chunks(size) {
                taken.send(chunk(piece));
            }
            taken.send(LAST);
            taken.keep();
            let response = client.response();
            let expected = match asks {
                true => whole,
                false => [WORD, WORD, "data: [DONE]\n\n"].concat(),
            };
            assert_eq!((response.complete, response.text()), (true, expected), "{extra}");
            prompts += 9;
            let of =
                "sluice_pool_model_tokens_total{pool=\"pool-0\",model=\"base\",kind=\"prompt\"}";
            gateway.wait_metric(of, f64::from(prompts));
        }
    }
    let rewritten =
        gateway.metric("sluice_flow_responses_total{path=\"relay\",reason=\"rewritten\"}");
    assert_eq!(rewritten, Some(18.0));
    // What is no stream is left alone.
    let body = br#"{"model":"base","stream":false}"#;
    client.post_bytes("/v1/chat/completions", body);
    let mut taken = pods[0].take();
    assert_eq!(taken.body, body);
    taken.send(answer(200, "", "{}"));
    taken.keep();
    assert_eq!(client.response().status, 200);
}

// Where the engine gives none unasked, one that sends options and does not say gets none.
#[test]
fn stream_options_alone_are_read_as_the_engine_reads_them() {
    for (style, has_usage) in [(Style::Sglang, false), (Style::V011, true)] {
        let pod = Server::start(Options { metrics: style, ..Options::default() }).unwrap();
        let plan = Plan::pool("base", std::slice::from_ref(&pod)).spec("  includeUsage: true");
        let gateway = Gateway::start(&plan);
        gateway.wait("its engine to be known", |status| {
            !status["pools"][0]["pods"][0]["engine"].is_null()
        });
        let mut body = chat("base", 3, true);
        body["stream_options"] = json!({});
        let mut client = Client::connect(gateway.address);
        client.post("/v1/chat/completions", &body);
        let text = client.response().text();
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        assert_eq!(text.contains("\"choices\":[],"), has_usage, "{style:?}: {text}");
        let of =
            "sluice_pool_model_tokens_total{pool=\"pool-0\",model=\"base\",kind=\"generated\"}";
        gateway.wait_metric(of, 3.0);
    }
}

// A length of its own, or the end of the connection, is no reason to give a client what it has not asked for.
#[test]
fn usage_is_taken_out_of_streams_that_are_not_chunked() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods).spec("  includeUsage: true"));
    let whole = [WORD, USAGE, "data: [DONE]\n\n"].concat();
    let mut client = Client::connect(gateway.address);
    for (number, length) in
        [format!("content-length: {}\r\n", whole.len()), String::new()].iter().enumerate()
    {
        for cut in [whole.len(), WORD.len() + 20] {
            client.post("/v1/chat/completions", &json!({"model": "base", "stream": true}));
            let mut taken = pods[0].take();
            taken.send(format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{length}\r\n"
            ));
            taken.send(&whole[..cut]);
            if cut < whole.len() {
                std::thread::sleep(Duration::from_millis(20));
                taken.send(&whole[cut..]);
            }
            taken.close();
            // The client's connection goes on whatever became of the pod's.
            let response = client.response();
            let expected = [WORD, "data: [DONE]\n\n"].concat();
            assert_eq!((response.complete, response.text()), (true, expected), "{number} {cut}");
            assert_eq!(response.header("content-length"), None);
        }
    }
    let of = "sluice_pool_model_tokens_total{pool=\"pool-0\",model=\"base\",kind=\"generated\"}";
    gateway.wait_metric(of, 32.0);
}

// A client that is given no chunks gets the same.
#[test]
fn an_http10_client_gets_no_usage_that_it_has_not_asked_for() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods).spec("  includeUsage: true"));
    let mut client = Client::connect(gateway.address);
    let body = json!({"model": "base", "stream": true}).to_string();
    client.send(format!(
        "POST /v1/chat/completions HTTP/1.0\r\nhost: g\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ));
    let mut taken = pods[0].take();
    taken.send([STREAM.as_bytes(), &chunk(WORD), &chunk(USAGE), LAST.as_bytes()].concat());
    assert_eq!(client.response().text(), WORD);
}

// Asked for in a body that is compressed, the pod gets it as it is read here.
#[test]
fn usage_is_asked_for_in_a_compressed_body() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods).spec("  includeUsage: true"));
    let mut client = Client::connect(gateway.address);
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(br#"{"model":"base","stream":true}"#).unwrap();
    let body = encoder.finish().unwrap();
    client.send(format!(
        "POST /v1/completions HTTP/1.1\r\nhost: g\r\nContent-Encoding: gzip\r\ncontent-length: {}\r\n\r\n",
        body.len()
    ));
    client.send(body);
    let mut taken = pods[0].take();
    let asked = r#"{"stream_options":{"include_usage":true},"model":"base","stream":true}"#;
    assert_eq!(String::from_utf8_lossy(&taken.body), asked);
    assert_eq!(taken.header("content-encoding"), None);
    taken.send([STREAM.as_bytes(), &chunk(USAGE), &chunk(WORD), LAST.as_bytes()].concat());
    taken.keep();
    assert_eq!(client.response().text(), WORD);
}

#[test]
fn without_the_setting_a_stream_is_left_alone() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let mut client = Client::connect(gateway.address);
    client.post("/v1/chat/completions", &chat("base", 3, true));
    let mut taken = pods[0].take();
    assert_eq!(taken.body, chat("base", 3, true).to_string().as_bytes());
    taken.send([STREAM.as_bytes(), &chunk(USAGE), LAST.as_bytes()].concat());
    taken.keep();
    assert_eq!(client.response().text(), USAGE);
}

// A stream that breaks off must look broken to the client, although its chunks are the gateway's own.
#[test]
fn a_rewritten_stream_that_breaks_off_has_no_end() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods).spec("  includeUsage: true"));
    let mut client = Client::connect(gateway.address);
    client.post("/v1/chat/completions", &json!({"model": "base", "stream": true}));
    let mut taken = pods[0].take();
    taken.send([STREAM.as_bytes(), &chunk(WORD)].concat());
    assert!(client.read_until("word").len() > 4);
    taken.reset();
    let mut response = sluice_tests::client::Response {
        status: 200,
        headers: vec![("transfer-encoding".into(), "chunked".into())],
        body: Vec::new(),
        complete: false,
    };
    client.body(&mut response);
    assert!(!response.complete);
    gateway.wait_metric("sluice_pool_requests_total{pool=\"pool-0\",outcome=\"aborted\"}", 1.0);
}
