//! A prompt that no pod has cached goes where such a prompt has not gone for longest: new groups of prompts
//! are spread over the pods and do not all begin on the one that happens to be idle.
//!
//! If any candidate has a part of the prompt cached, all have 0.5. Else `1 - rank / (n - 1)`, pods that
//! never had one first, in the order of the candidates; a lone candidate has 1.

use super::Candidate;

/// Writes 0..1 for each candidate. `order` is memory to use.
pub fn score(candidates: &[Candidate], scores: &mut [f32], order: &mut Vec<u32>) {
    if candidates.iter().any(|candidate| candidate.cached_tokens > 0) {
        return;
    }
    order.clear();
    order.extend(0..candidates.len() as u32);
    let used = |place: &u32| candidates.get(*place as usize).map(|candidate| candidate.last_used);
    // Places are part of the key, so that it need not be a stable sort: those allocate.
    order.sort_unstable_by_key(|place| (used(place), *place));
    let last = candidates.len().saturating_sub(1).max(1) as f32;
    for (rank, place) in order.iter().enumerate() {
        if let Some(score) = scores.get_mut(*place as usize) {
            *score = 1.0 - rank as f32 / last;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Scorer, run};
    use super::*;

    #[test]
    fn table() {
        let table: [(&[u64], &[f32]); 5] = [
            (&[], &[]),
            (&[9], &[1.0]),
            (&[0, 0, 0], &[1.0, 0.5, 0.0]),
            (&[7, 3, 0], &[0.0, 0.5, 1.0]),
            (&[5, 0, 9, 0, 1], &[0.25, 1.0, 0.0, 0.75, 0.5]),
        ];
        for (last_used, expected) in table {
            let mut candidates: Vec<_> = last_used
                .iter()
                .map(|&last_used| Candidate { last_used, ..Candidate::default() })
                .collect();
            assert_eq!(run(Scorer::NoHitLru, &candidates), expected, "{last_used:?}");
            if let Some(last) = candidates.last_mut() {
                last.cached_tokens = 16;
                assert_eq!(run(Scorer::NoHitLru, &candidates), vec![0.5; last_used.len()]);
            }
        }
    }
}
