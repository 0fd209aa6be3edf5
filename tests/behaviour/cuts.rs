//! Answers that break off once content has been passed on: the client sees that it was cut, and
//! nobody asks another pod.

use std::io::{ErrorKind, Read as _};
use std::time::Duration;

use serde_json::json;
use sluice_tests::client::{Client, chat};
use sluice_tests::engine::{Options, Server};
use sluice_tests::gateway::{Gateway, Plan};
use sluice_tests::pod::{LAST, RawPod, STREAM, Signals, Taken, chunk, plan};

/// How a pod breaks off.
struct End {
    name: &'static str,
    end: fn(Taken),
}

const EVENT: &str = "data: {\"n\":1}\n\n";

/// How the body is framed, as the pod sends it.
fn begun(frame: &str) -> Vec<u8> {
    match frame {
        "chunks" => [STREAM.as_bytes(), &chunk(EVENT)].concat(),
        "length" => format!("HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n{EVENT}").into_bytes(),
        _ => format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{EVENT}")
            .into_bytes(),
    }
}

// Field reports 18 and 19.
#[test]
fn field_report_18_19_a_cut_answer_is_seen_to_be_cut_and_not_asked_for_again() {
    let pods = RawPod::start_all(2);
    pods[1].tell(Signals { running: 4, waiting: 4, kv_usage: 0.5 });
    let gateway = Gateway::start(&plan(&pods));
    let ends = [
        End { name: "FIN", end: Taken::close },
        End { name: "RST", end: Taken::reset },
        End {
            name: "half a chunk",
            end: |mut taken| {
                taken.send("ff\r\ndata: ");
                taken.close();
            },
        },
        End {
            name: "broken chunks",
            end: |mut taken| {
                taken.send("no size\r\n");
                taken.close();
            },
        },
    ];
    let mut cut = 0.0;
    for version in ["1.1", "1.0"] {
        for frame in ["chunks", "length", "close"] {
            for End { name, end } in &ends {
                if name.contains("chunk") && frame != "chunks" {
                    continue;
                }
                // Without a length or chunks, a FIN is the end of the body.
                if frame == "close" && *name == "FIN" {
                    continue;
                }
                let case = format!("{frame}, {name}, HTTP/{version}");
                let mut client = Client::connect(gateway.address);
                let body = chat("base", 9, true).to_string();
                client.send(format!(
                    "POST /v1/chat/completions HTTP/{version}\r\nhost: x\r\n\
                     content-length: {}\r\n\r\n{body}",
                    body.len()
                ));
                let mut taken = pods[0].take();
                taken.send(begun(frame));
                let mut seen = client.read_until(EVENT);
                end(taken);
                let ended = rest(&mut client, &mut seen);
                if frame == "length" || frame == "chunks" && version == "1.1" {
                    // Any end will do, as long as it is not that of the body.
                    assert!(!seen.contains("\r\n0\r\n\r\n"), "{case}: {seen:?}");
                    assert!(!seen.contains("[DONE]"), "{case}: {seen:?}");
                } else {
                    assert_eq!(ended, Some(ErrorKind::ConnectionReset), "{case}: {seen:?}");
                }
                assert!(pods[1].take_within(QUIET).is_none(), "{case}: asked again");
                cut += 1.0;
                gateway.wait_metric(
                    "sluice_pool_requests_total{pool=\"pool-0\",outcome=\"aborted\"}",
                    cut,
                );
            }
        }
    }
    let status = gateway.wait_idle();
    assert_eq!(status["pools"][0]["pods"][0]["failures"], json!(cut as u64));
    assert_eq!(gateway.metric("sluice_pool_retries_total{pool=\"pool-0\"}"), Some(0.0));
}

/// Reads to the end of the connection. Returns how it ended, if not orderly.
fn rest(client: &mut Client, seen: &mut String) -> Option<ErrorKind> {
    let mut more = Vec::new();
    let ended = client.stream.read_to_end(&mut more);
    seen.push_str(&String::from_utf8_lossy(&more));
    ended.err().map(|error| error.kind())
}

/// Of a slow client most is still in the gateway's socket when the answer ends; a close that becomes a reset
/// would take it along. Unread bytes, as of a next request, make every close one.
#[test]
fn what_came_before_the_end_arrives_before_it_however_slow_the_client() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let long = "#".repeat(200_000);
    for (frame, version, reset) in
        [("chunks", "1.1", false), ("close", "1.1", false), ("chunks", "1.0", true)]
    {
        let mut client = Client::slow(gateway.address);
        let body = chat("base", 9, true).to_string();
        let request = format!(
            "POST /v1/chat/completions HTTP/{version}\r\nhost: x\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        client.send(&request);
        let mut taken = pods[0].take();
        let begun = begun(frame).into_iter();
        let more = if frame == "chunks" { chunk(&long) } else { long.clone().into_bytes() };
        taken.send(begun.chain(more).collect::<Vec<u8>>());
        let mut seen = client.read_until(EVENT);
        client.send(&request);
        taken.close();
        gateway.wait_idle();
        let ended = rest(&mut client, &mut seen);
        let case = format!("{frame}, HTTP/{version}: {} bytes, {ended:?}", seen.len());
        assert_eq!(seen.matches('#').count(), long.len(), "{case}");
        assert_eq!(ended, reset.then_some(ErrorKind::ConnectionReset), "{case}");
    }
}

