//! Where requests go: spread over equals, away from the slow and the full, and sent away when all
//! are full.

#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use serde_json::json;
use sluice_tests::client::{Client, Response, chat, post};
use sluice_tests::engine::{Options, Server, Style};
use sluice_tests::gateway::{Gateway, Plan};
use sluice_tests::pod::{RawPod, Signals, answer, plan};

/// Requests that each engine has been asked.
fn asked(engines: &[Server]) -> Vec<u64> {
    engines.iter().map(|engine| engine.stats().requests_to("/v1/chat/completions")).collect()
}

/// Asks `count` times at once, and returns once all have been answered well.
fn ask_together(address: SocketAddr, count: usize, tokens: u32) {
    let barrier = Barrier::new(count);
    thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                let mut client = Client::connect(address);
                barrier.wait();
                client.post("/v1/chat/completions", &chat("base", tokens, true));
                let response = client.response();
                assert_eq!((response.status, response.complete), (200, true));
            });
        }
    });
}

/// Asks `count` times, `together` at a time.
fn ask_in_turn(address: SocketAddr, count: usize, together: usize, tokens: u32) {
    thread::scope(|scope| {
        for _ in 0..together {
            scope.spawn(move || {
                for _ in 0..count / together {
                    let body = chat("base", tokens, true);
                    assert_eq!(post(address, "/v1/chat/completions", &body).status, 200);
                }
            });
        }
    });
}

// Field report 59.
#[test]
fn a_burst_is_spread_over_idle_pods() {
    let engines = Server::start_all((0..4).map(|_| Options::default()).collect()).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &engines));
    ask_together(gateway.address, 100, 60);
    let asked = asked(&engines);
    assert!(asked.iter().all(|count| (20..=30).contains(count)), "{asked:?}");
}

// Field reports 56 and 65: without any metrics there is still what the gateway knows itself.
#[test]
fn without_metrics_requests_are_spread_by_what_is_in_flight() {
    let options = || Options { metrics: Style::None, ..Options::default() };
    let engines = Server::start_all((0..4).map(|_| options()).collect()).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &engines));
    ask_together(gateway.address, 80, 60);
    let asked = asked(&engines);
    assert_eq!(asked.iter().sum::<u64>(), 80);
    assert!(asked.iter().all(|count| (15..=25).contains(count)), "{asked:?}");
}

// Field report 62.
#[test]
fn one_request_after_the_other_goes_to_all_pods() {
    let options = || Options { speed: 50.0, ..Options::default() };
    let engines = Server::start_all((0..4).map(|_| options()).collect()).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &engines));
    ask_in_turn(gateway.address, 120, 1, 1);
    let asked = asked(&engines);
    // By lot each gets 30 on average; 7 is five standard deviations below.
    assert!(asked.iter().all(|count| *count >= 7), "{asked:?}");
}

#[test]
fn a_slow_pod_gets_fewer_requests() {
    let options = |speed| Options { speed, ..Options::default() };
    let engines = Server::start_all(vec![options(4.0), options(0.4), options(4.0)]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &engines));
    ask_in_turn(gateway.address, 192, 12, 20);
    let asked = asked(&engines);
    assert!(asked[1] * 2 < asked[0] && asked[1] * 2 < asked[2], "{asked:?}");
}

/// A pod with a long queue is also full in every other way.
#[test]
fn a_pod_with_a_long_queue_is_avoided() {
    let pods = RawPod::start_all(2);
    pods[0].tell(Signals { running: 64, waiting: 50, kv_usage: 0.95 });
    let gateway = Gateway::start(&plan(&pods));
    let mut clients: Vec<_> = (0..10).map(|_| Client::connect(gateway.address)).collect();
    for client in &mut clients {
        client.post("/v1/chat/completions", &chat("base", 1, false));
    }
    let taken: Vec<_> = clients.iter().map(|_| pods[1].take()).collect();
    for mut taken in taken {
        taken.send(answer(200, "", "{}"));
        taken.keep();
    }
    for client in &mut clients {
        assert_eq!(client.response().status, 200);
    }
    assert!(pods[0].take_within(QUIET).is_none());
    // It is not forgotten: as the queue melts it is used again.
    pods[0].tell(Signals::default());
    pods[1].tell(Signals { running: 64, waiting: 50, kv_usage: 0.95 });
    gateway.wait("the signals to be read", |status| {
        status["pools"][0]["pods"][0]["waiting"] == 0
            && status["pools"][0]["pods"][1]["waiting"] == 50
    });
    clients[0].post("/v1/chat/completions", &chat("base", 1, false));
    pods[0].take().send(answer(200, "", "{}"));
    assert_eq!(clients[0].response().status, 200);
}

