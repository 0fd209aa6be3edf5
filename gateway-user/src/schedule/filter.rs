//! Which pods may be given a request at all, and which of them come first.
//!
//! A pod with fresh signals comes before one without, however idle the latter may be. Within that,
//! a request for an adapter goes to pods that have it while any of those takes requests, rather than
//! to one that lists its models without it: that may answer 404, and no amount of queue or KV cache
//! outweighs an error. Where an adapter would be loaded on demand, the cost model weighs the time
//! that takes; scorers cannot, and so take such a pod too for one without it. With scorers, a
//! `lora-affinity` weight of 0 turns all of this off.

use std::time::Duration;

use super::cost::{Fleet, estimate};
use super::ramp::Settled;
use super::{AdapterFit, Candidate, Demand, NoPod, PodView, Policy, Profile, Scorer, Signals};

/// Where a pod stands for one request; the first tier with a pod in it gives the candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Its signals are fresh, and the request's adapter is resident there (or none is needed).
    Fresh,
    /// Its signals are fresh, but the request's adapter is elsewhere.
    FreshElsewhere,
    /// Its load is unknown; the request's adapter is resident there (or none is needed).
    Unknown,
    /// Its load is unknown, and the request's adapter is elsewhere.
    UnknownElsewhere,
    /// It takes no more requests for now.
    Saturated,
    /// This request has been tried there.
    Tried,
    /// It is not ready.
    NotReady,
}

/// Where one pod stands, with `wait` seconds expected there before the pod begins with the request.
pub fn tier(pod: &PodView, profile: &Profile, wait: f32) -> Tier {
    if !pod.ready {
        return Tier::NotReady;
    }
    if pod.tried {
        return Tier::Tried;
    }
    let limits = &profile.saturation;
    if pod.in_flight >= limits.in_flight || wait > profile.max_wait.as_secs_f32() {
        return Tier::Saturated;
    }
    let elsewhere = profile.keeps_off(pod.adapter);
    let Some(signals) = pod.believed(profile.stale_after) else {
        return if elsewhere { Tier::UnknownElsewhere } else { Tier::Unknown };
    };
    let queue_full = signals.waiting.is_some_and(|waiting| waiting >= limits.queue_depth);
    // A full cache alone is no reason to refuse unless asked for: engines preempt and queue, and
    // show that there.
    let kv_full = limits.kv_cache < 1.0
        && signals.kv_usage.is_some_and(|kv_usage| kv_usage >= limits.kv_cache);
    if queue_full || kv_full {
        return Tier::Saturated;
    }
    if elsewhere { Tier::FreshElsewhere } else { Tier::Fresh }
}

/// How far a pool is from taking one more request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Excess {
    /// Requests that have to end first, of all pods.
    pub requests: u32,
    /// What is expected to be waited at least.
    pub wait: Duration,
}

/// How far ready `pods` are from taking one more request, where none takes any.
pub fn excess(pods: &[PodView], demand: &Demand, profile: &Profile) -> Excess {
    let fleet = Fleet::read(pods, demand, profile.stale_after);
    let limits = &profile.saturation;
    let ready = || pods.iter().filter(|pod| pod.ready);
    let over = |pod: &PodView| {
        let signals = pod.believed(profile.stale_after).unwrap_or_default();
        let beyond = |count: u32, limit| count.saturating_add(1).saturating_sub(limit);
        let queued = beyond(signals.waiting.unwrap_or(0), limits.queue_depth);
        queued.max(beyond(pod.in_flight, limits.in_flight))
    };
    let wait = |pod: &PodView| {
        let signals = pod.believed(profile.stale_after);
        let wait = estimate(pod, signals.as_ref(), demand, &fleet).wait();
        (wait - profile.max_wait.as_secs_f32()).clamp(0.0, MOST_WAIT)
    };
    // Requests end all over the pool, and the one that is the least over gets its share of that.
    let least = ready().map(over).min().unwrap_or(0).saturating_sub(1);
    let count = u32::try_from(ready().count()).unwrap_or(u32::MAX);
    Excess {
        requests: least.saturating_mul(count),
        wait: Duration::from_secs_f32(ready().map(wait).fold(MOST_WAIT, f32::min)),
    }
}

