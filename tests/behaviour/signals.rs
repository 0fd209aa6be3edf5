//! What pods say of themselves, and what is made of it when it cannot be true: unknown, and never
//! idle.

#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::time::Duration;

use serde_json::{Value, json};
use sluice_tests::client::{Client, chat, post};
use sluice_tests::engine::{Faults, MetricsFault, Options, Server, Style};
use sluice_tests::gateway::{Gateway, Plan, pods};
use sluice_tests::pod::{RawPod, Signals, answer, nobody, plan};

fn asked(engine: &Server) -> u64 {
    engine.stats().requests_to("/v1/chat/completions")
}

fn fast() -> Options {
    Options { speed: 50.0, ..Options::default() }
}

/// What `/status` says of one pod of the first pool.
fn pod(status: &Value, number: usize) -> &Value {
    &status["pools"][0]["pods"][number]
}

// Field report 55.
#[test]
fn field_report_55_pods_that_tell_nothing_are_not_preferred() {
    let lies = [
        MetricsFault::Nan,
        MetricsFault::Html,
        MetricsFault::Error,
        MetricsFault::Empty,
        MetricsFault::Cut,
        MetricsFault::Garbage,
        MetricsFault::Silent,
    ];
    let lying =
        lies.map(|metrics| Options { faults: Faults { metrics, ..Faults::default() }, ..fast() });
    let mut options = vec![fast()];
    options.extend(lying);
    options.push(Options { metrics: Style::None, ..fast() });
    let engines = Server::start_all(options).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &engines));
    // Busy, so that any other would look better if unknown were idle.
    let mut busy = Client::connect(engines[0].addr);
    busy.post("/v1/chat/completions", &chat("base", 100_000, true));
    gateway.wait("the first pod to be busy", |status| pod(status, 0)["running"] == 1);
    for _ in 0..40 {
        assert_eq!(
            post(gateway.address, "/v1/chat/completions", &chat("base", 1, true)).status,
            200
        );
    }
    // Nearly all: on a busy machine the first pod's signals may be old for a moment, and then it is one of nine that
    // tell nothing.
    let first = asked(&engines[0]);
    assert!(first >= 31, "{first} of 41");
    let status = gateway.status();
    for number in 1..engines.len() {
        let pod = pod(&status, number);
        for signal in ["kv_usage", "waiting", "running"] {
            assert!(pod[signal].is_null(), "{signal} of {pod:#}");
        }
    }
    // NaN for every value is a page of metrics, so it is not the pod that is in trouble.
    for number in 2..engines.len() {
        assert!(pod(&status, number)["trouble"].is_string(), "{:#}", pod(&status, number));
    }
    let failures = |reason: &str| {
        let sample =
            format!("sluice_pool_scrape_failures_total{{pool=\"pool-0\",reason=\"{reason}\"}}");
        gateway.metric(&sample).unwrap()
    };
    assert!(
        failures("status") >= 2.0 && failures("malformed") >= 1.0,
        "{}",
        gateway.get("/metrics").unwrap()
    );
}

/// They are not lost either: unknown comes before nothing.
#[test]
fn pods_that_tell_nothing_serve_when_nobody_else_does() {
    let pods = RawPod::start_all(1);
    let unknown = Server::start(Options {
        faults: Faults { metrics: MetricsFault::Html, ..Faults::default() },
        ..fast()
    })
    .unwrap();
    let addresses = vec![pods[0].address, unknown.addr];
    let plan = Plan { pools: vec![("base".into(), addresses)], ..plan(&[]) };
    let gateway = Gateway::start(&plan.scheduler("    saturation: {queueDepth: 4}"));
    pods[0].tell(Signals { running: 4, waiting: 4, kv_usage: 0.5 });
    gateway.wait("the first to be full", |status| pod(status, 0)["waiting"] == 4);
    for _ in 0..5 {
        assert_eq!(
            post(gateway.address, "/v1/chat/completions", &chat("base", 1, true)).status,
            200
        );
    }
    assert_eq!(asked(&unknown), 5);
}

#[test]
fn signals_that_have_grown_old_count_for_nothing() {
    let engines = Server::start_all(vec![fast(), fast()]).unwrap();
    let metrics = "    metrics: {busyInterval: 20ms, idleInterval: 100ms, staleAfter: 1s}";
    let gateway = Gateway::start(&Plan::pool("base", &engines).scheduler(metrics));
    engines[0].fault(Faults { metrics: MetricsFault::Silent, ..Faults::default() });
    gateway.wait("the first pod's signals to grow old", |status| {
        pod(status, 0)["signals_age_ms"].as_u64() > Some(1000)
    });
    let before = asked(&engines[0]);
    for _ in 0..20 {
        assert_eq!(
            post(gateway.address, "/v1/chat/completions", &chat("base", 1, true)).status,
            200
        );
    }
    assert_eq!((asked(&engines[0]), asked(&engines[1])), (before, 20));
    let page = gateway.get("/metrics").unwrap();
    let name = engines[0].addr.to_string();
    let told =
        |metric: &str| page.lines().any(|line| line.starts_with(metric) && line.contains(&name));
    assert!(!told("sluice_pod_kv_cache_usage_ratio"), "an old value is still shown");
    assert!(told("sluice_pod_requests_in_flight"));
    // Healed, it takes part again.
    engines[0].fault(Faults::default());
    gateway.wait("the first pod's signals to be fresh", |status| {
        pod(status, 0)["signals_age_ms"].as_u64().is_some_and(|age| age < 1000)
    });
    for _ in 0..60 {
        post(gateway.address, "/v1/chat/completions", &chat("base", 1, true));
    }
    assert!(asked(&engines[0]) > before);
}

