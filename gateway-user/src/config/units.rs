//! Durations, sizes and address blocks as a configuration writes them.
//!
//! The forms are those of Kubernetes, so that one text means the same in a file and in an object:
//! durations as Go prints them (`10s`, `1m30s`, `500ms`), sizes as quantities (`64Mi`, `1G`,
//! `4096`). Nothing here rounds: a size that is not a whole number of bytes is refused.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A length of time, written as `10s`, `1m30s`, `1.5h` or `500ms`; `0` and `0s` are zero.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct KubeDuration(pub Duration);

impl FromStr for KubeDuration {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        if text == "0" {
            return Ok(Self(Duration::ZERO));
        }
        let mut rest = text;
        let mut nanos: u128 = 0;
        loop {
            let (number, after) = Decimal::take(rest).ok_or(UnitError::Duration)?;
            let (unit, after) = take_unit(after)?;
            let part = number.times(unit).ok_or(UnitError::Duration)?;
            nanos = nanos.checked_add(part).ok_or(UnitError::Range)?;
            if after.is_empty() {
                break;
            }
            rest = after;
        }
        // Go holds a duration in 63 bits of nanoseconds; longer ones would not survive Kubernetes.
        match u64::try_from(nanos) {
            Ok(nanos) if nanos <= i64::MAX as u64 => Ok(Self(Duration::from_nanos(nanos))),
            _ => Err(UnitError::Range),
        }
    }
}

impl fmt::Display for KubeDuration {
    /// The shortest exact form: `30m`, `1m30s`, `500ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_nanos();
        if rest == 0 {
            return f.write_str("0s");
        }
        for (unit, nanos) in DURATION_UNITS {
            let count = rest / nanos;
            if count > 0 {
                write!(f, "{count}{unit}")?;
                rest %= nanos;
            }
        }
        Ok(())
    }
}

impl JsonSchema for KubeDuration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "duration" })
    }
}

/// A number of bytes, written as `268435456`, `64Mi`, `1.5Gi`, `256M` or `1e6`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(try_from = "SizeForm", into = "String")]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, suffix) = Decimal::take(text).ok_or(UnitError::Size)?;
        let unit = match SIZE_UNITS.iter().find(|(name, _)| *name == suffix) {
            Some((_, unit)) => *unit,
            None => exponent(suffix)?,
        };
        let bytes = number.times(unit).ok_or(UnitError::Fraction)?;
        match u64::try_from(bytes) {
            // Kubernetes holds a quantity in 63 bits.
            Ok(bytes) if bytes <= i64::MAX as u64 => Ok(Self(bytes)),
            _ => Err(UnitError::Range),
        }
    }
}

impl fmt::Display for Size {
    /// The largest binary unit that divides it: `64Mi`; else the plain number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = u128::from(self.0);
        let binary = SIZE_UNITS.iter().rev().filter(|(name, _)| name.ends_with('i'));
        for (name, unit) in binary {
            if bytes > 0 && bytes.is_multiple_of(*unit) {
                return write!(f, "{}{name}", bytes / unit);
            }
        }
        write!(f, "{bytes}")
    }
}

impl JsonSchema for Size {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true, "format": "size" })
    }
}

/// A block of addresses in CIDR form, `10.96.0.0/16`; without a length, the one address.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Block {
    /// The first address.
    pub address: IpAddr,
    /// How many leading bits count.
    pub prefix: u8,
}

impl FromStr for Block {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| UnitError::Block)?;
        let width: u8 = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => width,
            Some(digits) if digits.len() <= 3 && digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().map_err(|_| UnitError::Block)?
            }
            Some(_) => return Err(UnitError::Block),
        };
        if prefix > width {
            return Err(UnitError::Prefix { width });
        }
        let first = first_of(address, prefix);
        if first != address {
            return Err(UnitError::HostBits { first, prefix });
        }
        Ok(Self { address, prefix })
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = if self.address.is_ipv4() { 32 } else { 128 };
        if self.prefix == width {
            write!(f, "{}", self.address)
        } else {
            write!(f, "{}/{}", self.address, self.prefix)
        }
    }
}

impl JsonSchema for Block {
    fn schema_name() -> Cow<'static, str> {
        "Block".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "cidr" })
    }
}

/// Why a text is no duration, size or block. The wording completes `"text" is not ...`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum UnitError {
    /// Not of a duration's form.
    #[error("is not a duration (such as 10s, 1m30s or 500ms)")]
    Duration,
    /// A number whose unit is missing.
    #[error("has no unit; write it as 10s, 1m30s or 500ms")]
    NoUnit,
    /// Not of a quantity's form.
    #[error("is not a size in bytes (such as 64Mi, 1Gi, 256M or 268435456)")]
    Size,
    /// A quantity that is no whole number of bytes.
    #[error("is not a whole number of bytes")]
    Fraction,
    /// More than 63 bits.
    #[error("is too large")]
    Range,
    /// Not of a block's form.
    #[error("is not an IP address or block (such as 10.96.0.10 or 10.96.0.0/16)")]
    Block,
    /// More leading bits than the address has.
    #[error("has a prefix longer than {width}")]
    Prefix {
        /// The bits of such an address.
        width: u8,
    },
    /// The address is not the first of its block.
    #[error("is not the first address of its block; write {first}/{prefix}")]
    HostBits {
        /// The first address of the block.
        first: IpAddr,
        /// The block's leading bits.
        prefix: u8,
    },
}

