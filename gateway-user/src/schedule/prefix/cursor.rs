//! Moves through JSON that the request's scanner has found to be well formed, straight in the body's bytes.
//!
//! It does not check again: given anything else it goes on somewhere, but it always gets to the end.

use memchr::memchr2;

/// A place in the body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// At the front of a value.
    pub(super) fn new(value: &'a [u8]) -> Self {
        Self { bytes: value, at: 0 }
    }

    /// The next byte that is not blank.
    pub(super) fn peek(&mut self) -> Option<u8> {
        loop {
            let byte = *self.bytes.get(self.at)?;
            if !is_blank(byte) {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    /// Into the array or object that starts here.
    pub(super) fn enter(&mut self) {
        self.at += 1;
    }

    /// To the next item of an array or name of an object; `false` once behind its end.
    pub(super) fn more(&mut self) -> bool {
        loop {
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']' | b'}') => {
                    self.at += 1;
                    return false;
                }
                Some(_) => return true,
                None => return false,
            }
        }
    }

    /// The name that stands here, escapes and all; goes to its value.
    pub(super) fn name(&mut self) -> &'a [u8] {
        let name = self.raw_text();
        if self.peek() == Some(b':') {
            self.at += 1;
        }
        name
    }

    /// The string that stands here, escapes and all; goes behind it.
    pub(super) fn raw_text(&mut self) -> &'a [u8] {
        let start = self.at + 1;
        self.at = text_end(self.bytes, start);
        let text = self.bytes.get(start..self.at).unwrap_or_default();
        self.at += 1;
        text
    }

    /// Gives the string that stands here piece by piece, escapes resolved; goes behind it.
    #[inline]
    pub(super) fn text(&mut self, mut take: impl FnMut(&[u8])) {
        self.at += 1;
        loop {
            let rest = self.rest();
            let plain = memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
            take(rest.get(..plain).unwrap_or_default());
            self.at += plain;
            if rest.get(plain) != Some(&b'\\') {
                self.at += 1;
                return;
            }
            let mut meant = [0; ESCAPES];
            let len = self.escapes(&mut meant);
            take(meant.get(..len).unwrap_or_default());
        }
    }

    /// Gives the value that stands here without the blanks between its parts; goes behind it.
    #[inline]
    pub(super) fn value(&mut self, mut take: impl FnMut(&[u8])) {
        self.peek();
        let mut depth = 0_usize;
        let mut start = self.at;
        while let Some(&byte) = self.bytes.get(self.at) {
            match byte {
                b'"' => self.at = text_end(self.bytes, self.at + 1),
                b'{' | b'[' => depth += 1,
                b'}' | b']' if depth == 0 => break,
                b'}' | b']' => depth -= 1,
                b',' if depth == 0 => break,
                _ if is_blank(byte) => {
                    take(self.bytes.get(start..self.at).unwrap_or_default());
                    if self.peek().is_none() {
                        return;
                    }
                    start = self.at;
                    continue;
                }
                _ => {}
            }
            self.at += 1;
            if depth == 0 && matches!(byte, b'"' | b'}' | b']') {
                break;
            }
        }
        self.at = self.at.min(self.bytes.len());
        take(self.bytes.get(start..self.at).unwrap_or_default());
    }

    /// Goes behind the value that stands here.
    pub(super) fn skip(&mut self) {
        self.value(|_| {});
    }

    /// Gives the whole numbers that stand here one behind the other, four bytes for each; goes to what is not
    /// such a number, at least one byte on.
    pub(super) fn tokens(&mut self, mut take: impl FnMut(&[u8])) {
        let mut tokens = [0; 4 * 64];
        loop {
            let mut len = 0;
            for place in tokens.chunks_mut(4) {
                let Some((token, digits)) = number(self.rest()) else { break };
                // Larger ones are no tokens of any model.
                for (to, from) in place.iter_mut().zip((token as u32).to_le_bytes()) {
                    *to = from;
                }
                len += 4;
                self.at += digits;
                match self.rest() {
                    [b',', b' ', b'0'..=b'9', ..] => self.at += 2,
                    [b',', b'0'..=b'9', ..] => self.at += 1,
                    [b',', ..] => {
                        self.at += 1;
                        self.peek();
                    }
                    _ => break,
                }
            }
            take(tokens.get(..len).unwrap_or_default());
            if len < tokens.len() {
                if len == 0 {
                    self.at += 1;
                }
                return;
            }
        }
    }

    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// Resolves the escapes that stand here one behind the other, as many as fit; goes behind them.
    fn escapes(&mut self, meant: &mut [u8; ESCAPES]) -> usize {
        let mut len = 0;
        while let Some(place) = meant.get_mut(len..len + 4) {
            let (character, length) = match self.rest() {
                [b'\\', b'u', rest @ ..] => match (unit(rest), rest.get(4..)) {
                    (high @ 0xd800..=0xdbff, Some([b'\\', b'u', rest @ ..])) => {
                        let low = unit(rest);
                        let pair = char::decode_utf16([high, low]).next();
                        match pair {
                            Some(Ok(character)) => (character, 12),
                            _ => (char::REPLACEMENT_CHARACTER, 6),
                        }
                    }
                    (unit, _) => {
                        let character = char::from_u32(u32::from(unit));
                        (character.unwrap_or(char::REPLACEMENT_CHARACTER), 6)
                    }
                },
                [b'\\', b'b', ..] => ('\u{8}', 2),
                [b'\\', b'f', ..] => ('\u{c}', 2),
                [b'\\', b'n', ..] => ('\n', 2),
                [b'\\', b'r', ..] => ('\r', 2),
                [b'\\', b't', ..] => ('\t', 2),
                [b'\\', byte, ..] => (char::from(*byte), 2),
                [b'\\'] => (char::REPLACEMENT_CHARACTER, 1),
                _ => break,
            };
            len += character.encode_utf8(place).len();
            self.at += length;
        }
        len
    }
}

