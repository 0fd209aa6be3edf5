use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::request::scan::Scanner;

/// Blocks of 8 bytes, so that every difference shows.
const SCOPE: Scope<'_> = Scope { model: "model", adapter: None, block_tokens: 2 };

fn read_as(body: &str, scope: &Scope<'_>) -> Prompt {
    let mut scanner = Scanner::new();
    scanner.feed(body.as_bytes()).unwrap_or_else(|fault| panic!("{body}: {fault}"));
    let fields = scanner.finish().unwrap_or_else(|fault| panic!("{body}: {fault}"));
    Prompt::read(body.as_bytes(), &fields.prompt, scope, &Secret::from_seed(1))
}

fn read(body: &str) -> Prompt {
    read_as(body, &SCOPE)
}

/// How many blocks two bodies share, from the first on.
fn shared(one: &str, other: &str) -> usize {
    let (one, other) = (read(one).blocks, read(other).blocks);
    one.iter().zip(&other).take_while(|(one, other)| one == other).count()
}

#[test]
fn what_is_the_same_prompt() {
    let table = [
        // Blanks.
        (
            r#"{"messages":[{"role":"user","content":"hello you there"}]}"#,
            "{ \"messages\" : [\n{\t\"role\" : \"user\" ,\r\n \"content\":\"hello you there\" } ] }",
        ),
        // The order of fields, at the top and in messages.
        (
            r#"{"tools":[{"a":1}],"messages":[{"role":"user","content":"hello you there"}],"model":"x"}"#,
            r#"{"model":"x","messages":[{"content":"hello you there","role":"user"}],"tools":[{"a":1}]}"#,
        ),
        (
            r#"{"messages":[{"role":"assistant","content":"a","name":"b","tool_calls":[{"id":"c"}]}]}"#,
            r#"{"messages":[{"name":"b","tool_calls":[{"id":"c"}],"content":"a","role":"assistant"}]}"#,
        ),
        (
            r#"{"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":"{\"q\": \u00e9}"}}]}]}"#,
            "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\"{\\u0022q\\\": \u{e9}}\"}}]}]}",
        ),
        // The form of characters.
        (
            r#"{"prompt":"h\u00e9llo \ud83d\ude00 \/ \u0022 \t\u4e16\u754c \\"}"#,
            "{\"prompt\":\"h\u{e9}llo \u{1f600} / \\\" \\u0009\u{4e16}\u{754c} \\u005c\"}",
        ),
        // Text, or a list of one text.
        (
            r#"{"messages":[{"role":"user","content":"hello you there"}]}"#,
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"hello you there"}]}]}"#,
        ),
        (
            r#"{"messages":[{"role":"user","content":[{"text":"hello","type":"text"}]}]}"#,
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"hello","cache_control":{"type":"ephemeral"}}]}]}"#,
        ),
        // The system prompt in its own field, or as a message; the tools stand behind it.
        (
            r#"{"system":"be good","messages":[{"role":"user","content":"hello"}],"tools":[1]}"#,
            r#"{"tools":[1],"messages":[{"role":"system","content":"be good"},{"role":"user","content":"hello"}]}"#,
        ),
        (
            r#"{"instructions":"be good","input":[{"role":"user","content":[{"type":"input_text","text":"hello"}]}]}"#,
            r#"{"input":[{"type":"message","role":"user","content":"hello"}],"instructions":"be good"}"#,
        ),
        // Tokens, however they are written.
        (
            r#"{"prompt":[1,22,333,4444,55555,666666,7777777]}"#,
            "{\"prompt\":[1, 22,\n333 ,4444,55555,666666,7777777 ]}",
        ),
        // What the model does not see.
        (
            r#"{"prompt":"hello you there","temperature":1,"user":"a","stream":true}"#,
            r#"{"prompt":"hello you there","max_tokens":3,"metadata":{"prompt":"x"}}"#,
        ),
        (
            r#"{"prompt":"hello you there","cache_salt":null,"tools":null}"#,
            r#"{"prompt":"hello you there"}"#,
        ),
        // Of what comes twice the last counts.
        (
            r#"{"prompt":"a long first prompt","prompt":"hello you there"}"#,
            r#"{"prompt":"hello you there"}"#,
        ),
        (
            r#"{"prompt":"hello you there","text":{"format":{"type":"json_object"}}}"#,
            r#"{"prompt":"hello you there"}"#,
        ),
    ];
    for (one, other) in table {
        let prompt = read(one);
        assert!(!prompt.blocks.is_empty(), "{one}");
        assert_eq!(prompt, read(other), "{one}\n{other}");
    }
}

