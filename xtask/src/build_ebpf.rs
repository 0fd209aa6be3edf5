//! Compiles the kernel programs into the object that is checked in, so that everybody else needs no
//! tool chain for BPF.
//!
//! The same sources and the same tool chain give the same bytes in any folder and for any user:
//! paths are replaced by fixed names, and what could differ by machine is set here. The tool chain
//! is recorded beside the object; `verify-ebpf` compares.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::shell;

/// Builds the object and replaces the one that is checked in, with its record.
///
/// # Errors
/// A tool is missing (the message says what to install), or the programs do not compile.
pub(crate) fn run() -> anyhow::Result<()> {
    let tools = Tools::find()?;
    let built = tools.build(&shell::target().join("ebpf"))?;
    let folder = object_folder();
    fs::create_dir_all(&folder)?;
    fs::copy(&built, object())?;
    let record = tools.record(&object())?;
    fs::write(folder.join(RECORD), &record)?;
    print!("{record}");
    Ok(())
}

/// The object that is checked in.
pub(crate) fn object() -> PathBuf {
    object_folder().join("sluice.bpf.o")
}

/// What is recorded of the tool chain that built the object, and the object's checksum.
pub(crate) fn recorded() -> anyhow::Result<String> {
    fs::read_to_string(object_folder().join(RECORD)).context("the record beside the object")
}

/// The programs that turn the sources into an object.
pub(crate) struct Tools {
    rustc: PathBuf,
    cargo: PathBuf,
    /// The standard library's sources: `core` is compiled with the programs.
    library: PathBuf,
    bpf_linker: PathBuf,
    /// LLVM's own programs: the version of LLVM that bpf-linker is linked with, and llvm-strip.
    llvm: PathBuf,
}

impl Tools {
    /// Where they are on this machine.
    ///
    /// # Errors
    /// One is missing; the message says how to install it.
    pub(crate) fn find() -> anyhow::Result<Self> {
        // Debian's rustc, not the one that rustup puts first: it comes with the library's sources,
        // and its LLVM is the one that bpf-linker is built against.
        let bin = Path::new("/usr/bin");
        let (rustc, cargo) = (bin.join("rustc"), bin.join("cargo"));
        let llvm = PathBuf::from(LLVM).join("bin");
        let bpf_linker = cargo_home().join("bin/bpf-linker");
        let bpf_linker =
            if bpf_linker.is_file() { Some(bpf_linker) } else { shell::find("bpf-linker") };
        let library = library(&rustc);

        let files = [
            &rustc,
            &cargo,
            &library.join("core/Cargo.toml"),
            &llvm.join("llvm-config"),
            &llvm.join("llvm-strip"),
        ];
        let mut missing: Vec<_> = files
            .iter()
            .filter(|file| !file.is_file())
            .map(|file| file.display().to_string())
            .collect();
        if bpf_linker.is_none() {
            missing.push("bpf-linker".to_owned());
        }
        let (Some(bpf_linker), true) = (bpf_linker, missing.is_empty()) else {
            bail!(
                "the tool chain of the kernel programs is not complete: no {}. \
                 `cargo xtask setup-ebpf` installs it as root on Debian; by hand:\n  \
                 apt-get update && apt-get install --no-install-recommends {}\n  \
                 LLVM_PREFIX={LLVM} cargo {}",
                missing.join(", no "),
                PACKAGES.join(" "),
                BPF_LINKER.join(" ")
            );
        };
        Ok(Self { rustc, cargo, library, bpf_linker, llvm })
    }

    /// The versions, one a line, as far as they decide about the object's bytes.
    ///
    /// # Errors
    /// A tool does not tell its version.
    pub(crate) fn versions(&self) -> anyhow::Result<String> {
        let rustc = shell::output(Command::new(&self.rustc).arg("-vV"))?;
        let field = |name: &str| rustc.lines().find_map(|line| line.strip_prefix(name));
        let commit = field("commit-hash: ").unwrap_or("unknown");
        let rustc_llvm = field("LLVM version: ").unwrap_or("unknown");
        let rustc = rustc.lines().next().unwrap_or_default();
        let linker = shell::output(Command::new(&self.bpf_linker).arg("--version"))?;
        let llvm = shell::output(Command::new(self.llvm.join("llvm-config")).arg("--version"))?;
        Ok(format!(
            "{rustc} (commit {commit}, LLVM {rustc_llvm})\n{} (LLVM {})\n",
            linker.trim(),
            llvm.trim()
        ))
    }

    /// The record of an object that these tools built.
    ///
    /// # Errors
    /// A tool does not tell its version, or the object cannot be read.
    pub(crate) fn record(&self, object: &Path) -> anyhow::Result<String> {
        Ok(format!("{}sha256 {}\n", self.versions()?, sha256(object)?))
    }

