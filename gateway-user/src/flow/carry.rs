//! Carries an answer to the client: the daemon's loop of reading and writing, whatever carries beside it.
//!
//! With [`crate::flow::carrier::Relay`] it is all there is, it always works, and it is what the other carriers
//! are compared with.

use std::io;

use gateway_common::framing::{Framing, Malformed};
use tokio::time::{Instant, sleep_until, timeout};

use crate::account::tail::Tail;
use crate::client::Writer;
use crate::flow::carrier::{Carrier, Returned};
use crate::flow::head::ClientSide;
use crate::flow::path::Bytes;
use crate::flow::rename::Rename;
use crate::flow::send::{Begun, Watch};
use crate::flow::strip::Strip;
use crate::listen::Worker;
use crate::metrics::Outcome;
use crate::request::head::Version;
use crate::upstream::Upstream;

/// Where an answer goes.
#[derive(Debug)]
pub struct To<'a> {
    /// How the client takes it.
    pub side: ClientSide<'a>,
    /// The usage that the gateway has asked for is not for the client.
    pub strips: bool,
    /// It tells the name of another model than the client asked for.
    pub rename: Option<Rename>,
    /// The client has got a head, and is still to get this before the body.
    pub early: Option<Vec<u8>>,
    /// The client, watched.
    pub watch: Watch<'a>,
    /// Where it is written.
    pub writer: Writer<'a>,
    /// Whose it is.
    pub worker: &'a Worker,
}

/// How an answer went.
#[derive(Debug)]
pub struct Delivered {
    /// How it ended.
    pub outcome: Outcome,
    /// The client's connection can carry another request.
    pub keep_alive: bool,
    /// The end must be a reset: the client takes any other end for the end of the body, or for the end of what was
    /// asked on HTTP/2.
    pub reset: bool,
    /// Chunks of the body.
    pub chunks: u64,
    /// Which way the body's bytes went.
    pub bytes: Bytes,
    /// The last payload.
    pub tail: Tail,
    /// When the head and the first content had been written.
    pub first_written: Instant,
    /// When the last bytes came.
    pub last_received: Instant,
    /// The connection, if it can be used for another request.
    pub upstream: Option<Upstream>,
}

