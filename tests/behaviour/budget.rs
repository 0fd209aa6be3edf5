//! How many requests are sent to another pod after one has failed them.

use sluice_tests::client::{Client, Response, chat};
use sluice_tests::gateway::{Gateway, Plan};
use sluice_tests::pod::{RawPod, Signals, Taken, answer, nobody, plan};

const RETRIES: &str = "sluice_pool_retries_total{pool=\"pool-0\"}";
const REFUSED: &str = "sluice_pool_retries_refused_total{pool=\"pool-0\"}";

fn budget(plan: Plan, ratio: f32, least: u32) -> Plan {
    plan.spec(&format!("  limits: {{retryBudget: {{ratio: {ratio}, minPerSecond: {least}}}}}"))
}

/// The first pod, which is idle, fails a request; the second one answers it if it is asked. Returns what the client got.
fn ask(gateway: &Gateway, pods: &[RawPod], fail: fn(Taken), is_retried: bool) -> Response {
    let mut client = Client::connect(gateway.address);
    client.post("/v1/chat/completions", &chat("base", 1, false));
    fail(pods[0].take());
    if is_retried {
        let mut taken = pods[1].take();
        taken.send(answer(200, "", "{}"));
        taken.keep();
    }
    let response = client.response();
    gateway.wait_idle();
    response
}

fn broken(mut taken: Taken) {
    taken.send(answer(502, "", "{\"broken\":1}"));
    taken.keep();
}

// On a connection that is used once more and then closed, the next request would go to the same pod again: it may have
// been closed for its age.
fn full(mut taken: Taken) {
    taken.send(answer(429, "connection: close\r\n", "{\"full\":1}"));
    taken.close();
}

fn first_and_second() -> Vec<RawPod> {
    let pods = RawPod::start_all(2);
    pods[1].tell(Signals { running: 4, waiting: 4, kv_usage: 0.5 });
    pods
}

#[test]
fn a_share_of_the_requests_may_be_tried_again() {
    // Of so many requests, which are tried again.
    for (ratio, least, retried) in [
        (0.0, 0, [false, false, false]),
        // One, two and three requests have come.
        (0.5, 0, [false, true, false]),
        (1.0, 0, [true, true, true]),
        (0.0, 1, [true, true, true]),
    ] {
        let pods = first_and_second();
        let scheduler = "    weights: {queue: 2}";
        let gateway = Gateway::start(&budget(plan(&pods).scheduler(scheduler), ratio, least));
        for is_retried in retried {
            let response = ask(&gateway, &pods, broken, is_retried);
            assert_eq!(response.status, if is_retried { 200 } else { 502 }, "{ratio} {least}");
            if !is_retried {
                assert_eq!(response.text(), "{\"broken\":1}", "the pod's own words");
            }
        }
        let count = retried.iter().filter(|is| **is).count() as f64;
        gateway.wait_metric(RETRIES, count);
        gateway.wait_metric(REFUSED, 3.0 - count);
    }
}

#[test]
fn whatever_the_pod_says_counts() {
    let pods = first_and_second();
    let scheduler = "    weights: {queue: 2}";
    let gateway = Gateway::start(&budget(plan(&pods).scheduler(scheduler), 0.0, 0));
    assert_eq!(ask(&gateway, &pods, full, false).status, 429);
    let response = ask(&gateway, &pods, Taken::close, false);
    response.assert_error(502, "pod_failed", None);
    gateway.wait_metric(REFUSED, 2.0);
    gateway.wait_metric(RETRIES, 0.0);
}

// Nothing was sent there, so that nothing is made worse.
#[test]
fn where_nothing_listens_does_not_count() {
    let pods = [RawPod::start()];
    let mut plan = budget(plan(&pods), 0.0, 0);
    plan.pools[0].1.insert(0, nobody(40));
    // Before it is known, so that the request finds out.
    let gateway = Gateway::launch(&plan);
    for _ in 0..8 {
        let mut client = Client::connect(gateway.address);
        client.post("/v1/chat/completions", &chat("base", 1, false));
        let mut taken = pods[0].take();
        taken.send(answer(200, "", "{}"));
        taken.keep();
        assert_eq!(client.response().status, 200);
    }
    assert_eq!(gateway.metric(REFUSED), Some(0.0));
}