#[test]
fn the_end_of_the_connection_is_an_end_where_nothing_else_is() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let mut client = Client::connect(gateway.address);
    client.post("/v1/chat/completions", &chat("base", 9, true));
    let mut taken = pods[0].take();
    taken.send(begun("close"));
    taken.send("data: [DONE]\n\n");
    taken.close();
    let response = client.response();
    assert_eq!((response.complete, response.text()), (true, format!("{EVENT}data: [DONE]\n\n")));
    gateway.wait_metric("sluice_pool_requests_total{pool=\"pool-0\",outcome=\"ok\"}", 1.0);
}

// Field report 9. vLLM ends such a stream in good order.
#[test]
fn field_report_9_an_error_event_is_passed_on_and_is_a_failure() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let mut client = Client::connect(gateway.address);
    let mut failed = 0.0;
    let long = format!("data: {{\"error\": {{\"message\": \"{}\"}}}}\n\n", "x".repeat(5000));
    for error in [
        "data: {\"error\": {\"message\": \"EngineCore encountered an issue.\", \"code\": 500}}\n\n",
        "data:{\"error\":{\"message\":\"x\"}}\r\n\r\n",
        &long,
    ] {
        for pieces in [1, 3] {
            client.post("/v1/chat/completions", &chat("base", 9, true));
            let mut taken = pods[0].take();
            taken.send(begun("chunks"));
            for piece in error.as_bytes().chunks(error.len().div_ceil(pieces)) {
                taken.send(chunk(piece));
                std::thread::sleep(SPLIT);
            }
            taken.send([&chunk("data: [DONE]\n\n"), LAST.as_bytes()].concat());
            taken.keep();
            let response = client.response();
            assert!(response.complete);
            assert_eq!(response.text(), format!("{EVENT}{error}data: [DONE]\n\n"));
            failed += 1.0;
            gateway.wait_metric(
                "sluice_pool_requests_total{pool=\"pool-0\",outcome=\"pod_error\"}",
                failed,
            );
        }
    }
    // What a model writes is no error, however much it looks like one.
    client.post("/v1/chat/completions", &chat("base", 9, true));
    let text = "data: {\"choices\":[{\"delta\":{\"content\":\"data: {\\\"error\\\": 1}\"}}]}\n\n";
    pods[0].take().send([STREAM.as_bytes(), &chunk(text), LAST.as_bytes()].concat());
    assert!(client.response().complete);
    gateway.wait_metric("sluice_pool_requests_total{pool=\"pool-0\",outcome=\"ok\"}", 1.0);
    let status = gateway.wait_idle();
    assert_eq!(status["pools"][0]["pods"][0]["failures"], json!(failed as u64));
}

#[test]
fn an_engine_that_dies_mid_stream_is_not_a_clean_end_in_the_counts() {
    let pod = Server::start(Options::default()).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", std::slice::from_ref(&pod)));
    let mut client = Client::connect(gateway.address);
    client.post("/v1/chat/completions", &chat("base", 5000, true));
    client.read_until("w0003");
    pod.kill_engine(None);
    let seen = client.read_until("data: [DONE]");
    assert!(seen.contains("data: {\"error\": {"), "the engine's words are passed on");
    gateway.wait_metric("sluice_pool_requests_total{pool=\"pool-0\",outcome=\"pod_error\"}", 1.0);
    gateway.wait("the pod to be out", |status| {
        let pod = &status["pools"][0]["pods"][0];
        pod["ready"] == false && !pod["trouble"].is_null()
    });
}

#[test]
fn a_stream_that_hangs_is_ended() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods).spec("  limits: {streamIdleTimeout: 1s}"));
    for frame in ["chunks", "length", "close"] {
        let mut client = Client::connect(gateway.address);
        client.post("/v1/chat/completions", &chat("base", 9, true));
        let mut taken = pods[0].take();
        taken.send(begun(frame));
        // Slow is not hanging: together this is longer than the limit.
        let slow = if frame == "chunks" { 4 } else { 0 };
        for _ in 0..slow {
            std::thread::sleep(Duration::from_millis(300));
            taken.send(chunk("#"));
        }
        let mut seen = client.read_until(EVENT);
        let ended = rest(&mut client, &mut seen);
        assert_eq!(seen.matches('#').count(), slow, "{frame}: {seen:?}");
        assert!(!seen.contains("\r\n0\r\n\r\n"), "{frame}: {seen:?}");
        assert_eq!(ended.is_some(), frame == "close", "{frame}");
        taken.wait_closed();
    }
    gateway.wait_metric("sluice_pool_requests_total{pool=\"pool-0\",outcome=\"timed_out\"}", 3.0);
    let status = gateway.wait_idle();
    assert_eq!(status["pools"][0]["pods"][0]["failures"], json!(3));
}

/// It is the client that is slow: nothing of that is the pod's fault.
#[test]
fn a_client_that_never_reads_is_given_up_without_blaming_the_pod() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods).spec("  limits: {streamIdleTimeout: 300ms}"));
    let mut client = Client::connect(gateway.address);
    client.post("/v1/chat/completions", &chat("base", 9, true));
    let mut taken = pods[0].take();
    taken.send(begun("chunks"));
    let event = chunk(format!("data: {}\n\n", "x".repeat(60_000)));
    // Until the gateway takes no more, and then leaves.
    while taken.try_send(&event).is_ok() {}
    gateway.wait_metric("sluice_pool_requests_total{pool=\"pool-0\",outcome=\"client_gone\"}", 1.0);
    let status = gateway.wait_idle();
    assert_eq!(status["pools"][0]["pods"][0]["failures"], json!(0));
}

/// Between two parts of what belongs together, so that they are read apart.
const SPLIT: Duration = Duration::from_millis(20);

/// Long enough to see that nothing comes.
const QUIET: Duration = Duration::from_millis(50);
