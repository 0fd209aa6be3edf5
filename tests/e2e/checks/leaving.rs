//! Clients that leave: the engine must not go on for nobody.

use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use sluice_tests::client::Client;
use socket2::SockRef;

use super::range;
use crate::gateway::TICK;
use crate::rig::Rig;
use crate::wire;

pub(super) fn disconnect(rig: &mut Rig) -> String {
    rig.revive();
    let mut seen = Vec::new();
    for stream in [true, false] {
        for way in [Way::Close, Way::Reset, Way::HalfClose] {
            let mut times = Vec::new();
            let before = (rig.gateway.outcomes("client_gone"), generated(rig));
            for _ in 0..3 {
                let mut client =
                    wire::open(rig.gateway.address, "/v1/chat/completions", &wire::endless(stream));
                if stream {
                    client.read_until("\"content\"");
                }
                let started = Instant::now();
                while running(rig) < 1.0 {
                    assert!(started.elapsed() < LIMIT, "the request does not run");
                    thread::sleep(TICK);
                }
                leave(client, way);
                times.push(freed(rig));
            }
            rig.settle();
            let gone = rig.gateway.outcomes("client_gone") - before.0;
            assert_eq!(gone, 3.0, "each is counted as a client that left");
            let tokens = generated(rig) - before.1;
            assert!(tokens < 3.0 * 1900.0, "{tokens} tokens: the engine went on to the end");
            let kind = if stream { "streamed" } else { "whole" };
            seen.push(format!("{way:?}, {kind}: {}, {tokens} of 5700 tokens made", range(&times)));
        }
    }
    format!("from leaving to an empty engine (polled):\n{}", seen.join("\n"))
}

pub(super) fn prefill(rig: &mut Rig) -> String {
    rig.revive();
    // Most of the context: the longest prefill that this model has.
    let words = "lo ".repeat(600);
    let mut seen = Vec::new();
    for stream in [true, false] {
        let mut body = wire::chat("tiny-llama", &words, 900, stream);
        for pause in [0, 5, 15, 30, 60] {
            // A new prompt each time, else the cache has it.
            body["messages"][0]["content"] = format!("{pause} {stream} {words}").into();
            let before = generated(rig);
            let client = wire::open(rig.gateway.address, "/v1/chat/completions", &body);
            thread::sleep(Duration::from_millis(pause));
            drop(client);
            let took = freed(rig);
            rig.settle();
            // What was given up before it ran is freed at once; nothing may start later either.
            thread::sleep(Duration::from_millis(300));
            assert_eq!(running(rig), 0.0, "a request runs that nobody waits for");
            let tokens = generated(rig) - before;
            assert!(tokens < 900.0, "{tokens} tokens: the engine went on to the end");
            seen.push(format!(
                "left after {pause} ms ({}): free after {}, {tokens} tokens made",
                if stream { "streamed" } else { "whole" },
                super::ms(took)
            ));
        }
    }
    seen.join("\n")
}

/// How a client leaves.
#[derive(Clone, Copy, Debug)]
enum Way {
    Close,
    Reset,
    HalfClose,
}

fn leave(client: Client, way: Way) {
    match way {
        Way::Close => drop(client),
        Way::Reset => {
            SockRef::from(&client.stream).set_linger(Some(Duration::ZERO)).expect("an open socket");
            drop(client);
        }
        Way::HalfClose => {
            client.stream.shutdown(Shutdown::Write).expect("an open socket");
            // Held open on this side until the engine is free.
            thread::spawn(move || {
                thread::sleep(Duration::from_secs(10));
                drop(client);
            });
        }
    }
}

/// Waits until no engine has work, the gateway's view aside.
fn freed(rig: &Rig) -> Duration {
    let started = Instant::now();
    for pod in &rig.pods {
        pod.wait_idle(LIMIT);
    }
    started.elapsed()
}

fn running(rig: &Rig) -> f64 {
    rig.pods.iter().map(|pod| pod.load()).map(|(running, waiting)| running + waiting).sum()
}

fn generated(rig: &Rig) -> f64 {
    rig.pods.iter().map(|pod| pod.metric("vllm:generation_tokens_total")).sum()
}

/// An answer of 1,900 tokens takes longer on any machine that this was seen on.
const LIMIT: Duration = Duration::from_secs(5);
