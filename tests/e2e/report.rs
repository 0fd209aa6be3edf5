//! What the checks said, line by line as they end, and together at the end.

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::Serialize;
use serde_json::{Value, json};

use crate::checks::Check;
use crate::rig::Rig;

/// The results so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    versions: Value,
    results: Vec<CheckResult>,
}

#[derive(Debug, Serialize)]
struct CheckResult {
    name: String,
    passed: bool,
    seconds: f64,
    /// What was seen, or what was wrong.
    said: String,
}

impl Report {
    /// Nothing checked yet.
    pub(crate) fn new(versions: Value) -> Self {
        Self { versions, results: Vec::new() }
    }

    /// A run that came to nothing.
    pub(crate) fn failed(what: &str, why: String) -> Self {
        let mut report = Self::default();
        report.add(what, 0.0, Err(why));
        report
    }

    /// Runs a check.
    pub(crate) fn run(&mut self, check: &Check, rig: &mut Rig) {
        eprintln!("e2e: {}: {}", check.name, check.about);
        let started = Instant::now();
        let result = guarded(|| (check.run)(rig));
        let result = result.map_err(|why| format!("{why}\n{}", rig.evidence()));
        self.add(check.name, started.elapsed().as_secs_f64(), result);
    }

    /// Adds a result and shows it.
    pub(crate) fn add(&mut self, name: &str, seconds: f64, result: Result<String, String>) {
        let passed = result.is_ok();
        let said = result.unwrap_or_else(|why| why);
        let line = format!(
            "{} {name} ({seconds:.1} s): {}",
            if passed { "ok    " } else { "FAILED" },
            said.replace('\n', "\n        ")
        );
        eprintln!("{line}");
        self.results.push(CheckResult { name: name.into(), passed, seconds, said });
    }

    /// Whether all went well.
    pub(crate) fn is_good(&self) -> bool {
        self.results.iter().all(|result| result.passed)
    }

    /// The totals on stdout, or all as JSON.
    pub(crate) fn print(&self, as_json: bool) {
        let failed = self.results.iter().filter(|result| !result.passed).count();
        let passed = self.results.len() - failed;
        if as_json {
            let Self { versions, results } = self;
            let page = json!({
                "versions": versions, "checks": results, "passed": passed, "failed": failed,
            });
            println!("{page:#}");
        } else {
            println!("{passed} passed, {failed} failed");
        }
    }
}

/// Runs something that may panic, and tells what was said then.
pub(crate) fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    panic::set_hook(Box::new(|panic| {
        // All of them: of a check with threads, the first is the reason.
        let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        said.push(panic.to_string());
    }));
    let result = panic::catch_unwind(AssertUnwindSafe(run));
    let said = std::mem::take(&mut *SAID.lock().unwrap_or_else(PoisonError::into_inner));
    result.map_err(|_| said.join("\n"))
}

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
