//! Every map, and who writes it. Sizes and layouts come from gateway-common.

use aya_ebpf::btf_maps::{
    Array, HashMap, LpmTrie, PerCpuArray, RingBuf, SkStorage, SockHash, SockMap,
};
use aya_ebpf::macros::btf_map;
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
const EVENT_BYTES: usize =
    (2 * MAX_FLOWS as usize * (8 + size_of::<Event>())).next_power_of_two();

const MMAPABLE: usize = aya_ebpf::bindings::BPF_F_MMAPABLE as usize;

/// Memory is taken for the pods that there are, not for all that there could be.
const NO_PREALLOC: usize = aya_ebpf::bindings::BPF_F_NO_PREALLOC as usize;

/// Makes the calling program refer to SCORES. No program reads it yet, and what nothing refers to
/// is left out of the object (`#[used]` puts it into a second section of the same name, which aya
/// cannot read).
#[inline(always)]
pub fn hold_scores() {
    core::hint::black_box(&SCORES);
}
