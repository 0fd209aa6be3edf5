//! TLS to pods: the same bytes as in clear text, nothing but trusted pods, and what happens when files change.

use std::fs;
use std::io::Write as _;

use serde_json::Value;
use sluice_tests::client::{Client, chat, post};
use sluice_tests::front::{Front, plan};
use sluice_tests::gateway::{Gateway, Plan, pods};
use sluice_tests::pod::{self, LAST, RawPod, STREAM, Signals, answer, chunk};
use sluice_tests::script::ScriptPod;
use sluice_tests::soak::{Progress, Traffic};
use sluice_tests::tls::{Authority, Identity, replace};

use crate::realtime;

/// A pod, and what stands before it with a certificate for its address.
fn secure(authority: &Authority) -> (RawPod, Front) {
    let pod = RawPod::start();
    let front = Front::start(pod.address, &authority.issue("pod", &["127.0.0.1"]));
    (pod, front)
}

fn trusting(authority: &Authority) -> String {
    format!("caFile: \"{}\"", authority.file().display())
}

/// What is wrong with the first pod.
fn trouble(status: &Value) -> &str {
    status["pools"][0]["pods"][0]["trouble"].as_str().unwrap_or_default()
}

fn served(gateway: &Gateway, pod: &RawPod) {
    let mut client = Client::connect(gateway.address);
    client.post("/v1/chat/completions", &chat("base", 1, false));
    let mut taken = pod.take();
    taken.send(answer(200, "", "{\"whole\":1}"));
    taken.keep();
    let response = client.response();
    assert_eq!((response.status, &*response.text()), (200, "{\"whole\":1}"));
}

#[test]
fn mixed_traffic_comes_whole() {
    let (authority, pods) = (Authority::new(), ScriptPod::start_all(3));
    let identity = authority.issue("pod", &["127.0.0.1"]);
    let fronts: Vec<_> = pods.iter().map(|pod| Front::start(pod.address, &identity)).collect();
    let fronts: Vec<_> = fronts.iter().collect();
    let gateway = Gateway::start(&plan(&fronts, &trusting(&authority)));
    let progress = Progress::default();
    let traffic = Traffic { bytes: 40_000_000, ..Traffic::mixed(7) };
    traffic.run(gateway.address, &progress).unwrap_or_else(|problem| panic!("{problem}"));
    assert!(progress.counts().whole > 100, "{:?}", progress.counts());
    gateway.wait_idle();
    let responses =
        |labels: &str| gateway.metric(&format!("sluice_flow_responses_total{{{labels}}}"));
    assert!(responses("path=\"relay\",reason=\"tls\"") > Some(0.0));
    for path in ["local", "splice"] {
        let carried = responses(&format!("path=\"{path}\",reason=\"best\""));
        assert_eq!(carried.unwrap_or(0.0), 0.0, "{path} carries what it cannot read");
    }
    // Connections are kept: there are fewer handshakes than requests.
    let handshakes: u64 = fronts.iter().map(|front| front.handshakes()).sum();
    assert!(handshakes < progress.counts().requests, "{handshakes}");
}

#[test]
fn what_clients_and_pods_cut_is_seen_as_cut() {
    let (authority, pods) = (Authority::new(), ScriptPod::start_all(3));
    let identity = authority.issue("pod", &["127.0.0.1"]);
    let fronts: Vec<_> = pods.iter().map(|pod| Front::start(pod.address, &identity)).collect();
    let fronts: Vec<_> = fronts.iter().collect();
    let gateway = Gateway::start(&plan(&fronts, &trusting(&authority)));
    let progress = Progress::default();
    let traffic = Traffic { requests: 400, aborts: true, length: 20_000, ..Traffic::mixed(8) };
    traffic.run(gateway.address, &progress).unwrap_or_else(|problem| panic!("{problem}"));
    let counts = progress.counts();
    assert!(counts.cut > 0 && counts.left > 0, "{counts:?}");
    gateway.wait_idle();
}

