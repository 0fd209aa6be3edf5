//! Pools and pods: what is known of each, and the places that requests hold there.
//!
//! A pool's state sits behind one lock, held for the few microseconds of a pick or of an update, so that
//! choosing a pod and reserving the place is one step: two requests cannot take the same last place.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

pub use self::peers::{INTERVAL, Member};
pub use self::pod::{Answered, Place, Pod, PodId};
pub use self::settings::Settings;

mod cache;
mod entry;
mod learned;
mod observed;
mod peers;
mod pod;
mod queue;
mod retries;
mod settings;

use self::cache::{Cache, Share};
use self::entry::{Entry, Reach};
use self::learned::{Learned, Ratio};
use self::peers::Exchange;
use self::queue::Queue;
use self::retries::Retries;
use crate::config::{RetryBudget, Scheduler};
use crate::limit::Limiter;
use crate::metrics::PoolMetrics;
use crate::observe::EngineKind;
use crate::observe::events::{Held, Observation};
use crate::request::scan::Parts;
use crate::schedule::filter::{self, Excess, Tier};
use crate::schedule::prefix::{self, Matches, Prompt, Secret};
use crate::schedule::{
    self, Demand, NoPod, Others, Picker, PodView, Policy, Scratch, Sent, ledger,
};

/// The pods that serve one base model.
#[derive(Debug)]
pub struct Pool {
    /// Its name in logs, metrics and status.
    pub name: Arc<str>,
    /// The base model, as clients name it.
    pub model: Arc<str>,
    /// How much of what all clients together may use is used.
    pub limiter: Arc<Limiter>,
    /// What is counted for it.
    pub metrics: Arc<PoolMetrics>,
    /// It takes whole connections, at a listener of its own.
    pub is_direct: bool,
    settings: ArcSwap<Settings>,
    inner: Mutex<Inner>,
    /// Requests that were to be placed so far, and whole connections that were.
    placed: AtomicU64,
    learned: Arc<Mutex<Learned>>,
    cache: Arc<Cache>,
    queue: Arc<Queue>,
    retries: Mutex<Retries>,
    /// Told of each dispatch, where other gateways want to know.
    dispatched: Option<Arc<Notify>>,
    /// Ledgers count the time from here.
    epoch: Instant,
}

/// What a request needs from a pod.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask<'a> {
    /// The adapter it names.
    pub adapter: Option<&'a str>,
    /// Its prompt, by [`Pool::read_prompt`].
    pub prompt: &'a Prompt,
    /// The session that it says it belongs to.
    pub session: Option<&'a str>,
    /// The most tokens that its answer may have.
    pub max_tokens: Option<u64>,
    /// Its first token will be seen.
    pub stream: bool,
    /// Pods where it has failed already.
    pub tried: &'a [PodId],
    /// The one pod that can serve it, if there is only one.
    pub only: Option<PodId>,
}

/// A pod as `/status` and the published scores show it.
#[derive(Clone, Debug)]
pub struct PodStatus {
    /// The pod.
    pub pod: Arc<Pod>,
    /// What the scheduler sees of it.
    pub view: PodView,
    /// The kind of server, once seen.
    pub engine: Option<EngineKind>,
    /// Where the filter put it.
    pub tier: Tier,
    /// Its score for the request, without an adapter if there is none; `None` when it is filtered out.
    pub score: Option<f32>,
    /// Each scorer's part, by the scorer's name.
    pub parts: Vec<(&'static str, f32)>,
    /// Adapters that the pod lists or runs.
    pub adapters: Vec<Arc<str>>,
    /// Why it is not ready, or why its signals are unknown.
    pub trouble: Option<String>,
    /// What choosing a pod needs to know of it and does not.
    pub lacks: Option<String>,
}

/// What a scrape that was not answered takes away.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Lost {
    /// The pod is out of reach from now on, and was not before.
    pub reach: bool,
    /// Adapters that it had listed.
    pub adapters: bool,
}

/// What is expected of a request wherever it goes.
#[derive(Clone, Copy, Debug)]
struct Expected {
    demand: Demand,
    /// Guessed tokens in a block of its prompt, and how pods count such.
    block_tokens: u32,
    ratio: Ratio,
}

impl Expected {
    /// Tokens that a pod has cached which has so many blocks. The last token is always computed.
    fn cached(&self, blocks: u32) -> u32 {
        let guessed = u64::from(blocks) * u64::from(self.block_tokens);
        self.ratio.counted(guessed).min(self.demand.prompt_tokens.saturating_sub(1))
    }
}

