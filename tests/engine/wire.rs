//! HTTP/1.1 as uvicorn writes and reads it: heads, chunks, error bodies. Pure; no IO, no clock.
//!
//! Its own code on purpose: tests compare the gateway's framing with this, so it must share none of
//! it.

use std::fmt::Write as _;
use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};
use serde::Serialize;

/// A request without its body.
#[derive(Clone, Debug)]
pub struct Head {
    /// `GET`, `POST`, …
    pub method: String,
    /// The target up to `?`.
    pub path: String,
    /// How the body is framed.
    pub body: Framing,
    /// Whether the connection may serve another request.
    pub keep_alive: bool,
    /// Whether the client waits for `100 Continue`.
    pub expects_continue: bool,
    /// The bytes as they came.
    pub raw: Bytes,
    headers: Vec<(Range<usize>, Range<usize>)>,
}

/// How a request body is framed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Framing {
    /// So many bytes.
    Length(usize),
    /// Chunks.
    Chunked,
}

/// Not HTTP/1.1, or too long.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Malformed;

impl Head {
    /// Takes a head off the front of `bytes`; `None` while it is not complete.
    ///
    /// # Errors
    /// What uvicorn answers with 400 and a close.
    pub fn parse(bytes: &mut BytesMut) -> Result<Option<Self>, Malformed> {
        let mut slots = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut slots);
        let Ok(status) = request.parse(bytes) else { return Err(Malformed) };
        let httparse::Status::Complete(length) = status else {
            return if bytes.len() > MAX_HEAD { Err(Malformed) } else { Ok(None) };
        };
        let start = bytes.as_ptr() as usize;
        let range = |text: &[u8]| {
            let from = (text.as_ptr() as usize).saturating_sub(start);
            from..from + text.len()
        };
        let headers: Vec<_> = request
            .headers
            .iter()
            .map(|header| (range(header.name.as_bytes()), range(header.value)))
            .collect();
        let target = request.path.unwrap_or("/");
        let http10 = request.version == Some(0);
        let mut head = Self {
            method: request.method.unwrap_or_default().to_owned(),
            path: target.split('?').next().unwrap_or("/").to_owned(),
            body: Framing::Length(0),
            keep_alive: true,
            expects_continue: false,
            raw: bytes.split_to(length).freeze(),
            headers,
        };
        let coding = head.header("transfer-encoding");
        head.body = match (coding, head.header("content-length")) {
            (Some(_), Some(_)) => return Err(Malformed),
            (Some(coding), None) if coding.eq_ignore_ascii_case("chunked") => Framing::Chunked,
            (Some(_), None) => return Err(Malformed),
            (None, Some(length)) => {
                let length = length.parse().ok().filter(|length| *length <= MAX_BODY);
                Framing::Length(length.ok_or(Malformed)?)
            }
            (None, None) => Framing::Length(0),
        };
        let has = |name, value: &str| {
            head.header(name).is_some_and(|text| text.eq_ignore_ascii_case(value))
        };
        let keep_alive =
            if http10 { has("connection", "keep-alive") } else { !has("connection", "close") };
        let expects_continue = has("expect", "100-continue");
        Ok(Some(Self { keep_alive, expects_continue, ..head }))
    }

    /// The first header of that name (lower case).
    pub fn header(&self, name: &str) -> Option<&str> {
        let text = |range: &Range<usize>| std::str::from_utf8(self.raw.get(range.clone())?).ok();
        let (_, value) = self
            .headers
            .iter()
            .find(|(key, _)| text(key).is_some_and(|key| key.eq_ignore_ascii_case(name)))?;
        text(value)
    }
}

