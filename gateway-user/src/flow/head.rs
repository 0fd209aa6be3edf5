//! The head of a pod's response: how its body ends, and the head that the client gets. Pure.

use std::time::Duration;

use gateway_common::framing::Framing;

use crate::error::retry_after;
use crate::explain::EXPLAIN_HEADER;
use crate::request::head::{
    Head, MAX_HEADERS, SESSION_HEADER, Version, content_length, is_hop_by_hop,
};

/// What the gateway must know of a response's head.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponseHead {
    /// Bytes of the head, with the empty line.
    pub len: usize,
    /// HTTP status.
    pub status: u16,
    /// How the body ends.
    pub framing: Framing,
    /// The body ends with the connection, so that only this shows its end.
    pub until_close: bool,
    /// The body is chunked.
    pub chunked: bool,
    /// The connection may carry another request after this response.
    pub reusable: bool,
    /// The body is a stream of server-sent events.
    pub event_stream: bool,
    /// The body is JSON, or several documents of it.
    pub json: bool,
    /// The pod said itself when to try again.
    pub retry_after: bool,
    /// The body is compressed or otherwise encoded.
    pub encoded: bool,
    /// The head for the client, without what depends on the client's connection and the empty line.
    forward: Vec<u8>,
}

/// The bytes are not a response's head.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the pod's answer is not HTTP/1.1: {0}")]
pub struct BadHead(&'static str);

/// How the client takes the response.
#[derive(Clone, Copy, Debug)]
pub struct ClientSide<'a> {
    /// What it speaks: only HTTP/1.1 takes chunks.
    pub version: Version,
    /// The client's connection goes on after this response.
    pub keep_alive: bool,
    /// The id that the client can name when it asks what happened.
    pub request_id: &'a str,
    /// Why this pod, if the client is to be told.
    pub explain: Option<&'a str>,
    /// What it is told of its limits: lines, each with its end.
    pub limits: &'a str,
    /// When to try again, where the pod has not said so itself.
    pub retry_after: Option<Duration>,
    /// What brings the session's next request to the same pod, if pods are to keep theirs.
    pub session: Option<&'a str>,
}

/// Reads a head from the front of `input`. `None`: it is not complete yet. Interim responses are the
/// caller's to skip. `to_head` tells that the request was a HEAD, whose answer has no body.
pub fn parse(input: &[u8], to_head: bool) -> Result<Option<ResponseHead>, BadHead> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let len = match response.parse(input) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) if input.len() < MAX_HEAD => return Ok(None),
        Ok(httparse::Status::Partial) => return Err(BadHead("its head is too large")),
        Err(_) => return Err(BadHead("its head is malformed")),
    };
    let (Some(status), Some(version)) = (response.code, response.version) else {
        return Err(BadHead("its status line is incomplete"));
    };
    // RFC 9110 section 15: three digits, of which the first is no zero.
    if !(100..1000).contains(&status) {
        return Err(BadHead("its status is none"));
    }
    let mut length = None;
    let mut chunked = false;
    let mut close = version == 0;
    let (mut event_stream, mut json) = (false, false);
    let (mut retry_after, mut encoded) = (false, false);
    let mut named = Vec::new();
    for header in response.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            let value =
                content_length(header.value).ok_or(BadHead("its Content-Length is no number"))?;
            if length.is_some_and(|seen| seen != value) {
                return Err(BadHead("it has two Content-Lengths"));
            }
            length = Some(value);
        } else if is("transfer-encoding") {
            // Any other coding could not be passed on to the client as it is.
            if chunked || !header.value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                return Err(BadHead("its Transfer-Encoding is not `chunked`"));
            }
            chunked = true;
        } else if is("connection") {
            for token in header.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                close |= token.eq_ignore_ascii_case(b"close");
                named.push(token);
            }
        } else if is("content-type") {
            let kind = header.value.split(|byte| *byte == b';').next().unwrap_or_default();
            event_stream = starts_with_ignore_case(header.value.trim_ascii(), b"text/event-stream");
            json = kind.trim_ascii().to_ascii_lowercase().ends_with(b"json");
        } else if is("retry-after") {
            retry_after = true;
        } else if is("content-encoding") {
            encoded |= !header.value.trim_ascii().eq_ignore_ascii_case(b"identity");
        }
    }
    let framing = if to_head || matches!(status, 100..=199 | 204 | 304) {
        Framing::none()
    } else if chunked {
        Framing::chunked()
    } else {
        length.map_or(Framing::until_close(), Framing::length)
    };
    let until_close = !framing.is_done() && framing.may_close();
    let mut forward = Vec::with_capacity(len + 128);
    let reason = response.reason.unwrap_or_default();
    forward.extend_from_slice(format!("HTTP/1.1 {status} {reason}\r\n").as_bytes());
    for header in response.headers.iter() {
        let name = header.name;
        if is_hop_by_hop(name)
            || name.eq_ignore_ascii_case("x-request-id")
            // RFC 9112 section 6.3: Transfer-Encoding overrides Content-Length.
            || (chunked && name.eq_ignore_ascii_case("content-length"))
            // A trailer section is passed on with the chunks only.
            || (!chunked && name.eq_ignore_ascii_case("trailer"))
            // The length is the client's way to find the end, whatever a pod says of it.
            || (!name.eq_ignore_ascii_case("content-length")
                && named.iter().any(|token| token.eq_ignore_ascii_case(name.as_bytes())))
        {
            continue;
        }
        for part in [name.as_bytes(), b": ", header.value, b"\r\n"] {
            forward.extend_from_slice(part);
        }
    }
    Ok(Some(ResponseHead {
        len,
        status,
        framing,
        until_close,
        chunked,
        reusable: !(close || until_close || (chunked && length.is_some())),
        event_stream,
        json,
        retry_after,
        encoded,
        forward,
    }))
}

