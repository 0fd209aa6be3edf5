//! The client's connection: reading without a buffer of its own while idle, writing, and seeing it
//! leave.
//!
//! Closing it resets it, unless it is dropped in order: the kernel closes the connections of a
//! process that is killed, and a client whose answer ends with the connection would take an orderly
//! end for the end of the answer.

mod stream;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

pub use self::stream::{Reader, Stream, Writer, write_all};
use crate::http2::Channel;
use crate::kernel::{self, Receiver};

/// A client's connection, or one request of it on HTTP/2, with what it has sent and nobody has read yet.
#[derive(Debug)]
pub struct Client {
    /// What its bytes come and go by.
    pub stream: Stream,
    /// Bytes read and not consumed. Empty, and without memory, between requests.
    pub input: Vec<u8>,
    /// An answer is under way: dropped now, as when the daemon stops, the connection is reset.
    pub answering: bool,
    /// Bytes that were written to it, by the daemon or by the kernel.
    pub sent: Cell<u64>,
    /// The kernel can write to it.
    pub receiver: Option<Receiver>,
    ending: Ending,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Ending {
    /// In good order.
    Orderly,
    /// By a reset, when all that was written is delivered.
    Broken,
    /// By a reset, at once.
    Abandoned,
}

/// A worker's buffer for reads that are handled before the next await: one for all its connections.
#[derive(Debug)]
pub struct Scratch(RefCell<Box<[u8]>>);

impl Client {
    /// A connection of HTTP/1.1 of which `input` has been read.
    pub fn new(mut stream: Stream, input: Vec<u8>) -> Self {
        stream.reset_on_close(true);
        let sent = Cell::new(0);
        Self { stream, input, answering: false, sent, receiver: None, ending: Ending::Orderly }
    }

    /// The client of one request on an HTTP/2 connection.
    pub fn http2(channel: Channel) -> Self {
        Self::new(Stream::Http2(Box::new(RefCell::new(channel))), Vec::new())
    }

    /// Waits for bytes and appends them to `input`. `false`: the client sends no more.
    pub async fn fill(&mut self, scratch: &Scratch) -> io::Result<bool> {
        let Self { stream, input, .. } = self;
        let count =
            scratch.read(&mut stream.reader(), |bytes| input.extend_from_slice(bytes)).await?;
        Ok(count > 0)
    }

    /// Writes everything.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (_, writer) = self.stream.split(&self.sent);
        writer.write_all(bytes).await
    }

    /// Takes consumed bytes off the front of `input`, and gives the memory back when nothing is
    /// left.
    pub fn consume(&mut self, count: usize) {
        if count >= self.input.len() {
            self.input = Vec::new();
        } else {
            self.input.drain(..count);
        }
    }

    /// Ends the connection such that all that was written is delivered, in order, before its end is seen.
    /// `patience` is for a client that takes nothing.
    pub async fn end(&mut self, scratch: &Scratch, patience: Duration) {
        match self.ending {
            Ending::Orderly => self.linger(scratch, LINGER_BYTES, LINGER).await,
            // A reset takes along what has not been sent.
            Ending::Broken => match &mut self.stream {
                Stream::Http2(channel) => channel.get_mut().reset_behind().await,
                _ => self.delivered(patience).await,
            },
            Ending::Abandoned => {}
        }
    }

    /// Says over TLS that the connection ends here, where nothing is under way and nothing unread.
    pub async fn close(&mut self) {
        if let Stream::Tls(_) = self.stream {
            // It is dropped next.
            let _ = timeout(CLOSE, self.stream.shutdown()).await;
        }
    }

    /// Reads and throws away until the client ends or `most` bytes or `within` have passed, after
    /// sending our own end. Closing with bytes unread would reset the connection, and the reset can
    /// overtake the answer. Of HTTP/2 it is the request that would be reset, and curl then shows no answer.
    pub async fn linger(&mut self, scratch: &Scratch, most: usize, within: Duration) {
        let drain = async {
            if self.stream.shutdown().await.is_err() {
                return;
            }
            let mut reader = self.stream.reader();
            let mut seen = 0;
            while seen < most {
                match scratch.read(&mut reader, |_| {}).await {
                    Ok(0) | Err(_) => break,
                    Ok(count) => seen += count,
                }
            }
        };
        // Either way the connection is dropped next.
        let _ = timeout(within, drain).await;
    }

    /// Waits until the client's host has acknowledged all that was written, or nothing more for `patience`.
    async fn delivered(&mut self, patience: Duration) {
        let mut least = u64::MAX;
        let mut deadline = Instant::now() + patience;
        // Of a connection that is gone, the queue's length tells nothing.
        while let Some(socket) = self.stream.socket()
            && matches!(socket.take_error(), Ok(None))
        {
            let left = kernel::outstanding(socket).unwrap_or(0);
            if left == 0 || Instant::now() >= deadline {
                return;
            }
            if left < least {
                (least, deadline) = (left, Instant::now() + patience);
            }
            sleep(DELIVERY_POLL).await;
        }
    }

    /// Makes the coming close a reset, so that a client that takes the end of the connection for
    /// the end of the body sees that it was cut. `deliver`: of what was written, nothing may be lost by that.
    pub fn reset_on_close(&mut self, deliver: bool) {
        self.ending = if deliver { Ending::Broken } else { Ending::Abandoned };
        if let (Stream::Http2(channel), false) = (&mut self.stream, deliver) {
            channel.get_mut().reset();
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !self.answering && self.ending == Ending::Orderly {
            // What has been written is still delivered then.
            self.stream.reset_on_close(false);
        }
    }
}

impl Scratch {
    /// A buffer of the size that one read can fill.
    pub fn new() -> Self {
        Self(RefCell::new(vec![0; SCRATCH].into_boxed_slice()))
    }

    /// Waits for bytes, reads once and hands them on. 0 is the end of the stream. Dropped while it
    /// waits, it has read nothing.
    ///
    /// One poll, and not readiness first and a read then: so tokio sees a short read, knows that
    /// nothing is left, and the next call waits without asking the kernel in vain.
    pub async fn read(
        &self,
        reader: &mut (impl AsyncRead + Unpin),
        mut take: impl FnMut(&[u8]),
    ) -> io::Result<usize> {
        poll_fn(|context| {
            let mut memory = self.0.borrow_mut();
            let mut buffer = ReadBuf::new(&mut memory);
            ready!(Pin::new(&mut *reader).poll_read(context, &mut buffer))?;
            take(buffer.filled());
            Poll::Ready(Ok(buffer.filled().len()))
        })
        .await
    }

    /// Reads once, without waiting, and hands the bytes on. 0 is the end of the stream.
    pub fn try_read(&self, stream: &TcpStream, mut take: impl FnMut(&[u8])) -> io::Result<usize> {
        let mut memory = self.0.borrow_mut();
        let count = stream.try_read(&mut memory)?;
        take(memory.get(..count).unwrap_or_default());
        Ok(count)
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

/// Fills one read: a TCP segment of loopback is at most this.
const SCRATCH: usize = 64 * 1024;

/// How much of a request that is not wanted is read and thrown away, so that the answer reaches the
/// client.
const LINGER_BYTES: usize = 64 * 1024 * 1024;

/// How long that may take.
const LINGER: Duration = Duration::from_secs(2);

/// How long a client may take to take the end of TLS.
const CLOSE: Duration = Duration::from_secs(1);

/// How often it is looked how much of a broken answer is still to be delivered.
const DELIVERY_POLL: Duration = Duration::from_millis(10);
