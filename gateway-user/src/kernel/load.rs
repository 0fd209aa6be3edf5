//! Gets the compiled programs into the kernel, or says in plain words why not.

use std::io::ErrorKind;
use std::{fs, io};

use aya::maps::sock::SockMapFd;
use aya::maps::{Map, MapError};
use aya::programs::{CgroupAttachMode, Program, ProgramError, SkLookup, SkMsg, SkSkb, SockOps};
use aya::{Ebpf, EbpfError, EbpfLoader};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};

use super::log;
use super::shared::SharedArray;
use super::system::{self, Capability, Release};
use crate::config::KernelLog;

/// Why the kernel programs cannot be used here.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// The process lacks capabilities.
    #[error("this process lacks {missing}")]
    Capability {
        /// The ones that it lacks, of those that were needed.
        missing: String,
    },
    /// The kernel forbids it although the capabilities are there.
    #[error("the kernel forbids to {what}: by a seccomp profile, lockdown or a user namespace")]
    Forbidden {
        /// What was to be done.
        what: String,
    },
    /// The kernel does not have what the programs need.
    #[error("kernel {release} cannot {what}; 5.10 is the first that can")]
    Kernel {
        /// The kernel's release string.
        release: String,
        /// What was to be done.
        what: String,
    },
    /// The kernel is older than those on which responses have been carried.
    #[error(
        "kernel {release} is too old to carry responses (no bpf_loop before 5.17); 6.1 is the first used for it"
    )]
    TooOld {
        /// The kernel's release string.
        release: String,
    },
    /// The kernel has a bug that damages what is carried.
    #[error("{0}")]
    Damaging(String),
    /// The kernel's verifier refused a program.
    #[error("the kernel refused the program `{program}`: {line}")]
    Refused {
        /// The program's name.
        program: String,
        /// The verifier's last line.
        line: String,
    },
    /// The configuration leaves it out.
    #[error("turned off by kernel.paths")]
    Unwanted,
    /// The object is not one of ours: a program or map is missing or laid out otherwise.
    #[error("the object with the kernel programs does not fit this daemon: {0}")]
    Object(String),
    /// Something else failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What was to be done.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

/// The programs that were compiled with this daemon.
pub(super) const OBJECT: &[u8] =
    aya::include_bytes_aligned!("../../../gateway-ebpf/object/sluice.bpf.o");

#[cfg(target_endian = "big")]
compile_error!(
    "the kernel programs are compiled for little-endian machines; \
     gateway-ebpf/object/sluice.bpf.o would not load here"
);

/// The capabilities of [`Part::Steering`].
pub(super) const STEERING_NEEDS: [Capability; 2] = [Capability::Bpf, Capability::NetAdmin];

/// Those of [`Part::Flows`]: all that the daemon makes use of.
pub(super) const FLOW_NEEDS: [Capability; 3] =
    [Capability::Bpf, Capability::NetAdmin, Capability::PerfMon];

/// What an object is loaded for. Each part is loaded by itself, as each has its own time to live: connections
/// are steered until the daemon begins to stop, responses are carried until the last one has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Part {
    /// Steering, and the scores.
    Steering,
    /// Flows.
    Flows {
        /// Pods' ends are to be enrolled.
        local: bool,
    },
}

/// Creates the maps and prepares the programs of `object`; nothing is attached.
pub(super) fn load(object: &[u8], log: KernelLog, part: Part) -> Result<Ebpf, Unfit> {
    let needed: &[Capability] = match part {
        Part::Steering => &STEERING_NEEDS,
        Part::Flows { .. } => &FLOW_NEEDS,
    };
    let missing = system::missing_capabilities(needed);
    if !missing.is_empty() {
        return Err(Unfit::Capability { missing: list(&missing) });
    }
    raise_memory_limit();
    let level = log::level(log);
    let mut loader = EbpfLoader::new();
    loader.override_global(LOG_LEVEL, &level, true);
    let local = u8::from(part == Part::Flows { local: true });
    loader.override_global(ENROL_PODS, &local, true);
    // The other part's maps are made as well, and are as small as can be.
    match part {
        Part::Steering => {
            for map in FLOW_MAPS {
                loader.map_max_entries(map, 1);
            }
            loader.map_max_entries(EVENTS, PAGE);
        }
        Part::Flows { .. } => {
            for map in STEERING_MAPS {
                loader.map_max_entries(map, 1);
            }
        }
    }
    if log == KernelLog::Off {
        // One page, as nothing will be in it.
        loader.map_max_entries(LOG_BUFFER, 1);
    }
    loader.load(object).map_err(|error| match error {
        EbpfError::MapError(error) => Unfit::map("create the maps", error),
        EbpfError::ProgramError(error) => Unfit::program("prepare the programs", "", error),
        error => Unfit::Object(chain(&error)),
    })
}

