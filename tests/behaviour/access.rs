//! The access log: what a line says, and that there is one for each request, whatever the rest of the log is.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_tests::client::{Client, chat};
use sluice_tests::gateway::{Gateway, PATIENCE, Plan};
use sluice_tests::pod::{LAST, RawPod, STREAM, answer, chunk, plan};

/// The lines so far, once there are so many.
pub(crate) fn lines(gateway: &Gateway, count: usize) -> Vec<Value> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let log = gateway.log();
        let found: Vec<Value> = (log.lines())
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|line| line["target"] == "access")
            .collect();
        if found.len() >= count {
            return found;
        }
        assert!(Instant::now() < deadline, "{count} lines are not in\n{log}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn logged(pods: &[RawPod]) -> Plan {
    plan(pods).spec("  accessLog: true")
}

#[test]
fn each_request_that_is_answered_or_refused_has_a_line_of_json() {
    let pods = [RawPod::start()];
    // Neither its form nor its filter is the rest of the log's.
    for quiet in [false, true] {
        let mut plan = logged(&pods);
        if quiet {
            plan.command = ["env", "RUST_LOG=gateway_user::run=info"].map(Into::into).into();
        }
        let gateway = Gateway::start(&plan);
        let mut client = Client::connect(gateway.address);
        let body = chat("base", 3, true).to_string();
        client.send(format!(
            "POST /v1/chat/completions?a=b HTTP/1.1\r\nhost: g\r\nx-request-id: first\r\n\
             authorization: Bearer secret\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ));
        let mut taken = pods[0].take();
        taken.send([STREAM.as_bytes(), &chunk("data: {\"n\":1}\n\n")].concat());
        let usage = "data: {\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":8,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n";
        taken.send([&chunk(usage), &chunk("data: [DONE]\n\n"), LAST.as_bytes()].concat());
        taken.keep();
        assert!(client.response().complete);
        client.post("/v1/embeddings", &json!({"model": "base"}));
        let mut taken = pods[0].take();
        taken.send(answer(400, "", "{}"));
        taken.keep();
        assert_eq!(client.response().status, 400);
        client.post("/v1/completions", &json!({"model": "nobody's"}));
        assert_eq!(client.response().status, 404);
        client.send("GET /nowhere HTTP/1.1\r\nhost: g\r\n\r\n");
        assert_eq!(client.response().status, 404);
        // The gateway's own pages are nobody's requests.
        client.send("GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n");
        assert_eq!(client.response().status, 200);
        client.send("nonsense\r\n\r\n");
        assert_eq!(client.response().status, 400);

        let lines = lines(&gateway, 5);
        assert_eq!(lines.len(), 5, "{lines:#?}");
        let stream = &lines[0];
        for (name, value) in [
            ("id", json!("first")),
            ("url", json!("/v1/chat/completions")),
            ("model", json!("base")),
            ("pool", json!("pool-0")),
            ("pod", json!(pods[0].address.to_string())),
            ("outcome", json!("ok")),
            ("status", json!(200)),
            ("retries", json!(0)),
            ("stream", json!(true)),
            ("bytes_in", json!(body.len())),
            ("prompt_tokens", json!(9)),
            ("cached_tokens", json!(4)),
            ("completion_tokens", json!(8)),
        ] {
            assert_eq!(stream[name], value, "{name} in {stream:#}");
        }
        let number =
            |name: &str| stream[name].as_f64().unwrap_or_else(|| panic!("{name}: {stream:#}"));
        assert!(number("ttft_ms") <= number("duration_ms"));
        assert!(number("queued_ms") >= 0.0 && number("bytes_out") > usage.len() as f64);
        assert!(["local", "splice", "relay"].contains(&stream["path"].as_str().unwrap()));
        assert!(stream["timestamp"].is_string() && stream["adapter"].is_null());
        let told = |line: &Value| {
            let text = |name: &str| line[name].as_str().unwrap_or("-").to_owned();
            format!(
                "{} {} {} {} {}",
                text("url"),
                text("model"),
                text("outcome"),
                text("code"),
                line["status"]
            )
        };
        assert_eq!(
            lines[1..].iter().map(told).collect::<Vec<_>>(),
            [
                "/v1/embeddings base client_error - 400",
                "/v1/completions nobody's refused model_not_found 404",
                "/nowhere - refused unknown_url 404",
                "- - refused malformed_request 400",
            ]
        );
        assert!(lines[2]["pool"].is_null() && lines[2]["reason"] == "unknown_model");
        assert!(!gateway.log().contains("secret"));
    }
}

#[test]
fn without_the_switch_there_are_no_lines() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let mut client = Client::connect(gateway.address);
    client.post("/v1/completions", &json!({"model": "nobody's"}));
    assert_eq!(client.response().status, 404);
    gateway.wait_metric("sluice_gateway_refused_total{reason=\"unknown_model\"}", 1.0);
    assert!(!gateway.log().contains("\"access\""), "{}", gateway.log());
}

#[test]
fn a_request_that_no_pod_could_take_says_so() {
    let mut plan = logged(&[]);
    plan.pools = vec![("base".into(), vec![sluice_tests::pod::nobody(7)])];
    let gateway = Gateway::start(&plan);
    let mut client = Client::connect(gateway.address);
    client.post("/v1/completions", &json!({"model": "base"}));
    assert_eq!(client.response().status, 503);
    let line = &lines(&gateway, 1)[0];
    assert_eq!((&line["outcome"], &line["status"]), (&json!("rejected"), &json!(503)));
    assert!(line["reason"].is_string() && line["path"].is_null(), "{line:#}");
}

// Whoever reads the log may stop doing so: requests go on, and what is lost of the log is counted.
#[test]
fn a_log_that_nobody_reads_costs_lines_and_no_request() {
    let pods = [RawPod::start()];
    let mut gateway = Gateway::start(&logged(&pods));
    let asked = 6000;
    let dropped = {
        let _unread = gateway.hold_log();
        let mut client = Client::connect(gateway.address);
        for _ in 0..asked / 100 {
            client.send("GET /nope HTTP/1.1\r\nhost: g\r\n\r\n".repeat(100));
            for _ in 0..100 {
                assert_eq!(client.response().status, 404);
            }
        }
        gateway.metric("sluice_gateway_access_log_dropped_total").unwrap()
    };
    assert!((1.0..f64::from(asked)).contains(&dropped), "{dropped}");
    // All the others are written, also at the end.
    gateway.signal("TERM");
    assert!(gateway.wait_exit(PATIENCE).success());
    let lines = gateway.log().lines().filter(|line| line.contains("\"access\"")).count();
    assert_eq!(lines as f64, f64::from(asked) - dropped);
}
