//! A pod in memory that does what a test tells it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, timeout};

use super::{Connect, ONE_MODEL};

/// What a fake pod does when asked for a path.
#[derive(Clone)]
pub(super) enum Answer {
    /// 200 with this body.
    Body(&'static str),
    /// 200 with this body, some time later.
    Late(Duration, &'static str),
    /// Bytes as they are, then the end of the connection.
    Raw(Vec<u8>),
    /// A status without a body.
    Status(u16),
    /// Nothing, ever.
    Silence,
}

/// A pod in memory: as many ports as one likes, all alike.
#[derive(Clone, Default)]
pub(super) struct FakePod(pub(super) Rc<RefCell<PodState>>);

#[derive(Default)]
pub(super) struct PodState {
    answers: HashMap<&'static str, Answer>,
    pub(super) down: bool,
    pub(super) closes_idle_after: Option<Duration>,
    /// Ends kept connections instead of answering a second question on them.
    pub(super) closes_on_reuse: bool,
    /// From a pod's close of an idle connection to ours.
    pub(super) slowest_close: Duration,
    pub(super) asked: Vec<Asked>,
    pub(super) connections: usize,
    in_flight: usize,
    pub(super) most_in_flight: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Asked {
    pub(super) at: Instant,
    pub(super) port: u16,
    pub(super) path: String,
    pub(super) head: String,
}

impl FakePod {
    pub(super) fn new(answers: &[(&'static str, Answer)]) -> Self {
        let pod = Self::default();
        pod.0.borrow_mut().answers.extend(answers.iter().cloned());
        pod
    }

    /// With these metrics and one model.
    pub(super) fn with_metrics(metrics: &'static str) -> Self {
        Self::new(&[("/metrics", Answer::Body(metrics)), ("/v1/models", Answer::Body(ONE_MODEL))])
    }

    pub(super) fn set(&self, path: &'static str, answer: Answer) {
        self.0.borrow_mut().answers.insert(path, answer);
    }

    pub(super) fn times(&self, path: &str) -> Vec<Instant> {
        let state = self.0.borrow();
        state.asked.iter().filter(|asked| asked.path == path).map(|asked| asked.at).collect()
    }

    pub(super) fn count(&self, path: &str) -> usize {
        self.times(path).len()
    }

    async fn serve(self, port: u16, mut io: DuplexStream) -> io::Result<()> {
        let close_idle = self.0.borrow().closes_idle_after.unwrap_or(Duration::MAX);
        let mut reused = false;
        loop {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                match timeout(close_idle, io.read_u8()).await {
                    Ok(byte) => head.push(byte?),
                    Err(_) => {
                        io.shutdown().await?;
                        let from = Instant::now();
                        let _ = io.read_u8().await;
                        let mut state = self.0.borrow_mut();
                        state.slowest_close = state.slowest_close.max(from.elapsed());
                        return Ok(());
                    }
                }
            }
            let head = String::from_utf8(head).unwrap();
            let path = head.split(' ').nth(1).unwrap().to_owned();
            let answer = {
                let mut state = self.0.borrow_mut();
                if reused && state.closes_on_reuse {
                    return Ok(());
                }
                state.in_flight += 1;
                state.most_in_flight = state.most_in_flight.max(state.in_flight);
                let answer = state.answers.get(path.as_str()).cloned();
                state.asked.push(Asked { at: Instant::now(), port, path, head });
                answer.unwrap_or(Answer::Status(404))
            };
            let done = answer.write(&mut io).await;
            self.0.borrow_mut().in_flight -= 1;
            done?;
            reused = true;
        }
    }
}

impl Answer {
    async fn write(self, io: &mut DuplexStream) -> io::Result<()> {
        let (status, body) = match self {
            Self::Body(body) => (200, body),
            Self::Late(delay, body) => {
                sleep(delay).await;
                (200, body)
            }
            Self::Raw(bytes) => {
                io.write_all(&bytes).await?;
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            Self::Status(status) => (status, ""),
            Self::Silence => {
                // Until the asker gives up.
                io.read_u8().await?;
                (500, "")
            }
        };
        let length = body.len();
        let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{body}");
        io.write_all(answer.as_bytes()).await
    }
}

impl Connect for FakePod {
    type Io = DuplexStream;

    async fn connect(&self, address: SocketAddr) -> io::Result<DuplexStream> {
        if self.0.borrow().down {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        self.0.borrow_mut().connections += 1;
        let (near, far) = duplex(64 << 10);
        let pod = self.clone();
        spawn_local(async move { pod.serve(address.port(), far).await });
        Ok(near)
    }
}
