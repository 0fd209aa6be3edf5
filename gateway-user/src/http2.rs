//! HTTP/2: each of a connection's requests goes through the same phases as one of HTTP/1.1, as a [`Client`] of
//! its own whose bytes come and go by an [`Channel`].
//!
//! The frames are the `h2` crate's, which hyper stands on, used directly: an answer is written as the client's
//! window takes it, and a client that resets a request is seen at once. What a head may say is decided where
//! it is for HTTP/1.1 ([`crate::request::head`]), so that no rule exists twice.

mod channel;
mod frames;
mod head;
mod watched;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tracing::debug;

pub use self::channel::Channel;
use self::watched::Watched;
use crate::client::Client;
use crate::connection::{Inlet, answer};

/// Whether a connection begins as HTTP/2 does. `None`: as far as it has come.
pub fn begins(input: &[u8]) -> Option<bool> {
    match PREFACE.get(..input.len()) {
        Some(start) if start == input && input.len() < PREFACE.len() => None,
        _ => Some(input.starts_with(PREFACE)),
    }
}

/// Serves a connection until it ends. `read` is what has been read of it; its first request is due as one of HTTP/1.1
/// would be.
pub async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    read: Vec<u8>,
    due: Instant,
    inlet: Inlet,
) {
    let worker = Rc::clone(&inlet.worker);
    converse(Watched::new(read, &mut stream, PREFACE.len()), due, inlet).await;
    // Closing with something unread would reset the connection, and the reset can overtake the last answer.
    let drain = async {
        let mut seen = 0;
        while seen < FAREWELL_BYTES {
            match worker.scratch.read(&mut stream, |_| {}).await {
                Ok(0) | Err(_) => return,
                Ok(count) => seen += count,
            }
        }
    };
    // Either way the connection is dropped next.
    let _ = timeout(FAREWELL, drain).await;
}

async fn converse<T: AsyncRead + AsyncWrite + Unpin>(
    stream: Watched<T>,
    due: Instant,
    inlet: Inlet,
) {
    let worker = &*inlet.worker;
    let limits = worker.limits();
    let (stalled, misused) = (stream.stalled(), stream.misused());
    let mut builder = Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(limits.max_streams)
        .max_header_list_size(most_header_bytes(limits.max_head_bytes))
        .max_send_buffer_size(SEND_BUFFER);
    let handshake = builder.handshake::<_, Bytes>(stream);
    let Ok(Ok(mut connection)) = timeout_at(due, handshake).await else { return };
    let once = inlet.exclusive.as_ref().is_some_and(|exclusive| exclusive.once);
    let open = Open::default();
    let (mut begun, mut closing) = (false, None);
    let tick = sleep_until(due);
    tokio::pin!(tick);
    loop {
        tokio::select! {
            biased;
            accepted = connection.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    begun = true;
                    spawn_local(exchange(request, respond, inlet.clone(), open.another()));
                    if once {
                        connection.graceful_shutdown();
                        closing = closing.or(Some(Instant::now()));
                        tick.as_mut().reset(Instant::now() + FAREWELL);
                    }
                }
                Some(Err(error)) => {
                    debug!("an HTTP/2 connection ended: {error}");
                    return;
                }
                None => return,
            },
            () = misused.notified() => {
                connection.abrupt_shutdown(Reason::STREAM_CLOSED);
                closing = closing.or(Some(Instant::now()));
                tick.as_mut().reset(Instant::now() + FAREWELL);
            }
            // After a takeover as well: a client that is told to go has its requests answered all the same.
            () = worker.closing(), if closing.is_none() => {
                connection.graceful_shutdown();
                closing = Some(Instant::now());
                tick.as_mut().reset(Instant::now() + FAREWELL);
            }
            () = &mut tick => {
                let now = Instant::now();
                let has = |since: Instant, patience| since + patience <= now;
                if stalled.get().is_some_and(|since| has(since, limits.stream_idle_timeout)) {
                    // It takes nothing: what is held for it is held in vain.
                    return;
                }
                let idle = open.idle_since();
                match closing {
                    // It does not answer, or does not take what h2 holds for it.
                    Some(since) if idle.is_some_and(|idle| has(idle.max(since), FAREWELL)) => return,
                    Some(_) => {}
                    None if !begun || idle.is_some_and(|idle| has(idle, limits.idle_timeout)) => {
                        connection.graceful_shutdown();
                        closing = Some(now);
                    }
                    None => {}
                }
                tick.as_mut().reset(match (closing, open.idle_since()) {
                    (None, Some(idle)) => idle + limits.idle_timeout,
                    (None, None) => now + limits.stream_idle_timeout.min(TICK),
                    (Some(_), _) => now + FAREWELL / 2,
                });
            }
        }
    }
}

