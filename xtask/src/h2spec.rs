//! h2spec, the conformance tests of HTTP/2, against the gateway in clear text and over TLS.

use std::fs;
use std::process::Command;

use anyhow::Context as _;

use crate::{reliability, shell};

/// Builds h2spec and runs it.
///
/// # Errors
/// It cannot be built, which needs Go and the network once, or one of its tests failed.
pub(crate) fn run() -> anyhow::Result<()> {
    shell::ensure_program("go", "golang-go")?;
    let folder = shell::target().join("h2spec");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let program = folder.join("h2spec");
    let mut go = Command::new("go");
    // Its versions are those of go.mod and go.sum there.
    go.current_dir(shell::root().join("tests/h2spec")).args(["build", "-mod=readonly", "-o"]);
    shell::run(go.arg(&program).arg("github.com/summerwind/h2spec/cmd/h2spec"))?;
    let program = program.display().to_string();
    reliability::part(&["h2spec".to_owned(), "--program".to_owned(), program], false)
}
