//! Where requests go by what they are: prompts that begin alike, sessions, prompts of all lengths.

#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;

use serde_json::{Value, json};
use sluice_tests::client::{Client, Response, chat, post};
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
    let mut pods = engines(1);
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let expected =
        || gateway.metric("sluice_pool_prefix_cached_tokens_total{pool=\"pool-0\"}").unwrap();
    let ready = |what, is: bool| {
        gateway.wait(what, |status| status["pools"][0]["pods"][0]["ready"] == is);
    };
    let mut conversation = Conversation::new("fish");
    conversation.ask(gateway.address);
    assert!(conversation.ask(gateway.address) > 2500);
    let before = expected();
    assert!(before > 2500.0);
    let old = pods.remove(0);
    let listen = old.addr;
    old.stop();
    ready("it to be gone", false);
    let options = Options { listen, prompt_tokens_details: true, ..Options::default() };
    let _new = Server::start(options).unwrap();
    ready("it to be back", true);
    assert_eq!(conversation.ask(gateway.address), 0);
    assert_eq!(expected(), before, "nothing is expected of a new process");
    assert!(conversation.ask(gateway.address) > 2500);
    assert!(expected() > before);
}

/// Asks with a session's token.
fn ask_as(token: &str, stream: bool, address: SocketAddr) -> Response {
    let body = chat("base", 1, stream).to_string();
    let mut client = Client::connect(address);
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\nX-Session-Token: {token}\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    ));
    client.response()
}

#[test]
fn a_session_stays_where_it_was_served() {
    let pods = engines(4);
    let plan = Plan::pool("base", &pods).scheduler("    weights: {session: 10}");
    let gateway = Gateway::start(&plan);
    let asked = || pods.iter().map(|pod| pod.stats().requests_to(CHAT)).collect::<Vec<_>>();
    let first = post(gateway.address, CHAT, &chat("base", 1, true));
    let token = first.header("x-session-token").unwrap().to_owned();
    let one = asked();
    for stream in [true, false].repeat(8) {
        let response = ask_as(&token, stream, gateway.address);
        assert_eq!((response.status, response.header("x-session-token")), (200, Some(&*token)));
    }
    assert_eq!(asked(), one.iter().map(|count| count * 17).collect::<Vec<_>>());
    // Nonsense is nobody's, and pods that keep no sessions tell nothing.
    assert_eq!(ask_as("zzz", false, gateway.address).status, 200);
    let plain = Gateway::start(&Plan::pool("base", &pods));
    let response = post(plain.address, CHAT, &chat("base", 1, false));
    assert_eq!((response.status, response.header("x-session-token")), (200, None));
}

#[test]
fn long_prompts_go_to_the_pods_that_are_meant_for_them() {
    let pods = engines(2);
    // Behind an empty list of pods.
    let mut lines = String::new();
    for (pod, range) in pods.iter().zip(["0-2000", "2001-100000"]) {
        let (ip, port) = (pod.addr.ip(), pod.addr.port());
        lines += &format!("    - {{address: {ip}, port: {port}, contextLengthRange: {range}}}\n");
    }
    let plan = Plan { pools: vec![("base".into(), Vec::new())], ..Plan::pool("base", &[]) };
    let plan = plan.scheduler(&lines).scheduler("    weights: {contextLength: 100}");
    let gateway = Gateway::start(&plan);
    for _ in 0..8 {
        assert_eq!(post(gateway.address, CHAT, &chat("base", 1, false)).status, 200);
        assert_eq!(Conversation::new("fish").ask(gateway.address) % 16, 0);
    }
    for (pod, long) in pods.iter().zip([false, true]) {
        let lengths: Vec<_> = pod.stats().last.iter().map(|seen| seen.body_len).collect();
        assert!(lengths.len() == 8 && lengths.iter().all(|length| (*length > 8000) == long));
    }
}