/// One request.
async fn exchange(
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    inlet: Inlet,
    _open: Opened,
) {
    let (parts, body) = request.into_parts();
    let head = head::read(&parts, body.is_end_stream(), inlet.worker.limits().max_head_bytes);
    let mut client = Client::http2(Channel::new(body, respond));
    answer(&mut client, head, &inlet).await;
    client.end(&inlet.worker.scratch, inlet.worker.limits().stream_idle_timeout).await;
}

/// Beyond so many h2 answers by itself, with a status and no word, uncounted: so it is well beyond what a client may send
/// by mistake. One head for each connection can take as much, and only while it comes.
fn most_header_bytes(max_head_bytes: usize) -> u32 {
    u32::try_from((2 * max_head_bytes).max(LEAST_HEADER_BYTES)).unwrap_or(u32::MAX)
}

/// The requests of a connection that are under way.
#[derive(Clone)]
struct Open(Rc<(Cell<usize>, Cell<Instant>)>);

/// One of them.
struct Opened(Open);

impl Open {
    fn another(&self) -> Opened {
        self.0.0.set(self.0.0.get() + 1);
        Opened(self.clone())
    }

    /// When the last one ended, if none is under way.
    fn idle_since(&self) -> Option<Instant> {
        (self.0.0.get() == 0).then(|| self.0.1.get())
    }
}

impl Default for Open {
    fn default() -> Self {
        Self(Rc::new((Cell::new(0), Cell::new(Instant::now()))))
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let (count, ended) = &*self.0.0;
        count.set(count.get().saturating_sub(1));
        ended.set(Instant::now());
    }
}

/// RFC 9113 section 3.4: what every HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes of one request's body that may come before they are read: a prompt of 220 KB in one flight.
const STREAM_WINDOW: u32 = 1 << 20;

/// The same for all of a connection's requests together.
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Header fields, each with 32 bytes more than it has (RFC 9113 section 6.5.2): 10,000 short ones are half of it.
const LEAST_HEADER_BYTES: usize = 1 << 20;

/// Bytes of one answer that h2 may hold; more is written as the client takes it.
const SEND_BUFFER: usize = 64 * 1024;

/// How long a client that has been told to go, and has nothing under way, may take for the rest.
const FAREWELL: Duration = Duration::from_secs(5);

/// How much it may still say then.
const FAREWELL_BYTES: usize = 64 * 1024 * 1024;

/// How often it is looked whether a client still takes what it asked for.
const TICK: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preface_is_told_from_other_beginnings() {
        for at in 0..PREFACE.len() {
            assert_eq!(begins(&PREFACE[..at]), None, "{at}");
            let mut other = PREFACE[..=at].to_vec();
            other[at] ^= 1;
            assert_eq!(begins(&other), Some(false), "{at}");
        }
        assert_eq!(begins(PREFACE), Some(true));
        assert_eq!(begins(&[PREFACE, b"\0\0"].concat()), Some(true));
        assert_eq!(begins(b"POST / HTTP/1.1\r\n"), Some(false));
    }
}
