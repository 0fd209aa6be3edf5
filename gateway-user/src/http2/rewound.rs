//! A stream of which the beginning has been read already.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Reads first what has been read, and then on.
#[derive(Debug)]
pub(super) struct Rewound<T> {
    read: Vec<u8>,
    rest: T,
}

impl<T> Rewound<T> {
    /// `read` came before what `rest` gives.
    pub(super) fn new(read: Vec<u8>, rest: T) -> Self {
        Self { read, rest }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Rewound<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { read, rest } = self.get_mut();
        if read.is_empty() {
            return Pin::new(rest).poll_read(context, buffer);
        }
        let count = read.len().min(buffer.remaining());
        buffer.put_slice(read.get(..count).unwrap_or_default());
        match count == read.len() {
            true => *read = Vec::new(),
            false => drop(read.drain(..count)),
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Rewound<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().rest).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().rest).poll_write_vectored(context, parts)
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
            let mut stream = Rewound::new(b"abcde".to_vec(), &b"fgh"[..]);
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
