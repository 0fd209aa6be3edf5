//! The messages: each a way, seen in the wild or thinkable, to have two readers of the same bytes see
//! different requests in them.
//!
//! `~` in a message stands for the case's own mark, by which a pod's requests are told apart.

use super::Case;

/// Every case, numbered, with names that stay when others are added.
pub fn corpus() -> Vec<Case> {
    let mut all = Vec::new();
    let mut add = |group: &str, what: &str, message: Vec<u8>| {
        let number = all.len();
        let what = what.escape_debug();
        all.push(Case::new(format!("{group}: {what}"), number, &message));
    };
    for headers in FRAMING {
        for (group, body) in [("framing, bytes", BODY), ("framing, chunks", CHUNKS)] {
            let message = format!("POST /v1/~a HTTP/1.1\r\nhost: g\r\n{headers}\r\n{body}{HIDDEN}");
            add(group, headers, message.into());
        }
    }
    for chunks in CHUNKED {
        add("chunks", chunks, post("transfer-encoding: chunked\r\n", &format!("{chunks}{HIDDEN}")));
    }
    for (what, chunks) in [
        ("a size of 4,000 digits", format!("{}10\r\n{BODY}\r\n0\r\n\r\n", "0".repeat(4000))),
        ("an extension of 60 KB", format!("10;{}\r\n{BODY}\r\n0\r\n\r\n", "x".repeat(60_000))),
        ("trailers of 60 KB", format!("10\r\n{BODY}\r\n0\r\nx: {}\r\n\r\n", "x".repeat(60_000))),
        ("2,000 trailers", format!("10\r\n{BODY}\r\n0\r\n{}\r\n", "x: y\r\n".repeat(2000))),
    ] {
        add("chunks", what, post("transfer-encoding: chunked\r\n", &format!("{chunks}{HIDDEN}")));
    }
    for header in HEADERS {
        let body = format!("{BODY}{HIDDEN}");
        add("header", header, post(&format!("content-length: 16\r\n{header}"), &body));
    }
    for byte in [0_u8, 1, 7, 8, 0xb, 0xc, 0x1b, 0x1f, 0x7f, 0x80, 0xa0, 0xff] {
        for (place, before, behind) in [
            ("a header's value", "x: y", "z\r\n"),
            ("a header's name", "x", "y: z\r\n"),
            ("the coding", "transfer-encoding: ", "chunked\r\n"),
        ] {
            let mut header = before.as_bytes().to_vec();
            header.push(byte);
            header.extend_from_slice(behind.as_bytes());
            let mut message = b"POST /v1/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 16\r\n".to_vec();
            message.extend_from_slice(&header);
            message.extend_from_slice(format!("\r\n{BODY}{HIDDEN}").as_bytes());
            add("byte", &format!("{byte:#04x} in {place}"), message);
        }
        let mut message = b"POST /v1/~a".to_vec();
        message.push(byte);
        message.extend_from_slice(b"b HTTP/1.1\r\nhost: g\r\ncontent-length: 16\r\n\r\n");
        message.extend_from_slice(format!("{BODY}{HIDDEN}").as_bytes());
        add("byte", &format!("{byte:#04x} in the target"), message);
    }
    for line in LINES {
        let message = format!("{line}host: g\r\ncontent-length: 16\r\n\r\n{BODY}{HIDDEN}");
        add("request line", line, message.into());
    }
    for (line, host) in AUTHORITIES {
        let message = format!("{line}{host}content-length: 16\r\n\r\n{BODY}{HIDDEN}");
        add("authority", &format!("{line}{host}"), message.into());
    }
    for message in WHOLE {
        let text = message.replace("{BODY}", BODY).replace("{HIDDEN}", HIDDEN);
        add("message", message, text.into());
    }
    for (what, headers) in [
        ("200 headers", "x: y\r\n".repeat(200)),
        ("10,000 headers", "x: y\r\n".repeat(10_000)),
        ("a header of 100 KB", format!("x: {}\r\n", "y".repeat(100_000))),
        ("a name of 100 KB", format!("{}: y\r\n", "x".repeat(100_000))),
        ("a length of 1,000 digits", format!("content-length: {}16\r\n", "0".repeat(1000))),
        (
            "a coding behind 3,000 blanks",
            format!("transfer-encoding: {}chunked\r\n", " ".repeat(3000)),
        ),
    ] {
        add("size", what, post(&headers, &format!("{CHUNKS}{HIDDEN}")));
    }
    let line = format!("POST /v1/~{} HTTP/1.1\r\n", "a".repeat(100_000));
    add("size", "a target of 100 KB", format!("{line}host: g\r\n\r\n{HIDDEN}").into());
    for message in GOOD {
        let text = message.replace("{BODY}", BODY).replace("{HIDDEN}", HIDDEN);
        add(super::GOOD, message, text.into());
    }
    all
}

