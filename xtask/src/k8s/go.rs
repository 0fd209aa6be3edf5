//! Which Go builds the programs: the machine's, or one of our own.

use std::path::{Path, PathBuf, absolute};
use std::process::Command;

use anyhow::Context;

use crate::{shell, test};

/// A Go that is new enough.
pub(super) struct Go(PathBuf);

impl Go {
    /// The machine's, if it has one that can build them; else the one of `tests/k8s/go.txt`, which is installed once.
    ///
    /// # Errors
    /// There is none, and none could be installed.
    pub(super) fn ensure() -> anyhow::Result<Self> {
        if let Some(found) = shell::find("go") {
            let own = Self(found);
            // Since 1.21 it fetches the release that a go.mod asks for.
            let release = shell::output(own.command(&shell::root()).args(["env", "GOVERSION"]))?;
            if is_new_enough(&release) {
                return Ok(own);
            }
            shell::progress(format_args!("{} is too old to build with", release.trim()));
        }
        let folder = absolute(shell::target())?.join("k8s/go");
        let packages = shell::root().join("tests/k8s/go.txt");
        let python = test::environment(&folder, &packages).context(HOW)?;
        Ok(Self(python.with_file_name("go")))
    }

    /// It, in the folder of a module.
    pub(super) fn command(&self, folder: &Path) -> Command {
        let mut go = Command::new(&self.0);
        // Static, so that the cache may go to another machine; and free of what this machine's user has set.
        go.current_dir(folder).env("CGO_ENABLED", "0").env("GOFLAGS", "").env("GOWORK", "off");
        go
    }
}

/// Whether this release, or the one that it fetches, can build what we build. One without a number is somebody's own.
fn is_new_enough(release: &str) -> bool {
    let minor = release.trim().strip_prefix("go1.");
    let minor = minor.and_then(|rest| rest.split(['.', 'r', 'b']).next());
    minor.and_then(|minor| minor.parse::<u32>().ok()).is_none_or(|minor| minor >= 21)
}

const HOW: &str = "there is no Go from 1.21 on, and none could be installed; install Go 1.26 from https://go.dev/dl";

#[cfg(test)]
mod tests {
    use super::is_new_enough;

    #[test]
    fn releases() {
        for (release, enough) in [
            ("go1.26.8\n", true),
            ("go1.21", true),
            ("go1.27rc1", true),
            ("go1.20.14", false),
            ("go1.19", false),
            ("devel +0123", true),
        ] {
            assert_eq!(is_new_enough(release), enough, "{release}");
        }
    }
}
