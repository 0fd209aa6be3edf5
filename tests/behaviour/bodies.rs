//! Request bodies: large ones, chunked ones, forms, and those that wait to be asked for. The pod
//! gets each byte for byte.

use std::io::Write as _;
use std::time::Duration;

use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::json;
use sluice_tests::client::{Client, Response, post};
use sluice_tests::engine::{Options, Server};
use sluice_tests::gateway::{Gateway, Plan};

use crate::recorder::Recorder;

// Field reports 25, 30: the default cap lets real multimodal requests through, and `model` may come
// last.
#[test]
fn field_report_25_30_picker_report_1_2_large_bodies_are_forwarded_wherever_the_model_stands() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan());
    let image = "iVBORw0KGgo".repeat(1 << 20);
    let messages = format!(
        r#""messages":[{{"role":"user","content":[
            {{"type":"image_url","image_url":{{"url":"data:image/png;base64,{image}"}}}}]}}]"#
    );
    let model = r#""model":"base""#;
    for body in [format!("{{{messages},{model}}}"), format!("{{{model},{messages},{messages}}}")] {
        assert!(body.len() > 10_000_000);
        let mut client = Client::connect(gateway.address);
        client.post_bytes(CHAT, body.as_bytes());
        assert_eq!(client.response().status, 200);
        assert!(pod.last().body == body.as_bytes(), "the body was changed");
    }
    assert_eq!(gateway.wait_idle()["buffered_bytes"], 0);
}

#[test]
fn a_model_server_answers_a_request_of_20_megabytes() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let url = format!("data:image/png;base64,{}", "A".repeat(20 << 20));
    let content = json!([{"type": "image_url", "image_url": {"url": url}}]);
    let messages = json!([{"role": "user", "content": content}]);
    let body = json!({"messages": messages, "max_tokens": 2, "model": "base"});
    let response = post(gateway.address, CHAT, &body);
    assert_eq!(response.status, 200, "{}", response.text());
    let stats = pods[0].stats();
    assert_eq!(stats.last.back().unwrap().body_len, body.to_string().len());
}

