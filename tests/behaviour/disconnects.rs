//! Clients that leave: the pod is told at once, by the end of its connection, and nothing is left
//! behind.

#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use std::net::Shutdown;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;
use sluice_tests::client::{Client, chat};
use sluice_tests::engine::{Options, Server, Stats};
use sluice_tests::gateway::{Gateway, PATIENCE, Plan};
use sluice_tests::pod::{RawPod, STREAM, Signals, Taken, chunk, plan};

/// How a client leaves.
struct Way {
    name: &'static str,
    leave: fn(Client),
}

const WAYS: &[Way] = &[
    Way { name: "closes", leave: drop },
    Way {
        name: "resets",
        leave: |client| {
            let socket = socket2::SockRef::from(&client.stream);
            socket.set_linger(Some(Duration::ZERO)).expect("linger can be set");
        },
    },
    // Model servers take it for leaving, and so does the gateway. It must not be passed on as it
    // is.
    Way {
        name: "half-closes",
        leave: |client| {
            client.half_close();
            // Still reading: it is not the close that ends the request.
            std::mem::forget(client);
        },
    },
];

/// How far the pod is.
struct Phase {
    name: &'static str,
    reach: fn(&mut Taken),
    has_content: bool,
}

// Field reports 13, 14 and 17.
#[test]
fn field_report_13_14_17_the_pods_connection_ends_when_the_client_leaves() {
    let pods = RawPod::start_all(2);
    pods[1].tell(Signals { running: 4, waiting: 4, kv_usage: 0.5 });
    let gateway = Gateway::start(&plan(&pods));
    let phases = [
        Phase { name: "before the head", reach: |_| {}, has_content: false },
        Phase { name: "behind the head", reach: |taken| taken.send(STREAM), has_content: false },
        Phase {
            name: "behind a comment",
            reach: |taken| taken.send([STREAM.as_bytes(), &chunk(": keep-alive\n\n")].concat()),
            has_content: false,
        },
        Phase {
            name: "within a stream",
            reach: |taken| taken.send([STREAM.as_bytes(), &chunk("data: 1\n\n")].concat()),
            has_content: true,
        },
        Phase {
            name: "within a body with a length",
            reach: |taken| {
                taken.send("HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\ndata: 1\n\n");
            },
            has_content: true,
        },
    ];
    let mut gone = 0.0;
    for Phase { name: phase, reach, has_content } in phases {
        for Way { name: way, leave } in WAYS {
            for stream in [true, false] {
                let case = format!("{way} {phase}, stream: {stream}");
                let mut client = Client::connect(gateway.address);
                client.post("/v1/chat/completions", &chat("base", 9, stream));
                let mut taken = pods[0].take();
                reach(&mut taken);
                if has_content {
                    client.read_until("data: 1\n\n");
                }
                assert!(taken.stays(QUIET), "{case}: the gateway left first");
                leave(client);
                taken.wait_closed();
                assert!(pods[1].take_within(QUIET).is_none(), "{case}: asked again");
                gone += 1.0;
                gateway.wait_metric(
                    "sluice_pool_requests_total{pool=\"pool-0\",outcome=\"client_gone\"}",
                    gone,
                );
            }
        }
    }
    let status = gateway.wait_idle();
    let pod = &status["pools"][0]["pods"][0];
    assert_eq!((&pod["failures"], &pod["ready"]), (&json!(0), &json!(true)));
    assert_eq!(gateway.metric("sluice_pool_retries_total{pool=\"pool-0\"}"), Some(0.0));
}

/// A request behind another one, on the same connection, does not hide the end of it.
#[test]
fn a_client_that_has_sent_more_can_leave_too() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    for pipelined in [1, 2000] {
        for Way { name: way, leave } in WAYS {
            let mut client = Client::connect(gateway.address);
            client.post("/v1/chat/completions", &chat("base", 9, true));
            let mut taken = pods[0].take();
            taken.send([STREAM.as_bytes(), &chunk("data: 1\n\n")].concat());
            client.read_until("data: 1\n\n");
            client.send("GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n".repeat(pipelined));
            assert!(taken.stays(QUIET), "{way} behind {pipelined}: the gateway left first");
            leave(client);
            taken.wait_closed();
        }
    }
    gateway.wait_idle();
}

// Field reports 14, 16 and 17: what counts is that the engine stops.
#[test]
fn field_report_14_16_17_the_engine_stops_whatever_the_request_was_doing() {
    let mut options = Options::default();
    options.limits.max_num_seqs = 4;
    let pod = Server::start(options).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", std::slice::from_ref(&pod)));
    // Some run, the rest wait in the engine's queue; none would end within this test.
    let mut clients = Vec::new();
    for number in 0..12 {
        let mut client = Client::connect(gateway.address);
        client.post("/v1/chat/completions", &chat("base", 100_000, number % 2 == 0));
        clients.push(client);
    }
    let busy = wait_stats(&pod, "4 to run and 8 to wait", |stats| {
        (stats.running, stats.waiting) == (4, 8)
    });
    assert_eq!(busy.aborted, 0);
    for (client, Way { leave, .. }) in clients.into_iter().zip(WAYS.iter().cycle()) {
        leave(client);
    }
    let idle = wait_stats(&pod, "all to be aborted", |stats| stats.aborted == 12);
    assert_eq!((idle.running, idle.waiting, idle.completed), (0, 0, 0));
    assert_eq!(idle.kv_usage, 0.0);
    let status = gateway.wait_idle();
    assert_eq!(status["pools"][0]["pods"][0]["failures"], 0);
}

