//! What a guest said on its console, and whether that is what its kernel owes.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::catalog::{Kernel, ceiling};

/// A guest's report. A guest that ended early leaves parts of it empty.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// The running kernel's release.
    pub(super) release: String,
    /// Seconds from the kernel's start to the guest's first script.
    pub(super) up: Option<f64>,
    /// What `sluice probe --json` says.
    pub(super) features: Vec<Feature>,
    /// What `sluice probe --programs --json` says.
    pub(super) programs: Vec<Program>,
    pub(super) tests: Tests,
    /// What the kernel carried in the tests, if these told.
    pub(super) bytes: Option<Bytes>,
    /// Warnings of the kernel.
    warnings: Vec<String>,
    /// Whether the last part is there.
    complete: bool,
}

#[derive(Debug, Deserialize, PartialEq)]
pub(super) struct Feature {
    pub(super) name: String,
    pub(super) available: bool,
    reason: String,
}

#[derive(Debug, Deserialize, PartialEq)]
pub(super) struct Program {
    pub(super) program: String,
    /// The log setting that it was loaded with.
    pub(super) log: String,
    pub(super) loaded: bool,
    pub(super) verified_insns: Option<u32>,
    reason: String,
    #[serde(default)]
    verifier_log: Vec<String>,
    /// Whether with CAP_BPF and CAP_NET_ADMIN only.
    #[serde(skip)]
    capped: bool,
}

/// What the test program said.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Tests {
    pub(super) passed: usize,
    pub(super) failed: usize,
    /// Ignored, or without the rights that they need.
    pub(super) not_run: usize,
    failed_names: Vec<String>,
}

/// Bytes of responses that the kernel carried, by path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bytes {
    pub(super) local: u64,
    pub(super) splice: u64,
}

impl Report {
    /// Reads the console. The parts of the report are told apart by lines `@@ NAME`.
    pub(super) fn parse(console: &str) -> Self {
        let mut parts = BTreeMap::<&str, String>::new();
        let mut part = "";
        // A serial console ends its lines with CR LF.
        for line in console.lines().map(|line| line.trim_end_matches('\r')) {
            if let Some(name) = line.strip_prefix("@@ ") {
                part = name;
            }
            let text = parts.entry(part).or_default();
            if !line.starts_with("@@ ") {
                text.push_str(line);
                text.push('\n');
            }
        }
        let text = |name: &str| parts.get(name).map(|text| text.trim()).unwrap_or_default();
        Self {
            release: text("kernel").to_owned(),
            up: text("up").parse().ok(),
            features: serde_json::from_str(text("probe")).unwrap_or_default(),
            programs: Program::parse(text("programs"), text("programs-capped")),
            tests: Tests::parse(text("tests"), text("privileged")),
            bytes: Bytes::parse(text("bytes")),
            warnings: text("kernel-log").lines().filter_map(warning).collect(),
            complete: parts.contains_key("end"),
        }
    }

    /// Everything that is not as it must be on this kernel.
    pub(super) fn troubles(&self, kernel: &Kernel) -> Vec<String> {
        let mut troubles = Vec::new();
        if !self.release.starts_with(&format!("{}.", kernel.line)) {
            troubles.push(format!("the kernel calls itself `{}`", self.release));
        }
        self.check_features(kernel, &mut troubles);
        self.check_programs(kernel, &mut troubles);
        let Tests { passed, failed, not_run, failed_names } = &self.tests;
        if *passed == 0 || *failed > 0 || *not_run > 0 {
            let names = failed_names.join(" ");
            troubles.push(format!(
                "tests: {passed} passed, {failed} failed, {not_run} not run {names}"
            ));
        }
        if kernel.tells_bytes() {
            match self.bytes {
                Some(Bytes { local: 1.., splice: 1.. }) => {}
                Some(Bytes { local, splice }) => troubles.push(format!(
                    "the kernel carried {local} bytes by local and {splice} by splice"
                )),
                None => troubles.push("no test told what the kernel carried".to_owned()),
            }
        }
        troubles.extend(self.warnings.iter().map(|line| format!("the kernel warns: {line}")));
        if !self.complete {
            troubles.push("the report has no end".to_owned());
        }
        troubles
    }

    fn check_features(&self, kernel: &Kernel, troubles: &mut Vec<String>) {
        if self.features.is_empty() {
            troubles.push("sluice probe said nothing that can be read".to_owned());
        }
        for Feature { name, available, reason } in &self.features {
            let wanted = !kernel.without.contains(&name.as_str());
            if *available != wanted {
                let is = if *available { "is there" } else { "is missing" };
                troubles.push(format!("{name} {is}: {reason}"));
            } else if reason.is_empty() {
                troubles.push(format!("sluice probe gives no reason for {name}"));
            }
        }
    }

