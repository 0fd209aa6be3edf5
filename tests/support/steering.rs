//! Steering under test: sockets that listen, connections to them, and what became of both.
//!
//! All of it is for use within a namespace of [`crate::netns`]; what cannot be done panics.

#![allow(
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "helpers of tests fail by panic"
)]

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use gateway_user::config::{KernelLog, VirtualAddress};
use gateway_user::kernel::{ListenerCounters, Steering};
use socket2::{Domain, SockRef, Socket, Type};

/// Blocks of addresses that are local in every test's namespace.
pub const BLOCKS: &[&str] = &["10.9.0.0/16", "fd09::/48"];

/// Long enough for a loaded machine; nothing is measured by it.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Starts steering, with the object that `SLUICE_BPF_OBJECT` names if it is set.
pub fn start(log: KernelLog) -> Steering {
    let started = match std::env::var_os("SLUICE_BPF_OBJECT") {
        Some(path) => Steering::start_object(&fs::read(path).unwrap(), log),
        None => Steering::start(log),
    };
    started.unwrap_or_else(|unfit| panic!("{unfit}"))
}

/// Reads `ip:port`.
pub fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// One address and port.
pub fn one(text: &str) -> VirtualAddress {
    let at = address(text);
    let prefix = if at.is_ipv4() { 32 } else { 128 };
    VirtualAddress { address: at.ip(), prefix, port: at.port() }
}

/// A block of addresses and a port.
pub fn block(address: &str, prefix: u8, port: u16) -> VirtualAddress {
    VirtualAddress { address: address.parse::<IpAddr>().unwrap(), prefix, port }
}

/// `count` sockets that listen at one address, as one SO_REUSEPORT group; v6 ones are dual-stack.
pub fn group(count: usize, at: &str) -> Vec<TcpListener> {
    let mut at = address(at);
    (0..count)
        .map(|_| {
            let socket = Socket::new(Domain::for_address(at), Type::STREAM, None).unwrap();
            socket.set_reuse_port(true).unwrap();
            if at.is_ipv6() {
                socket.set_only_v6(false).unwrap();
            }
            socket.bind(&at.into()).unwrap();
            socket.listen(4096).unwrap();
            socket.set_nonblocking(true).unwrap();
            let listener = TcpListener::from(socket);
            at = listener.local_addr().unwrap();
            listener
        })
        .collect()
}

/// Connects.
pub fn dial(to: &str) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&address(to), PATIENCE)
}

/// Connects, and must be refused.
pub fn refused(to: &str) {
    match dial(to) {
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{to}"),
        Ok(_) => panic!("{to} is not refused"),
    }
}

/// Accepts a connection that is on its way.
pub fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok(accepted) => return accepted,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("accept: {error}"),
        }
        assert!(Instant::now() < deadline, "no connection arrived");
        // A listener that a test bound plainly would block for ever.
        SockRef::from(listener).set_nonblocking(true).unwrap();
        thread::yield_now();
    }
}

/// Whether no connection waits to be accepted.
pub fn nothing_waits(listener: &TcpListener) -> bool {
    listener.accept().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Closes sockets and waits until the kernel has: while another test starts a process, that one
/// holds copies of them for a moment.
pub fn close(listeners: Vec<TcpListener>) {
    let inode = |listener: &TcpListener| {
        fs::metadata(format!("/proc/self/fd/{}", listener.as_raw_fd())).unwrap().ino().to_string()
    };
    let inodes: BTreeSet<String> = listeners.iter().map(inode).collect();
    drop(listeners);
    let deadline = Instant::now() + PATIENCE;
    let open = |table: &str| {
        let table = fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap();
        table.lines().any(|line| line.split_whitespace().nth(9).is_some_and(|i| inodes.contains(i)))
    };
    while open("tcp") || open("tcp6") {
        assert!(Instant::now() < deadline, "a listening socket stays");
        thread::yield_now();
    }
}

/// Accepts `total` connections and says how many each worker got.
pub fn drain(workers: &[TcpListener], total: usize) -> Vec<usize> {
    let mut counts = vec![0; workers.len()];
    let deadline = Instant::now() + PATIENCE;
    while counts.iter().sum::<usize>() < total {
        assert!(Instant::now() < deadline, "{counts:?} arrived of {total}");
        for (worker, count) in workers.iter().zip(&mut counts) {
            while worker.accept().is_ok() {
                *count += 1;
            }
        }
    }
    assert!(workers.iter().all(nothing_waits), "more than {total} arrived");
    counts
}

/// Steered, retried and dropped, of all listeners together.
pub fn counters(steering: &Steering) -> (u64, u64, u64) {
    let all = steering.counters().unwrap();
    let sum = |of: fn(&ListenerCounters) -> u64| all.iter().map(of).sum();
    (sum(|c| c.steered), sum(|c| c.retried), sum(|c| c.dropped))
}
