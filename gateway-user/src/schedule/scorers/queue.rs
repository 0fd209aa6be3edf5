//! Fewer requests waiting in the engine is better: a waiting request has not begun its prefill.
//!
//! `(most - waiting) / (most - least)` over the candidates; all equal is 1.

use super::{Candidate, fewest_first};

/// Writes 0..1 for each candidate.
pub fn score(candidates: &[Candidate], scores: &mut [f32]) {
    fewest_first(candidates, scores, |candidate| candidate.waiting);
}

#[cfg(test)]
mod tests {
    use super::super::{Scorer, run};
    use super::*;

    #[test]
    fn table() {
        let table: [(&[Option<u32>], &[f32]); 8] = [
            (&[], &[]),
            (&[Some(9)], &[1.0]),
            (&[Some(3), Some(3)], &[1.0, 1.0]),
            (&[Some(0), Some(5), Some(10)], &[1.0, 0.5, 0.0]),
            (&[Some(10), Some(12)], &[1.0, 0.0]),
            (&[None, None], &[0.5, 0.5]),
            (&[Some(4), None, Some(8)], &[1.0, 0.5, 0.0]),
            (&[Some(0), Some(u32::MAX)], &[1.0, 0.0]),
        ];
        for (waiting, expected) in table {
            let candidates: Vec<_> = waiting
                .iter()
                .map(|&waiting| Candidate { waiting, running: Some(7), ..Candidate::default() })
                .collect();
            assert_eq!(run(Scorer::Queue, &candidates), expected, "{waiting:?}");
        }
    }
}
