//! What carries a response's body beside the daemon: the kernel along one of two paths, or nothing.
//!
//! The daemon's loop ([`crate::flow::carry`]) is the same for all: it reads, writes, and offers what is to
//! come to the carrier. [`Relay`] never takes it; [`Local`] and [`Splice`] have the kernel do so, and
//! give it back when they must.

use std::io;
use std::net::TcpStream as ParkedStream;
use std::time::Duration;

use gateway_common::flow::{self, Carried, Standing, TakenBack};
use gateway_common::framing::Framing;
use gateway_common::limits::WINDOW;
use nix::time::{ClockId, clock_gettime};
use tokio::net::TcpStream;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use crate::account::tail::Tail;
use crate::client::Scratch;
use crate::kernel::{Link, Path, Receiver};
use crate::upstream::{Stream, Upstream};

/// How the body's bytes come from the pod.
#[expect(async_fn_in_trait, reason = "its futures stay on the worker's thread")]
pub trait Carrier {
    /// Everything that was read has been written: `written` bytes since the client's connection was accepted,
    /// and the body stands at `framing`. What comes next may be carried.
    fn offer(&mut self, written: u64, framing: &Framing, client: &TcpStream);

    /// Waits for bytes that are the daemon's to write and hands them on, with what was carried before them. 0 is
    /// the end of the connection, `None` that a flow has come back without any. Dropped while it waits, it has
    /// read nothing.
    async fn read(
        &mut self,
        scratch: &Scratch,
        take: impl FnMut(Option<Returned>, &[u8]),
    ) -> io::Result<Option<usize>>;

    /// What was carried since the last offer, if it was taken and has not been told yet. For a flow that
    /// ends otherwise than by a read: while the kernel carries on, it is as of some moment.
    fn take_back(&mut self) -> Option<Returned>;

    /// When the last bytes were carried.
    fn last_carried(&self) -> Option<Instant>;

    /// Waits until what was carried is in the client's socket, `written` bytes in all: nothing may be written
    /// there, and the socket not closed, before that.
    async fn settle(&self, written: u64, client: &TcpStream);

    /// The connection, if it can be used for another request.
    fn into_upstream(self) -> Option<Upstream>;
}

/// What the kernel has carried of a flow.
#[derive(Debug)]
pub struct Returned {
    /// Where the body stands.
    pub framing: Framing,
    /// Bytes that went to the client.
    pub carried: u64,
    /// When the last of them went.
    pub last: Instant,
    /// Why it was given back, as the programs number it.
    pub reason: u32,
    /// The last of the bytes.
    pub tail: Box<flow::Tail>,
    /// They may not all be in the client's socket yet.
    pub on_their_way: bool,
}

/// Nothing: the daemon reads and writes everything.
#[derive(Debug)]
pub struct Relay {
    /// The pod's connection.
    pub upstream: Upstream,
}

/// The kernel, from the pod's own socket. The pod's connection is silent then, so the daemon can wait
/// for it as ever: what wakes it is its own.
#[derive(Debug)]
pub struct Local<'a> {
    upstream: Upstream,
    offers: Offers<'a>,
}

/// The kernel, from the gateway's own connection. Every message would wake the daemon, so the connection is
/// taken out of its event loop while the kernel carries.
#[derive(Debug)]
pub struct Splice<'a> {
    socket: Socket,
    offers: Offers<'a>,
    received: u64,
}

#[derive(Debug)]
enum Socket {
    Live(TcpStream),
    Parked(ParkedStream),
    /// It could not be put back into the event loop.
    Lost,
}

/// What both kernel carriers offer and get back.
#[derive(Debug)]
struct Offers<'a> {
    link: Link,
    receiver: &'a Receiver,
    /// Bytes that the kernel had redirected in the connection's life when it was last asked.
    redirected: u64,
    /// An offer is out, and what became of it has not been asked.
    open: bool,
    /// How much had been received when it was made.
    offered: u64,
    /// The client was too slow the last time.
    slow: bool,
}

impl Carrier for Relay {
    fn offer(&mut self, _: u64, _: &Framing, _: &TcpStream) {}

    async fn read(
        &mut self,
        scratch: &Scratch,
        mut take: impl FnMut(Option<Returned>, &[u8]),
    ) -> io::Result<Option<usize>> {
        read(&mut self.upstream, scratch, |bytes| take(None, bytes)).await.map(Some)
    }

    fn take_back(&mut self) -> Option<Returned> {
        None
    }

