//! What speaks for a pod: each scorer gives every candidate 0..1, one file each.
//!
//! A scorer sees all candidates at once, as some compare them. It writes one value for each, side
//! by side; one that it does not write stays [`NEUTRAL`]. The formulas are those of the Gateway API
//! inference extension's scorers of the same names, unless a file says where and why it departs.

use crate::config::Weights;

use super::Candidate;

pub mod active_request;
pub mod kv_cache_utilization;
pub mod lora_affinity;
pub mod queue;
pub mod running_requests;

/// One reason to prefer a pod.
#[derive(Clone, Copy, Debug)]
pub struct Scorer {
    /// Its name in configuration, status and docs.
    pub name: &'static str,
    /// What it counts for; 0 leaves it out.
    pub weight: fn(&Weights) -> u32,
    /// Writes 0..1 for each candidate.
    pub score: fn(&[Candidate], &mut [f32]),
}

/// Every scorer.
pub const SCORERS: [Scorer; 5] = [
    Scorer { name: "queue", weight: |weights| weights.queue, score: queue::score },
    Scorer {
        name: "kv-cache-utilization",
        weight: |weights| weights.kv_cache,
        score: kv_cache_utilization::score,
    },
    Scorer {
        name: "running-requests",
        weight: |weights| weights.running_requests,
        score: running_requests::score,
    },
    Scorer {
        name: "active-request",
        weight: |weights| weights.active_request,
        score: active_request::score,
    },
    Scorer {
        name: "lora-affinity",
        weight: |weights| weights.lora_affinity,
        score: lora_affinity::score,
    },
];

/// The score of what is unknown: neither idle nor busy.
pub const NEUTRAL: f32 = 0.5;

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
fn run(scorer: fn(&[Candidate], &mut [f32]), candidates: &[Candidate]) -> Vec<f32> {
    let mut scores = vec![NEUTRAL; candidates.len()];
    scorer(candidates, &mut scores);
    scores
}
