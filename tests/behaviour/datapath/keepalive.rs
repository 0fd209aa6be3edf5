//! Many answers on one connection: each request is routed anew, and what the client sends while an
//! answer flows waits its turn.

use sluice_tests::client::chat;
use sluice_tests::gateway::Gateway;
use sluice_tests::pod::{LAST, RawPod, STREAM};
use sluice_tests::script::{End, Frame, Script, ScriptPod};
use sluice_tests::soak::ScriptClient;

use super::{Carrier, assert_nothing_left, event, exact, flowing, pass_events, read_exact};

pub(super) fn hundreds_of_requests_on_one_connection_to_changing_pods(carrier: Carrier) {
    let pods = ScriptPod::start_all(4);
    // By lot: the pod that was quickest so far would get all that is asked one by one.
    let plan = carrier.plan(pods.iter().map(|pod| pod.address));
    let plan = plan.spec("  profiles: [{name: lot, weights: {queue: 1}, picker: random}]");
    let gateway = Gateway::start(&plan.scheduler("    profile: lot"));
    let mut client = ScriptClient::connect(gateway.address);
    let mut random = fastrand::Rng::with_seed(17);
    let mut of_pods = [0; 4];
    let mut closed = 0;
    for id in 0..300 {
        let mut script = kept(id, 4000, &mut random);
        // Now and then the pod's connection ends and the client's does not.
        if random.u8(..20) == 0 {
            script.end = [End::Close, End::CloseUnsaid][random.usize(..2)];
            closed += 1;
        }
        let seen = exact(&mut client, &script);
        of_pods[seen.pod.unwrap()] += 1;
    }
    assert!(of_pods.iter().all(|count| *count > 30), "{of_pods:?}");
    let connections: u64 = pods.iter().map(ScriptPod::connections).sum();
    // One for each pod and worker at first.
    assert!(connections <= closed + 16, "{connections} connections for 300 requests");
    drop(client);
    carrier.assert_moved(&gateway, 100_000);
    assert_nothing_left(&gateway);
}

/// An answer after which both connections stay.
fn kept(id: u32, length: u64, random: &mut fastrand::Rng) -> Script {
    let mut script = Script::draw(id, length, random);
    script.end = End::Keep;
    if script.frame == Frame::UntilClose {
        script.frame = Frame::Chunks;
    }
    script
}

pub(super) fn the_next_request_is_sent_while_the_answer_flows(carrier: Carrier) {
    let pod = RawPod::start();
    let gateway = carrier.raw_gateway(&pod);
    let (mut client, mut taken) = flowing(&gateway, &pod, 20);
    let body = chat("base", 9, true).to_string();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    for round in 0..6 {
        // Whole, or cut in its head, or in its body; the rest comes later in the answer or behind it.
        let cut = [request.len(), 10, request.len() - 5][round % 3];
        let (first, second) = request.split_at(cut);
        client.send(first);
        pass_events(&mut client, &mut taken, 20..60);
        if round >= 3 {
            client.send(second);
            pass_events(&mut client, &mut taken, 60..80);
        }
        taken.send(LAST);
        assert_eq!(client.read_until(LAST), LAST);
        taken.keep();
        if round < 3 {
            client.send(second);
        }
        taken = pod.take();
        assert_eq!(taken.body, body.as_bytes());
        taken.send(STREAM);
        pass_events(&mut client, &mut taken, 0..20);
    }
    taken.send(LAST);
    assert_eq!(client.read_until(LAST), LAST);
    drop((client, taken));
    carrier.assert_moved(&gateway, 100 * event(1).len() as u64);
    assert_nothing_left(&gateway);
}

pub(super) fn many_requests_are_sent_at_once(carrier: Carrier) {
    let pods = ScriptPod::start_all(3);
    let gateway = carrier.gateway(&pods);
    let mut client = ScriptClient::connect(gateway.address);
    let mut random = fastrand::Rng::with_seed(23);
    for round in 0..10 {
        let scripts: Vec<Script> =
            (0..12).map(|id| kept(round * 100 + id, 10_000, &mut random)).collect();
        scripts.iter().for_each(|script| client.send(script));
        for script in &scripts {
            read_exact(&mut client, script);
        }
    }
    drop(client);
    carrier.assert_moved(&gateway, 10_000);
    assert_nothing_left(&gateway);
}
