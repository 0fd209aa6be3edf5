//! The metrics of a gateway that has been at work: valid, complete, and each request counted once.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::json;
use sluice_tests::client::{Client, chat, post};
use sluice_tests::engine::{Faults, Options, Server};
use sluice_tests::gateway::{Gateway, Plan};
use sluice_tests::pod::{LAST, RawPod, STREAM, Taken, answer, chunk, plan};

/// One request: what the pod does with it, what the client does, and the outcome.
struct Case {
    outcome: &'static str,
    pod: fn(Taken),
    client: fn(Client),
}

fn reads(mut client: Client) {
    client.response();
}

/// Waits for the first event and leaves.
fn leaves(mut client: Client) {
    client.read_until(EVENT);
}

fn begins(mut taken: Taken) -> Taken {
    taken.send([STREAM.as_bytes(), &chunk(EVENT)].concat());
    taken
}

const EVENT: &str = "data: {\"n\":1}\n\n";

// No connection is kept: a request that ends with a kept one is sent again, and would be two at the
// pod.
const CASES: &[Case] = &[
    Case {
        outcome: "ok",
        pod: |taken| {
            let mut taken = begins(taken);
            taken.send(LAST);
            taken.close();
        },
        client: reads,
    },
    Case {
        outcome: "ok",
        pod: |mut taken| {
            taken.send(answer(
                200,
                "",
                "{\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}",
            ));
            taken.close();
        },
        client: reads,
    },
    Case {
        outcome: "client_error",
        pod: |mut taken| {
            taken.send(answer(400, "", "{}"));
            taken.close();
        },
        client: reads,
    },
    Case {
        outcome: "client_error",
        pod: |mut taken| {
            taken.send(answer(429, "", "{}"));
            taken.close();
        },
        client: reads,
    },
    Case {
        outcome: "pod_error",
        pod: |mut taken| {
            taken.send(answer(500, "", "{}"));
            taken.close();
        },
        client: reads,
    },
    Case {
        outcome: "pod_error",
        pod: |mut taken| {
            taken.send(answer(503, "", "{}"));
            taken.close();
        },
        client: reads,
    },
    Case { outcome: "pod_error", pod: Taken::close, client: reads },
    Case {
        outcome: "pod_error",
        pod: |taken| {
            let mut taken = begins(taken);
            taken.send([&chunk("data: {\"error\":{}}\n\n"), LAST.as_bytes()].concat());
            taken.close();
        },
        client: reads,
    },
    Case { outcome: "aborted", pod: |taken| begins(taken).close(), client: reads },
    Case { outcome: "aborted", pod: |taken| begins(taken).reset(), client: reads },
    Case { outcome: "client_gone", pod: |taken| begins(taken).wait_closed(), client: leaves },
    Case { outcome: "client_gone", pod: Taken::wait_closed, client: drop },
    // Silent for longer than the limits.
    Case { outcome: "timed_out", pod: Taken::wait_closed, client: reads },
    Case { outcome: "timed_out", pod: |taken| begins(taken).wait_closed(), client: reads },
];

#[test]
fn each_request_has_exactly_one_outcome() {
    let pods = [RawPod::start()];
    let limits = "  limits: {firstByteTimeout: 1s, streamIdleTimeout: 1s, maxAttempts: 2}";
    let gateway =
        Gateway::start(&plan(&pods).spec(limits).scheduler("    saturation: {inFlight: 1}"));
    let mut expected: BTreeMap<&str, f64> = BTreeMap::new();
    for round in 0..2 {
        for Case { outcome, pod, client } in CASES {
            let mut asking = Client::connect(gateway.address);
            asking.post("/v1/chat/completions", &chat("base", 1, true));
            let taken = pods[0].take();
            // Meanwhile the pool is full.
            if round == 0 {
                let refused =
                    post(gateway.address, "/v1/chat/completions", &chat("base", 1, false));
                assert_eq!(refused.status, 429);
                *expected.entry("rejected").or_default() += 1.0;
            }
            let pod = thread::spawn(move || pod(taken));
            client(asking);
            pod.join().unwrap();
            *expected.entry(outcome).or_default() += 1.0;
            gateway.wait_idle();
        }
        // What never reached a pool is no request of the pool's.
        post(gateway.address, "/v1/chat/completions", &chat("nobody", 1, false));
    }
    for outcome in OUTCOMES {
        let sample = format!("sluice_pool_requests_total{{pool=\"pool-0\",outcome=\"{outcome}\"}}");
        gateway.wait_metric(&sample, expected.get(outcome).copied().unwrap_or(0.0));
    }
    let sum: f64 = expected.values().sum();
    assert_eq!(sum, (CASES.len() * 3) as f64);
    let by_model = "sluice_pool_model_requests_total{pool=\"pool-0\",model=\"base\"}";
    assert_eq!(gateway.metric(by_model), Some(sum));
    assert_eq!(gateway.metric("sluice_gateway_refused_total{reason=\"unknown_model\"}"), Some(2.0));
    let status = gateway.wait_idle();
    let pod = &status["pools"][0]["pods"][0];
    assert_eq!(pod["requests"], json!(CASES.len() * 2), "rejected requests were never at the pod");
    let failed = ["pod_error", "aborted", "timed_out"].map(|outcome| expected[outcome]);
    // A 503 is backpressure, and no failure of the pod.
    assert_eq!(pod["failures"], json!((failed.iter().sum::<f64>() - 2.0) as u64));
    let in_flight =
        format!("sluice_pod_requests_in_flight{{pool=\"pool-0\",pod=\"{}\"}}", pods[0].address);
    assert_eq!(gateway.metric(&in_flight), Some(0.0));
}

