//! WebSocket through the gateway: bytes both ways, once the pod has switched and not before.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use serde_json::json;
use sluice_tests::client::Client;
use sluice_tests::gateway::{Gateway, PATIENCE};
use sluice_tests::pod::{RawPod, Taken, answer, nobody, plan};
use sluice_tests::tls::Authority;

use crate::access;
use crate::tls::secure_raw;

/// A client's request to switch, and what it says without waiting.
fn switch(target: &str, early: &str) -> String {
    format!(
        "GET {target} HTTP/1.1\r\nHost: g\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
         X-Request-Id: r1\r\n\r\n{early}"
    )
}

const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

fn exact(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// So many bytes that no buffer on the way holds them all.
fn pattern(seed: u8) -> Vec<u8> {
    (0..8_000_000_usize).map(|at| (at / 7) as u8 ^ seed).collect()
}

fn opened(gateway: &Gateway, pod: &RawPod, early: &str) -> (Client, Taken) {
    let mut client = Client::connect(gateway.address);
    client.send(switch("/v1/realtime?model=base", early));
    (client, pod.take())
}

/// Both talk at once, and neither waits to be heard.
fn talk(client: &mut Client, taken: &Taken) {
    let (to_pod, to_client) = (pattern(1), pattern(2));
    let (mut near, mut far) =
        (client.stream.try_clone().unwrap(), taken.stream.try_clone().unwrap());
    let (sent, other) = (to_pod.clone(), to_client.clone());
    let writers = [
        thread::spawn(move || near.write_all(&sent).unwrap()),
        thread::spawn(move || far.write_all(&other).unwrap()),
    ];
    let mut reading = taken.stream.try_clone().unwrap();
    let length = to_pod.len();
    let at_pod = thread::spawn(move || exact(&mut reading, length));
    assert!(exact(&mut client.stream, to_client.len()) == to_client);
    assert!(at_pod.join().unwrap() == to_pod);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
}

/// A whole connection, from the switch to its end.
pub(crate) fn both_ways(gateway: &Gateway, pod: &RawPod) {
    let (mut client, mut taken) = opened(gateway, pod, "early");
    taken.send([SWITCHED, "hello"].concat());
    assert_eq!(client.head().status, 101);
    assert_eq!(client.read_until("hello"), "hello");
    assert_eq!(exact(&mut taken.stream, 5), b"early");
    talk(&mut client, &taken);
    drop(client);
    taken.wait_closed();
}

#[test]
fn bytes_go_both_ways_over_tls() {
    let (authority, pod) = (Authority::new(), RawPod::start());
    let gateway = Gateway::start(&secure_raw(&authority, &pod));
    let address = authority.speaker(&["http/1.1"], None).tunnel(gateway.address);
    let mut client = Client::connect(address);
    client.send(switch("/v1/realtime?model=base", "early"));
    let mut taken = pod.take();
    taken.send([SWITCHED, "hello"].concat());
    assert_eq!(client.head().status, 101);
    assert_eq!(client.read_until("hello"), "hello");
    assert_eq!(exact(&mut taken.stream, 5), b"early");
    talk(&mut client, &taken);
    drop(client);
    taken.wait_closed();
    gateway.wait_idle();
}

#[test]
fn field_report_51_bytes_go_both_ways_and_count_as_in_flight() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods).spec("  accessLog: true"));
    let (mut client, mut taken) = opened(&gateway, &pods[0], "");
    assert!(taken.head.starts_with("GET /v1/realtime?model=base HTTP/1.1\r\n"), "{}", taken.head);
    for (name, value) in [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("x-request-id", "r1"),
    ] {
        assert_eq!(taken.header(name), Some(value), "{}", taken.head);
    }
    assert_eq!(taken.head.to_ascii_lowercase().matches("connection:").count(), 1);
    // The first words may come with the head.
    taken.send([SWITCHED, "hello"].concat());
    let head = client.head();
    assert_eq!(head.status, 101);
    assert_eq!(head.header("upgrade"), Some("websocket"));
    assert_eq!(head.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    assert_eq!(client.read_until("hello"), "hello");
    client.send("hi");
    assert_eq!(exact(&mut taken.stream, 2), b"hi");
    talk(&mut client, &taken);
    let in_flight = |status: &serde_json::Value| status["pools"][0]["pods"][0]["in_flight"] == 1;
    gateway.wait("the connection to be in flight", in_flight);
    drop(client);
    taken.wait_closed();
    gateway.wait_idle();
    let outcome = "sluice_pool_requests_total{pool=\"pool-0\",outcome=\"ok\"}";
    gateway.wait_metric(outcome, 1.0);
    let upgraded = "sluice_flow_responses_total{path=\"relay\",reason=\"upgraded\"}";
    assert_eq!(gateway.metric(upgraded), Some(1.0));
    let line = &access::lines(&gateway, 1)[0];
    for (name, value) in [
        ("url", json!("/v1/realtime")),
        ("status", json!(101)),
        ("model", json!("base")),
        ("outcome", json!("ok")),
        ("bytes_out", json!(8_000_005)),
    ] {
        assert_eq!(line[name], value, "{name} in {line:#}");
    }
}

