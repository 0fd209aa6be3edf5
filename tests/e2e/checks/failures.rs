//! Pods that die, shut down, and come back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_tests::client::Response;

use super::{SetOnDrop, ms, range};
use crate::gateway::{self, Gateway, TICK};
use crate::rig::Rig;
use crate::wire::{self, Stream};

pub(super) fn kill(rig: &mut Rig) -> String {
    rig.revive();
    let gateway = &rig.gateway;
    let (victim, other) = (&rig.pods[0], &rig.pods[1]);
    let failed_before = gateway.outcomes("pod_error") + gateway.outcomes("aborted");
    // More than the engines run at once, so that some have no content yet.
    let mut streams: Vec<_> = (0..20).map(|n| open(gateway, n, 400)).collect();
    for stream in streams.iter_mut().take(8) {
        stream.begin();
    }
    let on_victim = gateway.pod(victim.name)["in_flight"].as_u64().expect("a count");
    assert!(on_victim >= 5, "the victim has work: {on_victim}");
    let killed = Instant::now();
    victim.kill_engine();

    // New requests from the very moment on.
    let stop = AtomicBool::new(false);
    let (answers, fresh) = thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        let fresh = scope.spawn(|| {
            let mut fresh = Vec::new();
            while !stop.load(Ordering::Relaxed) || fresh.len() < 20 {
                let body = wire::chat("tiny-llama", "Now.", 4, fresh.len() % 2 == 0);
                let started = Instant::now();
                fresh.push((wire::post(gateway.address, PATH, &body), started.elapsed()));
            }
            fresh
        });
        let readers: Vec<_> =
            streams.into_iter().map(|stream| scope.spawn(|| stream.finish())).collect();
        let answers: Vec<_> = readers
            .into_iter()
            .map(|reader| reader.join().expect("a stream can be read"))
            .collect();
        drop(stopping);
        (answers, fresh.join().expect("a request gets an answer"))
    });

    let mut cut = Vec::new();
    let (mut whole, mut moved) = (0, 0);
    for (answer, ended) in &answers {
        let line = gateway.access(answer.header("x-request-id").expect("an id"));
        let retried = line["retries"].as_u64().unwrap_or_default() > 0;
        if wire::is_whole_stream(answer) {
            assert_eq!(wire::usage(answer).1, 400, "whole is whole");
            assert_eq!(
                (&line["pod"], &line["outcome"]),
                (&json!(other.name), &json!("Ok")),
                "{line}"
            );
            whole += 1;
            moved += usize::from(retried);
        } else {
            assert_eq!(line["pod"], victim.name, "only the victim's streams fail: {line}");
            assert!(
                wire::has_error(answer) || !answer.complete,
                "a stream that failed looks whole: {}",
                tail(answer)
            );
            assert_ne!(line["outcome"], "Ok", "{line}");
            cut.push(ended.saturating_duration_since(killed));
        }
    }
    assert!(!cut.is_empty(), "the kill came in time");
    let errors = answers.iter().filter(|(answer, _)| wire::has_error(answer)).count();
    let (mut slowest, mut retried) = (Duration::ZERO, 0);
    for (answer, took) in &fresh {
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.complete && !answer.text().contains("\"error\""), "{}", answer.text());
        let line = gateway.access(answer.header("x-request-id").expect("an id"));
        assert_eq!((&line["pod"], &line["outcome"]), (&json!(other.name), &json!("Ok")), "{line}");
        retried += line["retries"].as_u64().unwrap_or_default();
        slowest = slowest.max(*took);
    }
    let failed = gateway.outcomes("pod_error") + gateway.outcomes("aborted") - failed_before;
    assert_eq!(failed, cut.len() as f64, "each stream that failed is counted as a failure");
    let page = gateway.pod(victim.name);
    assert_eq!(page["ready"], false, "{page}");
    format!(
        "20 streams, {on_victim} of them on {}: {} ended with a failure within {} ({errors} by the \
         engine's error event), {whole} came whole, {moved} of those moved to {} unseen; {} new \
         requests meanwhile all went well there ({retried} after a retry, slowest {}); /status: {}",
        victim.name,
        cut.len(),
        range(&cut),
        other.name,
        fresh.len(),
        ms(slowest),
        page["trouble"]
    )
}

