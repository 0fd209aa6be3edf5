//! Which pod: filter, score, pick.
//!
//! [`filter`] keeps the pods of the best [`Tier`], [`scorers`] give each of them 0..1, the weighted
//! sum is a pod's score, and [`picker`] takes the highest, equals by lot.
//!
//! Pure: no IO, no clock, no lock, and no allocation once [`Scratch`] has grown to the pool. The
//! caller gives a view of every pod and reserves the picked one in the same critical section: two
//! requests that look before either has reserved would both see the same idle pod. The simulator
//! calls this very code.
//!
//! What is unknown is never read as idle. A pod without fresh signals is used only where no pod
//! with fresh signals will take the request, and a field that a fresh pod does not report scores
//! [`NEUTRAL`].

use std::time::Duration;

use crate::config::{Saturation, Weights};

pub mod filter;
pub mod picker;
pub mod scorers;

pub use filter::Tier;
pub use scorers::{NEUTRAL, SCORERS, Scorer};

/// What a pod's metrics say. `None` is "unknown", which is never the same as "idle".
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Signals {
    /// KV cache in use, 0..1. Of several engines behind one endpoint, the fullest.
    pub kv_usage: Option<f32>,
    /// Requests waiting; of several engines, the sum.
    pub waiting: Option<u32>,
    /// Requests running; of several engines, the sum.
    pub running: Option<u32>,
    /// Adapters that fit at once (`max_lora`).
    pub adapter_slots: Option<u32>,
    /// Adapters with live requests.
    pub adapters_active: Option<u32>,
}

/// How a pod stands to the adapter that a request names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdapterFit {
    /// The request names none.
    #[default]
    NotNeeded,
    /// It has live requests there: it is in GPU memory.
    Active,
    /// The pod lists it as loaded.
    Loaded,
    /// Absent.
    Absent,
}

/// One pod as the scheduler sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct PodView {
    /// It may be given requests at all: reachable and not draining.
    pub ready: bool,
    /// This request has been tried there and failed.
    pub tried: bool,
    /// Requests that this gateway has in flight there.
    pub in_flight: u32,
    /// What it last said.
    pub signals: Signals,
    /// How old that is; `None` when it has never said anything.
    pub age: Option<Duration>,
    /// How it stands to the request's adapter.
    pub adapter: AdapterFit,
}

impl PodView {
    /// What may be believed of its signals: nothing when they are older than `stale_after`, and of a
    /// KV usage only what is a share.
    ///
    /// A known engine that answered without a number is believed too, with scorers giving what is missing a
    /// neutral value: TGI has no gauges before its first request, and to wait for them would send that
    /// one pod all requests which got the first.
    pub fn believed(&self, stale_after: Duration) -> Option<Signals> {
        if self.age? > stale_after {
            return None;
        }
        let kv_usage = self.signals.kv_usage.filter(|usage| usage.is_finite() && *usage >= 0.0);
        Some(Signals { kv_usage: kv_usage.map(|usage| usage.min(1.0)), ..self.signals })
    }
}

/// How a pool schedules.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// What each scorer counts for.
    pub weights: Weights,
    /// When a pod takes no more requests.
    pub saturation: Saturation,
    /// Signals older than this are unknown.
    pub stale_after: Duration,
}

/// The pod that was picked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pick {
    /// Its place in the slice of pods.
    pub index: usize,
    /// Its score: 0 to the sum of the weights.
    pub score: f32,
}

/// Why there is no pod for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPod {
    /// No pod is ready: 503, not 429, as waiting for load to fall will not help.
    #[error("no pod of this pool is ready")]
    Empty,
    /// Every ready pod has been tried for this request: the last failure is the answer.
    #[error("every ready pod of this pool has been tried")]
    Exhausted,
    /// Pods are ready, but none takes more requests: 429 with Retry-After.
    #[error("every ready pod of this pool is saturated")]
    Saturated,
}

/// What [`explain`] says of one pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Explanation {
    /// Where the filter put it.
    pub tier: Tier,
    /// Its score when it is a candidate, that is in the best tier that any pod is in.
    pub score: Option<f32>,
    /// What each scorer gave it, unweighted, in the order of [`SCORERS`]; `None` when it is no
    /// candidate or the scorer's weight is 0.
    pub scores: [Option<f32>; SCORERS.len()],
}

