//! What a guest has for a disk: an archive in memory with busybox, the programs under test, and the
//! libraries that these need. Nothing else of the host is in it.
//!
//! The programs are the very ones that `cargo test` runs, so nothing is built twice.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use super::fetch::Image;
use crate::shell;

/// Builds the programs and lays out what all guests share in `root`.
///
/// # Errors
/// A build failed, or a program of the host is missing.
pub(super) fn prepare(root: &Path) -> anyhow::Result<()> {
    let programs = build()?;
    if root.exists() {
        fs::remove_dir_all(root)?;
    }
    for folder in ["bin", "host", "modules", "sluice/deps"] {
        fs::create_dir_all(root.join(folder))?;
    }
    let busybox = shell::find("busybox").context("busybox is missing")?;
    fs::copy(busybox, root.join("bin/busybox"))?;
    fs::write(root.join("init"), include_str!("init.sh"))?;
    shell::run(Command::new("chmod").arg("755").arg(root.join("init")))?;

    let mut libraries = BTreeSet::new();
    for (program, place) in programs {
        // Symbols are nine tenths of a program, and all of it lies in the guest's memory.
        shell::output(Command::new("strip").arg("-o").arg(root.join(place)).arg(&program))?;
        libraries.extend(needs(&program)?);
    }
    for name in HOST_PROGRAMS {
        let program = shell::find(name).with_context(|| format!("{name} is missing"))?;
        fs::copy(&program, root.join("host").join(name))?;
        libraries.extend(needs(&program)?);
    }
    for library in libraries {
        let place = root.join(library.strip_prefix("/")?);
        fs::create_dir_all(place.parent().context("a file lies in a folder")?)?;
        fs::copy(&library, place)?;
    }
    Ok(())
}

/// Packs `root` with the kernel's module and the words for the test program into `archive`.
///
/// # Errors
/// A file cannot be read or written.
pub(super) fn pack(
    root: &Path,
    image: &Image,
    words: &[&str],
    archive: &Path,
) -> anyhow::Result<()> {
    let modules = root.join("modules");
    fs::remove_dir_all(&modules)?;
    fs::create_dir_all(&modules)?;
    if let Some(veth) = &image.veth {
        fs::copy(veth, modules.join(veth.file_name().context("a file has a name")?))?;
    }
    fs::write(root.join("sluice/words"), words.join(" "))?;

    let names = shell::output(Command::new("find").arg(".").current_dir(root))?;
    // Not compressed: to unpack it costs an emulated processor more than to copy it.
    let mut cpio = Command::new("cpio")
        .args(["--create", "--format=newc", "--owner=0:0", "--quiet"])
        .current_dir(root)
        .stdin(Stdio::piped())
        .stdout(File::create(archive)?)
        .spawn()
        .context("start cpio")?;
    let mut stdin = cpio.stdin.take().context("no pipe to cpio")?;
    stdin.write_all(names.as_bytes())?;
    drop(stdin);
    let status = cpio.wait()?;
    ensure!(status.success(), "cpio: {status}");
    Ok(())
}

/// The programs under test, and where in the guest they go: as they lie to each other in cargo's
/// folder, since that is how a test finds a program.
fn build() -> anyhow::Result<Vec<(PathBuf, &'static str)>> {
    // As `cargo xtask test` builds them, so that what is there is used.
    shell::run(shell::cargo().args(["build", "--workspace", "--bins"]))?;
    let messages = shell::output(shell::cargo().args([
        "test",
        "--workspace",
        "--test",
        TESTS,
        "--no-run",
        "--message-format=json",
    ]))?;
    let behaviour = executable(&messages, TESTS).context("cargo built no behaviour tests")?;
    let folder = shell::target().join("debug");
    let mut programs = vec![(behaviour, "sluice/deps/behaviour")];
    for (name, place) in
        [("sluice", "sluice/sluice"), ("engine", "sluice/engine"), ("vm-exit", "sluice/vm-exit")]
    {
        programs.push((folder.join(name), place));
    }
    Ok(programs)
}

/// The program that cargo's messages name for a test target.
fn executable(messages: &str, target: &str) -> Option<PathBuf> {
    let artifacts = messages.lines().filter_map(|line| serde_json::from_str::<Artifact>(line).ok());
    let mut of_target = artifacts.filter(|artifact| artifact.target.name == target);
    of_target.find_map(|artifact| artifact.executable)
}

#[derive(Deserialize)]
struct Artifact {
    target: Target,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// The libraries that a program is loaded with, the loader among them.
fn needs(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let said = shell::output(Command::new("ldd").arg(program))?;
    libraries(&said).with_context(|| format!("the libraries of {}", program.display()))
}

/// The files that ldd names. A library that it did not find is an error; the one without a file is
/// the kernel's own.
fn libraries(ldd: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for line in ldd.lines().map(str::trim) {
        if line.ends_with("not found") {
            bail!("{line}");
        }
        let file = line.split_once("=> ").map_or(line, |(_, file)| file);
        let file = file.split_once(" (").map_or(file, |(file, _)| file);
        if file.starts_with('/') {
            files.push(PathBuf::from(file));
        }
    }
    Ok(files)
}

/// The test target.
const TESTS: &str = "behaviour";
/// What the tests start beside programs that busybox has as well.
const HOST_PROGRAMS: &[&str] = &["ip", "setpriv"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_ldd() {
        let ldd = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                   \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f5)\n\
                   \t/lib64/ld-linux-x86-64.so.2 (0x00007f6)\n";
        let want = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(libraries(ldd).unwrap(), want.map(PathBuf::from));
        assert_eq!(libraries("\tstatically linked\n").unwrap(), Vec::<PathBuf>::new());
        let missing = libraries("\tlibbpf.so.1 => not found\n").unwrap_err().to_string();
        assert!(missing.contains("libbpf.so.1"), "{missing}");
    }

    #[test]
    fn the_test_program_is_found_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"behaviour","kind":["test"]},"executable":"/t/debug/deps/behaviour-1"}
{"reason":"compiler-artifact","target":{"name":"sluice_tests"},"executable":null}
{"reason":"build-finished","success":true}
"#;
        assert_eq!(executable(messages, "behaviour"), Some("/t/debug/deps/behaviour-1".into()));
        assert_eq!(executable(messages, "sluice_tests"), None);
    }
}
