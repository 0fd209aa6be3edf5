//! One model server endpoint: who it is, what is counted of it, and a place that a request holds there.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::cache::Cache;
use super::learned::Learned;
use super::queue::Queue;
use crate::config;
use crate::observe::events::Observation;
use crate::schedule::prefix::{Prompt, Slot};
use crate::schedule::speed::prior;
use crate::schedule::{Excess, Ledger, Ticket};
use crate::tls::PodTls;

/// One model server endpoint.
#[derive(Debug)]
pub struct Pod {
    /// Unlike any other pod's in this process.
    pub id: PodId,
    /// The same at every gateway.
    pub(super) key: u64,
    /// Its name in logs, metrics and status.
    pub name: Arc<str>,
    /// Where requests go.
    pub address: SocketAddr,
    /// What tells it from others that have had its address, where somebody knows.
    uid: Option<Box<str>>,
    /// How TLS is spoken with it, if it is.
    pub tls: Option<Arc<PodTls>>,
    /// The GPU, as a label.
    pub gpu: Option<Box<str>>,
    /// What a client sends to come back to it.
    pub(super) session: Box<str>,
    /// Lengths of prompts that it is meant for.
    pub(super) context_range: Option<(u32, u32)>,
    /// Several engines answer there, each with a KV cache of its own.
    pub(super) is_split: AtomicBool,
    /// Its engine tells a stream's usage only if that is asked for in so many words.
    pub(super) keeps_usage: AtomicBool,
    in_flight: AtomicU32,
    /// Connections that the kernel gave to its own socket: open now, and ever.
    connections: AtomicU32,
    given: AtomicU64,
    requests: AtomicU64,
    tokens: AtomicU64,
    failures: AtomicU64,
    woken: Notify,
    /// Where prompts go that it has answered; none where nobody asks for its events.
    prompts: Option<mpsc::Sender<Observation>>,
    /// Taken behind the pool's lock, and never ahead of it.
    pub(super) ledger: Mutex<Ledger>,
}

/// A pod's identity for as long as the process runs; an address can come back, an id does not.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct PodId(u32);

/// A request's place at a pod. Dropping it gives the place back.
#[derive(Debug)]
pub struct Place {
    /// The pod that was picked.
    pub pod: Arc<Pod>,
    /// Its score among the pods of that moment.
    pub score: f32,
    pub(super) ticket: Ticket,
    /// Tokens of the prompt, by a guess.
    pub(super) guessed: u64,
    pub(super) learned: Arc<Mutex<Learned>>,
    pub(super) cache: Arc<Cache>,
    pub(super) slot: Option<Slot>,
    /// Blocks of the prompt that the pod was thought to have.
    pub(super) known_blocks: u32,
    pub(super) keeps_session: bool,
    pub(super) queue: Arc<Queue>,
    pub(super) epoch: Instant,
    pub(super) taken: Instant,
    pub(super) ended: Option<(Option<u32>, Instant)>,
}

/// What an answer turned out to be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answered {
    /// Tokens of the prompt, as the engine counted them.
    pub prompt_tokens: Option<u64>,
    /// Tokens generated.
    pub output_tokens: Option<u64>,
    /// When the last content came.
    pub last_received: Option<Instant>,
}

impl Pod {
    /// The pod of a configuration's entry; nothing is known of it yet.
    pub(super) fn new(
        pod: &config::Pod,
        tls: Option<Arc<PodTls>>,
        prompts: Option<mpsc::Sender<Observation>>,
    ) -> Self {
        Self {
            id: PodId(NEXT_POD.fetch_add(1, Ordering::Relaxed)),
            key: key(pod.address),
            name: pod.name.as_str().into(),
            address: pod.address,
            uid: pod.uid.as_deref().map(Into::into),
            tls,
            gpu: pod.gpu.as_deref().map(Into::into),
            // Every gateway knows it.
            session: format!("{:016x}", key(pod.address)).into(),
            context_range: pod.context_range,
            is_split: AtomicBool::new(false),
            keeps_usage: AtomicBool::new(false),
            in_flight: AtomicU32::new(0),
            connections: AtomicU32::new(0),
            given: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            woken: Notify::new(),
            prompts,
            ledger: Mutex::new(Ledger::new(prior(pod.gpu.as_deref()))),
        }
    }

    /// Whether it is the pod of this entry, and no other that has come to the same address.
    pub(super) fn is(&self, pod: &config::Pod) -> bool {
        self.uid.as_deref() == pod.uid.as_deref()
            && self.address == pod.address
            && *self.name == *pod.name
            && self.gpu.as_deref() == pod.gpu.as_deref()
            && self.context_range == pod.context_range
    }

    /// Counts a request that got a place.
    pub(super) fn take(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.woken.notify_one();
    }

