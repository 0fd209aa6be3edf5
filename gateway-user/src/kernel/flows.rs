//! Flows: responses that the kernel carries from a pod's connection to a client's.
//!
//! [`Flows`] owns the loaded programs and the maps. A connection to a pod that is to carry streams gets a
//! [`Link`] before it is made; a client's connection that streams go to is a [`Receiver`]. With both, the
//! daemon offers the kernel the rest of a response, and sees when it was taken and when it came back.
//!
//! What is done for each response is done in memory that the kernel shares; system calls are made for a
//! connection. None of them waits.

use std::collections::VecDeque;
use std::io::{self, PipeWriter};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::maps::{HashMap, MapData, MapError, SockHash};
use gateway_common::enrol::{MAX_PORTS, Pair, Pairing, mapped};
use gateway_common::flow::{
    Carried, Connection, Flow, LOCAL, MAX_CLIENTS, MAX_FLOWS, Offer, SPLICE, Standing, Tail,
};
use gateway_common::framing::Framing;
use gateway_common::limits::SEND_BUFFER;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::sync::Notify;

use super::load::{self, OBJECT, Part, Unfit};
use super::log::KernelLogReader;
use super::probe::redirect_once;
use super::shared::SharedArray;
use super::system::{self, Release};
use super::{events, socket};
use crate::config::KernelLog;

/// The kernel programs that carry responses, and what the daemon tells them. Dropped, they are
/// detached, and every socket is an ordinary one again.
pub struct Flows {
    inner: Arc<Inner>,
    log: Mutex<Option<KernelLogReader>>,
}

/// A connection to a pod whose responses the kernel can carry.
pub struct Link {
    flows: Arc<Inner>,
    connection: Connection,
    cookie: u64,
    path: Option<Path>,
    turn: u32,
    pair: Option<Pair>,
}

/// A client's connection that the kernel can send to.
pub struct Receiver {
    flows: Arc<Inner>,
    cookie: u64,
}

/// How the kernel carries the responses of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Path {
    /// From the pod's own socket.
    Local,
    /// From the gateway's socket, as the pod is elsewhere.
    Splice,
}

/// What works here.
#[derive(Debug)]
pub struct Works {
    /// The path for pods on this node, or why not.
    pub local: Result<(), Unfit>,
    /// The path for other pods, or why not.
    pub splice: Result<(), Unfit>,
}

/// How many of the kernel's entries are in use.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct Usage {
    /// Connections to pods that have a slot.
    pub connections: usize,
    /// Connections whose pods' ends are being looked for.
    pub pairs: usize,
    /// Client connections that flows can lead to.
    pub clients: usize,
}

/// No link could be made.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Every slot is in use, or every entry for clients.
    #[error("the kernel's tables are full: {MAX_FLOWS} streams, {MAX_CLIENTS} clients")]
    Full,
    /// The kernel refused.
    #[error("the kernel refused: {0}")]
    Map(MapError),
    /// A socket could not be asked or set up.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<MapError> for LinkError {
    fn from(error: MapError) -> Self {
        match &error {
            MapError::SyscallError(call) if call.io_error.raw_os_error() == Some(libc::E2BIG) => {
                Self::Full
            }
            _ => Self::Map(error),
        }
    }
}

struct Inner {
    // First, so that the programs are detached before anything else goes.
    _ebpf: Ebpf,
    // Held, as its sockets' program is attached to it.
    _pods: SockHash<MapData, u32>,
    local: AtomicBool,
    splice: AtomicBool,
    flows: SharedArray<Flow>,
    tails: SharedArray<Tail>,
    connections: Mutex<HashMap<MapData, u64, Connection>>,
    pairs: Mutex<HashMap<MapData, Pair, Pairing>>,
    upstreams: Mutex<SockHash<MapData, u32>>,
    clients: Mutex<SockHash<MapData, u64>>,
    acked: Mutex<HashMap<MapData, u64, u64>>,
    slots: Mutex<Slots>,
    changed: Arc<[Notify]>,
    epoll: Arc<Epoll>,
    // Its end ends the thread that reads events.
    _running: PipeWriter,
}

