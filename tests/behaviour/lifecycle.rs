//! How a gateway starts and stops, with and without the kernel's help.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::json;
use sluice_tests::client::{Client, chat, get, post};
use sluice_tests::engine::{Faults, Options, Server};
use sluice_tests::gateway::{Gateway, PATIENCE, Plan};
use sluice_tests::netns;
use sluice_tests::pod::{RawPod, answer, plan};

// Field reports 77: a stop is no reason for a stream to break.
#[test]
fn field_report_77_streams_finish_after_sigterm_and_nothing_new_begins() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let mut gateway = Gateway::start(&Plan::pool("base", &pods));
    let mut idle = Client::connect(gateway.address);
    idle.send("GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n");
    assert_eq!(idle.response().status, 200);
    let mut streams: Vec<_> = (0..4)
        .map(|_| {
            let mut client = Client::connect(gateway.address);
            client.post(CHAT, &chat("base", 150, true));
            let head = client.head();
            assert_eq!(head.status, 200);
            (client, head)
        })
        .collect();
    gateway.signal("TERM");
    assert!(idle.is_closed(), "an idle connection is kept");
    let readyz = get(gateway.admin, "/readyz");
    assert_eq!((readyz.status, readyz.text().as_str()), (503, "stopping\n"));
    assert_eq!(get(gateway.admin, "/healthz").status, 200);
    refuses(gateway.address);
    for (client, response) in &mut streams {
        client.body(response);
        let events = response.events();
        assert_eq!((events.len(), events.last().map(String::as_str)), (153, Some("[DONE]")));
        assert!(response.complete);
        // The connection takes no further request.
        assert!(client.is_closed());
    }
    let status = gateway.wait_exit(PATIENCE);
    assert_eq!(status.code(), Some(0));
    assert!(gateway.log().contains("stopping: SIGTERM"), "{}", gateway.log());
    assert!(gateway.log().contains("0 connections were cut"), "{}", gateway.log());
    assert_eq!(pods[0].stats().aborted, 0);
}