/// Attaches the sk_lookup program `name` to the network namespace of the calling thread. It stays
/// until `ebpf` is dropped.
pub(super) fn attach(ebpf: &mut Ebpf, name: &str) -> Result<(), Unfit> {
    let program: &mut SkLookup = program(ebpf, name)?;
    program.load().map_err(|error| Unfit::program("load sk_lookup programs", name, error))?;
    // The thread's, not the process': a thread may have moved to another.
    let netns = fs::File::open("/proc/thread-self/ns/net").map_err(|source| Unfit::System {
        what: "open the network namespace".to_owned(),
        source,
    })?;
    program
        .attach(netns)
        .map_err(|error| Unfit::program("attach sk_lookup programs", name, error))?;
    Ok(())
}

/// Attaches the sk_msg program `name` to the sockets of a map, for as long as `ebpf` lives.
pub(super) fn attach_sk_msg(ebpf: &mut Ebpf, name: &str, map: &SockMapFd) -> Result<(), Unfit> {
    let program: &mut SkMsg = program(ebpf, name)?;
    program.load().map_err(|error| Unfit::program("load sk_msg programs", name, error))?;
    program.attach(map).map_err(|error| Unfit::program("attach sk_msg programs", name, error))?;
    Ok(())
}

/// Attaches the sk_skb verdict program `name` to the sockets of a map, for as long as `ebpf` lives.
pub(super) fn attach_sk_skb(ebpf: &mut Ebpf, name: &str, map: &SockMapFd) -> Result<(), Unfit> {
    let program: &mut SkSkb = program(ebpf, name)?;
    program.load().map_err(|error| Unfit::program("load sk_skb programs", name, error))?;
    program.attach(map).map_err(|error| Unfit::program("attach sk_skb programs", name, error))?;
    Ok(())
}

/// Attaches the sock_ops program `name` to all of the host's cgroups, for as long as `ebpf` lives.
pub(super) fn attach_sock_ops(ebpf: &mut Ebpf, name: &str) -> Result<(), Unfit> {
    let what = "open the cgroup v2 hierarchy".to_owned();
    let mount = system::cgroup_mount().ok_or_else(|| Unfit::System {
        what: what.clone(),
        source: io::Error::new(ErrorKind::NotFound, "none is mounted"),
    })?;
    let cgroup = fs::File::open(mount).map_err(|source| Unfit::System { what, source })?;
    let program: &mut SockOps = program(ebpf, name)?;
    program.load().map_err(|error| Unfit::program("load sock_ops programs", name, error))?;
    program
        // A link lets others watch sockets as well, and takes no mode that says so.
        .attach(cgroup, CgroupAttachMode::Single)
        .map_err(|error| Unfit::program("attach sock_ops programs", name, error))?;
    Ok(())
}

/// The map `name`, taken out of the object.
pub(super) fn take<M: TryFrom<Map, Error = MapError>>(
    ebpf: &mut Ebpf,
    name: &str,
) -> Result<M, Unfit> {
    let map = ebpf.take_map(name).ok_or_else(|| Unfit::Object(format!("no map {name}")))?;
    map.try_into().map_err(|error| Unfit::map(&format!("use the map {name}"), error))
}

/// The values of the array map `name`, in this process' memory.
pub(super) fn share<T: aya::Pod>(
    ebpf: &mut Ebpf,
    name: &str,
    count: u32,
) -> Result<SharedArray<T>, Unfit> {
    let Some(Map::Array(data)) = ebpf.take_map(name) else {
        return Err(Unfit::Object(format!("no array {name}")));
    };
    let info =
        data.info().map_err(|error| Unfit::map(&format!("ask for the map {name}"), error))?;
    if (info.max_entries(), info.value_size() as usize) != (count, size_of::<T>()) {
        return Err(Unfit::Object(format!("{name} is laid out otherwise")));
    }
    SharedArray::new(data.fd(), count)
        .map_err(|error| Unfit::system(&format!("map {name} into memory"), error.into()))
}

fn program<'a, P>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut P, Unfit>
where
    &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
{
    ebpf.program_mut(name)
        .ok_or_else(|| Unfit::Object(format!("no program {name}")))?
        .try_into()
        .map_err(|error: ProgramError| Unfit::Object(chain(&error)))
}

impl Unfit {
    /// From an error about a map.
    pub(super) fn map(what: &str, error: MapError) -> Self {
        match error {
            MapError::CreateError { name, io_error } => {
                Self::system(&format!("{what} ({name})"), io_error)
            }
            MapError::SyscallError(error) => Self::system(what, error.io_error),
            error => Self::Object(chain(&error)),
        }
    }