// Not reported of any gateway by itself, and sent to all of them sooner or later.
#[test]
fn hostile_json_is_refused_or_passed_on_within_bounds() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan());
    let before = gateway.resident();
    let deep = |open: &str, close: &str| {
        format!(r#"{{"model":"base","x":{}1{}}}"#, open.repeat(1_000_000), close.repeat(1_000_000))
    };
    let refused = [
        deep("[", "]"),
        deep(r#"{"a":"#, "}"),
        "[".repeat(5_000_000),
        "\u{feff}{\"model\":\"base\"}".into(),
        "\0{\"model\":\"base\"}".into(),
        "{\"model\":\"base\"\0}".into(),
        "{\"model\":\"base\"}\0".into(),
        "{\"mod\0el\":\"base\"}".into(),
        r#"{"model":"base","model":"base"}"#.into(),
        r#"{"model":"base","\u006dodel":"other"}"#.into(),
        r#"{"model":"base","mod\u0065l":"other"}"#.into(),
        r#"{"model":"\ud800"}"#.into(),
        format!(r#"{{"model":"{}"}}"#, "x".repeat(5_000_000)),
    ];
    for body in &refused {
        let mut client = Client::connect(gateway.address);
        let mut writer = client.stream.try_clone().unwrap();
        let message = with_length(body.as_bytes());
        // It may have heard enough before the end.
        let sending = std::thread::spawn(move || std::io::Write::write_all(&mut writer, &message));
        let response = client.response();
        let shown: String = body.chars().take(40).collect();
        assert!(matches!(response.status, 400 | 404), "{shown}: {}", response.text());
        assert!(response.complete && response.json()["error"]["message"].is_string(), "{shown}");
        assert!(response.body.len() < 2000, "{shown}: {} bytes", response.body.len());
        let _ = sending.join();
    }
    assert!(pod.recorded().is_empty());
    let passed = [
        format!(r#"{{"{}":1,"model":"base"}}"#, "k".repeat(5_000_000)),
        format!(r#"{{"x":{},"model":"base"}}"#, "9".repeat(5_000_000)),
        format!("{{{}\"model\":\"base\"}}", "\"k\":0,".repeat(500_000)),
        format!("{}{{\"model\":\"base\"}}{}", " ".repeat(2_000_000), "\n".repeat(2_000_000)),
        r#"{"x":{"model":"other"},"y":[{"model":"third","model":"fourth"}],"model":"base"}"#.into(),
        r#"{"mode\u006c":"base"}"#.into(),
        format!(r#"{{"model":"base","url":"data:image/png;base64,{}"}}"#, "A".repeat(20_000_000)),
    ];
    for body in &passed {
        let mut client = Client::connect(gateway.address);
        client.send(with_length(body.as_bytes()));
        let response = client.response();
        let shown: String = body.chars().take(40).collect();
        assert_eq!(response.status, 200, "{shown}: {}", response.text());
        assert!(pod.last().body == body.as_bytes(), "{shown}: the body was changed");
    }
    assert_eq!(gateway.wait_idle()["buffered_bytes"], 0);
    let grown = gateway.resident().saturating_sub(before);
    assert!(grown < 60_000_000, "{grown} bytes are left of it");
}

// Field reports 26: one cap, exact, told in the client's own terms, and counted.
#[test]
fn field_report_26_a_body_at_the_cap_passes_and_one_byte_more_does_not() {
    let pod = Recorder::start();
    let cap = 300 * 1024;
    let gateway = Gateway::start(&pod.plan().spec("  bbr: {maxRequestBodyBytes: 300Ki}"));
    for framing in [
        with_length as fn(&[u8]) -> Vec<u8>,
        |body| chunked(body, 1000),
        |body| chunked(body, usize::MAX),
    ] {
        let before = pod.recorded().len();
        let whole = filled(cap);
        let mut client = Client::connect(gateway.address);
        client.send(framing(&whole));
        assert_eq!(client.response().status, 200);
        assert!(pod.last().body == whole);
        client.send(framing(&filled(cap + 1)));
        refused_as_too_large(&client.response());
        assert!(client.is_closed());
        assert_eq!(pod.recorded().len(), before + 1);
    }
    // By what it announces, before a byte of it has come.
    let mut client = Client::connect(gateway.address);
    client.send(head(&format!("content-length: {}\r\n", u64::MAX)));
    refused_as_too_large(&client.response());
    // The answer reaches a client that goes on sending.
    let mut client = Client::connect(gateway.address);
    client.send(with_length(&filled(20_000_000)));
    refused_as_too_large(&client.response());
    let refused = gateway.metric(r#"sluice_gateway_refused_total{reason="body_too_large"}"#);
    assert_eq!(refused, Some(5.0));
}

#[test]
fn a_chunked_body_reaches_the_pod_with_a_length() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan());
    let mut client = Client::connect(gateway.address);
    let body = filled(2_000_000);
    let chunks = ["3;name=\"value\"\r\n{\"m\r\n", "0000000c\r\nodel\":\"base\"\r\n", "1\r\n}\r\n"];
    let with_trailers = format!(
        "{}{}0\r\nX-Trailer: 1\r\nContent-Length: 3\r\n\r\n",
        head("transfer-encoding: chunked\r\n"),
        chunks.concat()
    );
    let table: [(Vec<u8>, &[u8]); 4] = [
        (with_trailers.into(), br#"{"model":"base"}"#),
        (chunked(br#"{"model":"base"}"#, 1), br#"{"model":"base"}"#),
        (chunked(&body, 4099), &body),
        (chunked(&body, usize::MAX), &body),
    ];
    for (message, body) in table {
        client.send(message);
        assert_eq!(client.response().status, 200);
        let last = pod.last();
        assert!(last.body == body);
        assert_eq!(last.header("content-length"), [body.len().to_string()]);
        assert!(last.header("transfer-encoding").is_empty() && last.header("x-trailer").is_empty());
    }
}

#[test]
fn a_request_may_come_one_byte_at_a_time() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan());
    let body = br#"{"messages":"a\u00e9\\","model":"base"}"#;
    let mut client = Client::connect(gateway.address);
    for message in [with_length(body), chunked(body, 5)] {
        for byte in message {
            client.send([byte]);
        }
        assert_eq!(client.response().status, 200);
        assert_eq!(pod.last().body, body);
    }
}

#[test]
fn malformed_chunks_are_refused_and_the_connection_ends() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan());
    for chunks in [
        "x\r\n{}\r\n0\r\n\r\n",
        "-2\r\n{}\r\n0\r\n\r\n",
        "0x2\r\n{}\r\n0\r\n\r\n",
        "2\r\n{}0\r\n\r\n",
        "2\r\n{}\n0\r\n\r\n",
        "2\n{}\r\n0\r\n\r\n",
        "2 \r\n{}x",
        "\r\n2\r\n{}\r\n0\r\n\r\n",
        "ffffffffffffffff0\r\n{}\r\n",
    ] {
        println!("{chunks:?}");
        let mut client = Client::connect(gateway.address);
        client.send(head("transfer-encoding: chunked\r\n"));
        client.send(chunks);
        client.response().assert_error(400, "malformed_request", None);
        assert!(client.is_closed());
    }
    assert!(pod.recorded().is_empty());
}

// Field reports 33: the form's field decides, wherever it stands, and the form is not touched.
#[test]
fn field_report_33_a_form_is_routed_by_its_model_wherever_that_stands() {
    let (one, two) = (Recorder::start(), Recorder::start());
    let mut plan = one.plan();
    plan.pools.push(("other".into(), vec![two.addr]));
    let gateway = Gateway::start(&plan);
    // With much in it that begins like a boundary.
    let file = format!("RIFF\r\n--\r\r\n-{}", "x".repeat(200)).repeat(5_000_000 / 212);
    let file = file.as_bytes();
    let mut client = Client::connect(gateway.address);
    for boundary in ["X", "----WebKitFormBoundary7MA4YWxkTrZu0gW", "a'()+_,-./:=? b"] {
        for (model, pod) in [("base", &one), ("other", &two)] {
            for model_first in [true, false] {
                let body = form(boundary, model, file, model_first);
                client.send(form_message(&format!("\"{boundary}\""), &body));
                assert_eq!(client.response().status, 200, "{boundary} {model}");
                assert!(pod.last().body == body, "the form was changed");
            }
        }
    }
    let body = form("plain", "base", b"x", true);
    client.send(form_message("plain; charset=utf-8", &body));
    assert_eq!(client.response().status, 200);
    assert_eq!(two.recorded().len(), 6);
}

#[test]
fn a_form_without_one_certain_model_is_refused() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan());
    let part = |head: &str, value: &str| {
        format!("--B\r\nContent-Disposition: form-data; {head}\r\n\r\n{value}\r\n")
    };
    let model = part("name=\"model\"", "base");
    let file = part("name=\"file\"; filename=\"a\"", "x");
    let table = [
        (format!("{file}--B--\r\n"), "model_missing", Some("model")),
        (format!("{model}{model}--B--\r\n"), "invalid_model", Some("model")),
        (format!("{}--B--\r\n", part("name=\"model\"", "")), "invalid_model", Some("model")),
        (
            format!("{}--B--\r\n", part("name=\"model\"; filename=\"m\"", "base")),
            "invalid_model",
            Some("model"),
        ),
        (format!("{file}{model}"), "invalid_body", None),
        ("{\"model\":\"base\"}".to_owned(), "invalid_body", None),
    ];
    for (body, code, param) in table {
        println!("{body:?}");
        let mut client = Client::connect(gateway.address);
        client.send(form_message("B", body.as_bytes()));
        client.response().assert_error(400, code, param);
    }
    let mut client = Client::connect(gateway.address);
    client.send(form_message("", b"--\r\n"));
    client.response().assert_error(400, "invalid_body", None);
    assert!(pod.recorded().is_empty());
}

// Decoded for routing only: the pod gets what the client sent, and its header.
#[test]
fn field_report_27_28_a_compressed_body_is_routed_and_forwarded_as_it_came() {
    let (one, two) = (Recorder::start(), Recorder::start());
    let mut plan = one.plan();
    plan.pools.push(("other".into(), vec![two.addr]));
    let gateway = Gateway::start(&plan);
    let mut client = Client::connect(gateway.address);
    let long = "some words of a long prompt, ".repeat(300_000);
    for (model, pod) in [("base", &one), ("other", &two)] {
        for prompt in ["short", &long] {
            let body = json!({"messages": [{"role": "user", "content": prompt}], "model": model});
            let body = body.to_string();
            for (coding, bytes) in [
                ("gzip", gzip(body.as_bytes())),
                ("X-GZIP", gzip(body.as_bytes())),
                ("zstd", zstd(body.as_bytes())),
            ] {
                for framed in [with_length(&bytes), chunked(&bytes, 700)] {
                    client.send(coded(coding, &framed));
                    assert_eq!(client.response().status, 200, "{coding} {model}");
                    let last = pod.last();
                    assert!(last.body == bytes, "the body was changed");
                    assert_eq!(last.header("content-encoding"), [coding]);
                    assert_eq!(last.header("content-length"), [bytes.len().to_string()]);
                }
            }
        }
    }
    assert_eq!((one.recorded().len(), two.recorded().len()), (12, 12));
    let file = b"RIFF".repeat(100_000);
    let body = gzip(&form("X", "other", &file, false));
    let message = form_message("X", &body);
    client.send(coded("gzip", &message));
    assert_eq!(client.response().status, 200);
    assert!(two.last().body == body);
    assert_eq!(gateway.wait_idle()["buffered_bytes"], 0);
}

#[test]
fn a_compressed_body_is_read_up_to_its_own_cap_and_no_further() {
    let pod = Recorder::start();
    let cap = 300 * 1024;
    let plan = pod.plan().spec("  limits: {maxDecompressedBytes: 300Ki}");
    let gateway = Gateway::start(&plan);
    let mut client = Client::connect(gateway.address);
    let encoders: [(&str, fn(&[u8]) -> Vec<u8>); 2] = [("gzip", gzip), ("zstd", zstd)];
    for (coding, encode) in encoders {
        client.send(coded(coding, &with_length(&encode(&filled(cap)))));
        assert_eq!(client.response().status, 200, "{coding}");
        for bomb in [filled(cap + 1), filled(50_000_000)] {
            client.send(coded(coding, &with_length(&encode(&bomb))));
            let response = client.response();
            response.assert_error(413, "request_too_large", None);
            let text = response.text();
            assert!(
                text.contains("307200 bytes") && text.contains("maxDecompressedBytes"),
                "{text}"
            );
        }
    }
    // What is not compressed has a cap of its own.
    client.send(with_length(&filled(cap + 1)));
    assert_eq!(client.response().status, 200);
    assert_eq!(pod.recorded().len(), 3);
    let refused = gateway.metric(r#"sluice_gateway_refused_total{reason="body_too_large"}"#);
    assert_eq!(refused, Some(4.0));
    assert_eq!(gateway.wait_idle()["buffered_bytes"], 0);
}

// What a body holds counts among the memory for bodies: here there is enough for the one and not for the other.
#[test]
fn a_bomb_takes_no_more_memory_than_bodies_may() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan().spec("  limits: {maxBufferedBytes: 1Mi}"));
    let plain = filled(400_000);
    let mut client = Client::connect(gateway.address);
    client.send(coded("gzip", &with_length(&gzip(&plain))));
    assert_eq!(client.response().status, 200);
    client.send(coded("gzip", &with_length(&gzip(&filled(1_048_577)))));
    let status = client.response().status;
    assert!(matches!(status, 413 | 503), "{status}");
    // With this coding's window it is more than all that there is.
    let mut client = Client::connect(gateway.address);
    client.send(coded("zstd", &with_length(&zstd(&plain))));
    client.response().assert_error(503, "body_memory", None);
    assert_eq!(pod.recorded().len(), 1);
    assert_eq!(gateway.wait_idle()["buffered_bytes"], 0);
}

