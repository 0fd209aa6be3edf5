//! The simulated server over real sockets: the very bytes, and what each fault does to them.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use super::test_client::*;
use super::{Faults, Gpu, Limits, MetricsFault, Options, Server, Style};
use serde_json::{Value, json};

#[test]
fn answers_have_the_servers_form() {
    let pod = Server::start(Options {
        name: "pod-a".to_owned(),
        models: vec!["base".to_owned()],
        prompt_tokens_details: true,
        ..instant()
    })
    .unwrap();
    for (golden, path, body) in [
        (
            include_str!("../golden/wire/chat-stream-usage.http"),
            "/v1/chat/completions",
            r#"{"max_tokens":2,"stream":true,"stream_options":{"include_usage":true},
                "messages":[{"role":"user","content":"hello"}]}"#,
        ),
        (
            include_str!("../golden/wire/chat-stream.http"),
            "/v1/chat/completions",
            r#"{"max_tokens":2,"stream":true,"messages":[{"role":"user","content":"hello"}]}"#,
        ),
        (
            include_str!("../golden/wire/completion-stream-continuous.http"),
            "/v1/completions",
            r#"{"max_tokens":2,"stream":true,"prompt":"hello",
                "stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#,
        ),
        (
            include_str!("../golden/wire/chat.http"),
            "/v1/chat/completions",
            r#"{"max_tokens":2,"messages":[{"role":"user","content":"hello"}]}"#,
        ),
        (
            include_str!("../golden/wire/completion.http"),
            "/v1/completions",
            r#"{"max_tokens":2,"prompt":["hello"]}"#,
        ),
        (include_str!("../golden/wire/embedding.http"), "/v1/embeddings", r#"{"input":"hello"}"#),
    ] {
        let headers = "\r\nx-request-id: 1\r\nconnection: close\r\n\r\n";
        let request = post(path, body).replace("\r\n\r\n", headers);
        assert_eq!(normal(&exchange(pod.addr, &request)), golden, "{path}");
    }
}

