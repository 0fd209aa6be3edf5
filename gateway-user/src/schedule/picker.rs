//! Which of the scored pods is taken.
//!
//! Always the first of equals would send every request to one pod of an idle pool; the lot is drawn
//! anew each time from the caller's generator, so that a run can be replayed.

use std::cmp::Reverse;

use super::cost::Preset;
use super::{Candidate, Demand, Estimate, PodView};

/// How scores lead to a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Picker {
    /// The highest score, equals by lot.
    #[default]
    MaxScore,
    /// Any pod, whatever its score.
    Random,
    /// A lot in which each pod counts for its score.
    WeightedRandom,
}

impl Picker {
    /// Its name in configuration and docs.
    pub fn name(self) -> &'static str {
        match self {
            Self::MaxScore => "max-score",
            Self::Random => "random",
            Self::WeightedRandom => "weighted-random",
        }
    }

    /// A picker by its name, with or without `-picker` behind it.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.strip_suffix("-picker").unwrap_or(name);
        [Self::MaxScore, Self::Random, Self::WeightedRandom]
            .into_iter()
            .find(|picker| picker.name() == name)
    }

    /// The place of the taken score; those within `slack` of the highest are equal. `None` without scores.
    pub fn pick(self, scores: &[f32], slack: f32, rng: &mut fastrand::Rng) -> Option<usize> {
        match self {
            Self::MaxScore => max_score(scores, slack, rng),
            Self::Random => (!scores.is_empty()).then(|| rng.usize(..scores.len())),
            Self::WeightedRandom => weighted_random(scores, rng),
        }
    }
}

/// The place of one of the highest scores; those within `slack` of the highest are equal. `None`
/// without scores.
pub fn max_score(scores: &[f32], slack: f32, rng: &mut fastrand::Rng) -> Option<usize> {
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    by_lot(scores, |_, score| score >= highest - slack, rng)
}

/// The place of one of the scores by a lot in which each counts for itself. Where none is above 0, all
/// count alike.
pub fn weighted_random(scores: &[f32], rng: &mut fastrand::Rng) -> Option<usize> {
    let counts = |score: f32| if score > 0.0 { score } else { 0.0 };
    let sum: f32 = scores.iter().copied().map(counts).sum();
    if !(sum > 0.0 && sum.is_finite()) {
        return Picker::Random.pick(scores, 0.0, rng);
    }
    let mut left = rng.f32() * sum;
    let mut last = None;
    for (place, score) in scores.iter().copied().map(counts).enumerate() {
        if score == 0.0 {
            continue;
        }
        // What rounding leaves over falls to the last one.
        last = Some(place);
        if left < score {
            break;
        }
        left -= score;
    }
    last
}

/// The place of one of the cheapest candidates: those within the preset's margin of the least cost are equal,
/// the more so the larger the share of the load that is other gateways' (`others`).
///
/// A prompt that none of these has cached goes to the one of them where the last such prompt was sent longest
/// ago; or, where there are other gateways, to the one that all of them would choose: each knows only
/// what it has sent itself, and together they would else fill every pod with each prefix.
pub(super) fn cheapest(
    pods: &[PodView],
    demand: &Demand,
    preset: &Preset,
    candidates: &[Candidate],
    costs: &[f32],
    others: f32,
    rng: &mut fastrand::Rng,
) -> Option<usize> {
    let best = candidates.iter().zip(costs).min_by(|a, b| a.1.total_cmp(b.1))?;
    let Estimate { ahead, prefill, .. } = best.0.estimate;
    let margin = preset.margin.clamp(0.0, 1.0) * others * preset.first * (ahead + prefill);
    let most = best.1 + margin.max(0.0) + NOISE;
    let near = |cost: f32| cost <= most;
    let is_cold = || {
        candidates
            .iter()
            .zip(costs)
            .all(|(candidate, &cost)| !near(cost) || candidate.cached_tokens == 0)
    };
    let Some(prefix) = demand.prefix.filter(|_| is_cold()) else {
        return less_busy(candidates, costs, near, rng);
    };
    let equal = candidates.iter().zip(costs).enumerate().filter(|&(_, (_, &cost))| near(cost));
    let equal = equal.map(|(place, (candidate, _))| (place, candidate));
    let lot = |candidate: &Candidate| {
        let pod = pods.get(candidate.index);
        Reverse(pod.map(|pod| mixed(prefix, pod.key)))
    };
    let chosen = if others < ALONE {
        // More prompts that begin alike will follow this one: beginnings are spread over the pods. Where none
        // has come yet, not from the first pod on: gateways that have just begun would go in step.
        equal.min_by_key(|(_, candidate)| (candidate.last_used, lot(candidate)))
    } else {
        equal.min_by_key(|(_, candidate)| lot(candidate))
    };
    chosen.map(|(place, _)| place)
}

