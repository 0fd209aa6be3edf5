//! A plain client for the tests of the server: blocking, and particular about framing.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// An answer, read to its end.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    /// Head and body with its framing.
    pub(super) raw: String,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn read(client: &mut TcpStream) -> Self {
        let head = read_head(client);
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = Self { status, raw: head.clone(), head, body: Vec::new() };
        if let Some(length) = answer.header("content-length") {
            answer.body = vec![0; length.parse().unwrap()];
            client.read_exact(&mut answer.body).unwrap();
        } else if answer.header("transfer-encoding").is_some() {
            loop {
                let line = answer.line(client);
                let size = line.trim_end().split(';').next().unwrap().to_owned();
                let size = usize::from_str_radix(&size, 16).unwrap();
                if size == 0 {
                    while answer.line(client) != "\r\n" {}
                    break;
                }
                let mut chunk = vec![0; size + 2];
                client.read_exact(&mut chunk).unwrap();
                assert!(chunk.ends_with(b"\r\n"));
                answer.body.extend_from_slice(&chunk[..size]);
            }
        } else {
            client.read_to_end(&mut answer.body).unwrap();
        }
        answer
    }

    fn line(&mut self, client: &mut TcpStream) -> String {
        let line = read_until(client, b"\n");
        self.raw.push_str(&line);
        line
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(super) fn body(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The text of a chat answer, streamed or not.
    pub(super) fn text(&self) -> String {
        let body = self.body();
        if !body.starts_with("data:") {
            return self.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        }
        let events = body.split("\n\n").filter_map(|event| event.strip_prefix("data: {"));
        events
            .map(|event| {
                let event: Value = serde_json::from_str(&format!("{{{event}")).unwrap();
                event["choices"][0]["delta"]["content"].as_str().unwrap().to_owned()
            })
            .collect()
    }
}

pub(super) fn connect(addr: SocketAddr) -> TcpStream {
    let client = TcpStream::connect(addr).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

pub(super) fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A chat request with these fields besides.
pub(super) fn chat(mut fields: Value) -> String {
    fields["messages"] = json!([{"role": "user", "content": "hello"}]);
    post("/v1/chat/completions", &fields.to_string())
}

pub(super) fn with_fault(request: &str, fault: &Value) -> String {
    request.replacen("\r\n", &format!("\r\nx-engine-fault: {fault}\r\n"), 1)
}

pub(super) fn raw(client: &mut TcpStream, request: &str) -> Answer {
    client.write_all(request.as_bytes()).unwrap();
    Answer::read(client)
}

pub(super) fn ask(client: &mut TcpStream, request: &str) -> Answer {
    raw(client, request)
}

pub(super) fn get(client: &mut TcpStream, path: &str) -> Answer {
    raw(client, &format!("GET {path} HTTP/1.1\r\nhost: pod\r\n\r\n"))
}

/// Everything that comes back until the server closes.
pub(super) fn exchange(addr: SocketAddr, request: &str) -> String {
    let mut client = connect(addr);
    client.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    text
}

pub(super) fn read_head(client: &mut TcpStream) -> String {
    read_until(client, b"\r\n\r\n")
}

pub(super) fn read_until(client: &mut TcpStream, end: &[u8]) -> String {
    let mut text = Vec::new();
    while !text.ends_with(end) {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        text.push(byte[0]);
    }
    String::from_utf8(text).unwrap()
}

/// Nothing comes, and the connection stays.
pub(super) fn assert_silent(client: &mut TcpStream) {
    client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let error = client.read(&mut [0]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
}

pub(super) fn until(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "it never came true");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);
