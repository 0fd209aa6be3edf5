//! Properties of the whole pick, and the field reports that it must answer.

use proptest::prelude::*;

use super::*;

/// A pod that was scraped just now and has nothing to do.
pub(super) fn idle() -> PodView {
    PodView {
        ready: true,
        age: Some(Duration::from_millis(20)),
        signals: Signals {
            kv_usage: Some(0.0),
            waiting: Some(0),
            running: Some(0),
            adapter_slots: None,
            adapters_active: None,
        },
        ..PodView::default()
    }
}

/// A request of which nothing is known.
const NOTHING: Demand = Demand { prompt_tokens: 0, output_tokens: 0, prefix: None };

/// A profile of scorers, as the configuration's default weights make it.
pub(super) fn profile() -> Profile {
    weights([
        (Scorer::Queue, 2.0),
        (Scorer::KvCacheUtilization, 2.0),
        (Scorer::RunningRequests, 1.0),
        (Scorer::ActiveRequest { idle_threshold: 0, max_busy_score: 1.0 }, 2.0),
        (Scorer::LoraAffinity, 4.0),
    ])
}

/// The default profile.
pub(super) fn by_cost() -> Profile {
    Profile { policy: Policy::Cost(Preset::LATENCY), ..profile() }
}

/// A profile of these scorers.
pub(super) fn weights<const N: usize>(scorers: [(Scorer, f32); N]) -> Profile {
    let scorers = scorers.map(|(scorer, weight)| Weighted { scorer, weight }).to_vec();
    Profile {
        policy: Policy::Scorers { scorers, picker: Picker::MaxScore },
        saturation: Saturation { queue_depth: 128, kv_cache: 1.0, in_flight: 1024 },
        max_wait: Duration::from_secs(120),
        stale_after: Duration::from_secs(3),
    }
}

/// Sends `requests` with no scrape in between, each reserved as it is picked; how many each pod
/// got.
fn send(pods: &mut [PodView], profile: &Profile, requests: usize, seed: u64) -> Vec<u32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut scratch = Scratch::default();
    let mut counts = vec![0; pods.len()];
    let demand = Demand { prompt_tokens: 500, output_tokens: 200, ..Demand::default() };
    for _ in 0..requests {
        let pick = pick(pods, &demand, profile, &mut rng, &mut scratch).unwrap();
        let pod = &mut pods[pick.index];
        pod.in_flight += 1;
        pod.own.pending += 1;
        pod.own.prefill_tokens += 500;
        pod.own.tokens += 700;
        pod.own.since_scrape.sent += 1;
        pod.own.since_scrape.tokens += 700;
        counts[pick.index] += 1;
    }
    counts
}

/// How often each pod is picked when nothing is reserved.
fn draw(pods: &[PodView], profile: &Profile, picks: usize) -> Vec<u32> {
    let mut rng = fastrand::Rng::with_seed(11);
    let mut scratch = Scratch::default();
    let mut counts = vec![0; pods.len()];
    for _ in 0..picks {
        counts[pick(pods, &NOTHING, profile, &mut rng, &mut scratch).unwrap().index] += 1;
    }
    counts
}

#[test]
fn a_burst_on_idle_pods_is_spread() {
    for profile in [profile(), by_cost()] {
        for seed in 0..50 {
            let counts = send(&mut [idle(); 4], &profile, 100, seed);
            let is_even = counts.iter().all(|count| (20..=30).contains(count));
            assert!(is_even, "seed {seed}: {counts:?}");
        }
    }
}

// Reports against the reference picker 19: bursts herd onto a pod whose metrics are from before
// them.
#[test]
fn a_pod_scraped_before_a_burst_does_not_draw_the_rest_of_it() {
    let begun = |told| PodView {
        in_flight: 12,
        signals: Signals { running: Some(told), ..idle().signals },
        ..idle()
    };
    for seed in 0..50 {
        let counts = send(&mut [begun(12), begun(0), begun(12), begun(5)], &profile(), 52, seed);
        assert!(counts.iter().all(|count| (11..=15).contains(count)), "seed {seed}: {counts:?}");
    }
}

