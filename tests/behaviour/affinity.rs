//! When a pod that has a prompt's beginning in its cache is worth more than one that is free: mostly as tables
//! of pods, the scheduler alone, under both of its presets.

use std::time::Duration;

use gateway_user::config::Saturation;
use gateway_user::schedule::prefix::{Index, Matches};
use gateway_user::schedule::{
    Demand, NoPod, Own, PodView, Policy, Preset, Profile, Scratch, Signals, pick,
};
use serde_json::json;
use sluice_tests::client::Client;
use sluice_tests::gateway::Gateway;
use sluice_tests::pod::{RawPod, Signals as Told, answer, plan};

/// An idle pod.
fn pod(key: u64) -> PodView {
    let signals =
        Signals { kv_usage: Some(0.1), waiting: Some(0), running: Some(0), ..Signals::default() };
    PodView {
        key: key.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        ready: true,
        age: Some(Duration::from_millis(20)),
        signals,
        kv_tokens: Some(400_000),
        ..PodView::default()
    }
}

/// So many requests of its own running, and so many prompt tokens to be computed before the next.
fn busy(key: u64, running: u32, prefill_tokens: u32) -> PodView {
    let pod = pod(key);
    PodView {
        in_flight: running,
        own: Own { pending: prefill_tokens.div_ceil(4_000), prefill_tokens, ..Own::default() },
        signals: Signals { running: Some(running), ..pod.signals },
        ..pod
    }
}

/// The same with some of the prompt in its cache.
fn cached(pod: PodView, cached_tokens: u32) -> PodView {
    PodView { cached_tokens, ..pod }
}

/// The same with its KV cache so full, and so many requests waiting.
fn full(pod: PodView, kv_usage: f32, waiting: u32) -> PodView {
    let signals = Signals { kv_usage: Some(kv_usage), waiting: Some(waiting), ..pod.signals };
    PodView { signals, ..pod }
}

fn profile(preset: Preset, kv_cache: f32) -> Profile {
    Profile {
        policy: Policy::Cost(preset),
        saturation: Saturation { queue_depth: 128, kv_cache, in_flight: 1024 },
        max_wait: Duration::from_secs(120),
        stale_after: Duration::from_secs(3),
    }
}

const DEMAND: Demand = Demand { prompt_tokens: 4_000, output_tokens: 100, prefix: Some(7) };

/// How often each pod is picked in a hundred times.
fn picks(pods: &[PodView], profile: &Profile) -> Vec<u32> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut counts = vec![0; pods.len()];
    for prefix in 0..100 {
        let demand = Demand { prefix: Some(prefix), ..DEMAND };
        let pick = pick(pods, &demand, profile, &mut rng, &mut Scratch::default()).unwrap();
        counts[pick.index] += 1;
    }
    counts
}

/// The one pod that is picked every time.
fn only(pods: &[PodView], profile: &Profile) -> Option<usize> {
    picks(pods, profile).iter().position(|count| *count == 100)
}

// Field reports 60, 61 and 64.
#[test]
fn field_report_60_61_64_a_cached_beginning_leads_to_a_pod_until_that_costs_more_than_it_saves() {
    let table: [(&str, Vec<PodView>, usize); 8] = [
        (
            "60: nobody has it: the least loaded pod",
            vec![busy(1, 60, 40_000), busy(2, 2, 0), busy(3, 40, 20_000)],
            1,
        ),
        (
            "60: nobody has it, and the pod with room in its cache drowns",
            vec![full(busy(1, 60, 40_000), 0.0, 20), full(busy(2, 2, 0), 0.5, 0)],
            1,
        ),
        (
            "61: of equals the one that has most of it",
            vec![cached(pod(1), 1_000), cached(pod(2), 3_500), pod(3)],
            1,
        ),
        (
            "61: loads are uneven, and of the two least loaded one has it",
            vec![busy(1, 80, 60_000), busy(2, 2, 0), cached(busy(3, 3, 0), 3_500)],
            2,
        ),
        (
            "61: a little busier than the others, and still worth it",
            vec![pod(1), cached(busy(2, 4, 1_000), 3_900), pod(3)],
            1,
        ),
        (
            "64: it has all of it, and a long queue",
            vec![cached(full(busy(1, 80, 60_000), 0.95, 60), 3_900), busy(2, 10, 0)],
            1,
        ),
        (
            "64: it has all of it, and preempts what it runs",
            vec![cached(full(busy(1, 120, 8_000), 1.0, 40), 3_900), full(busy(2, 60, 0), 0.6, 0)],
            1,
        ),
        (
            "64: it has all of it, and is over the limit of its KV cache",
            vec![cached(full(pod(1), 0.92, 0), 3_900), busy(2, 10, 4_000)],
            1,
        ),
    ];
    for (name, pods, expected) in table {
        for preset in [Preset::LATENCY, Preset::THROUGHPUT] {
            let profile = profile(preset, 0.9);
            assert_eq!(
                only(&pods, &profile),
                Some(expected),
                "{name}: {:?}",
                picks(&pods, &profile)
            );
        }
    }
}

