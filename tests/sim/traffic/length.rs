//! How long prompts, answers and pauses are: distributions given by a few numbers.

use fastrand::Rng;

/// A distribution of lengths.
#[derive(Clone, Copy, Debug)]
pub enum Length {
    /// Always the same.
    Fixed(u32),
    /// Each of a range as often, both ends included.
    Between(u32, u32),
    /// Known by quantiles, as traces are published: `(share, length)` in rising order, straight
    /// lines between their logarithms.
    Quantiles(&'static [(f64, f64)]),
    /// Whose logarithm is normal: median, deviation of the logarithm, and the longest.
    LogNormal(f64, f64, u32),
    /// Now and then of the second distribution, with this probability; else of the first.
    Rarely(f64, &'static Length, &'static Length),
}

impl Length {
    /// One length, at least 1.
    pub fn draw(&self, rng: &mut Rng) -> u32 {
        let value = match *self {
            Self::Fixed(length) => f64::from(length),
            Self::Between(low, high) => f64::from(rng.u32(low..=high)),
            Self::Quantiles(points) => at(points, rng.f64()),
            Self::LogNormal(median, deviation, most) => {
                (median * (deviation * normal(rng)).exp()).min(f64::from(most))
            }
            Self::Rarely(share, usual, rare) => {
                let which = if rng.f64() < share { rare } else { usual };
                return which.draw(rng);
            }
        };
        value.round().max(1.0) as u32
    }
}

/// An exponential draw with this mean.
pub(super) fn exponential(mean: f64, rng: &mut Rng) -> f64 {
    -mean * (1.0 - rng.f64()).ln()
}

/// A standard normal draw.
pub(super) fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.f64()).cos()
}

/// The length at a share; beyond the first and the last point it is theirs.
fn at(points: &[(f64, f64)], share: f64) -> f64 {
    let above = points.partition_point(|(point, _)| *point < share);
    let high = points[above.min(points.len() - 1)];
    let low = points[above.saturating_sub(1)];
    if high.0 <= low.0 {
        return high.1;
    }
    let part = ((share - low.0) / (high.0 - low.0)).clamp(0.0, 1.0);
    (low.1.ln() + part * (high.1.ln() - low.1.ln())).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(length: Length) -> Vec<u32> {
        let mut rng = Rng::with_seed(1);
        let mut draws: Vec<u32> = (0..20_000).map(|_| length.draw(&mut rng)).collect();
        draws.sort_unstable();
        draws
    }

    #[test]
    fn draws_have_the_quantiles_they_were_given() {
        const POINTS: &[(f64, f64)] = &[(0.0, 10.0), (0.5, 100.0), (0.9, 1_000.0), (1.0, 4_000.0)];
        let draws = sorted(Length::Quantiles(POINTS));
        assert!(draws[0] >= 10 && draws[19_999] <= 4_000);
        for (share, length) in [(0.5, 100.0), (0.9, 1_000.0)] {
            let drawn = f64::from(draws[(share * 20_000.0) as usize]);
            assert!((drawn / length - 1.0).abs() < 0.08, "{share}: {drawn}");
        }
    }

    #[test]
    fn the_others_keep_their_bounds_and_medians() {
        for (length, least, median, most) in [
            (Length::Fixed(7), 7, 7, 7),
            (Length::Fixed(0), 1, 1, 1),
            (Length::Between(5, 15), 5, 10, 15),
            (Length::LogNormal(200.0, 1.0, 900), 1, 200, 900),
            (Length::Rarely(0.1, &Length::Between(90, 110), &Length::Fixed(9_000)), 90, 101, 9_000),
        ] {
            let draws = sorted(length);
            assert!(draws[0] >= least && draws[19_999] <= most, "{length:?}");
            assert!(draws[10_000].abs_diff(median) <= median / 20, "{length:?} {}", draws[10_000]);
        }
    }
}
