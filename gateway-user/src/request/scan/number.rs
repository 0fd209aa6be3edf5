//! The grammar of JSON numbers, and the value of whole ones.

/// A number being read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Number {
    part: Part,
    negative: bool,
    /// The value so far; none when it is not wanted, not whole, or too large.
    value: Option<u64>,
}

impl Number {
    /// A number that starts with `first`, a digit or minus. Its value is worked out if it is to be kept.
    pub(super) fn new(first: u8, keep: bool) -> Self {
        let digit = first.wrapping_sub(b'0');
        let (part, value) = match first {
            b'-' => (Part::Minus, 0),
            b'0' => (Part::Zero, 0),
            _ => (Part::Whole, u64::from(digit)),
        };
        Self { part, negative: part == Part::Minus, value: keep.then_some(value) }
    }

    /// How many bytes at the front of `rest` belong to the number.
    pub(super) fn run(&mut self, rest: &[u8]) -> usize {
        let mut at = match (self.part, self.value) {
            (Part::Whole, None) => digits(rest),
            _ => 0,
        };
        while let Some(byte) = rest.get(at) {
            self.part = match (self.part, byte) {
                (Part::Whole, b'0'..=b'9') => {
                    if let Some(value) = self.value {
                        self.value = append(value, *byte);
                    }
                    Part::Whole
                }
                (Part::Minus, b'0') => Part::Zero,
                (Part::Minus, b'1'..=b'9') => {
                    self.value = self.value.and_then(|value| append(value, *byte));
                    Part::Whole
                }
                (Part::Zero | Part::Whole, b'.') => Part::Point,
                (Part::Point | Part::Fraction, b'0'..=b'9') => Part::Fraction,
                (Part::Zero | Part::Whole | Part::Fraction, b'e' | b'E') => Part::Exponent,
                (Part::Exponent, b'+' | b'-') => Part::Sign,
                (Part::Exponent | Part::Sign | Part::Power, b'0'..=b'9') => Part::Power,
                _ => return at,
            };
            at += 1;
        }
        at
    }

    /// The number may end here.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.part, Part::Zero | Part::Whole | Part::Fraction | Part::Power)
    }

    /// Its value as a whole number of no sign.
    pub(super) fn unsigned(&self) -> Option<u64> {
        let value = self.integer()?;
        (!self.negative || value == 0).then_some(value)
    }

    /// Its value as a whole number.
    pub(super) fn signed(&self) -> Option<i64> {
        let value = self.integer()?;
        match self.negative {
            true => 0_i64.checked_sub_unsigned(value),
            false => i64::try_from(value).ok(),
        }
    }

    fn integer(&self) -> Option<u64> {
        self.value.filter(|_| matches!(self.part, Part::Zero | Part::Whole))
    }
}

/// How many bytes at the front of `rest` are plain whole numbers with a comma behind each: the bulk of a
/// prompt of token numbers, read at a stretch.
pub(super) fn list(rest: &[u8]) -> usize {
    let mut at = 0;
    loop {
        let number = rest.get(at..).unwrap_or_default();
        let digits = digits(number);
        let leading_zero = digits > 1 && number.first() == Some(&b'0');
        at += match number.get(digits..) {
            _ if digits == 0 || leading_zero => return at,
            Some([b',', b' ', ..]) => digits + 2,
            Some([b',', ..]) => digits + 1,
            _ => return at,
        };
    }
}

/// The part of a number that was read last.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Part {
    #[default]
    Minus,
    /// A leading zero, which no digit may follow.
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    /// The exponent's sign.
    Sign,
    /// The exponent's digits.
    Power,
}

fn digits(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

fn append(value: u64, digit: u8) -> Option<u64> {
    value.checked_mul(10)?.checked_add(u64::from(digit.wrapping_sub(b'0')))
}
