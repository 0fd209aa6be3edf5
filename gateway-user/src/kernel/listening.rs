//! Who listens in this network namespace, and how to get hold of a listening socket of another
//! process.
//!
//! The kernel lists the sockets with their inodes and cookies (sock_diag(7)), `/proc` says which
//! process has an inode open, and pidfd_getfd(2) copies its descriptor. What is copied is compared
//! with what was asked for by its cookie, which no other socket of the machine has.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::{fs, mem};

use socket2::{Domain, Protocol, Socket, Type};

/// A TCP socket that listens.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Listening {
    /// Where.
    pub(super) address: SocketAddr,
    /// Its inode, by which `/proc` names it.
    pub(super) inode: u32,
    /// Its cookie, which no other socket ever has.
    pub(super) cookie: u64,
}

/// Why a socket could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum Missed {
    /// Some processes hide their descriptors from us, or do not let us have them.
    #[error(
        "this process needs CAP_SYS_PTRACE to get it from a server that runs already; without, the \
         server's next start brings it"
    )]
    Denied,
    /// No process that can be seen has it.
    #[error(
        "no process in sight has it open: the gateway must see the server's process ID; without, \
         the server's next start brings it"
    )]
    Unseen,
    /// The kernel does not know how.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// Every TCP socket that listens in the calling thread's network namespace.
pub(super) fn listening() -> io::Result<Vec<Listening>> {
    let mut all = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        dump(family as u8, &mut all)?;
    }
    Ok(all)
}

/// Those of `all` that connections to `pod` come to: the ones at its very address, else the ones at
/// every address.
pub(super) fn at(all: &[Listening], pod: SocketAddr) -> Vec<Listening> {
    let at = |place: SocketAddr| -> Vec<Listening> {
        all.iter().filter(|socket| socket.address == place).copied().collect()
    };
    places(pod).map(at).find(|found| !found.is_empty()).unwrap_or_default()
}

/// Where a server may listen to be `pod`, the closest first.
pub(super) fn places(pod: SocketAddr) -> impl Iterator<Item = SocketAddr> {
    let port = pod.port();
    let every = |ip: IpAddr| SocketAddr::new(ip, port);
    let v4 = pod.is_ipv4().then_some(every(Ipv4Addr::UNSPECIFIED.into()));
    // `::` takes IPv4 as well, unless the server forbids it; then sk_lookup passes it over.
    let v6 = every(Ipv6Addr::UNSPECIFIED.into());
    [Some(every(pod.ip())), v4, Some(v6)].into_iter().flatten()
}

/// A descriptor of `socket`, copied from the process that has it.
pub(super) fn fetch(socket: &Listening) -> Result<OwnedFd, Missed> {
    let link = format!("socket:[{}]", socket.inode);
    let mut denied = false;
    for process in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let descriptors = match fs::read_dir(process.path().join("fd")) {
            Ok(descriptors) => descriptors,
            Err(error) => {
                denied |= error.kind() == ErrorKind::PermissionDenied;
                continue;
            }
        };
        for descriptor in descriptors.flatten() {
            match fs::read_link(descriptor.path()) {
                Ok(to) if to.as_os_str() == link.as_str() => {}
                Ok(_) => continue,
                Err(error) => {
                    denied |= error.kind() == ErrorKind::PermissionDenied;
                    continue;
                }
            }
            let name = descriptor.file_name();
            let Some(number) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            match copy(pid, number) {
                Ok(copied) if cookie(&copied).is_ok_and(|found| found == socket.cookie) => {
                    return Ok(copied);
                }
                // Closed meanwhile, and its number given to something else.
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::PermissionDenied => denied = true,
                Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                    return Err(error.into());
                }
                Err(_) => {}
            }
        }
    }
    Err(if denied { Missed::Denied } else { Missed::Unseen })
}

/// A socket's cookie.
pub(super) fn cookie(socket: &impl AsFd) -> io::Result<u64> {
    number(socket, SO_COOKIE)
}

/// The cookie of the calling thread's network namespace; `None` on kernels before 5.14.
pub(super) fn netns_cookie() -> Option<u64> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).ok()?;
    number(&socket, SO_NETNS_COOKIE).ok()
}

/// An option of eight bytes.
fn number(socket: &impl AsFd, option: libc::c_int) -> io::Result<u64> {
    let mut value = 0_u64;
    let mut length = mem::size_of::<u64>() as libc::socklen_t;
    // SAFETY: the pointers are to a value and its length, and live for the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if done == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Copies a descriptor of another process.
fn copy(pid: libc::pid_t, descriptor: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two integers, and what it returns is ours.
    let process = unsafe { owned(libc::syscall(libc::SYS_pidfd_open, pid, 0)) }?;
    // SAFETY: as above.
    unsafe { owned(libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), descriptor, 0)) }
}

/// # Safety
/// `result` is a system call's that returns a new descriptor.
unsafe fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { OwnedFd::from_raw_fd(result as libc::c_int) })
}

/// Asks for the listening sockets of one family.
fn dump(family: u8, all: &mut Vec<Listening>) -> io::Result<()> {
    let netlink = Socket::new(
        Domain::from(libc::AF_NETLINK),
        Type::RAW,
        Some(Protocol::from(libc::NETLINK_SOCK_DIAG)),
    )?;
    netlink.send(&question(family))?;
    // The kernel fills 32 KiB at most.
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = io::Read::read(&mut &netlink, &mut buffer)?;
        if answers(buffer.get(..count).unwrap_or_default(), all)? {
            return Ok(());
        }
    }
}

