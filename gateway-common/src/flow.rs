//! A flow: one response that the kernel may carry from a pod to a client, and the values by which the
//! daemon and the kernel programs hand it to each other.
//!
//! Every connection that the gateway opens for streams has a slot; the slot's [`Flow`] and [`Tail`] lie in
//! memory that both sides map. Each half of a flow has one writer, so nothing is locked:
//!
//! - [`Offer`], by the daemon: all up to here is with the client, go on from here. It is sealed, so that
//!   one that is read while it is being written is no offer.
//! - [`Carried`], by the program that sees the connection's messages, one at a time: how many bytes it let
//!   pass to the daemon, how many it sent to the client itself, and where the body's framing stands.
//!
//! A message is the program's to send only when every byte before it is in the client's socket: when the
//! daemon has offered the count of bytes that the program let pass ([`Carried::arrive`]). Counts run over
//! the connection's whole life, so there is no moment at which they are set back.

use core::mem::offset_of;
use core::sync::atomic::{Ordering, compiler_fence};

use crate::framing::Framing;
use crate::limits;

/// Connections for streams at once, and with them flows. A slot costs 3.4 KiB of kernel memory.
pub const MAX_FLOWS: u32 = 8192;

/// Client connections that a flow can lead to. An entry costs about 100 bytes while in use.
pub const MAX_CLIENTS: u32 = 65536;

/// A connection of the gateway to a pod, as the programs know it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Connection {
    /// Its slot.
    pub slot: u32,
    /// Which of the connections that the slot has had. 0 is none.
    pub generation: u32,
}

/// A slot's value.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// The daemon's half.
    pub offer: Offer,
    /// The kernel's half. The daemon sets it before it gives the slot to a connection, and never again.
    pub carried: Carried,
}

/// What the daemon offers the kernel to carry.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Offer {
    /// Bytes that the daemon has read from the pod's connection since it was opened, all of which are dealt
    /// with.
    pub relayed: u64,
    /// Bytes that have been given to the client's connection since it was accepted.
    pub written: u64,
    /// Where the body's framing stands behind them ([`Framing::parts`]).
    pub framing: [u64; 3],
    /// The client's socket cookie.
    pub client: u64,
    /// Counts the offers of a connection from 1, so that none is taken twice.
    pub turn: u32,
    /// The path that may take it: [`LOCAL`] or [`SPLICE`].
    pub path: u32,
    /// Tells a whole offer from one that is being written ([`Offer::sealed`]).
    pub seal: u64,
}

/// What the kernel has made of a connection's bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Carried {
    /// Bytes that went to the daemon, in the connection's life.
    pub passed: u64,
    /// Bytes that went to clients, in the connection's life.
    pub redirected: u64,
    /// Bytes given to the client's connection since it was accepted, by either side.
    pub sent: u64,
    /// Where the body's framing stands.
    pub framing: Framing,
    /// The client's socket cookie.
    pub client: u64,
    /// When the last message was redirected, in nanoseconds of CLOCK_MONOTONIC.
    pub last_ns: u64,
    /// Value of `sent` when the messages before it began to be counted apart.
    mark: u64,
    /// Messages redirected since then, and in the stretch before.
    since: u32,
    before: u32,
    /// The turn of the last offer that was taken, and above it the mode: one word, as the daemon must not see
    /// the one as of before a message and the other as of after it.
    hand: u64,
    /// Why the flow went back to the daemon the last time: a [`TakenBack`] as number.
    pub reason: u32,
    /// The connection in this slot.
    pub generation: u32,
    /// 1: the pod's end of the connection is on this node, and its messages are seen where they are sent.
    pub enrolled: u32,
    /// Where the program stands within a message. Here and not on its stack, as the verifier would
    /// follow every value that it can have.
    pub position: u32,
    /// Where the message's first payload stands; [`NOWHERE`] as long as none was seen.
    pub payload: u32,
    /// The sequence number of the connection's next byte, where it is known.
    pub expected: u32,
    /// Bytes that the client had acknowledged when that was last asked.
    acked: u64,
}

