//! Pods that are asked whether they are well.

use sluice_tests::client::{Client, chat, post};
use sluice_tests::gateway::{Gateway, Plan, pods};
use sluice_tests::pod::{Page, RawPod, Signals, answer, plan};

/// Checks that find out soon.
const SOON: &str =
    "    healthCheck: {interval: 200ms, timeout: 200ms, unhealthyAfter: 2, healthyAfter: 2}";

fn served(gateway: &Gateway, pod: &RawPod) {
    let mut client = Client::connect(gateway.address);
    client.post("/v1/chat/completions", &chat("base", 1, false));
    let mut taken = pod.take();
    taken.send(answer(200, "", "{}"));
    taken.keep();
    assert_eq!(client.response().status, 200);
}

fn checked(plan: Plan) -> Plan {
    plan.scheduler("    weights: {queue: 2}").scheduler(SOON)
}

#[test]
fn field_report_73_a_pod_that_is_not_well_gets_nothing_whatever_its_metrics_say() {
    let pods = RawPod::start_all(2);
    pods[1].tell(Signals { running: 4, waiting: 4, kv_usage: 0.5 });
    let gateway = Gateway::start(&checked(plan(&pods)));
    served(&gateway, &pods[0]);
    for (page, words) in [
        (Page::Status(503), "its health check, /health, fails: it answered with HTTP status 503"),
        (Page::Silent, "its health check, /health, fails: no whole answer in time"),
    ] {
        pods[0].health(page);
        gateway.wait("the pod to be out", |status| {
            let pod = &status["pools"][0]["pods"][0];
            // It tells its load as ever.
            pod["ready"] == false && pod["trouble"] == words && !pod["waiting"].is_null()
        });
        served(&gateway, &pods[1]);
        pods[0].health(Page::Status(200));
        gateway.wait("the pod to be back", |status| {
            let pod = &status["pools"][0]["pods"][0];
            pod["ready"] == true && pod["trouble"].is_null()
        });
        served(&gateway, &pods[0]);
    }
    let failures = "sluice_pool_health_check_failures_total{pool=\"pool-0\"}";
    assert!(gateway.metric(failures) >= Some(4.0));
}

#[test]
fn where_no_pod_is_well_the_answer_is_503() {
    let pods = RawPod::start_all(1);
    pods[0].health(Page::Status(500));
    let gateway = Gateway::start(&checked(plan(&pods)));
    gateway.wait("the pod to be out", |status| status["ready"] == false);
    let response = post(gateway.address, "/v1/chat/completions", &chat("base", 1, true));
    response.assert_error(503, "no_pod_available", None);
    assert!(pods[0].take_within(std::time::Duration::ZERO).is_none());
}

#[test]
fn a_pod_that_is_well_serves_though_its_metrics_do_not_come() {
    let timeouts = "sluice_pool_scrape_failures_total{pool=\"pool-0\",reason=\"timeout\"}";
    for (is_checked, ready) in [(true, true), (false, false)] {
        let raw = RawPod::start_all(1);
        raw[0].metrics(Page::Silent);
        let plan = plan(&raw);
        let gateway = Gateway::start(&if is_checked { checked(plan) } else { plan });
        gateway.wait("many scrapes to be in vain", |_| gateway.metric(timeouts) >= Some(5.0));
        let status = gateway.status();
        assert!(pods(&status).all(|pod| pod["ready"] == ready), "{is_checked}: {status:#}");
        served(&gateway, &raw[0]);
    }
}

#[test]
fn nobody_is_asked_unless_that_is_wanted() {
    let pods = RawPod::start_all(1);
    pods[0].health(Page::Status(503));
    let gateway = Gateway::start(&plan(&pods));
    served(&gateway, &pods[0]);
    assert_eq!(pods[0].health_asked(), 0);
    gateway.reload(&checked(plan(&pods)));
    gateway.wait("the pod to be out", |status| status["ready"] == false);
    assert!(pods[0].health_asked() > 0);
    // What was known by the checks goes with them.
    gateway.reload(&plan(&pods));
    gateway.wait("the pod to be back", |status| status["ready"] == true);
    served(&gateway, &pods[0]);
}