/// Carries the whole answer to the client.
pub async fn carry(begun: Begun, mut carrier: impl Carrier, to: To<'_>) -> Delivered {
    let Begun { mut head, body, framing, excess, tail, mut closed, received, .. } = begun;
    let To { side, strips, rename, early, mut watch, writer, worker } = to;
    let pause = worker.limits().stream_idle_timeout;
    let pods_chunks = head.chunked;
    let changes = strips || rename.is_some();
    if !pods_chunks && (changes || early.is_some()) {
        head.rechunk();
    }
    let mut out = Vec::with_capacity(body.len() + 1024);
    let (raw, keep_alive) = match early {
        None => head.write(side, &mut out),
        Some(rest) => {
            out = rest;
            (side.version == Version::Http11, side.keep_alive)
        }
    };
    let rewritten = head.chunked && (changes || !raw || !pods_chunks);
    let begun_closed = closed;
    let mut rewrite =
        rewritten.then(|| Rewrite { strip: strips.then(Strip::default), rename, chunks: raw });
    match &mut rewrite {
        None => out.extend_from_slice(&body),
        Some(rewrite) => {
            let mut payload = Vec::new();
            // Held bytes are well formed: `begun` was made by running the same machine over them.
            let _ = head.framing.clone().run(&body, |piece| payload.extend_from_slice(piece));
            out.append(&mut rewrite.take(payload, framing.is_done() || closed));
        }
    }
    let mut state = State {
        framing,
        tail,
        excess,
        rewrite,
        bytes: Bytes { relayed: body.len() as u64, ..Bytes::default() },
        on_their_way: false,
        last_received: received,
    };
    drop(body);
    let write = timeout(pause, writer.write_all(&out));
    let written = tokio::select! {
        biased;
        written = write => written,
        () = watch.gone() => Ok(Err(io::ErrorKind::ConnectionAborted.into())),
    };
    drop(out);
    let first_written = Instant::now();
    let mut end = match written {
        Ok(Ok(())) => None,
        // Failed, or not taken for so long: a client that does not read is as good as gone.
        Ok(Err(_)) | Err(_) => Some(Outcome::ClientGone),
    };

    let idle = sleep_until(first_written + pause);
    tokio::pin!(idle);
    while end.is_none() && !state.framing.is_done() && !closed {
        if let Some(socket) = writer.socket() {
            carrier.offer(writer.sent(), &state.framing, socket);
        }
        let mut rest = Ok(Vec::new());
        let read = carrier.read(&worker.scratch, |returned, bytes| {
            if let Some(returned) = returned {
                state.take_back(&returned, &writer);
            }
            rest = state.pass(bytes, &writer);
        });
        let read = tokio::select! {
            biased;
            read = read => read,
            () = watch.gone() => {
                end = Some(Outcome::ClientGone);
                break;
            }
            () = &mut idle => {
                // Armed once, not for each token: it looks when the last one came.
                let last = carrier.last_carried().max(Some(state.last_received));
                if let Some(last) = last.filter(|last| *last + pause > Instant::now()) {
                    idle.as_mut().reset(last + pause);
                    continue;
                }
                end = Some(Outcome::TimedOut);
                break;
            }
        };
        match read {
            Ok(None) => continue,
            Ok(Some(0)) => {
                closed = true;
                if !state.framing.may_close() {
                    end = Some(Outcome::Aborted);
                }
                break;
            }
            Ok(Some(_)) => state.last_received = Instant::now(),
            Err(_) => {
                end = Some(Outcome::Aborted);
                break;
            }
        }
        let rest = match rest {
            Ok(rest) => rest,
            Err(outcome) => {
                end = Some(outcome);
                break;
            }
        };
        if rest.is_empty() {
            continue;
        }
        // The client is slower than the pod, or than the kernel's own worker: nothing is read until it has
        // taken this.
        let write = timeout(pause, async {
            if std::mem::take(&mut state.on_their_way)
                && let Some(socket) = writer.socket()
            {
                carrier.settle(writer.sent(), socket).await;
            }
            writer.write_all(&rest).await
        });
        tokio::select! {
            biased;
            written = write => end = match written {
                Ok(Ok(())) => None,
                Ok(Err(_)) | Err(_) => Some(Outcome::ClientGone),
            },
            () = watch.gone() => end = Some(Outcome::ClientGone),
        }
    }
    // The connection's end was the body's, but is not the client's.
    let ended = closed && end.is_none() && !state.framing.is_done();
    if let Some(rewrite) = state.rewrite.as_mut().filter(|_| ended && !begun_closed) {
        let rest = rewrite.take(Vec::new(), true);
        let write = timeout(pause, writer.write_all(&rest));
        tokio::select! {
            biased;
            written = write => if !matches!(written, Ok(Ok(()))) {
                end = Some(Outcome::ClientGone);
            },
            () = watch.gone() => end = Some(Outcome::ClientGone),
        }
    }
    // A pod on this node is told by the client's own socket that it is closed, and may leave before the daemon
    // has looked: that is not the pod's doing.
    if end == Some(Outcome::Aborted) && writer.has_left() {
        end = Some(Outcome::ClientGone);
    }
    if let Some(returned) = carrier.take_back() {
        state.take_back(&returned, &writer);
    }
    if state.on_their_way
        && end != Some(Outcome::ClientGone)
        && let Some(socket) = writer.socket()
    {
        // Else closing the client's connection, or the next answer, would overtake them.
        let settled = timeout(pause, carrier.settle(writer.sent(), socket));
        tokio::select! {
            biased;
            settled = settled => if settled.is_err() {
                end = end.or(Some(Outcome::ClientGone));
            },
            () = watch.gone() => end = end.or(Some(Outcome::ClientGone)),
        }
    }

    let State { framing, tail, excess, bytes, last_received, .. } = state;
    let whole = end.is_none();
    let reusable = whole && head.reusable && framing.is_done() && !excess && !closed;
    Delivered {
        outcome: end.unwrap_or(match head.status {
            500.. => Outcome::PodError,
            400.. => Outcome::ClientError,
            _ => Outcome::Ok,
        }),
        keep_alive: whole && keep_alive,
        reset: !whole
            && (head.until_close || (head.chunked && !raw) || side.version == Version::Http2),
        chunks: framing.chunks(),
        bytes,
        tail,
        first_written,
        last_received,
        upstream: reusable.then(|| carrier.into_upstream()).flatten(),
    }
}

