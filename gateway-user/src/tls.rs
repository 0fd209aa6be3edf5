//! TLS for clients: certificates from files, one of which is shown by the name that a client asks for, taken anew
//! when the files change. [`PodTls`] is TLS to pods.
//!
//! The files are read, not watched: a Kubernetes Secret is swapped by a symbolic link, and reading a few kilobytes now
//! and then finds that and everything else. A connection keeps what it was made with; files that cannot be used change
//! nothing and are complained of.

mod certificates;
mod pods;

use std::fs::File;
use std::io::{self, Read as _};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, Ticketer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::{NoServerSessionStorage, ProducesTickets, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::{info, warn};

use self::certificates::{ByName, Certificate};
pub use self::pods::{Fault, PodTls};
use crate::config;
use crate::gateway::Gateway;
use crate::metrics::{Expiry, Reload, TlsMetrics};

/// What the listeners that speak TLS show their clients.
#[derive(Clone, Debug)]
pub struct Tls(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    config: config::Tls,
    current: ArcSwap<Current>,
    /// What the files held when they were last looked at, or why they could not be read.
    seen: Mutex<Result<Vec<Vec<u8>>, String>>,
    /// The same for all configurations: a certificate's change does not cost every client a whole handshake.
    tickets: Arc<dyn ProducesTickets>,
    provider: Arc<CryptoProvider>,
}

/// What new connections get.
#[derive(Debug)]
struct Current {
    server: Arc<ServerConfig>,
    expiries: Vec<Expiry>,
}

/// Files that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {file}: {problem}")]
pub struct TlsError {
    field: String,
    file: String,
    problem: String,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// One cannot be read, or does not hold what it should, or does not go with another.
    pub fn load(config: &config::Tls) -> Result<Self, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let no_tickets = |error: rustls::Error| fault("certificates", "", error);
        let tickets = Ticketer::new().map_err(no_tickets)?;
        let seen = read_all(config)?;
        let current = build(config, &seen, &tickets, &provider)?;
        Ok(Self(Arc::new(Shared {
            config: config.clone(),
            current: ArcSwap::from_pointee(current),
            seen: Mutex::new(Ok(seen)),
            tickets,
            provider,
        })))
    }

    /// Does a client's handshake.
    ///
    /// # Errors
    /// The client does not speak TLS as it is spoken here, or has left.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let server = Arc::clone(&self.0.current.load().server);
        TlsAcceptor::from(server).accept(stream).await
    }

    /// Looks at the files now and then, for ever.
    pub async fn follow(self, gateway: Arc<Gateway>) {
        let metrics = gateway.counted.tls();
        metrics.certificates(&self.0.current.load().expiries);
        let mut tick = interval(LOOK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            match self.reload(metrics) {
                Ok(false) => {}
                Ok(true) => {
                    metrics.reloaded(Reload::Done);
                    info!("the certificates have changed; new connections get the new ones");
                }
                Err(error) => {
                    metrics.reloaded(Reload::Failed);
                    warn!("{error}; the certificates stay as they were");
                }
            }
        }
    }

    /// Takes the files anew if they have changed. Returns whether they have.
    fn reload(&self, metrics: &TlsMetrics) -> Result<bool, TlsError> {
        let Shared { config, current, seen, tickets, provider } = &*self.0;
        let read = read_all(config);
        let found = read.as_ref().map(Vec::clone).map_err(ToString::to_string);
        // Whatever is wrong is told once, and not with each look.
        if std::mem::replace(&mut *seen.lock(), found.clone()) == found {
            return Ok(false);
        }
        let built = build(config, &read?, tickets, provider)?;
        metrics.certificates(&built.expiries);
        current.store(Arc::new(built));
        Ok(true)
    }
}

/// What all the files hold, in their order in the configuration.
fn read_all(config: &config::Tls) -> Result<Vec<Vec<u8>>, TlsError> {
    let mut all = Vec::new();
    let of = |field: &str, file: &str| read(file).map_err(|problem| fault(field, file, problem));
    for (index, certificate) in config.certificates.iter().enumerate() {
        let config::Certificate { certificate_file, key_file } = certificate;
        all.push(of(&format!("certificates[{index}].certificateFile"), certificate_file)?);
        all.push(of(&format!("certificates[{index}].keyFile"), key_file)?);
    }
    if let Some(file) = &config.client_ca_file {
        all.push(of("clientCaFile", file)?);
    }
    Ok(all)
}

/// What a file holds, or what is wrong with it.
fn read(file: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|open| open.take(MAX_FILE + 1).read_to_end(&mut bytes))
        .map_err(|error| error.to_string())?;
    match bytes.len() as u64 > MAX_FILE {
        true => Err(format!("is larger than {MAX_FILE} bytes")),
        false => Ok(bytes),
    }
}

fn build(
    config: &config::Tls,
    files: &[Vec<u8>],
    tickets: &Arc<dyn ProducesTickets>,
    provider: &Arc<CryptoProvider>,
) -> Result<Current, TlsError> {
    let mut files = files.iter();
    let mut next = || files.next().map(Vec::as_slice).unwrap_or_default();
    let mut certificates = Vec::new();
    let mut expiries = Vec::new();
    for (index, of) in config.certificates.iter().enumerate() {
        let (chain, key) = (next(), next());
        let certificate = Certificate::read(chain, key, provider);
        let certificate = certificate.map_err(|wrong| {
            let (field, file) = match wrong.in_key {
                false => ("certificateFile", &of.certificate_file),
                true => ("keyFile", &of.key_file),
            };
            fault(&format!("certificates[{index}].{field}"), file, wrong.problem)
        })?;
        expiries.push(Expiry { file: of.certificate_file.clone(), at: certificate.expires });
        certificates.push(certificate);
    }
    let builder = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| fault("certificates", "", error))?;
    let builder = match &config.client_ca_file {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let wrong = |problem: String| fault("clientCaFile", file, problem);
            let roots = roots(next()).map_err(wrong)?;
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
            let verifier = verifier.build().map_err(|error| wrong(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut server = builder.with_cert_resolver(Arc::new(ByName(certificates)));
    server.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
    match &config.client_ca_file {
        None => server.ticketer = Arc::clone(tickets),
        // A session that is resumed brings the client's certificate along, unlooked at: it may have ended since, or
        // its authority been taken out.
        Some(_) => {
            server.send_tls13_tickets = 0;
            server.session_storage = Arc::new(NoServerSessionStorage {});
        }
    }
    Ok(Current { server: Arc::new(server), expiries })
}

fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    match roots.is_empty() {
        true => Err("holds no certificate".into()),
        false => Ok(roots),
    }
}

fn fault(field: &str, file: &str, problem: impl std::fmt::Display) -> TlsError {
    TlsError {
        field: format!("spec.tls.{field}"),
        file: file.to_owned(),
        problem: problem.to_string(),
    }
}

/// RFC 9113 section 3.2: what client and gateway call HTTP/2 when they agree on it.
pub const HTTP2: &[u8] = b"h2";

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Longest file of certificates or keys, in bytes.
const MAX_FILE: u64 = 1 << 20;
