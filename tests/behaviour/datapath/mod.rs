//! One suite over three carriers of response bodies: relay, splice, local. The relay is the oracle:
//! what holds for it holds for the others, to the byte.
//!
//! Every case is a function of the [`Carrier`] and runs as `datapath::CARRIER::CASE`. A case for a
//! kernel carrier runs in a network namespace of its own and counts as privileged. There it is also
//! asserted that the kernel moved bytes, so that no carrier passes by the relay's merits.

mod aborts;
mod account;
mod addresses;
mod bodies;
mod comments;
mod credit;
mod ends;
mod hand_over;
mod keepalive;
mod leave;
mod overlaps;
mod slow;
mod strangers;
mod volume;
mod writes;

use std::io::Write as _;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use sluice_tests::client::{Client, chat};
use sluice_tests::gateway::{Gateway, Plan};
use sluice_tests::netns;
use sluice_tests::pod::{RawPod, STREAM, Taken, chunk};
use sluice_tests::script::{Script, ScriptPod};
use sluice_tests::soak::{Pace, ScriptClient, Seen};

/// What is to carry the bodies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Carrier {
    Relay,
    Splice,
    Local,
}

macro_rules! cases {
    ($($module:ident: $($case:ident),+;)+) => {
        mod relay {
            $($(#[test] fn $case() { super::Carrier::Relay.run(super::$module::$case); })+)+
        }
        mod splice {
            $($(#[test] fn $case() { super::Carrier::Splice.run(super::$module::$case); })+)+
        }
        mod local {
            $($(#[test] fn $case() { super::Carrier::Local.run(super::$module::$case); })+)+
        }
    };
}

cases! {
    aborts: nothing_is_left_of_two_thousand_requests_with_aborts_on_both_sides;
    account: the_same_requests_give_the_same_metrics;
    addresses:
        pods_of_every_address_family,
        a_pod_in_another_namespace,
        twins_in_two_namespaces_with_the_same_addresses_and_ports;
    bodies:
        every_framing_in_chunks_and_writes_of_any_size,
        answers_without_a_body_between_streams,
        interim_heads_before_a_stream;
    comments: comments_and_then_the_pods_bytes;
    credit:
        single_bytes_to_a_client_far_away,
        single_bytes_to_a_client_that_does_not_read;
    ends:
        a_pod_that_dies_is_seen_after_all_that_it_sent,
        a_cut_anywhere_in_any_framing,
        a_silent_stream_is_ended,
        streams_finish_after_sigterm,
        a_killed_gateway_breaks_its_streams_and_lets_go_of_the_pods;
    hand_over: thousands_of_hand_overs_in_one_answer;
    keepalive:
        hundreds_of_requests_on_one_connection_to_changing_pods,
        the_next_request_is_sent_while_the_answer_flows,
        many_requests_are_sent_at_once;
    leave:
        the_pod_is_let_go_when_the_client_leaves,
        the_pod_is_let_go_before_it_has_been_asked_ten_times,
        a_pod_that_writes_on_and_on_is_stopped_when_the_client_leaves;
    overlaps: segments_that_repeat_what_came_before;
    slow:
        a_client_that_does_not_read_holds_its_window_and_no_more,
        five_hundred_clients_that_do_not_read,
        five_hundred_clients_that_do_not_read_token_by_token,
        readers_that_stop_and_go;
    strangers:
        other_sockets_on_the_same_ports_are_left_alone,
        other_clients_of_the_pods_are_left_alone;
    volume: two_hundred_megabytes_of_mixed_traffic;
    writes:
        every_call_that_writes,
        writes_that_are_taken_in_part,
        large_requests_on_a_connection_that_carried_a_stream;
}

impl Carrier {
    /// Runs a case, the kernel's in a namespace of its own.
    fn run(self, case: fn(Self)) {
        match self {
            Self::Relay => case(self),
            Self::Splice | Self::Local => netns::run(&[], move || case(self)),
        }
    }

    /// Runs a part that needs a namespace whatever the carrier.
    fn apart(self, part: impl FnOnce() + Send + 'static) {
        match self {
            Self::Relay => netns::run(&[], part),
            // It is in one already.
            Self::Splice | Self::Local => part(),
        }
    }

    /// The paths to configure.
    fn paths(self) -> Vec<&'static str> {
        match self {
            Self::Relay => vec!["relay"],
            Self::Splice => vec!["splice", "relay"],
            Self::Local => vec!["local", "relay"],
        }
    }

    /// Its name in metrics.
    fn name(self) -> &'static str {
        self.paths()[0]
    }

    /// A plan for one pool of pods at these addresses, serving the model `base` by this carrier.
    fn plan(self, pods: impl IntoIterator<Item = SocketAddr>) -> Plan {
        let pools = vec![("base".into(), pods.into_iter().collect())];
        Plan { pools, paths: self.paths(), ..Plan::pool("base", &[]) }
    }

    /// A gateway before these pods.
    fn gateway(self, pods: &[ScriptPod]) -> Gateway {
        Gateway::start(&self.plan(pods.iter().map(|pod| pod.address)))
    }

    /// A gateway before this pod.
    fn raw_gateway(self, pod: &RawPod) -> Gateway {
        Gateway::start(&self.plan([pod.address]))
    }

    /// Bytes of response bodies and their framing that went by this carrier.
    fn moved(self, gateway: &Gateway) -> f64 {
        let sample = format!("sluice_flow_bytes_total{{path=\"{}\"}}", self.name());
        gateway.metric(&sample).unwrap_or(0.0)
    }

    /// Asserts that the kernel moved so many bytes at least, of answers that are over, and that some
    /// count as carried by it; of the relay nothing is asked.
    fn assert_moved(self, gateway: &Gateway, least: u64) {
        self.assert_moved_of(gateway, least, 1);
    }

    /// The same where so many answers at least must count as carried: what clients are slow to read
    /// may count as relayed though the kernel moved some of it.
    fn assert_moved_of(self, gateway: &Gateway, least: u64, answers: u32) {
        if self == Self::Relay {
            return;
        }
        let sample =
            format!("sluice_flow_responses_total{{path=\"{}\",reason=\"best\"}}", self.name());
        // A response is counted a moment after its client has seen its end.
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let (moved, carried) = (self.moved(gateway), gateway.metric(&sample));
            if moved >= least as f64 && carried >= Some(f64::from(answers)) {
                self.tell(moved);
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{self:?} moved {moved} bytes, not {least}, of {carried:?} responses"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Tells whoever boots other kernels how many bytes this one has moved.
    fn tell(self, moved: f64) {
        let Ok(path) = std::env::var("SLUICE_TEST_KERNEL_BYTES") else { return };
        let (local, splice) = match self {
            Self::Relay => return,
            Self::Splice => (0.0, moved),
            Self::Local => (moved, 0.0),
        };
        let mut file = std::fs::File::options().create(true).append(true).open(path).unwrap();
        writeln!(file, "bytes local {local} splice {splice}").unwrap();
    }
}

/// Asks for one scripted answer, which must come whole and exact.
fn exact(client: &mut ScriptClient, script: &Script) -> Seen {
    client.send(script);
    read_exact(client, script)
}

/// Reads the answer to a request that was sent, which must come whole and exact.
fn read_exact(client: &mut ScriptClient, script: &Script) -> Seen {
    let seen = client.answer(script, Pace::FAST, u64::MAX);
    let seen = seen.unwrap_or_else(|problem| panic!("{problem}"));
    seen.judge(script).unwrap_or_else(|problem| panic!("{problem}"));
    seen
}

/// A stream that flows: the client has asked, and has read so many events, each written alone.
fn flowing(gateway: &Gateway, pod: &RawPod, events: u32) -> (Client, Taken) {
    let mut client = Client::connect(gateway.address);
    client.post("/v1/chat/completions", &chat("base", 9, true));
    let mut taken = pod.take();
    taken.send(STREAM);
    let half = events / 2;
    pass_events(&mut client, &mut taken, 0..half);
    // The daemon offers the flow behind each event that it passes on. The next one is its own again if it comes before the
    // offer, as it may each time where the daemon waits for a processor.
    thread::sleep(OFFERED);
    pass_events(&mut client, &mut taken, half..events);
    (client, taken)
}

/// Has numbered events pass, each written when the client has the one before.
fn pass_events(client: &mut Client, taken: &mut Taken, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let event = event(number);
        taken.send(chunk(&event));
        client.read_until(&format!("{event}\r\n"));
    }
}

/// An event of about the length of a token's.
fn event(number: u32) -> String {
    format!("data: {{\"n\":{number},\"pad\":\"{:x<200}\"}}\n\n", "")
}

/// Asserts that nothing is left of what was under way, of requests, connections and kernel tables.
fn assert_nothing_left(gateway: &Gateway) {
    gateway.wait("nothing to be left", |status| {
        status["connections"] == 0 && status["buffered_bytes"] == 0
    });
    gateway.wait_idle();
    assert_tables_empty(gateway);
}

/// Asserts that nothing is left in the kernel's tables. Connections to pods that are kept are in them, for some
/// seconds.
fn assert_tables_empty(gateway: &Gateway) {
    gateway.wait("the kernel's tables to be empty", |status| {
        let flows = &status["flows"];
        // Nothing, where no kernel path is used.
        flows.is_null() || ["connections", "pairs", "clients"].into_iter().all(|of| flows[of] == 0)
    });
}

/// A daemon that waits for a processor gets one in this time.
const OFFERED: Duration = Duration::from_millis(50);
