//! What a client may take: time, connections, memory. Whoever takes too much is told so and let go,
//! and the others notice nothing.

use std::io::Write as _;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use sluice_tests::client::{Client, chat, get, post};
use sluice_tests::engine::{Faults, Options, Server};
use sluice_tests::gateway::{Gateway, Plan};
use socket2::SockRef;

use crate::recorder::Recorder;

// Field reports 41: a head that does not come, in whole or at all.
#[test]
fn field_report_41_clients_that_send_no_whole_head_are_let_go_while_others_are_served() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods).spec("  limits: {headerTimeout: 1s}"));
    let mut other = Client::connect(gateway.address);
    let mut half_open = Vec::new();
    for sent in ["", "\r\n", "P", "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nx-long: "] {
        for _ in 0..50 {
            let mut client = Client::connect(gateway.address);
            client.send(sent);
            half_open.push((sent, client));
        }
    }
    let mut answered = 0;
    loop {
        other.post("/v1/chat/completions", &chat("base", 1, false));
        assert_eq!(other.response().status, 200);
        answered += 1;
        if gateway.status()["connections"] == 1 {
            break;
        }
    }
    assert!(answered > 2, "{answered} requests were answered meanwhile");
    for (sent, client) in &mut half_open {
        // Who has begun a request is told what was wrong with it.
        if !sent.trim_ascii().is_empty() {
            client.response().assert_error(408, "header_timeout", None);
        }
        assert!(client.is_closed());
    }
    assert_eq!(refused(&gateway, "slow"), 100.0);
    // The limit is one for heads, not for the time between requests.
    thread::sleep(Duration::from_millis(1100));
    other.post("/v1/chat/completions", &chat("base", 1, false));
    assert_eq!(other.response().status, 200);
}

#[test]
fn a_head_that_trickles_in_is_no_longer_waited_for() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan().spec("  limits: {headerTimeout: 300ms}"));
    // Once as a connection's first request and once as a later one.
    for later in [false, true] {
        let mut client = Client::connect(gateway.address);
        if later {
            client.send("GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n");
            assert_eq!(client.response().status, 200);
        }
        let sent = trickle(
            &client.stream,
            b"GET /v1/models HTTP/1.1\r\nx: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy",
            100,
        );
        assert!(sent < 100, "all was taken");
        client.response().assert_error(408, "header_timeout", None);
    }
}

#[test]
fn field_report_41_a_body_that_stops_or_trickles_is_no_longer_waited_for() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan().spec("  limits: {bodyTimeout: 300ms}"));
    let lengths = ["content-length: 5000\r\n", "transfer-encoding: chunked\r\n"];
    for length in lengths {
        let mut client = Client::connect(gateway.address);
        client.send(head(length));
        client.response().assert_error(408, "body_timeout", None);
        assert!(client.is_closed());
        // Never silent for as long as the limit, and never done.
        let mut client = Client::connect(gateway.address);
        client.send(head(length));
        let piece: &[u8] = if length.starts_with('c') { b" " } else { b"1\r\n \r\n" };
        let sent = trickle(&client.stream, piece, 100);
        assert!(sent < 100, "all was taken");
        client.response().assert_error(408, "body_timeout", None);
    }
    assert_eq!((refused(&gateway, "slow"), pod.recorded().len()), (4.0, 0));
}

// Else a few large bodies, each with a byte to come now and then, would hold the memory of all for hours.
#[test]
fn field_report_41_what_came_fast_buys_no_time_for_what_comes_slowly() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan().spec("  limits: {bodyTimeout: 300ms}"));
    let begun = " ".repeat(200_000);
    for (length, begun, piece) in [
        ("content-length: 400000\r\n", begun.clone(), &b" "[..]),
        ("transfer-encoding: chunked\r\n", format!("30d40\r\n{begun}\r\n"), b"1\r\n \r\n"),
    ] {
        let mut client = Client::connect(gateway.address);
        client.send(head(length) + &begun);
        let sent = trickle(&client.stream, piece, 200);
        assert!(sent < 200, "all was taken");
        client.response().assert_error(408, "body_timeout", None);
        assert!(client.is_closed());
    }
    assert_eq!((refused(&gateway, "slow"), pod.recorded().len()), (2.0, 0));
}

#[test]
fn a_body_that_takes_too_long_in_all_is_no_longer_waited_for() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan().spec("  limits: {bodyTimeout: 100ms}"));
    let mut client = Client::connect(gateway.address);
    client.send(head("content-length: 10000000\r\n"));
    // Always fast enough, and with far more to come.
    let piece = " ".repeat(2000);
    let mut sent = 0;
    while client.stream.write_all(piece.as_bytes()).is_ok() {
        sent += piece.len();
        assert!(sent < 5_000_000, "all was taken");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!((refused(&gateway, "slow"), pod.recorded().len()), (1.0, 0));
}

