//! Steering: sk_lookup gives new connections to the workers' listening sockets.
//!
//! [`Steering`] owns the loaded program and is the only writer of its maps. It never accepts, binds
//! or closes a socket: the workers do, and a socket that closes leaves the map by itself.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use aya::Ebpf;
use aya::maps::lpm_trie::Key;
use aya::maps::{LpmTrie, MapData, MapError, PerCpuArray, SockMap};
use gateway_common::direct::{MAX_PODS, MAX_POOLS};
use gateway_common::steer::{
    Counters, Destination, MAX_DESTINATIONS, MAX_LISTENERS, MAX_WORKERS, Target,
};
use serde::Serialize;
use socket2::{Domain, SockRef};

use super::direct::Direct;
use super::load::{self, OBJECT, Part, Unfit};
use super::log::KernelLogReader;
use super::scores::{Publication, PublishedScore, ScoreEntry, Scores};
use crate::config::{KernelLog, VirtualAddress};

/// The steering of one network namespace. Dropped, it is detached, and connections find their
/// listeners the ordinary way again.
pub struct Steering {
    // First, so that it is detached before anything else goes.
    ebpf: Ebpf,
    destinations: LpmTrie<MapData, Destination, Target>,
    slots: SockMap<MapData>,
    counters: PerCpuArray<MapData, Counters>,
    scores: Scores,
    direct: Direct,
    log: Option<KernelLogReader>,
    listeners: BTreeMap<u32, Listener>,
}

impl Steering {
    /// Loads the programs and attaches them to the calling thread's network namespace. No
    /// connection is steered before [`Steering::set_listener`].
    ///
    /// Where another program steers as well, the one attached last decides for what both claim: so
    /// a new daemon takes over from an old one that still runs.
    ///
    /// # Errors
    /// The host cannot, or may not.
    pub fn start(log: KernelLog) -> Result<Self, Unfit> {
        Self::start_object(OBJECT, log)
    }

    /// As [`Steering::start`], with another build of the programs: for checking a rebuilt object.
    ///
    /// # Errors
    /// The host cannot or may not, or the object's maps are not laid out as this daemon expects.
    pub fn start_object(object: &[u8], log: KernelLog) -> Result<Self, Unfit> {
        let mut ebpf = load::load(object, log, Part::Steering)?;
        load::attach(&mut ebpf, "steer")?;
        Ok(Self {
            destinations: load::take(&mut ebpf, "DESTINATIONS")?,
            slots: load::take(&mut ebpf, "LISTENERS")?,
            counters: load::take(&mut ebpf, "COUNTERS")?,
            scores: Scores::new(load::take(&mut ebpf, "SCORES")?),
            direct: Direct::take(&mut ebpf)?,
            log: KernelLogReader::take(&mut ebpf),
            listeners: BTreeMap::new(),
            ebpf,
        })
    }

    /// What the programs say, if the log was taken by nobody yet.
    pub fn take_log(&mut self) -> Option<KernelLogReader> {
        self.log.take()
    }

    /// Gives new connections to any of `destinations` to `sockets`, in turn, instead of what
    /// `listener` (below 64) had before. At no time is a connection refused, and once this returns
    /// none reaches a former socket any more; what waits in its accept queue is still the caller's
    /// to accept.
    ///
    /// Sockets listen already, one for each worker. A v6 destination needs v6 sockets, a v4
    /// destination v4 or dual-stack ones. The sockets should be one SO_REUSEPORT group, as the
    /// kernel keeps SYN cookies by group and the answer to one may reach another socket of it.
    ///
    /// # Errors
    /// The arguments do not fit together, or the kernel refused; then the listener is as it was.
    pub fn set_listener(
        &mut self,
        listener: u32,
        destinations: &[VirtualAddress],
        sockets: &[impl AsFd],
    ) -> Result<(), SteerError> {
        self.set(listener, 0, destinations, sockets)
    }

