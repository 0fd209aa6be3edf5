//! The framing machine against hyper's decoder: for the same bytes both must see the same payload and
//! the same end, or both must refuse. hyper is driven through its public client over a pipe in memory.

#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use gateway_common::framing::{Framing, State};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper_util::rt::TokioIo;
use proptest::collection::vec;
use proptest::prelude::*;
use tokio::io::AsyncWriteExt;
use tokio::runtime::{Builder, Runtime};

/// What a reader makes of a response's body when the connection closes behind it.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Read {
    payload: Vec<u8>,
    /// The body came to its end; otherwise it was malformed or cut short.
    whole: bool,
}

impl Read {
    fn new(payload: &str, whole: bool) -> Self {
        Self { payload: payload.into(), whole }
    }
}

fn ours(mut framing: Framing, bytes: &[u8]) -> Read {
    let mut payload = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() && !framing.is_done() {
        let Ok(advance) = framing.advance(rest) else {
            return Read { payload, whole: false };
        };
        let (taken, behind) = rest.split_at(advance.consumed);
        payload.extend_from_slice(&taken[taken.len() - advance.payload..]);
        rest = behind;
    }
    Read { payload, whole: framing.may_close() }
}

fn hypers(runtime: &Runtime, header: &str, bytes: &[u8]) -> Read {
    let head = format!("HTTP/1.1 200 OK\r\n{header}\r\n");
    let response = [head.as_bytes(), bytes].concat();
    runtime.block_on(async move {
        let (near, mut far) = tokio::io::duplex(64 * 1024);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
        let connection = tokio::spawn(connection);
        let pod = tokio::spawn(async move {
            // hyper may hang up before it has read all of a malformed response.
            let _ = far.write_all(&response).await;
        });
        let request = Request::get("/").body(Empty::<Bytes>::new()).unwrap();
        let mut body = sender.send_request(request).await.unwrap().into_body();
        let mut payload = Vec::new();
        let mut whole = true;
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => payload.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new())),
                Err(_) => whole = false,
            }
        }
        pod.await.unwrap();
        // What it says about bytes behind the body is not compared.
        let _ = connection.await.unwrap();
        Read { payload, whole }
    })
}

fn runtime() -> Runtime {
    Builder::new_current_thread().build().unwrap()
}

const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";

#[test]
fn agrees_with_hyper_on_known_bodies() {
    let runtime = runtime();
    let bodies = [
        "",
        "0\r\n\r\n",
        "0\r\n\r\nHTTP/1.1 200 OK\r\n",
        "5\r\nhello\r\n0\r\n\r\n",
        "5;x=y\r\nhello\r\n0;z\r\nA: b\r\n\r\n",
        "5 \t;x\r\nhello\r\n0\r\n\r\n",
        "0000000000000005\r\nhello\r\n0\r\n\r\n",
        "10000000000000000\r\nhello\r\n0\r\n\r\n",
        "ffffffffffffffff\r\nhello",
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhello\r\n0\n\r\n",
        "5\r\nhello\r\n0\r\n\r",
        "5\r\nhello\r\n",
        "5\r\nhell",
        "5\r\nhello!\r\n0\r\n\r\n",
        "5 5\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "5;a\nb\r\nhello\r\n0\r\n\r\n",
        "5;a\rb\r\nhello\r\n0\r\n\r\n",
        "\r\n5\r\nhello\r\n0\r\n\r\n",
    ];
    for body in bodies {
        assert_eq!(
            ours(Framing::chunked(), body.as_bytes()),
            hypers(&runtime, CHUNKED, body.as_bytes()),
            "{body:?}"
        );
    }
}

