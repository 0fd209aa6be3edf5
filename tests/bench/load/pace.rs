//! Waiting until an instant, to within microseconds.
//!
//! The runtime's own timer has a resolution of 1 ms, which is several times what is measured.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use sluice_tests::bench::event::now_ns;
use tokio::io::unix::AsyncFd;

/// A timer of the kernel.
pub(crate) struct Pace {
    timer: TimerFd,
    /// The same timer for the runtime, which wants a plain descriptor.
    readiness: AsyncFd<OwnedFd>,
}

impl Pace {
    /// A new timer.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let descriptor = timer.as_fd().try_clone_to_owned()?;
        // SAFETY: an owned descriptor is open, stays so, and is the same until it is dropped.
        let readiness = unsafe { AsyncFd::register(descriptor) }?;
        Ok(Self { timer, readiness })
    }

    /// Returns at that instant of [`now_ns`], or at once if it has passed.
    pub(crate) async fn until(&self, instant_ns: u64) -> anyhow::Result<()> {
        if instant_ns <= now_ns() {
            return Ok(());
        }
        let at = TimeSpec::from_duration(Duration::from_nanos(instant_ns));
        let absolute = TimerSetTimeFlags::TFD_TIMER_ABSTIME;
        self.timer.set(Expiration::OneShot(at), absolute)?;
        loop {
            let mut ready = self.readiness.readable().await?;
            if ready.try_io(|_| Ok(self.timer.wait()?)).is_ok() {
                return Ok(());
            }
        }
    }
}