    /// As [`Steering::set_listener`], with connections that go to a model server of `pool`
    /// ([`Direct::add_pool`]) once [`Steering::start_direct`] was called; `sockets` get those for
    /// which no server is fit.
    ///
    /// # Errors
    /// As there.
    pub fn set_direct_listener(
        &mut self,
        listener: u32,
        pool: u32,
        destinations: &[VirtualAddress],
        sockets: &[impl AsFd],
    ) -> Result<(), SteerError> {
        self.set(listener, Target::direct(pool), destinations, sockets)
    }

    /// The pools that take whole connections.
    pub fn direct(&mut self) -> &mut Direct {
        &mut self.direct
    }

    /// Has connections to the listeners of [`Steering::set_direct_listener`] go to model servers.
    ///
    /// # Errors
    /// The host cannot, or may not.
    pub fn start_direct(&mut self) -> Result<(), Unfit> {
        // Behind `steer`, as the program that is attached last decides.
        load::attach(&mut self.ebpf, "direct")
    }

    /// Has the kernel see which model servers begin to listen and which connections they have.
    /// Without, both are less exact: sockets are found by [`Direct::look`] alone, and open
    /// connections are not counted.
    ///
    /// # Errors
    /// The host cannot, or may not.
    pub fn watch_servers(&mut self) -> Result<(), Unfit> {
        load::attach_sock_ops(&mut self.ebpf, "servers")
    }

    fn set(
        &mut self,
        listener: u32,
        direct: u32,
        destinations: &[VirtualAddress],
        sockets: &[impl AsFd],
    ) -> Result<(), SteerError> {
        let blocks = self.blocks(listener, destinations)?;
        check_sockets(destinations, sockets)?;
        let old = self.listeners.get(&listener);
        let bank = old.map_or(0, |old| 1 - old.bank);
        let count = sockets.len() as u32;
        let target = Target { first: first_slot(listener, bank), count, listener, direct };
        let new = Listener { bank, target, blocks };

        // The new sockets are all in place before the first destination points at them, and a
        // destination changes from the old ones to the new in one step.
        if let Err(error) = self.fill(target, sockets).and_then(|()| self.point(&new)) {
            self.withdraw(&new, listener);
            return Err(error);
        }
        if let Some(old) = self.listeners.insert(listener, new.clone()) {
            for block in old.blocks.iter().filter(|block| !new.blocks.contains(block)) {
                self.forget(*block)?;
            }
            grace_period();
            self.clear(old.target);
        }
        Ok(())
    }

