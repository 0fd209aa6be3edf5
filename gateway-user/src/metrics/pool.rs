//! One pool's handles: resolved once, so that a finished request touches atomics and histograms and
//! no map.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::events::EventMetrics;
use super::gateway::GatewayMetrics;
use super::labels::{ByLabel, Limit, Outcome, Rejection, ScrapeFailure, TokenKind};
use super::record::Record;
use crate::schedule::prefix::{Index, Usage};

/// What is counted of one pool.
#[derive(Debug)]
pub struct PoolMetrics {
    gateway: Arc<GatewayMetrics>,
    pub(super) requests: ByLabel<Outcome, Counter>,
    pub(super) models: RwLock<BTreeMap<Box<str>, Arc<ModelMetrics>>>,
    pub(super) other_models: ModelMetrics,
    pub(super) rejected: ByLabel<Rejection, Counter>,
    pub(super) limited: ByLabel<Limit, Counter>,
    pub(super) retries: Counter,
    /// Requests that were not sent to another pod, as too many had been.
    pub retries_refused: Counter,
    /// Requests that wait for a place.
    pub queued: Gauge,
    pub(super) duration: Histogram,
    pub(super) ttft: Histogram,
    pub(super) tpot: Histogram,
    pub(super) prompt_tokens: Counter,
    pub(super) cached_tokens: Counter,
    pub(super) generation_tokens: Counter,
    pub(super) request_prompt_tokens: Histogram,
    pub(super) request_generation_tokens: Histogram,
    pub(super) prefix_queried: Counter,
    pub(super) prefix_cached: Counter,
    prefix_index: RwLock<Option<Arc<Index>>>,
    pub(super) scrape_failures: ByLabel<ScrapeFailure, Counter>,
    /// Health checks that failed.
    pub health_check_failures: Counter,
    pub(super) direct: OnceLock<Direct>,
    pub(super) events: OnceLock<EventMetrics>,
    pub(super) peers: OnceLock<Gauge>,
}

/// What is counted of the requests that name one model.
#[derive(Debug, Default)]
pub(super) struct ModelMetrics {
    pub(super) requests: Counter,
    pub(super) tokens: ByLabel<TokenKind, Counter>,
}

/// What is counted of a pool that takes whole connections.
#[derive(Debug, Default)]
pub(super) struct Direct {
    pub(super) fallbacks: Counter,
    pub(super) stale: Counter,
    pub(super) retries: Counter,
}

impl PoolMetrics {
    pub(super) fn new(gateway: Arc<GatewayMetrics>) -> Self {
        Self {
            gateway,
            requests: ByLabel::default(),
            models: RwLock::default(),
            other_models: ModelMetrics::default(),
            rejected: ByLabel::default(),
            limited: ByLabel::default(),
            retries: Counter::default(),
            retries_refused: Counter::default(),
            queued: Gauge::default(),
            duration: Histogram::new(DURATION),
            ttft: Histogram::new(TTFT),
            tpot: Histogram::new(TPOT),
            prompt_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            request_prompt_tokens: Histogram::new(powers_of_two(3, 20)),
            request_generation_tokens: Histogram::new(powers_of_two(0, 17)),
            prefix_queried: Counter::default(),
            prefix_cached: Counter::default(),
            prefix_index: RwLock::default(),
            scrape_failures: ByLabel::default(),
            health_check_failures: Counter::default(),
            direct: OnceLock::new(),
            events: OnceLock::new(),
            peers: OnceLock::new(),
        }
    }