// Field report 73.
#[test]
fn field_report_73_a_pod_that_is_not_there_gets_nothing() {
    let engine = Server::start(fast()).unwrap();
    let dead = nobody(0);
    let plan = Plan { pools: vec![("base".into(), vec![dead, engine.addr])], ..plan(&[]) };
    let gateway = Gateway::start(&plan);
    let status =
        gateway.wait("the dead pod to be known", |status| pod(status, 0)["ready"] == false);
    assert!(pod(&status, 0)["trouble"].as_str().unwrap().contains("refused"), "{status:#}");
    assert_eq!((&status["ready"], &pod(&status, 1)["ready"]), (&json!(true), &json!(true)));
    for _ in 0..20 {
        assert_eq!(
            post(gateway.address, "/v1/chat/completions", &chat("base", 1, true)).status,
            200
        );
    }
    assert_eq!(pod(&gateway.status(), 0)["requests"], 0);
}

// Field reports 53 and 54: old and new names, several engines behind one port, other servers.
#[test]
fn field_report_53_54_every_kind_of_server_is_understood() {
    let styles = [
        (Style::V08, "vllm"),
        (Style::V011, "vllm"),
        (Style::OpenMetrics, "vllm"),
        (Style::Sglang, "sglang"),
        (Style::Tgi, "tgi"),
        (Style::LlamaCpp, "llama.cpp"),
        (Style::TrtLlm, "trtllm-serve"),
        (Style::Triton, "triton"),
    ];
    let mut options: Vec<_> = styles
        .iter()
        .map(|(metrics, _)| Options { metrics: *metrics, ..Options::default() })
        .collect();
    options.push(Options { data_parallel: 2, ..Options::default() });
    let engines = Server::start_all(options).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &engines));
    let mut working = Vec::new();
    for engine in &engines {
        for _ in 0..4 {
            let mut client = Client::connect(engine.addr);
            client.post("/v1/chat/completions", &chat("base", 100_000, true));
            working.push(client);
        }
    }
    let status = gateway.wait("each server's load to be seen", |status| {
        pods(status).all(|pod| {
            pod["running"] == 4 || pod["running"].is_null() && pod["kv_usage"].as_f64() > Some(0.0)
        })
    });
    for (pod, (style, name)) in pods(&status).zip(styles) {
        assert_eq!(pod["engine"], name, "{style:?}");
    }
    assert_eq!(pod(&status, styles.len())["running"], 4, "two engines are added up");
}

// Field report 57.
#[test]
fn field_report_57_picker_report_26_slow_metrics_delay_nobody() {
    let slow = Faults { metrics_delay_ms: 700, ..Faults::default() };
    let engine = Server::start(Options { faults: slow, ..fast() }).unwrap();
    let gateway = Gateway::launch(&Plan::pool("base", std::slice::from_ref(&engine)));
    // The first scrape is under way for longer than these take.
    for _ in 0..10 {
        assert_eq!(
            post(gateway.address, "/v1/chat/completions", &chat("base", 1, true)).status,
            200
        );
    }
    gateway.wait("the metrics to have come", |status| !pod(status, 0)["signals_age_ms"].is_null());
    // One question at a time, and most of the time none.
    assert!(engine.stats().requests_to("/metrics") <= 2);
}

/// Servers have been seen to answer requests while their metrics take seconds: with the whole pool
/// so, the pool goes on.
#[test]
fn picker_report_25_a_pool_whose_metrics_all_time_out_still_serves() {
    let silent = || Faults { metrics: MetricsFault::Silent, ..Faults::default() };
    let options = || Options { faults: silent(), ..fast() };
    let engines = Server::start_all(vec![options(), options()]).unwrap();
    let gateway = Gateway::launch(&Plan::pool("base", &engines));
    gateway.wait("both pods to be given up", |status| {
        pods(status).all(|pod| pod["ready"] == false && pod["trouble"].is_string())
    });
    for _ in 0..10 {
        let body = chat("base", 1, true);
        assert_eq!(post(gateway.address, "/v1/chat/completions", &body).status, 200);
    }
}

/// Metrics from a port of their own say nothing of the port that serves.
#[test]
fn signals_from_another_port_do_not_vouch_for_the_pod() {
    let metrics = RawPod::start();
    let dead = nobody(0);
    let alive = RawPod::start();
    let plan = Plan { pools: vec![("base".into(), vec![dead, alive.address])], ..plan(&[]) }
        .scheduler(&format!("    metrics: {{port: {}}}", metrics.address.port()));
    let gateway = Gateway::start(&plan);
    let mut client = Client::connect(gateway.address);
    for _ in 0..10 {
        client.post("/v1/chat/completions", &chat("base", 1, true));
        let mut taken = alive.take();
        taken.send(answer(200, "", "{}"));
        taken.keep();
        assert_eq!(client.response().status, 200);
        std::thread::sleep(PAUSE);
    }
    // Scrapes of the other port came and went meanwhile: they must not have brought the dead pod
    // back.
    let retries = gateway.metric("sluice_pool_retries_total{pool=\"pool-0\"}").unwrap();
    assert!(retries <= 3.0, "{retries} requests went to the dead pod first");
}

/// Between requests; several scrapes fit in.
const PAUSE: Duration = Duration::from_millis(60);
