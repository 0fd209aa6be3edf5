//! Every map, and who writes it. Sizes and layouts come from gateway-common.

use aya_ebpf::btf_maps::{HashMap, LpmTrie, PerCpuArray, SockMap};
use aya_ebpf::macros::btf_map;
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

/// Memory is taken for the pods that there are, not for all that there could be.
const NO_PREALLOC: usize = aya_ebpf::bindings::BPF_F_NO_PREALLOC as usize;

/// Makes the calling program refer to SCORES. No program reads it yet, and what nothing refers to
/// is left out of the object (`#[used]` puts it into a second section of the same name, which aya
/// cannot read).
#[inline(always)]
pub fn hold_scores() {
    core::hint::black_box(&SCORES);
}
