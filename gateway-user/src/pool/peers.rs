//! A pool's part in the exchange between gateways: what it tells them, and what they have told.
//!
//! Behind the pool's lock, as each pick reads it. What is on the wire is the edge's matter ([`crate::exchange`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::pod::hash;
use super::{Inner, Pool};
use crate::schedule::Ledger;
use crate::schedule::exchange::{Load, Message, Peers, Reporter, depth, marks};
use crate::schedule::prefix::{Index, Matches, Secret, Slot};

/// What makes this gateway one of several that tell each other what they have in flight.
#[derive(Clone, Debug)]
pub struct Member {
    /// Unlike any other's, and new with each start.
    pub me: u64,
    /// The same at all gateways: they have to recognise each other's prompts.
    pub secret: Secret,
    /// Told of each dispatch.
    pub dispatched: Arc<Notify>,
}

/// What a pool tells other gateways, and what they have told.
#[derive(Debug)]
pub(super) struct Exchange {
    reporter: Reporter,
    peers: Peers,
    /// Where others have sent what begins like the prompt that was last looked for.
    told: Matches,
    /// The pods' places in the pool, by their keys.
    places: HashMap<u64, usize>,
    /// When the ledgers last heard of the speeds that the others have seen.
    heard: Duration,
    /// When they were last told anything.
    reported: Duration,
}

impl Exchange {
    /// Nothing heard yet. `pool` is the pool's name, `pods` are the keys of its pods in their order.
    pub(super) fn new(pool: &str, me: u64, pods: impl Iterator<Item = u64>) -> Self {
        let pool = hash(pool);
        Self {
            reporter: Reporter::new(pool, me),
            peers: Peers::new(pool, me, INTERVAL),
            told: Matches::default(),
            places: pods.enumerate().map(|(place, key)| (key, place)).collect(),
            heard: Duration::ZERO,
            reported: Duration::ZERO,
        }
    }

    /// The pool has other pods from now on.
    pub(super) fn set_pods(&mut self, pods: impl Iterator<Item = u64>) {
        self.places = pods.enumerate().map(|(place, key)| (key, place)).collect();
    }

    /// Looks for where others have sent what begins like this prompt.
    pub(super) fn find(&mut self, blocks: &[u64], index: &Index) {
        index.matched(&marks(blocks), &mut self.told);
    }

    /// How much of the prompt others have sent to the pod of this slot, in blocks.
    pub(super) fn blocks(&self, slot: Slot) -> u32 {
        depth(self.told.blocks(slot))
    }

    /// How much of it they have sent to any pod.
    pub(super) fn most(&self) -> u32 {
        depth(self.told.most())
    }

    /// What the others have in flight at a pod.
    pub(super) fn others(&self, pod: u64, at: Duration) -> crate::schedule::Others {
        self.peers.others(pod, at)
    }

    /// A request was sent to a pod, of whose prompt that pod had `known` blocks and any pod `most`.
    pub(super) fn sent(&mut self, pod: u64, blocks: &[u64], known: u32, most: u32) {
        self.reporter.sent(pod, blocks, known, most);
    }

    /// Tells the ledgers, now and then, what the others have seen of their pods' speeds.
    pub(super) fn teach<'a>(
        &mut self,
        ledgers: impl Iterator<Item = (u64, &'a mut Ledger)>,
        at: Duration,
    ) {
        if at < self.heard + TAUGHT_EVERY {
            return;
        }
        self.heard = at;
        for (pod, ledger) in ledgers {
            ledger.hear(self.peers.known(pod, at));
        }
    }
}

impl Pool {
    /// What other gateways are to be told now: datagrams that are not signed yet. For once each [`INTERVAL`], and
    /// soon after a dispatch.
    pub fn report(&self, now: Instant) -> Vec<Vec<u8>> {
        let at = self.since_epoch(now);
        let mut datagrams = Vec::new();
        let mut inner = self.inner.lock();
        let Inner { pods, exchange: Some(exchange), .. } = &mut *inner else { return datagrams };
        // After a pause of this gateway's own, what its peers have told is waiting to be read.
        let was_held_up = at > exchange.reported + 2 * INTERVAL;
        exchange.reported = at;
        if !was_held_up {
            exchange.peers.expire(at);
        }
        self.metrics.peers(exchange.peers.len());
        let loads = pods.iter().map(|entry| {
            let mut ledger = entry.pod.ledger.lock();
            let load = Load::of(entry.pod.in_flight(), &ledger.own(at));
            (entry.pod.key, load, ledger.known(at))
        });
        exchange.reporter.report(loads, |datagram| datagrams.push(datagram.to_vec()));
        datagrams
    }

    /// Takes in what another gateway has told. `false` when that is not for this pool, or of no use.
    pub fn hear(&self, message: &Message, now: Instant) -> bool {
        let at = self.since_epoch(now);
        let mut inner = self.inner.lock();
        let Inner { pods, cold, exchange: Some(exchange), .. } = &mut *inner else { return false };
        if !exchange.peers.receive(message, at) {
            return false;
        }
        let mut prompts = Vec::with_capacity(message.chains.len());
        for chain in &message.chains {
            let place = exchange.places.get(&chain.pod);
            let Some(entry) = place.and_then(|place| pods.get_mut(*place)) else { continue };
            if chain.is_cold {
                *cold += 1;
                entry.last_used = *cold;
            }
            prompts.extend(entry.slot.map(|slot| (slot, &chain.marks)));
        }
        drop(inner);
        for (slot, marks) in prompts {
            self.cache.index.insert(slot, marks);
        }
        true
    }
}

/// How often gateways tell each other what they have in flight, if nothing is dispatched.
pub const INTERVAL: Duration = Duration::from_millis(20);

/// How often the ledgers hear what others have seen of the pods' speeds: this looks at each peer.
const TAUGHT_EVERY: Duration = Duration::from_secs(1);
