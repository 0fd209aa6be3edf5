//! Whole runs against a small model of engines: what a single pick cannot show. For tests.
//!
//! An engine goes in steps. Each gives every running sequence a token and computes up to a budget of
//! prompt tokens, in the order of arrival; a step takes the pod's time for its batch and the prompts'.
//! Several gateways see the pods' gauges only at scrapes, and each only its own requests.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::tests::by_cost;
use super::*;

/// One pod of the model.
#[derive(Clone, Debug)]
pub(super) struct Engine {
    pub(super) speed: Speed,
    pub(super) slots: usize,
    /// Adapters that fit at once; 0 without adapters.
    pub(super) adapters: usize,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    resident: VecDeque<u32>,
    cached: VecDeque<u64>,
    free_at: f64,
    /// What the step that is under way brings at its end: first tokens and last ones.
    coming: (Vec<usize>, Vec<usize>),
}

#[derive(Clone, Debug)]
struct Sequence {
    request: usize,
    adapter: Option<u32>,
    left: f32,
    output: u32,
}

/// What arrives.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrival {
    pub(super) at: f64,
    pub(super) prompt: u32,
    pub(super) output: u32,
    pub(super) adapter: Option<u32>,
    /// The group whose beginning of 7/8 of the prompt it shares.
    pub(super) group: Option<u64>,
}

/// How a run is set up.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) engines: Vec<Engine>,
    pub(super) arrivals: Vec<Arrival>,
    pub(super) gateways: usize,
    pub(super) scrape: f64,
    /// `None` goes round.
    pub(super) profile: Option<Profile>,
    /// From this time on the first pod takes so many times as long.
    pub(super) slowed: Option<(f64, f32)>,
}

/// What became of one request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    pub(super) pod: usize,
    pub(super) first: f64,
    pub(super) end: f64,
    sent: f64,
    ticket: Option<Ticket>,
}

impl Engine {
    pub(super) fn new(gpu: &str) -> Self {
        Self {
            speed: prior(gpu),
            slots: 256,
            adapters: 0,
            waiting: VecDeque::new(),
            running: Vec::new(),
            resident: VecDeque::new(),
            cached: VecDeque::new(),
            free_at: 0.0,
            coming: Default::default(),
        }
    }

    /// A step that begins at `now`.
    fn step(&mut self, now: f64, slow: f32) {
        let mut budget = BUDGET;
        let mut seconds = 0.0;
        let mut first = Vec::new();
        for sequence in &mut self.running {
            if sequence.left <= 0.0 {
                sequence.output = sequence.output.saturating_sub(1);
            }
        }
        let decoding = self.running.iter().filter(|sequence| sequence.left <= 0.0).count();
        let mut place = 0;
        while let Some(next) = self.waiting.get(place).cloned() {
            if self.running.len() >= self.slots || budget <= 0.0 {
                break;
            }
            if let Some(adapter) = next.adapter.filter(|name| !self.resident.contains(name)) {
                let live: BTreeSet<u32> =
                    self.running.iter().filter_map(|sequence| sequence.adapter).collect();
                if live.len() >= self.adapters {
                    place += 1;
                    continue;
                }
                if self.resident.len() >= self.adapters {
                    let idle = self.resident.iter().position(|name| !live.contains(name));
                    self.resident.remove(idle.unwrap());
                }
                self.resident.push_back(adapter);
                seconds += LOAD;
            }
            self.running.push(self.waiting.remove(place).unwrap());
            budget -= next.left;
        }
        let mut budget = BUDGET;
        let mut computed = 0.0;
        for sequence in self.running.iter_mut().filter(|sequence| sequence.left > 0.0) {
            let part = sequence.left.min(budget);
            budget -= part;
            computed += part;
            sequence.left -= part;
            if sequence.left <= 0.0 {
                first.push(sequence.request);
            }
        }
        let Speed { first: prefill, token } = self.speed;
        seconds += f64::from(slow * (token.at(decoding as f32) + computed * prefill.per_one()));
        let ended = |sequence: &Sequence| sequence.left <= 0.0 && sequence.output <= 1;
        let over = self.running.iter().filter(|sequence| ended(sequence));
        let over = over.map(|sequence| sequence.request).collect();
        self.running.retain(|sequence| !ended(sequence));
        self.free_at = now + seconds;
        self.coming = (first, over);
    }

