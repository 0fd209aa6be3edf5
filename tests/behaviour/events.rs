//! KV events: what pods say of their prefix caches.

#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::net::SocketAddr;

use gateway_user::observe::events::{self, Change, Failure, Observation, Target};
use serde_json::{Value, json};
use sluice_tests::client::post;
use sluice_tests::engine::{Limits, Options, Server};
use sluice_tests::gateway::{Gateway, PATIENCE, Plan};
use tokio::sync::mpsc;
use tokio::task::{LocalSet, spawn_blocking, spawn_local};
use tokio::time::{Instant, timeout};

/// Passes on what a pod's events come to.
struct Sink(mpsc::UnboundedSender<Told>);

#[derive(Debug)]
enum Told {
    Changed(Change),
    Learned(bool),
}

impl events::Sink for Sink {
    fn connected(&self) {}

    fn changed(&self, change: &Change) {
        let _ = self.0.send(Told::Changed(change.clone()));
    }

    fn takes(&self, _bytes: usize) {}

    fn learned(&self, recognised: bool) {
        let _ = self.0.send(Told::Learned(recognised));
    }

    fn failed(&self, failure: &Failure) {
        panic!("{failure}");
    }
}

/// A pod that remembers 1,024 tokens.
fn small_pod() -> Server {
    let options = Options { speed: 50.0, ..Options::default() };
    let limits = Limits { kv_blocks: 64, ..options.limits };
    let kv_events = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    Server::start(Options { limits, kv_events, ..options }).expect("a pod")
}

/// A prompt like no other of another number.
fn prompt(number: u32, words: usize) -> Value {
    let text = format!("question {number} ").repeat(words);
    json!({ "model": "base", "max_tokens": 2, "prompt": text })
}

/// Asks the pod itself. Returns how many tokens it says that the prompt has.
async fn ask(pod: SocketAddr, number: u32, words: usize) -> u64 {
    let answer = spawn_blocking(move || post(pod, "/v1/completions", &prompt(number, words)));
    let answer = answer.await.expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["usage"]["prompt_tokens"].as_u64().expect("usage")
}

#[test]
fn a_prompt_is_recognised_and_its_end_is_noticed() {
    let pod = small_pod();
    let address = pod.kv_events.expect("it publishes");
    let target = Target { address, topic: String::new(), replay: None };
    let (sender, mut told) = mpsc::unbounded_channel();
    let (prompts, receiver) = mpsc::channel(1);
    let test = async {
        spawn_local(events::follow(target, Sink(sender), receiver, fastrand::Rng::new()));
        let mut number = 0;
        // Until the subscription is there, which only a message can show.
        while told.try_recv().is_err() {
            number += 1;
            ask(pod.addr, number, 10).await;
        }
        let sent = Instant::now();
        let tokens = ask(pod.addr, 1_000, 40).await;
        let answered = Instant::now();
        let blocks: Vec<u64> = (1..=tokens / 64).collect();
        assert!(blocks.len() > 1, "{tokens}");
        let prompt = Observation {
            blocks: blocks.clone(),
            block_tokens: 64,
            guessed_tokens: tokens,
            tokens,
            sent,
            answered,
        };
        prompts.send(prompt).await.expect("it is followed");
        loop {
            match timeout(PATIENCE, told.recv()).await.expect("it is looked for") {
                Some(Told::Learned(recognised)) => break assert!(recognised),
                other => assert!(other.is_some()),
            }
        }
        let mut gone = Vec::new();
        while gone.len() < blocks.len() {
            number += 1;
            assert!(number < 900, "{gone:?} of {blocks:?} are gone");
            ask(pod.addr, number, 40).await;
            while let Ok(told) = told.try_recv() {
                let Told::Changed(change) = told else { panic!("{told:?}") };
                gone.extend(change.removed);
                gone.sort_unstable();
                gone.dedup();
            }
        }
        assert_eq!(gone, blocks);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    LocalSet::new().block_on(&runtime.expect("a runtime"), test);
}

/// Others fill the pod's cache, which the gateway can only know from the pod.
#[test]
fn what_others_drove_out_is_not_thought_to_be_cached() {
    let pod = small_pod();
    let port = pod.kv_events.expect("it publishes").port();
    let plan = Plan::pool("base", std::slice::from_ref(&pod));
    let gateway = Gateway::start(&plan.scheduler(&format!("    kvEvents: {{port: {port}}}")));
    let metric = |name: &str| gateway.metric(name).expect("it is counted");
    let ask = |number: u32, words: usize| {
        let mut body = prompt(number, words);
        body["stream"] = true.into();
        body["stream_options"] = json!({ "include_usage": true });
        let answer = post(gateway.address, "/v1/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    let mut number = 0;
    while metric("sluice_kv_events_total{pool=\"pool-0\"}") == 0.0 {
        number += 1;
        assert!(number < 10_000, "{}", gateway.log());
        // Too short for a block of the prefix index.
        ask(number, 10);
    }
    let result = |result: &str| {
        metric(&format!("sluice_kv_events_prompts_total{{pool=\"pool-0\",result=\"{result}\"}}"))
    };
    gateway.wait("all prompts to be looked for", |_| {
        result("recognised") + result("unclear") == f64::from(number)
    });
    let before = result("recognised");
    ask(100_000, 40);
    gateway.wait("the prompt to be recognised", |_| result("recognised") == before + 1.0);
    let cached = || metric("sluice_pool_prefix_cached_tokens_total{pool=\"pool-0\"}");
    ask(100_000, 40);
    let once = cached();
    assert!(once > 64.0, "{once}");

    let blocks = "sluice_pool_prefix_index_blocks{pool=\"pool-0\"}";
    gateway.wait_metric(blocks, 2.0);
    for other in 200_000..200_012 {
        let answer = post(pod.addr, "/v1/completions", &prompt(other, 40));
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    gateway.wait_metric(blocks, 0.0);
    ask(100_000, 40);
    assert_eq!(cached(), once, "it had to be computed anew");
}
