//! Segments that repeat what had come before, whole or in part, as after an acknowledgement that was lost. The
//! kernel hands them on as they are; the client gets each byte once.

use std::net::Ipv4Addr;
use std::ops::Range;

use sluice_tests::client::{Client, chat};
use sluice_tests::gateway::Gateway;
use sluice_tests::hand::{HandPod, HandTaken};
use sluice_tests::pod::{LAST, STREAM, chunk};
use sluice_tests::tun::Tun;

use super::{Carrier, assert_nothing_left, event};

/// Sends the answer's last event, which is at `at`, and repeats some of what was sent before.
struct Way {
    name: &'static str,
    send: fn(&HandTaken, Range<usize>),
}

const WAYS: [Way; 8] = [
    Way { name: "once", send: |taken, at| taken.segment(at) },
    Way {
        name: "twice",
        send: |taken, at| {
            taken.segment(at.clone());
            taken.segment(at);
        },
    },
    Way { name: "with a byte", send: |taken, at| taken.segment(at.start - 1..at.end) },
    Way { name: "with half an event", send: |taken, at| taken.segment(at.start - 100..at.end) },
    Way { name: "with some events", send: |taken, at| taken.segment(at.start - 700..at.end) },
    Way {
        name: "with more than is cut off at once",
        send: |taken, at| taken.segment(at.start.saturating_sub(40_000)..at.end),
    },
    Way {
        // What closes the gap reaches into what had come behind it.
        name: "behind a gap",
        send: |taken, at| {
            let (first, second) = (at.start + 70, at.start + 140);
            taken.segment(first..at.end);
            taken.segment(at.start - 30..second);
        },
    },
    Way {
        name: "in pieces that each begin before",
        send: |taken, at| {
            let steps: Vec<usize> = at.clone().step_by(40).skip(1).chain([at.end]).collect();
            steps.into_iter().for_each(|end| taken.segment(at.start - 5..end));
        },
    },
];

pub(super) fn segments_that_repeat_what_came_before(carrier: Carrier) {
    carrier.apart(move || {
        let address = Ipv4Addr::new(10, 7, 0, 2);
        let pod = HandPod::start(Tun::start("10.7.0.1/24"), address);
        // It is on no node that the kernel could ask, so the best that there is for it is `splice`.
        let carrier = if carrier == Carrier::Local { Carrier::Splice } else { carrier };
        let gateway = Gateway::start(&carrier.plan([pod.address]));
        for round in 0..3 {
            let mut client = Client::connect(gateway.address);
            client.post("/v1/chat/completions", &chat("base", 9, true));
            let mut taken = pod.take();
            taken.send(STREAM);
            let mut came = String::new();
            // Enough events before it that there is something to repeat, and the kernel has taken over.
            let ways = WAYS.iter().cycle().take(WAYS.len() * 20);
            let once = std::iter::repeat_n(&WAYS[0], 10);
            for (number, Way { name, send }) in once.chain(ways).enumerate() {
                let event = event(number as u32);
                let at = taken.append(chunk(&event));
                send(&taken, at);
                came += &client.read_until(&format!("{event}\r\n"));
                assert!(came.ends_with(&format!("{event}\r\n")), "{name}: {came}");
                taken.wait_acknowledged();
            }
            // The end too: what it repeats would be the next answer's first bytes.
            let at = taken.append(LAST);
            taken.segment(at.start - 10 * round..at.end);
            came += &client.read_until(LAST);
            let sent = String::from_utf8_lossy(&taken.stream()[STREAM.len()..]).into_owned();
            let body = came.split_once("\r\n\r\n").expect("a head").1;
            assert_eq!(body, sent, "round {round}");
        }
        carrier.assert_moved(&gateway, 3 * 100 * event(1).len() as u64);
        assert_nothing_left(&gateway);
    });
}