/// linux/inet_diag.h: a netlink header, then `inet_diag_req_v2`.
fn question(family: u8) -> [u8; QUESTION] {
    let mut message = [0; QUESTION];
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(field) = message.get_mut(at..at + bytes.len()) {
            field.copy_from_slice(bytes);
        }
    };
    put(0, &(QUESTION as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    put(16, &[family, libc::IPPROTO_TCP as u8]);
    put(20, &(1_u32 << TCP_LISTEN).to_ne_bytes());
    message
}

/// Reads a datagram of answers; true: it was the last.
fn answers(mut rest: &[u8], all: &mut Vec<Listening>) -> io::Result<bool> {
    while let Some(length) = word(rest, 0) {
        let length = length as usize;
        let Some(message) = rest.get(..length).filter(|message| message.len() >= HEADER) else {
            return Err(malformed());
        };
        let kind = message.get(4..6).and_then(|b| b.try_into().ok()).map(u16::from_ne_bytes);
        match kind.map(libc::c_int::from) {
            Some(libc::NLMSG_DONE) => return Ok(true),
            Some(libc::NLMSG_ERROR) => {
                let code = word(message, HEADER).unwrap_or_default() as i32;
                return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
            }
            Some(_) => {
                let body = message.get(HEADER..).unwrap_or_default();
                all.push(answer(body).ok_or_else(malformed)?);
            }
            None => return Err(malformed()),
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// linux/inet_diag.h, `inet_diag_msg`.
fn answer(body: &[u8]) -> Option<Listening> {
    let port = u16::from_be_bytes(body.get(4..6)?.try_into().ok()?);
    let v4: [u8; 4] = body.get(8..12)?.try_into().ok()?;
    let v6: [u8; 16] = body.get(8..24)?.try_into().ok()?;
    let family = libc::c_int::from(*body.first()?);
    let ip = if family == libc::AF_INET { IpAddr::from(v4) } else { IpAddr::from(v6) };
    Some(Listening {
        address: SocketAddr::new(ip.to_canonical(), port),
        inode: word(body, 68)?,
        cookie: u64::from(word(body, 44)?) | u64::from(word(body, 48)?) << 32,
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn malformed() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "the kernel's list of sockets is cut off")
}

const QUESTION: usize = 72;
const HEADER: usize = 16;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const TCP_LISTEN: u32 = 10;
const SO_COOKIE: libc::c_int = 57;
const SO_NETNS_COOKIE: libc::c_int = 71;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_listener_is_found_and_copied() {
        for at_ip in ["127.0.0.1:0", "[::1]:0", "[::]:0", "0.0.0.0:0"] {
            let listener = TcpListener::bind(at_ip).unwrap();
            let address = listener.local_addr().unwrap();
            let all = listening().unwrap();
            let found: Vec<_> = all.iter().filter(|found| found.address == address).collect();
            assert_eq!(found.len(), 1, "{address}: {all:?}");
            assert_eq!(found[0].cookie, cookie(&listener).unwrap());
            let copied = fetch(found[0]).unwrap();
            assert_eq!(cookie(&copied).unwrap(), found[0].cookie);
        }
    }

    #[test]
    fn what_nobody_has_is_not_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let all = listening().unwrap();
        let found = all.iter().find(|found| found.address == address).unwrap();
        let wrong = Listening { cookie: found.cookie + 1, ..*found };
        assert!(matches!(fetch(&wrong), Err(Missed::Unseen | Missed::Denied)));
    }

    #[test]
    fn the_closest_comes_first() {
        let socket = |address: &str, cookie| Listening {
            address: address.parse().unwrap(),
            inode: 1,
            cookie,
        };
        let all = [
            socket("[::]:1", 1),
            socket("0.0.0.0:1", 2),
            socket("10.0.0.1:1", 3),
            socket("10.0.0.1:1", 4),
            socket("10.0.0.2:2", 5),
            socket("[::]:3", 6),
            socket("[fd00::1]:3", 7),
        ];
        for (pod, want) in [
            ("10.0.0.1:1", vec![3, 4]),
            ("10.0.0.2:1", vec![2]),
            ("[fd00::1]:1", vec![1]),
            ("10.0.0.1:2", vec![]),
            ("10.0.0.1:3", vec![6]),
            ("[fd00::1]:3", vec![7]),
            ("[fd00::1]:2", vec![]),
        ] {
            let found: Vec<_> =
                at(&all, pod.parse().unwrap()).iter().map(|found| found.cookie).collect();
            assert_eq!(found, want, "{pod}");
        }
    }

    #[test]
    fn answers_that_are_cut_off_are_told() {
        let mut all = Vec::new();
        let whole = |length: u32, kind: u16, body: &[u8]| {
            [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat()
        };
        assert!(answers(&whole(20, libc::NLMSG_DONE as u16, &[0; 4]), &mut all).unwrap());
        let denied = (-libc::EACCES).to_ne_bytes();
        let error = answers(&whole(20, libc::NLMSG_ERROR as u16, &denied), &mut all).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        for (length, body) in [(88, &[0; 40][..]), (0, &[]), (4, &[]), (56, &[0; 40])] {
            assert!(answers(&whole(length, 20, body), &mut all).is_err(), "{length}");
        }
        assert_eq!(all, []);
        assert!(!answers(&[], &mut all).unwrap());
    }
}
