//! What this host's kernel can do, found by trying.
//!
//! A feature that does not work is no error: it names its reason, and the gateway takes the other
//! path. Versions decide only where nothing else can: a bug that shows itself under load alone.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use aya::maps::MapType;
use aya::programs::ProgramType;
use aya::sys::{BpfHelper, is_helper_supported, is_map_supported, is_program_supported};
use serde::Serialize;
use socket2::{Domain, SockRef, Socket, Type};

use super::flows::{Flows, Path, Works};
use super::load::{self, FLOW_NEEDS, Unfit};
use super::steer::{SteerError, Steering};
use super::system::{self, Release};
use super::trial::trial;
use crate::config::{KernelLog, VirtualAddress};

/// One thing that a kernel can do or not.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Feature {
    /// Its name, for tables and metrics.
    pub name: &'static str,
    /// Whether it works here.
    pub available: bool,
    /// How it was tried, or why it does not work.
    pub reason: String,
}

/// Tries every feature, in the order in which one needs another. Takes some milliseconds; leaves
/// nothing behind. A connection over the loopback interface is made, and steered by a program that
/// is attached to the calling thread's network namespace meanwhile and concerns this connection
/// only; two more are carried along the kernel's paths.
pub fn probe() -> Vec<Feature> {
    let (sk_lookup, listener_map) = steering();
    let [local, splice] = paths();
    vec![
        feature("capabilities", capabilities()),
        feature("sk_lookup", sk_lookup),
        feature("listener_map", listener_map),
        feature("sk_skb", sk_skb()),
        feature("sk_msg", sk_msg()),
        feature("sock_ops", sock_ops()),
        feature("bpf_loop", bpf_loop()),
        feature("ring_buffer", map(MapType::RingBuf)),
        feature("redirect_once", redirect_once(Release::running(), &system::release())),
        feature("local", local),
        feature("splice", splice),
    ]
}

fn feature(name: &'static str, tried: Result<String, String>) -> Feature {
    let available = tried.is_ok();
    Feature { name, available, reason: tried.unwrap_or_else(|reason| reason) }
}

fn capabilities() -> Result<String, String> {
    match system::missing_capabilities(&FLOW_NEEDS).as_slice() {
        [] => Ok("CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON are there".to_owned()),
        ["CAP_PERFMON"] => Err("this process lacks CAP_PERFMON, without which it carries no \
                                response, and steers from Linux 6.18 on only"
            .to_owned()),
        missing => Err(Unfit::Capability { missing: load::list(missing) }.to_string()),
    }
}

/// Steers one connection from a port where nobody listens to a listener elsewhere. Tells of
/// sk_lookup and of listening sockets in maps, as neither shows without the other.
fn steering() -> (Result<String, String>, Result<String, String>) {
    let mut steering = match Steering::start(KernelLog::Off) {
        Ok(steering) => steering,
        Err(unfit) => return (Err(unfit.to_string()), Err(not_tried(&unfit))),
    };
    match steer_once(&mut steering) {
        Ok(()) => (
            Ok("a connection over loopback was steered".to_owned()),
            Ok("a listening socket was stored".to_owned()),
        ),
        Err(Tried::Map(error)) => (
            Err("not tried, as no listening socket can be stored".to_owned()),
            Err(error.to_string()),
        ),
        Err(Tried::Connection(error)) => (
            Err(format!(
                "the program is attached, but a connection over loopback was not steered: {error}"
            )),
            Ok("a listening socket was stored".to_owned()),
        ),
    }
}

enum Tried {
    Map(SteerError),
    Connection(io::Error),
}

fn steer_once(steering: &mut Steering) -> Result<(), Tried> {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    // Bound without listening: the port is ours, and a connection to it would be refused.
    let held = Socket::new(Domain::IPV4, Type::STREAM, None).map_err(Tried::Connection)?;
    held.bind(&any_port.into()).map_err(Tried::Connection)?;
    let dialled = held.local_addr().map_err(Tried::Connection)?;
    let dialled =
        dialled.as_socket().ok_or_else(|| Tried::Connection(io::Error::other("no IP")))?;
    let server = TcpListener::bind(any_port).map_err(Tried::Connection)?;
    SockRef::from(&server).set_read_timeout(Some(PATIENCE)).map_err(Tried::Connection)?;

    let address = VirtualAddress { address: dialled.ip(), prefix: 32, port: dialled.port() };
    steering.set_listener(0, &[address], &[&server]).map_err(Tried::Map)?;
    let client = TcpStream::connect_timeout(&dialled, PATIENCE).map_err(Tried::Connection)?;
    let (_, peer) = server.accept().map_err(Tried::Connection)?;
    if client.local_addr().ok() != Some(peer) {
        return Err(Tried::Connection(io::Error::other("another one arrived")));
    }
    Ok(())
}

/// Has a few bytes carried along each of the kernel's paths.
fn paths() -> [Result<String, String>; 2] {
    let (flows, Works { local, splice }) = match Flows::start(KernelLog::Off, &[], |_| true) {
        Ok(started) => started,
        Err(unfit) => return [Err(unfit.to_string()), Err(unfit.to_string())],
    };
    [(Path::Local, local), (Path::Splice, splice)].map(|(path, works)| {
        works.map_err(|unfit| unfit.to_string())?;
        trial(&flows, path).map_err(|error| error.to_string())?;
        Ok("a body was carried over loopback".to_owned())
    })
}

