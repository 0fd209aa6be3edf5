//! Ends a virtual machine with an exit status that tells how its tests went: `vm-exit 16`.
//!
//! For the guests of `cargo xtask vm` only. QEMU's isa-debug-exit device ends QEMU with `2 n + 1`
//! when `n` is written to its port, so that no other end, such as a panic or a power-off, has the
//! status of a success.

use std::process::ExitCode;

fn main() -> ExitCode {
    let code = std::env::args().nth(1).and_then(|word| word.parse::<u8>().ok());
    let Some(code) = code else {
        eprintln!("usage: vm-exit NUMBER, within a guest of `cargo xtask vm`");
        return ExitCode::FAILURE;
    };
    leave(code);
    eprintln!("vm-exit: this machine has no isa-debug-exit device, or this user no right to it");
    ExitCode::FAILURE
}

/// Returns only if it did not work.
#[cfg(target_arch = "x86_64")]
fn leave(code: u8) {
    // SAFETY: the call takes three integers; it lets this process use the one port.
    if unsafe { libc::ioperm(PORT.into(), 1, 1) } != 0 {
        return;
    }
    // SAFETY: the process may use the port; the instruction touches no memory and no flags.
    unsafe {
        core::arch::asm!(
            "out dx, al", in("dx") PORT, in("al") code, options(nomem, nostack, preserves_flags)
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn leave(_: u8) {}

/// Where `cargo xtask vm` puts the device.
#[cfg(target_arch = "x86_64")]
const PORT: u16 = 0xf4;