    fn last_carried(&self) -> Option<Instant> {
        None
    }

    async fn settle(&self, _: u64, _: &TcpStream) {}

    fn into_upstream(self) -> Option<Upstream> {
        Some(self.upstream)
    }
}

impl<'a> Local<'a> {
    /// The carrier of one response on this connection.
    pub fn new(upstream: Upstream, link: Link, receiver: &'a Receiver) -> Self {
        Self { upstream, offers: Offers::new(link, receiver) }
    }
}

impl Carrier for Local<'_> {
    fn offer(&mut self, written: u64, framing: &Framing, client: &TcpStream) {
        self.offers.offer(self.upstream.received, written, framing, client);
    }

    async fn read(
        &mut self,
        scratch: &Scratch,
        mut take: impl FnMut(Option<Returned>, &[u8]),
    ) -> io::Result<Option<usize>> {
        let Self { upstream, offers } = self;
        read(upstream, scratch, |bytes| take(offers.take_back(), bytes)).await.map(Some)
    }

    fn take_back(&mut self) -> Option<Returned> {
        self.offers.take_back()
    }

    fn last_carried(&self) -> Option<Instant> {
        self.offers.last()
    }

    /// The pod's own call put the bytes into the client's socket.
    async fn settle(&self, _: u64, _: &TcpStream) {}

    fn into_upstream(mut self) -> Option<Upstream> {
        let link = self.offers.close(self.upstream.received)?;
        self.upstream.link = Ok(link);
        Some(self.upstream)
    }
}

impl<'a> Splice<'a> {
    /// The carrier of one response on this connection.
    pub fn new(upstream: Upstream, link: Link, receiver: &'a Receiver) -> Self {
        let Upstream { stream, received, .. } = upstream;
        // No other has a link.
        let socket = stream.into_plain().map_or(Socket::Lost, Socket::Live);
        Self { socket, received, offers: Offers::new(link, receiver) }
    }

    /// Takes the connection out of the event loop, or puts it back.
    fn switch(&mut self) -> io::Result<()> {
        self.socket = match std::mem::replace(&mut self.socket, Socket::Lost) {
            Socket::Live(stream) => Socket::Parked(stream.into_std()?),
            Socket::Parked(stream) => Socket::Live(TcpStream::from_std(stream)?),
            Socket::Lost => return Err(io::ErrorKind::NotConnected.into()),
        };
        Ok(())
    }
}

impl Carrier for Splice<'_> {
    fn offer(&mut self, written: u64, framing: &Framing, client: &TcpStream) {
        self.offers.offer(self.received, written, framing, client);
    }

    async fn read(
        &mut self,
        scratch: &Scratch,
        mut take: impl FnMut(Option<Returned>, &[u8]),
    ) -> io::Result<Option<usize>> {
        loop {
            let Self { socket, offers, received } = self;
            let was_live = matches!(socket, Socket::Live(_));
            match socket {
                Socket::Live(stream) => {
                    // That a message came and went shows in no readiness: the event of its taking does.
                    tokio::select! {
                        biased;
                        ready = stream.readable() => ready?,
                        () = offers.link.changed() => {}
                    }
                    let read = scratch.try_read(stream, |bytes| take(offers.take_back(), bytes));
                    match read {
                        Ok(count) => {
                            *received += count as u64;
                            return Ok(Some(count));
                        }
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(error) => return Err(error),
                    }
                }
                Socket::Parked(stream) => {
                    let parked = offers.link.park(stream)?;
                    if offers.link.standing() == Standing::Carrying {
                        offers.link.changed().await;
                    }
                    drop(parked);
                    self.switch()?;
                }
                Socket::Lost => return Err(io::ErrorKind::NotConnected.into()),
            }
            match self.offers.link.standing() {
                // What woke it has gone on to the client.
                Standing::Carrying if was_live => self.switch()?,
                // Parked, it was woken by the connection's end, which is read now.
                Standing::Carrying | Standing::Waiting => {}
                Standing::Returned => {
                    if let Some(returned) = self.offers.take_back() {
                        take(Some(returned), &[]);
                        return Ok(None);
                    }
                }
                Standing::Broken { .. } => return Err(io::ErrorKind::ConnectionAborted.into()),
            }
        }
    }

    fn take_back(&mut self) -> Option<Returned> {
        self.offers.take_back()
    }

    fn last_carried(&self) -> Option<Instant> {
        self.offers.last()
    }

    async fn settle(&self, written: u64, client: &TcpStream) {
        let receiver = self.offers.receiver;
        for turn in 0_u32.. {
            match receiver.has(client, written) {
                // It cannot be asked any more: it is closed.
                Ok(true) | Err(_) => return,
                // The kernel's worker runs when this thread lets it; mostly that is at once.
                Ok(false) if turn < SETTLE_YIELDS => yield_now().await,
                Ok(false) => sleep(SETTLE_PAUSE).await,
            }
        }
    }

    fn into_upstream(mut self) -> Option<Upstream> {
        if matches!(self.socket, Socket::Parked(_)) {
            self.switch().ok()?;
        }
        let link = self.offers.close(self.received)?;
        let Socket::Live(stream) = self.socket else { return None };
        let stream = Stream::Plain(stream);
        Some(Upstream { stream, received: self.received, link: Ok(link) })
    }
}

