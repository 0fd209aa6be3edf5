//! One pod: its engines against the clock, and everything that its connections share.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::{Notify, mpsc};

use super::faults::Faults;
use super::kv::Change;
use super::metrics::{LoraSeries, Page, Sample, Style, Times};
use super::model::{Engine, Event, Rejected, Request};
use super::options::Options;
use super::stats::Stats;

/// One pod.
pub(super) struct Pod {
    pub(super) options: Options,
    pub(super) faults: Mutex<Faults>,
    pub(super) stats: Mutex<Stats>,
    pub(super) bytes_in: AtomicU64,
    pub(super) bytes_out: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) random: Mutex<fastrand::Rng>,
    /// The last metrics page, for a server whose metrics are stuck.
    pub(super) last_page: Mutex<Option<String>>,
    adapters: Mutex<Vec<Adapter>>,
    ranks: Vec<Rank>,
    next_rank: AtomicUsize,
    loras: Mutex<LoraSeries>,
    engine_dead: AtomicBool,
    started: Instant,
    created: f64,
    control: mpsc::UnboundedSender<Control>,
    /// Takes the changes of the first engine's KV cache, if they are published.
    kv_changes: Option<mpsc::UnboundedSender<Vec<Change>>>,
}

/// What the listener of a pod is told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Control {
    /// Refuse connections.
    Refuse(Span),
    /// Close the port and every connection, as when the process dies.
    Die(Span),
    /// The engine process dies: its requests fail, then the server follows it.
    KillEngine(Span),
    /// Open the port again.
    Revive,
    /// The end.
    Stop,
}

/// How long something lasts; `None` is for ever.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Span(pub(super) Option<Duration>);

/// An adapter that is or was loaded; its place in the list is its number in the engine.
pub(super) struct Adapter {
    pub(super) name: String,
    pub(super) path: String,
    pub(super) loaded: bool,
}

/// A model name, resolved.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Target {
    Base,
    Adapter(u32),
}

/// One engine and the requests in it.
struct Rank {
    state: Mutex<RankState>,
    /// The engine has something to do sooner than its driver thinks.
    wake: Notify,
}

struct RankState {
    engine: Engine,
    entries: HashMap<u64, Entry>,
    times: Times,
    events: Vec<Event>,
    /// Events that the front-end has not come to yet, with their times.
    outbox: VecDeque<(u64, Event)>,
    /// Until when the front-end is busy.
    busy_until: u64,
    adapter_changes: u64,
}

struct Entry {
    ticket: Arc<Ticket>,
    arrived: u64,
    last_token: u64,
}

/// How far a request is; the engine writes, the connection reads.
#[derive(Default)]
pub(super) struct Ticket {
    tokens: AtomicU32,
    cached: AtomicU32,
    end: AtomicU8,
    pub(super) news: Notify,
}

/// How a request ended in the engine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum End {
    NotYet,
    Finished,
    EngineDead,
}

impl Ticket {
    /// Tokens there.
    pub(super) fn tokens(&self) -> u32 {
        self.tokens.load(Ordering::Acquire)
    }

    /// Prompt tokens that were cached.
    pub(super) fn cached(&self) -> u32 {
        self.cached.load(Ordering::Acquire)
    }

    pub(super) fn end(&self) -> End {
        match self.end.load(Ordering::Acquire) {
            0 => End::NotYet,
            1 => End::Finished,
            _ => End::EngineDead,
        }
    }

    fn finish(&self, end: End) {
        self.end.store(if end == End::Finished { 1 } else { 2 }, Ordering::Release);
        self.news.notify_one();
    }
}

/// A request in the engine; dropped, it is aborted there.
pub(super) struct Submitted {
    pod: Arc<Pod>,
    rank: usize,
    id: u64,
    pub(super) ticket: Arc<Ticket>,
}

impl Drop for Submitted {
    fn drop(&mut self) {
        self.pod.abort(self.rank, self.id);
    }
}

/// When a driver has to come back.
enum Next {
    Now,
    At(Instant),
    Idle,
}

