//! Builds kube-apiserver, etcd and Helm, once for each of their versions.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::go::Go;
use crate::shell;

/// What is needed to start an API server.
pub(super) struct Programs {
    /// kube-apiserver.
    pub(super) apiserver: PathBuf,
    /// etcd.
    pub(super) etcd: PathBuf,
    /// The folder with the inference extension's resource definitions.
    pub(super) definitions: PathBuf,
    /// Helm.
    pub(super) helm: PathBuf,
}

/// Builds what is missing. The first time takes minutes: kube-apiserver is two thousand packages.
///
/// # Errors
/// There is no Go and none could be installed, or something cannot be fetched or built.
pub(super) fn ensure() -> anyhow::Result<Programs> {
    let modules = shell::root().join("tests/k8s");
    let go = Go::default();
    let kubernetes = version(&modules.join("apiserver"), "k8s.io/kubernetes")?;
    // Without these the server says that it is v0.0.0, and clients that look at that refuse it.
    let minor = kubernetes.split('.').nth(1).unwrap_or_default();
    let at = "k8s.io/component-base/version";
    let said = format!(
        "-X {at}.gitVersion={kubernetes} -X {at}.gitMajor=1 -X {at}.gitMinor={minor} -X {at}.gitTreeState=clean"
    );
    let package = "k8s.io/kubernetes/cmd/kube-apiserver";
    let apiserver =
        build(&go, &modules.join("apiserver"), package, "kube-apiserver", &kubernetes, &said)?;
    let package = "go.etcd.io/etcd/server/v3";
    let release = version(&modules.join("etcd"), package)?;
    let etcd = build(&go, &modules.join("etcd"), package, "etcd", &release, "")?;
    let definitions = definitions(&go, &modules.join("crds"))?;
    Ok(Programs { apiserver, etcd, definitions, helm: helm_by(&go)? })
}

/// Builds Helm if it is missing.
///
/// # Errors
/// As [`ensure`].
pub(crate) fn helm() -> anyhow::Result<PathBuf> {
    helm_by(&Go::default())
}

fn helm_by(go: &Go) -> anyhow::Result<PathBuf> {
    let folder = shell::root().join("tests/k8s/helm");
    let release = version(&folder, "helm.sh/helm/v4")?;
    let said = format!("-X helm.sh/helm/v4/internal/version.version={release}");
    build(go, &folder, "helm.sh/helm/v4/cmd/helm", "helm", &release, &said)
}

/// The version of a module that a folder's go.mod requires.
fn version(folder: &Path, module: &str) -> anyhow::Result<String> {
    let file = folder.join("go.mod");
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    text.lines()
        .find_map(|line| {
            line.trim().trim_start_matches("require ").strip_prefix(module)?.strip_prefix(" v")
        })
        .and_then(|rest| rest.split_whitespace().next())
        .map(|version| format!("v{version}"))
        .with_context(|| format!("{} requires no {module}", file.display()))
}

fn build(
    go: &Go,
    folder: &Path,
    package: &str,
    name: &str,
    version: &str,
    said: &str,
) -> anyhow::Result<PathBuf> {
    let to = std::path::absolute(shell::target())?.join("k8s/bin");
    let program = to.join(format!("{name}-{version}"));
    if program.is_file() {
        return Ok(program);
    }
    fs::create_dir_all(&to).with_context(|| to.display().to_string())?;
    shell::progress(format_args!("{name} {version} is built once; that takes minutes"));
    let begun = to.join(format!("{name}-{version}.{}", std::process::id()));
    let mut go = go.command(folder)?;
    go.args(["build", "-mod=readonly", "-trimpath", "-ldflags"]).arg(format!("-s -w {said}"));
    shell::run(go.arg("-o").arg(&begun).arg(package)).context(BUILD)?;
    // Last, so that a build that broke off is not taken for a whole one.
    fs::rename(&begun, &program)?;
    Ok(program)
}

/// Fetches the module that carries them; it is not built.
fn definitions(go: &Go, folder: &Path) -> anyhow::Result<PathBuf> {
    let module = "sigs.k8s.io/gateway-api-inference-extension";
    let wanted = format!("{module}@{}", version(folder, module)?);
    let said = shell::output(go.command(folder)?.args(["mod", "download", "-json", &wanted]))
        .context(BUILD)?;
    let said: serde_json::Value = serde_json::from_str(&said)?;
    let place = said.get("Dir").and_then(|place| place.as_str()).context("go names no folder")?;
    Ok(Path::new(place).join("config/crd/bases"))
}

const BUILD: &str =
    "the modules come from the Go module proxy the first time, which needs the network";
