//! One keep-alive connection of a client, and the response that comes over it.

use std::net::SocketAddr;

use anyhow::{Context, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, Response, StatusCode, body::Incoming};
use hyper_util::rt::TokioIo;
use sluice_tests::bench::event::{Event, Order, Scanner, now_ns};
use tokio::net::TcpStream;

/// A connection that is opened anew after an error, or when the other end closed it.
pub(crate) struct Connection {
    to: SocketAddr,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Connection {
    /// Not open yet.
    pub(crate) fn new(to: SocketAddr) -> Self {
        Self { to, sender: None }
    }

    /// Opens it if it is not open.
    pub(crate) async fn open(&mut self) -> anyhow::Result<&mut SendRequest<Full<Bytes>>> {
        if self.sender.as_ref().is_none_or(SendRequest::is_closed) {
            let stream = TcpStream::connect(self.to).await.context("connect")?;
            stream.set_nodelay(true)?;
            let (sender, connection) = handshake(TokioIo::new(stream)).await?;
            tokio::task::spawn_local(async move {
                // An error here is seen by the request as well.
                let _ = connection.await;
            });
            self.sender = Some(sender);
        }
        self.sender.as_mut().context("no connection")
    }

    /// Drops it; the next request opens another.
    pub(crate) fn close(&mut self) {
        self.sender = None;
    }

    /// Sends one chat request; returns when the head of the response is there.
    pub(crate) async fn post(&mut self, body: Bytes) -> anyhow::Result<Response<Incoming>> {
        let sender = self.open().await?;
        sender.ready().await.context("connection")?;
        let request = Request::post("/v1/chat/completions")
            .header(HOST, "gateway")
            .header(ACCEPT, "*/*")
            .header(AUTHORIZATION, "Bearer sk-0123456789abcdef")
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, "bench-load")
            .body(Full::new(body))?;
        sender.send_request(request).await.context("request")
    }
}

/// Reads a response to its end and calls `token` for each token, with the time of its arrival.
///
/// # Errors
/// The status is not 200, the response breaks off, or a token is missing or comes twice.
pub(crate) async fn read(
    response: Response<Incoming>,
    mut token: impl FnMut(Event, u64),
) -> anyhow::Result<u64> {
    let status = response.status();
    ensure!(status == StatusCode::OK, "status {status}");
    let mut body = response.into_body();
    let (mut scanner, mut order) = (Scanner::default(), Order::default());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.context("response")?.into_data() else { continue };
        let now = now_ns();
        scanner.feed(&data, |event| {
            order.take(event);
            token(event, now);
        });
        order.count()?;
    }
    order.count()
}
