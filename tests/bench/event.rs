//! The token of a benchmark: text that tells its place in the stream and when the pod wrote it.
//!
//! It stands as the `content` of an ordinary chat completion chunk, so a gateway sees nothing
//! unusual; the load generator finds it without parsing JSON, and can tell a lost, repeated or
//! late token from it.

use std::fmt::Write;

use memchr::memmem;
use nix::time::{ClockId, clock_gettime};

/// One token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// Counts from 0 in each response.
    pub seq: u64,
    /// When the pod wrote it, by [`now_ns`].
    pub sent_ns: u64,
}

impl Event {
    /// Appends the token's text, always [`LEN`] bytes.
    pub fn append(&self, text: &mut String) {
        // Writing to a string cannot fail.
        let _ = write!(text, "{MARK}{:08}@{:020};", self.seq % 100_000_000, self.sent_ns);
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?.strip_prefix(MARK)?.strip_suffix(';')?;
        let (seq, sent_ns) = text.split_once('@')?;
        Some(Self { seq: seq.parse().ok()?, sent_ns: sent_ns.parse().ok()? })
    }
}

/// Finds the tokens in a byte stream that comes in pieces.
#[derive(Debug, Default)]
pub struct Scanner {
    /// The end of the last piece, where a token may have begun.
    tail: Vec<u8>,
}

impl Scanner {
    /// Calls `found` for each token that this piece completes.
    pub fn feed(&mut self, piece: &[u8], mut found: impl FnMut(Event)) {
        self.tail.extend_from_slice(piece);
        let mut rest: &[u8] = &self.tail;
        while let Some(at) = memmem::find(rest, MARK.as_bytes()) {
            rest = rest.get(at..).unwrap_or_default();
            let Some(text) = rest.get(..LEN) else { break };
            match Event::parse(text) {
                Some(event) => {
                    found(event);
                    rest = rest.get(LEN..).unwrap_or_default();
                }
                None => rest = rest.get(1..).unwrap_or_default(),
            }
        }
        let keep = rest.len().min(LEN - 1);
        self.tail.drain(..self.tail.len() - keep);
    }
}

/// Whether the tokens of a response come each once and in order.
#[derive(Debug, Default)]
pub struct Order {
    next: u64,
    /// What was expected, and what came in its place, the first time.
    wrong: Option<(u64, u64)>,
}

impl Order {
    /// Takes the next token.
    pub fn take(&mut self, event: Event) {
        if event.seq != self.next {
            self.wrong.get_or_insert((self.next, event.seq));
        }
        self.next = event.seq + 1;
    }

    /// How many there were.
    ///
    /// # Errors
    /// One was missing or came twice.
    pub fn count(&self) -> anyhow::Result<u64> {
        match self.wrong {
            Some((expected, got)) => anyhow::bail!("token {got} in place of {expected}"),
            None => Ok(self.next),
        }
    }
}

/// Nanoseconds of the monotonic clock, which is the same for every process of this machine.
pub fn now_ns() -> u64 {
    // The clock exists on every Linux, so this cannot fail.
    let now =
        clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap_or(nix::sys::time::TimeSpec::new(0, 0));
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// In a prompt, before the microseconds from one token of the answer to the next; 0 for none.
pub const PACE: &[u8] = b"pace_us=";

/// Bytes of a token's text.
pub const LEN: usize = MARK.len() + 8 + 1 + 20 + 1;

/// Begins a token's text. Not a word that the prompts contain.
const MARK: &str = "tok#";

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(count: u64) -> (Vec<Event>, String) {
        let events: Vec<_> = (0..count).map(|seq| Event { seq, sent_ns: seq * 7 + 1 }).collect();
        let mut text = String::from("data: {\"content\":\"");
        for event in &events {
            text.push_str("tok#nothing ");
            event.append(&mut text);
            text.push_str("\"}\n\n");
        }
        (events, text)
    }

    #[test]
    fn finds_every_token_however_the_stream_is_cut() {
        let (events, text) = stream(5);
        for size in 1..text.len() {
            let (mut scanner, mut found) = (Scanner::default(), Vec::new());
            for piece in text.as_bytes().chunks(size) {
                scanner.feed(piece, |event| found.push(event));
            }
            assert_eq!(found, events, "pieces of {size}");
        }
    }

    #[test]
    fn a_lost_or_repeated_token_is_named() {
        let count = |seqs: &[u64]| {
            let mut order = Order::default();
            seqs.iter().for_each(|&seq| order.take(Event { seq, sent_ns: 0 }));
            order.count().map_err(|error| error.to_string())
        };
        assert_eq!(count(&[]), Ok(0));
        assert_eq!(count(&[0, 1, 2]), Ok(3));
        assert_eq!(count(&[0, 2, 3, 7]), Err("token 2 in place of 1".to_owned()));
        assert_eq!(count(&[0, 1, 1, 2]), Err("token 1 in place of 2".to_owned()));
    }

    #[test]
    fn keeps_no_more_than_one_token_back() {
        let mut scanner = Scanner::default();
        scanner.feed(&[b't'; 100_000], |_| {});
        scanner.feed(b"tok#", |_| {});
        assert!(scanner.tail.len() < LEN, "{}", scanner.tail.len());
    }
}
