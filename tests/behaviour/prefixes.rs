//! Prompts that begin alike, over engines with prefix caches.

#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;

use serde_json::{Value, json};
use sluice_tests::client::post;
use sluice_tests::engine::{Options, Server};
use sluice_tests::gateway::{Gateway, Plan};

const CHAT: &str = "/v1/chat/completions";

/// A conversation that grows with every turn.
struct Conversation {
    messages: Vec<Value>,
}

impl Conversation {
    /// With a system prompt of about 3,000 tokens.
    fn new(topic: &str) -> Self {
        let content = format!("You know all about {topic}. ").repeat(500);
        Self { messages: vec![json!({"role": "system", "content": content})] }
    }

    /// Asks once more. Returns how many tokens of the prompt the pod had cached.
    fn ask(&mut self, address: SocketAddr) -> u64 {
        self.messages.push(json!({"role": "user", "content": "What else? ".repeat(30)}));
        let body = json!({"model": "base", "max_tokens": 4, "messages": self.messages});
        let response = post(address, CHAT, &body);
        assert_eq!(response.status, 200, "{}", response.text());
        let answer: Value = serde_json::from_str(&response.text()).unwrap();
        self.messages.push(answer["choices"][0]["message"].clone());
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
    }
}

fn engines(count: usize) -> Vec<Server> {
    let options = || Options { prompt_tokens_details: true, ..Options::default() };
    Server::start_all((0..count).map(|_| options()).collect()).unwrap()
}

#[test]
fn a_conversation_finds_what_was_computed_for_it() {
    let pods = engines(4);
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let mut all: Vec<_> = ["birds", "bees", "trees"].map(Conversation::new).into();
    for conversation in &mut all {
        assert_eq!(conversation.ask(gateway.address), 0);
    }
    for _ in 0..4 {
        for conversation in &mut all {
            let cached = conversation.ask(gateway.address);
            assert!(cached > 2500, "{cached}");
        }
    }
    let metric = |name: &str| {
        let sample = format!("sluice_pool_prefix_{name}{{pool=\"pool-0\"}}");
        gateway.metric(&sample).unwrap()
    };
    let (queried, cached) = (metric("queried_tokens_total"), metric("cached_tokens_total"));
    // Four of five turns, and the longer ones.
    assert!(cached > 0.7 * queried && cached < queried, "{cached} of {queried}");
    assert!(metric("index_blocks") > 100.0 && metric("index_bytes") > 1000.0);
}

#[test]
fn a_pod_that_came_back_has_nothing() {
    let pods = engines(2);
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let mut conversation = Conversation::new("fish");
    conversation.ask(gateway.address);
    assert!(conversation.ask(gateway.address) > 2500);
    let first = pods.iter().position(|pod| pod.stats().requests_to(CHAT) > 0).unwrap();
    pods[first].die(None);
    gateway.wait("it to be gone", |status| status["pools"][0]["pods"][first]["ready"] == false);
    assert_eq!(conversation.ask(gateway.address), 0);
    let cached = conversation.ask(gateway.address);
    assert!(cached > 2500, "{cached}");
}