fn post(headers: &str, body: &str) -> Vec<u8> {
    format!("POST /v1/~a HTTP/1.1\r\nhost: g\r\n{headers}\r\n{body}").into_bytes()
}

/// What a pod would be asked with, if it were asked.
const BODY: &str = r#"{"model":"base"}"#;

/// The same, chunked.
const CHUNKS: &str = "10\r\n{\"model\":\"base\"}\r\n0\r\n\r\n";

/// A request that stands behind another, or in it.
const HIDDEN: &str =
    "POST /v1/~hidden HTTP/1.1\r\nhost: g\r\ncontent-length: 16\r\n\r\n{\"model\":\"base\"}";

/// Headers that say where a body ends, or seem to.
const FRAMING: [&str; 88] = [
    "",
    // Both.
    "content-length: 16\r\ntransfer-encoding: chunked\r\n",
    "transfer-encoding: chunked\r\ncontent-length: 16\r\n",
    "transfer-encoding: chunked\r\ncontent-length: 0\r\n",
    "content-length: 0\r\ntransfer-encoding: chunked\r\n",
    "content-length: 26\r\ntransfer-encoding: chunked\r\n",
    "content-length: 16\r\ntransfer-encoding: identity\r\n",
    "content-length: 16\r\ntransfer-encoding: gzip\r\n",
    "content-length: 16\r\ntransfer-encoding: gzip, chunked\r\n",
    "content-length: 16\r\ntransfer-encoding:\r\n",
    "content-length: 16\r\ntransfer-encoding: xchunked\r\n",
    "content-length: 16\r\ntransfer-encoding : chunked\r\n",
    "content-length: 16\r\n transfer-encoding: chunked\r\n",
    "content-length: 16\r\n\ttransfer-encoding: chunked\r\n",
    "content-length: 16\r\nx: y\r\n transfer-encoding: chunked\r\n",
    "content-length: 16\r\ntransfer-encoding:\r\n chunked\r\n",
    "content-length: 16\r\ntransfer-encoding\r\n: chunked\r\n",
    "content-length: 16\r\ntransfer_encoding: chunked\r\n",
    "content-length: 16\r\ntransfer-encoding\t: chunked\r\n",
    "content-length: 16\r\ntransfer encoding: chunked\r\n",
    "content-length: 16\r\ntransfer-encoding chunked\r\n",
    "content-length: 16\r\n: chunked\r\n",
    "content-length: 16\r\nx: y\ntransfer-encoding: chunked\r\n",
    "content-length: 16\r\nx: y\rtransfer-encoding: chunked\r\n",
    "content-length: 16\r\nx: y\n\rtransfer-encoding: chunked\r\n",
    "content-length: 16\r\nx: y\r\rtransfer-encoding: chunked\r\n",
    "content-length: 16\r\nx: y\0\r\ntransfer-encoding: chunked\r\n",
    "content-length: 16\r\nconnection: transfer-encoding\r\ntransfer-encoding: chunked\r\n",
    // The coding.
    "transfer-encoding: chunked\r\n",
    "Transfer-Encoding: Chunked\r\n",
    "TRANSFER-ENCODING: CHUNKED\r\n",
    "transfer-encoding:chunked\r\n",
    "transfer-encoding:\tchunked\r\n",
    "transfer-encoding: chunked \r\n",
    "transfer-encoding: chunked\t\r\n",
    "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
    "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
    "transfer-encoding: identity\r\ntransfer-encoding: chunked\r\n",
    "transfer-encoding: chunked\r\ntransfer-encoding: \r\n",
    "transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n",
    "transfer-encoding: chunked, chunked\r\n",
    "transfer-encoding: chunked, identity\r\n",
    "transfer-encoding: identity, chunked\r\n",
    "transfer-encoding: gzip, chunked\r\n",
    "transfer-encoding: , chunked\r\n",
    "transfer-encoding: chunked,\r\n",
    "transfer-encoding: chunked;q=1\r\n",
    "transfer-encoding: \"chunked\"\r\n",
    "transfer-encoding: 'chunked'\r\n",
    "transfer-encoding: xchunked\r\n",
    "transfer-encoding: chunkedx\r\n",
    "transfer-encoding: chunk\r\n",
    "transfer-encoding: cow\r\n",
    "transfer-encoding: identity\r\n",
    "transfer-encoding:\r\n",
    "transfer-encoding: \u{b}chunked\r\n",
    "transfer-encoding: \u{c}chunked\r\n",
    "transfer-encoding: chun\u{212a}ed\r\n",
    "transfer-encoding : chunked\r\n",
    "transfer-encoding\u{b}: chunked\r\n",
    "\u{a0}transfer-encoding: chunked\r\n",
    "x: y\r\n transfer-encoding: chunked\r\n",
    "transfer-encoding:\n chunked\r\n",
    "connection: close, transfer-encoding\r\ntransfer-encoding: chunked\r\n",
    "te: chunked\r\n",
    "content-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
    // The length.
    "content-length: 16\r\ncontent-length: 16\r\n",
    "content-length: 16\r\ncontent-length: 17\r\n",
    "content-length: 16\r\nContent-Length: 0\r\n",
    "content-length: 16, 16\r\n",
    "content-length: 16, 17\r\n",
    "content-length: +16\r\n",
    "content-length: -16\r\n",
    "content-length: 0x10\r\n",
    "content-length: 1 6\r\n",
    "content-length: 16 16\r\n",
    "content-length: 16;\r\n",
    "content-length: 16.0\r\n",
    "content-length: 1_6\r\n",
    "content-length: \"16\"\r\n",
    "content-length:\r\n",
    "content-length:\t16\t\r\n",
    "content-length: \u{b}16\r\n",
    "content-length: 16\u{a0}\r\n",
    "content-length: \u{661}\u{666}\r\n",
    "content-length: 18446744073709551632\r\n",
    "content-length: 9223372036854775824\r\n",
    "content-length: 4294967312\r\n",
];

