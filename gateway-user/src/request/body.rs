//! Reads a request's body into bounded memory, and finds the model in it while it arrives.

use std::time::Duration;

use bytes::BufMut;
use gateway_common::framing::{Framing, Malformed, State};
use tokio::task::yield_now;
use tokio::time::{Instant, timeout, timeout_at};

use crate::client::Client;
use crate::error::Refusal;
use crate::gateway::Memory;
use crate::listen::Worker;
use crate::request::coding::{Coding, Decoder};
use crate::request::head::{BodyLength, Head};
use crate::request::multipart::{self, Boundary};
use crate::request::scan::{Fault, Fields, Scanner};

/// A whole body.
#[derive(Debug)]
pub struct Body {
    /// Its bytes as the client sent them, without chunk framing.
    pub bytes: Vec<u8>,
    /// What they are when their Content-Encoding is undone, if they have one.
    pub decoded: Option<Vec<u8>>,
    /// What was found in it.
    pub fields: Fields,
    /// Its part of the memory that bodies may take together.
    pub reserved: Memory,
}

/// Why there is no whole body.
#[derive(Debug)]
pub enum Unread<T> {
    /// It is wrong, or too much.
    Refused(Refusal),
    /// It was not worth reading on.
    Useless(T),
}

impl<T> From<Refusal> for Unread<T> {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Reads the body behind `head`. `None`: the client left.
///
/// `useless` is asked before much of the body is awaited, first with no model and then with the model once that is
/// known: what it returns ends the reading.
pub async fn read_body<T>(
    client: &mut Client,
    head: &Head,
    worker: &Worker,
    useless: impl Fn(Option<&str>) -> Option<T>,
) -> Result<Option<Body>, Unread<T>> {
    let cap = worker.limits().max_body_bytes;
    let coding = match &head.content_encoding {
        None => None,
        Some(name) => Some(Coding::named(name).ok_or_else(|| unknown_coding(name))?),
    };
    match head.body {
        BodyLength::Known(length) if length > cap as u64 => {
            return Err(Refusal::body_too_large(cap).into());
        }
        _ => {}
    }
    let finder = Finder::for_head(head)?;
    let is_far = match head.body {
        BodyLength::Known(length) => length > (client.input.len() + WORTH_READING) as u64,
        BodyLength::Chunked | BodyLength::UntilEnd => false,
    };
    if (is_far || head.expects_continue && client.input.is_empty())
        && let Some(why) = useless(None)
    {
        return Err(Unread::Useless(why));
    }
    let patience = worker.limits().body_timeout;
    if head.expects_continue && client.input.is_empty() {
        let go = timeout(patience, client.write(b"HTTP/1.1 100 Continue\r\n\r\n"));
        if !matches!(go.await, Ok(Ok(()))) {
            return Ok(None);
        }
    }
    let mut incoming = Incoming {
        client,
        worker,
        finder,
        coded: coding.is_some(),
        bytes: Vec::new(),
        reserved: worker.gateway.memory(),
        pause: worker.spread(patience),
        started: Instant::now(),
        span: (Instant::now(), 0),
    };
    let whole = match head.body {
        // Checked against the cap, which is a usize.
        BodyLength::Known(length) => incoming.known(length as usize, &useless).await?,
        BodyLength::Chunked => incoming.chunked(cap).await?,
        BodyLength::UntilEnd => incoming.until_end(cap).await?,
    };
    if !whole {
        return Ok(None);
    }
    let Incoming { mut finder, bytes, mut reserved, .. } = incoming;
    let decoded = match coding {
        Some(coding) => Some(decode(coding, &bytes, &mut finder, &mut reserved, worker).await?),
        None => None,
    };
    let fields = finder.finish().map_err(|fault| refusal(&fault))?;
    Ok(Some(Body { bytes, decoded, fields, reserved }))
}

/// What a body holds, shown to the finder. Decoded here it is at most as long as its own cap, and counts as the body
/// itself does.
async fn decode(
    coding: Coding,
    body: &[u8],
    finder: &mut Finder,
    reserved: &mut Memory,
    worker: &Worker,
) -> Result<Vec<u8>, Refusal> {
    let cap = worker.limits().max_decompressed_bytes;
    let mut decoder = Decoder::new(coding, body);
    let mut all = Vec::new();
    loop {
        let from = all.len();
        if from > cap {
            return Err(Refusal::decompressed_too_large(cap));
        }
        // One more than there may be tells whether there is more.
        let room = from.max(FIRST_DECODED).min(cap + 1 - from);
        let most = from + room;
        if !reserved.grow_to(body.len() + most + coding.window(most)) {
            return Err(Refusal::overloaded("body_memory", TOO_MANY));
        }
        all.reserve_exact(room);
        all.resize(most, 0);
        let mut len = from;
        while len < all.len() {
            let end = all.len().min(len + DECODE_STEP);
            let space = all.get_mut(len..end).unwrap_or_default();
            let read = decoder.read(space).map_err(|corrupt| invalid(corrupt.to_string()))?;
            let Some(count) = read else {
                yield_now().await;
                continue;
            };
            finder
                .feed(all.get(len..len + count).unwrap_or_default())
                .map_err(|fault| refusal(&fault))?;
            len += count;
            if count == 0 {
                all.truncate(len);
                reserved.shrink_to(body.len() + all.capacity());
                return Ok(all);
            }
            // Others of this thread's connections wait meanwhile.
            yield_now().await;
        }
    }
}

fn unknown_coding(name: &str) -> Refusal {
    Refusal {
        close: true,
        ..Refusal::client(
            415,
            "content_encoding",
            format!(
                "Request bodies in Content-Encoding `{}` are not read here. Send it in gzip or zstd, or uncompressed.",
                name.chars().take(40).collect::<String>()
            ),
        )
    }
}

/// A body on its way in.
struct Incoming<'a> {
    client: &'a mut Client,
    worker: &'a Worker,
    finder: Finder,
    /// Compressed, it tells nothing on the way.
    coded: bool,
    bytes: Vec<u8>,
    reserved: Memory,
    /// How long a span is in which enough must come.
    pause: Duration,
    started: Instant,
    /// When the rate was enough last, and how much had come by then.
    span: (Instant, usize),
}