    /// Builds the object below `target` and says where it is.
    ///
    /// # Errors
    /// The programs do not compile.
    pub(crate) fn build(&self, target: &Path) -> anyhow::Result<PathBuf> {
        let source = shell::root().join("gateway-ebpf");
        let wrapper = target.join("rustc.sh");
        fs::create_dir_all(target)?;
        fs::write(&wrapper, RUSTC_WRAPPER)?;
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
        let mut command = Command::new(&self.cargo);
        command
            .current_dir(&source)
            .args(["build", "--locked", "--release", "--target", TRIPLE])
            // The distribution's rustc is a stable one; compiling `core` for another target is not
            // stable.
            .args(["-Z", "build-std=core"])
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTC", &self.rustc)
            .env("RUSTC_WRAPPER", &wrapper)
            .env("CARGO_TARGET_DIR", target)
            .env("CARGO_ENCODED_RUSTFLAGS", self.rustc_flags()?)
            .env("PATH", self.path()?);
        // What a developer's shell may set and the bytes would show; and what the cargo that runs
        // this task set for it.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            let ours = ["CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_ENCODED_RUSTFLAGS"];
            let others = ["RUSTFLAGS", "RUSTC_WORKSPACE_WRAPPER", "RUSTUP_TOOLCHAIN"];
            if (name.starts_with("CARGO") && !ours.contains(&&*name)) || others.contains(&&*name) {
                command.env_remove(&*name);
            }
        }
        shell::run(&mut command)?;

        let object = target.join("sluice.bpf.o");
        fs::copy(target.join(TRIPLE).join("release/sluice"), &object)?;
        // Debug information has served to make BTF; it would be nine tenths of the object.
        shell::run(Command::new(self.llvm.join("llvm-strip")).arg("--strip-debug").arg(&object))?;
        Ok(object)
    }

    fn rustc_flags(&self) -> anyhow::Result<OsString> {
        let mut flags: Vec<OsString> = [
            // BTF: the kernel wants types of maps and functions.
            "-Clink-arg=--btf",
            "-Cdebuginfo=2",
            // For tracing programs, of which there are none; else it is the machine that builds.
            "--cfg=bpf_target_arch=\"x86_64\"",
        ]
        .map(OsString::from)
        .into();
        let mut remap = |from: &Path, to: &str| {
            let mut flag = OsString::from("--remap-path-prefix=");
            flag.push(from);
            flag.push("=");
            flag.push(to);
            flags.push(flag);
        };
        // Of two that fit a path rustc takes the later.
        remap(&self.library, "/rust/library");
        // Debian's folder is a link to one that has the version in its name; rustc shows both.
        if let Ok(linked) = self.library.canonicalize() {
            remap(&linked, "/rust/library");
        }
        let registry = cargo_home().join("registry/src");
        for folder in fs::read_dir(&registry).into_iter().flatten() {
            // One folder for each registry, named by its host.
            remap(&folder?.path(), "/crates");
        }
        remap(&shell::root(), "/sluice");
        Ok(flags.join(&OsString::from("\x1f")))
    }

    /// rustc finds bpf-linker by its name.
    fn path(&self) -> anyhow::Result<OsString> {
        let first = self.bpf_linker.parent().map(Path::to_path_buf);
        let rest = std::env::var_os("PATH").unwrap_or_default();
        Ok(std::env::join_paths(first.into_iter().chain(std::env::split_paths(&rest)))?)
    }
}

/// A file's SHA-256 in hexadecimal.
///
/// # Errors
/// coreutils' sha256sum could not read it.
pub(crate) fn sha256(file: &Path) -> anyhow::Result<String> {
    let said = shell::output(Command::new("sha256sum").arg("--").arg(file))?;
    Ok(said.split_whitespace().next().unwrap_or_default().to_owned())
}

fn object_folder() -> PathBuf {
    shell::root().join("gateway-ebpf/object")
}

/// The standard library's sources of a rustc; empty if that does not run.
fn library(rustc: &Path) -> PathBuf {
    let root = shell::output(Command::new(rustc).args(["--print", "sysroot"])).unwrap_or_default();
    Path::new(root.trim()).join("lib/rustlib/src/rust/library")
}

fn cargo_home() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    std::env::var_os("CARGO_HOME").map_or_else(|| home().join(".cargo"), PathBuf::from)
}

/// Debian's packages of the tool chain.
pub(crate) const PACKAGES: [&str; 6] =
    ["rustc-web", "cargo-web", "rust-web-src", "llvm-22-dev", "clang-22", "libpolly-22-dev"];

/// Installs the linker: by cargo, with the LLVM of rustc.
pub(crate) const BPF_LINKER: [&str; 7] = [
    "install",
    "bpf-linker",
    "--version=0.13.0",
    "--locked",
    "--no-default-features",
    "--features",
    "llvm-22",
];

/// The LLVM that bpf-linker is built with.
pub(crate) const LLVM: &str = "/usr/lib/llvm-22";

/// Little-endian alone: big-endian machines are refused when the daemon is compiled.
const TRIPLE: &str = "bpfel-unknown-none";

const RECORD: &str = "toolchain.txt";

/// Stands before rustc. Cargo makes a crate's id of the folder that it lies in, for crates beside
/// the workspace that it builds, and the id shows in the names of functions; here it is the same
/// everywhere.
const RUSTC_WRAPPER: &str = r#"#!/bin/sh
rustc=$1
shift
case " $* " in
*" --crate-name gateway_common "* | *" --crate-name sluice "*) ;;
*) exec "$rustc" "$@" ;;
esac
left=$#
while [ "$left" -gt 0 ]; do
    arg=$1
    shift
    left=$((left - 1))
    case $arg in
    metadata=*) arg=metadata=sluice ;;
    esac
    set -- "$@" "$arg"
done
exec "$rustc" "$@"
"#;
