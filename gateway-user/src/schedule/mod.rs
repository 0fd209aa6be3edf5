//! Which pod: filter, score, pick. Pure: no IO, no clock, no allocation once warm.
//!
//! The caller gives a view of every pod and reserves the picked one in the same critical section; the
//! simulator calls this very code.

use std::time::Duration;

use crate::config::{Saturation, Weights};

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
