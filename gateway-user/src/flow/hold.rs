//! What the first bytes of a response say: pass it on, wait for more, or try another pod. Pure.
//!
//! A response is held until its first byte of content. vLLM answers `200 OK` about 20 ms after the request,
//! long before the engine has it; a pod that dies or is shut down in that time is replaced unseen.

/// What to do with a response that is being held.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// Nothing of substance yet.
    Wait,
    /// Content has begun: the response is the client's.
    Release,
    /// Another pod may do better, as nothing of substance has come.
    Elsewhere(Trouble),
}

/// Why another pod may do better.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Trouble {
    /// 429 or 503: full, starting or scaling. It says nothing about the pod's health.
    Busy,
    /// Its engine is dead or shutting down: the next request would fare no better.
    Stopping,
    /// 502 or 504 of something before the pod.
    Broken,
    /// Its engine failed this request; the next may fare better.
    Failed,
}

/// Judges what has come so far. `payload` is the body's first bytes without chunk framing, at most
/// [`ENOUGH`]; `complete` tells that no more will come.
pub fn judge(status: u16, event_stream: bool, payload: &[u8], complete: bool) -> Verdict {
    match status {
        429 | 503 => Verdict::Elsewhere(Trouble::Busy),
        502 | 504 => Verdict::Elsewhere(Trouble::Broken),
        500 if stopping(payload) => Verdict::Elsewhere(Trouble::Stopping),
        500 if !complete && payload.len() < ENOUGH => Verdict::Wait,
        200 if event_stream => first_event(payload, complete),
        _ if payload.is_empty() && !complete => Verdict::Wait,
        _ => Verdict::Release,
    }
}

/// The first event of a stream: comments are skipped, an engine's error is a failure.
fn first_event(payload: &[u8], complete: bool) -> Verdict {
    let mut rest = payload;
    loop {
        match rest.first() {
            Some(b'\n' | b'\r') => rest = rest.get(1..).unwrap_or_default(),
            Some(b':') => match memchr::memchr2(b'\n', b'\r', rest) {
                Some(end) => rest = rest.get(end..).unwrap_or_default(),
                None => break,
            },
            _ => break,
        }
    }
    let enough = complete || payload.len() >= ENOUGH;
    // Such an event comes whole: it may be the only one that tells how long the prompt is.
    if !enough && (rest.len() < EVENT.len() && EVENT.starts_with(rest) || is_announcing(rest)) {
        return Verdict::Wait;
    }
    if rest.is_empty() || rest.starts_with(b":") {
        return if enough { Verdict::Release } else { Verdict::Wait };
    }
    match is_error_event(rest) {
        Some(true) => match memchr::memchr2(b'\n', b'\r', rest) {
            None if !enough => Verdict::Wait,
            end => error_event(rest.get(..end.unwrap_or(rest.len())).unwrap_or_default()),
        },
        None if !enough => Verdict::Wait,
        _ => Verdict::Release,
    }
}

/// A stream that begins with an error: whose is it?
fn error_event(event: &[u8]) -> Verdict {
    if stopping(event) {
        return Verdict::Elsewhere(Trouble::Stopping);
    }
    let data = event.strip_prefix(b"data:").unwrap_or_default();
    let error = serde_json::from_slice::<serde_json::Value>(data).unwrap_or_default();
    let error = error.get("error");
    match error.and_then(|error| error.get("code")).and_then(serde_json::Value::as_u64) {
        Some(429) => Verdict::Elsewhere(Trouble::Busy),
        // The client's own fault: every pod would say the same, and none of them is to blame.
        Some(400..=499) => Verdict::Release,
        _ if error.is_some_and(serde_json::Value::is_null) => Verdict::Release,
        _ => Verdict::Elsewhere(Trouble::Failed),
    }
}

/// Whether an event is an engine's error: `data: {"error": ...`. `None`: too short to tell.
pub fn is_error_event(event: &[u8]) -> Option<bool> {
    // Between the parts, blanks may stand: vLLM writes them in this event and nowhere else.
    let mut rest = event;
    for part in [b"data:".as_slice(), b"{", b"\"error\""] {
        let start = rest.iter().position(|byte| !matches!(byte, b' ' | b'\t'));
        rest = rest.get(start.unwrap_or(rest.len())..).unwrap_or_default();
        match rest.strip_prefix(part) {
            Some(after) => rest = after,
            None if part.starts_with(rest) => return None,
            None => return Some(false),
        }
    }
    Some(true)
}

/// Whether a stream begins with an event that comes before any token: the Responses interface, and Anthropic's, tell of
/// the request first.
pub fn announces(payload: &[u8]) -> bool {
    let Some(name) = payload.trim_ascii_start().strip_prefix(EVENT) else { return false };
    let end = memchr::memchr2(b'\n', b'\r', name).unwrap_or(name.len());
    let name = name.get(..end).unwrap_or_default().trim_ascii();
    [b"response.created".as_slice(), b"response.in_progress", b"message_start", b"ping"]
        .contains(&name)
}

/// Whether a stream begins with such an event of which not all has come.
fn is_announcing(rest: &[u8]) -> bool {
    let is_whole = || {
        let ends: [&[u8]; 3] = [b"\n\n", b"\r\r", b"\r\n\r\n"];
        ends.iter().any(|end| memchr::memmem::find(rest, end).is_some())
    };
    match memchr::memchr2(b'\n', b'\r', rest) {
        None => rest.starts_with(EVENT),
        Some(_) => announces(rest) && !is_whole(),
    }
}

