//! A request's head from its header fields. Pure.
//!
//! The fields are written as HTTP/1.1 writes them and read by the one reader of heads.

use http::header::{CONTENT_LENGTH, COOKIE, HOST};
use http::request::Parts;

use crate::error::Refusal;
use crate::request::head::{self, BodyLength, Head, Version};

/// Reads a head. `is_over`: there is no body. `cap` is the longest head accepted, in bytes.
///
/// # Errors
/// The request is refused, as one of HTTP/1.1 with these fields would be.
pub(super) fn read(parts: &Parts, is_over: bool, cap: usize) -> Result<Head, Refusal> {
    let mut text = Vec::with_capacity(512);
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    for part in [parts.method.as_str(), " ", target, " HTTP/1.1\r\n"] {
        text.extend_from_slice(part.as_bytes());
    }
    // RFC 9113 section 8.3.1: `:authority` stands for Host, and a Host that is another is none.
    let authority = parts.uri.authority().map(|authority| authority.as_str().as_bytes());
    let hosts = parts.headers.get_all(HOST).iter().map(|host| host.as_bytes());
    let mut hosts = authority.into_iter().chain(hosts);
    let host = hosts.next();
    if host.is_some_and(|host| hosts.any(|other| !other.eq_ignore_ascii_case(host))) {
        return Err(Refusal::malformed("The request names two hosts."));
    }
    let mut line = |name: &str, value: &[u8]| {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            text.extend_from_slice(part);
        }
    };
    line("host", host.unwrap_or(b"sluice"));
    for (name, value) in parts.headers.iter().filter(|(name, _)| !matches!(*name, &HOST | &COOKIE))
    {
        line(name.as_str(), value.as_bytes());
    }
    // Section 8.2.3: what was split for compression is one field elsewhere.
    let cookies: Vec<_> =
        parts.headers.get_all(COOKIE).iter().map(|part| part.as_bytes()).collect();
    if !cookies.is_empty() {
        line("cookie", &cookies.join(b"; ".as_slice()));
    }
    text.extend_from_slice(b"\r\n");
    let parsed = head::parse(&text, cap)?;
    let head = parsed.ok_or_else(|| Refusal::malformed("The request's head is incomplete."))?;
    let body = match is_over || parts.headers.contains_key(CONTENT_LENGTH) {
        true => head.body,
        false => BodyLength::UntilEnd,
    };
    Ok(Head { version: Version::Http2, body, ..head })
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::request::head::Method;

    fn parts(request: http::request::Builder) -> Parts {
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn fields_become_a_head() {
        let request = Request::post("https://a.b:8443/v1/chat/completions?x=1")
            .header("host", "A.b:8443")
            .header("cookie", "a=1")
            .header("cookie", "b=2")
            .header("te", "trailers")
            .header("x-request-id", "r-1")
            .header("content-type", "application/json");
        let head = read(&parts(request), false, 8192).unwrap();
        assert_eq!(
            (head.method, &*head.path, head.body),
            (Method::Post, "/v1/chat/completions", BodyLength::UntilEnd)
        );
        assert_eq!((head.version, head.request_id.as_deref()), (Version::Http2, Some("r-1")));
        assert_eq!(
            String::from_utf8(head.forward).unwrap(),
            "POST /v1/chat/completions?x=1 HTTP/1.1\r\nhost: a.b:8443\r\ncontent-type: application/json\r\n\
             cookie: a=1; b=2\r\n"
        );
    }

    #[test]
    fn the_bodys_length_is_the_fields_or_its_end() {
        let length = |request, is_over| read(&parts(request), is_over, 8192).unwrap().body;
        let post = || Request::post("http://a/");
        assert_eq!(length(post(), true), BodyLength::Known(0));
        assert_eq!(length(post(), false), BodyLength::UntilEnd);
        assert_eq!(length(post().header("content-length", "12"), false), BodyLength::Known(12));
    }

    #[test]
    fn refused_as_in_http_1() {
        let many = (0..300)
            .fold(Request::post("http://a/"), |request, at| request.header(format!("x-{at}"), "y"));
        assert_eq!(read(&parts(many), true, 65536).unwrap_err().status, 431);
        let long = Request::post("http://a/").header("x", "y".repeat(9000));
        assert_eq!(read(&parts(long), true, 8192).unwrap_err().status, 431);
        for (target, hosts) in [("http://a/", ["other", "a"]), ("/", ["a", "b"])] {
            let hosts = hosts
                .into_iter()
                .fold(Request::post(target), |request, host| request.header("host", host));
            assert_eq!(read(&parts(hosts), true, 8192).unwrap_err().status, 400);
        }
        let twice =
            Request::post("http://a/").header("content-length", "1").header("content-length", "2");
        assert_eq!(read(&parts(twice), false, 8192).unwrap_err().status, 400);
    }
}