// Field report 64, with a gateway: its pods hold the prompt because it sent it there.
#[test]
fn field_report_64_a_prompt_follows_its_cache_until_that_pod_is_full() {
    let pods = RawPod::start_all(3);
    let gateway = Gateway::start(&plan(&pods).scheduler("    saturation: {kvCache: 0.9}"));
    let prompt = "All that was said before. ".repeat(600);
    let body = json!({"model": "base", "prompt": prompt, "max_tokens": 1}).to_string();
    let mut client = Client::connect(gateway.address);
    let mut ask = || {
        client.post_bytes("/v1/completions", body.as_bytes());
        let (place, mut taken) = loop {
            let found = pods.iter().enumerate().find_map(|(place, pod)| {
                pod.take_within(Duration::from_millis(5)).map(|taken| (place, taken))
            });
            if let Some(found) = found {
                break found;
            }
        };
        taken.send(answer(200, "content-type: application/json\r\n", "{}"));
        taken.keep();
        assert_eq!(client.response().status, 200);
        place
    };
    let first = ask();
    for _ in 0..10 {
        assert_eq!(ask(), first, "it left its cache");
    }
    pods[first].tell(Told { running: 9, waiting: 0, kv_usage: 0.95 });
    gateway
        .wait("the cache to be full", |status| status["pools"][0]["pods"][first]["running"] == 9);
    let second = ask();
    assert_ne!(second, first);
    for _ in 0..10 {
        assert_eq!(ask(), second, "it is cached there now");
    }
}

// Field report 64: where every pod is over the limit, that is said, and affinity does not get around it.
#[test]
fn field_report_64_a_full_pod_that_has_the_prompt_is_full_all_the_same() {
    let pods = [cached(full(pod(1), 0.95, 0), 3_900), full(pod(2), 0.91, 0)];
    let picked = |kv_cache| {
        let rng = &mut fastrand::Rng::with_seed(1);
        let profile = profile(Preset::LATENCY, kv_cache);
        pick(&pods, &DEMAND, &profile, rng, &mut Scratch::default()).map(|pick| pick.index)
    };
    assert_eq!(picked(0.9), Err(NoPod::Saturated));
    assert_eq!(picked(0.93), Ok(1));
    assert_eq!(picked(1.0), Ok(0));
}

// Reports against the reference picker 27: prompts that nobody has seen ran together at a few pods.
#[test]
fn picker_report_27_new_prompts_are_spread_and_gateways_that_have_just_begun_agree_where() {
    let pods: Vec<PodView> = (1..=8).map(pod).collect();
    let profile = profile(Preset::LATENCY, 1.0);
    let place = |pods: &[PodView], prefix, seed| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let demand = Demand { prefix: Some(prefix), ..DEMAND };
        pick(pods, &demand, &profile, &mut rng, &mut Scratch::default()).unwrap().index
    };
    let mut counts = [0_u32; 8];
    let mut prompts = fastrand::Rng::with_seed(5);
    for _ in 0..4_000 {
        let prefix = prompts.u64(..);
        let one = place(&pods, prefix, 1);
        assert_eq!(one, place(&pods, prefix, 2), "another gateway chose another pod");
        counts[one] += 1;
    }
    // Six standard deviations of a fair lot.
    assert!(counts.iter().all(|count| count.abs_diff(500) < 126), "{counts:?}");
    // A gateway that is alone knows where the last ones went.
    let (mut pods, mut counts) = (pods, [0_u32; 8]);
    for number in 1..=80 {
        let one = place(&pods, prompts.u64(..), 1);
        pods[one].last_used = number;
        counts[one] += 1;
    }
    assert_eq!(counts, [10; 8]);
}

// Field report 80, reports against the reference picker 24: what is remembered is bounded by what pods hold, and
// can be seen.
#[test]
fn field_report_80_picker_report_24_prompts_that_nobody_asks_again_do_not_take_memory_for_ever() {
    const BLOCKS: usize = 2_000;
    let index = Index::new();
    let slots: Vec<_> = (0..4).map(|_| index.join(BLOCKS).unwrap()).collect();
    let mut prompts = fastrand::Rng::with_seed(1);
    let mut insert = |count: usize| {
        for number in 0..count {
            // 8 KB are about 2,000 tokens: 32 blocks of 64.
            let blocks: Vec<u64> = (0..32).map(|_| prompts.u64(..)).collect();
            index.insert(slots[number % slots.len()], &blocks);
        }
        index.usage()
    };
    let (early, late) = (insert(2_000), insert(20_000));
    assert!(early.entries > BLOCKS * 3, "{early:?}");
    assert!(late.entries <= BLOCKS * 4 && late.hashes <= late.entries, "{late:?}");
    assert!(late.bytes <= early.bytes * 5 / 4, "{early:?} {late:?}");
}

// Reports against the reference picker 16 and 17: two ranks behind one address are two pods, and of one that is
// gone nothing is left to whoever comes to its place.
#[test]
fn picker_report_17_each_port_has_a_cache_of_its_own_and_takes_it_along() {
    let index = Index::new();
    let blocks: Vec<u64> = (1..=40).collect();
    let (one, other) = (index.join(1_000).unwrap(), index.join(1_000).unwrap());
    index.insert(one, &blocks);
    index.insert(other, &blocks[..10]);
    let mut found = Matches::default();
    let mut matched = |slot| {
        index.matched(&blocks, &mut found);
        found.blocks(slot)
    };
    assert_eq!((matched(one), matched(other)), (40, 10));
    index.leave(one);
    let next = index.join(1_000).unwrap();
    assert_eq!((matched(next), matched(one), matched(other)), (0, 0, 10));
    assert_eq!(index.usage().entries, 10);
}