/// What has become of the daemon's last offer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Standing {
    /// It was not taken, or none was made: what comes is the daemon's.
    Waiting,
    /// The kernel carries on from it.
    Carrying,
    /// The kernel took it, and has given the flow back: nothing changes before the next offer.
    Returned,
    /// The connection has fallen silent, as bytes could neither be sent nor passed.
    Broken {
        /// The kernel had taken the offer before.
        taken: bool,
    },
}

/// Why a flow went back to the daemon.
#[repr(u32)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TakenBack {
    /// The message completes the response: the daemon ends it.
    End = 1,
    /// The client has not acknowledged a whole window of bytes, or too many messages.
    Credit = 2,
    /// The message is too large to be looked through, or does not end with the response.
    Framing = 3,
    /// The client's socket is not there any more, or the kernel could not redirect.
    Refused = 4,
    /// It begins with an engine's error: the daemon reads it, however long it is.
    Error = 5,
}

/// The last bytes that the kernel carried since it took an offer, for what the daemon reads at a stream's
/// end: in two halves, filled in turn.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Tail {
    /// Bytes in each half.
    fill: [u32; 2],
    /// The half that is being filled.
    current: u32,
    /// Where the last message was put, in `bytes`.
    at: u32,
    /// How many of its bytes were left out before that.
    skipped: u32,
    /// How many are kept.
    count: u32,
    /// Where the framing stood before each half's first byte. [`CUT`] in the state when that is not known.
    framing: [Framing; 2],
    /// The halves, and behind them room for the verifier: it knows the place of a copy and its length each
    /// by their largest value.
    bytes: [u8; 3 * HALF],
}

/// Tells the daemon that a spliced flow has changed hands: so that it stops to look at each message, or
/// begins again.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Event {
    /// The connection.
    pub connection: Connection,
}

/// [`Carried::payload`]: none.
pub const NOWHERE: u32 = u32::MAX;

/// [`Carried::mode`]: messages pass to the daemon.
pub const RELAY: u32 = 0;

/// [`Carried::mode`]: messages go to the client.
pub const KERNEL: u32 = 1;

/// [`Carried::mode`]: bytes could be neither sent nor passed as they should. Nothing follows them.
pub const BROKEN: u32 = 2;

/// [`Offer::path`]: the program sees what the pod sends.
pub const LOCAL: u32 = 1;

/// [`Offer::path`]: the program sees what arrives from the pod.
pub const SPLICE: u32 = 2;

/// Bytes in one half of a [`Tail`], and the most that is kept of one message. vLLM's `usage` event has
/// about 250.
pub const HALF: usize = 1024;

impl Flow {
    /// A slot's value for a new connection.
    pub const fn new(generation: u32) -> Self {
        Self {
            offer: Offer {
                relayed: 0,
                written: 0,
                framing: [0; 3],
                client: 0,
                turn: 0,
                path: 0,
                seal: 0,
            },
            carried: Carried {
                passed: 0,
                redirected: 0,
                sent: 0,
                framing: Framing::none(),
                client: 0,
                last_ns: 0,
                mark: 0,
                since: 0,
                before: 0,
                hand: RELAY as u64,
                reason: 0,
                generation,
                enrolled: 0,
                position: 0,
                payload: NOWHERE,
                expected: 0,
                acked: 0,
            },
        }
    }
}

impl Offer {
    /// The offer, sealed for the connection of this generation.
    pub const fn sealed(mut self, generation: u32) -> Self {
        self.seal = self.seal(generation);
        self
    }

    /// The whole value as words, in the order of the layout.
    pub const fn words(&self) -> [u64; 8] {
        let [a, b, c] = self.framing;
        let turn = self.turn as u64 | (self.path as u64) << 32;
        [self.relayed, self.written, a, b, c, self.client, turn, self.seal]
    }

