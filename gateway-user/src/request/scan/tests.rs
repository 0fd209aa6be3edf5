use std::fmt;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::*;

fn scan<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Fields, Fault> {
    let mut scanner = Scanner::new();
    let mut early = None;
    for piece in pieces {
        if let Err(fault) = scanner.feed(piece) {
            assert_eq!(scanner.feed(b"{}"), Err(fault), "not for good");
            return Err(fault);
        }
        let model = scanner.model_so_far().map(Box::from);
        assert!(early.is_none() || early == model, "{early:?} became {model:?}");
        early = model;
    }
    let fields = scanner.finish()?;
    assert_eq!(early, fields.model);
    Ok(fields)
}

fn whole(body: impl AsRef<[u8]>) -> Result<Fields, Fault> {
    scan([body.as_ref()])
}

fn model(body: &str) -> Option<String> {
    whole(body).unwrap_or_else(|fault| panic!("{body}: {fault}")).model.map(String::from)
}

#[test]
fn all_fields() {
    let body = r#" {"messages": [{"role": "user", "content": "hi"}], "model": "org/name",
        "stream": true, "stream_options": {"include_usage": true, "x": {"y": []}},
        "max_tokens": 7, "priority": -3, "tools": [{"model": "other"}], "n": 1.5e-3 } "#;
    let fields = whole(body).unwrap();
    let at = |place: &Option<std::ops::Range<u64>>| {
        place.clone().map(|place| &body[place.start as usize..place.end as usize])
    };
    assert_eq!(at(&fields.model_at), Some("\"org/name\""));
    assert_eq!(at(&fields.include_usage_at), Some("true"));
    assert_eq!(at(&fields.stream_options), Some(r#"{"include_usage": true, "x": {"y": []}}"#));
    let prompt = fields.prompt.clone();
    let messages = prompt.get(Part::Messages).unwrap();
    assert_eq!(
        &body[messages.start as usize..messages.end as usize],
        r#"[{"role": "user", "content": "hi"}]"#
    );
    assert_eq!(
        fields,
        Fields {
            model: Some("org/name".into()),
            model_at: fields.model_at.clone(),
            stream: true,
            include_usage: Some(true),
            include_usage_at: fields.include_usage_at.clone(),
            stream_options: fields.stream_options.clone(),
            prompt,
            max_tokens: Some(7),
            priority: Some(-3),
            ..Fields::default()
        }
    );
    assert_eq!(whole("{}"), Ok(Fields::default()));
}

#[test]
fn previous_responses() {
    for (body, id) in [
        (r#"{"previous_response_id":"resp_1"}"#, Some("resp_1")),
        (
            r#"{"previous_response_id":"resp\u005f1","x":{"previous_response_id":"no"}}"#,
            Some("resp_1"),
        ),
        (r#"{"previous_response_id":"a","previous_response_id":null}"#, None),
        (r#"{"previous_response_id":["a"]}"#, None),
        (r#"{"x":{"previous_response_id":"no"}}"#, None),
    ] {
        assert_eq!(whole(body).unwrap().previous_response.as_deref(), id, "{body}");
    }
    let long = format!(r#"{{"previous_response_id":"{}"}}"#, "x".repeat(129));
    assert_eq!(whole(long).unwrap().previous_response, None);
}

#[test]
fn model_names() {
    let table = [
        (r#"{"model":"a"}"#, "a"),
        (r#"{"mod\u0065l":"a"}"#, "a"),
        (r#"{"\u006D\u006f\u0064\u0065\u006C":"a"}"#, "a"),
        (r#"{"model":"a\/b\\c\"d\u0041\u00e9\u20AC"}"#, "a/b\\c\"dA\u{e9}\u{20ac}"),
        (r#"{"model":"\ud83d\ude00"}"#, "\u{1f600}"),
        (r#"{"model":"\uD800\uDC00x\uDBFF\uDFFF"}"#, "\u{10000}x\u{10ffff}"),
        ("{\"model\":\"\u{e9}\u{1f600}\"}", "\u{e9}\u{1f600}"),
        (r#"{"model":"\u0000\b\f\n\r\t"}"#, "\0\u{8}\u{c}\n\r\t"),
        (r#"{"x":{"model":"nested"},"model":"a","y":[{"model":"nested"}]}"#, "a"),
        (r#"{"stream_options":{"model":"nested"},"model":"a"}"#, "a"),
        // Names that are almost the one.
        (
            r#"{"Model":"x","model ":"x","model\u0000":"x","mode":"x","models":"x","model":"a"}"#,
            "a",
        ),
        (r#"{"model_which_is_a_much_longer_name_than_any":"x","model":"a"}"#, "a"),
        (r#"{"mod\ud800el":"x","model\udc00":"x","model\ud800":"x","model":"a"}"#, "a"),
    ];
    for (body, name) in table {
        assert_eq!(model(body).as_deref(), Some(name), "{body}");
    }
    let longest = "m".repeat(MAX_MODEL);
    assert_eq!(model(&format!(r#"{{"model":"{longest}"}}"#)), Some(longest));
    assert_eq!(model(r#"{"x":{"model":"nested"},"model_":"x"}"#), None);
}

#[test]
fn model_faults() {
    let too_long = format!(r#"{{"model":"{}"}}"#, "m".repeat(MAX_MODEL + 1));
    let too_long_escaped = format!(r#"{{"model":"{}\u00e9"}}"#, "m".repeat(MAX_MODEL - 1));
    let table: &[(&[u8], Fault)] = &[
        (br#"{"model":"a","model":"b"}"#, Fault::ModelTwice),
        (br#"{"model":"a","model":"a"}"#, Fault::ModelTwice),
        (br#"{"model":"a","x":[{}],"mod\u0065l":"b"}"#, Fault::ModelTwice),
        (br#"{"mod\u0065l":"a","model":null}"#, Fault::ModelTwice),
        (br#"{"model":""}"#, Fault::ModelEmpty),
        (br#"{"model":null}"#, Fault::ModelNull),
        (br#"{"model":7}"#, Fault::ModelNotString),
        (br#"{"model":-7}"#, Fault::ModelNotString),
        (br#"{"model":true}"#, Fault::ModelNotString),
        (br#"{"model":["a"]}"#, Fault::ModelNotString),
        (br#"{"model":{"model":"a"}}"#, Fault::ModelNotString),
        (too_long.as_bytes(), Fault::ModelTooLong),
        (too_long_escaped.as_bytes(), Fault::ModelTooLong),
        (b"{\"model\":\"a\xff\"}", Fault::ModelNotUnicode),
        // Half a character, closed by another half in an escape.
        (b"{\"model\":\"\xc3\\u0041\"}", Fault::ModelNotUnicode),
        (br#"{"model":"\ud800"}"#, Fault::ModelNotUnicode),
        (br#"{"model":"\ud800x"}"#, Fault::ModelNotUnicode),
        (br#"{"model":"\ud800\n"}"#, Fault::ModelNotUnicode),
        (br#"{"model":"\ud800\u0041"}"#, Fault::ModelNotUnicode),
        (br#"{"model":"\ud800\ud800\udc00"}"#, Fault::ModelNotUnicode),
        (br#"{"model":"\ud800\ud800"}"#, Fault::ModelNotUnicode),
        (br#"{"model":"\ud800x\udc00"}"#, Fault::ModelNotUnicode),
        (br#"{"model":"\udc00"}"#, Fault::ModelNotUnicode),
    ];
    for (body, fault) in table {
        let text = body.escape_ascii();
        assert_eq!(whole(body), Err(*fault), "{text}");
        assert_eq!(fault.param(), Some("model"), "{text}");
        assert!(fault.to_string().contains("`model`"), "{text}");
    }
}

#[test]
fn of_other_fields_the_last_counts() {
    let read = |body: &str| whole(body).unwrap();
    assert!(read(r#"{"stream":false,"stream":true}"#).stream);

    let usage = |options: &str| read(&format!(r#"{{"stream_options":{options}}}"#)).include_usage;
    assert_eq!(usage(r#"{"include_usage":true}"#), Some(true));
    assert_eq!(usage(r#"{"a":{},"b":[{}],"include_usag\u0065":false}"#), Some(false));
    assert_eq!(usage(r#"{"include_usage":1}"#), Some(true));
    assert_eq!(usage(r#"{"include_usage":"off"}"#), Some(false));
    assert_eq!(usage(r#"{"include_usage":"maybe"}"#), None);
    assert_eq!(usage(r#"{"include_usage":true,"include_usage":null}"#), None);
    assert_eq!(usage(r#"{"include_usage":true,"include_usage":{}}"#), None);
    assert_eq!(usage(r#"{"x":{"include_usage":true}}"#), None);
    assert_eq!(usage(r#"[{"include_usage":true}]"#), None);
    assert_eq!(usage(r#"{"include_usage":true},"stream_options":null"#), None);
    assert_eq!(usage(r#"{},"x":{"include_usage":true},"include_usage":true"#), None);

    let place = |body: &str, part| read(body).prompt.get(part);
    assert_eq!(place(r#"{"prompt":"a","prompt":"b"}"#, Part::Prompt), Some(23..26));
    assert_eq!(place(r#"{"input": [1, 2] }"#, Part::Input), Some(10..16));
    assert_eq!(place(r#"{"input":12}"#, Part::Input), Some(9..11));
    assert_eq!(place(r#"{"input":null}"#, Part::Input), Some(9..13));
    assert_eq!(place(r#"{"x":{"input":1},"tools":[{"input":1}]}"#, Part::Input), None);
}

#[test]
fn numbers() {
    let tokens = |fields: &str| whole(format!("{{{fields}}}")).unwrap().max_tokens;
    assert_eq!(tokens(r#""max_tokens":0"#), Some(0));
    assert_eq!(tokens(r#""max_tokens":-0"#), Some(0));
    assert_eq!(tokens(r#""max_tokens":18446744073709551615"#), Some(u64::MAX));
    for other in ["18446744073709551616", "-1", "1.0", "1e3", "\"5\"", "null", "[5]", "[5,5]"] {
        assert_eq!(tokens(&format!(r#""max_tokens":5,"max_tokens":{other}"#)), None, "{other}");
    }
    assert_eq!(tokens(r#""max_tokens":1,"max_output_tokens":2"#), Some(2));
    assert_eq!(
        tokens(r#""max_completion_tokens":3,"max_output_tokens":2,"max_tokens":1"#),
        Some(3)
    );

    let priority = |value: &str| whole(format!(r#"{{"priority":{value}}}"#)).unwrap().priority;
    assert_eq!(priority("-9223372036854775808"), Some(i64::MIN));
    assert_eq!(priority("9223372036854775807"), Some(i64::MAX));
    assert_eq!(priority("9223372036854775808"), None);
    assert_eq!(priority("-9223372036854775809"), None);
    assert_eq!(priority("-12"), Some(-12));
    assert_eq!(priority("2.5"), None);
}

#[test]
fn json_faults() {
    let table: &[(&[u8], u64, &str)] = &[
        (b"", 0, "empty"),
        (b" \n", 2, "empty"),
        (b"\xef\xbb\xbf{}", 0, "byte order mark"),
        (b"\xff\xfe{\0}\0", 0, "byte order mark"),
        (b"hello", 0, "`{`"),
        (b"{", 1, "ends before"),
        (b"{\"a", 3, "within a string"),
        (b"{\"a\\u00", 7, "within a string"),
        (b"{\"a\":1", 6, "ends before"),
        (b"{\"a\":[1,2}", 9, "`]`"),
        (b"{\"a\":{\"b\":1]", 11, "`}`"),
        (b"{} x", 3, "behind the JSON object"),
        (b"{}{}", 2, "behind the JSON object"),
        (b"{,}", 1, "name"),
        (b"{\"a\":1,}", 7, "name"),
        (b"{a:1}", 1, "name"),
        (b"{'a':1}", 1, "name"),
        (b"{\"a\" 1}", 5, "`:`"),
        (b"{\"a\":}", 5, "value"),
        (b"{\"a\":[1,]}", 8, "value"),
        (b"{\"a\":[,1]}", 6, "value"),
        (b"{\"a\":[1 2]}", 8, "`,`"),
        (b"{\"a\":1 \"b\":2}", 7, "`,`"),
        (b"{\"a\":NaN}", 5, "value"),
        (b"{\"a\":nul}", 8, "null"),
        (b"{\"a\":nulL}", 8, "null"),
        (b"{\"a\":truee}", 9, "`,`"),
        (b"{\"a\":+1}", 5, "value"),
        (b"{\"a\":.5}", 5, "value"),
        (b"{\"a\":-}", 6, "number"),
        (b"{\"a\":1.}", 7, "number"),
        (b"{\"a\":1e}", 7, "number"),
        (b"{\"a\":1e+}", 8, "number"),
        (b"{\"a\":1e+-1}", 8, "number"),
        (b"{\"a\":01}", 6, "`,`"),
        (b"{\"a\":[1,01,2]}", 9, "`,`"),
        (b"{\"a\":-01}", 7, "`,`"),
        (b"{\"a\":0x1}", 6, "`,`"),
        (b"{\"a\":1.5.5}", 8, "`,`"),
        (b"{\"a\":\"b\nc\"}", 7, "control"),
        (b"{\"a\":\"0123456789012345\x1f\"}", 22, "control"),
        (b"{\"a\":\"\\x\"}", 7, "escape"),
        (b"{\"a\":\"\\u12g4\"}", 10, "hex"),
        (b"{\"a\":\"\\u12\"}", 10, "hex"),
        (b"{\"a\":\x0b1}", 5, "value"),
        (b"{\"a\":1}\0", 7, "behind"),
    ];
    for (body, offset, part) in table {
        let text = body.escape_ascii().to_string();
        match whole(body) {
            Err(fault @ Fault::NotJson { offset: at, what }) => {
                assert_eq!(at, *offset, "{text}: {what}");
                assert!(what.contains(part), "{text}: {what}");
                assert_eq!(fault.param(), None);
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    for body in ["[]", " [{\"model\":\"a\"}]", "\"a\"", "7", "-1", "null", "true", "false"] {
        assert_eq!(whole(body), Err(Fault::NotObject), "{body}");
    }
}

/// What serde_json refuses and the scanner need not look at. A change in either shows here.
#[test]
fn differs_from_serde_json_where_documented() {
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(127), "]".repeat(127));
    let bodies: [&[u8]; 5] = [
        b"{\"a\":\"\xff\"}",
        br#"{"a":"\ud800"}"#,
        br#"{"\udc00":1}"#,
        br#"{"a":1e999}"#,
        deep.as_bytes(),
    ];
    for body in bodies {
        let text = body.escape_ascii();
        assert!(serde_json::from_slice::<Value>(body).is_err(), "{text}");
        assert_eq!(whole(body), Ok(Fields::default()), "{text}");
    }
}

#[test]
fn parts_of_the_prompt() {
    for (name, part) in PARTS {
        let body = format!(r#"{{"a{name}":1, "{name}": {{"{name}":[2]}}, "{name}s_":3}}"#);
        let found = whole(&body).unwrap().prompt;
        let place = found.get(part).unwrap_or_else(|| panic!("{body}"));
        let value = format!(r#"{{"{name}":[2]}}"#);
        assert_eq!(body[place.start as usize..place.end as usize], value);
        let mut only = Parts::default();
        only.set(part, place);
        assert_eq!(found, only, "{body}");
    }
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| {
        let (open, close) = ("[{\"a\":".repeat(depth / 2), "}]".repeat(depth / 2));
        format!("{{\"a\":[{open}1{close}], \"model\": \"a\"}}")
    };
    let deepest = MAX_DEPTH as usize - 2;
    assert_eq!(model(&nested(deepest)).as_deref(), Some("a"));
    let fault = Fault::TooDeep { offset: 6 + 6 * (deepest as u64 / 2) };
    assert_eq!(whole(nested(deepest + 2)), Err(fault));
    assert!(whole(format!("{{\"a\":{}", "[".repeat(1_000_000))).is_err());
}

#[test]
fn model_behind_megabytes() {
    let text = "some \\\"text\\\" and \\u00e9, ".repeat(500_000);
    let body = format!(r#"{{"messages":[{{"content":"{text}"}}],"model":"late"}}"#);
    assert!(body.len() > 10_000_000);
    let fields = scan(body.as_bytes().chunks(16 * 1024)).unwrap();
    assert_eq!(fields.model.as_deref(), Some("late"));
    assert_eq!(fields.prompt.get(Part::Messages), Some(12..body.len() as u64 - 16));
}

#[test]
fn memory_is_bounded() {
    let long = "x".repeat(100_000);
    for body in [format!(r#"{{"model":"{long}"#), format!(r#"{{"{long}":"{long}","{long}"#)] {
        let mut scanner = Scanner::new();
        for piece in body.as_bytes().chunks(100) {
            scanner.feed(piece).unwrap();
        }
        assert!(scanner.text.kept.capacity() <= 2 * MAX_MODEL);
    }
}

/// JSON text of any value.
fn value() -> BoxedStrategy<String> {
    let text = r#""([ -!#-\[\]-~]|\\["\\/bfnrt]|\\u00[0-9a-fA-F]{2}|\\ud83d\\ude0[0-9]){0,12}""#;
    let leaf = prop_oneof![
        select(&["true", "false", "null", "0", "-0", "1", "{}", "[]", "\"\"", "\"a\""][..])
            .prop_map(String::from),
        "-?(0|[1-9][0-9]{0,21})(\\.[0-9]{1,3})?([eE][+-]?[0-9]{1,2})?",
        text,
    ];
    let nested = leaf.prop_recursive(4, 24, 5, move |inner| {
        let pair = (text, blank(), inner.clone())
            .prop_map(|(name, blank, value)| format!("{name}{blank}:{blank}{value}"));
        prop_oneof![list("[", inner, "]"), list("{", pair, "}")]
    });
    nested.boxed()
}

fn list(
    open: &'static str,
    item: impl Strategy<Value = String>,
    close: &'static str,
) -> impl Strategy<Value = String> {
    (vec(item, 0..6), blank()).prop_map(move |(items, blank)| {
        format!("{open}{blank}{}{blank}{close}", items.join(&format!("{blank},{blank}")))
    })
}

fn blank() -> impl Strategy<Value = String> {
    "[ \n\r\t]{0,2}"
}

/// A request body: fields that matter among others, mostly with values that fit.
fn body() -> impl Strategy<Value = String> {
    let name = select(
        &[
            "cache_salt",
            "include_usage",
            "input",
            "m\\u0061x_tokens",
            "max_completion_tokens",
            "max_output_tokens",
            "max_tokens",
            "messages",
            "mod\\u0065l",
            "model",
            "models",
            "prompt",
            "priority",
            "stream",
            "stream_options",
            "tools",
            "user",
        ][..],
    );
    let options = "\\{(\"include_usage\": ?(true|false|null|1|\\{\\})(,\"x\": ?[0-9])?)?\\}";
    let value = prop_oneof![
        2 => value(),
        1 => "\"[a-z/]{0,5}\"",
        1 => "-?[1-9][0-9]{0,2}",
        1 => options,
        1 => "true|false",
    ];
    let field = (name, blank(), value)
        .prop_map(|(name, blank, value)| format!("\"{name}\"{blank}:{blank}{value}"));
    list("{", field, "}")
}

/// Bodies, and bodies with a few bytes replaced, inserted or removed.
fn perhaps_broken() -> impl Strategy<Value = Vec<u8>> {
    let byte = select(&b"{}[]:,\"\\ \n\x01-+.0159eEutfnd\xc3\xa9"[..]);
    let edit = (any::<Index>(), 0..3_u8, byte);
    (body(), vec(edit, 0..3)).prop_map(|(body, edits)| {
        let mut body = body.into_bytes();
        for (at, kind, byte) in edits {
            let at = at.index(body.len().max(1));
            match kind {
                0 if at < body.len() => body[at] = byte,
                1 if at < body.len() => drop(body.remove(at)),
                _ => body.insert(at, byte),
            }
        }
        body
    })
}

/// The top level of a body by serde_json, with names that come twice.
struct Pairs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(Collect)
    }
}

impl Pairs {
    /// What the scanner should find, but for the prompt's place.
    fn fields(&self) -> Result<Fields, Fault> {
        let mut fields = Fields::default();
        let mut max_tokens = [None; 3];
        for (name, value) in &self.0 {
            match name.as_str() {
                "model" if fields.model.is_some() => return Err(Fault::ModelTwice),
                "model" => match value {
                    Value::String(name) if name.is_empty() => return Err(Fault::ModelEmpty),
                    Value::String(name) => fields.model = Some(name.as_str().into()),
                    Value::Null => return Err(Fault::ModelNull),
                    _ => return Err(Fault::ModelNotString),
                },
                "stream" => fields.stream = is_true(value) == Some(true),
                "stream_options" => {
                    fields.include_usage = value.get("include_usage").and_then(is_true);
                }
                "max_completion_tokens" => max_tokens[0] = value.as_u64(),
                "max_output_tokens" => max_tokens[1] = value.as_u64(),
                "max_tokens" => max_tokens[2] = value.as_u64(),
                "priority" => fields.priority = value.as_i64(),
                _ => {}
            }
        }
        fields.max_tokens = max_tokens.into_iter().flatten().next();
        Ok(fields)
    }

    fn last(&self, name: &str) -> Option<&Value> {
        self.0.iter().rfind(|(other, _)| other == name).map(|(_, value)| value)
    }
}

fn is_true(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(value) => Some(*value),
        Value::Number(number) => match number.as_u64() {
            Some(0) => Some(false),
            Some(1) => Some(true),
            _ => None,
        },
        Value::String(text) => truth(text.as_bytes()),
        _ => None,
    }
}

const PARTS: [(&str, Part); 15] = [
    ("cache_salt", Part::CacheSalt),
    ("chat_template", Part::ChatTemplate),
    ("documents", Part::Documents),
    ("extra_key", Part::ExtraKey),
    ("functions", Part::Functions),
    ("image_data", Part::ImageData),
    ("input", Part::Input),
    ("input_ids", Part::InputIds),
    ("inputs", Part::Inputs),
    ("instructions", Part::Instructions),
    ("messages", Part::Messages),
    ("prompt", Part::Prompt),
    ("system", Part::System),
    ("text", Part::Text),
    ("tools", Part::Tools),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Cut in two at every place, in three at some, and in pieces of one size.
    #[test]
    fn every_split_gives_the_same(body in perhaps_broken(), second in 0..20_usize) {
        let expected = whole(&body);
        for at in 0..=body.len() {
            let (front, back) = body.split_at(at);
            let (middle, back) = back.split_at(second.min(back.len()));
            prop_assert_eq!(&scan([front, middle, back]), &expected, "at {}", at);
        }
        for size in [1, 2, 3, 9] {
            prop_assert_eq!(&scan(body.chunks(size)), &expected, "in pieces of {}", size);
        }
    }

    #[test]
    fn agrees_with_serde_json(body in perhaps_broken()) {
        let text = body.escape_ascii().to_string();
        let found = whole(&body);
        let pairs = match serde_json::from_slice::<Pairs>(&body) {
            Ok(pairs) => pairs,
            Err(error) => {
                let error = error.to_string();
                let documented = ["surrogate", "hex escape", "out of range", "unicode code point"];
                let excused = documented.iter().any(|part| error.contains(part));
                prop_assert!(found.is_err() || excused, "{}: {}", text, error);
                return Ok(());
            }
        };
        let expected = pairs.fields();
        let prompt = found.as_ref().map(|fields| fields.prompt.clone()).unwrap_or_default();
        let options = found.as_ref().ok().and_then(|fields| fields.stream_options.clone());
        let model = found.as_ref().ok().and_then(|fields| {
            let place = fields.model_at.clone()?;
            serde_json::from_slice::<String>(&body[place.start as usize..place.end as usize]).ok()
        });
        if let Ok(fields) = &found {
            prop_assert_eq!(model.as_deref(), fields.model.as_deref(), "{}", text);
        }
        let include = found.as_ref().ok().and_then(|fields| fields.include_usage_at.clone());
        let found = found.map(|fields| Fields {
            prompt: Parts::default(),
            stream_options: None,
            include_usage_at: None,
            model_at: None,
            previous_response: None,
            ..fields
        });
        // serde_json makes a float of -0.
        if !text.contains("-0") {
            prop_assert_eq!(&found, &expected, "{}", text);
        }
        prop_assert_eq!(found.is_ok(), expected.is_ok(), "{}", text);
        if found.is_ok() {
            let at = |place: Option<std::ops::Range<u64>>| {
                let bytes = &body[place.clone()?.start as usize..place?.end as usize];
                Some(serde_json::from_slice::<Value>(bytes).unwrap())
            };
            let expected = pairs.last("stream_options");
            prop_assert_eq!(&at(options), &expected.cloned(), "{}", text);
            let expected = expected.and_then(|options| options.get("include_usage"));
            prop_assert_eq!(&at(include), &expected.cloned(), "{}", text);
            for (name, part) in PARTS {
                let bytes = prompt.get(part).map(|place| &body[place.start as usize..place.end as usize]);
                let value = bytes.map(|bytes| serde_json::from_slice::<Value>(bytes).unwrap());
                prop_assert_eq!(value.as_ref(), pairs.last(name), "{} of {}", name, text);
                prop_assert_eq!(bytes.map(<[u8]>::trim_ascii), bytes, "{} of {}", name, text);
            }
        }
    }

    /// Eight bytes at a time or one by one: the same place.
    #[test]
    fn plain_text_is_skipped_alike(text in vec(prop_oneof![0x1e..0x24_u8, 0x5a..0x5e_u8, any::<u8>()], 0..40)) {
        let special = |byte: &u8| *byte < 0x20 || *byte == b'"' || *byte == b'\\';
        for start in 0..text.len() {
            let text = &text[start..];
            let expected = text.iter().position(special).unwrap_or(text.len());
            prop_assert_eq!(text::plain(text), expected);
        }
    }

    #[test]
    fn arbitrary_bytes_end_or_fail(body in vec(any::<u8>(), 0..100)) {
        let _ = whole(&body);
        let _ = scan([&b"{\"model\":\""[..], &body]);
        let _ = scan([&b"{\"max_tokens\":"[..], &body]);
    }
}
