//! The gateway's own code: [`gateway_user::schedule`] with the profiles that it ships.
//!
//! A pod's GPU is not told: fleets need no labels, and what is learned must do.

use std::collections::HashMap;
use std::time::Duration;

use fastrand::Rng;
use gateway_user::config::Saturation;
use gateway_user::schedule::exchange::{self, Load, Peers, Reporter};
use gateway_user::schedule::ledger::share;
use gateway_user::schedule::prefix::{Index, Matches, Slot, block_tokens, capacity};
use gateway_user::schedule::speed::prior;
use gateway_user::schedule::{
    AdapterFit, Demand, Estimate, Ledger, NoPod, PodView, Policy as By, Preset, Profile, Scratch,
    Sent, Ticket, pick,
};

use super::Policy;
use crate::engine::kv::BLOCK_TOKENS;
use crate::sim::SECOND;
use crate::sim::gateway::{Looks, Seen, TELL};
use crate::sim::traffic::{Ask, KEY_TOKENS};

/// A pool of the gateway, as far as it decides.
pub(super) struct Sluice {
    profile: Profile,
    pods: Vec<Pod>,
    index: Index,
    matches: Matches,
    /// Marks of the prompt that others have sent, by pod.
    told: Matches,
    reporter: Reporter,
    peers: Peers,
    tickets: HashMap<u64, Ticket>,
    /// Tokens of an answer, in the mean of the last ones.
    output: f64,
    /// What was expected of the request that was picked for last.
    estimate: Estimate,
    /// Requests so far of whose prompt no pod had anything cached.
    cold: u64,
    /// When priors were last set by what the whole pool has shown.
    compared: u64,
    views: Vec<PodView>,
    scratch: Scratch,
    rng: Rng,
}

struct Pod {
    ledger: Ledger,
    /// Its place in the index.
    slot: Slot,
    kv_blocks: u32,
    cached: u32,
    /// The place among all cold requests of the last one sent there.
    last_cold: u64,
}

impl Sluice {
    /// The profile `latency`.
    pub(super) fn latency(pods: usize, rng: Rng) -> Self {
        Self::new(Preset::LATENCY, pods, rng)
    }

    /// The profile `throughput`.
    pub(super) fn throughput(pods: usize, rng: Rng) -> Self {
        Self::new(Preset::THROUGHPUT, pods, rng)
    }

    fn new(preset: Preset, pods: usize, mut rng: Rng) -> Self {
        let me = rng.u64(..);
        let index = Index::new();
        let new = || {
            let slot = index.join(capacity(None, KEY_TOKENS)).expect("no fleet is that large");
            Pod { ledger: Ledger::new(prior(None)), slot, kv_blocks: 0, cached: 0, last_cold: 0 }
        };
        Self {
            profile: Profile {
                policy: By::Cost(preset),
                saturation: Saturation { queue_depth: 128, kv_cache: 1.0, in_flight: 1024 },
                max_wait: MAX_WAIT,
                stale_after: Duration::from_secs(3),
            },
            pods: (0..pods).map(|_| new()).collect(),
            index,
            matches: Matches::default(),
            told: Matches::default(),
            reporter: Reporter::new(POOL, me),
            peers: Peers::new(POOL, me, time(TELL)),
            tickets: HashMap::new(),
            output: 0.0,
            estimate: Estimate::default(),
            cold: 0,
            compared: 0,
            views: Vec::with_capacity(pods),
            scratch: Scratch::default(),
            rng,
        }
    }

    /// Pods of which little is known are taken for what the others have turned out to be.
    fn compare(&mut self, now: u64) {
        if now < self.compared + SECOND {
            return;
        }
        self.compared = now;
        for (at, pod) in self.pods.iter_mut().enumerate() {
            pod.ledger.hear(self.peers.known(key(at), time(now)));
        }
        share(self.pods.iter_mut().map(|pod| (None, &mut pod.ledger)), time(now));
    }

    fn output(&self) -> u32 {
        self.output.round() as u32
    }
}

impl Policy for Sluice {
    fn looks(&self) -> Looks {
        Looks::Paced
    }

