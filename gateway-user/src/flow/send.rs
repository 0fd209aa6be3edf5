//! Sends a request to one pod and holds the answer until its first byte of content.

use std::io;
use std::time::Duration;

use gateway_common::framing::{Framing, Malformed};
use tokio::time::{Instant, sleep_until};

use crate::account::tail::Tail;
use crate::client::{Reader, Scratch};
use crate::flow::Request;
use crate::flow::comments::{Comments, Early};
use crate::flow::head::{self, ResponseHead};
use crate::flow::hold::{self, ENOUGH, Trouble, Verdict};
use crate::listen::Worker;
use crate::pool::Place;
use crate::tls::Fault;
use crate::upstream::{Upstream, Use};

/// A response whose content has begun, or that another pod should better give.
#[derive(Debug)]
pub struct Answer {
    /// The connection that it comes from.
    pub upstream: Upstream,
    /// What has come of it.
    pub begun: Begun,
    /// Why another pod may do better.
    pub trouble: Option<Trouble>,
    /// When the request had been written.
    pub sent: Instant,
}

/// What has come of a response, apart from the connection that it comes on.
#[derive(Debug)]
pub struct Begun {
    /// Its head.
    pub head: ResponseHead,
    /// What has arrived of the body, with its framing, up to the body's end.
    pub body: Vec<u8>,
    /// Where the framing stands behind `body`.
    pub framing: Framing,
    /// Bytes came behind the body's end: the connection must not be used again.
    pub excess: bool,
    /// The last payload so far.
    pub tail: Tail,
    /// The connection has ended, and with it the body.
    pub closed: bool,
    /// When the last bytes of `body` came.
    pub received: Instant,
    /// What has come of it is no token, but says that the engine has been asked for some.
    pub announces: bool,
}

/// No answer came from the pod.
#[derive(Debug)]
pub enum Failure {
    /// The client left meanwhile.
    ClientGone,
    /// Nothing listens there, or the connection could not be made.
    Connect(io::Error),
    /// The connection ended before any content.
    Broke {
        /// How, if not by an orderly end.
        error: Option<io::Error>,
        /// A byte of an answer had come.
        received: bool,
    },
    /// The gateway has no descriptor, port or memory for a connection: no pod's fault.
    Local(io::Error),
    /// What came is not HTTP/1.1.
    Nonsense(String),
    /// Nothing came in time.
    Timeout(Duration),
}

impl Failure {
    /// Nothing listened there.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self, Self::Connect(error) if error.kind() == io::ErrorKind::ConnectionRefused)
    }

    fn of_connecting(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(
                libc::EADDRNOTAVAIL | libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM,
            ) => Self::Local(error),
            _ => Self::Connect(error),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ClientGone => f.write_str("the client left"),
            Self::Connect(error) | Self::Local(error) => write!(f, "connecting failed: {error}"),
            Self::Broke { error: None, .. } => {
                f.write_str("it closed the connection before any content")
            }
            Self::Broke { error: Some(error), .. } => {
                write!(f, "the connection broke before any content: {error}")
            }
            Self::Nonsense(what) => write!(f, "it does not speak HTTP/1.1: {what}"),
            Self::Timeout(after) => write!(f, "no answer within {after:?}"),
        }
    }
}

/// The client's side of an exchange, watched while the pod works.
#[derive(Debug)]
pub struct Watch<'a> {
    /// The client, as far as it is read.
    pub reader: Reader<'a>,
    /// Where its pipelined bytes go.
    pub input: &'a mut Vec<u8>,
    /// The worker's buffer.
    pub scratch: &'a Scratch,
    /// What it gets while it waits, if it gets anything.
    pub comments: Option<Comments<'a>>,
}

impl Watch<'_> {
    /// See [`Reader::gone`].
    pub async fn gone(&mut self) {
        let gone = self.reader.gone(self.input, self.scratch);
        match &mut self.comments {
            None => gone.await,
            Some(comments) => tokio::select! {
                () = gone => {}
                () = comments.run() => {}
            },
        }
    }

    /// The stream that has been begun for it, if one has.
    pub fn early(&self) -> Option<Early> {
        self.comments.as_ref()?.early()
    }
}

/// Sends `request` to the pod of `place`. A kept connection that turns out to be dead before a byte of the
/// answer is replaced by a new one once.
pub async fn send(
    request: &Request<'_>,
    place: &Place,
    watch: &mut Watch<'_>,
    worker: &Worker,
) -> Result<Answer, Failure> {
    let usage = request.usage(&place.pod);
    if let Some(kept) = worker.upstreams.idle(&place.pod, usage, Instant::now()) {
        match attempt(request, place, kept, watch, worker).await {
            Err(Failure::Broke { received: false, .. }) => {}
            other => return other,
        }
    }
    let paths = (usage == Use::Streams).then_some(&worker.gateway.paths);
    let connect = worker.upstreams.connect(&place.pod, worker.limits().connect_timeout, paths);
    let fresh = tokio::select! {
        connected = connect => connected.map_err(Failure::of_connecting)?,
        () = watch.gone() => return Err(Failure::ClientGone),
    };
    attempt(request, place, fresh, watch, worker).await
}

