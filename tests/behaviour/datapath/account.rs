//! The same requests give the same numbers, whatever carried the answers.

use std::thread;
use std::time::Duration;

use serde_json::Value;
use sluice_tests::client::{Client, chat};
use sluice_tests::gateway::Gateway;
use sluice_tests::pod::{LAST, RawPod, STREAM, Taken, chunk};
use sluice_tests::script::usage;

use super::{Carrier, assert_tables_empty, event};

/// How an answer ends, behind some events.
struct Ending {
    name: &'static str,
    head: String,
    /// Writes of the pod, and whether they are chunks still to be made.
    last: Vec<String>,
    outcome: &'static str,
    /// Prompt and generated tokens, if the answer tells them.
    tokens: Option<(u32, u32)>,
    leave: Leave,
}

#[derive(Clone, Copy, PartialEq)]
enum Leave {
    Nobody,
    Pod,
    Client,
}

pub(super) fn the_same_requests_give_the_same_metrics(carrier: Carrier) {
    let (relayed, ..) = numbers(Carrier::Relay);
    let (carried, gateway) = numbers(carrier);
    assert_eq!(carried, relayed);
    carrier.assert_moved(&gateway, 10_000);
}

/// All numbers that do not tell a time or a path, after one answer of each kind.
fn numbers(carrier: Carrier) -> (Vec<String>, Gateway) {
    let pod = RawPod::start();
    let gateway = carrier.raw_gateway(&pod);
    let mut client = Client::connect(gateway.address);
    let mut told = told_tokens(&gateway);
    let mut of_outcomes = std::collections::BTreeMap::<&str, f64>::new();
    for ending in endings() {
        let Ending { name, head, last, outcome, tokens, leave } = ending;
        client.post("/v1/chat/completions", &chat("base", 9, true));
        let mut taken = pod.take();
        taken.send(&head);
        let chunked = head.contains("chunked");
        let send = |taken: &mut Taken, text: &str| {
            taken.send(if chunked { chunk(text) } else { text.as_bytes().to_vec() });
            // Each is read alone, and the kernel has time to take over.
            thread::sleep(Duration::from_millis(2));
        };
        (0..30).for_each(|number| send(&mut taken, &event(number)));
        last.iter().for_each(|text| send(&mut taken, text));
        match leave {
            Leave::Client => {
                client = Client::connect(gateway.address);
                taken.wait_closed();
            }
            Leave::Pod => {
                taken.close();
                assert!(!client.response().complete, "{name}");
                client = Client::connect(gateway.address);
            }
            Leave::Nobody => {
                if chunked {
                    taken.send(LAST);
                }
                if chunked || head.contains("content-length") {
                    taken.keep();
                    assert!(client.response().complete, "{name}");
                } else {
                    taken.close();
                    assert!(client.response().complete, "{name}");
                    client = Client::connect(gateway.address);
                }
            }
        }
        *of_outcomes.entry(outcome).or_default() += 1.0;
        let sample = format!("sluice_pool_requests_total{{pool=\"pool-0\",outcome=\"{outcome}\"}}");
        gateway.wait_metric(&sample, of_outcomes[outcome]);
        let before = std::mem::replace(&mut told, told_tokens(&gateway));
        // Without a word on tokens the chunks are counted, which is no exact matter.
        if let Some(tokens) = tokens {
            let counted = (told.0 - before.0, told.1 - before.1);
            assert_eq!(counted, (f64::from(tokens.0), f64::from(tokens.1)), "{name}");
        }
    }
    drop(client);
    let status = gateway.wait("all to be over", |status| status["connections"] == 0);
    assert_tables_empty(&gateway);
    let page = gateway.get("/metrics").unwrap();
    let timeless = |line: &&str| {
        let varies = [
            "#",
            "sluice_flow_",
            "sluice_steering_",
            "sluice_pod_",
            "sluice_gateway_",
            "sluice_build",
        ];
        let timed = line.contains("_seconds_sum") || line.contains("_seconds_bucket");
        !timed && !varies.iter().any(|start| line.starts_with(start))
    };
    let mut numbers: Vec<String> = page.lines().filter(timeless).map(str::to_owned).collect();
    let of_pod = &status["pools"][0]["pods"][0];
    for name in ["tokens", "requests", "failures", "ready", "in_flight"] {
        numbers.push(format!("{name}: {}", of_pod.get(name).unwrap_or(&Value::Null)));
    }
    // By whatever path: the bytes are the same.
    let bytes: f64 = page
        .lines()
        .filter(|line| line.starts_with("sluice_flow_bytes_total{"))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum();
    numbers.push(format!("bytes by all paths: {bytes}"));
    (numbers, gateway)
}

/// Tokens of prompts and of answers so far.
fn told_tokens(gateway: &Gateway) -> (f64, f64) {
    let sum = |of| format!("sluice_pool_request_{of}_tokens_sum{{pool=\"pool-0\"}}");
    let value = |of| gateway.metric(&sum(of)).unwrap();
    (value("prompt"), value("generation"))
}

fn endings() -> Vec<Ending> {
    let ok = |name, last: &[&str], tokens| Ending {
        name,
        head: STREAM.into(),
        last: last.iter().map(|text| (*text).to_owned()).collect(),
        outcome: "ok",
        tokens,
        leave: Leave::Nobody,
    };
    let told = usage(40);
    let (first, second) = told.split_at(60);
    let carriage = told.replace('\n', "\r\n");
    let with_tokens = event(1)
        .replace("\"pad\"", "\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":7},\"pad\"");
    let fake = "data: {\"choices\":[{\"delta\":{\"content\":\"data: {\\\"error\\\": 1}\"}}]}\n\n";
    let until_close = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    let length = (0..30).map(|number| event(number).len()).sum::<usize>() + told.len();
    let failed = |name, error: &str| Ending {
        last: vec![error.into(), "data: [DONE]\n\n".into()],
        outcome: "pod_error",
        ..ok(name, &[], None)
    };
    let long = format!("data: {{\"error\": {{\"message\": \"{}\"}}}}\n\n", "x".repeat(5000));
    vec![
        ok("usage", &[&told], Some((3, 40))),
        ok("no usage", &["data: [DONE]\n\n"], None),
        ok("usage in two chunks", &[first, second], Some((3, 40))),
        ok("usage with other line ends", &[&carriage], Some((3, 40))),
        ok("usage in each event", &[&with_tokens, &with_tokens, "data: [DONE]\n\n"], Some((3, 7))),
        ok("text like an error", &[fake, &told], Some((3, 40))),
        Ending { head: until_close.into(), ..ok("until close", &[&told], Some((3, 40))) },
        Ending {
            head: until_close.replace("\r\n\r\n", &format!("\r\ncontent-length: {length}\r\n\r\n")),
            ..ok("length", &[&told], Some((3, 40)))
        },
        failed("an error", "data: {\"error\": {\"message\": \"engine\", \"code\": 500}}\n\n"),
        failed("an error without blanks", "data:{\"error\":{\"message\":\"x\"}}\r\n\r\n"),
        failed("a long error", &long),
        Ending { outcome: "aborted", leave: Leave::Pod, ..ok("a pod that dies", &[], None) },
        Ending {
            outcome: "client_gone",
            leave: Leave::Client,
            ..ok("a client that leaves", &[], None)
        },
        // The connections are as good as new.
        ok("usage once more", &[&told], Some((3, 40))),
    ]
}