#[test]
fn equal_pods_are_picked_evenly() {
    let busy = PodView {
        in_flight: 3,
        signals: Signals { kv_usage: Some(0.7), waiting: Some(4), ..idle().signals },
        ..idle()
    };
    let counts = draw(&[busy; 8], &profile(), 80_000);
    // Six standard deviations of a fair draw.
    assert!(counts.iter().all(|count| count.abs_diff(10_000) < 570), "{counts:?}");
}

#[test]
fn all_scores_zero_is_a_lot() {
    let full = PodView {
        in_flight: 9,
        signals: Signals { kv_usage: Some(1.0), ..Signals::default() },
        ..idle()
    };
    let active = Scorer::ActiveRequest { idle_threshold: 0, max_busy_score: 1.0 };
    let profile = weights([(Scorer::KvCacheUtilization, 2.0), (active, 2.0)]);
    let counts = draw(&[full; 4], &profile, 4_000);
    assert!(counts.iter().all(|count| count.abs_diff(1_000) < 170), "{counts:?}");
}

#[test]
fn a_never_scraped_pod_gets_nothing_beside_fresh_ones() {
    let mut pods = [idle(), PodView { age: None, signals: Signals::default(), ..idle() }, idle()];
    pods[0].signals.waiting = Some(100);
    pods[2].signals.kv_usage = Some(0.97);
    assert_eq!(send(&mut pods.clone(), &profile(), 500, 3)[1], 0);
    assert_eq!(send(&mut pods, &by_cost(), 500, 3)[1], 0);
}

#[test]
fn a_never_scraped_pod_serves_when_the_others_are_full() {
    let mut full = idle();
    full.signals.waiting = Some(128);
    let unknown = PodView { age: None, signals: Signals::default(), ..idle() };
    assert_eq!(send(&mut [full, unknown, full], &profile(), 50, 3), [0, 50, 0]);
    assert_eq!(send(&mut [full, unknown, full], &by_cost(), 50, 3), [0, 50, 0]);
}

#[test]
fn a_stuck_kv_gauge_does_not_take_everything() {
    for (stuck, honest) in [(0.0, 0.5), (0.9, 0.1), (1.0, 0.5)] {
        let mut pods = [idle(); 4];
        for pod in &mut pods {
            pod.signals.kv_usage = Some(honest);
        }
        pods[0].signals.kv_usage = Some(stuck);
        for profile in [profile(), by_cost()] {
            let counts = send(&mut pods.clone(), &profile, 400, 5);
            assert!(counts.iter().all(|count| (20..=200).contains(count)), "{stuck}: {counts:?}");
        }
    }
}

#[test]
fn a_resident_adapter_beats_an_idle_pod() {
    let mut resident = PodView { adapter: AdapterFit::Loaded, in_flight: 900, ..idle() };
    resident.signals.waiting = Some(127);
    resident.signals.kv_usage = Some(1.0);
    let absent = PodView { adapter: AdapterFit::Absent, ..idle() };
    assert_eq!(draw(&[absent, resident, absent], &profile(), 100), [0, 100, 0]);
}

#[test]
fn a_saturated_resident_pod_gives_way_to_the_freest() {
    let mut resident = PodView { adapter: AdapterFit::Active, ..idle() };
    resident.signals.waiting = Some(128);
    let mut absent = PodView { adapter: AdapterFit::Absent, ..idle() };
    absent.signals.adapter_slots = Some(4);
    absent.signals.adapters_active = Some(1);
    let mut busy = absent;
    busy.signals.kv_usage = Some(0.9);
    let mut no_slot = absent;
    no_slot.signals.adapters_active = Some(4);
    assert_eq!(draw(&[resident, busy, absent, no_slot], &profile(), 100), [0, 0, 100, 0]);
}

