//! Steering: gives a new connection to one of the workers that serve its destination.
//!
//! Runs once a connection, when the kernel looks for a listening socket, and in one network
//! namespace, the gateway's. It knows addresses and ports, never bytes. A destination that nobody
//! registered is none of its business and passes; one that is registered goes to a worker or is
//! refused, never to a stranger that happens to listen there. Where the destination is a pool's that
//! takes whole connections, [`crate::direct`] runs next and may choose a model server instead.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::bpf_sk_lookup;
use aya_ebpf::bindings::sk_action::{SK_DROP, SK_PASS};
use aya_ebpf::bindings::{BPF_SK_LOOKUP_F_NO_REUSEPORT, BPF_SK_LOOKUP_F_REPLACE};
use aya_ebpf::btf_maps::lpm_trie::Key;
use aya_ebpf::macros::sk_lookup;
use aya_ebpf::programs::SkLookupContext;
use aya_log_ebpf::{debug, warn};
use gateway_common::steer::{Counters, Destination, MAX_WORKERS, Target};

use crate::maps::{COUNTERS, DESTINATIONS, LISTENERS, hold_scores};

/// The sk_lookup program.
#[sk_lookup]
pub fn steer(ctx: SkLookupContext) -> u32 {
    let Some(destination) = destination(&ctx) else { return SK_PASS };
    let Some(target) = DESTINATIONS.get(&Key::new(Destination::WHOLE, destination)) else {
        return SK_PASS;
    };
    let Some(counters) = COUNTERS.get_ptr_mut(target.listener) else { return SK_DROP };
    // SAFETY: the pointer is to this CPU's own element, which lives as long as the map.
    let counters = unsafe { &mut *counters };
    match assign(&ctx, target, counters) {
        Some(slot) => {
            counters.steered += 1;
            debug!(&ctx, "listener {}: connection to slot {}", target.listener, slot);
            SK_PASS
        }
        None => {
            hold_scores();
            counters.dropped += 1;
            warn!(&ctx, "listener {}: no worker listens, connection refused", target.listener);
            SK_DROP
        }
    }
}

/// What the packet is for; `None` if it is not TCP.
#[inline(always)]
pub fn destination(ctx: &SkLookupContext) -> Option<Destination> {
    let lookup: *const bpf_sk_lookup = ctx.as_ptr().cast();
    // Every field is read before any is looked at, and volatile: else LLVM merges the reads of the
    // two branches into one at a computed offset, which older kernels refuse ("dereference of
    // modified ctx ptr"). The address of the other family reads as 0.
    // SAFETY: the context is the kernel's, and sk_lookup programs may read these fields.
    let (protocol, family, port, v4, v6) = unsafe {
        let word = |field: *const u32| core::ptr::read_volatile(field);
        let v6 = &raw const (*lookup).local_ip6;
        let v6: *const u32 = v6.cast();
        (
            word(&raw const (*lookup).protocol),
            word(&raw const (*lookup).family),
            // In host byte order, unlike the addresses.
            word(&raw const (*lookup).local_port) as u16,
            word(&raw const (*lookup).local_ip4),
            [word(v6), word(v6.add(1)), word(v6.add(2)), word(v6.add(3))],
        )
    };
    match (protocol, family) {
        (IPPROTO_TCP, AF_INET) => Some(Destination::tcp_v4(v4, port)),
        (IPPROTO_TCP, AF_INET6) => Some(Destination::tcp_v6(v6, port)),
        _ => None,
    }
}

/// Assigns the connection to the first live socket from this CPU's turn on; returns its slot.
#[inline(always)]
fn assign(ctx: &SkLookupContext, target: &Target, counters: &mut Counters) -> Option<u32> {
    let Target { first, count, .. } = *target;
    if count == 0 {
        return None;
    }
    let mut offset = (counters.turn % u64::from(count)) as u32;
    counters.turn += 1;
    for tried in 0..MAX_WORKERS {
        if tried == count {
            return None;
        }
        let slot = first + offset;
        if LISTENERS.redirect_sk_lookup(ctx, slot, FLAGS).is_ok() {
            return Some(slot);
        }
        counters.retried += 1;
        offset += 1;
        if offset == count {
            offset = 0;
        }
    }
    None
}

/// NO_REUSEPORT: the workers' sockets are one SO_REUSEPORT group, and the kernel would choose among
/// them again by hash. REPLACE: a new daemon attaches behind the old one and takes over from it.
const FLAGS: u64 = (BPF_SK_LOOKUP_F_NO_REUSEPORT | BPF_SK_LOOKUP_F_REPLACE) as u64;

const IPPROTO_TCP: u32 = 6;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
