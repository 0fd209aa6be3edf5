//! What the gateway sees and does under load.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{SetOnDrop, ms};
use crate::gateway::{self, Gateway, TICK};
use crate::rig::Rig;
use crate::wire;

pub(super) fn usage(rig: &mut Rig) -> String {
    rig.revive();
    let gateway = &rig.gateway;
    let counted = || {
        (
            gateway.metric("sluice_pool_prompt_tokens_total", &[]),
            gateway.metric("sluice_pool_generation_tokens_total", &[]),
        )
    };
    let engines = || {
        let sum = |name| rig.pods.iter().map(|pod| pod.metric(name)).sum::<f64>();
        (sum("vllm:prompt_tokens_total"), sum("vllm:generation_tokens_total"))
    };
    let mut seen = Vec::new();
    let mut round = |what: &str, path: &str, bodies: &[Value], exact: bool| {
        let before = (counted(), engines());
        let answers = wire::all(gateway.address, path, bodies);
        assert!(answers.iter().all(|answer| answer.status == 200 && answer.complete), "{what}");
        rig.settle();
        let after = (counted(), engines());
        let ours = (after.0.0 - before.0.0, after.0.1 - before.0.1);
        let theirs = (after.1.0 - before.1.0, after.1.1 - before.1.1);
        if exact {
            assert_eq!(ours, theirs, "{what}: gateway and engines, prompt and generated");
            seen.push(format!(
                "{what}: {} prompt and {} generated, as the engines say",
                ours.0, ours.1
            ));
        } else {
            seen.push(format!(
                "{what}: {} generated counted by events, the engines say {}",
                ours.1, theirs.1
            ));
        }
        answers
    };
    let chats = |stream: bool| -> Vec<_> {
        let model = |n: usize| ["tiny-llama", "sql-lora"][n % 2];
        (0..20).map(|n| wire::chat(model(n), &format!("Item {n}."), 5 + n as u32, stream)).collect()
    };
    let path = "/v1/chat/completions";
    for stream in [true, false] {
        let bodies = chats(stream);
        let what = if stream { "20 streams" } else { "20 whole answers" };
        let answers = round(what, path, &bodies, true);
        for (answer, body) in answers.iter().zip(&bodies) {
            assert_eq!(Some(wire::usage(answer).1), body["max_tokens"].as_u64());
        }
    }
    let other = |stream: bool| {
        json!({"model": "tiny-llama", "max_output_tokens": 15, "stream": stream,
               "input": "Go on."})
    };
    round("responses, streamed", "/v1/responses", &[other(true)], true);
    round("responses, whole", "/v1/responses", &[other(false)], true);
    let other = |stream: bool| {
        json!({"model": "tiny-llama", "max_tokens": 15, "stream": stream,
               "messages": [{"role": "user", "content": "Go on."}]})
    };
    round("messages, streamed", "/v1/messages", &[other(true)], true);
    round("messages, whole", "/v1/messages", &[other(false)], true);
    let mut silent = chats(true);
    for body in &mut silent {
        body.as_object_mut().expect("an object").remove("stream_options");
    }
    round("20 streams without usage", path, &silent, false);
    seen.join("\n")
}