fn not_tried(unfit: &Unfit) -> String {
    format!("not tried: {unfit}")
}

/// Redirecting what arrives on one socket to another, told apart by cookie.
fn sk_skb() -> Result<String, String> {
    program(ProgramType::SkSkb)?;
    map(MapType::SockHash)?;
    helper(ProgramType::SkSkb, BpfHelper::BPF_FUNC_sk_redirect_hash, "redirect")?;
    helper(ProgramType::SkSkb, BpfHelper::BPF_FUNC_get_socket_cookie, "tell sockets apart")?;
    Ok("programs load and may redirect".to_owned())
}

/// Redirecting what a local socket sends.
fn sk_msg() -> Result<String, String> {
    program(ProgramType::SkMsg)?;
    map(MapType::SockHash)?;
    helper(ProgramType::SkMsg, BpfHelper::BPF_FUNC_msg_redirect_hash, "redirect")?;
    helper(ProgramType::SkMsg, BpfHelper::BPF_FUNC_msg_pull_data, "read data")?;
    Ok("programs load and may redirect".to_owned())
}

/// Watching the connections of a cgroup.
fn sock_ops() -> Result<String, String> {
    program(ProgramType::SockOps)?;
    let Some(mount) = system::cgroup_mount() else {
        return Err("no cgroup v2 hierarchy is mounted to attach to".to_owned());
    };
    // Attaching takes a descriptor of the folder.
    std::fs::File::open(&mount)
        .map_err(|error| format!("cannot open {}: {error}", mount.display()))?;
    Ok(format!("programs load; cgroup v2 is mounted at {}", mount.display()))
}

fn bpf_loop() -> Result<String, String> {
    helper(ProgramType::SkSkb, BpfHelper::BPF_FUNC_loop, "loop")?;
    Ok("programs may call it".to_owned())
}

fn program(kind: ProgramType) -> Result<(), String> {
    match is_program_supported(kind) {
        Ok(true) => Ok(()),
        Ok(false) => Err("the kernel does not know programs of this kind".to_owned()),
        Err(error) => Err(format!("cannot load a program of this kind: {}", brief(&error))),
    }
}

fn helper(kind: ProgramType, helper: BpfHelper, what: &str) -> Result<(), String> {
    match is_helper_supported(kind, helper) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("programs of this kind cannot {what} ({helper:?})")),
        Err(error) => Err(format!("cannot load a program of this kind: {}", brief(&error))),
    }
}

fn map(kind: MapType) -> Result<String, String> {
    match is_map_supported(kind) {
        Ok(true) => Ok("a map was created".to_owned()),
        Ok(false) => Err("the kernel does not know maps of this kind".to_owned()),
        Err(error) => Err(format!("cannot create the map: {}", brief(&error))),
    }
}

/// The innermost cause, which is what the system said.
fn brief(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Whether a redirected segment is delivered once. Kernels from 5.11 on could deliver the front of
/// one twice when the receiver's buffer was short; the mend came in 6.16 (3b4f14b7) and in some
/// older lines.
pub(super) fn redirect_once(release: Option<Release>, text: &str) -> Result<String, String> {
    let Some(release) = release else {
        return Err("the kernel's release is not known".to_owned());
    };
    let Release(major, minor, _) = release;
    let mended = [
        Release(5, 15, 186),
        Release(6, 1, 142),
        Release(6, 6, 94),
        Release(6, 12, 34),
        Release(6, 15, 3),
    ];
    let in_line = mended.iter().find(|since| (since.0, since.1) == (major, minor));
    if (major, minor) <= (5, 10) || release >= Release(6, 16, 0) {
        return Ok(format!("kernel {text} does not have the duplicate-data bug"));
    }
    match in_line {
        Some(since) if release >= *since => {
            Ok(format!("kernel {text} has the mend of the duplicate-data bug"))
        }
        Some(Release(.., patch)) => Err(format!(
            "kernel {text} can deliver redirected data twice, so nothing is spliced; \
             {major}.{minor}.{patch} is mended"
        )),
        None => Err(format!(
            "kernel {text} can deliver redirected data twice, so nothing is spliced; \
             its line has no mend, 6.16 has"
        )),
    }
}

/// For one connection over loopback.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_duplicate_data_table() {
        let table = [
            (Release(5, 4, 1), true),
            (Release(5, 10, 240), true),
            (Release(5, 14, 0), false),
            (Release(5, 15, 185), false),
            (Release(5, 15, 186), true),
            (Release(6, 1, 141), false),
            (Release(6, 1, 142), true),
            (Release(6, 6, 93), false),
            (Release(6, 6, 94), true),
            (Release(6, 8, 12), false),
            (Release(6, 11, 99), false),
            (Release(6, 12, 33), false),
            (Release(6, 12, 34), true),
            (Release(6, 13, 12), false),
            (Release(6, 14, 11), false),
            (Release(6, 15, 2), false),
            (Release(6, 15, 3), true),
            (Release(6, 16, 0), true),
            (Release(6, 18, 44), true),
            (Release(7, 0, 0), true),
        ];
        for (release, good) in table {
            assert_eq!(redirect_once(Some(release), "x").is_ok(), good, "{release:?}");
        }
        assert!(redirect_once(None, "").is_err());
    }
}
