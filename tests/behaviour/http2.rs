//! HTTP/2, in clear text and over TLS.

mod heads;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use sluice_tests::client::{Response, chat};
use sluice_tests::gateway::{Gateway, PATIENCE, Plan};
use sluice_tests::http2::{Connection, Exchange, run};
use sluice_tests::pattern::Pattern;
use sluice_tests::pod::{LAST, RawPod, STREAM, answer, chunk, plan};
use sluice_tests::script::{End, FRAMES, Frame, SCRIPT, Script, ScriptPod};
use sluice_tests::tls::{Authority, Identity};
use tokio::task::JoinSet;
use tokio::time::sleep;

// Field report 11: nothing that concerns a connection is sent on, and all events arrive.
#[test]
fn field_report_11_answers_come_whole_in_every_framing_and_without_its_headers() {
    let (authority, pods) = (Authority::new(), ScriptPod::start_all(2));
    let identity = authority.issue("server", &["127.0.0.1"]);
    let plan = Plan { listener: ", protocol: https".into(), ..scripted(&pods) };
    let (plain, secure) = (
        Gateway::start(&scripted(&pods)),
        Gateway::start(&plan.spec(&Identity::spec(&[&identity]))),
    );
    run(async {
        let speaker = authority.speaker(&["h2"], None);
        let connections = [
            Connection::plain(plain.address).await,
            Connection::secure(secure.address, &speaker).await,
        ];
        for (id, (connection, frame)) in (connections.iter())
            .flat_map(|connection| FRAMES.map(|frame| (connection, frame)))
            .enumerate()
        {
            for (chunks, writes) in
                [((1, 40), (1, 40)), ((20, 400), (20, 800)), ((1, 70_000), (1, 1 << 20))]
            {
                let length = if writes.1 == 40 { 3000 } else { 300_000 };
                let script = Script { frame, chunks, writes, ..Script::new(id as u32, length) };
                let response = ask(connection, &script).await.unwrap();
                assert_eq!(response.status, 200);
                assert_eq!(response.body.len() as u64, length, "{frame:?}");
                Pattern::new(script.id).check(0, &response.body).unwrap();
                for name in ["connection", "transfer-encoding", "keep-alive"] {
                    assert_eq!(response.header(name), None, "{frame:?}");
                }
                assert!(response.header("x-request-id").is_some());
            }
        }
    });
    for gateway in [plain, secure] {
        gateway.wait_idle();
        let relayed =
            gateway.metric("sluice_flow_responses_total{path=\"relay\",reason=\"http2\"}");
        assert_eq!(relayed, Some(15.0));
    }
}

#[test]
fn a_hundred_requests_at_once_on_one_connection() {
    let pods = ScriptPod::start_all(4);
    let gateway = Gateway::start(&scripted(&pods));
    run(async {
        let connection = Arc::new(Connection::plain(gateway.address).await);
        let mut all = JoinSet::new();
        for id in 0..100 {
            let connection = Arc::clone(&connection);
            all.spawn(async move {
                let script = Script { pauses: 50, ..Script::new(id, 20_000) };
                let response = ask(&connection, &script).await.unwrap();
                Pattern::new(id).check(0, &response.body).unwrap();
                assert_eq!(response.body.len(), 20_000);
            });
        }
        while let Some(done) = all.join_next().await {
            done.unwrap();
        }
    });
    gateway.wait_idle();
}

// Field report 13, for requests that share a connection.
#[test]
fn field_report_13_a_reset_request_lets_its_pod_go_and_no_other() {
    let pod = RawPod::start();
    let gateway = Gateway::start(&plan(std::slice::from_ref(&pod)));
    run(async {
        let connection = Connection::plain(gateway.address).await;
        let first = connection.post(CHAT, &chat("base", 9, true)).await;
        let given_up = pod.take();
        let second = connection.post(CHAT, &chat("base", 9, true)).await;
        let mut taken = pod.take();
        first.cancel();
        given_up.wait_closed();
        taken.send(answer(200, "", "{}"));
        taken.keep();
        assert_eq!(second.response().await.unwrap().body, b"{}");
        // In the middle of its answer as well.
        let third = connection.post(CHAT, &chat("base", 9, true)).await;
        let mut taken = pod.take();
        taken.send(STREAM);
        taken.send(chunk("data: 1\n\n"));
        let (head, body) = third.head().await.unwrap();
        assert_eq!(head.status, 200);
        drop(body);
        taken.wait_closed();
    });
    gateway.wait_idle();
}

