//! What pods are seen to do: scrapes, lists of models, health checks, and what became of requests.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;
use tracing::warn;

use super::entry::{Entry, Reach};
use super::{Inner, Lost, PodId, Pool};
use crate::observe::{Cause, EngineKind, Failure, Models, Question, Reading};
use crate::schedule::prefix;

impl Pool {
    /// A pod told its load. Returns whether it had been out of reach before.
    pub fn observed(&self, id: PodId, reading: Reading, now: Instant) -> bool {
        let same_port = self.settings.load().source.port.is_none();
        let at = self.since_epoch(now);
        let kv_tokens = reading.kv_tokens.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
        let mut inner = self.inner.lock();
        let Some(place) = inner.pods.iter().position(|entry| entry.pod.id == id) else {
            return false;
        };
        let Some(entry) = inner.pods.get_mut(place) else { return false };
        let is_other = (entry.kv_tokens, entry.block_size) != (kv_tokens, reading.block_size);
        entry.pod.ledger.lock().scraped(&reading.signals, at);
        entry.signals = reading.signals;
        entry.pod.is_split.store(reading.is_split, Ordering::Relaxed);
        // These take `stream_options` alone for a wish to have it; what is not known may do so as well.
        let keeps_usage = !matches!(
            reading.engine,
            EngineKind::Vllm | EngineKind::TrtllmServe | EngineKind::Unknown
        );
        entry.pod.keeps_usage.store(keeps_usage, Ordering::Relaxed);
        entry.kv_tokens = kv_tokens;
        entry.block_size = reading.block_size;
        entry.slots = reading.max_num_seqs;
        entry.engine = Some(reading.engine);
        entry.active = reading.adapters_active;
        entry.loads |= entry.listed
            && entry.active.iter().any(|name| entry.loaded.iter().all(|of| **of != **name));
        let was_ready = entry.ready(now);
        if std::mem::replace(&mut entry.asleep, reading.asleep) && !entry.asleep {
            entry.back = Some(now);
        }
        if entry.asleep
            && let Some(slot) = entry.slot
        {
            // Its KV cache is given up.
            self.cache.index.clear(slot);
        }
        // Of metrics that nobody knows, nothing is known.
        entry.observed = (reading.engine != EngineKind::Unknown).then_some(now);
        entry.trouble = match reading.engine {
            // A pod that is shutting down tells its load as if nothing were the matter.
            _ if entry.is_refusing(now) => entry.trouble.take(),
            _ if reading.asleep => Some("its engine is asleep".into()),
            EngineKind::Unknown => Some("its metrics are of no known model server".into()),
            _ => None,
        };
        entry.answered(same_port, now);
        let is_back = !was_ready && entry.ready(now);
        self.resize_cache(&mut inner, place, is_other);
        self.queue.freed();
        is_back
    }

    /// A pod told its models. Returns whether the set of loaded adapters changed.
    pub fn listed(&self, id: PodId, models: &Models) -> bool {
        let settings = self.settings.load();
        let is_alias = |name: &str| settings.aliases.iter().any(|alias| **alias == *name);
        let known = |name: &str| *self.model == *name || is_alias(name);
        let stranger = match models.bases.first() {
            Some(first) if !models.bases.iter().any(|name| known(name)) => {
                Some(format!("it serves `{first}`, and not `{}`", self.model))
            }
            _ => None,
        };
        let loaded: Vec<Arc<str>> =
            models.adapters.iter().map(|adapter| adapter.id.as_ref().into()).collect();
        self.update(id, |entry| {
            let changed = entry.loaded != loaded;
            entry.loaded = loaded;
            entry.listed = true;
            if let Some(stranger) = stranger.as_ref().filter(|_| stranger != entry.stranger) {
                warn!(pool = %self.name, pod = %entry.pod.name, "{stranger}");
            }
            entry.stranger = stranger;
            changed
        })
    }