impl Flows {
    /// Loads the programs of the paths that are `wanted` and attaches them: to the cgroup v2 hierarchy, for pods
    /// of this node, and to the maps. `ports` are those on which the gateway takes clients.
    ///
    /// # Errors
    /// The host cannot, or may not. When one of the paths works, this is none.
    pub fn start(
        log: KernelLog,
        ports: &[u16],
        wanted: impl Fn(Path) -> bool,
    ) -> Result<(Self, Works), Unfit> {
        // By version, as older ones refuse with a complaint about something else.
        if Release::running().is_none_or(|release| release < FIRST) {
            return Err(Unfit::TooOld { release: system::release() });
        }
        if wanted(Path::Local) {
            let (flows, works) = Self::start_paths(log, ports, true, wanted(Path::Splice))?;
            // Pods' ends must not be enrolled when nothing looks at what they send.
            let Err(unfit) = works.local else { return Ok((flows, works)) };
            drop(flows);
            if !wanted(Path::Splice) {
                return Err(unfit);
            }
            let (flows, works) = Self::start_paths(log, ports, false, true)?;
            return Ok((flows, Works { local: Err(unfit), ..works }));
        }
        if !wanted(Path::Splice) {
            return Err(Unfit::Unwanted);
        }
        let (flows, works) = Self::start_paths(log, ports, false, true)?;
        match works.splice {
            Ok(()) => Ok((flows, works)),
            Err(unfit) => Err(unfit),
        }
    }

    fn start_paths(
        log: KernelLog,
        ports: &[u16],
        local: bool,
        splice: bool,
    ) -> Result<(Self, Works), Unfit> {
        let mut ebpf = load::load(OBJECT, log, Part::Flows { local })?;
        let upstreams: SockHash<_, u32> = load::take(&mut ebpf, "UPSTREAMS")?;
        let pods: SockHash<_, u32> = load::take(&mut ebpf, "PODS")?;
        let mut known: HashMap<_, u32, u32> = load::take(&mut ebpf, "PORTS")?;
        for port in ports.iter().take(MAX_PORTS as usize) {
            let failed = |error| Unfit::map("tell the programs the gateway's ports", error);
            known.insert(u32::from(*port), 0, 0).map_err(failed)?;
        }
        let works = Works {
            local: match local {
                true => load::attach_sk_msg(&mut ebpf, "local", pods.fd()),
                false => Err(Unfit::Unwanted),
            },
            splice: match (splice, redirect_once(Release::running(), &system::release())) {
                (false, _) => Err(Unfit::Unwanted),
                (true, Err(why)) => Err(Unfit::Damaging(why)),
                (true, Ok(_)) => load::attach_sk_skb(&mut ebpf, "splice", upstreams.fd()),
            },
        };
        // Last, as from here on sockets of the node are looked at.
        load::attach_sock_ops(&mut ebpf, "enrol")?;
        let system = |what: &str| {
            let what = what.to_owned();
            move |source: io::Error| Unfit::System { what, source }
        };
        let epoll = Arc::new(
            Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
                .map_err(io::Error::from)
                .map_err(system("make an epoll instance"))?,
        );
        let changed: Arc<[Notify]> = (0..MAX_FLOWS).map(|_| Notify::new()).collect();
        let ring = load::take(&mut ebpf, "EVENTS")?;
        let (ended, running) = io::pipe().map_err(system("make a pipe"))?;
        let reader = events::Reader { ring, epoll: Arc::clone(&epoll), ended };
        reader.start(Arc::clone(&changed)).map_err(system("start the thread for events"))?;
        let reader_of_log = KernelLogReader::take(&mut ebpf);
        let inner = Inner {
            local: works.local.is_ok().into(),
            splice: works.splice.is_ok().into(),
            flows: load::share(&mut ebpf, "FLOWS", MAX_FLOWS)?,
            tails: load::share(&mut ebpf, "TAILS", MAX_FLOWS)?,
            connections: Mutex::new(load::take(&mut ebpf, "CONNECTIONS")?),
            pairs: Mutex::new(load::take(&mut ebpf, "PAIRS")?),
            upstreams: Mutex::new(upstreams),
            clients: Mutex::new(load::take(&mut ebpf, "CLIENTS")?),
            acked: Mutex::new(load::take(&mut ebpf, "ACKED")?),
            slots: Mutex::new(Slots::new(MAX_FLOWS)),
            changed,
            epoll,
            _running: running,
            _pods: pods,
            _ebpf: ebpf,
        };
        Ok((Self { inner: Arc::new(inner), log: Mutex::new(reader_of_log) }, works))
    }

