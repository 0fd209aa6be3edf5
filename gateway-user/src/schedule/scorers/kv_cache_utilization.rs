//! More free KV cache is better: a full cache makes the engine preempt and queue.
//!
//! `1 - usage`. Not compared between candidates: 2 % and 4 % are both idle.

use super::Candidate;

/// Writes 0..1 for each candidate.
pub fn score(candidates: &[Candidate], scores: &mut [f32]) {
    for (candidate, score) in candidates.iter().zip(scores) {
        if let Some(usage) = candidate.kv_usage {
            *score = 1.0 - usage;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Scorer, run};
    use super::*;

    #[test]
    fn table() {
        let table = [(Some(0.0), 1.0), (Some(0.25), 0.75), (Some(1.0), 0.0), (None, 0.5)];
        for (kv_usage, expected) in table {
            let candidate = Candidate { kv_usage, ..Candidate::default() };
            assert_eq!(run(Scorer::KvCacheUtilization, &[candidate]), [expected], "{kv_usage:?}");
        }
    }
}
