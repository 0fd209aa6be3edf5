//! Takes the highest score, equals by lot.
//!
//! Always the first of equals would send every request to one pod of an idle pool; the lot is drawn
//! anew each time from the caller's generator, so that a run can be replayed.

/// The place of one of the highest scores; those within `slack` of the highest are equal. `None`
/// without scores.
pub fn max_score(scores: &[f32], slack: f32, rng: &mut fastrand::Rng) -> Option<usize> {
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let equal = |score: f32| score >= highest - slack;
    let count = scores.iter().filter(|&&score| equal(score)).count();
    if count == 0 {
        return None;
    }
    let lot = if count == 1 { 0 } else { rng.usize(..count) };
    scores.iter().enumerate().filter(|&(_, &score)| equal(score)).nth(lot).map(|(place, _)| place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_highest() {
        let mut rng = fastrand::Rng::with_seed(1);
        let table: [(&[f32], Option<usize>); 4] = [
            (&[], None),
            (&[0.0], Some(0)),
            (&[1.0, 3.0, 2.0], Some(1)),
            (&[1.0, 2.0, 2.1], Some(2)),
        ];
        for (scores, expected) in table {
            for _ in 0..20 {
                assert_eq!(max_score(scores, 1e-5, &mut rng), expected, "{scores:?}");
            }
        }
    }

    #[test]
    fn equals_are_drawn_evenly() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut counts = [0_u32; 5];
        for _ in 0..30_000 {
            counts[max_score(&[2.0, 1.0, 2.0, 1.999_999_9, 0.0], 1e-5, &mut rng).unwrap()] += 1;
        }
        assert_eq!((counts[1], counts[4]), (0, 0));
        for count in [counts[0], counts[2], counts[3]] {
            // Six standard deviations of a fair draw.
            assert!(count.abs_diff(10_000) < 490, "{counts:?}");
        }
    }
}