impl Incoming<'_> {
    /// Reads a body of `length` bytes. `false`: the client left.
    async fn known<T>(
        &mut self,
        length: usize,
        useless: &impl Fn(Option<&str>) -> Option<T>,
    ) -> Result<bool, Unread<T>> {
        let ready = self.client.input.len().min(length);
        self.make_room(ready, length)?;
        self.bytes.extend_from_slice(self.client.input.get(..ready).unwrap_or_default());
        self.client.consume(ready);
        // A fault in a body that is here whole leaves the connection in order.
        let last = ready == length;
        self.look(0).map_err(|fault| if last { refusal(&fault) } else { cut(&fault) })?;
        let mut asked = false;
        while self.bytes.len() < length {
            if !asked && length - self.bytes.len() > WORTH_READING {
                asked = self.finder.model_so_far().is_some();
                let why = self.finder.model_so_far().and_then(|model| useless(Some(model)));
                if let Some(why) = why {
                    return Err(Unread::Useless(why));
                }
            }
            if self.bytes.len() == self.bytes.capacity() {
                self.make_room(1, length)?;
            }
            let before = self.bytes.len();
            if !self.read(length - before).await? {
                return Ok(false);
            }
            self.look(before).map_err(|fault| cut(&fault))?;
        }
        Ok(true)
    }

    /// Reads a chunked body of at most `cap` bytes. `false`: the client left.
    async fn chunked(&mut self, cap: usize) -> Result<bool, Refusal> {
        let (mut framing, mut trailers) = (Framing::chunked(), Trailers::default());
        loop {
            let before = self.bytes.len();
            self.make_room(self.client.input.len(), usize::MAX)?;
            let Self { client, bytes, .. } = &mut *self;
            let broken = |malformed: Malformed| {
                Refusal::malformed(format!("The body's chunks are malformed: {malformed}."))
            };
            let (mut over, mut used) = (false, 0);
            while let Some([byte, ..]) = client.input.get(used..)
                && !over
                && !framing.is_done()
            {
                let state = framing.state();
                // A slice is never longer than isize::MAX, and skip gives no more than it got.
                let count = framing.skip((client.input.len() - used) as u64) as usize;
                let payload = client.input.get(used..used + count).unwrap_or_default();
                if payload.is_empty() {
                    framing.control(*byte).map_err(broken)?;
                    trailers.check(state, *byte)?;
                    used += 1;
                    continue;
                }
                over = bytes.len() + payload.len() > cap;
                if !over {
                    bytes.extend_from_slice(payload);
                }
                used += count;
            }
            if over {
                return Err(Refusal::body_too_large(cap));
            }
            client.consume(used);
            self.look(before).map_err(|fault| cut(&fault))?;
            if framing.is_done() {
                return Ok(true);
            }
            let due = self.due();
            match timeout_at(due, self.client.fill(&self.worker.scratch)).await {
                Ok(Ok(true)) => {}
                Ok(_) => return Ok(false),
                Err(_) => return Err(slow(self.worker)),
            }
        }
    }

    /// Reads a body of at most `cap` bytes that ends with its stream. `false`: the client left.
    async fn until_end(&mut self, cap: usize) -> Result<bool, Refusal> {
        loop {
            let before = self.bytes.len();
            if before == self.bytes.capacity() {
                self.make_room(1, usize::MAX)?;
            }
            match self.read_some(cap.saturating_add(1) - before).await? {
                Some(0) => return Ok(true),
                Some(_) if self.bytes.len() > cap => return Err(Refusal::body_too_large(cap)),
                Some(_) => self.look(before).map_err(|fault| cut(&fault))?,
                None => return Ok(false),
            }
        }
    }

    /// Reads once, straight into `bytes`, at most `left` bytes. `false`: the client left.
    async fn read(&mut self, left: usize) -> Result<bool, Refusal> {
        Ok(!matches!(self.read_some(left).await?, None | Some(0)))
    }

    /// Reads once, straight into `bytes`, at most `left` bytes. 0 is the end, `None` another end than that.
    async fn read_some(&mut self, left: usize) -> Result<Option<usize>, Refusal> {
        let room = (self.bytes.capacity() - self.bytes.len()).min(left);
        let due = self.due();
        let mut rest = (&mut self.bytes).limit(room);
        match timeout_at(due, self.client.stream.read_into(&mut rest)).await {
            Ok(read) => Ok(read.ok()),
            Err(_) => Err(slow(self.worker)),
        }
    }

    /// Makes room for `more` bytes, and for as many as have come, but for no more than `most` in all: memory
    /// follows what has arrived, not what is announced.
    fn make_room(&mut self, more: usize, most: usize) -> Result<(), Refusal> {
        let len = self.bytes.len();
        if self.bytes.capacity() - len >= more {
            return Ok(());
        }
        let room = more.max(len.max(FIRST_READ).min(most.saturating_sub(len)));
        if !self.reserved.grow_to(len + room) {
            return Err(Refusal::overloaded("body_memory", TOO_MANY));
        }
        self.bytes.reserve_exact(room);
        Ok(())
    }

    /// Until when the next bytes may take. A pause is bounded, or one byte after each would hold a connection and its
    /// memory for ever; what came fast buys no time for what comes slowly; and whatever its rate, a body ends.
    fn due(&mut self) -> Instant {
        let (now, pause) = (Instant::now(), self.pause);
        let (since, had) = self.span;
        if (self.bytes.len() - had) as f64 >= pause.as_secs_f64() * LEAST_RATE {
            self.span = (now, self.bytes.len());
            return (now + pause).min(self.started + LONGEST * pause);
        }
        (since + pause).min(self.started + LONGEST * pause)
    }

    /// Has the finder look at the bytes from `from` on.
    fn look(&mut self, from: usize) -> Result<(), Fault> {
        match self.coded {
            true => Ok(()),
            false => self.finder.feed(self.bytes.get(from..).unwrap_or_default()),
        }
    }
}

