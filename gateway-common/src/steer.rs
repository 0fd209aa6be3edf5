//! Steering: the keys and values of the maps by which sk_lookup gives new connections to workers.
//!
//! A [`Destination`] is what a client dials; the trie maps it to a [`Target`], which names a run of
//! slots; a slot holds one worker's listening socket. The daemon writes destinations, targets and
//! slots, the kernel program writes [`Counters`]. Both sides are compiled from this file, so a
//! layout that differs does not build.

use core::mem::offset_of;
use core::net::IpAddr;

/// Listeners at once. Each costs two banks of [`MAX_WORKERS`] slots and one [`Counters`] a CPU.
pub const MAX_LISTENERS: u32 = 64;

/// Workers of one listener, and how many slots the program tries before it gives up. The verifier
/// walks every one of them at load: 256 take it some tens of thousands of instructions of its
/// million.
pub const MAX_WORKERS: u32 = 256;

/// Slots for listening sockets: 8 bytes each, 256 KiB in all. Every listener has two banks, so that
/// a new set of sockets is complete before the first connection can reach it.
pub const SLOTS: u32 = MAX_LISTENERS * 2 * MAX_WORKERS;

/// Addresses and blocks that are steered, of all listeners together: about 100 bytes each while in
/// use. The map holds twice as many, as those of before a change and after it are in it together.
pub const MAX_DESTINATIONS: u32 = 4096;

/// What a client dials: protocol, port and address, in the order in which a prefix matches them.
///
/// The trie's prefix length counts from the first bit of this struct, so protocol and port always
/// match whole ([`Destination::block`]). IPv4 stands as `::ffff:a.b.c.d`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Destination {
    protocol: u8,
    // Fills the key up to four bytes, as the value behind it in the trie's node must be aligned.
    zero: u8,
    port: [u8; 2],
    // Words, as the kernel hands them over so; their bytes are in network order.
    address: [u32; 4],
}

impl Destination {
    /// The TCP destination at an IPv4 address, its four bytes as they lie in memory in network
    /// order.
    #[inline(always)]
    pub const fn tcp_v4(address: u32, port: u16) -> Self {
        Self::tcp_v6([0, 0, 0xffff_u32.to_be(), address], port)
    }

    /// The TCP destination at an IPv6 address, its bytes as they lie in memory in network order.
    #[inline(always)]
    pub const fn tcp_v6(address: [u32; 4], port: u16) -> Self {
        Self { protocol: IPPROTO_TCP, zero: 0, port: port.to_be_bytes(), address }
    }

    /// The TCP block of `prefix` bits at `address`, with the bits behind the prefix cleared, and
    /// its length as the trie counts it. `None` if `prefix` is longer than the address.
    pub fn block(address: IpAddr, prefix: u8, port: u16) -> Option<(Self, u32)> {
        let (octets, width) = match address {
            IpAddr::V4(v4) => (v4.to_ipv6_mapped().octets(), 32),
            IpAddr::V6(v6) => (v6.octets(), 128),
        };
        if u32::from(prefix) > width {
            return None;
        }
        let bits = 128 - width + u32::from(prefix);
        let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
        let masked = u128::from_be_bytes(octets) & mask;
        let word = |low: u32| ((masked >> low) as u32).to_be();
        let address = [word(96), word(64), word(32), word(0)];
        Some((Self::tcp_v6(address, port), Self::HEAD_BITS + bits))
    }

    /// The prefix length that matches this one destination alone.
    pub const WHOLE: u32 = Self::HEAD_BITS + 128;

    /// Bits of protocol, padding and port, which every prefix covers.
    const HEAD_BITS: u32 = 32;
}

/// Where a destination's connections go: the slots `first .. first + count`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Target {
    /// First slot.
    pub first: u32,
    /// Number of slots, one a worker; at most [`MAX_WORKERS`].
    pub count: u32,
    /// The listener, below [`MAX_LISTENERS`]: index of its [`Counters`].
    pub listener: u32,
    /// The pool whose servers come first ([`Target::direct`]); 0 is none.
    pub direct: u32,
}

