//! Heads of requests: no panic, what is whole stays whole when more follows, nothing is whole too soon, and the
//! head for the pod reads as the plainest of heads.
#![no_main]

use gateway_user::request::head::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Ok(Some(head)) = parse(input, CAP) else { return };
    assert!(head.len <= input.len());
    for short in [head.len - 1, head.len / 2] {
        assert!(matches!(parse(&input[..short], CAP), Ok(None)), "whole too soon");
    }
    let exact = parse(&input[..head.len], CAP).unwrap();
    assert_eq!(exact.as_ref(), Some(&head));

    let forward = [head.forward.as_slice(), b"content-length: 0\r\n\r\n"].concat();
    let mut headers = [httparse::EMPTY_HEADER; 256];
    let mut request = httparse::Request::new(&mut headers);
    let read = request.parse(&forward).unwrap();
    assert_eq!(read, httparse::Status::Complete(forward.len()), "a request in the head");
    assert_eq!(request.version, Some(1));
    assert!(request.path.unwrap().starts_with('/'));
    let count = |name: &str| {
        request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name)).count()
    };
    assert_eq!((count("host"), count("content-length")), (1, 1));
    for gone in ["transfer-encoding", "connection", "upgrade", "te", "expect", "keep-alive"] {
        assert_eq!(count(gone), 0, "{gone}");
    }
    // No line of it ends otherwise than by CR LF.
    let bare = forward.iter().enumerate().any(|(at, byte)| match byte {
        b'\n' => at == 0 || forward[at - 1] != b'\r',
        b'\r' => forward.get(at + 1) != Some(&b'\n'),
        _ => false,
    });
    assert!(!bare, "a bare line end");
});

const CAP: usize = 64 * 1024;
