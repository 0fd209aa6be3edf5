//! Certificates with their keys, and the choice among them by the name that a client asks for. Pure.

use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// A certificate with its chain and its key.
#[derive(Debug)]
pub(super) struct Certificate {
    /// When it ends, in seconds since 1970.
    pub(super) expires: i64,
    key: Arc<CertifiedKey>,
}

/// A certificate or its key cannot be used.
#[derive(Debug)]
pub(super) struct Wrong {
    /// It is the key.
    pub(super) in_key: bool,
    /// What is wrong.
    pub(super) problem: String,
}

/// Certificates, of which the first one that is for the name asked for is shown, and the very first one when none is.
#[derive(Debug)]
pub(super) struct ByName(pub(super) Vec<Certificate>);

impl Certificate {
    /// Reads the texts of two PEM files.
    pub(super) fn read(chain: &[u8], key: &[u8], provider: &CryptoProvider) -> Result<Self, Wrong> {
        let chain: Vec<CertificateDer<'_>> = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<_, _>>()
            .map_err(|error| Wrong::chain(error.to_string()))?;
        let first = chain.first().ok_or_else(|| Wrong::chain("holds no certificate".into()))?;
        let expires = X509Certificate::from_der(first)
            .map_err(|error| Wrong::chain(error.to_string()))
            .map(|(_, certificate)| certificate.validity().not_after.timestamp())?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| Wrong::key(format!("holds no private key: {error}")))?;
        let chain = chain.into_iter().map(CertificateDer::into_owned).collect();
        let key = CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                Wrong::key("is not the key of the certificate beside it".into())
            }
            error => Wrong::key(error.to_string()),
        })?;
        Ok(Self { expires, key: Arc::new(key) })
    }

    fn is_for(&self, name: &ServerName<'_>) -> bool {
        self.key
            .end_entity_cert()
            .and_then(ParsedCertificate::try_from)
            .is_ok_and(|certificate| verify_server_name(&certificate, name).is_ok())
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().and_then(|name| ServerName::try_from(name).ok());
        let Self(all) = self;
        let named = name.and_then(|name| all.iter().find(|certificate| certificate.is_for(&name)));
        named.or(all.first()).map(|certificate| Arc::clone(&certificate.key))
    }
}

impl Wrong {
    fn chain(problem: String) -> Self {
        Self { in_key: false, problem }
    }

    fn key(problem: String) -> Self {
        Self { in_key: true, problem }
    }
}
