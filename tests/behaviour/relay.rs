//! Bodies of any size and framing on their way to a client, and what becomes of the two
//! connections.

use std::thread;

use serde_json::json;
use sluice_tests::client::{Client, Response, chat};
use sluice_tests::gateway::Gateway;
use sluice_tests::pod::{LAST, RawPod, STREAM, Taken, answer, chunk, plan};

/// How a pod frames a body.
#[derive(Clone, Copy, Debug)]
enum Frame {
    Length,
    Chunks,
    UntilClose,
}

#[test]
fn bodies_of_all_sizes_and_framings_are_exact() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let mut random = fastrand::Rng::with_seed(7);
    let edges = [1, 2, 1023, 16 * 1024, 64 * 1024 - 1, 64 * 1024, 64 * 1024 + 1, 1 << 20];
    let drawn: Vec<usize> = (0..12).map(|_| random.usize(1..1 << 20)).collect();
    for size in edges.into_iter().chain(drawn) {
        let body: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(size).collect();
        for frame in [Frame::Length, Frame::Chunks, Frame::UntilClose] {
            for version in ["1.1", "1.0"] {
                let answer = framed(frame, &body, &mut random);
                let response = ask(&gateway, &pods[0], version, &answer, &mut random);
                let case = format!("{size} bytes, {frame:?}, HTTP/{version}");
                assert_eq!((response.status, response.complete), (200, true), "{case}");
                // Not assert_eq: nobody reads a megabyte.
                assert!(response.body == body, "{case}: the body differs");
                let chunked = response.header("transfer-encoding").is_some();
                assert_eq!(chunked, version == "1.1" && matches!(frame, Frame::Chunks), "{case}");
            }
        }
    }
    gateway.wait_idle();
}

fn framed(frame: Frame, body: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    match frame {
        Frame::Length => {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            [head.as_bytes(), body].concat()
        }
        Frame::UntilClose => [b"HTTP/1.1 200 OK\r\n\r\n", body].concat(),
        Frame::Chunks => {
            let mut out = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            let mut rest = body;
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at(random.usize(1..=rest.len().min(200_000)));
                out.extend(chunk(piece));
                rest = behind;
            }
            out.extend_from_slice(LAST.as_bytes());
            out
        }
    }
}

/// One request on a connection of its own, answered in writes of any size.
fn ask(
    gateway: &Gateway,
    pod: &RawPod,
    version: &str,
    answer: &[u8],
    random: &mut fastrand::Rng,
) -> Response {
    let mut client = Client::connect(gateway.address);
    let body = chat("base", 1, false).to_string();
    client.send(format!(
        "POST /v1/completions HTTP/{version}\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ));
    let mut taken = pod.take();
    thread::scope(|scope| {
        // More than sockets hold: it is written while it is read.
        scope.spawn(move || {
            let mut rest = answer;
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at(random.usize(1..=rest.len().min(150_000)));
                taken.send(piece);
                rest = behind;
            }
            taken.close();
        });
        client.response()
    })
}

#[test]
fn a_client_that_reads_late_gets_everything() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let mut client = Client::connect(gateway.address);
    client.post("/v1/chat/completions", &chat("base", 1, true));
    let mut taken = pods[0].take();
    let events: Vec<u8> = (0..40_000)
        .flat_map(|number| chunk(format!("data: {{\"n\":{number},\"pad\":\"{:0>400}\"}}\n\n", 0)))
        .collect();
    let writer = thread::spawn({
        let events = events.clone();
        move || {
            taken.send(STREAM);
            taken.send(events);
            taken.send(LAST);
            taken.keep();
        }
    });
    thread::sleep(std::time::Duration::from_millis(300));
    let response = client.response();
    writer.join().unwrap();
    assert!(response.complete);
    let framed: Vec<u8> =
        response.body.split_inclusive(|byte| *byte == b'\n').fold(Vec::new(), |mut out, line| {
            if line.len() > 1 {
                out.extend(chunk([line, b"\n"].concat()));
            }
            out
        });
    assert!(framed == events, "the stream differs");
}