fn wait_stats(pod: &Server, what: &str, is: impl Fn(&Stats) -> bool) -> Stats {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let stats = pod.stats();
        if is(&stats) {
            return stats;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}: {stats:?}");
        sleep(TICK);
    }
}

#[test]
fn a_client_that_leaves_within_its_body_costs_nothing() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    for Way { leave, .. } in WAYS {
        for head in ["content-length: 4000000", "transfer-encoding: chunked"] {
            let mut client = Client::connect(gateway.address);
            client.send(format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n"));
            let part = format!("{{\"model\":\"base\",\"pad\":\"{}", "x".repeat(1_000_000));
            match head {
                "transfer-encoding: chunked" => client.send(chunk(part)),
                _ => client.send(part),
            }
            gateway.wait("a part of the body to be held", |status| {
                status["buffered_bytes"].as_u64() > Some(900_000)
            });
            leave(client);
            gateway.wait("the body to be let go", |status| status["buffered_bytes"] == 0);
        }
    }
    assert!(pods[0].take_within(QUIET).is_none(), "half a request was sent on");
    gateway.wait_idle();
}

#[test]
fn a_client_that_leaves_while_the_pod_reads_a_large_body_is_noticed() {
    // Accepts, and reads nothing.
    let stopped = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = RawPod::start();
    let plan =
        Plan { pools: vec![("base".into(), vec![stopped.local_addr().unwrap()])], ..plan(&[]) }
            .scheduler(&format!("    metrics: {{port: {}}}", metrics.address.port()));
    let gateway = Gateway::start(&plan);
    for Way { leave, .. } in WAYS {
        let mut client = Client::connect(gateway.address);
        let mut body = chat("base", 2, false);
        body["pad"] = "x".repeat(16 << 20).into();
        client.post("/v1/chat/completions", &body);
        gateway.wait("the request to be at the pod", |status| {
            status["pools"][0]["pods"][0]["in_flight"] == 1
        });
        leave(client);
        gateway.wait_idle();
    }
    gateway.wait_metric("sluice_pool_requests_total{pool=\"pool-0\",outcome=\"client_gone\"}", 3.0);
}

// Reports against the reference picker 8: counters that leak, or go below zero.
#[test]
fn picker_report_8_nothing_is_left_of_many_clients_that_leave_at_any_moment() {
    let pods = Server::start_all(vec![Options::default(), Options::default()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let mut random = fastrand::Rng::with_seed(11);
    let mut leaving = Vec::new();
    for _ in 0..120 {
        let mut client = Client::connect(gateway.address);
        let body = chat("base", random.u32(1..60), random.bool()).to_string();
        let request = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        // A part of them within the request, the others at some moment of the answer.
        let cut = if random.u8(..) < 60 { random.usize(1..request.len()) } else { request.len() };
        client.send(&request[..cut]);
        leaving.push((client, WAYS[random.usize(..WAYS.len())].leave));
        if leaving.len() > 10 {
            let (client, leave) = leaving.swap_remove(random.usize(..leaving.len()));
            leave(client);
        }
        sleep(Duration::from_millis(random.u64(..8)));
    }
    // One pod flaps meanwhile: a place must be given back where it was taken.
    pods[0].die(Some(Duration::from_millis(100)));
    for (client, leave) in leaving {
        leave(client);
    }
    let status = gateway.wait("nothing to be left", |status| {
        status["connections"] == 0 && status["buffered_bytes"] == 0
    });
    let in_flight = sluice_tests::gateway::pods(&status).map(|pod| pod["in_flight"].as_u64());
    assert_eq!(in_flight.collect::<Vec<_>>(), [Some(0), Some(0)]);
    for pod in &pods {
        wait_stats(pod, "the engines to be idle", |stats| stats.running + stats.waiting == 0);
    }
    // And it works as before.
    gateway.wait("both pods to be ready", |status| {
        sluice_tests::gateway::pods(status).all(|pod| pod["ready"] == true)
    });
    for _ in 0..10 {
        let mut client = Client::connect(gateway.address);
        client.post("/v1/chat/completions", &chat("base", 2, true));
        assert!(client.response().complete);
    }
    gateway.wait_idle();
}

/// The other way round: the gateway never half-closes towards a pod, which would end the request
/// there.
#[test]
fn field_report_83_a_pod_is_not_half_closed_while_it_works() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    for end in ["connection: close\r\n", ""] {
        let mut client = Client::connect(gateway.address);
        let body = chat("base", 2, false).to_string();
        client.send(format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\n{end}content-length: {}\r\n\r\n{body}",
            body.len()
        ));
        let mut taken = pods[0].take();
        assert!(taken.stays(QUIET), "{end}");
        taken.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{");
        assert!(taken.stays(QUIET), "{end}");
        taken.send("}");
        assert_eq!(client.response().text(), "{}");
        let _ = client.stream.shutdown(Shutdown::Both);
    }
}

/// Long enough to see that nothing comes.
const QUIET: Duration = Duration::from_millis(40);

const TICK: Duration = Duration::from_millis(20);
