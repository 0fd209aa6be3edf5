//! What is wanted of a response's body: token counts, and whether the engine failed. Pure.
//!
//! All that the daemon relays is read for counts ([`usage`]). Of what the kernel carries, the last kilobyte comes
//! here, which is where engines tell them.

use crate::account::usage::{self, Reader, Usage};
use crate::flow::hold::is_error_event;

/// The last bytes of a body's payload, and the counts in all of it.
#[derive(Clone, Debug)]
pub struct Tail {
    reader: Reader,
    /// The reader has not seen all.
    skipped: bool,
    bytes: Vec<u8>,
    /// There was an error event in what has been trimmed.
    failed: bool,
}

impl Tail {
    /// Of a JSON document, or of a stream of events.
    pub fn new(event_stream: bool) -> Self {
        let reader = Reader::new(event_stream);
        Self { reader, skipped: false, bytes: Vec::new(), failed: false }
    }

    /// Takes the next bytes of the payload.
    pub fn push(&mut self, payload: &[u8]) {
        self.reader.push(payload);
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

    /// The kernel has carried some of the body, and only the end of that is pushed next.
    pub fn skip(&mut self) {
        self.reader.skip();
        self.skipped = true;
    }

    /// The answer's id.
    pub fn id(&self) -> Option<&str> {
        self.reader.id()
    }

    /// See [`Reader::is_completed`].
    pub fn is_completed(&self) -> bool {
        self.reader.is_completed()
    }

    /// The token counts.
    pub fn usage(&self) -> Usage {
        let counts = self.reader.counts();
        if !self.skipped {
            return counts.usage();
        }
        // What was kept may begin in the middle of the event that tells.
        counts.max(usage::last_in(&self.bytes)).usage()
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

/// Bytes kept: vLLM's usage event is about 250, an error event about 250, `[DONE]` 14.
const KEPT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(pieces: &[&str]) -> Tail {
        let mut tail = Tail::new(true);
        for piece in pieces {
            tail.push(piece.as_bytes());
        }
        tail
    }

    #[test]
    fn counts_from_both_sides_of_what_the_kernel_carried() {
        let start = "event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n";
        let delta = "\"type\":\"message_delta\",\"usage\":{\"output_tokens\":8}}\n\nevent: message_stop\n\n";
        for split in 0..delta.len() {
            let mut tail = tail(&[start]);
            tail.skip();
            let (a, b) = delta.split_at(split);
            tail.push(a.as_bytes());
            tail.push(b.as_bytes());
            let usage = tail.usage();
            assert_eq!((usage.prompt_tokens, usage.completion_tokens), (Some(9), Some(8)));
        }
    }

    #[test]
    fn memory_is_bounded_and_the_end_survives() {
        let mut tail = Tail::new(false);
        for i in 0..10_000 {
            tail.push(
                format!("data: {{\"n\":{i},\"pad\":\"{}\"}}\n\n", "x".repeat(i % 700)).as_bytes(),
            );
        }
        tail.push(&[b'y'; 5000]);
        tail.skip();
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