#[derive(Debug)]
struct Inner {
    pods: Vec<Entry>,
    views: Vec<PodView>,
    scratch: Scratch,
    matches: Matches,
    /// What other gateways are told, and have told; none where there are none.
    exchange: Option<Exchange>,
    /// Requests so far whose prompt no pod had cached.
    cold: u64,
    /// By how much the pods were too full for the last request that was refused for that.
    excess: Excess,
    rng: fastrand::Rng,
    /// When what is known of each pod was last made the others' prior.
    shared: Duration,
}

impl Pool {
    /// A pool of the configured pods; nothing is known of them yet. `member`: where other gateways have it too.
    pub fn new(
        scheduler: &Scheduler,
        settings: Settings,
        metrics: Arc<PoolMetrics>,
        seed: u64,
        member: Option<&Member>,
    ) -> Self {
        let cache = Cache::new(member.map_or_else(Secret::random, |member| member.secret.clone()));
        let capacity = prefix::capacity(None, cache.block_tokens());
        metrics.set_prefix_index(&cache.index);
        let queue = Arc::new(Queue::new(metrics.queued.clone()));
        let pods: Vec<_> =
            scheduler.pods.iter().map(|pod| Entry::new(pod, &settings, &cache, capacity)).collect();
        let exchange = member.map(|member| {
            let keys = pods.iter().map(|entry: &Entry| entry.pod.key);
            Exchange::new(&scheduler.name, member.me, keys)
        });
        Self {
            name: scheduler.name.as_str().into(),
            model: scheduler.model_name.as_str().into(),
            limiter: Arc::new(Limiter::new(scheduler.limits, Instant::now())),
            metrics,
            is_direct: scheduler.direct.is_some(),
            settings: ArcSwap::from_pointee(settings),
            inner: Mutex::new(Inner {
                pods,
                views: Vec::new(),
                scratch: Scratch::default(),
                matches: Matches::default(),
                exchange,
                cold: 0,
                excess: Excess::default(),
                rng: fastrand::Rng::with_seed(seed),
                shared: Duration::ZERO,
            }),
            placed: AtomicU64::new(0),
            learned: Arc::default(),
            cache: Arc::new(cache),
            queue,
            retries: Mutex::default(),
            dispatched: member.map(|member| Arc::clone(&member.dispatched)),
            epoch: Instant::now(),
        }
    }

    /// What the configuration says of it now.
    pub fn settings(&self) -> Guard<Arc<Settings>> {
        self.settings.load()
    }

    /// Has another configuration of the same pool hold from now on: `settings` are those of `scheduler`. What is known
    /// of a pod that stays is kept, and requests in flight at one that leaves go on.
    pub fn configure(&self, scheduler: &Scheduler, settings: Settings, now: Instant) {
        self.limiter.set(scheduler.limits, now);
        let before = self.settings.load();
        // What listens to a pod's events is made with it, and so is how it is spoken to.
        let same_tls =
            before.tls.as_ref().map(Arc::as_ptr) == settings.tls.as_ref().map(Arc::as_ptr);
        let as_before = before.kv_events == settings.kv_events && same_tls;
        // What scrapes have found of the serving port they will not take back from another.
        let is_elsewhere = before.source.port.is_none() != settings.source.port.is_none();
        drop(before);
        let mut inner = self.inner.lock();
        let mut old = VecDeque::from(std::mem::take(&mut inner.pods));
        let capacity = prefix::capacity(None, self.cache.block_tokens());
        for pod in &scheduler.pods {
            let known = old.iter().position(|entry| as_before && entry.pod.is(pod));
            let entry = known.and_then(|place| old.remove(place)).map(|mut entry| {
                if is_elsewhere {
                    entry.reach = Reach::Up;
                }
                entry
            });
            let new = || Entry::new(pod, &settings, &self.cache, capacity);
            inner.pods.push(entry.unwrap_or_else(new));
        }
        for slot in old.iter().filter_map(|entry| entry.slot) {
            self.cache.index.leave(slot);
        }
        let Inner { pods, exchange, .. } = &mut *inner;
        if let Some(exchange) = exchange {
            exchange.set_pods(pods.iter().map(|entry| entry.pod.key));
        }
        if settings.health.is_none() {
            inner.pods.iter_mut().for_each(|entry| entry.checked(None, false, now));
        }
        self.settings.store(Arc::new(settings));
        drop(inner);
        self.queue.freed();
    }

