//! What is counted of pods' KV events, of a pool whose pods publish them.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use prometheus_client::metrics::counter::Counter;

use super::labels::{ByLabel, Recognition};
use super::pool::count;

/// What is counted of one pool's KV events.
#[derive(Debug, Default)]
pub struct EventMetrics {
    /// Whether all of a pod's cache is known, by the pod's name.
    pub(super) known: RwLock<BTreeMap<Box<str>, bool>>,
    /// Memory for what is known of a pod's cache, by the pod's name.
    bytes: RwLock<BTreeMap<Box<str>, usize>>,
    pub(super) events: Counter,
    pub(super) lost: Counter,
    pub(super) malformed: Counter,
    pub(super) prompts: ByLabel<Recognition, Counter>,
}

impl EventMetrics {
    /// Says whether all that the pod's cache holds is known.
    pub fn known(&self, pod: &str, all: bool) {
        // Only a change is written: a message may come every few milliseconds.
        if self.known.read().get(pod) != Some(&all) {
            self.known.write().insert(pod.into(), all);
        }
    }

    /// Forgets a pod that has left, with its series.
    pub fn left(&self, pod: &str) {
        self.known.write().remove(pod);
        self.bytes.write().remove(pod);
    }

    /// Says how much memory what is known of the pod's cache takes, in bytes.
    pub fn takes(&self, pod: &str, bytes: usize) {
        if self.bytes.read().get(pod) != Some(&bytes) {
            self.bytes.write().insert(pod.into(), bytes);
        }
    }

    /// Memory for what is known of all pods' caches, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.read().values().map(|bytes| *bytes as u64).sum()
    }

    /// Counts a message: its events, the messages ahead of it that never came, and whether it could not be
    /// read.
    pub fn message(&self, events: usize, lost: u64, malformed: bool) {
        self.events.inc_by(events as u64);
        self.lost.inc_by(lost);
        self.malformed.inc_by(u64::from(malformed));
    }

    /// Counts a prompt that was looked for in a pod's cache.
    pub fn prompt(&self, recognition: Recognition) {
        count(self.prompts.get(recognition));
    }
}
