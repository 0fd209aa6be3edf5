//! TLS to pods: whom the gateway trusts, and what it shows of itself.
//!
//! The files are looked at when a connection is made, and no more than once a second, as nobody else needs to know of
//! their change. Files that cannot be used change nothing and are complained of.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, InvalidMessage,
    RootCertStore, SignatureScheme,
};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tracing::{info, warn};

use super::{TlsError, read, roots};
use crate::config;

/// How the pods of a pool speak TLS.
#[derive(Debug)]
pub struct PodTls {
    pool: Box<str>,
    config: config::PodTls,
    /// What certificates must be for, if not the pod's address.
    name: Option<ServerName<'static>>,
    current: Mutex<Current>,
}

/// What new connections are made with.
#[derive(Debug)]
struct Current {
    client: Option<Arc<ClientConfig>>,
    /// What the files held when they were last looked at, or why they could not be read.
    seen: Result<Vec<Vec<u8>>, String>,
    looked: Option<Instant>,
}

/// Why TLS could not be begun with a pod.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Fault {
    /// Nobody trusted has signed its certificate.
    #[error("its certificate is not signed by anyone trusted (tls.caFile)")]
    UnknownIssuer,
    /// Its certificate has ended.
    #[error("its certificate has expired")]
    Expired,
    /// Its certificate has not begun.
    #[error("its certificate is not valid yet")]
    NotYetValid,
    /// Its certificate is for somebody else.
    #[error("its certificate is not for this name (tls.serverName, or else the pod's address)")]
    WrongName,
    /// Its certificate cannot be used for another reason.
    #[error("its certificate cannot be used")]
    Certificate,
    /// What it says is not TLS.
    #[error("it does not speak TLS")]
    NotTls,
    /// It wants to see a certificate of the gateway, and another one than it was shown.
    #[error("it does not accept the gateway's certificate (tls.certificateFile)")]
    Refused,
    /// It speaks TLS, but not in a way that is spoken here.
    #[error("it ended the TLS handshake")]
    Ended,
    /// The gateway's own files cannot be used, which the log tells.
    #[error("the files of the pool's tls cannot be used; see the log")]
    Files,
}

impl PodTls {
    /// As `config` says for the pods of `pool`; the files are read when a connection is made.
    pub fn new(pool: &str, config: &config::PodTls) -> Self {
        let name = config.server_name.clone().and_then(|name| ServerName::try_from(name).ok());
        let current = Current { client: None, seen: Ok(Vec::new()), looked: None };
        Self { pool: pool.into(), config: config.clone(), name, current: Mutex::new(current) }
    }

    /// The pool.
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// Whether it is as `config` says.
    pub fn is(&self, config: &config::PodTls) -> bool {
        self.config == *config
    }

    /// Sees whether the files can be used, unless they have been.
    ///
    /// # Errors
    /// One cannot be read, or does not hold what it should, or does not go with another.
    pub fn check(&self) -> Result<(), TlsError> {
        if self.current.lock().client.is_some() {
            return Ok(());
        }
        build(&self.config, &read_all(&self.config)?).map(drop)
    }

    /// Does the handshake with the pod at `address`.
    ///
    /// # Errors
    /// It did not come about; the error's source is a [`Fault`] wherever that is known.
    pub async fn connect(
        &self,
        address: SocketAddr,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let client = self.client(Instant::now()).ok_or_else(|| io::Error::other(Fault::Files))?;
        let name = self.name.clone().unwrap_or(ServerName::IpAddress(address.ip().into()));
        TlsConnector::from(client).connect(name, stream).await.map_err(|error| {
            match Fault::of(&error) {
                Some(fault) => io::Error::new(error.kind(), fault),
                None => error,
            }
        })
    }

    /// What a connection is made with now; none as long as the files could never be used.
    fn client(&self, now: Instant) -> Option<Arc<ClientConfig>> {
        let mut current = self.current.lock();
        let Current { client, seen, looked } = &mut *current;
        if looked.is_some_and(|looked| now.saturating_duration_since(looked) < LOOK) {
            return client.clone();
        }
        *looked = Some(now);
        let read = read_all(&self.config);
        let found = read.as_ref().map(Vec::clone).map_err(ToString::to_string);
        let before = std::mem::replace(seen, found);
        // Whatever is wrong is told once, and not with each look.
        if before == *seen && client.is_some() {
            return client.clone();
        }
        match read.and_then(|read| build(&self.config, &read)) {
            Ok(built) => {
                if client.is_some() {
                    info!(pool = %self.pool, "the files of tls have changed; new connections to pods use them");
                }
                *client = Some(Arc::new(built));
            }
            Err(error) => {
                warn!(pool = %self.pool, "{error}; connections to pods stay as they were")
            }
        }
        client.clone()
    }
}

