//! What happens when a pod fails before it has given any content: another pod, unseen by the
//! client, or one honest error.

#![expect(clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use std::io::Read as _;
use std::net::TcpListener;
use std::time::Duration;

use serde_json::{Value, json};
use sluice_tests::client::{Client, Response, chat, post};
use sluice_tests::engine::{Faults, Options, Server};
use sluice_tests::gateway::{Gateway, Plan};
use sluice_tests::pod::{LAST, RawPod, STREAM, Signals, Taken, answer, chunk, nobody, plan};

/// How a pod fails, and whether that speaks against the pod.
struct Failing {
    name: &'static str,
    fail: fn(Taken),
    counts: bool,
}

const DRAINING: &str =
    r#"{"error":{"message":"cannot schedule new futures after shutdown","code":500}}"#;
const DEAD: &str =
    r#"{"error":{"message":"EngineCore encountered an issue. See stack trace.","code":500}}"#;
const DEAD_EVENT: &str =
    "data: {\"error\": {\"message\": \"EngineCore encountered an issue.\", \"code\": 500}}\n\n";

fn say_and(mut taken: Taken, said: impl AsRef<[u8]>, then: fn(Taken)) {
    taken.send(said);
    then(taken);
}

const FAILURES: &[Failing] = &[
    Failing { name: "closes", fail: Taken::close, counts: true },
    Failing { name: "resets", fail: Taken::reset, counts: true },
    Failing {
        name: "closes behind half a head",
        fail: |taken| say_and(taken, "HTTP/1.1 200 OK\r\ncontent-", Taken::close),
        counts: true,
    },
    Failing {
        name: "closes behind the head",
        fail: |taken| say_and(taken, STREAM, Taken::close),
        counts: true,
    },
    Failing {
        name: "resets behind the head",
        fail: |taken| say_and(taken, STREAM, Taken::reset),
        counts: true,
    },
    Failing {
        name: "closes behind a head with a length",
        fail: |taken| say_and(taken, "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", Taken::close),
        counts: true,
    },
    Failing {
        name: "closes a stream without length before any event",
        fail: |taken| {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
            say_and(taken, format!("{head}: keep-alive\n\n"), Taken::close);
        },
        counts: true,
    },
    Failing {
        name: "closes behind comments",
        fail: |taken| {
            let comment = chunk(": keep-alive\n\n");
            say_and(taken, [STREAM.as_bytes(), &comment, &comment].concat(), Taken::close);
        },
        counts: true,
    },
    Failing {
        name: "speaks no HTTP",
        fail: |taken| say_and(taken, "upstream connect error or disconnect\r\n\r\n", Taken::close),
        counts: true,
    },
    Failing {
        name: "switches protocols",
        fail: |taken| {
            let head = "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n";
            say_and(taken, head, Taken::close);
        },
        counts: true,
    },
    Failing {
        name: "sends broken chunks",
        fail: |taken| say_and(taken, format!("{STREAM}zz\r\n"), Taken::close),
        counts: true,
    },
    Failing {
        name: "is full",
        fail: |taken| say_and(taken, answer(429, "retry-after: 9\r\n", "{}"), Taken::keep),
        counts: false,
    },
    Failing {
        name: "is starting",
        fail: |taken| say_and(taken, answer(503, "", "{}"), Taken::keep),
        counts: false,
    },
    Failing {
        name: "stands behind a broken proxy",
        fail: |taken| say_and(taken, answer(502, "", "<html>"), Taken::keep),
        counts: true,
    },
    Failing {
        name: "is draining",
        fail: |taken| say_and(taken, answer(500, "", DRAINING), Taken::keep),
        counts: true,
    },
    Failing {
        name: "has a dead engine",
        fail: |taken| say_and(taken, answer(500, "", DEAD), Taken::keep),
        counts: true,
    },
    Failing {
        name: "begins with an error event",
        fail: |taken| {
            let events = [chunk(DEAD_EVENT), chunk("data: [DONE]\n\n")].concat();
            say_and(taken, [STREAM.as_bytes(), &events, LAST.as_bytes()].concat(), Taken::keep);
        },
        counts: true,
    },
    Failing {
        name: "begins with comments and half an error event",
        fail: |mut taken| {
            let (first, rest) = DEAD_EVENT.split_at(9);
            taken.send([STREAM.as_bytes(), &chunk(": x\n\n"), &chunk(first)].concat());
            std::thread::sleep(SPLIT);
            say_and(taken, chunk(rest), Taken::close);
        },
        counts: true,
    },
];