/// Fills `candidates` with the pods of the best tier.
///
/// # Errors
/// [`NoPod`] when no pod may be given the request.
pub(super) fn candidates(
    pods: &[PodView],
    demand: &Demand,
    profile: &Profile,
    candidates: &mut Vec<Candidate>,
) -> Result<Fleet, NoPod> {
    candidates.clear();
    let fleet = Fleet::read(pods, demand, profile.stale_after);
    let mut best = Tier::NotReady;
    for (index, pod) in pods.iter().enumerate() {
        let signals = pod.believed(profile.stale_after);
        let estimate = estimate(pod, signals.as_ref(), demand, &fleet);
        let tier = tier(pod, profile, estimate.wait());
        if tier > best || tier >= Tier::Saturated {
            best = best.min(tier);
            continue;
        }
        if tier < best {
            best = tier;
            candidates.clear();
        }
        let signals = signals.unwrap_or_default();
        candidates.push(Candidate {
            index,
            estimate,
            cached_tokens: pod.cached_tokens,
            tokens: pod.own.tokens,
            session: pod.session,
            last_used: pod.last_used,
            context_range: pod.context_range,
            in_flight: pod.in_flight,
            kv_usage: signals.kv_usage,
            waiting: signals.waiting,
            running: running(pod.in_flight, &signals),
            adapters: signals.adapter_slots.zip(signals.adapters_active),
            adapter: pod.adapter,
        });
    }
    hold_back(pods, candidates);
    match best {
        Tier::NotReady => Err(NoPod::Empty),
        Tier::Tried => Err(NoPod::Exhausted),
        Tier::Saturated => Err(NoPod::Saturated),
        _ => Ok(fleet),
    }
}

/// Leaves out those that are just back and have enough for now, unless there are no others.
fn hold_back(pods: &[PodView], candidates: &mut Vec<Candidate>) {
    let back =
        |candidate: &Candidate| pods.get(candidate.index).is_some_and(|pod| pod.share.is_some());
    if !candidates.iter().any(back) {
        return;
    }
    let Some(settled) = Settled::of(pods) else { return };
    let hold =
        |candidate: &Candidate| pods.get(candidate.index).is_some_and(|pod| settled.hold(pod));
    if !candidates.iter().all(hold) {
        candidates.retain(|candidate| !hold(candidate));
    }
}

impl Profile {
    /// Whether pods that stand so to the request's adapter come behind those that have it.
    fn keeps_off(&self, adapter: AdapterFit) -> bool {
        match &self.policy {
            Policy::Cost(_) => adapter == AdapterFit::Unlisted,
            Policy::Scorers { .. } => {
                matches!(adapter, AdapterFit::Absent | AdapterFit::Unlisted)
                    && self.policy.weighs(Scorer::LoraAffinity)
            }
        }
    }
}

/// What a pod runs, at least. What this gateway has in flight there and the pod does not tell of is
/// on its way: signals are a scrape old, and one pod's scrape may lie before a burst that the
/// others' show. Such a pod would look idle, and draw the rest of the burst.
fn running(in_flight: u32, signals: &Signals) -> Option<u32> {
    let told_waiting = signals.waiting.unwrap_or(0);
    signals.running.map(|running| running.max(in_flight.saturating_sub(told_waiting)))
}