impl Fault {
    /// What an error of TLS says of the pod, on a connection that was made or was to be.
    pub fn of(error: &io::Error) -> Option<Self> {
        let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
        Some(match error {
            rustls::Error::InvalidCertificate(error) => match error {
                // By somebody who has the name of one who is trusted, and not the key: an authority that was made anew.
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    Self::UnknownIssuer
                }
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    Self::Expired
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    Self::NotYetValid
                }
                CertificateError::NotValidForName
                | CertificateError::NotValidForNameContext { .. } => Self::WrongName,
                _ => Self::Certificate,
            },
            rustls::Error::AlertReceived(
                AlertDescription::CertificateRequired
                | AlertDescription::BadCertificate
                | AlertDescription::UnknownCA
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateExpired
                | AlertDescription::DecryptError
                | AlertDescription::AccessDenied,
            ) => Self::Refused,
            rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => Self::NotTls,
            _ => Self::Ended,
        })
    }

    /// What kept a connection from being made, if TLS did.
    pub fn behind(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref::<Self>().copied()
    }
}

/// What all the files hold, in the order in which [`build`] takes them.
fn read_all(config: &config::PodTls) -> Result<Vec<Vec<u8>>, TlsError> {
    let mut all = Vec::new();
    let of = |field: &str, file: &str| read(file).map_err(|problem| fault(field, file, problem));
    if let Some(file) = &config.ca_file {
        all.push(of("caFile", file)?);
    }
    if let Some(config::Certificate { certificate_file, key_file }) = &config.certificate {
        all.push(of("certificateFile", certificate_file)?);
        all.push(of("keyFile", key_file)?);
    }
    Ok(all)
}

fn build(config: &config::PodTls, files: &[Vec<u8>]) -> Result<ClientConfig, TlsError> {
    let mut files = files.iter();
    let mut next = || files.next().map(Vec::as_slice).unwrap_or_default();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| fault("caFile", "", error))?;
    let builder = match (&config.ca_file, config.insecure_skip_verify) {
        (None, true) => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Anyone { algorithms }))
        }
        (None, false) => builder.with_root_certificates(system_roots()?),
        (Some(file), _) => {
            let trusted = roots(next()).map_err(|problem| fault("caFile", file, problem))?;
            builder.with_root_certificates(trusted)
        }
    };
    let mut client = match &config.certificate {
        None => builder.with_no_client_auth(),
        Some(config::Certificate { certificate_file, key_file }) => {
            let chain: Vec<_> = CertificateDer::pem_slice_iter(next())
                .collect::<Result<_, _>>()
                .map_err(|error| fault("certificateFile", certificate_file, error))?;
            let key = PrivateKeyDer::from_pem_slice(next())
                .map_err(|error| fault("keyFile", key_file, error))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| fault("keyFile", key_file, error))?
        }
    };
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(client)
}

fn fault(field: &str, file: &str, problem: impl std::fmt::Display) -> TlsError {
    let field = format!("spec.schedulers[].tls.{field}");
    TlsError { field, file: file.to_owned(), problem: problem.to_string() }
}

/// Whom the system trusts, as it was when somebody first needed to know.
fn system_roots() -> Result<Arc<RootCertStore>, TlsError> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let roots = ROOTS.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        // Some in a system's store are always unfit; one that would be needed shows when it is.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Arc::new(roots)
    });
    match roots.is_empty() {
        true => Err(fault("caFile", "", "is needed: the system has no trusted certificates")),
        false => Ok(Arc::clone(roots)),
    }
}

/// Takes any certificate, as long as the pod has its key.
#[derive(Debug)]
struct Anyone {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Anyone {
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
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// How often the files are looked at, while connections are made.
const LOOK: Duration = Duration::from_secs(1);
