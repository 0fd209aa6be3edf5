//! What the kernel programs say, passed on to the daemon's log.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use aya::Ebpf;
use aya_log::{EbpfLogger, Level};

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

impl AsFd for KernelLogReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.logger.as_fd()
    }
}

/// The level as the programs compare it. With 0 no message is enabled; as the value is constant to the
/// verifier it removes the logging code, so that a silent program costs nothing.
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