// Whatever large bodies hold, a prompt of ordinary size finds room.
#[test]
fn large_bodies_do_not_keep_ordinary_ones_out() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan().spec("  limits: {maxBufferedBytes: 4Mi}"));
    let mut held = Vec::new();
    loop {
        let mut client = Client::connect(gateway.address);
        client.send(head("content-length: 1040000\r\n") + &" ".repeat(1_039_999));
        if !client.is_silent(Duration::from_millis(300)) {
            client.response().assert_error(503, "body_memory", None);
            break;
        }
        held.push(client);
    }
    assert!((2..=4).contains(&held.len()), "{} were let in", held.len());
    let body = format!(r#"{{"x":"{}","model":"base"}}"#, "y".repeat(200_000));
    let mut client = Client::connect(gateway.address);
    client.send(head(&format!("content-length: {}\r\n", body.len())) + &body);
    assert_eq!(client.response().status, 200);
}

#[test]
fn a_body_that_comes_slowly_but_steadily_is_read() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan().spec("  limits: {bodyTimeout: 1s}"));
    let (piece, count) = (" ".repeat(32 * 1024), 14);
    let mut client = Client::connect(gateway.address);
    client.send(head(&format!("content-length: {}\r\n", count * piece.len() + 16)));
    // In all for longer than the limit.
    for _ in 0..count {
        client.send(&piece);
        thread::sleep(Duration::from_millis(100));
    }
    client.send(r#"{"model":"base"}"#);
    assert_eq!(client.response().status, 200);
}

#[test]
fn an_idle_connection_is_closed_without_a_word() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan().spec("  limits: {idleTimeout: 1s}"));
    let mut client = Client::connect(gateway.address);
    client.send("GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n");
    assert_eq!(client.response().status, 200);
    assert!(client.is_closed());
}

#[test]
fn a_client_that_never_reads_its_answer_is_let_go() {
    let length = 50_000_000;
    let mut answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n").into_bytes();
    answer.resize(answer.len() + length, b'x');
    let pod = Recorder::answering(answer);
    let gateway =
        Gateway::start(&pod.plan().spec("  limits: {streamIdleTimeout: 500ms}\n  workers: 1"));
    let mut client = Client::connect(gateway.address);
    client.post("/v1/x", &chat("base", 1, false));
    gateway.wait("the answer to be under way", |status| in_flight(status) == 1);
    // One worker serves both.
    assert_eq!(get(gateway.address, "/v1/models").status, 200);
    let status = gateway.wait("the client to be let go", |status| in_flight(status) == 0);
    assert_eq!(status["connections"], 0);
    assert!(!client.response().complete);
    // One that reads slowly but steadily is no trouble.
    client = Client::connect(gateway.address);
    client.post("/v1/x", &chat("base", 1, false));
    let mut response = client.head();
    thread::sleep(Duration::from_millis(300));
    client.body(&mut response);
    assert_eq!((response.complete, response.body.len()), (true, length));
}

#[test]
fn a_client_that_asks_on_and_on_and_never_reads_is_let_go() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan());
    let client = Client::connect(gateway.address);
    SockRef::from(&client.stream).set_recv_buffer_size(4096).unwrap();
    let mut stream = client.stream.try_clone().unwrap();
    let request = "GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n".repeat(1000);
    // Ends when the gateway closes the connection.
    thread::spawn(move || while stream.write_all(request.as_bytes()).is_ok() {});
    gateway.wait("the flood to begin", |status| status["connections"] == 1);
    assert_eq!(get(gateway.address, "/health").status, 200);
    gateway.wait("the client to be let go", |status| status["connections"] == 0);
    assert!(gateway.resident() < 200_000_000);
}

#[test]
fn connections_above_the_limit_are_refused_until_one_ends() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan().spec("  limits: {maxConnections: 3}"));
    let mut open: Vec<Client> = (0..3).map(|_| Client::connect(gateway.address)).collect();
    gateway.wait("three connections", |status| status["connections"] == 3);
    for _ in 0..5 {
        let mut client = Client::connect(gateway.address);
        client.post("/v1/x", &chat("base", 1, false));
        let response = client.response();
        response.assert_error(503, "too_many_connections", None);
        assert_eq!(
            (response.header("retry-after"), response.header("connection")),
            (Some("1"), Some("close"))
        );
        assert!(client.is_closed());
    }
    assert_eq!(refused(&gateway, "too_many_connections"), 5.0);
    for client in &mut open {
        client.post("/v1/x", &chat("base", 1, false));
        assert_eq!(client.response().status, 200);
    }
    open.pop();
    gateway.wait("two connections", |status| status["connections"] == 2);
    assert_eq!(post(gateway.address, "/v1/x", &chat("base", 1, false)).status, 200);
    assert_eq!(pod.recorded().len(), 4);
}

