//! Direct: a connection goes whole to a model server's own listening socket, and no proxy is left
//! in its way.
//!
//! The layouts of the maps, and [`pick`], which chooses the server: compiled into the kernel program
//! and tested here. It draws one of [`TICKETS`] and walks no list, so that its cost is the same for
//! any number of pods, and the verifier's with it. The daemon writes [`Candidates`], the kernel programs write [`Live`].

use core::mem::{offset_of, size_of};
use core::net::{IpAddr, SocketAddr};

/// Pools of whole connections at once: one for each listener that a configuration may have.
pub const MAX_POOLS: u32 = 32;

/// Pods of one such pool.
pub const MAX_PODS: u32 = 64;

/// How many draws decide who gets a connection: a pod's chance is its share of them.
pub const TICKETS: u32 = 256;

/// Servers that are tried for one connection before the gateway takes it itself. Of four servers of
/// which one has just died, all tries hit that one for one connection in a hundred and fifty.
pub const MAX_TRIES: u32 = 4;

/// Places for model servers' listening sockets: 8 bytes each, 16 KiB in all.
pub const SLOTS: u32 = MAX_POOLS * MAX_PODS;

/// Candidates that nobody has published for this long say nothing of load any more.
pub const STALE_NS: u64 = 3_000_000_000;

/// What is known of one pod.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Candidate {
    /// How many of the tickets are its own.
    pub tickets: u32,
    /// Always 0.
    pub zero: u32,
    /// [`PodLive::picked`] when the tickets were given out.
    pub picked: u64,
}

/// The pods of one pool, in the order of the configuration. Written whole.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Candidates {
    /// When it was written, in nanoseconds of CLOCK_MONOTONIC.
    pub published_ns: u64,
    /// The places in `ready` that are filled; 0: no server can be reached.
    pub ready_count: u32,
    /// 1 if the tickets are given out; 0: no server takes connections.
    pub any_fit: u32,
    /// The pods that can be reached, to which connections go when nobody publishes any more.
    pub ready: [u8; MAX_PODS as usize],
    /// The pod that each ticket wins for.
    pub tickets: [u8; TICKETS as usize],
    /// The pods.
    pub pods: [Candidate; MAX_PODS as usize],
}

/// What a pod is worth for a new connection.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Worth {
    /// Its score, in any unit; higher is better.
    pub score: u32,
    /// The server can be reached.
    pub ready: bool,
    /// If it is ready, it takes connections now: it is not at its limit, and not one whose load is
    /// unknown while others' is known.
    pub fit: bool,
}

/// What happened to one pod's connections.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PodLive {
    /// Lookups that ended at its socket: one a connection.
    pub picked: u64,
    /// Connections that were established.
    pub opened: u64,
    /// Connections of these that have ended, from either side.
    pub closed: u64,
}

/// What happened to one pool's connections, since the start.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Live {
    /// Lookups that found no fit server; the gateway's own listener got the connection.
    pub fallbacks: u64,
    /// Servers passed over because their slot was empty or their socket did not fit the packet.
    pub retried: u64,
    /// Lookups that had to do with candidates that were stale.
    pub stale: u64,
    /// The pods.
    pub pods: [PodLive; MAX_PODS as usize],
}

/// Where a server listens, in which network namespace: what the socket-operations program knows of
/// a socket that begins to listen.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Endpoint {
    /// The namespace's cookie (SO_NETNS_COOKIE).
    pub netns: u64,
    // Words, as the kernel hands them over so; their bytes are in network order.
    address: [u32; 4],
    port: u32,
    zero: u32,
}

/// What a model server's listening socket carries, and each connection inherits from it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Membership {
    /// The slot.
    pub slot: u32,
    /// 1 while a connection is counted as open.
    pub counted: u32,
}

impl Endpoint {
    /// An address that listens in the network namespace `netns`; its words as they lie in memory in
    /// network order, IPv4 as `::ffff:a.b.c.d`.
    #[inline(always)]
    pub const fn new(netns: u64, address: [u32; 4], port: u16) -> Self {
        Self { netns, address, port: port as u32, zero: 0 }
    }

    /// The same of a socket address. IPv6 scope and flow label are not kept.
    pub fn of(netns: u64, address: SocketAddr) -> Self {
        let bits = match address.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        let word = |low: u32| ((bits >> low) as u32).to_be();
        Self::new(netns, [word(96), word(64), word(32), word(0)], address.port())
    }
}