    fn signals(&self) -> Signals {
        let live: BTreeSet<u32> =
            self.running.iter().chain(&self.waiting).filter_map(|of| of.adapter).collect();
        Signals {
            kv_usage: Some(0.0),
            waiting: Some(self.waiting.len() as u32),
            running: Some(self.running.len() as u32),
            adapter_slots: (self.adapters > 0).then_some(self.adapters as u32),
            adapters_active: (self.adapters > 0).then_some(live.len() as u32),
        }
    }
}

impl Run {
    /// A run without anything special.
    pub(super) fn new(gpus: &[&str], arrivals: Vec<Arrival>) -> Self {
        Self {
            engines: gpus.iter().map(|gpu| Engine::new(gpu)).collect(),
            arrivals,
            gateways: 1,
            scrape: 0.05,
            profile: Some(by_cost()),
            slowed: None,
        }
    }

    /// Plays it to the end of the last request.
    pub(super) fn play(mut self, seed: u64) -> Vec<Outcome> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let pods = self.engines.len();
        // Nothing is known of them: no GPU has a label.
        let mut ledgers = vec![vec![Ledger::new(Speed::default()); pods]; self.gateways];
        let mut sent_adapters = vec![vec![VecDeque::<u32>::new(); pods]; self.gateways];
        let mut shared_at = 0.0;
        let mut gauges = vec![vec![(Signals::default(), Vec::new(), 0.0); pods]; self.gateways];
        let mut index: Vec<Vec<BTreeSet<u64>>> = vec![vec![BTreeSet::new(); pods]; self.gateways];
        let mut outcomes = vec![Outcome::default(); self.arrivals.len()];
        let mut scratch = Scratch::default();
        let mut arrived = 0;
        let mut scrapes: Vec<f64> = (0..self.gateways).map(|_| -rng.f64() * self.scrape).collect();
        let mut open = self.arrivals.len();
        while open > 0 {
            let busy = |engine: &Engine| {
                let Engine { waiting, running, coming, .. } = engine;
                waiting.len() + running.len() + coming.1.len() > 0
            };
            let step = (0..pods)
                .filter(|&pod| busy(&self.engines[pod]))
                .map(|pod| (self.engines[pod].free_at, pod))
                .min_by(|a, b| a.0.total_cmp(&b.0));
            let scrape = (0..self.gateways)
                .map(|gateway| (scrapes[gateway], gateway))
                .min_by(|a, b| a.0.total_cmp(&b.0))
                .unwrap();
            let arrival = self.arrivals.get(arrived).map_or(f64::INFINITY, |next| next.at);
            let step_at = step.map_or(f64::INFINITY, |(at, _)| at);
            if scrape.0 <= arrival.min(step_at) {
                let (at, gateway) = scrape;
                for pod in 0..pods {
                    let engine = &self.engines[pod];
                    let signals = engine.signals();
                    let active = engine.running.iter().chain(&engine.waiting);
                    let active: Vec<u32> = active.filter_map(|of| of.adapter).collect();
                    ledgers[gateway][pod].scraped(&signals, time(at));
                    gauges[gateway][pod] = (signals, active, at);
                }
                scrapes[gateway] += self.scrape;
                if gateway == 0 && at >= shared_at {
                    ledgers.iter_mut().for_each(|ledgers| {
                        ledger::share(ledgers.iter_mut().map(|ledger| (None, ledger)), time(at));
                    });
                    shared_at = at + 1.0;
                }
            } else if arrival <= step_at {
                let gateway = arrived % self.gateways;
                let Arrival { at, prompt, output, adapter, group } = self.arrivals[arrived];
                let ledgers = &mut ledgers[gateway];
                let index = &mut index[gateway];
                let shared = |hit: bool| if hit { prompt / 8 * 7 } else { 0 };
                let views: Vec<PodView> = (0..pods)
                    .map(|pod| {
                        let (signals, active, scraped) = &gauges[gateway][pod];
                        let ledger = &mut ledgers[pod];
                        PodView {
                            key: pod as u64 * 0x1234_5678_9abc_def1,
                            ready: true,
                            in_flight: ledger.in_flight(),
                            own: ledger.own(time(at)),
                            speed: ledger.speed(),
                            signals: *signals,
                            age: Some(Duration::from_secs_f64(at - scraped)),
                            adapter: match adapter {
                                None => AdapterFit::NotNeeded,
                                Some(name) if active.contains(&name) => AdapterFit::Active,
                                Some(name) if sent_adapters[gateway][pod].contains(&name) => {
                                    AdapterFit::Loaded
                                }
                                Some(_) => AdapterFit::Absent,
                            },
                            cached_tokens: shared(group.is_some_and(|it| index[pod].contains(&it))),
                            ..PodView::default()
                        }
                    })
                    .collect();
                let demand = Demand { prompt_tokens: prompt, output_tokens: output, prefix: group };
                let pick = match &self.profile {
                    None => Pick { index: arrived % pods, ..Pick::default() },
                    Some(profile) => {
                        pick(&views, &demand, profile, &mut rng, &mut scratch).unwrap()
                    }
                };
                let pod = pick.index;
                let uncached = prompt - views[pod].cached_tokens;
                index[pod].extend(group);
                if let Some(name) = adapter {
                    let sent = &mut sent_adapters[gateway][pod];
                    sent.retain(|sent| *sent != name);
                    sent.push_back(name);
                    if sent.len() > self.engines[pod].adapters {
                        sent.pop_front();
                    }
                }
                let sent = Sent { prompt, uncached, output };
                let ticket = ledgers[pod].dispatch(&pick.estimate, sent, time(at));
                outcomes[arrived] =
                    Outcome { pod, sent: at, ticket: Some(ticket), ..Outcome::default() };
                let engine = &mut self.engines[pod];
                let hit = group.is_some_and(|group| engine.cached.contains(&group));
                engine.cached.extend(group.filter(|_| !hit));
                engine.free_at = engine.free_at.max(at);
                let left = (prompt - shared(hit)) as f32;
                engine.waiting.push_back(Sequence { request: arrived, adapter, left, output });
                arrived += 1;
            } else {
                let (at, pod) = step.unwrap();
                let slow = match self.slowed {
                    Some((from, factor)) if pod == 0 && at >= from => factor,
                    _ => 1.0,
                };
                let (first, over) = std::mem::take(&mut self.engines[pod].coming);
                let end = at;
                self.engines[pod].step(at, slow);
                for request in first {
                    let outcome = &mut outcomes[request];
                    outcome.first = end - outcome.sent;
                    let ledger = &mut ledgers[request % self.gateways][pod];
                    ledger.first_token(outcome.ticket.unwrap(), time(end));
                }
                for request in over {
                    let outcome = &mut outcomes[request];
                    outcome.end = end;
                    let tokens = Some(self.arrivals[request].output);
                    let ledger = &mut ledgers[request % self.gateways][pod];
                    ledger.finish(outcome.ticket.unwrap(), tokens, time(end));
                    open -= 1;
                }
            }
        }
        assert!(ledgers.iter().flatten().all(|ledger| ledger.in_flight() == 0));
        outcomes
    }
}