#[test]
fn a_compressed_body_that_is_broken_is_refused() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan());
    let mut client = Client::connect(gateway.address);
    let body = br#"{"model":"base"}"#;
    let whole = gzip(body);
    for (coding, bytes) in [
        ("gzip", body.to_vec()),
        ("zstd", body.to_vec()),
        ("gzip", whole[..whole.len() - 1].to_vec()),
        ("gzip", [&whole[..], b"more"].concat()),
        ("gzip", gzip(b"[1]")),
        ("zstd", gzip(body)),
        ("gzip", vec![]),
    ] {
        client.send(coded(coding, &with_length(&bytes)));
        client.response().assert_error(400, "invalid_body", None);
    }
    client.send(coded("gzip", &with_length(&gzip(b"{}"))));
    client.response().assert_error(400, "model_missing", Some("model"));
    let twice = coded("gzip", &coded("zstd", &with_length(&whole)));
    client.send(twice);
    client.response().assert_error(400, "malformed_request", None);
    assert!(pod.recorded().is_empty());
}

#[test]
fn a_body_in_an_unknown_coding_is_refused_with_what_to_do() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan());
    for coding in ["br", "deflate", "identity, gzip", "gzip, zstd"] {
        let mut client = Client::connect(gateway.address);
        client.send(head(&format!("content-encoding: {coding}\r\ncontent-length: 4\r\n")));
        client.send(b"\x1f\x8b\x08\0");
        let response = client.response();
        response.assert_error(415, "content_encoding", None);
        let text = response.text();
        assert!(text.contains(coding) && text.contains("uncompressed"), "{text}");
        assert!(client.is_closed());
    }
    let mut client = Client::connect(gateway.address);
    client.send(head("content-encoding: identity\r\ncontent-length: 16\r\n"));
    client.send(r#"{"model":"base"}"#);
    assert_eq!(client.response().status, 200);
    assert_eq!(pod.recorded().len(), 1);
}