    /// Reads the prompt of a body, of which the scanner has found the parts. Once for each request: it takes
    /// about a microsecond a kilobyte.
    pub fn read_prompt(&self, body: &[u8], parts: &Parts, adapter: Option<&str>) -> Prompt {
        self.cache.read(body, parts, &self.model, adapter)
    }

    /// Picks the best pod for a request and reserves a place there, in one step.
    pub fn reserve(&self, ask: Ask<'_>, now: Instant) -> Result<Place, NoPod> {
        let at = self.since_epoch(now);
        let settings = self.settings.load();
        let profile = &settings.profile;
        let expected = self.expected(ask);
        let demand = expected.demand;
        let mut inner = self.inner.lock();
        self.placed.fetch_add(1, Ordering::Relaxed);
        inner.share(at);
        // Metrics that take too long do not prove a pod dead: servers have been seen to answer requests and
        // nothing else while they are overloaded. Before all are sent away, those are tried.
        inner.look(ask, &expected, &self.cache, true, now, at);
        let Inner { pods, views, scratch, matches, exchange, cold, excess, rng, .. } = &mut *inner;
        let pick = match schedule::pick(views, &demand, profile, rng, scratch) {
            Ok(pick) => pick,
            Err(none) => {
                if none == NoPod::Saturated {
                    *excess = filter::excess(views, &demand, profile);
                }
                return Err(none);
            }
        };
        let (Some(entry), Some(view)) = (pods.get_mut(pick.index), views.get(pick.index)) else {
            return Err(NoPod::Empty);
        };
        if let Some(adapter) = ask.adapter {
            entry.sent_adapter(adapter);
        }
        // A prompt that does not fit is refused by the pod, and not worked on.
        let fits = demand.prompt_tokens <= entry.kv_tokens.unwrap_or(u32::MAX);
        let known_blocks = entry.slot.map_or(0, |slot| matches.blocks(slot));
        let mut most = matches.most();
        if let Some(exchange) = exchange {
            most = most.max(exchange.most());
            let told = entry.slot.map_or(0, |slot| exchange.blocks(slot));
            if fits {
                exchange.sent(entry.pod.key, &ask.prompt.blocks, known_blocks.max(told), most);
            }
        }
        if most == 0 {
            *cold += 1;
            entry.last_used = *cold;
        }
        let prompt = demand.prompt().min(entry.kv_tokens.unwrap_or(u32::MAX));
        let uncached = prompt.saturating_sub(view.cached_tokens);
        let sent = Sent { prompt, uncached, output: demand.output_tokens };
        let mut ledger = entry.pod.ledger.lock();
        let ticket = ledger.dispatch(&pick.estimate, sent, at);
        if !ask.stream {
            ledger.unseen(ticket);
        }
        drop(ledger);
        entry.pod.take();
        if let Some(dispatched) = &self.dispatched {
            dispatched.notify_one();
        }
        self.metrics.placed(demand.prompt_tokens, view.cached_tokens);
        Ok(Place {
            pod: Arc::clone(&entry.pod),
            score: pick.score,
            ticket,
            guessed: ask.prompt.tokens,
            learned: Arc::clone(&self.learned),
            cache: Arc::clone(&self.cache),
            slot: entry.slot.filter(|_| fits),
            known_blocks,
            keeps_session: settings.keeps_sessions,
            queue: Arc::clone(&self.queue),
            epoch: self.epoch,
            taken: now,
            ended: None,
        })
    }

    /// A request has its first place.
    pub fn began(&self, now: Instant) {
        self.retries.lock().began(self.since_epoch(now));
    }

    /// A request that a pod has failed goes to another one.
    pub fn retried(&self, now: Instant) {
        self.retries.lock().retried(self.since_epoch(now));
    }

    /// Whether a request that a pod has failed may go to another one, within `budget`.
    pub fn may_retry(&self, budget: RetryBudget, now: Instant) -> bool {
        let in_flight = |entry: &Entry| entry.pod.in_flight();
        let in_flight = self.inner.lock().pods.iter().map(in_flight).fold(0, u32::saturating_add);
        let allowed = self.retries.lock().allow(budget, in_flight, self.since_epoch(now));
        if !allowed {
            self.metrics.retries_refused.inc();
        }
        allowed
    }

    /// When a client may come back that was refused for want of room.
    pub fn retry_after(&self, now: Instant) -> Duration {
        let mut excess = self.inner.lock().excess;
        // Those that wait have their places before one that comes back.
        let waiting = u32::try_from(self.queue.waiting()).unwrap_or(0);
        excess.requests = excess.requests.saturating_add(waiting);
        self.learned.lock().retry_after(excess, self.since_epoch(now))
    }

