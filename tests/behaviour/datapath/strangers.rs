//! Traffic that is none of the gateway's: other servers and clients on the same ports, and clients
//! that ask the pods themselves. It passes untouched while streams flow.

use std::net::{SocketAddr, TcpListener};
use std::thread;

use sluice_tests::gateway::Gateway;
use sluice_tests::script::ScriptPod;
use sluice_tests::soak::{Progress, Traffic};

use super::{Carrier, assert_nothing_left};

pub(super) fn other_sockets_on_the_same_ports_are_left_alone(carrier: Carrier) {
    let pods = ScriptPod::start_all(2);
    let gateway = carrier.gateway(&pods);
    // On a pod's port and on the gateway's, at other addresses of this machine.
    let strangers: Vec<ScriptPod> = [
        ("127.0.0.2", pods[0].address.port()),
        ("127.0.0.3", pods[1].address.port()),
        ("127.0.0.2", gateway.address.port()),
    ]
    .iter()
    .map(|(address, port)| {
        let at = SocketAddr::new(address.parse().unwrap(), *port);
        ScriptPod::serve(7, TcpListener::bind(at).unwrap())
    })
    .collect();
    all_at_once(carrier, &gateway, strangers.iter().map(|stranger| stranger.address));
}

pub(super) fn other_clients_of_the_pods_are_left_alone(carrier: Carrier) {
    let pods = ScriptPod::start_all(2);
    let gateway = carrier.gateway(&pods);
    all_at_once(carrier, &gateway, pods.iter().map(|pod| pod.address));
}

/// Traffic to the gateway and straight to these servers at the same time, all of it exact.
fn all_at_once(
    carrier: Carrier,
    gateway: &Gateway,
    straight: impl IntoIterator<Item = SocketAddr>,
) {
    let own = Progress::default();
    thread::scope(|scope| {
        let traffic = Traffic { requests: 150, length: 20_000, ..Traffic::mixed(5) };
        let run = |address, traffic: Traffic, progress: &Progress| {
            traffic.run(address, progress).unwrap_or_else(|problem| panic!("{address}: {problem}"));
        };
        for (number, address) in straight.into_iter().enumerate() {
            let seed = 60 + number as u64;
            let traffic = Traffic { seed, connections: 3, straight: true, ..traffic };
            scope.spawn(move || run(address, traffic, &Progress::default()));
        }
        run(gateway.address, traffic, &own);
    });
    carrier.assert_moved(gateway, 100_000);
    if carrier != Carrier::Relay {
        // Nothing is counted that did not come to a client of the gateway.
        let (moved, came) = (carrier.moved(gateway), own.counts().bytes as f64);
        assert!(moved <= came, "the kernel moved {moved} bytes and {came} came");
    }
    assert_nothing_left(gateway);
}