/// Looks whether trailers are headers, before they are thrown away: what is none may be a request that somebody on
/// the way took for one.
#[derive(Default)]
struct Trailers {
    named: bool,
}

impl Trailers {
    /// `state` is the framing's before `byte`.
    fn check(&mut self, state: Option<State>, byte: u8) -> Result<(), Refusal> {
        let fits = match (state, byte) {
            (Some(State::TrailerStart), _) => {
                self.named = false;
                byte == b'\r' || is_token(byte)
            }
            (Some(State::Trailer), b':') => {
                self.named = true;
                true
            }
            (Some(State::Trailer), _) => self.named || is_token(byte),
            _ => true,
        };
        if fits {
            Ok(())
        } else {
            Err(Refusal::malformed("A trailer of the body is not a header."))
        }
    }
}

/// RFC 9110 section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// What finds the model in a body of this type.
enum Finder {
    Json(Box<Scanner>),
    Form(Box<multipart::Scanner>),
}

impl Finder {
    fn for_head(head: &Head) -> Result<Self, Refusal> {
        let content_type = head.content_type.as_deref().unwrap_or_default();
        Ok(match Boundary::from_content_type(content_type.as_bytes()) {
            Ok(Some(boundary)) => Self::Form(Box::new(multipart::Scanner::new(boundary))),
            // Servers decide about other types themselves; a JSON body with a wrong type is common.
            Ok(None) => Self::Json(Box::default()),
            Err(fault) => return Err(cut(&fault)),
        })
    }

