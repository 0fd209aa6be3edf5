//! Steering by sk_lookup, each test in a network namespace of its own.
//!
//! `SLUICE_BPF_OBJECT` names another build of the kernel programs to test instead of the embedded
//! one.

#![allow(clippy::panic, clippy::unwrap_used, reason = "helpers of tests fail by panic as tests do")]

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use gateway_user::config::{KernelLog, VirtualAddress};
use gateway_user::kernel::{
    ListenerCounters, Publication, ScoreEntry, SteerError, Steering, Unfit, probe,
};
use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;
use sluice_tests::netns;
use socket2::{Domain, SockRef, Socket, Type};

#[test]
fn connections_to_addresses_that_nobody_bound_arrive() {
    netns::run(BLOCKS, || {
        let workers = group(1, "[::]:0");
        let mut steering = start(KernelLog::Off);
        let dialled = ["10.9.0.1:80", "10.9.7.7:8443", "[fd09::1]:80", "[fd09::2:3]:1"];
        let destinations: Vec<_> = dialled.iter().map(|to| one(to)).collect();
        for to in dialled {
            refused(to);
        }
        steering.set_listener(0, &destinations, &workers).unwrap();
        for to in dialled {
            let client = dial(to).unwrap();
            let (server, _) = accept(&workers[0]);
            // The worker sees the address that was dialled, not the one that it listens on.
            assert_eq!(plain(server.local_addr().unwrap()), to.parse().unwrap());
            assert_eq!(plain(server.peer_addr().unwrap()), client.local_addr().unwrap());
        }
    });
}

#[test]
fn the_longest_block_decides() {
    netns::run(BLOCKS, || {
        let [a, b] = [group(1, "[::]:0"), group(1, "[::]:0")];
        let mut steering = start(KernelLog::Off);
        let to_a = [block("10.9.0.0", 24, 80), one("10.9.0.200:80"), block("fd09::", 64, 80)];
        let to_b = [block("10.9.0.128", 25, 80), one("10.9.0.1:81"), one("[fd09::5]:80")];
        steering.set_listener(7, &to_a, &a).unwrap();
        steering.set_listener(63, &to_b, &b).unwrap();
        let table = [
            ("10.9.0.1:80", Some('a')),
            ("10.9.0.127:80", Some('a')),
            ("10.9.0.128:80", Some('b')),
            ("10.9.0.199:80", Some('b')),
            ("10.9.0.200:80", Some('a')),
            ("10.9.0.201:80", Some('b')),
            ("10.9.1.0:80", None),
            ("10.9.0.1:81", Some('b')),
            ("10.9.0.2:81", None),
            ("10.9.0.1:20480", None), // 80 with its bytes swapped
            ("[fd09::1]:80", Some('a')),
            ("[fd09::5]:80", Some('b')),
            ("[fd09::5]:81", None),
            ("[fd09:0:0:1::1]:80", None),
        ];
        for (to, want) in table {
            let Some(want) = want else {
                refused(to);
                continue;
            };
            let _client = dial(to).unwrap_or_else(|error| panic!("{to}: {error}"));
            let (server, other) = if want == 'a' { (&a, &b) } else { (&b, &a) };
            accept(&server[0]);
            assert!(nothing_waits(&other[0]), "{to} reached both");
        }
    });
}

#[test]
fn what_is_not_registered_is_left_alone() {
    netns::run(BLOCKS, || {
        let workers = group(2, "[::]:0");
        let mut steering = start(KernelLog::Off);
        steering.set_listener(0, &[one("10.9.0.1:80")], &workers).unwrap();
        for own in ["10.9.0.1:81", "10.9.0.2:80", "127.0.0.1:80", "[::1]:80"] {
            let listener = TcpListener::bind(own).unwrap();
            let _client = dial(own).unwrap();
            accept(&listener);
        }
        assert!(workers.iter().all(nothing_waits));
        assert_eq!(counters(&steering), (0, 0, 0));
    });
}

#[test]
fn a_registered_destination_goes_to_the_workers_although_another_listens_there() {
    netns::run(BLOCKS, || {
        let stranger = group(1, "10.9.0.1:80");
        let workers = group(1, "127.0.0.1:0");
        let mut steering = start(KernelLog::Off);
        steering.set_listener(0, &[one("10.9.0.1:80")], &workers).unwrap();
        let _client = dial("10.9.0.1:80").unwrap();
        accept(&workers[0]);
        assert!(nothing_waits(&stranger[0]));
    });
}

