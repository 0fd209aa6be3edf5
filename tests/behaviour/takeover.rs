//! A new gateway takes over from one that runs, and clients do not notice.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use sluice_tests::client::{Client, chat, post};
use sluice_tests::engine::{Options, Server};
use sluice_tests::gateway::{Gateway, PATIENCE, Plan};
use sluice_tests::netns;

#[test]
fn under_load_nothing_is_refused_or_cut() {
    let pods = Server::start_all(vec![Options::default(), Options::default()]).unwrap();
    let plan = Plan::pool("base", &pods).spec("  workers: 2");
    take_over_under_load(&plan, &[], &pods);
}

#[test]
fn under_load_a_steering_gateway_is_relieved_by_another() {
    netns::run(BLOCKS, || {
        let pods = Server::start_all(vec![Options::default(), Options::default()]).unwrap();
        let plan = virtual_plan(&pods).spec("  workers: 2");
        take_over_under_load(&plan, &VIRTUAL, &pods);
    });
}

/// Several takeovers in a row while clients of every kind go on.
fn take_over_under_load(plan: &Plan, more: &[&str], pods: &[Server]) {
    let mut gateway = Gateway::start(plan);
    let steering = gateway.status()["steering"]["path"].clone();
    let load = Load::start(more.iter().map(|to| to.parse().unwrap()).chain([gateway.address]));
    for _ in 0..4 {
        load.wait_for_more();
        let new = gateway.successor(plan);
        assert!(new.log().contains("taken over from process"), "{}", new.log());
        assert_eq!(new.status()["steering"]["path"], steering, "{}", new.log());
        assert_eq!(gateway.wait_exit(PATIENCE).code(), Some(0), "{}", gateway.log());
        assert!(gateway.log().contains("; 0 connections were cut"), "{}", gateway.log());
        gateway = new;
    }
    load.wait_for_more();
    load.stop();
    assert!(pods.iter().all(|pod| pod.stats().aborted == 0));
}

/// Clients that go on and on, and panic at anything but a whole answer.
struct Load {
    stop: Arc<AtomicBool>,
    done: Vec<Arc<AtomicUsize>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Load {
    fn start(addresses: impl Iterator<Item = SocketAddr>) -> Self {
        let mut load = Self { stop: Arc::default(), done: Vec::new(), threads: Vec::new() };
        for address in addresses {
            for _ in 0..2 {
                load.add(move || assert_answer(&post(address, CHAT, &chat("base", 1, false))));
                load.add(move || assert_answer(&post(address, CHAT, &chat("base", 60, true))));
            }
            let mut kept: Option<Client> = None;
            load.add(move || {
                let client = kept.get_or_insert_with(|| Client::connect(address));
                client.post(CHAT, &chat("base", 1, false));
                let response = client.response();
                assert_answer(&response);
                // Only one that was told so may not be used again.
                if response.header("connection") == Some("close") {
                    kept = None;
                }
            });
        }
        load
    }

    fn add(&mut self, mut request: impl FnMut() + Send + 'static) {
        let done = Arc::new(AtomicUsize::new(0));
        self.done.push(Arc::clone(&done));
        let stop = Arc::clone(&self.stop);
        self.threads.push(thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                request();
                done.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }

    /// Waits until each client has had another answer.
    fn wait_for_more(&self) {
        for (done, thread) in self.done.iter().zip(&self.threads) {
            let before = done.load(Ordering::Relaxed);
            while done.load(Ordering::Relaxed) == before && !thread.is_finished() {
                thread::sleep(Duration::from_millis(5));
            }
        }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

fn assert_answer(response: &sluice_tests::client::Response) {
    let said = (response.status, response.complete);
    assert_eq!(said, (200, true), "{:?} {}", response.headers, response.text());
    if response.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
        assert_eq!(response.events().last().map(String::as_str), Some("[DONE]"));
    }
}

fn virtual_plan(pods: &[Server]) -> Plan {
    let mut plan = Plan::pool("base", pods);
    plan.steering = true;
    plan.listener =
        ", virtualAddresses: [{address: 10.9.0.0/16, port: 80}, {address: \"fd09::/64\", port: 80}]"
            .into();
    plan
}

const CHAT: &str = "/v1/chat/completions";
const BLOCKS: &[&str] = &["10.9.0.0/16", "fd09::/64"];
/// Some that only steering serves.
const VIRTUAL: [&str; 2] = ["10.9.8.7:80", "[fd09::1]:80"];
