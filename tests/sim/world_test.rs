//! Whole runs: what must hold in each, and what must come out of some. The world itself checks at
//! the end of every run that each request ended once, no KV block is held and nothing is in flight,
//! and at every event that time goes on.

use super::*;
use crate::sim::SCENARIOS;
use crate::sim::figures::Slo;
use crate::sim::scenario::Fault;
use crate::sim::traffic::{Arrivals, Length, Shape};

const SMALL: Scenario = Scenario {
    name: "small",
    fleet: &[("h100", 1), ("l4", 1)],
    times: 1,
    gateways: 1,
    exchange: true,
    rate: 6.0,
    seconds: 30.0,
    arrivals: Arrivals::Poisson,
    shape: Shape::Plain { prompt: Length::Between(100, 1_500), answer: Length::Between(20, 200) },
    max_loras: 0,
    lora_load_us: 0,
    faults: &[],
    slo: Slo { ttft_ms: 1_000.0, tpot_ms: 100.0 },
};

#[test]
fn every_scenario_runs_under_every_policy() {
    for scenario in SCENARIOS {
        let short = Scenario { seconds: 8.0, ..*scenario };
        for policy in Name::ALL {
            let figures = run(&short, policy, 1);
            let answered = figures.requests - figures.rejected - figures.failed;
            assert!(answered > 0.0, "{} {policy:?}: {figures:?}", scenario.name);
            assert!(figures.ttft_ms.p50 > 0.0 && figures.ttft_ms.p50 <= figures.ttft_ms.p99);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    for policy in Name::ALL {
        let first = run(&SMALL, policy, 4);
        assert_eq!(first, run(&SMALL, policy, 4), "{policy:?}");
        assert_ne!(first, run(&SMALL, policy, 5), "{policy:?}");
    }
}

#[test]
fn all_policies_get_the_same_requests() {
    let requests = Name::ALL.map(|policy| run(&SMALL, policy, 1).requests);
    assert!(requests.iter().all(|count| *count == requests[0]), "{requests:?}");
}

#[test]
fn round_robin_loses_where_pods_differ() {
    let round_robin = run(&SMALL, Name::RoundRobin, 1);
    for policy in [Name::LeastRequest, Name::SluiceLatency] {
        let other = run(&SMALL, policy, 1);
        assert!(other.ttft_ms.p95 < round_robin.ttft_ms.p95 / 2.0, "{policy:?}");
        assert!(other.tokens_per_s > round_robin.tokens_per_s, "{policy:?}");
        assert!(other.goodput > round_robin.goodput, "{policy:?}");
    }
}

#[test]
fn a_cache_is_hit_where_prompts_are_sent_to_what_they_share() {
    let shape = Shape::Groups {
        groups: 8,
        shared: 1_600,
        own: Length::Fixed(64),
        answer: Length::Fixed(20),
    };
    let scenario = Scenario { fleet: &[("l4", 4)], rate: 2.0, shape, ..SMALL };
    let random = run(&scenario, Name::Random, 1);
    let product = run(&scenario, Name::PrefillBatchProduct, 1);
    assert!(product.hit_rate > random.hit_rate + 0.1, "{} {}", product.hit_rate, random.hit_rate);
    assert!(product.hit_rate < 0.97, "no more than what is shared");
}

#[test]
fn what_a_dying_pod_had_begun_fails_and_the_rest_goes_elsewhere() {
    let faults = &[Fault { at: 0.5, pod: 0, what: Trouble::Dies }];
    let scenario = Scenario { fleet: &[("h100", 3)], rate: 20.0, faults, ..SMALL };
    for policy in Name::ALL {
        let figures = run(&scenario, policy, 1);
        assert!((1.0..40.0).contains(&figures.failed), "{policy:?}: {}", figures.failed);
        assert_eq!(figures.rejected, 0.0, "{policy:?}");
    }
    let faults = &[Fault { at: 0.5, pod: 0, what: Trouble::Dies }];
    let alone = Scenario { fleet: &[("h100", 1)], rate: 20.0, faults, ..SMALL };
    let figures = run(&alone, Name::RoundRobin, 1);
    assert!(figures.failed > 0.4 * figures.requests, "nobody is left");
}

#[test]
fn a_slow_pod_is_slow() {
    let faults = &[Fault { at: 0.0, pod: 0, what: Trouble::Slow(5.0) }];
    let well = Scenario { fleet: &[("h100", 2)], ..SMALL };
    let ill = Scenario { faults, ..well };
    let (well, ill) = (run(&well, Name::Random, 1), run(&ill, Name::Random, 1));
    assert!(ill.tpot_ms.p99 > 3.0 * well.tpot_ms.p99);
    assert!(ill.imbalance > well.imbalance);
}

#[test]
fn a_thousand_pods_and_sixteen_gateways() {
    let fleet = &[("h100", 600), ("l40s", 400)];
    let shape = Shape::Plain { prompt: Length::Between(50, 500), answer: Length::Fixed(4) };
    let large = Scenario { fleet, gateways: 16, rate: 2_000.0, seconds: 0.3, shape, ..SMALL };
    for policy in [Name::ReferenceDefault, Name::SluiceLatency] {
        let figures = run(&large, policy, 1);
        assert!(figures.requests > 400.0 && figures.rejected == 0.0, "{figures:?}");
        assert!(figures.ttft_ms.p99 < 1_000.0, "nobody need wait: {figures:?}");
    }
}

#[test]
fn gateways_that_exchange_find_each_others_prefixes() {
    let with = |exchange| Scenario {
        exchange,
        seconds: 20.0,
        ..*Scenario::named("h-prefix-8b-x8").unwrap()
    };
    let [told, silent] = [true, false].map(|exchange| run(&with(exchange), Name::SluiceLatency, 1));
    assert!(told.hit_rate > silent.hit_rate + 0.1, "{} {}", told.hit_rate, silent.hit_rate);
}
