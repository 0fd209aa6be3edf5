//! Bodies of any framing, chunk and write size arrive byte by byte as the pod wrote them.

use sluice_tests::script::{End, FRAMES, Frame, Script, ScriptPod, usage};
use sluice_tests::soak::{Pace, ScriptClient};

use super::{Carrier, assert_nothing_left};

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
                client.send(&script);
                let seen = client.answer(&script, Pace::FAST, u64::MAX);
                let seen = seen.unwrap_or_else(|problem| panic!("{problem}"));
                seen.judge(&script).unwrap_or_else(|problem| panic!("{problem}"));
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