impl Target {
    /// How [`Target::direct`](#structfield.direct) names the pool `pool`.
    #[inline(always)]
    pub const fn direct(pool: u32) -> u32 {
        pool + 1
    }
}

/// What the program did for one listener, on one CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Lookups that ended at a worker's socket. One a connection; under a SYN flood the kernel
    /// looks up once more when the client answers its cookie.
    pub steered: u64,
    /// Slots passed over because they were empty or their socket did not fit the packet.
    pub retried: u64,
    /// Lookups that found no socket; the client is refused.
    pub dropped: u64,
    /// Lookups so far: which slot is next. By CPU, as a shared counter would bounce between them;
    /// each CPU spreads its own connections evenly, so the workers differ by at most the number of
    /// CPUs.
    pub turn: u64,
}

const IPPROTO_TCP: u8 = 6;

const _: () = {
    assert!(size_of::<Destination>() == 20 && align_of::<Destination>() == 4);
    assert!(offset_of!(Destination, port) * 8 + 16 == Destination::HEAD_BITS as usize);
    assert!(offset_of!(Destination, address) == 4);
    assert!(size_of::<Target>() == 16 && align_of::<Target>() == 4);
    assert!(offset_of!(Target, count) == 4 && offset_of!(Target, listener) == 8);
    assert!(offset_of!(Target, direct) == 12);
    assert!(size_of::<Counters>() == 32 && align_of::<Counters>() == 8);
    assert!(offset_of!(Counters, retried) == 8 && offset_of!(Counters, dropped) == 16);
    assert!(offset_of!(Counters, turn) == 24);
};

#[cfg(feature = "user")]
mod pod {
    use super::{Counters, Destination, Target};

    // SAFETY: integers only, no padding (asserted above), every bit pattern is a value.
    unsafe impl aya::Pod for Destination {}
    // SAFETY: as for `Destination`.
    unsafe impl aya::Pod for Target {}
    // SAFETY: as for `Destination`.
    unsafe impl aya::Pod for Counters {}
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::String;

    use super::*;

    fn shown(address: &str, prefix: u8) -> Option<(String, u32)> {
        let (block, bits) = Destination::block(address.parse().unwrap(), prefix, 0x1234)?;
        assert_eq!((block.protocol, block.zero, block.port), (6, 0, [0x12, 0x34]));
        let word = |i: usize| u128::from(u32::from_be(block.address[i]));
        let address = word(0) << 96 | word(1) << 64 | word(2) << 32 | word(3);
        Some((std::format!("{}", core::net::Ipv6Addr::from_bits(address)), bits))
    }

    #[test]
    fn blocks_are_masked_and_counted() {
        let table = [
            ("10.1.2.3", 32, Some(("::ffff:10.1.2.3", 160))),
            ("10.1.2.3", 31, Some(("::ffff:10.1.2.2", 159))),
            ("10.1.2.3", 8, Some(("::ffff:10.0.0.0", 136))),
            ("10.1.2.3", 0, Some(("::ffff:0.0.0.0", 128))),
            ("10.1.2.3", 33, None),
            ("2001:db8::ff", 128, Some(("2001:db8::ff", 160))),
            ("2001:db8::ff", 124, Some(("2001:db8::f0", 156))),
            ("2001:db8::ff", 0, Some(("::", 32))),
            ("2001:db8::ff", 129, None),
        ];
        for (address, prefix, want) in table {
            let want = want.map(|(a, bits)| (String::from(a), bits));
            assert_eq!(shown(address, prefix), want, "{address}/{prefix}");
        }
    }

    #[test]
    fn the_kernel_side_builds_what_the_daemon_registered() {
        let loopback = [0, 0, 0, 1_u32.to_be()];
        let v6 = (Destination::tcp_v6(loopback, 80), Destination::WHOLE);
        assert_eq!(Destination::block("::1".parse().unwrap(), 128, 80), Some(v6));
        let v4 = (Destination::tcp_v4(u32::from_ne_bytes([10, 1, 2, 3]), 80), Destination::WHOLE);
        assert_eq!(Destination::block("10.1.2.3".parse().unwrap(), 32, 80), Some(v4));
    }
}
