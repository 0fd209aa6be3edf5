//! Values of a body that mean the same in several forms, or more than they say.

/// How a body names an adapter.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Adapter {
    /// By its name.
    Name(Box<str>),
    /// In another way than by one name, such as SGLang's lists; which ones is not read.
    Unread,
}

/// What a text says where true or false is asked for: the model servers' parsers take such words in any case, and 1 and 0,
/// as one of them.
pub(in crate::request) fn truth(text: &[u8]) -> Option<bool> {
    let is = |word: &&str| text.eq_ignore_ascii_case(word.as_bytes());
    if ["true", "1", "t", "y", "yes", "on"].iter().any(is) {
        return Some(true);
    }
    ["false", "0", "f", "n", "no", "off"].iter().any(is).then_some(false)
}

/// The longest word in [`truth`].
pub(super) const LONGEST_TRUTH: usize = "false".len();

#[cfg(test)]
mod tests {
    use super::super::{MAX_MODEL, Scanner};
    use super::*;

    fn whole(body: &str) -> super::super::Fields {
        let mut scanner = Scanner::new();
        scanner.feed(body.as_bytes()).unwrap();
        scanner.finish().unwrap()
    }

    #[test]
    fn what_is_true() {
        for (value, expected) in [
            ("false", false),
            ("null", false),
            ("0", false),
            ("2", false),
            ("-1", false),
            ("\"no\"", false),
            ("\"trues\"", false),
            ("[true]", false),
            ("{\"stream\":true}", false),
            ("1", true),
            ("\"true\"", true),
            ("\"TRUE\"", true),
            ("\"\\u0031\"", true),
            ("\"yes\"", true),
        ] {
            for before in [true, false] {
                let found = whole(&format!(
                    r#"{{"stream":{before},"background":{before},"stream":{value},"background":{value}}}"#
                ));
                assert_eq!((found.stream, found.background), (expected, expected), "{value}");
            }
        }
    }

    #[test]
    fn adapters_beside_the_model() {
        let name = |name: &str| Some(Adapter::Name(name.into()));
        let unread = || Some(Adapter::Unread);
        let long = format!(r#"{{"lora_path":"{}"}}"#, "x".repeat(MAX_MODEL + 1));
        for (body, expected) in [
            (r#"{"lora_path":"a"}"#, [name("a"), None]),
            (r#"{"lora_p\u0061th":"\u0061"}"#, [name("a"), None]),
            (r#"{"lora_path":null}"#, [None, None]),
            (r#"{"lora_path":"a","lora_path":null}"#, [None, None]),
            (r#"{"lora_path":["a","b"]}"#, [unread(), None]),
            (r#"{"lora_path":{"x":"a"},"x":1}"#, [unread(), None]),
            (r#"{"lora_path":7}"#, [unread(), None]),
            (long.as_str(), [unread(), None]),
            (r#"{"parameters":{"x":{},"adapter_id":"a"},"y":1}"#, [None, name("a")]),
            (r#"{"parameters":{"adapter_id":"a"},"lora_path":"b"}"#, [name("b"), name("a")]),
            (r#"{"parameters":{"adapter_id":"a"},"parameters":{}}"#, [None, None]),
            (r#"{"parameters":{"adapter_id":"a"},"parameters":null}"#, [None, None]),
            (r#"{"parameters":{"x":{"adapter_id":"a"}}}"#, [None, None]),
            (r#"{"parameters":{"lora_path":"a"},"adapter_id":"a"}"#, [name("a"), None]),
            (r#"{"parameters":{"lora_name":"a"},"x":1}"#, [name("a"), None]),
            (r#"{"lora":[{"id":0,"scale":1}]}"#, [unread(), None]),
            (r#"{"lora":null}"#, [None, None]),
            (r#"{"stream_options":{"adapter_id":"a"}}"#, [None, None]),
            (r#"{"parameters":[{"adapter_id":"a"}]}"#, [None, None]),
        ] {
            assert_eq!(whole(body).adapters, expected, "{body}");
        }
    }
}
