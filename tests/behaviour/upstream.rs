//! Connections to pods: kept between requests, and never the reason why a request fails.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use sluice_tests::client::{Client, chat};
use sluice_tests::engine::{Faults, Options, Server};
use sluice_tests::gateway::{Gateway, Plan};

// Field reports 36: model servers close idle connections after 5 s, perhaps as the next request
// arrives.
#[test]
fn field_report_36_pauses_around_the_servers_keep_alive_cost_no_request() {
    let pods = Server::start_all(vec![Options::default(), Options::default()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let pauses = [3800, 3880, 3900, 3920, 4000, 4900, 4950, 4980, 5000, 5020, 5050, 5200];
    thread::scope(|scope| {
        for pause in pauses {
            let address = gateway.address;
            scope.spawn(move || {
                let mut client = Client::connect(address);
                for round in 0..2 {
                    client.post(CHAT, &chat("base", 1, round == 1));
                    let response = client.response();
                    assert_eq!(
                        (response.status, response.complete),
                        (200, true),
                        "after {pause} ms"
                    );
                    thread::sleep(Duration::from_millis(if round == 0 { pause } else { 0 }));
                }
            });
        }
    });
    let stats: Vec<_> = pods.iter().map(Server::stats).collect();
    // Each request was answered by the pod that it went to first.
    assert_eq!(stats.iter().map(|pod| pod.requests_to(CHAT)).sum::<u64>(), 2 * pauses.len() as u64);
    assert_eq!(gateway.metric("sluice_pool_retries_total{pool=\"pool-0\"}"), Some(0.0));
}

// Field reports 36, 37: a connection that the pod closes just as it is used again is replaced
// unseen.
#[test]
fn field_report_36_37_a_pod_that_closes_as_the_next_request_comes_costs_no_request() {
    let keep_alive = Duration::from_millis(50);
    let pods =
        Server::start_all(vec![Options { keep_alive, speed: 50.0, ..Options::default() }]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods).spec("  limits: {maxAttempts: 1}"));
    let total = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread_index in 0..8 {
            let (address, total) = (gateway.address, &total);
            scope.spawn(move || {
                let mut client = Client::connect(address);
                for round in 0..25 {
                    // From half a millisecond before the pod's limit to half a millisecond behind.
                    let pause =
                        keep_alive + Duration::from_micros(40 * round) - Duration::from_micros(500);
                    thread::sleep(pause + Duration::from_micros(5 * thread_index));
                    client.post(CHAT, &chat("base", 1, round % 2 == 0));
                    let response = client.response();
                    assert_eq!(response.status, 200, "{}", response.text());
                    assert!(response.complete);
                    total.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 200);
    gateway.wait_idle();
}

#[test]
fn a_pod_that_closes_after_every_answer_costs_no_request() {
    let pods = Server::start_all(vec![Options { speed: 50.0, ..Options::default() }]).unwrap();
    let gateway =
        Gateway::start(&Plan::pool("base", &pods).spec("  limits: {maxAttempts: 1}\n  workers: 1"));
    let faults = [
        Faults { close: true, ..Faults::default() },
        Faults { close_silently: true, ..Faults::default() },
        Faults { until_close: true, ..Faults::default() },
    ];
    for fault in faults {
        pods[0].fault(fault.clone());
        let mut client = Client::connect(gateway.address);
        for round in 0..20 {
            client.post(CHAT, &chat("base", 2, round % 2 == 0));
            let response = client.response();
            assert_eq!((response.status, response.complete), (200, true), "{fault:?}");
            assert!(response.text().contains("w0002"));
            if fault.until_close {
                // The end of the connection is the only end that such an answer has.
                assert_eq!(response.header("connection"), Some("close"));
                client = Client::connect(gateway.address);
            }
        }
    }
    assert_eq!(pods[0].stats().requests_to(CHAT), 60);
}

const CHAT: &str = "/v1/chat/completions";