#[test]
fn answers_are_the_same_as_in_clear_text() {
    let authority = Authority::new();
    let (secret, front) = secure(&authority);
    let open = RawPod::start();
    let gateways = [
        (Gateway::start(&plan(&[&front], &trusting(&authority))), &secret),
        (Gateway::start(&pod::plan(std::slice::from_ref(&open))), &open),
    ];
    let event = "data: {\"n\":1}\n\n";
    let stream = [STREAM.as_bytes(), &chunk(event), &chunk(event), LAST.as_bytes()].concat();
    let until_close = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{event}");
    let close = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
    let early = "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
    let table = [
        ("with a length", answer(200, "x-a: b\r\n", "{\"a\":1}").into_bytes(), false),
        ("without a body", b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(), false),
        ("of the client's own fault", answer(400, "", "{\"error\":1}").into_bytes(), false),
        ("a stream", stream, false),
        ("until the connection ends", until_close.into_bytes(), true),
        ("the last of its connection", close.into(), true),
        ("behind an interim one", early.into(), false),
    ];
    for (name, bytes, closes) in &table {
        for stream in [true, false] {
            let [ours, theirs] = gateways.each_ref().map(|(gateway, pod)| {
                let mut client = Client::connect(gateway.address);
                let lines = "x-request-id: same\r\n";
                client.post_with("/v1/chat/completions", lines, &chat("base", 2, stream));
                let mut taken = pod.take();
                taken.send(bytes);
                let sent = (taken.head.clone(), taken.body.clone());
                if *closes {
                    taken.close()
                } else {
                    taken.keep()
                }
                let response = client.response();
                (sent, response.status, response.headers, response.body, response.complete)
            });
            let host = |mut of: ((String, Vec<u8>), u16, _, _, _)| {
                let at = of.0.0.to_ascii_lowercase().find("host:").expect("a host");
                let end = of.0.0[at..].find("\r\n").expect("a line");
                of.0.0.replace_range(at..at + end, "");
                of
            };
            assert_eq!(host(ours), host(theirs), "{name}, stream: {stream}");
        }
    }
}

// As bytes that somebody on the way could have cut.
#[test]
fn a_body_that_ends_without_tls_saying_so_is_cut() {
    let authority = Authority::new();
    let (pod, front) = secure(&authority);
    front.truncate();
    let gateway = Gateway::start(&plan(&[&front], &trusting(&authority)));
    let mut client = Client::connect(gateway.address);
    client.post("/v1/chat/completions", &chat("base", 2, false));
    let mut taken = pod.take();
    taken.send("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"half\":");
    let mut response = client.head();
    taken.close();
    client.body(&mut response);
    assert!(!response.complete);
    gateway.wait_metric("sluice_pool_requests_total{pool=\"pool-0\",outcome=\"aborted\"}", 1.0);
}

#[test]
fn a_pod_may_answer_before_it_has_read_a_large_body() {
    let authority = Authority::new();
    let (pod, front) = secure(&authority);
    let gateway = Gateway::start(&plan(&[&front], &trusting(&authority)));
    // What of TLS comes first, such as tickets, is no answer: a body that takes a while is sent whole.
    let mut body = chat("base", 2, false);
    body["messages"][0]["content"] = "x".repeat(6_000_000).into();
    for _ in 0..3 {
        let mut client = Client::connect(gateway.address);
        client.post("/v1/chat/completions", &body);
        let mut taken = pod.take();
        assert_eq!(serde_json::from_slice::<Value>(&taken.body).unwrap(), body);
        taken.send(answer(200, "connection: close\r\n", "{}"));
        taken.close();
        assert_eq!(client.response().status, 200);
    }
    let early = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let front = Front::start(early.local_addr().unwrap(), &authority.issue("b", &["127.0.0.1"]));
    std::thread::spawn(move || {
        for mut stream in early.incoming().map_while(Result::ok) {
            let mut read = [0; 4096];
            let count = std::io::Read::read(&mut stream, &mut read).unwrap_or(0);
            let answer = match read[..count].starts_with(b"POST") {
                true => answer(413, "connection: close\r\n", "{\"large\":1}"),
                false => answer(404, "connection: close\r\n", ""),
            };
            let _ = stream.write_all(answer.as_bytes());
            std::thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
        }
    });
    let gateway = Gateway::start(&plan(&[&front], &trusting(&authority)));
    let response = post(gateway.address, "/v1/chat/completions", &body);
    assert_eq!((response.status, &*response.text()), (413, "{\"large\":1}"));
}

#[test]
fn bytes_go_both_ways_once_the_pod_has_switched() {
    let authority = Authority::new();
    let (pod, front) = secure(&authority);
    let gateway = Gateway::start(&plan(&[&front], &trusting(&authority)));
    realtime::both_ways(&gateway, &pod);
    gateway.wait_idle();
}

