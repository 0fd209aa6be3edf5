//! Certificates, clients that speak TLS, and a tunnel by which clients that do not can be served over it.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};
use tokio::io::copy_bidirectional;
use tokio_rustls::TlsConnector;

use crate::gateway::PATIENCE;

/// Somebody whose certificates are trusted by those who know it.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

/// A certificate and its key, in files.
#[derive(Clone, Debug)]
pub struct Identity {
    /// PEM: the certificate.
    pub certificate: PathBuf,
    /// PEM: its key.
    pub key: PathBuf,
}

/// How a client speaks TLS.
#[derive(Clone, Debug)]
pub struct Speaker(ClientConfig);

impl Authority {
    /// A new one, with a folder of its own for files.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("sluice-tls-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).expect("a writable temporary folder");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        Self { issuer, folder }
    }

    /// Writes a new certificate for these names, at the same files whenever `file` is the same.
    pub fn issue(&self, file: &str, names: &[&str]) -> Identity {
        self.issue_for(file, names, 1975..4096)
    }

    /// The same, valid from the beginning of one year to that of another.
    pub fn issue_for(&self, file: &str, names: &[&str], years: Range<i32>) -> Identity {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.not_before = date_time_ymd(years.start, 1, 1);
        params.not_after = date_time_ymd(years.end, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let at = |end: &str| self.folder.join(format!("{file}.{end}"));
        let identity = Identity { certificate: at("crt"), key: at("key") };
        // The key first and both at once, as nearly as files allow: a Secret's are swapped by one link.
        replace(&identity.key, &key.serialize_pem());
        replace(&identity.certificate, &certificate.pem());
        identity
    }

    /// Its own certificate.
    pub fn certificate(&self) -> CertificateDer<'static> {
        self.issuer.der().clone()
    }

    /// Its own certificate, in a file.
    pub fn file(&self) -> PathBuf {
        let file = self.folder.join("authority.crt");
        replace(&file, &self.issuer.pem());
        file
    }

    /// A client that trusts it, and says that it speaks these protocols.
    pub fn speaker(&self, protocols: &[&str], identity: Option<&Identity>) -> Speaker {
        self.speaker_of(protocols, identity, rustls::ALL_VERSIONS)
    }

    /// The same with these versions of TLS alone.
    pub fn speaker_of(
        &self,
        protocols: &[&str],
        identity: Option<&Identity>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Speaker {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate()).expect("a certificate");
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(versions)
            .expect("versions")
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder
                .with_client_auth_cert(identity.chain(), identity.private_key())
                .expect("a key that fits"),
        };
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Speaker(config)
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Identity {
    /// The lines under `spec` that have a gateway show these, the first one by default.
    pub fn spec(all: &[&Self]) -> String {
        let line = |of: &&Self| {
            let (certificate, key) = (of.certificate.display(), of.key.display());
            format!("    - {{certificateFile: \"{certificate}\", keyFile: \"{key}\"}}\n")
        };
        format!("  tls:\n    certificates:\n{}", all.iter().map(line).collect::<String>())
    }

    /// The certificate.
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        let pem = fs::read(&self.certificate).expect("a certificate's file");
        CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>().expect("a certificate")
    }

    /// Its key.
    pub fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_file(&self.key).expect("a key")
    }
}

impl Speaker {
    /// Connects and does the handshake, asking for this name.
    ///
    /// # Errors
    /// It failed.
    pub fn connect(
        &self,
        address: SocketAddr,
        name: &str,
    ) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let mut socket = TcpStream::connect_timeout(&address, PATIENCE)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_nodelay(true)?;
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        let connection = ClientConnection::new(Arc::new(self.0.clone()), name);
        let mut connection = connection.map_err(io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut socket)?;
        }
        Ok(StreamOwned::new(connection, socket))
    }

    /// For the tasks of a runtime.
    pub fn connector(&self) -> TlsConnector {
        TlsConnector::from(Arc::new(self.0.clone()))
    }

    /// An address at which clients in clear text reach a gateway that speaks TLS. What ends there abruptly ends
    /// so for them.
    pub fn tunnel(&self, gateway: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        listener.set_nonblocking(true).expect("a socket");
        let connector = self.connector();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
                while let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(through(client, connector.clone(), gateway));
                }
            });
        });
        address
    }
}

async fn through(mut client: tokio::net::TcpStream, connector: TlsConnector, gateway: SocketAddr) {
    let _ = client.set_nodelay(true);
    // Unless both ends have ended in order.
    let abrupt = |socket: &tokio::net::TcpStream, is: bool| {
        let _ = socket2::SockRef::from(socket).set_linger(is.then_some(Duration::ZERO));
    };
    abrupt(&client, true);
    let Ok(socket) = tokio::net::TcpStream::connect(gateway).await else { return };
    let _ = socket.set_nodelay(true);
    abrupt(&socket, true);
    let name = ServerName::IpAddress(gateway.ip().into());
    let Ok(mut stream) = connector.connect(name, socket).await else { return };
    if copy_bidirectional(&mut client, &mut stream).await.is_ok() {
        abrupt(&client, false);
        abrupt(stream.get_ref().0, false);
    }
}

/// Writes a file in one step.
pub fn replace(file: &Path, text: &str) {
    let beside = file.with_extension("new");
    fs::write(&beside, text).expect("a writable folder");
    fs::rename(&beside, file).expect("a writable folder");
}

/// Whether a read failed as it does when TLS ends without saying so.
pub fn is_cut(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset)
}
