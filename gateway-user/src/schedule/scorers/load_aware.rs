//! A short queue is better, by its own length and not against the others'.
//!
//! Nothing waiting is 0.5, a queue of `threshold` (128) or more 0, evenly between:
//! `0.5 * (1 - min(waiting, threshold) / threshold)`. At most half, so that it decides among equals.

use super::Candidate;

/// Writes 0..1 for each candidate.
pub fn score(candidates: &[Candidate], threshold: u32, scores: &mut [f32]) {
    let most = threshold.max(1);
    for (candidate, score) in candidates.iter().zip(scores) {
        if let Some(waiting) = candidate.waiting {
            *score = 0.5 * (1.0 - waiting.min(most) as f32 / most as f32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Scorer, run};
    use super::*;

    #[test]
    fn table() {
        for (waiting, threshold, expected) in [
            (Some(0), 128, 0.5),
            (Some(32), 128, 0.375),
            (Some(64), 128, 0.25),
            (Some(128), 128, 0.0),
            (Some(u32::MAX), 128, 0.0),
            (Some(5), 10, 0.25),
            (Some(0), 0, 0.5),
            (Some(1), 0, 0.0),
            (None, 128, 0.5),
        ] {
            let candidate = Candidate { waiting, ..Candidate::default() };
            let found = run(Scorer::LoadAware { threshold }, &[candidate]);
            assert_eq!(found, [expected], "{waiting:?} of {threshold}");
        }
    }
}
