//! Fewer tokens of our own in flight are better: requests differ by a thousand times, and their count says
//! nothing of that.
//!
//! With t = tokens in flight there and this request's uncached ones: `1 - min(t, threshold) / threshold`,
//! `threshold` being 4,194,304.

use super::Candidate;
use crate::schedule::Demand;

/// Writes 0..1 for each candidate.
pub fn score(demand: &Demand, candidates: &[Candidate], threshold: u32, scores: &mut [f32]) {
    let most = threshold.max(1);
    for (candidate, score) in candidates.iter().zip(scores) {
        let uncached = demand.prompt_tokens.saturating_sub(candidate.cached_tokens);
        let tokens = candidate.tokens.saturating_add(uncached.into()).min(most.into());
        *score = 1.0 - tokens as f32 / most as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Scorer, run_for};
    use super::*;

    #[test]
    fn table() {
        for (tokens, prompt_tokens, cached_tokens, threshold, expected) in [
            (0, 0, 0, 1000, 1.0),
            (0, 250, 0, 1000, 0.75),
            (500, 250, 0, 1000, 0.25),
            (500, 250, 250, 1000, 0.5),
            (500, 250, 900, 1000, 0.5),
            (1_000_000, 0, 0, 1000, 0.0),
            (u64::MAX, u32::MAX, 0, u32::MAX, 0.0),
            (0, 0, 0, 0, 1.0),
            (1 << 20, 1 << 20, 0, 4_194_304, 0.5),
        ] {
            let candidate = Candidate { tokens, cached_tokens, ..Candidate::default() };
            let demand = Demand { prompt_tokens, ..Demand::default() };
            let found = run_for(&demand, Scorer::TokenLoad { threshold }, &[candidate]);
            assert_eq!(found, [expected], "{tokens} {prompt_tokens} {cached_tokens} {threshold}");
        }
    }
}
