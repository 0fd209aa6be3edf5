//! Clients that ask on and on while something is done to the gateway, and fail at anything but a whole answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::client::{Client, Response, chat, post};

/// Clients that go on and on, and panic at anything but a whole answer.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    done: Vec<Arc<AtomicUsize>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Load {
    /// Four clients with a connection for each request, and one that keeps its own, for each address.
    pub fn start(addresses: impl Iterator<Item = SocketAddr>) -> Self {
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
    pub fn wait_for_more(&self) {
        for (done, thread) in self.done.iter().zip(&self.threads) {
            let before = done.load(Ordering::Relaxed);
            while done.load(Ordering::Relaxed) == before && !thread.is_finished() {
                thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Answers so far.
    pub fn answered(&self) -> usize {
        self.done.iter().map(|done| done.load(Ordering::Relaxed)).sum()
    }

    /// Ends it; a client that failed fails it.
    ///
    /// # Panics
    /// A request failed.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("no request fails");
        }
    }
}

/// Asserts that this is a whole answer.
///
/// # Panics
/// It is not.
pub fn assert_answer(response: &Response) {
    let said = (response.status, response.complete);
    assert_eq!(said, (200, true), "{:?} {}", response.headers, response.text());
    if response.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
        assert_eq!(response.events().last().map(String::as_str), Some("[DONE]"));
    }
}

const CHAT: &str = "/v1/chat/completions";
