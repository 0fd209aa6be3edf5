//! When requests come. What is drawn does not depend on what happens to them.

use fastrand::Rng;

use super::length::{exponential, normal};

/// The shape of arrivals; the mean rate is given apart.
#[derive(Clone, Copy, Debug)]
pub enum Arrivals {
    /// Independent of each other.
    Poisson,
    /// Poisson, and now and then a burst that is so many times as dense.
    Bursts {
        /// Mean seconds from the end of a burst to the next.
        apart: f64,
        /// Mean seconds of a burst.
        length: f64,
        /// Its rate, in rates of the calm.
        times: f64,
    },
    /// A number of clients, who each ask, wait for the whole answer, pause, and ask again; in bursts all
    /// pause for less. Who answers sooner is asked more. The rate is the number of clients.
    Clients {
        /// Mean seconds from an answer to the next request.
        pause: f64,
        /// Mean seconds from the end of a burst to the next.
        apart: f64,
        /// Mean seconds of a burst.
        length: f64,
        /// By how much pauses are shorter in it.
        times: f64,
    },
    /// Spells of activity of random density, with long silences between them: few people's tools.
    Spells {
        /// Requests in a spell, in the mean.
        requests: f64,
        /// A silence, in mean gaps between two requests of a spell.
        silence: f64,
        /// Deviation of the logarithm of a spell's density.
        uneven: f64,
    },
}

/// Makes times, rising.
#[derive(Debug)]
pub(super) struct Clock {
    arrivals: Arrivals,
    /// Requests a second in the mean.
    rate: f64,
    now: f64,
    /// End of the present burst or calm.
    until: f64,
    burst: bool,
    /// Mean gap in the present spell.
    gap: f64,
    left: f64,
}

impl Clock {
    pub(super) fn new(arrivals: Arrivals, rate: f64) -> Self {
        Self { arrivals, rate, now: 0.0, until: 0.0, burst: true, gap: 0.0, left: 0.0 }
    }

    /// Seconds of the next request.
    pub(super) fn next(&mut self, rng: &mut Rng) -> f64 {
        match self.arrivals {
            Arrivals::Poisson => self.now += exponential(1.0 / self.rate, rng),
            Arrivals::Bursts { apart, length, times } => {
                let calm = self.rate * (apart + length) / (apart + length * times);
                loop {
                    let rate = if self.burst { calm * times } else { calm };
                    let next = self.now + exponential(1.0 / rate, rng);
                    if next < self.until {
                        self.now = next;
                        break;
                    }
                    // Nothing came before the change, and nothing remembers how long that was.
                    self.now = self.until;
                    self.burst = !self.burst;
                    self.until += exponential(if self.burst { length } else { apart }, rng);
                }
            }
            Arrivals::Clients { pause, .. } => {
                // They begin one after the other; what follows comes from [`pause`].
                self.left += 1.0;
                let all = self.left > self.rate.round();
                self.now = if all { f64::INFINITY } else { self.now + pause / self.rate };
            }
            Arrivals::Spells { requests, silence, uneven } => {
                // The mean of a spell's gap, so that all gaps together have the wanted mean.
                let mean = requests / self.rate / (requests + silence);
                if self.left < 1.0 {
                    if self.gap > 0.0 {
                        self.now += exponential(silence * mean, rng);
                    }
                    self.left += exponential(requests, rng).max(1.0);
                    self.gap = mean * (uneven * normal(rng) - uneven * uneven / 2.0).exp();
                }
                self.left -= 1.0;
                self.now += exponential(self.gap, rng);
            }
        }
        self.now
    }
}

/// The bursts of so many seconds, each with its beginning and end.
pub(super) fn bursts(arrivals: Arrivals, seconds: f64, rng: &mut Rng) -> Vec<(f64, f64)> {
    let Arrivals::Clients { apart, length, .. } = arrivals else { return Vec::new() };
    let (mut bursts, mut now) = (Vec::new(), 0.0);
    while now < seconds {
        let begin = now + exponential(apart, rng);
        now = begin + exponential(length, rng);
        bursts.push((begin, now));
    }
    bursts
}

/// When a client asks again that got its answer at `now`.
pub(super) fn again(arrivals: Arrivals, bursts: &[(f64, f64)], now: f64, rng: &mut Rng) -> f64 {
    let Arrivals::Clients { pause, times, .. } = arrivals else { return f64::INFINITY };
    let (mut now, mut left) = (now, exponential(pause, rng));
    for &(begin, end) in bursts {
        // The calm before it, and then the burst itself, in which a pause passes faster.
        for (until, speed) in [(begin, 1.0), (end, times)] {
            let passes = (until - now).max(0.0) * speed;
            if left <= passes {
                return now + left / speed;
            }
            left -= passes;
            now = now.max(until);
        }
    }
    now + left
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rate and coefficient of variation of the gaps.
    fn measured(arrivals: Arrivals) -> (f64, f64) {
        let mut rng = Rng::with_seed(3);
        let mut clock = Clock::new(arrivals, 10.0);
        let times: Vec<f64> = (0..200_000).map(|_| clock.next(&mut rng)).collect();
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap| *gap >= 0.0), "time runs backwards");
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        (1.0 / mean, variance.sqrt() / mean)
    }

    #[test]
    fn clients_ask_again_sooner_in_bursts() {
        let arrivals = Arrivals::Clients { pause: 2.0, apart: 10.0, length: 3.0, times: 5.0 };
        let mut rng = Rng::with_seed(1);
        let mut clock = Clock::new(arrivals, 4.0);
        let begun: Vec<f64> = (0..5).map(|_| clock.next(&mut rng)).collect();
        assert_eq!(begun, [0.5, 1.0, 1.5, 2.0, f64::INFINITY]);
        assert!(bursts(arrivals, 100.0, &mut rng).is_sorted_by(|one, next| one.1 < next.0));
        let mean = |bursts: &[(f64, f64)]| {
            let mut rng = Rng::with_seed(2);
            (0..5_000).map(|_| again(arrivals, bursts, 10.0, &mut rng) - 10.0).sum::<f64>() / 5e3
        };
        let (calm, burst) = (mean(&[(0.0, 5.0)]), mean(&[(0.0, 5.0), (6.0, 100.0)]));
        assert!((calm - 2.0).abs() < 0.1 && (burst - 0.4).abs() < 0.02, "{calm} {burst}");
        // A second of calm is half of the mean pause, of which the rest passes five times as fast.
        let half = mean(&[(11.0, 100.0)]);
        assert!((half - (0.787 + 0.607 * 0.4)).abs() < 0.05, "{half}");
    }

    #[test]
    fn every_shape_has_its_rate_and_unevenness() {
        let bursts = Arrivals::Bursts { apart: 15.0, length: 3.0, times: 6.0 };
        let spells = Arrivals::Spells { requests: 260.0, silence: 340.0, uneven: 0.5 };
        for (arrivals, low, high) in
            [(Arrivals::Poisson, 0.95, 1.05), (bursts, 1.2, 2.5), (spells, 9.0, 17.0)]
        {
            let (rate, variation) = measured(arrivals);
            assert!((9.0..11.0).contains(&rate), "{arrivals:?}: {rate}");
            assert!((low..high).contains(&variation), "{arrivals:?}: {variation}");
        }
    }
}
