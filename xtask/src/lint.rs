//! Formatting, lints, and what no tool checks: no committed file may tell of the machine that it
//! was written on.

use std::fs;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::shell;

/// Runs every check; the findings of all are shown.
///
/// # Errors
/// A check found something.
pub(crate) fn run() -> anyhow::Result<()> {
    let checks = [("format", format()), ("strings", strings()), ("clippy", clippy())];
    let mut failed = Vec::new();
    for (name, result) in checks {
        if let Err(error) = result {
            shell::progress(format_args!("{name}: {error:#}"));
            failed.push(name);
        }
    }
    long_files()?;
    ensure!(failed.is_empty(), "found by: {}", failed.join(", "));
    println!("lint: nothing found");
    Ok(())
}

/// All Rust code, that of the two workspaces apart included.
fn format() -> anyhow::Result<()> {
    shell::run(shell::cargo().args(["fmt", "--all", "--check"]))?;
    for apart in ["gateway-ebpf", "tests/fuzz"] {
        let manifest = shell::root().join(apart).join("Cargo.toml");
        if manifest.is_file() {
            shell::run(shell::cargo().args(["fmt", "--check", "--manifest-path"]).arg(&manifest))?;
        }
    }
    Ok(())
}

fn clippy() -> anyhow::Result<()> {
    let args = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    shell::run(shell::cargo().args(args))
}

/// Looks for [`FORBIDDEN`] in every tracked file.
fn strings() -> anyhow::Result<()> {
    let mut found = 0;
    for file in tracked(&[])? {
        // A lock file names the registry of each package by design.
        if file.ends_with("Cargo.lock") {
            continue;
        }
        let Ok(text) = fs::read_to_string(shell::root().join(&file)) else {
            continue; // binary, or a link to nowhere
        };
        for (number, line) in text.lines().enumerate() {
            for word in FORBIDDEN.iter().filter(|word| names(line, word)) {
                println!("{file}:{}: names {word}", number + 1);
                found += 1;
            }
        }
    }
    ensure!(found == 0, "{found} lines name a machine's own path or a package registry's host");
    Ok(())
}

/// Warns of source files that hold more than one concern by their length.
fn long_files() -> anyhow::Result<()> {
    for file in tracked(&["*.rs"])? {
        let Ok(text) = fs::read_to_string(shell::root().join(&file)) else { continue };
        let lines = text.lines().count();
        if lines > LONG_FILE {
            println!("warning: {file} has {lines} lines; a file over {LONG_FILE} can be two");
        }
    }
    Ok(())
}

/// Whether a line has the word, not as the tail of a longer path or name.
fn names(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line.get(..at).and_then(|before| before.chars().next_back());
        !before.is_some_and(|c| c.is_alphanumeric() || "-_.}$".contains(c))
    })
}

/// The files that git tracks, or is about to, by their path from the root.
fn tracked(patterns: &[&str]) -> anyhow::Result<Vec<String>> {
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"];
    let listed =
        shell::output(Command::new("git").current_dir(shell::root()).args(list).args(patterns))
            .context("list the files")?;
    Ok(listed.split_terminator('\0').map(String::from).collect())
}

/// Paths that exist on one machine only, and hosts that a reader may not reach. In two parts, so
/// that this file does not name them.
const FORBIDDEN: [&str; 10] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("/tmp", "/wt"),
    concat!("index.", "crates.io"),
    concat!("static.", "crates.io"),
    concat!("py", "pi.org"),
    concat!("files.", "pythonhosted.org"),
    concat!("proxy.", "golang.org"),
    concat!("deb.", "debian.org"),
];

/// Lines of a source file above which a warning is due.
const LONG_FILE: usize = 600;

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn a_word_counts_at_the_start_of_a_path_only() {
        for (line, found) in [
            ("/build/x", true),
            ("in \"/build/x\"", true),
            ("target/build/x", false),
            ("${DIR}/build/x", false),
            ("see target/build/ and /build/", true),
        ] {
            assert_eq!(names(line, "/build/"), found, "{line}");
        }
    }
}
