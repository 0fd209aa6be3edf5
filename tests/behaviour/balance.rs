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
use sluice_tests::pod::{RawPod, Signals, Taken, answer, plan};

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
fn field_report_59_a_burst_is_spread_over_idle_pods() {
    let engines = Server::start_all((0..4).map(|_| Options::default()).collect()).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &engines));
    ask_together(gateway.address, 100, 60);
    let asked = asked(&engines);
    assert!(asked.iter().all(|count| (20..=30).contains(count)), "{asked:?}");
}

// Field reports 56 and 65: without any metrics there is still what the gateway knows itself.
#[test]
fn field_report_56_65_without_metrics_requests_are_spread_by_what_is_in_flight() {
    // So slow that the first ones are in flight when the last one comes, however busy the machine is.
    let options = || Options { metrics: Style::None, speed: 0.3, ..Options::default() };
    let engines = Server::start_all((0..4).map(|_| options()).collect()).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &engines));
    ask_together(gateway.address, 80, 60);
    let asked = asked(&engines);
    assert_eq!(asked.iter().sum::<u64>(), 80);
    assert!(asked.iter().all(|count| (15..=25).contains(count)), "{asked:?}");
}

// Field report 62.
#[test]
fn field_report_62_one_request_after_the_other_goes_to_all_pods() {
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
fn field_report_74_picker_report_14_a_full_pool_says_429_and_when_to_come_back() {
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

/// A client that has asked.
fn asking(gateway: &Gateway) -> Client {
    let mut client = Client::connect(gateway.address);
    client.post("/v1/chat/completions", &chat("base", 1, false));
    client
}

#[test]
fn field_report_76_requests_wait_for_a_place_where_they_may() {
    let pods = RawPod::start_all(1);
    let gateway =
        Gateway::start(&plan(&pods).scheduler("    saturation: {inFlight: 1, wait: 700ms}"));
    let queued =
        |count: f64| gateway.wait_metric("sluice_pool_requests_queued{pool=\"pool-0\"}", count);
    let mut first = asking(&gateway);
    let taken = pods[0].take();
    let mut second = asking(&gateway);
    queued(1.0);
    let left = asking(&gateway);
    queued(2.0);
    drop(left);
    queued(1.0);
    let mut third = asking(&gateway);
    queued(2.0);
    assert!(pods[0].take_within(QUIET).is_none());
    // Each gets the place of the one before, and who has left takes none.
    let serve = |mut taken: Taken, client: &mut Client| {
        taken.send(answer(200, "", "{}"));
        taken.keep();
        assert_eq!(client.response().status, 200);
    };
    serve(taken, &mut first);
    serve(pods[0].take(), &mut second);
    let held = pods[0].take();
    // Too long for the next.
    let refused = asking(&gateway).response();
    assert_too_many(&refused);
    queued(0.0);
    serve(held, &mut third);
}

#[test]
fn a_large_body_for_a_full_pool_is_not_awaited() {
    let pods = RawPod::start_all(1);
    let gateway = Gateway::start(&plan(&pods).scheduler("    saturation: {inFlight: 1}"));
    let mut first = asking(&gateway);
    let mut taken = pods[0].take();
    let head = |more: &str| {
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\n\
             content-length: 5000000\r\n{more}\r\n"
        )
    };
    for (begun, name) in [
        (head("") + "{\"model\": \"base\", \"x\": \"yyyyyyyyyyyy", "the model is known"),
        (head("") + "{\"x\": \"yyyyyyyyyyyy", "every model would be refused"),
        (head("expect: 100-continue\r\n"), "nothing has come of it"),
    ] {
        let mut client = Client::connect(gateway.address);
        client.send(begun);
        let response = client.response();
        assert_too_many(&response);
        assert_eq!(response.header("connection"), Some("close"), "{name}");
        assert!(client.is_closed(), "{name}");
    }
    gateway.wait_metric("sluice_pool_rejected_total{pool=\"pool-0\",reason=\"saturated\"}", 3.0);
    // What is not for this pool is told so, once it is read.
    taken.send(answer(200, "", "{}"));
    taken.keep();
    assert_eq!(first.response().status, 200);
    let body = format!("{{\"model\": \"base\", \"x\": \"{}\"}}", "y".repeat(200_000));
    let mut client = Client::connect(gateway.address);
    client.post_bytes("/v1/chat/completions", body.as_bytes());
    pods[0].take().send(answer(200, "", "{}"));
    assert_eq!(client.response().status, 200);
}

#[test]
fn a_full_pool_says_when_by_how_fast_it_gets_done() {
    let pods = RawPod::start_all(1);
    let gateway = Gateway::start(&plan(&pods).scheduler("    saturation: {inFlight: 1}"));
    let say = || {
        let refused = post(gateway.address, "/v1/chat/completions", &chat("base", 1, false));
        refused.header("retry-after").unwrap().parse::<u64>().unwrap()
    };
    // One request that took two seconds: the next will take as long.
    let mut first = asking(&gateway);
    let mut taken = pods[0].take();
    std::thread::sleep(Duration::from_secs(2));
    taken.send(answer(200, "", "{}"));
    taken.keep();
    assert_eq!(first.response().status, 200);
    gateway.wait_idle();
    let mut second = asking(&gateway);
    let mut taken = pods[0].take();
    assert!((2..=60).contains(&say()));
    // Of many that are sent away, the later ones are told a later time; and a pool that gets done fast says so.
    taken.send(answer(200, "", "{}"));
    taken.keep();
    assert_eq!(second.response().status, 200);
    for _ in 0..60 {
        let mut client = asking(&gateway);
        let mut taken = pods[0].take();
        taken.send(answer(200, "", "{}"));
        assert_eq!(client.response().status, 200);
        gateway.wait_idle();
    }
    let _third = asking(&gateway);
    let _held = pods[0].take();
    assert_eq!(say(), 1);
    let times: Vec<u64> = (0..30).map(|_| say()).collect();
    assert!(times.last() > times.first() && times.is_sorted(), "{times:?}");
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