/// The place of the quote that ends the string whose text starts at `at`, else the end of the bytes.
fn text_end(bytes: &[u8], mut at: usize) -> usize {
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        match memchr2(b'"', b'\\', rest) {
            None => return bytes.len(),
            Some(plain) if rest.get(plain) == Some(&b'"') => return at + plain,
            Some(plain) => at += plain + 2,
        }
    }
}

/// The UTF-16 code unit of four hex digits.
fn unit(digits: &[u8]) -> u16 {
    let digits = u32::from_be_bytes(digits.first_chunk().copied().unwrap_or_default());
    // Of a letter the lower half is 9 less than what it stands for.
    let values = (digits & 0x0f0f_0f0f) + 9 * (digits >> 6 & 0x0101_0101);
    let pairs = (values | values >> 4) & 0x00ff_00ff;
    (pairs | pairs >> 8) as u16
}

/// The whole number in front, and how many digits it has.
fn number(bytes: &[u8]) -> Option<(u64, usize)> {
    if let Some(first) = bytes.first_chunk::<8>() {
        let word = u64::from_le_bytes(*first);
        // A digit has 3 in its upper half, and still has it when 6 is added.
        let high = (word & HIGHS) ^ DIGITS;
        let above = ((word & !HIGHS) + SIXES) & HIGHS;
        let other = high | above;
        let len = other.trailing_zeros() as usize / 8;
        if (1..8).contains(&len) {
            // The digits go to the end, behind zeros; then pairs, fours and all eight are added up.
            let digits = (word & !HIGHS) << (64 - 8 * len);
            let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8) & 0x00ff_00ff_00ff_00ff;
            let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_ffff_0000_ffff;
            let all = fours.wrapping_mul(10_000).wrapping_add(fours >> 32) & 0xffff_ffff;
            return Some((all, len));
        }
    }
    let len = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let digits = bytes.iter().take(len).map(|byte| u64::from(byte - b'0'));
    let value = digits.fold(0_u64, |value, digit| value.wrapping_mul(10).wrapping_add(digit));
    (len > 0).then_some((value, len))
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