    fn program(what: &str, program: &str, error: ProgramError) -> Self {
        match error {
            ProgramError::LoadError { io_error, verifier_log } => {
                Self::refused(what, program, io_error, &verifier_log.to_string())
            }
            ProgramError::SyscallError(error) => Self::system(what, error.io_error),
            error => Self::Object(chain(&error)),
        }
    }

    /// From a load that failed: the verifier minds something, or the kernel does before it comes to
    /// that.
    fn refused(what: &str, program: &str, source: io::Error, log: &str) -> Self {
        // Without it the verifier also follows what a processor may do by speculation, and minds things that
        // have nothing to do with the reason.
        let missing = system::missing_capabilities(&[Capability::PerfMon]);
        if !missing.is_empty() && last_line(log).is_some() {
            return Self::Capability { missing: list(&missing) };
        }
        match last_line(log) {
            Some(line) => Self::Refused { program: program.to_owned(), line },
            None => Self::system(what, source),
        }
    }

    fn system(what: &str, source: io::Error) -> Self {
        let what = what.to_owned();
        if source.kind() == ErrorKind::PermissionDenied {
            return Self::Forbidden { what };
        }
        // By version only to explain a failure: vendors carry newer features in older kernels.
        if Release::running().is_some_and(|release| release < Release(5, 10, 0)) {
            return Self::Kernel { release: system::release(), what };
        }
        Self::System { what, source }
    }
}

/// The line in which the verifier says what it minds: the last one before its statistics.
fn last_line(log: &str) -> Option<String> {
    log.lines()
        .map(str::trim)
        .rfind(|line| {
            let statistics = ["processed ", "verification time ", "stack depth "];
            !line.is_empty() && !statistics.iter().any(|s| line.starts_with(s))
        })
        .map(str::to_owned)
}

/// Names as a sentence has them: `a, b and c`.
pub(super) fn list(names: &[&str]) -> String {
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Kernels before 5.11 count maps against RLIMIT_MEMLOCK, whose default of 64 KiB is too small.
/// Best effort: without the right to raise it, creating the maps says so.
fn raise_memory_limit() {
    if Release::running().is_none_or(|release| release >= Release(5, 11, 0)) {
        return;
    }
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
}

/// The global that switches the enrolling of pods' ends.
const ENROL_PODS: &str = "ENROL_PODS";

/// The programs' events, in a ring buffer, which has a page at least.
const EVENTS: &str = "EVENTS";
const PAGE: u32 = 4096;

const FLOW_MAPS: [&str; 9] =
    ["ACKED", "CLIENTS", "CONNECTIONS", "FLOWS", "PAIRS", "PODS", "PORTS", "TAILS", "UPSTREAMS"];
const STEERING_MAPS: [&str; 9] = [
    "CANDIDATES",
    "COUNTERS",
    "DESTINATIONS",
    "DIRECT_LIVE",
    "ENDPOINTS",
    "ENROLLED",
    "LISTENERS",
    "SCORES",
    "SERVERS",
];

/// aya-log's names: of the level and of the ring buffer.
const LOG_LEVEL: &str = aya_log::LEVEL;
const LOG_BUFFER: &str = "AYA_LOGS";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verifiers_complaint_is_found() {
        let log = "0: R1=ctx()\n1: (79) r2 = *(u64 *)(r1 +8)\n\
                   invalid bpf_context access off=8 size=8\n\
                   verification time 40 usec\nstack depth 0\nprocessed 2 insns (limit 1000000)\n\n";
        let want = "invalid bpf_context access off=8 size=8";
        assert_eq!(last_line(log).as_deref(), Some(want));
        assert_eq!(last_line("processed 0 insns\n"), None);
        assert_eq!(last_line(""), None);
    }

    #[test]
    fn what_is_lacking_is_all_that_is_said() {
        let table: [(&[&str], &str); 3] = [
            (&["CAP_PERFMON"], "this process lacks CAP_PERFMON"),
            (&["CAP_BPF", "CAP_NET_ADMIN"], "this process lacks CAP_BPF and CAP_NET_ADMIN"),
            (&["A", "B", "C"], "this process lacks A, B and C"),
        ];
        for (names, said) in table {
            assert_eq!(Unfit::Capability { missing: list(names) }.to_string(), said);
        }
    }

    #[test]
    fn a_refusal_is_told_in_plain_words() {
        let error = io::Error::from_raw_os_error(libc::EACCES);
        let said = Unfit::refused("load", "steer", error, "R1 is bad\n").to_string();
        assert_eq!(said, "the kernel refused the program `steer`: R1 is bad");
        let error = io::Error::from_raw_os_error(libc::EPERM);
        assert!(matches!(Unfit::refused("load", "steer", error, ""), Unfit::Forbidden { .. }));
    }
}
