//! What the host says of itself: kernel release, this thread's capabilities, the cgroup mount.

use std::fs;
use std::path::PathBuf;

/// A kernel release, such as 6.1.142.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Release(pub(super) u32, pub(super) u32, pub(super) u32);

impl Release {
    /// The running kernel's; `None` if it cannot be read.
    pub(super) fn running() -> Option<Self> {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let ubuntu = read("/proc/version_signature");
        Self::of(&release(), &read("/proc/version"), &ubuntu)
    }

    /// The release by the release string, and by what Debian (`/proc/version`) and Ubuntu
    /// (`/proc/version_signature`) say of what they built from: their release strings keep the
    /// patch level at 0.
    fn of(release: &str, version: &str, signature: &str) -> Option<Self> {
        let named = Self::parse(release)?;
        let debian = version.rsplit(" Debian ").next().filter(|_| version.contains(" Debian "));
        let sources = [debian, signature.split_whitespace().last()];
        let source = sources.into_iter().flatten().filter_map(Self::parse);
        let same_line = source.filter(|source| (source.0, source.1) == (named.0, named.1));
        Some(same_line.fold(named, Self::max))
    }

    /// The leading `major.minor.patch` of a release string; what a vendor appends is left out.
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.trim().splitn(3, '.').map(|part| {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part.get(..digits).and_then(|digits| digits.parse().ok())
        });
        let (major, minor) = (numbers.next()??, numbers.next()??);
        Some(Self(major, minor, numbers.next().flatten().unwrap_or(0)))
    }
}

/// The release string of the running kernel, empty if it cannot be read.
pub(super) fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// What a thread may do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Capability {
    /// Load programs and make maps.
    Bpf,
    /// Attach them to sockets and namespaces.
    NetAdmin,
    /// Load programs whose pointers the verifier must not restrict: without it, it refuses offsets
    /// that it cannot hold against speculation ("pointer arithmetic with it prohibited for !root").
    PerfMon,
}

/// Which of `needed` this thread lacks, by name.
pub(super) fn missing_capabilities(needed: &[Capability]) -> Vec<&'static str> {
    // By thread, as capabilities are; a process that dropped them on one thread has them on others.
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    missing(effective(&status), needed)
}

/// The `CapEff` set of a `/proc/PID/status`, empty if there is none.
fn effective(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

fn missing(effective: u64, needed: &[Capability]) -> Vec<&'static str> {
    let has = |bit: u32| effective & (1 << bit) != 0;
    needed
        .iter()
        .filter_map(|capability| {
            // CAP_SYS_ADMIN includes what CAP_BPF and CAP_PERFMON (since 5.8) allow.
            let (has, name) = match capability {
                Capability::Bpf => (has(CAP_BPF) || has(CAP_SYS_ADMIN), "CAP_BPF"),
                Capability::NetAdmin => (has(CAP_NET_ADMIN), "CAP_NET_ADMIN"),
                Capability::PerfMon => (has(CAP_PERFMON) || has(CAP_SYS_ADMIN), "CAP_PERFMON"),
            };
            (!has).then_some(name)
        })
        .collect()
}

/// Where the cgroup v2 hierarchy is mounted.
pub(super) fn cgroup_mount() -> Option<PathBuf> {
    cgroup2(&fs::read_to_string("/proc/thread-self/mountinfo").ok()?)
}

/// The first cgroup v2 mount of a `/proc/PID/mountinfo` (proc(5)): the type stands behind " - ".
fn cgroup2(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let point = mount.split(' ').nth(4)?;
        kind.starts_with("cgroup2 ").then(|| point.into())
    })
}

const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read() {
        let table = [
            ("6.18.44-fc-v669", Some(Release(6, 18, 44))),
            ("5.15.0-1073-aws\n", Some(Release(5, 15, 0))),
            ("6.16-rc3", Some(Release(6, 16, 0))),
            ("6.8.12+", Some(Release(6, 8, 12))),
            ("6", None),
            ("", None),
            ("linux.6.1", None),
        ];
        for (text, want) in table {
            assert_eq!(Release::parse(text), want, "{text}");
        }
    }

    #[test]
    fn distributions_tell_the_patch_level_elsewhere() {
        let debian = "Linux version 6.1.0-57-cloud-amd64 (debian-kernel@lists.debian.org) (gcc-12, GNU ld) \
                      #1 SMP PREEMPT_DYNAMIC Debian 6.1.192-1 (2026-11-20)\n";
        let ubuntu = "Ubuntu 6.8.0-100.100-generic 6.8.12\n";
        let table = [
            ("6.1.0-57-cloud-amd64", debian, "", Release(6, 1, 192)),
            (
                "6.8.0-100-generic",
                "Linux version 6.8.0-100-generic (x) #100-Ubuntu SMP",
                ubuntu,
                Release(6, 8, 12),
            ),
            ("6.18.44", "Linux version 6.18.44 (x) #1 SMP", "", Release(6, 18, 44)),
            // Somebody's own kernel on a Debian: the release string counts.
            ("6.12.1-mine", debian, "", Release(6, 12, 1)),
        ];
        for (release, version, signature, want) in table {
            assert_eq!(Release::of(release, version, signature), Some(want), "{release}");
        }
    }

    #[test]
    fn capabilities_are_told_by_name() {
        let table: [(&str, &[&str]); 4] = [
            ("Name:\tx\nCapEff:\t000001ffffffffff\n", &[]),
            ("CapEff:\t0000000000000000\n", &["CAP_BPF", "CAP_NET_ADMIN"]),
            ("CapEff:\t0000008000000000\n", &["CAP_NET_ADMIN"]),
            ("CapEff:\t0000000000201000\n", &[]),
        ];
        for (status, want) in table {
            let needed = [Capability::Bpf, Capability::NetAdmin];
            assert_eq!(missing(effective(status), &needed), want, "{status}");
        }
        let of_carrying = effective("CapEff:\t0000008000001000\n");
        assert_eq!(missing(of_carrying, &[Capability::PerfMon]), ["CAP_PERFMON"]);
        assert_eq!(effective("nothing of the kind"), 0);
    }

    #[test]
    fn the_cgroup_mount_is_found_beside_version_1() {
        let hybrid = "30 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                      31 30 0:27 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n\
                      40 30 0:36 / /sys/fs/cgroup/unified rw shared:1 - cgroup2 cgroup2 rw\n";
        assert_eq!(cgroup2(hybrid), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(cgroup2("31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"), None);
    }
}