#[test]
fn picker_report_18_what_is_not_the_same_prompt() {
    let image = |text: &str| {
        format!(
            r#"{{"messages":[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{text}"}}}}]}}]}}"#
        )
    };
    let table = [
        (r#"{"prompt":"hello you there"}"#, r#"{"prompt":"hello you others"}"#),
        (r#"{"prompt":"hello you there"}"#, r#"{"prompt":"hello you there","cache_salt":"s"}"#),
        (
            r#"{"prompt":"hello you there","cache_salt":"t"}"#,
            r#"{"prompt":"hello you there","cache_salt":"s"}"#,
        ),
        (
            r#"{"prompt":"hello you there","extra_key":"s"}"#,
            r#"{"prompt":"hello you there","cache_salt":"s"}"#,
        ),
        (
            r#"{"messages":[{"role":"user","content":"hello"}]}"#,
            r#"{"messages":[{"role":"tool","content":"hello"}]}"#,
        ),
        (
            r#"{"messages":[{"role":"user","content":"hello you"}]}"#,
            r#"{"messages":[{"role":"user","content":"hello you"}],"tools":[{"name":"look it up"}]}"#,
        ),
        (
            r#"{"tools":[{"a":1,"b":22222222}],"messages":[]}"#,
            r#"{"tools":[{"b":22222222,"a":1}],"messages":[]}"#,
        ),
        (r#"{"prompt":[1,2,3,4]}"#, r#"{"prompt":[1,2,3,5]}"#),
        (r#"{"prompt":[12,345,6]}"#, r#"{"prompt":[123,45,6]}"#),
        (r#"{"prompt":[10000000,1]}"#, r#"{"prompt":[100000000,1]}"#),
        (&image("AAAA"), &image("AAAB")),
        (
            r#"{"input":[{"type":"function_call_output","call_id":"1","output":"sunny today"}]}"#,
            r#"{"input":[{"type":"function_call_output","call_id":"1","output":"rainy today"}]}"#,
        ),
    ];
    for (one, other) in table {
        assert!(!read(one).blocks.is_empty(), "{one}");
        assert_ne!(read(one).blocks, read(other).blocks, "{one}\n{other}");
    }
}

#[test]
fn hashes_are_those_of_the_scope() {
    let body = r#"{"prompt":"hello you there"}"#;
    let plain = read(body).blocks;
    assert_eq!(plain, read(body).blocks);
    let scopes = [
        Scope { model: "model2", ..SCOPE },
        Scope { adapter: Some("lora"), ..SCOPE },
        Scope { model: "modellora", ..SCOPE },
        Scope { model: "", adapter: Some("model"), ..SCOPE },
        Scope { block_tokens: 1, ..SCOPE },
    ];
    for scope in scopes {
        let other = read_as(body, &scope).blocks;
        assert_ne!(plain.first(), other.first(), "{scope:?}");
        assert_ne!(read(body).head, read_as(body, &scope).head, "{scope:?}");
    }
    assert_ne!(read(body).head, read(r#"{"prompt":"hello you there","cache_salt":"s"}"#).head);
    let mut scanner = Scanner::new();
    scanner.feed(body.as_bytes()).unwrap();
    let parts = scanner.finish().unwrap().prompt;
    for secret in [Secret::from_seed(2), Secret::random(), Secret::random()] {
        let other = Prompt::read(body.as_bytes(), &parts, &SCOPE, &secret);
        assert_ne!(other.blocks, plain);
        assert_eq!(other.head, read(body).head, "gateways agree");
    }
}

#[test]
fn a_head_is_the_front_of_a_prompt() {
    let head = |text: &str| read(&format!(r#"{{"prompt":"{text}"}}"#)).head;
    let front = "x".repeat(HEAD_TOKENS * BYTES_PER_TOKEN);
    let same = head(&front);
    assert!(same.is_some());
    assert_eq!(head(&format!("{front} and more of it")), same);
    let almost = front.len() - 8;
    assert_ne!(head(&format!("{} and more of it", &front[..almost])), same);
    assert_ne!(head(&front[..almost]), same);
    assert_eq!(head("short"), None);
}

#[test]
fn a_chat_that_goes_on_shares_what_it_had() {
    let system =
        "You are a helpful assistant that answers all questions in a long and friendly way.";
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let mut messages = vec![message("system", system), message("user", "How are you on this day?")];
    let first = json!({"model": "m", "messages": messages}).to_string();
    messages.push(message("assistant", "Very well, and you?"));
    messages.push(message("user", "Fine."));
    let second = json!({"messages": messages, "model": "m", "stream": true}).to_string();
    let len = read(&first).blocks.len();
    assert!(len > 15);
    // The last whole block of the first may hold the end of its last message.
    assert_eq!(shared(&first, &second), len);

    let other = json!({"messages": [message("system", system), message("user", "Who are you?")]});
    let common = shared(&first, &other.to_string());
    assert!((system.len() / 8..len).contains(&common), "{common} of {len}");
    // With tools as well, of which the second has one more.
    let tool =
        |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {}}});
    let one = json!({"messages": messages, "tools": [tool("alpha")]}).to_string();
    let two = json!({"messages": messages, "tools": [tool("alpha"), tool("beta")]}).to_string();
    let common = shared(&one, &two);
    assert!((system.len() / 8 + 5..read(&one).blocks.len()).contains(&common), "{common}");
}

#[test]
fn media_count_as_tokens() {
    let tokens = |content: &str| {
        read(&format!(r#"{{"messages":[{{"role":"user","content":[{content}]}}]}}"#)).tokens
    };
    let text = tokens(r#"{"type":"text","text":"hello"}"#);
    let data = "A".repeat(100_000);
    for (content, more) in [
        (
            format!(
                r#"{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}","detail":"high"}}}}"#
            ),
            1024,
        ),
        (r#"{"type":"input_image","image_url":"https://example.com/cat.png"}"#.into(), 1024),
        (
            format!(
                r#"{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{data}"}}}}"#
            ),
            1024,
        ),
        (
            format!(
                r#"{{"type":"input_audio","input_audio":{{"data":"{data}{data}{data}{data}","format":"wav"}}}}"#
            ),
            390,
        ),
        (r#"{"type":"tool_use","name":"get","input":{"url":"https://example.com/a"}}"#.into(), 10),
        (r#"{"type":"video_url","video_url":{"url":"https://example.com/cat.mp4"}}"#.into(), 4096),
    ] {
        let found = tokens(&format!(r#"{{"type":"text","text":"hello"}},{content}"#));
        assert!((text + more..text + more + 20).contains(&found), "{found} of {text} + {more}");
    }
    assert_eq!(
        read(&format!(r#"{{"text":"hello","image_data":["{data}","b"]}}"#)).tokens,
        2048 + 2
    );
}

#[test]
fn tokens_are_estimated() {
    let words = "four ".repeat(8_000);
    assert_eq!(read(&format!(r#"{{"prompt":"{words}"}}"#)).tokens, 10_001);
    let ids = vec!["123456"; 5_000].join(", ");
    assert_eq!(read(&format!(r#"{{"prompt":[{ids}]}}"#)).tokens, 5_000);
    assert_eq!(read(r#"{"messages":[{"role":"user","content":"hi"}]}"#).tokens, 5);
    assert_eq!(read("{}"), Prompt { block_tokens: 2, ..Prompt::default() });
}

#[test]
fn what_is_hashed_is_bounded() {
    let image = format!(r#"{{"type":"image_url","image_url":{{"url":"{}"}}}},"#, "a".repeat(64));
    let body =
        format!(r#"{{"messages":[{{"role":"user","content":[{}1]}}]}}"#, image.repeat(9_000));
    let prompt = read_as(&body, &Scope { block_tokens: 64, ..SCOPE });
    assert_eq!(prompt.blocks.len(), super::super::MAX_BLOCKS);
    let text = "x".repeat(10_000_000);
    let prompt =
        read_as(&format!(r#"{{"prompt":"{text}"}}"#), &Scope { block_tokens: 64, ..SCOPE });
    assert_eq!(prompt.blocks.len(), super::super::MAX_BLOCKS);
    assert_eq!(prompt.tokens, 2_500_001, "of all of it");
}

#[test]
fn small_bodies_do_not_make_many_blocks_of_media() {
    let scope = Scope { block_tokens: 64, ..SCOPE };
    let of = |count: usize| {
        let videos = vec![r#""a""#; count].join(",");
        let body =
            format!(r#"{{"messages":[{{"role":"user","content":[{{"video":[{videos}]}}]}}]}}"#);
        let prompt = read_as(&body, &scope);
        let most = MEDIA_BYTES + MEDIA_GROWTH * body.len();
        assert!(prompt.blocks.len() * 64 * BYTES_PER_TOKEN <= most, "{count}: {most}");
        assert!(prompt.tokens as usize * BYTES_PER_TOKEN <= most, "{count}: {most}");
        prompt
    };
    // A few short addresses are as long as ever.
    assert!((4 * 4096..4 * 4096 + 64).contains(&of(4).tokens));
    let (some, more) = (of(300), of(400));
    assert!(some.tokens > of(4).tokens && more.tokens > some.tokens);
    // What comes behind does not change what was ahead.
    assert_eq!(some.blocks[..], more.blocks[..some.blocks.len()]);
}

#[test]
fn nesting_does_not_go_through_the_stack() {
    let mut parts = Parts::default();
    for open in
        ["[", "{\"a\":", "{\"image_url\":", "{\"content\":", "{\"image_url\":[", "[{\"text\":["]
    {
        let body = open.repeat(100_000);
        for part in [Part::Messages, Part::ImageData, Part::System] {
            parts.set(part, 0..body.len() as u64);
        }
        Prompt::read(body.as_bytes(), &parts, &SCOPE, &Secret::from_seed(1));
    }
}

/// JSON that requests are made of.
fn value() -> impl Strategy<Value = Value> {
    let text = prop_oneof![".{0,12}", "[a-z]{0,4}"];
    let leaf = prop_oneof![
        text.prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        Just(Value::Null),
        Just(Value::from(true))
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        let name = prop::sample::select(
            &["role", "content", "text", "type", "image_url", "url", "name", "input"][..],
        );
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            vec((name, inner), 0..5).prop_map(|fields| {
                fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
            }),
        ]
    })
}

fn body() -> impl Strategy<Value = Value> {
    let part =
        prop::sample::select(&["messages", "system", "tools", "prompt", "input", "text"][..]);
    vec((part, value()), 0..4).prop_map(|fields| {
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    })
}

/// As a client writes it that escapes all that is not ASCII, with blanks.
fn written_otherwise(body: &Value) -> String {
    let text = serde_json::to_string_pretty(body).unwrap();
    let mut ascii = String::new();
    for character in text.chars() {
        if character.is_ascii() {
            ascii.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                ascii.push_str(&format!("\\u{unit:04X}"));
            }
        }
    }
    ascii
}

proptest! {
    /// In tools and media the bytes decide.
    #[test]
    fn blanks_and_escapes_make_no_difference(body in body()) {
        let (one, other) = (body.to_string(), written_otherwise(&body));
        prop_assume!(one.is_ascii() || !(one.contains("tools") || one.contains("url")));
        prop_assert_eq!(read(&one), read(&other), "{}", one);
    }

    /// Anything at all ends, and the same bytes give the same blocks.
    #[test]
    fn arbitrary_bytes_give_some_blocks(
        body in vec(prop_oneof![prop::sample::select(&b"[]{}\",:\\ 019eutn"[..]), any::<u8>()], 0..200),
        from in 0..200_u64, to in 0..250_u64,
    ) {
        let mut parts = Parts::default();
        for part in [Part::Messages, Part::Tools, Part::Prompt, Part::ImageData, Part::System, Part::CacheSalt] {
            parts.set(part, from..to);
        }
        let secret = Secret::from_seed(1);
        let prompt = Prompt::read(&body, &parts, &SCOPE, &secret);
        prop_assert_eq!(&prompt, &Prompt::read(&body, &parts, &SCOPE, &secret));
    }
}