#[test]
fn what_has_not_finished_within_the_drain_timeout_is_cut() {
    let (pods, plan) = stalling("500ms");
    let mut gateway = Gateway::start(&plan);
    let (mut client, mut response) = stalled_stream(&gateway);
    // To this one, an orderly end of the connection would be the end of the answer.
    let mut old = Client::connect(gateway.address);
    old.send(old_request(&chat("base", 100, true).to_string()));
    let mut old_response = old.head();
    gateway.signal("INT");
    let status = gateway.wait_exit(PATIENCE);
    assert_eq!(status.code(), Some(0));
    client.body(&mut response);
    old.body(&mut old_response);
    assert!(!response.complete && !old_response.complete);
    assert!(gateway.log().contains("stopping: SIGINT"), "{}", gateway.log());
    assert!(gateway.log().contains("2 connections were cut"), "{}", gateway.log());
    // The pod sees it as well, and stops generating.
    while pods[0].stats().aborted != 2 {
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_second_signal_ends_the_wait() {
    for signals in [["TERM", "TERM"], ["TERM", "INT"], ["INT", "TERM"]] {
        let (_pods, plan) = stalling("1h");
        let mut gateway = Gateway::start(&plan);
        let (mut client, mut response) = stalled_stream(&gateway);
        gateway.signal(signals[0]);
        while get(gateway.admin, "/readyz").status != 503 {}
        thread::sleep(Duration::from_millis(100));
        assert_eq!(gateway.exited(), None, "it did not wait for the stream");
        gateway.signal(signals[1]);
        assert_eq!(gateway.wait_exit(PATIENCE).code(), Some(0));
        client.body(&mut response);
        assert!(!response.complete);
    }
}

// The end of the connection is the end of the body, unless it is a reset; and the kernel, not the
// gateway, ends the connections of a process that is killed.
#[test]
fn a_killed_gateway_resets_its_clients() {
    let faults = Faults { stall_after: Some(3), ..Faults::default() };
    let frames = [faults.clone(), Faults { until_close: true, ..faults }];
    for faults in frames {
        let pods = Server::start_all(vec![Options { faults, ..Options::default() }]).unwrap();
        let mut gateway = Gateway::start(&Plan::pool("base", &pods));
        let mut fresh = Client::connect(gateway.address);
        let mut idle = Client::connect(gateway.address);
        idle.send("GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n");
        assert_eq!(idle.response().status, 200);
        let (mut client, mut response) = stalled_stream(&gateway);
        let mut old = Client::connect(gateway.address);
        old.send(old_request(&chat("base", 100, true).to_string()));
        let mut old_response = old.head();
        gateway.wait("all to be accepted", |status| status["connections"] == 4);
        gateway.signal("KILL");
        assert_eq!(gateway.wait_exit(PATIENCE).code(), None);
        client.body(&mut response);
        old.body(&mut old_response);
        assert!(!response.complete && !old_response.complete);
        // What was sent before has arrived all the same.
        for response in [&response, &old_response] {
            assert!(response.text().contains("chat.completion.chunk"), "{}", response.text());
        }
        for client in [&mut fresh, &mut idle] {
            let end = client.stream.read(&mut [0]).map_err(|error| error.kind());
            assert_eq!(end, Err(ErrorKind::ConnectionReset));
        }
    }
}

// A reset would take back what the client has not got yet.
#[test]
fn a_connection_that_ends_in_order_still_delivers() {
    let pods = RawPod::start_all(1);
    let gateway = Gateway::start(&plan(&pods));
    let body = "0123456789".repeat(20_000);
    for (version, header) in [("1.1", "connection: close\r\n"), ("1.0", "")] {
        let mut client = Client::connect(gateway.address);
        let text = chat("base", 1, false).to_string();
        client.send(format!(
            "POST {CHAT} HTTP/{version}\r\nhost: g\r\ncontent-type: application/json\r\n{header}\
             content-length: {}\r\n\r\n{text}",
            text.len()
        ));
        pods[0].take().send(answer(200, "", &body));
        gateway.wait("the connection to be closed", |status| status["connections"] == 0);
        let response = client.response();
        assert_eq!((response.complete, response.body.len()), (true, body.len()));
        assert_eq!(client.stream.read(&mut [0]).ok(), Some(0));
    }
}

// A request that is being received is still answered, and the client told that it was the last.
#[test]
fn a_request_begun_before_the_stop_is_answered() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let mut gateway = Gateway::start(&Plan::pool("base", &pods));
    let body = chat("base", 2, false).to_string();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    let begun = |text: &str| {
        let mut client = Client::connect(gateway.address);
        client.send(text);
        client
    };
    let mut clients =
        [(begun(&head), body.clone()), (begun(&head[..20]), format!("{}{body}", &head[20..]))];
    gateway.wait("both to be accepted", |status| status["connections"] == 2);
    gateway.signal("TERM");
    while get(gateway.admin, "/readyz").status != 503 {}
    for (index, (client, rest)) in clients.iter_mut().enumerate() {
        client.send(rest);
        let response = client.response();
        assert_eq!((response.status, response.complete), (200, true));
        if index == 1 {
            assert_eq!(response.header("connection"), Some("close"));
        }
        assert!(client.is_closed());
    }
    assert_eq!(gateway.wait_exit(PATIENCE).code(), Some(0));
}

#[test]
fn steered_connections_to_virtual_addresses_are_served_and_counted() {
    netns::run(BLOCKS, || {
        let pods = Server::start_all(vec![Options::default(), Options::default()]).unwrap();
        let gateway = Gateway::start(&virtual_plan(&pods));
        let own = gateway.address;
        let dialled: Vec<SocketAddr> =
            VIRTUAL.iter().map(|text| text.parse().unwrap()).chain([own]).collect();
        for address in &dialled {
            for stream in [false, true] {
                let response = post(*address, CHAT, &chat("base", 2, stream));
                assert_eq!((response.status, response.complete), (200, true), "{address}");
            }
        }
        let connections = 2 * dialled.len();
        let status = gateway.status();
        assert_eq!(
            status["steering"],
            json!({
                "path": "sk_lookup",
                "reason": null,
                "listeners": [{
                    "name": "http",
                    "address": own.to_string(),
                    "steered": connections,
                    "retried": 0,
                    "dropped": 0,
                }],
            })
        );
        let steered = r#"sluice_steering_connections_total{listener="http",path="sk_lookup"}"#;
        assert_eq!(gateway.metric(steered), Some(connections as f64));
        assert_eq!(gateway.metric("sluice_steering_enabled"), Some(1.0));
        assert!(gateway.log().contains("steering: sk_lookup"), "{}", gateway.log());
        // The pods' scores are in the kernel's map.
        let scores = get(gateway.admin, "/status/scores").json();
        assert_eq!(scores.as_array().unwrap().len(), 2, "{scores}");
        refuses("10.9.8.7:81".parse().unwrap());
    });
}

#[test]
fn a_steering_gateway_stops_as_another_does() {
    netns::run(BLOCKS, || {
        let pods = Server::start_all(vec![Options::default()]).unwrap();
        let mut gateway = Gateway::start(&virtual_plan(&pods));
        let mut client = Client::connect(VIRTUAL[0].parse().unwrap());
        client.post(CHAT, &chat("base", 100, true));
        let mut response = client.head();
        gateway.signal("TERM");
        while get(gateway.admin, "/readyz").status != 503 {}
        for address in VIRTUAL {
            refuses(address.parse().unwrap());
        }
        refuses(gateway.address);
        client.body(&mut response);
        assert!(response.complete && response.text().contains("[DONE]"));
        assert_eq!(gateway.wait_exit(PATIENCE).code(), Some(0));
    });
}

// Nothing in the kernel outlives the process, and nothing that it left stands in the next one's
// way.
#[test]
fn a_killed_gateway_leaves_nothing_behind() {
    netns::run(BLOCKS, || {
        let pods = Server::start_all(vec![Options::default()]).unwrap();
        let mut plan = virtual_plan(&pods);
        plan.ports = Some((8080, 9901));
        let mut others = Others::start(pods[0].addr);
        for _ in 0..3 {
            let mut gateway = Gateway::start(&plan);
            assert_eq!(gateway.status()["steering"]["path"], "sk_lookup", "{}", gateway.log());
            // It is killed in the middle of things.
            let mut client = Client::connect(VIRTUAL[0].parse().unwrap());
            client.post(CHAT, &chat("base", 1000, true));
            let mut cut = client.head();
            assert_eq!(cut.status, 200);
            for address in VIRTUAL {
                let response = post(address.parse().unwrap(), CHAT, &chat("base", 1, false));
                assert_eq!(response.status, 200);
            }
            others.go_on();
            gateway.signal("KILL");
            assert_eq!(gateway.wait_exit(PATIENCE).code(), None);
            for address in VIRTUAL {
                refuses(address.parse().unwrap());
            }
            others.go_on();
            client.body(&mut cut);
            assert!(!cut.complete);
        }
        others.finish();
    });
}

/// What else goes on in the namespace: servers on the gateway's ports at other addresses, and a
/// client of the gateway's pod.
struct Others {
    servers: Vec<(TcpListener, TcpStream, TcpStream)>,
    pod: SocketAddr,
    stream: Client,
}

impl Others {
    fn start(pod: SocketAddr) -> Self {
        let servers = ["127.0.0.2:8080", "127.0.0.2:9901", "10.9.1.2:8443", "10.9.0.1:8080"];
        let servers = servers.map(|address| {
            let listener = TcpListener::bind(address).unwrap();
            let (client, server) = pair(&listener);
            (listener, client, server)
        });
        let mut stream = Client::connect(pod);
        stream.post(CHAT, &chat("base", 300, true));
        Self { servers: servers.into(), pod, stream }
    }

    /// Old connections carry bytes both ways, and new ones find their servers.
    fn go_on(&mut self) {
        for (listener, client, server) in &self.servers {
            let (new_client, new_server) = pair(listener);
            for (one, other) in [(client, server), (&new_client, &new_server)] {
                for (mut from, mut to) in [(one, other), (other, one)] {
                    let mut got = [0; 5];
                    from.write_all(b"hello").unwrap();
                    to.read_exact(&mut got).unwrap();
                    assert_eq!(&got, b"hello");
                }
            }
        }
        let response = post(self.pod, CHAT, &chat("base", 2, true));
        assert_eq!((response.status, response.complete), (200, true));
    }

    fn finish(mut self) {
        let response = self.stream.response();
        assert_eq!((response.status, response.complete), (200, true));
        assert_eq!(response.events().len(), 303);
    }
}

/// A connection, seen from both sides.
fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    (client, server)
}

