//! Many clients at once that send slowly, or do not read: the others are served, memory stays bounded, and who
//! does not behave is let go in time.
//!
//! `cargo xtask reliability hostile` has them by the thousand, and compares latencies.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sluice_tests::client::{Client, chat};
use sluice_tests::engine::{Gpu, Options, Server};
use sluice_tests::gateway::{Gateway, PATIENCE, Plan, pods};
use sluice_tests::hostile::Attack;

use crate::recorder::Recorder;

#[test]
fn field_report_41_slow_and_mute_clients_cost_the_others_nothing() {
    let options = Options { speed: 20.0, ..Options::on(&Gpu::default()) };
    let engines = Server::start_all(vec![options]).unwrap();
    let large = Recorder::answering(large_answer());
    let mut plan = Plan::pool("base", &engines).spec(
        "  limits: {headerTimeout: 2s, bodyTimeout: 2s, idleTimeout: 2s, streamIdleTimeout: 2s}",
    );
    plan.pools.push(("large".into(), vec![large.addr]));
    let gateway = Gateway::start(&plan);
    let before = gateway.resident();
    let every = Duration::from_millis(100);
    let attack = Attack { slow_heads: 300, slow_bodies: 300, mute: 60, every, again: false };
    let count = attack.count() as u64;
    let running = attack.start(gateway.address, "large");
    let begun = Instant::now();
    let mut client = Client::connect(gateway.address);
    let (mut answered, mut at_once, mut most) = (0_u64, 0, 0);
    loop {
        client.post("/v1/chat/completions", &chat("base", 2, answered % 2 == 0));
        let response = client.response();
        assert_eq!((response.status, response.complete), (200, true), "{}", response.text());
        answered += 1;
        at_once = at_once.max(running.seen.open());
        most = most.max(gateway.resident());
        let opened = running.seen.opened.load(Ordering::Relaxed);
        if opened == count && gateway.status()["connections"] == 1 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{} are still there", running.seen.open());
    }
    assert!(at_once > count / 2, "only {at_once} at once");
    assert!(answered > 10, "only {answered} requests were answered meanwhile");
    // For each: a few KiB of its own, and for those that do not read, what is on the way to them.
    assert!(most < before + 100_000_000, "{} bytes more than before", most - before);
    let status = gateway.wait_idle();
    assert_eq!(status["buffered_bytes"], 0);
    assert!(pods(&status).all(|pod| pod["in_flight"] == 0));
    let slow = gateway.metric("sluice_gateway_refused_total{reason=\"slow\"}");
    assert_eq!(slow, Some(600.0));
    drop(running);
}

/// 2 MB, in one piece.
fn large_answer() -> Vec<u8> {
    let mut answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2000000\r\n\r\n".to_vec();
    answer.resize(answer.len() + 2_000_000, b'x');
    answer
}