#[test]
fn what_a_pod_cuts_is_reset() {
    let pods = ScriptPod::start_all(1);
    let gateway = Gateway::start(&scripted(&pods));
    run(async {
        let connection = Connection::plain(gateway.address).await;
        for (id, frame) in FRAMES.into_iter().enumerate() {
            for end in [End::Fin(5000), End::Rst(5000)] {
                let cut = Script { frame, end, ..Script::new(id as u32, 20_000) };
                // Where the connection's end is the body's, a FIN is no cut.
                let is_whole = (frame, end) == (Frame::UntilClose, End::Fin(5000));
                let exchange = send(&connection, &cut).await.unwrap();
                let (response, error) = exchange.as_far_as_it_comes().await.unwrap();
                assert_eq!(error.is_none(), is_whole, "{frame:?} {end:?}: {error:?}");
                Pattern::new(cut.id).check(0, &response.body).unwrap();
                // What came before the end is not lost by it; what a reset overtook is.
                if end == End::Fin(5000) {
                    assert!(response.body.len() > 4000, "{frame:?}: {}", response.body.len());
                }
            }
        }
        // The connection is none the worse.
        assert_eq!(ask(&connection, &Script::new(9, 100)).await.unwrap().body.len(), 100);
    });
}

#[test]
fn bodies_with_and_without_a_length_and_over_the_cap() {
    let pod = RawPod::start();
    let plan = plan(std::slice::from_ref(&pod)).spec("  bbr: {maxRequestBodyBytes: 100000}");
    let gateway = Gateway::start(&plan);
    run(async {
        let connection = Connection::plain(gateway.address).await;
        for (length, with_length) in [(100, true), (100, false), (100_000, true), (100_000, false)]
        {
            let body = padded(length);
            let mut request = Request::post("http://gateway/v1/chat/completions");
            if with_length {
                request = request.header("content-length", length);
            }
            let mut exchange = connection.begin(request, false).await.unwrap();
            exchange.body.send_data(Bytes::from(body.clone()), true).unwrap();
            let mut taken = pod.take();
            assert_eq!(taken.body, body, "{length} {with_length}");
            assert_eq!(taken.header("content-length"), Some(length.to_string().as_str()));
            assert_eq!(taken.header("transfer-encoding"), None);
            taken.send(answer(200, "", "{}"));
            taken.keep();
            assert_eq!(exchange.response().await.unwrap().status, 200);
            if length < 100_000 {
                continue;
            }
            let mut request = Request::post("http://gateway/v1/chat/completions");
            if with_length {
                request = request.header("content-length", length + 1);
            }
            let mut exchange = connection.begin(request, false).await.unwrap();
            // Refused by its length alone, or as soon as it has come.
            let _ = exchange.body.send_data(Bytes::from(padded(length + 1)), true);
            exchange.response().await.unwrap().assert_error(413, "request_too_large", None);
        }
    });
    gateway.wait_idle();
}

#[test]
fn heads_are_judged_as_in_http_1() {
    let pod = RawPod::start();
    let gateway = Gateway::start(&plan(std::slice::from_ref(&pod)));
    run(async {
        let connection = Connection::plain(gateway.address).await;
        let get = |path: &str| Request::get(format!("http://gateway{path}"));
        let long = get("/v1/models")
            .header("x-long", "x".repeat(40_000))
            .header("x-longer", "x".repeat(23_000));
        let many =
            (0..300).fold(get("/v1/models"), |request, at| request.header(format!("x-{at}"), "y"));
        for (request, status) in [
            (get("/v1/models"), 200),
            (get("/health"), 200),
            (get("/v1/nothing"), 404),
            (Request::put("http://gateway/v1/models"), 405),
            (get("/v1/models").header("expect", "nothing"), 400),
            (long, 200),
            (many, 431),
        ] {
            let what = format!("{request:?}").chars().take(300).collect::<String>();
            let exchange = connection.begin(request, true).await.unwrap();
            assert_eq!(exchange.response().await.unwrap().status, status, "{what}");
        }
        // Many more than may be are refused by the gateway and not by the protocol: in words, and counted.
        let flood = (0..10_000)
            .fold(get("/v1/models"), |request, at| request.header(format!("x-{at}"), "y"));
        let exchange = connection.begin(flood, true).await.unwrap();
        let refused = exchange.response().await.unwrap();
        refused.assert_error(431, "too_many_headers", None);
        let exchange = connection.post(CHAT, &serde_json::json!({"model": "nope"})).await;
        exchange.response().await.unwrap().assert_error(404, "model_not_found", Some("model"));
    });
    gateway.wait_metric("sluice_gateway_refused_total{reason=\"head_too_large\"}", 2.0);
}

