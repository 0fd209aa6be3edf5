//! A pod that is meant for prompts of this length is better: short ranges for cards with little memory,
//! long ones for those with much.
//!
//! | the prompt is | score |
//! |---|---|
//! | within the pod's range | above 0.3 up to 1: `0.3 + 0.7 / (1 + width / 8192)`, tighter ranges higher |
//! | outside of it | below 0.3: `0.3 * near / far`, by the prompt's length and the nearer end of the range |
//! | of unknown length, or the pod has no range | 0.5 |
//!
//! The reference picker documents the bands and their order, which are these; within a band, the curve is
//! ours.

use super::Candidate;
use crate::schedule::Demand;

/// Writes 0..1 for each candidate.
pub fn score(demand: &Demand, candidates: &[Candidate], scores: &mut [f32]) {
    let length = demand.prompt_tokens;
    if length == 0 {
        return;
    }
    for (candidate, score) in candidates.iter().zip(scores) {
        let Some((least, most)) = candidate.context_range else { continue };
        *score = if (least..=most).contains(&length) {
            let width = (most - least) as f32;
            BAND + (1.0 - BAND) / (1.0 + width / USUAL_WIDTH)
        } else {
            let end = if length < least { least } else { most };
            let (near, far) = (length.min(end) as f32, length.max(end) as f32);
            // Never 0.3 itself, even where rounding would have it so.
            (BAND * near / far).min(BAND - 1e-6)
        };
    }
}

/// Ranges that contain the prompt's length are above this, others below it.
const BAND: f32 = 0.3;

/// A range of this width is half way between the tightest and the widest.
const USUAL_WIDTH: f32 = 8192.0;

#[cfg(test)]
mod tests {
    use super::super::{Scorer, run_for};
    use super::*;

    fn of(length: u32, range: Option<(u32, u32)>) -> f32 {
        let candidate = Candidate { context_range: range, ..Candidate::default() };
        let demand = Demand { prompt_tokens: length, ..Demand::default() };
        run_for(&demand, Scorer::ContextLengthAware, &[candidate])[0]
    }

    #[test]
    fn table() {
        for (length, range, expected) in [
            (100, None, 0.5),
            (0, Some((0, 10)), 0.5),
            (100, Some((100, 100)), 1.0),
            (100, Some((0, 8192)), 0.65),
            (100, Some((0, 24_576)), 0.475),
            (9000, Some((0, 4500)), 0.15),
            (9000, Some((0, 0)), 0.0),
            (1000, Some((4000, 8000)), 0.075),
        ] {
            let found = of(length, range);
            assert!((found - expected).abs() < 1e-6, "{length} {range:?}: {found}");
        }
    }

    #[test]
    fn the_bands_do_not_touch() {
        assert!(of(9000, Some((0, 8999))) < 0.3);
        assert!(of(9000, Some((0, u32::MAX))) > 0.3);
        assert!(of(9000, Some((0, 8192))) > of(9000, Some((0, 2048))));
        // From an end to a beginning: nothing is within.
        assert!(of(9000, Some((9500, 8500))) < 0.3);
    }
}
