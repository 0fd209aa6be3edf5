//! One signal spread over several series of a body, and what its number may be.

use crate::observe::exposition::Sample;

/// A signal's values, one for each part of the server (data-parallel rank, engine, model).
///
/// One senseless value makes the whole signal unknown: a sum without it would be too small.
#[derive(Debug, Default)]
pub(super) struct Gauge<'a> {
    parts: Vec<(&'a [u8], f64)>,
    spoiled: bool,
}

impl<'a> Gauge<'a> {
    /// Takes a sample in; its whole label set tells its part.
    pub(super) fn add(&mut self, sample: &Sample<'a>) {
        self.add_part(sample.series(), sample.value);
    }

    /// Takes a value in for a part; of several for the same part the largest counts.
    pub(super) fn add_part(&mut self, part: &'a [u8], value: f64) {
        if !value.is_finite() || value < 0.0 {
            self.spoiled = true;
            return;
        }
        if let Some((_, seen)) = self.parts.iter_mut().find(|(known, _)| *known == part) {
            *seen = seen.max(value);
        } else if self.parts.len() < MAX_PARTS {
            self.parts.push((part, value));
        } else {
            self.spoiled = true;
        }
    }

    /// Whether the body has it, whatever its worth.
    pub(super) fn seen(&self) -> bool {
        self.spoiled || !self.parts.is_empty()
    }

    /// How many parts the body has.
    pub(super) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// All parts together.
    pub(super) fn sum(&self) -> Option<f64> {
        self.known().map(|parts| parts.iter().map(|(_, value)| value).sum())
    }

    /// The largest part.
    pub(super) fn max(&self) -> Option<f64> {
        self.known()?.iter().map(|&(_, value)| value).reduce(f64::max)
    }

    fn known(&self) -> Option<&[(&'a [u8], f64)]> {
        (!self.spoiled && !self.parts.is_empty()).then_some(&self.parts)
    }
}

/// A number of requests; `None` when it cannot be one.
pub(super) fn count(value: f64) -> Option<u32> {
    let value = value.round();
    (0.0..=f64::from(u32::MAX)).contains(&value).then_some(value as u32)
}

/// How many of something there are at all: as [`count`], but 0 is not known yet.
pub(super) fn size(value: f64) -> Option<u32> {
    count(value).filter(|&size| size > 0)
}

/// A capacity in tokens; `None` when it cannot be one.
pub(super) fn tokens(value: f64) -> Option<u64> {
    let value = value.round();
    (1.0..=MAX_TOKENS).contains(&value).then_some(value as u64)
}

/// A fraction 0..1. A hair above is rounding and becomes 1; more means another unit, thus `None`.
pub(super) fn fraction(value: f64) -> Option<f32> {
    (0.0..=1.0 + FRACTION_SLACK).contains(&value).then_some(value.abs().min(1.0) as f32)
}

/// What part of `whole` is in use; `None` of nothing.
pub(super) fn ratio(used: f64, whole: f64) -> Option<f32> {
    if whole > 0.0 { fraction(used / whole) } else { None }
}

/// Most parts of one signal: data-parallel ranks behind one endpoint come to some hundreds at most.
const MAX_PARTS: usize = 512;

/// How far above 1 a fraction may be.
const FRACTION_SLACK: f64 = 0.01;

/// The largest whole number up to which `f64` has them all.
const MAX_TOKENS: f64 = 9_007_199_254_740_992.0;
