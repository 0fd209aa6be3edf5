//! Enrolling: finds the pod's end of the gateway's connections on this node, and follows what clients
//! acknowledge.
//!
//! Runs for every TCP socket of the node when it is established. Whatever is not one end of a
//! connection that the daemon registered, or on a port where the gateway takes clients, is left alone.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::{
    BPF_SK_STORAGE_GET_F_CREATE, BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB,
    BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB, BPF_SOCK_OPS_RTT_CB, BPF_SOCK_OPS_RTT_CB_FLAG,
};
use aya_ebpf::helpers::{bpf_get_socket_cookie, bpf_sk_storage_get};
use aya_ebpf::macros::sock_ops;
use aya_ebpf::programs::SockOpsContext;
use aya_log_ebpf::debug;
use gateway_common::enrol::{Pair, Pairing, mapped};

use crate::maps::{ACKED, CONNECTIONS, FLOWS, PAIRS, POD_CONNECTIONS, PODS, PORTS};

/// The sock_ops program.
#[sock_ops]
pub fn enrol(ctx: SockOpsContext) -> u32 {
    match ctx.op() {
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB => connected(&ctx),
        BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB => {
            accepted(&ctx);
            follow(&ctx);
        }
        BPF_SOCK_OPS_RTT_CB => acknowledged(&ctx),
        _ => {}
    }
    1
}

/// A socket of the gateway has reached a pod: the pod's end is to be found under both their addresses.
#[inline(always)]
fn connected(ctx: &SockOpsContext) {
    // SAFETY: the global is the daemon's to set before the program is loaded.
    if unsafe { core::ptr::read_volatile(&raw const ENROL_PODS) } == 0 {
        return;
    }
    // SAFETY: the context is the kernel's.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    let Some(connection) = CONNECTIONS.get_ptr(&cookie) else { return };
    // SAFETY: the pointer is to a value of the map; a copy that is wrong has a generation that is over.
    let connection = unsafe { *connection };
    let ends = ends(ctx);
    let pair = Pair {
        pod: ends.remote,
        gateway: ends.local,
        pod_port: ends.remote_port,
        gateway_port: ends.local_port,
    };
    let pairing = Pairing { connection, from_pod: ends.receive_next, from_gateway: ends.send_next };
    // When there is no room the pod is not recognised, and its responses travel otherwise.
    let _ = PAIRS.insert(&pair, &pairing, 0);
}

/// A socket has been reached: is it the other end of one of ours?
#[inline(always)]
fn accepted(ctx: &SockOpsContext) {
    let ends = ends(ctx);
    let pair = Pair {
        pod: ends.local,
        gateway: ends.remote,
        pod_port: ends.local_port,
        gateway_port: ends.remote_port,
    };
    let Some(found) = PAIRS.get_ptr(&pair) else { return };
    // SAFETY: the pointer is to a value of the map; a copy that is wrong does not match.
    let Pairing { connection, from_pod, from_gateway } = unsafe { *found };
    if (ends.send_next, ends.receive_next) != (from_pod, from_gateway) {
        return;
    }
    let _ = PAIRS.remove(&pair);
    // SAFETY: the context is the kernel's; its socket may be none, which is checked.
    let stored = unsafe {
        let socket = (*ctx.ops).__bindgen_anon_2.sk;
        if socket.is_null() {
            return;
        }
        let map = core::ptr::from_ref(&POD_CONNECTIONS).cast_mut().cast();
        let value = (&raw const connection).cast_mut().cast();
        bpf_sk_storage_get(map, socket.cast(), value, BPF_SK_STORAGE_GET_F_CREATE.into())
    };
    if stored.is_null() {
        return;
    }
    // SAFETY: the context is the kernel's, and nothing else refers to it.
    if PODS.update(connection.slot, unsafe { &mut *ctx.ops }, 0).is_err() {
        return;
    }
    debug!(ctx, "slot {}: the pod is on this node", connection.slot);
    if let Some(flow) = FLOWS.get_ptr_mut(connection.slot) {
        // SAFETY: the kernel's half of the flow; no program carries on this connection yet.
        unsafe {
            if (*flow).carried.generation == connection.generation {
                core::ptr::write_volatile(&raw mut (*flow).carried.enrolled, 1);
            }
        }
    }
}

/// A client has come: what it acknowledges is to be told.
#[inline(always)]
fn follow(ctx: &SockOpsContext) {
    if PORTS.get_ptr(&ctx.local_port()).is_some() {
        let flags = ctx.cb_flags() | BPF_SOCK_OPS_RTT_CB_FLAG;
        // Without it there is no credit, and the relay carries on.
        let _ = ctx.set_cb_flags(flags as i32);
    }
}

/// Data of a client's connection has been acknowledged.
#[inline(always)]
fn acknowledged(ctx: &SockOpsContext) {
    // SAFETY: the context is the kernel's.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    let Some(acked) = ACKED.get_ptr_mut(&cookie) else { return };
    // SAFETY: a number that is written whole; programs on other CPUs read it at any time.
    unsafe { core::ptr::write_volatile(acked, (*ctx.ops).bytes_acked) };
}

struct Ends {
    local: [u32; 4],
    remote: [u32; 4],
    local_port: u32,
    remote_port: u32,
    send_next: u32,
    receive_next: u32,
}

/// Every field is read before any is looked at, and volatile: else LLVM merges the reads of the two
/// families into one at a computed offset, which older kernels refuse.
#[inline(always)]
fn ends(ctx: &SockOpsContext) -> Ends {
    let ops = ctx.ops;
    // SAFETY: the context is the kernel's, and sock_ops programs may read these fields.
    unsafe {
        let word = |field: *const u32| core::ptr::read_volatile(field);
        let words = |field: *const [u32; 4]| {
            let field = field.cast::<u32>();
            [word(field), word(field.add(1)), word(field.add(2)), word(field.add(3))]
        };
        let (local4, remote4) =
            (word(&raw const (*ops).local_ip4), word(&raw const (*ops).remote_ip4));
        let (local6, remote6) =
            (words(&raw const (*ops).local_ip6), words(&raw const (*ops).remote_ip6));
        let v6 = word(&raw const (*ops).family) == AF_INET6;
        Ends {
            local: if v6 { local6 } else { mapped(local4) },
            remote: if v6 { remote6 } else { mapped(remote4) },
            local_port: word(&raw const (*ops).local_port),
            // In network byte order, unlike the local one.
            remote_port: u32::from_be(word(&raw const (*ops).remote_port)),
            send_next: word(&raw const (*ops).snd_nxt),
            receive_next: word(&raw const (*ops).rcv_nxt),
        }
    }
}

/// 1: pods' ends are looked for. The daemon sets it.
#[unsafe(no_mangle)]
static ENROL_PODS: u8 = 0;

const AF_INET6: u32 = 10;
