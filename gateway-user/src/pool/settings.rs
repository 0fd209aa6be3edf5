//! What the configuration says of a pool and may say otherwise while the daemon runs.

use std::sync::Arc;
use std::time::Duration;

use crate::auth::PodKey;
use crate::config::{self, EventSource, HealthCheck, MetricsSource, Scheduler};
use crate::schedule::{Profile, Scorer};
use crate::tls::PodTls;

/// A pool's configuration, but for its name, its model and its pods.
#[derive(Debug)]
pub struct Settings {
    /// Other names that the pods know the base model by.
    pub aliases: Vec<Arc<str>>,
    /// Adapters that the configuration names.
    pub adapters: Vec<Arc<str>>,
    /// Where the pods' metrics are read.
    pub source: MetricsSource,
    /// Where the pods publish what they have cached, if that is wanted.
    pub kv_events: Option<EventSource>,
    /// The key that the pods want, if they want one.
    pub api_key: Option<Arc<PodKey>>,
    /// How the pods are asked whether they are well, if they are.
    pub health: Option<HealthCheck>,
    /// How the pods speak TLS, if they do.
    pub tls: Option<Arc<PodTls>>,
    pub(super) profile: Profile,
    /// Clients are told what brings their next request to the same pod.
    pub(super) keeps_sessions: bool,
    /// How long a request may wait for a place.
    pub(super) patience: Duration,
}

impl Settings {
    /// Those of a scheduler. A key file, or TLS, that `before` has as well has been read already.
    pub fn new(scheduler: &Scheduler, before: Option<&Self>) -> Self {
        let known = before.and_then(|before| before.api_key.as_ref());
        let key = |file: &str| match known.filter(|known| known.file == file) {
            Some(known) => Arc::clone(known),
            None => Arc::new(PodKey::new(file)),
        };
        let known_tls = before.and_then(|before| before.tls.as_ref());
        let tls = |tls: &config::PodTls| match known_tls.filter(|known| known.is(tls)) {
            Some(known) => Arc::clone(known),
            None => Arc::new(PodTls::new(&scheduler.name, tls)),
        };
        Self {
            aliases: scheduler.aliases.iter().map(|name| name.as_str().into()).collect(),
            adapters: scheduler.lora_adapters.iter().map(|name| name.as_str().into()).collect(),
            source: scheduler.metrics.clone(),
            kv_events: scheduler.kv_events.clone(),
            api_key: scheduler.api_key_file.as_deref().map(key),
            health: scheduler.health.clone(),
            tls: scheduler.tls.as_ref().map(tls),
            profile: Profile {
                policy: scheduler.policy.clone(),
                saturation: scheduler.saturation,
                max_wait: scheduler.max_wait,
                stale_after: scheduler.metrics.stale_after,
            },
            keeps_sessions: scheduler.policy.weighs(Scorer::SessionAffinity),
            patience: scheduler.admission_wait,
        }
    }
}