/// Where the machine is stricter, or looks at less, than hyper. A change in either shows here.
#[test]
fn differs_from_hyper_where_documented() {
    let runtime = runtime();
    let table = [
        // A size of more than 16 digits.
        ("00000000000000005\r\nhello\r\n0\r\n\r\n", Read::new("", false), Read::new("hello", true)),
        // A bare line feed as the end of a trailer line.
        ("0\r\nA: b\n\r\n\r\n", Read::new("", false), Read::new("", true)),
        ("0\r\n\n\r\n\r\n", Read::new("", false), Read::new("", true)),
        // Trailers that are not header fields: only whoever reads them can tell.
        ("0\r\nno colon\r\n\r\n", Read::new("", true), Read::new("", false)),
    ];
    for (body, machine, hyper) in table {
        assert_eq!(ours(Framing::chunked(), body.as_bytes()), machine, "{body:?}");
        assert_eq!(hypers(&runtime, CHUNKED, body.as_bytes()), hyper, "{body:?}");
    }
}

/// A chunked body up to its last chunk, then the rest of it: perhaps trailers, perhaps a next response.
fn body() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let chunk = (vec(any::<u8>(), 1..300), "0{0,2}", " {0,2}(;[a-z]{1,3}(=[a-z]{1,3})?){0,2}")
        .prop_map(|(payload, zeros, extension)| {
            let line = format!("{zeros}{:X}{extension}\r\n", payload.len());
            [line.as_bytes(), &payload, b"\r\n"].concat()
        });
    (vec(chunk, 0..5), "0{1,3}\r\n(A: [a-z]{1,3}\r\n){0,2}\r\n(HTTP/1.1 200 OK\r\n\r\n)?")
        .prop_map(|(chunks, last)| (chunks.concat(), last.into_bytes()))
}

proptest! {
    #[test]
    fn agrees_with_hyper_on_valid_bodies((chunks, last) in body(), keep: prop::sample::Index) {
        let runtime = runtime();
        let all = [chunks, last].concat();
        let cut = &all[..keep.index(all.len() + 1)];
        for bytes in [&all, cut] {
            prop_assert_eq!(
                ours(Framing::chunked(), bytes),
                hypers(&runtime, CHUNKED, bytes),
                "{}", bytes.escape_ascii()
            );
        }
    }

    #[test]
    fn agrees_with_hyper_on_broken_bodies(
        (mut chunks, last) in body(),
        edits in vec((any::<prop::sample::Index>(), "[\r\n0-9a-gA-G; \t\\x00]"), 1..4),
    ) {
        let runtime = runtime();
        // Within the chunks only: of broken trailers hyper has another opinion.
        for (at, byte) in edits {
            if !chunks.is_empty() {
                let at = at.index(chunks.len());
                chunks[at] = byte.as_bytes()[0];
            }
        }
        let bytes = [chunks, last].concat();
        let mut machine = ours(Framing::chunked(), &bytes);
        let mut hyper = hypers(&runtime, CHUNKED, &bytes);
        // An edit can make a last chunk of what was payload, and trailers of what followed it.
        if has_trailers(&bytes) {
            machine.whole = false;
            hyper.whole = false;
        }
        prop_assert_eq!(machine, hyper, "{}", bytes.escape_ascii());
    }

    #[test]
    fn agrees_with_hyper_on_lengths(bytes in vec(any::<u8>(), 0..200), length in 0..200_u64) {
        let runtime = runtime();
        let header = format!("Content-Length: {length}\r\n");
        let read = hypers(&runtime, &header, &bytes);
        prop_assert_eq!(ours(Framing::length(length), &bytes), read);
        prop_assert_eq!(ours(Framing::until_close(), &bytes), hypers(&runtime, "", &bytes));
    }
}

/// Whether the machine, fed byte by byte, comes to a trailer line.
fn has_trailers(bytes: &[u8]) -> bool {
    let mut framing = Framing::chunked();
    bytes.iter().any(|byte| {
        let started = framing.state() == Some(State::TrailerStart);
        let malformed = framing.advance(&[*byte]).is_err();
        started && (malformed || *byte != b'\r')
    })
}
