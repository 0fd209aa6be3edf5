//! What the gateway knows of its own requests, on every route and whatever pods say: it keeps requests from
//! running together at one pod.

use std::net::SocketAddr;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use sluice_tests::client::{Client, chat, post};
use sluice_tests::engine::{Options, Server};
use sluice_tests::gateway::{Gateway, Plan};
use sluice_tests::pod::{RawPod, Signals, Taken, answer, plan};

/// Requests that each engine has been asked.
fn asked(engines: &[Server]) -> Vec<u64> {
    engines.iter().map(|engine| engine.stats().requests_to("/v1/chat/completions")).collect()
}

/// Asks each of the gateways `rounds` times by each of `clients` clients.
fn ask(gateways: &[SocketAddr], clients: usize, rounds: usize, tokens: u32) {
    let barrier = Barrier::new(gateways.len() * clients);
    thread::scope(|scope| {
        for gateway in gateways {
            for _ in 0..clients {
                scope.spawn(|| {
                    let mut client = Client::connect(*gateway);
                    barrier.wait();
                    for _ in 0..rounds {
                        client.post("/v1/chat/completions", &chat("base", tokens, true));
                        let response = client.response();
                        assert_eq!((response.status, response.complete), (200, true));
                    }
                });
            }
        }
    });
}

/// An engine with a small batch, so that requests that run together wait there.
fn narrow() -> Options {
    let mut options = Options::default();
    options.limits.max_num_seqs = 8;
    options
}

// Field report 56: one pod's gauges say for ever that it is idle, the other's that it has some of others' work.
#[test]
fn field_report_56_a_pod_whose_metrics_are_stuck_does_not_draw_all_requests() {
    let pods = RawPod::start_all(2);
    pods[1].tell(Signals { running: 8, waiting: 2, kv_usage: 0.3 });
    let gateway = Gateway::start(&plan(&pods));
    let body = json!({"model": "base", "max_tokens": 100, "prompt": "Tell me. ".repeat(200)});
    // None of them is answered.
    let mut held = Vec::new();
    for _ in 0..60 {
        let mut client = Client::connect(gateway.address);
        client.post("/v1/completions", &body);
        held.push((client, wait_taken(&pods)));
    }
    assert_eq!(gateway.status()["pools"][0]["pods"][0]["running"], 0, "it lies");
    let at = |pod: &RawPod| {
        held.iter().filter(|(_, taken)| taken.stream.local_addr().ok() == Some(pod.address)).count()
    };
    let counts = [at(&pods[0]), at(&pods[1])];
    assert!(
        counts.iter().sum::<usize>() == 60 && counts.iter().all(|count| *count >= 6),
        "{counts:?}"
    );
}

// Field report 65, reports against the reference picker 19: each of three gateways sees its own third of the
// load, and metrics that are up to a second old.
#[test]
fn field_report_65_picker_report_19_gateways_that_do_not_know_of_each_other_do_not_herd() {
    let engines = Server::start_all(vec![narrow(); 4]).unwrap();
    let metrics = "    metrics: {busyInterval: 1s, idleInterval: 1s}";
    let plan = Plan::pool("base", &engines).scheduler(metrics);
    let gateways: Vec<Gateway> = (0..3).map(|_| Gateway::start(&plan)).collect();
    let addresses: Vec<SocketAddr> = gateways.iter().map(|gateway| gateway.address).collect();
    ask(&addresses, 20, 6, 40);
    let asked = asked(&engines);
    assert_eq!(asked.iter().sum::<u64>(), 360);
    assert!(asked.iter().all(|count| *count <= 135), "more than half above the mean: {asked:?}");
}

/// One route: how a client asks, and the head of what the pod is sent.
struct Route {
    name: &'static str,
    message: fn() -> Vec<u8>,
}

fn message(path: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {length}\r\n\r\n{body}")
        .into()
}