impl Candidates {
    /// Gives out the tickets: to fit pods whose score is within `margin` of the best, the more the
    /// better the score. `live` is what the pods had been given by then.
    pub fn new(now: u64, margin: u32, pods: &[Worth], live: &Live) -> Self {
        let mut all = Self { published_ns: now, ..Self::default() };
        let pods = || pods.iter().zip(0_u8..MAX_PODS as u8);
        let ready = pods().filter(|(worth, _)| worth.ready);
        for (slot, (_, place)) in all.ready.iter_mut().zip(ready) {
            *slot = place;
            all.ready_count += 1;
        }
        let fit = |worth: &Worth| worth.ready && worth.fit;
        let best = pods().filter(|(worth, _)| fit(worth)).map(|(worth, _)| worth.score).max();
        let Some(best) = best else { return all };
        all.any_fit = 1;
        let floor = best.saturating_sub(margin);
        // Who stands at the floor itself has a small chance.
        let base = u64::from(margin / 16) + 1;
        let weight = |worth: &Worth| match worth.score.checked_sub(floor) {
            Some(above) if fit(worth) => u64::from(above) + base,
            _ => 0,
        };
        let sum: u64 = pods().map(|(worth, _)| weight(worth)).sum();
        // Each pod's share begins where that of the one before ended, so that rounding adds up.
        let mut before = 0_u64;
        for (worth, place) in pods() {
            let end = before + weight(worth);
            let ticket =
                |share: u64| (u128::from(share) * u128::from(TICKETS) / u128::from(sum)) as usize;
            let own = all.tickets.get_mut(ticket(before)..ticket(end)).unwrap_or_default();
            own.fill(place);
            let tickets = own.len() as u32;
            let picked = live.pods.get(usize::from(place)).map_or(0, |live| live.picked);
            if let Some(pod) = all.pods.get_mut(usize::from(place)) {
                *pod = Candidate { tickets, zero: 0, picked };
            }
            before = end;
        }
        all
    }

    /// Whether they say nothing of load any more; `now` in nanoseconds of CLOCK_MONOTONIC.
    #[inline(always)]
    pub fn are_stale(&self, now: u64) -> bool {
        // Another CPU's clock may be a little behind that of the one that wrote.
        now > self.published_ns && now - self.published_ns > STALE_NS
    }
}

impl Default for Candidates {
    fn default() -> Self {
        Self {
            published_ns: 0,
            ready_count: 0,
            any_fit: 0,
            ready: [0; MAX_PODS as usize],
            tickets: [0; TICKETS as usize],
            pods: [Candidate::default(); MAX_PODS as usize],
        }
    }
}

impl Default for Live {
    fn default() -> Self {
        Self { fallbacks: 0, retried: 0, stale: 0, pods: [PodLive::default(); MAX_PODS as usize] }
    }
}

/// The pod for the connection that drew `lot`; always below [`MAX_PODS`]. For pools where any is fit.
///
/// Two tickets are drawn, and the first wins unless its pod has been given more since the tickets
/// were given out, for its share, than the second's: so a burst spreads as evenly as the shares
/// are, between one publication and the next.
#[inline(always)]
pub fn pick(pool: &Candidates, live: &Live, lot: u32) -> u32 {
    let (first, second) = (pick_again(pool, lot), pick_again(pool, lot >> 8));
    let (tickets, since) = standing(pool, live, first);
    let (other_tickets, other_since) = standing(pool, live, second);
    if since * other_tickets > other_since * tickets { second } else { first }
}

/// The same after the server that was picked turned out to be gone. That one is given nothing, and so
/// would win every comparison; one ticket decides alone.
#[inline(always)]
pub fn pick_again(pool: &Candidates, lot: u32) -> u32 {
    masked(pool.tickets.get((lot % TICKETS) as usize))
}

/// The same when nobody publishes any more. Then the tickets mean nothing, and every pod that was
/// ready has the same chance. For pools where any is.
#[inline(always)]
pub fn pick_blindly(pool: &Candidates, lot: u32) -> u32 {
    let place = (u64::from(lot) * u64::from(pool.ready_count)) >> 32;
    masked(pool.ready.get((place % u64::from(MAX_PODS)) as usize))
}