#[test]
fn without_a_pod_the_reason_is_named() {
    let mut scratch = Scratch::default();
    let mut rng = fastrand::Rng::with_seed(1);
    let profile = profile();
    let mut ask =
        |pods: &[PodView]| pick(pods, &NOTHING, &profile, &mut rng, &mut scratch).unwrap_err();
    assert_eq!(ask(&[]), NoPod::Empty);
    assert_eq!(ask(&[PodView { ready: false, in_flight: 5000, ..idle() }]), NoPod::Empty);
    assert_eq!(ask(&[PodView { tried: true, ..idle() }]), NoPod::Exhausted);
    assert_eq!(ask(&[PodView { in_flight: 5000, ..idle() }]), NoPod::Saturated);
}

#[test]
fn explain_names_every_pod_and_agrees_with_pick() {
    let mut busy = idle();
    busy.signals.kv_usage = Some(0.5);
    busy.in_flight = 4;
    let pods = [busy, PodView { age: None, ..idle() }, idle(), PodView { ready: false, ..idle() }];
    let mut profile = profile();
    let Policy::Scorers { scorers, .. } = &mut profile.policy else { panic!() };
    scorers[2].weight = 0.0;
    let pages = explain(&pods, &NOTHING, &profile, &mut Scratch::default());
    let tiers: Vec<Tier> = pages.iter().map(|page| page.tier).collect();
    assert_eq!(tiers, [Tier::Fresh, Tier::Unknown, Tier::Fresh, Tier::NotReady]);
    let expected = [
        ("queue", 1.0),
        ("kv-cache-utilization", 0.5),
        ("active-request", 0.0),
        ("lora-affinity", 1.0),
    ];
    assert_eq!(pages[0].parts, expected);
    assert_eq!(pages[0].score, Some(2.0 + 1.0 + 0.0 + 4.0));
    assert_eq!(pages[2].score, Some(10.0));
    assert_eq!((pages[1].score, pages[1].parts.len()), (None, 0));
    let picked =
        pick(&pods, &NOTHING, &profile, &mut fastrand::Rng::with_seed(1), &mut Scratch::default());
    let picked = picked.unwrap();
    assert_eq!((picked.index, picked.score), (2, 10.0));
    assert_eq!(Some(picked.estimate), pages[2].estimate);
}

#[test]
fn a_warm_pick_does_not_allocate() {
    let mut scratch = Scratch::default();
    let mut rng = fastrand::Rng::with_seed(1);
    let pods = [idle(); 64];
    let all = Scorer::ALL.map(|scorer| (scorer, 1.0));
    let profile = weights(all);
    let mut memory = || {
        pick(&pods, &NOTHING, &profile, &mut rng, &mut scratch).unwrap();
        let Scratch { candidates, totals, column, order } = &scratch;
        (
            (candidates.as_ptr(), totals.as_ptr(), column.as_ptr(), order.as_ptr()),
            (candidates.capacity(), totals.capacity(), column.capacity(), order.capacity()),
        )
    };
    let warm = memory();
    for _ in 0..100 {
        assert_eq!(memory(), warm);
    }
}

#[test]
fn a_smaller_pool_after_a_larger_leaves_nothing_behind() {
    let mut scratch = Scratch::default();
    let mut rng = fastrand::Rng::with_seed(1);
    let profile = profile();
    let mut pick = |pods: &[PodView]| pick(pods, &NOTHING, &profile, &mut rng, &mut scratch);
    pick(&[idle(); 64]).unwrap();
    for _ in 0..50 {
        assert!(pick(&[idle(); 2]).unwrap().index < 2);
    }
    assert_eq!(pick(&[]), Err(NoPod::Empty));
}