#[test]
fn without_rights_ordinary_listeners_give_the_same_service() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let mut plan = Plan::pool("base", &pods);
    plan.steering = true;
    plan.listener = ", virtualAddresses: [{address: 127.9.9.9, port: 18080}]".into();
    let root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    if root {
        // The user stays, so that files stay readable; the rights go.
        let words = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"];
        plan.command = words.map(str::to_owned).into();
    }
    let gateway = Gateway::start(&plan);
    let steering = &gateway.status()["steering"];
    assert_eq!(steering["path"], "userspace");
    assert!(steering["reason"].as_str().unwrap().contains("CAP_NET_ADMIN"), "{steering}");
    let log = gateway.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(": steering: ")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(lines[0].contains(" WARN ") && lines[0].contains("lacks CAP_"), "{log}");
    for address in [gateway.address, "127.9.9.9:18080".parse().unwrap()] {
        for stream in [false, true] {
            let response = post(address, CHAT, &chat("base", 2, stream));
            assert_eq!((response.status, response.complete), (200, true), "{address}");
        }
    }
    assert_eq!(gateway.metric("sluice_steering_enabled"), Some(0.0));
    let plain = r#"sluice_steering_connections_total{listener="http",path="userspace"}"#;
    assert_eq!(gateway.metric(plain), Some(4.0));
}

