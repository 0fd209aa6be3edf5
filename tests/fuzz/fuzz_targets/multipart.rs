//! The scanner of forms: no panic, and the same at every split, for any Content-Type and body.
#![no_main]

use gateway_user::request::multipart::{Boundary, Scanner};
use gateway_user::request::scan::{Fault, Fields};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u16, &[u8])| {
    let (split, rest) = input;
    let line = rest.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let (params, body) = rest.split_at(line);
    let body = body.get(1..).unwrap_or_default();
    let content_type = [b"multipart/form-data;", params].concat();
    let boundary = match Boundary::from_content_type(&content_type) {
        Ok(Some(boundary)) => boundary,
        // Most inputs: the body is read all the same.
        _ => Boundary::from_content_type(b"multipart/form-data; boundary=b").unwrap().unwrap(),
    };
    let found = scan(&boundary, &[body]);
    let (front, back) = body.split_at(usize::from(split).min(body.len()));
    assert_eq!(scan(&boundary, &[front, back]), found);
    let single: Vec<_> = body.chunks(1).collect();
    assert_eq!(scan(&boundary, &single), found);
});

fn scan(boundary: &Boundary, pieces: &[&[u8]]) -> Result<Fields, Fault> {
    let mut scanner = Scanner::new(boundary.clone());
    for piece in pieces {
        scanner.feed(piece)?;
    }
    scanner.finish()
}
