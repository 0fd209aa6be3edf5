//! What the kernel programs say, passed on to the daemon's log.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use aya::Ebpf;
use aya_log::{EbpfLogger, Level};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::config::KernelLog;

/// Reads the kernel programs' log records. Its descriptor becomes readable when there are some.
pub struct KernelLogReader {
    logger: EbpfLogger<Forward>,
    forwarded: Arc<AtomicUsize>,
}

impl KernelLogReader {
    /// Takes the log's ring buffer out of the loaded object; `None` if it has none.
    pub(super) fn take(ebpf: &mut Ebpf) -> Option<Self> {
        let forwarded = Arc::<AtomicUsize>::default();
        let logger =
            EbpfLogger::init_with_logger(ebpf, Forward { count: forwarded.clone() }).ok()?;
        Some(Self { logger, forwarded })
    }

    /// Passes on every record that waits, and says how many there were.
    pub fn flush(&mut self) -> usize {
        self.logger.flush();
        self.forwarded.swap(0, Ordering::Relaxed)
    }
}

impl KernelLogReader {
    /// Passes on records as they come, until dropped. Needs a tokio runtime.
    pub async fn follow(self) {
        // SAFETY: the reader owns the ring buffer's descriptor for as long as it lives, always
        // names the same one, and lives in the registration until that is dropped.
        let registered = unsafe { AsyncFd::register_with_interest(self, Interest::READABLE) };
        let Ok(mut log) = registered else {
            tracing::warn!("what the kernel programs say cannot be read");
            return;
        };
        while let Ok(mut ready) = log.readable_mut().await {
            ready.get_inner_mut().flush();
            ready.clear_ready();
        }
    }
}

impl AsRawFd for KernelLogReader {
    fn as_raw_fd(&self) -> RawFd {
        self.logger.as_fd().as_raw_fd()
    }
}

impl AsFd for KernelLogReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.logger.as_fd()
    }
}

/// The level as the programs compare it. With 0 no message is enabled; as the value is constant to
/// the verifier it removes the logging code, so that a silent program costs nothing.
pub(super) fn level(log: KernelLog) -> u8 {
    match log {
        KernelLog::Off => 0,
        KernelLog::Warn => Level::Warn as u8,
        KernelLog::Debug => Level::Debug as u8,
    }
}

/// aya-log speaks to the `log` crate; the daemon's log is `tracing`.
struct Forward {
    count: Arc<AtomicUsize>,
}

impl log::Log for Forward {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let message = record.args();
        match record.level() {
            log::Level::Error => tracing::error!(target: "sluice::kernel", "{message}"),
            log::Level::Warn => tracing::warn!(target: "sluice::kernel", "{message}"),
            log::Level::Info => tracing::info!(target: "sluice::kernel", "{message}"),
            log::Level::Debug => tracing::debug!(target: "sluice::kernel", "{message}"),
            log::Level::Trace => tracing::trace!(target: "sluice::kernel", "{message}"),
        }
    }

    fn flush(&self) {}
}