    /// Takes what [`Offer::words`] gave.
    #[inline(always)]
    pub const fn from_words(words: [u64; 8]) -> Self {
        let [relayed, written, a, b, c, client, turn, seal] = words;
        let (turn, path) = (turn as u32, (turn >> 32) as u32);
        Self { relayed, written, framing: [a, b, c], client, turn, path, seal }
    }

    #[inline(always)]
    const fn is_sealed(&self, generation: u32) -> bool {
        self.seal == self.seal(generation)
    }

    /// Not against forgery: against an offer of which one half is older than the other.
    #[inline(always)]
    const fn seal(&self, generation: u32) -> u64 {
        let [words @ .., _] = self.words();
        let [a, b, c, d, e, f, g] = words;
        let mut seal = (generation as u64) << 1 | 1;
        seal = mix(seal, a);
        seal = mix(seal, b);
        seal = mix(seal, c);
        seal = mix(seal, d);
        seal = mix(seal, e);
        seal = mix(seal, f);
        mix(seal, g)
    }
}

#[inline(always)]
const fn mix(seal: u64, word: u64) -> u64 {
    // The multiplier of the 64-bit FNV hash: odd, with few bits.
    (seal ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
}

impl Carried {
    /// A message of `size` bytes has come while the daemon relays. `true`: the offer was taken, and the message may
    /// be redirected, if there is credit and its framing fits. `false`: it has been counted as passed.
    #[inline(always)]
    pub fn arrive(&mut self, offer: &Offer, path: u32, size: u32) -> bool {
        let caught_up = offer.relayed == self.passed
            && offer.turn != self.adopted()
            && offer.path == path
            && offer.is_sealed(self.generation);
        if !caught_up {
            self.passed = self.passed.wrapping_add(size as u64);
            return false;
        }
        self.framing = Framing::from_parts(offer.framing);
        self.sent = offer.written;
        // What the daemon wrote is on its way in messages that nobody counted, and so may be what was
        // redirected to this client before.
        let (counted, acked) = if self.client == offer.client {
            (self.before.wrapping_add(self.since), self.acked)
        } else {
            (0, 0)
        };
        self.acked = acked;
        self.before = if counted > limits::UNCOUNTED { counted } else { limits::UNCOUNTED };
        self.since = 0;
        self.client = offer.client;
        self.mark = offer.written;
        self.reason = 0;
        self.hand_over(offer.turn, KERNEL);
        true
    }

    /// The turn of the last offer that was taken; 0 is none.
    #[inline(always)]
    pub const fn adopted(&self) -> u32 {
        self.hand as u32
    }

    /// [`RELAY`], [`KERNEL`] or [`BROKEN`].
    #[inline(always)]
    pub const fn mode(&self) -> u32 {
        (self.hand >> 32) as u32
    }

    /// What has become of the offer of this turn, the daemon's last.
    pub const fn standing(&self, turn: u32) -> Standing {
        let taken = turn != 0 && self.adopted() == turn;
        match self.mode() {
            BROKEN => Standing::Broken { taken },
            _ if !taken => Standing::Waiting,
            KERNEL => Standing::Carrying,
            _ => Standing::Returned,
        }
    }

    /// Once the daemon sees it, all else that belongs to it must be there.
    #[inline(always)]
    fn hand_over(&mut self, adopted: u32, mode: u32) {
        compiler_fence(Ordering::Release);
        let hand = adopted as u64 | (mode as u64) << 32;
        // SAFETY: the reference is to an aligned number. Volatile, so that it is one store and stays one.
        unsafe { core::ptr::write_volatile(&raw mut self.hand, hand) };
    }

    /// How many of a segment's first bytes have been seen already, as it covers the sequence numbers from
    /// `sequence` up to `end` with `size` bytes. `None`: that is not what these numbers are, or bytes are
    /// missing.
    ///
    /// A pod that takes a segment for lost sends it again, perhaps together with the next one, and the
    /// receiving end keeps such a segment whole. Readers of the socket skip what they have had; the
    /// program is shown all of it.
    #[inline(always)]
    pub fn repeated(&mut self, sequence: u32, end: u32, size: u32) -> Option<u32> {
        // The connection's end counts as one.
        if end.wrapping_sub(sequence).wrapping_sub(size) > 1 {
            return None;
        }
        let first = self.passed == 0 && self.redirected == 0;
        let repeated = if first { 0 } else { self.expected.wrapping_sub(sequence) };
        if repeated != 0 && repeated >= size {
            return None;
        }
        self.expected = sequence.wrapping_add(size);
        Some(repeated)
    }

    /// The message is as good as lost, and with it all that follows.
    #[inline(always)]
    pub fn give_up(&mut self) {
        self.reason = TakenBack::Refused as u32;
        self.hand_over(self.adopted(), BROKEN);
    }

    /// Whether the client, having acknowledged as many bytes as `acked` tells, may be sent a message of `size`
    /// bytes more. To ask costs a look into a table, so with half of the credit left it is not asked.
    ///
    /// A redirect must never be taken in part: the program would be shown the rest again, with framing
    /// that has moved past it. So bytes and messages stay below what the client's send buffer holds.
    #[inline(always)]
    pub fn has_credit(&mut self, size: u32, acked: impl FnOnce() -> u64) -> bool {
        let sent = self.sent.wrapping_add(size as u64);
        if sent.wrapping_sub(self.acked) <= limits::WINDOW / 2
            && self.before.wrapping_add(self.since) < limits::MESSAGES / 2
        {
            return true;
        }
        let acked = acked();
        self.acked = acked;
        if acked >= self.mark {
            self.before = self.since;
            self.since = 0;
            self.mark = self.sent;
        }
        sent.wrapping_sub(acked) <= limits::WINDOW
            && self.before.wrapping_add(self.since) < limits::MESSAGES
    }

    /// The message was redirected.
    #[inline(always)]
    pub fn redirect(&mut self, size: u32, now_ns: u64) {
        self.redirected = self.redirected.wrapping_add(size as u64);
        self.sent = self.sent.wrapping_add(size as u64);
        self.since = self.since.wrapping_add(1);
        self.last_ns = now_ns;
    }

    /// The message, and what follows, goes to the daemon.
    #[inline(always)]
    pub fn take_back(&mut self, size: u32, reason: TakenBack) {
        self.reason = reason as u32;
        self.passed = self.passed.wrapping_add(size as u64);
        self.hand_over(self.adopted(), RELAY);
    }
}

/// Whether a payload that begins with these two words, as they lie in memory, is an engine's error event, as vLLM
/// and SGLang write it: `data: {"error"`, with or without the blank.
#[inline(always)]
pub const fn begins_error(first: u64, second: u64) -> bool {
    const fn word(bytes: &[u8; 8]) -> u64 {
        u64::from_ne_bytes(*bytes)
    }
    const SIX: u64 = word(b"\xff\xff\xff\xff\xff\xff\0\0");
    const FIVE: u64 = word(b"\xff\xff\xff\xff\xff\0\0\0");
    first == word(b"data: {\"") && second & SIX == word(b"error\"\0\0")
        || first == word(b"data:{\"e") && second & FIVE == word(b"rror\"\0\0\0")
}

impl Tail {
    /// Forgets what was kept.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.fill = [0; 2];
        self.current = 0;
    }

    /// Makes room for the last bytes, [`HALF`] at most, of a message of `size` bytes, before which the framing
    /// stands at `framing`. [`Tail::at`] says where.
    #[inline(always)]
    pub fn make_room(&mut self, size: u32, framing: &Framing) {
        let half = HALF as u32;
        let count = if size < half { size } else { half };
        let second = self.current & 1 != 0;
        let fill = if second { self.fill[1] } else { self.fill[0] };
        let fits = fill <= half && count <= half - fill;
        let to_second = second == fits;
        let start = if fits { fill } else { 0 };
        if start == 0 {
            let known = if size > half { CUT } else { *framing };
            if to_second {
                self.framing[1] = known;
            } else {
                self.framing[0] = known;
            }
        }
        let filled = start.wrapping_add(count);
        if to_second {
            self.fill[1] = filled;
        } else {
            self.fill[0] = filled;
        }
        self.current = to_second as u32;
        self.at = start.wrapping_add(if to_second { half } else { 0 });
        self.skipped = size.wrapping_sub(count);
        self.count = count;
    }

    /// Where the last message's bytes belong, counted from [`Tail::BYTES`]: at most `2 * HALF - 1`.
    ///
    /// Read from memory, and masked, whatever the compiler knows: so the verifier sees one bounded
    /// number, and not each way by which it came about.
    #[inline(always)]
    pub fn at(&self) -> usize {
        // SAFETY: the reference is to an aligned, initialised number.
        let at = unsafe { core::ptr::read_volatile(&raw const self.at) };
        at as usize & (2 * HALF - 1)
    }

    /// How many of the last message's bytes are kept: 1 to [`HALF`], as kernels before 6.8 want to see that a length
    /// is not 0.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        // SAFETY: as above, and for the same reason.
        let count = unsafe { core::ptr::read_volatile(&raw const self.count) };
        (count.wrapping_sub(1) & (HALF as u32 - 1)) + 1
    }

    /// How many of the last message's bytes stand before those that are kept: at most [`limits::MESSAGE`].
    #[inline(always)]
    pub fn skipped(&self) -> usize {
        // SAFETY: as above, and for the same reason.
        let skipped = unsafe { core::ptr::read_volatile(&raw const self.skipped) };
        (skipped & limits::MESSAGE) as usize
    }

    /// The halves' bytes in the order in which they came, each with the framing before its first byte if
    /// that is known. Some may have come between them.
    pub fn pieces(&self) -> [(Option<Framing>, &[u8]); 2] {
        let piece = |second: bool| {
            let index = second as usize;
            let framing = self.framing.get(index).copied().filter(|framing| *framing != CUT);
            let start = index * HALF;
            let fill = self.fill.get(index).map_or(0, |fill| (*fill as usize).min(HALF));
            (framing, self.bytes.get(start..start + fill).unwrap_or_default())
        };
        let second = self.current & 1 != 0;
        [piece(!second), piece(second)]
    }

    /// Where the bytes lie in the value.
    pub const BYTES: usize = offset_of!(Self, bytes);
}

