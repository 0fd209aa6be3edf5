//! What gateways before one fleet tell each other: their requests at each pod, and which prompts went where.
//!
//! A pod's metrics show all gateways' requests, but a scrape late, and not what is left to compute of their prompts; and
//! which prompts a pod has cached each gateway knows only of its own. So each one sends its peers, every few
//! ten milliseconds, a few datagrams: a [`Load`] for each pod ([`Reporter`]), which these add up ([`Peers`]) into
//! [`PodView::others`](super::PodView), and the [`marks`] of the prompts that it sent since.
//!
//! A message is bounded, tells its version and stands for itself: what is lost is told again. A peer that is not
//! heard for [`SILENT`] intervals counts as nothing, and then what it may have sent is guessed as without
//! any exchange. Pure: no IO and no clock. Who may send, and that nobody else did, is the caller's to see to.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::speed::Known;
use super::view::{Others, Own};

mod message;

pub use message::{Chain, MAX_DATAGRAM, Message, decode};

/// What one gateway has at one pod, as it tells its peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests in flight.
    pub in_flight: u32,
    /// Those whose first token has not come.
    pub pending: u32,
    /// Their prompt tokens that are still to be computed.
    pub prefill_tokens: u32,
    /// How long that should take, in microseconds.
    pub busy_us: u32,
    /// Requests that its last scrape of the pod does not show.
    pub sent: u32,
    /// Prompt and expected output of all in flight, in tokens.
    pub tokens: u32,
}

/// Collects what a gateway tells its peers about one pool.
#[derive(Debug)]
pub struct Reporter {
    pool: u64,
    me: u64,
    sequence: u32,
    /// What was told last of each pod, and in which round that was new.
    told: HashMap<u64, (Load, u32)>,
    chains: VecDeque<Chain>,
    dispatches: u32,
}

/// What a gateway's peers have told about one pool.
#[derive(Debug)]
pub struct Peers {
    pool: u64,
    me: u64,
    silent: Duration,
    heard: HashMap<u64, Peer>,
    sums: HashMap<u64, Sum>,
}

#[derive(Debug, Default)]
struct Peer {
    sequence: u32,
    at: Duration,
    loads: HashMap<u64, Load>,
    speeds: HashMap<u64, (Known, Duration)>,
}

/// All peers' requests at a pod.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    in_flight: u64,
    pending: u64,
    prefill_tokens: u64,
    sent: u64,
    tokens: u64,
    /// When their prompts should be computed.
    until: Duration,
}

impl Load {
    /// Of a gateway that has `in_flight` requests at the pod.
    pub fn of(in_flight: u32, own: &Own) -> Self {
        Self {
            in_flight,
            pending: own.pending,
            prefill_tokens: own.prefill_tokens,
            busy_us: own.busy.as_micros().try_into().unwrap_or(u32::MAX),
            sent: own.since_scrape.sent,
            tokens: own.tokens.try_into().unwrap_or(u32::MAX),
        }
    }
}

impl Reporter {
    /// Nothing to tell yet. `pool` is the same at all gateways (a hash of its name), `me` unlike any other's and
    /// new with each start.
    pub fn new(pool: u64, me: u64) -> Self {
        Self { pool, me, sequence: 0, told: HashMap::new(), chains: VecDeque::new(), dispatches: 0 }
    }

    /// A request was sent to the pod of this key, whose prompt has these blocks; of which the pod had `known` cached, and
    /// any pod `most`.
    pub fn sent(&mut self, pod: u64, blocks: &[u64], known: u32, most: u32) {
        self.dispatches = self.dispatches.wrapping_add(1);
        let told = marks(blocks);
        // What is known is told now and then, for who has come later.
        let is_new = told.len() > count(known);
        if told.is_empty() || !(is_new || self.dispatches.is_multiple_of(REPEAT)) {
            return;
        }
        // More than a round can carry: the newest is the likelier to be wanted.
        if self.chains.len() >= MAX_CHAINS {
            self.chains.pop_front();
        }
        self.chains.push_back(Chain { pod, is_cold: most == 0, marks: told });
    }

