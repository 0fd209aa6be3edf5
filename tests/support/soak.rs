//! Mixed traffic by scripts through a gateway: many connections, many pods, every kind of answer,
//! readers fast and slow, and where wanted, clients and pods that leave in the middle of it. Every
//! byte is compared with what the pod wrote.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::gateway::PATIENCE;
use crate::script::{End, Frame, Reading, Script};

/// What traffic is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Clients at once, each with one connection at a time.
    pub connections: usize,
    /// No further request once so many were asked.
    pub requests: u64,
    /// No further request once so many bytes have come.
    pub bytes: u64,
    /// About how long an answer is.
    pub length: u64,
    /// Whether clients and pods leave in the middle of answers.
    pub aborts: bool,
    /// Whether it goes to a pod without a gateway between, so that the pod's closes are seen.
    pub straight: bool,
    /// What everything drawn by lot follows from.
    pub seed: u64,
}

/// How far the traffic is.
#[derive(Debug, Default)]
pub struct Progress {
    /// Answers asked for.
    pub requests: AtomicU64,
    /// Bytes of answers, framing included, as they came to clients.
    pub bytes: AtomicU64,
    /// Answers that came whole.
    pub whole: AtomicU64,
    /// Answers that the client left.
    pub left: AtomicU64,
    /// Answers that the pod broke off.
    pub cut: AtomicU64,
    /// Requests that no pod answered, which only pods that break off account for.
    pub refused: AtomicU64,
}

/// Something that must not happen.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The answer.
    pub script: Box<Script>,
    /// The pod that gave it, if one did.
    pub pod: Option<usize>,
    /// What was wrong.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { script, pod, what } = self;
        let pod = pod.map_or_else(|| "no pod".into(), |pod| format!("pod {pod}"));
        write!(f, "request {:#x}, {pod}: {what}\n{script:?}", script.id)
    }
}

/// A moment's [`Progress`].
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields are those of Progress")]
pub struct Counts {
    pub requests: u64,
    pub bytes: u64,
    pub whole: u64,
    pub left: u64,
    pub cut: u64,
    pub refused: u64,
}

impl Progress {
    /// How far it is now.
    pub fn counts(&self) -> Counts {
        let Self { requests, bytes, whole, left, cut, refused } = self;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            requests: of(requests),
            bytes: of(bytes),
            whole: of(whole),
            left: of(left),
            cut: of(cut),
            refused: of(refused),
        }
    }
}

impl Traffic {
    /// Some of everything, and no end: say how many requests or bytes are enough.
    pub fn mixed(seed: u64) -> Self {
        Self {
            connections: 8,
            requests: u64::MAX,
            bytes: u64::MAX,
            length: 150_000,
            aborts: false,
            straight: false,
            seed,
        }
    }

