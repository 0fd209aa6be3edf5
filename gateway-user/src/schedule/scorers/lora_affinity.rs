//! A pod that need not load the request's adapter is better.
//!
//! [`filter`](crate::schedule::filter) already keeps a request with the pods where its adapter is
//! resident, if there are any; this orders pods within such a tier: in GPU memory before merely
//! loaded, and where it must be loaded, a pod with a free slot before one that would have to evict
//! or to make the request wait.
//!
//! | the adapter is | slot free | slots unknown | no slot free |
//! |---|---|---|---|
//! | not needed | 1 | 1 | 1 |
//! | active | 1 | 1 | 1 |
//! | loaded | 0.8 | 0.7 | 0.6 |
//! | absent | 0.8 | 0.5 | 0 |
//!
//! The extension knows active (1), free slot (0.8), waiting there (0.6) and none of these (0), and
//! takes requests in flight for taken slots; here a slot is taken by an adapter with live requests,
//! as many requests share one adapter.

use super::{Candidate, NEUTRAL};
use crate::schedule::AdapterFit;

/// Writes 0..1 for each candidate.
pub fn score(candidates: &[Candidate], scores: &mut [f32]) {
    for (candidate, score) in candidates.iter().zip(scores) {
        let free = candidate.adapters.map(|(slots, active)| active < slots);
        *score = match (candidate.adapter, free) {
            (AdapterFit::NotNeeded | AdapterFit::Active, _) => 1.0,
            (AdapterFit::Loaded | AdapterFit::Absent | AdapterFit::Unlisted, Some(true)) => 0.8,
            (AdapterFit::Loaded, None) => 0.7,
            (AdapterFit::Loaded, Some(false)) => 0.6,
            (AdapterFit::Absent | AdapterFit::Unlisted, None) => NEUTRAL,
            (AdapterFit::Absent | AdapterFit::Unlisted, Some(false)) => 0.0,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Scorer, run};
    use super::*;

    #[test]
    fn table() {
        use AdapterFit::{Absent, Active, Loaded, NotNeeded, Unlisted};
        let table = [
            (NotNeeded, None, 1.0),
            (NotNeeded, Some((4, 4)), 1.0),
            (Active, Some((4, 4)), 1.0),
            (Active, None, 1.0),
            (Loaded, Some((4, 3)), 0.8),
            (Loaded, None, 0.7),
            (Loaded, Some((4, 4)), 0.6),
            (Absent, Some((4, 0)), 0.8),
            (Absent, None, 0.5),
            (Absent, Some((4, 4)), 0.0),
            (Absent, Some((4, 9)), 0.0),
            (Absent, Some((0, 0)), 0.0),
            (Unlisted, Some((4, 0)), 0.8),
            (Unlisted, None, 0.5),
            (Unlisted, Some((4, 4)), 0.0),
        ];
        for (adapter, adapters, expected) in table {
            let candidate = Candidate { adapter, adapters, ..Candidate::default() };
            assert_eq!(
                run(Scorer::LoraAffinity, &[candidate]),
                [expected],
                "{adapter:?} {adapters:?}"
            );
        }
    }
}
