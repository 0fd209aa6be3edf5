//! The scanner of JSON bodies: no panic, the same at every split, and it takes and refuses what serde_json
//! does, but for the documented differences.
#![no_main]

use gateway_user::request::scan::{Fault, Fields, Part, Scanner};
use gateway_user::schedule::prefix::{Prompt, Scope, Secret};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|input: (u16, &[u8])| {
    let (split, body) = input;
    let found = scan(&[body]);
    let (front, back) = body.split_at(usize::from(split).min(body.len()));
    assert_eq!(scan(&[front, back]), found);
    let single: Vec<_> = body.chunks(1).collect();
    assert_eq!(scan(&single), found);

    match (serde_json::from_slice::<Value>(body), found) {
        (Ok(Value::Object(object)), Ok(fields)) => {
            // Refused when it comes twice, so there is one value to compare with.
            let model = object.get("model").map(|model| model.as_str().unwrap());
            assert_eq!(fields.model.as_deref(), model);
            assert_eq!(fields.stream, object.get("stream").and_then(said) == Some(true));
            let options = object.get("stream_options");
            let usage = options.and_then(|options| said(options.get("include_usage")?));
            assert_eq!(fields.include_usage, usage);
            let parts = [
                ("input", Part::Input),
                ("messages", Part::Messages),
                ("prompt", Part::Prompt),
                ("tools", Part::Tools),
            ];
            for (name, part) in parts {
                let place = fields.prompt.get(part);
                let text = place.map(|place| &body[place.start as usize..place.end as usize]);
                let value = text.map(|text| serde_json::from_slice::<Value>(text).unwrap());
                assert_eq!(value.as_ref(), object.get(name));
            }
            let scope = Scope { model: "model", adapter: None, block_tokens: 1 };
            let prompt = Prompt::read(body, &fields.prompt, &scope, &Secret::from_seed(0));
            assert_eq!(prompt, Prompt::read(body, &fields.prompt, &scope, &Secret::from_seed(0)));
        }
        (Ok(Value::Object(_)), Err(fault)) => assert_eq!(fault.param(), Some("model")),
        (Ok(_), found) => assert_eq!(found, Err(Fault::NotObject)),
        (Err(error), Ok(_)) => {
            let error = error.to_string();
            let documented =
                ["surrogate", "hex escape", "out of range", "unicode code point", "recursion"];
            assert!(documented.iter().any(|part| error.contains(part)), "{error}");
        }
        (Err(_), Err(_)) => {}
    }
});

/// What the model servers take for true or false.
fn said(value: &Value) -> Option<bool> {
    let is =
        |words: [&str; 6], text: &str| words.iter().any(|word| word.eq_ignore_ascii_case(text));
    match value {
        Value::Bool(value) => Some(*value),
        Value::Number(number) => match number.as_u64() {
            Some(0) => Some(false),
            Some(1) => Some(true),
            _ => None,
        },
        Value::String(text) if is(["true", "1", "t", "y", "yes", "on"], text) => Some(true),
        Value::String(text) if is(["false", "0", "f", "n", "no", "off"], text) => Some(false),
        _ => None,
    }
}

fn scan(pieces: &[&[u8]]) -> Result<Fields, Fault> {
    let mut scanner = Scanner::new();
    for piece in pieces {
        scanner.feed(piece)?;
    }
    scanner.finish()
}
