//! Direct: gives a connection to a model server's own listening socket, keeps those sockets at hand,
//! and counts the connections.
//!
//! The server knows nothing of it: it listens where it always does. Only sockets that the daemon
//! named by address, port and network namespace are ever touched; a stranger that listens elsewhere
//! is looked up once as it begins to listen, and left alone.

use core::arch::asm;
use core::ptr::read_volatile;

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::sk_action::SK_PASS;
use aya_ebpf::bindings::{
    BPF_SK_LOOKUP_F_REPLACE, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB, BPF_SOCK_OPS_STATE_CB,
    BPF_SOCK_OPS_STATE_CB_FLAG, BPF_SOCK_OPS_TCP_LISTEN_CB, bpf_sk_lookup, bpf_sock, bpf_sock_ops,
};
use aya_ebpf::btf_maps::lpm_trie::Key;
use aya_ebpf::helpers::generated::{bpf_get_netns_cookie, bpf_get_socket_cookie, bpf_ktime_get_ns};
use aya_ebpf::macros::{sk_lookup, sock_ops};
use aya_ebpf::programs::{SkLookupContext, SockOpsContext};
use aya_log_ebpf::debug;
use gateway_common::direct::{
    Candidates, Endpoint, Live, MAX_PODS, MAX_TRIES, Membership, lot, next_lot, pick, pick_again,
    pick_blindly,
};
use gateway_common::steer::{Destination, Target};

use crate::maps::{
    CANDIDATES, DESTINATIONS, DIRECT_LIVE, ENDPOINTS, ENROLLED, MEMBERSHIPS, SERVERS,
};
use crate::steer::destination;

/// The second sk_lookup program: has a model server instead of the worker that [`crate::steer`] has
/// chosen, if one is fit. A program of its own, so that it costs nothing where no pool takes whole
/// connections, and the verifier does not multiply its paths with those of the other.
#[sk_lookup]
pub fn direct(ctx: SkLookupContext) -> u32 {
    let Some(destination) = destination(&ctx) else { return SK_PASS };
    let Some(target) = DESTINATIONS.get(&Key::new(Destination::WHOLE, destination)) else {
        return SK_PASS;
    };
    let Some(pool) = target.direct.checked_sub(Target::direct(0)) else { return SK_PASS };
    let (Some(candidates), Some(live)) = (CANDIDATES.get(pool), DIRECT_LIVE.get_ptr_mut(pool))
    else {
        return SK_PASS;
    };
    // SAFETY: the pointer is to an element of an array map. Others add to its counters meanwhile,
    // by single instructions.
    let live = unsafe { &mut *live };
    let lot = draw(&ctx);
    // SAFETY: the helper takes nothing.
    let given = if candidates.are_stale(unsafe { bpf_ktime_get_ns() }) {
        add(&mut live.stale);
        candidates.ready_count != 0
            && (give(&ctx, live, pool, pick_blindly(candidates, lot))
                || give(&ctx, live, pool, pick_blindly(candidates, next_lot(lot))))
    } else {
        candidates.any_fit != 0
            && (give(&ctx, live, pool, pick(candidates, live, lot))
                || give_again(&ctx, live, pool, candidates, lot))
    };
    if !given {
        debug!(&ctx, "pool {}: no server is fit, connection to the gateway", pool);
        add(&mut live.fallbacks);
    }
    SK_PASS
}

/// Gives the connection to the server at `place`. False: it has just gone, or takes no packets of
/// this family.
#[inline(always)]
fn give(ctx: &SkLookupContext, live: &mut Live, pool: u32, place: u32) -> bool {
    if SERVERS.redirect_sk_lookup(ctx, pool * MAX_PODS + place, FLAGS).is_err() {
        add(&mut live.retried);
        return false;
    }
    if let Some(pod) = live.pods.get_mut(place as usize) {
        add(&mut pod.picked);
    }
    debug!(ctx, "pool {}: connection to server {}", pool, place);
    true
}

/// The same for further servers.
#[inline(always)]
fn give_again(
    ctx: &SkLookupContext,
    live: &mut Live,
    pool: u32,
    candidates: &Candidates,
    mut lot: u32,
) -> bool {
    for _ in 1..MAX_TRIES {
        lot = next_lot(lot);
        if give(ctx, live, pool, pick_again(candidates, lot)) {
            return true;
        }
    }
    false
}

/// The connection's lot: the same each time that its packets are looked up.
#[inline(always)]
fn draw(ctx: &SkLookupContext) -> u32 {
    let lookup: *const bpf_sk_lookup = ctx.as_ptr().cast();
    // Volatile, so that the reads stay apart: see `steer::destination`.
    // SAFETY: the context is the kernel's, and sk_lookup programs may read these fields.
    let (v4, v6, ports) = unsafe {
        let word = |field: *const u32| read_volatile(field);
        let v6 = &raw const (*lookup).remote_ip6;
        let v6: *const u32 = v6.cast();
        let remote = &raw const (*lookup).remote_port;
        let remote = u32::from(read_volatile(remote.cast::<u16>()));
        let local = word(&raw const (*lookup).local_port);
        (
            word(&raw const (*lookup).remote_ip4),
            [word(v6), word(v6.add(1)), word(v6.add(2)), word(v6.add(3))],
            remote << 16 | local & 0xffff,
        )
    };
    lot([v4, v6[0], v6[1], v6[2], v6[3], ports])
}

/// The socket-operations program: sees every TCP socket of the control group.
#[sock_ops]
pub fn servers(ctx: SockOpsContext) -> u32 {
    match ctx.op() {
        BPF_SOCK_OPS_TCP_LISTEN_CB => enrol(&ctx),
        BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB => opened(&ctx),
        BPF_SOCK_OPS_STATE_CB => changed(&ctx),
        _ => {}
    }
    // 1 leaves the answers to other programs at this control group; 0 would void theirs.
    1
}

