//! Streams of events: every byte as the pod wrote it, as soon as it wrote it, and what is counted
//! of them.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};
use sluice_tests::client::{Client, chat};
use sluice_tests::engine::{Faults, Gpu, Options, Server};
use sluice_tests::gateway::{Gateway, PATIENCE, Plan};
use sluice_tests::pod::{LAST, RawPod, STREAM, chunk, plan};

#[test]
fn field_report_12_bytes_are_relayed_as_the_pod_wrote_them() {
    let pod = Server::start(instant()).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", std::slice::from_ref(&pod)));
    for fault in [
        json!({}),
        json!({"split": 1}),
        json!({"split": 7}),
        json!({"chunk_extensions": true}),
        json!({"trailers": true}),
        json!({"chunk_extensions": true, "trailers": true, "split": 3}),
        json!({"until_close": true}),
        json!({"interim": 103}),
        json!({"close": true}),
        json!({"close_silently": true}),
        json!({"error_after": 3}),
    ] {
        for stream in [true, false] {
            let (direct, relayed) = both(pod.addr, gateway.address, &fault, stream);
            assert!(!direct.is_empty());
            assert_eq!(relayed, direct, "{fault}, stream: {stream}");
        }
    }
    gateway.wait_idle();
}

/// What a client gets behind the head, by way of the gateway and not. `created` is the only thing
/// in an answer that changes: the two are asked again until they have been in one second.
fn both(pod: SocketAddr, gateway: SocketAddr, fault: &Value, stream: bool) -> (String, String) {
    let mut pairs =
        (0..20).map(|_| (behind_head(pod, fault, stream), behind_head(gateway, fault, stream)));
    let same_second = |(direct, relayed): &(String, String)| created(direct) == created(relayed);
    pairs.find(same_second).expect("two answers within one second")
}

fn created(answer: &str) -> Option<&str> {
    answer.split("\"created\":").nth(1)?.split(',').next()
}

/// Everything from the end of the final head to the end of the connection, framing included.
fn behind_head(address: SocketAddr, fault: &Value, stream: bool) -> String {
    let body = chat("base", 5, stream).to_string();
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        socket,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         content-type: application/json\r\nx-request-id: same\r\nx-engine-fault: {fault}\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let mut rest = answer.as_str();
    while let Some((head, behind)) = rest.split_once("\r\n\r\n") {
        rest = behind;
        if !head.starts_with("HTTP/1.1 1") {
            break;
        }
    }
    rest.to_owned()
}

#[test]
fn each_event_arrives_before_the_next_is_produced() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let mut client = Client::connect(gateway.address);
    client.post("/v1/chat/completions", &chat("base", 9, true));
    let mut taken = pods[0].take();
    taken.send(STREAM);
    for number in 0..20 {
        let event = format!("data: {{\"n\":{number}}}\n\n");
        taken.send(chunk(&event));
        // The pod writes nothing more until the client has this.
        assert!(client.read_until(&event).ends_with("\r\n"));
    }
    // An event in two writes, the cut within a letter of two bytes and within the chunk's end.
    let event = chunk("data: {\"t\":\"é\"}\n\n");
    let within = memchr::memchr(0xa9, &event).unwrap();
    let (first, rest) = event.split_at(within);
    let (second, third) = rest.split_at(rest.len() - 1);
    for part in [first, second, third] {
        taken.send(part);
        sleep(SPLIT);
    }
    // Two events in one write.
    taken.send([chunk("data: {\"n\":21}\n\n"), chunk("data: {\"n\":22}\n\n")].concat());
    let seen = client.read_until("\"n\":22}\n\n");
    assert!(seen.contains("\"t\":\"é\"}") && seen.contains("\"n\":21}"), "{seen}");
    taken.send([&chunk("data: [DONE]\n\n"), LAST.as_bytes()].concat());
    assert!(client.read_until("0\r\n\r\n").contains("data: [DONE]\n\n"));
    gateway.wait_idle();
}

#[test]
fn comments_before_the_first_token_are_held_and_come_first() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let mut client = Client::connect(gateway.address);
    client.post("/v1/chat/completions", &chat("base", 2, true));
    let mut taken = pods[0].take();
    taken.send(STREAM);
    for _ in 0..3 {
        taken.send(chunk(": keep-alive\n\n"));
    }
    assert!(client.is_silent(QUIET), "a head was passed on before the first token");
    taken.send(chunk("data: {\"n\":1}\n\n"));
    let seen = client.read_until("\"n\":1}\n\n\r\n");
    let body = seen.split_once("\r\n\r\n").unwrap().1;
    let comment = String::from_utf8(chunk(": keep-alive\n\n")).unwrap();
    assert_eq!(body, format!("{comment}{comment}{comment}f\r\ndata: {{\"n\":1}}\n\n\r\n"));
    // Later ones are not held.
    taken.send(chunk(": keep-alive\n\n"));
    client.read_until(": keep-alive\n\n");
    taken.send(LAST);
    client.read_until(LAST);
}

#[test]
fn a_queued_request_with_keep_alives_is_answered_in_order() {
    let mut options = instant();
    options.limits.max_num_seqs = 1;
    options.gpu.decode_us = 20_000;
    options.faults = Faults { keep_alive_ms: Some(20), ..Faults::default() };
    let pod = Server::start(options).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", std::slice::from_ref(&pod)));
    let mut clients: Vec<_> = (0..3).map(|_| Client::connect(gateway.address)).collect();
    for client in &mut clients {
        client.post("/v1/chat/completions", &chat("base", 8, true));
    }
    for client in &mut clients {
        let response = client.response();
        assert_eq!((response.status, response.complete), (200, true));
        let events = response.events();
        assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
        for number in 1..=8 {
            let token = format!(" w{number:04}");
            assert_eq!(events.iter().filter(|event| event.contains(&token)).count(), 1, "{token}");
        }
    }
}

