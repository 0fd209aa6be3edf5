//! The few changes that are made to a request on its way to a pod. Pure.
//!
//! Bytes are put in or replaced, and nothing is written anew: the order of fields, large numbers and the client's own
//! spelling stay as they are. What is asked of here has been found well formed by [`scan`](super::scan).

use std::ops::Range;

use super::scan::Fields;

/// Replaces the path in the request line of a head, and leaves the query.
pub fn target(head: &mut Vec<u8>, path: &str) {
    let mut blanks = memchr::memchr_iter(b' ', head);
    let (Some(start), Some(end)) = (blanks.next(), blanks.next()) else { return };
    let old = head.get(start + 1..end).unwrap_or_default();
    let end = memchr::memchr(b'?', old).map_or(end, |at| start + 1 + at);
    head.splice(start + 1..end, path.bytes());
}

/// Takes every line of this header out of a head.
pub fn without(head: &mut Vec<u8>, name: &str) {
    let mut kept = Vec::with_capacity(head.len());
    for (at, line) in head.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let own = line.split(|byte| *byte == b':').next().unwrap_or_default();
        if at == 0 || !own.eq_ignore_ascii_case(name.as_bytes()) {
            kept.extend_from_slice(line);
        }
    }
    *head = kept;
}

/// Takes out of `Sec-WebSocket-Protocol` what is a key and no protocol: browsers, which can send no other header of
/// their own, put it there.
pub fn without_key_as_protocol(head: &mut Vec<u8>) {
    let mut kept = Vec::with_capacity(head.len());
    for line in head.split_inclusive(|byte| *byte == b'\n') {
        let at = memchr::memchr(b':', line).unwrap_or(0);
        let (name, value) = line.split_at_checked(at).unwrap_or((line, &[]));
        if !name.eq_ignore_ascii_case(b"sec-websocket-protocol") {
            kept.extend_from_slice(line);
            continue;
        }
        let value = value.get(1..).unwrap_or_default();
        let protocols = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        let protocols = protocols.filter(|protocol| !protocol.starts_with(KEY_AS_PROTOCOL));
        let protocols = protocols.collect::<Vec<_>>().join(b", ".as_slice());
        if !protocols.is_empty() {
            kept.extend([name, b": ", &protocols, b"\r\n"].concat());
        }
    }
    *head = kept;
}

/// Whether a body, JSON or a form, is JSON.
pub fn is_json(body: &[u8]) -> bool {
    body.trim_ascii_start().starts_with(b"{")
}

/// Puts a model's name into a JSON body that has none.
pub fn name_model(body: &mut Vec<u8>, model: &str) {
    let Some(open) = memchr::memchr(b'{', body) else { return };
    let name = serde_json::Value::from(model);
    put_field(body, open + 1, &format!("\"model\":{name}"));
}

/// Puts a model's name in place of the one that a body has, JSON or a form, and has it ask for a stream's usage if that
/// is wanted as well.
pub fn rename_model(body: &mut Vec<u8>, fields: &Fields, model: &str, asks_for_usage: bool) {
    let is_json = is_json(body);
    let Some(place) = range(&fields.model_at) else { return };
    let options = fields.include_usage_at.as_ref().or(fields.stream_options.as_ref());
    // What stands behind is changed first, as places are those in the body as it came.
    let is_behind = options.is_some_and(|options| options.start > place.start as u64);
    if asks_for_usage && is_behind {
        ask_for_usage(body, fields);
    }
    match is_json {
        true => replace(body, place, &serde_json::Value::from(model).to_string()),
        // The configuration has no name with a line end, which could be a boundary's.
        false => replace(body, place, model),
    }
    if asks_for_usage && !is_behind {
        ask_for_usage(body, fields);
    }
}

/// Whether a client wants a stream's usage.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum UsageWish {
    /// It does.
    Yes,
    /// It does not.
    No,
    /// It has sent `stream_options` without a word of it: engines differ in what that means.
    Unsaid,
    /// What it says is neither; the pod says so.
    Odd,
}

/// What the client of a JSON body wants.
pub fn usage_wish(body: &[u8], fields: &Fields) -> UsageWish {
    let first = |place: &Option<Range<u64>>| {
        body.get(usize::try_from(place.as_ref()?.start).ok()?).copied()
    };
    match (fields.include_usage, first(&fields.include_usage_at), first(&fields.stream_options)) {
        (Some(true), _, _) => UsageWish::Yes,
        (Some(false), _, _) | (None, Some(b'n'), _) | (None, None, None | Some(b'n')) => {
            UsageWish::No
        }
        (None, None, Some(b'{')) => UsageWish::Unsaid,
        _ => UsageWish::Odd,
    }
}

