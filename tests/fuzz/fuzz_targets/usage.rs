//! What is wanted of an answer's body: no panic, and the same counts however it was cut into pieces.
#![no_main]

use gateway_user::account::tail::Tail;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, u8, &[u8])| {
    let (event_stream, size, body) = input;
    let read = |size: usize| {
        let mut tail = Tail::new(event_stream);
        for piece in body.chunks(size) {
            tail.push(piece);
        }
        tail
    };
    let (small, large) = (read(1), read(1 + 4 * usize::from(size)));
    assert_eq!(small.usage(), large.usage());
    assert_eq!(small.id(), large.id());
    // What is kept differs by where it was trimmed, once there is more than is kept.
    if body.len() <= 1024 {
        assert_eq!(small.has_error_event(), large.has_error_event());
    }
});
