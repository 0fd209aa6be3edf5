//! Enrolling: how the pod's end of a connection that the gateway opened is recognised on this node.
//!
//! The daemon registers a socket of its own before it connects. When the kernel establishes it, the
//! sock_ops program notes both ends' addresses and the next sequence number of each direction; the socket
//! that is established at the other end a moment later must match in all of them. The two sequence numbers
//! are random and 32 bits each: a socket of another network namespace with the same four addresses
//! and ports is not taken for it.

use core::mem::offset_of;

use crate::flow::Connection;

/// Connections between the two moments, at once.
pub const MAX_PAIRS: u32 = 8192;

/// Ports on which the gateway takes clients. More are left to the relay.
pub const MAX_PORTS: u32 = 1024;

/// A connection as both its ends name it. IPv4 stands as `::ffff:a.b.c.d`, as it does at a pod that
/// listens for both families.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pair {
    /// The pod's address. Words, as the kernel hands them over; their bytes are in network order.
    pub pod: [u32; 4],
    /// The gateway's address.
    pub gateway: [u32; 4],
    /// The pod's port.
    pub pod_port: u32,
    /// The gateway's port.
    pub gateway_port: u32,
}

/// What is known of it at the gateway's end.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pairing {
    /// Which connection it is.
    pub connection: Connection,
    /// The next sequence number of the pod's direction.
    pub from_pod: u32,
    /// The next sequence number of the gateway's direction.
    pub from_gateway: u32,
}

/// An IPv4 address, its bytes as they lie in memory in network order, as a pair has it.
#[inline(always)]
pub const fn mapped(address: u32) -> [u32; 4] {
    [0, 0, 0xffff_u32.to_be(), address]
}

const _: () = {
    assert!(size_of::<Pair>() == 40 && align_of::<Pair>() == 4);
    assert!(offset_of!(Pair, gateway) == 16 && offset_of!(Pair, pod_port) == 32);
    assert!(size_of::<Pairing>() == 16 && offset_of!(Pairing, from_pod) == 8);
};

#[cfg(feature = "user")]
mod pod {
    use super::{Pair, Pairing};

    // SAFETY: integers only, no padding (asserted above), every bit pattern is a value.
    unsafe impl aya::Pod for Pair {}
    // SAFETY: as for `Pair`.
    unsafe impl aya::Pod for Pairing {}
}
