//! Gateways before the same pods tell each other what they have in flight there, and which prompts they have sent.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_tests::client::{Client, post};
use sluice_tests::engine::{Options, Server};
use sluice_tests::gateway::{Gateway, Plan, pods};
use sluice_tests::pod::{RawPod, Taken, plan};

/// A file with a key, for as long as it is kept.
struct Key(PathBuf);

impl Key {
    fn new(content: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("sluice-test-{}-{number}.key", std::process::id()));
        std::fs::write(&path, content).unwrap();
        Self(path)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const SECRET: &str = "what all gateways of the fleet know\n";

/// Free UDP ports.
fn ports<const N: usize>() -> [u16; N] {
    let sockets = [(); N].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    sockets.map(|socket| socket.local_addr().unwrap().port())
}

/// As `plan`, hearing at the first of these ports and telling all of them.
fn exchanging(plan: &Plan, own: u16, all: &[u16], key: &Key) -> Plan {
    let peers: Vec<_> = all.iter().map(|port| format!("\"127.0.0.1:{port}\"")).collect();
    plan.clone().spec(&format!(
        "  exchange: {{address: 127.0.0.1, port: {own}, peers: [{}], keyFile: {}}}",
        peers.join(", "),
        key.0.display()
    ))
}

fn datagrams(gateway: &Gateway, result: &str) -> f64 {
    let sample = format!("sluice_exchange_datagrams_total{{result=\"{result}\"}}");
    gateway.metric(&sample).unwrap_or(0.0)
}

/// Waits until so many datagrams more have met this end.
fn wait_datagrams(gateway: &Gateway, result: &str, more: f64) {
    let (before, deadline) = (datagrams(gateway, result), Instant::now() + Duration::from_secs(20));
    while datagrams(gateway, result) < before + more {
        assert!(Instant::now() < deadline, "{result} stays below {before} + {more}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends `count` requests that nobody answers, and tells at which of the pods they are.
fn hold(gateway: &Gateway, pods: &[RawPod], count: usize) -> Vec<(Client, Taken, usize)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut held = Vec::new();
    for _ in 0..count {
        // Each prompt is new, so that no cache draws it.
        let prompt = format!("No {}. ", NEXT.fetch_add(1, Ordering::Relaxed)).repeat(200);
        let body = json!({"model": "base", "max_tokens": 100, "prompt": prompt});
        let mut client = Client::connect(gateway.address);
        client.post("/v1/completions", &body);
        let deadline = Instant::now() + Duration::from_secs(20);
        let (taken, place) = loop {
            let mut all = pods.iter().enumerate();
            let pause = Duration::from_millis(2);
            if let Some(taken) = all.find_map(|(place, pod)| Some((pod.take_within(pause)?, place)))
            {
                break taken;
            }
            assert!(Instant::now() < deadline, "no pod is asked");
        };
        held.push((client, taken, place));
    }
    held
}

/// How many of these requests are at the first pod, and at the second.
fn places(held: &[(Client, Taken, usize)]) -> [usize; 2] {
    let at = |place| held.iter().filter(|(_, _, at)| *at == place).count();
    [at(0), at(1)]
}

// The pods' gauges say for ever that they are idle, so that nothing else tells what the other gateway does.
#[test]
fn requests_go_past_pods_that_another_gateway_keeps_busy() {
    let key = Key::new(SECRET);
    let [first, second] = ports();
    let pods = RawPod::start_all(2);
    let both = plan(&pods);
    // The same pool, of which one gateway knows the first pod only.
    let one = Plan { pools: vec![("base".into(), vec![pods[0].address])], ..both.clone() };
    let a = Gateway::start(&exchanging(&one, first, &[first, second], &key));
    let b = Gateway::start(&exchanging(&both, second, &[first, second], &key));
    for gateway in [&a, &b] {
        gateway.wait_metric("sluice_exchange_peers{pool=\"pool-0\"}", 1.0);
    }
    let others = hold(&a, &pods, 12);
    assert_eq!(places(&others), [12, 0]);
    wait_datagrams(&b, "taken", 5.0);
    let own = hold(&b, &pods, 6);
    assert_eq!(places(&own), [0, 6]);
    // When that is over, the first pod is the better one. Clients leave, and no pod has failed.
    let (clients, _streams): (Vec<_>, Vec<_>) =
        others.into_iter().map(|(client, taken, _)| (client, taken)).unzip();
    drop(clients);
    a.wait_idle();
    wait_datagrams(&b, "taken", 5.0);
    let more = hold(&b, &pods, 4);
    // Of equal pods each would get two; the last of four may find them nearly equal.
    assert!(places(&more)[0] >= 3, "{:?}", places(&more));
    assert!(datagrams(&b, "passed") > 0.0, "its own come back, as it is among its peers");
}

#[test]
fn what_is_not_signed_with_the_key_changes_nothing() {
    let (key, wrong) = (Key::new(SECRET), Key::new("what another fleet's gateways know\n"));
    let [first, second] = ports();
    let pods = RawPod::start_all(2);
    let both = plan(&pods);
    let one = Plan { pools: vec![("base".into(), vec![pods[0].address])], ..both.clone() };
    let a = Gateway::start(&exchanging(&one, first, &[second], &wrong));
    let b = Gateway::start(&exchanging(&both, second, &[first], &key));
    let others = hold(&a, &pods, 12);
    assert_eq!(places(&others), [12, 0]);
    wait_datagrams(&b, "refused", 5.0);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for noise in [&b""[..], b"x", &[0; 64], &[0; 1400]] {
        socket.send_to(noise, (Ipv4Addr::LOCALHOST, second)).unwrap();
    }
    let own = hold(&b, &pods, 12);
    assert!(places(&own).iter().all(|count| *count >= 4), "{:?}", places(&own));
    assert_eq!((datagrams(&b, "taken"), datagrams(&b, "malformed")), (0.0, 0.0));
    assert_eq!(b.metric("sluice_exchange_peers{pool=\"pool-0\"}"), Some(0.0));
}

/// A conversation of about 3,000 tokens. Returns how many of them the pod had cached.
fn ask(address: SocketAddr, topic: &str) -> u64 {
    let content = format!("You know all about {topic}. ").repeat(500);
    let body = json!({"model": "base", "max_tokens": 4, "messages": [{"role": "user", "content": content}]});
    let response = post(address, "/v1/chat/completions", &body);
    assert_eq!(response.status, 200, "{}", response.text());
    let answer: Value = serde_json::from_str(&response.text()).unwrap();
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
}

#[test]
fn prompts_are_found_in_the_cache_where_another_gateway_sent_them() {
    let key = Key::new(SECRET);
    let [first, second] = ports();
    let options = || Options { prompt_tokens_details: true, ..Options::default() };
    let engines = Server::start_all((0..4).map(|_| options()).collect()).unwrap();
    let plan = Plan::pool("base", &engines);
    let a = Gateway::start(&exchanging(&plan, first, &[second], &key));
    let b = Gateway::start(&exchanging(&plan, second, &[first], &key));
    b.wait_metric("sluice_exchange_peers{pool=\"pool-0\"}", 1.0);
    let topics = ["birds", "bees", "trees", "fish", "stars", "stones"];
    for topic in topics {
        assert_eq!(ask(a.address, topic), 0);
    }
    wait_datagrams(&b, "taken", 5.0);
    for topic in topics {
        let cached = ask(b.address, topic);
        assert!(cached > 2500, "{topic}: {cached}");
    }
    // Not by chance: it knew. Marks tell a prompt's length to within a third.
    let expected = b.metric("sluice_pool_prefix_cached_tokens_total{pool=\"pool-0\"}").unwrap();
    assert!(expected > 6.0 * 1800.0, "{expected}");
}

#[test]
fn a_successor_hears_what_its_predecessor_heard() {
    let key = Key::new(SECRET);
    let [first, second] = ports();
    let pods = RawPod::start_all(1);
    let plan = plan(&pods);
    let a_plan = exchanging(&plan, first, &[second], &key);
    let a = Gateway::start(&a_plan);
    let b = Gateway::start(&exchanging(&plan, second, &[first], &key));
    let peers = "sluice_exchange_peers{pool=\"pool-0\"}";
    a.wait_metric(peers, 1.0);
    let _held = hold(&a, &pods, 1);
    let successor = a.successor(&a_plan);
    successor.wait_metric(peers, 1.0);
    // The one before is heard for as long as it has something in flight.
    b.wait_metric(peers, 2.0);
    assert!(self::pods(&successor.status()).all(|pod| pod["in_flight"] == 0));
}

#[test]
fn without_a_good_key_there_is_no_start() {
    let pods = RawPod::start_all(1);
    let [port] = ports();
    let short = Key::new("fifteen bytes..\n");
    let missing = Key::new("");
    std::fs::remove_file(&missing.0).unwrap();
    for (key, why) in [(short, "has 15 bytes"), (missing, "cannot be read: No such file")] {
        let log = Gateway::try_launch(&exchanging(&plan(&pods), port, &[port], &key)).unwrap_err();
        assert!(log.contains("spec.exchange.keyFile: ") && log.contains(why), "{log}");
    }
}
