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

/// The defaults.
pub(super) fn profile() -> Profile {
    Profile {
        weights: Weights {
            queue: 2,
            kv_cache: 2,
            running_requests: 1,
            active_request: 2,
            lora_affinity: 4,
        },
        saturation: Saturation { queue_depth: 128, kv_cache: 1.0, in_flight: 1024 },
        stale_after: Duration::from_secs(3),
    }
}

/// Sends `requests` with no scrape in between, each reserved as it is picked; how many each pod
/// got.
fn send(pods: &mut [PodView], profile: &Profile, requests: usize, seed: u64) -> Vec<u32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut scratch = Scratch::default();
    let mut counts = vec![0; pods.len()];
    for _ in 0..requests {
        let pick = pick(pods, profile, &mut rng, &mut scratch).unwrap();
        pods[pick.index].in_flight += 1;
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
        counts[pick(pods, profile, &mut rng, &mut scratch).unwrap().index] += 1;
    }
    counts
}

#[test]
fn a_burst_on_idle_pods_is_spread() {
    for seed in 0..50 {
        let counts = send(&mut [idle(); 4], &profile(), 100, seed);
        assert!(counts.iter().all(|count| (20..=30).contains(count)), "seed {seed}: {counts:?}");
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
    let mut profile = profile();
    profile.weights =
        Weights { queue: 0, kv_cache: 2, running_requests: 0, active_request: 2, lora_affinity: 0 };
    let counts = draw(&[full; 4], &profile, 4_000);
    assert!(counts.iter().all(|count| count.abs_diff(1_000) < 170), "{counts:?}");
}

#[test]
fn a_never_scraped_pod_gets_nothing_beside_fresh_ones() {
    let mut pods = [idle(), PodView { age: None, signals: Signals::default(), ..idle() }, idle()];
    pods[0].signals.waiting = Some(100);
    pods[2].signals.kv_usage = Some(0.97);
    assert_eq!(send(&mut pods, &profile(), 500, 3)[1], 0);
}

#[test]
fn a_never_scraped_pod_serves_when_the_others_are_full() {
    let mut full = idle();
    full.signals.waiting = Some(128);
    let unknown = PodView { age: None, signals: Signals::default(), ..idle() };
    assert_eq!(send(&mut [full, unknown, full], &profile(), 50, 3), [0, 50, 0]);
}

#[test]
fn a_stuck_kv_gauge_does_not_take_everything() {
    for (stuck, honest) in [(0.0, 0.5), (0.9, 0.1), (1.0, 0.5)] {
        let mut pods = [idle(); 4];
        for pod in &mut pods {
            pod.signals.kv_usage = Some(honest);
        }
        pods[0].signals.kv_usage = Some(stuck);
        let counts = send(&mut pods, &profile(), 400, 5);
        assert!(counts.iter().all(|count| (20..=200).contains(count)), "{stuck}: {counts:?}");
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
    let mut ask = |pods: &[PodView]| pick(pods, &profile(), &mut rng, &mut scratch).unwrap_err();
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
    profile.weights.running_requests = 0;
    let pages = explain(&pods, &profile, &mut Scratch::default());
    let tiers: Vec<Tier> = pages.iter().map(|page| page.tier).collect();
    assert_eq!(tiers, [Tier::Fresh, Tier::Unknown, Tier::Fresh, Tier::NotReady]);
    assert_eq!(pages[0].scores, [Some(1.0), Some(0.5), None, Some(0.0), Some(1.0)]);
    assert_eq!(pages[0].score, Some(2.0 + 1.0 + 0.0 + 4.0));
    assert_eq!(pages[2].score, Some(10.0));
    assert_eq!((pages[1].score, pages[1].scores), (None, [None; SCORERS.len()]));
    let picked =
        pick(&pods, &profile, &mut fastrand::Rng::with_seed(1), &mut Scratch::default()).unwrap();
    assert_eq!(picked, Pick { index: 2, score: 10.0 });
}

#[test]
fn a_warm_pick_does_not_allocate() {
    let mut scratch = Scratch::default();
    let mut rng = fastrand::Rng::with_seed(1);
    let pods = [idle(); 64];
    let mut memory = || {
        pick(&pods, &profile(), &mut rng, &mut scratch).unwrap();
        let Scratch { candidates, totals, column } = &scratch;
        (
            (candidates.as_ptr(), totals.as_ptr(), column.as_ptr()),
            (candidates.capacity(), totals.capacity(), column.capacity()),
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
    pick(&[idle(); 64], &profile(), &mut rng, &mut scratch).unwrap();
    for _ in 0..50 {
        assert!(pick(&[idle(); 2], &profile(), &mut rng, &mut scratch).unwrap().index < 2);
    }
    assert_eq!(pick(&[], &profile(), &mut rng, &mut scratch), Err(NoPod::Empty));
}

proptest! {
    /// Whatever pods say and however a profile is set: a score within bounds, and never a pod that
    /// was filtered out.
    #[test]
    fn no_input_breaks_a_pick(
        pods in prop::collection::vec(any_pod(), 0..24),
        profile in any_profile(),
        seed: u64,
    ) {
        let mut scratch = Scratch::default();
        let most = weight_sum(&profile.weights);
        let pages = explain(&pods, &profile, &mut scratch);
        prop_assert_eq!(pages.len(), pods.len());
        for score in pages.iter().filter_map(|page| page.score) {
            prop_assert!((0.0..=most).contains(&score), "{} of {}", score, most);
        }
        for score in pages.iter().flat_map(|page| page.scores).flatten() {
            prop_assert!((0.0..=1.0).contains(&score), "{}", score);
        }
        let best = pages.iter().map(|page| page.tier).min();
        match pick(&pods, &profile, &mut fastrand::Rng::with_seed(seed), &mut scratch) {
            Ok(pick) => {
                let page = &pages[pick.index];
                prop_assert!(page.tier < Tier::Saturated);
                prop_assert_eq!(Some(page.tier), best);
                prop_assert_eq!(page.score, Some(pick.score));
                let highest = pages.iter().filter_map(|page| page.score).fold(0.0, f32::max);
                prop_assert!(pick.score >= highest - TIE * most);
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
    let count = || prop::option::of(prop_oneof![0..300_u32, Just(u32::MAX), any::<u32>()]);
    let kv_usage = prop_oneof![
        0.0..=1.0_f32,
        any::<f32>(),
        Just(f32::NAN),
        Just(f32::INFINITY),
        Just(f32::MAX),
        Just(-1.0),
    ];
    let signals = (prop::option::of(kv_usage), count(), count(), count(), count()).prop_map(
        |(kv_usage, waiting, running, adapter_slots, adapters_active)| Signals {
            kv_usage,
            waiting,
            running,
            adapter_slots,
            adapters_active,
        },
    );
    let age = prop::option::of(prop_oneof![
        (0..6_000_u64).prop_map(Duration::from_millis),
        Just(Duration::MAX)
    ]);
    let adapter = prop_oneof![
        Just(AdapterFit::NotNeeded),
        Just(AdapterFit::Active),
        Just(AdapterFit::Loaded),
        Just(AdapterFit::Absent),
    ];
    let in_flight = prop_oneof![0..20_u32, any::<u32>()];
    (prop::bool::weighted(0.8), prop::bool::weighted(0.2), in_flight, signals, age, adapter)
        .prop_map(|(ready, tried, in_flight, signals, age, adapter)| PodView {
            ready,
            tried,
            in_flight,
            signals,
            age,
            adapter,
        })
}

fn any_profile() -> impl Strategy<Value = Profile> {
    let weight = || prop_oneof![Just(0_u32), 1..10_u32, any::<u32>()];
    let weights = (weight(), weight(), weight(), weight(), weight()).prop_map(
        |(queue, kv_cache, running_requests, active_request, lora_affinity)| Weights {
            queue,
            kv_cache,
            running_requests,
            active_request,
            lora_affinity,
        },
    );
    let kv_cache = prop_oneof![Just(1.0), 0.0..1.0_f32, any::<f32>()];
    let in_flight = prop_oneof![Just(1024), any::<u32>()];
    let saturation =
        (any::<u32>(), kv_cache, in_flight).prop_map(|(queue_depth, kv_cache, in_flight)| {
            Saturation { queue_depth, kv_cache, in_flight }
        });
    (weights, saturation).prop_map(|(weights, saturation)| Profile {
        weights,
        saturation,
        stale_after: Duration::from_secs(3),
    })
}
