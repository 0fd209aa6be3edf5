//! Checks that the object that is checked in comes from the sources beside it.
//!
//! With the tool chain that built it, a rebuild must give the same bytes. Another tool chain may
//! give other bytes; then the rebuilt object must load and behave in the running kernel, and the
//! difference is reported: that shows that the sources are sound, not that the object is theirs.

use std::fs;

use anyhow::{Context, bail, ensure};

use crate::build_ebpf::{self, Tools, object, recorded};
use crate::shell;

/// Rebuilds and compares.
///
/// # Errors
/// A tool is missing, the object differs from a rebuild or from its own record, or a rebuilt one
/// does not pass the tests.
pub(crate) fn run() -> anyhow::Result<()> {
    let recorded = recorded()?;
    let (versions, checksum) = recorded.split_once("sha256 ").context("no checksum is recorded")?;
    ensure!(
        build_ebpf::sha256(&object())? == checksum.trim(),
        "the object is not the one that was recorded: run `cargo xtask build-ebpf`"
    );

    let tools = Tools::find()?;
    // A folder of its own: nothing of an earlier build can take part.
    let target = shell::target().join("verify-ebpf");
    if target.exists() {
        fs::remove_dir_all(&target)?;
    }
    let rebuilt = tools.build(&target)?;
    let same = fs::read(&rebuilt)? == fs::read(object())?;
    let ours = tools.versions()?;
    if same {
        println!("verify-ebpf: a rebuild gives the object that is checked in, byte for byte");
        fs::remove_dir_all(&target)?;
        return Ok(());
    }
    if ours == versions {
        bail!(
            "the sources give another object than the one that is checked in; \
             run `cargo xtask build-ebpf` and commit both, or compare with {}",
            rebuilt.display()
        );
    }
    println!(
        "verify-ebpf: another tool chain than the recorded one\nrecorded:\n{versions}here:\n{ours}"
    );
    shell::run(
        shell::cargo()
            .args([
                "test",
                "-p",
                "sluice-tests",
                "--test",
                "behaviour",
                "--",
                "kernel::",
                "steer::",
            ])
            .env("SLUICE_BPF_OBJECT", &rebuilt),
    )
    .context("an object that this tool chain built does not pass the tests")?;
    println!(
        "verify-ebpf: the object of this tool chain passes the tests; it is {} bytes, the one that \
         is checked in {}. Only the recorded tool chain can tell whether that one is of these \
         sources: install it, or run `cargo xtask build-ebpf` and commit the object of this one",
        fs::metadata(&rebuilt)?.len(),
        fs::metadata(object())?.len()
    );
    Ok(())
}
