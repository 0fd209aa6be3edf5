//! A stream of which the beginning has been read already, and of which it is known since when it takes nothing, and
//! whether the client misuses it.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::frames::Frames;

/// Reads first what has been read, and then on.
#[derive(Debug)]
pub(super) struct Watched<T> {
    read: Vec<u8>,
    rest: T,
    stalled: Rc<Cell<Option<Instant>>>,
    frames: Frames,
    misused: Rc<Notify>,
}

impl<T> Watched<T> {
    /// `read` came before what `rest` gives, and begins with a preface of `preface` bytes.
    pub(super) fn new(read: Vec<u8>, rest: T, preface: usize) -> Self {
        let (stalled, misused) = Default::default();
        Self { read, rest, stalled, frames: Frames::new(preface), misused }
    }

    /// Since when it has taken nothing of what is to be written, if that is so.
    pub(super) fn stalled(&self) -> Rc<Cell<Option<Instant>>> {
        Rc::clone(&self.stalled)
    }

    /// Told once the client uses a stream that it has reset.
    pub(super) fn misused(&self) -> Rc<Notify> {
        Rc::clone(&self.misused)
    }

    fn note<R>(&self, written: &Poll<R>) {
        self.stalled.set(match written {
            Poll::Ready(_) => None,
            Poll::Pending => self.stalled.get().or_else(|| Some(Instant::now())),
        });
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { read, rest, frames, misused, .. } = self.get_mut();
        let before = buffer.filled().len();
        if read.is_empty() {
            let polled = Pin::new(rest).poll_read(context, buffer);
            if frames.push(buffer.filled().get(before..).unwrap_or_default()) {
                misused.notify_one();
            }
            return polled;
        }
        let count = read.len().min(buffer.remaining());
        let piece = read.get(..count).unwrap_or_default();
        buffer.put_slice(piece);
        if frames.push(piece) {
            misused.notify_one();
        }
        match count == read.len() {
            true => *read = Vec::new(),
            false => drop(read.drain(..count)),
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.rest).poll_write(context, bytes);
        this.note(&written);
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.rest).poll_write_vectored(context, parts);
        this.note(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.rest.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().rest).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().rest).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn what_was_read_comes_first_in_pieces_of_any_size() {
        for size in 1..8 {
            let mut stream = Watched::new(b"abcde".to_vec(), &b"fgh"[..], 0);
            let mut all = Vec::new();
            let mut piece = vec![0; size];
            loop {
                match stream.read(&mut piece).await.unwrap() {
                    0 => break,
                    count => all.extend_from_slice(&piece[..count]),
                }
            }
            assert_eq!(all, b"abcdefgh", "{size}");
        }
    }
}
