//! The end of a response's body: token counts, and whether the engine failed. Pure.
//!
//! Engines put `usage` at the end of a JSON answer and into one of the last events of a stream, so
//! the last kilobyte is enough, whichever path carried the rest.

use crate::flow::hold::is_error_event;

/// The last bytes of a body's payload.
#[derive(Clone, Debug, Default)]
pub struct Tail {
    bytes: Vec<u8>,
    /// There was an error event in what has been trimmed.
    failed: bool,
}

/// What an engine says about the tokens of a request.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// Tokens generated.
    pub completion_tokens: Option<u64>,
}

impl Tail {
    /// Takes the next bytes of the payload.
    pub fn push(&mut self, payload: &[u8]) {
        // Of one that is longer than what is kept only the middle would be left. Engines write an
        // event in a chunk of its own, so that it begins a payload.
        if payload.len() > KEPT {
            self.failed |= is_error_event(payload) == Some(true);
        }
        let payload = payload.get(payload.len().saturating_sub(KEPT)..).unwrap_or_default();
        // Trimmed at twice the size, so that a byte is moved once on average.
        if self.bytes.len() + payload.len() > 2 * KEPT {
            self.failed |= self.has_error_event();
            let keep = KEPT.saturating_sub(payload.len());
            self.bytes.drain(..self.bytes.len().saturating_sub(keep));
        }
        self.bytes.extend_from_slice(payload);
    }

    /// The token counts of the last `usage` object.
    pub fn usage(&self) -> Usage {
        let mut end = self.bytes.len();
        // The last one may be `null`, with the counts in the event before it.
        while let Some(at) =
            self.bytes.get(..end).and_then(|part| memchr::memmem::rfind(part, b"\"usage\""))
        {
            let object = self.bytes.get(at..end).unwrap_or_default();
            let usage = Usage {
                prompt_tokens: count(object, b"\"prompt_tokens\"")
                    .or_else(|| count(object, b"\"input_tokens\"")),
                completion_tokens: count(object, b"\"completion_tokens\"")
                    .or_else(|| count(object, b"\"output_tokens\"")),
            };
            if usage != Usage::default() {
                return usage;
            }
            end = at;
        }
        Usage::default()
    }

    /// Whether one of the events of a stream is an engine's error. vLLM ends a stream whose engine
    /// has died cleanly, with `[DONE]` behind the error.
    pub fn has_error_event(&self) -> bool {
        self.failed
            || memchr::memmem::find_iter(&self.bytes, b"data:").any(|at| {
                let at_line_start = match at.checked_sub(1) {
                    None => true,
                    Some(before) => matches!(self.bytes.get(before), Some(b'\n' | b'\r')),
                };
                at_line_start && self.bytes.get(at..).and_then(is_error_event) == Some(true)
            })
    }
}

/// The number behind a key; anything else there is no number, and no reason to fail.
fn count(object: &[u8], key: &[u8]) -> Option<u64> {
    let at = memchr::memmem::find(object, key)?;
    let rest =
        object.get(at + key.len()..)?.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    match rest.get(digits) {
        // A fraction, an exponent, or a number that is cut off.
        None | Some(b'.' | b'e' | b'E') => None,
        Some(_) => std::str::from_utf8(rest.get(..digits)?).ok()?.parse().ok(),
    }
}

/// Bytes kept: vLLM's usage event is about 250, an error event about 250, `[DONE]` 14.
const KEPT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(pieces: &[&str]) -> Tail {
        let mut tail = Tail::default();
        for piece in pieces {
            tail.push(piece.as_bytes());
        }
        tail
    }

    #[test]
    fn usage_in_all_its_forms() {
        let both = Usage { prompt_tokens: Some(9), completion_tokens: Some(8) };
        for text in [
            r#"data: {"choices":[],"usage":{"prompt_tokens":9,"total_tokens":17,"completion_tokens":8}}

data: [DONE]

"#,
            "data:{\"usage\":{\"completion_tokens\": 8, \"prompt_tokens\" : 9}}\r\n\r\ndata:[DONE]\r\n\r\n",
            r#"{"id":"x","usage":{"prompt_tokens":9,"total_tokens":17,"completion_tokens":8,"x":null},"y":null}"#,
            r#"data: {"usage":{"prompt_tokens":9,"completion_tokens":8}}

data: {"choices":[],"usage":null}

"#,
            r#"data: {"type":"message_delta","usage":{"input_tokens":9,"output_tokens":8}}"#,
        ] {
            assert_eq!(tail(&[text]).usage(), both, "{text}");
            // Reads end anywhere.
            for split in 0..text.len() {
                let (a, b) = text.split_at(split);
                assert_eq!(tail(&[a, b]).usage(), both);
            }
        }
    }

    // Reports against the reference picker 7: a wrong type is ignored.
    #[test]
    fn picker_report_7_odd_usage_is_unknown() {
        for text in [
            "",
            r#"{"usage":"many"}"#,
            r#"{"usage":{"prompt_tokens":"9"}}"#,
            r#"{"usage":{"prompt_tokens":9.5}}"#,
            r#"{"usage":{"prompt_tokens":99999999999999999999999}}"#,
            r#"{"usage":{"prompt_tokens":-9}}"#,
            r#"{"usage":{"prompt_tokens":9"#,
        ] {
            assert_eq!(tail(&[text]).usage(), Usage::default(), "{text}");
        }
    }

    #[test]
    fn memory_is_bounded_and_the_end_survives() {
        let mut tail = Tail::default();
        for i in 0..10_000 {
            tail.push(
                format!("data: {{\"n\":{i},\"pad\":\"{}\"}}\n\n", "x".repeat(i % 700)).as_bytes(),
            );
        }
        tail.push(&[b'y'; 5000]);
        tail.push(br#"{"usage":{"prompt_tokens":1,"completion_tokens":2}}"#);
        assert!(tail.bytes.len() <= 2 * KEPT, "{}", tail.bytes.len());
        assert_eq!(tail.usage().completion_tokens, Some(2));
    }

    #[test]
    fn error_events() {
        for (text, failed) in [
            ("data: {\"error\": {\"message\": \"EngineCore\"}}\n\ndata: [DONE]\n\n", true),
            ("x\n\ndata:{\"error\":1}\n\n", true),
            ("data: {\"choices\":[{\"delta\":{\"content\":\"data: {\\\"error\\\"\"}}]}\n\n", false),
            ("data: {\"id\":1,\"error\":null}\n\n", false),
        ] {
            assert_eq!(tail(&[text]).has_error_event(), failed, "{text}");
        }
    }

    #[test]
    fn an_error_event_of_any_length_is_seen() {
        for length in [100, 900, 1100, 2000, 3000, 70_000] {
            let long = "x".repeat(length);
            let event = format!("data: {{\"error\": {{\"message\": \"{long}\"}}}}\n\n");
            for size in [event.len(), 700, 1500] {
                let mut tail = tail(&["data: {\"id\":1}\n\n"]);
                event.as_bytes().chunks(size).for_each(|piece| tail.push(piece));
                tail.push(b"data: [DONE]\n\n");
                assert!(tail.has_error_event(), "{length} in pieces of {size}");
                assert!(tail.bytes.len() <= 2 * KEPT);
            }
        }
    }
}