#[test]
fn workers_get_exactly_the_same() {
    netns::run(BLOCKS, || {
        // All packets of the loopback interface are handled where they are sent: on one CPU here.
        stay_on_one_cpu();
        let workers = group(4, "[::]:0");
        let mut steering = start(KernelLog::Off);
        steering.set_listener(0, &[one("10.9.0.1:80"), one("[fd09::1]:80")], &workers).unwrap();
        let _clients: Vec<_> = (0..400)
            .map(|i| dial(if i % 3 == 0 { "[fd09::1]:80" } else { "10.9.0.1:80" }).unwrap())
            .collect();
        assert_eq!(drain(&workers, 400), [100; 4]);
        assert_eq!(counters(&steering), (400, 0, 0));
    });
}

#[test]
fn workers_differ_by_no_more_than_the_number_of_cpus() {
    netns::run(BLOCKS, || {
        let workers = group(4, "[::]:0");
        let mut steering = start(KernelLog::Off);
        steering.set_listener(0, &[one("10.9.0.1:80")], &workers).unwrap();
        let dialers: Vec<_> = (0..8)
            .map(|_| {
                thread::spawn(|| (0..50).map(|_| dial("10.9.0.1:80").unwrap()).collect::<Vec<_>>())
            })
            .collect();
        let _clients: Vec<_> = dialers.into_iter().map(|dialer| dialer.join().unwrap()).collect();
        let counts = drain(&workers, 400);
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        let cpus = thread::available_parallelism().unwrap().get();
        assert!(most - least <= cpus, "{counts:?} on {cpus} CPUs");
        assert_eq!(counters(&steering), (400, 0, 0));
    });
}

#[test]
fn a_worker_that_closed_is_passed_over() {
    netns::run(BLOCKS, || {
        stay_on_one_cpu();
        // Of four, those that live; what each of them gets of 40; slots passed over for that.
        let table: [(&[usize], &[usize], u64); 4] = [
            (&[0, 3], &[10, 30], 30),
            (&[0, 1], &[30, 10], 30),
            (&[1], &[40], 60),
            (&[1, 2, 3], &[20, 10, 10], 10),
        ];
        for (live, got, retried) in table {
            let mut steering = start(KernelLog::Off);
            let mut workers = group(4, "[::]:0");
            steering.set_listener(0, &[one("10.9.0.1:80")], &workers).unwrap();
            let mut place = 0..;
            close(workers.extract_if(.., |_| !live.contains(&place.next().unwrap())).collect());
            let _clients: Vec<_> = (0..40).map(|_| dial("10.9.0.1:80").unwrap()).collect();
            assert_eq!(drain(&workers, 40), got, "{live:?}");
            assert_eq!(counters(&steering), (40, retried, 0), "{live:?}");
        }
    });
}

#[test]
fn with_all_workers_closed_clients_are_refused_and_no_stranger_gets_them() {
    netns::run(BLOCKS, || {
        let stranger = group(1, "10.9.0.1:80");
        let workers = group(3, "127.0.0.1:0");
        let mut steering = start(KernelLog::Off);
        steering.set_listener(0, &[one("10.9.0.1:80")], &workers).unwrap();
        close(workers);
        for _ in 0..5 {
            refused("10.9.0.1:80");
        }
        assert!(nothing_waits(&stranger[0]));
        assert_eq!(counters(&steering), (0, 15, 5));
    });
}

#[test]
fn as_many_workers_as_there_may_be() {
    netns::run(BLOCKS, || {
        let mut workers = group(256, "127.0.0.1:0");
        let mut steering = start(KernelLog::Off);
        steering.set_listener(63, &[one("10.9.0.1:80")], &workers).unwrap();
        // Whatever the turn, the one that lives is found.
        let last = workers.pop().unwrap();
        close(workers);
        for _ in 0..3 {
            let _client = dial("10.9.0.1:80").unwrap();
            accept(&last);
        }
        assert_eq!(counters(&steering).2, 0);
    });
}

#[test]
fn dropped_it_leaves_nothing_behind() {
    netns::run(BLOCKS, || {
        let ordinary = group(1, "10.9.0.1:80");
        let workers = group(1, "127.0.0.1:0");
        let mut steering = start(KernelLog::Off);
        steering.set_listener(0, &[one("10.9.0.1:80"), one("10.9.0.2:80")], &workers).unwrap();
        drop(steering);
        let _client = dial("10.9.0.1:80").unwrap();
        accept(&ordinary[0]);
        refused("10.9.0.2:80");
        assert!(nothing_waits(&workers[0]));
    });
}