    fn pick(&mut self, ask: &Ask, pods: &[Seen], now: u64) -> Result<usize, NoPod> {
        self.compare(now);
        self.views.clear();
        self.index.matched(&ask.keys, &mut self.matches);
        self.index.matched(&exchange::marks(&ask.keys), &mut self.told);
        for (at, (seen, pod)) in pods.iter().zip(&mut self.pods).enumerate() {
            let told = exchange::depth(self.told.blocks(pod.slot));
            let blocks = self.matches.blocks(pod.slot).max(told);
            pod.cached = (blocks * KEY_TOKENS).min(ask.prompt);
            self.views.push(PodView {
                key: key(at),
                others: self.peers.others(key(at), time(now)),
                ready: seen.ready,
                tried: seen.tried,
                in_flight: seen.in_flight,
                own: pod.ledger.own(time(now)),
                signals: seen.signals,
                age: seen.at.map(|at| time(now - at)),
                adapter: match ask.adapter {
                    None => AdapterFit::NotNeeded,
                    Some(adapter) if seen.adapters.contains(&adapter) => AdapterFit::Active,
                    // Every pod lists them all, and loads what is asked for into a slot.
                    Some(_) => AdapterFit::Loaded,
                },
                cached_tokens: pod.cached,
                kv_tokens: (pod.kv_blocks > 0).then_some(pod.kv_blocks * BLOCK_TOKENS),
                speed: pod.ledger.speed(),
                last_used: pod.last_cold,
                ..PodView::default()
            });
        }
        let demand = Demand {
            prompt_tokens: ask.prompt,
            output_tokens: self.output(),
            prefix: ask.keys.get(FIRST_KEYS - 1).copied(),
        };
        let pick = pick(&self.views, &demand, &self.profile, &mut self.rng, &mut self.scratch)?;
        self.estimate = pick.estimate;
        Ok(pick.index)
    }

    fn sent(&mut self, pod: usize, ask: &Ask, now: u64) {
        let output = self.output();
        let most = self.pods.iter().map(|pod| pod.cached).max().unwrap_or(0) / KEY_TOKENS;
        if most == 0 {
            self.cold += 1;
            self.pods[pod].last_cold = self.cold;
        }
        self.reporter.sent(key(pod), &ask.keys, self.pods[pod].cached / KEY_TOKENS, most);
        let Pod { ledger, slot, cached, .. } = &mut self.pods[pod];
        let sent = Sent { prompt: ask.prompt, uncached: ask.prompt - *cached, output };
        let ticket = ledger.dispatch(&self.estimate, sent, time(now));
        self.tickets.insert(ask.id, ticket);
        self.index.insert(*slot, &ask.keys);
    }

    fn began(&mut self, pod: usize, ask: &Ask, now: u64) {
        if let Some(ticket) = self.tickets.get(&ask.id) {
            self.pods[pod].ledger.first_token(*ticket, time(now));
        }
    }

    fn ended(&mut self, pod: usize, ask: &Ask, tokens: u32, now: u64) {
        let Some(ticket) = self.tickets.remove(&ask.id) else { return };
        let whole = tokens == ask.answer;
        self.pods[pod].ledger.finish(ticket, whole.then_some(tokens), time(now));
        if whole {
            let keep = if self.output == 0.0 { 0.0 } else { 0.99 };
            self.output = keep * self.output + (1.0 - keep) * f64::from(tokens);
        }
    }

    fn looked(&mut self, pod: usize, seen: &Seen, now: u64) {
        let Pod { ledger, slot, kv_blocks, .. } = &mut self.pods[pod];
        if *kv_blocks != seen.kv_blocks {
            *kv_blocks = seen.kv_blocks;
            let tokens = u64::from(seen.kv_blocks) * u64::from(BLOCK_TOKENS);
            self.index.resize(*slot, capacity(Some(tokens), block_tokens([BLOCK_TOKENS])));
        }
        ledger.scraped(&seen.signals, time(now));
    }

    fn gone(&mut self, pod: usize) {
        self.index.leave(self.pods[pod].slot);
    }

    fn tell(&mut self, pods: &[Seen], now: u64) -> Vec<Vec<u8>> {
        self.peers.expire(time(now));
        let mut datagrams = Vec::new();
        let loads = pods.iter().zip(&mut self.pods).enumerate().map(|(at, (seen, pod))| {
            let load = Load::of(seen.in_flight, &pod.ledger.own(time(now)));
            (key(at), load, pod.ledger.known(time(now)))
        });
        self.reporter.report(loads, |datagram| datagrams.push(datagram.to_vec()));
        datagrams
    }

    fn hear(&mut self, datagram: &[u8], now: u64) {
        let message = exchange::decode(datagram).expect("gateways are of one version");
        if !self.peers.receive(&message, time(now)) {
            return;
        }
        for chain in &message.chains {
            let Some(at) = (0..self.pods.len()).find(|at| key(*at) == chain.pod) else { continue };
            self.index.insert(self.pods[at].slot, &chain.marks);
            if chain.is_cold {
                self.cold += 1;
                self.pods[at].last_cold = self.cold;
            }
        }
    }
}

/// What a pod is called between gateways.
fn key(pod: usize) -> u64 {
    (pod as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn time(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// The only pool.
const POOL: u64 = 1;

/// How long a request may be expected to wait for a pod before it is refused.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Hashes of a prompt's beginning by which gateways agree: 256 tokens.
const FIRST_KEYS: usize = 4;
