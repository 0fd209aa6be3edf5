//! One kept-alive HTTP/1.1 connection to one pod, for questions one after the other.
//!
//! The connection is driven by whoever awaits here, so it needs no task of its own and is gone when
//! its owner is dropped. A pod that closes it while it is idle (vLLM and SGLang do after 5 s) is no
//! failure.

use std::error::Error as _;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Body;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST, HeaderValue, USER_AGENT};
use hyper::http::uri::PathAndQuery;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::failure::Cause;
use crate::auth::PodKey;
use crate::tls::{Fault, PodTls};
use crate::upstream::Stream;

/// How a connection is made: by TCP, or within a test.
pub(super) trait Connect {
    /// The connection.
    type Io: AsyncRead + AsyncWrite + Unpin;

    /// Makes one.
    async fn connect(&self, address: SocketAddr) -> io::Result<Self::Io>;
}

/// Over TCP, and TLS where the pod speaks that.
#[derive(Clone, Debug)]
pub(super) struct Tcp {
    pub(super) tls: Option<Arc<PodTls>>,
}

impl Connect for Tcp {
    type Io = Stream;

    async fn connect(&self, address: SocketAddr) -> io::Result<Stream> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Stream::begin(stream, address, self.tls.as_deref()).await
    }
}

/// A connection that is made when needed and kept as long as the pod keeps it.
pub(super) struct Link<C: Connect> {
    connect: C,
    address: SocketAddr,
    host: HeaderValue,
    key: Option<Arc<PodKey>>,
    open: Option<Open<C::Io>>,
    body: Vec<u8>,
}

impl<C: Connect> Link<C> {
    pub(super) fn new(
        connect: C,
        address: SocketAddr,
        host: HeaderValue,
        key: Option<Arc<PodKey>>,
    ) -> Self {
        Self { connect, address, host, key, open: None, body: Vec::new() }
    }

    /// Asks for `path`: the body of a successful answer. When dropped before its end the connection
    /// is closed.
    pub(super) async fn get(&mut self, path: PathAndQuery) -> Result<&[u8], Cause> {
        // Out of `self` for the time being, so that only a connection with a whole answer behind it
        // is kept.
        let kept = match self.open.take() {
            Some(mut open) => open.is_ready().await.then_some(open),
            None => None,
        };
        let was_kept = kept.is_some();
        let mut open = match kept {
            Some(open) => open,
            None => self.dial().await?,
        };
        let status = match open.ask(self.request(path.clone()), &mut self.body).await {
            // The pod closed it just as the question was under way.
            Err(Cause::Broken) if was_kept => {
                open = self.dial().await?;
                open.ask(self.request(path), &mut self.body).await?
            }
            other => other?,
        };
        self.open = (!open.closed).then_some(open);
        if !status.is_success() {
            return Err(Cause::Status(status.as_u16()));
        }
        Ok(&self.body)
    }

    /// Stays with the idle connection to notice when the pod closes it. Never ends.
    pub(super) async fn idle(&mut self) {
        if let Some(open) = &mut self.open {
            poll_fn(|context| open.driver.as_mut().poll(context)).await.ok();
            self.open = None;
        }
        std::future::pending().await
    }

    async fn dial(&self) -> Result<Open<C::Io>, Cause> {
        let io = self.connect.connect(self.address).await.map_err(|error| {
            match (Fault::behind(&error), error.kind()) {
                (Some(fault), _) => Cause::Tls(fault),
                (None, io::ErrorKind::ConnectionRefused) => Cause::Refused,
                (None, kind) => Cause::Unreachable(kind),
            }
        })?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(io)).await.map_err(|_| Cause::Broken)?;
        Ok(Open { sender, driver: Box::pin(connection), closed: false })
    }

    fn request(&self, path: PathAndQuery) -> Request<Empty<Bytes>> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = path.into();
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        headers.insert(USER_AGENT, HeaderValue::from_static(USER_AGENT_VALUE));
        // Asked each time: the key may have changed.
        if let Some(bearer) = self.key.as_ref().and_then(|key| key.bearer()) {
            headers.insert(AUTHORIZATION, bearer);
        }
        request
    }
}

/// A connection that is open, or was when last looked at.
struct Open<Io: AsyncRead + AsyncWrite + Unpin> {
    sender: http1::SendRequest<Empty<Bytes>>,
    driver: Pin<Box<http1::Connection<TokioIo<Io>, Empty<Bytes>>>>,
    closed: bool,
}

impl<Io: AsyncRead + AsyncWrite + Unpin> Open<Io> {
    /// Whether another question can be sent.
    async fn is_ready(&mut self) -> bool {
        let Self { sender, driver, closed } = self;
        drive(driver, closed, sender.ready()).await.is_ok()
    }

    /// Sends a request and reads the answer's body, replacing what is in `body`.
    async fn ask(
        &mut self,
        request: Request<Empty<Bytes>>,
        body: &mut Vec<u8>,
    ) -> Result<StatusCode, Cause> {
        let Self { sender, driver, closed } = self;
        let answer = drive(driver, closed, sender.send_request(request));
        let (head, mut incoming) = answer.await.map_err(|error| broken(&error))?.into_parts();

        body.clear();
        // One huge answer must not hold its memory for ever.
        body.shrink_to(USUAL_BODY_BYTES);
        if incoming.size_hint().lower() > MAX_BODY_BYTES as u64 {
            return Err(Cause::TooLarge);
        }
        while let Some(frame) = drive(driver, closed, incoming.frame()).await {
            let frame = frame.map_err(|_| Cause::Broken)?;
            let Some(data) = frame.data_ref() else { continue };
            if body.len() + data.len() > MAX_BODY_BYTES {
                return Err(Cause::TooLarge);
            }
            body.extend_from_slice(data);
        }
        Ok(head.status)
    }
}

/// What a connection's end says. In TLS 1.3, that the gateway's certificate is not taken comes behind the handshake.
fn broken(error: &hyper::Error) -> Cause {
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    source.and_then(Fault::of).map_or(Cause::Broken, Cause::Tls)
}

/// Awaits `work` while keeping the connection that it depends on going.
async fn drive<Io: AsyncRead + AsyncWrite + Unpin, T>(
    driver: &mut Pin<Box<http1::Connection<TokioIo<Io>, Empty<Bytes>>>>,
    closed: &mut bool,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(done);
        }
        // A connection that has ended must not be polled again.
        if !*closed && driver.as_mut().poll(context).is_ready() {
            *closed = true;
        }
        work.as_mut().poll(context)
    })
    .await
}

/// Longest answer read, in bytes. A vLLM with many engines comes to some hundred KB.
const MAX_BODY_BYTES: usize = 4 << 20;

/// What the buffer for an answer may keep, in bytes.
const USUAL_BODY_BYTES: usize = 256 << 10;

/// By this a pod's log tells our questions from others'.
const USER_AGENT_VALUE: &str = concat!("sluice/", env!("CARGO_PKG_VERSION"));
