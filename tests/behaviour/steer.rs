//! Steering by sk_lookup, each test in a network namespace of its own.

#![allow(clippy::panic, clippy::unwrap_used, reason = "helpers of tests fail by panic as tests do")]

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gateway_user::config::KernelLog;
use gateway_user::kernel::{ListenerCounters, SteerError};
use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;
use sluice_tests::netns;
use sluice_tests::steering::{
    BLOCKS, PATIENCE, accept, address, block, close, counters, dial, drain, group, nothing_waits,
    one, refused, start,
};
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

/// An IPv4-mapped address as IPv4.
fn plain(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip().to_canonical(), at.port())
}

fn stay_on_one_cpu() {
    let mut one = CpuSet::new();
    one.set(sched_getcpu().unwrap()).unwrap();
    sched_setaffinity(Pid::from_raw(0), &one).unwrap();
}
