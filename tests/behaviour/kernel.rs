//! What the daemon has of the kernel beside steering: scores, the programs' log, the probe, and
//! what a process may do with which capabilities.

#![allow(clippy::panic, clippy::unwrap_used, reason = "helpers of tests fail by panic as tests do")]

use std::collections::BTreeSet;
use std::io;

use gateway_user::config::KernelLog;
use gateway_user::kernel::{Publication, ScoreEntry, Steering, Unfit, probe};
use sluice_tests::netns;
use sluice_tests::steering::{
    BLOCKS, accept, address, close, counters, dial, group, one, refused, start,
};

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
        steering.start_direct().unwrap();
        steering.watch_servers().unwrap();
        unavailable(&["capabilities", "local", "splice"]);
        drop(steering);

        keep_capabilities(&[CAP_BPF]);
        let unfit = Steering::start(KernelLog::Off).map(|_| ()).unwrap_err();
        assert!(matches!(&unfit, Unfit::Capability { missing } if missing == "CAP_NET_ADMIN"));
        keep_capabilities(&[]);
        let unfit = Steering::start(KernelLog::Off).map(|_| ()).unwrap_err();
        assert_eq!(unfit.to_string(), "this process lacks CAP_BPF and CAP_NET_ADMIN");
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
            "local",
            "splice",
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