/// A framing that stands nowhere: no state has this number.
const CUT: Framing = Framing::from_parts([0, 0, (u32::MAX as u64) << 32]);

const _: () = {
    assert!(size_of::<Connection>() == 8 && size_of::<Event>() == 8);
    assert!(size_of::<Offer>() == 64 && align_of::<Offer>() == 8);
    assert!(offset_of!(Offer, framing) == 16 && offset_of!(Offer, client) == 40);
    assert!(offset_of!(Offer, turn) == 48 && offset_of!(Offer, seal) == 56);
    assert!(offset_of!(Flow, carried) == 64 && size_of::<Flow>() == 192);
    assert!(offset_of!(Carried, framing) == 24 && offset_of!(Carried, client) == 48);
    assert!(
        offset_of!(Carried, since) == 72
            && offset_of!(Carried, hand) == 80
            && offset_of!(Carried, position) == 100
    );
    assert!(offset_of!(Carried, payload) == 104 && size_of::<Carried>() == 120);
    assert!(size_of::<Tail>() == 72 + 3 * HALF && Tail::BYTES == 72);
    assert!(HALF.is_power_of_two());
};

#[cfg(feature = "user")]
mod pod {
    use super::{Connection, Flow, Tail};

    // SAFETY: integers only, no padding (asserted above), every bit pattern is a value.
    unsafe impl aya::Pod for Connection {}
    // SAFETY: as for `Connection`; the padding at the end (8 bytes) is never read.
    unsafe impl aya::Pod for Flow {}
    // SAFETY: as for `Connection`.
    unsafe impl aya::Pod for Tail {}
}

#[cfg(test)]
mod tests;
