//! Bodies of any framing, chunk and write size arrive byte by byte as the pod wrote them.

use std::thread;
use std::time::Duration;

use sluice_tests::client::{Client, chat};
use sluice_tests::pod::{LAST, RawPod, STREAM, chunk};
use sluice_tests::script::{End, FRAMES, Frame, Script, ScriptPod, usage};
use sluice_tests::soak::ScriptClient;

use super::{Carrier, assert_nothing_left, event, exact, pass_events};

pub(super) fn every_framing_in_chunks_and_writes_of_any_size(carrier: Carrier) {
    let pods = ScriptPod::start_all(2);
    let gateway = carrier.gateway(&pods);
    let mut client = ScriptClient::connect(gateway.address);
    let mut random = fastrand::Rng::with_seed(41);
    let mut id = 0;
    for frame in FRAMES {
        for (length, chunks, writes) in [
            // One event or several to a write, an event in several writes.
            (40_000, (200, 300), (200, 300)),
            (40_000, (20, 60), (500, 2000)),
            (40_000, (800, 2000), (20, 300)),
            // A byte at a time: every split of every chunk header and end.
            (700, (1, 40), (1, 1)),
            (700, (1, 1), (1, 9)),
            (0, (1, 1), (1, 1)),
            (1, (1, 1), (1, 1)),
            // As large as the window and larger.
            (3 << 20, (1, 1 << 20), (1, 1 << 20)),
            (2 << 20, (1 << 20, 1 << 20), (1, 3000)),
            (1 << 20, (1, 3000), (60_000, 1 << 20)),
        ] {
            // Once for what is large.
            let rounds = if length < 100_000 { 0..3 } else { id as usize % 3..id as usize % 3 + 1 };
            for round in rounds {
                let mut script = Script { frame, chunks, writes, ..Script::new(id, length) };
                script.pauses = if length > 1000 && length < 100_000 { 200 } else { 10 };
                script.head_with_body = round == 1;
                // An end by FIN with no event before it is no answer.
                if round != 2 || frame == Frame::UntilClose && length < 32 {
                    script.tail = usage(id + 1);
                }
                script.end = if random.u8(..8) == 0 { End::Close } else { End::Keep };
                id += 1;
                exact(&mut client, &script);
                if frame == Frame::UntilClose {
                    client = ScriptClient::connect(gateway.address);
                }
            }
        }
    }
    drop(client);
    carrier.assert_moved(&gateway, 1 << 20);
    assert_nothing_left(&gateway);
}

pub(super) fn answers_without_a_body_between_streams(carrier: Carrier) {
    let pod = RawPod::start();
    let gateway = carrier.raw_gateway(&pod);
    let mut client = Client::connect(gateway.address);
    let events = "content-type: text/event-stream\r\n";
    for (status, headers) in [
        (204, ""),
        (304, "etag: \"x\"\r\n"),
        (304, "content-length: 500\r\n"),
        (200, "content-length: 0\r\n"),
    ] {
        let case = format!("{status}, {headers:?}");
        client.post("/v1/chat/completions", &chat("base", 9, true));
        let mut taken = pod.take();
        taken.send(format!("HTTP/1.1 {status} Some Words\r\n{events}{headers}\r\n"));
        taken.keep();
        assert_eq!(client.response().status, status, "{case}");
        // The gateway's own answer, also without a body.
        client.send("HEAD /v1/models HTTP/1.1\r\nhost: x\r\n\r\n");
        assert_eq!(client.head().status, 200, "{case}");
        // A byte too many or too few would be seen here.
        client.post("/v1/chat/completions", &chat("base", 9, true));
        let mut taken = pod.take();
        taken.send(STREAM);
        let mut all = String::new();
        for number in 0..30 {
            taken.send(chunk(event(number)));
            all += &event(number);
            thread::sleep(Duration::from_millis(1));
        }
        taken.send(LAST);
        taken.keep();
        let response = client.response();
        assert_eq!((response.status, response.complete), (200, true), "{case}");
        assert!(response.text() == all, "{case}: {}", response.text());
    }
    drop(client);
    carrier.assert_moved(&gateway, 1000);
    assert_nothing_left(&gateway);
}

pub(super) fn interim_heads_before_a_stream(carrier: Carrier) {
    let pod = RawPod::start();
    let gateway = carrier.raw_gateway(&pod);
    let mut client = Client::connect(gateway.address);
    let head = STREAM;
    for (expects, writes) in [
        (false, vec!["HTTP/1.1 100 Continue\r\n\r\n".to_owned(), head.into()]),
        (true, vec!["HTTP/1.1 100 Continue\r\n\r\n".to_owned(), head.into()]),
        (true, vec![format!("HTTP/1.1 100 Continue\r\n\r\n{head}")]),
        (true, vec![head.into()]),
        (
            false,
            vec![
                "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 102 P\r\n\r\n".into(),
                head.into(),
            ],
        ),
    ] {
        let body = chat("base", 9, true).to_string();
        client.send(format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{}content-length: {}\r\n\r\n",
            if expects { "expect: 100-continue\r\n" } else { "" },
            body.len()
        ));
        if expects {
            assert_eq!(client.head().status, 100, "{writes:?}");
        }
        client.send(&body);
        let mut taken = pod.take();
        for write in &writes {
            taken.send(write);
            thread::sleep(Duration::from_millis(20));
        }
        pass_events(&mut client, &mut taken, 0..20);
        taken.send(LAST);
        assert!(client.read_until(LAST).ends_with(LAST));
        taken.keep();
    }
    drop(client);
    carrier.assert_moved(&gateway, 1000);
    assert_nothing_left(&gateway);
}
