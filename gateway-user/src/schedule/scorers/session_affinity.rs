//! The pod that has served the request's session is better: 1, all others 0.
//!
//! Which pod that is, the caller knows; a request without a session has 0 everywhere.

use super::Candidate;

/// Writes 0..1 for each candidate.
pub fn score(candidates: &[Candidate], scores: &mut [f32]) {
    for (candidate, score) in candidates.iter().zip(scores) {
        *score = if candidate.session { 1.0 } else { 0.0 };
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Scorer, run};
    use super::*;

    #[test]
    fn table() {
        let table: [(&[bool], &[f32]); 3] =
            [(&[], &[]), (&[false, false], &[0.0, 0.0]), (&[false, true], &[0.0, 1.0])];
        for (sessions, expected) in table {
            let candidates: Vec<_> = sessions
                .iter()
                .map(|&session| Candidate { session, ..Candidate::default() })
                .collect();
            assert_eq!(run(Scorer::SessionAffinity, &candidates), expected, "{sessions:?}");
        }
    }
}
