//! Pods that die under load, one and all, and come back.

#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use serde_json::Value;
use sluice_tests::client::{Client, chat, post};
use sluice_tests::engine::{Options, Server};
use sluice_tests::gateway::{Gateway, PATIENCE, Plan, pods};

/// What the clients have seen so far.
#[derive(Default)]
struct Seen {
    stop: AtomicBool,
    /// Requests answered whole with 200.
    served: AtomicU64,
    /// Streams cut behind their first token: no other pod could have gone on with them.
    cut: AtomicU64,
    /// Anything else, by its status.
    failed: Mutex<Vec<u16>>,
}

impl Seen {
    fn take_failed(&self) -> Vec<u16> {
        std::mem::take(&mut *self.failed.lock().unwrap())
    }

    fn assert_none_failed(&self, when: &str) {
        let failed = self.take_failed();
        assert!(failed.is_empty(), "requests were lost {when}: {failed:?}");
    }

    fn wait_served(&self, more: u64) {
        let (from, deadline) = (self.served.load(Ordering::Relaxed), Instant::now() + PATIENCE);
        while self.served.load(Ordering::Relaxed) < from + more {
            assert!(Instant::now() < deadline, "no {more} more requests are served");
            sleep(TICK);
        }
    }
}

/// Asks until told to stop.
fn client(address: SocketAddr, stream: bool, seen: &Seen) {
    while !seen.stop.load(Ordering::Relaxed) {
        let mut client = Client::connect(address);
        client.post("/v1/chat/completions", &chat("base", 20, stream));
        let response = client.response();
        match (response.status, response.complete) {
            (200, true) => {
                assert!(response.text().contains("w0020"), "a clean end of half an answer");
                seen.served.fetch_add(1, Ordering::Relaxed);
            }
            (200, false) => {
                assert!(stream && response.text().contains("w0001"), "cut before any content");
                assert!(!response.text().contains("[DONE]"));
                seen.cut.fetch_add(1, Ordering::Relaxed);
            }
            (status, complete) => {
                assert!(complete, "an error that is cut");
                let code = response.json()["error"]["code"].clone();
                assert!(code == "no_pod_available" || code == "pod_failed", "{status} {code}");
                assert!(status != 503 || response.header("retry-after").is_some());
                seen.failed.lock().unwrap().push(status);
                // As a client does that is told to wait.
                sleep(TICK);
            }
        }
    }
}

#[test]
fn no_request_is_lost_that_could_have_been_served() {
    let options = || Options { speed: 2.0, ..Options::default() };
    let engines = Server::start_all((0..4).map(|_| options()).collect()).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &engines));
    let seen = Seen::default();
    thread::scope(|scope| {
        // Also when an assertion fails: the scope waits for its threads.
        let _stop = Stop(&seen.stop);
        for number in 0..50 {
            let (address, seen) = (gateway.address, &seen);
            scope.spawn(move || client(address, number % 2 == 0, seen));
        }
        seen.wait_served(50);

        for dead in 0..2 {
            engines[dead].die(None);
            gateway.wait("the dead pod to be out", |status| {
                let pod = &status["pools"][0]["pods"][dead];
                pod["ready"] == false && pod["trouble"].is_string()
            });
            seen.wait_served(50);
            seen.assert_none_failed(&format!("with {} pods left", 3 - dead));
        }

        engines[2].die(None);
        engines[3].die(None);
        let status = gateway.wait("all to be out", |status| status["ready"] == false);
        assert!(status["reason"].as_str().unwrap().contains("no pod is reachable"), "{status:#}");
        for pod in pods(&status) {
            assert!(pod["trouble"].as_str().is_some_and(|why| !why.is_empty()), "{pod:#}");
        }
        assert!(gateway.get("/readyz").is_none(), "ready without a pod");
        let response = post(gateway.address, "/v1/chat/completions", &chat("base", 1, true));
        assert_eq!(
            (response.status, &response.json()["error"]["code"]),
            (503, &Value::from("no_pod_available"))
        );

        for engine in &engines {
            engine.revive();
        }
        gateway.wait("all to be back", |status| {
            pods(status).all(|pod| pod["ready"] == true && pod["trouble"].is_null())
        });
        seen.take_failed();
        let before: Vec<u64> = engines.iter().map(requests).collect();
        seen.wait_served(200);
        seen.assert_none_failed("with all pods back");
        for (engine, before) in engines.iter().zip(before) {
            assert!(requests(engine) > before, "{} is not used again", engine.name());
        }
    });
    let status = gateway.wait_idle();
    assert_eq!(status["buffered_bytes"], 0);
    let served = seen.served.load(Ordering::Relaxed) as f64;
    gateway.wait_metric("sluice_pool_requests_total{pool=\"pool-0\",outcome=\"ok\"}", served);
    let cut = seen.cut.load(Ordering::Relaxed) as f64;
    gateway.wait_metric("sluice_pool_requests_total{pool=\"pool-0\",outcome=\"aborted\"}", cut);
    assert!(cut > 0.0, "no stream was under way when pods died: the test tests nothing");
}

fn requests(engine: &Server) -> u64 {
    engine.stats().requests_to("/v1/chat/completions")
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

const TICK: Duration = Duration::from_millis(20);