#[test]
fn pods_are_asked_over_tls_and_the_connection_is_kept() {
    let authority = Authority::new();
    let (pod, front) = secure(&authority);
    pod.tell(Signals { running: 3, waiting: 2, kv_usage: 0.5 });
    pod.want_key("k");
    let key = authority.file().with_file_name("pods.key");
    fs::write(&key, "k").unwrap();
    let lines = format!("    apiKeyFile: \"{}\"", key.display());
    let gateway = Gateway::start(&plan(&[&front], &trusting(&authority)).scheduler(&lines));
    gateway.wait("the load to be known", |status| {
        pods(status).all(|pod| pod["waiting"] == 2 && pod["trouble"].is_null())
    });
    let models = sluice_tests::client::get(gateway.address, "/v1/models").json();
    assert_eq!(models["data"][0]["id"], "base");
    let (asked, handshakes) = (pod.asked(), front.handshakes());
    assert!(asked > handshakes, "{asked} questions, {handshakes} handshakes");
}

#[test]
fn only_trusted_pods_are_spoken_to() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let fine = authority.issue("fine", &["127.0.0.1", "a.test"]);
    let table: [(&str, Identity, &str); 4] = [
        (
            "of a stranger",
            stranger.issue("x", &["127.0.0.1", "a.test"]),
            "not signed by anyone trusted",
        ),
        (
            "expired",
            authority.issue_for("old", &["127.0.0.1", "a.test"], 2001..2002),
            "has expired",
        ),
        (
            "not yet valid",
            authority.issue_for("new", &["127.0.0.1", "a.test"], 3001..3002),
            "not valid yet",
        ),
        (
            "for another name",
            authority.issue("other", &["127.0.0.2", "b.test"]),
            "not for this name",
        ),
    ];
    for (name, identity, words) in &table {
        for server_name in ["", ", serverName: a.test"] {
            let pod = RawPod::start();
            let front = Front::start(pod.address, identity);
            let tls = trusting(&authority) + server_name;
            let gateway = Gateway::start(&plan(&[&front], &tls));
            gateway.wait(&format!("the pod to be out: {name}"), |status| {
                status["pools"][0]["pods"][0]["ready"] == false && trouble(status).contains(words)
            });
            let response = post(gateway.address, "/v1/chat/completions", &chat("base", 1, true));
            response.assert_error(503, "no_pod_available", None);
            assert!(response.header("retry-after").is_some());
            assert_eq!(pod.asked(), 0, "{name}: it heard something");
            // It has got a better one.
            front.show(&fine);
            gateway.wait("the pod to be back", |status| status["ready"] == true);
            served(&gateway, &pod);
        }
    }
}

#[test]
fn a_pod_that_speaks_no_tls_gets_nothing() {
    let authority = Authority::new();
    let pod = RawPod::start();
    let tls = format!("    appProtocol: https\n    tls: {{{}}}", trusting(&authority));
    let gateway = Gateway::start(&pod::plan(std::slice::from_ref(&pod)).scheduler(&tls));
    gateway.wait("the pod to be out", |status| {
        status["pools"][0]["pods"][0]["ready"] == false && !trouble(status).is_empty()
    });
    let response = post(gateway.address, "/v1/chat/completions", &chat("base", 1, true));
    assert_eq!(response.status, 503);
    assert_eq!(pod.asked(), 0);
}

#[test]
fn another_pod_takes_over_from_one_whose_tls_is_broken() {
    let authority = Authority::new();
    let stranger = Authority::new();
    let ((first, broken), (second, fine)) = (secure(&authority), secure(&authority));
    second.tell(Signals { running: 4, waiting: 4, kv_usage: 0.5 });
    let tls = trusting(&authority);
    let plan = plan(&[&broken, &fine], &tls).scheduler("    weights: {queue: 2}");
    let gateway = Gateway::start(&plan);
    gateway.wait("both to be known", |status| pods(status).all(|pod| pod["trouble"].is_null()));
    // The connection by which it is asked stays as it is: only a request finds out.
    broken.show(&stranger.issue("x", &["127.0.0.1"]));
    served(&gateway, &second);
    assert!(first.take_within(std::time::Duration::ZERO).is_none());
    gateway.wait_metric("sluice_pool_retries_total{pool=\"pool-0\"}", 1.0);
    let log = gateway.log();
    assert!(log.contains("connecting failed: its certificate is not signed by anyone"), "{log}");
}