/// Has a JSON body ask for a stream's usage.
pub fn ask_for_usage(body: &mut Vec<u8>, fields: &Fields) {
    if let Some(place) = range(&fields.include_usage_at) {
        replace(body, place, "true");
        return;
    }
    match range(&fields.stream_options) {
        Some(place) => match body.get(place.start) {
            Some(b'{') => put_field(body, place.start + 1, "\"include_usage\":true"),
            Some(b'n') => replace(body, place, "{\"include_usage\":true}"),
            // The pod says what is wrong with it.
            _ => {}
        },
        None => {
            let Some(open) = memchr::memchr(b'{', body) else { return };
            put_field(body, open + 1, "\"stream_options\":{\"include_usage\":true}");
        }
    }
}

fn range(place: &Option<Range<u64>>) -> Option<Range<usize>> {
    let place = place.as_ref()?;
    Some(usize::try_from(place.start).ok()?..usize::try_from(place.end).ok()?)
}

/// Puts a field first into the object whose bracket ends at `at`.
fn put_field(body: &mut Vec<u8>, at: usize, field: &str) {
    let rest = body.get(at..).unwrap_or_default();
    let is_empty = rest.trim_ascii_start().starts_with(b"}");
    let comma = if is_empty { "" } else { "," };
    replace(body, at..at, &format!("{field}{comma}"));
}

fn replace(body: &mut Vec<u8>, place: Range<usize>, text: &str) {
    if place.end > body.len() {
        return;
    }
    // A body may be large: without room it would be copied into one of twice its size.
    body.reserve_exact(text.len());
    body.splice(place, text.bytes());
}

/// In front of a key that is sent as a protocol, by OpenAI's convention.
const KEY_AS_PROTOCOL: &[u8] = b"openai-insecure-api-key.";

#[cfg(test)]
mod tests {
    use super::super::multipart::{self, Boundary};
    use super::super::scan::Scanner;
    use super::*;

    fn usage(text: &str) -> String {
        let mut scanner = Scanner::new();
        scanner.feed(text.as_bytes()).unwrap();
        let fields = scanner.finish().unwrap();
        let mut body = text.as_bytes().to_vec();
        ask_for_usage(&mut body, &fields);
        String::from_utf8(body).unwrap()
    }