impl Pod {
    pub(super) fn new(
        options: Options,
        control: mpsc::UnboundedSender<Control>,
        kv_changes: Option<mpsc::UnboundedSender<Vec<Change>>>,
    ) -> Self {
        let rank = || Rank {
            state: Mutex::new(RankState {
                engine: Engine::new(&options.gpu, options.limits),
                entries: HashMap::new(),
                times: Times::default(),
                events: Vec::new(),
                outbox: VecDeque::new(),
                busy_until: 0,
                adapter_changes: u64::MAX,
            }),
            wake: Notify::new(),
        };
        let ranks: Vec<_> = (0..options.data_parallel.max(1)).map(|_| rank()).collect();
        if let Some(rank) = ranks.first().filter(|_| kv_changes.is_some()) {
            lock(&rank.state).engine.kv_mut().note_changes();
        }
        let adapter = |name: &String| Adapter {
            name: name.clone(),
            path: format!("adapters/{name}"),
            loaded: true,
        };
        Self {
            faults: Mutex::new(options.faults.clone()),
            stats: Mutex::default(),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            random: Mutex::new(fastrand::Rng::with_seed(options.seed)),
            last_page: Mutex::new(None),
            adapters: Mutex::new(options.adapters.iter().map(adapter).collect()),
            ranks,
            next_rank: AtomicUsize::new(0),
            loras: Mutex::default(),
            engine_dead: AtomicBool::new(false),
            started: Instant::now(),
            created: unix().as_secs_f64(),
            control,
            kv_changes,
            options,
        }
    }