/// vLLM's words while it drains, and when its engine has died.
fn stopping(payload: &[u8]) -> bool {
    [
        b"cannot schedule new futures after shutdown".as_slice(),
        b"EngineCore encountered an issue",
        b"EngineDeadError",
    ]
    .iter()
    .any(|words| memchr::memmem::find(payload, words).is_some())
}

/// What the line with an event's name begins with.
const EVENT: &[u8] = b"event:";

/// As much of a body as is held and looked at, in bytes. Comments of a long wait are about 14 bytes a
/// second, error bodies a few hundred.
pub const ENOUGH: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM_WAIT: Verdict = Verdict::Wait;
    const DEAD: &str =
        "data: {\"error\": {\"message\": \"EngineCore encountered an issue.\", \"code\": 500}}\n";

    fn stream(payload: &str) -> Verdict {
        judge(200, true, payload.as_bytes(), false)
    }

    #[test]
    fn comments_hold_and_content_releases() {
        for (payload, verdict) in [
            ("", STREAM_WAIT),
            (": keep-alive", STREAM_WAIT),
            (": keep-alive\n\n", STREAM_WAIT),
            (":\n\n:\r\n\r\n", STREAM_WAIT),
            (": keep-alive\n\ndata: {\"id\":1}\n\n", Verdict::Release),
            ("data: {\"id\":\"x\"", Verdict::Release),
            ("data:{\"id\":\"x\"", Verdict::Release),
            ("eve", STREAM_WAIT),
            ("event: message_st", STREAM_WAIT),
            ("event: message_start\n", STREAM_WAIT),
            ("event: message_start\ndata: {\"message\"", STREAM_WAIT),
            ("event: message_start\r\ndata: {\"message\":{}}\r\n", STREAM_WAIT),
            ("event: message_start\r\ndata: {\"message\":{}}\r\n\r\n", Verdict::Release),
            ("event: message_start\ndata: {\"message\":{}}\n\n", Verdict::Release),
            ("event: content_block_delta\n", Verdict::Release),
            ("data: [DONE]\n\n", Verdict::Release),
            ("data: {\"err", STREAM_WAIT),
            ("da", STREAM_WAIT),
            ("data: {\"error\": {\"message\"", STREAM_WAIT),
            ("data: { \"error\"", STREAM_WAIT),
            (DEAD, Verdict::Elsewhere(Trouble::Stopping)),
            (
                "data:{\"error\":{\"message\":\"oom\",\"code\":500}}\n",
                Verdict::Elsewhere(Trouble::Failed),
            ),
            (": keep-alive\n\ndata:{\"error\":\"oom\"}\n\n", Verdict::Elsewhere(Trouble::Failed)),
            ("data: {\"error\":{\"code\":429}}\n\n", Verdict::Elsewhere(Trouble::Busy)),
            // Whoever sends what no pod can answer must not take pod after pod away from the others.
            ("data: {\"error\":{\"message\":\"bad\",\"code\":400}}\n\n", Verdict::Release),
            ("data: {\"error\":null,\"choices\":[]}\n\n", Verdict::Release),
            ("data: {\"errors\":1}", Verdict::Release),
        ] {
            assert_eq!(stream(payload), verdict, "{payload:?}");
        }
    }

    #[test]
    fn holding_is_bounded() {
        let comments = ": keep-alive\n\n".repeat(ENOUGH / 14 + 1);
        assert_eq!(stream(&comments), Verdict::Release);
        assert_eq!(judge(200, true, b"", true), Verdict::Release);
    }

    #[test]
    fn statuses() {
        let dead = br#"{"error":{"message":"EngineCore encountered an issue. See"#;
        let drain = br#"{"error":{"message":"cannot schedule new futures after shutdown"}}"#;
        for (status, payload, complete, verdict) in [
            (200, b"".as_slice(), false, Verdict::Wait),
            (200, b"{", false, Verdict::Release),
            (200, b"", true, Verdict::Release),
            (400, b"{", false, Verdict::Release),
            (404, b"{", false, Verdict::Release),
            (429, b"", false, Verdict::Elsewhere(Trouble::Busy)),
            (503, b"", false, Verdict::Elsewhere(Trouble::Busy)),
            (502, b"", false, Verdict::Elsewhere(Trouble::Broken)),
            (500, b"{", false, Verdict::Wait),
            (500, b"{\"error\":\"bug\"}", true, Verdict::Release),
            (500, dead, false, Verdict::Elsewhere(Trouble::Stopping)),
            (500, drain, true, Verdict::Elsewhere(Trouble::Stopping)),
        ] {
            assert_eq!(judge(status, false, payload, complete), verdict, "{status} {payload:?}");
        }
    }

    #[test]
    fn what_comes_before_any_token_is_told_from_tokens() {
        let table: [(&[u8], bool); 8] = [
            (b"event: response.created\ndata: {}\n\n", true),
            (b"\nevent:response.in_progress\r\ndata: {}", true),
            (b"event: message_start\ndata: {}", true),
            (b"event: ping", true),
            (b"event: response.output_text.delta\ndata: {}\n\n", false),
            (b"event: content_block_delta\n", false),
            (b"data: {\"event\": \"ping\"}", false),
            (b"", false),
        ];
        for (payload, expected) in table {
            assert_eq!(announces(payload), expected, "{}", payload.escape_ascii());
        }
    }
}
