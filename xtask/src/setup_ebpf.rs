//! Installs the tool chain that compiles the kernel programs, at the versions that built the
//! object.

use std::process::Command;

use anyhow::ensure;

use crate::build_ebpf::{BPF_LINKER, LLVM, PACKAGES, Tools};
use crate::shell;

/// Installs what is missing, on Debian and as root; else says what to install.
///
/// # Errors
/// Not Debian or not root, or an installation failed.
pub(crate) fn run() -> anyhow::Result<()> {
    let Err(missing) = Tools::find() else {
        println!("nothing to install\n{}", Tools::find()?.versions()?.trim_end());
        return Ok(());
    };
    let root = shell::output(Command::new("id").arg("-u"))?.trim() == "0";
    ensure!(root && shell::find("apt-get").is_some(), "{missing}");
    shell::run(Command::new("apt-get").args(["update", "-q"]))?;
    shell::run(
        Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["install", "-q", "-y", "--no-install-recommends"])
            .args(PACKAGES),
    )?;
    // By the user's cargo, as Debian's own puts its programs elsewhere.
    shell::run(shell::cargo().args(BPF_LINKER).env("LLVM_PREFIX", LLVM))?;
    println!("installed\n{}", Tools::find()?.versions()?.trim_end());
    Ok(())
}
