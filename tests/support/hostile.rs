//! Clients that mean harm without breaking a rule: heads and bodies that come a byte at a time, and answers that
//! are never read.
//!
//! All run on one thread, so that thousands cost the machine little beside what they cost the gateway.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

/// How many of which.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// Clients whose heads do not end.
    pub slow_heads: usize,
    /// Clients whose bodies do not end.
    pub slow_bodies: usize,
    /// Clients that ask for an answer and do not read it.
    pub mute: usize,
    /// Between two bytes of a slow one.
    pub every: Duration,
    /// Who is let go comes again at once.
    pub again: bool,
}

/// What became of them.
#[derive(Debug, Default)]
pub struct Seen {
    /// Connections made.
    pub opened: AtomicU64,
    /// Those that the gateway has ended.
    pub ended: AtomicU64,
    /// The longest that one was suffered, in milliseconds: heads, bodies, readers.
    pub longest: [AtomicU64; 3],
    stop: AtomicBool,
}

/// An attack under way; it ends when dropped.
#[derive(Debug)]
pub struct Running {
    /// How it goes.
    pub seen: Arc<Seen>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Copy)]
enum Kind {
    Head,
    Body { chunked: bool },
    Mute,
}

impl Attack {
    /// All of them.
    pub fn count(&self) -> usize {
        self.slow_heads + self.slow_bodies + self.mute
    }

    /// Begins it. `large` is a model whose answers fill every buffer on their way.
    ///
    /// # Panics
    /// No thread can be had.
    pub fn start(self, gateway: SocketAddr, large: &'static str) -> Running {
        // A descriptor for each; where that many are not allowed, as many as are.
        let _ = getrlimit(Resource::RLIMIT_NOFILE)
            .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
        let seen = Arc::<Seen>::default();
        let shared = Arc::clone(&seen);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(self.run(gateway, large, shared));
        });
        Running { seen, thread: Some(thread) }
    }

    async fn run(self, gateway: SocketAddr, large: &'static str, seen: Arc<Seen>) {
        let mut tasks = Vec::new();
        let kinds = std::iter::repeat_n(Kind::Head, self.slow_heads)
            .chain((0..self.slow_bodies).map(|at| Kind::Body { chunked: at % 2 == 1 }))
            .chain(std::iter::repeat_n(Kind::Mute, self.mute));
        for kind in kinds {
            let seen = Arc::clone(&seen);
            tasks.push(tokio::spawn(async move {
                loop {
                    attack(gateway, kind, self.every, large, &seen).await;
                    if !self.again || seen.is_over() {
                        return;
                    }
                }
            }));
            // A backlog takes only so many at once.
            if tasks.len() % 100 == 0 {
                sleep(Duration::from_millis(5)).await;
            }
        }
        while !seen.is_over() {
            sleep(Duration::from_millis(20)).await;
        }
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl Seen {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Connections that are open now.
    pub fn open(&self) -> u64 {
        let ended = self.ended.load(Ordering::Relaxed);
        self.opened.load(Ordering::Relaxed).saturating_sub(ended)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.seen.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One connection, to its end by the gateway.
async fn attack(gateway: SocketAddr, kind: Kind, every: Duration, large: &str, seen: &Seen) {
    let mut stream = loop {
        match connect(gateway).await {
            Ok(stream) => break stream,
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    };
    seen.opened.fetch_add(1, Ordering::Relaxed);
    let begun = Instant::now();
    match kind {
        Kind::Head => trickle(&mut stream, HEAD, b"a", every).await,
        Kind::Body { chunked: false } => trickle(&mut stream, BODY, b" ", every).await,
        Kind::Body { chunked: true } => trickle(&mut stream, CHUNKS, b"1\r\n \r\n", every).await,
        Kind::Mute => ask_and_wait(&mut stream, large).await,
    }
    seen.ended.fetch_add(1, Ordering::Relaxed);
    let place = match kind {
        Kind::Head => 0,
        Kind::Body { .. } => 1,
        Kind::Mute => 2,
    };
    let took = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    seen.longest[place].fetch_max(took, Ordering::Relaxed);
}

async fn connect(gateway: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4096)?;
    socket.connect(gateway).await
}

/// Sends the first part, and then a piece now and again, until the gateway ends the connection.
async fn trickle(stream: &mut TcpStream, first: &str, piece: &[u8], every: Duration) {
    if stream.write_all(first.as_bytes()).await.is_err() {
        return;
    }
    let mut answer = [0; 512];
    loop {
        match timeout(every, stream.read(&mut answer)).await {
            Ok(Ok(1..)) => {}
            Ok(_) => return,
            Err(_) if stream.write_all(piece).await.is_err() => return,
            Err(_) => {}
        }
    }
}

/// Asks for a large answer and reads nothing of it, until the connection is reset.
async fn ask_and_wait(stream: &mut TcpStream, model: &str) {
    let body = format!(r#"{{"model":"{model}"}}"#);
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    if stream.write_all(request.as_bytes()).await.is_err() {
        return;
    }
    while matches!(SockRef::from(&*stream).take_error(), Ok(None)) {
        sleep(Duration::from_millis(50)).await;
    }
}

const HEAD: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nx-long: ";
const BODY: &str =
    "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 10000000\r\n\r\n{\"x\":\"";
const CHUNKS: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{ \r\n";
