//! Puts right what the prefix index takes a pod to hold, and counts.

use std::cell::Cell;
use std::sync::Arc;

use tracing::{debug, info, warn};

use super::{Change, Failure, Knowledge, Sink};
use crate::metrics::{PoolMetrics, Recognition};

/// What the prefix index has of one pod.
pub trait Held {
    /// The pod's cache is empty, ahead of whatever comes next.
    fn cleared(&self);

    /// The pod holds these blocks of the index no longer.
    fn removed(&self, blocks: &[u64]);

    /// The pod holds this many tokens, and no more.
    fn holds(&self, tokens: u64);

    /// Whether several engines are known to answer there, each with a cache of its own.
    fn is_split(&self) -> bool;
}

/// Where the news of one pod's cache go.
#[derive(Debug)]
pub struct CacheSink<H> {
    held: H,
    metrics: Arc<PoolMetrics>,
    pool: Arc<str>,
    pod: Arc<str>,
    /// Whether there is a subscription; none before the first try.
    is_connected: Cell<Option<bool>>,
    /// What is told is about one of several caches: what it has not, another may have.
    is_part: Cell<bool>,
}

impl<H: Held> CacheSink<H> {
    /// For the pod of this name.
    pub fn new(held: H, metrics: Arc<PoolMetrics>, pool: Arc<str>, pod: Arc<str>) -> Self {
        metrics.events().known(&pod, false);
        Self { held, metrics, pool, pod, is_connected: Cell::new(None), is_part: Cell::new(false) }
    }
}

impl<H: Held> Sink for CacheSink<H> {
    fn connected(&self) {
        self.is_connected.set(Some(true));
        info!(pool = %self.pool, pod = %self.pod, "following the pod's KV events");
    }

    fn changed(&self, change: &Change) {
        let is_part = self.is_part.get() || change.rank > 0 || self.held.is_split();
        if is_part && !self.is_part.replace(true) {
            let Self { pool, pod, .. } = self;
            warn!(%pool, %pod, "the pod has data-parallel ranks: KV events of one say little of its cache");
        }
        if change.is_cleared && !is_part {
            self.held.cleared();
        }
        if !change.removed.is_empty() {
            self.held.removed(&change.removed);
        }
        if let Some(tokens) = change.tokens.filter(|_| !is_part) {
            self.held.holds(tokens);
        }
        let events = self.metrics.events();
        events.known(&self.pod, change.knowledge == Knowledge::All && !is_part);
        events.message(change.events, change.lost, change.is_broken);
        if change.lost > 0 || change.is_broken {
            let Change { lost, is_broken, .. } = change;
            debug!(pool = %self.pool, pod = %self.pod, lost, is_broken, "KV events are missing");
        }
    }

    fn takes(&self, bytes: usize) {
        self.metrics.events().takes(&self.pod, bytes);
    }

    fn learned(&self, recognised: bool) {
        let result = if recognised { Recognition::Recognised } else { Recognition::Unclear };
        self.metrics.events().prompt(result);
    }

    fn failed(&self, failure: &Failure) {
        // Said once: it is tried again and again.
        if self.is_connected.replace(Some(false)) != Some(false) {
            warn!(pool = %self.pool, pod = %self.pod, "no KV events of the pod: {failure}");
        }
        // Whether it changes meanwhile cannot be told.
        self.metrics.events().known(&self.pod, false);
    }
}

