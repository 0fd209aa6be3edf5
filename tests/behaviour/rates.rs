//! How much a key, a model and an address may use: at each cap, and one above it.

use std::net::{Ipv4Addr, SocketAddr};

use sluice_tests::client::{Client, Response, chat, get, post, post_with};
use sluice_tests::engine::{Options, Server};
use sluice_tests::gateway::{Gateway, PATIENCE, Plan};
use sluice_tests::pod::{RawPod, answer, plan};
use socket2::{Domain, Socket, Type};

use crate::auth::Folder;

fn ask(gateway: &Gateway, key: &str, tokens: u32) -> Response {
    let lines = format!("x-api-key: {key}\r\n");
    post_with(gateway.address, "/v1/chat/completions", &lines, &chat("base", tokens, false))
}

fn limited(key: &str, reason: &str) -> String {
    format!("sluice_key_limited_total{{key=\"{key}\",reason=\"{reason}\"}}")
}

#[test]
fn requests_per_minute_at_the_cap_and_one_more() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let folder = Folder::new();
    let keys =
        folder.keys(&[("alice", "sk-a", ", limits: {requestsPerMinute: 3}"), ("bob", "sk-b", "")]);
    let gateway = Gateway::start(&Plan::pool("base", &pods).spec(&keys));
    for left in ["2", "1", "0"] {
        let answer = ask(&gateway, "sk-a", 1);
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("x-ratelimit-limit-requests"), Some("3"));
        assert_eq!(answer.header("x-ratelimit-remaining-requests"), Some(left));
        assert_eq!(answer.header("x-ratelimit-limit-tokens"), None);
    }
    let refused = ask(&gateway, "sk-a", 1);
    refused.assert_error(429, "rate_limit_exceeded", None);
    assert_eq!(refused.header("x-ratelimit-remaining-requests"), Some("0"));
    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    let millis: u64 = refused.header("retry-after-ms").unwrap().parse().unwrap();
    // A third of a minute brings the next, of which some has passed.
    assert!((1..=20).contains(&seconds) && millis <= 20_000, "{seconds} s, {millis} ms");
    assert!(refused.header("x-ratelimit-reset-requests").unwrap().ends_with('s'));
    // Another key has its own, which here is none, and the health page has nothing to do with it.
    let other = ask(&gateway, "sk-b", 1);
    assert_eq!((other.status, other.header("x-ratelimit-limit-requests")), (200, None));
    assert_eq!(get(gateway.address, "/health").status, 200);
    gateway.wait_metric(&limited("alice", "requests"), 1.0);
    assert_eq!(gateway.metric("sluice_gateway_refused_total{reason=\"limited\"}"), Some(1.0));
    let status = gateway.wait_idle();
    assert_eq!(status["pools"][0]["pods"][0]["requests"], 4, "what is refused reaches no pod");
    // What has been used stays used when the file changes, and a higher limit holds at once.
    folder.keys(&[("alice", "sk-a", ", limits: {requestsPerMinute: 5}"), ("bob", "sk-b", "")]);
    gateway.wait_metric("sluice_auth_reloads_total{source=\"keys\",result=\"done\"}", 1.0);
    let statuses: Vec<u16> = (0..3).map(|_| ask(&gateway, "sk-a", 1).status).collect();
    assert_eq!(statuses, [200, 200, 429]);
}