#[test]
fn a_client_that_does_not_read_holds_its_window_and_others_go_on() {
    let pods = ScriptPod::start_all(2);
    let gateway = Gateway::start(&scripted(&pods));
    let before = memory(gateway.pid());
    run(async {
        let connection = Connection::plain(gateway.address).await;
        let mut stuck = Vec::new();
        for id in 0..20 {
            let script = Script {
                chunks: (4000, 8000),
                writes: (4000, 8000),
                pauses: 0,
                ..Script::new(id, 20_000_000)
            };
            let request = request(&script);
            let mut exchange = connection.begin(request, false).await.unwrap();
            exchange.body.send_data(chat("base", 1, true).to_string().into(), true).unwrap();
            stuck.push(exchange.head().await.unwrap());
        }
        sleep(Duration::from_millis(500)).await;
        let grown = memory(gateway.pid()).saturating_sub(before);
        assert!(grown < 20_000_000, "{grown} bytes");
        // By another connection: the windows of this one are full.
        let other = Connection::plain(gateway.address).await;
        assert_eq!(ask(&other, &Script::new(99, 20_000)).await.unwrap().body.len(), 20_000);
        drop(stuck);
    });
    gateway.wait_idle();
}

#[test]
fn slow_bodies_and_silent_connections_are_ended() {
    let pod = RawPod::start();
    let spec = "  limits: {headerTimeout: 300ms, bodyTimeout: 300ms, idleTimeout: 1h}";
    let gateway = Gateway::start(&plan(std::slice::from_ref(&pod)).spec(spec));
    run(async {
        let connection = Connection::plain(gateway.address).await;
        let request = Request::post("http://gateway/v1/chat/completions");
        let mut exchange = connection.begin(request, false).await.unwrap();
        exchange.body.send_data(Bytes::from_static(b"{\"model\":"), false).unwrap();
        exchange.response().await.unwrap().assert_error(408, "body_timeout", None);
        drop(connection);
        // One that never asks for anything is told to go in order, and one that does not even begin is let go.
        Connection::plain(gateway.address).await.ended().await.unwrap();
        let mut silent = TcpStream::connect(gateway.address).unwrap();
        silent.set_read_timeout(Some(PATIENCE)).unwrap();
        silent.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        let mut came = Vec::new();
        let end = silent.read_to_end(&mut came).map_err(|error| error.kind());
        assert!(matches!(end, Ok(_) | Err(ErrorKind::ConnectionReset)), "{end:?}");
    });
    gateway.wait("the connections to be gone", |status| status["connections"] == 0);
}

#[test]
fn an_idle_connection_is_told_to_go() {
    let pod = RawPod::start();
    let spec = "  limits: {idleTimeout: 1s}";
    let gateway = Gateway::start(&plan(std::slice::from_ref(&pod)).spec(spec));
    run(async {
        let connection = Connection::plain(gateway.address).await;
        let exchange = connection.begin(Request::get("http://gateway/health"), true).await.unwrap();
        assert_eq!(exchange.response().await.unwrap().status, 200);
        connection.ended().await.unwrap();
    });
}