// Field report 74, reports against the reference picker 14.
#[test]
fn a_full_pool_says_429_and_when_to_come_back() {
    let full = Signals { running: 8, waiting: 4, kv_usage: 0.9 };
    for (saturation, signals) in [
        ("queueDepth: 4", full),
        ("kvCache: 0.8", Signals { waiting: 0, ..full }),
        ("inFlight: 2", Signals::default()),
    ] {
        let pods = RawPod::start_all(1);
        let gateway =
            Gateway::start(&plan(&pods).scheduler(&format!("    saturation: {{{saturation}}}")));
        // Two requests fill it by themselves, where that is the limit.
        let mut clients: Vec<_> = (0..2).map(|_| Client::connect(gateway.address)).collect();
        for client in &mut clients {
            client.post("/v1/chat/completions", &chat("base", 1, false));
        }
        let waiting: Vec<_> = clients.iter().map(|_| pods[0].take()).collect();
        pods[0].tell(signals);
        gateway.wait("the signals to be read", |status| {
            status["pools"][0]["pods"][0]["waiting"] == json!(signals.waiting)
                && status["pools"][0]["pods"][0]["running"] == json!(signals.running)
        });
        for _ in 0..3 {
            let refused = post(gateway.address, "/v1/chat/completions", &chat("base", 1, true));
            assert_too_many(&refused);
        }
        assert!(pods[0].take_within(QUIET).is_none(), "{saturation}: it was sent on all the same");
        gateway
            .wait_metric("sluice_pool_rejected_total{pool=\"pool-0\",reason=\"saturated\"}", 3.0);
        // With room again it serves again, by itself.
        for mut taken in waiting {
            taken.send(answer(200, "", "{}"));
            taken.keep();
        }
        for client in &mut clients {
            assert_eq!(client.response().status, 200);
        }
        pods[0].tell(Signals::default());
        gateway
            .wait("the signals to be read", |status| status["pools"][0]["pods"][0]["running"] == 0);
        gateway.wait_idle();
        clients[0].post("/v1/chat/completions", &chat("base", 1, false));
        pods[0].take().send(answer(200, "", "{}"));
        assert_eq!(clients[0].response().status, 200, "{saturation}");
    }
}

/// As the official SDKs read it: `retry-after-ms` as a number if it is there, else `retry-after` as
/// seconds; a wait over a minute is ignored.
fn assert_too_many(response: &Response) {
    assert_eq!((response.status, response.complete), (429, true), "{}", response.text());
    let error = &response.json()["error"];
    assert_eq!(
        (&error["code"], &error["type"]),
        (&json!("pool_saturated"), &json!("rate_limit_error"))
    );
    let number = |name| response.header(name).unwrap().parse::<f64>().unwrap();
    let (millis, seconds) = (number("retry-after-ms"), number("retry-after"));
    assert!(millis > 0.0 && millis <= 60_000.0, "{millis}");
    assert!(seconds >= 1.0 && seconds.fract() == 0.0 && seconds * 1000.0 >= millis, "{seconds}");
}

#[test]
fn one_full_pod_does_not_make_a_full_pool() {
    let pods = RawPod::start_all(2);
    pods[0].tell(Signals { running: 8, waiting: 4, kv_usage: 0.9 });
    let gateway = Gateway::start(&plan(&pods).scheduler("    saturation: {queueDepth: 4}"));
    let mut client = Client::connect(gateway.address);
    for _ in 0..10 {
        client.post("/v1/chat/completions", &chat("base", 1, false));
        let mut taken = pods[1].take();
        taken.send(answer(200, "", "{}"));
        taken.keep();
        assert_eq!(client.response().status, 200);
    }
}

/// Long enough to see that nothing comes.
const QUIET: Duration = Duration::from_millis(100);
