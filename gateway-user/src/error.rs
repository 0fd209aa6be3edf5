//! What a client is told when its request is not answered by a pod.
//!
//! Every refusal knows its source (whose fault), its status and whether the connection can go on. The body is
//! OpenAI's error object, so that the official SDKs surface the message and retry by the headers.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use crate::explain::EXPLAIN_HEADER;
use crate::metrics::Refusal as Reason;

/// Whose fault a refusal is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Source {
    /// The request is wrong, or the client left.
    Client,
    /// The gateway is at a limit or is stopping.
    Gateway,
    /// The pods are full, unreachable or broken.
    Pod,
}

/// A request that is answered by the gateway itself, with an error.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// OpenAI's `code`, a stable word for programs.
    pub code: &'static str,
    /// OpenAI's `param`: the field of the request that is meant.
    pub param: Option<&'static str>,
    /// What is wrong and what to change, for people.
    pub message: Cow<'static, str>,
    /// When to try again.
    pub retry_after: Option<Duration>,
    /// Further lines for the head. In a box of its own, as most have none and errors are to be small.
    pub headers: Option<Box<Lines>>,
    /// How the pool's pods stood, if the client is to be told.
    pub explain: Option<Box<str>>,
    /// The connection cannot go on: what follows in it is not known to be a request.
    pub close: bool,
    /// Whose fault it is.
    pub source: Source,
}

/// Lines of a head, each with its end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lines(pub String);

impl Refusal {
    /// 400: the request is not understood; the connection goes on.
    pub fn bad_request(code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::client(400, code, message)
    }

    /// 400 about one field of the body.
    pub fn bad_field(
        param: &'static str,
        code: &'static str,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { param: Some(param), ..Self::client(400, code, message) }
    }

    /// 400 and the end of the connection: its framing cannot be trusted.
    pub fn malformed(message: impl Into<Cow<'static, str>>) -> Self {
        Self { close: true, ..Self::client(400, "malformed_request", message) }
    }

    /// A client's fault with any status.
    pub fn client(status: u16, code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            kind: "invalid_request_error",
            code,
            param: None,
            message: message.into(),
            retry_after: None,
            headers: None,
            explain: None,
            close: false,
            source: Source::Client,
        }
    }

    /// 413: the body is over the cap.
    pub fn body_too_large(cap: usize) -> Self {
        Self {
            close: true,
            ..Self::client(
                413,
                "request_too_large",
                format!(
                    "The request body is larger than {cap} bytes. Send less, or raise \
                     bbr.maxRequestBodyBytes in the gateway's configuration."
                ),
            )
        }
    }

    /// 401: nothing in the request lets it in. `error`: RFC 6750's word for what is wrong with what there is.
    pub fn unauthorized(message: impl Into<Cow<'static, str>>, error: Option<&str>) -> Self {
        let error = error.map_or_else(String::new, |error| format!(", error=\"{error}\""));
        Self {
            headers: Some(Box::new(Lines(format!(
                "www-authenticate: Bearer realm=\"sluice\"{error}\r\n"
            )))),
            ..Self::client(401, "invalid_api_key", message)
        }
    }

    /// 403: the key is not for this model.
    pub fn forbidden(model: &str) -> Self {
        let shown: String = model.chars().take(MODEL_SHOWN).collect();
        Self {
            param: Some("model"),
            ..Self::client(
                403,
                "model_not_allowed",
                format!(
                    "This key may not use the model `{shown}`. GET /v1/models lists those it may."
                ),
            )
        }
    }

    /// 413: the body is over the cap when it is decoded.
    pub fn decompressed_too_large(cap: usize) -> Self {
        Self::client(
            413,
            "request_too_large",
            format!(
                "The request body is larger than {cap} bytes when decompressed. Send less, or raise \
                 limits.maxDecompressedBytes in the gateway's configuration."
            ),
        )
    }

    /// 404: no pool serves this model.
    pub fn model_not_found(model: &str) -> Self {
        // A name can be as long as a request: what is quoted is bounded.
        let shown: String = model.chars().take(MODEL_SHOWN).collect();
        let dots = if shown.len() < model.len() { "..." } else { "" };
        Self {
            param: Some("model"),
            ..Self::client(
                404,
                "model_not_found",
                format!(
                    "The model `{shown}{dots}` does not exist here. GET /v1/models lists those that do."
                ),
            )
        }
    }

    /// 400: the body names no model.
    pub fn model_missing() -> Self {
        Self::bad_field(
            "model",
            "model_missing",
            "The request body has no `model`. Name one of those that GET /v1/models lists.",
        )
    }

    /// 404: nobody knows which pod has the response.
    pub fn response_not_found(id: &str) -> Self {
        let shown: String = id.chars().take(MODEL_SHOWN).collect();
        Self::client(
            404,
            "response_not_found",
            format!(
                "The response `{shown}` is not known here: it is too old, or was made before the gateway started."
            ),
        )
    }

    /// 429: every pod of the pool is full.
    pub fn saturated(pool: &str, retry_after: Duration) -> Self {
        Self {
            kind: "rate_limit_error",
            retry_after: Some(retry_after),
            source: Source::Pod,
            ..Self::client(
                429,
                "pool_saturated",
                format!("All pods of pool `{pool}` are at their limit. Try again later."),
            )
        }
    }

    /// 503: the pool has no pod that could answer.
    pub fn no_pod(pool: &str) -> Self {
        Self {
            retry_after: Some(Duration::from_secs(1)),
            ..Self::server(
                503,
                "no_pod_available",
                format!("No pod of pool `{pool}` is reachable. Try again later."),
                Source::Pod,
            )
        }
    }

    /// 502: a pod broke off or answered nonsense, and no other could take over.
    pub fn pod_failed(message: impl Into<Cow<'static, str>>) -> Self {
        Self::server(502, "pod_failed", message, Source::Pod)
    }

    /// 504: a pod did not answer in time.
    pub fn pod_timeout(message: impl Into<Cow<'static, str>>) -> Self {
        Self::server(504, "pod_timeout", message, Source::Pod)
    }

    /// 503: the gateway itself is at a limit.
    pub fn overloaded(code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            retry_after: Some(Duration::from_secs(1)),
            close: true,
            ..Self::server(503, code, message, Source::Gateway)
        }
    }

    fn server(
        status: u16,
        code: &'static str,
        message: impl Into<Cow<'static, str>>,
        source: Source,
    ) -> Self {
        Self {
            status,
            kind: "server_error",
            code,
            param: None,
            message: message.into(),
            retry_after: None,
            headers: None,
            explain: None,
            close: false,
            source,
        }
    }

    /// How the metrics call it.
    pub fn reason(&self) -> Reason {
        match (self.status, self.code) {
            (401, _) => Reason::Unauthorized,
            (403, _) => Reason::Forbidden,
            (404, "model_not_found") => Reason::UnknownModel,
            (408, _) => Reason::Slow,
            (413, _) => Reason::BodyTooLarge,
            (431, _) => Reason::HeadTooLarge,
            (429, "rate_limit_exceeded") => Reason::Limited,
            (429, "too_many_connections_of_address") => Reason::TooManyOfAddress,
            (503, "body_memory") => Reason::BuffersFull,
            (503, "too_many_connections") => Reason::TooManyConnections,
            (503, _) => Reason::NotReady,
            _ => Reason::BadRequest,
        }
    }

    /// OpenAI's error object.
    pub fn error(&self) -> serde_json::Value {
        serde_json::json!({
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        })
    }

    /// The whole response. `keep_alive` false, or [`Refusal::close`], ends the connection after it;
    /// `head_only` leaves the body out, as for a HEAD request.
    pub fn response(&self, request_id: &str, keep_alive: bool, head_only: bool) -> Vec<u8> {
        let body = serde_json::json!({"error": self.error()}).to_string();
        let mut extra = String::new();
        if let Some(after) = self.retry_after {
            extra.push_str(&retry_after(after));
        }
        if let Some(headers) = &self.headers {
            extra.push_str(&headers.0);
        }
        if let Some(explain) = &self.explain {
            let _ = write!(extra, "{EXPLAIN_HEADER}: {explain}\r\n");
        }
        if self.status == 405 {
            extra.push_str("allow: GET, POST\r\n");
        }
        local_response(
            self.status,
            "application/json",
            &extra,
            body.as_bytes(),
            request_id,
            keep_alive && !self.close,
            head_only,
        )
    }
}