#[test]
fn field_report_20_a_pod_that_fails_before_any_content_is_replaced_unseen() {
    let pods = first_and_second();
    // By what they tell, as pods that answer at once do not show the speed of either.
    let gateway = Gateway::start(&plan(&pods).scheduler("    weights: {queue: 2}"));
    let mut client = Client::connect(gateway.address);
    let mut retries = 0.0;
    for stream in [true, false] {
        for Failing { name, fail, counts } in FAILURES {
            let case = format!("{name}, stream: {stream}");
            let before = gateway.wait_idle();
            let body = chat("base", 2, stream);
            client.post("/v1/chat/completions", &body);
            let taken = pods[0].take();
            let (id, sent) = (taken.header("x-request-id").unwrap().to_owned(), taken.body.clone());
            fail(taken);

            let mut taken = pods[1].take();
            assert_eq!(taken.body, sent, "{case}: the body differs");
            assert_eq!(serde_json::from_slice::<Value>(&sent).unwrap(), body);
            assert_eq!(taken.header("x-request-id"), Some(&*id), "{case}");
            let event = "data: {\"n\":1}\n\n";
            taken.send([STREAM.as_bytes(), &chunk(event), LAST.as_bytes()].concat());
            taken.keep();
            let response = client.response();
            assert_eq!(
                (response.status, response.text().as_str(), response.complete),
                (200, event, true),
                "{case}"
            );
            assert_eq!(response.header("retry-after"), None, "{case}");

            retries += 1.0;
            gateway.wait_metric("sluice_pool_retries_total{pool=\"pool-0\"}", retries);
            // It is well again, and back by itself.
            gateway.wait("the first pod to take requests", |status| {
                status["pools"][0]["pods"][0]["ready"] == true
            });
            client.post("/v1/chat/completions", &chat("base", 1, false));
            let well = answer(200, "connection: close\r\n", "{}");
            say_and(pods[0].take(), well, Taken::close);
            assert_eq!(client.response().status, 200, "{case}");
            let failures = |status: &Value| status["pools"][0]["pods"][0]["failures"].as_u64();
            let after = gateway.wait_idle();
            assert_eq!(
                failures(&after).unwrap() - failures(&before).unwrap(),
                u64::from(*counts),
                "{case}: failures"
            );
        }
    }
    let ok = "sluice_pool_requests_total{pool=\"pool-0\",outcome=\"ok\"}";
    gateway.wait_metric(ok, 2.0 * retries);
}

/// Two pods, of which the first is idle and the second busy: the first is asked first.
fn first_and_second() -> Vec<RawPod> {
    let pods = RawPod::start_all(2);
    pods[1].tell(Signals { running: 4, waiting: 4, kv_usage: 0.5 });
    pods
}

/// Every pod fails, and what the client gets: the gateway's words, or the pod's own answer.
struct AllFail<'a> {
    fail: &'a dyn Fn(Taken),
    status: u16,
    words: Option<&'a str>,
}