/// Takes a chunked body off the front of `bytes` into `body`; true at its end.
///
/// # Errors
/// When it is not chunked framing, or longer than is sensible.
pub fn take_chunks(bytes: &mut BytesMut, body: &mut BytesMut) -> Result<bool, Malformed> {
    loop {
        let Ok(status) = httparse::parse_chunk_size(bytes) else { return Err(Malformed) };
        let httparse::Status::Complete((line, size)) = status else { return Ok(false) };
        let size = usize::try_from(size).map_err(|_| Malformed)?;
        if body.len().saturating_add(size) > MAX_BODY {
            return Err(Malformed);
        }
        if size == 0 {
            let rest = bytes.get(line..).unwrap_or_default();
            let mut slots = [httparse::EMPTY_HEADER; MAX_HEADERS];
            return match httparse::parse_headers(rest, &mut slots) {
                Ok(httparse::Status::Complete((trailers, _))) => {
                    bytes.advance(line + trailers);
                    Ok(true)
                }
                Ok(httparse::Status::Partial) => Ok(false),
                Err(_) => Err(Malformed),
            };
        }
        let Some(chunk) = bytes.get(line..line + size + 2) else { return Ok(false) };
        let Some(data) = chunk.strip_suffix(b"\r\n") else { return Err(Malformed) };
        body.extend_from_slice(data);
        bytes.advance(line + size + 2);
    }
}

/// A whole answer; what is not said is uvicorn's default.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// `content-type`, when there is one.
    pub content_type: Option<&'static str>,
    /// More headers, in lower case, each with its line end.
    pub headers: String,
    /// The body.
    pub body: String,
}

impl Answer {
    /// A JSON answer.
    pub fn json(status: u16, body: impl Into<String>) -> Self {
        let content_type = Some("application/json");
        Self { status, content_type, headers: String::new(), body: body.into() }
    }

    /// An answer that has no content type.
    pub fn plain(status: u16, body: impl Into<String>) -> Self {
        Self { status, content_type: None, headers: String::new(), body: body.into() }
    }

    /// vLLM's error object (0.10 and later).
    pub fn error(status: u16, kind: &str, message: &str, param: Option<&str>) -> Self {
        let error = ErrorObject { message, kind, param, code: status };
        Self::json(status, serde_json::to_string(&ErrorBody { error }).unwrap_or_default())
    }

    /// The head, with the length of the body.
    pub fn head(&self, date: &str, close: bool) -> String {
        let mut head = status_line(self.status, date);
        head.push_str(&self.headers);
        let _ = write!(head, "content-length: {}\r\n", self.body.len());
        if let Some(content_type) = self.content_type {
            let _ = write!(head, "content-type: {content_type}\r\n");
        }
        head.push_str(if close {
            "vary: Origin\r\nconnection: close\r\n\r\n"
        } else {
            "vary: Origin\r\n\r\n"
        });
        head
    }
}

/// In the order in which vLLM writes the fields.
#[derive(Serialize)]
struct ErrorObject<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: u16,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    error: ErrorObject<'a>,
}

/// The head of a stream of events. Without `chunked` only the end of the connection ends it.
pub fn stream_head(date: &str, close: bool, chunked: bool) -> String {
    let mut head = status_line(200, date);
    head.push_str("content-type: text/event-stream; charset=utf-8\r\nvary: Origin\r\n");
    if close {
        head.push_str("connection: close\r\n");
    }
    head.push_str(if chunked { "transfer-encoding: chunked\r\n\r\n" } else { "\r\n" });
    head
}

/// What uvicorn answers to bytes that are not HTTP.
pub fn invalid_request() -> &'static str {
    "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n\r\n\
     Invalid HTTP request received."
}

/// Appends `data` as one chunk, with an extension on the size if wanted.
pub fn put_chunk(out: &mut Vec<u8>, data: &[u8], extension: bool) {
    use std::io::Write as _;
    let extension = if extension { ";name=\"va\\\"lue\"" } else { "" };
    let _ = write!(out, "{:x}{extension}\r\n", data.len());
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// The end of a chunked body, with trailers if wanted.
pub fn last_chunk(trailers: bool) -> &'static [u8] {
    if trailers { b"0\r\nx-checksum: 1234\r\nx-empty:\r\n\r\n" } else { b"0\r\n\r\n" }
}