// Its windows are wide open, and it reads nothing: not even the frames that say so.
#[test]
fn a_client_that_reads_no_frames_costs_little_and_is_let_go() {
    let pods = ScriptPod::start_all(2);
    let spec = "  limits: {streamIdleTimeout: 1s}";
    let gateway = Gateway::start(&scripted(&pods).spec(spec));
    let before = memory(gateway.pid());
    let mut client = TcpStream::connect(gateway.address).unwrap();
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    // SETTINGS_INITIAL_WINDOW_SIZE, and the connection's own window.
    client.write_all(&frame(4, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff])).unwrap();
    client.write_all(&frame(8, 0, 0, &0x7000_0000_u32.to_be_bytes())).unwrap();
    let body = chat("base", 1, true).to_string();
    for number in 0..50 {
        let script = Script { pauses: 0, ..Script::new(number, 20_000_000) };
        let script = serde_json::to_string(&script).unwrap();
        let fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", CHAT),
            (":authority", "x"),
            (SCRIPT, &script),
        ];
        let block: Vec<u8> = fields.iter().flat_map(|(name, value)| literal(name, value)).collect();
        client.write_all(&frame(1, 4, 2 * number + 1, &block)).unwrap();
        client.write_all(&frame(0, 1, 2 * number + 1, body.as_bytes())).unwrap();
    }
    gateway.wait("the answers to stand still", |_| {
        let flowed = gateway.metric("sluice_gateway_client_connections");
        flowed == Some(1.0) && memory(gateway.pid()) > 0
    });
    std::thread::sleep(Duration::from_millis(500));
    let grown = memory(gateway.pid()).saturating_sub(before);
    assert!(grown < 25_000_000, "{grown} bytes");
    gateway.wait("it to be let go", |status| status["connections"] == 0);
    gateway.wait_idle();
}