#[test]
fn field_report_48_when_every_pod_fails_the_client_gets_one_error() {
    let full = |mut taken: Taken, status| {
        taken.send(answer(status, "", "{\"full\":1}"));
        taken.keep();
    };
    let table = [
        AllFail { fail: &Taken::close, status: 502, words: Some("closed the connection") },
        AllFail { fail: &Taken::reset, status: 502, words: Some("the connection broke") },
        // Field report 48.
        AllFail {
            fail: &|taken| say_and(taken, "upstream connect error\r\n\r\n", Taken::close),
            status: 502,
            words: Some("does not speak HTTP"),
        },
        AllFail { fail: &|taken| full(taken, 429), status: 429, words: None },
        AllFail { fail: &|taken| full(taken, 503), status: 503, words: None },
        AllFail { fail: &|taken| full(taken, 502), status: 502, words: None },
        AllFail {
            fail: &|taken| say_and(taken, answer(500, "", DRAINING), Taken::keep),
            status: 500,
            words: None,
        },
    ];
    for AllFail { fail, status, words } in table {
        let pods = RawPod::start_all(2);
        let gateway = Gateway::start(&plan(&pods));
        let mut client = Client::connect(gateway.address);
        client.post("/v1/chat/completions", &chat("base", 2, true));
        // Which is asked first is by lot; each is asked once.
        for _ in 0..2 {
            fail(take_any(&pods));
        }
        let response = client.response();
        assert_eq!((response.status, response.complete), (status, true));
        match words {
            Some(words) => {
                let error = &response.json()["error"];
                assert_eq!(error["code"], "pod_failed");
                assert_eq!(error["type"], "server_error");
                assert!(error["message"].as_str().unwrap().contains(words), "{error}");
            }
            // The pod's own words.
            None => assert!(["{\"full\":1}", DRAINING].contains(&&*response.text())),
        }
        for pod in &pods {
            assert!(pod.take_within(QUIET).is_none(), "{status}: a pod was asked twice");
        }
        let outcome = "sluice_pool_requests_total{pool=\"pool-0\",outcome=\"pod_error\"}";
        let outcome = if status == 429 {
            outcome.replace("pod_error", "client_error")
        } else {
            outcome.into()
        };
        gateway.wait_metric(&outcome, 1.0);
        gateway.wait_metric("sluice_pool_retries_total{pool=\"pool-0\"}", 1.0);
        gateway.wait_idle();
    }
}

/// The next request to any of `pods`.
fn take_any(pods: &[RawPod]) -> Taken {
    for _ in 0..2000 {
        if let Some(taken) = pods.iter().find_map(|pod| pod.take_within(Duration::from_millis(5))) {
            return taken;
        }
    }
    panic!("no pod was asked");
}

// Field report 21.
#[test]
fn field_report_21_a_pods_429_is_passed_on_with_a_time_to_wait() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let mut client = Client::connect(gateway.address);
    let mut ask = |headers: &str| {
        client.post("/v1/chat/completions", &chat("base", 2, false));
        say_and(pods[0].take(), answer(429, headers, "{}"), Taken::keep);
        let response = client.response();
        assert_eq!(response.status, 429);
        let header = |name| response.header(name).map(str::to_owned);
        (header("retry-after"), header("retry-after-ms"))
    };
    assert_eq!(ask("retry-after: 7\r\n"), (Some("7".into()), None));
    assert_eq!(ask(""), (Some("1".into()), Some("1000".into())));
}

// Field report 23.
#[test]
fn field_report_23_requests_that_are_wrong_never_count_against_a_pod() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let mut client = Client::connect(gateway.address);
    for status in [400, 401, 404, 413, 422].into_iter().cycle().take(30) {
        client.post("/v1/chat/completions", &chat("base", 2, false));
        say_and(pods[0].take(), answer(status, "", "{\"wrong\":1}"), Taken::keep);
        let response = client.response();
        assert_eq!((response.status, response.text().as_str()), (status, "{\"wrong\":1}"));
    }
    gateway
        .wait_metric("sluice_pool_requests_total{pool=\"pool-0\",outcome=\"client_error\"}", 30.0);
    let pod = &gateway.status()["pools"][0]["pods"][0];
    assert_eq!(
        (&pod["ready"], &pod["failures"], &pod["trouble"]),
        (&json!(true), &json!(0), &Value::Null)
    );
}

// Field report 22.
#[test]
fn field_report_22_a_full_pod_is_used_again_as_soon_as_it_has_room() {
    let pod = Server::start(Options { speed: 20.0, ..Options::default() }).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", std::slice::from_ref(&pod)));
    pod.fault(Faults { status: Some(503), times: Some(30), ..Faults::default() });
    for count in 0..31 {
        let response = post(gateway.address, "/v1/chat/completions", &chat("base", 1, false));
        assert_eq!(response.status, if count < 30 { 503 } else { 200 }, "request {count}");
    }
    assert_eq!(gateway.status()["pools"][0]["pods"][0]["ready"], true);
}

#[test]
fn another_4xx_or_5xx_is_the_answer() {
    let pods = first_and_second();
    let gateway = Gateway::start(&plan(&pods));
    let mut client = Client::connect(gateway.address);
    for status in [400, 404, 408, 500, 501] {
        client.post("/v1/chat/completions", &chat("base", 2, false));
        say_and(pods[0].take(), answer(status, "", "{\"bug\":1}"), Taken::keep);
        let response = client.response();
        assert_eq!((response.status, response.text().as_str()), (status, "{\"bug\":1}"));
        assert!(pods[1].take_within(QUIET).is_none(), "{status} was tried elsewhere");
    }
}

