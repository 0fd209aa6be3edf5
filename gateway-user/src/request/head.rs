//! The head of a request: what the gateway must know of it, and the head that the pod gets.
//!
//! Pure. httparse finds the lines; the rules about framing (RFC 9112 section 6.3) and about headers that
//! concern one connection only (RFC 9110 section 7.6.1) are here. What could be read in two ways is refused:
//! a gateway that guesses lets one request hide in another.

use crate::auth::credentials::{self, Credentials, Twice};
use crate::error::Refusal;
use crate::route;

/// What the gateway must know of a request's head.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// Bytes of the head, with the empty line.
    pub len: usize,
    /// The method, as far as it matters.
    pub method: Method,
    /// The path without the query.
    pub path: Box<str>,
    /// The query, without its question mark.
    pub query: Option<Box<str>>,
    /// What the client speaks.
    pub version: Version,
    /// The client will send further requests on this connection.
    pub keep_alive: bool,
    /// How the body's end is told.
    pub body: BodyLength,
    /// The client waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
    /// `Content-Type`, if there is one.
    pub content_type: Option<Box<str>>,
    /// `Content-Encoding`, if it is not `identity`.
    pub content_encoding: Option<Box<str>>,
    /// The client's own `X-Request-Id`, if it is fit to be passed on.
    pub request_id: Option<Box<str>>,
    /// `X-Session-Token`, as an earlier answer may have given it.
    pub session: Option<Box<str>>,
    /// The objective that it names, by `x-llm-d-inference-objective` or else `x-gateway-inference-objective`.
    pub objective: Option<Box<str>>,
    /// What it shows to be let in. Not in `forward`.
    pub credentials: Credentials,
    /// The client asks to switch to WebSocket.
    pub websocket: bool,
    /// The head for the pod, without credentials, the headers that depend on the body and without the empty line.
    pub forward: Vec<u8>,
}

/// What a client speaks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Version {
    /// HTTP/1.0: the answer must not be chunked and the connection ends after it.
    Http10,
    /// HTTP/1.1
    Http11,
    /// HTTP/2: the answer has no framing of its own.
    Http2,
}

/// A method, as far as it matters.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Method {
    /// GET
    Get,
    /// HEAD: like GET, and the answer has no body.
    Head,
    /// POST
    Post,
    /// DELETE
    Delete,
    /// Any other.
    Other,
}

/// How a request body's end is told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BodyLength {
    /// So many bytes; 0 is no body.
    Known(u64),
    /// Chunked.
    Chunked,
    /// It ends with the stream of an HTTP/2 connection.
    UntilEnd,
}

/// Reads a head from the front of `input`. `None`: it is not complete yet.
///
/// `cap` is the longest head accepted, in bytes.
pub fn parse(input: &[u8], cap: usize) -> Result<Option<Head>, Refusal> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let len = match request.parse(input) {
        Ok(httparse::Status::Complete(len)) if len <= cap => len,
        Ok(httparse::Status::Partial) if input.len() < cap => return Ok(None),
        Ok(_) => {
            return Err(Refusal {
                close: true,
                ..Refusal::client(
                    431,
                    "head_too_large",
                    format!(
                        "The request head is larger than {cap} bytes. Send fewer or shorter headers."
                    ),
                )
            });
        }
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Refusal {
                close: true,
                ..Refusal::client(
                    431,
                    "too_many_headers",
                    format!("The request has more than {MAX_HEADERS} headers. Send fewer."),
                )
            });
        }
        Err(httparse::Error::Version) if names_other_version(input) => {
            return Err(Refusal {
                close: true,
                ..Refusal::client(
                    505,
                    "http_version",
                    "Only HTTP/1.1 and HTTP/1.0 are spoken here.",
                )
            });
        }
        Err(error) => {
            return Err(Refusal::malformed(format!("This is not an HTTP/1.1 request: {error}.")));
        }
    };
    let (Some(method), Some(target), Some(version)) =
        (request.method, request.path, request.version)
    else {
        return Err(Refusal::malformed("The request line is incomplete."));
    };
    Fields::read(request.headers)?.head(len, method, target, version).map(Some)
}

