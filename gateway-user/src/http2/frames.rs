//! Follows the frames that a client sends as far as to see it use a stream that it has reset. Pure.
//!
//! RFC 9113 section 5.1 has that refused. h2 does so, but for streams that it has reset first: frames of those may have
//! been on their way, and it passes over all of them, and over the client's own reset among them.

use std::collections::VecDeque;

/// Where the next byte stands, and which streams the client has reset.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// Bytes that are of no interest: what is left of the preface or of a payload.
    skip: usize,
    /// The frame header that is coming, and how much of it has come.
    header: [u8; HEADER],
    have: usize,
    /// The streams that were reset last.
    reset: VecDeque<u32>,
}

impl Frames {
    /// From a connection's first byte on, which begins a preface of `preface` bytes.
    pub(super) fn new(preface: usize) -> Self {
        Self { skip: preface, ..Self::default() }
    }

    /// Takes the next bytes. Returns whether a stream is used that the client has reset.
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> bool {
        let mut misused = false;
        while !bytes.is_empty() {
            if self.skip > 0 {
                let count = self.skip.min(bytes.len());
                self.skip -= count;
                bytes = bytes.get(count..).unwrap_or_default();
                continue;
            }
            let room = self.header.get_mut(self.have..).unwrap_or_default();
            let count = room.len().min(bytes.len());
            let (header, rest) = bytes.split_at_checked(count).unwrap_or((bytes, &[]));
            room.iter_mut().zip(header).for_each(|(to, from)| *to = *from);
            self.have += count;
            bytes = rest;
            if self.have == HEADER {
                self.have = 0;
                misused |= self.frame();
            }
        }
        misused
    }

    /// A frame has begun.
    fn frame(&mut self) -> bool {
        let [a, b, c, kind, _, id @ ..] = self.header;
        self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
        // The first bit is reserved.
        let stream = u32::from_be_bytes(id) & (u32::MAX >> 1);
        match kind {
            DATA | HEADERS => self.reset.contains(&stream),
            RST_STREAM if !self.reset.contains(&stream) => {
                if self.reset.len() == KEPT {
                    self.reset.pop_front();
                }
                self.reset.push_back(stream);
                false
            }
            _ => false,
        }
    }
}

/// RFC 9113 section 4.1: length, type, flags, stream.
const HEADER: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;

/// Streams that are remembered. h2 passes over the frames of at most 50 at a time.
const KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, stream: u32, payload: usize) -> Vec<u8> {
        let mut frame = u32::try_from(payload).unwrap().to_be_bytes()[1..].to_vec();
        frame.extend_from_slice(&[kind, 0]);
        frame.extend_from_slice(&stream.to_be_bytes());
        // What looks like a frame of the first stream.
        frame.extend(std::iter::repeat_n(1, payload));
        frame
    }

    #[test]
    fn a_stream_that_was_reset_is_not_used_again() {
        let reset = frame(RST_STREAM, 1, 4);
        for (behind, expected) in [
            (frame(DATA, 1, 300), true),
            (frame(DATA, 1, 0), true),
            (frame(HEADERS, 1, 20), true),
            // With the reserved bit.
            (frame(DATA, 1 | 1 << 31, 3), true),
            (frame(DATA, 3, 300), false),
            // Priority, another reset and a window update do no harm.
            (frame(2, 1, 5), false),
            (frame(RST_STREAM, 1, 4), false),
            (frame(8, 1, 4), false),
        ] {
            let all = [b"PREFACE".to_vec(), frame(HEADERS, 1, 700), reset.clone(), behind].concat();
            for size in [1, 2, 5, 9, 100, all.len()] {
                let mut frames = Frames::new(7);
                let seen = all.chunks(size).fold(false, |seen, piece| seen | frames.push(piece));
                assert_eq!(seen, expected, "in pieces of {size}");
            }
        }
    }

    #[test]
    fn as_many_as_matter_are_remembered() {
        let mut frames = Frames::new(0);
        for stream in 0..1000 {
            assert!(!frames.push(&frame(RST_STREAM, stream, 4)));
        }
        assert_eq!(frames.reset.len(), KEPT);
        assert!(frames.push(&frame(DATA, 999, 1)));
        assert!(frames.push(&frame(DATA, 1000 - KEPT as u32, 1)));
        assert!(!frames.push(&frame(DATA, 0, 1)));
    }
}