#[test]
fn field_report_68_a_pod_that_refuses_connections_is_left_out_and_returns_by_itself() {
    let options = || Options { speed: 20.0, ..Options::default() };
    let pods = Server::start_all(vec![options(), options()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let ask = || post(gateway.address, "/v1/chat/completions", &chat("base", 1, false)).status;
    let count = |pod: &Server| pod.stats().requests_to("/v1/chat/completions");

    pods[0].die(None);
    for _ in 0..20 {
        assert_eq!(ask(), 200);
    }
    let status = gateway
        .wait("the dead pod to be out", |status| status["pools"][0]["pods"][0]["ready"] == false);
    let trouble = status["pools"][0]["pods"][0]["trouble"].as_str().unwrap();
    assert!(trouble.contains("refused"), "{trouble}");
    assert_eq!(status["ready"], true, "the other pod serves");
    let before = count(&pods[0]);

    pods[0].revive();
    gateway.wait("the pod to be back", |status| status["pools"][0]["pods"][0]["ready"] == true);
    for _ in 0..40 {
        assert_eq!(ask(), 200);
    }
    assert!(count(&pods[0]) > before, "the pod that is back gets no requests");
    assert!(gateway.status()["pools"][0]["pods"][0]["trouble"].is_null());
}

#[test]
fn a_draining_pod_is_left_out_and_status_says_why() {
    let options = || Options { speed: 20.0, ..Options::default() };
    let pods = Server::start_all(vec![options(), options()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    pods[0].fault(Faults { draining: true, ..Faults::default() });
    let count = || pods[0].stats().requests_to("/v1/chat/completions");
    // It answers its scrapes as if nothing were the matter.
    let mut out = false;
    for _ in 0..40 {
        let response = post(gateway.address, "/v1/chat/completions", &chat("base", 1, false));
        assert_eq!(response.status, 200, "{}", response.text());
        let pod = &gateway.status()["pools"][0]["pods"][0];
        if pod["ready"] == false {
            out = true;
            let trouble = pod["trouble"].as_str().unwrap_or("no words");
            assert!(trouble.contains("stopping"), "{trouble}");
        }
    }
    assert!(out, "a pod that refuses all requests was never left out");
    assert!(count() <= 20, "{} of 40 requests went to a draining pod", count());
    pods[0].fault(Faults::default());
    let before = count();
    gateway.wait("the pod to be back", |status| status["pools"][0]["pods"][0]["ready"] == true);
    for _ in 0..100 {
        post(gateway.address, "/v1/chat/completions", &chat("base", 1, false));
    }
    assert!(count() > before, "the pod that is back gets no requests");
}

#[test]
fn no_more_pods_are_asked_than_the_limit_says() {
    for most in [1, 2, 3] {
        let pods = RawPod::start_all(5);
        let limits = format!("  limits: {{maxAttempts: {most}}}");
        let gateway = Gateway::start(&plan(&pods).spec(&limits));
        let mut client = Client::connect(gateway.address);
        client.post("/v1/chat/completions", &chat("base", 2, false));
        for _ in 0..most {
            take_any(&pods).close();
        }
        assert_eq!(client.response().status, 502);
        assert!(pods.iter().all(|pod| pod.take_within(QUIET).is_none()), "more than {most}");
        // What was not sent anywhere is not counted anywhere.
        let status = gateway.wait_idle();
        let requests = status["pools"][0]["pods"].as_array().unwrap().iter();
        assert_eq!(requests.filter_map(|pod| pod["requests"].as_u64()).sum::<u64>(), most);
    }
}

/// A connection that is refused has cost nothing and sent nothing: it must not use up the attempts,
/// or a request is lost that the one living pod would have served.
#[test]
fn pods_where_nothing_listens_do_not_use_up_the_attempts() {
    let alive = RawPod::start();
    let mut addresses: Vec<_> = (0..12).map(nobody).collect();
    addresses.push(alive.address);
    // All metrics are those of the living pod: only requests can find the dead ones.
    let metrics = format!("    metrics: {{port: {}}}", alive.address.port());
    let plan = Plan { pools: vec![("base".into(), addresses)], ..plan(&[]) }.scheduler(&metrics);
    let gateway = Gateway::start(&plan);
    let mut client = Client::connect(gateway.address);
    for _ in 0..20 {
        client.post("/v1/chat/completions", &chat("base", 2, false));
        // Whether it comes here is the question; an error would come at once.
        let mut taken = alive.take_within(Duration::from_secs(5)).expect("the living pod is asked");
        taken.send(answer(200, "", "{}"));
        taken.keep();
        assert_eq!(client.response().status, 200);
    }
}

#[test]
fn when_nothing_listens_anywhere_the_answer_is_503() {
    // Metrics come from elsewhere, so that only the request can find out.
    let metrics = RawPod::start();
    let plan = Plan { pools: vec![("base".into(), vec![nobody(0), nobody(1)])], ..plan(&[]) }
        .scheduler(&format!("    metrics: {{port: {}}}", metrics.address.port()));
    let gateway = Gateway::start(&plan);
    let rejected = |reason| {
        let sample = format!("sluice_pool_rejected_total{{pool=\"pool-0\",reason=\"{reason}\"}}");
        gateway.metric(&sample).unwrap() > 0.0
    };
    // The first request finds out; the next, unless half a second has passed, is told what is
    // known.
    let mut asked = 0.0;
    while !(rejected("exhausted") && rejected("no_pod")) {
        assert!(asked < 100.0, "one of the two reasons was never given");
        let response = post(gateway.address, "/v1/chat/completions", &chat("base", 1, false));
        assert_no_pod(&response);
        asked += 1.0;
        let outcome = "sluice_pool_requests_total{pool=\"pool-0\",outcome=\"rejected\"}";
        gateway.wait_metric(outcome, asked);
    }
    gateway.wait_idle();
    for number in 0..2 {
        let failed = format!(
            "connecting failed: Connection refused (os error 111) pool=pool-0 pod={}",
            nobody(number)
        );
        assert!(gateway.log().contains(&failed), "{}", gateway.log());
    }
}

fn assert_no_pod(response: &Response) {
    assert_eq!((response.status, response.complete), (503, true), "{}", response.text());
    assert_eq!(response.json()["error"]["code"], "no_pod_available");
    assert!(response.header("retry-after").is_some());
}

#[test]
fn a_silent_pod_costs_the_first_byte_timeout_and_no_more() {
    let comment = [STREAM.as_bytes(), &chunk(": keep-alive\n\n")].concat();
    let silences: [(&str, &[u8]); 3] = [
        ("says nothing", b""),
        ("says only a head", STREAM.as_bytes()),
        ("says only comments", &comment),
    ];
    let pods = RawPod::start_all(2);
    let gateway = Gateway::start(&plan(&pods).spec("  limits: {firstByteTimeout: 300ms}"));
    let mut client = Client::connect(gateway.address);
    for (name, said) in silences {
        client.post("/v1/chat/completions", &chat("base", 2, true));
        let mut taken = take_any(&pods);
        taken.send(said);
        let response = client.response();
        assert_eq!((response.status, response.complete), (504, true), "{name}");
        assert_eq!(response.json()["error"]["code"], "pod_timeout", "{name}");
        taken.wait_closed();
        assert!(pods.iter().all(|pod| pod.take_within(QUIET).is_none()), "{name}: asked again");
    }
    gateway.wait_metric("sluice_pool_requests_total{pool=\"pool-0\",outcome=\"timed_out\"}", 3.0);
    gateway.wait_idle();
}

/// A process that is stopped accepts connections, and takes as much of a body as the sockets hold.
#[test]
fn a_pod_that_does_not_read_a_large_body_is_a_silent_pod() {
    let stopped = TcpListener::bind("127.0.0.1:0").unwrap();
    let pods = vec![stopped.local_addr().unwrap()];
    let metrics = RawPod::start();
    let plan = Plan { pools: vec![("base".into(), pods)], ..plan(&[]) }
        .scheduler(&format!("    metrics: {{port: {}}}", metrics.address.port()))
        .spec("  limits: {firstByteTimeout: 300ms}");
    let gateway = Gateway::launch(&plan);
    let mut body = chat("base", 2, false);
    body["pad"] = "x".repeat(20 << 20).into();
    let response = post(gateway.address, "/v1/chat/completions", &body);
    assert_eq!((response.status, &response.json()["error"]["code"]), (504, &json!("pod_timeout")));
    gateway.wait_idle();
    gateway.wait("the body's memory to be given back", |status| status["buffered_bytes"] == 0);
}

/// A pod may refuse a large body without reading it all.
#[test]
fn an_answer_before_the_body_has_been_read_reaches_the_client() {
    let pod = TcpListener::bind("127.0.0.1:0").unwrap();
    let pods = vec![pod.local_addr().unwrap()];
    let metrics = RawPod::start();
    let plan = Plan { pools: vec![("base".into(), pods)], ..plan(&[]) }
        .scheduler(&format!("    metrics: {{port: {}}}", metrics.address.port()));
    let gateway = Gateway::launch(&plan);
    std::thread::spawn(move || {
        for mut stream in pod.incoming().map_while(Result::ok) {
            let mut piece = [0; 4096];
            let count = stream.read(&mut piece).unwrap_or(0);
            if piece[..count].starts_with(b"POST") {
                use std::io::Write as _;
                let _ = stream
                    .write_all(answer(413, "connection: close\r\n", "{\"big\":1}").as_bytes());
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    });
    let mut body = chat("base", 2, false);
    body["pad"] = "x".repeat(20 << 20).into();
    let response = post(gateway.address, "/v1/chat/completions", &body);
    assert_eq!((response.status, response.text().as_str()), (413, "{\"big\":1}"));
}

#[test]
fn pods_where_every_request_breaks_do_not_draw_all_requests() {
    // The emptiest of all: they end every request at once.
    let broken = RawPod::start_all(3);
    let well = Server::start(Options { speed: 20.0, ..Options::default() }).unwrap();
    let addresses = broken.iter().map(|pod| pod.address).chain([well.addr]).collect();
    let gateway = Gateway::start(&Plan { pools: vec![("base".into(), addresses)], ..plan(&[]) });
    for pod in broken {
        // Ends with the process.
        std::thread::spawn(move || {
            loop {
                if let Some(taken) = pod.take_within(Duration::from_secs(1)) {
                    taken.close();
                }
            }
        });
    }
    // Busy from elsewhere, so that the broken ones are always preferred.
    let mut elsewhere: Vec<_> = (0..4).map(|_| Client::connect(well.addr)).collect();
    for client in &mut elsewhere {
        client.post("/v1/chat/completions", &chat("base", 60_000, true));
    }
    gateway.wait("the well pod to be busy", |status| status["pools"][0]["pods"][3]["running"] == 4);
    let ask = || post(gateway.address, "/v1/chat/completions", &chat("base", 1, false)).status;
    let served = (0..20).filter(|_| ask() == 200).count();
    assert!(served >= 12, "{served} of 20");
    let status = gateway.status();
    let troubles = status["pools"][0]["pods"].as_array().unwrap().iter().take(3);
    for trouble in troubles.map(|pod| pod["trouble"].as_str().unwrap_or_default().to_owned()) {
        assert!(trouble.contains("requests in a row failed"), "{trouble}");
    }
}

/// The real thing, as far as the engine plays it: a pod is killed while it computes the prompt.
#[test]
fn a_pod_killed_in_prefill_loses_no_request() {
    let options = || {
        let mut options = Options::default();
        options.gpu.base_us = 300_000;
        options
    };
    let pods = Server::start_all(vec![options(), options()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let mut clients: Vec<_> = (0..8).map(|_| Client::connect(gateway.address)).collect();
    for (client, stream) in clients.iter_mut().zip([true, false].into_iter().cycle()) {
        client.post("/v1/chat/completions", &chat("base", 3, stream));
    }
    gateway.wait("both pods to be at work", |_| {
        pods.iter().all(|pod| pod.stats().requests_to("/v1/chat/completions") >= 2)
    });
    pods[0].die(None);
    for client in &mut clients {
        let response = client.response();
        assert_eq!((response.status, response.complete), (200, true), "{}", response.text());
        assert!(response.text().contains("w0003"));
    }
    gateway.wait_metric("sluice_pool_requests_total{pool=\"pool-0\",outcome=\"ok\"}", 8.0);
}

/// Between two parts of what belongs together, so that they are read apart.
const SPLIT: Duration = Duration::from_millis(20);

/// Long enough to see that nothing comes.
const QUIET: Duration = Duration::from_millis(100);