/// The headers that say something to the gateway.
#[derive(Default)]
struct Fields<'a> {
    all: &'a [httparse::Header<'a>],
    hosts: usize,
    host: &'a [u8],
    content_length: Option<u64>,
    transfer_encoding: Option<&'a [u8]>,
    /// Tokens of all `Connection` headers.
    connection: Vec<&'a str>,
    expect: Option<&'a [u8]>,
    content_type: Option<&'a str>,
    content_encoding: Option<&'a str>,
    request_id: Option<&'a str>,
    session: Option<&'a str>,
    objectives: [Option<&'a str>; 2],
    credentials: Credentials,
    upgrade: Option<&'a [u8]>,
}

impl<'a> Fields<'a> {
    fn read(all: &'a [httparse::Header<'a>]) -> Result<Self, Refusal> {
        let mut fields = Self { all, ..Self::default() };
        for header in all {
            let text = || {
                std::str::from_utf8(header.value).map(str::trim).map_err(|_| {
                    Refusal::malformed(format!("The value of `{}` is not text.", header.name))
                })
            };
            match header.name {
                name if name.eq_ignore_ascii_case("host") => {
                    fields.hosts += 1;
                    fields.host = header.value.trim_ascii();
                    if !is_authority(fields.host) {
                        return Err(Refusal::malformed("The Host header does not name one host."));
                    }
                }
                name if name.eq_ignore_ascii_case("content-length") => {
                    let value = content_length(header.value).ok_or_else(|| {
                        Refusal::malformed("Content-Length is not one decimal number.")
                    })?;
                    // Not even the same length: some servers refuse that, others take the first or the last.
                    if fields.content_length.is_some() {
                        return Err(Refusal::malformed("Content-Length is given twice."));
                    }
                    fields.content_length = Some(value);
                }
                name if name.eq_ignore_ascii_case("transfer-encoding") => {
                    if fields.transfer_encoding.is_some() {
                        return Err(Refusal::malformed("Transfer-Encoding is given twice."));
                    }
                    fields.transfer_encoding = Some(header.value);
                }
                name if name.eq_ignore_ascii_case("connection") => {
                    fields.connection.extend(text()?.split(',').map(str::trim));
                }
                name if name.eq_ignore_ascii_case("expect") => fields.expect = Some(header.value),
                name if name.eq_ignore_ascii_case("content-type") => {
                    if fields.content_type.is_some() {
                        return Err(Refusal::malformed("Content-Type is given twice."));
                    }
                    fields.content_type = Some(text()?);
                }
                name if name.eq_ignore_ascii_case("content-encoding") => {
                    let value = text()?;
                    if fields.content_encoding.is_some() {
                        return Err(Refusal::malformed("Content-Encoding is given twice."));
                    }
                    if !value.is_empty() && !value.eq_ignore_ascii_case("identity") {
                        fields.content_encoding = Some(value);
                    }
                }
                name if name.eq_ignore_ascii_case("x-request-id") => {
                    fields.request_id = text().ok().filter(|id| fit_for_id(id));
                }
                name if name.eq_ignore_ascii_case("upgrade") => {
                    fields.upgrade = Some(header.value);
                }
                name if name.eq_ignore_ascii_case(SESSION_HEADER) => {
                    fields.session = text().ok().filter(|token| fit_for_id(token));
                }
                name if name.eq_ignore_ascii_case(OBJECTIVE) => {
                    fields.objectives[0] = text().ok().filter(|name| !name.is_empty());
                }
                name if name.eq_ignore_ascii_case(OBJECTIVE_BEFORE) => {
                    fields.objectives[1] = text().ok().filter(|name| !name.is_empty());
                }
                name => {
                    let taken = fields.credentials.take(name, header.value);
                    taken.map_err(|Twice(name)| {
                        Refusal::malformed(format!("The header `{name}` is given twice."))
                    })?;
                }
            }
        }
        Ok(fields)
    }

    fn head(self, len: usize, method: &str, target: &str, version: u8) -> Result<Head, Refusal> {
        let http10 = version == 0;
        let body = match (self.transfer_encoding, self.content_length) {
            (Some(_), Some(_)) => {
                return Err(Refusal::malformed(
                    "Content-Length and Transfer-Encoding are both given. Send one of them.",
                ));
            }
            (Some(_), None) if http10 => {
                return Err(Refusal::malformed("Transfer-Encoding needs HTTP/1.1."));
            }
            (Some(coding), None) if coding.trim_ascii().eq_ignore_ascii_case(b"chunked") => {
                BodyLength::Chunked
            }
            (Some(_), None) => {
                return Err(Refusal {
                    close: true,
                    ..Refusal::client(
                        501,
                        "transfer_encoding",
                        "The only Transfer-Encoding understood is `chunked`.",
                    )
                });
            }
            (None, length) => BodyLength::Known(length.unwrap_or(0)),
        };
        // RFC 9112 section 3.2.
        if self.hosts > 1 || (self.hosts == 0 && !http10) {
            return Err(Refusal::malformed("An HTTP/1.1 request carries exactly one Host header."));
        }
        let expects_continue = match self.expect {
            None => false,
            Some(value) if value.trim_ascii().eq_ignore_ascii_case(b"100-continue") => !http10,
            Some(_) => {
                return Err(Refusal::malformed("The only expectation understood is 100-continue."));
            }
        };
        // Some cut a fragment off, others pass it on, and none should be sent.
        if target.bytes().any(|byte| byte == b'#' || !byte.is_ascii_graphic()) {
            return Err(Refusal::malformed(
                "The request target has bytes that no target may have.",
            ));
        }
        let target = origin_form(target, self.host)?;
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        if has_dot_segments(path) {
            return Err(Refusal::malformed(
                "The path has a segment `.` or `..`. Name what is meant without it.",
            ));
        }
        Ok(Head {
            len,
            method: match method {
                "GET" => Method::Get,
                "HEAD" => Method::Head,
                "POST" => Method::Post,
                "DELETE" => Method::Delete,
                _ => Method::Other,
            },
            path: path.into(),
            query: query.map(Into::into),
            version: if http10 { Version::Http10 } else { Version::Http11 },
            // HTTP/1.0 clients that want a kept connection are long gone.
            keep_alive: !http10
                && !self.connection.iter().any(|token| token.eq_ignore_ascii_case("close")),
            body,
            expects_continue,
            content_type: self.content_type.map(Into::into),
            content_encoding: self.content_encoding.map(Into::into),
            request_id: self.request_id.map(Into::into),
            session: self.session.map(Into::into),
            objective: self.objectives.iter().flatten().next().map(|name| (*name).into()),
            // RFC 6455 section 4.2.1, and in a version that knows of it.
            websocket: !http10
                && self
                    .upgrade
                    .is_some_and(|name| name.trim_ascii().eq_ignore_ascii_case(b"websocket"))
                && self.connection.iter().any(|token| token.eq_ignore_ascii_case("upgrade")),
            forward: self.forward(method, target),
            credentials: self.credentials,
        })
    }

    fn forward(&self, method: &str, target: &str) -> Vec<u8> {
        let size: usize =
            self.all.iter().map(|header| header.name.len() + header.value.len() + 4).sum();
        let mut out = Vec::with_capacity(size + method.len() + target.len() + FORWARD_ROOM);
        for part in [method.as_bytes(), b" ", target.as_bytes(), b" HTTP/1.1\r\n"] {
            out.extend_from_slice(part);
        }
        for header in self.all {
            if self.stays(header.name) {
                continue;
            }
            for part in [header.name.as_bytes(), b": ", header.value, b"\r\n"] {
                out.extend_from_slice(part);
            }
        }
        if self.hosts == 0 {
            out.extend_from_slice(b"host: sluice\r\n");
        }
        out
    }

    /// Whether a header concerns this connection only, or is written anew for the pod.
    fn stays(&self, name: &str) -> bool {
        if HOP_BY_HOP.iter().chain(&WRITTEN_ANEW).any(|hop| hop.eq_ignore_ascii_case(name))
            || credentials::is_one(name)
        {
            return true;
        }
        // A client must not be able to take away, by naming it in Connection, what the pod needs.
        self.connection.iter().any(|token| token.eq_ignore_ascii_case(name))
            && !name.eq_ignore_ascii_case("host")
            && !name.eq_ignore_ascii_case("content-type")
    }
}

