//! Boots one kernel under QEMU and waits until the guest ends it.
//!
//! Always by software emulation: hardware's help is not there on every machine, and where its
//! device node is there it may be of a kind that stock kernels do not start on.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::fetch::Image;

/// How a guest ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    /// QEMU's exit status; `None` if it was killed, by us at the time limit or by another.
    pub(super) status: Option<i32>,
    /// From QEMU's start to its end.
    pub(super) took: Duration,
}

impl Ended {
    /// Whether the guest said that all went well. Nothing else does: a panic or a power-off ends
    /// QEMU with 0.
    pub(super) fn well(self) -> bool {
        self.status == Some(PASSED)
    }
}

/// Runs the kernel with the archive; its console goes to `log`.
///
/// # Errors
/// QEMU does not start. How the guest ended is no error here.
pub(super) fn boot(
    image: &Image,
    archive: &Path,
    log: &Path,
    limit: Duration,
) -> anyhow::Result<Ended> {
    let console = File::create(log)?;
    let start = Instant::now();
    let mut qemu = Command::new("qemu-system-x86_64")
        .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-machine", "q35"])
        .args(["-smp", CPUS, "-m", MEMORY_MB])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .args(["-serial", "stdio", "-device", "isa-debug-exit,iobase=0xf4,iosize=4"])
        .arg("-kernel")
        .arg(&image.vmlinuz)
        .arg("-initrd")
        .arg(archive)
        // At level 1 a healthy kernel is silent, so that nothing stands in the midst of the report.
        .args(["-append", "console=ttyS0 panic=-1 quiet loglevel=1"])
        .stdin(Stdio::null())
        .stderr(console.try_clone()?)
        .stdout(console)
        .spawn()
        .context("start qemu-system-x86_64")?;
    let status = loop {
        if let Some(status) = qemu.try_wait()? {
            break status;
        }
        if start.elapsed() > limit {
            qemu.kill()?;
            break qemu.wait()?;
        }
        thread::sleep(Duration::from_millis(50));
    };
    Ok(Ended { status: status.code(), took: start.elapsed() })
}

/// Two, so that races between processors can show.
const CPUS: &str = "2";
const MEMORY_MB: &str = "1024";
/// What `vm-exit 16` makes of QEMU's status.
const PASSED: i32 = 33;