/// Chunked bodies with a request behind them.
const CHUNKED: [&str; 54] = [
    // Sizes.
    "010\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "00000000000000010\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "+10\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "-10\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "0x10\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "0X10\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "1_0\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "10h\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "\"10\"\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "10,10\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "10.0\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    " 10\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "\t10\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "10 \r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "10\t\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "1 0\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "\r\n10\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "10000000000000010\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "ffffffffffffffff\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "fffffffffffffff0\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "7fffffffffffffff\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "100000010\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "g\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "10\0\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    // Line ends.
    "10\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "10\r{\"model\":\"base\"}\r\n0\r\n\r\n",
    "10\r\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "10\r\n{\"model\":\"base\"}\n0\r\n\r\n",
    "10\r\n{\"model\":\"base\"}0\r\n\r\n",
    "10\r\n{\"model\":\"base\"}\r0\r\n\r\n",
    "10\r\n{\"model\":\"base\"}xx0\r\n\r\n",
    "10\r\n{\"model\":\"base\"}\r\n\r\n0\r\n\r\n",
    "f\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "11\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "10\r\n{\"model\":\"base\"}\r\n0\n\r\n",
    "10\r\n{\"model\":\"base\"}\r\n0\r\n\n",
    "10\r\n{\"model\":\"base\"}\r\n0\r\n\r",
    "10\r\n{\"model\":\"base\"}\r\n0\r\n",
    "10\r\n{\"model\":\"base\"}\r\n0\r\nx",
    // Extensions.
    "10;\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "10;x\r\n{\"model\":\"base\"}\r\n0;x=y\r\n\r\n",
    "10 ; x = \"a;b\"\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "10;x=\"\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "10;\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "10;x\ny\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "10;x\ry\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    "10;\0\r\n{\"model\":\"base\"}\r\n0\r\n\r\n",
    // Trailers.
    "10\r\n{\"model\":\"base\"}\r\n0\r\ncontent-length: 80\r\n\r\n",
    "10\r\n{\"model\":\"base\"}\r\n0\r\ntransfer-encoding: chunked\r\n\r\n",
    "10\r\n{\"model\":\"base\"}\r\n0\r\nhost: other\r\n\r\n",
    "10\r\n{\"model\":\"base\"}\r\n0\r\nx: y\n\r\n",
    "10\r\n{\"model\":\"base\"}\r\n0\r\nx\r\n\r\n",
    "10\r\n{\"model\":\"base\"}\r\n0\r\n x: y\r\n\r\n",
];

/// Header lines beside a length that is in order.
const HEADERS: [&str; 36] = [
    "x : y\r\n",
    "x\t: y\r\n",
    " x: y\r\n",
    "\tx: y\r\n",
    "x: y\r\n z\r\n",
    "x: y\r\n\tz\r\n",
    "x: y\r\n  \r\n",
    "x:\r\n y\r\n",
    "x\r\n",
    "x y: z\r\n",
    ": y\r\n",
    ":\r\n",
    "x: y\n",
    "x: y\r",
    "x: y\n\n",
    "x: y\n\r\n",
    "x: y\r\r\n",
    "x: y\n\rz: a\r\n",
    "x(y): z\r\n",
    "x/y: z\r\n",
    "x@y: z\r\n",
    "\"x\": z\r\n",
    "x;y: z\r\n",
    "content-length\u{e9}: 0\r\n",
    "host: other\r\n",
    "Host : g\r\n",
    "connection: content-length\r\n",
    "connection: host\r\n",
    "connection: close, keep-alive\r\n",
    "connection: upgrade\r\nupgrade: websocket\r\n",
    "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n",
    "upgrade: h2c\r\n",
    "expect: 100-continue\r\n",
    "expect: 200-ok\r\n",
    "expect: 100-continue, x\r\n",
    "expect:\r\n",
];

/// Request lines, with a body of 16 bytes behind them.
const LINES: [&str; 45] = [
    "POST  /v1/~a HTTP/1.1\r\n",
    "POST /v1/~a  HTTP/1.1\r\n",
    "POST\t/v1/~a HTTP/1.1\r\n",
    "POST /v1/~a\tHTTP/1.1\r\n",
    "POST\u{b}/v1/~a HTTP/1.1\r\n",
    " POST /v1/~a HTTP/1.1\r\n",
    "\tPOST /v1/~a HTTP/1.1\r\n",
    "\r\nPOST /v1/~a HTTP/1.1\r\n",
    "\r\n\r\n\r\nPOST /v1/~a HTTP/1.1\r\n",
    "\nPOST /v1/~a HTTP/1.1\r\n",
    "\rPOST /v1/~a HTTP/1.1\r\n",
    "POST /v1/~a HTTP/1.1 \r\n",
    "POST /v1/~a HTTP/1.1\n",
    "POST /v1/~a HTTP/1.1\r",
    "POST /v1/~a HTTP/1.1\r\r\n",
    "POST /v1/~a HTTP/1.1\r\n\r\n",
    "POST /v1/~a b HTTP/1.1\r\n",
    "POST /v1/~a HTTP/1.1 HTTP/1.1\r\n",
    "POST /v1/~a\r\n",
    "POST /v1/~a HTTP/0.9\r\n",
    "POST /v1/~a HTTP/1\r\n",
    "POST /v1/~a HTTP/1.\r\n",
    "POST /v1/~a HTTP/1.2\r\n",
    "POST /v1/~a HTTP/1.10\r\n",
    "POST /v1/~a HTTP/01.1\r\n",
    "POST /v1/~a HTTP/2.0\r\n",
    "POST /v1/~a HTTP/11\r\n",
    "POST /v1/~a http/1.1\r\n",
    "POST /v1/~a HTTPS/1.1\r\n",
    "POST /v1/~a HTTP /1.1\r\n",
    "POST /v1/~a HTTP/ 1.1\r\n",
    "POST /v1/~a HTTP/1.1x\r\n",
    "post /v1/~a HTTP/1.1\r\n",
    "POST: /v1/~a HTTP/1.1\r\n",
    "PO ST /v1/~a HTTP/1.1\r\n",
    "P(ST /v1/~a HTTP/1.1\r\n",
    "/v1/~a HTTP/1.1\r\n",
    "POST v1/~a HTTP/1.1\r\n",
    "POST * HTTP/1.1\r\n",
    "POST ?~a HTTP/1.1\r\n",
    "POST /v1/~a#b HTTP/1.1\r\n",
    "POST /v1/~a%00 HTTP/1.1\r\n",
    "POST /v1/~a%0d%0ax:%20y HTTP/1.1\r\n",
    "POST /v1/../v1/~a HTTP/1.1\r\n",
    "POST /v1/~a\\b HTTP/1.1\r\n",
];

/// Who is asked, said once, twice, or in two ways.
const AUTHORITIES: [(&str, &str); 24] = [
    ("POST http://g/v1/~a HTTP/1.1\r\n", "host: g\r\n"),
    ("POST http://g/v1/~a HTTP/1.1\r\n", "host: other\r\n"),
    ("POST http://g/v1/~a HTTP/1.1\r\n", ""),
    ("POST http://g:80/v1/~a HTTP/1.1\r\n", "host: g\r\n"),
    ("POST http://g:81/v1/~a HTTP/1.1\r\n", "host: g\r\n"),
    ("POST http://u:p\u{40}g/v1/~a HTTP/1.1\r\n", "host: g\r\n"),
    ("POST http:///v1/~a HTTP/1.1\r\n", "host: g\r\n"),
    ("POST http://g?~a HTTP/1.1\r\n", "host: g\r\n"),
    ("POST http:/v1/~a HTTP/1.1\r\n", "host: g\r\n"),
    ("POST http:g/v1/~a HTTP/1.1\r\n", "host: g\r\n"),
    ("POST ftp://g/v1/~a HTTP/1.1\r\n", "host: g\r\n"),
    ("POST //g/v1/~a HTTP/1.1\r\n", "host: g\r\n"),
    ("POST ~g:80 HTTP/1.1\r\n", "host: ~g:80\r\n"),
    ("CONNECT ~g:80 HTTP/1.1\r\n", "host: ~g:80\r\n"),
    ("CONNECT /v1/~a HTTP/1.1\r\n", "host: g\r\n"),
    ("POST /v1/~a HTTP/1.1\r\n", ""),
    ("POST /v1/~a HTTP/1.1\r\n", "host:\r\n"),
    ("POST /v1/~a HTTP/1.1\r\n", "host: g\r\nhost: g\r\n"),
    ("POST /v1/~a HTTP/1.1\r\n", "host: g\r\nhost: other\r\n"),
    ("POST /v1/~a HTTP/1.1\r\n", "host: g, other\r\n"),
    ("POST /v1/~a HTTP/1.1\r\n", "host: g other\r\n"),
    ("POST /v1/~a HTTP/1.1\r\n", "host: g/x\r\n"),
    ("POST /v1/~a HTTP/1.1\r\n", "host: u\u{40}g\r\n"),
    ("POST /v1/~a HTTP/1.1\r\n", "host: g:80:80\r\n"),
];

/// Messages that are a kind of their own.
const WHOLE: [&str; 37] = [
    // HTTP/1.0 has no chunks.
    "POST /v1/~a HTTP/1.0\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n10\r\n{BODY}\r\n0\r\n\r\n{HIDDEN}",
    "POST /v1/~a HTTP/1.0\r\nhost: g\r\ncontent-length: 16\r\ntransfer-encoding: chunked\r\n\r\n{BODY}{HIDDEN}",
    "POST /v1/~a HTTP/1.0\r\nhost: g\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\n\r\n\
     10\r\n{BODY}\r\n0\r\n\r\n{HIDDEN}",
    "POST /v1/~a HTTP/1.0\r\nhost: g\r\ncontent-length: 16\r\nconnection: transfer-encoding\r\n\
     transfer-encoding: chunked\r\n\r\n{BODY}{HIDDEN}",
    "POST /v1/~a HTTP/1.0\r\nhost: g\r\n\r\n{HIDDEN}",
    // Bodies where none is expected.
    "GET /nope/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 101\r\n\r\n{HIDDEN}",
    "GET /nope/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 0\r\n\r\n{HIDDEN}",
    "GET /nope/~a HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}",
    "GET /nope/~a HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n65\r\n{HIDDEN}\r\n0\r\n\r\n",
    "GET /nope/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 101\r\ntransfer-encoding: chunked\r\n\r\n{HIDDEN}",
    "OPTIONS /nope/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 101\r\n\r\n{HIDDEN}",
    "DELETE /nope/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 101\r\n\r\n{HIDDEN}",
    "TRACE /nope/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 101\r\n\r\n{HIDDEN}",
    "DELETE /nope/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 0\r\n\r\n{HIDDEN}",
    // Protocols that nobody has agreed on.
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{HIDDEN}",
    "GET /nope/~a HTTP/1.1\r\nhost: g\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
     sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13\r\n\r\n{HIDDEN}",
    "GET /nope/~a HTTP/1.1\r\nhost: g\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
     sec-websocket-version: 777\r\n\r\n{HIDDEN}",
    "GET /nope/~a HTTP/1.1\r\nhost: g\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\n\
     http2-settings: AAMAAABkAAQAAP__\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{HIDDEN}",
    "POST /v1/~a HTTP/1.1\r\nhost: g\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n{HIDDEN}",
    "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}~{HIDDEN}",
    // Behind something that was refused.
    "GARBAGE\r\n\r\n{HIDDEN}",
    "GET /nope/~a HTTP/1.1\r\n\r\n{HIDDEN}",
    "POST /v1/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 16\r\n\r\n{BODY}GARBAGE\r\n\r\n{HIDDEN}",
    "POST /v1/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 16\r\n\r\n{BODY}x{HIDDEN}",
    "POST /v1/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 16\r\n\r\n{BODY}\0{HIDDEN}",
    "POST /v1/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 16\r\n\r\n{BODY} {HIDDEN}",
    "POST /v1/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 16\r\ntransfer-encoding: x\r\n\r\n{BODY}{HIDDEN}{HIDDEN}",
    "POST /v1/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 16\r\nexpect: x\r\n\r\n{BODY}{HIDDEN}",
    "POST /v1/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 101\r\nexpect: 100-continue\r\n\r\n{HIDDEN}",
    "GET /nope/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 101\r\nexpect: 100-continue\r\n\r\n{HIDDEN}",
    "POST /v1/~a HTTP/1.1\r\nhost: g\r\nexpect: 100-continue\r\n\r\n{HIDDEN}",
    "POST /v1/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 99999999999\r\n\r\n{HIDDEN}",
    "POST /v1/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 16\r\nconnection: close\r\n\r\n{BODY}{HIDDEN}",
    "POST /v1/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 101\r\ncontent-encoding: gzip\r\n\r\n{HIDDEN}",
    // Ends too early, or is all that comes.
    "POST /v1/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 17\r\n\r\n{BODY}",
    "POST /v1/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 16\r\n",
    "POST /v1/~a HTTP/1.1\nhost: g\ncontent-length: 16\n\n{BODY}{HIDDEN}",
];

/// What must get through.
const GOOD: [&str; 12] = [
    "POST /v1/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 16\r\n\r\n{BODY}",
    "POST /v1/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 16\r\n\r\n{BODY}{HIDDEN}",
    "POST /v1/~a HTTP/1.1\r\nHOST: g\r\nCONTENT-LENGTH: 16\r\nX-Y: z\r\n\r\n{BODY}{HIDDEN}",
    "POST /v1/~a HTTP/1.1\r\nhost:g\r\ncontent-length:16\r\nx:\r\ny: \r\n\r\n{BODY}{HIDDEN}",
    "POST /v1/~a HTTP/1.1\r\nhost: g\r\ncontent-length:  16 \r\nx:  y z  \r\n\r\n{BODY}{HIDDEN}",
    "POST /v1/~a HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n10\r\n{BODY}\r\n0\r\n\r\n{HIDDEN}",
    "POST /v1/~a HTTP/1.1\r\nhost: g\r\ntransfer-encoding: Chunked\r\n\r\n\
     1\r\n{\r\n00E\r\n\"model\":\"base\"\r\n1\r\n}\r\n0\r\n\r\n{HIDDEN}",
    "POST /v1/~a?x=y&z=%20 HTTP/1.1\r\nhost: g\r\ncontent-length: 16\r\n\r\n{BODY}{HIDDEN}",
    "POST /v1/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 16\r\nexpect: 100-continue\r\n\r\n{BODY}{HIDDEN}",
    "POST /v1/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 16\r\nconnection: keep-alive\r\n\r\n{BODY}{HIDDEN}",
    "POST /v1/~a HTTP/1.0\r\nhost: g\r\ncontent-length: 16\r\n\r\n{BODY}",
    "\r\nPOST /v1/~a HTTP/1.1\r\nhost: g\r\ncontent-length: 16\r\n\r\n{BODY}\r\n{HIDDEN}",
];
