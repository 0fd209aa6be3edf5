use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

extern crate std;
use std::format;
use std::string::String;
use std::vec::Vec;

/// What a caller sees of a whole input.
#[derive(Debug, PartialEq)]
struct Seen {
    payload: Vec<u8>,
    consumed: usize,
    result: Result<bool, Malformed>,
    chunks: u64,
}

fn run<'a>(mut framing: Framing, pieces: impl IntoIterator<Item = &'a [u8]>) -> Seen {
    let mut seen = Seen { payload: Vec::new(), consumed: 0, result: Ok(false), chunks: 0 };
    'pieces: for piece in pieces {
        let mut rest = piece;
        while !rest.is_empty() && !framing.is_done() {
            match framing.advance(rest) {
                Ok(advance) => {
                    assert!(advance.consumed > 0, "stuck in {framing:?}");
                    let (taken, behind) = rest.split_at(advance.consumed);
                    seen.payload.extend_from_slice(&taken[taken.len() - advance.payload..]);
                    seen.consumed += advance.consumed;
                    rest = behind;
                }
                Err(malformed) => {
                    assert_eq!(framing.state(), None);
                    assert_eq!(framing.advance(b"0\r\n\r\n"), Err(malformed), "not for good");
                    seen.result = Err(malformed);
                    // How far the last call came before the error depends on the split.
                    seen.consumed = 0;
                    break 'pieces;
                }
            }
        }
    }
    if seen.result.is_ok() {
        seen.result = Ok(framing.is_done());
    }
    seen.chunks = framing.chunks();
    seen
}

/// The kernel's way: [`Framing::skip`] and [`Framing::control`] over segments, the state moved
/// through a map value between two of them.
fn run_steps(mut framing: Framing, input: &[u8], segment: usize) -> Seen {
    let mut seen = run(framing, []);
    for piece in input.chunks(segment) {
        framing = Framing::from_parts(framing.parts());
        let mut at = 0;
        while at < piece.len() && !framing.is_done() {
            let payload = framing.skip((piece.len() - at) as u64) as usize;
            seen.payload.extend_from_slice(&piece[at..at + payload]);
            at += payload;
            if payload == 0 {
                if let Err(malformed) = framing.control(piece[at]) {
                    seen.result = Err(malformed);
                    seen.consumed = 0;
                    seen.chunks = framing.chunks();
                    return seen;
                }
                at += 1;
            }
        }
        seen.consumed += at;
    }
    seen.result = Ok(framing.is_done());
    seen.chunks = framing.chunks();
    seen
}

fn whole(framing: Framing, input: &[u8]) -> Seen {
    run(framing, [input])
}

#[test]
fn bodies_that_end() {
    let chunked = Framing::chunked();
    let table: &[(Framing, &str, &str, usize)] = &[
        (Framing::none(), "HTTP/1.1", "", 0),
        (Framing::length(0), "HTTP/1.1", "", 0),
        (Framing::length(5), "helloHTTP/1.1", "hello", 5),
        (chunked, "0\r\n\r\nHTTP", "", 5),
        (chunked, "5\r\nhello\r\n0\r\n\r\nHTTP", "hello", 15),
        (chunked, "A\r\n0123456789\r\n0\r\n\r\n", "0123456789", 20),
        (chunked, "2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", "hello", 20),
        (chunked, "1\r\n\r\r\n1\r\n\n\r\n0\r\n\r\n", "\r\n", 17),
        (chunked, "0000000000000005\r\nhello\r\n0\r\n\r\n", "hello", 30),
        (chunked, "00\r\n\r\n", "", 6),
        (chunked, "5;a=b;c=\"d;e\"\r\nhello\r\n0;x\r\n\r\n", "hello", 29),
        (chunked, "5 \t \r\nhello\r\n0 ;x\r\n\r\n", "hello", 21),
        (chunked, "0\r\nA: b\r\nC: d\r\n\r\nHTTP", "", 17),
        (chunked, "aB\r\n", "", 4),
    ];
    for (framing, input, payload, consumed) in table {
        let seen = whole(*framing, input.as_bytes());
        assert_eq!(seen.payload, payload.as_bytes(), "{input:?}");
        assert_eq!(seen.consumed, *consumed, "{input:?}");
        assert_eq!(seen.result, Ok(*input != "aB\r\n"), "{input:?}");
    }
}

