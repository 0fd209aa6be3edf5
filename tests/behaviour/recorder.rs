//! A pod that keeps what it is sent, byte by byte, and answers every POST with the same bytes.
//!
//! The simulated server knows OpenAI's endpoints and looks into bodies; this one takes any path and
//! any body.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use sluice_tests::gateway::Plan;

/// A running pod. It takes no more connections once dropped.
pub(crate) struct Recorder {
    pub(crate) addr: SocketAddr,
    shared: Arc<Shared>,
}

/// A request as it came.
#[derive(Clone)]
pub(crate) struct Recorded {
    /// The head, with its empty line.
    pub(crate) head: String,
    /// As many bytes as the head's Content-Length says.
    pub(crate) body: Vec<u8>,
}

struct Shared {
    answer: Vec<u8>,
    recorded: Mutex<Vec<Recorded>>,
    stopped: AtomicBool,
}

impl Recorder {
    /// A pod that answers with a small JSON body.
    pub(crate) fn start() -> Self {
        Self::answering(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
        )
    }

    /// A pod that answers every POST with these bytes.
    pub(crate) fn answering(answer: impl Into<Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            answer: answer.into(),
            recorded: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let kept = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if kept.stopped.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(stream), kept) = (stream, Arc::clone(&kept)) else { return };
                thread::spawn(move || serve(stream, &kept));
            }
        });
        Self { addr, shared }
    }

    /// A gateway's plan with a pool `base` of this pod.
    pub(crate) fn plan(&self) -> Plan {
        Plan { pools: vec![("base".into(), vec![self.addr])], ..Plan::pool("base", &[]) }
    }

    /// Every POST so far.
    pub(crate) fn recorded(&self) -> Vec<Recorded> {
        self.shared.recorded.lock().unwrap().clone()
    }

    /// The newest POST.
    pub(crate) fn last(&self) -> Recorded {
        self.recorded().pop().expect("a request has come")
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.addr);
    }
}

impl Recorded {
    /// The request line.
    pub(crate) fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    /// The values of a header, in any case of its name.
    pub(crate) fn header(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines
            .filter(|(own, _)| own.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
            .collect()
    }
}

/// Serves a connection until it ends.
fn serve(mut stream: TcpStream, shared: &Shared) {
    let mut input = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = memchr::memmem::find(&input, b"\r\n\r\n") {
                break at + 4;
            }
            if !fill(&mut stream, &mut input) {
                return;
            }
        };
        let head = String::from_utf8_lossy(&input.drain(..end).collect::<Vec<u8>>()).into_owned();
        let mut request = Recorded { head, body: Vec::new() };
        let length =
            request.header("content-length").first().map_or(0, |text| text.parse().unwrap());
        while input.len() < length {
            if !fill(&mut stream, &mut input) {
                return;
            }
        }
        request.body = input.drain(..length).collect();
        let answer = if request.head.starts_with("POST ") {
            shared.recorded.lock().unwrap().push(request);
            &shared.answer[..]
        } else {
            // It tells neither metrics nor models: its load is unknown, and it is there.
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
        };
        if stream.write_all(answer).is_err() {
            return;
        }
    }
}

fn fill(stream: &mut TcpStream, input: &mut Vec<u8>) -> bool {
    let mut piece = [0; 64 * 1024];
    let count = stream.read(&mut piece).unwrap_or(0);
    input.extend_from_slice(piece.get(..count).unwrap_or_default());
    count > 0
}