    fn check_programs(&self, kernel: &Kernel, troubles: &mut Vec<String>) {
        for capped in [false, true] {
            if !self.programs.iter().any(|program| program.capped == capped) {
                let by = if capped { " with two capabilities" } else { "" };
                troubles.push(format!("sluice probe --programs{by} said nothing that can be read"));
            }
        }
        for program in &self.programs {
            let key = program.key();
            let Program { verified_insns, reason, .. } = program;
            let ceiling = ceiling(&program.program);
            match verified_insns {
                // What can be done with less than the daemon asks for is shown and not judged.
                _ if !program.loaded && program.capped => {}
                // Our own words, not the misleading ones of such a kernel.
                _ if !program.loaded
                    && !kernel.has_paths()
                    && reason.contains("has no bpf_loop") => {}
                _ if !program.loaded => {
                    let log = program.verifier_log.join("\n");
                    troubles
                        .push(format!("{key} is refused: {reason}; the verifier's log:\n{log}"));
                }
                Some(insns) if *insns > ceiling => troubles.push(format!(
                    "{key} costs the verifier {insns} instructions, above its ceiling of {ceiling}"
                )),
                // Kernels before 5.16 do not tell.
                None if kernel.has_paths() => {
                    troubles.push(format!("{key}: the kernel does not tell its cost"));
                }
                _ => {}
            }
        }
    }
}

impl Program {
    /// The program and how it was loaded, such as `steer (log off, two capabilities)`.
    pub(super) fn key(&self) -> String {
        let rights = if self.capped { "two capabilities" } else { "all rights" };
        format!("{} (log {}, {rights})", self.program, self.log)
    }

    /// From what the probe said with all rights, and with two capabilities.
    fn parse(all: &str, capped: &str) -> Vec<Self> {
        let read = |text| serde_json::from_str::<Vec<Self>>(text).unwrap_or_default();
        let capped = read(capped).into_iter().map(|program| Self { capped: true, ..program });
        read(all).into_iter().chain(capped).collect()
    }
}

impl Tests {
    /// From what the test program printed, and what its privileged tests noted.
    fn parse(output: &str, privileged: &str) -> Self {
        let mut tests = Self::default();
        for line in output.lines() {
            if let Some(name) =
                line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED"))
            {
                tests.failed_names.push(name.to_owned());
            }
            let Some(counts) = line.strip_prefix("test result: ") else { continue };
            for count in counts.split(['.', ';']) {
                let Some((number, what)) = count.trim().split_once(' ') else { continue };
                let number = number.parse().unwrap_or(0);
                match what {
                    "passed" => tests.passed += number,
                    "failed" => tests.failed += number,
                    "ignored" => tests.not_run += number,
                    _ => {}
                }
            }
        }
        // Such a test counts among those that passed.
        let skipped = privileged.lines().filter(|line| line.starts_with("skipped ")).count();
        tests.passed = tests.passed.saturating_sub(skipped);
        tests.not_run += skipped;
        tests
    }
}

impl Bytes {
    /// Reads `bytes local N splice M`; several such lines, of several tests, are added up.
    fn parse(text: &str) -> Option<Self> {
        text.lines().filter_map(Self::line).reduce(|a, b| Self {
            local: a.local.saturating_add(b.local),
            splice: a.splice.saturating_add(b.splice),
        })
    }

    fn line(line: &str) -> Option<Self> {
        let (local, splice) = line.strip_prefix("bytes local ")?.split_once(" splice ")?;
        Some(Self { local: local.parse().ok()?, splice: splice.trim().parse().ok()? })
    }
}