proptest! {
    /// Whatever pods say and however a profile is set: a score within bounds, and never a pod that
    /// was filtered out.
    #[test]
    fn no_input_breaks_a_pick(
        pods in prop::collection::vec(any_pod(), 0..24),
        demand in any_demand(),
        profile in any_profile(),
        seed: u64,
    ) {
        let mut scratch = Scratch::default();
        let most = profile.policy.most_score();
        let pages = explain(&pods, &demand, &profile, &mut scratch);
        prop_assert_eq!(pages.len(), pods.len());
        let is_scored = matches!(profile.policy, Policy::Scorers { .. });
        for page in &pages {
            prop_assert!(page.score.is_none_or(|score| (0.0..=most).contains(&score)), "{:?}", page);
            for &(_, part) in &page.parts {
                prop_assert!(part >= 0.0 && part.is_finite(), "{:?}", page);
                prop_assert!(!is_scored || part <= 1.0, "{:?}", page);
            }
            let estimate = page.estimate.unwrap_or_default();
            let Estimate { ahead, prefill, room, adapter, overdue, token, work, running } = estimate;
            for value in [ahead, prefill, room, adapter, overdue, token, work, running] {
                prop_assert!(value >= 0.0 && value.is_finite(), "{:?}", estimate);
            }
        }
        let best = pages.iter().map(|page| page.tier).min();
        match pick(&pods, &demand, &profile, &mut fastrand::Rng::with_seed(seed), &mut scratch) {
            Ok(pick) => {
                let page = &pages[pick.index];
                prop_assert!(page.tier < Tier::Saturated);
                prop_assert_eq!(Some(page.tier), best);
                prop_assert_eq!(page.score, Some(pick.score));
                let highest = pages.iter().filter_map(|page| page.score).fold(0.0, f32::max);
                if let Policy::Scorers { picker: Picker::MaxScore, .. } = profile.policy {
                    prop_assert!(pick.score >= highest - TIE * most);
                }
            }
            Err(reason) => {
                let expected = match best {
                    Some(Tier::Saturated) => NoPod::Saturated,
                    Some(Tier::Tried) => NoPod::Exhausted,
                    _ => NoPod::Empty,
                };
                prop_assert_eq!(reason, expected);
                prop_assert!(best.is_none_or(|best| best >= Tier::Saturated));
            }
        }
    }
}

fn any_pod() -> impl Strategy<Value = PodView> {
    let place =
        (prop::bool::weighted(0.8), prop::bool::weighted(0.2), any_adapter(), any::<bool>());
    let since = (any_u32(), any_u32(), any_u32()).prop_map(|(sent, tokens, finished)| Since {
        sent,
        tokens,
        finished,
    });
    let own = (any_u32(), any_u32(), any_age(), any::<u64>(), since, any_age());
    let own = own.prop_map(|(pending, prefill_tokens, busy, tokens, since_scrape, overdue)| Own {
        pending,
        prefill_tokens,
        busy,
        tokens,
        since_scrape,
        overdue,
    });
    let others = (any_u32(), any_u32(), any_u32(), any_age(), any_u32(), any::<u64>()).prop_map(
        |(in_flight, pending, prefill_tokens, busy, sent, tokens)| Others {
            in_flight,
            pending,
            prefill_tokens,
            busy,
            sent,
            tokens,
        },
    );
    let others = prop_oneof![Just(Others::default()), others];
    let line = || (any::<f32>(), any::<f32>()).prop_map(|(a, b)| speed::Line::new(a, b));
    let speed = prop_oneof![
        Just(Speed::default()),
        (line(), line()).prop_map(|(first, token)| Speed { first, token })
    ];
    let sizes = (
        any_u32(),
        any_u32(),
        prop::option::of(any_u32()),
        prop::option::of(any_u32()),
        any::<u64>(),
        prop::option::of((any_u32(), any_u32())),
        prop::option::of(any::<f32>()),
    );
    (place, any_signals(), prop::option::of(any_age()), (own, others), speed, sizes).prop_map(
        |((ready, tried, adapter, session), signals, age, (own, others), speed, sizes)| {
            let (in_flight, cached_tokens, kv_tokens, slots, last_used, context_range, share) =
                sizes;
            PodView {
                key: last_used,
                ready,
                share,
                tried,
                in_flight,
                own,
                others,
                signals,
                age,
                adapter,
                cached_tokens,
                kv_tokens,
                slots,
                speed,
                session,
                last_used,
                context_range,
            }
        },
    )
}

