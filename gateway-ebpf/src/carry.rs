//! What both carrying programs do with a message: may it go to the client, does all of it belong to the
//! response, and what of it is kept for the daemon.
//!
//! A message is never dropped and never sent twice: whatever speaks against redirecting it lets it pass to
//! the daemon, with the flow's state as it was before the message. The one exception is a message that the
//! kernel has damaged and that cannot be mended: with it the connection falls silent.

use aya_ebpf::bindings::sk_action::{SK_DROP, SK_PASS};
use aya_ebpf::helpers::bpf_ktime_get_ns;
use gateway_common::flow::{
    BROKEN, Carried, Connection, Flow, KERNEL, LOCAL, NOWHERE, Offer, Tail, TakenBack, begins_error,
};
use gateway_common::framing::Framing;

use crate::maps::{ACKED, FLOWS, TAILS};

/// A message under way, as its program can look at it.
pub trait Message {
    /// [`LOCAL`] or SPLICE.
    const PATH: u32;

    /// Takes away the first bytes, if they have been seen before.
    ///
    /// # Errors
    /// They are still there, or may be.
    fn unseen(&self, carried: &mut Carried) -> Result<(), Seen>;

    /// Its bytes.
    fn size(&self) -> u32;

    /// Whether it can be looked through.
    fn is_readable(&self) -> bool;

    /// Runs the framing machine from `carried.position` on, until the message or the response ends.
    fn scan(&self, carried: *mut Carried);

    /// Its 16 bytes from `at` on, if there are so many.
    fn words(&self, at: u32) -> Option<(u64, u64)>;

    /// Has it sent to the client; the kernel does so when the program has ended.
    fn redirect(&self, client: u64) -> bool;

    /// Copies its last bytes into the tail.
    fn keep(&self, tail: &mut Tail, framing: &Framing);
}

/// Why a message may hold bytes that the pod had sent before.
pub enum Seen {
    /// That cannot be told.
    Unknown,
    /// It does, and they cannot be taken away.
    Stuck,
}

/// Decides about `message`, which came on `connection`. Returns the verdict, and whether the flow has
/// changed hands with it.
#[inline(always)]
pub fn carry<M: Message>(message: &M, connection: Connection) -> (u32, bool) {
    let Some(flow) = FLOWS.get_ptr_mut(connection.slot) else { return (SK_PASS, false) };
    // SAFETY: the pointer is to a value that lives as long as the map. Only this program writes this half, and the connection's lock is held while it runs.
    let carried = unsafe { &mut (*flow).carried };
    if carried.generation != connection.generation {
        return (SK_PASS, false);
    }
    // What the pod's end shows is not counted again where it arrives.
    if (carried.enrolled != 0) != (M::PATH == LOCAL) {
        return (SK_PASS, false);
    }
    let was_kernel = carried.mode() == KERNEL;
    match message.unseen(carried) {
        Ok(()) if carried.mode() != BROKEN => {}
        Err(Seen::Unknown) if carried.mode() != BROKEN => {
            carried.take_back(message.size(), TakenBack::Refused);
            return (SK_PASS, was_kernel);
        }
        _ => {
            let was_broken = carried.mode() == BROKEN;
            carried.give_up();
            return (SK_DROP, !was_broken);
        }
    }
    let size = message.size();
    let taken = carried.mode() != KERNEL;
    if taken {
        // SAFETY: as above. The daemon writes the offer while this reads it, so it is read as words and
        // believed only when its seal fits.
        let offer = unsafe { offer(&raw const (*flow).offer) };
        if !carried.arrive(&offer, M::PATH, size) {
            return (SK_PASS, false);
        }
    }
    let Some(tail) = TAILS.get_ptr_mut(connection.slot) else { return (SK_DROP, false) };
    // SAFETY: as for `carried`.
    let tail = unsafe { &mut *tail };
    if taken {
        tail.clear();
    }
    match redirect(message, carried, tail) {
        Ok(done) => (SK_PASS, taken || done),
        Err(reason) => {
            carried.take_back(size, reason);
            (SK_PASS, true)
        }
    }
}

/// Redirects the message, or says why not; then the framing is as it was before. `true`: the response
/// ends with it.
#[inline(always)]
fn redirect<M: Message>(
    message: &M,
    carried: &mut Carried,
    tail: &mut Tail,
) -> Result<bool, TakenBack> {
    let size = message.size();
    let client = carried.client;
    let acked = || {
        // SAFETY: the value is an aligned number that another CPU may write at any time.
        ACKED.get_ptr(&client).map_or(0, |acked| unsafe { core::ptr::read_volatile(acked) })
    };
    if !carried.has_credit(size, acked) {
        return Err(TakenBack::Credit);
    }
    if !message.is_readable() {
        return Err(TakenBack::Framing);
    }
    let before = carried.framing;
    carried.position = 0;
    carried.payload = NOWHERE;
    message.scan(carried);
    let whole = carried.position == size;
    let done = carried.framing.is_done();
    let refusal = if !whole {
        Some(TakenBack::Framing)
    } else if done && M::PATH == LOCAL {
        // The daemon is woken by the message itself.
        Some(TakenBack::End)
    } else if message.words(carried.payload).is_some_and(|(a, b)| begins_error(a, b)) {
        Some(TakenBack::Error)
    } else if !message.redirect(carried.client) {
        Some(TakenBack::Refused)
    } else {
        None
    };
    if let Some(reason) = refusal {
        carried.framing = before;
        return Err(reason);
    }
    message.keep(tail, &before);
    // SAFETY: a helper without arguments.
    carried.redirect(size, unsafe { bpf_ktime_get_ns() });
    if done {
        carried.take_back(0, TakenBack::End);
    }
    Ok(done)
}

/// One step of [`Message::scan`]: a run of payload, or a byte of framing that `read` fetches. `false`: that
/// was all.
#[inline(always)]
pub fn step(carried: &mut Carried, size: u32, read: impl FnOnce(u32) -> Option<u8>) -> bool {
    let position = carried.position;
    if position >= size {
        return false;
    }
    let payload = carried.framing.skip(u64::from(size - position)) as u32;
    if payload > 0 {
        if carried.payload == NOWHERE {
            carried.payload = position;
        }
        carried.position = position + payload;
        return true;
    }
    let Some(byte) = read(position) else { return false };
    if carried.framing.control(byte).is_err() {
        return false;
    }
    carried.position = position + 1;
    true
}

/// # Safety
/// `offer` points to one in a map.
#[inline(always)]
unsafe fn offer(offer: *const Offer) -> Offer {
    let word = |index: usize| {
        // SAFETY: an offer is eight aligned words, as the caller's is.
        unsafe { core::ptr::read_volatile(offer.cast::<u64>().add(index)) }
    };
    Offer::from_words([word(0), word(1), word(2), word(3), word(4), word(5), word(6), word(7)])
}

/// The flow's half is the first in the map's value.
const _: () = assert!(core::mem::offset_of!(Flow, offer) == 0);