// Field reports 35: asked for at once, and the pod, which could ask again, does not see the
// expectation.
#[test]
fn field_report_35_a_client_that_waits_to_be_asked_is_asked_at_once() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan().spec("  bbr: {maxRequestBodyBytes: 1Ki}"));
    let body = br#"{"model":"base"}"#;
    let mut client = Client::connect(gateway.address);
    for framed in [with_length(body), chunked(body, 4)] {
        let end = memchr::memmem::find(&framed, b"\r\n\r\n").unwrap();
        let (head, rest) = framed.split_at(end + 2);
        client.send([head, b"Expect: 100-Continue\r\n\r\n"].concat());
        assert_eq!(client.head().status, 100);
        client.send(&rest[2..]);
        assert_eq!(client.response().status, 200);
        let last = pod.last();
        assert_eq!((&*last.body, last.header("expect").len()), (&body[..], 0));
    }
    // One that does not wait after all is not asked.
    let eager = String::from_utf8(with_length(body)).unwrap();
    client.send(eager.replace("host:", "expect: 100-continue\r\nhost:"));
    assert_eq!(client.response().status, 200);
    // One whose body is not wanted is told so instead.
    let mut client = Client::connect(gateway.address);
    client.send(head("expect: 100-continue\r\ncontent-length: 1025\r\n"));
    client.response().assert_error(413, "request_too_large", None);
    // HTTP/1.0 knows no such answer.
    let mut client = Client::connect(gateway.address);
    let old =
        head("expect: 100-continue\r\ncontent-length: 16\r\n").replace("HTTP/1.1", "HTTP/1.0");
    client.send(old);
    assert!(client.is_silent(Duration::from_millis(100)));
    client.send(body);
    assert_eq!(client.response().status, 200);
}