    /// What the programs say, if the log was taken by nobody yet.
    pub fn take_log(&self) -> Option<KernelLogReader> {
        self.log.lock().take()
    }

    /// Gives `socket`, which is not connected yet, a link. Its bytes are counted from the first on.
    ///
    /// # Errors
    /// There is no slot, or the kernel refuses; the socket is an ordinary one then.
    pub fn link(&self, socket: &impl AsFd) -> Result<Link, LinkError> {
        let inner = &self.inner;
        let cookie = SockRef::from(socket).cookie()?;
        let connection = inner.slots.lock().take(Instant::now()).ok_or(LinkError::Full)?;
        // Nobody knows the slot yet, and who had it before has let go of it long ago.
        inner.flows.write(connection.slot, Flow::new(connection.generation));
        let link =
            Link { flows: Arc::clone(inner), connection, cookie, path: None, turn: 0, pair: None };
        inner.connections.lock().insert(cookie, connection, 0)?;
        Ok(link)
    }

    /// Makes a client's connection one that flows can lead to.
    ///
    /// # Errors
    /// The kernel refuses; nothing has changed for the connection's ordinary use then.
    pub fn receiver(&self, socket: &impl AsFd) -> Result<Receiver, LinkError> {
        let inner = &self.inner;
        let cookie = SockRef::from(socket).cookie()?;
        socket::set_send_buffer(socket, SEND_BUFFER)?;
        // Should more be acknowledged before the entry is there, it is told the next time.
        let acked = socket::acknowledged(socket)?;
        inner.acked.lock().insert(cookie, acked, 0)?;
        let receiver = Receiver { flows: Arc::clone(inner), cookie };
        inner.clients.lock().insert(cookie, socket.as_fd().as_raw_fd(), 0)?;
        Ok(receiver)
    }

    /// Uses this path for no connection from now on.
    pub fn leave_out(&self, path: Path) {
        let left_out = match path {
            Path::Local => &self.inner.local,
            Path::Splice => &self.inner.splice,
        };
        left_out.store(false, Ordering::Relaxed);
    }

    /// What is in use. Asks the kernel for every entry: for status pages and tests.
    pub fn usage(&self) -> Usage {
        let inner = &self.inner;
        Usage {
            connections: inner.connections.lock().keys().filter(Result::is_ok).count(),
            pairs: inner.pairs.lock().keys().filter(Result::is_ok).count(),
            clients: inner.acked.lock().keys().filter(Result::is_ok).count(),
        }
    }
}

impl std::fmt::Debug for Flows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { local, splice, .. } = &*self.inner;
        f.debug_struct("Flows")
            .field("local", local)
            .field("splice", splice)
            .finish_non_exhaustive()
    }
}

impl Link {
    /// Finds out how the kernel can carry this connection's responses, now that `socket` is connected. Called
    /// once.
    pub fn settle(&mut self, socket: &impl AsFd) -> Result<Option<Path>, LinkError> {
        let flows = &self.flows;
        let enrolled = flows.local.load(Ordering::Relaxed) && self.carried().enrolled != 0;
        if !enrolled {
            let of = SockRef::from(socket);
            let ends = (of.local_addr()?.as_socket(), of.peer_addr()?.as_socket());
            if let (Some(gateway), Some(pod)) = ends {
                let pair = pair(gateway, pod);
                // Whoever is established from here on is too late to be recognised.
                let _ = flows.pairs.lock().remove(&pair);
                self.pair = Some(pair);
            }
        }
        if enrolled {
            self.path = Some(Path::Local);
        } else if flows.splice.load(Ordering::Relaxed) {
            let mut upstreams = flows.upstreams.lock();
            upstreams.insert(self.connection.slot, socket.as_fd().as_raw_fd(), 0)?;
            self.path = Some(Path::Splice);
        }
        Ok(self.path)
    }

