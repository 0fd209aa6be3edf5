//! Fewer requests running in the engine is better: they share its steps, so tokens come faster.
//!
//! `(most - running) / (most - least)` over the candidates; all equal is 1.

use super::{Candidate, fewest_first};

/// Writes 0..1 for each candidate.
pub fn score(candidates: &[Candidate], scores: &mut [f32]) {
    fewest_first(candidates, scores, |candidate| candidate.running);
}

#[cfg(test)]
mod tests {
    use super::super::{Scorer, run};
    use super::*;

    #[test]
    fn table() {
        let table: [(&[Option<u32>], &[f32]); 4] = [
            (&[Some(64)], &[1.0]),
            (&[Some(64), Some(0), Some(16)], &[0.0, 1.0, 0.75]),
            (&[Some(2), Some(2)], &[1.0, 1.0]),
            (&[None, Some(2), Some(6)], &[0.5, 1.0, 0.0]),
        ];
        for (running, expected) in table {
            let candidates: Vec<_> = running
                .iter()
                .map(|&running| Candidate { running, waiting: Some(7), ..Candidate::default() })
                .collect();
            assert_eq!(run(Scorer::RunningRequests, &candidates), expected, "{running:?}");
        }
    }
}