#[test]
fn dropped_it_steers_no_more_though_a_child_holds_its_descriptors() {
    netns::run(BLOCKS, || {
        let ordinary = group(1, "10.9.0.1:80");
        let workers = group(1, "127.0.0.1:0");
        let mut steering = start(KernelLog::Off);
        steering.set_listener(0, &[one("10.9.0.1:80")], &workers).unwrap();

        let (mut forked, mut say_forked) = io::pipe().unwrap();
        let (mut wait, mut go_on) = io::pipe().unwrap();
        let child = thread::spawn(move || {
            let mut command = Command::new("true");
            // SAFETY: between fork and exec the closure makes a write and a read call and nothing
            // else.
            unsafe {
                command.pre_exec(move || {
                    say_forked.write_all(b"!")?;
                    wait.read_exact(&mut [0])
                });
            }
            command.status().unwrap()
        });
        forked.read_exact(&mut [0]).unwrap();
        drop(steering);
        let client = dial("10.9.0.1:80");
        go_on.write_all(b"!").unwrap();
        assert!(child.join().unwrap().success());
        client.unwrap();
        accept(&ordinary[0]);
    });
}

#[test]
fn what_is_taken_out_is_left_alone_again() {
    netns::run(BLOCKS, || {
        let [two, three] = [group(1, "10.9.0.2:80"), group(1, "10.9.0.3:80")];
        let workers = group(1, "127.0.0.1:0");
        let mut steering = start(KernelLog::Off);
        let both = [one("10.9.0.1:80"), one("10.9.0.2:80")];
        steering.set_listener(0, &both, &workers).unwrap();
        steering.set_listener(1, &[one("10.9.0.3:80")], &workers).unwrap();
        for to in ["10.9.0.2:80", "10.9.0.3:80"] {
            dial(to).unwrap();
            accept(&workers[0]);
        }
        steering.set_listener(0, &both[..1], &workers).unwrap();
        steering.remove_listener(1).unwrap();
        steering.remove_listener(5).unwrap();
        dial("10.9.0.2:80").unwrap();
        accept(&two[0]);
        dial("10.9.0.3:80").unwrap();
        accept(&three[0]);
        dial("10.9.0.1:80").unwrap();
        accept(&workers[0]);
    });
}

#[test]
fn no_connection_is_refused_while_sockets_are_replaced() {
    netns::run(BLOCKS, || {
        let mut steering = start(KernelLog::Off);
        let mut current = group(3, "127.0.0.1:0");
        steering.set_listener(0, &[one("10.9.0.1:80")], &current).unwrap();

        let stop = Arc::new(AtomicBool::new(false));
        let dialled: Vec<_> = (0..2).map(|_| Arc::<AtomicUsize>::default()).collect();
        let dialers: Vec<_> = dialled
            .iter()
            .map(|dialled| {
                let (stop, dialled) = (stop.clone(), dialled.clone());
                thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let client = dial("10.9.0.1:80")?;
                        dialled.fetch_add(1, Ordering::Relaxed);
                        // Closed by reset: thousands in TIME-WAIT would leave no port to dial from.
                        SockRef::from(&client).set_linger(Some(Duration::ZERO))?;
                        // Slower than the test accepts, so that no accept queue overflows.
                        thread::sleep(Duration::from_micros(100));
                    }
                    Ok::<_, io::Error>(())
                })
            })
            .collect();
        // Accepts until every dialer has made some more connections.
        let go_on = |sockets: &[&TcpListener]| {
            let goals: Vec<_> = dialled.iter().map(|d| d.load(Ordering::Relaxed) + 5).collect();
            let deadline = Instant::now() + PATIENCE;
            while dialled.iter().zip(&goals).any(|(d, goal)| d.load(Ordering::Relaxed) < *goal) {
                assert!(Instant::now() < deadline, "a connection was refused or lost");
                for socket in sockets {
                    while socket.accept().is_ok() {}
                }
                thread::yield_now();
            }
        };
        for round in 0..30 {
            let next = group(32 + round % 4, "127.0.0.1:0");
            // The other address comes and goes; the first stays through all of it.
            let both = [one("10.9.0.1:80"), one("10.9.0.2:80")];
            steering.set_listener(0, &both[..1 + round % 2], &next).unwrap();
            // Handshakes that the former sockets had begun are theirs to end; then nothing comes
            // there.
            go_on(&current.iter().chain(&next).collect::<Vec<_>>());
            go_on(&next.iter().collect::<Vec<_>>());
            for former in &current {
                while former.accept().is_ok() {}
            }
            go_on(&next.iter().collect::<Vec<_>>());
            assert!(current.iter().all(nothing_waits), "a former socket still gets connections");
            current = next;
        }
        stop.store(true, Ordering::Relaxed);
        for dialer in dialers {
            dialer.join().unwrap().unwrap();
        }
        assert_eq!(counters(&steering).2, 0);
    });
}