/// The upper half of each byte.
const HIGHS: u64 = u64::MAX / 0xff * 0xf0;

/// The upper halves of eight digits.
const DIGITS: u64 = u64::MAX / 0xff * 0x30;

/// What makes the lower half of a byte above 9 run over.
const SIXES: u64 = u64::MAX / 0xff * 6;

/// Room for the characters of escapes that are resolved at a time.
const ESCAPES: usize = 96;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn text(json: &str) -> Vec<u8> {
        let mut text = Vec::new();
        let mut cursor = Cursor::new(json.as_bytes());
        cursor.text(|piece| text.extend_from_slice(piece));
        assert_eq!(cursor.at, json.len(), "{json}");
        text
    }

    fn tokens(json: &str) -> Vec<u32> {
        let mut tokens = Vec::new();
        let mut cursor = Cursor::new(json.as_bytes());
        cursor.enter();
        while cursor.more() {
            cursor.tokens(|piece| {
                let piece = piece.as_chunks::<4>().0;
                tokens.extend(piece.iter().map(|token| u32::from_le_bytes(*token)));
            });
        }
        tokens
    }

    #[test]
    fn escapes() {
        assert_eq!(text(r#""""#), b"");
        assert_eq!(text(r#""a\"\\\/\b\f\n\r\tz""#), b"a\"\\/\x08\x0c\n\r\tz");
        assert_eq!(
            text(r#""\u0041\u00e9\u20AC\ud83D\uDE00""#),
            "A\u{e9}\u{20ac}\u{1f600}".as_bytes()
        );
        assert_eq!(
            text(r#""\uaBcD\u2345\u6789\uC9f0""#),
            "\u{abcd}\u{2345}\u{6789}\u{c9f0}".as_bytes()
        );
        // Halves of characters are something, and the same each time.
        for half in [r#""\ud800""#, r#""\udc00""#, r#""\ud800\n""#, r#""\ud800\u0041""#] {
            assert!(text(half).starts_with("\u{fffd}".as_bytes()), "{half}");
        }
        assert_eq!(
            text(&format!("\"{}\"", r"\u4e16".repeat(500))),
            "\u{4e16}".repeat(500).as_bytes()
        );
    }

    #[test]
    fn numbers_of_every_length() {
        for token in [0, 7, 12, 345, 6_789, 12_345, 678_901, 2_345_678, 90_123_456, u32::MAX] {
            assert_eq!(tokens(&format!("[{token}]")), [token]);
            assert_eq!(tokens(&format!("[{token}, {token},{token} ,\n{token} ]")), [token; 4]);
        }
        let long: Vec<u32> = (0..500).map(|token| token * 977).collect();
        assert_eq!(tokens(&serde_json::to_string(&long).unwrap()), long);
        assert_eq!(tokens("[9/, 9:, 1]").first(), Some(&9));
    }

    proptest! {
        #[test]
        fn text_is_what_serde_reads(json in r#""([ -!#-\[\]-~\u{e9}\u{4e16}]|\\["\\/bfnrt]|\\u[0-7][0-9a-fA-F]{3}|\\ud83d\\ude0[0-9]){0,60}""#) {
            let meant: String = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(text(&json), meant.into_bytes());
        }

        #[test]
        fn a_value_is_compacted(name in "[a-z \"\\\\]{0,9}", number in any::<i64>(), list in prop::collection::vec(".{0,9}", 0..5)) {
            let value = serde_json::json!({"a": {name: number, "l": list, "n": null}, "b": [[], {}, [true, 1.5]]});
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            for json in [format!("{pretty},7"), format!(" {pretty} ] "), pretty] {
                let mut compact = Vec::new();
                let mut cursor = Cursor::new(json.as_bytes());
                cursor.value(|piece| compact.extend_from_slice(piece));
                prop_assert_eq!(std::str::from_utf8(&compact).unwrap(), value.to_string());
                prop_assert_eq!(&serde_json::from_slice::<Value>(&compact).unwrap(), &value);
            }
        }
    }
}