    /// Offers the kernel the rest of a response. Everything that was read from the connection has been
    /// written to the client.
    ///
    /// `relayed` are the bytes read from the connection since it was made, `written` those given to the client's
    /// connection since it was accepted, by either side; `framing` is where the body stands.
    pub fn offer(&mut self, relayed: u64, written: u64, framing: &Framing, client: &Receiver) {
        self.turn = self.turn.wrapping_add(1).max(1);
        let path = match self.path {
            Some(Path::Local) => LOCAL,
            Some(Path::Splice) => SPLICE,
            None => return,
        };
        let offer = Offer {
            relayed,
            written,
            framing: framing.parts(),
            client: client.cookie,
            turn: self.turn,
            path,
            ..Offer::default()
        };
        let Connection { slot, generation } = self.connection;
        self.flows.flows.write_words(slot, &offer.sealed(generation).words());
    }

    /// How the kernel carries this connection's responses, if it can.
    pub fn path(&self) -> Option<Path> {
        self.path
    }

    /// What has become of the last offer. Only the kernel goes on from [`Standing::Waiting`] and
    /// [`Standing::Carrying`], and may do so at any time: ask once, and act on the answer.
    pub fn standing(&self) -> Standing {
        self.carried().standing(self.turn)
    }

    /// The kernel's half of the flow. While the kernel carries, its parts may be of different moments.
    pub fn carried(&self) -> Carried {
        self.flows.flows.read(self.connection.slot).carried
    }

    /// The last bytes that the kernel carried since it took the last offer.
    pub fn tail(&self) -> Box<Tail> {
        Box::new(self.flows.tails.read(self.connection.slot))
    }

    /// Waits until a spliced flow may have been taken or come back. May return without a reason.
    pub async fn changed(&self) {
        match self.flows.changed.get(self.connection.slot as usize) {
            Some(changed) => changed.notified().await,
            // Slots are below the length by construction.
            None => std::future::pending().await,
        }
    }

    /// Has the end of the connection count as a change ([`Link::changed`]) as long as the guard lives. The
    /// socket is in no other epoll instance then: it would be woken at every message.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn park<'a, S: AsFd>(&'a self, socket: &'a S) -> io::Result<Parked<'a, S>> {
        let ends = EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLONESHOT;
        self.flows.epoll.add(socket, EpollEvent::new(ends, u64::from(self.connection.slot)))?;
        Ok(Parked { link: self, socket })
    }
}

/// A connection whose end is watched for.
pub struct Parked<'a, S: AsFd> {
    link: &'a Link,
    socket: &'a S,
}

impl<S: AsFd> Drop for Parked<'_, S> {
    fn drop(&mut self) {
        // It fails only when the socket is not in it any more.
        let _ = self.link.flows.epoll.delete(self.socket);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let flows = &self.flows;
        // What is not there needs no removal.
        let _ = flows.connections.lock().remove(&self.cookie);
        let mut pairs = flows.pairs.lock();
        match &self.pair {
            Some(pair) => {
                let _ = pairs.remove(pair);
            }
            // The connection was given up before it was settled, so that its addresses are not known: rare.
            None if self.path.is_none() => {
                let mine = |(pair, of): (Pair, Pairing)| {
                    (of.connection == self.connection).then_some(pair)
                };
                let found: Vec<Pair> = pairs.iter().flatten().filter_map(mine).collect();
                for pair in found {
                    let _ = pairs.remove(&pair);
                }
            }
            // The program took it out when it found the pod.
            None => {}
        }
        drop(pairs);
        flows.slots.lock().give_back(self.connection, Instant::now());
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { connection, path, turn, .. } = self;
        f.debug_struct("Link")
            .field("connection", connection)
            .field("path", path)
            .field("turn", turn)
            .finish_non_exhaustive()
    }
}