pub(super) fn restart(rig: &mut Rig) -> String {
    if rig.pods.iter_mut().all(|pod| pod.is_running()) {
        rig.pods[0].end();
    }
    let index = rig.pods.iter_mut().position(|pod| !pod.is_running()).expect("one was ended");
    let name = rig.pods[index].name;
    let out = rig
        .gateway
        .wait("the dead pod to be out", |status| gateway::pod(status, name)["ready"] == false);
    let before = rig.gateway.pod(name)["requests"].clone();
    rig.pods[index].start();
    let served = rig.pods[index].wait_ready();
    let ready = rig.gateway.wait("the pod to be back", |status| {
        let pod = gateway::pod(status, name);
        pod["ready"] == true && pod["trouble"].is_null() && !pod["running"].is_null()
    });
    let known = ready + rig.settle();
    let bodies: Vec<_> =
        (0..20).map(|n| wire::chat("tiny-llama", &format!("Item {n}."), 6, true)).collect();
    for answer in wire::all(rig.gateway.address, PATH, &bodies) {
        assert!(wire::is_whole_stream(&answer), "{}", answer.text());
    }
    let count = |value: &Value| value.as_u64().expect("a count");
    let gained = count(&rig.gateway.pod(name)["requests"]) - count(&before);
    assert!(gained >= 4, "it is given requests: {gained}");
    format!(
        "{name} out of rotation after {}; serving {:.0} s after its start, ready in the gateway {} \
         later, its adapters known after {}; of 20 requests it got {gained}",
        ms(out),
        served.as_secs_f64(),
        ms(ready),
        ms(known)
    )
}

pub(super) fn drain(rig: &mut Rig) -> String {
    rig.revive();
    let (first, second) = rig.pods.split_at_mut(1);
    let (stays, leaves) = (&first[0], &mut second[0]);
    let gateway = &rig.gateway;
    let mut streams: Vec<_> = (0..6).map(|n| open(gateway, n, 500)).collect();
    for stream in &mut streams {
        stream.begin();
    }
    let on_leaving = gateway.pod(leaves.name)["in_flight"].as_u64().expect("a count");
    assert!(on_leaving >= 1, "it has streams: {on_leaving}");
    leaves.terminate();
    let asked = Instant::now();
    let stop = AtomicBool::new(false);
    let mut troubles = Vec::new();
    let (answers, fresh) = thread::scope(|scope| {
        let stop = &stop;
        let stopping = SetOnDrop(stop);
        let fresh: Vec<_> = (0..4)
            .map(|worker| {
                scope.spawn(move || {
                    let mut fresh = Vec::new();
                    while !stop.load(Ordering::Relaxed) || fresh.len() < 10 {
                        let words = format!("Worker {worker}, {}.", fresh.len());
                        let body = wire::chat("tiny-llama", &words, 4, fresh.len() % 2 == 0);
                        fresh.push(wire::post(gateway.address, PATH, &body));
                        thread::sleep(TICK);
                    }
                    fresh
                })
            })
            .collect();
        let readers: Vec<_> =
            streams.into_iter().map(|stream| scope.spawn(|| stream.finish())).collect();
        while readers.iter().any(|reader| !reader.is_finished()) {
            if let Some(trouble) = gateway.pod(leaves.name)["trouble"].as_str() {
                let trouble = trouble.split(';').next().unwrap_or_default().to_owned();
                if troubles.last() != Some(&trouble) {
                    troubles.push(trouble);
                }
            }
            thread::sleep(TICK);
        }
        let answers: Vec<_> = readers
            .into_iter()
            .map(|reader| reader.join().expect("a stream can be read"))
            .collect();
        // On until the server has gone.
        let exit = leaves.wait_exit();
        drop(stopping);
        let fresh: Vec<_> = fresh
            .into_iter()
            .flat_map(|worker| worker.join().expect("a request gets an answer"))
            .collect();
        ((answers, exit), fresh)
    });
    let (answers, _) = answers;
    let gone = asked.elapsed();
    for (answer, _) in &answers {
        assert!(
            wire::is_whole_stream(answer),
            "a stream of a draining pod is cut: {}",
            tail(answer)
        );
        assert_eq!(wire::usage(answer).1, 500);
    }
    let mut retried = 0;
    let mut tries = 0;
    for answer in &fresh {
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.complete && !answer.text().contains("\"error\""), "{}", answer.text());
        let line = gateway.access(answer.header("x-request-id").expect("an id"));
        assert_eq!((&line["pod"], &line["outcome"]), (&json!(stays.name), &json!("Ok")), "{line}");
        let count = line["retries"].as_u64().unwrap_or_default();
        retried += usize::from(count > 0);
        tries += count;
    }
    assert!(retried > 0, "no request met the draining pod: nothing was shown");
    let ended = answers.iter().map(|(_, ended)| ended.saturating_duration_since(asked)).max();
    format!(
        "SIGTERM with {on_leaving} streams on it: all 6 streams came whole, the last after {}; the \
         server exited after {:.1} s; {} new requests meanwhile all went well, {retried} of them \
         by a retry that no client saw ({tries} tries); /status said {troubles:?}",
        ms(ended.unwrap_or_default()),
        gone.as_secs_f64(),
        fresh.len()
    )
}

