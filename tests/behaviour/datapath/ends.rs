//! Streams that end otherwise than by their last byte: pods that die, pods that fall silent, a
//! gateway that is stopped or killed.

use std::io::{ErrorKind, Read as _};
use std::thread;
use std::time::Duration;

use sluice_tests::gateway::{Gateway, PATIENCE};
use sluice_tests::pod::{LAST, RawPod, Taken, chunk};
use sluice_tests::script::{End, FRAMES, Frame, Script, ScriptPod};
use sluice_tests::soak::{Pace, ScriptClient};

use super::{Carrier, assert_nothing_left, event, flowing, pass_events};

pub(super) fn a_pod_that_dies_is_seen_after_all_that_it_sent(carrier: Carrier) {
    let pod = RawPod::start();
    let gateway = carrier.raw_gateway(&pod);
    let ends: [(&str, fn(Taken)); 2] = [("FIN", Taken::close), ("RST", Taken::reset)];
    for (name, end) in ends {
        for within_a_chunk in [false, true] {
            let (mut client, mut taken) = flowing(&gateway, &pod, 30);
            if within_a_chunk {
                taken.send("ff\r\ndata: half");
                client.read_until("half");
            }
            end(taken);
            let mut rest = Vec::new();
            let _ = client.stream.read_to_end(&mut rest);
            assert_eq!(rest, b"", "{name}, within a chunk: {within_a_chunk}");
        }
        // With much of it on its way as the pod ends.
        let (mut client, mut taken) = flowing(&gateway, &pod, 30);
        let last: Vec<u8> = (30..400).flat_map(|number| chunk(event(number))).collect();
        taken.send(&last);
        if name == "RST" {
            // What its own system has not sent would be lost with it.
            client.read_until(&event(399));
            end(taken);
        } else {
            end(taken);
            client.read_until(&format!("{}\r\n", event(399)));
        }
        assert!(client.is_closed(), "{name}");
    }
    let aborted = "sluice_pool_requests_total{pool=\"pool-0\",outcome=\"aborted\"}";
    gateway.wait_metric(aborted, 6.0);
    carrier.assert_moved(&gateway, 6 * 15 * event(1).len() as u64);
    assert_nothing_left(&gateway);
}

pub(super) fn a_cut_anywhere_in_any_framing(carrier: Carrier) {
    let pods = ScriptPod::start_all(2);
    let gateway = carrier.gateway(&pods);
    let mut random = fastrand::Rng::with_seed(5);
    let mut id = 0;
    for frame in FRAMES {
        for _ in 0..12 {
            let length = random.u64(2000..40_000);
            let at = random.u64(300..length);
            for end in [End::Fin(at), End::Rst(at)] {
                let script = Script { frame, end, ..Script::new(id, length) };
                id += 1;
                let mut client = ScriptClient::connect(gateway.address);
                client.send(&script);
                let seen = client.answer(&script, Pace::FAST, u64::MAX);
                let seen = seen.unwrap_or_else(|problem| panic!("{problem}"));
                if frame == Frame::UntilClose && end == End::Fin(at) {
                    // It is the end of the body, as far as anyone can know.
                    assert_eq!(seen.bytes, at, "{seen:?}");
                    continue;
                }
                seen.judge(&script).unwrap_or_else(|problem| panic!("{problem}"));
            }
        }
    }
    carrier.assert_moved(&gateway, 10_000);
    assert_nothing_left(&gateway);
}

pub(super) fn a_silent_stream_is_ended(carrier: Carrier) {
    let pod = RawPod::start();
    let plan = carrier.plan([pod.address]).spec("  limits: {streamIdleTimeout: 2s}");
    let gateway = Gateway::start(&plan);
    let (mut client, mut taken) = flowing(&gateway, &pod, 20);
    // Slow is not silent: together this is longer than the limit.
    for number in 20..25 {
        thread::sleep(Duration::from_millis(500));
        pass_events(&mut client, &mut taken, number..number + 1);
    }
    assert!(client.is_closed());
    taken.wait_closed();
    let timed_out = "sluice_pool_requests_total{pool=\"pool-0\",outcome=\"timed_out\"}";
    gateway.wait_metric(timed_out, 1.0);
    // The slow ones, if the daemon was late with everything else.
    carrier.assert_moved(&gateway, 5 * event(1).len() as u64);
    assert_nothing_left(&gateway);
}

pub(super) fn streams_finish_after_sigterm(carrier: Carrier) {
    let pod = RawPod::start();
    let mut gateway = carrier.raw_gateway(&pod);
    let mut streams: Vec<_> = (0..4).map(|_| flowing(&gateway, &pod, 20)).collect();
    gateway.signal("TERM");
    gateway.wait("the stop to begin", |status| status["connections"] == 4);
    for (client, taken) in &mut streams {
        pass_events(client, taken, 20..60);
    }
    let count = streams.len();
    for (number, (mut client, mut taken)) in streams.into_iter().enumerate() {
        if number + 1 == count {
            // It still answers, and for those that are over it has counted.
            carrier.assert_moved(&gateway, 3 * 30 * event(1).len() as u64);
        }
        taken.send(LAST);
        assert_eq!(client.read_until(LAST), LAST);
        assert!(client.is_closed());
    }
    assert_eq!(gateway.wait_exit(PATIENCE).code(), Some(0));
    assert!(gateway.log().contains("0 connections were cut"), "{}", gateway.log());
}

pub(super) fn a_killed_gateway_breaks_its_streams_and_lets_go_of_the_pods(carrier: Carrier) {
    let pod = RawPod::start();
    for _ in 0..3 {
        let mut gateway = carrier.raw_gateway(&pod);
        let mut streams: Vec<_> = (0..4).map(|_| flowing(&gateway, &pod, 20)).collect();
        gateway.signal("KILL");
        assert_eq!(gateway.wait_exit(PATIENCE).code(), None);
        for (client, taken) in &mut streams {
            // Until its connection is gone the pod may write; none of it may pass for an end.
            let _ = taken.try_send(chunk(event(20)));
            let mut rest = Vec::new();
            let ended = client.stream.read_to_end(&mut rest);
            assert!(!rest.ends_with(LAST.as_bytes()));
            if let Err(error) = ended {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            }
        }
        for (_, mut taken) in streams {
            taken.stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let read = taken.stream.read(&mut [0; 16]);
            assert!(
                matches!(&read, Ok(0))
                    || matches!(&read, Err(e) if e.kind() == ErrorKind::ConnectionReset),
                "the pod's connection stays: {read:?}"
            );
        }
    }
}
