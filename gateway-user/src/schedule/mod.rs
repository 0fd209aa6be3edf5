//! Which pod: filter, score, pick.
//!
//! [`filter`] keeps the pods of the best [`Tier`]. Then the profile's [`Policy`] decides: by default the
//! [`cost`] model, which estimates what the request takes at each pod and takes one of the cheapest, by
//! lot; or [`scorers`] that give each pod 0..1, whose weighted sum a [`picker`] goes by.
//!
//! Pure: no IO, no clock, no lock, and no allocation once [`Scratch`] has grown to the pool. The
//! caller gives a view of every pod and reserves the picked one in the same critical section: two
//! requests that look before either has reserved would both see the same idle pod. The simulator
//! calls this very code. What a view needs of the gateway's own requests and of a pod's speed is
//! kept by a [`ledger`] for each pod.
//!
//! What is unknown is never read as idle. A pod without fresh signals is used only where no pod
//! with fresh signals will take the request, and a field that a fresh pod does not report scores
//! [`NEUTRAL`].

use std::time::Duration;

use crate::config::Saturation;

pub mod cost;
pub mod drain;
pub mod exchange;
pub mod filter;
pub mod ledger;
pub mod picker;
pub mod prefix;
pub mod ramp;
pub mod scorers;
pub mod speed;
pub mod view;

pub use cost::{Estimate, Fleet, Preset};
pub use filter::{Excess, Tier};
pub use ledger::{Ledger, Sent, Ticket};
pub use picker::Picker;
pub use scorers::{NEUTRAL, Scorer, Weighted};
pub use speed::Speed;
pub use view::{AdapterFit, Demand, Others, Own, PodView, Signals, Since};

/// How a pool schedules.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// How pods compare.
    pub policy: Policy,
    /// When a pod takes no more requests.
    pub saturation: Saturation,
    /// Nor when a request is expected to wait longer than this before the pod begins with it.
    pub max_wait: Duration,
    /// Signals older than this are unknown.
    pub stale_after: Duration,
}

/// How the pods of the best tier compare.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// By the seconds that the request is expected to cost.
    Cost(Preset),
    /// By a weighted sum of scores.
    Scorers {
        /// What counts, and for how much.
        scorers: Vec<Weighted>,
        /// Which of the scored is taken.
        picker: Picker,
    },
}

/// The pod that was picked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pick {
    /// Its place in the slice of pods.
    pub index: usize,
    /// Its score: 0 to [`Policy::most_score`].
    pub score: f32,
    /// What is expected of the request there.
    pub estimate: Estimate,
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
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Where the filter put it.
    pub tier: Tier,
    /// Its score when it is a candidate, that is in the best tier that any pod is in.
    pub score: Option<f32>,
    /// What the score is made of: what each scorer gave it, unweighted, or the seconds of its cost. Empty
    /// when it is no candidate.
    pub parts: Vec<(&'static str, f32)>,
    /// What is expected of the request there, when it is a candidate.
    pub estimate: Option<Estimate>,
}

/// Memory that picks reuse; one for each thread or lock.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    candidates: Vec<Candidate>,
    /// Candidates' scores, side by side with `candidates`.
    totals: Vec<f32>,
    /// One scorer's values, side by side with `candidates`.
    column: Vec<f32>,
    /// Places of candidates, for scorers that rank.
    order: Vec<u32>,
}

/// Picks the pod for one request.
///
/// # Errors
/// [`NoPod`] when no pod may be given the request.
pub fn pick(
    pods: &[PodView],
    demand: &Demand,
    profile: &Profile,
    rng: &mut fastrand::Rng,
    scratch: &mut Scratch,
) -> Result<Pick, NoPod> {
    let fleet = evaluate(pods, demand, profile, scratch, |_, _, _| {})?;
    let Scratch { candidates, totals, .. } = scratch;
    let place = match &profile.policy {
        Policy::Cost(preset) => {
            let others = fleet.others();
            picker::cheapest(pods, demand, preset, candidates, totals, others, rng)
        }
        Policy::Scorers { scorers, picker } => picker.pick(totals, TIE * weight_sum(scorers), rng),
    };
    let Some((candidate, &total)) =
        place.and_then(|place| candidates.get(place).zip(totals.get(place)))
    else {
        return Err(NoPod::Empty);
    };
    let score = match profile.policy {
        Policy::Cost(_) => relative(least(totals), total),
        Policy::Scorers { .. } => total,
    };
    Ok(Pick { index: candidate.index, score, estimate: candidate.estimate })
}

/// Whether [`pick`] would say [`NoPod::Saturated`] whatever the request asks for.
pub fn is_full(pods: &[PodView], profile: &Profile) -> bool {
    let mut ready = pods.iter().filter(|pod| pod.ready).peekable();
    ready.peek().is_some() && ready.all(|pod| filter::tier(pod, profile, 0.0) == Tier::Saturated)
}

