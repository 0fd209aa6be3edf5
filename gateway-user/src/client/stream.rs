//! What a client's bytes come and go by: its socket, TLS over that, or one stream of an HTTP/2 connection.
//!
//! One task reads and writes a client, so that what both sides of TLS or HTTP/2 share is borrowed for the length
//! of a poll, and by nobody else then.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BufMut;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::sleep;
use tokio_rustls::server::TlsStream;

use super::Scratch;
use crate::http2::Channel;
use crate::metrics::PathReason;

/// What a client's bytes come and go by.
#[derive(Debug)]
pub enum Stream {
    /// HTTP/1.1 in clear text.
    Plain(TcpStream),
    /// HTTP/1.1 over TLS.
    Tls(Box<RefCell<TlsStream<TcpStream>>>),
    /// One request of an HTTP/2 connection.
    Http2(Box<RefCell<Channel>>),
}

/// The reading side.
#[derive(Debug)]
pub enum Reader<'a> {
    /// See [`Stream::Plain`].
    Plain(ReadHalf<'a>),
    /// See [`Stream::Tls`].
    Tls(&'a RefCell<TlsStream<TcpStream>>),
    /// See [`Stream::Http2`].
    Http2(&'a RefCell<Channel>),
}

/// The writing side: writes, and counts what was written.
#[derive(Debug)]
pub struct Writer<'a> {
    half: Half<'a>,
    sent: &'a Cell<u64>,
}

#[derive(Debug)]
enum Half<'a> {
    Plain(WriteHalf<'a>),
    Tls(&'a RefCell<TlsStream<TcpStream>>),
    Http2(&'a RefCell<Channel>),
}

impl Stream {
    /// Both sides; what is written counts into `sent`.
    pub fn split<'a>(&'a mut self, sent: &'a Cell<u64>) -> (Reader<'a>, Writer<'a>) {
        let (reader, half) = match self {
            Self::Plain(stream) => {
                let (reader, half) = stream.split();
                (Reader::Plain(reader), Half::Plain(half))
            }
            Self::Tls(stream) => (Reader::Tls(stream), Half::Tls(stream)),
            Self::Http2(channel) => (Reader::Http2(channel), Half::Http2(channel)),
        };
        (reader, Writer { half, sent })
    }

    /// The reading side alone.
    pub fn reader(&mut self) -> Reader<'_> {
        match self {
            Self::Plain(stream) => Reader::Plain(stream.split().0),
            Self::Tls(stream) => Reader::Tls(stream),
            Self::Http2(channel) => Reader::Http2(channel),
        }
    }

    /// Reads once, straight into `to`. 0 is the end of the stream.
    pub async fn read_into(&mut self, to: &mut impl BufMut) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read_buf(to).await,
            Self::Tls(stream) => stream.get_mut().read_buf(to).await,
            Self::Http2(channel) => {
                poll_fn(|context| channel.get_mut().poll_read(context, to)).await
            }
        }
    }

    /// The connection that is this client's alone, if it has one.
    pub fn socket(&mut self) -> Option<&TcpStream> {
        match self {
            Self::Plain(stream) => Some(stream),
            Self::Tls(stream) => Some(stream.get_mut().get_ref().0),
            Self::Http2(_) => None,
        }
    }

    /// Has the kernel reset the connection when it is closed, as it is when the process is killed, or end it in order.
    pub fn reset_on_close(&mut self, reset: bool) {
        if let Some(socket) = self.socket() {
            // Failing leaves an ordinary close, all that is possible then.
            let _ = socket2::SockRef::from(socket).set_linger(reset.then_some(Duration::ZERO));
        }
    }

    /// The socket, if the kernel can write an answer to it as it is, or why not.
    pub fn for_kernel(&self) -> Result<&TcpStream, PathReason> {
        match self {
            Self::Plain(stream) => Ok(stream),
            Self::Tls(_) => Err(PathReason::Tls),
            Self::Http2(_) => Err(PathReason::Http2),
        }
    }

    /// Says that nothing more will be written.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => {
                socket2::SockRef::from(&*stream).shutdown(std::net::Shutdown::Write)
            }
            Self::Tls(stream) => {
                poll_fn(|context| Pin::new(stream.get_mut()).poll_shutdown(context)).await
            }
            Self::Http2(channel) => channel.get_mut().finish(),
        }
    }
}

impl AsyncRead for Reader<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(half) => Pin::new(half).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(&mut *stream.borrow_mut()).poll_read(context, buffer),
            Self::Http2(channel) => channel.borrow_mut().poll_read(context, buffer).map_ok(drop),
        }
    }
}

