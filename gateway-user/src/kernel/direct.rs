//! Direct: sk_lookup gives a connection to a model server's own listening socket.
//!
//! [`Direct`] tells the kernel which pods a pool has and what they are worth, sees to it that their
//! listening sockets are at hand, and reads how many connections each has. It never accepts, binds
//! or keeps a server's socket: a copy is held for as long as it takes to put it into the map.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::maps::{Array, HashMap as BpfHashMap, MapData, MapError, SkStorage, SockMap};
pub use gateway_common::direct::Worth;
use gateway_common::direct::{Candidates, Endpoint, Live, MAX_PODS, MAX_POOLS, Membership};
use serde::Serialize;
use tracing::warn;

use super::listening::{self, Listening};
use super::load::{Unfit, take};
use super::scores::monotonic_ns;
use super::steer::SteerError;

/// The pools that take whole connections.
pub struct Direct {
    candidates: Array<MapData, Candidates>,
    live: Array<MapData, Live>,
    servers: SockMap<MapData>,
    enrolled: Array<MapData, u64>,
    endpoints: BpfHashMap<MapData, Endpoint, u32>,
    memberships: SkStorage<MapData, Membership>,
    pools: Vec<Vec<SocketAddr>>,
    /// Listening sockets that carry their slot by our hand, by cookie.
    marked: HashSet<u64>,
    /// Those that could not be had, and when that was.
    missed: HashMap<u64, (Instant, String)>,
}

/// What became of the connections of one pool, since the start.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct DirectCounters {
    /// Connections that the gateway's own listener got, as no server was fit.
    pub fallbacks: u64,
    /// Servers passed over because their socket was not there.
    pub retried: u64,
    /// Connections that were given without regard to load, as nobody had published for 3 s.
    pub stale: u64,
    /// The pods, in the order in which they were given.
    pub pods: Vec<PodConnections>,
}

/// The connections of one pod.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct PodConnections {
    /// Given to it since the start (under a SYN flood, lookups: one more when a cookie comes back).
    pub given: u64,
    /// Open now.
    pub open: u64,
}

/// Where a pod's listening socket is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ServerSocket {
    /// In the map.
    Held,
    /// Nobody listens at the pod's address in this network namespace.
    NotListening,
    /// Somebody listens, but the socket cannot be had; the text says why.
    OutOfReach(String),
    /// It is not known who listens: [`Direct::look`] has failed, or was not asked.
    Unknown,
}

impl Direct {
    /// Takes the maps out of the object.
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self, Unfit> {
        Ok(Self {
            candidates: take(ebpf, "CANDIDATES")?,
            live: take(ebpf, "DIRECT_LIVE")?,
            servers: take(ebpf, "SERVERS")?,
            enrolled: take(ebpf, "ENROLLED")?,
            endpoints: take(ebpf, "ENDPOINTS")?,
            memberships: take(ebpf, "MEMBERSHIPS")?,
            pools: Vec::new(),
            marked: HashSet::new(),
            missed: HashMap::new(),
        })
    }

    /// Adds a pool of these pods and returns its number. None gets a connection before
    /// [`Direct::publish`]. A pod is in one pool only.
    ///
    /// # Errors
    /// There are too many pools or pods, or the kernel refused.
    pub fn add_pool(&mut self, pods: &[SocketAddr]) -> Result<u32, SteerError> {
        let pool = self.pools.len() as u32;
        if pool >= MAX_POOLS || pods.is_empty() || pods.len() > MAX_PODS as usize {
            return Err(SteerError::Pool { pool, pods: pods.len() });
        }
        if let Some(netns) = listening::netns_cookie() {
            for (pod, slot) in pods.iter().zip(pool * MAX_PODS..) {
                for place in listening::places(*pod) {
                    // Of two pods with one port, a server that listens at all addresses is the
                    // first's.
                    let key = Endpoint::of(netns, place);
                    match self.endpoints.insert(key, slot, NO_EXIST) {
                        Err(error) if !exists(&error) => {
                            return Err(SteerError::kernel("store a pod's address", error));
                        }
                        _ => {}
                    }
                }
            }
        }
        self.pools.push(pods.to_vec());
        Ok(pool)
    }

    /// Puts a pod's listening socket into the map, in place of the one that is there.
    ///
    /// # Errors
    /// No such pod, or the kernel refused.
    pub fn put(&mut self, pool: u32, pod: usize, socket: &impl AsFd) -> Result<(), SteerError> {
        let slot = self.slot(pool, pod)?;
        self.enrol(slot, socket, 0)
    }

    /// Says what the pool's pods are worth, in their order; a pod whose score is further than
    /// `margin` below the best gets no connection. To be said again at least once a
    /// second: what is older than 3 s counts no more.
    ///
    /// # Errors
    /// No such pool, or the kernel refused.
    pub fn publish(&mut self, pool: u32, margin: u32, pods: &[Worth]) -> Result<(), SteerError> {
        let candidates = Candidates::new(monotonic_ns(), margin, pods, &self.live(pool)?);
        self.candidates
            .set(pool, candidates, 0)
            .map_err(|error| SteerError::kernel("write a pool's tickets", error))
    }