#[test]
fn bodies_share_a_bounded_memory() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan().spec("  limits: {maxBufferedBytes: 1Mi}"));
    let body = format!(r#"{{"x":"{}","model":"base"}}"#, "y".repeat(600_000));
    let (first, second) = body.split_at(500_000);
    let begun = |head: String, part: &str| {
        let mut client = Client::connect(gateway.address);
        client.send(head);
        client.send(part);
        client
    };
    let length = format!("content-length: {}\r\n", body.len());
    let chunk = |part: &str| format!("{:x}\r\n{part}\r\n", part.len());
    let mut kept = begun(head(&length), first);
    let left = begun(head("transfer-encoding: chunked\r\n"), &chunk(&first[..200_000]));
    gateway.wait("both parts to be held", |status| held(status) >= 700_000);
    for mut client in [
        begun(head(&length), &body),
        begun(head("transfer-encoding: chunked\r\n"), &(chunk(&body) + "0\r\n\r\n")),
    ] {
        let response = client.response();
        response.assert_error(503, "body_memory", None);
        assert_eq!(response.header("retry-after"), Some("1"));
        assert!(client.is_closed());
    }
    assert_eq!(refused(&gateway, "buffers_full"), 2.0);
    // Those that were let in are not the worse for it.
    kept.send(second);
    assert_eq!(kept.response().status, 200);
    assert!(pod.last().body == body.as_bytes());
    // Who leaves gives back what was held for it.
    drop(left);
    gateway.wait("nothing to be held", |status| held(status) == 0);
    kept.send(head(&length) + &body);
    assert_eq!(kept.response().status, 200);
}

#[test]
fn memory_is_taken_for_what_has_come_and_not_for_what_is_announced() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan());
    let before = gateway.resident();
    let clients: Vec<Client> = (0..100)
        .map(|_| {
            let mut client = Client::connect(gateway.address);
            client.send(head("content-length: 60000000\r\n") + "{\"x\":");
            client
        })
        .collect();
    let status = gateway.wait("all to be served", |status| status["connections"] == clients.len());
    assert!(held(&status) < 10_000_000, "{}", held(&status));
    assert!(gateway.resident() < before + 50_000_000);
}

// Field reports 34: a body is held once.
#[test]
fn field_report_34_large_bodies_are_not_held_twice() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    // It takes the bodies and does not answer: they are held in case that another pod must be
    // tried.
    pods[0].fault(Faults { no_answer: true, ..Faults::default() });
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let before = gateway.resident();
    let body = format!(r#"{{"x":"{}","model":"base"}}"#, "y".repeat(15_000_000));
    let message = |chunked: bool| match chunked {
        false => head(&format!("content-length: {}\r\n", body.len())) + &body,
        true => {
            let chunks: String = ["", &body[..5_000_000], &body[5_000_000..]]
                .iter()
                .skip(1)
                .map(|part| format!("{:x}\r\n{part}\r\n", part.len()))
                .collect();
            head("transfer-encoding: chunked\r\n") + &chunks + "0\r\n\r\n"
        }
    };
    let clients: Vec<Client> = (0..4)
        .map(|index| {
            let mut client = Client::connect(gateway.address);
            client.send(message(index % 2 == 0));
            client
        })
        .collect();
    gateway.wait("four requests at the pod", |status| {
        in_flight(status) == 4 && held(status) >= 4 * body.len()
    });
    let grown = gateway.resident() - before;
    assert!(grown < 6 * body.len() as u64, "{grown} bytes for four bodies of {}", body.len());
    drop(clients);
    gateway.wait("nothing to be held", |status| held(status) == 0);
}

/// Sends a byte every 20 ms, over and over, at most so many. Returns how many were sent when the
/// gateway had enough.
fn trickle(mut stream: &TcpStream, bytes: &[u8], most: usize) -> usize {
    let pause = Duration::from_millis(20);
    for (sent, byte) in bytes.iter().cycle().take(most).enumerate() {
        stream.set_read_timeout(Some(pause)).expect("a timeout can be set");
        let mut answer = [0];
        let answered = stream.peek(&mut answer).is_ok();
        if answered || stream.write_all(&[*byte]).is_err() {
            stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout can be set");
            return sent;
        }
    }
    most
}

/// The head of a POST with this header line.
fn head(length: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\n\
         content-type: application/json\r\n{length}\r\n"
    )
}

fn refused(gateway: &Gateway, reason: &str) -> f64 {
    gateway.metric(&format!("sluice_gateway_refused_total{{reason=\"{reason}\"}}")).unwrap_or(0.0)
}

fn in_flight(status: &Value) -> u64 {
    sluice_tests::gateway::pods(status).map(|pod| pod["in_flight"].as_u64().unwrap_or(0)).sum()
}

fn held(status: &Value) -> usize {
    status["buffered_bytes"].as_u64().expect("a number") as usize
}