/// Whether the request line is in order but for its version, rather than no request line at all.
fn names_other_version(input: &[u8]) -> bool {
    let line = input.trim_ascii_start().split(|byte| matches!(byte, b'\r' | b'\n')).next();
    let mut words = line.unwrap_or_default().split(|byte| *byte == b' ');
    words.nth(2).is_some_and(|version| version.starts_with(b"HTTP/")) && words.next().is_none()
}

/// Whether a header concerns one connection only, in either direction.
pub fn is_hop_by_hop(name: &str) -> bool {
    HOP_BY_HOP.iter().any(|hop| hop.eq_ignore_ascii_case(name))
}

/// A `Content-Length` value: one decimal number, or the same one repeated in a list is refused as well.
pub fn content_length(value: &[u8]) -> Option<u64> {
    let digits = value.trim_ascii();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The path and query of a target. Of one that names a host as well, that must be the one that `host` names: the
/// pod gets the header, and others decide by the target (RFC 9112 section 3.2.2).
fn origin_form<'a>(target: &'a str, host: &[u8]) -> Result<&'a str, Refusal> {
    if target.starts_with('/') {
        return Ok(target);
    }
    for (scheme, port) in [("http://", ":80"), ("https://", ":443")] {
        let Some((prefix, rest)) = target.split_at_checked(scheme.len()) else { continue };
        if !prefix.eq_ignore_ascii_case(scheme) {
            continue;
        }
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if !is_authority(authority.as_bytes()) {
            return Err(Refusal::malformed(
                "The request target does not name one host and a path.",
            ));
        }
        let bare = |name: &'a str| name.strip_suffix(port).unwrap_or(name);
        let host = std::str::from_utf8(host).unwrap_or_default();
        if !host.is_empty()
            && !bare(authority).eq_ignore_ascii_case(host.strip_suffix(port).unwrap_or(host))
        {
            return Err(Refusal::malformed(
                "The request target and the Host header name different hosts.",
            ));
        }
        return Ok(if path.is_empty() { "/" } else { path });
    }
    Err(Refusal::malformed("The request target is not a path."))
}