impl<'a> Offers<'a> {
    fn new(link: Link, receiver: &'a Receiver) -> Self {
        let redirected = link.carried().redirected;
        Self { link, receiver, redirected, open: false, offered: 0, slow: false }
    }

    fn offer(&mut self, received: u64, written: u64, framing: &Framing, client: &TcpStream) {
        // A client that was too slow gets the kernel's help again when it has caught up.
        if self.slow && self.receiver.outstanding(client).is_ok_and(|bytes| bytes > CAUGHT_UP) {
            return;
        }
        self.slow = false;
        // Nothing has come since: the offer stands, and may be taken at this very moment.
        if self.open && self.offered == received {
            return;
        }
        self.offered = received;
        self.link.offer(received, written, framing, self.receiver);
        self.open = true;
    }

    fn take_back(&mut self) -> Option<Returned> {
        let taken =
            !matches!(self.link.standing(), Standing::Waiting | Standing::Broken { taken: false });
        if !self.open || !taken {
            return None;
        }
        self.open = false;
        let carried = self.link.carried();
        let Carried { framing, redirected, reason, .. } = carried;
        self.slow = reason == TakenBack::Credit as u32;
        let before = std::mem::replace(&mut self.redirected, redirected);
        let last = instant(carried.last_ns);
        Some(Returned {
            framing,
            carried: redirected.wrapping_sub(before),
            last,
            reason,
            tail: self.link.tail(),
            on_their_way: self.link.path() == Some(Path::Splice),
        })
    }

    fn last(&self) -> Option<Instant> {
        let carried = self.link.carried();
        (carried.redirected != self.redirected).then(|| instant(carried.last_ns))
    }

    /// The link, if the kernel's count of what it let pass is the daemon's count of what it got.
    fn close(self, received: u64) -> Option<Link> {
        // A pod's write that its socket took in part is shown to the program twice: from then on
        // nothing would be taken.
        (self.link.carried().passed == received).then_some(self.link)
    }
}

impl Returned {
    /// Shows `tail` the payload of what the kernel kept.
    pub fn show(&self, tail: &mut Tail) {
        tail.skip();
        for (framing, bytes) in self.tail.pieces() {
            let mut payloads = Vec::new();
            let read = framing
                .map(|mut framing| framing.run(bytes, |payload| payloads.push(payload.to_vec())));
            match read {
                Some(Ok(_)) => payloads.iter().for_each(|payload| tail.push(payload)),
                // With the chunks' sizes between them; what is looked for is found all the same.
                _ => tail.push(bytes),
            }
        }
    }
}

async fn read(
    upstream: &mut Upstream,
    scratch: &Scratch,
    take: impl FnMut(&[u8]),
) -> io::Result<usize> {
    let (mut reader, _) = upstream.stream.split();
    let count = scratch.read(&mut reader, take).await?;
    upstream.received += count as u64;
    Ok(count)
}

/// A moment of CLOCK_MONOTONIC, which is what the programs read and what `Instant` counts by.
fn instant(nanoseconds: u64) -> Instant {
    let now = Instant::now();
    // It exists on every Linux.
    let clock = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    now.checked_sub(clock.saturating_sub(Duration::from_nanos(nanoseconds))).unwrap_or(now)
}

/// Bytes that a client may have unacknowledged for the kernel to be asked again: half a window.
const CAUGHT_UP: u64 = WINDOW / 2;

/// How often other tasks run before the wait for a kernel worker takes to the clock.
const SETTLE_YIELDS: u32 = 8;

/// How long a kernel worker that has more to do is given.
const SETTLE_PAUSE: Duration = Duration::from_millis(1);