/// Nothing listens there, at the latest after a moment.
fn refuses(address: SocketAddr) {
    let tries = 200;
    for _ in 0..tries {
        if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_err() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{address} still accepts");
}

/// A pod that says three tokens and then nothing more, and a gateway that waits so long when it
/// stops.
fn stalling(drain_timeout: &str) -> (Vec<Server>, Plan) {
    let faults = Faults { stall_after: Some(3), ..Faults::default() };
    let pods = Server::start_all(vec![Options { faults, ..Options::default() }]).unwrap();
    let plan =
        Plan::pool("base", &pods).spec(&format!("  limits: {{drainTimeout: {drain_timeout}}}"));
    (pods, plan)
}

fn stalled_stream(gateway: &Gateway) -> (Client, sluice_tests::client::Response) {
    let mut client = Client::connect(gateway.address);
    client.post(CHAT, &chat("base", 100, true));
    let head = client.head();
    assert_eq!(head.status, 200);
    (client, head)
}

/// A request of HTTP/1.0, whose answer may end with the connection.
fn old_request(body: &str) -> String {
    format!(
        "POST {CHAT} HTTP/1.0\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn virtual_plan(pods: &[Server]) -> Plan {
    let mut plan = Plan::pool("base", pods);
    plan.steering = true;
    plan.listener =
        ", virtualAddresses: [{address: 10.9.0.0/16, port: 80}, {address: 10.9.1.1, port: 8443}, \
                     {address: \"fd09::/64\", port: 80}]"
            .into();
    plan
}

const CHAT: &str = "/v1/chat/completions";
/// Addresses of the namespaces.
const BLOCKS: &[&str] = &["10.9.0.0/16", "fd09::/64"];
/// Some that only steering serves.
const VIRTUAL: [&str; 4] = ["10.9.8.7:80", "10.9.1.1:8443", "[fd09::1]:80", "[fd09::9:9]:80"];