impl<'a> ClientSide<'a> {
    /// The client of this request.
    pub fn new(request: &Head, keep_alive: bool, request_id: &'a str) -> Self {
        Self {
            version: request.version,
            keep_alive,
            request_id,
            explain: None,
            limits: "",
            retry_after: None,
            session: None,
        }
    }
}

impl ResponseHead {
    /// Writes a head that switches the connection to WebSocket, with its empty line.
    pub fn write_switch(&self, client: ClientSide<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.forward);
        out.extend_from_slice(b"connection: Upgrade\r\nupgrade: websocket\r\nx-request-id: ");
        out.extend_from_slice(client.request_id.as_bytes());
        out.extend_from_slice(b"\r\n\r\n");
    }

    /// The body goes on in chunks of the gateway's own, as it is not what the pod sends.
    pub fn rechunk(&mut self) {
        let lines = self.forward.split_inclusive(|byte| *byte == b'\n');
        let is_length = |line: &&[u8]| starts_with_ignore_case(line, b"content-length:");
        self.forward = lines.filter(|line| !is_length(line)).flatten().copied().collect();
        (self.chunked, self.until_close) = (true, false);
    }

    /// Writes the head for the client, with its empty line. Returns whether the body's chunk framing goes
    /// to the client as well, and whether the client's connection goes on.
    pub fn write(&self, client: ClientSide<'_>, out: &mut Vec<u8>) -> (bool, bool) {
        let raw = self.chunked && client.version == Version::Http11;
        // Without chunks or a length, the end of the connection is the end of the body.
        let keep_alive = client.keep_alive && !self.until_close && (raw || !self.chunked);
        if client.limits.is_empty() {
            out.extend_from_slice(&self.forward);
        } else {
            // The gateway's limits hold; a pod's own next to them would be read as these.
            let lines = self.forward.split_inclusive(|byte| *byte == b'\n');
            lines
                .filter(|line| !starts_with_ignore_case(line, b"x-ratelimit-"))
                .for_each(|line| out.extend_from_slice(line));
        }
        if raw {
            out.extend_from_slice(b"transfer-encoding: chunked\r\n");
        }
        out.extend_from_slice(client.limits.as_bytes());
        if let Some(after) = client.retry_after {
            out.extend_from_slice(retry_after(after).as_bytes());
        }
        let own = [(EXPLAIN_HEADER, client.explain), (SESSION_HEADER, client.session)];
        for (name, value) in own.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            for part in [name, ": ", value, "\r\n"] {
                out.extend_from_slice(part.as_bytes());
            }
        }
        out.extend_from_slice(b"x-request-id: ");
        out.extend_from_slice(client.request_id.as_bytes());
        out.extend_from_slice(if keep_alive {
            b"\r\n\r\n"
        } else {
            b"\r\nconnection: close\r\n\r\n"
        });
        (raw, keep_alive)
    }
}

