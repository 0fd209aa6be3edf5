//! A model server that a test writes by hand: every byte of an answer, in the order of the test.
//!
//! Its metrics and models are answered by themselves; an inference request is handed to the test,
//! which writes the answer, waits, breaks off, or looks whether the gateway has left.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::gateway::{PATIENCE, Plan};

/// A listening pod. Its port stays open to the end of the process: a pod that dies is an engine's
/// affair.
#[derive(Debug)]
pub struct RawPod {
    /// Where it listens.
    pub address: SocketAddr,
    own: Arc<Own>,
    taken: Receiver<Taken>,
}

/// What a pod tells about itself, and how often it was asked.
#[derive(Debug, Default)]
struct Own {
    signals: Mutex<Signals>,
    /// What it wants in `Authorization`, if anything.
    wants: Mutex<Option<String>>,
    asked: AtomicU64,
    pages: Mutex<Pages>,
    health_asked: AtomicU64,
}

/// How it answers to what it is asked about itself.
#[derive(Clone, Copy, Debug, Default)]
struct Pages {
    health: Page,
    metrics: Page,
}

/// How a page is answered.
#[derive(Clone, Copy, Debug)]
pub enum Page {
    /// With this status.
    Status(u16),
    /// Not at all.
    Silent,
}

impl Default for Page {
    fn default() -> Self {
        Self::Status(200)
    }
}

/// What its metrics say.
#[derive(Clone, Copy, Debug, Default)]
pub struct Signals {
    /// Requests running.
    pub running: u32,
    /// Requests waiting.
    pub waiting: u32,
    /// Share of the KV cache in use.
    pub kv_usage: f64,
}

/// A request that a test is to answer.
#[derive(Debug)]
pub struct Taken {
    /// The head, with its empty line.
    pub head: String,
    /// The body.
    pub body: Vec<u8>,
    /// The connection.
    pub stream: TcpStream,
    pod: Arc<Own>,
    next: Sender<Taken>,
}

impl RawPod {
    /// Starts an idle pod.
    pub fn start() -> Self {
        Self::serve(TcpListener::bind("127.0.0.1:0").expect("a free port"))
    }

    /// The same on a socket that listens already.
    pub fn serve(listener: TcpListener) -> Self {
        let address = listener.local_addr().expect("a bound socket has an address");
        let own = Arc::<Own>::default();
        let (next, taken) = channel();
        let shared = Arc::clone(&own);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (pod, next) = (Arc::clone(&shared), next.clone());
                thread::spawn(move || serve(stream, &pod, &next));
            }
        });
        Self { address, own, taken }
    }

    /// Starts some.
    pub fn start_all(count: usize) -> Vec<Self> {
        (0..count).map(|_| Self::start()).collect()
    }

    /// Has its metrics say this from now on.
    pub fn tell(&self, signals: Signals) {
        *self.own.signals.lock().unwrap_or_else(PoisonError::into_inner) = signals;
    }

    /// Has it answer 401 from now on to whoever asks for its metrics or models without this key.
    pub fn want_key(&self, key: &str) {
        let wanted = Some(format!("Bearer {key}"));
        *self.own.wants.lock().unwrap_or_else(PoisonError::into_inner) = wanted;
    }

    /// Has it answer `/health` so from now on.
    pub fn health(&self, page: Page) {
        self.own.pages.lock().unwrap_or_else(PoisonError::into_inner).health = page;
    }

    /// Has it answer `/metrics` so from now on.
    pub fn metrics(&self, page: Page) {
        self.own.pages.lock().unwrap_or_else(PoisonError::into_inner).metrics = page;
    }

    /// How often it was asked whether it is well.
    pub fn health_asked(&self) -> u64 {
        self.own.health_asked.load(Ordering::Relaxed)
    }

    /// How often it was asked for its metrics and models.
    pub fn asked(&self) -> u64 {
        self.own.asked.load(Ordering::Relaxed)
    }

    /// The next request that comes.
    pub fn take(&self) -> Taken {
        self.take_within(PATIENCE).expect("the gateway sends a request")
    }

    /// The next request, if one comes so soon.
    pub fn take_within(&self, pause: Duration) -> Option<Taken> {
        match self.taken.recv_timeout(pause) {
            Ok(taken) => Some(taken),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("the pod has ended"),
        }
    }
}

/// A plan for one pool of these pods, serving the model `base`.
pub fn plan(pods: &[RawPod]) -> Plan {
    let addresses = pods.iter().map(|pod| pod.address).collect();
    Plan { pools: vec![("base".into(), addresses)], ..Plan::pool("base", &[]) }
}

impl Taken {
    /// Sends bytes as they are, in one write.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).expect("the gateway reads");
    }

    /// The same where the gateway may have left.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// A header of the request, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    /// Waits until the gateway has closed the connection.
    pub fn wait_closed(mut self) {
        self.stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        match self.stream.read(&mut [0; 16]) {
            Ok(0) => {}
            Ok(_) => panic!("the gateway sent more on a connection with a request under way"),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("the gateway keeps the connection: {error}"),
        }
    }

    /// Whether the gateway keeps the connection, without sending, for that long.
    pub fn stays(&mut self, pause: Duration) -> bool {
        self.stream.set_read_timeout(Some(pause)).expect("a timeout can be set");
        let read = self.stream.read(&mut [0; 16]);
        matches!(read, Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut))
    }

    /// Ends the connection by FIN.
    pub fn close(self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Ends the connection by RST.
    pub fn reset(self) {
        let socket = socket2::SockRef::from(&self.stream);
        socket.set_linger(Some(Duration::ZERO)).expect("linger can be set");
    }

    /// Serves the connection's next request.
    pub fn keep(self) {
        let Self { stream, pod, next, .. } = self;
        thread::spawn(move || serve(stream, &pod, &next));
    }
}

