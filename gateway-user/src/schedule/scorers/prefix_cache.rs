//! A pod that has the prompt's beginning in its cache is better: it need not compute that again.
//!
//! With r = cached / prompt, in tokens: `w * min(1, cached / scale)^2 + (1 - w) * r`, where `w` is
//! `match_length_weight` (0) and `scale` is `match_length_scale` (8192). Of a prompt of unknown length, or
//! where nothing is cached, 0.

use super::Candidate;
use crate::schedule::Demand;

/// Writes 0..1 for each candidate.
pub fn score(
    demand: &Demand,
    candidates: &[Candidate],
    match_length_weight: f32,
    match_length_scale: u32,
    scores: &mut [f32],
) {
    let weight = if match_length_weight > 0.0 { match_length_weight.min(1.0) } else { 0.0 };
    let scale = match_length_scale.max(1) as f32;
    for (candidate, score) in candidates.iter().zip(scores) {
        let cached = candidate.cached_tokens.min(demand.prompt_tokens) as f32;
        let share = cached / demand.prompt_tokens.max(1) as f32;
        *score = weight * (cached / scale).min(1.0).powi(2) + (1.0 - weight) * share;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Scorer, run_for};
    use super::*;

    #[test]
    fn table() {
        for (prompt_tokens, cached_tokens, match_length_weight, expected) in [
            (0, 0, 0.0, 0.0),
            (0, 64, 0.0, 0.0),
            (1000, 0, 0.0, 0.0),
            (1000, 250, 0.0, 0.25),
            (1000, 1000, 0.0, 1.0),
            (1000, 5000, 0.0, 1.0),
            (8192, 4096, 1.0, 0.25),
            (8192, 4096, 0.5, 0.375),
            (32_768, 16_384, 1.0, 1.0),
            (1000, 250, f32::NAN, 0.25),
            (1000, 250, -3.0, 0.25),
            (8192, 4096, 7.0, 0.25),
        ] {
            let candidate = Candidate { cached_tokens, ..Candidate::default() };
            let demand = Demand { prompt_tokens, ..Demand::default() };
            let scorer = Scorer::PrefixCache { match_length_weight, match_length_scale: 8192 };
            let case = format!("{prompt_tokens} {cached_tokens} {match_length_weight}");
            assert_eq!(run_for(&demand, scorer, &[candidate]), [expected], "{case}");
        }
    }
}
