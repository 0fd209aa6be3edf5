//! Prometheus text and OpenMetrics: a body of bytes in, the wanted samples out.
//!
//! A model server's answer has a thousand lines, mostly histogram buckets, of which a dozen matter,
//! and it is read up to twenty times a second for each pod. So this is one pass that borrows from
//! the body and looks closer only at lines that begin with a wanted prefix. It never fails: a
//! wanted line that it cannot read is skipped and counted. What a value means, and whether it makes
//! sense, is for the caller.

use std::borrow::Cow;
use std::str;

use memchr::{memchr, memchr2, memchr3};

/// The samples of a body whose metric names begin with one of the prefixes.
///
/// Timestamps, exemplars and comments are passed over. A line ends at its line feed, so a last line
/// without one was cut off and counts as unreadable: `1` may be the start of `12`.
#[derive(Clone, Debug)]
pub struct Samples<'a> {
    rest: &'a [u8],
    prefixes: &'a [&'a str],
    unreadable: u32,
}

impl<'a> Samples<'a> {
    /// Reads `body`, keeping names that begin with one of `prefixes`; an empty prefix keeps all.
    pub fn new(body: &'a [u8], prefixes: &'a [&'a str]) -> Self {
        Self { rest: body, prefixes, unreadable: 0 }
    }

    /// Wanted lines passed over so far because they could not be read.
    pub fn unreadable(&self) -> u32 {
        self.unreadable
    }
}

impl<'a> Iterator for Samples<'a> {
    type Item = Sample<'a>;

    fn next(&mut self) -> Option<Sample<'a>> {
        while !self.rest.is_empty() {
            let (line, rest, whole) = match memchr(b'\n', self.rest) {
                Some(end) => {
                    let (line, rest) = self.rest.split_at(end);
                    (line, rest.get(1..).unwrap_or_default(), true)
                }
                None => (self.rest, &[][..], false),
            };
            self.rest = rest;

            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            if !self.prefixes.iter().any(|prefix| line.starts_with(prefix.as_bytes())) {
                continue;
            }
            if let Some(sample) = Sample::parse(line)
                && whole
            {
                return Some(sample);
            }
            self.unreadable = self.unreadable.saturating_add(1);
        }
        None
    }
}

/// One sample: a name, its labels, a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// The metric's name, such as `vllm:num_requests_running`.
    pub name: &'a str,
    /// The value as it stands: it may be NaN, infinite or negative.
    pub value: f64,
    labels: &'a [u8],
}

impl<'a> Sample<'a> {
    /// Reads one line: `name{label="value",...} value [timestamp] [# exemplar]`.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let name_end = memchr3(b'{', b' ', b'\t', line)?;
        let (name, rest) = line.split_at(name_end);
        if !is_name(name) {
            return None;
        }
        let rest = rest.trim_ascii_start();

        let (labels, rest) = match rest.strip_prefix(b"{") {
            Some(inside) => {
                let end = labels_end(inside)?;
                let (labels, rest) = inside.split_at(end);
                (labels, rest.get(1..)?)
            }
            None => (&[][..], rest),
        };
        let rest = rest.trim_ascii_start();
        let value = match memchr3(b' ', b'\t', b'#', rest) {
            Some(end) => rest.get(..end)?,
            None => rest,
        };
        let value = str::from_utf8(value).ok()?.parse().ok()?;
        Some(Self { name: str::from_utf8(name).ok()?, value, labels })
    }

    /// The labels in the order they are written.
    pub fn labels(&self) -> Labels<'a> {
        Labels { rest: self.labels }
    }

    /// The value of one label, still escaped: good for comparing series with each other.
    pub fn raw_label(&self, name: &str) -> Option<&'a [u8]> {
        self.labels().find(|label| label.name == name.as_bytes()).map(|label| label.raw)
    }

    /// The value of one label, as text.
    pub fn label(&self, name: &str) -> Option<Cow<'a, str>> {
        self.raw_label(name).map(unescape)
    }

    /// The whole label set as written, without its braces: tells series of one metric apart.
    pub fn series(&self) -> &'a [u8] {
        self.labels
    }
}

/// One label of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its value between the quotes, still escaped.
    pub raw: &'a [u8],
}

/// The labels of a sample; it ends early where they are malformed.
#[derive(Clone, Debug)]
pub struct Labels<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Labels<'a> {
    type Item = Label<'a>;

    fn next(&mut self) -> Option<Label<'a>> {
        let equals = memchr(b'=', self.rest)?;
        let (name, rest) = self.rest.split_at(equals);
        let value = rest.get(1..)?.trim_ascii_start().strip_prefix(b"\"")?;
        let end = quote_end(value)?;
        let (raw, rest) = value.split_at(end);
        let rest = rest.get(1..)?.trim_ascii_start();
        self.rest = rest.strip_prefix(b",").unwrap_or(rest);
        Some(Label { name: name.trim_ascii(), raw })
    }
}