    /// Runs to the end; `progress` can be watched from another thread meanwhile.
    ///
    /// # Errors
    /// The first thing that went wrong.
    pub fn run(&self, gateway: SocketAddr, progress: &Progress) -> Result<(), Problem> {
        let stop = AtomicBool::new(false);
        let first = Mutex::new(None);
        thread::scope(|scope| {
            for number in 0..self.connections {
                let (stop, first) = (&stop, &first);
                scope.spawn(move || {
                    if let Err(problem) = self.client(number as u64, gateway, progress, stop) {
                        stop.store(true, Ordering::Relaxed);
                        let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
                        first.get_or_insert(problem);
                    }
                });
            }
        });
        first.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// One client after the other in one thread.
    fn client(
        &self,
        number: u64,
        gateway: SocketAddr,
        progress: &Progress,
        stop: &AtomicBool,
    ) -> Result<(), Problem> {
        let mut random = fastrand::Rng::with_seed(self.seed.wrapping_mul(1000) + number);
        let mut connection = ScriptClient::connect(gateway);
        let mut sent = VecDeque::<Script>::new();
        loop {
            // Now and then the next request is sent while the answer is still to come; not where the
            // answer ends by a close, which would be a reset with a request unread.
            let closes = |script: &Script| {
                script.frame == Frame::UntilClose || self.straight && script.end != End::Keep
            };
            while sent.len() < random.usize(1..=2) && !sent.iter().any(closes) {
                let asked = progress.requests.fetch_add(1, Ordering::Relaxed);
                let enough = asked >= self.requests
                    || progress.bytes.load(Ordering::Relaxed) >= self.bytes
                    || stop.load(Ordering::Relaxed);
                if enough {
                    progress.requests.fetch_sub(1, Ordering::Relaxed);
                    break;
                }
                let script = self.draw(asked, &mut random);
                connection.send(&script);
                sent.push_back(script);
            }
            let Some(script) = sent.pop_front() else { return Ok(()) };
            let leave = self.aborts && random.u8(..4) == 0;
            let enough = if leave { random.u64(..script.length) } else { u64::MAX };
            let pace = Pace::draw(&mut random);
            let seen = connection.answer(&script, pace, enough)?;
            progress.bytes.fetch_add(seen.bytes, Ordering::Relaxed);
            let count = match (seen.status, seen.end) {
                (200, Ended::Enough) => &progress.left,
                (200, _) if script.cut().is_none() => &progress.whole,
                (200, _) => &progress.cut,
                _ => &progress.refused,
            };
            count.fetch_add(1, Ordering::Relaxed);
            if seen.end == Ended::Enough {
                connection.leave(&mut random);
            } else if seen.status == 200 {
                seen.judge(&script)?;
            } else if !self.aborts {
                return Err(seen.problem(&script, &format!("status {}", seen.status)));
            }
            if !seen.keeps() || self.straight && script.end != End::Keep {
                // What was sent behind it is asked again.
                connection = ScriptClient::connect(gateway);
                sent.iter().for_each(|script| connection.send(script));
            }
        }
    }

    fn draw(&self, number: u64, random: &mut fastrand::Rng) -> Script {
        let id = u32::try_from(number % u64::from(u32::MAX)).unwrap_or(0);
        let mut script = Script::draw(id, self.length, random);
        if self.aborts && random.u8(..4) == 0 {
            // Behind the first content, or the gateway would ask another pod.
            script.length = script.length.max(200);
            let at = random.u64(100..script.length);
            script.end = if random.bool() { End::Fin(at) } else { End::Rst(at) };
        }
        script
    }
}

/// How fast a client reads.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Bytes at once, at most.
    pub piece: usize,
    /// Of 1,000 reads, how many it pauses after.
    pub pauses: u32,
}

impl Pace {
    /// Whatever comes, at once.
    pub const FAST: Self = Self { piece: 64 * 1024, pauses: 0 };

    /// Often fast, sometimes by small pieces, sometimes late.
    fn draw(random: &mut fastrand::Rng) -> Self {
        match random.u8(..10) {
            0 => Self { piece: 500, pauses: 1 },
            1 => Self { pauses: 100, ..Self::FAST },
            2 => Self { pauses: 500, ..Self::FAST },
            _ => Self::FAST,
        }
    }
}

/// A client of scripted answers.
#[derive(Debug)]
pub struct ScriptClient {
    /// The socket.
    pub stream: TcpStream,
    buffer: Vec<u8>,
    at: usize,
}

/// What came of one answer.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The status.
    pub status: u16,
    /// The pod that answered.
    pub pod: Option<usize>,
    /// Which of the pod's connections carried it.
    pub connection: Option<u64>,
    /// Bytes behind the head.
    pub bytes: u64,
    /// How it ended.
    pub end: Ended,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ended {
    /// All of it has come, and the connection stays.
    Whole,
    /// All of it has come, and its end was that of the connection.
    WholeAndClosed,
    /// The connection ended in good order before all had come.
    Fin,
    /// The connection broke.
    Broken(io::ErrorKind),
    /// The client had read as much as it wanted to.
    Enough,
}