#[test]
fn bodies_that_do_not_end() {
    let table: &[(Framing, &str, &str, bool)] = &[
        (Framing::length(6), "hello", "hello", false),
        (Framing::until_close(), "0\r\n\r\n", "0\r\n\r\n", true),
        (Framing::chunked(), "", "", false),
        (Framing::chunked(), "5\r\nhell", "hell", false),
        (Framing::chunked(), "5\r\nhello\r\n0\r\n\r", "hello", false),
        (Framing::chunked(), "0\r\nA: b\r\n", "", false),
    ];
    for (framing, input, payload, may_close) in table {
        let mut machine = *framing;
        let mut rest = input.as_bytes();
        while !rest.is_empty() {
            let advance = machine.advance(rest).unwrap();
            rest = &rest[advance.consumed..];
        }
        assert_eq!(machine.may_close(), *may_close, "{input:?}");
        let seen = whole(*framing, input.as_bytes());
        assert_eq!(seen.payload, payload.as_bytes(), "{input:?}");
        assert_eq!(seen.result, Ok(false), "{input:?}");
    }
}

#[test]
fn malformed_bodies() {
    let table: &[(&str, State)] = &[
        ("\r\n", State::Size),
        (";x\r\n", State::Size),
        (" 5\r\n", State::Size),
        ("g\r\n", State::Size),
        ("-1\r\n", State::Size),
        ("0x5\r\n", State::Size),
        ("5\n", State::Size),
        ("5\r\r\n", State::SizeEnd),
        ("5 5\r\n", State::Blank),
        ("5 \n", State::Blank),
        ("5;a\n", State::Extension),
        ("5;a\rb\r\n", State::SizeEnd),
        ("10000000000000000\r\n", State::Size),
        ("00000000000000005\r\n", State::Size),
        ("2\r\nabc\r\n", State::DataEnd),
        ("2\r\nab\n", State::DataEnd),
        ("2\r\nab\r\r", State::DataEndLf),
        ("2\r\nab\r\n\r\n", State::Size),
        ("0\r\n\n", State::TrailerStart),
        ("0\r\nA: b\n", State::Trailer),
        ("0\r\nA: b\rC", State::TrailerLf),
        ("0\r\n\rX", State::TrailerEnd),
    ];
    for (input, at) in table {
        let seen = whole(Framing::chunked(), input.as_bytes());
        assert_eq!(seen.result, Err(Malformed { at: *at }), "{input:?}");
    }
}

#[test]
fn largest_size_is_taken() {
    let mut framing = Framing::chunked();
    assert_eq!(framing.advance(b"ffffffffffffffff\r\n").unwrap().consumed, 18);
    assert_eq!(framing.skip(u64::MAX - 1), u64::MAX - 1);
    assert_eq!(framing.skip(7), 1);
    assert_eq!(framing.state(), Some(State::DataEnd));
}

#[test]
fn lines_are_bounded() {
    let line = |extension: usize| format!("0;{}\r\n\r\n", "x".repeat(extension));
    // The limit counts size, extension and carriage return.
    let fits = limits::CHUNK_LINE as usize - 3;
    assert_eq!(whole(Framing::chunked(), line(fits).as_bytes()).result, Ok(true));
    let seen = whole(Framing::chunked(), line(fits + 1).as_bytes());
    assert_eq!(seen.result, Err(Malformed { at: State::Extension }));

    let trailers = |bytes: usize| format!("0\r\n{}\r\n\r\n", "x".repeat(bytes));
    let fits = limits::TRAILERS as usize - 3;
    assert_eq!(whole(Framing::chunked(), trailers(fits).as_bytes()).result, Ok(true));
    let seen = whole(Framing::chunked(), trailers(fits + 1).as_bytes());
    assert_eq!(seen.result, Err(Malformed { at: State::TrailerStart }));

    let many = "A: b\r\n".repeat(limits::TRAILERS as usize);
    let seen = whole(Framing::chunked(), format!("0\r\n{many}").as_bytes());
    assert!(seen.result.is_err());
}