fn starts_with_ignore_case(value: &[u8], prefix: &[u8]) -> bool {
    value.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// Longest response head, in bytes; vLLM's is 163.
pub(crate) const MAX_HEAD: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const SIDE: ClientSide<'static> = ClientSide {
        version: Version::Http11,
        keep_alive: true,
        request_id: "r1",
        explain: None,
        limits: "",
        session: None,
        retry_after: None,
    };

    fn head(text: &str) -> ResponseHead {
        parse(text.as_bytes(), false).unwrap().expect("complete")
    }

    fn written(head: &ResponseHead, side: ClientSide<'_>) -> (String, bool, bool) {
        let mut out = Vec::new();
        let (raw, keep) = head.write(side, &mut out);
        (String::from_utf8(out).unwrap(), raw, keep)
    }

    #[test]
    fn vllm_stream() {
        let text = "HTTP/1.1 200 OK\r\ndate: x\r\nserver: uvicorn\r\n\
                    content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n107\r\n";
        let head = head(text);
        assert_eq!(head.len, text.len() - 5);
        assert!(head.event_stream && head.reusable && head.chunked && !head.until_close);
        assert_eq!(head.framing, Framing::chunked());
        assert_eq!(
            written(&head, SIDE),
            (
                "HTTP/1.1 200 OK\r\ndate: x\r\nserver: uvicorn\r\n\
                 content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\
                 x-request-id: r1\r\n\r\n"
                    .into(),
                true,
                true
            )
        );
        // An HTTP/1.0 client gets the payload alone, until the connection ends.
        let (text, raw, keep) =
            written(&head, ClientSide { version: Version::Http10, keep_alive: false, ..SIDE });
        assert!(
            !raw && !keep
                && !text.contains("transfer-encoding")
                && text.contains("connection: close")
        );
    }

    #[test]
    fn bodies_without_a_length_end_with_the_connection() {
        let head = head("HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\n");
        assert!(head.until_close && !head.reusable);
        assert!(!written(&head, SIDE).2);
    }

    #[test]
    fn statuses_without_a_body() {
        for status in [204, 304] {
            let head = head(&format!("HTTP/1.1 {status} x\r\ncontent-length: 5\r\n\r\n"));
            assert!(head.framing.is_done() && head.reusable);
        }
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n";
        let to_head = parse(answer, true).unwrap().unwrap();
        assert!(to_head.framing.is_done());
        assert!(written(&to_head, SIDE).0.contains("content-length: 5"));
    }

    #[test]
    fn ambiguous_framing() {
        // Transfer-Encoding wins, the length is not passed on and the connection is not trusted again.
        let both =
            head("HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n");
        assert!(!both.reusable && both.chunked);
        assert!(!written(&both, SIDE).0.contains("content-length"));
        for bad in [
            "content-length: 5\r\ncontent-length: 6\r\n",
            "content-length: x\r\n",
            "transfer-encoding: gzip, chunked\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        ] {
            assert!(
                parse(format!("HTTP/1.1 200 OK\r\n{bad}\r\n").as_bytes(), false).is_err(),
                "{bad}"
            );
        }
        assert!(parse(b"upstream connect error", false).is_err());
        // Found by fuzzing.
        assert!(parse(b"HTTP/1.0 089 Too!Many\r\n\r\n", false).is_err());
        assert!(parse(b"HTTP/1.1 000 x\r\n\r\n", false).is_err());
    }

    #[test]
    fn hop_by_hop_headers_stay_here() {
        let head = head(
            "HTTP/1.1 200 OK\r\nConnection: close, x-hop, Content-Length\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nX-Keep: 1\r\n\
             X-Request-Id: pods\r\ncontent-length: 0\r\n\r\n",
        );
        assert!(!head.reusable);
        assert_eq!(
            written(&head, SIDE).0,
            "HTTP/1.1 200 OK\r\nX-Keep: 1\r\ncontent-length: 0\r\nx-request-id: r1\r\n\r\n"
        );
    }

    #[test]
    fn of_limits_the_client_is_told_the_gateways() {
        let head = head(
            "HTTP/1.1 200 OK\r\nx-a: 1\r\nX-RateLimit-Limit-Requests: 9\r\ncontent-length: 0\r\n\r\n",
        );
        assert!(written(&head, SIDE).0.contains("X-RateLimit-Limit-Requests: 9\r\n"));
        let limits = "x-ratelimit-limit-requests: 2\r\n";
        assert_eq!(
            written(&head, ClientSide { limits, ..SIDE }).0,
            "HTTP/1.1 200 OK\r\nx-a: 1\r\ncontent-length: 0\r\nx-ratelimit-limit-requests: 2\r\n\
             x-request-id: r1\r\n\r\n"
        );
    }

    // Field reports 21: a pod's 429 reaches the client with a time to wait.
    #[test]
    fn too_many_requests_says_when() {
        let plain = head("HTTP/1.1 429 x\r\ncontent-length: 0\r\n\r\n");
        let side = ClientSide { retry_after: Some(Duration::from_secs(7)), ..SIDE };
        assert!(written(&plain, side).0.contains("retry-after: 7\r\nretry-after-ms: 7000\r\n"));
        let own = head("HTTP/1.1 429 x\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n");
        assert!(!written(&own, SIDE).0.contains("retry-after: 1\r\n"));
    }
}