/// The headers that tell when to try again: whole seconds for everyone, rounded up; milliseconds for the SDKs, which
/// prefer them.
pub fn retry_after(after: Duration) -> String {
    let millis = after.as_millis();
    format!("retry-after: {}\r\nretry-after-ms: {millis}\r\n", millis.div_ceil(1000).max(1))
}

/// A whole response of the gateway's own. `extra` holds further header lines, each with its line end.
pub fn local_response(
    status: u16,
    content_type: &str,
    extra: &str,
    body: &[u8],
    request_id: &str,
    keep_alive: bool,
    head_only: bool,
) -> Vec<u8> {
    let connection = if keep_alive { "" } else { "connection: close\r\n" };
    let mut out = format!(
        "HTTP/1.1 {status} {}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\
         x-request-id: {request_id}\r\n{extra}{connection}\r\n",
        reason_phrase(status),
        body.len(),
    )
    .into_bytes();
    if !head_only {
        out.extend_from_slice(body);
    }
    out
}

/// RFC 9110's phrase for the statuses that the gateway itself sends.
fn reason_phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    }
}

/// Characters of a model's name that an error quotes.
const MODEL_SHOWN: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_openai_json_with_headers() {
        let refusal = Refusal::saturated("llama", Duration::from_millis(1200));
        let text = String::from_utf8(refusal.response("id-1", true, false)).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{head}");
        assert!(head.contains("\r\nx-request-id: id-1"));
        assert!(head.contains("\r\nretry-after: 2\r\nretry-after-ms: 1200"));
        assert!(!head.contains("connection: close"));
        assert!(head.contains(&format!("content-length: {}", body.len())));
        let json: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(json["error"]["code"], "pool_saturated");
        assert_eq!(json["error"]["type"], "rate_limit_error");
        assert!(json["error"]["param"].is_null());
    }

    #[test]
    fn hostile_model_name_is_quoted_short_and_escaped() {
        let refusal = Refusal::model_not_found(&"\"\r\nx: y\u{1F600}".repeat(1000));
        let text = String::from_utf8(refusal.response("id", true, false)).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(!head.contains("x: y"));
        assert!(body.len() < 2000);
        let json: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(json["error"]["param"], "model");
    }

    #[test]
    fn close_wins_over_keep_alive_and_head_has_no_body() {
        let refusal = Refusal::malformed("no");
        let text = String::from_utf8(refusal.response("id", true, true)).unwrap();
        assert!(text.contains("connection: close\r\n"));
        assert!(text.ends_with("\r\n\r\n"));
    }
}
