//! Fewer requests of our own in flight is better. This is what spreads requests between two
//! scrapes, and all there is when a pod's signals are unknown, stuck or wrong.
//!
//! None in flight is 1; else `(most - n) / most` over the candidates, so the busiest has 0. Unlike
//! [`queue`](super::queue) it measures from 0 and not from the least: an idle pod stands out more
//! than a less busy one.

use super::Candidate;

/// Writes 0..1 for each candidate.
pub fn score(candidates: &[Candidate], scores: &mut [f32]) {
    let most = candidates.iter().map(|candidate| candidate.in_flight).max().unwrap_or(0);
    for (candidate, score) in candidates.iter().zip(scores) {
        *score = match candidate.in_flight {
            0 => 1.0,
            n => most.saturating_sub(n) as f32 / most as f32,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::run;
    use super::*;

    #[test]
    fn table() {
        let table: [(&[u32], &[f32]); 6] = [
            (&[], &[]),
            (&[0, 0], &[1.0, 1.0]),
            (&[3, 3], &[0.0, 0.0]),
            (&[0, 1, 4], &[1.0, 0.75, 0.0]),
            (&[2, 4], &[0.5, 0.0]),
            (&[0, u32::MAX], &[1.0, 0.0]),
        ];
        for (in_flight, expected) in table {
            let candidates: Vec<_> = in_flight
                .iter()
                .map(|&in_flight| Candidate { in_flight, ..Candidate::default() })
                .collect();
            assert_eq!(run(score, &candidates), expected, "{in_flight:?}");
        }
    }
}
