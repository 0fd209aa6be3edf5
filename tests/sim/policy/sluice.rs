//! The gateway's own code: [`gateway_user::schedule`] with the profiles that it ships.

use std::time::Duration;

use fastrand::Rng;
use gateway_user::config::{Saturation, Weights};
use gateway_user::schedule::{AdapterFit, NoPod, PodView, Profile, Scratch, pick};

use super::Policy;
use crate::sim::gateway::{Looks, Seen};
use crate::sim::traffic::Ask;

/// A pool of the gateway, as far as it decides.
pub(super) struct Sluice {
    profile: Profile,
    views: Vec<PodView>,
    scratch: Scratch,
    rng: Rng,
}

impl Sluice {
    /// The profile `latency`.
    pub(super) fn latency(pods: usize, rng: Rng) -> Self {
        let weights = Weights {
            queue: 2,
            kv_cache: 2,
            running_requests: 1,
            active_request: 2,
            lora_affinity: 4,
        };
        Self::new(weights, pods, rng)
    }

    /// The profile `throughput`.
    pub(super) fn throughput(pods: usize, rng: Rng) -> Self {
        let weights = Weights {
            queue: 1,
            kv_cache: 4,
            running_requests: 2,
            active_request: 1,
            lora_affinity: 4,
        };
        Self::new(weights, pods, rng)
    }

    fn new(weights: Weights, pods: usize, rng: Rng) -> Self {
        let saturation = Saturation { queue_depth: 128, kv_cache: 1.0, in_flight: 1024 };
        let profile = Profile { weights, saturation, stale_after: Duration::from_secs(3) };
        Self { profile, views: Vec::with_capacity(pods), scratch: Scratch::default(), rng }
    }
}

impl Policy for Sluice {
    fn looks(&self) -> Looks {
        Looks::Paced
    }

    fn pick(&mut self, ask: &Ask, pods: &[Seen], now: u64) -> Result<usize, NoPod> {
        self.views.clear();
        self.views.extend(pods.iter().map(|seen| PodView {
            ready: seen.ready,
            tried: seen.tried,
            in_flight: seen.in_flight,
            signals: seen.signals,
            age: seen.at.map(|at| Duration::from_micros(now - at)),
            adapter: match ask.adapter {
                None => AdapterFit::NotNeeded,
                Some(adapter) if seen.adapters.contains(&adapter) => AdapterFit::Active,
                // Every pod lists them all, and loads what is asked for into a slot.
                Some(_) => AdapterFit::Loaded,
            },
        }));
        pick(&self.views, &self.profile, &mut self.rng, &mut self.scratch).map(|pick| pick.index)
    }
}
