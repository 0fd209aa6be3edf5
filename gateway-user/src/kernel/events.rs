//! Tells the owners of spliced flows that these have been taken or come back, or that a pod's connection has ended.
//!
//! A thread of its own, which sleeps while tokens flow: the daemon's workers sleep as well then, and have
//! the sockets in question in no epoll instance of theirs.

use std::io::{self, PipeReader};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::sync::Arc;
use std::thread;

use aya::maps::{MapData, RingBuf};
use gateway_common::flow::Event;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};
use tokio::sync::Notify;

/// What the thread reads.
pub(super) struct Reader {
    /// The programs' events.
    pub(super) ring: RingBuf<MapData>,
    /// The ends of connections, by slot.
    pub(super) epoll: Arc<Epoll>,
    /// Ends when the daemon needs no events any more.
    pub(super) ended: PipeReader,
}

impl Reader {
    /// Starts the thread, which notifies by slot.
    pub(super) fn start(self, changed: Arc<[Notify]>) -> io::Result<()> {
        let Self { ring, epoll, ended } = &self;
        // SAFETY: the ring buffer lives in the thread that uses its descriptor.
        let fd = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
        epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, RING))?;
        epoll.add(ended.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, ENDED))?;
        thread::Builder::new().name("kernel-events".into()).spawn(move || self.read(&changed))?;
        Ok(())
    }

    fn read(mut self, changed: &[Notify]) {
        let notify = |slot: usize| {
            if let Some(changed) = changed.get(slot) {
                changed.notify_one();
            }
        };
        let mut found = [EpollEvent::empty(); 64];
        loop {
            let count = match self.epoll.wait(&mut found, EpollTimeout::NONE) {
                Ok(count) => count,
                Err(nix::Error::EINTR) => continue,
                // The descriptors are this thread's own: it does not come to this.
                Err(_) => return,
            };
            for event in found.iter().take(count) {
                match event.data() {
                    ENDED => return,
                    RING => {
                        while let Some(record) = self.ring.next() {
                            if let Some(slot) = slot(&record) {
                                notify(slot as usize);
                            }
                        }
                    }
                    slot => notify(slot as usize),
                }
            }
        }
    }
}

/// The slot that a record names.
fn slot(record: &[u8]) -> Option<u32> {
    const { assert!(std::mem::offset_of!(Event, connection.slot) == 0) };
    record.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

const RING: u64 = u64::MAX;
const ENDED: u64 = u64::MAX - 1;