    /// Takes the names that clients may use: model, aliases, adapters. Counts of names that stay
    /// are kept.
    pub fn set_models<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        let mut models = self.models.write();
        *models = names
            .into_iter()
            .map(|name| (name.into(), models.get(name).cloned().unwrap_or_default()))
            .collect();
    }

    /// Counts a request by the model that it named.
    pub fn requested(&self, model: &str) {
        let models = self.models.read();
        models.get(model).map_or(&self.other_models, |own| own).requests.inc();
    }

    /// Counts the tokens of a request by the model that it named.
    pub fn used(&self, model: &str, record: &Record) {
        let models = self.models.read();
        let tokens = &models.get(model).map_or(&self.other_models, |own| own).tokens;
        for (kind, count) in [
            (TokenKind::Prompt, record.prompt_tokens),
            (TokenKind::Cached, record.cached_tokens),
            (TokenKind::Generated, record.completion_tokens),
        ] {
            if let Some((counter, count)) = tokens.get(kind).zip(count) {
                counter.inc_by(count);
            }
        }
    }

    /// Counts a request that was refused as the model's own limit was used up.
    pub fn limited(&self, limit: Limit) {
        count(self.limited.get(limit));
    }

    /// Takes the prefix index, to tell its size.
    pub fn set_prefix_index(&self, index: &Arc<Index>) {
        *self.prefix_index.write() = Some(Arc::clone(index));
    }

    /// What the prefix index takes up.
    pub(crate) fn prefix_usage(&self) -> Option<Usage> {
        Some(self.prefix_index.read().as_ref()?.usage())
    }

    /// Counts a request that was given to a pod: tokens of its prompt, and those thought to be cached there.
    pub fn placed(&self, prompt_tokens: u32, cached: u32) {
        self.prefix_queried.inc_by(prompt_tokens.into());
        self.prefix_cached.inc_by(cached.into());
    }

    /// Counts a request once it has ended.
    pub fn finished(&self, record: &Record) {
        count(self.requests.get(record.outcome));
        if let Some(reason) = record.rejection {
            count(self.rejected.get(reason));
        }
        self.retries.inc_by(u64::from(record.retries));
        // A connection that was switched lasts as long as people talk.
        if record.outcome == Outcome::Ok && record.status != 101 {
            self.duration.observe(record.duration.as_secs_f64());
        }
        if let Some(ttft) = record.ttft {
            self.ttft.observe(ttft.as_secs_f64());
        }
        if let Some(tpot) = record.tpot() {
            self.tpot.observe(tpot.as_secs_f64());
        }
        if let Some(tokens) = record.prompt_tokens {
            self.prompt_tokens.inc_by(tokens);
            self.request_prompt_tokens.observe(tokens as f64);
        }
        if let Some(tokens) = record.cached_tokens {
            self.cached_tokens.inc_by(tokens);
        }
        if let Some(tokens) = record.completion_tokens {
            self.generation_tokens.inc_by(tokens);
            self.request_generation_tokens.observe(tokens as f64);
        }
        self.gateway.finished(record);
    }

    /// Takes what the kernel has counted since the start, of a pool that takes whole connections:
    /// those that the gateway got, those that were given blindly, and pods' sockets passed over.
    pub fn direct(&self, fallbacks: u64, stale: u64, retried: u64) {
        let direct = self.direct.get_or_init(Direct::default);
        raise(&direct.fallbacks, fallbacks);
        raise(&direct.stale, stale);
        raise(&direct.retries, retried);
    }

    /// What is counted of its pods' KV events. Its series begin with the first call.
    pub fn events(&self) -> &EventMetrics {
        self.events.get_or_init(EventMetrics::default)
    }

    /// Says how many gateways with this pool are heard. Its series begins with the first call.
    pub fn peers(&self, heard: usize) {
        self.peers.get_or_init(Gauge::default).set(i64::try_from(heard).unwrap_or(i64::MAX));
    }

    /// Counts a scrape of one of its pods that told nothing.
    pub fn scrape_failed(&self, reason: ScrapeFailure) {
        count(self.scrape_failures.get(reason));
    }
}

/// Adds one to a cell that is always there.
pub(super) fn count(cell: Option<&Counter>) {
    if let Some(counter) = cell {
        counter.inc();
    }
}

/// Brings a counter to what was counted elsewhere since the start; it never goes back.
pub(super) fn raise(counter: &Counter, now: u64) {
    counter.inc_by(now.saturating_sub(counter.get()));
}

/// Bounds 2^first to 2^last.
fn powers_of_two(first: u32, last: u32) -> impl Iterator<Item = f64> {
    (first..=last).map(|power| f64::from(power).exp2())
}

/// Seconds. From an embedding to a long run of a reasoning model.
const DURATION: [f64; 24] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0,
    30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0,
];
/// Seconds. Fine where people notice (below 1 s), long enough for a queue and a prefill of a
/// million tokens.
const TTFT: [f64; 24] = [
    0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0,
    5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0,
];
/// Seconds. 1 ms is 1,000 tokens a second; above 100 ms people read faster than that.
const TPOT: [f64; 20] = [
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15,
    0.2, 0.3, 0.5, 1.0, 2.5, 10.0,
];