impl Reader<'_> {
    /// Returns once the client has left: closed, half-closed or reset. What it sends meanwhile, a pipelined
    /// request, is kept in `input`.
    ///
    /// A half-close counts as leaving: model servers take it so, and no client of theirs does it
    /// otherwise. On HTTP/2, where it ends every request, only a reset does.
    pub async fn gone(&mut self, input: &mut Vec<u8>, scratch: &Scratch) {
        if let Self::Http2(channel) = self {
            return poll_fn(|context| channel.borrow_mut().poll_reset(context)).await;
        }
        while input.len() < MAX_PIPELINED {
            let read = scratch.read(self, |bytes| input.extend_from_slice(bytes)).await;
            if !matches!(read, Ok(1..)) {
                return;
            }
        }
        // Nothing more is read, so the end shows only in the socket's state.
        while !self.has_hung_up() {
            sleep(GONE_POLL).await;
        }
    }

    fn has_hung_up(&self) -> bool {
        let hung_up = |stream: &TcpStream| {
            let mut socket = [PollFd::new(stream, PollFlags::RDHUP)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            // What is asked of one socket is about that one.
            poll(&mut socket, Some(&now)) != Ok(0)
        };
        match self {
            Self::Plain(half) => hung_up(half.as_ref()),
            Self::Tls(stream) => hung_up(stream.borrow().get_ref().0),
            Self::Http2(_) => false,
        }
    }
}

impl Writer<'_> {
    /// Writes what is taken at once.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let count = match &self.half {
            Half::Plain(half) => half.try_write(bytes)?,
            // What TLS has taken may need to be waited for.
            Half::Tls(_) => return Err(io::ErrorKind::WouldBlock.into()),
            Half::Http2(channel) => channel.borrow_mut().try_write(bytes)?,
        };
        self.count(count as u64);
        Ok(count)
    }

    /// Writes everything, in order. Dropped while it waits, what has been written is counted.
    pub async fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match &self.half {
            Half::Plain(half) => {
                write_counted(half, [bytes, &[]], |count| self.count(count as u64)).await
            }
            Half::Tls(stream) => {
                let mut rest = bytes;
                while !rest.is_empty() {
                    let write = |context: &mut Context<'_>| {
                        Pin::new(&mut *stream.borrow_mut()).poll_write(context, rest)
                    };
                    let count = poll_fn(write).await?;
                    if count == 0 {
                        return Err(io::ErrorKind::WriteZero.into());
                    }
                    self.count(count as u64);
                    rest = rest.get(count..).unwrap_or_default();
                }
                poll_fn(|context| Pin::new(&mut *stream.borrow_mut()).poll_flush(context)).await
            }
            Half::Http2(channel) => {
                let mut rest = bytes;
                while !rest.is_empty() {
                    let count =
                        poll_fn(|context| channel.borrow_mut().poll_write(context, rest)).await?;
                    self.count(count as u64);
                    rest = rest.get(count..).unwrap_or_default();
                }
                Ok(())
            }
        }
    }

    /// Counts what somebody else has written.
    pub fn count(&self, bytes: u64) {
        self.sent.set(self.sent.get().wrapping_add(bytes));
    }

    /// Bytes written since the connection was accepted.
    pub fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// The socket, where it takes an answer as it is.
    pub fn socket(&self) -> Option<&TcpStream> {
        match &self.half {
            Half::Plain(half) => Some(half.as_ref()),
            Half::Tls(_) | Half::Http2(_) => None,
        }
    }

    /// Whether the client has left by now, as far as the kernel knows. What [`Reader::gone`] waits for shows there
    /// before it shows in readiness.
    pub fn has_left(&self) -> bool {
        match &self.half {
            Half::Plain(half) => has_left(half.as_ref()),
            Half::Tls(stream) => has_left(stream.borrow().get_ref().0),
            Half::Http2(channel) => channel.borrow_mut().is_reset(),
        }
    }
}

/// Writes everything, in order.
pub async fn write_all(writer: &WriteHalf<'_>, parts: [&[u8]; 2]) -> io::Result<()> {
    write_counted(writer, parts, |_| {}).await
}

/// Dropped while it waits, what has been written is counted.
async fn write_counted(
    writer: &WriteHalf<'_>,
    parts: [&[u8]; 2],
    counted: impl Fn(usize),
) -> io::Result<()> {
    let [mut first, mut second] = parts;
    while !first.is_empty() || !second.is_empty() {
        let count = match writer.try_write_vectored(&[IoSlice::new(first), IoSlice::new(second)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                writer.writable().await?;
                continue;
            }
            Err(error) => return Err(error),
        };
        counted(count);
        let of_first = count.min(first.len());
        first = first.get(of_first..).unwrap_or_default();
        second = second.get(count - of_first..).unwrap_or_default();
    }
    Ok(())
}

fn has_left(stream: &TcpStream) -> bool {
    let mut byte = [std::mem::MaybeUninit::uninit()];
    match socket2::SockRef::from(stream).peek(&mut byte) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

/// Bytes of pipelined requests that are kept for a connection whose answer is under way.
const MAX_PIPELINED: usize = 64 * 1024;

/// How often the end of a connection is looked for when its pipelined requests fill the buffer.
const GONE_POLL: Duration = Duration::from_millis(50);
