//! A new gateway takes over from one that runs, and clients do not notice.

use std::net::{SocketAddr, TcpListener, TcpStream};

use gateway_user::config::KernelLog;
use gateway_user::takeover::{Handed, Predecessor, Role};
use sluice_tests::client::{Client, chat, get, post};
use sluice_tests::engine::{Faults, Options, Server};
use sluice_tests::gateway::{Gateway, PATIENCE, Plan, free_port};
use sluice_tests::load::{Load, assert_answer};
use sluice_tests::{netns, steering};
use tokio::runtime::Runtime;

#[test]
fn under_load_nothing_is_refused_or_cut() {
    let pods = Server::start_all(vec![Options::default(), Options::default()]).unwrap();
    // Sockets are shared out among however many workers there are: twenty takeovers.
    let workers = [2, 2, 5, 1, 3, 2, 4, 1, 1, 2, 3, 5, 2, 1, 4, 2, 2, 3, 1, 5, 2];
    let plans =
        workers.map(|workers| Plan::pool("base", &pods).spec(&format!("  workers: {workers}")));
    take_over_under_load(&plans, &[], &pods);
}

#[test]
fn under_load_a_steering_gateway_is_relieved_by_another() {
    netns::run(BLOCKS, || {
        let pods = Server::start_all(vec![Options::default(), Options::default()]).unwrap();
        let plans =
            [2, 2, 1, 3].map(|workers| virtual_plan(&pods).spec(&format!("  workers: {workers}")));
        take_over_under_load(&plans, &VIRTUAL, &pods);
    });
}

// The same addresses are served by sk_lookup, by sockets of their own, and again by sk_lookup.
#[test]
fn under_load_steering_is_turned_off_and_on() {
    netns::run(BLOCKS, || {
        let pods = Server::start_all(vec![Options::default(), Options::default()]).unwrap();
        let plans = [true, false, false, true, true].map(|steering| {
            let mut plan = Plan::pool("base", &pods).spec("  workers: 2");
            plan.steering = steering;
            plan.listener = ", virtualAddresses: [{address: 10.9.8.7, port: 80}]".into();
            plan
        });
        take_over_under_load(&plans, &VIRTUAL[..1], &pods);
    });
}

#[test]
fn the_old_one_finishes_what_it_has_and_leaves() {
    let faults = Faults { stall_after: Some(3), times: Some(1), ..Faults::default() };
    let pods = Server::start_all(vec![Options { faults, ..Options::default() }]).unwrap();
    let plan = Plan::pool("base", &pods).spec("  limits: {drainTimeout: 1h}");
    let mut old = Gateway::start(&plan);
    let mut stream = Client::connect(old.address);
    stream.post(CHAT, &chat("base", 100, true));
    assert_eq!(stream.head().status, 200);
    let idle = || {
        let mut client = Client::connect(old.address);
        client.send("GET /health HTTP/1.1\r\nhost: g\r\n\r\n");
        assert_eq!(client.response().status, 200);
        client
    };
    let (mut used, mut asks, mut unused) = (idle(), idle(), idle());
    old.wait("all to be accepted", |status| status["connections"] == 4);
    let new = old.successor(&plan);
    // The operators' side is the new one's, and it is ready.
    assert_eq!(new.status()["connections"], 0);
    assert_eq!(get(new.admin, "/readyz").status, 200);
    // Connections that clients kept are good for one more request, so that none runs into their
    // end.
    asks.send("GET /health HTTP/1.1\r\nhost: g\r\n\r\n");
    let health = asks.response();
    health.assert_error(503, "not_ready", None);
    assert!(health.text().contains("stopping"), "{}", health.text());
    used.post(CHAT, &chat("base", 2, false));
    let response = used.response();
    assert_answer(&response);
    for closed in [&health, &response] {
        assert_eq!(closed.header("connection"), Some("close"));
    }
    // Nobody waits for those that are not used.
    assert!(used.is_closed() && asks.is_closed() && unused.is_closed());
    assert_eq!(old.exited(), None, "it did not wait for the stream");
    drop(stream);
    assert_eq!(old.wait_exit(PATIENCE).code(), Some(0));
    let log = old.log();
    assert!(log.contains(&format!("stopping: process {} has taken over", new.pid())), "{log}");
    assert_answer(&post(new.address, CHAT, &chat("base", 2, true)));
}

