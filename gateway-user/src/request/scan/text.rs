//! The inside of JSON strings: skipped fast, or kept with escapes resolved.

use super::{Fault, MAX_MODEL};

/// A string being read.
#[derive(Clone, Debug, Default)]
pub(super) struct Text {
    /// How many bytes to keep at most; 0 when the text does not matter.
    limit: usize,
    pub(super) kept: Vec<u8>,
    spoilt: Option<Spoilt>,
    /// The first half of a surrogate pair that waits for its second.
    high: Option<u16>,
    /// The digits of a `\u` escape so far, and how many are to come.
    hex: (u16, u8),
}

impl Text {
    /// The opening quote has passed.
    pub(super) fn begin(&mut self, limit: usize) {
        self.limit = limit;
        self.kept.clear();
        self.spoilt = None;
        self.high = None;
    }

    /// How many bytes at the front of `rest` are text that needs no further look: up to a quote, a control
    /// character, or a backslash. Text that is not kept may have escapes in it as far as they are all there.
    pub(super) fn run(&mut self, rest: &[u8]) -> usize {
        let mut at = plain(rest);
        if self.limit > 0 {
            if at > 0 {
                self.keep(rest.get(..at).unwrap_or_default());
            }
            return at;
        }
        loop {
            let behind = rest.get(at..).unwrap_or_default();
            let escape = match behind {
                [b'\\', b'u', digits @ ..] if are_hex(digits) => 6,
                [b'\\', byte, ..] if self.escape(*byte) == Some(false) => 2,
                _ => return at,
            };
            at += escape;
            at += plain(rest.get(at..).unwrap_or_default());
        }
    }

    /// The byte behind a backslash: whether digits follow; none if there is no such escape.
    pub(super) fn escape(&mut self, byte: u8) -> Option<bool> {
        let meant = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                self.hex = (0, 4);
                return Some(true);
            }
            _ => return None,
        };
        if self.limit > 0 {
            self.keep(&[meant]);
        }
        Some(false)
    }

    /// A digit of a `\u` escape: whether more follow; none if it is not one.
    pub(super) fn hex(&mut self, byte: u8) -> Option<bool> {
        let digit = char::from(byte).to_digit(16)?;
        let (value, left) = self.hex;
        // Four digits of four bits fill 16 bits.
        self.hex = ((value << 4) | digit as u16, left.saturating_sub(1));
        if left > 1 {
            return Some(true);
        }
        if self.limit > 0 {
            self.keep_unit(self.hex.0);
        }
        Some(false)
    }

    /// The text, if all of it could be kept.
    pub(super) fn kept(&self) -> Option<&[u8]> {
        let whole = self.limit > 0 && self.spoilt.is_none() && self.high.is_none();
        whole.then_some(&self.kept)
    }

    /// The text as a model's name.
    pub(super) fn model(&self) -> Result<Box<str>, Fault> {
        match (self.spoilt, self.high) {
            (Some(Spoilt::TooLong), _) => Err(Fault::ModelTooLong),
            (Some(Spoilt::Lone), _) | (None, Some(_)) => Err(Fault::ModelNotUnicode),
            (None, None) => model_name(&self.kept),
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.high.take().is_some() {
            self.spoil(Spoilt::Lone);
        }
        if self.limit.saturating_sub(self.kept.len()) < bytes.len() {
            self.spoil(Spoilt::TooLong);
        }
        if self.spoilt.is_none() {
            self.kept.extend_from_slice(bytes);
        }
    }

    /// Keeps a UTF-16 code unit: a character, or half a surrogate pair.
    fn keep_unit(&mut self, unit: u16) {
        let character = match (self.high.take(), unit) {
            (None, 0xd800..=0xdbff) => {
                self.high = Some(unit);
                return;
            }
            (None, _) => char::from_u32(u32::from(unit)),
            (Some(high), 0xdc00..=0xdfff) => {
                let (high, low) = (u32::from(high & 0x3ff), u32::from(unit & 0x3ff));
                char::from_u32(0x1_0000 + ((high << 10) | low))
            }
            (Some(_), _) => None,
        };
        match character {
            Some(character) => self.keep(character.encode_utf8(&mut [0; 4]).as_bytes()),
            None => self.spoil(Spoilt::Lone),
        }
    }

    /// The first reason stays.
    fn spoil(&mut self, why: Spoilt) {
        self.spoilt.get_or_insert(why);
    }
}

/// Why a text could not be kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Spoilt {
    /// A surrogate without its other half.
    Lone,
    TooLong,
}

/// A model's name as it may be used, from its bytes.
pub(in crate::request) fn model_name(bytes: &[u8]) -> Result<Box<str>, Fault> {
    if bytes.len() > MAX_MODEL {
        return Err(Fault::ModelTooLong);
    }
    match std::str::from_utf8(bytes) {
        Ok("") => Err(Fault::ModelEmpty),
        Ok(name) => Ok(name.into()),
        Err(_) => Err(Fault::ModelNotUnicode),
    }
}

/// At least four bytes, the first four of them hex digits.
fn are_hex(bytes: &[u8]) -> bool {
    bytes.first_chunk::<4>().is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

/// How many bytes at the front are neither a quote, a backslash nor a control character.
pub(super) fn plain(text: &[u8]) -> usize {
    let (words, tail) = text.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let special = specials(u64::from_le_bytes(*word));
        if special != 0 {
            return index * 8 + special.trailing_zeros() as usize / 8;
        }
    }
    let special = tail.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20));
    special.map_or(text.len(), |at| words.len() * 8 + at)
}

/// The top bit of each byte that is special. Bytes above the lowest special one may be marked wrongly, as
/// the subtractions borrow from them.
fn specials(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 0xff;
    const TOPS: u64 = ONES * 0x80;
    // A byte less than n, and below 0x80, gets its top bit set when n is subtracted.
    let less = |word: u64, n: u64| word.wrapping_sub(ONES * n) & !word;
    let quote = less(word ^ (ONES * b'"' as u64), 1);
    let backslash = less(word ^ (ONES * b'\\' as u64), 1);
    (quote | backslash | less(word, 0x20)) & TOPS
}
