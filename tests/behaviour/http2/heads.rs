//! Heads that HTTP/2 can carry and HTTP/1.1 would read as something else: none makes a second request at a pod, which is
//! spoken to in HTTP/1.1.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use sluice_tests::gateway::{Gateway, PATIENCE};
use sluice_tests::pod::{RawPod, answer, plan};

use super::{CHAT, frame, literal, read_frame};

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// The stream or the connection is ended, or the answer is 4xx; no pod sees it.
    Refused,
    /// A pod gets it, as one request with a plain head.
    Passed,
}

#[test]
fn heads_that_would_be_two_in_http_1_are_refused_or_read_as_one() {
    use Fate::{Passed, Refused};
    let pod = RawPod::start();
    let gateway = Gateway::start(&plan(std::slice::from_ref(&pod)));
    let body = r#"{"model":"base"}"#;
    let hidden =
        "x\r\n\r\nPOST /v1/load_lora_adapter HTTP/1.1\r\nhost: g\r\ncontent-length: 0\r\n\r\n";
    let plain: [(&str, &str); 4] =
        [(":method", "POST"), (":scheme", "http"), (":path", CHAT), (":authority", "g")];
    let with = |name: &'static str, value: &'static str| {
        plain.into_iter().chain([(name, value)]).collect::<Vec<_>>()
    };
    let instead = |name: &'static str, value: &'static str| {
        let other = move |field: (&'static str, &'static str)| match field.0 == name {
            true => (name, value),
            false => field,
        };
        plain.into_iter().map(other).collect::<Vec<_>>()
    };
    let without = |name: &'static str| {
        plain.into_iter().filter(move |field| field.0 != name).collect::<Vec<_>>()
    };
    let cases: Vec<(Vec<(&str, &str)>, Fate)> = vec![
        (plain.to_vec(), Passed),
        // What concerns a connection has no place here (RFC 9113 section 8.2.2).
        (with("transfer-encoding", "chunked"), Refused),
        (with("transfer-encoding", "identity"), Refused),
        (with("transfer-encoding", "xchunked"), Refused),
        (with("connection", "close"), Refused),
        (with("connection", "transfer-encoding"), Refused),
        (with("keep-alive", "timeout=5"), Refused),
        (with("proxy-connection", "keep-alive"), Refused),
        (with("upgrade", "websocket"), Refused),
        (with("te", "trailers"), Passed),
        (with("te", "chunked"), Refused),
        // The body has 16 bytes.
        (with("content-length", "16"), Passed),
        (with("content-length", "15"), Refused),
        (with("content-length", "17"), Refused),
        (with("content-length", "0"), Refused),
        (with("content-length", "+16"), Refused),
        (with("content-length", "16, 16"), Refused),
        (with("content-length", "0x10"), Refused),
        (with("content-length", " 16"), Refused),
        ([with("content-length", "16"), vec![("content-length", "0")]].concat(), Refused),
        // Ends of lines, and what is no byte of a value or a name.
        (with("x-odd", hidden), Refused),
        (with("x-odd", "a\nb: c"), Refused),
        (with("x-odd", "a\rb: c"), Refused),
        (with("x-odd", "a\0b"), Refused),
        (with("x-odd\r\nb", "c"), Refused),
        (with("x-odd: b\r\nc", "d"), Refused),
        (with("x odd", "b"), Refused),
        (with("x-odd:", "b"), Refused),
        (with("", "b"), Refused),
        (with("X-Odd", "b"), Refused),
        (with("Content-Length", "16"), Refused),
        (with("Transfer-Encoding", "chunked"), Refused),
        // Pseudo-headers: each once, in front, and no others.
        (with(":path", "/v1/load_lora_adapter"), Refused),
        (with(":method", "GET"), Refused),
        (with(":authority", "other"), Refused),
        (with(":scheme", "https"), Refused),
        (with(":status", "200"), Refused),
        (with(":protocol", "websocket"), Refused),
        (with(":odd", "x"), Refused),
        ([vec![("x-odd", "a")], plain.to_vec()].concat(), Refused),
        (without(":method"), Refused),
        (without(":path"), Refused),
        (without(":scheme"), Refused),
        // Targets.
        (instead(":path", ""), Refused),
        (instead(":path", "*"), Refused),
        (instead(":path", "v1/chat/completions"), Refused),
        (instead(":path", "/v1/chat/completions HTTP/1.1\r\nx: y"), Refused),
        (instead(":path", "/v1/chat/completions\r\n\r\nGET /x HTTP/1.1"), Refused),
        (instead(":path", "/v1/chat completions"), Refused),
        (instead(":path", "/v1/chat/completions\t"), Refused),
        (instead(":path", "/v1/chat/completions#x"), Passed),
        (instead(":path", "http://other/v1/chat/completions"), Refused),
        (instead(":method", "POST /x HTTP/1.1\r\nx: y"), Refused),
        (instead(":method", "PO ST"), Refused),
        (instead(":method", "CONNECT"), Refused),
        (instead(":authority", "g\r\nx: y"), Refused),
        (instead(":authority", "a b"), Refused),
        // Where there is no `:authority`, Host stands for it; beside it, it is the same.
        (with("host", "g"), Passed),
        (with("host", "other"), Refused),
        ([without(":authority"), vec![("host", "g")]].concat(), Passed),
        ([without(":authority"), vec![("host", "a b")]].concat(), Refused),
        ([without(":authority"), vec![("host", "a"), ("host", "b")]].concat(), Refused),
    ];
    let mut wrong = Vec::new();
    for (fields, fate) in &cases {
        let mut client = TcpStream::connect(gateway.address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        client.write_all(&frame(4, 0, 0, &[])).unwrap();
        let block: Vec<u8> = fields.iter().flat_map(|(name, value)| literal(name, value)).collect();
        let request = [frame(1, 4, 1, &block), frame(0, 1, 1, body.as_bytes())].concat();
        client.write_all(&request).unwrap();
        if *fate == Fate::Passed {
            let mut taken = pod.take();
            assert_eq!(String::from_utf8_lossy(&taken.body), body, "{fields:?}");
            let head = taken.head.to_ascii_lowercase();
            assert!(head.starts_with("post /v1/chat/completions http/1.1\r\n"), "{head}");
            for (name, count) in
                [("host:", 1), ("content-length:", 1), ("transfer-encoding:", 0), ("te:", 0)]
            {
                let found = head.lines().filter(|line| line.starts_with(name)).count();
                assert_eq!(found, count, "{name} {fields:?} {head}");
            }
            assert!(!head.contains("host: other"), "{head}");
            // Nothing follows it there.
            assert!(taken.stays(Duration::from_millis(20)), "{fields:?}");
            taken.send(answer(200, "", "{}"));
            taken.keep();
        }
        if outcome(&mut client, &pod) != *fate {
            wrong.push(format!("{fields:?} is not {fate:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(pod.take_within(Duration::from_millis(200)).is_none());
    gateway.wait_idle();
}

/// How the first stream ends.
fn outcome(client: &mut TcpStream, pod: &RawPod) -> Fate {
    loop {
        // What the gateway holds for good is at the pod.
        client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        while client.peek(&mut [0]).is_err() {
            if pod.take_within(Duration::ZERO).is_some() {
                return Fate::Passed;
            }
        }
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let (kind, payload) = read_frame(client);
        match kind {
            // Of an answer's head, the status stands first: HPACK has 200 as one byte.
            1 if payload.first() == Some(&0x88) => return Fate::Passed,
            // Another status, a reset, or the connection's end.
            1 | 3 | 7 => return Fate::Refused,
            _ => {}
        }
    }
}