#[test]
fn an_old_one_that_waits_too_long_cuts_what_is_left() {
    let faults = Faults { stall_after: Some(3), ..Faults::default() };
    let pods = Server::start_all(vec![Options { faults, ..Options::default() }]).unwrap();
    let plan = Plan::pool("base", &pods).spec("  limits: {drainTimeout: 300ms}");
    let mut old = Gateway::start(&plan);
    let mut stream = Client::connect(old.address);
    stream.post(CHAT, &chat("base", 100, true));
    let mut response = stream.head();
    let _new = old.successor(&plan);
    assert_eq!(old.wait_exit(PATIENCE).code(), Some(0));
    assert!(old.log().contains("1 connections were cut"), "{}", old.log());
    stream.body(&mut response);
    assert!(!response.complete);
}

#[test]
fn one_that_fails_before_it_has_taken_over_changes_nothing() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let plan = Plan::pool("base", &pods);
    let mut gateway = Gateway::start(&plan);
    // It gets the sockets, and then cannot bind another.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let failing = with_listener(&gateway.succeeding(&plan), "more", port);
    let log = Gateway::try_launch(&failing).unwrap_err();
    assert!(log.contains("listener `more`: cannot listen on"), "{log}");
    // It is killed when it has them.
    let (taking, sockets) = ask(&gateway);
    assert!(sockets.len() >= 2, "{sockets:?}");
    drop((taking, sockets));
    // One that is not to take over is refused as ever.
    let plain = Plan { options: Vec::new(), ..gateway.succeeding(&plan) };
    let log = Gateway::try_launch(&plain).unwrap_err();
    assert!(log.contains("cannot listen on"), "{log}");

    assert_eq!(gateway.exited(), None);
    for stream in [false, true] {
        assert_answer(&post(gateway.address, CHAT, &chat("base", 2, stream)));
    }
    gateway.wait("it to be ready", |status| status["ready"] == true);
    let _new = gateway.successor(&plan);
    assert_eq!(gateway.wait_exit(PATIENCE).code(), Some(0));
    let told = gateway.log().matches("asked to take over and did not").count();
    assert_eq!(told, 2, "{}", gateway.log());
}

#[test]
fn one_that_dies_with_steering_in_place_changes_nothing() {
    netns::run(BLOCKS, || {
        let pods = Server::start_all(vec![Options::default()]).unwrap();
        let plan = virtual_plan(&pods);
        let gateway = Gateway::start(&plan);
        let (taking, sockets) = ask(&gateway);
        let mut steering = steering::start(KernelLog::Off);
        let own: Vec<_> = (sockets.iter())
            .filter(|handed| handed.description.role == Role::Own)
            .map(|handed| &handed.socket)
            .collect();
        assert!(!own.is_empty(), "{sockets:?}");
        steering.set_listener(0, &[steering::block("10.9.0.0", 16, 80)], &own).unwrap();
        // Both accept what comes meanwhile, by one path or the other.
        let to = VIRTUAL[0].parse().unwrap();
        assert_answer(&post(to, CHAT, &chat("base", 2, true)));
        let counted = steering.counters().unwrap();
        assert_eq!(counted.iter().map(|listener| listener.steered).sum::<u64>(), 1);
        drop((taking, sockets, steering));
        for address in VIRTUAL {
            assert_answer(&post(address.parse().unwrap(), CHAT, &chat("base", 2, true)));
        }
        assert_eq!(gateway.status()["steering"]["listeners"][0]["dropped"], 0);
    });
}

#[test]
fn listeners_come_and_go() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let plan = Plan::pool("base", &pods);
    let [goes, comes] = [free_port(), free_port()];
    let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let mut old = Gateway::start(&with_listener(&plan, "goes", goes));
    assert_answer(&post(address(goes), CHAT, &chat("base", 2, false)));
    let new = old.successor(&with_listener(&plan, "comes", comes));
    for served in [new.address, address(comes)] {
        assert_answer(&post(served, CHAT, &chat("base", 2, false)));
    }
    assert_eq!(old.wait_exit(PATIENCE).code(), Some(0));
    assert!(TcpStream::connect(address(goes)).is_err());
    let left = format!("{} is not served any more", address(goes));
    assert!(new.log().contains(&left), "{}", new.log());
}