/// Whether the path leads somewhere else for who takes such segments away: a proxy before the pod may, and what is
/// authorised here has to be what is served there (RFC 3986 section 5.2.4).
fn has_dot_segments(path: &str) -> bool {
    let may_have = path.contains('.') || path.contains("%2e") || path.contains("%2E");
    may_have
        && route::unescape(path).split(['/', '\\']).any(|segment| segment == "." || segment == "..")
}

/// Whether this can be a host, with or without a port, and nothing else.
fn is_authority(text: &[u8]) -> bool {
    let fits = |byte: &u8| byte.is_ascii_graphic() && !b"/\\?#@,;\"<>{}|^`".contains(byte);
    !text.is_empty() && text.iter().all(fits)
}

/// Ids go into logs, headers and the pod's own request id: they stay short and plain.
fn fit_for_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= MAX_REQUEST_ID && id.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Where a request names an objective, and where it did before llm-d had them.
const OBJECTIVE: &str = "x-llm-d-inference-objective";
const OBJECTIVE_BEFORE: &str = "x-gateway-inference-objective";

/// The header by which a client's next request comes to the pod of its last one: an answer has it, and the client
/// sends it back.
pub const SESSION_HEADER: &str = "x-session-token";

/// RFC 9110 section 7.6.1, and the older names still seen.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// The gateway answers or sets these itself.
const WRITTEN_ANEW: [&str; 5] =
    ["accept-encoding", "content-length", "expect", "trailer", "x-request-id"];

/// Headers in one message; the openai SDKs send about 20. 40 bytes of stack each while parsing.
pub(crate) const MAX_HEADERS: usize = 128;

/// Longest client request id that is passed on, in bytes.
const MAX_REQUEST_ID: usize = 128;

