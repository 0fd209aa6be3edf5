//! Heads of responses: no panic, what is whole stays whole when more follows, and nothing is whole too soon.
#![no_main]

use gateway_user::flow::head::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, &[u8])| {
    let (to_head, input) = input;
    let Ok(Some(head)) = parse(input, to_head) else { return };
    assert!(head.len <= input.len() && (100..1000).contains(&head.status));
    for short in [head.len - 1, head.len / 2] {
        assert!(matches!(parse(&input[..short], to_head), Ok(None)), "whole too soon");
    }
    let exact = parse(&input[..head.len], to_head).unwrap().unwrap();
    assert_eq!((exact.len, exact.status), (head.len, head.status));
    if to_head {
        assert!(exact.framing.is_done(), "an answer to HEAD has no body");
    }
});
