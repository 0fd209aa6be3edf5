//! A client that says and sees every byte.

use std::collections::BTreeSet;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;
use socket2::{Domain, Socket, Type};

use crate::gateway::PATIENCE;

/// A connection to a gateway.
#[derive(Debug)]
pub struct Client {
    /// The socket.
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

/// A response as it came.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// The head's lines behind the status line, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, without chunk framing.
    pub body: Vec<u8>,
    /// The body's end was there: last chunk, whole length, or for a body without either the end of the
    /// connection.
    pub complete: bool,
}

impl Client {
    /// Connects.
    pub fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect_timeout(&address, PATIENCE).expect("the gateway accepts"))
    }

    /// The same on a socket that is connected already.
    pub fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        stream.set_nodelay(true).expect("nodelay can be set");
        Self { stream, buffer: Vec::new() }
    }

    /// Connects with room for a few thousand bytes that are not read yet.
    pub fn slow(address: SocketAddr) -> Self {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None);
        let socket = socket.expect("a socket can be made");
        socket.set_recv_buffer_size(4096).expect("a buffer's size can be set");
        socket.connect_timeout(&address.into(), PATIENCE).expect("the gateway accepts");
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        Self { stream, buffer: Vec::new() }
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the gateway reads");
    }

    /// Sends a JSON body to a path.
    pub fn post(&mut self, path: &str, body: &Value) {
        self.post_bytes(path, body.to_string().as_bytes());
    }

    /// The same with further header lines, each with its end.
    pub fn post_with(&mut self, path: &str, lines: &str, body: &Value) {
        let body = body.to_string();
        let length = body.len();
        self.send(format!(
            "POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n{lines}\r\n{body}"
        ));
    }

    /// Sends any body to a path, as JSON.
    pub fn post_bytes(&mut self, path: &str, body: &[u8]) {
        let mut message = format!(
            "POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        message.extend_from_slice(body);
        self.send(message);
    }

    /// Reads one response. What follows it on the connection is kept for the next.
    pub fn response(&mut self) -> Response {
        let mut response = self.head();
        self.body(&mut response);
        response
    }

    /// Reads the head of a response.
    pub fn head(&mut self) -> Response {
        let end = loop {
            if let Some(at) = memchr::memmem::find(&self.buffer, b"\r\n\r\n") {
                break at + 4;
            }
            assert!(self.fill().expect("a response comes") > 0, "no response: {:?}", self.text());
        };
        let head = String::from_utf8(self.buffer.drain(..end).collect()).expect("a head is text");
        let mut lines = head.trim_end().split("\r\n");
        let status_line = lines.next().unwrap_or_default();
        let status = status_line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let headers = lines
            .map(|line| {
                let (name, value) = line.split_once(':').expect("a header has a colon");
                (name.to_ascii_lowercase(), value.trim().to_owned())
            })
            .collect();
        Response {
            status: status.unwrap_or_else(|| panic!("no status line: {status_line:?}")),
            headers,
            body: Vec::new(),
            complete: false,
        }
    }

    /// Reads the body behind a head.
    pub fn body(&mut self, response: &mut Response) {
        if response.header("transfer-encoding") == Some("chunked") {
            return self.chunks(response);
        }
        let length =
            response.header("content-length").map(|text| text.parse::<usize>().expect("a number"));
        if matches!(response.status, 204 | 304) {
            response.complete = true;
            return;
        }
        loop {
            if let Some(length) = length
                && self.buffer.len() >= length
            {
                response.body.extend(self.buffer.drain(..length));
                response.complete = true;
                return;
            }
            match self.fill() {
                Ok(0) => {
                    response.complete = length.is_none();
                    response.body.append(&mut self.buffer);
                    return;
                }
                Ok(_) => {}
                Err(_) => {
                    response.body.append(&mut self.buffer);
                    return;
                }
            }
        }
    }

    fn chunks(&mut self, response: &mut Response) {
        loop {
            let Some(line) = self.line() else { return };
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16).expect("a chunk size");
            if size == 0 {
                while let Some(line) = self.line() {
                    if line.is_empty() {
                        response.complete = true;
                        return;
                    }
                }
                return;
            }
            while self.buffer.len() < size + 2 {
                if !matches!(self.fill(), Ok(1..)) {
                    response.body.append(&mut self.buffer);
                    return;
                }
            }
            response.body.extend(self.buffer.drain(..size));
            let end: Vec<u8> = self.buffer.drain(..2).collect();
            assert_eq!(end, b"\r\n", "a chunk ends with a line end");
        }
    }

    fn line(&mut self) -> Option<String> {
        loop {
            if let Some(at) = memchr::memmem::find(&self.buffer, b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..at + 2).collect();
                return Some(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            if !matches!(self.fill(), Ok(1..)) {
                return None;
            }
        }
    }

    /// Reads until `wanted` has come, and returns all that has come with it.
    pub fn read_until(&mut self, wanted: &str) -> String {
        while memchr::memmem::find(&self.buffer, wanted.as_bytes()).is_none() {
            let count = self.fill().expect("more comes");
            assert!(count > 0, "the connection ended before {wanted:?}: {:?}", self.text());
        }
        let text = self.text();
        self.buffer.clear();
        text
    }

    /// Whether the connection has ended, orderly or not, with nothing left to read.
    pub fn is_closed(&mut self) -> bool {
        self.buffer.is_empty()
            && match self.fill() {
                Ok(count) => count == 0,
                // A timeout is no end.
                Err(error) => {
                    !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
                }
            }
    }

    /// Whether nothing comes for that long, and the connection stays.
    pub fn is_silent(&mut self, pause: Duration) -> bool {
        self.stream.set_read_timeout(Some(pause)).expect("a timeout can be set");
        let read = self.fill();
        self.stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        matches!(read, Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut))
    }

    /// Sends no more, and still reads.
    pub fn half_close(&self) {
        self.stream.shutdown(Shutdown::Write).expect("an open socket");
    }

    fn fill(&mut self) -> io::Result<usize> {
        let mut piece = [0; 16 * 1024];
        let count = self.stream.read(&mut piece)?;
        self.buffer.extend_from_slice(piece.get(..count).unwrap_or_default());
        Ok(count)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.buffer).into_owned()
    }
}

