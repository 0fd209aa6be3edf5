//! Telling a measurement that others disturbed, by the disturbance and never by the result.

use std::fmt;

use serde::Serialize;

use super::report::Report;

/// What disturbed a measurement, percent of all processors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Noise {
    /// Time that the host took from this machine.
    steal_percent: f64,
    /// Other programs, by their clocks.
    programs_percent: f64,
    /// Time that the kernel counts as busy, and that is by no clock: programs too short to be
    /// seen, the kernel's own threads, interrupts. A busy path has some of that of its own.
    unexplained_percent: f64,
}

impl Noise {
    /// What a report tells of it.
    pub(super) fn of(report: &Report) -> Self {
        let Report { steal_percent, programs_percent, unexplained_percent, .. } = *report;
        Self { steal_percent, programs_percent, unexplained_percent }
    }

    /// By how much the worst of it is above what may be.
    fn excess(&self) -> f64 {
        let steal = self.steal_percent - STEAL_PERCENT;
        let programs = self.programs_percent - PROGRAMS_PERCENT;
        steal.max(programs).max(self.unexplained_percent - UNEXPLAINED_PERCENT)
    }

    /// Whether it is more than may be.
    pub(super) fn is_high(&self) -> bool {
        self.excess() > 0.0
    }
}

impl fmt::Display for Noise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steal_percent, programs_percent, unexplained_percent } = self;
        write!(
            f,
            "{steal_percent:.0} % stolen, {programs_percent:.0} % by other programs, \
             {unexplained_percent:.0} % unexplained"
        )
    }
}

/// Measures again, a few times at most, while there is too much noise; returns the measurement
/// with the least of it, and how many there were.
///
/// # Errors
/// Those of `measure`.
pub(super) fn quietest<T>(
    mut measure: impl FnMut() -> anyhow::Result<(T, Noise)>,
) -> anyhow::Result<(T, Noise, u32)> {
    let (mut best, mut least) = measure()?;
    let mut count = 1;
    while least.is_high() && count < ATTEMPTS {
        let (next, noise) = measure()?;
        count += 1;
        if noise.excess() < least.excess() {
            (best, least) = (next, noise);
        }
    }
    Ok((best, least, count))
}

/// Measurements of one thing at most.
const ATTEMPTS: u32 = 3;
/// What each kind of noise may be.
const STEAL_PERCENT: f64 = 3.0;
const PROGRAMS_PERCENT: f64 = 4.0;
const UNEXPLAINED_PERCENT: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(steal: f64, programs: f64, unexplained: f64) -> Noise {
        Noise { steal_percent: steal, programs_percent: programs, unexplained_percent: unexplained }
    }

    #[test]
    fn each_kind_of_noise_has_its_limit() {
        for (noise, high) in [
            (noise(0.0, 0.0, 0.0), false),
            (noise(3.0, 4.0, 10.0), false),
            (noise(3.1, 0.0, 0.0), true),
            (noise(0.0, 4.1, 0.0), true),
            (noise(0.0, 0.0, 10.1), true),
            (noise(0.0, 0.0, -5.0), false),
        ] {
            assert_eq!(noise.is_high(), high, "{noise:?}");
        }
    }

    #[test]
    fn the_quietest_is_kept_whatever_its_result() {
        // Programs' share of each measurement in turn; which is kept, and how many are made.
        for (programs, kept, count) in [
            (&[0.0, 0.0, 0.0][..], 0, 1),
            (&[9.0, 1.0, 0.0], 1, 2),
            (&[9.0, 7.0, 1.0], 2, 3),
            (&[7.0, 9.0, 8.0, 0.0], 0, 3),
            (&[9.0, 7.0, 8.0], 1, 3),
        ] {
            let mut turns = programs.iter().enumerate();
            let (index, least, made) = quietest(|| {
                let (index, programs) = turns.next().unwrap();
                Ok((index, noise(0.0, *programs, 0.0)))
            })
            .unwrap();
            assert_eq!((index, made), (kept, count), "{programs:?}");
            assert_eq!(least, noise(0.0, programs[kept], 0.0));
        }
        assert!(quietest(|| anyhow::Result::<((), Noise)>::Err(anyhow::anyhow!("no"))).is_err());
    }
}