#[test]
fn tokens_per_minute_by_the_guess_and_then_by_the_count() {
    let pods = [RawPod::start()];
    let folder = Folder::new();
    let limits = ", limits: {tokensPerMinute: 1000}";
    let keys = folder.keys(&[("alice", "sk-a", limits)]);
    let gateway = Gateway::start(&plan(&pods).spec(&keys));
    let begin = |tokens: u32| {
        let mut client = Client::connect(gateway.address);
        client.post_with(
            "/v1/chat/completions",
            "x-api-key: sk-a\r\n",
            &chat("base", tokens, false),
        );
        client
    };
    let left = |response: &Response| {
        response.header("x-ratelimit-remaining-tokens").unwrap().parse::<u64>().unwrap()
    };
    // The whole answer is taken at first; what the pod says replaces it.
    let mut client = begin(900);
    let usage = |prompt: u64, generated: u64| {
        let usage = format!("\"prompt_tokens\":{prompt},\"completion_tokens\":{generated}");
        answer(200, "", &format!("{{\"usage\":{{{usage}}}}}"))
    };
    let mut taken = pods[0].take();
    let refused = ask(&gateway, "sk-a", 200);
    refused.assert_error(429, "rate_limit_exceeded", None);
    taken.send(usage(10, 30));
    let first = client.response();
    assert_eq!((first.status, first.header("x-ratelimit-limit-tokens")), (200, Some("1000")));
    assert!((50..100).contains(&left(&first)), "{}", left(&first));
    taken.keep();
    gateway.wait_metric("sluice_key_generation_tokens_total{key=\"alice\"}", 30.0);
    // 960 are left, and what the time has brought.
    let mut client = begin(900);
    let mut taken = pods[0].take();
    taken.send(usage(10, 2000));
    assert_eq!(client.response().status, 200);
    taken.keep();
    gateway.wait_metric("sluice_key_generation_tokens_total{key=\"alice\"}", 2030.0);
    // In debt: nothing at all for a while.
    let refused = ask(&gateway, "sk-a", 1);
    refused.assert_error(429, "rate_limit_exceeded", None);
    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((20..=64).contains(&seconds), "{seconds}");
    // More than a minute's worth is never let in, and no client should try again.
    let refused = ask(&gateway, "sk-a", 1001);
    refused.assert_error(429, "rate_limit_exceeded", None);
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    assert_eq!(refused.header("retry-after"), None);
    gateway.wait_metric(&limited("alice", "tokens"), 3.0);
}

#[test]
fn what_no_pod_has_answered_costs_no_tokens() {
    let pods = [RawPod::start()];
    let folder = Folder::new();
    let keys = folder.keys(&[("alice", "sk-a", ", limits: {tokensPerMinute: 1000}")]);
    let gateway = Gateway::start(&plan(&pods).spec(&keys));
    for (status, ok) in [(400, true), (422, true), (200, false)] {
        let mut client = Client::connect(gateway.address);
        client.post_with("/v1/chat/completions", "api-key: sk-a\r\n", &chat("base", 900, false));
        let mut taken = pods[0].take();
        taken.send(answer(status, "", "{}"));
        assert_eq!(client.response().status, status);
        taken.keep();
        gateway.wait_metric("sluice_key_requests_in_flight{key=\"alice\"}", 0.0);
        let refused = ask_without_waiting(&gateway, &pods[0], 900);
        assert_eq!(refused.is_none(), ok, "after {status}");
        gateway.wait_metric("sluice_key_requests_in_flight{key=\"alice\"}", 0.0);
    }
}

/// The refusal, if it is one; a request that is let in is refused by the pod, so that it costs nothing.
fn ask_without_waiting(gateway: &Gateway, pod: &RawPod, tokens: u32) -> Option<Response> {
    let mut client = Client::connect(gateway.address);
    client.post_with("/v1/chat/completions", "api-key: sk-a\r\n", &chat("base", tokens, false));
    if let Some(mut taken) = pod.take_within(std::time::Duration::from_millis(500)) {
        taken.send(answer(400, "", "{}"));
        taken.keep();
        client.response();
        return None;
    }
    let refused = client.response();
    refused.assert_error(429, "rate_limit_exceeded", None);
    Some(refused)
}