#[test]
fn what_does_not_fit_is_told_and_changes_nothing() {
    netns::run(BLOCKS, || {
        let dual = group(2, "[::]:0");
        let v4 = group(1, "127.0.0.1:0");
        let v6_only = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
        v6_only.set_only_v6(true).unwrap();
        v6_only.bind(&address("[::]:0").into()).unwrap();
        let silent = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        silent.bind(&address("127.0.0.1:0").into()).unwrap();
        v6_only.listen(8).unwrap();
        let datagram = [std::net::UdpSocket::bind("127.0.0.1:0").unwrap()];
        let crowd: Vec<_> = (0..257).map(|_| &v4[0]).collect();

        let mut steering = start(KernelLog::Off);
        steering.set_listener(0, &[one("10.9.0.1:80")], &dual).unwrap();
        steering.set_listener(1, &[block("10.9.2.0", 24, 80)], &dual).unwrap();

        let four = [one("10.9.0.2:80")];
        let six = [one("[fd09::1]:80")];
        let said = |result: Result<(), SteerError>| result.unwrap_err().to_string();
        assert_eq!(
            said(steering.set_listener(64, &four, &dual)),
            "listener 64: numbers end below 64"
        );
        assert_eq!(
            said(steering.set_listener(0, &[block("10.9.0.0", 33, 80)], &dual)),
            "10.9.0.0/33 is no block of addresses"
        );
        assert_eq!(
            said(steering.set_listener(0, &[block("10.9.2.77", 24, 80)], &dual)),
            "10.9.2.77/24 port 80 belongs to listener 1"
        );
        assert_eq!(
            said(steering.set_listener(0, &six, &v4)),
            "socket 0 takes no IPv6 connections, but a destination is IPv6"
        );
        assert_eq!(
            said(steering.set_listener(0, &four, &[&v6_only])),
            "socket 0 takes no IPv4 connections, but a destination is IPv4"
        );
        assert_eq!(
            said(steering.set_listener(0, &four, &[&silent])),
            "socket 0 is no TCP socket that listens"
        );
        assert_eq!(
            said(steering.set_listener(0, &four, &datagram)),
            "socket 0 is no TCP socket that listens"
        );
        assert_eq!(
            said(steering.set_listener(0, &four, &crowd)),
            "257 sockets: a listener has 1 to 256"
        );
        let none: [TcpListener; 0] = [];
        assert_eq!(
            said(steering.set_listener(0, &four, &none)),
            "0 sockets: a listener has 1 to 256"
        );
        let many: Vec<_> = (0..4096u16).map(|port| block("10.9.3.0", 24, port)).collect();
        assert_eq!(said(steering.set_listener(0, &many, &dual)), "more than 4096 destinations");

        let _client = dial("10.9.0.1:80").unwrap();
        drain(&dual, 1);
        refused("10.9.0.2:80");
        // One less, as the other listener has one, is what fits.
        steering.set_listener(0, &many[1..], &dual).unwrap();
        let _client = dial("10.9.3.3:4095").unwrap();
        drain(&dual, 1);
        refused("10.9.0.1:80");
    });
}

#[test]
fn the_later_of_two_gateways_takes_over_and_hands_back() {
    netns::run(BLOCKS, || {
        let [old, new] = [group(1, "127.0.0.1:0"), group(1, "127.0.0.1:0")];
        let to = [one("10.9.0.1:80")];
        let mut first = start(KernelLog::Off);
        first.set_listener(0, &to, &old).unwrap();
        let mut second = start(KernelLog::Off);
        let _client = dial("10.9.0.1:80").unwrap();
        accept(&old[0]);
        second.set_listener(0, &to, &new).unwrap();
        let _client = dial("10.9.0.1:80").unwrap();
        accept(&new[0]);
        drop(second);
        let _client = dial("10.9.0.1:80").unwrap();
        accept(&old[0]);
    });
}

