//! What is known of one pod, and whether it may be given requests.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::cache::Cache;
use super::pod::Pod;
use super::{Ask, Settings};
use crate::config;
use crate::observe::EngineKind;
use crate::observe::events::Observation;
use crate::schedule::prefix::Slot;
use crate::schedule::{AdapterFit, Others, PodView, Signals, ramp};

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) pod: Arc<Pod>,
    pub(super) signals: Signals,
    pub(super) engine: Option<EngineKind>,
    pub(super) observed: Option<Instant>,
    pub(super) active: Vec<Box<str>>,
    pub(super) loaded: Vec<Arc<str>>,
    /// It has told which models it has.
    pub(super) listed: bool,
    /// It has run an adapter that it had not listed: it loads on demand.
    pub(super) loads: bool,
    /// Adapters of the last requests sent there, the latest last; as many as fit.
    pub(super) sent: VecDeque<Box<str>>,
    pub(super) kv_tokens: Option<u32>,
    /// Tokens in one of its KV blocks.
    pub(super) block_size: Option<u32>,
    /// Prompts that it has answered, until somebody follows its events.
    pub(super) prompts: Option<mpsc::Receiver<Observation>>,
    /// Its place in the prefix index; none in a pool of more pods than that takes.
    pub(super) slot: Option<Slot>,
    /// Sequences that may run at once.
    pub(super) slots: Option<u32>,
    pub(super) asleep: bool,
    /// It is well by its own account, where it is asked; or why it is not.
    pub(super) health: Option<Result<(), String>>,
    /// It serves another model than the pool's.
    pub(super) stranger: Option<String>,
    pub(super) reach: Reach,
    pub(super) trouble: Option<String>,
    /// When it came back, if it has been out.
    pub(super) back: Option<Instant>,
    /// Requests in a row that broke off before any content.
    pub(super) broken: u32,
    /// The place among requests that no pod had cached, of the last one sent there; 0 is never.
    pub(super) last_used: u64,
}

/// Whether a pod can be reached, as far as is known.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reach {
    /// It has answered, or nothing is known yet.
    Up,
    /// `misses` scrapes in a row timed out.
    Doubtful { misses: u32 },
    /// Nothing listens there, by a scrape, or nothing answers (`silent`). The next scrape that is answered
    /// brings it back.
    Down { since: Instant, silent: bool },
    /// A request failed there in a way that the next would too. It is tried again from `until` on; an
    /// answered scrape brings it back at once if the failure was that nothing listened.
    Ejected { since: Instant, until: Instant, times: u32, silent: bool },
}

impl Entry {
    /// A configured pod, of which nothing is known yet.
    pub(super) fn new(
        pod: &config::Pod,
        settings: &Settings,
        cache: &Cache,
        capacity: usize,
    ) -> Self {
        let channel = settings.kv_events.as_ref().map(|_| mpsc::channel(PROMPTS));
        let (sender, prompts) = channel.unzip();
        Self {
            pod: Arc::new(Pod::new(pod, settings.tls.clone(), sender)),
            prompts,
            signals: Signals::default(),
            engine: None,
            observed: None,
            active: Vec::new(),
            loaded: Vec::new(),
            listed: false,
            loads: false,
            sent: VecDeque::new(),
            kv_tokens: None,
            block_size: None,
            slot: cache.index.join(capacity),
            slots: None,
            asleep: false,
            health: None,
            stranger: None,
            reach: Reach::Up,
            trouble: None,
            back: None,
            broken: 0,
            last_used: 0,
        }
    }

