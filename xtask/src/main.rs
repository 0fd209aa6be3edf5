//! The project's tasks: `cargo xtask TASK`.
//!
//! Whatever CI, a contributor or a document runs is one of these, so that a failure in CI is one
//! command away on any machine. One file holds one task with its options; this file only names them.

mod bench;
mod build_ebpf;
mod chart;
mod ci;
mod demo;
mod deny;
mod e2e;
mod exposition;
mod fuzz;
mod h2spec;
mod http;
mod k8s;
mod lint;
mod process;
mod reliability;
mod setup_ebpf;
mod shell;
mod sim;
mod smuggling;
mod soak;
mod stop;
mod svg;
mod test;
mod verify_ebpf;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

fn main() -> ExitCode {
    match run(Cli::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            shell::progress(format_args!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    match task {
        Task::Bench(options) => bench::run(&options),
        Task::BuildEbpf => build_ebpf::run(),
        Task::Chart(options) => chart::run(&options),
        Task::Ci => ci::run(),
        Task::Demo(options) => demo::run(&options),
        Task::Deny => deny::run(),
        Task::E2e(options) => e2e::run(&options),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::H2spec => h2spec::run(),
        Task::K8s(options) => k8s::run(&options),
        Task::Lint => lint::run(),
        Task::Reliability(options) => reliability::run(&options),
        Task::SetupEbpf => setup_ebpf::run(),
        Task::Sim(options) => sim::run(&options),
        Task::Smuggling(options) => smuggling::run(&options),
        Task::Soak(options) => soak::run(&options),
        Task::Test(options) => test::run(&options),
        Task::VerifyEbpf => verify_ebpf::run(),
        Task::Vm(options) => vm::run(&options),
    }
}

/// The project's tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Measure the gateway beside a plain proxy and beside no gateway at all.
    #[command(after_help = "Example: cargo xtask bench request --seconds 5 --repeats 3")]
    Bench(bench::Options),
    /// Compile the kernel programs into the object that is checked in.
    #[command(after_help = "Example: cargo xtask build-ebpf")]
    BuildEbpf,
    /// Look the Helm chart through, and render the plain manifests from it (Helm is built by Go, once).
    #[command(after_help = "Example: cargo xtask chart --check")]
    Chart(chart::Options),
    /// Run all that CI runs: lint, deny, verify-ebpf, test, fuzz, vm. Every step runs; what failed is named last.
    #[command(after_help = "Example: cargo xtask ci")]
    Ci,
    /// Show the gateway at work on this machine, with simulated model servers.
    #[command(after_help = "Example: cargo xtask demo --requests 200")]
    Demo(demo::Options),
    /// Check the crates that are depended on: licences, sources, known faults.
    #[command(after_help = "Example: cargo xtask deny")]
    Deny,
    /// Test against real model servers.
    #[command(after_help = "Example: cargo xtask e2e --real-vllm")]
    E2e(e2e::Options),
    /// Run each fuzz target for a while.
    #[command(after_help = "Example: cargo xtask fuzz --seconds 30 framing")]
    Fuzz(fuzz::Options),
    /// Build h2spec, the conformance tests of HTTP/2, and run it in clear text and over TLS (needs Go).
    #[command(after_help = "Example: cargo xtask h2spec")]
    H2spec,
    /// Start an API server of Kubernetes on this machine, or run the tests that need one (built by Go, once).
    #[command(after_help = "Example: cargo xtask k8s test")]
    K8s(k8s::Options),
    /// Check formatting, lints, and that no machine's own paths are committed.
    #[command(after_help = "Example: cargo xtask lint")]
    Lint,
    /// Show what must hold at full size: pods that fail, hostile clients, takeovers under load.
    #[command(after_help = "Example: cargo xtask reliability chaos --requests 10000")]
    Reliability(reliability::Options),
    /// Install the pinned tool chain that compiles the kernel programs.
    #[command(after_help = "Example: cargo xtask setup-ebpf")]
    SetupEbpf,
    /// Simulate fleets, and compare who gets which request under every scheduling policy.
    #[command(
        after_help = "Example: cargo xtask sim --scenario a-,c- --policy round,sluice --json"
    )]
    Sim(sim::Options),
    /// Ask hyper, nginx and HAProxy how they read the messages of the smuggling tests.
    #[command(after_help = "Example: cargo xtask smuggling --record")]
    Smuggling(smuggling::Options),
    /// Carry mixed traffic by relay, splice and local, and compare every byte.
    #[command(after_help = "Example: cargo xtask soak --gigabytes 10 --path local")]
    Soak(soak::Options),
    /// Run every test, and first install what the tests need.
    #[command(after_help = "Example: cargo xtask test -- framing")]
    Test(test::Options),
    /// Rebuild the kernel programs and compare them with the object that is checked in.
    #[command(after_help = "Example: cargo xtask verify-ebpf")]
    VerifyEbpf,
    /// Boot other kernels under QEMU, and run the probe and the tests of the kernel's part there.
    #[command(after_help = VM_HELP)]
    Vm(vm::Options),
}

const VM_HELP: &str = "\
Kernels are Debian's, fetched by apt and never installed; QEMU, busybox and cpio are installed by
apt-get if they are missing, which needs root. All that it makes is under target/vm: kernels, and
each guest's console in LINE.log.

Example: cargo xtask vm --kernel 6.1 --kernel 7.3";