fn any_u32() -> impl Strategy<Value = u32> {
    prop_oneof![0..300_u32, Just(u32::MAX), any::<u32>()]
}

fn any_age() -> impl Strategy<Value = Duration> {
    prop_oneof![(0..6_000_u64).prop_map(Duration::from_millis), Just(Duration::MAX)]
}

fn any_signals() -> impl Strategy<Value = Signals> {
    let count = || prop::option::of(any_u32());
    let kv_usage = prop_oneof![
        0.0..=1.0_f32,
        any::<f32>(),
        Just(f32::NAN),
        Just(f32::INFINITY),
        Just(f32::MAX),
        Just(-1.0),
    ];
    (prop::option::of(kv_usage), count(), count(), count(), count()).prop_map(
        |(kv_usage, waiting, running, adapter_slots, adapters_active)| Signals {
            kv_usage,
            waiting,
            running,
            adapter_slots,
            adapters_active,
        },
    )
}

fn any_adapter() -> impl Strategy<Value = AdapterFit> {
    prop_oneof![
        Just(AdapterFit::NotNeeded),
        Just(AdapterFit::Active),
        Just(AdapterFit::Loaded),
        Just(AdapterFit::Absent),
        Just(AdapterFit::Unlisted),
    ]
}

fn any_demand() -> impl Strategy<Value = Demand> {
    (any_u32(), any_u32(), prop::option::of(any::<u64>())).prop_map(
        |(prompt_tokens, output_tokens, prefix)| Demand { prompt_tokens, output_tokens, prefix },
    )
}

fn any_profile() -> impl Strategy<Value = Profile> {
    let number = || prop_oneof![Just(0.0_f32), 0.0..10.0_f32, any::<f32>()];
    let parameter = || (any_u32(), number());
    let scorer = (0..Scorer::ALL.len(), parameter()).prop_map(|(place, (count, share))| {
        match Scorer::ALL[place] {
            Scorer::ActiveRequest { .. } => {
                Scorer::ActiveRequest { idle_threshold: count, max_busy_score: share }
            }
            Scorer::LoadAware { .. } => Scorer::LoadAware { threshold: count },
            Scorer::PrefixCache { .. } => {
                Scorer::PrefixCache { match_length_weight: share, match_length_scale: count }
            }
            Scorer::TokenLoad { .. } => Scorer::TokenLoad { threshold: count },
            scorer => scorer,
        }
    });
    let weighted = (scorer, number()).prop_map(|(scorer, weight)| Weighted { scorer, weight });
    let picker =
        prop_oneof![Just(Picker::MaxScore), Just(Picker::Random), Just(Picker::WeightedRandom)];
    let scorers = (prop::collection::vec(weighted, 0..6), picker)
        .prop_map(|(scorers, picker)| Policy::Scorers { scorers, picker });
    let cost =
        (number(), number(), number(), number()).prop_map(|(first, token, others, margin)| {
            Policy::Cost(Preset { first, token, others, margin })
        });
    let kv_cache = prop_oneof![Just(1.0), 0.0..1.0_f32, any::<f32>()];
    let in_flight = prop_oneof![Just(1024), any::<u32>()];
    let saturation =
        (any::<u32>(), kv_cache, in_flight).prop_map(|(queue_depth, kv_cache, in_flight)| {
            Saturation { queue_depth, kv_cache, in_flight }
        });
    (prop_oneof![scorers, cost], saturation, any_age()).prop_map(
        |(policy, saturation, max_wait)| Profile {
            policy,
            saturation,
            max_wait,
            stale_after: Duration::from_secs(3),
        },
    )
}
