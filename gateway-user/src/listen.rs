//! Listening sockets and the workers behind them.
//!
//! Each worker is a thread with its own single-threaded runtime and its own listening socket for
//! each listener: a connection is served, from its first byte to its last, by the worker that
//! accepted it. Steered or not, the sockets are the same; sk_lookup only decides which of them gets
//! a connection.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gateway_common::limits::WINDOW;
use socket2::{Domain, Protocol, SockRef, Type};
use tokio::sync::watch;
use tokio::task::LocalSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout_at};
use tracing::{debug, warn};

use crate::client::{Client, Scratch, Stream};
use crate::config::{self, Limits, Listener};
use crate::connection::{Inlet, serve};
use crate::direct::Exclusive;
use crate::gateway::{Admission, Full, Gateway, RequestId};
use crate::metrics::{Arrival, Handshake, ListenerMetrics};
use crate::tls::{self, Tls};
use crate::upstream::Upstreams;

/// What one worker has to itself.
#[derive(Debug)]
pub struct Worker {
    /// What all share.
    pub gateway: Arc<Gateway>,
    /// Its buffer for reads.
    pub scratch: Scratch,
    /// Its connections to pods.
    pub upstreams: Upstreams,
    rng: RefCell<fastrand::Rng>,
    stop: watch::Receiver<bool>,
}

/// A listening socket of one worker.
#[derive(Debug)]
pub struct Socket {
    /// The listener's name.
    pub listener: Arc<str>,
    /// The socket.
    pub socket: TcpListener,
    /// How connections come to it.
    pub arrival: Arrival,
    /// What is counted of the listener.
    pub metrics: Arc<ListenerMetrics>,
    /// The one pool that the listener serves, if it does.
    pub exclusive: Option<Exclusive>,
    /// What is spoken.
    pub protocol: config::Protocol,
    /// What it shows its clients, if it speaks TLS.
    pub tls: Option<Tls>,
}

/// A socket could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("listener `{listener}`: cannot listen on {address}: {error}")]
pub struct BindError {
    /// The listener's name.
    pub listener: String,
    /// The address wanted.
    pub address: SocketAddr,
    /// Why not.
    pub error: io::Error,
}

impl Worker {
    /// A worker of `gateway`.
    pub fn new(gateway: Arc<Gateway>, seed: u64) -> Self {
        Self {
            stop: gateway.stop_signal(),
            gateway,
            scratch: Scratch::new(),
            upstreams: Upstreams::default(),
            rng: RefCell::new(fastrand::Rng::with_seed(seed)),
        }
    }

    /// The limits in force.
    pub fn limits(&self) -> Limits {
        self.gateway.config().limits.clone()
    }

    /// The client's own id for a request, or a new one.
    pub fn request_id(&self, own: Option<&str>) -> RequestId {
        RequestId::new(own, &mut self.rng.borrow_mut())
    }

    /// `within`, and up to a quarter more by lot: of clients that came together and are all too slow, not all are due
    /// at once, which would keep the others waiting.
    pub fn spread(&self, within: Duration) -> Duration {
        within.mul_f64(1.0 + self.rng.borrow_mut().f64() / 4.0)
    }

    /// Whether the daemon is stopping.
    pub fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Returns once the daemon is stopping and a connection that waits for a request should end.
    ///
    /// After a takeover that is a little later: the address still serves, so a client has no reason
    /// to expect that a connection in use ends under its next request. It is answered, and told that
    /// it was the last.
    pub async fn stopping(&self) {
        self.closing().await;
        if self.gateway.is_handed_over() {
            sleep(HANDED_OVER_IDLE).await;
        }
    }

    /// Returns once no connection is to be accepted any more.
    pub async fn closing(&self) {
        // The sender lives as long as the gateway, which this worker holds.
        let _ = self.stop.clone().wait_for(|stop| *stop).await;
    }
}

/// Binds a listener's sockets for `workers` workers. With `shared`, another daemon that lets itself
/// be relieved may have the port.
pub fn bind(
    listener: &Listener,
    workers: usize,
    shared: bool,
) -> Result<Vec<TcpListener>, BindError> {
    let address = SocketAddr::new(listener.address, listener.port);
    let fail = |error| BindError { listener: listener.name.clone(), address, error };
    if address.port() != 0 && !shared {
        // SO_REUSEPORT would let a second gateway of the same user share the port unnoticed.
        // Without it the kernel says so.
        drop(socket(address, false).map_err(fail)?);
    }
    bind_all(address, workers).map_err(fail)
}

/// Binds one address that nobody shares.
pub fn bind_alone(address: SocketAddr) -> io::Result<TcpListener> {
    socket(address, false)
}

/// Binds one address for each worker.
pub fn bind_all(mut address: SocketAddr, workers: usize) -> io::Result<Vec<TcpListener>> {
    let mut sockets = Vec::with_capacity(workers);
    for _ in 0..workers {
        let socket = socket(address, true)?;
        // Port 0: the kernel chooses once, and all workers share its choice.
        address = socket.local_addr()?;
        sockets.push(socket);
    }
    Ok(sockets)
}

/// Sockets that take IPv4 and IPv6 and that only steering leads to.
pub fn bind_dual(workers: usize) -> io::Result<Vec<TcpListener>> {
    bind_all(SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 0), workers)
}