fn refused_as_too_large(response: &Response) {
    response.assert_error(413, "request_too_large", None);
    assert!(response.text().contains("307200 bytes"), "{}", response.text());
    assert!(response.text().contains("maxRequestBodyBytes"));
}

/// A JSON body of so many bytes, its model at the end.
fn filled(length: usize) -> Vec<u8> {
    let (start, end) = (r#"{"x":""#, r#"","model":"base"}"#);
    let filler = "y".repeat(length - start.len() - end.len());
    format!("{start}{filler}{end}").into_bytes()
}

/// The head of a POST with these header lines.
fn head(lines: &str) -> String {
    format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\n{lines}\r\n")
}

/// A message with a Content-Encoding.
fn coded(coding: &str, message: &[u8]) -> Vec<u8> {
    let line = memchr::memmem::find(message, b"\r\n").unwrap() + 2;
    [&message[..line], format!("content-encoding: {coding}\r\n").as_bytes(), &message[line..]]
        .concat()
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

fn zstd(plain: &[u8]) -> Vec<u8> {
    compress_to_vec(plain, CompressionLevel::Fastest)
}

fn with_length(body: &[u8]) -> Vec<u8> {
    [head(&format!("content-length: {}\r\n", body.len())).as_bytes(), body].concat()
}

fn chunked(body: &[u8], most: usize) -> Vec<u8> {
    let mut message = head("transfer-encoding: chunked\r\n").into_bytes();
    for piece in body.chunks(most) {
        message.extend_from_slice(format!("{:X}\r\n", piece.len()).as_bytes());
        message.extend_from_slice(piece);
        message.extend_from_slice(b"\r\n");
    }
    message.extend_from_slice(b"0\r\n\r\n");
    message
}

/// A transcription's form.
fn form(boundary: &str, model: &str, file: &[u8], model_first: bool) -> Vec<u8> {
    let model = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n"
    );
    let file = [
        format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\
             Content-Type: audio/wav\r\n\r\n"
        )
        .as_bytes(),
        file,
        b"\r\n",
    ]
    .concat();
    let parts = if model_first { [model.into(), file] } else { [file, model.into()] };
    [&parts.concat()[..], format!("--{boundary}--\r\n").as_bytes()].concat()
}

fn form_message(boundary: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: g\r\n\
         Content-Type: multipart/form-data; boundary={boundary}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

const CHAT: &str = "/v1/chat/completions";