#[test]
fn size_lines_are_counted_one_by_one() {
    let chunk = format!("1;{}\r\na\r\n", "x".repeat(limits::CHUNK_LINE as usize - 3));
    let body = format!("{}0\r\n\r\n", chunk.repeat(4));
    let seen = whole(Framing::chunked(), body.as_bytes());
    assert_eq!((seen.result, seen.chunks), (Ok(true), 4));
}

#[test]
fn byte_behind_the_end_is_not_ours() {
    let mut framing = Framing::length(1);
    assert_eq!(framing.skip(10), 1);
    assert_eq!(framing.control(b'x'), Err(Malformed { at: State::Done }));
    assert!(framing.is_done());
}

#[test]
fn foreign_parts_are_malformed() {
    for state in [14, 99, BROKEN, BROKEN | State::Size as u32, u32::MAX, State::Data as u32] {
        let mut framing = Framing::from_parts([0, 0, u64::from(state) << 32]);
        assert_eq!(framing.skip(9), 0);
        assert!(framing.advance(b"0\r\n\r\n").is_err(), "{state}");
    }
}

/// One chunk: payload, form of its size, extension.
fn chunk() -> impl Strategy<Value = Vec<u8>> {
    let payload = vec(any::<u8>(), 1..40);
    let extension = prop_oneof![3 => Just(""), 1 => " {0,2}(;[a-z]{1,4}(=[a-z]{1,4})?){1,2}"
        .prop_map(|text| &*text.leak())];
    (payload, 0..3_usize, extension).prop_map(|(payload, zeros, extension)| {
        let size = payload.len();
        let mut chunk = format!("{}{size:x}{extension}\r\n", "0".repeat(zeros)).into_bytes();
        chunk.extend_from_slice(&payload);
        chunk.extend_from_slice(b"\r\n");
        chunk
    })
}

/// A whole chunked body with a next response behind it.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let trailers = "([A-Z][a-z]{0,5}: [a-z]{0,5}\r\n){0,2}";
    (vec(chunk(), 0..6), trailers).prop_map(|(chunks, trailers): (_, String)| {
        let mut body = chunks.concat();
        body.extend_from_slice(b"0\r\n");
        body.extend_from_slice(trailers.as_bytes());
        body.extend_from_slice(b"\r\nHTTP/1.1 200 OK\r\n\r\n");
        body
    })
}

/// Bodies, some of them with a few bytes replaced, so that errors are covered as well.
fn perhaps_broken() -> impl Strategy<Value = Vec<u8>> {
    let bytes = prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'0'), Just(b';'), any::<u8>()];
    (body(), vec((any::<prop::sample::Index>(), bytes), 0..3)).prop_map(|(mut body, edits)| {
        for (at, byte) in edits {
            *at.get_mut(&mut body) = byte;
        }
        body
    })
}

proptest! {
    #[test]
    fn next_response_is_left(body in body()) {
        let seen = whole(Framing::chunked(), &body);
        prop_assert_eq!(seen.result, Ok(true));
        prop_assert_eq!(&body[seen.consumed..], b"HTTP/1.1 200 OK\r\n\r\n");
    }

    /// Cut in two at every place, in three at some, and in single bytes.
    #[test]
    fn every_split_gives_the_same(body in perhaps_broken(), second in 0..40_usize) {
        let kinds = [Framing::chunked(), Framing::length(body.len() as u64 / 2)];
        for framing in kinds {
            let expected = whole(framing, &body);
            for at in 0..=body.len() {
                let (front, back) = body.split_at(at);
                let (middle, back) = back.split_at(second.min(back.len()));
                prop_assert_eq!(&run(framing, [front, middle, back]), &expected, "at {}", at);
            }
            prop_assert_eq!(&run(framing, body.chunks(1)), &expected);
            for segment in [1, 2, 7, 4096] {
                prop_assert_eq!(&run_steps(framing, &body, segment), &expected);
            }
        }
    }

    #[test]
    fn arbitrary_bytes_end_or_fail(input in vec(any::<u8>(), 0..200), parts: [u64; 3]) {
        whole(Framing::chunked(), &input);
        let mut framing = Framing::from_parts(parts);
        let _ = framing.advance(&input);
    }
}