/// What a body looks like from its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Nothing but white space.
    Empty,
    /// A page for people, as proxies send with an error.
    Html,
    /// A JSON array or object.
    Json,
    /// Comments or samples: metrics.
    Metrics,
    /// Some other text.
    Other,
}

/// What `body` looks like: servers answer 200 with all sorts of things at `/metrics`.
pub fn shape(body: &[u8]) -> Shape {
    let body = body.trim_ascii_start();
    let line = body.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii_end();
    match body.first() {
        None => Shape::Empty,
        Some(b'<') => Shape::Html,
        Some(b'[' | b'{') => Shape::Json,
        Some(b'#') => Shape::Metrics,
        Some(_) if Sample::parse(line).is_some() => Shape::Metrics,
        Some(_) => Shape::Other,
    }
}

/// A label's value as text: `\\`, `\"` and `\n` are replaced, and what is not UTF-8 becomes U+FFFD.
pub fn unescape(raw: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(raw);
    if memchr(b'\\', raw).is_none() {
        return text;
    }
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        if char != '\\' {
            plain.push(char);
            continue;
        }
        match chars.next() {
            Some('n') => plain.push('\n'),
            Some(escaped @ ('\\' | '"')) => plain.push(escaped),
            // Not an escape in this format: both characters stand for themselves.
            Some(other) => plain.extend(['\\', other]),
            None => plain.push('\\'),
        }
    }
    Cow::Owned(plain)
}

/// Where the `}` is that closes a label set: one within quotes does not.
fn labels_end(inside: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let rest = inside.get(at..)?;
        let found = memchr2(b'"', b'}', rest)?;
        at += found + 1;
        if rest.get(found) == Some(&b'}') {
            return Some(at - 1);
        }
        at += quote_end(inside.get(at..)?)? + 1;
    }
}

/// Where the quote is that closes a value whose opening quote has been passed.
fn quote_end(value: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let rest = value.get(at..)?;
        let found = memchr2(b'"', b'\\', rest)?;
        if rest.get(found) == Some(&b'"') {
            return Some(at + found);
        }
        at += found + 2;
    }
}

