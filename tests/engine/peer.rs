//! The client's end of a connection: reads, writes, and notices when the client leaves.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::BytesMut;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until};

use super::faults::Faults;
use super::pod::{Pod, Submitted};
use super::wire;

/// Why a connection is over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Over {
    /// The client left, or broke the rules.
    Client,
    /// A fault says so.
    Fault,
}

impl From<io::Error> for Over {
    fn from(_: io::Error) -> Self {
        Self::Client
    }
}

/// A client's socket.
pub(super) struct Peer {
    socket: TcpStream,
    pod: Arc<Pod>,
    /// Read and not yet used.
    pub(super) inbox: BytesMut,
    /// Longest write, by a fault.
    pub(super) split: Option<usize>,
    /// Kept for their memory: the event being written, and its chunk.
    event: Vec<u8>,
    chunk: Vec<u8>,
}

impl Peer {
    pub(super) fn new(socket: TcpStream, pod: Arc<Pod>) -> Self {
        let (event, chunk) = (Vec::new(), Vec::new());
        Self { socket, pod, inbox: BytesMut::new(), split: None, event, chunk }
    }

    /// Writes one event in its chunk; an empty one is none.
    pub(super) async fn event(
        &mut self,
        chunked: bool,
        faults: &Faults,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Over> {
        let mut event = std::mem::take(&mut self.event);
        let mut chunk = std::mem::take(&mut self.chunk);
        event.clear();
        chunk.clear();
        put(&mut event);
        if chunked && !event.is_empty() {
            wire::put_chunk(&mut chunk, &event, faults.chunk_extensions);
        }
        let written = self.write(if chunked { &chunk } else { &event }).await;
        (self.event, self.chunk) = (event, chunk);
        written
    }

    /// Writes all of `bytes`, in one call if the socket takes them.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), Over> {
        let piece = self.split.unwrap_or(bytes.len()).max(1);
        for piece in bytes.chunks(piece) {
            let mut rest = piece;
            while !rest.is_empty() {
                match self.socket.try_write(rest) {
                    Ok(written) => {
                        self.pod.bytes_out.fetch_add(written as u64, Ordering::Relaxed);
                        self.pod.writes.fetch_add(1, Ordering::Relaxed);
                        rest = rest.get(written..).unwrap_or_default();
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        tokio::select! {
                            writable = self.socket.writable() => writable?,
                            watched = watch(&self.socket, &self.pod, &mut self.inbox) => watched?,
                        }
                    }
                    Err(_) => return Err(Over::Client),
                }
            }
            if self.split.is_some() {
                // The reader gets a chance to see this piece alone.
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Waits for news of the request; says `: keep-alive` meanwhile, if wanted.
    pub(super) async fn news(
        &mut self,
        submitted: &Submitted,
        alive: Option<Duration>,
        chunked: bool,
    ) -> Result<(), Over> {
        loop {
            let comment = async {
                match alive {
                    Some(every) => sleep(every).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = submitted.ticket.news.notified() => return Ok(()),
                watched = watch(&self.socket, &self.pod, &mut self.inbox) => watched?,
                () = comment => {
                    let healthy = Faults::default();
                    self.event(chunked, &healthy, |out| out.extend_from_slice(KEEP_ALIVE)).await?;
                }
            }
        }
    }

    pub(super) async fn pause_until(&mut self, end: Instant) -> Result<(), Over> {
        if end <= Instant::now() {
            return Ok(());
        }
        loop {
            tokio::select! {
                biased;
                () = sleep_until(end) => return Ok(()),
                watched = watch(&self.socket, &self.pod, &mut self.inbox) => watched?,
            }
        }
    }

    /// Waits until the client goes.
    pub(super) async fn gone(&mut self) -> Over {
        loop {
            if let Err(over) = self.fill().await {
                return over;
            }
            // What it still sends is of no use.
            self.inbox.clear();
        }
    }

    pub(super) async fn fill(&mut self) -> Result<(), Over> {
        fill(&self.socket, &self.pod, &mut self.inbox).await
    }

    /// Makes the end of the connection an RST.
    pub(super) fn reset(&self) {
        // A socket that cannot be set ends by FIN, and the test that wants RST says so.
        let _ = self.socket.set_zero_linger();
    }
}

/// Reads ahead while an answer is under way, to notice when the client leaves. Like uvicorn it
/// stops reading, and noticing, behind so many bytes.
async fn watch(socket: &TcpStream, pod: &Pod, inbox: &mut BytesMut) -> Result<(), Over> {
    if inbox.len() >= READ_AHEAD {
        std::future::pending::<()>().await;
    }
    fill(socket, pod, inbox).await
}

/// Reads more of what the client sends; the end of it, even of that direction only, is the end of
/// all.
async fn fill(socket: &TcpStream, pod: &Pod, inbox: &mut BytesMut) -> Result<(), Over> {
    loop {
        socket.readable().await?;
        inbox.reserve(READ);
        match socket.try_read_buf(inbox) {
            Ok(0) => return Err(Over::Client),
            Ok(read) => {
                pod.bytes_in.fetch_add(read as u64, Ordering::Relaxed);
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Err(Over::Client),
        }
    }
}

/// Comment of `--sse-keep-alive-interval`.
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";
/// Read at least so much at a time, when there is that much.
const READ: usize = 4 << 10;
/// Most bytes read ahead of an answer.
const READ_AHEAD: usize = 64 << 10;
