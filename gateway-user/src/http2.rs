//! HTTP/2: each of a connection's requests goes through the same phases as one of HTTP/1.1, as a [`Client`] of
//! its own whose bytes come and go by an [`Exchange`].
//!
//! The frames are the `h2` crate's, which hyper stands on, used directly: an answer is written as the client's
//! window takes it, and a client that resets a request is seen at once. What a head may say is decided where
//! it is for HTTP/1.1 ([`crate::request::head`]), so that no rule exists twice.

mod exchange;
mod head;
mod rewound;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use gateway_common::limits::WINDOW;
use h2::RecvStream;
use h2::server::{Builder, SendResponse};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::debug;

pub use self::exchange::Exchange;
use self::rewound::Rewound;
use crate::client::Client;
use crate::connection::{Inlet, answer};

/// Whether a connection begins as HTTP/2 does. `None`: as far as it has come.
pub fn begins(input: &[u8]) -> Option<bool> {
    match PREFACE.get(..input.len()) {
        Some(start) if start == input && input.len() < PREFACE.len() => None,
        _ => Some(input.starts_with(PREFACE)),
    }
}

/// Serves a connection until it ends. `read` is what has been read of it.
pub async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, read: Vec<u8>, inlet: Inlet) {
    let worker = Rc::clone(&inlet.worker);
    let limits = worker.limits();
    let mut builder = Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(limits.max_streams)
        .max_header_list_size(u32::try_from(limits.max_head_bytes).unwrap_or(u32::MAX))
        .max_send_buffer_size(WINDOW as usize);
    let handshake = builder.handshake::<_, Bytes>(Rewound::new(read, stream));
    let Ok(Ok(mut connection)) = timeout(limits.header_timeout, handshake).await else { return };
    let open = Open::default();
    let mut closing = false;
    // Its first request is due as soon as one of HTTP/1.1 would be.
    let idle = sleep_until(Instant::now() + limits.header_timeout);
    tokio::pin!(idle);
    loop {
        tokio::select! {
            biased;
            accepted = connection.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    spawn_local(exchange(request, respond, inlet.clone(), open.another()));
                }
                Some(Err(error)) => {
                    debug!("an HTTP/2 connection ended: {error}");
                    return;
                }
                None => return,
            },
            () = worker.stopping(), if !closing => {
                connection.graceful_shutdown();
                closing = true;
                idle.as_mut().reset(Instant::now() + FAREWELL);
            }
            () = &mut idle => {
                let patience = if closing { FAREWELL } else { limits.idle_timeout };
                match open.idle_since() {
                    Some(since) if since + patience <= Instant::now() => {
                        if closing {
                            // It does not answer.
                            return;
                        }
                        connection.graceful_shutdown();
                        closing = true;
                        idle.as_mut().reset(Instant::now() + FAREWELL);
                    }
                    Some(since) => idle.as_mut().reset(since + patience),
                    None => idle.as_mut().reset(Instant::now() + patience),
                }
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
    let mut client = Client::http2(Exchange::new(body, respond));
    answer(&mut client, head, &inlet).await;
    client.end(&inlet.worker.scratch, inlet.worker.limits().stream_idle_timeout).await;
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

/// How long a client that has been told to go, and has nothing under way, may take.
const FAREWELL: Duration = Duration::from_secs(2);

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
