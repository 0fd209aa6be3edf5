//! Which kernels there are, what each must be able to do, and what its verifier may spend.

/// A line of kernels of Debian's cloud flavour; the newest of the line is booted.
#[derive(Debug)]
pub(super) struct Kernel {
    /// Its first two numbers, such as `6.1`.
    pub(super) line: &'static str,
    /// Where it is found if the machine's own sources do not have it.
    pub(super) archive: Archive,
    /// The suite there.
    pub(super) suite: &'static str,
    /// Whether it runs without being asked for.
    pub(super) default: bool,
    /// The features of `sluice probe` that it must not have; it must have all others.
    pub(super) without: &'static [&'static str],
    /// The tests that cannot hold there.
    pub(super) skipped: &'static [&'static str],
}

/// Debian's archives, which a machine names in its own sources.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Archive {
    /// Releases and backports.
    Main,
    /// Security updates.
    Security,
}

impl Archive {
    /// What apt calls it.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Main => "Debian",
            Self::Security => "Debian-Security",
        }
    }
}

impl Kernel {
    /// The kernel of this line, if it is one of ours.
    pub(super) fn find(line: &str) -> Option<&'static Self> {
        KERNELS.iter().find(|kernel| kernel.line == line)
    }

    /// Whether the kernel can carry responses. Where it cannot, programs may be refused.
    pub(super) fn has_paths(&self) -> bool {
        !self.without.contains(&"bpf_loop")
    }

    /// Whether the tests must tell that the kernel carried bytes.
    pub(super) fn tells_bytes(&self) -> bool {
        self.has_paths() && PATH_TESTS.iter().any(|test| test.starts_with(BYTES_TESTS))
    }

    /// What the test program is told: which tests, and which of them cannot hold here.
    pub(super) fn words(&self) -> Vec<&'static str> {
        let mut words = TESTS.to_vec();
        if self.has_paths() {
            words.extend(PATH_TESTS);
        }
        words.extend(self.skipped.iter().flat_map(|test| ["--skip", *test]));
        words
    }
}

/// How many instructions of `program` a verifier may follow.
pub(super) fn ceiling(program: &str) -> u32 {
    CEILINGS.iter().find(|(name, _)| *name == program).map_or(CEILING, |(_, ceiling)| *ceiling)
}

/// Every kernel that can be asked for, oldest first. There is none between 5.10 and 6.1, so the
/// first that has bpf_loop, 5.17, cannot be tried.
pub(super) const KERNELS: &[Kernel] = &[
    Kernel {
        without: &["bpf_loop", "local", "splice"],
        skipped: &[TWO_CAPABILITIES],
        ..kernel("5.10", Archive::Security, "bullseye-security")
    },
    Kernel {
        default: true,
        skipped: &[TWO_CAPABILITIES],
        ..kernel("6.1", Archive::Security, "bookworm-security")
    },
    Kernel {
        default: true,
        skipped: &[TWO_CAPABILITIES],
        ..kernel("6.12", Archive::Security, "bookworm-security")
    },
    Kernel { skipped: &[TWO_CAPABILITIES], ..kernel("6.16", Archive::Main, "trixie-backports") },
    kernel("6.18", Archive::Main, "trixie-backports"),
    kernel("7.0", Archive::Main, "trixie-backports"),
    kernel("7.3", Archive::Main, "trixie-backports"),
];

/// The test that steers with two capabilities, which kernels before 6.18 refuse: without CAP_PERFMON
/// their verifiers also follow what a processor may do by speculation. It asks for every feature.
const TWO_CAPABILITIES: &str = "kernel::two_capabilities_are_enough_and_each_is_needed";

const fn kernel(line: &'static str, archive: Archive, suite: &'static str) -> Kernel {
    Kernel { line, archive, suite, default: false, without: &[], skipped: &[] }
}

/// Modules of the behaviour tests that run on every kernel: those that use it.
const TESTS: &[&str] = &["kernel::", "steer::", "--skip", "direct::"];

/// What needs a kernel which carries responses.
/// Of the data path, those that look at most of it in the least time.
const PATH_TESTS: &[&str] = &[
    "flows::",
    "datapath::local::answers_without_a_body",
    "datapath::local::every_call_that_writes",
    "datapath::local::the_same_requests",
    "datapath::splice::answers_without_a_body",
    "datapath::splice::every_call_that_writes",
    "datapath::splice::the_same_requests",
];

/// The module among [`PATH_TESTS`] whose tests tell how many bytes the kernel carried.
const BYTES_TESTS: &str = "datapath::";

/// A quarter of the million instructions at which the kernel gives up. What one kernel takes
/// lightly has been seen to cost the next a hundred times as much.
const CEILING: u32 = 250_000;

/// Ceilings of single programs.
const CEILINGS: &[(&str, u32)] = &[];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_kernel_is_not_asked_for_what_it_cannot() {
        let old = Kernel::find("5.10").unwrap();
        assert!(!old.has_paths() && Kernel::find("6.1").unwrap().has_paths());
        let skips = |words: &[&str]| words.iter().filter(|word| **word == "--skip").count();
        let (old, new) = (old.words(), Kernel::find("7.3").unwrap().words());
        assert!(old.starts_with(TESTS) && !PATH_TESTS.iter().any(|test| old.contains(test)));
        assert_eq!((skips(&old), skips(&new)), (2, 1), "{old:?} {new:?}");
        assert!(Kernel::find("6").is_none());
    }
}
