//! The framing machine: no panic, always progress, and the same whether it reads all at once, in two
//! pieces, or step by step as the kernel programs do.
#![no_main]

use gateway_common::framing::{Framing, Malformed};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u16, &[u8])| {
    let (kind, split, body) = input;
    let framing = match kind % 8 {
        0 => Framing::none(),
        1 => Framing::until_close(),
        2 => Framing::length(u64::from(split)),
        _ => Framing::chunked(),
    };
    let whole = by_slices(framing, &[body]);
    let (front, back) = body.split_at(usize::from(split).min(body.len()));
    assert_eq!(by_slices(framing, &[front, back]), whole);
    assert_eq!(by_steps(framing, body), whole);
});

type Seen = (Vec<u8>, Result<Framing, Malformed>);

fn by_slices(mut framing: Framing, pieces: &[&[u8]]) -> Seen {
    let mut payload = Vec::new();
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() && !framing.is_done() {
            match framing.advance(rest) {
                Ok(advance) => {
                    assert!(advance.consumed > 0 && advance.payload <= advance.consumed);
                    let (taken, behind) = rest.split_at(advance.consumed);
                    payload.extend_from_slice(&taken[taken.len() - advance.payload..]);
                    rest = behind;
                }
                Err(malformed) => return (payload, Err(malformed)),
            }
        }
    }
    (payload, Ok(framing))
}

fn by_steps(mut framing: Framing, body: &[u8]) -> Seen {
    let mut payload = Vec::new();
    for byte in body {
        if framing.is_done() {
            break;
        }
        framing = Framing::from_parts(framing.parts());
        match framing.skip(1) {
            1 => payload.push(*byte),
            _ => match framing.control(*byte) {
                Ok(()) => {}
                Err(malformed) => return (payload, Err(malformed)),
            },
        }
    }
    (payload, Ok(framing))
}
