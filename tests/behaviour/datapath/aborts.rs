//! Clients and pods that leave at any moment, thousands of times: nothing is left of them.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use sluice_tests::gateway::{Gateway, PATIENCE};
use sluice_tests::script::{Script, ScriptPod};
use sluice_tests::soak::{Progress, ScriptClient, Traffic};

use super::{Carrier, assert_nothing_left, exact};

pub(super) fn nothing_is_left_of_two_thousand_requests_with_aborts_on_both_sides(carrier: Carrier) {
    let pods = ScriptPod::start_all(4);
    let gateway = carrier.gateway(&pods);
    // What is made once and stays.
    for id in 0..8 {
        exact(&mut ScriptClient::connect(gateway.address), &Script::new(id, 1000));
    }
    assert_nothing_left(&gateway);
    let before = descriptors(&gateway, &pods);
    let traffic = Traffic {
        connections: 16,
        requests: 2000,
        length: 5000,
        aborts: true,
        ..Traffic::mixed(3)
    };
    let progress = Progress::default();
    traffic.run(gateway.address, &progress).unwrap_or_else(|problem| panic!("{problem}"));
    let counts = progress.counts();
    assert!(counts.left > 200 && counts.cut > 200 && counts.whole > 500, "{counts:?}");
    assert_nothing_left(&gateway);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (after, busy) =
            (descriptors(&gateway, &pods), pods.iter().map(ScriptPod::busy).sum::<u64>());
        if after <= before && busy == 0 {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "{after} descriptors where {before} were before, {busy} pods still answer"
        );
        thread::sleep(Duration::from_millis(50));
    }
    carrier.assert_moved(&gateway, 100_000);
    // And it works as before.
    exact(&mut ScriptClient::connect(gateway.address), &Script::new(9, 5000));
}

/// The gateway's descriptors, without established connections to pods, which it keeps.
fn descriptors(gateway: &Gateway, pods: &[ScriptPod]) -> usize {
    let process = format!("/proc/{}", gateway.pid());
    let ports: BTreeSet<u16> = pods.iter().map(|pod| pod.address.port()).collect();
    let kept: BTreeSet<String> = ["tcp", "tcp6"]
        .iter()
        .flat_map(|table| {
            let table = fs::read_to_string(format!("{process}/net/{table}")).unwrap_or_default();
            table.lines().filter_map(|line| inode_to(&ports, line)).collect::<Vec<_>>()
        })
        .collect();
    let open = fs::read_dir(format!("{process}/fd")).unwrap();
    open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| !kept.contains(target.to_string_lossy().as_ref()))
        .count()
}

/// The socket of a line of `/proc/net/tcp`, if it is an established connection to one of the ports.
fn inode_to(ports: &BTreeSet<u16>, line: &str) -> Option<String> {
    let mut fields = line.split_whitespace().skip(2);
    let (remote, state) = (fields.next()?, fields.next()?);
    let port = u16::from_str_radix(remote.split(':').nth(1)?, 16).ok()?;
    let inode = fields.nth(5)?;
    (state == "01" && ports.contains(&port)).then(|| format!("socket:[{inode}]"))
}
