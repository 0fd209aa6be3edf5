//! A client of HTTP/2, on a runtime of its own.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{self, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request};
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::client::Response;
use crate::gateway::PATIENCE;
use crate::tls::Speaker;

/// A connection to a gateway.
#[derive(Debug)]
pub struct Connection {
    send: SendRequest<Bytes>,
    driver: JoinHandle<Result<(), h2::Error>>,
}

/// A request under way.
#[derive(Debug)]
pub struct Exchange {
    response: client::ResponseFuture,
    /// Its body's sending side.
    pub body: SendStream<Bytes>,
}

impl Connection {
    /// Connects in clear text, knowing that HTTP/2 is spoken.
    pub async fn plain(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).await.expect("the gateway accepts");
        Self::over(socket).await
    }

    /// Connects over TLS.
    pub async fn secure(address: SocketAddr, speaker: &Speaker) -> Self {
        let socket = TcpStream::connect(address).await.expect("the gateway accepts");
        let name = ServerName::IpAddress(address.ip().into());
        let stream = speaker.connector().connect(name, socket).await.expect("a handshake");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
        Self::over(stream).await
    }

    async fn over(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        Self::with(client::Builder::new(), stream).await
    }

    /// Connects in clear text as `settings` say.
    pub async fn plain_with(settings: client::Builder, address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).await.expect("the gateway accepts");
        Self::with(settings, socket).await
    }

    async fn with(
        settings: client::Builder,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        let (send, connection) = settings.handshake(stream).await.expect("a handshake");
        Self { send, driver: tokio::spawn(connection) }
    }

    /// Sends the head of a request.
    ///
    /// # Errors
    /// The connection takes no more.
    pub async fn begin(
        &self,
        request: http::request::Builder,
        is_over: bool,
    ) -> Result<Exchange, h2::Error> {
        let request: Request<()> = request.body(()).expect("a request");
        let mut send = self.send.clone().ready().await?;
        let (response, body) = send.send_request(request, is_over)?;
        Ok(Exchange { response, body })
    }

    /// Sends a JSON body to a path.
    pub async fn post(&self, path: &str, body: &Value) -> Exchange {
        self.post_with(path, &[], body).await
    }

    /// The same with further headers.
    pub async fn post_with(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Exchange {
        let body = body.to_string();
        let request = Request::post(format!("http://gateway{path}"))
            .header("content-type", "application/json")
            .header("content-length", body.len());
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let mut exchange = self.begin(request, false).await.expect("the gateway takes requests");
        exchange.body.send_data(body.into(), true).expect("room for a small body");
        exchange
    }

    /// Waits until the gateway has ended the connection.
    ///
    /// # Errors
    /// As it says.
    pub async fn ended(self) -> Result<(), h2::Error> {
        let Self { send, driver } = self;
        let ended =
            timeout(PATIENCE, driver).await.expect("the connection ends").expect("no panic");
        // Not before: without it the client's own side would end the connection.
        drop(send);
        ended
    }

    /// Whether it has ended by now.
    pub fn is_over(&self) -> bool {
        self.driver.is_finished()
    }
}

impl Exchange {
    /// Waits for the answer's head.
    ///
    /// # Errors
    /// The request was reset.
    pub async fn head(self) -> Result<(Response, RecvStream), h2::Error> {
        let response = timeout(PATIENCE, self.response).await.expect("an answer comes")?;
        let (parts, body) = response.into_parts();
        let headers = fields(&parts.headers);
        let response =
            Response { status: parts.status.as_u16(), headers, body: Vec::new(), complete: false };
        Ok((response, body))
    }

    /// Waits for the whole answer.
    ///
    /// # Errors
    /// It was reset before or in its body.
    pub async fn response(self) -> Result<Response, h2::Error> {
        let (response, end) = self.as_far_as_it_comes().await?;
        end.map_or(Ok(response), Err)
    }

    /// Waits for the answer's end, and says with what error it ended if it is not whole.
    ///
    /// # Errors
    /// It was reset before its body.
    pub async fn as_far_as_it_comes(self) -> Result<(Response, Option<h2::Error>), h2::Error> {
        let (mut response, mut body) = self.head().await?;
        while let Some(piece) = timeout(PATIENCE, body.data()).await.expect("the body goes on") {
            let piece = match piece {
                Ok(piece) => piece,
                Err(error) => return Ok((response, Some(error))),
            };
            body.flow_control().release_capacity(piece.len())?;
            response.body.extend_from_slice(&piece);
        }
        response.complete = true;
        Ok((response, None))
    }

    /// Gives the request up.
    pub fn cancel(mut self) {
        self.body.send_reset(Reason::CANCEL);
    }
}

/// Runs `job` on a runtime of its own, for a minute at most. It may block: connections go on meanwhile.
pub fn run(job: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async { timeout(Duration::from_secs(60), job).await.expect("in a minute") });
}

fn fields(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}