const OUTCOMES: [&str; 7] =
    ["ok", "client_error", "pod_error", "aborted", "client_gone", "rejected", "timed_out"];

#[test]
fn the_live_page_is_valid_and_has_every_documented_name() {
    let options = || Options { adapters: vec!["sql".into()], speed: 20.0, ..Options::default() };
    let engines = Server::start_all(vec![options(), options()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &engines));
    gateway.wait("the adapter to be known", |status| {
        status["pools"][0]["names"] == json!(["base", "sql"])
    });
    let fault = |status| Faults { status: Some(status), times: Some(1), ..Faults::default() };
    for (number, model) in
        ["base", "sql", "base", "nobody"].into_iter().cycle().take(24).enumerate()
    {
        if number % 5 == 0 {
            engines[0].fault(fault(if number % 2 == 0 { 503 } else { 500 }));
        }
        post(gateway.address, "/v1/chat/completions", &chat(model, 3, number % 2 == 0));
    }
    let mut leaving = Client::connect(gateway.address);
    leaving.post("/v1/chat/completions", &chat("base", 1000, true));
    leaving.read_until("w0001");
    drop(leaving);
    gateway.wait_idle();

    let page = gateway.get("/metrics").unwrap();
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this test needs promtool: install the Debian package `prometheus`");
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "{said}\n{page}");

    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let docs = fs::read_to_string(docs).unwrap();
    let documented: Vec<&str> = docs
        .lines()
        .filter_map(|line| line.strip_prefix("| `sluice_")?.split('`').next())
        // Of what is not on here: the tests of direct mode, of pods' events, of the exchange and so on look at them.
        .filter(|name| {
            ![
                "direct_",
                "kv_events_",
                "exchange_",
                "tls_",
                "auth_",
                "key_",
                "cluster_",
                "model_rewrites_",
            ]
            .iter()
            .any(|of| name.starts_with(of))
        })
        .collect();
    assert!(documented.len() > 25, "{documented:?}");
    for name in documented {
        let name = format!("sluice_{name}");
        let found = page.lines().any(|line| {
            let rest = line.strip_prefix(&name).unwrap_or_default();
            let rest = ["_count", "_bucket", "_sum"]
                .iter()
                .find_map(|end| rest.strip_prefix(end))
                .unwrap_or(rest);
            rest.starts_with(['{', ' '])
        });
        assert!(found, "{name} has no sample\n{page}");
    }
    // And the other way round.
    for line in page.lines().filter_map(|line| line.strip_prefix("# HELP ")) {
        let name = line.split(' ').next().unwrap();
        assert!(docs.contains(&format!("| `{name}")), "{name} is not documented");
    }
}

/// Prometheus asks for OpenMetrics, and must get what it asked for.
#[test]
fn a_scraper_may_have_openmetrics() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let ask = |accept: &str| {
        let mut client = Client::connect(gateway.admin);
        client.send(format!("GET /metrics HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\n\r\n"));
        client.response()
    };
    let open = ask("application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
    assert!(open.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    assert!(open.text().ends_with("# EOF\n"));
    let plain = ask("*/*");
    assert!(plain.header("content-type").unwrap().starts_with("text/plain"));
    assert!(!plain.text().contains("# EOF"));
}

/// What a client or a pod says never makes a series.
#[test]
fn nobody_can_add_series() {
    let engine = Server::start(Options { speed: 50.0, ..Options::default() }).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", std::slice::from_ref(&engine)));
    let series =
        || gateway.get("/metrics").unwrap().lines().filter(|line| !line.starts_with('#')).count();
    post(gateway.address, "/v1/chat/completions", &chat("base", 1, true));
    gateway.wait_metric("sluice_pool_requests_total{pool=\"pool-0\",outcome=\"ok\"}", 1.0);
    thread::sleep(Duration::from_millis(100));
    let before = series();
    for number in 0..50 {
        post(gateway.address, "/v1/chat/completions", &chat(&format!("m{number}"), 1, false));
        post(gateway.address, &format!("/v1/path/{number}"), &chat("base", 1, false));
    }
    gateway.wait_idle();
    assert_eq!(series(), before);
}