impl Receiver {
    /// Whether all of `sent` bytes, counted from the connection's start, are in the socket: what is
    /// spliced waits before it for a kernel worker.
    ///
    /// # Errors
    /// The socket cannot be asked.
    pub fn has(&self, socket: &impl AsFd, sent: u64) -> io::Result<bool> {
        // In this order, so that what is acknowledged meanwhile is missed and not counted twice.
        let acked = socket::acknowledged(socket)?;
        Ok(acked.wrapping_add(socket::outstanding(socket)?) >= sent)
    }

    /// Bytes in the socket that the client has not acknowledged.
    ///
    /// # Errors
    /// The socket cannot be asked.
    pub fn outstanding(&self, socket: &impl AsFd) -> io::Result<u64> {
        socket::outstanding(socket)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // The kernel has taken the socket out of its own map.
        let _ = self.flows.acked.lock().remove(&self.cookie);
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("cookie", &self.cookie).finish_non_exhaustive()
    }
}

/// Which slots are free.
///
/// A slot that was given back rests, as a program that has found it may still be running: it writes into
/// the slot, not into a new connection's flow.
struct Slots {
    free: Vec<u32>,
    resting: VecDeque<(Instant, u32)>,
    generations: Vec<u32>,
}

impl Slots {
    fn new(count: u32) -> Self {
        let generations = vec![0; count as usize];
        Self { free: (0..count).rev().collect(), resting: VecDeque::new(), generations }
    }

    fn take(&mut self, now: Instant) -> Option<Connection> {
        let rested =
            self.resting.pop_front_if(|(since, _)| now.saturating_duration_since(*since) >= REST);
        let slot = rested.map(|(_, slot)| slot).or_else(|| self.free.pop())?;
        let generation = self.generations.get_mut(slot as usize)?;
        *generation = generation.wrapping_add(1).max(1);
        Some(Connection { slot, generation: *generation })
    }

    fn give_back(&mut self, connection: Connection, now: Instant) {
        self.resting.push_back((now, connection.slot));
    }
}

fn pair(gateway: SocketAddr, pod: SocketAddr) -> Pair {
    let words = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => mapped(u32::from_ne_bytes(v4.octets())),
        IpAddr::V6(v6) => {
            let [a, b, c, d] = [0, 4, 8, 12].map(|at| {
                let mut word = [0; 4];
                word.copy_from_slice(v6.octets().get(at..at + 4).unwrap_or(&[0; 4]));
                u32::from_ne_bytes(word)
            });
            [a, b, c, d]
        }
    };
    Pair {
        pod: words(pod.ip()),
        gateway: words(gateway.ip()),
        pod_port: u32::from(pod.port()),
        gateway_port: u32::from(gateway.port()),
    }
}

/// The oldest kernel on which responses have been carried in tests.
const FIRST: Release = Release(6, 1, 0);

/// A program runs for microseconds; this is long enough for any.
const REST: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_rests_before_it_is_another_connections() {
        let mut slots = Slots::new(2);
        let start = Instant::now();
        let (first, second) = (slots.take(start).unwrap(), slots.take(start).unwrap());
        assert_ne!(first.slot, second.slot);
        assert_eq!(slots.take(start), None, "there are two");
        slots.give_back(first, start);
        assert_eq!(slots.take(start + REST - Duration::from_nanos(1)), None);
        let again = slots.take(start + REST).unwrap();
        assert_eq!((again.slot, again.generation), (first.slot, first.generation + 1));
        assert_eq!(slots.take(start + 2 * REST), None, "the other is in use");
    }

    #[test]
    fn both_ends_name_a_connection_alike() {
        let pair = |gateway: &str, pod: &str| pair(gateway.parse().unwrap(), pod.parse().unwrap());
        let v4 = pair("10.0.0.1:40000", "10.0.0.2:8000");
        // As a pod that listens for both families sees it.
        assert_eq!(v4, pair("[::ffff:10.0.0.1]:40000", "[::ffff:10.0.0.2]:8000"));
        assert_eq!(v4.pod.map(u32::from_be), [0, 0, 0xffff, 0x0a00_0002]);
        assert_eq!((v4.gateway_port, v4.pod_port), (40000, 8000));
        let v6 = pair("[2001:db8::1]:1", "[2001:db8::2]:2");
        assert_eq!(v6.gateway.map(u32::from_be), [0x2001_0db8, 0, 0, 1]);
    }
}
