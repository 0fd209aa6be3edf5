//! What must hold for a change to land, and nothing that is not also a task of its own.

use std::time::Instant;

use anyhow::ensure;

use crate::{chart, deny, fuzz, k8s, lint, shell, test, verify_ebpf, vm};

/// Runs every step, whatever the earlier ones said, and names those that failed.
///
/// # Errors
/// A step failed.
pub(crate) fn run() -> anyhow::Result<()> {
    let mut steps = Steps::default();
    let mut totals = test::Totals::default();
    steps.run("lint", lint::run);
    steps.run("deny", deny::run);
    steps.run("verify-ebpf", verify_ebpf::run);
    steps.run("test", || {
        let options = test::Options { require_privileged: true, ..Default::default() };
        let result;
        (totals, result) = test::execute(&options);
        result
    });

    steps.run("chart", || chart::run(&chart::Options { check: true }));
    steps.run("k8s", || k8s::test(&[]));

    // New inputs are found by longer runs; this sees that the targets hold for what is known, and a little beyond: the
    // same a second time, so that what fails here fails for whoever looks into it.
    steps.run("fuzz", || {
        fuzz::run(&fuzz::Options { seconds: 20, seed: Some(1), targets: Vec::new() })
    });

    steps.run("vm", || {
        let options = vm::Options::default();
        // An emulated processor is slow, and slower beside others: what fails is seen twice.
        vm::run(&options).or_else(|error| {
            shell::progress(format_args!("once more, as {error:#}"));
            vm::run(&options)
        })
    });

    let failed: Vec<_> = steps.done.iter().filter(|step| step.error.is_some()).collect();
    println!();
    // Again, where the end of a long log is all that one gets to see.
    totals.failures.iter().for_each(|line| println!("{line}"));
    for Step { name, seconds, error } in &steps.done {
        let outcome = error.as_deref().unwrap_or("ok");
        println!("{name:12} {seconds:5.0} s  {outcome}");
    }
    println!("{totals}");
    // A step that failed outside a test counts as one, so that the last line never looks clean.
    let failures = totals.failed.max(failed.len());
    println!("{} passed, {failures} failed", totals.passed);
    let names: Vec<_> = failed.iter().map(|step| step.name).collect();
    ensure!(names.is_empty(), "failed: {}", names.join(", "));
    Ok(())
}

#[derive(Default)]
struct Steps {
    done: Vec<Step>,
}

struct Step {
    name: &'static str,
    seconds: f32,
    error: Option<String>,
}

impl Steps {
    fn run(&mut self, name: &'static str, step: impl FnOnce() -> anyhow::Result<()>) {
        shell::progress(format_args!("== {name}"));
        let start = Instant::now();
        let error = step().err().map(|error| format!("FAILED: {error:#}"));
        let seconds = start.elapsed().as_secs_f32();
        shell::progress(format_args!(
            "== {name}: {} ({seconds:.0} s)",
            error.as_deref().unwrap_or("ok")
        ));
        self.done.push(Step { name, seconds, error });
    }
}