impl<H> Drop for CacheSink<H> {
    fn drop(&mut self) {
        self.metrics.events().left(&self.pod);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    /// A pod in an index.
    #[derive(Clone, Debug)]
    struct Member {
        index: Arc<Index>,
        slot: Slot,
        /// Tokens in a block of the index.
        block_tokens: u32,
        is_split: Cell<bool>,
    }

    impl Held for Member {
        fn is_split(&self) -> bool {
            self.is_split.get()
        }

        fn cleared(&self) {
            self.index.clear(self.slot);
        }

        fn removed(&self, blocks: &[u64]) {
            self.index.remove(self.slot, blocks);
        }

        fn holds(&self, tokens: u64) {
            let blocks = tokens.div_ceil(u64::from(self.block_tokens.max(1)));
            self.index.keep(self.slot, usize::try_from(blocks).unwrap_or(usize::MAX));
        }
    }

    use super::*;
    use crate::metrics::{Build, Format, Metrics};
    use crate::observe::events::learn::Observation;
    use crate::observe::events::testing::{cleared, payload, removed, stored};
    use crate::observe::events::tracker::Tracker;
    use crate::schedule::prefix::Matches;
    use crate::schedule::prefix::{Index, Slot};

    struct Rig {
        metrics: Metrics,
        member: Member,
        sink: CacheSink<Member>,
        tracker: Tracker,
        next: u64,
    }

    impl Rig {
        fn new() -> Self {
            let metrics = Metrics::new(Build { version: "1", revision: "a" }, Vec::new);
            let index = Arc::new(Index::new());
            let slot = index.join(100).expect("room");
            let member = Member { index, slot, block_tokens: 64, is_split: Cell::new(false) };
            let sink =
                CacheSink::new(member.clone(), metrics.pool("chat"), "chat".into(), "one".into());
            Self { metrics, member, sink, tracker: Tracker::default(), next: 0 }
        }

        fn tells(&mut self, events: &[serde_json::Value]) {
            let change = self.tracker.message(self.next, &payload(events), Instant::now());
            self.sink.changed(&change);
            self.next += 1;
        }

        fn matched(&self, blocks: &[u64]) -> u32 {
            let mut matches = Matches::default();
            self.member.index.matched(blocks, &mut matches);
            matches.blocks(self.member.slot)
        }

        fn has(&self, line: &str) {
            let page = self.metrics.encode(Format::Text).expect("a page");
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn the_index_forgets_what_the_pod_does_not_hold() {
        let mut rig = Rig::new();
        rig.has("sluice_kv_events_complete{pool=\"chat\",pod=\"one\"} 0");
        let (first, second): (Vec<u64>, Vec<u64>) = ((1..=4).collect(), (11..=14).collect());
        rig.member.index.insert(rig.member.slot, &first);
        rig.member.index.insert(rig.member.slot, &second);
        let sent = Instant::now();
        let chain: Vec<u64> = (1001..=1016).collect();
        rig.tells(&[stored(&chain, None)]);
        let prompt = Observation {
            blocks: first.clone(),
            block_tokens: 64,
            guessed_tokens: 256,
            tokens: 256,
            sent,
            answered: Instant::now(),
        };
        let recognised = rig.tracker.learn(&prompt);
        assert!(recognised);
        rig.sink.learned(recognised);
        rig.has("sluice_kv_events_prompts_total{pool=\"chat\",result=\"recognised\"} 1");
        assert_eq!((rig.matched(&first), rig.matched(&second)), (4, 4));

        // The last two of its blocks, and some of prompts that are not known: 20 are left of 16 tokens each.
        let others: Vec<u64> = (2001..=2016).collect();
        rig.tells(&[stored(&others, None), removed(&chain[8..]), removed(&others[12..])]);
        assert_eq!(
            (rig.matched(&first), rig.matched(&second)),
            (1, 4),
            "5 of 64 tokens, the youngest"
        );
        rig.has("sluice_kv_events_complete{pool=\"chat\",pod=\"one\"} 1");
        rig.has("sluice_kv_events_total{pool=\"chat\"} 4");

        rig.tells(&[cleared()]);
        assert_eq!((rig.matched(&first), rig.matched(&second)), (0, 0));
    }

    #[test]
    fn one_of_several_ranks_does_not_speak_for_all() {
        for by_metrics in [false, true] {
            let mut rig = Rig::new();
            let blocks: Vec<u64> = (1..=8).collect();
            rig.member.index.insert(rig.member.slot, &blocks);
            if by_metrics {
                rig.sink.held.is_split.set(true);
                rig.tells(&[]);
            } else {
                let events: [serde_json::Value; 0] = [];
                let of_rank =
                    rmp_serde::to_vec(&serde_json::json!([0.5, events, 1])).expect("JSON fits");
                rig.sink.changed(&rig.tracker.message(0, &of_rank, Instant::now()));
                rig.next = 1;
            }
            rig.tells(&[stored(&[1001, 1002], None), removed(&[1002])]);
            rig.tells(&[cleared()]);
            assert_eq!(rig.matched(&blocks), 8);
            rig.has("sluice_kv_events_complete{pool=\"chat\",pod=\"one\"} 0");
        }
    }

    #[test]
    fn doubt_changes_nothing_about_the_index() {
        let mut rig = Rig::new();
        rig.member.index.insert(rig.member.slot, &[1, 2, 3]);
        rig.tells(&[stored(&[1001], None)]);
        rig.next += 5;
        rig.tells(&[removed(&[1001])]);
        assert_eq!(rig.matched(&[1, 2, 3]), 3);
        rig.has("sluice_kv_events_complete{pool=\"chat\",pod=\"one\"} 0");
        rig.has("sluice_kv_events_lost_messages_total{pool=\"chat\"} 5");
        let page = rig.metrics.encode(Format::Text).expect("a page");
        drop(rig.sink);
        assert_ne!(rig.metrics.encode(Format::Text).expect("a page"), page, "the pod's series");
    }
}
