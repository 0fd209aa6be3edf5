//! Takes the usage out of a stream again for whose client the gateway has asked. Pure.
//!
//! The engine sends it as a chunk of its own, without choices, which some clients choke on that did not ask for it.
//! Events are passed on whole: each is held until its last byte has come, as which it is shows only then. All other
//! bytes, comments among them, stay as they are.

use serde::Deserialize;
use serde::de::IgnoredAny;

/// The state between two pieces of a stream.
#[derive(Debug, Default)]
pub struct Strip {
    /// The event that is coming.
    event: Vec<u8>,
    /// It is too long to be the one, and is passed on as it comes.
    long: bool,
    /// The line that is coming has a byte.
    begun: bool,
    /// A CR was the last byte, and a LF belongs to it.
    after_cr: bool,
    /// The event before was left out.
    dropped: bool,
}

impl Strip {
    /// Takes the next piece and appends what the client is to get.
    pub fn push(&mut self, mut piece: &[u8], out: &mut Vec<u8>) {
        while let Some(first) = piece.first() {
            if std::mem::take(&mut self.after_cr) && *first == b'\n' {
                piece = piece.get(1..).unwrap_or_default();
                match (self.event.is_empty() && !self.long, self.dropped) {
                    // It ends the event before.
                    (true, true) => {}
                    (true, false) => out.push(b'\n'),
                    (false, _) => self.keep(b"\n", out),
                }
                continue;
            }
            let Some(at) = memchr::memchr2(b'\n', b'\r', piece) else {
                self.begun = true;
                self.keep(piece, out);
                return;
            };
            let (line, rest) = piece.split_at_checked(at + 1).unwrap_or((piece, &[]));
            piece = rest;
            self.keep(line, out);
            self.after_cr = line.last() == Some(&b'\r');
            let is_blank = at == 0 && !self.begun;
            self.begun = false;
            if is_blank {
                self.end_event(out);
            }
        }
    }

    /// The stream has ended: appends what there is of an event without an end.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.event);
    }

    fn keep(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if !self.long && self.event.len() + bytes.len() > LONGEST {
            self.long = true;
            out.append(&mut self.event);
        }
        match self.long {
            true => out.extend_from_slice(bytes),
            false => self.event.extend_from_slice(bytes),
        }
    }

    fn end_event(&mut self, out: &mut Vec<u8>) {
        self.dropped = !self.long && is_usage(&self.event);
        self.long = false;
        if self.dropped {
            self.event.clear();
        } else {
            out.append(&mut self.event);
        }
    }
}

/// What tells that chunk from others.
#[derive(Deserialize)]
struct Chunk {
    choices: Option<Vec<IgnoredAny>>,
    usage: Option<IgnoredAny>,
}

fn is_usage(event: &[u8]) -> bool {
    if memchr::memmem::find(event, b"\"usage\"").is_none() {
        return false;
    }
    let mut data = event
        .split(|byte| matches!(byte, b'\n' | b'\r'))
        .filter_map(|line| line.strip_prefix(b"data:"));
    let (Some(data), None) = (data.next(), data.next()) else { return false };
    serde_json::from_slice::<Chunk>(data).is_ok_and(|chunk| {
        chunk.usage.is_some() && chunk.choices.is_some_and(|choices| choices.is_empty())
    })
}

/// The longest event that can be the one, in bytes; engines' have about 300.
const LONGEST: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn strip(pieces: &[&[u8]]) -> String {
        let (mut strip, mut out) = (Strip::default(), Vec::new());
        pieces.iter().for_each(|piece| strip.push(piece, &mut out));
        assert!(strip.event.len() <= LONGEST);
        strip.finish(&mut out);
        String::from_utf8(out).unwrap()
    }

    const USAGE: &str = "data: {\"id\":\"x\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":8}}\n\n";

    #[test]
    fn the_one_chunk_is_left_out_at_every_split() {
        let others = [
            ": keep-alive\n\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\":{} é\"}}],\"usage\":null}\n\n",
            "data: {\"choices\":[{}],\"usage\":{\"prompt_tokens\":9}}\n\n",
            "data: {\"choices\":[],\"prompt_filter_results\":[],\"usage\":null}\n\n",
            "event: x\nid: 1\ndata: {\"usage\":{}}\n\n",
            "data: {\"choices\":[],\ndata: \"usage\":{}}\n\n",
            "\n",
            "data: {\"error\":{\"usage\":1}}\n\n",
        ];
        for end in ["\n", "\r\n", "\r"] {
            for data in ["data:", "data: "] {
                let form = |event: &str| event.replace("data: ", data).replace('\n', end);
                let whole: String =
                    others.iter().map(|event| form(event) + &form(USAGE)).collect::<String>()
                        + &form("data: [DONE]\n\n");
                let expected: String = others.iter().map(|event| form(event)).collect::<String>()
                    + &form("data: [DONE]\n\n");
                assert_eq!(strip(&[whole.as_bytes()]), expected);
                for split in 0..whole.len() {
                    let (a, b) = whole.as_bytes().split_at(split);
                    assert_eq!(strip(&[a, b]), expected, "{end:?} at {split}");
                }
                let each: Vec<&[u8]> = whole.as_bytes().chunks(1).collect();
                assert_eq!(strip(&each), expected);
            }
        }
    }

    #[test]
    fn an_event_without_an_end_and_one_of_any_length_come_through() {
        let open = "data: {\"choices\":[{\"delta\":";
        assert_eq!(strip(&[open.as_bytes()]), open);
        let long = format!(
            "data: {{\"choices\":[],\"x\":\"{}\",\"usage\":{{}}}}\n\n",
            "y".repeat(100_000)
        );
        let both = format!("{long}{USAGE}data: [DONE]\n\n");
        for size in [1, 1000, LONGEST, 200_000] {
            let pieces: Vec<&[u8]> = both.as_bytes().chunks(size).collect();
            assert!(strip(&pieces) == format!("{long}data: [DONE]\n\n"), "{size}");
        }
    }

    #[test]
    fn an_event_is_passed_on_as_soon_as_it_is_whole() {
        let (mut strip, mut out) = (Strip::default(), Vec::new());
        for event in ["data: {\"a\":1}\n\n", "data: {\"b\":2}\r\n\r\n", ": x\r\r"] {
            out.clear();
            strip.push(event.as_bytes(), &mut out);
            assert_eq!(out, event.as_bytes());
        }
    }
}
