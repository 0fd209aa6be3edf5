//! The local path: a pod on this node writes, and its bytes go into the client's socket.
//!
//! Runs within the pod's own `sendmsg`, in its network namespace, on the sockets that
//! [`crate::enrol`] has put into PODS. The connection between pod and gateway carries nothing then.

use aya_ebpf::bindings::sk_action::SK_PASS;
use aya_ebpf::bindings::sk_msg_md;
use aya_ebpf::helpers::{bpf_loop, bpf_msg_pull_data, bpf_sk_storage_get};
use aya_ebpf::macros::sk_msg;
use aya_ebpf::programs::SkMsgContext;
use aya_log_ebpf::debug;
use gateway_common::flow::{Carried, Connection, HALF, LOCAL, Tail};
use gateway_common::framing::Framing;
use gateway_common::limits::{MESSAGE, STEPS};

use crate::carry::{Message, Seen, carry, step};
use crate::maps::{CLIENTS, POD_CONNECTIONS};

/// The sk_msg program.
#[sk_msg]
pub fn local(ctx: SkMsgContext) -> u32 {
    // SAFETY: the context is the kernel's, its socket is a valid argument, and the value lives as
    // long as the socket.
    let connection = unsafe {
        let socket = (*ctx.msg).__bindgen_anon_3.sk;
        let map = core::ptr::from_ref(&POD_CONNECTIONS).cast_mut().cast();
        let value = bpf_sk_storage_get(map, socket.cast(), core::ptr::null_mut(), 0);
        value.cast::<Connection>().as_ref()
    };
    let Some(connection) = connection else { return SK_PASS };
    let sent = Sent { ctx };
    let (verdict, changed) = carry(&sent, *connection);
    if changed {
        debug!(&sent.ctx, "slot {}: the pod's stream has changed hands", connection.slot);
    }
    verdict
}

struct Sent {
    ctx: SkMsgContext,
}

impl Message for Sent {
    const PATH: u32 = LOCAL;

    /// What a process writes is shown once.
    #[inline(always)]
    fn unseen(&self, _: &mut Carried) -> Result<(), Seen> {
        Ok(())
    }

    #[inline(always)]
    fn size(&self) -> u32 {
        self.ctx.size()
    }

    #[inline(always)]
    fn is_readable(&self) -> bool {
        let size = self.size();
        // SAFETY: the context is the kernel's.
        size <= MESSAGE && unsafe { bpf_msg_pull_data(self.ctx.msg, 0, size, 0) } == 0
    }

    #[inline(always)]
    fn scan(&self, carried: *mut Carried) {
        let mut scan = Scan { msg: self.ctx.msg, carried };
        // SAFETY: the callback takes what is handed to it here, while both live.
        unsafe { bpf_loop(STEPS, scan_step as *mut _, (&raw mut scan).cast(), 0) };
    }

    #[inline(always)]
    fn words(&self, at: u32) -> Option<(u64, u64)> {
        let start = self.ctx.data() + (at & MESSAGE) as usize;
        if at > MESSAGE || start + 16 > self.ctx.data_end() {
            return None;
        }
        // SAFETY: within the message; unaligned access is allowed.
        unsafe {
            let first = core::ptr::read_volatile(start as *const u64);
            Some((first, core::ptr::read_volatile((start + 8) as *const u64)))
        }
    }

    #[inline(always)]
    fn redirect(&self, client: u64) -> bool {
        CLIENTS.redirect_msg(&self.ctx, client, 0) == i64::from(SK_PASS)
    }

    #[inline(always)]
    fn keep(&self, tail: &mut Tail, framing: &Framing) {
        tail.make_room(self.size(), framing);
        copy(self.ctx.msg, tail);
    }
}

/// Copies the message's last bytes to where the tail has room for them. There is no helper that does: by words,
/// and the rest by bytes. A function of its own, so that the verifier walks its loops once.
#[inline(never)]
fn copy(msg: *mut sk_msg_md, tail: &mut Tail) {
    let ctx = SkMsgContext::new(msg);
    let size = ctx.size() as usize;
    let count = if size < HALF { size } else { HALF };
    let (data, end) = (ctx.data(), ctx.data_end());
    let start = data + tail.skipped();
    let into = core::ptr::from_mut(tail) as usize + Tail::BYTES + tail.at();
    let done = count & !7;
    for word in 0..HALF / 8 {
        let offset = word * 8;
        if offset >= done || start + offset + 8 > end {
            break;
        }
        // SAFETY: within the message, by the check above, and within the tail: at most
        // 2 * HALF - 1 + HALF bytes. Unaligned access is allowed in both.
        unsafe {
            let value = core::ptr::read_volatile((start + offset) as *const u64);
            core::ptr::write_volatile((into + offset) as *mut u64, value);
        }
    }
    for byte in 0..7 {
        let offset = (done + byte) & (HALF - 1);
        if done + byte >= count || start + offset + 1 > end {
            break;
        }
        // SAFETY: as above.
        unsafe {
            let value = core::ptr::read_volatile((start + offset) as *const u8);
            core::ptr::write_volatile((into + offset) as *mut u8, value);
        }
    }
}

struct Scan {
    msg: *mut sk_msg_md,
    carried: *mut Carried,
}

unsafe extern "C" fn scan_step(_: u32, scan: *mut core::ffi::c_void) -> i64 {
    // SAFETY: `scan` is the one that Sent::scan made, which outlives the loop.
    let (msg, carried) = unsafe {
        let scan = &*scan.cast::<Scan>();
        (scan.msg, &mut *scan.carried)
    };
    // SAFETY: the context is the kernel's.
    let (size, data, end) = unsafe {
        let msg = &*msg;
        (msg.size, msg.__bindgen_anon_1.data as usize, msg.__bindgen_anon_2.data_end as usize)
    };
    let go_on = step(carried, size, |position| {
        // The verifier must see the bound of the offset here.
        let at = data + (position & MESSAGE) as usize;
        if position > MESSAGE || at + 1 > end {
            return None;
        }
        // SAFETY: within the message.
        Some(unsafe { core::ptr::read_volatile(at as *const u8) })
    });
    i64::from(!go_on)
}