/// A pod's tickets, and how many connections it has been given since they were given out.
#[inline(always)]
fn standing(pool: &Candidates, live: &Live, place: u32) -> (u64, u64) {
    match (pool.pods.get(place as usize), live.pods.get(place as usize)) {
        (Some(pod), Some(live)) => {
            let since = live.picked.wrapping_sub(pod.picked);
            (u64::from(pod.tickets), since.min(u64::from(u32::MAX)))
        }
        _ => (0, 0),
    }
}

#[inline(always)]
fn masked(place: Option<&u8>) -> u32 {
    // Always there; `Option` only because the compiler cannot know.
    u32::from(place.copied().unwrap_or_default()) % MAX_PODS
}

/// Spreads a connection's addresses and ports over all 32 bits: the lot for [`pick`].
///
/// Not drawn by chance: a client that answers a SYN cookie is looked up once more, and only the
/// server that sent the cookie knows it.
#[inline(always)]
pub fn lot(words: [u32; 6]) -> u32 {
    let mut state = 0;
    for word in words {
        state = next_lot(state ^ word);
    }
    state
}

/// The lot for another try.
#[inline(always)]
pub fn next_lot(lot: u32) -> u32 {
    // The finalizer of MurmurHash3 (Austin Appleby, public domain), behind a step so that 0 moves:
    // every bit of the input changes each bit of the output with even chance.
    let mut state = lot.wrapping_add(0x9e37_79b9);
    state ^= state >> 16;
    state = state.wrapping_mul(0x85eb_ca6b);
    state ^= state >> 13;
    state = state.wrapping_mul(0xc2b2_ae35);
    state ^ state >> 16
}

const _: () = {
    assert!(size_of::<Candidate>() == 16 && offset_of!(Candidate, picked) == 8);
    assert!(size_of::<Candidates>() == 16 + 64 + 256 + 16 * 64);
    assert!(offset_of!(Candidates, ready) == 16 && offset_of!(Candidates, pods) == 336);
    assert!(size_of::<PodLive>() == 24 && size_of::<Live>() == 24 + 24 * 64);
    assert!(offset_of!(Live, pods) == 24);
    assert!(size_of::<Endpoint>() == 32 && align_of::<Endpoint>() == 8);
    assert!(offset_of!(Endpoint, address) == 8 && offset_of!(Endpoint, zero) == 28);
    assert!(size_of::<Membership>() == 8 && align_of::<Membership>() == 4);
};

#[cfg(feature = "user")]
mod pod {
    use super::{Candidate, Candidates, Endpoint, Live, Membership, PodLive};

    // SAFETY: integers only, no padding (asserted above), every bit pattern is a value.
    unsafe impl aya::Pod for Candidate {}
    // SAFETY: as for `Candidate`.
    unsafe impl aya::Pod for Candidates {}
    // SAFETY: as for `Candidate`.
    unsafe impl aya::Pod for PodLive {}
    // SAFETY: as for `Candidate`.
    unsafe impl aya::Pod for Live {}
    // SAFETY: as for `Candidate`.
    unsafe impl aya::Pod for Endpoint {}
    // SAFETY: as for `Candidate`.
    unsafe impl aya::Pod for Membership {}
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    fn fit(scores: &[u32]) -> Vec<Worth> {
        scores.iter().map(|&score| Worth { score, ready: true, fit: true }).collect()
    }

    /// How many of 10,000 connections each of `count` pods gets, in hundreds; those that were given
    /// do not count.
    fn spread(pool: &Candidates, count: usize, stale: bool) -> Vec<u32> {
        let mut counts = std::vec![0; count];
        for port in 0..10_000 {
            let lot = lot([1, 2, 3, 4, port, 80]);
            let place = match stale {
                false => pick(pool, &Live::default(), lot),
                true => pick_blindly(pool, lot),
            };
            counts[place as usize] += 1;
        }
        counts.iter().map(|count| (count + 50) / 100).collect()
    }

    fn about(found: &[u32], want: &[u32]) {
        assert_eq!(found.len(), want.len());
        for (one, other) in found.iter().zip(want) {
            // Four standard deviations of a fair draw of 10,000.
            let exact = *other == 0 || *other == 100;
            assert!(one.abs_diff(*other) <= if exact { 0 } else { 2 }, "{found:?} of {want:?}");
        }
    }

