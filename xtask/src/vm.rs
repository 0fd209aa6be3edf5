//! Other kernels than the one that runs here: each is booted under QEMU, with the probe and the
//! tests that use the kernel inside.
//!
//! It shows what one machine cannot: that the programs pass the verifier of each kernel and at what
//! cost, and that an old kernel is told from a new one. It measures no speed: the guest's processor
//! is emulated.

mod boot;
mod catalog;
mod fetch;
mod image;
mod report;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;

use self::boot::Ended;
use self::catalog::{KERNELS, Kernel};
use self::report::{Bytes, Program, Report};
use crate::shell;

/// Which kernels.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Boot every kernel: 5.10, 6.1, 6.12, 6.16, 6.18, 7.0 and 7.3. Without it 6.1 and 6.12.
    #[arg(long, conflicts_with = "kernel")]
    all: bool,
    /// Boot this line of kernels. May be given several times.
    #[arg(long, value_name = "LINE")]
    kernel: Vec<String>,
    /// Fetch kernels anew, for the newest of each line.
    #[arg(long)]
    fetch: bool,
    /// Give up on a kernel after so many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = TIMEOUT_S)]
    timeout: u64,
}

/// Boots the kernels one after another and prints a row for each.
///
/// # Errors
/// A need cannot be met, or a kernel is not as it must be; every kernel is tried first.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let kernels = options.kernels()?;
    for (program, package) in NEEDS {
        shell::ensure_program(program, package)?;
    }
    let vm = shell::target().join("vm");
    if options.fetch && vm.join("kernels").exists() {
        fs::remove_dir_all(vm.join("kernels"))?;
    }
    let root = vm.join("root");
    image::prepare(&root)?;

    let limit = Duration::from_secs(options.timeout);
    let (mut rows, mut reports, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for kernel in &kernels {
        let troubles = match try_kernel(kernel, &vm, &root, limit) {
            Ok(Tried { report, ended, log }) => {
                let mut troubles = report.troubles(kernel);
                if !ended.well() {
                    troubles.push(ended_badly(ended, &log));
                }
                rows.push(row(kernel, &report, ended));
                reports.push(report);
                troubles
            }
            Err(error) => vec![format!("{error:#}")],
        };
        for trouble in &troubles {
            shell::progress(format_args!("{}: {trouble}", kernel.line));
        }
        if !troubles.is_empty() {
            failed.push(kernel.line);
        }
    }
    println!("{HEAD}\n{}\n\n{}\n", rows.join("\n"), costs(&reports));
    println!("vm: {} passed, {} failed", kernels.len() - failed.len(), failed.len());
    ensure!(failed.is_empty(), "kernels: {}", failed.join(", "));
    Ok(())
}

impl Default for Options {
    fn default() -> Self {
        Self { all: false, kernel: Vec::new(), fetch: false, timeout: TIMEOUT_S }
    }
}

impl Options {
    fn kernels(&self) -> anyhow::Result<Vec<&'static Kernel>> {
        if self.kernel.is_empty() {
            return Ok(KERNELS.iter().filter(|kernel| self.all || kernel.default).collect());
        }
        let find = |line: &String| {
            Kernel::find(line).with_context(|| {
                let known: Vec<_> = KERNELS.iter().map(|kernel| kernel.line).collect();
                format!("no kernel {line}; there are {}", known.join(", "))
            })
        };
        self.kernel.iter().map(find).collect()
    }
}

struct Tried {
    report: Report,
    ended: Ended,
    log: PathBuf,
}

fn try_kernel(kernel: &Kernel, vm: &Path, root: &Path, limit: Duration) -> anyhow::Result<Tried> {
    let image = fetch::image(kernel, vm)?;
    let archive = vm.join(format!("{}.cpio", kernel.line));
    let log = vm.join(format!("{}.log", kernel.line));
    image::pack(root, &image, &kernel.words(), &archive)?;
    shell::progress(format_args!("boot {}, console in {}", image.release, log.display()));
    let ended = boot::boot(&image, &archive, &log, limit)?;
    fs::remove_file(&archive)?;
    let console = fs::read(&log)?;
    let report = Report::parse(&String::from_utf8_lossy(&console));
    Ok(Tried { report, ended, log })
}

/// How the guest ended, with the last that it said.
fn ended_badly(ended: Ended, log: &Path) -> String {
    let how = match ended.status {
        Some(35) => "a command in the guest failed".to_owned(),
        Some(status) => format!("the guest ended with {status}: a panic, or no end of its own"),
        None => format!("no end within {:.0} s", ended.took.as_secs_f32()),
    };
    let console = fs::read(log).unwrap_or_default();
    let console = String::from_utf8_lossy(&console);
    let lines: Vec<_> = console.lines().collect();
    let last = lines.get(lines.len().saturating_sub(LAST_LINES)..).unwrap_or_default();
    format!("{how}; the last of {}:\n{}", log.display(), last.join("\n"))
}

/// A line of the table, in Markdown.
fn row(kernel: &Kernel, report: &Report, ended: Ended) -> String {
    let missing: Vec<_> =
        report.features.iter().filter(|f| !f.available).map(|f| f.name.as_str()).collect();
    let features = match missing.as_slice() {
        _ if report.features.is_empty() => "-".to_owned(),
        [] => "all".to_owned(),
        missing => format!("all but {}", missing.join(", ")),
    };
    let bytes = match report.bytes {
        Some(Bytes { local, splice }) => format!("{local} local, {splice} splice"),
        None if kernel.tells_bytes() => "none told".to_owned(),
        None if kernel.has_paths() => "no datapath tests yet".to_owned(),
        None => "-".to_owned(),
    };
    let up = report.up.map_or_else(|| "-".to_owned(), |up| format!("{up:.1}"));
    let tests = &report.tests;
    format!(
        "| {} | {up} | {:.1} | {} | {} | {} | {features} | {bytes} |",
        if report.release.is_empty() { kernel.line } else { &report.release },
        ended.took.as_secs_f32(),
        tests.passed,
        tests.failed,
        tests.not_run + kernel.skipped.len(),
    )
}

/// A table of what each program, loaded in each way, cost each kernel's verifier, in Markdown.
fn costs(reports: &[Report]) -> String {
    let keys: BTreeSet<_> =
        reports.iter().flat_map(|report| report.programs.iter().map(Program::key)).collect();
    let mut table = "| program |".to_owned();
    for report in reports {
        table.push_str(&format!(" {} |", report.release));
    }
    table.push_str("\n|---|");
    table.push_str(&"---|".repeat(reports.len()));
    for key in keys {
        table.push_str(&format!("\n| {key} |"));
        for report in reports {
            let program = report.programs.iter().find(|program| program.key() == key);
            table.push_str(&format!(" {} |", program.map_or_else(|| "-".to_owned(), cost)));
        }
    }
    table
}

fn cost(program: &Program) -> String {
    match program.verified_insns {
        _ if !program.loaded => "refused".to_owned(),
        Some(insns) => insns.to_string(),
        None => "taken".to_owned(),
    }
}

/// Programs that are needed, and the packages that have them.
const NEEDS: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("ip", "iproute2"),
    ("setpriv", "util-linux"),
    ("strip", "binutils"),
];
const HEAD: &str = "\
| kernel | init (s) | whole run (s) | passed | failed | not run | features | kernel bytes |
|---|---|---|---|---|---|---|---|";
/// A quiet machine needs a tenth of it, one that compiles beside nearly half.
const TIMEOUT_S: u64 = 600;
/// Of a console, when something went wrong.
const LAST_LINES: usize = 60;
