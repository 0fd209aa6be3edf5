//! One keep-alive connection of a client, and the response that comes over it.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, Response, StatusCode, body::Incoming};
use hyper_util::rt::TokioIo;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use sluice_tests::bench::event::{Event, Order, Scanner, now_ns};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::Speech;

/// A connection that is opened anew after an error, or when the other end closed it.
pub(crate) struct Connection {
    to: SocketAddr,
    speech: Speech,
    trusting: Option<Trusting>,
    sender: Option<Sender>,
}

/// Sends requests on an open connection.
pub(crate) enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Sender {
    fn is_closed(&self) -> bool {
        match self {
            Self::Http1(sender) => sender.is_closed(),
            Self::Http2(sender) => sender.is_closed(),
        }
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> anyhow::Result<Response<Incoming>> {
        match self {
            Self::Http1(sender) => {
                sender.ready().await.context("connection")?;
                sender.send_request(request).await.context("request")
            }
            Self::Http2(sender) => {
                sender.ready().await.context("connection")?;
                sender.send_request(request).await.context("request")
            }
        }
    }
}

impl Connection {
    /// Not open yet.
    pub(crate) fn new(to: SocketAddr, speech: Speech) -> anyhow::Result<Self> {
        let trusting =
            (speech != Speech::Http1).then(|| Trusting::new(speech, true)).transpose()?;
        Ok(Self { to, speech, trusting, sender: None })
    }

    /// Opens it if it is not open.
    pub(crate) async fn open(&mut self) -> anyhow::Result<&mut Sender> {
        if self.sender.as_ref().is_none_or(Sender::is_closed) {
            self.sender = Some(match &self.trusting {
                None => {
                    let stream = TcpStream::connect(self.to).await.context("connect")?;
                    stream.set_nodelay(true)?;
                    start(self.speech, stream).await?
                }
                Some(trusting) => start(self.speech, trusting.connect(self.to).await?).await?,
            });
        }
        self.sender.as_mut().context("no connection")
    }

    /// Drops it; the next request opens another.
    pub(crate) fn close(&mut self) {
        self.sender = None;
    }

    /// Sends one chat request; returns when the head of the response is there.
    pub(crate) async fn post(&mut self, body: Bytes) -> anyhow::Result<Response<Incoming>> {
        let speech = self.speech;
        let sender = self.open().await?;
        let request = match speech {
            // It has the host in its address.
            Speech::Http2 => Request::post("https://gateway/v1/chat/completions"),
            _ => Request::post("/v1/chat/completions").header(HOST, "gateway"),
        };
        let request = request
            .header(ACCEPT, "*/*")
            .header(AUTHORIZATION, "Bearer sk-0123456789abcdef")
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, "bench-load")
            .body(Full::new(body))?;
        sender.send(request).await
    }
}

async fn start(
    speech: Speech,
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
) -> anyhow::Result<Sender> {
    let stream = TokioIo::new(stream);
    Ok(match speech {
        Speech::Http1 | Speech::Https => {
            let (sender, connection) = http1::handshake(stream).await?;
            // An error there is seen by the request as well.
            spawn_local(async move { drop(connection.await) });
            Sender::Http1(sender)
        }
        Speech::Http2 => {
            let (sender, connection) = http2::handshake(Local, stream).await?;
            spawn_local(async move { drop(connection.await) });
            Sender::Http2(sender)
        }
    })
}

/// Runs on the thread that it is on.
#[derive(Clone, Copy)]
struct Local;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, job: F) {
        spawn_local(job);
    }
}

/// Speaks TLS with whoever is there.
pub(crate) struct Trusting(TlsConnector);

impl Trusting {
    /// `resumes`: a second handshake with the same server is a short one.
    pub(crate) fn new(speech: Speech, resumes: bool) -> anyhow::Result<Self> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let any = Arc::new(Any(provider.signature_verification_algorithms));
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = config
            .context("TLS")?
            .dangerous()
            .with_custom_certificate_verifier(any)
            .with_no_client_auth();
        config.alpn_protocols = match speech {
            Speech::Http2 => vec![b"h2".to_vec()],
            _ => vec![b"http/1.1".to_vec()],
        };
        if !resumes {
            config.resumption = Resumption::disabled();
        }
        Ok(Self(Arc::new(config).into()))
    }

    /// Connects and does the handshake.
    pub(crate) async fn connect(&self, to: SocketAddr) -> anyhow::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(to).await.context("connect")?;
        stream.set_nodelay(true)?;
        let name = ServerName::IpAddress(to.ip().into());
        self.0.connect(name, stream).await.context("TLS handshake")
    }
}

/// Trusts any certificate: it is the benchmark's own.
#[derive(Debug)]
struct Any(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
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