    #[test]
    fn the_better_the_likelier_within_the_margin() {
        let table: [(&[u32], u32, &[u32]); 7] = [
            (&[500], 100, &[100]),
            (&[500, 500, 500, 500], 100, &[25, 25, 25, 25]),
            (&[500, 450], 100, &[66, 34]),
            (&[500, 400], 100, &[94, 6]),
            (&[500, 399, 500], 100, &[50, 0, 50]),
            (&[500, 500, 499], 0, &[50, 50, 0]),
            (&[0, 0], 100, &[50, 50]),
        ];
        for (scores, margin, want) in table {
            let pool = Candidates::new(1, margin, &fit(scores), &Live::default());
            about(&spread(&pool, scores.len(), false), want);
        }
        let all = Candidates::new(1, 10, &fit(&[7; 64]), &Live::default());
        assert!(all.pods.iter().all(|pod| pod.tickets == 4));
        let senseless = Candidates::new(1, u32::MAX, &fit(&[u32::MAX; 70]), &Live::default());
        assert!(senseless.pods.iter().all(|pod| pod.tickets == 4));
    }

    #[test]
    fn a_burst_spreads_by_the_shares() {
        let mut live = Live::default();
        live.pods[0].picked = 1000;
        let pool = Candidates::new(1, 100, &fit(&[500, 450, 450, 500, 300]), &live);
        for port in 0..600 {
            let place = pick(&pool, &live, lot([1, 2, 3, 4, port, 80]));
            live.pods[place as usize].picked += 1;
        }
        let got: Vec<u64> = live.pods.iter().take(5).map(|pod| pod.picked).collect();
        for (got, want) in got.iter().zip([1200, 100, 100, 200, 0]) {
            assert!(got.abs_diff(want) <= 10, "{got} is far from {want}");
        }
    }

    #[test]
    fn one_that_is_not_there_wins_no_other_try() {
        let mut live = Live::default();
        let pool = Candidates::new(1, 100, &fit(&[500, 500]), &live);
        live.pods[0].picked = 1000;
        let lots = || (0..1000).map(|port| lot([1, 2, 3, 4, port, 80]));
        let first = lots().filter(|&lot| pick(&pool, &live, lot) == 1).count();
        let again = lots().filter(|&lot| pick_again(&pool, lot) == 1).count();
        assert!(first > 700 && again < 600, "{first} {again}");
    }

    #[test]
    fn who_is_out_gets_nothing() {
        let mut pods = fit(&[500, 900, 500]);
        pods[1].fit = false;
        let pool = Candidates::new(1, 100, &pods, &Live::default());
        about(&spread(&pool, 3, false), &[50, 0, 50]);
        for pod in &mut pods {
            pod.fit = false;
        }
        let pool = Candidates::new(1, 100, &pods, &Live::default());
        assert_eq!((pool.any_fit, pool.ready_count), (0, 3));
        let none = Candidates::new(1, 100, &[Worth::default(); 3], &Live::default());
        assert_eq!((none.any_fit, none.ready_count), (0, 0));
    }

    #[test]
    fn stale_tickets_are_forgotten() {
        let mut pods = fit(&[900, 100, 500, 700]);
        pods[1].fit = false;
        pods[2].ready = false;
        let mut pool = Candidates::new(1, 10, &pods, &Live::default());
        about(&spread(&pool, 4, true), &[33, 33, 0, 33]);
        pool.published_ns = 10 * STALE_NS;
        assert!(!pool.are_stale(10 * STALE_NS - 7));
        assert!(!pool.are_stale(11 * STALE_NS));
        assert!(pool.are_stale(11 * STALE_NS + 1));
    }

    #[test]
    fn places_are_bounded_whatever_stands_there() {
        let mut pool = Candidates::new(1, 10, &fit(&[1; 3]), &Live::default());
        (pool.tickets, pool.ready) = ([255; 256], [255; 64]);
        pool.ready_count = u32::MAX;
        assert_eq!(pick(&pool, &Live::default(), u32::MAX), 63);
        assert_eq!(pick_blindly(&pool, u32::MAX), 63);
    }

    #[test]
    fn endpoints_are_as_the_kernel_says() {
        let words = [0, 0, 0xffff_u32.to_be(), u32::from_ne_bytes([10, 1, 2, 3])];
        let mapped = Endpoint::of(7, "10.1.2.3:80".parse().unwrap());
        assert_eq!(mapped, Endpoint::new(7, words, 80));
        let loopback = Endpoint::of(7, "[::1]:80".parse().unwrap());
        assert_eq!(loopback, Endpoint::new(7, [0, 0, 0, 1_u32.to_be()], 80));
    }
}
