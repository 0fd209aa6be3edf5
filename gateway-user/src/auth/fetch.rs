//! Gets an issuer's key set over HTTP or HTTPS: bounded in size, with a time limit from the caller.
//!
//! Redirects are not followed: whoever can redirect could name keys of their own.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tokio_rustls::TlsConnector;

/// Where a key set is.
pub(super) struct Source {
    uri: Uri,
    host: String,
    port: u16,
    /// For https: whom to trust, and the name that the certificate must be for.
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Source {
    /// The key set at `uri`, over https if that is how it begins; then `ca_file` or else the system's certificates say
    /// whom to trust.
    ///
    /// # Errors
    /// A text for people.
    pub(super) fn new(uri: &str, ca_file: Option<&str>) -> Result<Self, String> {
        let uri: Uri = uri.parse().map_err(|error| format!("{uri} is no address: {error}"))?;
        let host = uri.host().ok_or("it names no host")?;
        // As an IPv6 address stands in an address of a page.
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_https = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        let tls = match is_https {
            true => {
                let name = ServerName::try_from(host.clone());
                let name = name.map_err(|_| format!("{host} is no name of a server"))?;
                Some((connector(ca_file)?, name))
            }
            false => None,
        };
        Ok(Self { uri, host, port, tls })
    }

    /// Asks for the key set.
    ///
    /// # Errors
    /// A text for people.
    pub(super) async fn get(&self) -> Result<Bytes, String> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
        let stream = stream.map_err(|error| format!("connecting failed: {error}"))?;
        match &self.tls {
            None => self.ask(stream).await,
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await;
                self.ask(stream.map_err(|error| format!("TLS failed: {error}"))?).await
            }
        }
    }

    async fn ask<S: AsyncRead + AsyncWrite + Unpin + 'static>(
        &self,
        stream: S,
    ) -> Result<Bytes, String> {
        let broke = |error: hyper::Error| format!("the connection broke: {error}");
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(broke)?;
        let driver = Driver(spawn_local(connection));
        let mut request = Request::new(Empty::<Bytes>::new());
        let path = self.uri.path_and_query().cloned();
        *request.uri_mut() = path.map_or_else(Uri::default, Uri::from);
        let headers = request.headers_mut();
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        let host = HeaderValue::try_from(authority).map_err(|error| error.to_string())?;
        headers.insert(HOST, host);
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(USER_AGENT_VALUE));
        let answer = sender.send_request(request).await.map_err(broke)?;
        if answer.status() != 200 {
            return Err(format!("the answer is {}", answer.status()));
        }
        let body = Limited::new(answer.into_body(), MAX_BYTES).collect().await;
        drop(driver);
        body.map(http_body_util::Collected::to_bytes)
            .map_err(|error| format!("the answer could not be read: {error}"))
    }
}

/// Ends with whoever waits for its answers.
struct Driver(tokio::task::JoinHandle<hyper::Result<()>>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn connector(ca_file: Option<&str>) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(file) => {
            let fail = |error: String| format!("caFile {file}: {error}");
            let certificates = CertificateDer::pem_file_iter(file);
            for certificate in certificates.map_err(|error| fail(error.to_string()))? {
                let certificate = certificate.map_err(|error| fail(error.to_string()))?;
                roots.add(certificate).map_err(|error| fail(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(fail("holds no certificate".into()));
            }
        }
        None => {
            // Some in a system's store are always unfit; one that would be needed shows when it is.
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                return Err("the system has no trusted certificates; name a caFile".into());
            }
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Longest key set, in bytes; those of large issuers have some 10 KB.
const MAX_BYTES: usize = 256 << 10;

/// By this an issuer's log tells our questions from others'.
const USER_AGENT_VALUE: &str = concat!("sluice/", env!("CARGO_PKG_VERSION"));