// The old gateway says GOAWAY however busy the connection is, and no request is lost by that.
#[test]
fn a_busy_connection_goes_to_the_gateway_that_takes_over() {
    let pods = ScriptPod::start_all(2);
    let plan = scripted(&pods).spec("  limits: {drainTimeout: 1h}");
    let mut old = Gateway::start(&plan);
    let mut new = None;
    run(async {
        let mut connection = Connection::plain(old.address).await;
        let mut renewed = 0;
        for number in 0..200 {
            if number == 50 {
                new = Some(old.successor(&plan));
            }
            let script = Script::new(number, 2000);
            let exchange = match send(&connection, &script).await {
                Ok(exchange) => exchange,
                // It was told to go and takes nothing more: nothing was sent.
                Err(_) => {
                    renewed += 1;
                    connection = Connection::plain(old.address).await;
                    send(&connection, &script).await.unwrap()
                }
            };
            assert_eq!(exchange.response().await.unwrap().body.len(), 2000, "{number}");
            sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(renewed, 1);
    });
    assert!(old.wait_exit(PATIENCE).success());
}

// Field report 77: GOAWAY, what is under way is finished, nothing new is taken.
#[test]
fn field_report_77_streams_of_http_2_finish_after_sigterm() {
    let pod = RawPod::start();
    let mut gateway = Gateway::start(&plan(std::slice::from_ref(&pod)));
    run(async {
        let connection = Connection::plain(gateway.address).await;
        let exchange = connection.post(CHAT, &chat("base", 9, true)).await;
        let mut taken = pod.take();
        taken.send(STREAM);
        taken.send(chunk("data: 1\n\n"));
        let (head, mut body) = exchange.head().await.unwrap();
        assert_eq!(head.status, 200);
        assert_eq!(body.data().await.unwrap().unwrap(), "data: 1\n\n");
        gateway.signal("TERM");
        sleep(Duration::from_millis(300)).await;
        let refused = connection.begin(Request::get("http://gateway/health"), true).await;
        let refused = match refused {
            Ok(exchange) => exchange.response().await.map(drop),
            Err(error) => Err(error),
        };
        refused.unwrap_err();
        taken.send(chunk("data: 2\n\n"));
        taken.send(LAST);
        assert_eq!(body.data().await.unwrap().unwrap(), "data: 2\n\n");
        // The end is a frame of its own.
        while let Some(piece) = body.data().await {
            assert_eq!(piece.unwrap(), "");
        }
        connection.ended().await.unwrap();
    });
    assert!(gateway.wait_exit(PATIENCE).success());
}

#[test]
fn no_more_requests_at_once_than_the_limit() {
    let pod = RawPod::start();
    let spec = "  limits: {maxStreamsPerConnection: 2}";
    let gateway = Gateway::start(&plan(std::slice::from_ref(&pod)).spec(spec));
    run(async {
        let connection = Connection::plain(gateway.address).await;
        let first = connection.post(CHAT, &chat("base", 9, false)).await;
        let mut taken = pod.take();
        let second = connection.post(CHAT, &chat("base", 9, false)).await;
        let other = pod.take();
        // The client's own side keeps the third back until there is room for it.
        let third = connection.post(CHAT, &chat("base", 9, false)).await;
        assert!(pod.take_within(Duration::from_millis(300)).is_none());
        taken.send(answer(200, "", "{}"));
        taken.keep();
        assert_eq!(first.response().await.unwrap().status, 200);
        pod.take().send(answer(200, "", "{}"));
        assert_eq!(third.response().await.unwrap().status, 200);
        let _ = (second, other);
    });
}

// Not among the reports, but known of other servers: requests that are reset at once, and heads without an end.
#[test]
fn floods_end_their_connection_and_nothing_else() {
    let pods = ScriptPod::start_all(1);
    let gateway = Gateway::start(&scripted(&pods));
    let before = memory(gateway.pid());
    let headers = |stream: u32, flags: u8, block: &[u8]| frame(1, flags, stream, block);
    // `:method: GET`, `:scheme: http`, `:path: /` and `:authority: x`, as HPACK has them.
    let block = [0x82, 0x86, 0x84, 0x41, 0x01, b'x'];
    let resets = |count: u32| -> Vec<u8> {
        let pair = |at: u32| {
            [headers(2 * at + 1, 5, &block), frame(3, 0, 2 * at + 1, &8_u32.to_be_bytes())].concat()
        };
        (0..count).flat_map(pair).collect()
    };
    let long_field = [&[0x00, 0x01, b'a', 0x7f, 0x81, 0x7f][..], &[b'a'; 16_000]].concat();
    let continued = |count: usize| -> Vec<u8> {
        let begun = headers(1, 1, &block);
        let more = (0..count).flat_map(|_| frame(9, 0, 1, &long_field));
        begun.into_iter().chain(more).collect()
    };
    let empty_continued: Vec<u8> = headers(1, 1, &block)
        .into_iter()
        .chain((0..200_000).flat_map(|_| frame(9, 0, 1, &[])))
        .collect();
    // A table of one long name, which each of the following bytes stands for.
    let bomb =
        [&block[..], &[0x40, 0x7f, 0x81, 0x1e][..], &[b'n'; 4000], &[0x01, b'v'], &[0xbe; 10_000]]
            .concat();
    let pings: Vec<u8> = (0..300_000).flat_map(|_| frame(6, 0, 0, &[0; 8])).collect();
    let settings: Vec<u8> = (0..300_000).flat_map(|_| frame(4, 0, 0, &[])).collect();
    for (what, flood) in [
        ("resets", resets(50_000)),
        ("continuations", continued(2000)),
        ("empty continuations", empty_continued),
        ("a bomb", headers(1, 5, &bomb)),
        ("pings", pings),
        ("settings", settings),
    ] {
        let mut client = TcpStream::connect(gateway.address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        client.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        client.write_all(&frame(4, 0, 0, &[])).unwrap();
        // Nothing is read meanwhile, as whoever floods does not.
        let written = client.write_all(&flood);
        let grown = memory(gateway.pid()).saturating_sub(before);
        assert!(grown < 30_000_000, "{what}: {grown} bytes");
        if ["resets", "continuations", "empty continuations"].contains(&what) {
            let ended = written.and_then(|()| client.read_to_end(&mut Vec::new()));
            let is_over = |error: &std::io::Error| {
                !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
            };
            assert!(ended.as_ref().map_or_else(is_over, |_| true), "{what}: {ended:?}");
        }
        drop(client);
        run(async {
            let connection = Connection::plain(gateway.address).await;
            let script = Script::new(1, 10_000);
            assert_eq!(ask(&connection, &script).await.unwrap().body.len(), 10_000, "{what}");
        });
    }
    gateway.wait_idle();
    gateway.wait("the connections to be gone", |status| status["connections"] == 0);
}

// h2 passes over what comes for a stream that it has reset, as that may have been on its way: but not behind a reset of
// the client's own.
#[test]
fn a_stream_that_both_sides_have_reset_is_not_used_again() {
    let pods = ScriptPod::start_all(1);
    let gateway = Gateway::start(&scripted(&pods));
    let fields =
        [(":method", "GET"), (":scheme", "http"), (":path", "/v1/models"), (":authority", "x")];
    let block: Vec<u8> = fields.iter().flat_map(|(name, value)| literal(name, value)).collect();
    let reset = frame(3, 0, 1, &8_u32.to_be_bytes());
    for (what, behind, refused) in [
        ("DATA", frame(0, 1, 1, b"x"), true),
        ("HEADERS", frame(1, 5, 1, &block), true),
        ("WINDOW_UPDATE", frame(8, 0, 1, &1_u32.to_be_bytes()), false),
    ] {
        let mut client = TcpStream::connect(gateway.address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        client.write_all(&frame(4, 0, 0, &[])).unwrap();
        // Its body does not end: the gateway resets what it does not want of it behind the answer.
        client.write_all(&frame(1, 4, 1, &block)).unwrap();
        while read_frame(&mut client).0 != 3 {}
        client.write_all(&[reset.clone(), behind].concat()).unwrap();
        // Either the connection is ended for that, or it goes on. The first ping may be answered in between.
        let ended = (0..2).find_map(|_| {
            // It may be closed by now.
            let _ = client.write_all(&frame(6, 0, 0, &[0; 8]));
            let mut frames = std::iter::repeat_with(|| read_frame(&mut client));
            let (kind, payload) = frames.find(|(kind, _)| matches!(kind, 6 | 7)).unwrap();
            (kind == 7).then_some(payload)
        });
        let reason = ended.as_ref().map(|payload| &payload[4..8]);
        assert_eq!(reason, refused.then_some(&[0, 0, 0, 5][..]), "{what}");
    }
    gateway.wait("the connections to be gone", |status| status["connections"] == 0);
}

/// The next frame's kind and payload.
fn read_frame(client: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut header = [0; 9];
    client.read_exact(&mut header).unwrap();
    let mut payload = vec![0; u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize];
    client.read_exact(&mut payload).unwrap();
    (header[3], payload)
}

/// A frame as it goes over the wire.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A field as HPACK writes it without any table.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let length = |text: &str| match text.len() {
        short @ 0..127 => vec![short as u8],
        long => vec![127, ((long - 127) % 128) as u8 | 128, ((long - 127) / 128) as u8],
    };
    [vec![0], length(name), name.as_bytes().to_vec(), length(value), value.as_bytes().to_vec()]
        .concat()
}

/// Has a pod answer by the script.
async fn ask(connection: &Connection, script: &Script) -> Result<Response, h2::Error> {
    send(connection, script).await?.response().await
}

async fn send(connection: &Connection, script: &Script) -> Result<Exchange, h2::Error> {
    let mut exchange = connection.begin(request(script), false).await?;
    exchange.body.send_data(chat("base", 1, true).to_string().into(), true)?;
    Ok(exchange)
}

fn request(script: &Script) -> http::request::Builder {
    Request::post("http://gateway/v1/chat/completions")
        .header("content-type", "application/json")
        .header(SCRIPT, serde_json::to_string(script).unwrap())
}

/// A body of so many bytes.
fn padded(length: usize) -> Vec<u8> {
    let (start, end) = (r#"{"model":"base","pad":""#, "\"}");
    format!("{start}{}{end}", "x".repeat(length - start.len() - end.len())).into_bytes()
}

/// The gateway of `pods`.
fn scripted(pods: &[ScriptPod]) -> Plan {
    let pools = vec![("base".into(), pods.iter().map(|pod| pod.address).collect())];
    Plan { pools, ..Plan::pool("base", &[]) }
}

/// Resident memory of a process, in bytes.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

const CHAT: &str = "/v1/chat/completions";