/// Poisson arrivals, all alike.
pub(super) fn steady(rate: f64, count: usize, prompt: u32, output: u32, seed: u64) -> Vec<Arrival> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut at = 0.0;
    (0..count)
        .map(|_| {
            at -= (1.0 - rng.f64()).ln() / rate;
            Arrival { at, prompt, output, ..Arrival::default() }
        })
        .collect()
}

/// The time to the first token that a share of the requests stay within.
pub(super) fn first(outcomes: &[Outcome], share: f64) -> f64 {
    let mut all: Vec<f64> = outcomes.iter().map(|outcome| outcome.first).collect();
    all.sort_unstable_by(f64::total_cmp);
    all[((all.len() - 1) as f64 * share) as usize]
}

/// How many requests each pod got.
pub(super) fn counts(outcomes: &[Outcome], pods: usize) -> Vec<usize> {
    let mut counts = vec![0; pods];
    for outcome in outcomes {
        counts[outcome.pod] += 1;
    }
    counts
}

fn prior(gpu: &str) -> Speed {
    speed::prior(Some(gpu))
}

fn time(seconds: f64) -> Duration {
    // Scrapes begin before the first request.
    Duration::from_secs_f64((seconds + 10.0).max(0.0))
}

/// Prompt tokens in one step.
const BUDGET: f32 = 2048.0;