// A pod that has not switched would read what follows as requests.
#[test]
fn field_report_38_nothing_reaches_a_pod_behind_a_request_to_switch_until_it_has() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let hidden = "POST /v1/load_lora_adapter HTTP/1.1\r\nhost: g\r\ncontent-length: 0\r\n\r\n";
    let (mut client, mut taken) = opened(&gateway, &pods[0], hidden);
    assert!(taken.stays(Duration::from_millis(100)));
    taken.send(SWITCHED);
    assert_eq!(client.head().status, 101);
    assert_eq!(exact(&mut taken.stream, hidden.len()), hidden.as_bytes());
    drop(taken);
    drop(client);
    // One that refuses: its answer is passed on, and what came behind is nobody's request.
    let (mut client, mut taken) = opened(&gateway, &pods[0], hidden);
    taken.send(answer(403, "x-own: 1\r\n", "no"));
    let response = client.response();
    assert_eq!(
        (response.status, response.text(), response.header("x-own")),
        (403, "no".into(), Some("1"))
    );
    assert!(client.is_closed());
    let mut behind = Vec::new();
    taken.stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    // Its end, or that nothing comes.
    let _ = taken.stream.read_to_end(&mut behind);
    assert_eq!(String::from_utf8_lossy(&behind), "");
    drop(taken);
    assert!(pods[0].take_within(Duration::from_millis(100)).is_none());
    // Elsewhere the wish is not passed on.
    let mut client = Client::connect(gateway.address);
    let body = "{\"model\":\"base\"}";
    client.send(format!(
        "POST /v1/embeddings HTTP/1.1\r\nhost: g\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    ));
    let mut taken = pods[0].take();
    assert!(taken.header("upgrade").is_none() && taken.header("connection").is_none());
    // Nor may a pod switch unasked.
    taken.send(SWITCHED);
    assert_eq!(client.response().status, 502);
}

#[test]
fn a_request_to_switch_needs_a_model_that_is_served() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    for (target, status, code, param) in [
        ("/v1/realtime", 400, "model_missing", Some("model")),
        ("/v1/realtime?model=", 400, "model_missing", Some("model")),
        ("/v1/realtime?model=base&model=other", 400, "model_missing", Some("model")),
        ("/v1/realtime?model=other", 404, "model_not_found", Some("model")),
        ("/server_info?model=base", 404, "unknown_url", None),
    ] {
        let mut client = Client::connect(gateway.address);
        client.send(switch(target, ""));
        client.response().assert_error(status, code, param);
    }
    for lines in ["", "upgrade: websocket\r\n", "connection: upgrade\r\nupgrade: h2c\r\n"] {
        let mut client = Client::connect(gateway.address);
        client.send(format!("GET /v1/realtime?model=base HTTP/1.1\r\nhost: g\r\n{lines}\r\n"));
        client.response().assert_error(400, "websocket_required", None);
    }
    assert!(pods[0].take_within(Duration::ZERO).is_none());
}

#[test]
fn a_pod_that_cannot_be_reached_is_passed_over() {
    let pods = [RawPod::start()];
    let mut plan = plan(&pods);
    plan.pools[0].1.insert(0, nobody(8));
    let gateway = Gateway::start(&plan);
    for _ in 0..4 {
        let (mut client, mut taken) = opened(&gateway, &pods[0], "");
        taken.send(SWITCHED);
        assert_eq!(client.head().status, 101);
        // The pod ends it, and the client hears all that it said before.
        taken.send("bye");
        taken.close();
        assert_eq!(client.read_until("bye"), "bye");
        assert!(client.is_closed());
    }
    gateway.wait_idle();
}

#[test]
fn silence_of_both_ends_it() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods).spec("  limits: {streamIdleTimeout: 300ms}"));
    let (mut client, mut taken) = opened(&gateway, &pods[0], "");
    taken.send(SWITCHED);
    assert_eq!(client.head().status, 101);
    // Either side keeps it alive.
    for _ in 0..4 {
        thread::sleep(Duration::from_millis(150));
        client.send("x");
        assert_eq!(exact(&mut taken.stream, 1), b"x");
    }
    assert!(client.is_closed());
    taken.wait_closed();
    gateway.wait_metric("sluice_pool_requests_total{pool=\"pool-0\",outcome=\"timed_out\"}", 1.0);
    gateway.wait_idle();
}

// Whoever talks does not keep a connection alive on which the other side takes nothing.
#[test]
fn a_side_that_takes_nothing_is_ended_while_it_talks() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods).spec("  limits: {streamIdleTimeout: 500ms}"));
    let outcome =
        |name: &str| format!("sluice_pool_requests_total{{pool=\"pool-0\",outcome=\"{name}\"}}");
    for (client_reads, ended) in [(false, "client_gone"), (true, "timed_out")] {
        let (mut client, mut taken) = opened(&gateway, &pods[0], "");
        taken.send(SWITCHED);
        assert_eq!(client.head().status, 101);
        // Both say more than any buffer holds; one of them listens.
        let (near, far) = (client.stream.try_clone().unwrap(), taken.stream.try_clone().unwrap());
        let talks = |mut stream: TcpStream| {
            thread::spawn(move || while stream.write_all(&[b'x'; 1000]).is_ok() {})
        };
        let talkers = [talks(near.try_clone().unwrap()), talks(far.try_clone().unwrap())];
        let mut heard = if client_reads { near } else { far };
        let listener = thread::spawn(move || {
            heard.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut bytes = [0; 64 * 1024];
            while matches!(heard.read(&mut bytes), Ok(1..)) {}
        });
        gateway.wait_metric(&outcome(ended), 1.0);
        gateway.wait_idle();
        drop((client, taken));
        listener.join().unwrap();
        talkers.into_iter().for_each(|talker| talker.join().unwrap());
    }
}