    pub(super) fn view(&self, ask: Ask<'_>, now: Instant, at: Duration) -> PodView {
        let mut ledger = self.pod.ledger.lock();
        PodView {
            key: self.pod.key,
            own: ledger.own(at),
            others: Others::default(),
            speed: ledger.speed(),
            kv_tokens: self.kv_tokens,
            slots: self.slots,
            ready: self.ready(now),
            share: ramp::share(self.back_for(now)),
            tried: ask.tried.contains(&self.pod.id)
                || ask.only.is_some_and(|only| only != self.pod.id),
            in_flight: self.pod.in_flight(),
            signals: self.signals,
            age: self.observed.map(|at| now.saturating_duration_since(at)),
            adapter: match ask.adapter {
                None => AdapterFit::NotNeeded,
                Some(name) if self.active.iter().any(|active| &**active == name) => {
                    AdapterFit::Active
                }
                Some(name) if self.loaded.iter().any(|loaded| &**loaded == name) => {
                    AdapterFit::Loaded
                }
                Some(name) if self.sent.iter().any(|sent| **sent == *name) => AdapterFit::Loaded,
                Some(_) if self.listed && !self.loads => AdapterFit::Unlisted,
                Some(_) => AdapterFit::Absent,
            },
            cached_tokens: 0,
            session: ask.session.is_some_and(|session| *session == *self.pod.session),
            last_used: self.last_used,
            context_range: self.pod.context_range,
        }
    }

    /// A request for this adapter was sent there: from now on it is in GPU memory, as long as no more come
    /// than fit.
    pub(super) fn sent_adapter(&mut self, adapter: &str) {
        let known = self.sent.iter().position(|sent| **sent == *adapter);
        match known.and_then(|place| self.sent.remove(place)) {
            Some(name) => self.sent.push_back(name),
            None => self.sent.push_back(adapter.into()),
        }
        let most = self.signals.adapter_slots.unwrap_or(ADAPTER_SLOTS).min(MOST_ADAPTER_SLOTS);
        while self.sent.len() > most as usize {
            self.sent.pop_front();
        }
    }

    pub(super) fn ready(&self, now: Instant) -> bool {
        !self.asleep
            && !self.is_ill()
            && match self.reach {
                Reach::Up | Reach::Doubtful { .. } => true,
                Reach::Down { .. } => false,
                Reach::Ejected { until, .. } => now >= until,
            }
    }

    /// How long it has been back, if it has been out.
    fn back_for(&self, now: Instant) -> Option<Duration> {
        let back = match self.reach {
            Reach::Ejected { until, .. } if now >= until => Some(until),
            _ => self.back,
        };
        back.map(|back| now.saturating_duration_since(back))
    }

    /// It serves, whatever was thought of it.
    pub(super) fn is_up(&mut self, now: Instant) {
        self.back = match self.reach {
            Reach::Up | Reach::Doubtful { .. } => self.back,
            Reach::Ejected { until, .. } => Some(until.min(now)),
            Reach::Down { .. } => Some(now),
        };
        self.reach = Reach::Up;
    }

    /// It says that it is not well.
    fn is_ill(&self) -> bool {
        matches!(self.health, Some(Err(_)))
    }

    /// Takes what its health checks amount to; none where there are none any more.
    /// `answered`: the last one was answered well.
    pub(super) fn checked(
        &mut self,
        health: Option<Result<(), String>>,
        answered: bool,
        now: Instant,
    ) {
        let was_ill = self.is_ill();
        // Whoever begins to check thinks it well at first.
        if was_ill && !answered && health == Some(Ok(())) {
            return;
        }
        self.health = health;
        if was_ill && !self.is_ill() {
            self.back = Some(now);
        }
        // It has answered at the port that serves, whatever comes of its metrics.
        if answered && self.health == Some(Ok(())) && matches!(self.reach, Reach::Down { .. }) {
            self.is_up(now);
        }
    }

    pub(super) fn eject(&mut self, why: &str, silent: bool, now: Instant) {
        let times = match self.reach {
            // Of requests that were under way together each finds the same, once.
            Reach::Ejected { until, .. } if now < until => return,
            // A scrape has found it before, and a scrape will find its end.
            Reach::Down { .. } => return,
            Reach::Ejected { times, .. } => times.saturating_add(1),
            Reach::Up | Reach::Doubtful { .. } => 0,
        };
        let pause = EJECT_FIRST.saturating_mul(1 << times.min(8)).min(EJECT_MOST);
        self.reach = Reach::Ejected { since: now, until: now + pause, times, silent };
        self.trouble = Some(why.to_owned());
    }