pub(super) fn signals(rig: &mut Rig) -> String {
    rig.revive();
    let gateway = &rig.gateway;
    // Twelve for each pod: eight run, four wait; what runs takes over half of the KV cache.
    let bodies: Vec<_> = (0..24)
        .map(|n| wire::chat("tiny-llama", &format!("Story number {n}."), 250, true))
        .collect();
    let done = AtomicBool::new(false);
    let (answers, seen) = thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut seen = Seen::default();
            while !done.load(Ordering::Relaxed) {
                seen.look(gateway);
                thread::sleep(TICK);
            }
            seen
        });
        let stop = SetOnDrop(&done);
        let answers = wire::all(gateway.address, "/v1/chat/completions", &bodies);
        drop(stop);
        (answers, watch.join().expect("/status can be read"))
    });
    assert!(answers.iter().all(wire::is_whole_stream), "every stream comes whole");
    let quiet = rig.settle();
    let names: Vec<_> = rig.pods.iter().map(|pod| pod.name).collect();
    for (pod, name) in seen.pods.iter().zip(&names) {
        assert_eq!(pod.running, 8, "{name} runs as many as it may: {seen:?}");
        assert!(pod.waiting >= 1, "{name} had requests waiting: {seen:?}");
        assert!(pod.kv > 0.2, "{name}'s KV cache filled: {seen:?}");
        assert!(pod.distinct > 5, "{name}'s signals moved: {seen:?}");
        assert!(pod.age <= 3000, "{name}'s signals stayed fresh: {seen:?}");
    }
    let each: Vec<_> = seen
        .pods
        .iter()
        .zip(&names)
        .map(|(pod, name)| {
            format!(
                "{name}: running up to {}, waiting up to {}, KV up to {:.2}, {} different \
                 readings, oldest {} ms",
                pod.running, pod.waiting, pod.kv, pod.distinct, pod.age
            )
        })
        .collect();
    format!(
        "24 streams of 250 tokens, {} looks at /status; idle again {} after the last:\n{}",
        seen.looks,
        ms(quiet),
        each.join("\n")
    )
}

