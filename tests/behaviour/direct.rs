//! Direct mode: whole connections go to the model servers' own sockets.
//!
//! Here the gateway with model servers, in a namespace of its own; in [`kernel`] the kernel's part.

mod kernel;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use sluice_tests::client::{Client, chat, get, post};
use sluice_tests::engine::{Options, Server};
use sluice_tests::gateway::{Gateway, Plan, free_port};
use sluice_tests::netns;
use sluice_tests::pod::{LAST, RawPod, STREAM, Signals, answer, chunk, plan};

#[test]
fn a_connection_is_the_servers_from_its_first_byte() {
    netns::run(&[], || {
        let pods = RawPod::start_all(1);
        let gateway = start(&direct(plan(&pods)));
        let mut client = Client::connect(gateway.address);
        client.post(CHAT, &chat("base", 1, true));
        let mut taken = pods[0].take();
        // No proxy: the server sees the client itself, and the request as it was sent.
        assert_eq!(taken.stream.peer_addr().unwrap(), client.stream.local_addr().unwrap());
        assert_eq!(taken.stream.local_addr().unwrap(), gateway.address);
        assert_eq!(taken.header("x-request-id"), None);
        assert_eq!(taken.header("host"), Some("gateway"));
        let status = gateway.wait("the connection to count", |status| open(status) == [1]);
        assert_eq!(status["pools"][0]["pods"][0]["in_flight"], 1);
        assert_eq!(status["connections"], 0);
        gateway.wait_metric(
            "sluice_direct_connections_total{pool=\"pool-0\",pod=\"POD\"}"
                .replace("POD", &pods[0].address.to_string())
                .as_str(),
            1.0,
        );

        taken.send(STREAM);
        taken.send(chunk("data: one\n\n"));
        client.read_until("data: one");
        // The gateway dies, and nobody on the connection notices.
        gateway.signal("KILL");
        thread::sleep(Duration::from_millis(300));
        taken.send(chunk("data: two\n\n"));
        taken.send(LAST);
        client.read_until("data: two");
        // Nothing is left behind that would lead to a server.
        let refused = TcpStream::connect(gateway.address).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn connections_are_spread_by_the_servers_load() {
    netns::run(&[], || {
        let pods = RawPod::start_all(3);
        pods[1].tell(Signals { running: 40, waiting: 20, kv_usage: 0.9 });
        let gateway = start(&direct(plan(&pods)));
        gateway
            .wait("the load to be known", |status| status["pools"][0]["pods"][1]["waiting"] == 20);
        settle();
        let clients: Vec<_> = (0..40).map(|_| Client::connect(gateway.address)).collect();
        let status = gateway.wait("all to count", |status| open(status).iter().sum::<u64>() == 40);
        let got = open(&status);
        assert!(got[0] > 12 && got[1] == 0 && got[2] > 12, "{got:?}");

        // What is open counts as load: the one whose connections end is the best.
        pods[1].tell(Signals::default());
        gateway.wait("the load to be gone", |status| status["pools"][0]["pods"][1]["waiting"] == 0);
        settle();
        let more: Vec<_> = (0..10).map(|_| Client::connect(gateway.address)).collect();
        let status = gateway.wait("all to count", |status| open(status).iter().sum::<u64>() == 50);
        assert_eq!(open(&status)[1], 10, "{got:?}");
        drop((clients, more));
        gateway.wait("none to be open", |status| open(status) == [0, 0, 0]);
        gateway.wait_idle();
    });
}

#[test]
fn a_server_that_stops_is_left_out_and_taken_again() {
    netns::run(&[], || {
        let pods = Server::start_all(vec![Options::default(), Options::default()]).unwrap();
        let gateway = start(&direct(Plan::pool("base", &pods)));
        for _ in 0..2 {
            let both = answers(gateway.address, 20);
            assert_eq!(both.len(), 2, "{both:?}");
            pods[0].die(None);
            while TcpStream::connect(pods[0].addr).is_ok() {
                thread::yield_now();
            }
            // Also before the gateway has noticed.
            assert_eq!(answers(gateway.address, 10), [(pods[1].name().to_owned(), 10)].into());
            gateway.wait("it to be out", |status| troubles(status)[0].is_some());
            assert_eq!(answers(gateway.address, 10), [(pods[1].name().to_owned(), 10)].into());
            pods[0].revive();
            gateway.wait("it to be back", |status| {
                let pod = &status["pools"][0]["pods"][0];
                troubles(status)[0].is_none() && pod["ready"] == true && !pod["score"].is_null()
            });
            settle();
        }
    });
}

#[test]
fn servers_may_start_before_and_after_the_gateway() {
    netns::run(&[], || {
        let first = Server::start(Options::default()).unwrap();
        let later = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let plan =
            Plan { pools: vec![("base".into(), vec![first.addr, later])], ..Plan::pool("", &[]) };
        let gateway = start_with(&direct(plan), 1);
        assert_eq!(answers(gateway.address, 5), [(first.name().to_owned(), 5)].into());
        let second = Server::start(Options { listen: later, ..Options::default() }).unwrap();
        gateway.wait("the second to be known", |status| {
            troubles(status) == [None, None] && !status["pools"][0]["pods"][1]["score"].is_null()
        });
        settle();
        let both = answers(gateway.address, 20);
        assert!(both[first.name()] > 2 && both[second.name()] > 2, "{both:?}");
    });
}

#[test]
fn with_no_server_the_gateway_says_so() {
    netns::run(&[], || {
        let pods = Server::start_all(vec![Options::default()]).unwrap();
        let gateway = start(&direct(Plan::pool("base", &pods)));
        pods[0].die(None);
        gateway.wait("it to be out", |status| status["pools"][0]["pods"][0]["ready"] == false);
        settle();
        let mut client = Client::connect(gateway.address);
        client.post(CHAT, &chat("base", 1, false));
        let refused = client.response();
        refused.assert_error(503, "no_pod_available", None);
        assert_eq!(refused.header("retry-after"), Some("1"));
        // The next try shall find a server's own socket.
        assert_eq!(refused.header("connection"), Some("close"));
        assert!(client.is_closed());
        assert_eq!(get(gateway.address, "/health").status, 503);
        assert_eq!(get(gateway.address, "/v1/models").status, 200);
        gateway.wait_metric("sluice_direct_fallbacks_total{pool=\"pool-0\"}", 3.0);
        gateway.wait_metric("sluice_pool_rejected_total{pool=\"pool-0\",reason=\"no_pod\"}", 1.0);
    });
}

#[test]
fn at_their_limit_servers_get_no_more() {
    netns::run(&[], || {
        let pods = RawPod::start_all(2);
        let plan = direct(plan(&pods)).scheduler("    saturation: {inFlight: 3, queueDepth: 5}");
        let gateway = start(&plan);
        pods[0].tell(Signals { waiting: 5, ..Signals::default() });
        gateway
            .wait("the queue to be known", |status| status["pools"][0]["pods"][0]["waiting"] == 5);
        settle();
        // Open connections count against the limit as requests do.
        let clients: Vec<_> = (0..3).map(|_| Client::connect(gateway.address)).collect();
        gateway.wait("them to count", |status| open(status) == [0, 3]);
        settle();
        let mut one_more = Client::connect(gateway.address);
        // Whatever it names: the listener serves one pool.
        one_more.post(CHAT, &chat("anything", 1, false));
        let refused = one_more.response();
        refused.assert_error(429, "pool_saturated", None);
        assert_eq!(refused.header("retry-after"), Some("1"));
        drop(clients);
        gateway.wait("them to be gone", |status| open(status) == [0, 0]);
        settle();
        let mut again = Client::connect(gateway.address);
        again.post(CHAT, &chat("base", 1, false));
        pods[1].take().send(answer(200, "", "{}"));
        assert_eq!(again.response().status, 200);
    });
}

#[test]
fn a_gateway_that_hangs_is_not_missed() {
    netns::run(&[], || {
        let pods = Server::start_all(vec![Options::default(), Options::default()]).unwrap();
        let gateway = start(&direct(Plan::pool("base", &pods)));
        gateway.signal("STOP");
        thread::sleep(Duration::from_millis(3300));
        let both = answers(gateway.address, 20);
        assert_eq!(both.len(), 2, "{both:?}");
        gateway.signal("CONT");
        gateway.wait_metric("sluice_direct_stale_total{pool=\"pool-0\"}", 20.0);
        gateway.wait_metric("sluice_direct_fallbacks_total{pool=\"pool-0\"}", 0.0);
    });
}

#[test]
fn a_socket_that_cannot_be_had_costs_a_hop() {
    netns::run(&[], || {
        let pods = Server::start_all(vec![Options::default()]).unwrap();
        let mut plan = direct(Plan::pool("base", &pods));
        plan.command = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
            .map(str::to_owned)
            .into();
        let gateway = Gateway::start(&plan);
        let status = gateway.wait("the socket to be looked for", |status| {
            troubles(status)[0].as_deref().is_some_and(|said| said.contains("CAP_SYS_PTRACE"))
        });
        assert!(gateway.log().contains("CAP_SYS_PTRACE"), "{status:#}");
        // Any name of a model will do, here as there, and the gateway passes it on.
        let mut client = Client::connect(gateway.address);
        client.post(CHAT, &chat("base", 1, false));
        let relayed = client.response();
        assert_eq!((relayed.status, relayed.header("connection")), (200, Some("close")));
        gateway.wait_metric("sluice_direct_fallbacks_total{pool=\"pool-0\"}", 1.0);

        pods[0].die(None);
        gateway.wait("it to be gone", |status| status["pools"][0]["pods"][0]["ready"] == false);
        pods[0].revive();
        ready(&gateway, 1);
        answers(gateway.address, 5);
        gateway.wait_metric("sluice_direct_fallbacks_total{pool=\"pool-0\"}", 1.0);
    });
}

#[test]
fn without_steering_requests_are_relayed() {
    netns::run(&[], || {
        let pods = Server::start_all(vec![Options::default()]).unwrap();
        let mut plan = direct(Plan::pool("base", &pods));
        plan.command = ["setpriv", "--bounding-set=-bpf,-sys_admin", "--inh-caps=-bpf,-sys_admin"]
            .map(str::to_owned)
            .into();
        let gateway = Gateway::start(&plan);
        assert!(gateway.log().contains("no connection goes whole to a pod"), "{}", gateway.log());
        let mut client = Client::connect(gateway.address);
        for _ in 0..2 {
            client.post(CHAT, &chat("base", 1, false));
            assert_eq!(client.response().status, 200);
        }
    });
}

/// A plan whose one pool has the listener for itself.
fn direct(plan: Plan) -> Plan {
    let mut plan = plan.scheduler("    mode: connection\n    listener: http");
    plan.steering = true;
    plan
}

/// Starts a gateway and waits until all pods can be given connections.
fn start(plan: &Plan) -> Gateway {
    start_with(plan, plan.pools[0].1.len())
}

/// The same with the first pods alone.
fn start_with(plan: &Plan, pods: usize) -> Gateway {
    let gateway = Gateway::start(plan);
    ready(&gateway, pods);
    gateway
}

fn ready(gateway: &Gateway, pods: usize) {
    gateway.wait("the servers' sockets", |status| {
        let ready = |pod: &Value| pod["ready"] == true && !pod["score"].is_null();
        let all = status["pools"][0]["pods"].as_array().unwrap();
        all.iter().take(pods).all(ready) && troubles(status).iter().take(pods).all(Option::is_none)
    });
    settle();
}

/// Longer than it takes until what the status shows is in the kernel's map.
fn settle() {
    thread::sleep(Duration::from_millis(500));
}

/// Open connections of each pod.
fn open(status: &Value) -> Vec<u64> {
    of_pods(status, |pod| pod["open"].as_u64().unwrap())
}

/// Why each pod can be given no connection.
fn troubles(status: &Value) -> Vec<Option<String>> {
    of_pods(status, |pod| pod["trouble"].as_str().map(str::to_owned))
}

fn of_pods<T>(status: &Value, of: impl Fn(&Value) -> T) -> Vec<T> {
    status["pools"][0]["direct"]["pods"].as_array().unwrap().iter().map(of).collect()
}

/// Makes connections one by one, each for one request, and says how many each engine answered.
fn answers(to: SocketAddr, count: usize) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for _ in 0..count {
        let answer = post(to, CHAT, &chat("base", 1, false));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let name = answer.json()["system_fingerprint"].as_str().unwrap().to_owned();
        *counts.entry(name).or_default() += 1;
    }
    counts
}

const CHAT: &str = "/v1/chat/completions";