/// A line of the kernel's log without its time, if it is about a bug; others only hold the word
/// somewhere.
fn warning(line: &str) -> Option<String> {
    let text = line.split_once("] ").map_or(line, |(_, text)| text);
    let is = ["WARNING: ", "BUG: ", "Oops: "].iter().any(|word| text.starts_with(word));
    is.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::catalog::Archive;
    use super::*;

    const GOOD: &str = "noise\r\n@@ kernel\r\n6.12.117+deb12-cloud-amd64\r\n@@ up\r\n4.25\r\n\
        @@ probe\r\n[\r\n{\"name\": \"bpf_loop\", \"available\": true, \"reason\": \"tried\"}\r\n]\r\n\
        @@ programs\r\n[{\"program\": \"steer\", \"kind\": \"sk_lookup\", \"log\": \"off\", \
        \"loaded\": true, \"verified_insns\": 509, \"xlated_bytes\": 8, \"reason\": \"\"}]\r\n\
        @@ programs-capped\r\n[{\"program\": \"steer\", \"log\": \"off\", \"loaded\": true, \
        \"verified_insns\": 600, \"reason\": \"\"}]\r\n@@ tests\r\nrunning 2 tests\r\ntest steer::a ... ok\r\n\
        test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out\r\n\
        @@ privileged\r\nran steer::a\r\n@@ bytes\r\nbytes local 7 splice 9\r\n@@ kernel-log\r\n\
        [    1.5] Spectre V2 : WARNING: Unprivileged eBPF is enabled\r\n@@ end\r\n9.5\r\n";

    #[test]
    fn a_good_report_has_no_trouble() {
        let report = Report::parse(GOOD);
        assert_eq!(report.troubles(&NEW), [""; 0]);
        assert_eq!(
            (report.release.as_str(), report.up),
            ("6.12.117+deb12-cloud-amd64", Some(4.25))
        );
        assert_eq!(report.tests, Tests { passed: 2, ..Tests::default() });
        assert_eq!(report.programs[0].verified_insns, Some(509));
        assert_eq!(report.bytes, Some(Bytes { local: 7, splice: 9 }));
    }

    #[test]
    fn each_fault_is_named() {
        let table = [
            ("6.12.117", "6.1.9", "calls itself"),
            ("\"available\": true", "\"available\": false", "bpf_loop is missing: tried"),
            ("\"reason\": \"tried\"", "\"reason\": \"\"", "no reason for bpf_loop"),
            ("[\r\n{", "[\r\nBUG{", "sluice probe said nothing"),
            ("insns\": 509", "insns\": 250001", "250001 instructions, above its ceiling of 250000"),
            ("insns\": 509", "insns\": null", "does not tell its cost"),
            ("\"loaded\": true", "\"loaded\": false", "steer (log off, all rights) is refused"),
            ("[{\"program\"", "[{\"name\"", "--programs said nothing"),
            ("insns\": 600", "insns\": 250001", "steer (log off, two capabilities) costs"),
            ("programs-capped", "x", "--programs with two capabilities said nothing"),
            ("2 passed", "0 passed", "tests: 0 passed"),
            ("0 failed", "1 failed", "1 failed"),
            ("0 ignored", "1 ignored", "1 not run"),
            ("ran steer", "skipped steer", "tests: 1 passed, 0 failed, 1 not run"),
            ("Spectre V2 : WARNING", "WARNING", "the kernel warns: WARNING: Unpriv"),
            ("bytes local 7 splice 9", "", "no test told what the kernel carried"),
            ("@@ end", "", "the report has no end"),
        ];
        for (from, to, want) in table {
            assert!(GOOD.contains(from), "{from}");
            let troubles = Report::parse(&GOOD.replacen(from, to, 1)).troubles(&NEW);
            assert_eq!(troubles.len(), 1, "{to}: {troubles:?}");
            assert!(troubles[0].contains(want), "{to}: {troubles:?}");
        }
    }

    #[test]
    fn an_old_kernel_may_refuse_in_our_words_only() {
        let old = GOOD
            .replace("6.12.117", "5.10.0-46")
            .replace("\"available\": true", "\"available\": false")
            .replace("\"loaded\": true, \"verified_insns\": 509", "\"loaded\": false");
        let said = |reason: &str| {
            let report =
                old.replace("8, \"reason\": \"\"", &format!("8, \"reason\": \"{reason}\""));
            Report::parse(&report).troubles(&OLD)
        };
        assert_eq!(said("kernel 5.10 has no bpf_loop, which came with 5.17"), [""; 0]);
        assert_eq!(said("number of funcs in func_info doesn't match").len(), 1);
        let with_loop = old.replace("\"available\": false", "\"available\": true");
        let troubles = Report::parse(&with_loop).troubles(&OLD);
        assert!(troubles.iter().any(|t| t.starts_with("bpf_loop is there")), "{troubles:?}");
    }

    #[test]
    fn names_of_failed_tests_are_kept() {
        let output = "test steer::a ... ok\ntest steer::b ... FAILED\n\
                      test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured\n";
        let want =
            Tests { passed: 1, failed: 1, not_run: 0, failed_names: vec!["steer::b".into()] };
        assert_eq!(Tests::parse(output, ""), want);
    }

    #[test]
    fn bytes_of_several_tests_are_added_up() {
        let table = [
            ("bytes local 5 splice 7", Some(Bytes { local: 5, splice: 7 })),
            (
                "bytes local 5 splice 7\nx\nbytes local 1 splice 0\n",
                Some(Bytes { local: 6, splice: 7 }),
            ),
            ("bytes local splice 7", None),
            ("", None),
        ];
        for (text, want) in table {
            assert_eq!(Bytes::parse(text), want, "{text}");
        }
    }

    const NEW: Kernel = Kernel {
        line: "6.12",
        archive: Archive::Main,
        suite: "",
        default: true,
        without: &[],
        skipped: &[],
    };

    const OLD: Kernel = Kernel { line: "5.10", without: &["bpf_loop"], ..NEW };
}
