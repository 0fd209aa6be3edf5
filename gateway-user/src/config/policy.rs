//! Weights and profiles to what the scheduler goes by, and back.

use super::document::{
    ActiveRequestParameters, Cost, LoadAwareParameters, PrefixParameters, Profile,
    ScorerParameters, TokenLoadParameters, WeightMap, exact,
};
use crate::schedule::{Picker, Policy, Preset, Scorer, Weighted};

/// Profiles that need no entry in `spec.profiles`.
pub(super) const BUILT_IN: [(&str, Preset); 2] =
    [("latency", Preset::LATENCY), ("throughput", Preset::THROUGHPUT)];

/// The policy of a profile in `spec.profiles`.
pub(super) fn of_profile(profile: &Profile) -> Policy {
    let Profile { name: _, cost, weights, parameters, picker } = profile;
    match cost {
        Some(cost) => Policy::Cost(preset(*cost)),
        None => of_weights(
            &weights.unwrap_or_default(),
            &parameters.unwrap_or_default(),
            picker.map_or(Picker::MaxScore, Picker::from),
        ),
    }
}

/// The policy of a map of weights. Those of 0 are left out.
pub(super) fn of_weights(
    weights: &WeightMap,
    parameters: &ScorerParameters,
    picker: Picker,
) -> Policy {
    let scorers = scorers(weights, parameters)
        .into_iter()
        .map(|(scorer, weight)| Weighted { scorer, weight: weight as f32 })
        .filter(|weighted| weighted.weight > 0.0)
        .collect();
    Policy::Scorers { scorers, picker }
}

/// A policy as a profile that means the same.
pub(super) fn to_profile(name: &str, policy: &Policy) -> Profile {
    let (cost, weights, parameters, picker) = match policy {
        Policy::Cost(preset) => (Some(Cost::from(*preset)), None, None, None),
        Policy::Scorers { scorers, picker } => {
            let (weights, parameters) = to_weights(scorers);
            (None, Some(weights), Some(parameters), Some((*picker).into()))
        }
    };
    Profile { name: name.to_owned(), cost, weights, parameters, picker }
}

/// Scorers as the maps that mean the same.
pub(super) fn to_weights(scorers: &[Weighted]) -> (WeightMap, ScorerParameters) {
    let mut weights = WeightMap::NONE;
    let mut parameters = ScorerParameters::default();
    for Weighted { scorer, weight } in scorers {
        let slot = match *scorer {
            Scorer::ActiveRequest { idle_threshold, max_busy_score } => {
                let max_busy_score = exact(max_busy_score);
                parameters.active_request =
                    ActiveRequestParameters { idle_threshold, max_busy_score };
                &mut weights.active_request
            }
            Scorer::ContextLengthAware => &mut weights.context_length,
            Scorer::KvCacheUtilization => &mut weights.kv_cache,
            Scorer::LoadAware { threshold } => {
                parameters.load_aware = LoadAwareParameters { threshold };
                &mut weights.load_aware
            }
            Scorer::LoraAffinity => &mut weights.lora_affinity,
            Scorer::NoHitLru => &mut weights.lru,
            Scorer::PrefixCache { match_length_weight, match_length_scale } => {
                parameters.prefix = PrefixParameters {
                    match_length_weight: exact(match_length_weight),
                    match_length_scale_tokens: match_length_scale,
                };
                &mut weights.prefix
            }
            Scorer::Queue => &mut weights.queue,
            Scorer::RunningRequests => &mut weights.running_requests,
            Scorer::SessionAffinity => &mut weights.session,
            Scorer::TokenLoad { threshold } => {
                parameters.token_load = TokenLoadParameters { queue_threshold_tokens: threshold };
                &mut weights.token_load
            }
        };
        *slot = exact(*weight);
    }
    (weights, parameters)
}

/// Every scorer, in one order whatever was written first.
fn scorers(weights: &WeightMap, parameters: &ScorerParameters) -> [(Scorer, f64); 11] {
    let ScorerParameters { active_request, load_aware, prefix, token_load } = parameters;
    let active = Scorer::ActiveRequest {
        idle_threshold: active_request.idle_threshold,
        max_busy_score: active_request.max_busy_score as f32,
    };
    let prefix = Scorer::PrefixCache {
        match_length_weight: prefix.match_length_weight as f32,
        match_length_scale: prefix.match_length_scale_tokens,
    };
    [
        (Scorer::Queue, weights.queue),
        (Scorer::KvCacheUtilization, weights.kv_cache),
        (prefix, weights.prefix),
        (Scorer::RunningRequests, weights.running_requests),
        (active, weights.active_request),
        (Scorer::LoraAffinity, weights.lora_affinity),
        (Scorer::NoHitLru, weights.lru),
        (Scorer::TokenLoad { threshold: token_load.queue_threshold_tokens }, weights.token_load),
        (Scorer::LoadAware { threshold: load_aware.threshold }, weights.load_aware),
        (Scorer::SessionAffinity, weights.session),
        (Scorer::ContextLengthAware, weights.context_length),
    ]
}

fn preset(cost: Cost) -> Preset {
    let Cost { first_token, tokens, others, margin } = cost;
    Preset {
        first: first_token as f32,
        token: tokens as f32,
        others: others as f32,
        margin: margin as f32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_reads_back_from_its_profile() {
        let all = Scorer::ALL.map(|scorer| Weighted { scorer, weight: 0.3 }).to_vec();
        let WeightMap { queue, .. } = to_weights(&all).0;
        assert_eq!(queue, 0.3);
        let some = vec![
            Weighted {
                scorer: Scorer::PrefixCache { match_length_weight: 0.1, match_length_scale: 7 },
                weight: 2.5,
            },
            Weighted {
                scorer: Scorer::ActiveRequest { idle_threshold: 3, max_busy_score: 0.7 },
                weight: 1.0,
            },
            Weighted { scorer: Scorer::TokenLoad { threshold: 9 }, weight: 1.0 },
            Weighted { scorer: Scorer::LoadAware { threshold: 11 }, weight: 1.0 },
        ];
        let policies = [
            Policy::Cost(Preset::LATENCY),
            Policy::Cost(Preset { first: 0.1, token: 0.2, others: 0.3, margin: 0.7 }),
            Policy::Scorers { scorers: Vec::new(), picker: Picker::Random },
            Policy::Scorers { scorers: some, picker: Picker::WeightedRandom },
        ];
        for policy in policies {
            assert_eq!(of_profile(&to_profile("p", &policy)), policy);
        }
    }
}