fn socket(address: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    let socket =
        socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if shared {
        socket.set_reuse_port(true)?;
    }
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    // A virtual address need not be on an interface.
    match address {
        SocketAddr::V4(_) => socket.set_freebind_v4(true)?,
        SocketAddr::V6(_) => socket.set_freebind_v6(true)?,
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Where connections come in.
struct Entry {
    listener: Arc<str>,
    arrival: Arrival,
    metrics: Arc<ListenerMetrics>,
    exclusive: Option<Exclusive>,
    protocol: config::Protocol,
    tls: Option<Tls>,
}

/// Runs a worker until the daemon stops and its connections have ended. `accepting` is called once
/// it takes connections.
pub fn run(
    gateway: Arc<Gateway>,
    sockets: Vec<Socket>,
    seed: u64,
    accepting: impl FnOnce(),
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    let worker = Rc::new(Worker::new(gateway, seed));
    local.block_on(&runtime, async move {
        let mut loops = Vec::new();
        for Socket { listener, socket, arrival, metrics, exclusive, protocol, tls } in sockets {
            let listening = tokio::net::TcpListener::from_std(socket)?;
            let entry = Entry { listener, arrival, metrics, exclusive, protocol, tls };
            loops.push(tokio::task::spawn_local(accept(entry, listening, Rc::clone(&worker))));
        }
        accepting();
        let sweeper = Rc::clone(&worker);
        tokio::task::spawn_local(async move {
            let mut tick = interval(SWEEP);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                sweeper.upstreams.sweep(tick.tick().await);
            }
        });
        for task in loops {
            // An accept loop ends when the daemon stops, and does not panic.
            let _ = task.await;
        }
        drain(&worker).await;
        Ok(())
    })
}

/// Accepts until the daemon stops. The socket is closed then and not shut down: another daemon may
/// have taken it over.
async fn accept(entry: Entry, listening: tokio::net::TcpListener, worker: Rc<Worker>) {
    let entry = Rc::new(entry);
    let mut complained = None;
    loop {
        let accepted = tokio::select! {
            biased;
            accepted = listening.accept() => accepted,
            () = worker.closing() => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                entry.metrics.accepted(entry.arrival);
                // Counted before its task runs, so that a worker that stops waits for it.
                let place = worker.gateway.admit(peer.ip());
                let (entry, worker) = (Rc::clone(&entry), Rc::clone(&worker));
                tokio::task::spawn_local(connection(stream, place, entry, worker));
            }
            Err(error) => {
                // Out of descriptors, or the peer is gone already. Trying at once would spin.
                let now = Instant::now();
                if complained.is_none_or(|last| now - last > COMPLAIN) {
                    warn!(listener = %entry.listener, "accepting a connection failed: {error}");
                    complained = Some(now);
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(
    stream: tokio::net::TcpStream,
    place: Result<Admission, Full>,
    entry: Rc<Entry>,
    worker: Rc<Worker>,
) {
    // Tokens are written as they come; waiting to fill a segment would delay each of them.
    let _ = stream.set_nodelay(true);
    // A client that does not read costs a window, and not all that the system allows a send buffer.
    let _ = SockRef::from(&stream).set_tcp_notsent_lowat(WINDOW as u32);
    let due = Instant::now() + worker.spread(worker.limits().header_timeout);
    let mut is_http2 = entry.protocol == config::Protocol::H2c;
    let stream = match &entry.tls {
        None => Stream::Plain(stream),
        Some(tls) => {
            // A handshake costs more than the refusal is worth.
            if let Err(full) = &place {
                return worker.gateway.counted.refused(full.refusal().reason());
            }
            let accepted = tokio::select! {
                biased;
                // Boxed, as the room for it would be every connection's.
                accepted = timeout_at(due, Box::pin(tls.accept(stream))) => accepted,
                // Nothing has been asked yet.
                () = worker.closing() => return,
            };
            let (how, stream) = match accepted {
                Ok(Ok(stream)) => (Handshake::Done, Some(stream)),
                Ok(Err(error)) => {
                    debug!(listener = %entry.listener, "a TLS handshake failed: {error}");
                    (Handshake::Failed, None)
                }
                Err(_) => (Handshake::TimedOut, None),
            };
            worker.gateway.counted.tls().handshake(how);
            let Some(stream) = stream else { return };
            is_http2 = stream.get_ref().1.alpn_protocol() == Some(tls::HTTP2);
            Stream::Tls(Box::new(RefCell::new(stream)))
        }
    };
    let place = match place {
        Ok(place) => place,
        Err(full) => {
            let refusal = full.refusal();
            worker.gateway.counted.refused(refusal.reason());
            let response = refusal.response(&worker.request_id(None), false, false);
            let mut client = Client::new(stream, Vec::new());
            if client.write(&response).await.is_ok() {
                client.linger(&worker.scratch, 64 * 1024, ACCEPT_PAUSE).await;
            }
            return;
        }
    };
    let exclusive = entry.exclusive.clone();
    serve(stream, is_http2, due, Inlet { worker, exclusive, place: Rc::new(place) }).await;
}

/// Waits for the connections to end, or for the word to cut them.
async fn drain(worker: &Worker) {
    let mut cut = worker.gateway.cut_signal();
    let ended = async {
        while worker.gateway.connections() > 0 {
            sleep(DRAIN_POLL).await;
        }
    };
    tokio::select! {
        () = ended => {}
        // The sender lives as long as the gateway, which this worker holds.
        _ = cut.wait_for(|cut| *cut) => {}
    }
}

/// Connections that wait to be accepted, for each worker and listener; the kernel caps it at
/// net.core.somaxconn.
const BACKLOG: i32 = 4096;

/// How long a connection may still wait for a request after a takeover. Clients that keep one for
/// use keep it in use.
const HANDED_OVER_IDLE: Duration = Duration::from_secs(5);

/// How often idle connections to pods are looked at.
const SWEEP: Duration = Duration::from_secs(1);

/// How long accepting rests after it failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How often a failing accept is logged.
const COMPLAIN: Duration = Duration::from_secs(10);

/// How often a stopping worker looks whether its connections have ended.
const DRAIN_POLL: Duration = Duration::from_millis(20);
