//! Gets kernels out of Debian packages. None is installed: a package is unpacked beside, and the
//! two files that a guest needs are kept.
//!
//! Kernels come from the machine's own sources where these have them, else from another suite of
//! the same archives, by a list of sources of our own. Apt checks every package against the keys
//! of the installed Debian keyring either way.

use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use super::catalog::Kernel;
use crate::shell;

/// A kernel that is here.
pub(super) struct Image {
    /// The release, such as `6.1.0-57-cloud-amd64`.
    pub(super) release: String,
    /// The compressed kernel.
    pub(super) vmlinuz: PathBuf,
    /// The module of virtual Ethernet pairs, where the package has it.
    pub(super) veth: Option<PathBuf>,
}

/// The kernel of a line: the one fetched before, or the newest that apt knows.
///
/// # Errors
/// No source has one, or apt failed.
pub(super) fn image(kernel: &Kernel, vm: &Path) -> anyhow::Result<Image> {
    let folder = vm.join("kernels").join(kernel.line);
    if let Ok(image) = Image::read(&folder) {
        return Ok(image);
    }
    let (apt, packages) = find(kernel, vm)
        .with_context(|| format!("no kernel {} for a guest to boot", kernel.line))?;
    shell::progress(format_args!("fetch {}", packages.names.join(" and ")));
    // Whole or not at all: what an interrupted task leaves has no release and is fetched anew.
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    for name in &packages.names {
        apt.unpack(name, &folder)?;
    }
    ensure!(folder.join(VMLINUZ).is_file(), "no vmlinuz in {}", packages.names.join(", "));
    fs::write(folder.join(RELEASE), &packages.release)?;
    Image::read(&folder)
}

impl Image {
    fn read(folder: &Path) -> anyhow::Result<Self> {
        let release = fs::read_to_string(folder.join(RELEASE))?;
        let veth = VETH.iter().map(|name| folder.join(name)).find(|file| file.is_file());
        Ok(Self { release, vmlinuz: folder.join(VMLINUZ), veth })
    }
}

fn find(kernel: &Kernel, vm: &Path) -> anyhow::Result<(Apt, Packages)> {
    ensure!(
        shell::find("apt-get").is_some(),
        "kernels come from Debian packages, and there is no apt-get here"
    );
    let own = Apt { options: Vec::new() };
    if let Some(packages) = newest(kernel.line, &own.names()?) {
        return Ok((own, packages));
    }
    if kernel.default && nix::unistd::geteuid().is_root() {
        // A fresh machine has not read its lists yet.
        own.update()?;
        if let Some(packages) = newest(kernel.line, &own.names()?) {
            return Ok((own, packages));
        }
    }
    let other = Apt::suite(kernel, vm)?;
    other.update()?;
    let packages = newest(kernel.line, &other.names()?)
        .with_context(|| format!("{} has no kernel {}", kernel.suite, kernel.line))?;
    Ok((other, packages))
}

/// Apt, with the machine's sources or with others.
struct Apt {
    options: Vec<String>,
}

impl Apt {
    /// With one suite and nothing else; what apt keeps of it lies under `vm`.
    fn suite(kernel: &Kernel, vm: &Path) -> anyhow::Result<Self> {
        let targets = shell::output(Command::new("apt-get").args([
            "indextargets",
            "--format",
            "$(LABEL) $(REPO_URI)",
            "Created-By: Packages",
        ]))?;
        let label = kernel.archive.label();
        let uri = archive(&targets, label)
            .with_context(|| format!("the sources of apt name no archive {label}"))?;
        ensure!(Path::new(KEYRING).is_file(), "{KEYRING} is missing (debian-archive-keyring)");

        let folder = vm.join("apt").join(kernel.suite);
        let lists = folder.join("lists");
        fs::create_dir_all(lists.join("partial"))?;
        let list = folder.join("sources.list");
        let suite = kernel.suite;
        fs::write(&list, format!("deb [arch=amd64 signed-by={KEYRING}] {uri} {suite} main\n"))?;
        let options = [
            format!("Dir::Etc::sourcelist={}", list.display()),
            "Dir::Etc::sourceparts=-".to_owned(),
            format!("Dir::State::lists={}", lists.display()),
            // The caches in memory, so that the machine's own stay as they are.
            "Dir::Cache::pkgcache=".to_owned(),
            "Dir::Cache::srcpkgcache=".to_owned(),
            "Dir::State::status=/dev/null".to_owned(),
        ];
        Ok(Self { options: options.into() })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        // Apt's own user could not write into our folders.
        command.arg("-q").args(["-o", "APT::Sandbox::User=root"]);
        command.args(self.options.iter().flat_map(|option| ["-o", option]));
        command
    }

    fn update(&self) -> anyhow::Result<()> {
        shell::output(self.command("apt-get").arg("update")).map(drop)
    }

    /// The names of all kernel packages, one a line.
    fn names(&self) -> anyhow::Result<String> {
        shell::output(self.command("apt-cache").args(["pkgnames", "linux-"]))
    }