#[test]
fn errors_have_the_servers_form() {
    let limits = Limits { max_model_len: 100, ..instant().limits };
    let pod = Server::start(Options { limits, ..instant() }).unwrap();
    let chat = "/v1/chat/completions";
    let form =
        "POST /v1/completions HTTP/1.1\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\n{}";
    let bare = "POST /v1/completions HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}";
    let long = "x".repeat(1_000);
    for (request, status, kind, param) in [
        (post(chat, r#"{"model":"nope","messages":[]}"#), 404, "NotFoundError", json!("model")),
        (post(chat, r#"{"model":"base","messages":[}"#), 400, "Bad Request", json!("body.28")),
        (post(chat, ""), 400, "Bad Request", json!("body")),
        (post(chat, r#"{"model":"base"}"#), 400, "Bad Request", json!("body.messages")),
        (post("/v1/completions", "{}"), 400, "Bad Request", json!("body.prompt")),
        (form.to_owned(), 400, "Bad Request", Value::Null),
        (bare.to_owned(), 400, "Bad Request", Value::Null),
        (
            post(chat, r#"{"messages":[],"max_tokens":-1,"stream":true}"#),
            400,
            "BadRequestError",
            json!("max_tokens"),
        ),
        (
            post(chat, r#"{"messages":[],"max_tokens":4000}"#),
            400,
            "BadRequestError",
            json!("max_tokens"),
        ),
        (
            post("/v1/completions", &json!({"prompt": long}).to_string()),
            400,
            "BadRequestError",
            json!("input_tokens"),
        ),
    ] {
        let mut client = connect(pod.addr);
        client.write_all(request.as_bytes()).unwrap();
        let answer = Answer::read(&mut client);
        let error = &answer.json()["error"];
        assert_eq!(
            (answer.status, &error["code"], &error["type"], &error["param"]),
            (status, &json!(status), &json!(kind), &param),
            "{request}"
        );
        assert!(answer.body().starts_with(r#"{"error":{"message":""#), "order of fields");
        // An error does not end the connection.
        assert_eq!(get(&mut client, "/health").status, 200);
    }
    let mut client = connect(pod.addr);
    assert_eq!(get(&mut client, "/nope").body(), r#"{"detail":"Not Found"}"#);
    let answer = get(&mut client, chat);
    assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")));
}

#[test]
fn each_event_is_one_write() {
    let pod = Server::start(instant()).unwrap();
    for (body, writes) in [
        // Head, role, tokens, usage, [DONE], last chunk.
        (chat(json!({"stream": true, "stream_options": {"include_usage": true}})), 1 + 1 + 16 + 3),
        (chat(json!({"stream": true})), 1 + 1 + 16 + 2),
        (chat(json!({})), 2),
    ] {
        let before = pod.stats().writes;
        let answer = ask(&mut connect(pod.addr), &body);
        assert_eq!(answer.status, 200);
        until(|| pod.stats().open == 0);
        assert_eq!(pod.stats().writes - before, writes, "{body}");
    }
}

#[test]
fn many_streams_come_whole_and_in_order() {
    let gpu = Gpu { decode_us: 1_000, decode_per_seq_us: 1, ..Gpu::default() };
    for event_time in [Duration::ZERO, Duration::from_micros(50)] {
        let options = Options { data_parallel: 2, event_time, ..Options::on(&gpu) };
        let pod = Server::start(options).unwrap();
        let mut clients: Vec<_> = (0..50).map(|_| connect(pod.addr)).collect();
        for client in &mut clients {
            client.write_all(chat(json!({"stream": true, "max_tokens": 30})).as_bytes()).unwrap();
        }
        let expected: String = (1..=30).map(|n| format!(" w{n:04}")).collect();
        for client in &mut clients {
            assert_eq!(Answer::read(client).text(), expected);
        }
        until(|| pod.stats().completed == 50);
        let stats = pod.stats();
        assert_eq!((stats.failed, stats.aborted), (0, 0));
        assert_eq!((stats.running, stats.waiting, stats.tokens), (0, 0, 1_500));
    }
}

#[test]
fn requests_as_clients_may_send_them() {
    let pod = Server::start(instant()).unwrap();
    let body = r#"{"prompt":"hi","max_tokens":1,"unknown":{"field":[1]}}"#;
    let head = "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json; charset=utf-8\r\n";
    let chunked = format!(
        "{head}Transfer-Encoding: chunked\r\n\r\n5\r\n{}\r\n{:x}\r\n{}\r\n0\r\n\r\n",
        &body[..5],
        body.len() - 5,
        &body[5..]
    );
    let sized = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());

    // Two at once on a connection, then bytes one by one.
    let mut client = connect(pod.addr);
    client.write_all(format!("{chunked}{sized}").as_bytes()).unwrap();
    assert_eq!([Answer::read(&mut client).status, Answer::read(&mut client).status], [200, 200]);
    for byte in chunked.bytes() {
        client.write_all(&[byte]).unwrap();
    }
    assert_eq!(Answer::read(&mut client).status, 200);
    let stats = pod.stats();
    assert_eq!((stats.connections, stats.requests_to("/v1/completions")), (1, 3));
    for seen in &stats.last {
        assert_eq!((&seen.body[..], seen.body_len), (body.as_bytes(), body.len()));
        assert!(seen.head.starts_with(head.as_bytes()));
    }

    let expecting = format!("{head}Expect: 100-continue\r\nContent-Length: {}\r\n\r\n", body.len());
    client.write_all(expecting.as_bytes()).unwrap();
    assert_eq!(read_head(&mut client), "HTTP/1.1 100 Continue\r\n\r\n");
    client.write_all(body.as_bytes()).unwrap();
    assert_eq!(Answer::read(&mut client).status, 200);

    let old = sized.replace("HTTP/1.1", "HTTP/1.0");
    assert!(exchange(pod.addr, &old).contains("connection: close\r\n"));
    for bad in [
        "\x16\x03\x01\r\n\r\n",
        &sized
            .replace("Expect", "x")
            .replace("Content-Length", "Transfer-Encoding: chunked\r\nContent-Length"),
    ] {
        let answer = exchange(pod.addr, bad);
        assert!(
            answer.starts_with("HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain"),
            "{bad}"
        );
        assert!(answer.ends_with("Invalid HTTP request received."));
    }
}

#[test]
fn an_idle_connection_is_closed() {
    let keep_alive = Duration::from_millis(20);
    let pod = Server::start(Options { keep_alive, ..instant() }).unwrap();
    let mut client = connect(pod.addr);
    assert_eq!(ask(&mut client, &chat(json!({}))).status, 200);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_client_that_leaves_frees_its_place() {
    let pod = Server::start(Options::on(Gpu::named("l4").unwrap())).unwrap();
    let body = |stream: bool| chat(json!({"stream": stream, "max_tokens": 10_000}));
    for (aborted, (stream, half)) in
        (1..).zip([(true, false), (true, true), (false, false), (false, true)])
    {
        let mut client = connect(pod.addr);
        client.write_all(body(stream).as_bytes()).unwrap();
        until(|| pod.stats().running == 1);
        if half {
            client.shutdown(Shutdown::Write).unwrap();
            let mut rest = String::new();
            client.read_to_string(&mut rest).unwrap();
            assert!(!rest.contains("[DONE]") && stream != rest.is_empty(), "{rest}");
        } else {
            drop(client);
        }
        until(|| pod.stats().running == 0);
        until(|| pod.stats().aborted == aborted);
        assert_eq!(pod.stats().kv_usage, 0.0);
        // vLLM does not count these.
        let metrics = pod.metrics();
        assert!(metrics.contains(r#"finished_reason="abort",model_name="base"} 0.0"#), "{metrics}");
    }
}

#[test]
fn the_head_comes_before_the_first_token() {
    let pod = Server::start(instant()).unwrap();
    pod.fault(Faults { stall_after: Some(0), keep_alive_ms: Some(1), ..Faults::default() });
    let mut client = connect(pod.addr);
    client.write_all(chat(json!({"stream": true})).as_bytes()).unwrap();
    assert!(read_head(&mut client).contains("content-type: text/event-stream"));
    assert_silent(&mut client);
}

#[test]
fn comments_come_while_a_request_waits() {
    let limits = Limits { max_num_seqs: 1, ..Options::default().limits };
    let pod = Server::start(Options { limits, ..Options::default() }).unwrap();
    let mut first = connect(pod.addr);
    let long = chat(json!({"stream": true, "max_tokens": 10_000}));
    first.write_all(long.as_bytes()).unwrap();
    until(|| pod.stats().running == 1);
    let mut second = connect(pod.addr);
    pod.fault(Faults { keep_alive_ms: Some(5), ..Faults::default() });
    second.write_all(chat(json!({"stream": true})).as_bytes()).unwrap();
    read_head(&mut second);
    let mut bytes = [0; 38];
    second.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes[..], b"e\r\n: keep-alive\n\n\r\ne\r\n: keep-alive\n\n\r\n");
    drop(first);
    let mut rest = String::new();
    while !rest.ends_with("0\r\n\r\n") {
        let mut more = [0; 4096];
        let read = second.read(&mut more).unwrap();
        assert!(read > 0);
        rest.push_str(std::str::from_utf8(&more[..read]).unwrap());
    }
    assert!(rest.contains(" w0016"));
}

#[test]
fn faults_cut_a_stream() {
    let pod = Server::start(instant()).unwrap();
    let stream = chat(json!({"stream": true, "max_tokens": 5}));
    let after = |json: Value| {
        let mut client = connect(pod.addr);
        let request = with_fault(&stream, &json);
        client.write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        let end = client.read_to_end(&mut bytes).map_err(|error| error.kind());
        (String::from_utf8(bytes).unwrap(), end.map(|_| ()))
    };
    let tokens = |text: &str| text.matches(" w0").count();

    for count in 0..=5 {
        let (text, end) = after(json!({"crash_after": count, "crash_fin": true}));
        assert_eq!((tokens(&text), end), (count, Ok(())));
        assert!(!text.contains("[DONE]") && text.contains("200 OK"));

        let (_, end) = after(json!({"crash_after": count}));
        assert_eq!(end, Err(ErrorKind::ConnectionReset));

        let (text, _) = after(json!({"error_after": count, "close": true}));
        assert_eq!(tokens(&text), count);
        assert!(text.contains("data: {\"error\": {\"message\": \"EngineCore"));
        assert!(text.ends_with("e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"), "{text}");
    }
    until(|| pod.stats().open == 0);
    let stats = pod.stats();
    assert_eq!((stats.failed, stats.completed, stats.aborted, stats.running), (18, 0, 0, 0));

    // Silence, with the connection open.
    let mut client = connect(pod.addr);
    client.write_all(with_fault(&stream, &json!({"stall_after": 2})).as_bytes()).unwrap();
    let mut seen = String::new();
    while tokens(&seen) < 2 || !seen.ends_with("\n\n\r\n") {
        let mut more = [0; 512];
        let read = client.read(&mut more).unwrap();
        seen.push_str(std::str::from_utf8(&more[..read]).unwrap());
    }
    assert_silent(&mut client);
}

#[test]
fn faults_change_the_framing_and_not_the_text() {
    let pod = Server::start(instant()).unwrap();
    let expected: String = (1..=16).map(|n| format!(" w{n:04}")).collect();
    for fault in [
        json!({"chunk_extensions": true}),
        json!({"trailers": true}),
        json!({"split": 1}),
        json!({"split": 3, "chunk_extensions": true, "trailers": true}),
        json!({"interim": 103}),
        json!({"until_close": true}),
        json!({"close": true}),
        json!({"close_silently": true}),
    ] {
        for stream in [true, false] {
            let mut client = connect(pod.addr);
            let request = with_fault(&chat(json!({"stream": stream})), &fault);
            client.write_all(request.as_bytes()).unwrap();
            if fault.get("interim").is_some() {
                assert!(read_head(&mut client).starts_with("HTTP/1.1 103 "));
            }
            let answer = Answer::read(&mut client);
            assert_eq!(answer.text(), expected, "{fault} {stream}");
            let has = |name: &str| fault.get(name).is_some();
            assert_eq!(answer.header("connection").is_some(), has("close"), "{fault}");
            if has("close") || has("close_silently") || has("until_close") {
                assert_eq!(client.read(&mut [0]).unwrap(), 0, "{fault}");
            } else {
                assert_eq!(get(&mut client, "/health").status, 200, "{fault}");
            }
            let raw = answer.raw.replace("\\\"", "");
            assert_eq!(raw.contains(";name=") && stream, has("chunk_extensions") && stream);
            assert_eq!(raw.contains("x-checksum") && stream, has("trailers") && stream);
        }
    }
}

#[test]
fn faults_refuse_requests() {
    let pod = Server::start(instant()).unwrap();
    let mut client = connect(pod.addr);
    let mut set = |json: &str| {
        let answer = raw(
            &mut client,
            &format!("POST /_fault HTTP/1.1\r\ncontent-length: {}\r\n\r\n{json}", json.len()),
        );
        assert_eq!(answer.status, 200, "{}", answer.body());
    };
    set(r#"{"status":503,"times":2,"retry_after":7}"#);
    let mut other = connect(pod.addr);
    let mut ask = || ask(&mut other, &chat(json!({})));
    let first = ask();
    assert_eq!((first.status, first.header("retry-after")), (503, Some("7")));
    assert_eq!([ask().status, ask().status], [503, 200]);

    set(r#"{"draining":true,"times":null,"status":null}"#);
    let answer = ask();
    assert_eq!(answer.status, 500);
    assert!(answer.body().contains("cannot schedule new futures after shutdown"));
    let mut probe = connect(pod.addr);
    assert_eq!(get(&mut probe, "/health").status, 200, "health says nothing of draining");

    assert_eq!(raw(&mut probe, "DELETE /_fault HTTP/1.1\r\n\r\n").status, 200);
    assert_eq!((ask().status, pod.faults()), (200, Faults::default()));
    let bad = raw(&mut probe, "POST /_fault HTTP/1.1\r\ncontent-length: 7\r\n\r\n{\"x\":1}");
    assert_eq!(bad.status, 400);
}

#[test]
fn a_pod_can_die_and_come_back() {
    let pod = Server::start(Options::on(Gpu::named("l4").unwrap())).unwrap();
    let long = |stream: bool| chat(json!({"stream": stream, "max_tokens": 10_000}));
    let refused = || TcpStream::connect(pod.addr).is_err();

    // Refusing leaves what is open.
    let mut open = connect(pod.addr);
    assert_eq!(get(&mut open, "/health").status, 200);
    pod.refuse(None);
    until(refused);
    assert_eq!(get(&mut open, "/health").status, 200);
    pod.revive();
    until(|| !refused());

    // A process that dies takes its connections along.
    let mut stream = connect(pod.addr);
    stream.write_all(long(true).as_bytes()).unwrap();
    until(|| pod.stats().running == 1);
    pod.die(Some(Duration::from_millis(50)));
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    assert!(!String::from_utf8(text).unwrap().contains("[DONE]"));
    assert_eq!(pod.stats().running, 0);
    until(|| !refused());

    // An engine that dies lets its server say so first.
    let mut stream = connect(pod.addr);
    let mut whole = connect(pod.addr);
    stream.write_all(long(true).as_bytes()).unwrap();
    whole.write_all(long(false).as_bytes()).unwrap();
    until(|| pod.stats().running == 2);
    pod.kill_engine(None);
    let answer = Answer::read(&mut stream);
    assert!(answer.body().ends_with("data: [DONE]\n\n") && answer.body().contains("EngineCore"));
    assert_eq!(Answer::read(&mut whole).status, 500);
    until(refused);

    pod.revive();
    until(|| !refused());
    let mut client = connect(pod.addr);
    let request = with_fault(&chat(json!({"stream": true})), &json!({"exit_after": 1}));
    client.write_all(request.as_bytes()).unwrap();
    let mut text = Vec::new();
    let _ = client.read_to_end(&mut text);
    assert!(!String::from_utf8(text).unwrap().contains("w0002"));
    until(refused);
}

#[test]
fn a_pod_can_start_slowly() {
    let start_after = Duration::from_millis(100);
    let away = Server::start(Options { start_after, ..instant() }).unwrap();
    assert!(TcpStream::connect(away.addr).is_err());
    until(|| TcpStream::connect(away.addr).is_ok());
    assert_eq!(ask(&mut connect(away.addr), &chat(json!({}))).status, 200);

    let busy = Server::start(Options { start_after, start_busy: true, ..instant() }).unwrap();
    let mut client = connect(busy.addr);
    assert_eq!(ask(&mut client, &chat(json!({}))).status, 503);
    until(|| get(&mut client, "/health").status == 200);
    assert_eq!(ask(&mut client, &chat(json!({}))).status, 200);
}

#[test]
fn metrics_of_every_kind() {
    for (style, running, kind) in [
        ("v0.8", r#"vllm:num_requests_running{engine="0",model_name="base"} 1.0"#, "0.0.4"),
        ("v0.11", r#"vllm:num_requests_running{engine="1",model_name="base"} 0.0"#, "1.0.0"),
        ("openmetrics", r#"vllm:num_requests_running{model_name="base",engine="0"} 1.0"#, "open"),
        ("sglang", "sglang:num_running_reqs{dp_rank=\"0\",", "0.0.4"),
        ("tgi", "tgi_batch_current_size 1.0", "text/plain"),
        ("llamacpp", "llamacpp:requests_processing 1.0", "0.0.4"),
        (
            "trtllm",
            "trtllm_num_requests_running{engine_type=\"trtllm\",model_name=\"base\"} 1.0",
            "",
        ),
        ("triton", "request_type=\"scheduled\",model=\"tensorrt_llm\",version=\"1\"} 1.0", ""),
    ] {
        let metrics: Style = style.parse().unwrap();
        let options =
            Options { metrics, data_parallel: 2, ..Options::on(Gpu::named("l4").unwrap()) };
        let pod = Server::start(options).unwrap();
        let mut client = connect(pod.addr);
        client.write_all(chat(json!({"max_tokens": 10_000})).as_bytes()).unwrap();
        until(|| pod.stats().running == 1);
        let answer = get(&mut connect(pod.addr), "/metrics");
        let text = answer.body();
        assert!(answer.header("content-type").unwrap().contains(kind), "{style}");
        assert!(text.contains(running), "{style}: {text}");
        assert_eq!(text.ends_with("# EOF\n"), style == "openmetrics");
        assert_eq!(text.contains("_created"), style.starts_with('v'));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok() && !name.is_empty(), "{style}: {line}");
        }
        for (fault, check) in [
            (MetricsFault::Nan, " NaN\n"),
            (MetricsFault::Html, "<html>"),
            (MetricsFault::Error, "Internal"),
            (MetricsFault::Garbage, "\0"),
        ] {
            pod.fault(Faults { metrics: fault, ..Faults::default() });
            assert!(get(&mut connect(pod.addr), "/metrics").body().contains(check), "{fault:?}");
        }
        pod.fault(Faults { metrics: MetricsFault::Empty, ..Faults::default() });
        assert_eq!(get(&mut connect(pod.addr), "/metrics").body(), "");
    }
    let none = Server::start(Options { metrics: Style::None, ..instant() }).unwrap();
    assert_eq!(get(&mut connect(none.addr), "/metrics").status, 404);
}

#[test]
fn metrics_can_be_stuck_silent_or_cut() {
    let pod = Server::start(instant()).unwrap();
    let mut client = connect(pod.addr);
    pod.fault(Faults { metrics: MetricsFault::Stuck, ..Faults::default() });
    let before = get(&mut client, "/metrics").body();
    assert_eq!(ask(&mut client, &chat(json!({}))).status, 200);
    assert_eq!(get(&mut client, "/metrics").body(), before);
    pod.fault(Faults::default());
    assert_ne!(get(&mut client, "/metrics").body(), before);

    pod.fault(Faults { metrics: MetricsFault::Cut, ..Faults::default() });
    let text = exchange(pod.addr, "GET /metrics HTTP/1.1\r\n\r\n");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let promised = head.split("content-length: ").nth(1).unwrap().lines().next().unwrap();
    assert!(promised.parse::<usize>().unwrap() > body.len());

    pod.fault(Faults { metrics: MetricsFault::Silent, ..Faults::default() });
    client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    assert_silent(&mut client);
}

#[test]
fn adapters_come_and_go() {
    let adapters = vec!["sql".to_owned()];
    let pod = Server::start(Options { adapters, ..instant() }).unwrap();
    let mut client = connect(pod.addr);
    let with = |model: &str| chat(json!({"model": model}));
    assert_eq!(ask(&mut client, &with("chat")).status, 404);
    let load = json!({"lora_name": "chat", "lora_path": "adapters/chat"}).to_string();
    let answer = raw(&mut client, &post("/v1/load_lora_adapter", &load));
    assert_eq!(answer.body(), "Success: LoRA adapter 'chat' added successfully.");
    assert_eq!((answer.status, answer.header("content-type")), (200, None));
    let again = raw(&mut client, &post("/v1/load_lora_adapter", &load));
    assert_eq!((again.status, &again.json()["error"]["type"]), (400, &json!("InvalidUserInput")));

    let cards = get(&mut client, "/v1/models").json();
    let cards: Vec<_> = cards["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|card| (card["id"].as_str().unwrap(), card["parent"].as_str()))
        .collect();
    assert_eq!(cards, [("base", None), ("sql", Some("base")), ("chat", Some("base"))]);

    assert_eq!(ask(&mut client, &with("chat")).json()["model"], "chat");
    let series = |lists: &str| {
        format!(
            r#"vllm:lora_requests_info{{max_lora="4",running_lora_adapters="{lists}",waiting_lora_adapters="{lists}"}} 1."#
        )
    };
    let metrics = get(&mut client, "/metrics").body();
    for lists in ["chat", ""] {
        assert!(metrics.contains(&series(lists)), "{metrics}");
    }

    let unload = post("/v1/unload_lora_adapter", r#"{"lora_name":"chat"}"#);
    assert_eq!([200, 404].map(|_| raw(&mut client, &unload).status), [200, 404]);
    assert_eq!(ask(&mut client, &with("chat")).status, 404);
}

#[test]
fn usage_tells_cached_tokens_and_the_rank_is_heard() {
    let options = Options { prompt_tokens_details: true, data_parallel: 2, ..instant() };
    let pod = Server::start(options).unwrap();
    let mut client = connect(pod.addr);
    let words = "word ".repeat(100);
    let body = post("/v1/completions", &json!({"prompt": words, "max_tokens": 1}).to_string());
    let mut cached = |rank: &str, salt: &str| {
        let body =
            body.replace("\"max_tokens\"", &format!("\"cache_salt\":\"{salt}\",\"max_tokens\""));
        let (head, body) = body.split_once("\r\n\r\n").unwrap();
        let head = head.split("content-length").next().unwrap();
        let request = format!(
            "{head}x-data-parallel-rank: {rank}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let usage = raw(&mut client, &request).json()["usage"].clone();
        (usage["prompt_tokens"].as_u64(), usage["prompt_tokens_details"]["cached_tokens"].as_u64())
    };
    assert_eq!(cached("0", ""), (Some(125), Some(0)));
    assert_eq!(cached("1", ""), (Some(125), Some(0)), "another engine");
    assert_eq!(cached("1", ""), (Some(125), Some(112)));
    assert_eq!(cached("1", "tenant"), (Some(125), Some(0)));
}

#[test]
fn many_pods_share_a_thread() {
    let pods = (0..200).map(|n| Options { name: format!("pod-{n}"), ..instant() }).collect();
    let pods = Server::start_all(pods).unwrap();
    for pod in &pods {
        let answer = ask(&mut connect(pod.addr), &chat(json!({})));
        assert_eq!(answer.json()["system_fingerprint"], pod.name());
    }
    let gone: Vec<SocketAddr> = pods.iter().map(|pod| pod.addr).collect();
    drop(pods);
    assert!(gone.iter().all(|addr| TcpStream::connect(addr).is_err()));
}

#[test]
fn a_full_queue_refuses() {
    let options = Options::on(Gpu::named("l4").unwrap());
    let limits = Limits { max_num_seqs: 1, ..options.limits };
    let pod = Server::start(Options { limits, max_queued: Some(1), ..options }).unwrap();
    let long = chat(json!({"stream": true, "max_tokens": 10_000}));
    let mut held: Vec<TcpStream> = (0..2).map(|_| connect(pod.addr)).collect();
    for client in &mut held {
        client.write_all(long.as_bytes()).unwrap();
    }
    until(|| {
        pod.metrics().contains("vllm:num_requests_waiting{engine=\"0\",model_name=\"base\"} 1.0")
    });
    assert_eq!(ask(&mut connect(pod.addr), &long).status, 503);
}

fn instant() -> Options {
    Options::on(Gpu::named("instant").unwrap())
}

/// What changes from run to run, named.
fn normal(answer: &str) -> String {
    let date = answer.split("date: ").nth(1).unwrap().lines().next().unwrap();
    let created = answer.split("\"created\":").nth(1).unwrap().split(',').next().unwrap();
    answer.replace(date, "DATE").replace(created, "CREATED")
}