    /// It is out for a reason that no scrape shows.
    pub(super) fn is_refusing(&self, now: Instant) -> bool {
        matches!(self.reach, Reach::Ejected { silent: false, until, .. } if now < until)
    }

    /// It may be alive, though its metrics did not come several times in a row.
    pub(super) fn is_silent(&self) -> bool {
        !self.asleep && !self.is_ill() && matches!(self.reach, Reach::Down { silent: true, .. })
    }

    /// A scrape was answered, whatever the answer. One from another port proves nothing about the port that
    /// serves.
    pub(super) fn answered(&mut self, same_port: bool, now: Instant) {
        match self.reach {
            Reach::Ejected { silent: false, .. } => {}
            _ if same_port => self.is_up(now),
            _ => {}
        }
    }

    /// A scrape was not answered, though something may listen.
    pub(super) fn missed(&mut self, now: Instant) {
        // Where it is asked whether it is well, scrapes tell its load and no more.
        if self.health == Some(Ok(())) {
            return;
        }
        let misses = match self.reach {
            Reach::Up => 1,
            Reach::Doubtful { misses } => misses.saturating_add(1),
            Reach::Down { .. } | Reach::Ejected { .. } => return,
        };
        self.reach = match misses {
            MISSES_TO_DOWN.. => Reach::Down { since: now, silent: true },
            _ => Reach::Doubtful { misses },
        };
    }

    pub(super) fn forget(&mut self) {
        self.signals = Signals::default();
        self.observed = None;
        self.active.clear();
    }

    pub(super) fn adapters(&self) -> Vec<Arc<str>> {
        let mut all = self.loaded.clone();
        all.extend(self.active.iter().map(|name| Arc::from(&**name)));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// What choosing a pod needs and this one does not tell; none where it tells all, or has not been asked yet.
    pub(super) fn lacks(&self, stale_after: Duration, now: Instant) -> Option<String> {
        if self.asleep {
            return None;
        }
        let is_fresh =
            self.observed.is_some_and(|at| now.saturating_duration_since(at) <= stale_after);
        let Some(engine) = self.engine.filter(|_| is_fresh) else {
            return self.trouble.clone();
        };
        let Signals { kv_usage, waiting, running, .. } = self.signals;
        let missing: Vec<_> = [
            (kv_usage.is_none(), "how full its KV cache is"),
            (waiting.is_none(), "how many requests wait"),
            (running.is_none(), "how many requests run"),
        ]
        .into_iter()
        .filter_map(|(is_missing, what)| is_missing.then_some(what))
        .collect();
        (!missing.is_empty())
            .then(|| format!("{} does not tell {}", engine.name(), missing.join(", ")))
    }

    pub(super) fn trouble(&self, now: Instant) -> Option<String> {
        if let Some(Err(why)) = &self.health {
            return Some(why.clone());
        }
        match (&self.trouble, self.reach) {
            (Some(trouble), Reach::Ejected { until, .. }) if now < until => Some(format!(
                "{trouble}; no requests for another {} ms",
                until.saturating_duration_since(now).as_millis()
            )),
            (trouble, _) => trouble.clone().or_else(|| self.stranger.clone()),
        }
    }
}

/// Answered prompts that may wait for a pod's events to be read.
const PROMPTS: usize = 256;

/// Adapters that fit at once where a pod does not tell, and the most that are remembered.
const ADAPTER_SLOTS: u32 = 4;
const MOST_ADAPTER_SLOTS: u32 = 256;

/// Scrapes in a row that must time out before a pod counts as gone: one slow answer is no outage.
const MISSES_TO_DOWN: u32 = 3;

/// How long a pod gets no requests after a failed one; doubled each time in a row.
const EJECT_FIRST: Duration = Duration::from_millis(500);

/// The longest such pause.
const EJECT_MOST: Duration = Duration::from_secs(10);