    /// Steers nothing to `listener` any more; its destinations pass as if they had never been here.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn remove_listener(&mut self, listener: u32) -> Result<(), SteerError> {
        let Some(old) = self.listeners.remove(&listener) else { return Ok(()) };
        for block in &old.blocks {
            self.forget(*block)?;
        }
        grace_period();
        self.clear(old.target);
        Ok(())
    }

    /// What was done for each listener since the start, in the order of their numbers.
    ///
    /// # Errors
    /// The kernel refused to tell.
    pub fn counters(&self) -> Result<Vec<ListenerCounters>, SteerError> {
        self.listeners.keys().map(|listener| self.listener_counters(*listener)).collect()
    }

    /// Writes the pods' scores where kernel programs and tools see them, and takes out pods that
    /// are not among `entries` any more. Only what changed is written, and what was written a
    /// second ago.
    ///
    /// # Errors
    /// The kernel refused; what was not written is tried again next time.
    pub fn publish(&mut self, entries: &[ScoreEntry]) -> Result<Publication, SteerError> {
        self.scores.publish(entries).map_err(|error| SteerError::kernel("write scores", error))
    }

    /// The scores as the kernel has them.
    ///
    /// # Errors
    /// The kernel refused to tell.
    pub fn scores(&self) -> Result<Vec<PublishedScore>, SteerError> {
        self.scores.read().map_err(|error| SteerError::kernel("read scores", error))
    }

    /// Size of the sk_lookup program as the kernel runs it, in bytes before it is compiled to
    /// machine code; `None` if the kernel does not tell. With the log off it is the smallest.
    pub fn program_bytes(&self) -> Option<u32> {
        self.ebpf.program("steer")?.info().ok()?.size_translated()
    }

    /// The blocks of `destinations`, each once; none of another listener.
    fn blocks(
        &self,
        listener: u32,
        destinations: &[VirtualAddress],
    ) -> Result<Vec<(Destination, u32)>, SteerError> {
        if listener >= MAX_LISTENERS {
            return Err(SteerError::Listener(listener));
        }
        let mut blocks = Vec::with_capacity(destinations.len());
        for address in destinations {
            let VirtualAddress { address: ip, prefix, port } = *address;
            let Some(block) = Destination::block(ip, prefix, port) else {
                return Err(SteerError::Prefix(*address));
            };
            if !blocks.contains(&block) {
                blocks.push(block);
            }
            let taken = |(id, other): (&u32, &Listener)| {
                (*id != listener && other.blocks.contains(&block)).then_some(*id)
            };
            if let Some(by) = self.listeners.iter().find_map(taken) {
                return Err(SteerError::Taken { block: *address, by });
            }
        }
        let others = self.listeners.iter().filter(|(id, _)| **id != listener);
        let total = blocks.len() + others.map(|(_, other)| other.blocks.len()).sum::<usize>();
        if total > MAX_DESTINATIONS as usize {
            return Err(SteerError::Full);
        }
        Ok(blocks)
    }

    fn fill(&mut self, target: Target, sockets: &[impl AsFd]) -> Result<(), SteerError> {
        for (slot, socket) in (target.first..).zip(sockets) {
            self.slots
                .set(slot, &socket.as_fd(), 0)
                .map_err(|error| SteerError::kernel("store a listening socket", error))?;
        }
        Ok(())
    }

    fn point(&mut self, listener: &Listener) -> Result<(), SteerError> {
        for (destination, bits) in &listener.blocks {
            self.destinations
                .insert(&Key::new(*bits, *destination), listener.target, 0)
                .map_err(|error| SteerError::kernel("store a destination", error))?;
        }
        Ok(())
    }

    /// Undoes a [`Steering::point`] and [`Steering::fill`] that broke off, as far as they came.
    fn withdraw(&mut self, new: &Listener, listener: u32) {
        let old = self.listeners.get(&listener).cloned();
        for block in &new.blocks {
            let was = old.as_ref().filter(|old| old.blocks.contains(block));
            let (destination, bits) = *block;
            let _ = match was {
                Some(old) => self.destinations.insert(&Key::new(bits, destination), old.target, 0),
                None => self.destinations.remove(&Key::new(bits, destination)),
            };
        }
        grace_period();
        self.clear(new.target);
    }

    fn forget(&mut self, (destination, bits): (Destination, u32)) -> Result<(), SteerError> {
        match self.destinations.remove(&Key::new(bits, destination)) {
            Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
            Err(error) => Err(SteerError::kernel("remove a destination", error)),
        }
    }

    fn clear(&mut self, target: Target) {
        for slot in (target.first..).take(target.count as usize) {
            // It fails where the socket closed meanwhile, which is as good.
            let _ = self.slots.clear_index(&slot);
        }
    }

    fn listener_counters(&self, listener: u32) -> Result<ListenerCounters, SteerError> {
        let by_cpu = self
            .counters
            .get(&listener, 0)
            .map_err(|error| SteerError::kernel("read the counters", error))?;
        let zero = ListenerCounters { listener, ..ListenerCounters::default() };
        Ok(by_cpu.iter().fold(zero, |sum, cpu| ListenerCounters {
            steered: sum.steered + cpu.steered,
            retried: sum.retried + cpu.retried,
            dropped: sum.dropped + cpu.dropped,
            ..sum
        }))
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        // The program is detached when the last copy of its descriptor is closed, and a child
        // process that has not come to exec yet holds one. Without destinations it steers nothing
        // from here on.
        for listener in std::mem::take(&mut self.listeners).into_values() {
            for block in listener.blocks {
                let _ = self.forget(block);
            }
        }
    }
}

/// What was done for one listener, all CPUs together.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct ListenerCounters {
    /// The listener's number.
    pub listener: u32,
    /// Connections given to a worker (under a SYN flood, lookups: one more when a cookie comes
    /// back).
    pub steered: u64,
    /// Slots passed over because their worker listened no more.
    pub retried: u64,
    /// Connections refused because no worker listened.
    pub dropped: u64,
}