/// Memory that picks reuse; one for each thread or lock.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    candidates: Vec<Candidate>,
    /// Candidates' scores, side by side with `candidates`.
    totals: Vec<f32>,
    /// One scorer's values, side by side with `candidates`.
    column: Vec<f32>,
}

/// Picks the pod for one request.
///
/// # Errors
/// [`NoPod`] when no pod may be given the request.
pub fn pick(
    pods: &[PodView],
    profile: &Profile,
    rng: &mut fastrand::Rng,
    scratch: &mut Scratch,
) -> Result<Pick, NoPod> {
    evaluate(pods, profile, scratch, |_, _, _| {})?;
    let slack = TIE * weight_sum(&profile.weights);
    let Some(place) = picker::max_score(&scratch.totals, slack, rng) else {
        return Err(NoPod::Empty);
    };
    let (Some(candidate), Some(&score)) =
        (scratch.candidates.get(place), scratch.totals.get(place))
    else {
        return Err(NoPod::Empty);
    };
    Ok(Pick { index: candidate.index, score })
}

/// Says how [`pick`] sees each pod, one entry for each of `pods` and in their order. Allocates; not
/// for each request.
pub fn explain(pods: &[PodView], profile: &Profile, scratch: &mut Scratch) -> Vec<Explanation> {
    let mut pages: Vec<Explanation> = pods
        .iter()
        .map(|pod| Explanation {
            tier: filter::tier(pod, profile),
            score: None,
            scores: [None; SCORERS.len()],
        })
        .collect();
    let outcome = evaluate(pods, profile, scratch, |scorer, candidates, column| {
        for (candidate, &score) in candidates.iter().zip(column) {
            let page = pages.get_mut(candidate.index);
            if let Some(slot) = page.and_then(|page| page.scores.get_mut(scorer)) {
                *slot = Some(score);
            }
        }
    });
    if outcome.is_ok() {
        for (candidate, &total) in scratch.candidates.iter().zip(&scratch.totals) {
            if let Some(page) = pages.get_mut(candidate.index) {
                page.score = Some(total);
            }
        }
    }
    pages
}

/// The most that a pod can score under these weights.
pub fn weight_sum(weights: &Weights) -> f32 {
    SCORERS.iter().map(|scorer| (scorer.weight)(weights) as f32).sum()
}

/// A pod that passed the filter, as scorers see it: only signals that may be believed are left.
#[derive(Clone, Copy, Debug, Default)]
pub struct Candidate {
    /// Its place in the slice of pods.
    pub index: usize,
    /// Requests that this gateway has in flight there.
    pub in_flight: u32,
    /// KV cache in use, 0..1.
    pub kv_usage: Option<f32>,
    /// Requests waiting.
    pub waiting: Option<u32>,
    /// Requests running, at least.
    pub running: Option<u32>,
    /// Adapters that fit at once and adapters with live requests.
    pub adapters: Option<(u32, u32)>,
    /// How it stands to the request's adapter.
    pub adapter: AdapterFit,
}

/// Fills `scratch` with the candidates and their scores, and shows each scorer's values as they are
/// made.
fn evaluate(
    pods: &[PodView],
    profile: &Profile,
    scratch: &mut Scratch,
    mut seen: impl FnMut(usize, &[Candidate], &[f32]),
) -> Result<(), NoPod> {
    let Scratch { candidates, totals, column } = scratch;
    filter::candidates(pods, profile, candidates)?;
    totals.clear();
    totals.resize(candidates.len(), 0.0);
    for (place, scorer) in SCORERS.iter().enumerate() {
        let weight = (scorer.weight)(&profile.weights);
        if weight == 0 {
            continue;
        }
        column.clear();
        column.resize(candidates.len(), NEUTRAL);
        (scorer.score)(candidates, column);
        let weight = weight as f32;
        for (total, score) in totals.iter_mut().zip(column.iter_mut()) {
            // Not `clamp`, which keeps a NaN.
            *score = if *score > 0.0 { score.min(1.0) } else { 0.0 };
            *total += weight * *score;
        }
        seen(place, candidates, column);
    }
    Ok(())
}

/// Scores closer than this share of the weights' sum are equal: summing in a different order moves
/// an `f32` by about as much, and no signal is that exact.
const TIE: f32 = 1e-6;

#[cfg(test)]
mod tests;