impl Response {
    /// The value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {}", self.text()))
    }

    /// Asserts that this is an error as the OpenAI SDKs read it, with an id that the client can name.
    pub fn assert_error(&self, status: u16, code: &str, param: Option<&str>) {
        let said = format!("{}: {}", self.status, self.text());
        assert_eq!((self.status, self.complete), (status, true), "{said}");
        assert_eq!(self.header("content-type"), Some("application/json"), "{said}");
        assert!(self.header("x-request-id").is_some_and(|id| !id.is_empty()), "{said}");
        let page = self.json();
        let error = &page["error"];
        let fields: BTreeSet<&str> =
            error.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        assert_eq!(fields, BTreeSet::from(["code", "message", "param", "type"]), "{said}");
        assert_eq!(
            (error["code"].as_str(), error["param"].as_str()),
            (Some(code), param),
            "{said}"
        );
        assert!(error["message"].as_str().is_some_and(|text| text.len() > 10), "{said}");
        assert!(error["type"].as_str().is_some_and(|kind| kind.ends_with("_error")), "{said}");
    }

    /// The events of a stream, without `data:`.
    pub fn events(&self) -> Vec<String> {
        let text = self.text();
        text.lines()
            .filter_map(|line| line.strip_prefix("data:"))
            .map(|data| data.trim().to_owned())
            .collect()
    }
}

/// One request on a connection of its own.
pub fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    let mut client = Client::connect(address);
    client.post(path, body);
    client.response()
}

/// One POST of JSON on a connection of its own, with further header lines, each with its end.
pub fn post_with(address: SocketAddr, path: &str, lines: &str, body: &Value) -> Response {
    let mut client = Client::connect(address);
    client.post_with(path, lines, body);
    client.response()
}

/// One GET on a connection of its own, with further header lines, each with its end.
pub fn get_with(address: SocketAddr, path: &str, lines: &str) -> Response {
    let mut client = Client::connect(address);
    client.send(format!("GET {path} HTTP/1.1\r\nhost: gateway\r\n{lines}\r\n"));
    client.response()
}

/// One GET on a connection of its own.
pub fn get(address: SocketAddr, path: &str) -> Response {
    let mut client = Client::connect(address);
    client.send(format!("GET {path} HTTP/1.1\r\nhost: gateway\r\n\r\n"));
    client.response()
}

/// A chat request.
pub fn chat(model: &str, tokens: u32, stream: bool) -> Value {
    let mut body = serde_json::json!({
        "model": model,
        "max_tokens": tokens,
        "stream": stream,
        "messages": [{"role": "user", "content": "Say something."}],
    });
    if stream && let Some(fields) = body.as_object_mut() {
        fields.insert("stream_options".into(), serde_json::json!({"include_usage": true}));
    }
    body
}
