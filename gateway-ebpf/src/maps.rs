//! Every map, and who writes it. Sizes and layouts come from gateway-common.

use aya_ebpf::bindings::bpf_map_type::BPF_MAP_TYPE_SK_STORAGE;
use aya_ebpf::bindings::{
    BPF_F_CLONE, BPF_F_MMAPABLE, BPF_F_NO_PREALLOC, BPF_SK_STORAGE_GET_F_CREATE, bpf_sock,
};
use aya_ebpf::btf_maps::{
    Array, HashMap, LpmTrie, PerCpuArray, RingBuf, SkStorage, SockHash, SockMap,
};
use aya_ebpf::helpers::generated::bpf_sk_storage_get;
use aya_ebpf::macros::btf_map;
use gateway_common::direct::{self, Candidates, Endpoint, Live, Membership};
use gateway_common::enrol::{MAX_PAIRS, MAX_PORTS, Pair, Pairing};
use gateway_common::flow::{Connection, Event, Flow, MAX_CLIENTS, MAX_FLOWS, Tail};
use gateway_common::score::{MAX_PODS, PodKey, Score};
use gateway_common::steer::{
    Counters, Destination, MAX_DESTINATIONS, MAX_LISTENERS, SLOTS, Target,
};

/// What a client dials, to where it goes. Written by the daemon.
#[btf_map]
pub static DESTINATIONS: LpmTrie<Destination, Target, { 2 * MAX_DESTINATIONS as usize }> =
    LpmTrie::new();

/// The workers' listening sockets. Written by the daemon; the kernel empties a slot when its socket
/// closes.
#[btf_map]
pub static LISTENERS: SockMap<{ SLOTS as usize }> = SockMap::new();

/// What was done for each listener. Written by [`crate::steer`].
#[btf_map]
pub static COUNTERS: PerCpuArray<Counters, { MAX_LISTENERS as usize }> = PerCpuArray::new();

/// What the gateway makes of each pod. Written by the daemon; tools find it by
/// its program ([`hold_scores`]).
#[btf_map]
pub static SCORES: HashMap<PodKey, Score, { MAX_PODS as usize }, { NO_PREALLOC }> = HashMap::new();

/// Every connection for streams: both halves of its flow. Each side writes its own; the daemon maps it.
#[btf_map]
pub static FLOWS: Array<Flow, { MAX_FLOWS as usize }, { MMAPABLE }> = Array::new();

/// The last bytes that went by the kernel, by slot. Written by [`crate::carry`]; the daemon maps it.
#[btf_map]
pub static TAILS: Array<Tail, { MAX_FLOWS as usize }, { MMAPABLE }> = Array::new();

/// The gateway's connections for streams, by socket cookie. Written by the daemon.
#[btf_map]
pub static CONNECTIONS: HashMap<u64, Connection, { MAX_FLOWS as usize }, { NO_PREALLOC }> =
    HashMap::new();

/// Connections of which the pod's end is looked for. Written by [`crate::enrol`]; the daemon takes out
/// what was not found.
#[btf_map]
pub static PAIRS: HashMap<Pair, Pairing, { MAX_PAIRS as usize }, { NO_PREALLOC }> = HashMap::new();

/// The pods' ends, by slot: what they send is shown to [`crate::local`]. Written by [`crate::enrol`]; the
/// kernel takes them out when they close.
#[btf_map]
pub static PODS: SockHash<u32, { MAX_FLOWS as usize }> = SockHash::new();

/// Which connection a pod's end is of. Written by [`crate::enrol`]; ends with the socket.
#[btf_map]
pub static POD_CONNECTIONS: SkStorage<Connection> = SkStorage::new();

/// The gateway's ends, by slot: what they receive is shown to [`crate::splice`]. Written by the daemon;
/// the kernel takes them out when they close.
#[btf_map]
pub static UPSTREAMS: SockHash<u32, { MAX_FLOWS as usize }> = SockHash::new();

/// Clients that a flow can lead to, by socket cookie. Written by the daemon; the kernel takes them out when
/// they close.
#[btf_map]
pub static CLIENTS: SockHash<u64, { MAX_CLIENTS as usize }> = SockHash::new();

/// Bytes that each of them has acknowledged, by socket cookie. Entries are the daemon's, values
/// [`crate::enrol`]'s.
#[btf_map]
pub static ACKED: HashMap<u64, u64, { MAX_CLIENTS as usize }, { NO_PREALLOC }> = HashMap::new();

/// Ports where the gateway takes clients. Written by the daemon.
#[btf_map]
pub static PORTS: HashMap<u32, u32, { MAX_PORTS as usize }, { NO_PREALLOC }> = HashMap::new();