#[test]
fn counters_are_kept_by_listener() {
    netns::run(BLOCKS, || {
        let [a, b] = [group(2, "127.0.0.1:0"), group(1, "127.0.0.1:0")];
        let mut steering = start(KernelLog::Off);
        steering.set_listener(3, &[one("10.9.0.3:80")], &a).unwrap();
        steering.set_listener(1, &[one("10.9.0.1:80")], &b).unwrap();
        let _clients: Vec<_> = (0..5).map(|_| dial("10.9.0.3:80").unwrap()).collect();
        close(b);
        refused("10.9.0.1:80");
        let want = [
            ListenerCounters { listener: 1, steered: 0, retried: 1, dropped: 1 },
            ListenerCounters { listener: 3, steered: 5, retried: 0, dropped: 0 },
        ];
        assert_eq!(steering.counters().unwrap(), want);
    });
}

#[test]
fn scores_are_published_and_read_back() {
    netns::run(BLOCKS, || {
        let entry = |pool, endpoint: &str, score| ScoreEntry {
            pool,
            endpoint: address(endpoint),
            score,
            in_flight: pool + 40,
            ready: pool % 2 == 0,
            fresh: score > 1.0,
        };
        let read = |steering: &Steering| -> Vec<ScoreEntry> {
            steering.scores().unwrap().iter().map(|published| published.entry).collect()
        };
        let did = |written, removed, left_out| Publication { written, removed, left_out };
        let mut steering = start(KernelLog::Off);
        assert_eq!(read(&steering), []);

        let mut pods = vec![
            entry(0, "10.0.0.1:8000", 0.5),
            entry(0, "[2001:db8::1]:8000", 7.25),
            entry(1, "10.0.0.1:8000", 1.0),
        ];
        assert_eq!(steering.publish(&pods).unwrap(), did(3, 0, 0));
        let mut seen = read(&steering);
        seen.sort_by_key(|entry| (entry.pool, entry.endpoint));
        assert_eq!(seen, pods);

        pods.remove(1);
        pods[0].score = 0.75;
        let done = steering.publish(&pods).unwrap();
        assert_eq!(done.removed, 1);
        assert_eq!(read(&steering), pods);

        let crowd: Vec<_> = (0..4100).map(|i| entry(i, "10.0.0.9:80", 1.0)).collect();
        assert_eq!(steering.publish(&crowd).unwrap(), did(4096, 2, 4));
        assert_eq!(read(&steering), crowd[..4096]);
    });
}

#[test]
fn a_silent_program_is_smaller_and_says_nothing() {
    netns::run(BLOCKS, || {
        // Connections made and refused, to messages seen.
        let messages = |level| {
            let workers = group(1, "127.0.0.1:0");
            let mut steering = start(level);
            let mut log = steering.take_log().unwrap();
            assert!(steering.take_log().is_none());
            steering.set_listener(0, &[one("10.9.0.1:80")], &workers).unwrap();
            let _clients: Vec<_> = (0..3).map(|_| dial("10.9.0.1:80").unwrap()).collect();
            close(workers);
            refused("10.9.0.1:80");
            (steering.program_bytes().unwrap(), log.flush())
        };
        let (off, warn, debug) =
            (messages(KernelLog::Off), messages(KernelLog::Warn), messages(KernelLog::Debug));
        assert_eq!((off.1, warn.1, debug.1), (0, 1, 4));
        assert!(off.0 < warn.0 && warn.0 < debug.0, "{off:?} {warn:?} {debug:?}");
    });
}

#[test]
fn two_capabilities_are_enough_and_each_is_needed() {
    netns::run(BLOCKS, || {
        let workers = group(1, "127.0.0.1:0");
        keep_capabilities(&[CAP_BPF, CAP_NET_ADMIN]);
        let mut steering = start(KernelLog::Debug);
        steering.set_listener(0, &[one("10.9.0.1:80")], &workers).unwrap();
        let _client = dial("10.9.0.1:80").unwrap();
        accept(&workers[0]);
        steering.publish(&[]).unwrap();
        assert_eq!(counters(&steering), (1, 0, 0));
        unavailable(&[]);
        drop(steering);

        keep_capabilities(&[CAP_BPF]);
        let unfit = Steering::start(KernelLog::Off).map(|_| ()).unwrap_err();
        assert!(matches!(&unfit, Unfit::Capability { missing } if missing == "CAP_NET_ADMIN"));
        keep_capabilities(&[]);
        let unfit = Steering::start(KernelLog::Off).map(|_| ()).unwrap_err();
        assert_eq!(
            unfit.to_string(),
            "steering needs CAP_BPF and CAP_NET_ADMIN; this process lacks CAP_BPF and CAP_NET_ADMIN"
        );
        // What a map or a program is needed for does not work, and says why.
        unavailable(&[
            "capabilities",
            "sk_lookup",
            "listener_map",
            "sk_skb",
            "sk_msg",
            "sock_ops",
            "bpf_loop",
            "ring_buffer",
        ]);
    });
}

