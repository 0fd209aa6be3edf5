//! Fewer requests of our own in flight is better. This is what spreads requests between two
//! scrapes, and all there is when a pod's signals are unknown, stuck or wrong.
//!
//! Up to `idle_threshold` (0) in flight is 1; else `(most - n) / most * max_busy_score` (1) over the
//! candidates, so the busiest has 0. Unlike [`queue`](super::queue) it measures from 0 and not from the
//! least: an idle pod stands out more than a less busy one.

use super::Candidate;

/// Writes 0..1 for each candidate.
pub fn score(
    candidates: &[Candidate],
    idle_threshold: u32,
    max_busy_score: f32,
    scores: &mut [f32],
) {
    let most = candidates.iter().map(|candidate| candidate.in_flight).max().unwrap_or(0);
    for (candidate, score) in candidates.iter().zip(scores) {
        *score = match candidate.in_flight {
            n if n <= idle_threshold => 1.0,
            n => most.saturating_sub(n) as f32 / most as f32 * max_busy_score,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Scorer, run};
    use super::*;

    #[test]
    fn table() {
        let table: [(&[u32], u32, f32, &[f32]); 9] = [
            (&[], 0, 1.0, &[]),
            (&[0, 0], 0, 1.0, &[1.0, 1.0]),
            (&[3, 3], 0, 1.0, &[0.0, 0.0]),
            (&[0, 1, 4], 0, 1.0, &[1.0, 0.75, 0.0]),
            (&[2, 4], 0, 1.0, &[0.5, 0.0]),
            (&[0, u32::MAX], 0, 1.0, &[1.0, 0.0]),
            (&[0, 1, 4], 1, 1.0, &[1.0, 1.0, 0.0]),
            (&[0, 1, 4], 0, 0.5, &[1.0, 0.375, 0.0]),
            (&[5, 9], 9, 1.0, &[1.0, 1.0]),
        ];
        for (in_flight, idle_threshold, max_busy_score, expected) in table {
            let candidates: Vec<_> = in_flight
                .iter()
                .map(|&in_flight| Candidate { in_flight, ..Candidate::default() })
                .collect();
            let scorer = Scorer::ActiveRequest { idle_threshold, max_busy_score };
            assert_eq!(run(scorer, &candidates), expected, "{in_flight:?}");
        }
    }
}