    /// As [`Pool::reserve`], by way of `attempt`, and where all pods are full, or others wait already, within the
    /// time that the pool lets requests wait: tells how long that was. Those of a higher `priority` have their places
    /// first, and those below 0 do not wait. Dropped, it gives up.
    pub async fn admit<T>(
        &self,
        priority: i32,
        mut attempt: impl FnMut() -> Result<T, NoPod>,
    ) -> Result<(T, Duration), NoPod> {
        let at_once = |placed| (placed, Duration::ZERO);
        let patience = self.settings.load().patience;
        if priority < 0 && self.queue.waiting() > 0 {
            // A place that becomes free is for one of those.
            return Err(NoPod::Saturated);
        }
        if patience.is_zero() || priority < 0 {
            return attempt().map(at_once);
        }
        // Where there is room all the same, the first of those that wait asks for more than that.
        if self.queue.waiting() == 0 || !self.is_full(Instant::now()) {
            match attempt() {
                Err(NoPod::Saturated) => {}
                other => return other.map(at_once),
            }
        }
        let from = Instant::now();
        let placed = self.queue.wait(patience, priority, attempt).await?;
        Ok((placed, from.elapsed()))
    }

    /// Whether a request would be refused now because every pod is full, whatever it asks for.
    pub fn refuses(&self, now: Instant) -> bool {
        self.settings.load().patience.is_zero() && self.is_full(now)
    }

    fn is_full(&self, now: Instant) -> bool {
        let ask = Ask::default();
        let settings = self.settings.load();
        let profile = &settings.profile;
        let expected = self.expected(ask);
        let mut inner = self.inner.lock();
        inner.look(ask, &expected, &self.cache, true, now, self.since_epoch(now));
        let Inner { views, excess, .. } = &mut *inner;
        let is_full = schedule::is_full(views, profile);
        if is_full {
            *excess = filter::excess(views, &expected.demand, profile);
        }
        is_full
    }

    /// Requests that were to be placed so far, and whole connections that were.
    pub fn placed(&self) -> u64 {
        self.placed.load(Ordering::Relaxed)
    }

    /// Takes what the kernel has counted of a pod's whole connections: ever given to it, and open.
    pub fn set_connections(&self, pod: &Pod, given: u64, open: u64) {
        let new = pod.set_connections(given, open);
        self.placed.fetch_add(new, Ordering::Relaxed);
    }

    /// The most that a pod can score.
    pub fn most_score(&self) -> f32 {
        // Never 0, as it is divided by.
        self.settings.load().profile.policy.most_score().max(1.0)
    }

    /// The pods, in the order of the configuration.
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.inner.lock().pods.iter().map(|entry| Arc::clone(&entry.pod)).collect()
    }

    /// A pod's part of the prefix index and the prompts that it has answered, for whoever follows its events.
    /// Once; none where events are not wanted.
    pub fn cache_of(&self, id: PodId) -> Option<(impl Held + use<>, mpsc::Receiver<Observation>)> {
        let mut inner = self.inner.lock();
        let entry = inner.pods.iter_mut().find(|entry| entry.pod.id == id)?;
        let slot = entry.slot?;
        let pod = Arc::clone(&entry.pod);
        Some((Share { cache: Arc::clone(&self.cache), slot, pod }, entry.prompts.take()?))
    }

    /// Whether any pod could be given a request now.
    pub fn ready(&self, now: Instant) -> bool {
        self.inner.lock().pods.iter().any(|entry| entry.ready(now))
    }

    /// Every pod with what the scheduler thinks of it.
    pub fn status(&self, now: Instant) -> Vec<PodStatus> {
        self.explained(Ask::default(), false, now)
    }

    /// Every pod as [`Pool::reserve`] would see it now.
    pub fn explain(&self, ask: Ask<'_>, now: Instant) -> Vec<PodStatus> {
        self.explained(ask, true, now)
    }

    /// A pod whose score is below the best by at most this share of it may be picked as well.
    pub fn near(&self) -> f32 {
        match &self.settings.load().profile.policy {
            Policy::Cost(preset) => preset.margin / (1.0 + preset.margin),
            Policy::Scorers { picker: Picker::MaxScore, .. } => 0.0,
            Policy::Scorers { .. } => 1.0,
        }
    }

    fn explained(&self, ask: Ask<'_>, with_silent: bool, now: Instant) -> Vec<PodStatus> {
        let at = self.since_epoch(now);
        let expected = self.expected(ask);
        let settings = self.settings.load();
        let mut inner = self.inner.lock();
        inner.look(ask, &expected, &self.cache, with_silent, now, at);
        let Inner { pods, views, scratch, .. } = &mut *inner;
        let explained = schedule::explain(views, &expected.demand, &settings.profile, scratch);
        pods.iter()
            .zip(views.iter())
            .zip(explained)
            .map(|((entry, view), explained)| PodStatus {
                pod: Arc::clone(&entry.pod),
                view: *view,
                engine: entry.engine,
                tier: explained.tier,
                score: explained.score,
                parts: explained.parts,
                adapters: entry.adapters(),
                lacks: entry.lacks(settings.source.stale_after, now),
                trouble: entry.trouble(now).or_else(|| match explained.score {
                    Some(_) => None,
                    None => left_out(explained.tier, view),
                }),
            })
            .collect()
    }

    /// Adapters that any pod lists as loaded.
    pub fn loaded_adapters(&self) -> Vec<Arc<str>> {
        let inner = self.inner.lock();
        let mut all: Vec<Arc<str>> =
            inner.pods.iter().flat_map(|entry| entry.loaded.iter().cloned()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn expected(&self, ask: Ask<'_>) -> Expected {
        let learned = self.learned.lock();
        Expected {
            demand: learned.demand(ask.prompt, ask.max_tokens),
            block_tokens: ask.prompt.block_tokens,
            ratio: learned.ratio(),
        }
    }

    fn since_epoch(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.epoch)
    }
}

