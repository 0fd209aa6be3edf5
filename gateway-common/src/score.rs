//! What the gateway makes of each pod, as it stands in the SCORES map.
//!
//! The daemon alone writes; kernel programs and tools read. A value is replaced whole, so a reader
//! never sees half of one.

use core::mem::offset_of;
use core::net::{IpAddr, SocketAddr};

/// Pods in the map at once: about 100 bytes each while in use, 64 KiB of buckets besides.
pub const MAX_PODS: u32 = 4096;

/// What a score of 1.0 is in the map, as the kernel has no floating point.
pub const ONE: u32 = 1 << 16;

/// [`Score::flags`]: the pod takes requests.
pub const READY: u32 = 1;

/// [`Score::flags`]: its metrics are recent enough to count on.
pub const FRESH: u32 = 1 << 1;

/// Which pod, of which pool: a pod that serves two pools has two scores.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PodKey {
    /// The pool's slot: its place in the gateway's list of pools.
    pub pool: u32,
    port: u16,
    zero: u16,
    address: [u8; 16],
}

impl PodKey {
    /// The pod at `endpoint` in pool `pool`. IPv6 scope and flow label are not kept.
    pub fn new(pool: u32, endpoint: SocketAddr) -> Self {
        let address = match endpoint.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        Self { pool, port: endpoint.port(), zero: 0, address: address.octets() }
    }

    /// The pod's address and port; an IPv4-mapped address comes back as IPv4.
    pub fn endpoint(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::from(self.address).to_canonical(), self.port)
    }
}

/// One pod's published score.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Score {
    /// When it was written, in nanoseconds of CLOCK_MONOTONIC (what `bpf_ktime_get_ns` reads).
    pub published_ns: u64,
    /// The weighted score in units of 1/[`ONE`]; higher is better.
    pub score: u32,
    /// Requests that this gateway has in flight there.
    pub in_flight: u32,
    /// [`READY`] and [`FRESH`].
    pub flags: u32,
    /// Always 0.
    pub zero: u32,
}

impl Score {
    /// `score` (1.0 is full marks for a weight of one) in the map's units: rounded, held within 0
    /// and the largest value; what is not a number is 0.
    pub fn fixed(score: f64) -> u32 {
        // `as` saturates and turns NaN into 0, which is the clamp that is wanted.
        (score * f64::from(ONE) + 0.5) as u32
    }

    /// The score as a number again.
    pub fn value(&self) -> f64 {
        f64::from(self.score) / f64::from(ONE)
    }
}

const _: () = {
    assert!(size_of::<PodKey>() == 24 && align_of::<PodKey>() == 4);
    assert!(offset_of!(PodKey, port) == 4 && offset_of!(PodKey, address) == 8);
    assert!(size_of::<Score>() == 24 && align_of::<Score>() == 8);
    assert!(offset_of!(Score, score) == 8 && offset_of!(Score, in_flight) == 12);
    assert!(offset_of!(Score, flags) == 16 && offset_of!(Score, zero) == 20);
};

#[cfg(feature = "user")]
mod pod {
    use super::{PodKey, Score};

    // SAFETY: integers only, no padding (asserted above), every bit pattern is a value.
    unsafe impl aya::Pod for PodKey {}
    // SAFETY: as for `PodKey`.
    unsafe impl aya::Pod for Score {}
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn fixed_point_rounds_and_saturates() {
        let table = [
            (0.0, 0),
            (1.0, ONE),
            (0.5, ONE / 2),
            (11.0, 11 * ONE),
            (0.6 / f64::from(ONE), 1),
            (0.4 / f64::from(ONE), 0),
            (-3.0, 0),
            (f64::NAN, 0),
            (f64::INFINITY, u32::MAX),
        ];
        for (score, want) in table {
            assert_eq!(Score::fixed(score), want, "{score}");
        }
        assert_eq!(Score { score: ONE / 4, ..Score::default() }.value(), 0.25);
    }

    #[test]
    fn endpoints_come_back_as_they_went_in() {
        for endpoint in ["10.0.0.1:8000", "[2001:db8::1]:1", "[::1]:65535"] {
            let endpoint: SocketAddr = endpoint.parse().unwrap();
            assert_eq!(PodKey::new(7, endpoint).endpoint(), endpoint);
        }
    }
}