impl TryFrom<String> for KubeDuration {
    type Error = UnitError;

    fn try_from(text: String) -> Result<Self, UnitError> {
        text.parse()
    }
}

impl From<KubeDuration> for String {
    fn from(value: KubeDuration) -> Self {
        value.to_string()
    }
}

/// Kubernetes' "integer or string".
#[derive(Deserialize)]
#[serde(untagged)]
enum SizeForm {
    Number(u64),
    Text(String),
}

impl TryFrom<SizeForm> for Size {
    type Error = UnitError;

    fn try_from(form: SizeForm) -> Result<Self, UnitError> {
        match form {
            SizeForm::Number(bytes) => Ok(Self(bytes)),
            SizeForm::Text(text) => text.parse(),
        }
    }
}

impl From<Size> for String {
    fn from(value: Size) -> Self {
        value.to_string()
    }
}

impl TryFrom<String> for Block {
    type Error = UnitError;

    fn try_from(text: String) -> Result<Self, UnitError> {
        text.parse()
    }
}

impl From<Block> for String {
    fn from(value: Block) -> Self {
        value.to_string()
    }
}

/// A decimal number without a sign: `digits / 10^places`, exact.
struct Decimal {
    digits: u128,
    places: u32,
}

impl Decimal {
    /// Takes a number from the front of a text; `None` if there is none or it is absurdly long.
    fn take(text: &str) -> Option<(Self, &str)> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, rest) = text.split_at_checked(end)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = format!("{whole}{fraction}");
        if digits.len() > MAX_DIGITS || fraction.contains('.') {
            return None;
        }
        let digits = digits.parse().ok()?;
        Some((Self { digits, places: u32::try_from(fraction.len()).ok()? }, rest))
    }

    /// The product with a whole unit, if that is whole and fits.
    fn times(&self, unit: u128) -> Option<u128> {
        let scale = 10u128.checked_pow(self.places)?;
        let product = self.digits.checked_mul(unit)?;
        product.is_multiple_of(scale).then(|| product / scale)
    }
}

/// Takes a duration's unit from the front of a text.
fn take_unit(text: &str) -> Result<(u128, &str), UnitError> {
    let end = text.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(text.len());
    let (name, rest) = text.split_at_checked(end).ok_or(UnitError::Duration)?;
    if name.is_empty() {
        return Err(UnitError::NoUnit);
    }
    // Two signs look like the Greek letter; Go takes both.
    let name = if matches!(name, "\u{b5}s" | "\u{3bc}s") { "us" } else { name };
    let unit = DURATION_UNITS.iter().find(|(unit, _)| *unit == name);
    unit.map(|(_, nanos)| (*nanos, rest)).ok_or(UnitError::Duration)
}

/// The unit that `e6` or `E6` stands for.
fn exponent(suffix: &str) -> Result<u128, UnitError> {
    let digits = suffix.strip_prefix(['e', 'E']).ok_or(UnitError::Size)?;
    let digits = digits.strip_prefix('+').unwrap_or(digits);
    if digits.is_empty() || digits.len() > 2 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(UnitError::Size);
    }
    let power: u32 = digits.parse().map_err(|_| UnitError::Size)?;
    // 19 is more than 63 bits hold, and keeps every product within 128.
    if power > 19 { Err(UnitError::Range) } else { Ok(10u128.pow(power)) }
}

/// The address with everything behind the prefix cleared.
fn first_of(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
            IpAddr::V6((v6.to_bits() & mask).into())
        }
    }
}

/// Longest number read, in digits: keeps every product within 128 bits.
const MAX_DIGITS: usize = 19;

