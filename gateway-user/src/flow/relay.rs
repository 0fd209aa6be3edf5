//! The relay path: reads from the pod and writes to the client in the daemon. It always works, and is what
//! the other paths are compared with.

use std::io;

use gateway_common::framing::{Framing, Malformed};
use tokio::net::tcp::WriteHalf;
use tokio::time::{Instant, sleep_until, timeout};

use crate::account::tail::Tail;
use crate::client::write_all;
use crate::flow::head::ClientSide;
use crate::flow::send::{Answer, Watch};
use crate::listen::Worker;
use crate::metrics::Outcome;
use crate::pool::PodId;

/// How a response went.
#[derive(Debug)]
pub struct Relayed {
    /// How it ended.
    pub outcome: Outcome,
    /// The client's connection can carry another request.
    pub keep_alive: bool,
    /// The end must be a reset: the client takes any other end for the end of the body.
    pub reset: bool,
    /// Chunks of the body.
    pub chunks: u64,
    /// The last payload.
    pub tail: Tail,
    /// When the head and the first content had been written.
    pub first_written: Instant,
    /// When the last bytes came.
    pub last_received: Instant,
}

/// Carries the whole response of `answer` to the client.
pub async fn relay(
    answer: Answer,
    pod: PodId,
    side: ClientSide<'_>,
    mut watch: Watch<'_>,
    writer: &WriteHalf<'_>,
    worker: &Worker,
) -> Relayed {
    let Answer { mut upstream, head, body, mut framing, mut excess, mut tail, mut closed, .. } =
        answer;
    let pause = worker.limits().stream_idle_timeout;
    let mut out = Vec::with_capacity(body.len() + 1024);
    let (raw, keep_alive) = head.write(side, &mut out);
    if raw || !head.chunked {
        out.extend_from_slice(&body);
    } else {
        // Held bytes are well formed: `answer` was made by running the same machine over them.
        let _ = head.framing.clone().run(&body, |payload| out.extend_from_slice(payload));
    }
    drop(body);
    let mut last_received = answer.received;
    let write = timeout(pause, write_all(writer, [&out, &[]]));
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
    let (mut reader, _) = upstream.stream.split();
    while end.is_none() && !framing.is_done() && !closed {
        let mut piece =
            Piece { framing: &mut framing, tail: &mut tail, dechunk: head.chunked && !raw };
        let mut step = Ok(Step::default());
        let read = worker.scratch.read(&mut reader, |bytes| {
            step = piece.pass(bytes, |part| writer.try_write(part));
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
                if last_received + pause > Instant::now() {
                    idle.as_mut().reset(last_received + pause);
                    continue;
                }
                end = Some(Outcome::TimedOut);
                break;
            }
        };
        match read {
            Ok(0) => {
                closed = true;
                if !framing.may_close() {
                    end = Some(Outcome::Aborted);
                }
                break;
            }
            Ok(_) => last_received = Instant::now(),
            Err(_) => {
                end = Some(Outcome::Aborted);
                break;
            }
        }
        let Step { rest, more } = match step {
            Ok(step) => step,
            Err(outcome) => {
                end = Some(outcome);
                break;
            }
        };
        excess |= more;
        if rest.is_empty() {
            continue;
        }
        // The client is slower than the pod: nothing is read until it has taken this.
        let write = timeout(pause, write_all(writer, [&rest, &[]]));
        tokio::select! {
            biased;
            written = write => end = match written {
                Ok(Ok(())) => None,
                Ok(Err(_)) | Err(_) => Some(Outcome::ClientGone),
            },
            () = watch.gone() => end = Some(Outcome::ClientGone),
        }
    }

    let chunks = framing.chunks();
    let whole = end.is_none();
    if whole && head.reusable && framing.is_done() && !excess && !closed {
        worker.upstreams.keep(pod, upstream, Instant::now());
    }
    Relayed {
        outcome: end.unwrap_or(match head.status {
            500.. => Outcome::PodError,
            400.. => Outcome::ClientError,
            _ => Outcome::Ok,
        }),
        keep_alive: whole && keep_alive,
        reset: !whole && (head.until_close || (head.chunked && !raw)),
        chunks,
        tail,
        first_written,
        last_received,
    }
}

/// One read's bytes on their way.
struct Piece<'a> {
    framing: &'a mut Framing,
    tail: &'a mut Tail,
    dechunk: bool,
}

/// What is left to do after one read.
#[derive(Debug, Default)]
struct Step {
    /// Bytes that the client's socket did not take at once.
    rest: Vec<u8>,
    /// Bytes came behind the body's end.
    more: bool,
}

impl Piece<'_> {
    fn pass(
        &mut self,
        bytes: &[u8],
        write: impl FnOnce(&[u8]) -> io::Result<usize>,
    ) -> Result<Step, Outcome> {
        let mut payloads = Vec::new();
        let dechunk = self.dechunk;
        let tail = &mut *self.tail;
        let used = self
            .framing
            .run(bytes, |payload| {
                tail.push(payload);
                if dechunk {
                    payloads.extend_from_slice(payload);
                }
            })
            .map_err(|Malformed { .. }| Outcome::Aborted)?;
        let more = used < bytes.len();
        let out = if dechunk { &payloads } else { bytes.get(..used).unwrap_or(bytes) };
        if out.is_empty() {
            return Ok(Step { rest: Vec::new(), more });
        }
        let sent = match write(out) {
            Ok(sent) => sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(_) => return Err(Outcome::ClientGone),
        };
        Ok(Step { rest: out.get(sent..).unwrap_or_default().to_vec(), more })
    }
}