    #[test]
    fn what_a_client_wants() {
        use UsageWish::{No, Odd, Unsaid, Yes};
        for (options, expected) in [
            ("", No),
            (r#""stream_options":null"#, No),
            (r#""stream_options":{}"#, Unsaid),
            (r#""stream_options":{"continuous_usage_stats":true}"#, Unsaid),
            (r#""stream_options":{"include_usage":null}"#, No),
            (r#""stream_options":{"include_usage":false}"#, No),
            (r#""stream_options":{"include_usage":0}"#, No),
            (r#""stream_options":{"include_usage":true}"#, Yes),
            (r#""stream_options":{"include_usage":1}"#, Yes),
            (r#""stream_options":{"include_usage":"Yes"}"#, Yes),
            (r#""stream_options":{"include_usage":"perhaps"}"#, Odd),
            (r#""stream_options":{"include_usage":[]}"#, Odd),
            (r#""stream_options":7"#, Odd),
        ] {
            let text = format!("{{{options}}}");
            let mut scanner = Scanner::new();
            scanner.feed(text.as_bytes()).unwrap();
            let fields = scanner.finish().unwrap();
            assert_eq!(usage_wish(text.as_bytes(), &fields), expected, "{text}");
        }
    }

    #[test]
    fn usage_is_asked_for_wherever_the_options_stand() {
        for (text, expected) in [
            ("{}", r#"{"stream_options":{"include_usage":true}}"#),
            (" {\n\"a\":1e400}", " {\"stream_options\":{\"include_usage\":true},\n\"a\":1e400}"),
            (
                r#"{"stream_options":{},"a":1}"#,
                r#"{"stream_options":{"include_usage":true},"a":1}"#,
            ),
            (
                r#"{"a":{"stream_options":{}},"stream_options": { "continuous_usage_stats":false } }"#,
                r#"{"a":{"stream_options":{}},"stream_options": {"include_usage":true, "continuous_usage_stats":false } }"#,
            ),
            (
                r#"{"stream_options":{"include_usage": false}}"#,
                r#"{"stream_options":{"include_usage": true}}"#,
            ),
            (
                r#"{"stream_options":{"include_usage":null,"x":[1]}}"#,
                r#"{"stream_options":{"include_usage":true,"x":[1]}}"#,
            ),
            (
                r#"{"stream_options":{"x":{"include_usage":false}}}"#,
                r#"{"stream_options":{"include_usage":true,"x":{"include_usage":false}}}"#,
            ),
            (r#"{"stream_options":null}"#, r#"{"stream_options":{"include_usage":true}}"#),
            // Of two the last one counts.
            (
                r#"{"stream_options":{"include_usage":false},"stream_options":{}}"#,
                r#"{"stream_options":{"include_usage":false},"stream_options":{"include_usage":true}}"#,
            ),
            (
                r#"{"stream_options":{"include_usage":false,"include_usage":0}}"#,
                r#"{"stream_options":{"include_usage":false,"include_usage":true}}"#,
            ),
            (r#"{"stream_options":[1]}"#, r#"{"stream_options":[1]}"#),
        ] {
            assert_eq!(usage(text), expected);
            let read: serde_json::Value =
                serde_json::from_str(&expected.replace("1e400", "1")).unwrap();
            assert!(read.is_object());
        }
    }

    #[test]
    fn a_name_is_replaced_where_it_stands() {
        let usage = r#""stream_options":{"include_usage":true}"#;
        for (text, asks, expected) in [
            (r#"{"model":"a"}"#, false, r#"{"model":"b\"é"}"#.to_owned()),
            (
                "{ \"x\": {\"model\":\"a\"}, \"mod\\u0065l\" : \"\\u0061\", \"y\":1e400}",
                false,
                "{ \"x\": {\"model\":\"a\"}, \"mod\\u0065l\" : \"b\\\"é\", \"y\":1e400}".into(),
            ),
            (r#"{"model":"a"}"#, true, format!(r#"{{{usage},"model":"b\"é"}}"#)),
            (
                r#"{"stream_options":{"include_usage":false},"model":"a","z":1}"#,
                true,
                format!(r#"{{{usage},"model":"b\"é","z":1}}"#),
            ),
            (
                r#"{"model":"a","stream_options":{},"z":1}"#,
                true,
                format!(r#"{{"model":"b\"é",{usage},"z":1}}"#),
            ),
            (
                r#"{"model":"a","stream_options":null}"#,
                true,
                format!(r#"{{"model":"b\"é",{usage}}}"#),
            ),
        ] {
            let mut scanner = Scanner::new();
            // In pieces, as places are those in the whole.
            text.as_bytes().chunks(3).for_each(|piece| scanner.feed(piece).unwrap());
            let fields = scanner.finish().unwrap();
            let mut body = text.as_bytes().to_vec();
            rename_model(&mut body, &fields, "b\"é", asks);
            assert_eq!(String::from_utf8(body).unwrap(), expected);
        }
    }

    #[test]
    fn a_name_in_a_form_is_replaced() {
        let boundary = Boundary::from_content_type(b"multipart/form-data; boundary=x").unwrap();
        let form = |model: &str| {
            format!(
                "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nmodel a\r\n-\r\n\
                 --x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n\
                 --x\r\nContent-Disposition: form-data; name=\"stream\"\r\n\r\ntrue\r\n--x--\r\n"
            )
        };
        for name in ["a", "\r\n-a\r", "-"] {
            let mut scanner = multipart::Scanner::new(boundary.clone().unwrap());
            form(name).as_bytes().chunks(5).for_each(|piece| scanner.feed(piece).unwrap());
            let fields = scanner.finish().unwrap();
            assert_eq!(fields.model.as_deref(), Some(name));
            let mut body = form(name).into_bytes();
            rename_model(&mut body, &fields, "new", false);
            assert_eq!(String::from_utf8(body).unwrap(), form("new"));
        }
    }

    #[test]
    fn a_model_is_put_in_front() {
        for (text, expected) in [
            ("{}", r#"{"model":"a\"b"}"#),
            ("\n{ }", "\n{\"model\":\"a\\\"b\" }"),
            (r#"{"x":{}}"#, r#"{"model":"a\"b","x":{}}"#),
        ] {
            let mut body = text.as_bytes().to_vec();
            assert!(is_json(&body));
            name_model(&mut body, "a\"b");
            assert_eq!(String::from_utf8(body).unwrap(), expected);
        }
        assert!(!is_json(b"--boundary"));
    }

    #[test]
    fn keys_are_no_protocols() {
        for (value, left) in [
            (
                "realtime, openai-insecure-api-key.sk-a, v1",
                "Sec-WebSocket-Protocol: realtime, v1\r\n",
            ),
            ("openai-insecure-api-key.sk-a", ""),
            ("realtime", "Sec-WebSocket-Protocol: realtime\r\n"),
        ] {
            let mut head =
                format!("GET / HTTP/1.1\r\na: b:c\r\nSec-WebSocket-Protocol: {value}\r\n");
            let mut bytes = std::mem::take(&mut head).into_bytes();
            without_key_as_protocol(&mut bytes);
            let expected = format!("GET / HTTP/1.1\r\na: b:c\r\n{left}");
            assert_eq!(String::from_utf8(bytes).unwrap(), expected);
        }
    }

    #[test]
    fn heads() {
        let head = b"POST /a/b?c=/d HTTP/1.1\r\nHost: x y\r\nContent-Encoding: gzip\r\nx: content-encoding: z\r\n";
        let mut changed = head.to_vec();
        target(&mut changed, "/v1/x");
        without(&mut changed, "content-encoding");
        assert_eq!(
            String::from_utf8(changed).unwrap(),
            "POST /v1/x?c=/d HTTP/1.1\r\nHost: x y\r\nx: content-encoding: z\r\n"
        );
        let mut plain = b"POST /a HTTP/1.1\r\n".to_vec();
        target(&mut plain, "/b");
        assert_eq!(plain, b"POST /b HTTP/1.1\r\n");
    }
}
