//! A pod that takes nothing but the plainest HTTP/1.1, and writes down what it gets.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// A running pod; it runs to the end of the process.
#[derive(Debug)]
pub struct StrictPod {
    /// Where it listens.
    pub address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    requests: Vec<String>,
    faults: Vec<String>,
}

impl StrictPod {
    /// Starts one.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let seen = Arc::<Mutex<Seen>>::default();
        let kept = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let kept = Arc::clone(&kept);
                thread::spawn(move || serve(stream, &kept));
            }
        });
        Self { address, seen }
    }

    /// Every request so far, as `METHOD target body`; what a gateway asks on its own account is not among them.
    pub fn requests(&self) -> Vec<String> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).requests.clone()
    }

    /// What no careful peer sends: ambiguous heads, and bytes behind a request whose answer is not there yet.
    pub fn faults(&self) -> Vec<String> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).faults.clone()
    }
}

/// A request in the form that readings have.
pub(super) fn shown(method: &str, target: &str, body: &[u8]) -> String {
    // Who is asked is not compared: proxies write it anew.
    let path = match target.split_once("://").filter(|_| !target.starts_with('/')) {
        Some((_, rest)) => match rest.find(['/', '?']) {
            Some(at) if rest[at..].starts_with('/') => rest[at..].to_owned(),
            Some(at) => format!("/{}", &rest[at..]),
            None => "/".into(),
        },
        None => target.to_owned(),
    };
    let body = match body.len() {
        0..=200 => body.escape_ascii().to_string(),
        len => format!("({len} bytes)"),
    };
    format!("{method} {path} {body}")
}

fn serve(mut stream: TcpStream, seen: &Mutex<Seen>) {
    let _ = stream.set_nodelay(true);
    let mut input = Vec::new();
    loop {
        let Some(request) = request(&mut stream, &mut input) else { return };
        let mut seen_now = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let own = match request {
            Ok(request) => {
                let own =
                    request.starts_with("GET /metrics ") || request.starts_with("GET /v1/models ");
                if !own {
                    seen_now.requests.push(request.clone());
                }
                if !input.is_empty() {
                    let more = input.escape_ascii();
                    seen_now.faults.push(format!("behind {request}: {more}"));
                }
                own
            }
            Err(fault) => {
                seen_now.faults.push(fault);
                return;
            }
        };
        drop(seen_now);
        // It tells neither metrics nor models: its load is unknown, and it is there.
        let answer: &[u8] = match own {
            true => b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            false => {
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
            }
        };
        if stream.write_all(answer).is_err() {
            return;
        }
    }
}

/// The next request, or what is wrong with it. None: the connection is over.
fn request(stream: &mut TcpStream, input: &mut Vec<u8>) -> Option<Result<String, String>> {
    let end = loop {
        match memchr::memmem::find(input, b"\r\n\r\n") {
            Some(at) => break at + 4,
            None => fill(stream, input)?,
        }
    };
    let head: Vec<u8> = input.drain(..end).collect();
    let (method, target, length) = match read_head(&head) {
        Ok(read) => read,
        Err(what) => return Some(Err(format!("{what}: {}", head.escape_ascii()))),
    };
    let mut body = Vec::new();
    match length {
        Some(length) => {
            while input.len() < length {
                fill(stream, input)?;
            }
            body.extend(input.drain(..length));
        }
        None => loop {
            let line = line_of(stream, input)?;
            let text = String::from_utf8_lossy(&line);
            let Ok(size) = usize::from_str_radix(text.trim_end(), 16) else {
                return Some(Err(format!("a chunk's size is {text:?}")));
            };
            if size == 0 {
                // Trailers: hyper does not look at them either.
                while line_of(stream, input)? != b"\r\n" {}
                break;
            }
            while input.len() < size + 2 {
                fill(stream, input)?;
            }
            body.extend(input.drain(..size));
            if input.drain(..2).ne(*b"\r\n") {
                return Some(Err("a chunk without its end".into()));
            }
        },
    }
    Some(Ok(shown(&method, &target, &body)))
}

/// Method, target and length of a body; no length means chunks.
fn read_head(head: &[u8]) -> Result<(String, String, Option<usize>), &'static str> {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.strip_suffix("\r\n\r\n").unwrap_or("").split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    // Of a proxy that passes the version on; chunks need the newer.
    let (Some(method), Some(target), Some(version @ ("HTTP/1.1" | "HTTP/1.0")), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err("no request line");
    };
    if !method.bytes().all(|byte| byte.is_ascii_uppercase())
        || !target.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Err("a request line of odd bytes");
    }
    let (mut hosts, mut lengths, mut codings) = (0, Vec::new(), Vec::new());
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            return Err("a line without a colon");
        };
        let is_token =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err("a name that is none");
        }
        if value.bytes().any(|byte| byte < b' ' && byte != b'\t' || byte == 0x7f) {
            return Err("a value with control characters");
        }
        match name.to_ascii_lowercase().as_str() {
            "host" => hosts += 1,
            "content-length" => lengths.push(value.trim()),
            "transfer-encoding" => codings.push(value.trim()),
            _ => {}
        }
    }
    if hosts != 1 {
        return Err("not one Host");
    }
    let length = match (lengths.as_slice(), codings.as_slice()) {
        ([], []) => Some(0),
        ([length], []) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(length.parse().map_err(|_| "a length that is none")?)
        }
        ([], [coding]) if coding.eq_ignore_ascii_case("chunked") && version == "HTTP/1.1" => None,
        _ => return Err("a body whose end is not plain"),
    };
    Ok((method.into(), target.into(), length))
}

/// The next line, with its end.
fn line_of(stream: &mut TcpStream, input: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        match memchr::memmem::find(input, b"\r\n") {
            Some(at) => return Some(input.drain(..at + 2).collect()),
            None => fill(stream, input)?,
        }
    }
}

fn fill(stream: &mut TcpStream, input: &mut Vec<u8>) -> Option<()> {
    let mut piece = [0; 64 * 1024];
    let count = stream.read(&mut piece).ok().filter(|count| *count > 0)?;
    input.extend_from_slice(piece.get(..count)?);
    Some(())
}
