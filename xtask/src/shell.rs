//! Running other programs: each is shown before it runs, and named when it fails.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

/// The root folder of the repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Where the tasks keep what they make: cargo's own target folder, so that `cargo clean` is all.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The cargo that runs this task.
pub(crate) fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root());
    command
}

/// Says what goes on, on stderr.
pub(crate) fn progress(what: impl std::fmt::Display) {
    eprintln!("xtask: {what}");
}

/// Runs a command to its end; its output goes where ours goes.
///
/// # Errors
/// It could not start, or did not exit with 0.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let line = line(command);
    progress(&line);
    let status = command.status().with_context(|| format!("start {line}"))?;
    ensure!(status.success(), "{line}: {status}");
    Ok(())
}

/// Runs a command to its end; its output goes into a file, and to our stderr from there if it fails: the last of it.
///
/// # Errors
/// It could not start, or did not exit with 0.
pub(crate) fn run_quietly(command: &mut Command, log: &Path) -> anyhow::Result<()> {
    let line = line(command);
    progress(&line);
    let file = File::create(log).with_context(|| log.display().to_string())?;
    command.stdout(file.try_clone()?).stderr(file);
    let status = command.status().with_context(|| format!("start {line}"))?;
    if !status.success() {
        let said = fs::read(log).unwrap_or_default();
        let last = said.get(said.len().saturating_sub(LAST)..).unwrap_or_default();
        eprintln!("{}", String::from_utf8_lossy(last));
        bail!("{line}: {status}; all that it said is in {}", log.display());
    }
    Ok(())
}

/// Runs a command to its end and returns its stdout.
///
/// # Errors
/// It could not start, did not exit with 0 (its stderr is in the message), or printed no UTF-8.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let line = line(command);
    let output = command.output().with_context(|| format!("start {line}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{line}: {}: {}", output.status, said.trim());
    }
    String::from_utf8(output.stdout).with_context(|| line)
}

/// The command as one would type it.
pub(crate) fn line(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(command.get_program());
    let mut line = name.to_string_lossy().into_owned();
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    line
}

/// Makes sure that a program is installed, from the Debian package if it is not.
///
/// # Errors
/// It is missing and this user may not install packages; the message says the command.
pub(crate) fn ensure_program(program: &str, package: &str) -> anyhow::Result<()> {
    if find(program).is_some() {
        return Ok(());
    }
    install(package).with_context(|| format!("{program} is missing"))?;
    ensure!(find(program).is_some(), "the package {package} brought no {program}");
    Ok(())
}

/// Installs a Debian package without starting the services in it.
///
/// # Errors
/// This user may not, or the package manager failed.
pub(crate) fn install(package: &str) -> anyhow::Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root() && find("apt-get").is_some(),
        "install it with: apt-get install --no-install-recommends {package}"
    );
    run(Command::new("apt-get").args(["update", "-q"]))?;
    // With RUNLEVEL=1 Debian's maintainer scripts start no service.
    run(Command::new("apt-get")
        .env("RUNLEVEL", "1")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["install", "-q", "-y", "--no-install-recommends", package]))
}

/// Where a program is: on the path, or among the system's own.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Of a failed command's output, this many bytes are shown.
const LAST: usize = 8 * 1024;
