//! TLS before a pod that speaks clear text, as a pod behind a certificate looks to the gateway.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::copy_bidirectional;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

use crate::gateway::Plan;
use crate::tls::{Authority, Identity};

/// A listening address that speaks TLS. What ends abruptly behind it ends so before it.
#[derive(Debug)]
pub struct Front {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: Mutex<Arc<ServerConfig>>,
    handshakes: AtomicU64,
    /// Connections end without TLS saying so.
    truncates: AtomicBool,
    cut: Notify,
}

impl Front {
    /// Stands before `pod`, and shows this certificate.
    pub fn start(pod: SocketAddr, identity: &Identity) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        listener.set_nonblocking(true).expect("a socket");
        let shared = Arc::new(Shared {
            config: Mutex::new(server(identity, None)),
            handshakes: AtomicU64::new(0),
            truncates: AtomicBool::new(false),
            cut: Notify::new(),
        });
        let own = Arc::clone(&shared);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
                while let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(through(client, Arc::clone(&own), pod));
                }
            });
        });
        Self { address, shared }
    }

    /// Shows another certificate from now on.
    pub fn show(&self, identity: &Identity) {
        self.set(server(identity, None));
    }

    /// Wants to see a certificate that `authority` has signed from now on.
    pub fn want(&self, identity: &Identity, authority: &Authority) {
        self.set(server(identity, Some(authority)));
    }

    /// Ends connections without TLS saying so from now on, as somebody on the way can.
    pub fn truncate(&self) {
        self.shared.truncates.store(true, Ordering::Relaxed);
    }

    /// Ends all connections there are.
    pub fn cut(&self) {
        self.shared.cut.notify_waiters();
    }

    /// Handshakes that were done.
    pub fn handshakes(&self) -> u64 {
        self.shared.handshakes.load(Ordering::Relaxed)
    }

    fn set(&self, config: Arc<ServerConfig>) {
        *self.shared.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }
}

/// A plan for one pool of what stands behind these, serving the model `base`; `tls` are the fields that say whom to
/// trust.
pub fn plan(fronts: &[&Front], tls: &str) -> Plan {
    let addresses = fronts.iter().map(|front| front.address).collect();
    Plan { pools: vec![("base".into(), addresses)], ..Plan::pool("base", &[]) }
        .scheduler(&format!("    appProtocol: https\n    tls: {{{tls}}}"))
}

async fn through(mut client: tokio::net::TcpStream, shared: Arc<Shared>, pod: SocketAddr) {
    let _ = client.set_nodelay(true);
    let abrupt = |socket: &tokio::net::TcpStream, is: bool| {
        let _ = socket2::SockRef::from(socket).set_linger(is.then_some(Duration::ZERO));
    };
    let config = Arc::clone(&shared.config.lock().unwrap_or_else(PoisonError::into_inner));
    let Ok(mut near) = TlsAcceptor::from(config).accept(&mut client).await else { return };
    shared.handshakes.fetch_add(1, Ordering::Relaxed);
    let Ok(mut far) = tokio::net::TcpStream::connect(pod).await else { return };
    let _ = far.set_nodelay(true);
    abrupt(&far, true);
    if shared.truncates.load(Ordering::Relaxed) {
        let (mut from_pod, mut to_pod) = far.split();
        let (mut from_client, mut to_client) = tokio::io::split(near);
        tokio::select! {
            _ = tokio::io::copy(&mut from_pod, &mut to_client) => {}
            _ = tokio::io::copy(&mut from_client, &mut to_pod) => {}
        }
        return;
    }
    let done = tokio::select! {
        done = copy_bidirectional(&mut near, &mut far) => done,
        () = shared.cut.notified() => return,
    };
    drop(near);
    match done {
        Ok(_) => abrupt(&far, false),
        Err(_) => abrupt(&client, true),
    }
}

fn server(identity: &Identity, clients: Option<&Authority>) -> Arc<ServerConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("versions");
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(authority.certificate()).expect("a certificate");
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().expect("a verifier"))
        }
    };
    let config = builder.with_single_cert(identity.chain(), identity.private_key());
    Arc::new(config.expect("a key that fits"))
}