    fn feed(&mut self, piece: &[u8]) -> Result<(), Fault> {
        match self {
            Self::Json(scanner) => scanner.feed(piece),
            Self::Form(scanner) => scanner.feed(piece),
        }
    }

    fn model_so_far(&self) -> Option<&str> {
        match self {
            Self::Json(scanner) => scanner.model_so_far(),
            Self::Form(scanner) => scanner.model_so_far(),
        }
    }

    fn finish(self) -> Result<Fields, Fault> {
        match self {
            Self::Json(scanner) => scanner.finish(),
            Self::Form(scanner) => scanner.finish(),
        }
    }
}

/// What a client is told of a body that cannot be read.
pub fn refusal(fault: &Fault) -> Refusal {
    let message = fault.to_string();
    match fault.param() {
        Some(param) => Refusal::bad_field(param, "invalid_model", message),
        None => invalid(message),
    }
}

fn invalid(message: String) -> Refusal {
    Refusal::bad_request("invalid_body", message)
}

/// A fault in the middle of a body: what follows of it is not worth reading.
fn cut(fault: &Fault) -> Refusal {
    Refusal { close: true, ..refusal(fault) }
}

fn slow(worker: &Worker) -> Refusal {
    Refusal {
        close: true,
        ..Refusal::client(
            408,
            "body_timeout",
            format!(
                "The request's body came at less than {LEAST_RATE} bytes a second for {0} s, or took longer than \
                 {LONGEST} times that in all.",
                worker.limits().body_timeout.as_secs_f32()
            ),
        )
    }
}

/// How fast a body must come, in bytes a second over each `bodyTimeout`: far below any line that carries prompts.
const LEAST_RATE: f64 = 1024.0;

/// How long a body may take in all, in `bodyTimeout`s. By default 10 minutes, as long as the OpenAI SDKs wait for an
/// answer: 20 MB then need 280 kbit/s.
const LONGEST: u32 = 20;

/// So much of a body is read in any case, as that costs less than the connection which has to end with what is not
/// read.
const WORTH_READING: usize = 64 * 1024;

/// First memory for what a compressed body holds, in bytes.
const FIRST_DECODED: usize = 64 * 1024;

/// Bytes that are decoded before others have their turn.
const DECODE_STEP: usize = 64 * 1024;

const TOO_MANY: &str = "Too many large request bodies are being read at once. Try again later.";

/// First memory for a body of which nothing has come yet, in bytes.
const FIRST_READ: usize = 16 * 1024;