/// Why a listener could not be set, or a map not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    /// A v6 destination with a v4 socket, or the other way round.
    #[error("socket {socket} takes no {family} connections, but a destination is {family}")]
    Family {
        /// Its place in the list.
        socket: usize,
        /// `IPv4` or `IPv6`.
        family: &'static str,
    },
    /// More destinations than the map holds.
    #[error("more than {MAX_DESTINATIONS} destinations")]
    Full,
    /// The kernel refused.
    #[error("cannot {what}: {source}")]
    Kernel {
        /// What was to be done.
        what: &'static str,
        /// What aya said.
        source: MapError,
    },
    /// The kernel does not tell who listens.
    #[error("cannot list the sockets that listen: {0}")]
    Listening(io::Error),
    /// No such listener can be.
    #[error("listener {0}: numbers end below {MAX_LISTENERS}")]
    Listener(u32),
    /// A socket that does not listen.
    #[error("socket {socket} is no TCP socket that listens")]
    NotListening {
        /// Its place in the list.
        socket: usize,
    },
    /// No such pool of whole connections can be.
    #[error("pool {pool} of {pods}: there are {MAX_POOLS} at most, of 1 to {MAX_PODS} pods")]
    Pool {
        /// Its number.
        pool: u32,
        /// How many pods, or which.
        pods: usize,
    },
    /// The prefix is longer than the address.
    #[error("{}/{} is no block of addresses", .0.address, .0.prefix)]
    Prefix(VirtualAddress),
    /// A socket could not be looked at.
    #[error("cannot look at socket {socket}: {source}")]
    Socket {
        /// Its place in the list.
        socket: usize,
        /// What the system said.
        source: io::Error,
    },
    /// Another listener has this destination.
    #[error("{}/{} port {} belongs to listener {by}", .block.address, .block.prefix, .block.port)]
    Taken {
        /// The destination.
        block: VirtualAddress,
        /// Who has it.
        by: u32,
    },
    /// No socket, or too many.
    #[error("{0} sockets: a listener has 1 to {MAX_WORKERS}")]
    Workers(usize),
}

impl SteerError {
    pub(super) fn kernel(what: &'static str, source: MapError) -> Self {
        Self::Kernel { what, source }
    }
}

/// A listener as the maps have it.
#[derive(Clone)]
struct Listener {
    bank: u32,
    target: Target,
    /// Destinations with their prefix lengths.
    blocks: Vec<(Destination, u32)>,
}

fn check_sockets(destinations: &[VirtualAddress], sockets: &[impl AsFd]) -> Result<(), SteerError> {
    if sockets.is_empty() || sockets.len() > MAX_WORKERS as usize {
        return Err(SteerError::Workers(sockets.len()));
    }
    let v4 = destinations.iter().any(|d| d.address.is_ipv4());
    let v6 = destinations.iter().any(|d| d.address.is_ipv6());
    for (socket, fd) in sockets.iter().enumerate() {
        let failed = |source| SteerError::Socket { socket, source };
        let sock = SockRef::from(fd);
        if !sock.is_listener().map_err(failed)? {
            return Err(SteerError::NotListening { socket });
        }
        match sock.domain().map_err(failed)? {
            Domain::IPV4 if v6 => return Err(SteerError::Family { socket, family: "IPv6" }),
            Domain::IPV6 if v4 && sock.only_v6().map_err(failed)? => {
                return Err(SteerError::Family { socket, family: "IPv4" });
            }
            Domain::IPV4 | Domain::IPV6 => {}
            _ => return Err(SteerError::NotListening { socket }),
        }
    }
    Ok(())
}

fn first_slot(listener: u32, bank: u32) -> u32 {
    (listener * 2 + bank) * MAX_WORKERS
}

/// Waits until every program run that began before has ended: one may have read the old target
/// already. membarrier(2) promises that in passing, as its global form is the kernel's RCU grace
/// period.
fn grace_period() {
    // SAFETY: the call takes three integers and touches no memory of ours.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if done != 0 {
        // Not there on nohz_full kernels and behind some seccomp profiles; a run takes
        // microseconds.
        std::thread::sleep(Duration::from_millis(20));
    }
}