// Field reports 2 and 5, reports against the reference picker 5.
#[test]
fn picker_report_5_usage_is_counted_once_whatever_the_line_ends() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let usage =
        r#"{"choices":[],"usage":{"prompt_tokens":9,"total_tokens":17,"completion_tokens":8}}"#;
    let mut client = Client::connect(gateway.address);
    let mut requests = 0;
    for (data, end) in [
        ("data: ", "\n\n"),
        ("data:", "\n\n"),
        ("data: ", "\r\n\r\n"),
        ("data:", "\r\n\r\n"),
        ("data: ", "\r\r"),
    ] {
        let event = |json: &str| format!("{data}{json}{end}");
        let events = [
            event(r#"{"choices":[{"delta":{"content":"x"}}],"usage":null}"#),
            event(usage),
            event("[DONE]"),
        ];
        // All in one chunk, a chunk for each, and the usage in two.
        let whole = chunk(events.concat());
        let each: Vec<u8> = events.iter().flat_map(chunk).collect();
        let (first, second) = events[1].split_at(events[1].len() / 2);
        let halves = [&events[0], first, second, &events[2]].map(chunk).concat();
        for body in [whole, each, halves] {
            client.post("/v1/chat/completions", &chat("base", 8, true));
            let mut taken = pods[0].take();
            taken.send([STREAM.as_bytes(), &body, LAST.as_bytes()].concat());
            taken.keep();
            let response = client.response();
            assert_eq!((response.complete, response.text()), (true, events.concat()));
            requests += 1;
            let total = |what| format!("sluice_pool_{what}_tokens_total{{pool=\"pool-0\"}}");
            gateway.wait_metric(&total("generation"), f64::from(requests * 8));
            gateway.wait_metric(&total("prompt"), f64::from(requests * 9));
        }
    }
    let count = "sluice_pool_request_generation_tokens_count{pool=\"pool-0\"}";
    assert_eq!(gateway.metric(count), Some(f64::from(requests)));
}

#[test]
fn one_streams_numbers() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let mut client = Client::connect(gateway.address);
    client.post("/v1/chat/completions", &chat("base", 3, true));
    let mut taken = pods[0].take();
    // The head says nothing: the time to the first token goes on.
    taken.send(STREAM);
    sleep(GAP);
    taken.send(chunk("data: {\"n\":1}\n\n"));
    sleep(GAP);
    taken.send(chunk("data: {\"n\":2}\n\n"));
    let usage = "data: {\"usage\":{\"prompt_tokens\":70,\"completion_tokens\":3}}\n\n";
    taken.send([&chunk(usage), &chunk("data: [DONE]\n\n"), LAST.as_bytes()].concat());
    assert!(client.response().complete);
    let value = |name: &str| gateway.metric(&format!("sluice_{name}{{pool=\"pool-0\"}}")).unwrap();
    gateway.wait_metric("sluice_pool_requests_total{pool=\"pool-0\",outcome=\"ok\"}", 1.0);
    for count in ["request_duration", "time_to_first_token", "time_per_output_token"] {
        assert_eq!(value(&format!("pool_{count}_seconds_count")), 1.0, "{count}");
    }
    assert_eq!(value("pool_generation_tokens_total"), 3.0);
    assert_eq!(value("pool_prompt_tokens_total"), 70.0);
    let gap = GAP.as_secs_f64();
    let ttft = value("pool_time_to_first_token_seconds_sum");
    let tpot = value("pool_time_per_output_token_seconds_sum");
    let duration = value("pool_request_duration_seconds_sum");
    assert!(ttft >= gap, "{ttft}");
    // Two gaps between three tokens, one of them long; half of that, as the machine may be busy.
    assert!(tpot >= gap / 4.0, "{tpot}");
    assert!(ttft + 2.0 * tpot <= duration, "{ttft} + 2 * {tpot} > {duration}");
    // What the pod took is not the gateway's.
    let overhead = gateway.metric("sluice_gateway_overhead_seconds_sum").unwrap();
    assert!(overhead < duration - 2.0 * gap, "{overhead} of {duration}");
    let pod = &gateway.status()["pools"][0]["pods"][0];
    assert_eq!(
        (&pod["tokens"], &pod["requests"], &pod["failures"]),
        (&json!(3), &json!(1), &json!(0))
    );
}

#[test]
fn a_stream_without_usage_claims_no_exact_tokens() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let mut client = Client::connect(gateway.address);
    client.post("/v1/chat/completions", &chat("base", 3, true));
    let mut taken = pods[0].take();
    // Ended by the connection: there are no chunks to count.
    taken.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {\"n\":1}\n\n");
    taken.send("data: [DONE]\n\n");
    taken.close();
    assert!(client.response().complete);
    gateway.wait_metric("sluice_pool_requests_total{pool=\"pool-0\",outcome=\"ok\"}", 1.0);
    let count = "sluice_pool_request_generation_tokens_count{pool=\"pool-0\"}";
    assert_eq!(gateway.metric(count), Some(0.0), "nothing known is not 0 tokens");
}

/// A pod that takes no time.
fn instant() -> Options {
    Options::on(Gpu::named("instant").unwrap())
}

/// Between two parts of what belongs together, so that they are read apart.
const SPLIT: Duration = Duration::from_millis(20);

/// Long enough to see that nothing comes.
const QUIET: Duration = Duration::from_millis(150);

/// A pause of the pod that shows in the numbers.
const GAP: Duration = Duration::from_millis(200);