    /// A pod did not tell.
    pub fn unobserved(&self, id: PodId, failure: &Failure, now: Instant) -> Lost {
        let same_port = self.settings.load().source.port.is_none();
        let mut lost = Lost::default();
        self.update(id, |entry| {
            let was_ready = entry.ready(now);
            if failure.question == Question::Models {
                // Not every server lists models, and its load is what says how it is.
                return false;
            }
            entry.trouble = Some(failure.to_string());
            match failure.cause {
                // The server is there, but what it says is not signals: unknown, not idle.
                cause if cause.answered() => {
                    entry.forget();
                    entry.answered(same_port, now);
                }
                // Nothing can be asked there, and no request sent, until somebody has seen to it.
                Cause::Tls(_) => {
                    entry.forget();
                    if same_port {
                        entry.reach = Reach::Down { since: now, silent: false };
                    }
                }
                Cause::Refused => {
                    entry.forget();
                    lost.adapters = !entry.loaded.is_empty();
                    entry.loaded.clear();
                    // Another process comes back there.
                    entry.listed = false;
                    entry.loads = false;
                    entry.sent.clear();
                    if let Some(slot) = entry.slot {
                        self.cache.index.clear(slot);
                    }
                    if same_port {
                        entry.reach = Reach::Down { since: now, silent: false };
                    }
                }
                _ if same_port => {
                    entry.missed(now);
                    if let (Reach::Down { .. }, Some(slot)) = (entry.reach, entry.slot) {
                        // It may be another process that comes back, or another machine.
                        self.cache.index.clear(slot);
                    }
                }
                _ => {}
            }
            lost.reach = was_ready && !entry.ready(now);
            lost.reach
        });
        lost
    }

    /// A pod's health checks amount to this. Returns whether it may be given requests now and was not before, or the
    /// other way round.
    pub fn checked(
        &self,
        id: PodId,
        health: Result<(), String>,
        answered: bool,
        now: Instant,
    ) -> bool {
        let changed = self.update(id, |entry| {
            let was_ready = entry.ready(now);
            entry.checked(Some(health), answered, now);
            was_ready != entry.ready(now)
        });
        if changed {
            self.queue.freed();
        }
        changed
    }

    /// A request failed at a pod in a way that the next one would too. `silent`: nothing listened there, so
    /// that an answered scrape shows that it is back; a pod that is shutting down still answers those.
    pub fn eject(&self, id: PodId, why: &str, silent: bool, now: Instant) {
        self.update(id, |entry| {
            entry.pod.failed();
            entry.eject(why, silent, now);
            false
        });
    }

    /// A request broke off at a pod before any content. Once is chance; a pod where every request breaks is
    /// the emptiest of all, and would draw each request first. The last one that is left stays: there is
    /// nothing better, and it may be the requests that are at fault.
    pub fn broke(&self, id: PodId, why: &str, now: Instant) {
        let mut inner = self.inner.lock();
        let others = inner.pods.iter().any(|entry| entry.pod.id != id && entry.ready(now));
        let Some(entry) = inner.pods.iter_mut().find(|entry| entry.pod.id == id) else { return };
        entry.pod.failed();
        entry.broken = entry.broken.saturating_add(1);
        if others && entry.broken >= BROKEN_TO_EJECT {
            let why = format!("{} requests in a row failed: {why}", entry.broken);
            entry.eject(&why, false, now);
        }
    }

    /// A request that had been written at `sent` was answered by a pod: whatever was suspected before, it
    /// serves. A pod that is shutting down still answers the requests that it has taken, so an older one says
    /// nothing of the next.
    pub fn served(&self, id: PodId, sent: Instant, now: Instant) {
        self.update(id, |entry| {
            entry.broken = 0;
            match entry.reach {
                Reach::Up => {}
                Reach::Down { since, .. } | Reach::Ejected { since, .. } if sent <= since => {}
                _ => {
                    entry.is_up(now);
                    entry.trouble = None;
                }
            }
            false
        });
    }

    /// What a pod told of its KV cache decides how much of it the index keeps.
    fn resize_cache(&self, inner: &mut Inner, place: usize, changed: bool) {
        let is_recounted = self.cache.is_recounted();
        if !changed && !is_recounted {
            return;
        }
        let sizes = inner.pods.iter().filter_map(|entry| entry.block_size);
        let all = self.cache.set_block_sizes(sizes) || is_recounted;
        let block_tokens = self.cache.block_tokens();
        for (other, entry) in inner.pods.iter().enumerate() {
            if let Some(slot) = entry.slot.filter(|_| all || other == place) {
                let tokens = entry.kv_tokens.map(|tokens| self.cache.guessed(tokens.into()));
                let capacity = prefix::capacity(tokens, block_tokens);
                self.cache.index.resize(slot, capacity);
            }
        }
    }

    fn update(&self, id: PodId, change: impl FnOnce(&mut Entry) -> bool) -> bool {
        let mut inner = self.inner.lock();
        // A pod that has left the pool may still report; there is nothing left to change then.
        inner.pods.iter_mut().find(|entry| entry.pod.id == id).is_some_and(change)
    }
}

/// Requests in a row that must break off before a pod gets no more for a while.
const BROKEN_TO_EJECT: u32 = 3;