    /// What there is to tell, for once each interval and soon after a dispatch: gives `datagram` at least one and as
    /// many as it takes, each of at most [`MAX_DATAGRAM`] bytes, which go to every peer. Pods of which nothing is
    /// new are told each [`REFRESH`] rounds, their speeds each [`SPEEDS`].
    pub fn report(
        &mut self,
        pods: impl IntoIterator<Item = (u64, Load, Known)>,
        mut datagram: impl FnMut(&[u8]),
    ) {
        self.sequence = self.sequence.wrapping_add(1);
        let refresh = self.sequence % REFRESH == 1;
        let mut message = Message::new(self.pool, self.me, self.sequence);
        let mut all = HashMap::with_capacity(self.told.len());
        for (place, (pod, load, known)) in pods.into_iter().enumerate() {
            let long_ago = self.sequence.wrapping_sub(FAREWELL);
            let never = (Load::default(), long_ago);
            let (before, since) = self.told.get(&pod).copied().unwrap_or(never);
            let is_new = before != load;
            let since = if is_new { self.sequence } else { since };
            all.insert(pod, (load, since));
            // Not all in one round.
            let round = self.sequence.wrapping_add(place as u32);
            if round.is_multiple_of(SPEEDS) && known.counts.0.max(known.counts.1) >= ENOUGH {
                if !message.fits_more() {
                    datagram(&message.encode());
                    message = Message::new(self.pool, self.me, self.sequence);
                }
                message.speeds.push((pod, known));
            }
            // That nothing is left is told a few times more: it may be lost as well.
            let is_left = load != Load::default() || self.sequence.wrapping_sub(since) < FAREWELL;
            if !(is_new || refresh && is_left) {
                continue;
            }
            if !message.fits_more() {
                datagram(&message.encode());
                message = Message::new(self.pool, self.me, self.sequence);
            }
            message.loads.push((pod, load));
        }
        self.told = all;
        for chain in self.chains.drain(..) {
            if !message.fits(&chain) {
                datagram(&message.encode());
                message = Message::new(self.pool, self.me, self.sequence);
            }
            message.chains.push(chain);
        }
        // Silence would be taken for death.
        datagram(&message.encode());
    }
}

impl Peers {
    /// Nobody heard yet. Of `pool` and `me` see [`Reporter::new`]; `interval` is that of the peers' reports.
    pub fn new(pool: u64, me: u64, interval: Duration) -> Self {
        let silent = interval.saturating_mul(SILENT).max(LEAST_SILENT);
        Self { pool, me, silent, heard: HashMap::new(), sums: HashMap::new() }
    }

    /// Takes a peer's message in; `false` when it is of another pool, this gateway's own, or older than one before. What
    /// it says of prompts (`message.chains`) is the caller's to put into the prefix index.
    pub fn receive(&mut self, message: &Message, now: Duration) -> bool {
        if message.pool != self.pool || message.from == self.me {
            return false;
        }
        if !self.heard.contains_key(&message.from) && self.heard.len() >= MAX_PEERS {
            return false;
        }
        let peer = self.heard.entry(message.from).or_default();
        if peer.at > Duration::ZERO && message.sequence.wrapping_sub(peer.sequence) > u32::MAX / 2 {
            return false;
        }
        peer.sequence = message.sequence;
        peer.at = now.max(Duration::from_nanos(1));
        for &(pod, load) in &message.loads {
            let is_known = peer.loads.contains_key(&pod);
            if !is_known && peer.loads.len() >= MAX_PODS {
                continue;
            }
            let old = peer.loads.insert(pod, load).unwrap_or_default();
            if load == Load::default() {
                peer.loads.remove(&pod);
            }
            let sum = self.sums.entry(pod).or_default();
            sum.take(&old);
            sum.add(&load, now);
        }
        for &(pod, known) in &message.speeds {
            if peer.speeds.contains_key(&pod) || peer.speeds.len() < MAX_PODS {
                peer.speeds.insert(pod, (known, now));
            }
        }
        true
    }

    /// Forgets peers that have fallen silent; for once each interval.
    pub fn expire(&mut self, now: Duration) {
        let Self { heard, sums, silent, .. } = self;
        heard.retain(|_, peer| {
            let is_heard = now.saturating_sub(peer.at) <= *silent;
            for (pod, load) in peer.loads.iter().filter(|_| !is_heard) {
                if let Some(sum) = sums.get_mut(pod) {
                    sum.take(load);
                }
            }
            is_heard
        });
        sums.retain(|_, sum| sum.in_flight > 0 || sum.pending > 0 || sum.until > now);
    }

