//! What speaks for a pod: each scorer gives every candidate 0..1, one file each.
//!
//! A scorer sees all candidates at once, as some compare them. It writes one value for each, side
//! by side; one that it does not write stays [`NEUTRAL`]. Names, formulas and parameters are those of
//! the scorers that users know from the Gateway API inference extension and its successor, unless a
//! file says where and why it departs. One difference runs through all: unknown is neutral here, and
//! neither idle nor busy.

use super::{Candidate, Demand};

pub mod active_request;
pub mod context_length_aware;
pub mod kv_cache_utilization;
pub mod load_aware;
pub mod lora_affinity;
pub mod no_hit_lru;
pub mod prefix_cache;
pub mod queue;
pub mod running_requests;
pub mod session_affinity;
pub mod token_load;

/// One reason to prefer a pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scorer {
    /// Few requests of this gateway in flight.
    ActiveRequest {
        /// Up to so many are as good as none.
        idle_threshold: u32,
        /// The most that a pod above that may have.
        max_busy_score: f32,
    },
    /// The prompt's length is what the pod is meant for.
    ContextLengthAware,
    /// Free KV cache.
    KvCacheUtilization,
    /// A short queue, whatever the others' are.
    LoadAware {
        /// A queue this long has 0.
        threshold: u32,
    },
    /// The request's adapter is resident.
    LoraAffinity,
    /// For a prompt that nobody has cached: long without such a prompt.
    NoHitLru,
    /// The prompt's beginning is cached.
    PrefixCache {
        /// How much the length of the match counts, 0..1; the rest goes by its share of the prompt.
        match_length_weight: f32,
        /// A match of so many tokens is as good as any longer one.
        match_length_scale: u32,
    },
    /// A short queue, against the others'.
    Queue,
    /// Few requests running, against the others.
    RunningRequests,
    /// The request's session has been served there.
    SessionAffinity,
    /// Few tokens of this gateway in flight.
    TokenLoad {
        /// So many have 0.
        threshold: u32,
    },
}

/// A scorer and what it counts for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weighted {
    /// The scorer.
    pub scorer: Scorer,
    /// Its factor in the sum; 0 leaves it out, and so does what is no number above 0.
    pub weight: f32,
}

impl Scorer {
    /// Every scorer, with its default parameters, by name.
    pub const ALL: [Self; 11] = [
        Self::ActiveRequest { idle_threshold: 0, max_busy_score: 1.0 },
        Self::ContextLengthAware,
        Self::KvCacheUtilization,
        Self::LoadAware { threshold: 128 },
        Self::LoraAffinity,
        Self::NoHitLru,
        Self::PrefixCache { match_length_weight: 0.0, match_length_scale: 8192 },
        Self::Queue,
        Self::RunningRequests,
        Self::SessionAffinity,
        Self::TokenLoad { threshold: 4_194_304 },
    ];

    /// Its name in configuration, status and docs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::ActiveRequest { .. } => "active-request",
            Self::ContextLengthAware => "context-length-aware",
            Self::KvCacheUtilization => "kv-cache-utilization",
            Self::LoadAware { .. } => "load-aware",
            Self::LoraAffinity => "lora-affinity",
            Self::NoHitLru => "no-hit-lru",
            Self::PrefixCache { .. } => "prefix-cache",
            Self::Queue => "queue",
            Self::RunningRequests => "running-requests",
            Self::SessionAffinity => "session-affinity",
            Self::TokenLoad { .. } => "token-load",
        }
    }

    /// A scorer with its default parameters by its name, also as the reference picker writes it
    /// (`queue-scorer`, `running-requests-size-scorer`).
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.strip_suffix("-scorer").unwrap_or(name);
        let name = if name == "running-requests-size" { "running-requests" } else { name };
        Self::ALL.into_iter().find(|scorer| scorer.name() == name)
    }

    /// Writes 0..1 for each candidate. `order` is memory to use.
    pub fn score(
        &self,
        demand: &Demand,
        candidates: &[Candidate],
        scores: &mut [f32],
        order: &mut Vec<u32>,
    ) {
        match *self {
            Self::ActiveRequest { idle_threshold, max_busy_score } => {
                active_request::score(candidates, idle_threshold, max_busy_score, scores);
            }
            Self::ContextLengthAware => context_length_aware::score(demand, candidates, scores),
            Self::KvCacheUtilization => kv_cache_utilization::score(candidates, scores),
            Self::LoadAware { threshold } => load_aware::score(candidates, threshold, scores),
            Self::LoraAffinity => lora_affinity::score(candidates, scores),
            Self::NoHitLru => no_hit_lru::score(candidates, scores, order),
            Self::PrefixCache { match_length_weight, match_length_scale } => prefix_cache::score(
                demand,
                candidates,
                match_length_weight,
                match_length_scale,
                scores,
            ),
            Self::Queue => queue::score(candidates, scores),
            Self::RunningRequests => running_requests::score(candidates, scores),
            Self::SessionAffinity => session_affinity::score(candidates, scores),
            Self::TokenLoad { threshold } => {
                token_load::score(demand, candidates, threshold, scores);
            }
        }
    }
}