    /// Puts what a guest needs of a package into `folder`.
    fn unpack(&self, name: &str, folder: &Path) -> anyhow::Result<()> {
        let temporary = folder.join("package");
        fs::create_dir_all(&temporary)?;
        shell::output(self.command("apt-get").args(["download", name]).current_dir(&temporary))?;
        let package = find_file(&temporary, |file| file.ends_with(".deb"))?
            .with_context(|| format!("apt-get brought no {name}"))?;
        let tree = temporary.join("tree");
        shell::output(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&tree))?;
        if let Some(vmlinuz) = find_file(&tree, |file| file.starts_with("vmlinuz"))? {
            fs::copy(vmlinuz, folder.join(VMLINUZ))?;
        }
        if let Some(veth) = find_file(&tree, |file| VETH.contains(&file))? {
            fs::copy(&veth, folder.join(veth.file_name().context("a file has a name")?))?;
        }
        fs::remove_dir_all(&temporary)?;
        Ok(())
    }
}

/// The packages that make up one kernel.
#[derive(Debug, PartialEq)]
struct Packages {
    release: String,
    names: Vec<String>,
}

/// The newest kernel of a line among the names of packages. Up to 6.18 one package has all; later
/// the kernel itself and its modules are apart.
fn newest(line: &str, names: &str) -> Option<Packages> {
    let of_line = |name: &'_ str| {
        let release = name.strip_prefix("linux-image-")?;
        let rest = release.strip_prefix(line)?.strip_prefix('.')?;
        rest.strip_suffix("-cloud-amd64")?;
        Some(release.to_owned())
    };
    let release = names.lines().filter_map(of_line).max_by(|a, b| natural(a, b))?;
    let has = |kind: &str| {
        let name = format!("linux-{kind}-{release}");
        names.lines().any(|other| other == name).then_some(name)
    };
    let names = match has("binary") {
        Some(binary) => [Some(binary), has("modules")].into_iter().flatten().collect(),
        None => vec![format!("linux-image-{release}")],
    };
    Some(Packages { release, names })
}

/// Compares digits as numbers and the rest as text, so that 6.1.0-9 is older than 6.1.0-57.
fn natural(a: &str, b: &str) -> Ordering {
    let key = |text: &str| {
        let parts = text.split(|c: char| !c.is_ascii_digit());
        parts.map(|digits| digits.parse::<u64>().unwrap_or(0)).collect::<Vec<_>>()
    };
    key(a).cmp(&key(b)).then_with(|| a.cmp(b))
}

/// The address of the archive with this label among apt's `LABEL URI` lines.
fn archive<'a>(targets: &'a str, label: &str) -> Option<&'a str> {
    targets.lines().find_map(|line| line.strip_prefix(label)?.strip_prefix(' ')).map(str::trim)
}

/// The first file below `folder` whose name is wanted.
fn find_file(
    folder: &Path,
    wanted: impl Fn(&str) -> bool + Copy,
) -> anyhow::Result<Option<PathBuf>> {
    let Ok(entries) = fs::read_dir(folder) else { bail!("{} is no folder", folder.display()) };
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            if let Some(found) = find_file(&entry.path(), wanted)? {
                return Ok(Some(found));
            }
        } else if kind.is_file() && wanted(&entry.file_name().to_string_lossy()) {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}

/// The keys that Debian signs its archives with.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Written last.
const RELEASE: &str = "release";
const VMLINUZ: &str = "vmlinuz";
const VETH: &[&str] = &["veth.ko", "veth.ko.xz"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_a_line_is_found() {
        let names = "linux-image-6.1.0-9-cloud-amd64\nlinux-image-6.1.0-57-cloud-amd64\n\
                     linux-image-6.1.0-57-cloud-amd64-unsigned\nlinux-image-6.1.0-58-amd64\n\
                     linux-image-6.1-cloud-amd64\nlinux-image-6.12.9+deb12-cloud-amd64\n\
                     linux-image-6.12.117+deb12-cloud-amd64\nlinux-image-7.0.13+deb13-cloud-amd64\n\
                     linux-binary-7.0.13+deb13-cloud-amd64\nlinux-image-7.3.4+deb13-cloud-amd64\n\
                     linux-binary-7.3.4+deb13-cloud-amd64\nlinux-modules-7.3.4+deb13-cloud-amd64\n";
        let table: [(&str, &[&str]); 6] = [
            ("6.1", &["linux-image-6.1.0-57-cloud-amd64"]),
            ("6.12", &["linux-image-6.12.117+deb12-cloud-amd64"]),
            ("7.0", &["linux-binary-7.0.13+deb13-cloud-amd64"]),
            (
                "7.3",
                &["linux-binary-7.3.4+deb13-cloud-amd64", "linux-modules-7.3.4+deb13-cloud-amd64"],
            ),
            ("5.10", &[]),
            ("6.18", &[]),
        ];
        for (line, want) in table {
            let found = newest(line, names).map(|packages| packages.names).unwrap_or_default();
            assert_eq!(found, want, "{line}");
        }
        let release = newest("6.1", names).map(|packages| packages.release);
        assert_eq!(release.as_deref(), Some("6.1.0-57-cloud-amd64"));
    }

    #[test]
    fn an_archive_is_told_by_its_whole_label() {
        let targets = "Debian http://mirror.test/debian/\n\
                       Debian-Security http://mirror.test/debian-security/\n";
        assert_eq!(archive(targets, "Debian"), Some("http://mirror.test/debian/"));
        assert_eq!(
            archive(targets, "Debian-Security"),
            Some("http://mirror.test/debian-security/")
        );
        assert_eq!(archive(targets, "Ubuntu"), None);
    }
}