/// An HTTP date (RFC 9110 section 5.6.7) from seconds since 1970.
pub fn date(unix: u64) -> String {
    let (days, seconds) = (unix / 86_400, unix % 86_400);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    // Years from March on, so that the leap day is the last one (Hinnant, days_from_civil).
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let weekday = DAYS.get(days as usize % 7).unwrap_or(&"");
    let month = MONTHS.get(month as usize - 1).unwrap_or(&"");
    format!("{weekday}, {day:02} {month} {year} {hour:02}:{minute:02}:{second:02} GMT")
}

fn status_line(status: u16, date: &str) -> String {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        422 => "Unprocessable Entity",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "",
    };
    format!("HTTP/1.1 {status} {reason}\r\ndate: {date}\r\nserver: uvicorn\r\n")
}

/// 1970-01-01 was a Thursday.
const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Most headers of a request, vLLM's limit.
const MAX_HEADERS: usize = 256;
/// Longest head, vLLM's limit.
const MAX_HEAD: usize = 4 << 20;
/// Longest body. vLLM has no limit of its own; this one protects the machine that runs the tests.
const MAX_BODY: usize = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<Head>, Malformed> {
        Head::parse(&mut BytesMut::from(text))
    }

    #[test]
    fn heads() {
        let text = "POST /v1/models?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\nrest";
        let mut bytes = BytesMut::from(text);
        let head = Head::parse(&mut bytes).unwrap().unwrap();
        assert_eq!((head.method.as_str(), head.path.as_str()), ("POST", "/v1/models"));
        assert_eq!((head.header("host"), head.header("none")), (Some("a"), None));
        assert_eq!((head.body, head.keep_alive), (Framing::Length(12), true));
        assert_eq!(&bytes[..], b"rest");

        for (text, framing, keep_alive) in [
            ("GET / HTTP/1.1\r\n\r\n", Framing::Length(0), true),
            ("GET / HTTP/1.1\r\nConnection: Close\r\n\r\n", Framing::Length(0), false),
            ("GET / HTTP/1.0\r\n\r\n", Framing::Length(0), false),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", Framing::Chunked, true),
        ] {
            let head = parse(text).unwrap().unwrap();
            assert_eq!((head.body, head.keep_alive), (framing, keep_alive), "{text}");
        }
        assert!(parse("GET / HTTP/1.1\r\nHost: a\r\n").unwrap().is_none());
        for text in [
            "hello\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        ] {
            assert_eq!(parse(text).unwrap_err(), Malformed, "{text}");
        }
    }

    #[test]
    fn chunked_bodies_at_every_cut() {
        let text = b"5;a=b\r\nhello\r\n1\r\n!\r\n0\r\nx-t: 1\r\n\r\nnext";
        for cut in 0..text.len() {
            let (mut bytes, mut body) = (BytesMut::from(&text[..cut]), BytesMut::new());
            let done = take_chunks(&mut bytes, &mut body).unwrap();
            assert_eq!(done, cut >= text.len() - 4, "{cut}");
            bytes.extend_from_slice(&text[cut..]);
            assert!(done || take_chunks(&mut bytes, &mut body).unwrap(), "{cut}");
            assert_eq!((&body[..], &bytes[..]), (&b"hello!"[..], &b"next"[..]), "{cut}");
        }
        for text in ["x\r\n", "1\r\nab\r\n", "fffffffffffffff\r\n"] {
            let (mut bytes, mut body) = (BytesMut::from(text), BytesMut::new());
            assert_eq!(take_chunks(&mut bytes, &mut body), Err(Malformed), "{text}");
        }
    }

    #[test]
    fn dates() {
        assert_eq!(date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(date(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(date(1_795_984_692), "Sun, 29 Nov 2026 20:38:12 GMT");
    }
}