#[test]
fn any_certificate_is_taken_where_that_is_said() {
    let authority = Authority::new();
    let pod = RawPod::start();
    let front = Front::start(pod.address, &authority.issue_for("old", &["x"], 2001..2002));
    let gateway = Gateway::start(&plan(&[&front], "insecureSkipVerify: true"));
    served(&gateway, &pod);
    assert!(gateway.log().contains("tls.insecureSkipVerify"), "{}", gateway.log());
}

#[test]
fn files_are_read_again_when_they_change() {
    let (old, new) = (Authority::new(), Authority::new());
    let (pod, front) = secure(&old);
    let folder = new.file().with_file_name("trusted.crt");
    let trusted = |authority: &Authority| {
        replace(&folder, &fs::read_to_string(authority.file()).unwrap());
    };
    trusted(&old);
    let own = old.issue("gateway", &["gateway"]);
    let tls = format!(
        "caFile: \"{}\", certificateFile: \"{}\", keyFile: \"{}\"",
        folder.display(),
        own.certificate.display(),
        own.key.display()
    );
    let gateway = Gateway::start(&plan(&[&front], &tls));
    served(&gateway, &pod);
    // What cannot be used changes nothing, but the log.
    replace(&folder, "nonsense");
    while !gateway.log().contains("connections to pods stay as they were") {
        let mut client = Client::connect(gateway.address);
        client.post("/v1/chat/completions", &chat("base", 1, false));
        let mut taken = pod.take();
        taken.send(answer(200, "connection: close\r\n", "{}"));
        taken.close();
        assert_eq!(client.response().status, 200);
    }
    // Another authority.
    let before = front.handshakes();
    trusted(&new);
    let shown = new.issue("pod", &["127.0.0.1"]);
    front.show(&shown);
    front.cut();
    gateway.wait("the pod to be trusted again", |status| {
        front.handshakes() > before && status["ready"] == true
    });
    served(&gateway, &pod);
    // Which wants to know the gateway as well.
    front.want(&shown, &new);
    front.cut();
    gateway.wait("the gateway to be sent away", |status| status["ready"] == false);
    let response = post(gateway.address, "/v1/chat/completions", &chat("base", 1, true));
    assert_eq!(response.status, 503);
    let again = new.issue("gateway", &["gateway"]);
    replace(&own.certificate, &fs::read_to_string(&again.certificate).unwrap());
    replace(&own.key, &fs::read_to_string(&again.key).unwrap());
    gateway.wait("the gateway to be let in", |status| status["ready"] == true);
    served(&gateway, &pod);
}

#[test]
fn whom_to_trust_may_change_while_the_gateway_runs() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (pod, front) = secure(&authority);
    let gateway = Gateway::start(&plan(&[&front], &trusting(&stranger)));
    gateway.wait("the pod to be out", |status| status["ready"] == false);
    gateway.reload(&plan(&[&front], &trusting(&authority)));
    gateway.wait("the pod to be back", |status| status["ready"] == true);
    served(&gateway, &pod);
    // Files are looked at before anything changes.
    gateway.write(&plan(&[&front], "caFile: /nonexistent/ca.crt"));
    gateway.signal("HUP");
    while !gateway.log().contains("tls.caFile: /nonexistent/ca.crt") {
        served(&gateway, &pod);
    }
    served(&gateway, &pod);
}

#[test]
fn files_that_cannot_be_used_are_told_at_start() {
    let authority = Authority::new();
    let (_pod, front) = secure(&authority);
    for (tls, words) in [
        ("caFile: /nonexistent/ca.crt".to_owned(), "tls.caFile: /nonexistent/ca.crt"),
        (
            format!(
                "{}, certificateFile: \"{}\", keyFile: /nonexistent/own.key",
                trusting(&authority),
                authority.file().display()
            ),
            "tls.keyFile: /nonexistent/own.key",
        ),
    ] {
        let plan: Plan = plan(&[&front], &tls);
        let log = Gateway::try_launch(&plan).expect_err("it does not start");
        assert!(log.contains(words) && log.contains("pool-0"), "{log}");
    }
}
