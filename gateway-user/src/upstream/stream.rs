//! What a pod's bytes come and go by: its socket, or TLS over that.
//!
//! One task reads and writes a pod, so that what both sides of TLS share is borrowed for the length of a poll, and by
//! nobody else then.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncBufRead as _, AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio_rustls::client::TlsStream;

use crate::client::write_all;
use crate::tls::PodTls;

/// What a pod's bytes come and go by.
#[derive(Debug)]
pub enum Stream {
    /// HTTP/1.1 in clear text.
    Plain(TcpStream),
    /// HTTP/1.1 over TLS.
    Tls(Box<RefCell<TlsStream<TcpStream>>>),
}

/// The reading side.
#[derive(Debug)]
pub enum Reader<'a> {
    /// See [`Stream::Plain`].
    Plain(ReadHalf<'a>),
    /// See [`Stream::Tls`].
    Tls(&'a RefCell<TlsStream<TcpStream>>),
}

/// The writing side.
#[derive(Debug)]
pub enum Writer<'a> {
    /// See [`Stream::Plain`].
    Plain(WriteHalf<'a>),
    /// See [`Stream::Tls`].
    Tls(&'a RefCell<TlsStream<TcpStream>>),
}

impl Stream {
    /// What is spoken with the pod at `address`, over a connection that has just been made.
    ///
    /// # Errors
    /// See [`PodTls::connect`].
    pub async fn begin(
        stream: TcpStream,
        address: SocketAddr,
        tls: Option<&PodTls>,
    ) -> io::Result<Self> {
        match tls {
            None => Ok(Self::Plain(stream)),
            Some(tls) => {
                let stream = tls.connect(address, stream).await?;
                Ok(Self::Tls(Box::new(RefCell::new(stream))))
            }
        }
    }

    /// Both sides.
    pub fn split(&mut self) -> (Reader<'_>, Writer<'_>) {
        match self {
            Self::Plain(stream) => {
                let (reader, writer) = stream.split();
                (Reader::Plain(reader), Writer::Plain(writer))
            }
            Self::Tls(stream) => (Reader::Tls(stream), Writer::Tls(stream)),
        }
    }

    /// The socket, where its bytes are the pod's own.
    pub fn into_plain(self) -> Option<TcpStream> {
        match self {
            Self::Plain(stream) => Some(stream),
            Self::Tls(_) => None,
        }
    }

    /// Whether nothing has arrived since the last answer: neither the connection's end nor bytes that belong to no
    /// request. Costs a system call only when the kernel has reported something.
    pub fn is_quiet(&mut self) -> bool {
        match self {
            Self::Plain(stream) => {
                let read = stream.try_read(&mut [0]);
                matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
            }
            // Of what TLS says on its own account, such as tickets, nothing comes out.
            Self::Tls(stream) => {
                let mut context = Context::from_waker(Waker::noop());
                Pin::new(stream.get_mut()).poll_fill_buf(&mut context).is_pending()
            }
        }
    }
}

impl Reader<'_> {
    /// Waits until there is something to be read: an answer, or the connection's end.
    pub async fn readable(&self) {
        match self {
            Self::Plain(half) => {
                // Reading tells what is wrong, if something is.
                let _ = half.readable().await;
            }
            Self::Tls(stream) => {
                poll_fn(|context| {
                    let mut stream = stream.borrow_mut();
                    Pin::new(&mut *stream).poll_fill_buf(context).map(drop)
                })
                .await;
            }
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
        }
    }
}

impl Writer<'_> {
    /// Writes everything, in order.
    pub async fn write_all(&self, parts: [&[u8]; 2]) -> io::Result<()> {
        let stream = match self {
            Self::Plain(half) => return write_all(half, parts).await,
            Self::Tls(stream) => stream,
        };
        let [mut first, mut second] = parts;
        while !first.is_empty() || !second.is_empty() {
            let write = |context: &mut Context<'_>| {
                let parts = [IoSlice::new(first), IoSlice::new(second)];
                Pin::new(&mut *stream.borrow_mut()).poll_write_vectored(context, &parts)
            };
            let count = poll_fn(write).await?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            let of_first = count.min(first.len());
            first = first.get(of_first..).unwrap_or_default();
            second = second.get(count - of_first..).unwrap_or_default();
        }
        poll_fn(|context| Pin::new(&mut *stream.borrow_mut()).poll_flush(context)).await
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream.get_mut()).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream.get_mut()).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream.get_mut()).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream.get_mut()).poll_shutdown(context),
        }
    }
}