    /// Runs one engine until dropped.
    pub(super) async fn drive(self: Arc<Self>, rank: usize) {
        let Some(wake) = self.ranks.get(rank).map(|rank| &rank.wake) else { return };
        loop {
            match self.advance(rank) {
                // Let the connections write what this step brought before the next one.
                Next::Now => tokio::task::yield_now().await,
                Next::Idle => wake.notified().await,
                Next::At(due) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(due.into()) => {}
                        () = wake.notified() => {}
                    }
                }
            }
        }
    }

    /// Gives a request to an engine: the one asked for, or one after the other.
    pub(super) fn submit(
        self: &Arc<Self>,
        request: Request,
        rank: Option<usize>,
    ) -> Result<Submitted, Rejected> {
        let rank = rank
            .filter(|rank| *rank < self.ranks.len())
            .unwrap_or_else(|| self.next_rank.fetch_add(1, Ordering::Relaxed) % self.ranks.len());
        let now = self.now();
        let ticket = Arc::new(Ticket::default());
        let Some(Rank { state, wake }) = self.ranks.get(rank) else {
            return Err(Rejected::TooLong(0));
        };
        let mut state = lock(state);
        let before = state.engine.next();
        let id = state.engine.submit(now, request)?;
        let entry = Entry { ticket: Arc::clone(&ticket), arrived: now, last_token: now };
        state.entries.insert(id, entry);
        if state.engine.next() != before {
            wake.notify_one();
        }
        Ok(Submitted { pod: Arc::clone(self), rank, id, ticket })
    }

    /// When a request that comes now leaves the front-end for the engine.
    pub(super) fn front_end_done(&self) -> Instant {
        self.wall(self.now() + self.options.gpu.base_us)
    }

    /// Changes the faults.
    pub(super) fn set_faults(&self, faults: Faults) {
        *lock(&self.faults) = faults;
    }

    /// Tells the listener.
    pub(super) fn control(&self, control: Control) {
        // A listener that is gone needs no orders.
        let _ = self.control.send(control);
    }

    /// The engine process is dead, or runs again. When it dies, every request in it fails.
    pub(super) fn set_engine_dead(&self, dead: bool) {
        self.engine_dead.store(dead, Ordering::Release);
        if !dead {
            return;
        }
        for rank in &self.ranks {
            let mut state = lock(&rank.state);
            let entries = std::mem::take(&mut state.entries);
            for (id, entry) in entries {
                state.engine.abort(id);
                entry.ticket.finish(End::EngineDead);
            }
        }
    }

    /// Finds a model name; `None` when there is no such model.
    pub(super) fn resolve(&self, model: Option<&str>) -> Option<Target> {
        let Some(name) = model else { return Some(Target::Base) };
        if self.options.models.iter().any(|model| model == name) {
            return Some(Target::Base);
        }
        let adapters = lock(&self.adapters);
        let at = adapters.iter().position(|adapter| adapter.loaded && adapter.name == name)?;
        u32::try_from(at).ok().map(Target::Adapter)
    }

    /// The adapters.
    pub(super) fn adapters(&self) -> MutexGuard<'_, Vec<Adapter>> {
        lock(&self.adapters)
    }

    /// Whether the engine process is dead.
    pub(super) fn engine_dead(&self) -> bool {
        self.engine_dead.load(Ordering::Acquire)
    }

    /// Whether the server is up and not ready yet.
    pub(super) fn starting(&self) -> bool {
        self.options.start_busy && self.started.elapsed() < self.options.start_after
    }

    /// Most tokens of a prompt and its answer.
    pub(super) fn max_model_len(&self) -> u32 {
        self.ranks.first().map_or(0, |rank| lock(&rank.state).engine.limits().max_model_len)
    }

    /// Requests that wait, in all engines.
    pub(super) fn waiting(&self) -> usize {
        self.ranks.iter().map(|rank| lock(&rank.state).engine.waiting()).sum()
    }

    /// Share of the KV cache in use, of the fullest engine.
    pub(super) fn kv_usage(&self) -> f64 {
        self.ranks.iter().map(|rank| lock(&rank.state).engine.kv_usage()).fold(0.0, f64::max)
    }

    /// What tests look at.
    pub(super) fn stats(&self) -> Stats {
        let mut stats = lock(&self.stats).clone();
        for rank in &self.ranks {
            let state = lock(&rank.state);
            let engine = &state.engine;
            stats.running += engine.running() as u64;
            stats.waiting += (engine.live() - engine.running()) as u64;
            stats.kv_usage = stats.kv_usage.max(engine.kv_usage());
            stats.tokens += engine.counters().generation_tokens;
            stats.prefix_hits += engine.counters().prefix_hits;
        }
        stats.bytes_in = self.bytes_in.load(Ordering::Relaxed);
        stats.bytes_out = self.bytes_out.load(Ordering::Relaxed);
        stats.writes = self.writes.load(Ordering::Relaxed);
        stats
    }

    /// The metrics page.
    pub(super) fn page(&self, nan: bool) -> String {
        let samples: Vec<Sample> = self
            .ranks
            .iter()
            .map(|rank| {
                let state = lock(&rank.state);
                Sample {
                    running: state.engine.running(),
                    waiting: state.engine.waiting(),
                    kv_used: state.engine.kv().used(),
                    counters: *state.engine.counters(),
                    times: state.times.clone(),
                }
            })
            .collect();
        let loras = (!lock(&self.adapters).is_empty()).then(|| lock(&self.loras).clone());
        let page = Page {
            model: self.options.models.first().map_or("", String::as_str),
            limits: &self.options.limits,
            engines: &samples,
            loras: loras.as_ref(),
            created: self.created,
            nan,
        };
        page.text(self.options.metrics)
    }

    /// Does at most one step of an engine, and passes on what the front-end has time for.
    fn advance(&self, rank: usize) -> Next {
        let Some(rank) = self.ranks.get(rank) else { return Next::Idle };
        let now = self.now();
        let mut state = lock(&rank.state);
        let RankState { engine, entries, times, events, outbox, busy_until, adapter_changes } =
            &mut *state;
        if let Some(due) = engine.next().filter(|due| *due <= now) {
            engine.step(due, events);
            if let Some(publisher) = &self.kv_changes {
                let changes = engine.kv_mut().take_changes();
                if !changes.is_empty() {
                    // A publisher that is gone has said why.
                    let _ = publisher.send(changes);
                }
            }
            outbox.extend(events.drain(..).map(|event| (due, event)));
            self.update_loras(engine, adapter_changes);
        }
        let busy = (self.options.event_time.as_micros() as f64 * self.options.speed) as u64;
        while *busy_until <= now {
            let Some((at, event)) = outbox.pop_front() else { break };
            if matches!(event, Event::Token { .. }) {
                *busy_until = (*busy_until).max(at) + busy;
            }
            self.tell(event, at, entries, times);
        }
        let outbox_due = (!outbox.is_empty()).then_some(*busy_until);
        match engine.next().into_iter().chain(outbox_due).min() {
            Some(due) if due > now => Next::At(self.wall(due)),
            Some(_) => Next::Now,
            None => Next::Idle,
        }
    }

    /// Passes an event on to the connection that waits for it.
    fn tell(&self, event: Event, at: u64, entries: &mut HashMap<u64, Entry>, times: &mut Times) {
        match event {
            Event::Started { id, cached } => {
                if let Some(entry) = entries.get(&id) {
                    entry.ticket.cached.store(cached, Ordering::Release);
                }
            }
            Event::Token { id, count } => {
                let Some(entry) = entries.get_mut(&id) else { return };
                let since = self.seconds(at - entry.last_token);
                let histogram =
                    if count == 1 { &mut times.first_token } else { &mut times.inter_token };
                histogram.observe(since);
                entry.last_token = at;
                entry.ticket.tokens.store(count, Ordering::Release);
                entry.ticket.news.notify_one();
            }
            Event::Finished { id } => {
                let Some(entry) = entries.remove(&id) else { return };
                times.request.observe(self.seconds(at - entry.arrived));
                entry.ticket.finish(End::Finished);
            }
            Event::Preempted { .. } => {}
        }
    }

    fn abort(&self, rank: usize, id: u64) {
        let Some(rank) = self.ranks.get(rank) else { return };
        let mut state = lock(&rank.state);
        let RankState { engine, entries, adapter_changes, .. } = &mut *state;
        if entries.remove(&id).is_some() {
            engine.abort(id);
            self.update_loras(engine, adapter_changes);
        }
    }

    /// Notes which adapters are live, when that may have changed.
    fn update_loras(&self, engine: &Engine, seen: &mut u64) {
        if *seen == engine.adapter_changes() {
            return;
        }
        *seen = engine.adapter_changes();
        let (running, waiting) = engine.adapters();
        let adapters = lock(&self.adapters);
        let csv = |numbers: &[u32]| {
            let name = |number: &u32| Some(adapters.get(*number as usize)?.name.as_str());
            numbers.iter().filter_map(name).collect::<Vec<_>>().join(",")
        };
        let (running, waiting) = if self.options.metrics == Style::V08 {
            (csv(&running), csv(&waiting))
        } else {
            // Since 0.16 both lists hold every adapter with a live request.
            let mut live = running;
            live.extend(
                waiting.iter().filter(|adapter| !live.contains(adapter)).collect::<Vec<_>>(),
            );
            (csv(&live), csv(&live))
        };
        lock(&self.loras).update(running, waiting, unix().as_secs_f64());
    }

    /// Simulated microseconds since the start.
    fn now(&self) -> u64 {
        (self.started.elapsed().as_secs_f64() * self.options.speed * 1e6) as u64
    }

    /// When a simulated time is.
    fn wall(&self, simulated: u64) -> Instant {
        // Rounded up: woken a moment early, the driver would find nothing to do.
        let after = (simulated + 1) as f64 / 1e6 / self.options.speed;
        self.started + Duration::from_secs_f64(after.min(A_YEAR))
    }

    /// Real seconds of a simulated duration.
    fn seconds(&self, simulated: u64) -> f64 {
        simulated as f64 / 1e6 / self.options.speed
    }
}

/// Longest time to sleep, in seconds.
const A_YEAR: f64 = 365.0 * 86_400.0;

/// Since 1970.
pub(super) fn unix() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A lock that another thread's panic does not take away.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
