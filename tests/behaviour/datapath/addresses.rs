//! Pods and clients of every address family, in the gateway's network namespace and in another.

use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::sync::mpsc::channel;
use std::{fs, thread};

use sluice_tests::gateway::Gateway;
use sluice_tests::netns::{self, Neighbour};
use sluice_tests::script::{Script, ScriptPod};
use sluice_tests::soak::{Progress, ScriptClient, Traffic};
use socket2::{Domain, Socket, Type};

use super::{Carrier, assert_nothing_left, exact};

pub(super) fn pods_of_every_address_family(carrier: Carrier) {
    for (bound, asked) in [
        ("127.0.0.1:0", "127.0.0.1"),
        // A socket for both families, as servers that bind `::` have.
        ("[::]:0", "127.0.0.1"),
        ("[::]:0", "::1"),
        ("[::1]:0", "::1"),
        ("0.0.0.0:0", "127.0.0.1"),
    ] {
        let pod = ScriptPod::serve(0, listen(bound));
        let at = SocketAddr::new(asked.parse().unwrap(), pod.address.port());
        for own in ["127.0.0.1", "::", "::1"] {
            let mut plan = carrier.plan([at]);
            plan.address = own.parse().unwrap();
            let gateway = Gateway::start(&plan);
            let port = gateway.address.port();
            let clients: &[SocketAddr] = match own {
                "127.0.0.1" => &[SocketAddr::from(([127, 0, 0, 1], port))],
                "::1" => &[SocketAddr::from((Ipv6Addr::LOCALHOST, port))],
                _ => &[
                    SocketAddr::from(([127, 0, 0, 1], port)),
                    SocketAddr::from((Ipv6Addr::LOCALHOST, port)),
                ],
            };
            for (number, client) in clients.iter().enumerate() {
                let mut client = ScriptClient::connect(*client);
                for id in 0..3 {
                    // With pauses enough for a busy machine to hand over in one of them.
                    let script = Script::new(number as u32 * 10 + id, 20_000);
                    exact(&mut client, &Script { pauses: 500, ..script });
                }
            }
            carrier.assert_moved(&gateway, 1000);
            assert_nothing_left(&gateway);
        }
    }
}

/// A listening socket; one of IPv6 takes IPv4 too.
fn listen(at: &str) -> TcpListener {
    let at: SocketAddr = at.parse().unwrap();
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, None).unwrap();
    if at.is_ipv6() {
        socket.set_only_v6(false).unwrap();
    }
    socket.bind(&at.into()).unwrap();
    socket.listen(128).unwrap();
    socket.into()
}

pub(super) fn a_pod_in_another_namespace(carrier: Carrier) {
    carrier.apart(move || {
        let neighbour = Neighbour::start();
        let pods = neighbour.run(|| {
            ["10.8.0.2:0", "[fd08::2]:0", "[::]:0"]
                .iter()
                .enumerate()
                .map(|(number, at)| ScriptPod::serve(number, listen(at)))
                .collect::<Vec<_>>()
        });
        let at = |pod: &ScriptPod| match pod.address.ip().is_unspecified() {
            true => SocketAddr::from(([10, 8, 0, 2], pod.address.port())),
            false => pod.address,
        };
        let gateway = Gateway::start(&carrier.plan(pods.iter().map(at)));
        let traffic = Traffic { requests: 200, length: 20_000, ..Traffic::mixed(8) };
        let progress = Progress::default();
        traffic.run(gateway.address, &progress).unwrap_or_else(|problem| panic!("{problem}"));
        assert!(pods.iter().all(|pod| pod.answered() > 0));
        // A gateway that its clients reach from over there too.
        let mut plan = carrier.plan(pods.iter().map(at));
        plan.address = [10, 8, 0, 1].into();
        let reached = Gateway::start(&plan);
        let address = reached.address;
        neighbour.run(move || {
            let progress = Progress::default();
            traffic.run(address, &progress).unwrap_or_else(|problem| panic!("{problem}"));
        });
        for gateway in [gateway, reached] {
            carrier.assert_moved(&gateway, 100_000);
            assert_nothing_left(&gateway);
        }
    });
}

/// Two hosts of containers that know nothing of each other: what tells their connections apart is
/// the namespace and nothing else.
pub(super) fn twins_in_two_namespaces_with_the_same_addresses_and_ports(carrier: Carrier) {
    let twins: Vec<_> = (0..2)
        .map(|twin| {
            let (ready, is_ready) = channel();
            let (go, may_go) = channel::<()>();
            let name = thread::current().name().unwrap_or("twins").to_owned();
            let thread = thread::Builder::new().name(name).spawn(move || {
                netns::run(&[], move || {
                    // Few ports to dial from, so that both use the same.
                    let range = "/proc/sys/net/ipv4/ip_local_port_range";
                    fs::write(range, "40000 40063").unwrap();
                    let pod = ScriptPod::serve(twin, TcpListener::bind("127.0.0.1:8000").unwrap());
                    let mut plan = carrier.plan([pod.address]);
                    plan.ports = Some((8080, 9090));
                    let gateway = Gateway::start(&plan);
                    ready.send(()).unwrap();
                    may_go.recv().unwrap();
                    // Ids of its own: what comes from the other twin is seen to.
                    let mut random = fastrand::Rng::with_seed(twin as u64);
                    thread::scope(|scope| {
                        for client in 0..6 {
                            let seed = random.u32(0..1000);
                            scope.spawn(move || {
                                let first = twin as u32 * 1_000_000 + client * 1000 + seed;
                                let address = SocketAddr::from(([127, 0, 0, 1], 8080));
                                let mut client = ScriptClient::connect(address);
                                for id in first..first + 40 {
                                    let seen = exact(&mut client, &Script::new(id, 20_000));
                                    assert_eq!(seen.pod, Some(twin));
                                }
                            });
                        }
                    });
                    carrier.assert_moved(&gateway, 100_000);
                    assert_nothing_left(&gateway);
                });
            });
            (thread.unwrap(), is_ready, go)
        })
        .collect();
    for (_, is_ready, go) in &twins {
        // Without privileges there is nothing to wait for.
        if is_ready.recv().is_ok() {
            let _ = go.send(());
        }
    }
    for (thread, ..) in twins {
        thread.join().unwrap_or_else(|failed| std::panic::resume_unwind(failed));
    }
}