/// Seconds; longer waits are all the same.
const MOST_WAIT: f32 = 3600.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::speed::Line;
    use crate::schedule::tests::{idle, profile, weights};
    use crate::schedule::{Own, Preset};

    #[test]
    fn each_pod_has_its_tier() {
        let busy = |waiting| Signals { waiting: Some(waiting), ..idle().signals };
        let kv = |usage| Signals { kv_usage: Some(usage), ..Signals::default() };
        let table = [
            ("idle", idle(), Tier::Fresh),
            ("not ready", PodView { ready: false, ..idle() }, Tier::NotReady),
            (
                "not ready and tried",
                PodView { ready: false, tried: true, ..idle() },
                Tier::NotReady,
            ),
            ("tried", PodView { tried: true, ..idle() }, Tier::Tried),
            ("just fresh", PodView { age: Some(Duration::from_secs(3)), ..idle() }, Tier::Fresh),
            ("stale", PodView { age: Some(Duration::from_millis(3001)), ..idle() }, Tier::Unknown),
            ("never scraped", PodView { age: None, ..idle() }, Tier::Unknown),
            ("said nothing", PodView { signals: Signals::default(), ..idle() }, Tier::Fresh),
            ("NaN", PodView { signals: kv(f32::NAN), ..idle() }, Tier::Fresh),
            ("infinite", PodView { signals: kv(f32::INFINITY), ..idle() }, Tier::Fresh),
            ("negative", PodView { signals: kv(-1.0), ..idle() }, Tier::Fresh),
            ("KV only", PodView { signals: kv(0.1), ..idle() }, Tier::Fresh),
            ("KV full", PodView { signals: kv(1.0), ..idle() }, Tier::Fresh),
            ("queue nearly full", PodView { signals: busy(127), ..idle() }, Tier::Fresh),
            ("queue full", PodView { signals: busy(128), ..idle() }, Tier::Saturated),
            ("our own", PodView { in_flight: 1024, ..idle() }, Tier::Saturated),
            ("our own, unknown", PodView { in_flight: 1024, age: None, ..idle() }, Tier::Saturated),
            (
                "stale queue",
                PodView { signals: busy(128), age: Some(Duration::from_secs(9)), ..idle() },
                Tier::Unknown,
            ),
            ("adapter there", PodView { adapter: AdapterFit::Active, ..idle() }, Tier::Fresh),
            ("adapter loaded", PodView { adapter: AdapterFit::Loaded, ..idle() }, Tier::Fresh),
            (
                "adapter absent",
                PodView { adapter: AdapterFit::Absent, ..idle() },
                Tier::FreshElsewhere,
            ),
            (
                "adapter absent, unknown",
                PodView { adapter: AdapterFit::Absent, age: None, ..idle() },
                Tier::UnknownElsewhere,
            ),
        ];
        for (name, pod, expected) in table {
            assert_eq!(tier(&pod, &profile(), 0.0), expected, "{name}");
        }
    }

    #[test]
    fn a_kv_limit_below_one_saturates() {
        let mut profile = profile();
        profile.saturation.kv_cache = 0.8;
        for (usage, expected) in
            [(0.79, Tier::Fresh), (0.8, Tier::Saturated), (7.0, Tier::Saturated)]
        {
            let signals = Signals { kv_usage: Some(usage), ..Signals::default() };
            let pod = PodView { signals, ..idle() };
            assert_eq!(tier(&pod, &profile, 0.0), expected, "{usage}");
        }
    }

    #[test]
    fn only_the_best_tier_is_kept() {
        let unknown = PodView { age: None, ..idle() };
        let saturated = PodView { in_flight: 5000, ..idle() };
        let tried = PodView { tried: true, ..idle() };
        let gone = PodView { ready: false, ..idle() };
        let elsewhere = PodView { adapter: AdapterFit::Absent, ..idle() };
        let table = [
            ("no pods", vec![], Err(NoPod::Empty)),
            ("none ready", vec![gone, gone], Err(NoPod::Empty)),
            ("all ready ones tried", vec![tried, gone], Err(NoPod::Exhausted)),
            ("all saturated", vec![saturated, gone, saturated], Err(NoPod::Saturated)),
            ("tried or saturated", vec![saturated, tried], Err(NoPod::Saturated)),
            ("fresh before unknown", vec![unknown, idle(), gone, idle()], Ok(vec![1, 3])),
            ("unknown before refusing", vec![saturated, unknown, tried], Ok(vec![1])),
            ("resident first", vec![elsewhere, idle(), elsewhere], Ok(vec![1])),
            ("fresh elsewhere before unknown", vec![unknown, elsewhere, saturated], Ok(vec![1])),
        ];
        let mut found = Vec::new();
        for (name, pods, expected) in table {
            let outcome = candidates(&pods, &Demand::default(), &profile(), &mut found);
            let places: Vec<usize> = found.iter().map(|candidate| candidate.index).collect();
            assert_eq!(outcome.map(|_| places), expected, "{name}");
        }
    }

    #[test]
    fn pods_that_are_just_back_come_behind_the_others_when_they_have_enough() {
        let back = |in_flight| PodView { share: Some(0.1), in_flight, ..idle() };
        let busy = |in_flight| PodView { in_flight, ..idle() };
        let elsewhere = |pod| PodView { adapter: AdapterFit::Absent, ..pod };
        let tried = |pod| PodView { tried: true, ..pod };
        let table = [
            ("below its share", vec![busy(40), back(3)], vec![0, 1]),
            ("at its share", vec![busy(40), back(4)], vec![0]),
            ("all are just back", vec![back(400), back(4)], vec![0, 1]),
            ("the others are full", vec![busy(5000), back(1000)], vec![1]),
            ("the others have been tried", vec![tried(busy(40)), back(4)], vec![1]),
            // A pod without the adapter may answer 404, and that is worse.
            ("the others lack the adapter", vec![elsewhere(busy(40)), back(4)], vec![1]),
            ("one has its share", vec![busy(40), busy(40), back(4), back(3)], vec![0, 1, 3]),
        ];
        let mut found = Vec::new();
        for (name, pods, expected) in table {
            candidates(&pods, &Demand::default(), &profile(), &mut found).unwrap();
            let places: Vec<usize> = found.iter().map(|candidate| candidate.index).collect();
            assert_eq!(places, expected, "{name}");
        }
    }

    #[test]
    fn without_its_weight_residency_does_not_order() {
        let profile = weights([(Scorer::Queue, 1.0), (Scorer::LoraAffinity, 0.0)]);
        for adapter in [AdapterFit::Absent, AdapterFit::Unlisted] {
            assert_eq!(tier(&PodView { adapter, ..idle() }, &profile, 0.0), Tier::Fresh);
        }
    }

    #[test]
    fn where_an_adapter_would_be_loaded_the_cost_model_weighs_it() {
        let profile = Profile { policy: Policy::Cost(Preset::LATENCY), ..profile() };
        for (adapter, expected) in [
            (AdapterFit::Loaded, Tier::Fresh),
            (AdapterFit::Absent, Tier::Fresh),
            (AdapterFit::Unlisted, Tier::FreshElsewhere),
        ] {
            assert_eq!(tier(&PodView { adapter, ..idle() }, &profile, 0.0), expected);
        }
    }

    #[test]
    fn a_long_wait_saturates() {
        let profile = Profile { max_wait: Duration::from_secs(10), ..profile() };
        for (wait, expected) in [(0.0, Tier::Fresh), (10.0, Tier::Fresh), (10.1, Tier::Saturated)] {
            assert_eq!(tier(&idle(), &profile, wait), expected, "{wait}");
        }
        // By the prompts ahead, at the pod's own speed.
        let mut found = Vec::new();
        let mut pod = idle();
        for (speed, prefill_tokens, expected) in
            [(1.0, 60_000, Ok(())), (1.0, 90_000, Err(NoPod::Saturated)), (0.5, 90_000, Ok(()))]
        {
            pod.speed.first = Line::new(0.0, speed / 8_000.0);
            pod.own.prefill_tokens = prefill_tokens;
            let outcome = candidates(&[pod], &Demand::default(), &profile, &mut found);
            assert_eq!(outcome.map(|_| ()), expected, "{speed} {prefill_tokens}");
        }
    }

    #[test]
    fn what_is_on_its_way_counts_as_running() {
        for (in_flight, running, waiting, expected) in [
            (0, Some(0), Some(0), Some(0)),
            // A scrape from before a burst.
            (9, Some(0), Some(0), Some(9)),
            (9, Some(4), Some(2), Some(7)),
            // All told, others' requests among them.
            (9, Some(6), Some(3), Some(6)),
            (9, Some(20), Some(0), Some(20)),
            (9, Some(0), Some(30), Some(0)),
            (9, Some(0), None, Some(9)),
            (9, None, Some(0), None),
        ] {
            let signals = Signals { running, waiting, ..Signals::default() };
            let case = format!("{in_flight} {running:?} {waiting:?}");
            assert_eq!(super::running(in_flight, &signals), expected, "{case}");
        }
    }

    #[test]
    fn stale_signals_do_not_reach_the_scorers() {
        let stale = PodView { age: Some(Duration::from_secs(60)), in_flight: 3, ..idle() };
        let mut found = Vec::new();
        candidates(&[stale], &Demand::default(), &profile(), &mut found).unwrap();
        let candidate = found[0];
        assert_eq!((candidate.kv_usage, candidate.waiting, candidate.running), (None, None, None));
        assert_eq!(candidate.in_flight, 3);
    }

    #[test]
    fn how_far_a_pool_is_from_taking_one_more() {
        let queue = |waiting| {
            let signals = Signals { waiting: Some(waiting), ..idle().signals };
            PodView { signals, ..idle() }
        };
        let own = |in_flight| PodView { in_flight, ..idle() };
        let gone = PodView { ready: false, ..idle() };
        // 128 may wait at a pod, and 1,024 be in flight.
        let table: [(&[PodView], u32); 9] = [
            (&[], 0),
            (&[gone], 0),
            (&[idle()], 0),
            (&[queue(128)], 0),
            (&[queue(137)], 9),
            (&[queue(137), queue(130)], 4),
            (&[queue(137), queue(130), gone], 4),
            (&[own(1033), queue(137), queue(139)], 27),
            (&[queue(u32::MAX), own(u32::MAX)], u32::MAX),
        ];
        for (pods, requests) in table {
            let found = excess(pods, &Demand::default(), &profile());
            assert_eq!(found.requests, requests, "{pods:?}");
        }
        // Ten million tokens before it, at a pod that the gateway knows nothing else of.
        let own = Own { pending: 1, prefill_tokens: 10_000_000, ..Own::default() };
        let long = PodView { own, ..idle() };
        let found = excess(&[long, long], &Demand::default(), &profile()).wait;
        let alone = excess(&[long, idle()], &Demand::default(), &profile()).wait;
        assert!(found > Duration::from_secs(60) && alone.is_zero(), "{found:?}, {alone:?}");
    }
}