    /// What all peers together have at the pod of this key.
    pub fn others(&self, pod: u64, now: Duration) -> Others {
        let Some(sum) = self.sums.get(&pod) else { return Others::default() };
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        Others {
            in_flight: narrow(sum.in_flight),
            pending: narrow(sum.pending),
            prefill_tokens: narrow(sum.prefill_tokens),
            busy: sum.until.saturating_sub(now),
            sent: narrow(sum.sent),
            tokens: sum.tokens,
        }
    }

    /// What all peers together have seen of the speed of the pod of this key. Looks at each peer.
    pub fn known(&self, pod: u64, now: Duration) -> Option<Known> {
        let all = self.heard.values().filter_map(|peer| peer.speeds.get(&pod));
        all.map(|(known, at)| known.faded(now.saturating_sub(*at))).reduce(Known::join)
    }

    /// Peers that are heard.
    pub fn len(&self) -> usize {
        self.heard.len()
    }

    /// Whether nobody is heard.
    pub fn is_empty(&self) -> bool {
        self.heard.is_empty()
    }
}

impl Sum {
    fn add(&mut self, load: &Load, now: Duration) {
        self.in_flight += u64::from(load.in_flight);
        self.pending += u64::from(load.pending);
        self.prefill_tokens += u64::from(load.prefill_tokens);
        self.sent += u64::from(load.sent);
        self.tokens += u64::from(load.tokens);
        if self.pending == 0 {
            self.until = now;
        }
        self.until = self.until.max(now + Duration::from_micros(load.busy_us.into()));
    }

    fn take(&mut self, load: &Load) {
        self.in_flight = self.in_flight.saturating_sub(load.in_flight.into());
        self.pending = self.pending.saturating_sub(load.pending.into());
        self.prefill_tokens = self.prefill_tokens.saturating_sub(load.prefill_tokens.into());
        self.sent = self.sent.saturating_sub(load.sent.into());
        self.tokens = self.tokens.saturating_sub(load.tokens.into());
    }
}

/// A few of a prompt's blocks, at depths that grow by a third to a half each: told of, they say up to where two
/// prompts are alike, to within that. They go into the prefix index as a chain of their own (they are not
/// the blocks' hashes, and not taken for these). All gateways must hash with the same secret.
pub fn marks(blocks: &[u64]) -> Vec<u64> {
    let depths = DEPTHS.iter().map_while(|depth| blocks.get(*depth as usize - 1));
    depths.map(|hash| mark(*hash)).collect()
}

/// The mark of a block, if it is one that has a mark.
pub fn mark(block: u64) -> u64 {
    block.rotate_left(32) ^ MARK
}

/// How many blocks so many marks stand for, from the prompt's first.
pub fn depth(marks: u32) -> u32 {
    let place = (marks as usize).min(DEPTHS.len());
    place.checked_sub(1).and_then(|place| DEPTHS.get(place)).copied().unwrap_or(0)
}

/// How many marks so many blocks have.
fn count(blocks: u32) -> usize {
    DEPTHS.partition_point(|depth| *depth <= blocks)
}

/// Depths of marks, in blocks: below four, prompts have only their template in common.
const DEPTHS: [u32; MAX_MARKS] = [
    4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12_288,
];

/// Most marks of a prompt.
const MAX_MARKS: usize = 24;

/// What tells a mark from the block's hash.
const MARK: u64 = 0x6d61_726b_6d61_726b;

/// Intervals without a word after which a peer counts as nothing, and the least time: a process may be held up.
pub const SILENT: u32 = 5;
const LEAST_SILENT: Duration = Duration::from_millis(250);

/// Rounds in which everything is told once.
pub const REFRESH: u32 = 10;

/// Rounds in which it is told that nothing is left at a pod.
const FAREWELL: u32 = 4 * REFRESH;

/// Rounds in which each pod's speed is told once.
pub const SPEEDS: u32 = 50;

/// Observations with which a speed is told.
const ENOUGH: f32 = 2.0;

/// One in so many dispatches is told although it is not new.
const REPEAT: u32 = 16;

/// Most prompts that wait for the next report: 3,000 a second at intervals of 20 ms.
const MAX_CHAINS: usize = 64;

/// Most peers, and pods of a peer.
const MAX_PEERS: usize = 64;
const MAX_PODS: usize = 4096;

#[cfg(test)]
mod tests;