/// Units of a duration in nanoseconds, longest first.
const DURATION_UNITS: [(&str, u128); 6] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Suffixes of a quantity in bytes; binary ones in rising order.
const SIZE_UNITS: [(&str, u128); 13] = [
    ("", 1),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations() {
        let ms = Duration::from_millis;
        for (text, expected) in [
            ("10s", Ok(ms(10_000))),
            ("1m30s", Ok(ms(90_000))),
            ("500ms", Ok(ms(500))),
            ("1.5h", Ok(ms(5_400_000))),
            (".5s", Ok(ms(500))),
            ("1.s", Ok(ms(1_000))),
            ("1h0m0s", Ok(ms(3_600_000))),
            ("2us", Ok(Duration::from_micros(2))),
            ("2\u{b5}s", Ok(Duration::from_micros(2))),
            ("7ns", Ok(Duration::from_nanos(7))),
            ("0", Ok(Duration::ZERO)),
            ("0s", Ok(Duration::ZERO)),
            ("", Err(UnitError::Duration)),
            ("10", Err(UnitError::NoUnit)),
            ("1m30", Err(UnitError::NoUnit)),
            ("s", Err(UnitError::Duration)),
            (".s", Err(UnitError::Duration)),
            ("-1s", Err(UnitError::Duration)),
            ("+1s", Err(UnitError::Duration)),
            ("1 s", Err(UnitError::Duration)),
            ("1s ", Err(UnitError::Duration)),
            ("1S", Err(UnitError::Duration)),
            ("1d", Err(UnitError::Duration)),
            ("1.2.3s", Err(UnitError::Duration)),
            ("1.5ns", Err(UnitError::Duration)),
            ("2562048h", Err(UnitError::Range)),
            ("999999999999999999h", Err(UnitError::Range)),
            ("9999999999999999999s", Err(UnitError::Range)),
            ("99999999999999999999s", Err(UnitError::Duration)),
        ] {
            assert_eq!(text.parse::<KubeDuration>().map(|d| d.0), expected, "{text:?}");
        }
    }

    #[test]
    fn sizes() {
        for (text, expected) in [
            ("0", Ok(0)),
            ("4096", Ok(4096)),
            ("64Mi", Ok(64 << 20)),
            ("1Gi", Ok(1 << 30)),
            ("1.5Gi", Ok(3 << 29)),
            ("256M", Ok(256_000_000)),
            ("1k", Ok(1_000)),
            ("1e6", Ok(1_000_000)),
            ("2E+3", Ok(2_000)),
            ("1E", Ok(1_000_000_000_000_000_000)),
            ("", Err(UnitError::Size)),
            ("Mi", Err(UnitError::Size)),
            ("64 Mi", Err(UnitError::Size)),
            ("64MB", Err(UnitError::Size)),
            ("64mi", Err(UnitError::Size)),
            ("1K", Err(UnitError::Size)),
            ("100m", Err(UnitError::Size)),
            ("-1", Err(UnitError::Size)),
            ("1e", Err(UnitError::Size)),
            ("1e-3", Err(UnitError::Size)),
            ("1.2.3", Err(UnitError::Size)),
            ("0.1Ki", Err(UnitError::Fraction)),
            ("8Ei", Err(UnitError::Range)),
            ("1e99", Err(UnitError::Range)),
        ] {
            assert_eq!(text.parse::<Size>().map(|s| s.0), expected, "{text:?}");
        }
    }

    #[test]
    fn blocks() {
        for (text, expected) in [
            ("10.96.0.10", Ok("10.96.0.10")),
            ("10.96.0.10/32", Ok("10.96.0.10")),
            ("10.96.0.0/16", Ok("10.96.0.0/16")),
            ("0.0.0.0/0", Ok("0.0.0.0/0")),
            ("fd00::/8", Ok("fd00::/8")),
            ("::1", Ok("::1")),
            ("::/0", Ok("::/0")),
            ("10.96.0.0/33", Err(UnitError::Prefix { width: 32 })),
            ("::/129", Err(UnitError::Prefix { width: 128 })),
            ("10.96.0.1/", Err(UnitError::Block)),
            ("10.96.0.1/+8", Err(UnitError::Block)),
            ("10.96.0.1/256", Err(UnitError::Block)),
            ("example.org", Err(UnitError::Block)),
            ("", Err(UnitError::Block)),
        ] {
            let parsed = text.parse::<Block>().map(|b| b.to_string());
            assert_eq!(parsed, expected.map(String::from), "{text:?}");
        }
        let first = "10.0.0.0".parse().unwrap();
        let expected = UnitError::HostBits { first, prefix: 24 };
        assert_eq!("10.0.0.7/24".parse::<Block>(), Err(expected));
    }

    #[test]
    fn shortest_forms() {
        let duration = |ms| KubeDuration(Duration::from_millis(ms)).to_string();
        assert_eq!(duration(0), "0s");
        assert_eq!(duration(90_000), "1m30s");
        assert_eq!(duration(1_800_000), "30m");
        assert_eq!(duration(50), "50ms");
        assert_eq!(Size(0).to_string(), "0");
        assert_eq!(Size(1023).to_string(), "1023");
        assert_eq!(Size(64 << 20).to_string(), "64Mi");
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(nanos in 0..=i64::MAX as u64, bytes in 0..=i64::MAX as u64) {
            let duration = KubeDuration(Duration::from_nanos(nanos));
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
            prop_assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }

        #[test]
        fn no_text_panics(text in "[0-9.eEmsuhnKMGTP\u{b5}i/:a-f +-]{0,24}|\\PC{0,8}") {
            let _ = text.parse::<KubeDuration>();
            let _ = text.parse::<Size>();
            let _ = text.parse::<Block>();
        }
    }
}