impl Weighted {
    /// The weight as it counts: a finite number that is not below 0.
    pub fn weight(&self) -> f32 {
        if self.weight > 0.0 { self.weight.min(MOST_WEIGHT) } else { 0.0 }
    }
}

/// The score of what is unknown: neither idle nor busy.
pub const NEUTRAL: f32 = 0.5;

/// The largest weight that counts: a sum of many stays finite.
const MOST_WEIGHT: f32 = 4e9;

/// Scores counts by their place between the smallest and the largest: smallest 1, largest 0, all
/// equal 1.
///
/// Unknown counts take no part and stay as they are: one unknown must not change how the others
/// compare.
fn fewest_first(
    candidates: &[Candidate],
    scores: &mut [f32],
    count: impl Fn(&Candidate) -> Option<u32>,
) {
    let (mut least, mut most) = (u32::MAX, 0);
    for count in candidates.iter().filter_map(&count) {
        least = least.min(count);
        most = most.max(count);
    }
    let span = most.saturating_sub(least) as f32;
    for (candidate, score) in candidates.iter().zip(scores) {
        if let Some(count) = count(candidate) {
            *score = if span == 0.0 { 1.0 } else { most.saturating_sub(count) as f32 / span };
        }
    }
}

/// Scores `candidates` as [`super::pick`] would, for the scorers' tests.
#[cfg(test)]
fn run(scorer: Scorer, candidates: &[Candidate]) -> Vec<f32> {
    run_for(&Demand::default(), scorer, candidates)
}

/// The same for a request that asks for something.
#[cfg(test)]
fn run_for(demand: &Demand, scorer: Scorer, candidates: &[Candidate]) -> Vec<f32> {
    let mut scores = vec![NEUTRAL; candidates.len()];
    scorer.score(demand, candidates, &mut scores, &mut Vec::new());
    scores
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scorer_is_found_by_its_names() {
        for scorer in Scorer::ALL {
            assert_eq!(Scorer::from_name(scorer.name()), Some(scorer));
            assert_eq!(Scorer::from_name(&format!("{}-scorer", scorer.name())), Some(scorer));
        }
        assert_eq!(
            Scorer::from_name("running-requests-size-scorer"),
            Some(Scorer::RunningRequests)
        );
        for name in ["", "Queue", "queue-", "latency-scorer", "-scorer"] {
            assert_eq!(Scorer::from_name(name), None, "{name}");
        }
        assert!(Scorer::ALL.is_sorted_by_key(|scorer| scorer.name()));
    }

    #[test]
    fn a_weight_is_a_number_of_use() {
        for (weight, expected) in [
            (0.0, 0.0),
            (2.5, 2.5),
            (-1.0, 0.0),
            (f32::NAN, 0.0),
            (f32::NEG_INFINITY, 0.0),
            (f32::INFINITY, MOST_WEIGHT),
        ] {
            assert_eq!(Weighted { scorer: Scorer::Queue, weight }.weight(), expected, "{weight}");
        }
    }
}