pub(super) fn dead(rig: &mut Rig) -> String {
    // Whatever runs by now is ended.
    if rig.pods.iter_mut().all(|pod| !pod.is_running()) {
        rig.revive();
    }
    let streams: Vec<_> = (0..4).map(|n| open(&rig.gateway, n, 1500)).collect();
    for pod in &mut rig.pods {
        pod.end();
    }
    let gateway = &rig.gateway;
    let first = wire::post(gateway.address, PATH, &wire::chat("tiny-llama", "Hello?", 4, true));
    assert!(matches!(first.status, 502 | 503), "{}", first.text());
    let cut: Vec<_> = streams.into_iter().map(Stream::finish).collect();
    for (answer, _) in &cut {
        assert!(answer.status >= 500 || !answer.complete, "a dead pod's stream looks whole");
    }
    gateway.wait("both pods to be out", |status| {
        gateway::pods(status).all(|pod| pod["ready"] == false)
    });
    let started = Instant::now();
    let answer = wire::post(gateway.address, PATH, &wire::chat("tiny-llama", "Hello?", 4, true));
    let took = started.elapsed();
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let error = answer.json()["error"].clone();
    assert_eq!(error["code"], "no_pod_available");
    let after = answer.header("retry-after").expect("a time to wait").to_owned();
    for page in [wire::get(gateway.address, "/health"), wire::get(gateway.admin, "/readyz")] {
        assert_eq!(page.status, 503, "{}", page.text());
    }
    assert_eq!(wire::get(gateway.admin, "/healthz").status, 200, "the gateway itself lives");
    let adapter = wire::post(gateway.address, PATH, &wire::chat("sql-lora", "Hello?", 4, true));
    let listed = wire::get(gateway.address, "/v1/models").text();
    format!(
        "the first request after it: {} {}; then {} in {}: {error}, retry-after {after}; an \
         adapter's name: {} {}; {} running streams were cut visibly; models listed: {}",
        first.status,
        first.json()["error"]["message"],
        answer.status,
        ms(took),
        adapter.status,
        adapter.json()["error"]["code"],
        cut.len(),
        listed.matches("\"id\"").count()
    )
}

fn open(gateway: &Gateway, n: usize, tokens: u32) -> Stream {
    Stream::open(
        gateway.address,
        PATH,
        &wire::chat("tiny-llama", &format!("Story {n}."), tokens, true),
    )
}

/// The end of a body.
fn tail(answer: &Response) -> String {
    let text = answer.text();
    let start = text.char_indices().rev().nth(400).map_or(0, |(at, _)| at);
    text.get(start..).unwrap_or_default().to_owned()
}

const PATH: &str = "/v1/chat/completions";