#[test]
fn a_foreign_object_is_refused_in_plain_words() {
    netns::run(BLOCKS, || {
        let unfit = Steering::start_object(b"not an object", KernelLog::Off).map(|_| ());
        let said = unfit.unwrap_err().to_string();
        assert!(said.starts_with("the object with the kernel programs does not fit"), "{said}");
    });
}

/// Blocks of addresses that are local in every test's namespace.
const BLOCKS: &[&str] = &["10.9.0.0/16", "fd09::/48"];

/// Long enough for a loaded machine; nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(10);

fn start(log: KernelLog) -> Steering {
    let started = match std::env::var_os("SLUICE_BPF_OBJECT") {
        Some(path) => Steering::start_object(&fs::read(path).unwrap(), log),
        None => Steering::start(log),
    };
    started.unwrap_or_else(|unfit| panic!("{unfit}"))
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// One address and port.
fn one(text: &str) -> VirtualAddress {
    let at = address(text);
    let prefix = if at.is_ipv4() { 32 } else { 128 };
    VirtualAddress { address: at.ip(), prefix, port: at.port() }
}

fn block(address: &str, prefix: u8, port: u16) -> VirtualAddress {
    VirtualAddress { address: address.parse::<IpAddr>().unwrap(), prefix, port }
}

/// `count` sockets that listen at one address, as one SO_REUSEPORT group; v6 ones are dual-stack.
fn group(count: usize, at: &str) -> Vec<TcpListener> {
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

fn dial(to: &str) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&address(to), PATIENCE)
}

fn refused(to: &str) {
    match dial(to) {
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{to}"),
        Ok(_) => panic!("{to} is not refused"),
    }
}

fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
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

fn nothing_waits(listener: &TcpListener) -> bool {
    listener.accept().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Closes sockets and waits until the kernel has: while another test starts a process, that one
/// holds copies of them for a moment.
fn close(listeners: Vec<TcpListener>) {
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
fn drain(workers: &[TcpListener], total: usize) -> Vec<usize> {
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
fn counters(steering: &Steering) -> (u64, u64, u64) {
    let all = steering.counters().unwrap();
    let sum = |of: fn(&ListenerCounters) -> u64| all.iter().map(of).sum();
    (sum(|c| c.steered), sum(|c| c.retried), sum(|c| c.dropped))
}

/// The probe finds exactly these features missing, and gives a reason for each feature.
fn unavailable(want: &[&str]) {
    let features = probe();
    assert!(features.iter().all(|feature| !feature.reason.is_empty()), "{features:?}");
    // Depends on the kernel's version, not on rights.
    let missing: BTreeSet<_> = features
        .iter()
        .filter(|feature| !feature.available && feature.name != "redirect_once")
        .map(|feature| feature.name)
        .collect();
    assert_eq!(missing, want.iter().copied().collect(), "{features:?}");
}

/// An IPv4-mapped address as IPv4.
fn plain(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip().to_canonical(), at.port())
}

fn stay_on_one_cpu() {
    let mut one = CpuSet::new();
    one.set(sched_getcpu().unwrap()).unwrap();
    sched_setaffinity(Pid::from_raw(0), &one).unwrap();
}

/// Leaves this thread these capabilities and no others.
fn keep_capabilities(keep: &[u32]) {
    // linux/capability.h, version 3: a header, then effective, permitted, inheritable for each
    // half.
    let header: [u32; 2] = [0x2008_0522, 0];
    let mut data = [0_u32; 6];
    // SAFETY: both pointers are to arrays of the layout and size that version 3 has.
    let got = unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()) };
    assert_eq!(got, 0, "capget: {}", io::Error::last_os_error());
    // What is permitted stays, so that a later call may pick others.
    let bits = keep.iter().fold(0_u64, |bits, cap| bits | 1 << cap);
    (data[0], data[3]) = (bits as u32, (bits >> 32) as u32);
    // SAFETY: as above.
    let set = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) };
    assert_eq!(set, 0, "capset: {}", io::Error::last_os_error());
}

const CAP_NET_ADMIN: u32 = 12;
const CAP_BPF: u32 = 39;