/// One of the addresses where nothing listens, and where no other test will: the system gives
/// nobody a port this low unasked.
pub fn nobody(number: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 600 + number))
}

/// One chunk of a chunked body.
pub fn chunk(data: impl AsRef<[u8]>) -> Vec<u8> {
    let data = data.as_ref();
    [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat()
}

/// A whole answer with a length.
pub fn answer(status: u16, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status} Some Words\r\n{headers}content-length: {length}\r\n\r\n{body}")
}

/// The head of a stream of events, as vLLM's.
pub const STREAM: &str = "HTTP/1.1 200 OK\r\nserver: uvicorn\r\n\
    content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

/// The end of a chunked body.
pub const LAST: &str = "0\r\n\r\n";

/// Answers what needs no test, and hands the first request that does to it.
fn serve(mut stream: TcpStream, pod: &Arc<Own>, next: &Sender<Taken>) {
    let _ = stream.set_nodelay(true);
    let mut buffer = Vec::new();
    loop {
        let Some((head, body)) = request(&mut stream, &mut buffer) else { return };
        let signals = *pod.signals.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = pod.wants.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let pages = *pod.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let is_health = head.starts_with("GET /health ");
        pod.health_asked.fetch_add(is_health.into(), Ordering::Relaxed);
        let told = match (is_health, head.starts_with("GET /metrics ")) {
            (true, _) => Some((pages.health, Some(answer(200, "", "")))),
            (_, true) => Some((pages.metrics, own_page(&head, signals))),
            _ => None,
        };
        let page = match told {
            Some((Page::Silent, _)) => {
                // Until the gateway has had enough of it.
                let _ = stream.read(&mut [0; 16]);
                return;
            }
            Some((Page::Status(200), page)) => page,
            Some((Page::Status(status), _)) => Some(answer(status, "", "")),
            None => own_page(&head, signals),
        };
        let page = page.map(|page| match &wanted {
            Some(wanted) if header(&head, "authorization") != Some(wanted) => {
                answer(401, "", "{\"error\":\"Unauthorized\"}")
            }
            _ => page,
        });
        let Some(answer) = page else {
            let (pod, next_of) = (Arc::clone(pod), next.clone());
            let taken = Taken { head, body, stream, pod, next: next_of };
            // A test that is over takes no more.
            let _ = next.send(taken);
            return;
        };
        pod.asked.fetch_add(1, Ordering::Relaxed);
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// The answer to what a gateway asks a pod on its own account.
pub(crate) fn own_page(head: &str, signals: Signals) -> Option<String> {
    let (content_type, page) = if head.starts_with("GET /metrics ") {
        ("text/plain; version=0.0.4", signals.page())
    } else if head.starts_with("GET /v1/models ") {
        ("application/json", MODELS.into())
    } else {
        return None;
    };
    Some(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n{page}",
        page.len()
    ))
}

/// Takes the head of a request off the buffer, once all of the request has come. Its body goes too.
pub(crate) fn take_request(buffer: &mut Vec<u8>) -> Option<String> {
    let end = memchr::memmem::find(buffer, b"\r\n\r\n")? + 4;
    let head = String::from_utf8(buffer.get(..end)?.to_vec()).ok()?;
    let whole = end + content_length(&head);
    (buffer.len() >= whole).then(|| {
        buffer.drain(..whole);
        head
    })
}

/// The next request's head and body; the gateway sends no chunks.
pub(crate) fn request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<(String, Vec<u8>)> {
    let end = loop {
        if let Some(at) = memchr::memmem::find(buffer, b"\r\n\r\n") {
            break at + 4;
        }
        fill(stream, buffer)?;
    };
    let head = String::from_utf8(buffer.drain(..end).collect()).ok()?;
    let length = content_length(&head);
    while buffer.len() < length {
        fill(stream, buffer)?;
    }
    Some((head, buffer.drain(..length).collect()))
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (own, value) = line.split_once(':')?;
        own.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

fn content_length(head: &str) -> usize {
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    length.unwrap_or(0)
}

fn fill(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<()> {
    let mut piece = [0; 16 * 1024];
    let count = stream.read(&mut piece).ok().filter(|count| *count > 0)?;
    buffer.extend_from_slice(piece.get(..count)?);
    Some(())
}

impl Signals {
    fn page(self) -> String {
        let Self { running, waiting, kv_usage } = self;
        format!(
            "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running {running}.0\n\
             # TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting {waiting}.0\n\
             # TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc {kv_usage}\n"
        )
    }
}

/// One base model and no adapter.
const MODELS: &str = r#"{"object":"list","data":[{"id":"base","object":"model","parent":null}]}"#;