/// Seconds that a step takes longer when an adapter is loaded in it.
const LOAD: f64 = 0.5;

fn by(seed: u64, run: &Run) -> Vec<Outcome> {
    run.clone().play(seed)
}

/// The same run with requests going round.
fn around(run: &Run) -> Vec<Outcome> {
    Run { profile: None, ..run.clone() }.play(1)
}

#[test]
fn a_mixed_fleet_without_labels_is_used_by_its_speed() {
    let gpus = ["h100", "h100", "l40s", "l40s", "a10", "a10", "l4", "l4"];
    let run = Run::new(&gpus, steady(25.0, 800, 1000, 200, 1));
    let outcomes = by(3, &run);
    let counts = counts(&outcomes, 8);
    assert!(counts[0] > 2 * counts[2] && counts[2] > 2 * counts[6], "{counts:?}");
    assert!(first(&outcomes, 0.95) < first(&around(&run), 0.95) / 4.0);
}

#[test]
fn equal_pods_are_used_evenly() {
    for gateways in [1, 8] {
        let run = Run { gateways, ..Run::new(&["h100"; 8], steady(60.0, 800, 1000, 200, 1)) };
        let counts = counts(&by(3, &run), 8);
        assert!(counts.iter().all(|count| (75..=125).contains(count)), "{gateways}: {counts:?}");
    }
}

// Field reports 65: several gateways, signals a second old.
#[test]
fn gateways_do_not_herd() {
    let run =
        Run { gateways: 3, scrape: 1.0, ..Run::new(&["a10"; 8], steady(4.0, 300, 500, 100, 1)) };
    let counts = counts(&by(3, &run), 8);
    let mean = 300.0 / 8.0;
    assert!(counts.iter().all(|&count| (count as f64) < 1.5 * mean), "{counts:?}");
}

#[test]
fn a_pod_that_slows_down_gets_less() {
    let arrivals = steady(50.0, 1500, 1000, 200, 1);
    let run = Run { slowed: Some((10.0, 5.0)), ..Run::new(&["h100"; 8], arrivals) };
    let outcomes = by(3, &run);
    let late = counts(&outcomes[750..], 8);
    assert!(late[0] < late[1] / 2, "{late:?}");
    assert!(first(&outcomes, 0.95) < 0.15, "{}", first(&outcomes, 0.95));
}

#[test]
fn a_shared_beginning_is_used_where_it_is_and_spreads_when_that_is_full() {
    let group = |arrival: Arrival| Arrival { group: Some(7), ..arrival };
    let arrivals = |rate| steady(rate, 400, 8000, 50, 1).into_iter().map(group).collect();
    // Little load: computing it again elsewhere costs more than it saves.
    let counts_few = counts(&by(3, &Run::new(&["h100"; 4], arrivals(1.0))), 4);
    assert!(*counts_few.iter().max().unwrap() > 300, "{counts_few:?}");
    // More than one pod takes.
    let many = by(3, &Run::new(&["h100"; 4], arrivals(60.0)));
    let counts = counts(&many, 4);
    assert!(*counts.iter().max().unwrap() < 200, "{counts:?}");
}

#[test]
fn a_hot_adapter_spreads_before_its_pod_is_full() {
    let run = |rate| {
        let hot = |arrival: Arrival| Arrival { adapter: Some(1), ..arrival };
        let arrivals = steady(rate, 300, 500, 100, 1).into_iter().map(hot).collect();
        let mut run = Run::new(&["l40s"; 4], arrivals);
        run.engines.iter_mut().for_each(|engine| engine.adapters = 4);
        by(3, &run)
    };
    let cold = counts(&run(0.5), 4);
    assert!(*cold.iter().max().unwrap() > 200, "one pod is enough: {cold:?}");
    let outcomes = run(40.0);
    let hot = counts(&outcomes, 4);
    assert!(hot.iter().all(|count| *count > 20), "{hot:?}");
}
