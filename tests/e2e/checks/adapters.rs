//! LoRA adapters: a fixed set, and one that comes and goes.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::ms;
use crate::gateway::{self, TICK};
use crate::rig::Rig;
use crate::wire;

pub(super) fn adapters(rig: &mut Rig) -> String {
    rig.revive();
    let gateway = &rig.gateway;
    let path = "/v1/chat/completions";
    let mut texts = Vec::new();
    for model in ["tiny-llama", "sql-lora", "chat-lora"] {
        let answer = wire::post(gateway.address, path, &wire::chat(model, "Tell me.", 16, false));
        assert_eq!((answer.status, &answer.json()["model"]), (200, &json!(model)));
        texts.push(wire::text(&answer));
    }
    assert!(
        texts[0] != texts[1] && texts[1] != texts[2] && texts[0] != texts[2],
        "adapters change the answer: {texts:?}"
    );
    // While one runs, its pod's metrics name it, and /status with them.
    let stream = wire::open(gateway.address, path, &wire::chat("sql-lora", "Go on.", 1500, true));
    let busy = |status: &serde_json::Value| {
        let with = gateway::pods(status).find(|pod| pod["in_flight"] == 1 && pod["running"] == 1);
        with.is_some_and(|pod| pod["adapters"].to_string().contains("sql-lora"))
    };
    let took = gateway.wait("the running adapter in /status", busy);
    gateway.wait("one adapter with live requests in the metrics", |_| {
        gateway.metric("sluice_pod_adapters_active", &[]) == 1.0
    });
    drop(stream);
    rig.settle();
    let bodies: Vec<_> = (0..24)
        .map(|n| {
            wire::chat(
                ["tiny-llama", "sql-lora", "chat-lora"][n % 3],
                &format!("Item {n}."),
                30,
                true,
            )
        })
        .collect();
    let answers = wire::all(gateway.address, path, &bodies);
    for (answer, body) in answers.iter().zip(&bodies) {
        assert!(wire::is_whole_stream(answer), "{body}: {}", answer.text());
        assert!(wire::events(answer).iter().all(|event| event["model"] == body["model"]));
    }
    format!(
        "three names, three different texts; sql-lora shows as running after {}; 24 mixed streams \
         at once all came whole, each under its own name",
        ms(took)
    )
}

pub(super) fn hot_load(rig: &mut Rig) -> String {
    rig.revive();
    let gateway = &rig.gateway;
    let path = "/v1/chat/completions";
    let ask =
        |words: &str| wire::post(gateway.address, path, &wire::chat("hot-lora", words, 8, false));
    assert_eq!(ask("Early.").status, 404, "nobody has it yet");

    let pod = &rig.pods[1];
    let loaded = pod.load_adapter("hot-lora", "chat-lora");
    assert_eq!(loaded.status, 200, "{}", loaded.text());
    let started = Instant::now();
    while ask("Now?").status != 200 {
        assert!(started.elapsed() < POLL, "not known after {:?}", started.elapsed());
        thread::sleep(TICK);
    }
    let known_after = started.elapsed();
    let listed = wire::get(gateway.address, "/v1/models/hot-lora");
    assert_eq!((listed.status, &listed.json()["parent"]), (200, &json!("tiny-llama")));

    let bodies: Vec<_> =
        (0..30).map(|n| wire::chat("hot-lora", &format!("Item {n}."), 20, n % 2 == 0)).collect();
    for answer in wire::all(gateway.address, path, &bodies) {
        assert_eq!(answer.status, 200, "{}", answer.text());
        let line = gateway.access(answer.header("x-request-id").expect("an id"));
        assert_eq!((&line["pod"], &line["retries"]), (&json!(pod.name), &json!(0)), "{line}");
    }

    let gone = pod.unload_adapter("hot-lora");
    assert_eq!(gone.status, 200, "{}", gone.text());
    let started = Instant::now();
    let mut by_pod = 0;
    let refused = loop {
        let answer = ask("Still?");
        assert_eq!(answer.status, 404, "{}", answer.text());
        if answer.json()["error"]["code"] == "model_not_found" {
            break answer;
        }
        by_pod += 1;
        assert!(started.elapsed() < POLL, "not forgotten after {:?}", started.elapsed());
        thread::sleep(TICK);
    };
    format!(
        "known {} after it was loaded; 30 of 30 requests at once went to {}, none was retried; \
         unloaded: the pod's own 404 {by_pod} times, after {} the gateway's: {}",
        ms(known_after),
        pod.name,
        ms(started.elapsed()),
        refused.json()["error"]["message"]
    )
}

/// A pod's models are read every 5 s at the slowest, give or take a tenth; the machine may be busy.
const POLL: Duration = Duration::from_secs(8);
