//! Clients that leave in the middle of a stream, by FIN, RST or half a close: the pod is let go at
//! once and gets nothing more.

use std::thread;
use std::time::Duration;

use sluice_tests::client::Client;
use sluice_tests::gateway::Gateway;
use sluice_tests::pod::{RawPod, chunk};

use super::{Carrier, assert_nothing_left, event, flowing};

const WAYS: [(&str, fn(Client)); 3] = [
    ("closes", drop),
    ("resets", |client| {
        let socket = socket2::SockRef::from(&client.stream);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    }),
    ("half-closes", |client| {
        client.half_close();
        // Still open: it is not the close that ends the request.
        std::mem::forget(client);
    }),
];

pub(super) fn the_pod_is_let_go_when_the_client_leaves(carrier: Carrier) {
    let pod = RawPod::start();
    let gateway = carrier.raw_gateway(&pod);
    for (way, leave) in WAYS {
        // With nothing unread, so that a close is a FIN, and with something, so that it is a RST.
        for unread in [false, true] {
            let (client, mut taken) = flowing(&gateway, &pod, 30);
            if unread {
                taken.send([chunk(event(30)), chunk(event(31))].concat());
                thread::sleep(Duration::from_millis(20));
            }
            assert!(taken.stays(QUIET), "{way}, unread: {unread}: the gateway left first");
            leave(client);
            taken.wait_closed();
        }
    }
    let gone = "sluice_pool_requests_total{pool=\"pool-0\",outcome=\"client_gone\"}";
    gateway.wait_metric(gone, 6.0);
    carrier.assert_moved(&gateway, 6 * 10 * event(1).len() as u64);
    let status = gateway.wait_idle();
    assert_eq!(status["pools"][0]["pods"][0]["failures"], 0);
    assert_nothing_left(&gateway);
}

/// That it is at once is told by what else the gateway does meanwhile: it asks the pod for its metrics every
/// 10 ms. A machine that is busy with other things is late with both.
pub(super) fn the_pod_is_let_go_before_it_has_been_asked_ten_times(carrier: Carrier) {
    let pod = RawPod::start();
    let often = "    metrics: {busyInterval: 10ms, idleInterval: 10ms}";
    let gateway = Gateway::start(&carrier.plan([pod.address]).scheduler(often));
    let mut asked: Vec<u64> = WAYS
        .iter()
        .cycle()
        .take(9)
        .map(|(_, leave)| {
            let (client, taken) = flowing(&gateway, &pod, 20);
            let start = pod.asked();
            while pod.asked() < start + 2 {
                thread::sleep(Duration::from_millis(1));
            }
            let before = pod.asked();
            leave(client);
            taken.wait_closed();
            pod.asked() - before
        })
        .collect();
    asked.sort_unstable();
    // Of a single one this thread itself may have heard late.
    assert!(asked[asked.len() / 2] <= 10, "{asked:?}");
    carrier.assert_moved(&gateway, 9 * 5 * event(1).len() as u64);
    assert_nothing_left(&gateway);
}

pub(super) fn a_pod_that_writes_on_and_on_is_stopped_when_the_client_leaves(carrier: Carrier) {
    let pod = RawPod::start();
    let gateway = carrier.raw_gateway(&pod);
    // Often, as the pod may be told before the gateway has looked, and leave too: that is not its doing.
    for (_, leave) in WAYS.iter().cycle().take(LEAVES) {
        let (mut client, mut taken) = flowing(&gateway, &pod, 30);
        let writer = thread::spawn(move || {
            let mut number = 30;
            // It ends with the connection.
            while taken.try_send(chunk(event(number))).is_ok() {
                number += 1;
            }
            number
        });
        client.read_until(&event(200));
        leave(client);
        assert!(writer.join().unwrap() > 200);
    }
    carrier.assert_moved(&gateway, LEAVES as u64 * 20 * event(1).len() as u64);
    let gone = "sluice_pool_requests_total{pool=\"pool-0\",outcome=\"client_gone\"}";
    gateway.wait_metric(gone, LEAVES as f64);
    assert_nothing_left(&gateway);
}

const LEAVES: usize = 60;
/// Long enough to see that nothing comes.
const QUIET: Duration = Duration::from_millis(40);
