//! The splice path: what arrives from a pod, wherever it is, goes on to the client's socket.
//!
//! Runs on each segment that arrives on the gateway's own connections in UPSTREAMS. A redirected segment
//! waits for a kernel worker to send it: the daemon must not write to the client before that.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::bindings::sk_action::SK_PASS;
use aya_ebpf::helpers::{bpf_get_socket_cookie, bpf_loop, bpf_skb_adjust_room, bpf_skb_load_bytes};
use aya_ebpf::macros::stream_verdict;
use aya_ebpf::programs::SkBuffContext;
use aya_log_ebpf::debug;
use gateway_common::flow::{Carried, Event, SPLICE, Tail};
use gateway_common::framing::Framing;
use gateway_common::limits::STEPS;

use crate::carry::{Message, Seen, carry, step};
use crate::maps::{CLIENTS, CONNECTIONS, EVENTS};

/// The sk_skb verdict program. There is no parser: with one, what passes would stall.
#[stream_verdict]
pub fn splice(ctx: SkBuffContext) -> u32 {
    // SAFETY: the context is the kernel's.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    let Some(connection) = CONNECTIONS.get_ptr(&cookie) else { return SK_PASS };
    // SAFETY: the pointer is to a value of the map, which the daemon takes out with the socket's end. Should
    // another's take its place, then that flow's generation tells.
    let connection = unsafe { *connection };
    let received = Received { ctx };
    let (verdict, changed) = carry(&received, connection);
    if changed {
        debug!(&received.ctx, "slot {}: the pod's stream has changed hands", connection.slot);
        // One record when a flow is taken and one when it comes back, and then none before the daemon has
        // offered it again: there is room for all of them.
        let _ = EVENTS.output(Event { connection }, FORCE_WAKEUP);
    }
    verdict
}

struct Received {
    ctx: SkBuffContext,
}

impl Message for Received {
    const PATH: u32 = SPLICE;

    #[inline(always)]
    fn unseen(&self, carried: &mut Carried) -> Result<(), Seen> {
        // SAFETY: the context is the kernel's. What a stream verdict is shown of `cb` begins where TCP keeps
        // the sequence numbers of the segment's first byte and of what follows its last; whether it
        // does is checked with each.
        let [sequence, end] = unsafe {
            let cb = (&raw const (*self.ctx.skb.skb).cb).cast::<u32>();
            [core::ptr::read_volatile(cb), core::ptr::read_volatile(cb.add(1))]
        };
        let mut repeated = carried.repeated(sequence, end, self.size()).ok_or(Seen::Unknown)?;
        // As many turns as the largest segment needs.
        for _ in 0..17 {
            if repeated == 0 {
                return Ok(());
            }
            let count = if repeated < CUT_AT_ONCE { repeated } else { CUT_AT_ONCE };
            // SAFETY: the context is the kernel's. A negative number takes bytes from the front.
            let failed =
                unsafe { bpf_skb_adjust_room(self.ctx.skb.skb.cast(), -(count as i32), 0, 0) };
            if failed != 0 {
                break;
            }
            repeated -= count;
        }
        Err(Seen::Stuck)
    }

    #[inline(always)]
    fn size(&self) -> u32 {
        self.ctx.len()
    }

    #[inline(always)]
    fn is_readable(&self) -> bool {
        true
    }

    #[inline(always)]
    fn scan(&self, carried: *mut Carried) {
        let mut scan = Scan { skb: self.ctx.skb.skb, size: self.size(), carried };
        // SAFETY: the callback takes what is handed to it here, while both live.
        unsafe { bpf_loop(STEPS, scan_step as *mut _, (&raw mut scan).cast(), 0) };
    }

    #[inline(always)]
    fn words(&self, at: u32) -> Option<(u64, u64)> {
        let mut words = [0_u64; 2];
        // SAFETY: 16 bytes of this stack.
        let loaded =
            unsafe { bpf_skb_load_bytes(self.ctx.as_ptr(), at, words.as_mut_ptr().cast(), 16) };
        (loaded == 0).then_some((words[0], words[1]))
    }

    #[inline(always)]
    fn redirect(&self, client: u64) -> bool {
        CLIENTS.redirect_skb(&self.ctx, client, 0) == i64::from(SK_PASS)
    }

    #[inline(always)]
    fn keep(&self, tail: &mut Tail, framing: &Framing) {
        let size = self.size();
        if size == 0 {
            return;
        }
        tail.make_room(size, framing);
        let count = tail.count();
        // SAFETY: at most 2 * HALF - 1 + HALF bytes, which is what the tail has.
        unsafe {
            let into = core::ptr::from_mut(tail).cast::<u8>().add(Tail::BYTES + tail.at());
            bpf_skb_load_bytes(self.ctx.as_ptr(), size - count, into.cast(), count);
        }
    }
}

struct Scan {
    skb: *mut __sk_buff,
    size: u32,
    carried: *mut Carried,
}

unsafe extern "C" fn scan_step(_: u32, scan: *mut core::ffi::c_void) -> i64 {
    // SAFETY: `scan` is the one that Received::scan made, which outlives the loop.
    let (skb, size, carried) = unsafe {
        let scan = &*scan.cast::<Scan>();
        (scan.skb, scan.size, &mut *scan.carried)
    };
    let go_on = step(carried, size, |position| {
        let mut byte = 0_u8;
        // SAFETY: a byte of this stack.
        let loaded = unsafe { bpf_skb_load_bytes(skb.cast(), position, (&raw mut byte).cast(), 1) };
        (loaded == 0).then_some(byte)
    });
    i64::from(!go_on)
}

/// Events are rare; none may wait for the next.
const FORCE_WAKEUP: u64 = aya_ebpf::bindings::BPF_RB_FORCE_WAKEUP as u64;

/// The most that the kernel takes away at a time.
const CUT_AT_ONCE: u32 = 4095;