#[test]
fn who_cannot_take_over_is_told_why() {
    let faults = Faults { stall_after: Some(3), ..Faults::default() };
    let pods = Server::start_all(vec![Options { faults, ..Options::default() }]).unwrap();
    let plan = Plan::pool("base", &pods).spec("  limits: {drainTimeout: 1h}");
    let mut gateway = Gateway::start(&plan);
    let mut client = Client::connect(gateway.address);
    client.post(CHAT, &chat("base", 100, true));
    assert_eq!(client.head().status, 200);
    let next = gateway.succeeding(&plan);

    // Another is about to.
    let taking = ask(&gateway);
    let log = Gateway::try_launch(&next).unwrap_err();
    let busy = format!("process {} is taking over from it already", std::process::id());
    assert!(log.contains(&busy), "{log}");
    drop(taking);

    gateway.signal("TERM");
    while get(gateway.admin, "/readyz").status != 503 {}
    let log = Gateway::try_launch(&next).unwrap_err();
    assert!(log.contains("it is stopping and has closed its listeners"), "{log}");
    assert!(log.contains(&format!("whose admin address is {}", gateway.admin)), "{log}");
    assert_eq!(gateway.exited(), None);

    // It has left, and its port is free.
    gateway.signal("KILL");
    gateway.wait_exit(PATIENCE);
    let next = Gateway::launch(&next);
    let lines: Vec<_> =
        next.log().lines().filter(|l| l.contains("take over")).map(String::from).collect();
    assert_eq!(lines.len(), 1, "{}", next.log());
    assert!(lines[0].contains("no gateway runs with the admin address"), "{lines:?}");
}

#[test]
fn another_user_cannot_take_over() {
    netns::run(&[], || {
        let pods = Server::start_all(vec![Options::default()]).unwrap();
        let plan = Plan::pool("base", &pods);
        let gateway = Gateway::start(&plan);
        let mut other = gateway.succeeding(&plan);
        let words = ["setpriv", "--reuid=65534", "--clear-groups"];
        other.command = words.map(str::to_owned).into();
        let log = Gateway::try_launch(&other).unwrap_err();
        assert!(log.contains("only the same user or root may take over"), "{log}");
        // Nor can root be had to take what another user offers.
        let mut low = Plan::pool("base", &pods);
        low.command = other.command;
        let low = Gateway::start(&low);
        let log = Gateway::try_launch(&low.succeeding(&plan)).unwrap_err();
        assert!(log.contains("it runs as user 65534"), "{log}");
        for gateway in [&gateway, &low] {
            assert_answer(&post(gateway.address, CHAT, &chat("base", 2, false)));
        }
    });
}

/// Asks as a new gateway does.
fn ask(gateway: &Gateway) -> (Taking, Vec<Handed>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let asked = runtime.block_on(Predecessor::ask(gateway.admin)).unwrap();
    let (predecessor, sockets) = asked.unwrap();
    (Taking { _predecessor: predecessor, _runtime: runtime }, sockets)
}

/// A takeover that has begun; dropped, it is as if the process had died.
struct Taking {
    _predecessor: Predecessor,
    _runtime: Runtime,
}

fn with_listener(plan: &Plan, name: &str, port: u16) -> Plan {
    let listener = format!("}}, {{name: {name}, address: 127.0.0.1, port: {port}");
    Plan { listener, ..plan.clone() }
}

/// Several takeovers in a row while clients of every kind go on.
fn take_over_under_load(plans: &[Plan], more: &[&str], pods: &[Server]) {
    let mut gateway = Gateway::start(&plans[0]);
    let load = Load::start(more.iter().map(|to| to.parse().unwrap()).chain([gateway.address]));
    for plan in &plans[1..] {
        load.wait_for_more();
        let new = gateway.successor(plan);
        assert!(new.log().contains("taken over from process"), "{}", new.log());
        let path = if plan.steering { "sk_lookup" } else { "userspace" };
        assert_eq!(new.status()["steering"]["path"], path, "{}", new.log());
        assert_eq!(gateway.wait_exit(PATIENCE).code(), Some(0), "{}", gateway.log());
        assert!(gateway.log().contains("; 0 connections were cut"), "{}", gateway.log());
        gateway = new;
    }
    load.wait_for_more();
    load.stop();
    assert!(pods.iter().all(|pod| pod.stats().aborted == 0));
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