/// Spliced flows that have changed hands. Written by [`crate::splice`].
#[btf_map]
pub static EVENTS: RingBuf<Event, { EVENT_BYTES }> = RingBuf::new();

/// A record has a header of 8 bytes, and there are two at most for each flow; a power of two.
const EVENT_BYTES: usize = (2 * MAX_FLOWS as usize * (8 + size_of::<Event>())).next_power_of_two();

const MMAPABLE: usize = BPF_F_MMAPABLE as usize;

/// The pods of each pool of whole connections. Written by the daemon.
#[btf_map]
pub static CANDIDATES: Array<Candidates, { direct::MAX_POOLS as usize }> = Array::new();

/// What happened to each such pool's connections. Written by [`crate::steer`] and
/// [`crate::direct`].
#[btf_map]
pub static DIRECT_LIVE: Array<Live, { direct::MAX_POOLS as usize }> = Array::new();

/// The model servers' listening sockets. Written by [`crate::direct`] as they begin to listen, and
/// by the daemon; the kernel empties a slot when its socket closes.
#[btf_map]
pub static SERVERS: SockMap<{ direct::SLOTS as usize }> = SockMap::new();

/// The cookie of the socket that was last put into each slot of [`SERVERS`], which cannot be asked.
/// Written by whoever writes there.
#[btf_map]
pub static ENROLLED: Array<u64, { direct::SLOTS as usize }> = Array::new();

/// Where a socket must listen to be put into which slot. Written by the daemon.
#[btf_map]
pub static ENDPOINTS: HashMap<Endpoint, u32, { 3 * direct::SLOTS as usize }, { NO_PREALLOC }> =
    HashMap::new();

/// The slot of a listening socket and of every connection that came of it. Written as [`SERVERS`];
/// the kernel hands it down and forgets it with the socket.
#[btf_map]
pub static MEMBERSHIPS: SocketStorage<Membership> = SocketStorage::new();

/// Memory is taken for the pods that there are, not for all that there could be.
const NO_PREALLOC: usize = BPF_F_NO_PREALLOC as usize;

/// Makes the calling program refer to SCORES. No program reads it yet, and what nothing refers to
/// is left out of the object (`#[used]` puts it into a second section of the same name, which aya
/// cannot read).
#[inline(always)]
pub fn hold_scores() {
    core::hint::black_box(&SCORES);
}

/// A map of what sockets carry (BPF_MAP_TYPE_SK_STORAGE). aya's own has no flag by which connections
/// inherit from the socket that they came to.
// The loader reads the types: a number is an array's length, in the order of libbpf's maps.
#[repr(C)]
pub struct SocketStorage<T> {
    r#type: *const [i32; BPF_MAP_TYPE_SK_STORAGE as usize],
    key: *const i32,
    value: *const T,
    max_entries: *const [i32; 0],
    map_flags: *const [i32; (BPF_F_NO_PREALLOC | BPF_F_CLONE) as usize],
}

// SAFETY: it is the loader's description of a map; nothing here is ever dereferenced.
unsafe impl<T> Sync for SocketStorage<T> {}

impl<T> SocketStorage<T> {
    const fn new() -> Self {
        Self {
            r#type: core::ptr::null(),
            key: core::ptr::null(),
            value: core::ptr::null(),
            max_entries: core::ptr::null(),
            map_flags: core::ptr::null(),
        }
    }

    /// What the socket carries, if anything.
    ///
    /// # Safety
    /// `socket` is the context's.
    #[inline(always)]
    pub unsafe fn get<'a>(&self, socket: *mut bpf_sock) -> Option<&'a mut T> {
        // SAFETY: the helper takes the map and a socket of the kernel's, and returns a value that
        // lives as long as the socket, or null.
        unsafe { self.call(socket, core::ptr::null_mut(), 0).as_mut() }
    }

    /// Has the socket carry `value`, unless it carries something already. False: no memory.
    ///
    /// # Safety
    /// `socket` is the context's.
    #[inline(always)]
    pub unsafe fn put(&self, socket: *mut bpf_sock, value: &mut T) -> bool {
        // SAFETY: as for `get`; the value is copied.
        unsafe { !self.call(socket, value, u64::from(BPF_SK_STORAGE_GET_F_CREATE)).is_null() }
    }

    #[inline(always)]
    unsafe fn call(&self, socket: *mut bpf_sock, value: *mut T, flags: u64) -> *mut T {
        let map = core::ptr::from_ref(self).cast_mut();
        // SAFETY: the caller's promise.
        unsafe { bpf_sk_storage_get(map.cast(), socket.cast(), value.cast(), flags).cast() }
    }
}