const ROUTES: [Route; 9] = [
    Route {
        name: "chat",
        message: || message("/v1/chat/completions", "", &chat("base", 5, true).to_string()),
    },
    Route {
        name: "chat, not streamed",
        message: || message("/v1/chat/completions", "", &chat("base", 5, false).to_string()),
    },
    Route {
        name: "completions",
        message: || message("/v1/completions", "", r#"{"model":"base","prompt":[1,2,3]}"#),
    },
    Route {
        name: "embeddings",
        message: || message("/v1/embeddings", "", r#"{"model":"base","input":["a","b"]}"#),
    },
    Route {
        name: "responses",
        message: || message("/v1/responses", "", r#"{"model":"base","input":"hi"}"#),
    },
    Route { name: "rerank", message: || message("/v2/rerank", "", r#"{"model":"base"}"#) },
    Route { name: "tokenize", message: || message("/tokenize", "", r#"{"model":"base"}"#) },
    Route {
        name: "a form",
        message: || {
            let part =
                "--B\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nbase\r\n--B--\r\n";
            let form = "content-type: multipart/form-data; boundary=B\r\n";
            message("/v1/audio/transcriptions", form, part)
        },
    },
    Route {
        name: "a body in chunks",
        message: || {
            let body = r#"{"model":"base"}"#;
            let head = "POST /v1/score HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
            format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len()).into()
        },
    },
];

fn in_flight(gateway: &Gateway) -> Value {
    let status = gateway.status();
    json!([0, 1].map(|pod| status["pools"][0]["pods"][pod]["in_flight"].clone()))
}

// Field report 58: on a route that is not accounted for, all requests went to one pod.
#[test]
fn field_report_58_every_route_counts_what_it_has_in_flight() {
    let pods = RawPod::start_all(2);
    let gateway = Gateway::start(&plan(&pods));
    for Route { name, message } in ROUTES {
        let mut clients = [(); 2].map(|()| Client::connect(gateway.address));
        let taken: Vec<Taken> = clients
            .iter_mut()
            .zip(&pods)
            .map(|(client, _)| {
                client.send(message());
                wait_taken(&pods)
            })
            .collect();
        // Two requests at once, one at each of two idle pods.
        assert_eq!(in_flight(&gateway), json!([1, 1]), "{name}");
        for mut taken in taken {
            taken.send(answer(200, "content-type: application/json\r\n", "{}"));
            taken.keep();
        }
        for client in &mut clients {
            assert_eq!(client.response().status, 200, "{name}");
        }
        gateway.wait_idle();
    }
}

/// A request that one of the pods was sent.
fn wait_taken(pods: &[RawPod]) -> Taken {
    loop {
        let taken = pods.iter().find_map(|pod| pod.take_within(Duration::from_millis(5)));
        if let Some(taken) = taken {
            return taken;
        }
    }
}

// Reports against the reference picker 23: a server without adapters has no metric of them, and that is no
// failure.
#[test]
fn picker_report_23_a_server_that_knows_no_adapters_is_read_as_any_other() {
    let engine = Server::start(Options { speed: 50.0, ..Options::default() }).unwrap();
    assert!(!engine.metrics().contains("lora"), "{}", engine.metrics());
    let gateway = Gateway::start(&Plan::pool("base", std::slice::from_ref(&engine)));
    for _ in 0..5 {
        let response = post(gateway.address, "/v1/chat/completions", &chat("base", 1, true));
        assert_eq!(response.status, 200);
    }
    let status = gateway.wait_idle();
    let pod = &status["pools"][0]["pods"][0];
    assert_eq!(
        (&pod["engine"], &pod["trouble"], &pod["waiting"]),
        (&json!("vllm"), &Value::Null, &json!(0))
    );
    let page = gateway.get("/metrics").unwrap();
    let failed: Vec<&str> = page
        .lines()
        .filter(|line| {
            line.starts_with("sluice_pool_scrape_failures_total") && !line.ends_with(" 0")
        })
        .collect();
    assert_eq!(failed, Vec::<&str>::new());
}
