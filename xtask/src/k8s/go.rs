//! Which Go builds the programs: the machine's, or one of our own.

use std::cell::OnceCell;
use std::path::{Path, PathBuf, absolute};
use std::process::Command;

use anyhow::Context;

use crate::{shell, test};

/// A Go that is new enough, found when it is first needed.
#[derive(Default)]
pub(super) struct Go(OnceCell<PathBuf>);

impl Go {
    /// It, in the folder of a module.
    ///
    /// # Errors
    /// There is none, and none could be installed.
    pub(super) fn command(&self, folder: &Path) -> anyhow::Result<Command> {
        let program = match self.0.get() {
            Some(program) => program,
            None => {
                let found = find()?;
                self.0.get_or_init(|| found)
            }
        };
        Ok(command(program, folder))
    }
}

/// The machine's, if it has one that can build what we build; else the one of `tests/k8s/go.txt`, which is installed once.
fn find() -> anyhow::Result<PathBuf> {
    if let Some(found) = shell::find("go") {
        // Since 1.21 it fetches the release that a go.mod asks for.
        let mut asked = command(&found, &shell::root());
        let release = shell::output(asked.args(["env", "GOVERSION"]))?;
        if is_new_enough(&release) {
            return Ok(found);
        }
        shell::progress(format_args!("{} is too old to build with", release.trim()));
    }
    let folder = absolute(shell::target())?.join("k8s/go");
    let python =
        test::environment(&folder, &shell::root().join("tests/k8s/go.txt")).context(HOW)?;
    Ok(python.with_file_name("go"))
}

fn command(program: &Path, folder: &Path) -> Command {
    let mut go = Command::new(program);
    // Static, so that the cache may go to another machine; and free of what this machine's user has set.
    go.current_dir(folder).env("CGO_ENABLED", "0").env("GOFLAGS", "").env("GOWORK", "off");
    go
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
