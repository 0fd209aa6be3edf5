//! The end of an answer: no panic, and the same counts however the answer was cut into pieces of a kilobyte or
//! less.
#![no_main]

use gateway_user::account::tail::Tail;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (size, body) = input;
    let read = |size: usize| {
        let mut tail = Tail::default();
        for piece in body.chunks(size) {
            tail.push(piece);
        }
        tail
    };
    let (small, large) = (read(1), read(1 + 4 * usize::from(size)));
    // What is kept differs by where it was trimmed, once there is more than is kept.
    if body.len() <= 1024 {
        assert_eq!(small.usage(), large.usage());
        assert_eq!(small.has_error_event(), large.has_error_event());
    } else {
        let _ = (small.usage(), large.usage(), small.has_error_event(), large.has_error_event());
    }
});