/// Of two equal ones by lot that with less to do: the lot keeps gateways apart, and what is known still counts.
fn less_busy(
    candidates: &[Candidate],
    costs: &[f32],
    near: impl Fn(f32) -> bool,
    rng: &mut fastrand::Rng,
) -> Option<usize> {
    let first = by_lot(costs, |_, cost| near(cost), rng)?;
    let second = by_lot(costs, |place, cost| place != first && near(cost), rng);
    let busy = |place: usize| candidates.get(place).map_or(0.0, |of| of.estimate.running);
    Some(second.filter(|&second| busy(second) < busy(first)).unwrap_or(first))
}

/// The place of one of the scores that are `equal`, drawn evenly.
fn by_lot(
    scores: &[f32],
    equal: impl Fn(usize, f32) -> bool,
    rng: &mut fastrand::Rng,
) -> Option<usize> {
    let places = || scores.iter().enumerate().filter(|&(place, &score)| equal(place, score));
    let count = places().count();
    if count == 0 {
        return None;
    }
    let lot = if count == 1 { 0 } else { rng.usize(..count) };
    places().nth(lot).map(|(place, _)| place)
}

/// A number that is spread evenly over all pairs: two rounds of multiplying and folding.
fn mixed(prefix: u64, key: u64) -> u64 {
    let round = |value: u64| {
        let value = (value ^ (value >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        value ^ (value >> 29)
    };
    round(round(prefix).wrapping_add(key))
}

/// Costs closer than this, in seconds, are equal: no estimate is that exact.
const NOISE: f32 = 0.004;

/// The share of the load that is other gateways' below which there is none: scrapes show requests late, and
/// two gateways have half of the load each.
const ALONE: f32 = 0.25;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_highest() {
        let mut rng = fastrand::Rng::with_seed(1);
        let table: [(&[f32], Option<usize>); 4] = [
            (&[], None),
            (&[0.0], Some(0)),
            (&[1.0, 3.0, 2.0], Some(1)),
            (&[1.0, 2.0, 2.1], Some(2)),
        ];
        for (scores, expected) in table {
            for _ in 0..20 {
                assert_eq!(max_score(scores, 1e-5, &mut rng), expected, "{scores:?}");
            }
        }
    }

    #[test]
    fn equals_are_drawn_evenly() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut counts = [0_u32; 5];
        for _ in 0..30_000 {
            counts[max_score(&[2.0, 1.0, 2.0, 1.999_999_9, 0.0], 1e-5, &mut rng).unwrap()] += 1;
        }
        assert_eq!((counts[1], counts[4]), (0, 0));
        for count in [counts[0], counts[2], counts[3]] {
            // Six standard deviations of a fair draw.
            assert!(count.abs_diff(10_000) < 490, "{counts:?}");
        }
    }

    #[test]
    fn a_weighted_lot_goes_by_the_scores() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut draw = |scores: &[f32]| {
            let mut counts = vec![0_u32; scores.len()];
            for _ in 0..10_000 {
                counts[weighted_random(scores, &mut rng).unwrap()] += 1;
            }
            counts
        };
        let counts = draw(&[1.0, 0.0, 3.0, -2.0, f32::NAN]);
        assert!(counts[0].abs_diff(2500) < 260, "{counts:?}");
        assert_eq!((counts[1], counts[3], counts[4]), (0, 0, 0));
        // All alike where none counts.
        for scores in [[0.0, 0.0], [-1.0, f32::NAN], [f32::INFINITY, 1.0]] {
            assert!(draw(&scores)[0].abs_diff(5000) < 300, "{scores:?}");
        }
        assert_eq!(weighted_random(&[], &mut rng), None);
    }

    #[test]
    fn pickers_are_found_by_their_names() {
        for picker in [Picker::MaxScore, Picker::Random, Picker::WeightedRandom] {
            assert_eq!(Picker::from_name(picker.name()), Some(picker));
            assert_eq!(Picker::from_name(&format!("{}-picker", picker.name())), Some(picker));
        }
        assert_eq!(Picker::from_name("best"), None);
        assert_eq!(Picker::Random.pick(&[], 0.0, &mut fastrand::Rng::with_seed(1)), None);
    }

    #[test]
    fn the_margin_is_for_what_others_may_have_sent() {
        let candidate = |prefill| {
            let estimate = crate::schedule::Estimate { prefill, ..Default::default() };
            Candidate { estimate, ..Candidate::default() }
        };
        let candidates = [candidate(1.0), candidate(1.05), candidate(1.3)];
        let pods = [PodView::default(); 3];
        let preset = Preset { margin: 0.1, ..Preset::LATENCY };
        let mut rng = fastrand::Rng::with_seed(3);
        for (others, most) in [(0.0, 1), (0.9, 2)] {
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..100 {
                let costs = [1.0, 1.05, 1.3];
                let demand = Demand::default();
                let place =
                    cheapest(&pods, &demand, &preset, &candidates, &costs, others, &mut rng);
                seen.extend(place);
            }
            assert_eq!(seen.len(), most, "{others}");
        }
    }

    #[test]
    fn of_equal_pods_the_less_busy_is_likelier_and_the_busiest_never_taken() {
        let running = |running| {
            let estimate = Estimate { running, ..Estimate::default() };
            Candidate { estimate, ..Candidate::default() }
        };
        let candidates = [3.0, 0.0, 1.0, 9.0].map(running);
        let mut rng = fastrand::Rng::with_seed(3);
        let mut counts = [0_u32; 4];
        for _ in 0..12_000 {
            counts[less_busy(&candidates, &[1.0; 4], |_| true, &mut rng).unwrap()] += 1;
        }
        // Pairs of two different ones, all as likely: three of six have the least one in them.
        for (count, expected) in counts.into_iter().zip([2000, 6000, 4000, 0]) {
            assert!(count.abs_diff(expected) < 330, "{counts:?}");
        }
        assert_eq!(less_busy(&candidates, &[1.0; 4], |_| false, &mut rng), None);
    }

    #[test]
    fn gateways_agree_on_where_a_cold_prompt_goes() {
        let pods: Vec<PodView> =
            (1..9).map(|key| PodView { key: key * 0x9e37_79b9, ..PodView::default() }).collect();
        let mut candidates: Vec<Candidate> =
            (0..8).map(|index| Candidate { index, ..Candidate::default() }).collect();
        let ask = |candidates: &[Candidate], prefix, seed| {
            let demand = Demand { prefix: Some(prefix), ..Demand::default() };
            let mut rng = fastrand::Rng::with_seed(seed);
            cheapest(&pods, &demand, &Preset::LATENCY, candidates, &[1.0; 8], 0.5, &mut rng)
        };
        let mut counts = [0_u32; 8];
        for prefix in 0..800 {
            let place = ask(&candidates, prefix, 1).unwrap();
            assert_eq!(ask(&candidates, prefix, 2), Some(place));
            counts[place] += 1;
        }
        assert!(counts.iter().all(|count| (60..=140).contains(count)), "{counts:?}");
        // Not once any of them has it.
        candidates[3].cached_tokens = 64;
        let places: std::collections::BTreeSet<_> =
            (0..50).filter_map(|seed| ask(&candidates, 5, seed)).collect();
        assert!(places.len() > 1);
    }
}