/// A socket begins to listen: it is put into its slot if it is one of ours.
#[inline(always)]
fn enrol(ctx: &SockOpsContext) {
    let Some((address, port)) = local(ctx) else { return };
    // SAFETY: the helper takes the context.
    let netns = unsafe { bpf_get_netns_cookie(ctx.as_ptr()) };
    // SAFETY: the value is copied at once; were its element used anew meanwhile, the slot would be
    // that of another endpoint of the daemon's, which finds out by the cookie.
    let Some(slot) = (unsafe { ENDPOINTS.get(&Endpoint::new(netns, address, port)) }).copied()
    else {
        return;
    };
    let Some(socket) = socket(ctx) else { return };
    let mut membership = Membership { slot, counted: 0 };
    // SAFETY: the socket is the context's.
    unsafe { MEMBERSHIPS.put(socket, &mut membership) };
    // SAFETY: as for `bpf_get_netns_cookie`.
    if unsafe { SERVERS.update(slot, ctx.ops, 0) }.is_ok() {
        // SAFETY: as above.
        let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
        let _ = ENROLLED.set(slot, cookie, 0);
    }
}

/// A connection was made: it counts if it came to one of our servers by way of its pool's address.
/// One that dialled the server itself is none of ours.
#[inline(always)]
fn opened(ctx: &SockOpsContext) {
    let Some(socket) = socket(ctx) else { return };
    // SAFETY: the socket is the context's.
    let Some(membership) = (unsafe { MEMBERSHIPS.get(socket) }) else { return };
    let Some((address, port)) = local(ctx) else { return };
    let destination = Key::new(Destination::WHOLE, Destination::tcp_v6(address, port));
    let Some(target) = DESTINATIONS.get(&destination) else { return };
    let slot = membership.slot;
    if target.direct != Target::direct(slot / MAX_PODS) {
        return;
    }
    let flags = ctx.cb_flags() | BPF_SOCK_OPS_STATE_CB_FLAG;
    if ctx.set_cb_flags(flags as i32).is_err() {
        return;
    }
    membership.counted = 1;
    let Some(live) = DIRECT_LIVE.get_ptr_mut(slot / MAX_PODS) else { return };
    // SAFETY: as in `direct`.
    if let Some(pod) = unsafe { (*live).pods.get_mut((slot % MAX_PODS) as usize) } {
        add(&mut pod.opened);
    }
}

/// A connection changed its state: it counts no more when either side has begun to end it.
#[inline(always)]
fn changed(ctx: &SockOpsContext) {
    if ctx.arg(1) == TCP_ESTABLISHED {
        return;
    }
    let Some(socket) = socket(ctx) else { return };
    // SAFETY: the socket is the context's.
    let Some(membership) = (unsafe { MEMBERSHIPS.get(socket) }) else { return };
    if membership.counted == 0 {
        return;
    }
    membership.counted = 0;
    let slot = membership.slot;
    let Some(live) = DIRECT_LIVE.get_ptr_mut(slot / MAX_PODS) else { return };
    // SAFETY: as in `direct`.
    if let Some(pod) = unsafe { (*live).pods.get_mut((slot % MAX_PODS) as usize) } {
        add(&mut pod.closed);
    }
}

/// The socket's own address and port. An IPv4 connection of a dual-stack socket has its IPv4 address
/// in IPv6 form already.
#[inline(always)]
fn local(ctx: &SockOpsContext) -> Option<([u32; 4], u16)> {
    let ops: *const bpf_sock_ops = ctx.ops;
    // Volatile, so that the reads stay apart: see `steer::destination`. The address of the other
    // family is read as 0, or is not read.
    // SAFETY: the context is the kernel's, and these programs may read these fields.
    let (family, port, v4) = unsafe {
        (
            read_volatile(&raw const (*ops).family),
            // In host byte order, unlike the address.
            read_volatile(&raw const (*ops).local_port) as u16,
            read_volatile(&raw const (*ops).local_ip4),
        )
    };
    match family {
        AF_INET => Some(([0, 0, 0xffff_u32.to_be(), v4], port)),
        AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe {
                let v6 = &raw const (*ops).local_ip6;
                let v6: *const u32 = v6.cast();
                let word = |place| read_volatile(v6.add(place));
                [word(0), word(1), word(2), word(3)]
            };
            Some((v6, port))
        }
        _ => None,
    }
}

/// The context's socket; none before it is a whole one.
#[inline(always)]
fn socket(ctx: &SockOpsContext) -> Option<*mut bpf_sock> {
    // SAFETY: the context is the kernel's; the field reads as null if there is no whole socket.
    let socket = unsafe { read_volatile(&raw const (*ctx.ops).__bindgen_anon_2.sk) };
    (!socket.is_null()).then_some(socket)
}

/// Adds one by a single instruction: programs on other CPUs, and one that interrupts this one, add
/// to the same counter.
#[inline(always)]
fn add(counter: &mut u64) {
    // Rust's own atomics need an instruction that this target is not said to have.
    // SAFETY: the counter is eight bytes, aligned, and lives in a map.
    unsafe {
        asm!(
            "lock *(u64 *)({counter} + 0) += {one}",
            counter = in(reg) core::ptr::from_mut(counter),
            one = in(reg) 1_u64,
        );
    }
}

/// REPLACE: see [`crate::steer`]. Not NO_REUSEPORT: of a server's several processes the kernel takes
/// one.
const FLAGS: u64 = BPF_SK_LOOKUP_F_REPLACE as u64;

const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const TCP_ESTABLISHED: u32 = 1;
