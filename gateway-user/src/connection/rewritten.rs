//! A request for a model in whose place another one is served.

use std::sync::Arc;

use crate::error::Refusal;
use crate::gateway::Gateway;
use crate::pool::PodId;
use crate::route::{Routes, Target};

/// What is served instead.
#[derive(Debug)]
pub(super) struct Rewritten {
    /// The model.
    pub(super) model: Arc<str>,
    /// Where it leads.
    pub(super) target: Target,
    /// What decides who may ask: where the name leads that the request has, or the model's own without one.
    pub(super) named: Target,
}

/// What is served to a request that names `model`, or none, if that is something else. `kept`: the pod that has what it
/// goes on with.
///
/// # Errors
/// The model that is to be served leads nowhere.
pub(super) fn of(
    gateway: &Gateway,
    routes: &Routes,
    model: Option<&str>,
    kept: Option<PodId>,
) -> Result<Option<Rewritten>, Refusal> {
    let rewrites = gateway.rewrites();
    if rewrites.is_empty() {
        return Ok(None);
    }
    let own = model.and_then(|model| routes.find(model));
    let Some(split) = rewrites.find(model, own.map(|own| &*own.pool.name)) else {
        return Ok(None);
    };
    let pools = gateway.pools();
    let lead = |target: &str| split.lead(target, routes, &pools);
    // A conversation that a pod keeps goes on where that is, if it may, and else by lot.
    let has = |target: &Target| target.pool.pods().iter().any(|pod| Some(pod.id) == kept);
    let by_lot = split.choose(fastrand::u64(..split.lots()));
    let keeps = |target: &&Arc<str>| lead(target).as_ref().is_some_and(has);
    let elsewhere = kept.filter(|_| !keeps(&by_lot)).and_then(|_| split.targets().find(keeps));
    let served = elsewhere.unwrap_or(by_lot);
    let Some(target) = lead(served) else {
        return Err(Refusal::model_not_found(model.unwrap_or(served)));
    };
    gateway.metrics.rewritten(&split.rewrite, split.label(model), served);
    let named = match (model, own) {
        (Some(_), Some(own)) => own.clone(),
        // Known by no pool, it is a name by itself.
        (Some(model), None) => Target::within(&target.pool, model),
        (None, _) => target.clone(),
    };
    Ok(Some(Rewritten { model: Arc::clone(served), target, named }))
}