#[test]
fn requests_at_once_at_the_cap_and_one_more() {
    let pods = [RawPod::start()];
    let folder = Folder::new();
    folder.keys(&[("alice", "sk-a", ""), ("bob", "sk-b", ", limits: {concurrentRequests: 3}")]);
    let file = folder.0.join("keys.yaml");
    let spec = format!(
        "  auth: {{apiKeys: {{file: {}, limits: {{concurrentRequests: 2}}}}}}",
        file.display()
    );
    let gateway = Gateway::start(&plan(&pods).spec(&spec));
    let begin = |key: &str| {
        let mut client = Client::connect(gateway.address);
        let lines = format!("authorization: Bearer {key}\r\n");
        client.post_with("/v1/chat/completions", &lines, &chat("base", 1, false));
        client
    };
    let mut clients: Vec<(Client, _)> = (0..2).map(|_| (begin("sk-a"), pods[0].take())).collect();
    gateway.wait_metric("sluice_key_requests_in_flight{key=\"alice\"}", 2.0);
    let refused = ask(&gateway, "sk-a", 1);
    refused.assert_error(429, "rate_limit_exceeded", None);
    assert_eq!(refused.header("retry-after"), Some("1"));
    let others: Vec<(Client, _)> = (0..3).map(|_| (begin("sk-b"), pods[0].take())).collect();
    assert_eq!(ask(&gateway, "sk-b", 1).status, 429);
    // One ends well, one because its client leaves; both places are free again.
    let (mut client, mut taken) = clients.pop().unwrap();
    taken.send(answer(200, "", "{}"));
    taken.keep();
    assert_eq!(client.response().status, 200);
    let (client, taken) = clients.pop().unwrap();
    drop(client);
    taken.wait_closed();
    gateway.wait_metric("sluice_key_requests_in_flight{key=\"alice\"}", 0.0);
    let again: Vec<(Client, _)> = (0..2).map(|_| (begin("sk-a"), pods[0].take())).collect();
    assert_eq!(ask(&gateway, "sk-a", 1).status, 429);
    gateway.wait_metric(&limited("alice", "concurrent"), 2.0);
    drop((again, others));
}

#[test]
fn a_model_has_limits_of_its_own() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let limits = "    limits: {requestsPerMinute: 2}";
    let folder = Folder::new();
    let keys = folder
        .keys(&[("alice", "sk-a", ", limits: {requestsPerMinute: 100}"), ("bob", "sk-b", "")]);
    for spec in ["", keys.as_str()] {
        let gateway = Gateway::start(&Plan::pool("base", &pods).spec(spec).scheduler(limits));
        let ask = |key: &str| ask(&gateway, key, 1);
        let first = ask("sk-a");
        assert_eq!(first.status, 200);
        // The tighter one is told.
        assert_eq!(first.header("x-ratelimit-limit-requests"), Some("2"));
        assert_eq!(ask("sk-b").status, 200);
        let refused = ask("sk-a");
        refused.assert_error(429, "rate_limit_exceeded", None);
        assert!(refused.text().contains("model `base`"), "{}", refused.text());
        let sample = "sluice_pool_limited_total{pool=\"pool-0\",reason=\"requests\"}";
        gateway.wait_metric(sample, 1.0);
        assert_eq!(gateway.metric(&limited("alice", "requests")).unwrap_or(0.0), 0.0);
    }
}

#[test]
fn connections_of_one_address_at_the_cap_and_one_more() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let limits = "  limits: {maxConnectionsPerAddress: 3}";
    let gateway = Gateway::start(&Plan::pool("base", &pods).spec(limits));
    let mut open: Vec<Client> = (0..3).map(|_| Client::connect(gateway.address)).collect();
    for client in &mut open {
        client.post("/v1/chat/completions", &chat("base", 1, false));
        assert_eq!(client.response().status, 200);
    }
    let mut one_more = Client::connect(gateway.address);
    one_more.response().assert_error(429, "too_many_connections_of_address", None);
    assert!(one_more.is_closed());
    gateway.wait_metric("sluice_gateway_refused_total{reason=\"too_many_of_address\"}", 1.0);
    // Another address has its own three.
    let mut other = from(Ipv4Addr::new(127, 0, 0, 2), gateway.address);
    other.post("/v1/chat/completions", &chat("base", 1, false));
    assert_eq!(other.response().status, 200);
    drop(open.pop());
    gateway.wait("the connection to be gone", |status| status["connections"] == 3);
    let status = post(gateway.address, "/v1/chat/completions", &chat("base", 1, false)).status;
    assert_eq!(status, 200);
}

/// A client at an address of the loopback network.
fn from(address: Ipv4Addr, gateway: SocketAddr) -> Client {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
    socket.connect_timeout(&gateway.into(), PATIENCE).unwrap();
    Client::over(socket.into())
}