/// What is known of the body.
struct State {
    framing: Framing,
    tail: Tail,
    /// Bytes came behind the body's end.
    excess: bool,
    rewrite: Option<Rewrite>,
    bytes: Bytes,
    /// What was carried may not be in the client's socket yet: nothing must be written before it.
    on_their_way: bool,
    last_received: Instant,
}

/// How the payload of a chunked body goes to a client that does not get its bytes as they come.
struct Rewrite {
    strip: Option<Strip>,
    rename: Option<Rename>,
    /// In chunks of its own.
    chunks: bool,
}

impl Rewrite {
    /// What the client gets for the next payload. `done`: there is no more.
    fn take(&mut self, mut payload: Vec<u8>, done: bool) -> Vec<u8> {
        if let Some(strip) = &mut self.strip {
            let whole = std::mem::take(&mut payload);
            strip.push(&whole, &mut payload);
            if done {
                strip.finish(&mut payload);
            }
        }
        if let Some(rename) = &mut self.rename {
            let whole = std::mem::take(&mut payload);
            rename.push(&whole, &mut payload);
        }
        if !self.chunks {
            return payload;
        }
        let mut out = Vec::with_capacity(payload.len() + 32);
        if !payload.is_empty() {
            out.extend_from_slice(format!("{:x}\r\n", payload.len()).as_bytes());
            out.append(&mut payload);
            out.extend_from_slice(b"\r\n");
        }
        if done {
            out.extend_from_slice(b"0\r\n\r\n");
        }
        out
    }
}

impl State {
    /// The daemon's again, after the kernel carried.
    fn take_back(&mut self, returned: &Returned, writer: &Writer<'_>) {
        self.framing = returned.framing;
        self.bytes.carried += returned.carried;
        self.bytes.taken_back = returned.reason;
        writer.count(returned.carried);
        if returned.carried > 0 {
            returned.show(&mut self.tail);
            self.last_received = self.last_received.max(returned.last);
            self.on_their_way |= returned.on_their_way;
        }
    }

    /// Passes on what one read gave. Returns what is left: what the client's socket did not take at
    /// once.
    fn pass(&mut self, bytes: &[u8], writer: &Writer<'_>) -> Result<Vec<u8>, Outcome> {
        let mut payloads = Vec::new();
        let Self { framing, tail, rewrite, .. } = self;
        let used = framing
            .run(bytes, |payload| {
                tail.push(payload);
                if rewrite.is_some() {
                    payloads.extend_from_slice(payload);
                }
            })
            .map_err(|Malformed { .. }| Outcome::Aborted)?;
        self.excess |= used < bytes.len();
        self.bytes.relayed += used as u64;
        if let Some(rewrite) = &mut self.rewrite {
            payloads = rewrite.take(payloads, self.framing.is_done());
        }
        let out = match self.rewrite {
            Some(_) => &payloads,
            None => bytes.get(..used).unwrap_or(bytes),
        };
        if out.is_empty() {
            return Ok(Vec::new());
        }
        if self.on_their_way {
            return Ok(out.to_vec());
        }
        let sent = match writer.try_write(out) {
            Ok(sent) => sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(_) => return Err(Outcome::ClientGone),
        };
        Ok(out.get(sent..).unwrap_or_default().to_vec())
    }
}