    /// Takes what the kernel has counted of its whole connections. Returns how many are new.
    pub(super) fn set_connections(&self, given: u64, open: u64) -> u64 {
        let open = u32::try_from(open).unwrap_or(u32::MAX);
        self.connections.store(open, Ordering::Relaxed);
        let new = given.saturating_sub(self.given.swap(given, Ordering::Relaxed));
        if new > 0 {
            self.woken.notify_one();
        }
        new
    }

    /// Requests that the gateway has in flight there, and connections that the kernel has given to
    /// it: nobody knows what is said on those, and each counts as one.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed).saturating_add(self.connections())
    }

    /// Connections open that the kernel has given to it.
    pub fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Connections that the kernel has ever given to it.
    pub fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    /// Requests and whole connections ever given to it.
    pub fn taken(&self) -> u64 {
        self.requests().saturating_add(self.given())
    }

    /// Returns once more than `before` requests and whole connections have been given to it. For one task at a time.
    pub async fn wanted(&self, before: u64) {
        while self.taken() <= before {
            self.woken.notified().await;
        }
    }

    /// Requests ever given to it.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Tokens that it has generated through this gateway.
    pub fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Relaxed)
    }

    /// Requests that failed there.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Whether its streams are without usage for a client that sends `stream_options` and does not say whether it wants that.
    pub fn keeps_usage(&self) -> bool {
        self.keeps_usage.load(Ordering::Relaxed)
    }

    /// Prompts that it has answered are wanted: see [`Place::answered`].
    pub fn wants_prompts(&self) -> bool {
        self.prompts.is_some()
    }

    /// Counts tokens that it has generated.
    pub fn generated(&self, tokens: u64) {
        self.tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    /// Counts a request that failed there.
    pub fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}

impl Place {
    /// The request, whose prompt this is, has been written to the pod: it has the prompt in its cache soon.
    pub fn sent(&self, prompt: &Prompt) {
        if let Some(slot) = self.slot {
            self.cache.index.insert(slot, &prompt.blocks);
        }
    }

    /// The pod has refused the request that was sent, or failed it: it does not have the prompt.
    pub fn refused(&self, prompt: &Prompt) {
        if let (Some(slot), Some(new)) =
            (self.slot, prompt.blocks.get(self.known_blocks as usize..))
        {
            self.cache.forget(slot, new);
        }
    }

    /// The first content that the client gets says nothing of when the first token came.
    pub fn unseen(&self) {
        self.pod.ledger.lock().unseen(self.ticket);
    }

    /// What brings the session's next request here, where that is wanted.
    pub fn session(&self) -> Option<&str> {
        self.keeps_session.then_some(&self.pod.session)
    }

    /// When a client may come back that its pod has sent away as too many.
    pub fn retry_after(&self, now: Instant) -> Duration {
        self.learned.lock().retry_after(Excess::default(), self.since_epoch(now))
    }

    /// The first content of a stream came. Of an answer in one piece that says nothing of the prompt.
    pub fn began(&self, at: Instant) {
        self.pod.ledger.lock().first_token(self.ticket, self.since_epoch(at));
    }

    /// The answer is complete: gives the place back, and what was learned with it.
    pub fn end(mut self, answered: Answered) {
        let Answered { prompt_tokens, output_tokens, last_received } = answered;
        let output = output_tokens.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
        let at = last_received.unwrap_or_else(Instant::now);
        self.ended = Some((output, at));
        let took = at.saturating_duration_since(self.taken);
        let mut learned = self.learned.lock();
        learned.answered(self.guessed, prompt_tokens, output, took);
        self.cache.set_ratio(learned.ratio());
    }

    /// The pod has answered this prompt, and says that it has so many tokens: for recognising it among the pod's
    /// events. `sent`: when the request had been written, `first`: when the first content came.
    pub fn answered(&self, prompt: Prompt, tokens: u64, sent: Instant, first: Instant) {
        let Some(prompts) = &self.pod.prompts else { return };
        let Prompt { blocks, tokens: guessed_tokens, block_tokens, .. } = prompt;
        // What nobody has time for is learned from another prompt.
        let _ = prompts.try_send(Observation {
            blocks,
            block_tokens,
            guessed_tokens,
            tokens,
            sent,
            answered: first,
        });
    }

    fn since_epoch(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.epoch)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (tokens, at) = self.ended.unwrap_or_else(|| (None, Instant::now()));
        let at = self.since_epoch(at);
        self.pod.ledger.lock().finish(self.ticket, tokens, at);
        self.pod.in_flight.fetch_sub(1, Ordering::Relaxed);
        if self.ended.is_some() {
            self.learned.lock().drain.completed(at);
        }
        self.queue.freed();
    }
}

fn key(address: SocketAddr) -> u64 {
    hash(&address.to_string())
}

/// A hash of a text that is the same everywhere and for ever (FNV-1a).
pub(super) fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

static NEXT_POD: AtomicU32 = AtomicU32::new(1);