/// Names are ASCII: a letter, `_` or `:`, then digits as well.
fn is_name(name: &[u8]) -> bool {
    let letter = |byte: &u8| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b':');
    name.first().is_some_and(letter)
        && name.iter().all(|byte| letter(byte) || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: &[&str] = &[""];

    /// A sample, every label unescaped.
    #[derive(Debug, PartialEq)]
    struct Plain<'a>(&'a str, Vec<(String, String)>, f64);

    fn all(body: &str) -> (Vec<Plain<'_>>, u32) {
        let mut samples = Samples::new(body.as_bytes(), ALL);
        let plain = |sample: Sample<'_>| {
            sample
                .labels()
                .map(|label| (unescape(label.name).into(), unescape(label.raw).into()))
                .collect()
        };
        let found = samples
            .by_ref()
            .map(|sample| Plain(sample.name, plain(sample), sample.value))
            .collect();
        (found, samples.unreadable())
    }

    /// A readable line: its name, its labels, its value.
    #[test]
    fn readable_lines() {
        for (line, name, labels, value) in [
            ("up 1", "up", &[][..], 1.0),
            ("up\t1", "up", &[], 1.0),
            ("  up   1  ", "up", &[], 1.0),
            ("up 1\r", "up", &[], 1.0),
            ("up{} 1", "up", &[], 1.0),
            ("up {} 1", "up", &[], 1.0),
            ("a:b_c9 -2.5e3", "a:b_c9", &[], -2500.0),
            ("up 1 1764441377524", "up", &[], 1.0),
            ("up{a=\"b\"} 1 1764441377.5 # {trace=\"x\"} 0.5 1", "up", &[("a", "b")], 1.0),
            ("up 7# {trace=\"x\"} 0.5", "up", &[], 7.0),
            ("up{a=\"b\",c=\"d\"}3", "up", &[("a", "b"), ("c", "d")], 3.0),
            ("up{ a = \"b\" , c=\"d\", } 3", "up", &[("a", "b"), ("c", "d")], 3.0),
            ("up{a=\"\"} 3", "up", &[("a", "")], 3.0),
            ("up{a=\"}\",b=\"{,=\"} 3", "up", &[("a", "}"), ("b", "{,=")], 3.0),
            (r#"up{a="x\"y\\",b="p\nq"} 3"#, "up", &[("a", "x\"y\\"), ("b", "p\nq")], 3.0),
            (r#"up{a="\d\\n"} 3"#, "up", &[("a", "\\d\\n")], 3.0),
            ("up{a=\"été\"} 3", "up", &[("a", "été")], 3.0),
            ("up +Inf", "up", &[], f64::INFINITY),
            ("up -Inf", "up", &[], f64::NEG_INFINITY),
            ("up 1e400", "up", &[], f64::INFINITY),
        ] {
            let labels: Vec<(String, String)> =
                labels.iter().map(|&(name, value)| (name.into(), value.into())).collect();
            let body = format!("{line}\n");
            assert_eq!(all(&body), (vec![Plain(name, labels, value)], 0), "{line:?}");
        }
        let (nan, unreadable) = all("up NaN\n");
        assert!(nan[0].2.is_nan());
        assert_eq!(unreadable, 0);
    }

    #[test]
    fn unreadable_lines_are_counted_and_the_next_is_read() {
        for line in [
            "up",
            "up ",
            "up abc",
            "up 1,5",
            "up{ 1",
            "up{a=\"b} 1",
            "up{a=\"b\\\"} 1",
            "up{a=\"b\"}",
            "9up 1",
            "u-p 1",
            "{\"up\"} 1",
            "<html><body class=\"x\">1",
            "\u{0} 1",
        ] {
            let body = format!("{line}\nnext 2\n");
            assert_eq!(all(&body), (vec![Plain("next", vec![], 2.0)], 1), "{line:?}");
        }
    }

    #[test]
    fn comments_and_blank_lines_are_no_samples() {
        let body = "# HELP up up 3\n# TYPE up gauge\n\n \t\n#up 2\nup 1\n# EOF\n";
        assert_eq!(all(body), (vec![Plain("up", vec![], 1.0)], 0));
    }

    #[test]
    fn a_last_line_that_was_cut_off_is_unreadable() {
        assert_eq!(all("up 1\nwaiting 1"), (vec![Plain("up", vec![], 1.0)], 1));
        assert_eq!(all("up 1\n# EOF"), (vec![Plain("up", vec![], 1.0)], 0));
    }

    #[test]
    fn other_names_are_neither_read_nor_counted() {
        let body = b"a_broken{\nb_1 1\na_2 2\nc 3\nb_broken\n";
        let mut samples = Samples::new(body, &["b_", "c"]);
        let names: Vec<_> = samples.by_ref().map(|sample| sample.name).collect();
        assert_eq!(names, ["b_1", "c"]);
        assert_eq!(samples.unreadable(), 1);
    }

    #[test]
    fn labels_by_name() {
        let body = br#"up{engine="1",x="a\"b"} 1
"#;
        let sample = Samples::new(body, ALL).next().unwrap();
        assert_eq!(sample.label("engine").as_deref(), Some("1"));
        assert_eq!(sample.label("x").as_deref(), Some("a\"b"));
        assert_eq!(sample.label("e"), None);
        assert_eq!(sample.series(), br#"engine="1",x="a\"b""#);
        assert!(matches!(sample.label("engine"), Some(Cow::Borrowed("1"))));
    }

    #[test]
    fn shapes() {
        for (body, expected) in [
            ("", Shape::Empty),
            (" \r\n\t", Shape::Empty),
            ("<!doctype html>", Shape::Html),
            ("\n <html>", Shape::Html),
            ("[]", Shape::Json),
            ("{\"detail\":\"Not Found\"}", Shape::Json),
            ("# HELP x y", Shape::Metrics),
            ("up 1\n", Shape::Metrics),
            ("up{a=\"b\"} NaN\r\n", Shape::Metrics),
            ("Not Found", Shape::Other),
            ("upstream connect error", Shape::Other),
            ("\u{1f}\u{8b}", Shape::Other),
        ] {
            assert_eq!(shape(body.as_bytes()), expected, "{body:?}");
        }
    }

    proptest! {
        /// What is written by the rules is read back.
        #[test]
        fn round_trip(
            labels in prop::collection::vec(
                ("[a-z_]{1,6}", "\\PC{0,8}|[\"\\\\\n{},=]{0,6}"),
                0..4,
            ),
            value: f64,
        ) {
            let written: Vec<String> = labels
                .iter()
                .map(|(name, value)| {
                    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
                    let value = value.replace('\n', "\\n");
                    format!("{name}=\"{value}\"")
                })
                .collect();
            let body = format!("up{{{}}} {value:?}\n", written.join(","));
            let (found, unreadable) = all(&body);
            prop_assert_eq!(unreadable, 0);
            prop_assert_eq!(found.len(), 1);
            prop_assert_eq!(&found[0].1, &labels);
            prop_assert!(found[0].2 == value || found[0].2.is_nan() && value.is_nan());
        }

        /// Any bytes: no panic, and every readable line is either a sample or counted.
        #[test]
        fn any_bytes(
            body in prop::collection::vec(
                prop_oneof![any::<u8>(), prop::sample::select(b"up{}=\"\\,\n 1#".to_vec())],
                0..200,
            ),
        ) {
            let mut samples = Samples::new(&body, ALL);
            let mut seen = 0;
            for sample in samples.by_ref() {
                seen += 1;
                sample.labels().for_each(|label| drop(unescape(label.raw)));
            }
            let lines = body
                .split(|&byte| byte == b'\n')
                .map(<[u8]>::trim_ascii)
                .filter(|line| !line.is_empty() && !line.starts_with(b"#"))
                .count();
            prop_assert_eq!(seen + samples.unreadable() as usize, lines);
            shape(&body);
        }
    }
}