async fn attempt(
    request: &Request<'_>,
    place: &Place,
    mut upstream: Upstream,
    watch: &mut Watch<'_>,
    worker: &Worker,
) -> Result<Answer, Failure> {
    let (mut reader, writer) = upstream.stream.split();
    // Runs from here: a pod that has been stopped takes no large body either.
    let within = worker.limits().first_byte_timeout;
    let deadline = sleep_until(Instant::now() + within);
    tokio::pin!(deadline);
    // A pod may answer, and close, without having read all of a large body. What it has to say is read
    // below; if that is nothing, reading fails as well.
    let early = tokio::select! {
        biased;
        written = writer.write_all([&request.head, &request.body]) => written.is_err(),
        () = reader.readable(), if request.body.len() > EARLY_ANSWER => true,
        () = watch.gone() => return Err(Failure::ClientGone),
        () = &mut deadline => return Err(Failure::Timeout(within)),
    };
    let sent = Instant::now();
    if !early {
        place.sent(&request.prompt);
    }
    let mut held = Held::new(request.to_head, request.upgrades);
    let mut received = upstream.received;
    loop {
        let mut step = Ok(Verdict::Wait);
        let read = worker.scratch.read(&mut reader, |bytes| step = held.push(bytes));
        let read = tokio::select! {
            biased;
            read = read => read,
            () = watch.gone() => return Err(Failure::ClientGone),
            () = &mut deadline => return Err(Failure::Timeout(within)),
        };
        let count = read.map_err(|error| held.broke(Some(error)))?;
        received += count as u64;
        let trouble = match step? {
            Verdict::Wait => continue,
            Verdict::Release => None,
            Verdict::Elsewhere(trouble) => Some(trouble),
        };
        let Some(mut head) = held.head else {
            return Err(Failure::Nonsense("an answer without a head".into()));
        };
        head.reusable &= !early;
        let begun = Begun {
            head,
            body: held.raw,
            framing: held.framing,
            excess: held.excess,
            tail: held.tail,
            closed: held.closed,
            announces: hold::announces(&held.payload),
            received: Instant::now(),
        };
        return Ok(Answer { upstream: Upstream { received, ..upstream }, begun, trouble, sent });
    }
}

/// What has come of a response that nothing has been passed on of.
#[derive(Debug)]
struct Held {
    to_head: bool,
    /// It may switch protocols.
    upgrades: bool,
    head: Option<ResponseHead>,
    /// Before the head is complete: all bytes. Then: the body's, with framing.
    raw: Vec<u8>,
    /// The first payload, at most [`ENOUGH`] bytes.
    payload: Vec<u8>,
    framing: Framing,
    tail: Tail,
    excess: bool,
    closed: bool,
}

impl Held {
    fn new(to_head: bool, upgrades: bool) -> Self {
        Self {
            to_head,
            upgrades,
            head: None,
            raw: Vec::new(),
            payload: Vec::new(),
            framing: Framing::none(),
            tail: Tail::new(false),
            excess: false,
            closed: false,
        }
    }

    /// Takes what one read gave; nothing is the end of the connection.
    fn push(&mut self, bytes: &[u8]) -> Result<Verdict, Failure> {
        if bytes.is_empty() {
            if self.head.is_none() || !self.framing.may_close() {
                return Err(self.broke(None));
            }
            self.closed = true;
            return match self.judge()? {
                // A stream that ends with its connection, and has said nothing, has not ended: it was cut.
                Verdict::Release if self.is_mute_stream() => Err(self.broke(None)),
                verdict => Ok(verdict),
            };
        }
        if self.head.is_some() {
            self.body(bytes)?;
            return self.judge();
        }
        self.raw.extend_from_slice(bytes);
        loop {
            let parsed = head::parse(&self.raw, self.to_head);
            let Some(head) = parsed.map_err(|error| Failure::Nonsense(error.to_string()))? else {
                return Ok(Verdict::Wait);
            };
            let rest = self.raw.split_off(head.len);
            match head.status {
                101 if self.upgrades => {
                    self.head = Some(head);
                    // Of the other protocol.
                    self.raw = rest;
                    return self.judge();
                }
                101 => return Err(Failure::Nonsense("it switched protocols unasked".into())),
                // Interim: the real one follows.
                100..=199 => self.raw = rest,
                _ => {
                    self.framing = head.framing;
                    self.tail = Tail::new(head.event_stream);
                    self.head = Some(head);
                    self.raw = Vec::new();
                    self.body(&rest)?;
                    return self.judge();
                }
            }
        }
    }

    fn broke(&self, error: Option<io::Error>) -> Failure {
        let received = self.head.is_some() || !self.raw.is_empty();
        match error.as_ref().and_then(Fault::of) {
            // In TLS 1.3, that the gateway's certificate is not taken comes behind the handshake.
            Some(fault @ Fault::Refused) if !received => Failure::Connect(io::Error::other(fault)),
            _ => Failure::Broke { error, received },
        }
    }

    fn body(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let (payload, tail) = (&mut self.payload, &mut self.tail);
        let used = self
            .framing
            .run(bytes, |piece| {
                let room = ENOUGH.saturating_sub(payload.len());
                payload.extend_from_slice(piece.get(..room).unwrap_or(piece));
                tail.push(piece);
            })
            .map_err(|Malformed { at }| Failure::Nonsense(format!("broken chunks ({at:?})")))?;
        self.raw.extend_from_slice(bytes.get(..used).unwrap_or(bytes));
        self.excess |= used < bytes.len();
        Ok(())
    }

    /// A stream of events of which nothing but comments has come.
    fn is_mute_stream(&self) -> bool {
        let Some(head) = &self.head else { return false };
        head.until_close
            && head.event_stream
            && hold::judge(head.status, true, &self.payload, false) == Verdict::Wait
    }

    fn judge(&self) -> Result<Verdict, Failure> {
        let Some(head) = &self.head else { return Ok(Verdict::Wait) };
        // Framing may be larger than what it frames: what is held is bounded either way.
        let complete = self.closed || self.framing.is_done() || self.raw.len() > 4 * ENOUGH;
        Ok(hold::judge(head.status, head.event_stream, &self.payload, complete))
    }
}

/// Bodies up to this size fit into socket buffers, so that writing them never waits for the pod.
const EARLY_ANSWER: usize = 64 * 1024;
