//! The client's connection: reading without a buffer of its own while idle, writing, and seeing it
//! leave.
//!
//! Closing it resets it, unless it is dropped in order: the kernel closes the connections of a
//! process that is killed, and a client whose answer ends with the connection would take an orderly
//! end for the end of the answer.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead as _, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep, timeout};

use crate::kernel::{self, Receiver};

/// A client's connection, with what it has sent and nobody has read yet.
#[derive(Debug)]
pub struct Client {
    /// The socket.
    pub stream: TcpStream,
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

/// The client's side of an answer: writes, and counts what was written.
#[derive(Debug)]
pub struct Writer<'a> {
    half: WriteHalf<'a>,
    sent: &'a Cell<u64>,
}

/// A worker's buffer for reads that are handled before the next await: one for all its connections.
#[derive(Debug)]
pub struct Scratch(RefCell<Box<[u8]>>);

impl Client {
    /// A connection just accepted.
    pub fn new(stream: TcpStream) -> Self {
        // Failing leaves an ordinary close, all that is possible then.
        let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        let (input, sent) = (Vec::new(), Cell::new(0));
        Self { stream, input, answering: false, sent, receiver: None, ending: Ending::Orderly }
    }

    /// Waits for bytes and appends them to `input`. `false`: the client sends no more.
    pub async fn fill(&mut self, scratch: &Scratch) -> io::Result<bool> {
        let Self { stream, input, .. } = self;
        let (mut reader, _) = stream.split();
        let count = scratch.read(&mut reader, |bytes| input.extend_from_slice(bytes)).await?;
        Ok(count > 0)
    }

    /// Writes everything.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Self { stream, sent, .. } = self;
        let (_, half) = stream.split();
        Writer::new(half, sent).write_all([bytes, &[]]).await
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
            Ending::Broken => self.delivered(patience).await,
            Ending::Abandoned => {}
        }
    }

    /// Reads and throws away until the client ends or `most` bytes or `within` have passed, after
    /// sending our own end. Closing with bytes unread would reset the connection, and the reset can
    /// overtake the answer.
    pub async fn linger(&mut self, scratch: &Scratch, most: usize, within: Duration) {
        let socket = socket2::SockRef::from(&self.stream);
        if socket.shutdown(std::net::Shutdown::Write).is_err() {
            return;
        }
        let (mut reader, _) = self.stream.split();
        let drain = async {
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
    async fn delivered(&self, patience: Duration) {
        let mut least = u64::MAX;
        let mut deadline = Instant::now() + patience;
        // Of a connection that is gone, the queue's length tells nothing.
        while matches!(self.stream.take_error(), Ok(None)) {
            let left = kernel::outstanding(&self.stream).unwrap_or(0);
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
    }
}

impl<'a> Writer<'a> {
    /// Counts into `sent`.
    pub fn new(half: WriteHalf<'a>, sent: &'a Cell<u64>) -> Self {
        Self { half, sent }
    }

    /// Writes what the socket takes at once.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.half.try_write(bytes)?;
        self.count(count as u64);
        Ok(count)
    }

    /// Writes everything, in order.
    pub async fn write_all(&self, parts: [&[u8]; 2]) -> io::Result<()> {
        write_counted(&self.half, parts, |count| self.count(count as u64)).await
    }

    /// Counts what somebody else has written.
    pub fn count(&self, bytes: u64) {
        self.sent.set(self.sent.get().wrapping_add(bytes));
    }

    /// Bytes written since the connection was accepted.
    pub fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// The socket.
    pub fn socket(&self) -> &TcpStream {
        self.half.as_ref()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !self.answering && self.ending == Ending::Orderly {
            // What has been written is still delivered then.
            let _ = socket2::SockRef::from(&self.stream).set_linger(None);
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
        reader: &mut ReadHalf<'_>,
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
}

impl Scratch {
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

/// Returns once the client has left: closed, half-closed or reset. What it sends meanwhile, a
/// pipelined request, is kept in `input`.
///
/// A half-close counts as leaving: model servers take it so, and no client of theirs does it
/// otherwise.
pub async fn gone(reader: &mut ReadHalf<'_>, input: &mut Vec<u8>, scratch: &Scratch) {
    while input.len() < MAX_PIPELINED {
        if !matches!(scratch.read(reader, |bytes| input.extend_from_slice(bytes)).await, Ok(1..)) {
            return;
        }
    }
    // Nothing more is read, so the end shows only in the socket's state.
    loop {
        match reader.ready(Interest::READABLE).await {
            Ok(ready) if !ready.is_read_closed() => sleep(GONE_POLL).await,
            _ => return,
        }
    }
}

/// Whether the client has left by now, as far as the kernel knows. What [`gone`] waits for shows there
/// before it shows in readiness.
pub fn has_left(stream: &TcpStream) -> bool {
    let mut byte = [std::mem::MaybeUninit::uninit()];
    match socket2::SockRef::from(stream).peek(&mut byte) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
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

/// Fills one read: a TCP segment of loopback is at most this.
const SCRATCH: usize = 64 * 1024;

/// Bytes of pipelined requests that are kept for a connection whose answer is under way.
const MAX_PIPELINED: usize = 64 * 1024;

/// How much of a request that is not wanted is read and thrown away, so that the answer reaches the
/// client.
const LINGER_BYTES: usize = 64 * 1024 * 1024;

/// How long that may take.
const LINGER: Duration = Duration::from_secs(2);

/// How often it is looked how much of a broken answer is still to be delivered.
const DELIVERY_POLL: Duration = Duration::from_millis(10);

/// How often the end of a connection is looked for when its pipelined requests fill the buffer.
const GONE_POLL: Duration = Duration::from_millis(50);