    /// What became of the pool's connections.
    ///
    /// # Errors
    /// No such pool, or the kernel refused to tell.
    pub fn counters(&self, pool: u32) -> Result<DirectCounters, SteerError> {
        let live = self.live(pool)?;
        let pods = self.pools.get(pool as usize).map_or(0, Vec::len);
        let of_pod = |pod: &gateway_common::direct::PodLive| PodConnections {
            given: pod.picked,
            // Read while others write: one that has ended may be seen before it was opened.
            open: pod.opened.saturating_sub(pod.closed),
        };
        Ok(DirectCounters {
            fallbacks: live.fallbacks,
            retried: live.retried,
            stale: live.stale,
            pods: live.pods.iter().take(pods).map(of_pod).collect(),
        })
    }

    /// Looks who listens at the pods' addresses, and fetches the sockets that are not in the map:
    /// of servers that were there first, and of what the socket-operations program does not see.
    /// Returns how each pod of each pool stands.
    ///
    /// # Errors
    /// The kernel does not tell who listens.
    pub fn look(&mut self) -> Result<Vec<Vec<ServerSocket>>, SteerError> {
        let all = listening::listening().map_err(SteerError::Listening)?;
        let alive: HashSet<u64> = all.iter().map(|socket| socket.cookie).collect();
        self.marked.retain(|cookie| alive.contains(cookie));
        self.missed.retain(|cookie, _| alive.contains(cookie));
        let pools = self.pools.clone();
        let mut states = Vec::with_capacity(pools.len());
        for (pods, pool) in pools.iter().zip(0..) {
            let state = |(pod, slot)| self.look_at(slot, &listening::at(&all, pod), &alive);
            states.push(pods.iter().copied().zip(pool * MAX_PODS..).map(state).collect());
        }
        Ok(states)
    }

    fn look_at(&mut self, slot: u32, here: &[Listening], alive: &HashSet<u64>) -> ServerSocket {
        // A socket that does not listen any more has left the map.
        let held = |direct: &Self| {
            direct.enrolled.get(&slot, 0).is_ok_and(|cookie| alive.contains(&cookie))
        };
        let mut state = if held(self) { ServerSocket::Held } else { ServerSocket::NotListening };
        for socket in here {
            // Each of a server's several sockets carries the slot, so that connections of all count.
            let known = self.marked.contains(&socket.cookie) || here.len() == 1;
            if state == ServerSocket::Held && known {
                continue;
            }
            match self.fetch(slot, socket) {
                Ok(()) => state = ServerSocket::Held,
                Err(_) if state == ServerSocket::Held => {}
                Err(why) => state = ServerSocket::OutOfReach(why),
            }
        }
        state
    }

    fn fetch(&mut self, slot: u32, socket: &Listening) -> Result<(), String> {
        if let Some((at, why)) = self.missed.get(&socket.cookie)
            && at.elapsed() < TRY_AGAIN
        {
            return Err(why.clone());
        }
        let fetched = listening::fetch(socket).map_err(|missed| missed.to_string());
        let done = fetched.and_then(|fetched| {
            // The program may have put a socket there since; one is as good as the other.
            self.enrol(slot, &fetched, NO_EXIST).map_err(|error| error.to_string())
        });
        match &done {
            Ok(()) => {
                self.missed.remove(&socket.cookie);
                self.marked.insert(socket.cookie);
            }
            Err(why) => {
                let before = self.missed.insert(socket.cookie, (Instant::now(), why.clone()));
                if before.is_none_or(|(_, before)| before != *why) {
                    warn!("the listening socket of {} is out of reach: {why}", socket.address);
                }
            }
        }
        done
    }

    fn enrol(&mut self, slot: u32, socket: &impl AsFd, flags: u64) -> Result<(), SteerError> {
        let socket = &socket.as_fd();
        let cookie =
            listening::cookie(socket).map_err(|source| SteerError::Socket { socket: 0, source })?;
        let membership = Membership { slot, counted: 0 };
        self.memberships
            .insert(socket, membership, 0)
            .map_err(|error| SteerError::kernel("mark a server's socket", error))?;
        match self.servers.set(slot, socket, flags) {
            Err(error) if exists(&error) => return Ok(()),
            done => done.map_err(|error| SteerError::kernel("store a server's socket", error))?,
        }
        self.enrolled
            .set(slot, cookie, 0)
            .map_err(|error| SteerError::kernel("note a server's socket", error))
    }

    fn slot(&self, pool: u32, pod: usize) -> Result<u32, SteerError> {
        match self.pools.get(pool as usize) {
            Some(pods) if pod < pods.len() => Ok(pool * MAX_PODS + pod as u32),
            _ => Err(SteerError::Pool { pool, pods: pod }),
        }
    }

    fn live(&self, pool: u32) -> Result<Live, SteerError> {
        self.slot(pool, 0)?;
        self.live
            .get(&pool, 0)
            .map_err(|error| SteerError::kernel("read a pool's connections", error))
    }
}

fn exists(error: &MapError) -> bool {
    matches!(error, MapError::SyscallError(error)
        if error.io_error.kind() == std::io::ErrorKind::AlreadyExists)
}

/// BPF_NOEXIST: only if nothing is there.
const NO_EXIST: u64 = 1;

/// How long a socket that could not be had is left alone: looking for it reads every process'
/// descriptors.
const TRY_AGAIN: Duration = Duration::from_secs(30);