#[test]
fn interim_heads_are_skipped() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let mut client = Client::connect(gateway.address);
    let last = answer(200, "", "{}");
    for writes in [
        vec!["HTTP/1.1 100 Continue\r\n\r\n", &last],
        vec![
            "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n",
            &last,
        ],
        vec![&*format!("HTTP/1.1 100 Continue\r\n\r\n{last}")],
        vec!["HTTP/1.1 10", "3 Early Hints\r\n\r", &format!("\n{last}")],
    ] {
        client.post("/v1/chat/completions", &chat("base", 1, false));
        let mut taken = pods[0].take();
        for write in &writes {
            taken.send(write);
            thread::sleep(std::time::Duration::from_millis(20));
        }
        taken.keep();
        let response = client.response();
        assert_eq!((response.status, response.text().as_str()), (200, "{}"), "{writes:?}");
        assert!(response.header("link").is_none(), "{writes:?}");
    }
}

#[test]
fn answers_without_a_body_leave_the_connections_usable() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let mut client = Client::connect(gateway.address);
    let mut connection = None;
    for (status, headers) in
        [(204, ""), (304, "etag: \"x\"\r\n"), (304, "content-length: 5\r\n"), (204, "")]
    {
        client.post("/v1/chat/completions", &chat("base", 1, false));
        let mut taken = pods[0].take();
        taken.send(format!("HTTP/1.1 {status} Some Words\r\n{headers}\r\n"));
        let peer = taken.stream.peer_addr().unwrap();
        assert_eq!(*connection.get_or_insert(peer), peer, "a second connection was made");
        taken.keep();
        let response = client.response();
        assert_eq!((response.status, response.body.len()), (status, 0));
    }
    client.post("/v1/chat/completions", &chat("base", 1, false));
    let mut taken = pods[0].take();
    taken.send(answer(200, "", "{}"));
    assert_eq!(client.response().text(), "{}");
}

#[test]
fn a_connection_is_used_again_only_behind_a_clean_end() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let mut client = Client::connect(gateway.address);
    let clean = answer(200, "", "{}");
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    for (first, again) in [
        (clean.clone(), true),
        (chunked.into(), true),
        (answer(200, "connection: close\r\n", "{}"), false),
        (clean.replace("HTTP/1.1", "HTTP/1.0"), false),
        // A second answer that nobody asked for must reach nobody.
        (format!("{clean}{}", answer(200, "", "stolen")), false),
        (format!("{chunked}{}", answer(200, "", "stolen")), false),
    ] {
        client.post("/v1/chat/completions", &chat("base", 1, false));
        let mut taken = pods[0].take();
        taken.send(&first);
        let peer = taken.stream.peer_addr().unwrap();
        taken.keep();
        assert_eq!(client.response().text(), "{}", "{first}");
        client.post("/v1/chat/completions", &chat("base", 1, false));
        let mut taken = pods[0].take();
        assert_eq!(taken.stream.peer_addr().unwrap() == peer, again, "{first}");
        taken.send(answer(200, "connection: close\r\n", "[]"));
        assert_eq!(client.response().text(), "[]", "{first}");
    }
}

// Field reports 36 and 37: pods close idle connections, also at the moment when one is used again.
#[test]
fn field_report_36_37_a_kept_connection_that_the_pod_closed_is_replaced() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let mut client = Client::connect(gateway.address);
    let ends: [fn(Taken); 2] = [Taken::close, Taken::reset];
    for end in ends {
        for while_idle in [true, false] {
            // This connection is kept,
            client.post("/v1/chat/completions", &chat("base", 1, false));
            let mut taken = pods[0].take();
            taken.send(answer(200, "", "{}"));
            assert_eq!(client.response().text(), "{}");
            if while_idle {
                end(taken);
                client.post("/v1/chat/completions", &chat("base", 1, false));
            } else {
                // and closed with the next request in it.
                taken.keep();
                client.post("/v1/chat/completions", &chat("base", 1, false));
                end(pods[0].take());
            }
            let mut taken = pods[0].take();
            taken.send(answer(200, "connection: close\r\n", "[]"));
            let response = client.response();
            assert_eq!((response.status, response.text().as_str()), (200, "[]"));
        }
    }
    let status = gateway.wait_idle();
    assert_eq!(status["pools"][0]["pods"][0]["failures"], json!(0));
}