impl ScriptClient {
    /// Connects.
    pub fn connect(gateway: SocketAddr) -> Self {
        let stream = TcpStream::connect_timeout(&gateway, PATIENCE).expect("the gateway accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        stream.set_nodelay(true).expect("nodelay can be set");
        Self { stream, buffer: Vec::new(), at: 0 }
    }

    /// Sends a request. Where the gateway has closed the connection, the answer's absence tells.
    pub fn send(&mut self, script: &Script) {
        let _ = self.stream.write_all(script.request().as_bytes());
    }

    /// Reads the answer, or `enough` bytes of it, and compares it.
    ///
    /// # Errors
    /// There is none, or it is not what the pod wrote.
    pub fn answer(&mut self, script: &Script, pace: Pace, enough: u64) -> Result<Seen, Problem> {
        let problem = |pod, what: String| Problem { script: Box::new(script.clone()), pod, what };
        let head = match self.head() {
            Ok(head) => head,
            Err(error) => return Err(problem(None, format!("no head: {error}"))),
        };
        let value = |name: &str| {
            head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.parse().ok())
        };
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        let pod = value("x-pod").map(|pod| pod as usize);
        let connection = value("x-pod-connection");
        let mut seen = Seen { status, pod, connection, bytes: 0, end: Ended::Whole };
        if status != 200 {
            let length = value("content-length").unwrap_or(0) as usize;
            while self.buffer.len() - self.at < length {
                self.fill(Pace::FAST).map_err(|error| problem(pod, error.to_string()))?;
            }
            self.at += length;
            let closes = head.to_ascii_lowercase().contains("connection: close");
            seen.end = if closes { Ended::WholeAndClosed } else { Ended::Whole };
            return Ok(seen);
        }
        let mut reading = Reading::new(script);
        let mut pauses = fastrand::Rng::with_seed(u64::from(script.id));
        seen.end = loop {
            let taken = reading.take(self.buffer.get(self.at..).unwrap_or_default());
            self.at += taken.map_err(|mismatch| problem(pod, mismatch.to_string()))?;
            let closes = script.frame == Frame::UntilClose;
            if reading.is_whole() && !closes {
                break Ended::Whole;
            }
            if reading.is_whole() && self.at < self.buffer.len() {
                return Err(problem(pod, "more came than the pod wrote".into()));
            }
            if reading.bytes >= enough {
                break Ended::Enough;
            }
            if pauses.u32(..1000) < pace.pauses {
                thread::sleep(PAUSE);
            }
            match self.fill(pace) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    break if reading.is_whole() { Ended::WholeAndClosed } else { Ended::Fin };
                }
                Err(error) => break Ended::Broken(error.kind()),
            }
        };
        seen.bytes = reading.bytes;
        Ok(seen)
    }

    /// Leaves in one of the ways that there are, and reads nothing more.
    fn leave(&self, random: &mut fastrand::Rng) {
        match random.u8(..3) {
            // The gateway takes it for leaving and ends the connection.
            0 => {
                let _ = self.stream.shutdown(Shutdown::Write);
                let mut rest = &self.stream;
                while rest.read(&mut [0; 64 * 1024]).is_ok_and(|count| count > 0) {}
            }
            1 => {
                let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
            }
            _ => {}
        }
    }

    fn head(&mut self) -> io::Result<String> {
        loop {
            let unread = self.buffer.get(self.at..).unwrap_or_default();
            if let Some(end) = memchr::memmem::find(unread, b"\r\n\r\n") {
                let head = String::from_utf8_lossy(unread.get(..end + 4).unwrap_or_default());
                let head = head.into_owned();
                self.at += end + 4;
                return Ok(head);
            }
            self.fill(Pace::FAST)?;
        }
    }

    /// Reads once; the end of the connection is an error.
    fn fill(&mut self, pace: Pace) -> io::Result<()> {
        self.buffer.drain(..std::mem::take(&mut self.at));
        let had = self.buffer.len();
        self.buffer.resize(had + pace.piece, 0);
        let read = self.stream.read(self.buffer.get_mut(had..).unwrap_or_default());
        self.buffer.truncate(had + *read.as_ref().unwrap_or(&0));
        if read? == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

impl Seen {
    /// Whether the connection carries another request.
    pub fn keeps(&self) -> bool {
        self.end == Ended::Whole
    }

    /// Checks the end against the script's: whole if the pod was, else all that it had sent and then
    /// no end of the body.
    ///
    /// # Errors
    /// It ended otherwise.
    pub fn judge(&self, script: &Script) -> Result<(), Problem> {
        let until_close = script.frame == Frame::UntilClose;
        let right = match (script.end, self.end) {
            (End::Keep | End::Close | End::CloseUnsaid, Ended::Whole) => !until_close,
            (End::Keep | End::Close | End::CloseUnsaid, Ended::WholeAndClosed) => until_close,
            (End::Fin(at), Ended::Fin) => self.bytes == at,
            (End::Fin(at), Ended::Broken(_)) => self.bytes == at && !until_close,
            // A reset takes along what was not sent yet.
            (End::Rst(at), Ended::Broken(io::ErrorKind::ConnectionReset)) => self.bytes <= at,
            (End::Rst(at), Ended::Fin) => self.bytes <= at && !until_close,
            _ => false,
        };
        if right { Ok(()) } else { Err(self.problem(script, "a wrong end")) }
    }

    fn problem(&self, script: &Script, what: &str) -> Problem {
        Problem {
            script: Box::new(script.clone()),
            pod: self.pod,
            what: format!("{what}: {self:?}"),
        }
    }
}

/// Of a reader that is late.
const PAUSE: Duration = Duration::from_millis(2);
