//! Requests that hide in requests: messages that readers of HTTP/1.1 might take apart in different
//! ways, and how well-known readers do take them apart.
//!
//! [`corpus`] has the messages, [`reader`] asks hyper, nginx and HAProxy, each with a [`StrictPod`] behind
//! it. What they said is kept in `tests/golden/smuggling`, as not every machine has them: the
//! program `smuggling` writes it and compares it.

mod corpus;
pub mod golden;
pub mod reader;
mod strict;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

pub use corpus::corpus;
pub use strict::StrictPod;

use crate::gateway::PATIENCE;

/// One message.
#[derive(Clone, Debug)]
pub struct Case {
    /// What is odd about it; no other has the same.
    pub name: String,
    /// What is in the targets of its requests, and in no others.
    pub mark: String,
    /// The bytes.
    pub message: Vec<u8>,
}

/// How a message was read.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Reading {
    /// The requests found in it, in the form of [`StrictPod`], `~` standing for the case's mark.
    pub requests: Vec<String>,
    /// The statuses that the client got, without the interim ones.
    pub statuses: Vec<u16>,
}

impl Reading {
    /// For each answer in turn: the request that a pod got for it, or none if it was answered without one.
    pub fn positions(&self) -> Vec<Option<&str>> {
        let mut requests = self.requests.iter().map(String::as_str);
        let answered = self.statuses.iter().map(|status| match status {
            200 => requests.next(),
            _ => None,
        });
        let mut positions: Vec<_> = answered.collect();
        positions.extend(requests.map(Some));
        positions
    }
}

impl Case {
    fn new(name: String, number: usize, message: &[u8]) -> Self {
        let mark = format!("c{number:03}-");
        let mut marked = Vec::with_capacity(message.len() + 16);
        for byte in message {
            match byte {
                b'~' => marked.extend_from_slice(mark.as_bytes()),
                byte => marked.push(*byte),
            }
        }
        Self { name, mark, message: marked }
    }

    /// Whether every reader must take it, and the gateway as well.
    pub fn is_good(&self) -> bool {
        self.name.starts_with(GOOD)
    }
}

/// Sends every case on a connection of its own to `address`, in as many pieces as `split` makes of it, and
/// collects what `pod` got and the client was told. Whoever listens there ends each connection by itself.
pub fn read_all(
    cases: &[Case],
    address: SocketAddr,
    split: impl Fn(&[u8]) -> Vec<Vec<u8>> + Sync,
    requests: impl Fn() -> Vec<String>,
) -> Vec<Reading> {
    let next = AtomicUsize::new(0);
    let answers = Mutex::new(vec![Vec::new(); cases.len()]);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((number, case)) = Some(next.fetch_add(1, Ordering::Relaxed))
                    .and_then(|n| Some((n, cases.get(n)?)))
                {
                    let statuses = ask(address, &split(&case.message));
                    answers.lock().expect("no thread panics")[number] = statuses;
                }
            });
        }
    });
    let requests = requests();
    let answers = answers.into_inner().expect("no thread panics");
    let of = |case: &Case| {
        let own = requests.iter().filter(|request| request.contains(&case.mark));
        own.map(|request| request.replace(&case.mark, "~")).collect()
    };
    let readings = cases.iter().zip(answers);
    readings.map(|(case, statuses)| Reading { requests: of(case), statuses }).collect()
}

/// Sends the pieces and returns the statuses of the answers, up to the connection's end.
fn ask(address: SocketAddr, pieces: &[Vec<u8>]) -> Vec<u16> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).expect("the reader accepts");
    stream.set_nodelay(true).expect("nodelay can be set");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout can be set");
    let mut writer = stream.try_clone().expect("a socket can be shared");
    let mut answers = Vec::new();
    thread::scope(|scope| {
        scope.spawn(move || {
            for (number, piece) in pieces.iter().enumerate() {
                if number > 0 {
                    thread::sleep(BETWEEN);
                }
                // It may have heard enough.
                if writer.write_all(piece).is_err() {
                    return;
                }
            }
        });
        // A reset behind the answer is an end as well.
        let _ = stream.read_to_end(&mut answers);
    });
    statuses(&answers)
}

/// The statuses in what a client got. No body here has a status line in it.
fn statuses(answers: &[u8]) -> Vec<u16> {
    let starts = memchr::memmem::find_iter(answers, b"HTTP/1.");
    let digits = starts.filter_map(|at| std::str::from_utf8(answers.get(at + 9..at + 12)?).ok());
    digits.filter_map(|text| text.parse().ok()).filter(|status| *status >= 200).collect()
}

/// The group of the cases that must get through.
const GOOD: &str = "good";

/// Connections at once.
const AT_ONCE: usize = 96;

/// Between two pieces, so that they come in two reads.
const BETWEEN: Duration = Duration::from_millis(2);