/// Says how [`pick`] sees each pod, one entry for each of `pods` and in their order. Allocates; not
/// for each request.
pub fn explain(
    pods: &[PodView],
    demand: &Demand,
    profile: &Profile,
    scratch: &mut Scratch,
) -> Vec<Explanation> {
    let fleet = Fleet::read(pods, demand, profile.stale_after);
    let mut pages: Vec<Explanation> = pods
        .iter()
        .map(|pod| {
            let signals = pod.believed(profile.stale_after);
            let estimate = cost::estimate(pod, signals.as_ref(), demand, &fleet);
            let tier = filter::tier(pod, profile, estimate.wait());
            Explanation { tier, score: None, parts: Vec::new(), estimate: None }
        })
        .collect();
    let outcome = evaluate(pods, demand, profile, scratch, |name, candidates, column| {
        for (candidate, &score) in candidates.iter().zip(column) {
            if let Some(page) = pages.get_mut(candidate.index) {
                page.parts.push((name, score));
            }
        }
    });
    if outcome.is_err() {
        return pages;
    }
    let least = least(&scratch.totals);
    for (candidate, &total) in scratch.candidates.iter().zip(&scratch.totals) {
        let Some(page) = pages.get_mut(candidate.index) else { continue };
        let estimate = candidate.estimate;
        page.estimate = Some(estimate);
        page.score = Some(match profile.policy {
            Policy::Scorers { .. } => total,
            Policy::Cost(_) => {
                page.parts.extend([
                    ("cost", total),
                    ("ahead", estimate.ahead),
                    ("room", estimate.room),
                    ("adapter", estimate.adapter),
                    ("overdue", estimate.overdue),
                    ("prefill", estimate.prefill),
                    ("token", estimate.token),
                ]);
                relative(least, total)
            }
        });
    }
    pages
}

impl Policy {
    /// Whether this scorer counts for anything.
    pub fn weighs(&self, scorer: Scorer) -> bool {
        match self {
            Self::Cost(_) => false,
            Self::Scorers { scorers, .. } => {
                scorers.iter().any(|weighted| weighted.scorer == scorer && weighted.weight() > 0.0)
            }
        }
    }

    /// The most that a pod can score.
    pub fn most_score(&self) -> f32 {
        match self {
            Self::Cost(_) => 1.0,
            Self::Scorers { scorers, .. } => weight_sum(scorers),
        }
    }
}

/// The most that a pod can score under these weights.
fn weight_sum(scorers: &[Weighted]) -> f32 {
    scorers.iter().map(Weighted::weight).sum()
}

/// A pod that passed the filter, as scorers see it: only signals that may be believed are left.
#[derive(Clone, Copy, Debug, Default)]
pub struct Candidate {
    /// Its place in the slice of pods.
    pub index: usize,
    /// What is expected of the request there.
    pub estimate: Estimate,
    /// Requests that this gateway has in flight there.
    pub in_flight: u32,
    /// Their prompts and expected answers, in tokens.
    pub tokens: u64,
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
    /// Tokens of the request's prompt that it has cached.
    pub cached_tokens: u32,
    /// The request's session has been served there.
    pub session: bool,
    /// The place, in the order of dispatch, of the last request that no pod had cached; 0 is never.
    pub last_used: u64,
    /// Lengths of prompts, in tokens, that it is meant for.
    pub context_range: Option<(u32, u32)>,
}

/// Fills `scratch` with the candidates and their scores (or costs), and shows each scorer's values as they
/// are made.
fn evaluate(
    pods: &[PodView],
    demand: &Demand,
    profile: &Profile,
    scratch: &mut Scratch,
    mut seen: impl FnMut(&'static str, &[Candidate], &[f32]),
) -> Result<Fleet, NoPod> {
    let Scratch { candidates, totals, column, order } = scratch;
    let fleet = filter::candidates(pods, demand, profile, candidates)?;
    totals.clear();
    let scorers = match &profile.policy {
        Policy::Cost(preset) => {
            totals.extend(candidates.iter().map(|candidate| {
                pods.get(candidate.index).map_or(f32::MAX, |pod| {
                    cost::cost(pod, &candidate.estimate, demand, preset, profile.stale_after)
                })
            }));
            return Ok(fleet);
        }
        Policy::Scorers { scorers, .. } => scorers,
    };
    totals.resize(candidates.len(), 0.0);
    for weighted in scorers {
        let weight = weighted.weight();
        if weight == 0.0 {
            continue;
        }
        column.clear();
        column.resize(candidates.len(), NEUTRAL);
        weighted.scorer.score(demand, candidates, column, order);
        for (total, score) in totals.iter_mut().zip(column.iter_mut()) {
            // Not `clamp`, which keeps a NaN.
            *score = if *score > 0.0 { score.min(1.0) } else { 0.0 };
            *total += weight * *score;
        }
        seen(weighted.scorer.name(), candidates, column);
    }
    Ok(fleet)
}

fn least(costs: &[f32]) -> f32 {
    costs.iter().copied().fold(f32::MAX, f32::min)
}

/// A cost as a score: 1 for the least of this pick, half for twice as much.
fn relative(least: f32, cost: f32) -> f32 {
    if cost > least { least / cost } else { 1.0 }
}

/// Scores closer than this share of the weights' sum are equal: summing in a different order moves
/// an `f32` by about as much, and no signal is that exact.
const TIE: f32 = 1e-6;

#[cfg(test)]
mod closed_loop;
#[cfg(test)]
mod tests;