impl Inner {
    /// Fills the views for a request. `with_silent`: where no pod is ready, those are that may be alive.
    fn look(
        &mut self,
        ask: Ask<'_>,
        expected: &Expected,
        cache: &Cache,
        with_silent: bool,
        now: Instant,
        at: Duration,
    ) {
        let Self { pods, views, matches, exchange, .. } = self;
        cache.index.matched(&ask.prompt.blocks, matches);
        if let Some(exchange) = exchange {
            exchange.find(&ask.prompt.blocks, &cache.index);
        }
        let exchange = exchange.as_ref();
        let with_silent = with_silent && !pods.iter().any(|entry| entry.ready(now));
        views.clear();
        views.extend(pods.iter().map(|entry| {
            let view = entry.view(ask, now, at);
            let blocks = entry.slot.map_or(0, |slot| {
                let told = exchange.map_or(0, |exchange| exchange.blocks(slot));
                matches.blocks(slot).max(told)
            });
            PodView {
                others: exchange
                    .map_or_else(Others::default, |exchange| exchange.others(view.key, at)),
                ready: view.ready || with_silent && entry.is_silent(),
                cached_tokens: expected.cached(blocks),
                ..view
            }
        }));
    }

    /// Makes what is known of each pod the others' prior, now and then: soon, as a pod that has shown to be
    /// faster than was thought would else get all requests until the others have shown it as well.
    fn share(&mut self, at: Duration) {
        let every =
            SHARED_EVERY * (1 + u32::try_from(self.pods.len() / 16).unwrap_or(u32::MAX / 2));
        if at < self.shared + every {
            return;
        }
        self.shared = at;
        let mut ledgers: Vec<_> = self
            .pods
            .iter()
            .map(|entry| (entry.pod.gpu.as_deref(), entry.pod.ledger.lock()))
            .collect();
        if let Some(exchange) = &mut self.exchange {
            let keys = self.pods.iter().map(|entry| entry.pod.key);
            exchange.teach(keys.zip(ledgers.iter_mut().map(|(_, ledger)| &mut **ledger)), at);
        }
        ledger::share(ledgers.iter_mut().map(|(gpu, ledger)| (*gpu, &mut **ledger)), at);
    }
}

/// Why a pod that nothing is wrong with has no score.
fn left_out(tier: Tier, view: &PodView) -> Option<String> {
    match tier {
        Tier::Fresh | Tier::Unknown if view.share.is_some() => {
            Some("it has come back just now, and gets its share bit by bit".into())
        }
        Tier::Saturated => Some("it is at its limit and takes no more requests for now".into()),
        Tier::Unknown | Tier::UnknownElsewhere => {
            Some("its load is unknown: pods that told theirs come first".into())
        }
        Tier::Fresh | Tier::FreshElsewhere | Tier::Tried | Tier::NotReady => None,
    }
}

/// How often pods' speeds are compared, for each 16 pods of a pool: that costs about a microsecond a pod.
const SHARED_EVERY: Duration = Duration::from_millis(2);

#[cfg(test)]
pub(crate) mod tests;
