//! What the running kernel's verifier makes of each program of the object.
//!
//! The same bytes cost one kernel's verifier a hundred times what they cost another's, and all of
//! them give up at a million instructions; so the cost is a figure that is watched for each kernel.
//! Programs are loaded one by one and dropped again: one that is refused hides no other, and
//! nothing is attached.

use aya::programs::{Program, ProgramError, ProgramType};
use aya::sys::{BpfHelper, is_helper_supported};
use serde::Serialize;

use super::load::{self, OBJECT, Part, Unfit};
use super::system;
use crate::config::KernelLog;

/// One program, loaded with one setting of the programs' log.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct VerifiedProgram {
    /// The program's name.
    pub program: String,
    /// What it is attached to: `sk_lookup`, `sk_msg`, ...
    pub kind: &'static str,
    /// The setting `kernel.log` that it was loaded with; the verifier removes what it switches off.
    pub log: &'static str,
    /// Whether the kernel took it.
    pub loaded: bool,
    /// Instructions that the verifier followed, over all paths; kernels give up at 1,000,000.
    /// `None` before 5.16, which does not tell.
    pub verified_insns: Option<u32>,
    /// Bytes of the program as the kernel keeps it, before it is compiled for the processor.
    pub xlated_bytes: Option<u32>,
    /// Why it was refused; empty if it was not.
    pub reason: String,
    /// The end of the verifier's log of a program that was refused: how it came to its reason.
    pub verifier_log: Vec<String>,
}

/// Loads every program of the object by itself, silent and with all that it can log. Nothing stays
/// loaded.
///
/// # Errors
/// The object as a whole cannot be used here: rights are missing, or a map cannot be made.
pub fn verify_programs() -> Result<Vec<VerifiedProgram>, Unfit> {
    let mut programs = Vec::new();
    for (log, name) in [(KernelLog::Off, "off"), (KernelLog::Debug, "debug")] {
        // With the rights for steering only, what carries responses is tried all the same.
        let mut ebpf = match load::load(OBJECT, log, Part::Flows { local: true }) {
            Err(Unfit::Capability { .. }) => load::load(OBJECT, log, Part::Steering)?,
            loaded => loaded?,
        };
        programs.extend(ebpf.programs_mut().map(|(program, loaded)| verify(program, name, loaded)));
    }
    programs.sort_by(|a, b| a.program.cmp(&b.program));
    Ok(programs)
}

fn verify(name: &str, log: &'static str, program: &mut Program) -> VerifiedProgram {
    let (kind, result) = match program {
        Program::SchedClassifier(program) => ("classifier", program.load()),
        Program::SkLookup(program) => ("sk_lookup", program.load()),
        Program::SkMsg(program) => ("sk_msg", program.load()),
        Program::SkReuseport(program) => ("sk_reuseport", program.load()),
        Program::SkSkb(program) => ("sk_skb", program.load()),
        Program::SockOps(program) => ("sock_ops", program.load()),
        _ => ("other", Err(ProgramError::UnexpectedProgramType)),
    };
    let reason = match &result {
        Ok(()) => String::new(),
        Err(error) => refusal(program.prog_type(), error),
    };
    let verifier_log = match &result {
        Err(ProgramError::LoadError { verifier_log, .. }) => end_of(&verifier_log.to_string()),
        _ => Vec::new(),
    };
    let info = result.ok().and_then(|()| program.info().ok());
    VerifiedProgram {
        program: name.to_owned(),
        kind,
        log,
        loaded: info.is_some(),
        verified_insns: info.as_ref().and_then(|info| info.verified_instruction_count()),
        xlated_bytes: info.as_ref().and_then(|info| info.size_translated()),
        reason,
        verifier_log,
    }
}

/// Why a program was refused. Kernels without bpf_loop blame something else (5.10: "number of funcs
/// in func_info doesn't match number of subprogs"), so that comes first where it is missing.
fn refusal(kind: ProgramType, error: &ProgramError) -> String {
    let said = said(error);
    // Only what reads bodies calls it.
    let reads = matches!(kind, ProgramType::SkMsg | ProgramType::SkSkb);
    match is_helper_supported(kind, BpfHelper::BPF_FUNC_loop) {
        Ok(false) if reads => format!(
            "kernel {} has no bpf_loop, which came with 5.17 and which programs that read a body \
             need; the kernel says: {said}",
            system::release()
        ),
        _ => said,
    }
}

/// What the verifier says, or the system where it did not come to that.
fn said(error: &ProgramError) -> String {
    match error {
        ProgramError::LoadError { io_error, verifier_log } => {
            complaint(&verifier_log.to_string()).unwrap_or_else(|| io_error.to_string())
        }
        error => error.to_string(),
    }
}

/// The verifier's last line before its statistics.
fn complaint(log: &str) -> Option<String> {
    let statistics = ["processed ", "verification time ", "stack depth "];
    log.lines()
        .map(str::trim)
        .rfind(|line| !line.is_empty() && !statistics.iter().any(|s| line.starts_with(s)))
        .map(str::to_owned)
}

fn end_of(log: &str) -> Vec<String> {
    let lines: Vec<_> = log.lines().map(str::trim_end).collect();
    let end = lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or_default();
    end.iter().map(|line| (*line).to_owned()).collect()
}

/// Of a verifier's log, which can have a hundred thousand.
const LOG_LINES: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_complaint_stands_before_the_statistics() {
        let table = [
            ("0: (b7) r0 = 0\nR1 is bad\nprocessed 3 insns (limit 1000000)\n", Some("R1 is bad")),
            (
                "func_info is wrong\nstack depth 0\nverification time 4 usec\n\n",
                Some("func_info is wrong"),
            ),
            ("processed 0 insns\n", None),
            ("", None),
        ];
        for (log, want) in table {
            assert_eq!(complaint(log).as_deref(), want, "{log}");
        }
    }

    #[test]
    fn the_end_of_a_log_is_kept() {
        let log = (0..100).map(|line| format!("{line}: exit \n")).collect::<String>();
        let end = end_of(&log);
        assert_eq!(end.len(), LOG_LINES);
        assert_eq!(end.last().map(String::as_str), Some("99: exit"));
        assert_eq!(end_of("one\n"), ["one"]);
    }
}