/// For `content-length` and `x-request-id`.
const FORWARD_ROOM: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    const CAP: usize = 64 * 1024;

    fn head(text: &str) -> Head {
        parse(text.as_bytes(), CAP).unwrap().expect("complete")
    }

    fn refusal(text: &str) -> Refusal {
        parse(text.as_bytes(), CAP).unwrap_err()
    }

    #[test]
    fn plain_post() {
        let text = "POST /v1/chat/completions?x=1 HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
                    Content-Length: 12\r\nX-Request-ID: abc\r\nAuthorization: Bearer k\r\n\r\n";
        let head = head(text);
        assert_eq!(head.len, text.len());
        assert_eq!(head.method, Method::Post);
        assert_eq!((&*head.path, head.query.as_deref()), ("/v1/chat/completions", Some("x=1")));
        assert_eq!(head.body, BodyLength::Known(12));
        assert!(head.keep_alive && head.version == Version::Http11 && !head.expects_continue);
        assert_eq!(head.request_id.as_deref(), Some("abc"));
        assert_eq!(
            String::from_utf8(head.forward).unwrap(),
            "POST /v1/chat/completions?x=1 HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        );
        assert_eq!(head.credentials.lines(), b"Authorization: Bearer k\r\n");
    }

    // Field reports 42: what may be the gateway's own credential is not in what a pod gets, however it is written and
    // whatever Connection says of it.
    #[test]
    fn credentials_are_kept_apart() {
        let head = head(
            "GET / HTTP/1.1\r\nhost: a\r\nAUTHORIZATION: Bearer a\r\nX-API-Key: b\r\napi-KEY: c\r\n\
             connection: x-api-key, authorization\r\nx-keep: 1\r\n\r\n",
        );
        assert_eq!(head.credentials.secrets().collect::<Vec<_>>(), ["a", "b", "c"]);
        let forward = String::from_utf8(head.forward).unwrap();
        assert_eq!(forward, "GET / HTTP/1.1\r\nhost: a\r\nx-keep: 1\r\n");
        let twice = "GET / HTTP/1.1\r\nhost: a\r\nx-api-key: a\r\nx-api-key: b\r\n\r\n";
        assert_eq!(refusal(twice).status, 400);
    }

    #[test]
    fn every_split_is_incomplete_until_whole() {
        let text = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        for end in 0..text.len() {
            assert_eq!(parse(&text[..end], CAP).unwrap(), None, "{end}");
        }
        assert!(parse(text, CAP).unwrap().is_some());
    }

    // Field reports 38: what could be read in two ways is refused and the connection ends.
    #[test]
    fn ambiguous_framing_is_refused() {
        for extra in [
            "content-length: 3\r\ntransfer-encoding: chunked\r\n",
            "content-length: 3\r\ncontent-length: 4\r\n",
            "content-length: 3, 3\r\n",
            "content-length: +3\r\n",
            "content-length: -1\r\n",
            "content-length: 0x3\r\n",
            "content-length: 99999999999999999999\r\n",
            "content-length:\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: chunked, chunked\r\n",
            "transfer-encoding: gzip, chunked\r\n",
            "transfer-encoding: xchunked\r\n",
            "transfer-encoding : chunked\r\n",
            " folded: x\r\n",
            "host: b\r\n",
            "content-length: 3\r\ncontent-length: 3\r\n",
            "expect: 200-ok\r\n",
            "content-type: a/b\r\ncontent-type: multipart/form-data; boundary=x\r\n",
        ] {
            let refusal = refusal(&format!("POST / HTTP/1.1\r\nhost: a\r\n{extra}\r\n"));
            assert!(refusal.close, "{extra:?}");
            assert!(matches!(refusal.status, 400 | 501), "{extra:?}: {}", refusal.status);
        }
    }

    #[test]
    fn malformed_heads_are_refused() {
        for (text, status) in [
            ("GARBAGE\r\n\r\n", 400),
            ("GET / HTTP/2.0\r\nhost: a\r\n\r\n", 505),
            ("GET / x HTTP/1.1\r\nhost: a\r\n\r\n", 400),
            ("GET / x\r\n\r\n", 400),
            ("GET /\r\nhost: a\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\n\r\n", 400),
            ("GET x HTTP/1.1\r\nhost: a\r\n\r\n", 400),
            ("GET /x#y HTTP/1.1\r\nhost: a\r\n\r\n", 400),
            ("GET /\u{e9} HTTP/1.1\r\nhost: a\r\n\r\n", 400),
            ("POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n", 400),
            ("\x16\x03\x01\x02\0\x01\0\x01\u{fc}\x03\x03", 400),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        ] {
            let refusal = refusal(text);
            assert_eq!((refusal.status, refusal.close), (status, true), "{text:?}");
        }
    }

    #[test]
    fn large_heads_are_refused() {
        let many = "x: y\r\n".repeat(MAX_HEADERS + 1);
        assert_eq!(refusal(&format!("GET / HTTP/1.1\r\n{many}\r\n")).status, 431);
        let long = "x".repeat(CAP);
        assert_eq!(refusal(&format!("GET / HTTP/1.1\r\nhost: a\r\nx: {long}\r\n\r\n")).status, 431);
        // Not complete and already over the cap: no more is read.
        assert_eq!(refusal(&format!("GET / HTTP/1.1\r\nhost: a\r\nx: {long}")).status, 431);
    }

    // Field reports 40: odd case and duplicates are kept, hop-by-hop and what Connection names is not.
    #[test]
    fn hop_by_hop_headers_stay_here() {
        let head = head(
            "POST / HTTP/1.1\r\nHOST: a\r\nConnection: x-mine, Host, keep-alive\r\nKeep-Alive: 5\r\n\
             TE: trailers\r\nX-Mine: 1\r\nx-Kept: 1\r\nX-KEPT: 2\r\nUpgrade: h2c\r\nProxy-Connection: x\r\n\
             Expect: 100-Continue\r\nTransfer-Encoding: Chunked\r\nTrailer: x\r\n\r\n",
        );
        assert_eq!(
            String::from_utf8(head.forward).unwrap(),
            "POST / HTTP/1.1\r\nHOST: a\r\nx-Kept: 1\r\nX-KEPT: 2\r\n"
        );
        assert!(head.expects_continue);
        assert_eq!(head.body, BodyLength::Chunked);
    }

    #[test]
    fn connections_end_when_asked() {
        assert!(!head("GET / HTTP/1.1\r\nhost: a\r\nConnection: Close\r\n\r\n").keep_alive);
        let old = head("GET / HTTP/1.0\r\n\r\n");
        assert!(!old.keep_alive && old.version == Version::Http10);
        assert!(String::from_utf8(old.forward).unwrap().contains("host: sluice\r\n"));
    }

    #[test]
    fn hosts_are_named_once_and_alone() {
        for (line, host) in [
            ("/", ""),
            ("/", "a b"),
            ("/", "a, b"),
            ("/", "a/b"),
            ("/", "u@a"),
            ("/", "a\u{e9}"),
            ("http://b/", "a"),
            ("http://a:81/", "a"),
            ("https://a:80/", "a"),
            ("http://u:p@a/", "a"),
            ("http:///", "a"),
            ("http://a?b", "a"),
            ("http://", "a"),
            ("ftp://a/", "a"),
        ] {
            let refusal = refusal(&format!("GET {line} HTTP/1.1\r\nhost: {host}\r\n\r\n"));
            assert_eq!((refusal.status, refusal.close), (400, true), "{line} {host:?}");
        }
        for (line, host) in [
            ("/", "a:80"),
            ("/", "[::1]:80"),
            ("http://A/", "a:80"),
            ("https://a:443/x", "a"),
            ("http://[::1]:8080/", "[::1]:8080"),
        ] {
            head(&format!("GET {line} HTTP/1.1\r\nhost: {host}\r\n\r\n"));
        }
        // HTTP/1.0 without Host: the target's host is the only one.
        assert_eq!(&*head("GET http://a/b HTTP/1.0\r\n\r\n").path, "/b");
    }

    #[test]
    fn absolute_targets_are_taken() {
        assert_eq!(
            &*head("GET http://a.b/v1/models HTTP/1.1\r\nhost: a.b\r\n\r\n").path,
            "/v1/models"
        );
        assert_eq!(&*head("GET http://a.b HTTP/1.1\r\nhost: a.b\r\n\r\n").path, "/");
    }

    #[test]
    fn request_ids_are_bounded() {
        for bad in ["", "a b", &"x".repeat(129)] {
            let head = head(&format!("GET / HTTP/1.1\r\nhost: a\r\nx-request-id: {bad}\r\n\r\n"));
            assert_eq!(head.request_id, None, "{bad:?}");
        }
    }
}