pub(super) fn spread(rig: &mut Rig) -> String {
    rig.revive();
    let gateway = &rig.gateway;
    let path = "/v1/chat/completions";
    let count = |bodies: &[Value]| {
        let before = requests(gateway);
        for answer in wire::all(gateway.address, path, bodies) {
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        let after = requests(gateway);
        (after.0 - before.0, after.1 - before.1)
    };
    let chats = |count: usize, tokens| -> Vec<_> {
        (0..count)
            .map(|n| wire::chat("tiny-llama", &format!("Item {n}."), tokens, n % 2 == 0))
            .collect()
    };
    let burst = count(&chats(64, 12));
    assert_eq!(burst.0 + burst.1, 64);
    assert!(burst.0.min(burst.1) >= 16, "a burst reaches both: {burst:?}");
    rig.settle();
    let mut alone = (0, 0);
    for body in chats(20, 4) {
        let (a, b) = count(&[body]);
        alone = (alone.0 + a, alone.1 + b);
    }
    assert!(alone.0.min(alone.1) >= 2, "single requests reach both: {alone:?}");

    // Another gateway, or a job beside it, keeps the first pod busy.
    rig.settle();
    let busy = &rig.pods[0];
    let others: Vec<_> =
        (0..12).map(|_| wire::open(busy.address, path, &wire::endless(true))).collect();
    gateway.wait("the foreign load in /status", |status| {
        gateway::pod(status, busy.name)["waiting"].as_u64().is_some_and(|waiting| waiting >= 2)
    });
    let mut few = (0, 0);
    for _ in 0..5 {
        let (a, b) = count(&chats(4, 6));
        few = (few.0 + a, few.1 + b);
    }
    assert!(few.0 <= 2, "a pod that others keep busy is avoided: {few:?}");
    // So many that the other pod has a queue as well: then the load is shared.
    let started = Instant::now();
    let many = count(&chats(20, 6));
    let took = started.elapsed();
    drop(others);
    rig.settle();
    assert!(many.0 < many.1, "the free pod gets most: {many:?}");
    format!(
        "64 at once: {} and {}; 20 one by one: {} and {}; while {} runs 8 foreign streams and \
         queues 4, 20 by fours: {} and {}; 20 at once: {} and {}, the last answered after {}",
        burst.0,
        burst.1,
        alone.0,
        alone.1,
        busy.name,
        few.0,
        few.1,
        many.0,
        many.1,
        ms(took)
    )
}

pub(super) fn queue(rig: &mut Rig) -> String {
    rig.revive();
    let gateway = &rig.gateway;
    let path = "/v1/chat/completions";
    let running: Vec<_> =
        (0..16).map(|_| wire::open(gateway.address, path, &wire::endless(true))).collect();
    gateway.wait("both engines to be full", |status| {
        gateway::pods(status).all(|pod| {
            let count = |name: &str| pod[name].as_u64().unwrap_or_default();
            count("running") + count("waiting") >= 8
        })
    });
    let mut queued: Vec<_> = (0..4)
        .map(|n| {
            wire::open(
                gateway.address,
                path,
                &wire::chat("tiny-llama", &format!("Item {n}."), 10, true),
            )
        })
        .collect();
    let shown = gateway.wait("the queue in /status", |status| {
        let waiting = |pod: &Value| pod["waiting"].as_u64().unwrap_or_default();
        gateway::pods(status).map(waiting).sum::<u64>() >= 4
    });
    // Long enough for comments, which come once a second.
    let silent = queued
        .iter_mut()
        .map(|client| client.is_silent(Duration::from_millis(700)))
        .filter(|silent| *silent)
        .count();
    // One of them gives up.
    let left = queued.pop().expect("four were opened");
    let before: f64 = rig.pods.iter().map(|pod| pod.load().1).sum();
    drop(left);
    let started = Instant::now();
    let freed = loop {
        let waiting: f64 = rig.pods.iter().map(|pod| pod.load().1).sum();
        if waiting < before {
            break started.elapsed();
        }
        assert!(started.elapsed() < Duration::from_secs(5), "{waiting} still wait, of {before}");
        thread::sleep(TICK);
    };
    drop(running);
    let mut comments = Vec::new();
    for mut client in queued {
        client
            .stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a timeout can be set");
        let answer = client.response();
        assert!(wire::is_whole_stream(&answer), "{}", answer.text());
        assert_eq!(wire::usage(&answer).1, 10);
        comments.push(answer.text().matches(": keep-alive\n\n").count());
    }
    rig.settle();
    assert!(comments.iter().any(|count| *count >= 1), "comments came: {comments:?}");
    format!(
        "both engines full, 4 more queued, in /status after {}; one left, and its engine's queue \
         was shorter after {}; the 3 others came whole with {comments:?} keep-alive comments in \
         front; {silent} of 4 clients saw nothing while they waited (the gateway holds an answer \
         until its first content)",
        ms(shown),
        ms(freed)
    )
}

/// What /status has shown of each pod.
#[derive(Debug, Default)]
struct Seen {
    looks: u32,
    pods: [SeenPod; 2],
}

#[derive(Debug, Default)]
struct SeenPod {
    running: u64,
    waiting: u64,
    kv: f64,
    age: u64,
    distinct: u32,
    last: Option<String>,
}

impl Seen {
    fn look(&mut self, gateway: &Gateway) {
        self.looks += 1;
        let status = gateway.status();
        for (seen, pod) in self.pods.iter_mut().zip(gateway::pods(&status)) {
            let count = |name: &str| pod[name].as_u64().unwrap_or_default();
            seen.running = seen.running.max(count("running"));
            seen.waiting = seen.waiting.max(count("waiting"));
            seen.kv = seen.kv.max(pod["kv_usage"].as_f64().unwrap_or_default());
            seen.age = seen.age.max(pod["signals_age_ms"].as_u64().unwrap_or(u64::MAX));
            let reading = format!("{} {} {}", pod["running"], pod["waiting"], pod["kv_usage"]);
            if seen.last.as_ref() != Some(&reading) {
                seen.distinct += 1;
                seen.last = Some(reading);
            }
        }
    }
}

/// Requests ever given to each pod.
fn requests(gateway: &Gateway) -> (u64, u64) {
    let status = gateway.status();
    let mut counts = gateway::pods(&status).map(|pod| pod["requests"].as_u64().expect("a count"));
    (counts.next().expect("two pods"), counts.next().expect("two pods"))
}
