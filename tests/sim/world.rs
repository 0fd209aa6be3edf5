//! A run: pods, gateways and traffic, and the events that move them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use fastrand::Rng;
use gateway_user::schedule::{NoPod, Signals};

use super::SECOND;
use super::figures::{Answer, Figures, Totals};
use super::gateway::{Looks, Seen, TELL, TELL_SOON, UNDER_WAY};
use super::policy::{Name, Policy};
use super::scenario::{Scenario, Trouble};
use super::traffic::{Ask, Traffic};
use crate::engine::Gpu;
use crate::engine::model::{Engine, Event, Limits, Request};

/// Runs a scenario to the last answer.
pub fn run(scenario: &Scenario, policy: Name, seed: u64) -> Figures {
    World::new(scenario, policy, seed).run()
}

/// What happens when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happens {
    /// The pod's engine has something to do.
    Step { pod: usize },
    /// A fault of the scenario begins.
    Fault { number: usize },
    /// Everyone knows by now that the pod is gone.
    Gone { pod: usize },
    /// A request comes by itself.
    Arrival,
    /// A turn of a conversation comes.
    Turn { number: usize },
    /// A gateway asks a pod for its metrics.
    Look { gateway: usize, pod: usize },
    /// A gateway tells the others what it has in flight.
    Tell { gateway: usize },
    /// What one told arrives at all others.
    Hear,
    /// The measured window begins or ends.
    Window,
}

struct World {
    scenario: Scenario,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Happens)>>,
    pushed: u64,
    pods: Vec<Pod>,
    gateways: Vec<Gateway>,
    traffic: Traffic,
    /// The request that comes next by itself.
    next: Option<Ask>,
    turns: Vec<Option<Ask>>,
    /// Datagrams under way, each from a gateway.
    reports: VecDeque<(usize, Vec<u8>)>,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    live: usize,
    rng: Rng,
    answers: Vec<Answer>,
    totals: Totals,
    /// Requests that came, and those that are over, for whatever reason.
    came: u64,
    over: u64,
    /// Engine totals when the window began: tokens, prompt tokens, cached ones.
    before: [u64; 3],
}

struct Pod {
    engine: Engine,
    alive: bool,
    /// When its next step is due.
    wake: Option<u64>,
    /// What its metrics say for ever.
    frozen: Option<(Signals, Vec<u32>)>,
    /// Engine's number of a request to ours.
    flights: HashMap<u64, usize>,
}

struct Gateway {
    policy: Box<dyn Policy>,
    looks: Looks,
    seen: Vec<Seen>,
    /// When it told the others last, and when it will.
    told: u64,
    tells: u64,
}

/// A request under way.
struct Flight {
    ask: Ask,
    came: u64,
    pod: usize,
    first: Option<u64>,
    tokens: u32,
    tried: Vec<usize>,
    counted: bool,
}

impl World {
    fn new(scenario: &Scenario, policy: Name, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x5eed);
        let mut pods = Vec::new();
        for (name, count) in scenario.fleet {
            let gpu = Gpu::named(name).expect("a scenario names known GPUs");
            let gpu = Gpu { lora_load_us: scenario.lora_load_us, ..gpu.clone() };
            let limits = Limits { max_loras: scenario.max_loras, ..Limits::of(&gpu) };
            pods.extend((0..*count * scenario.times).map(|_| Pod::new(&gpu, limits)));
        }
        let gateways = (0..scenario.gateways)
            .map(|_| {
                let policy = policy.policy(pods.len(), rng.u64(..));
                let new = Seen { ready: true, ..Seen::default() };
                Gateway {
                    looks: policy.looks(),
                    policy,
                    seen: vec![new; pods.len()],
                    told: 0,
                    tells: 0,
                }
            })
            .collect();
        let kind = (scenario.shape, scenario.arrivals);
        let traffic =
            Traffic::new(kind, scenario.whole_rate(), scenario.seconds, scenario.gateways, seed);
        Self {
            scenario: *scenario,
            now: 0,
            events: BinaryHeap::new(),
            pushed: 0,
            pods,
            gateways,
            traffic,
            next: None,
            turns: Vec::new(),
            reports: VecDeque::new(),
            flights: Vec::new(),
            free: Vec::new(),
            live: 0,
            rng,
            answers: Vec::new(),
            totals: Totals::default(),
            came: 0,
            over: 0,
            before: [0; 3],
        }
    }

    fn run(mut self) -> Figures {
        let end = (self.scenario.seconds * SECOND as f64) as u64;
        let begin = (self.scenario.seconds * WARM_UP * SECOND as f64) as u64;
        self.totals.seconds = (end - begin) as f64 / SECOND as f64;
        self.push(begin, Happens::Window);
        self.push(end, Happens::Window);
        for (number, fault) in self.scenario.faults.iter().enumerate() {
            self.push((fault.at * end as f64) as u64, Happens::Fault { number });
        }
        for gateway in 0..self.gateways.len() {
            for pod in 0..self.pods.len() {
                if self.gateways[gateway].looks != Looks::Never {
                    // Not all at once, as they were not found at once.
                    let first = self.rng.u64(..super::gateway::BUSY);
                    self.gateways[gateway].seen[pod].due = first;
                    self.push(first, Happens::Look { gateway, pod });
                }
            }
        }
        if self.scenario.exchange && self.gateways.len() > 1 {
            for gateway in 0..self.gateways.len() {
                let first = self.rng.u64(..TELL);
                self.gateways[gateway].tells = first;
                self.push(first, Happens::Tell { gateway });
            }
        }
        self.next_arrival();
        let mut waiting = true;
        while let Some(Reverse((at, _, what))) = self.events.pop() {
            assert!(at >= self.now, "time runs backwards");
            self.now = at;
            match what {
                Happens::Step { pod } => self.step(pod),
                Happens::Fault { number } => self.fault(number),
                Happens::Gone { pod } => self.gone(pod),
                Happens::Arrival => {
                    let ask = self.next.take();
                    self.next_arrival();
                    ask.into_iter().for_each(|ask| self.arrive(ask));
                }
                Happens::Turn { number } => {
                    let ask = self.turns[number].take();
                    ask.into_iter().for_each(|ask| self.arrive(ask));
                }
                Happens::Look { gateway, pod } => self.look(gateway, pod),
                Happens::Tell { gateway } => self.tell(gateway),
                Happens::Hear => self.hear(),
                Happens::Window if self.now == end => {
                    waiting = false;
                    let [tokens, queries, hits] = self.engines();
                    let [tokens_before, queries_before, hits_before] = self.before;
                    self.totals.tokens = tokens - tokens_before;
                    self.totals.queries = queries - queries_before;
                    self.totals.hits = hits - hits_before;
                }
                Happens::Window => self.before = self.engines(),
            }
            if !waiting && self.live == 0 && self.next.is_none() {
                break;
            }
        }
        assert_eq!(self.came, self.over, "every request ends once");
        assert!(self.pods.iter().all(|pod| pod.engine.kv().used() == 0), "KV blocks are lost");
        let own = self.gateways.iter().flat_map(|gateway| &gateway.seen);
        assert_eq!(own.map(|seen| seen.in_flight).sum::<u32>(), 0, "requests in flight are lost");
        Figures::of(&self.answers, &self.totals, &self.scenario.slo)
    }

    fn push(&mut self, at: u64, what: Happens) {
        self.pushed += 1;
        self.events.push(Reverse((at, self.pushed, what)));
    }

    fn next_arrival(&mut self) {
        if let Some((at, ask)) = self.traffic.next() {
            self.next = Some(ask);
            self.push(at, Happens::Arrival);
        }
    }

    fn arrive(&mut self, mut ask: Ask) {
        self.came += 1;
        self.live += 1;
        ask.id = self.came;
        let window = self.scenario.seconds * SECOND as f64;
        let counted = (WARM_UP * window..window).contains(&(self.now as f64));
        let flight = Flight {
            ask,
            came: self.now,
            pod: 0,
            first: None,
            tokens: 0,
            tried: Vec::new(),
            counted,
        };
        let number = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        self.flights[number] = Some(flight);
        self.dispatch(number);
    }

    /// Has the request's gateway pick pods until one takes it.
    fn dispatch(&mut self, number: usize) {
        loop {
            let flight = self.flights[number].as_mut().expect("it is under way");
            let Gateway { policy, seen, looks, .. } =
                &mut self.gateways[flight.ask.gateway as usize];
            for pod in &flight.tried {
                seen[*pod].tried = true;
            }
            let picked = policy.pick(&flight.ask, seen, self.now);
            for pod in &flight.tried {
                seen[*pod].tried = false;
            }
            let pod = match picked {
                Ok(pod) => pod,
                Err(NoPod::Saturated) => return self.end(number, End::Rejected),
                Err(NoPod::Empty | NoPod::Exhausted) => return self.end(number, End::Failed),
            };
            let to = &mut self.pods[pod];
            if !to.alive {
                flight.tried.push(pod);
                continue;
            }
            policy.sent(pod, &flight.ask, self.now);
            flight.pod = pod;
            let gateway = flight.ask.gateway as usize;
            let look = seen[pod].place(self.now, *looks);
            let request = Request {
                prompt_tokens: flight.ask.prompt,
                blocks: flight.ask.blocks.clone(),
                max_tokens: flight.ask.answer,
                adapter: flight.ask.adapter,
                salt: 0,
            };
            let id = to.engine.submit(self.now, request).expect("scenarios fit their pods");
            to.flights.insert(id, number);
            if let Some(at) = look {
                self.push(at, Happens::Look { gateway, pod });
            }
            self.tell_soon(gateway);
            return self.wake(pod);
        }
    }

    /// Sees to it that the pod's engine is run when it has something to do.
    fn wake(&mut self, pod: usize) {
        let Some(due) = self.pods[pod].engine.next() else { return };
        if self.pods[pod].wake.is_none_or(|wake| due < wake) {
            self.pods[pod].wake = Some(due);
            self.push(due.max(self.now), Happens::Step { pod });
        }
    }

    fn step(&mut self, pod: usize) {
        if self.pods[pod].wake.is_none_or(|wake| wake > self.now) {
            return; // it was woken sooner, and this is the later call
        }
        let mut events = Vec::new();
        self.pods[pod].wake = None;
        self.pods[pod].engine.step(self.now, &mut events);
        for event in events {
            match event {
                Event::Token { id, count } => {
                    let number = self.pods[pod].flights[&id];
                    let flight = self.flights[number].as_mut().expect("it is under way");
                    flight.tokens = count;
                    if count == 1 {
                        flight.first = Some(self.now);
                        let gateway = &mut self.gateways[flight.ask.gateway as usize];
                        gateway.policy.began(pod, &flight.ask, self.now);
                    }
                }
                Event::Finished { id } => {
                    let number = self.pods[pod].flights.remove(&id).expect("it is under way");
                    self.end(number, End::Answered);
                }
                Event::Started { .. } | Event::Preempted { .. } => {}
            }
        }
        self.wake(pod);
    }

    fn look(&mut self, gateway: usize, pod: usize) {
        let Gateway { policy, seen, looks, .. } = &mut self.gateways[gateway];
        let (seen, of) = (&mut seen[pod], &self.pods[pod]);
        if seen.due != self.now || !seen.ready {
            return; // another look has taken its place
        }
        if of.alive {
            (seen.signals, seen.adapters) = of.frozen.clone().unwrap_or_else(|| of.signals());
            seen.at = Some(self.now);
            seen.kv_blocks = of.engine.kv().capacity();
            policy.looked(pod, seen, self.now);
        }
        let next = seen.pace(self.now, *looks, self.rng.f64());
        self.push(next, Happens::Look { gateway, pod });
    }

    fn tell(&mut self, gateway: usize) {
        let Gateway { policy, seen, told, tells, .. } = &mut self.gateways[gateway];
        if *tells != self.now {
            return; // it was told sooner
        }
        (*told, *tells) = (self.now, self.now + TELL);
        for datagram in policy.tell(seen, self.now) {
            self.reports.push_back((gateway, datagram));
            self.push(self.now + UNDER_WAY, Happens::Hear);
        }
        self.push(self.now + TELL, Happens::Tell { gateway });
    }

    /// A request was sent: the others should know soon.
    fn tell_soon(&mut self, gateway: usize) {
        let Gateway { told, tells, .. } = &mut self.gateways[gateway];
        let soon = self.now.max(*told + TELL_SOON);
        if soon < *tells {
            *tells = soon;
            self.push(soon, Happens::Tell { gateway });
        }
    }

    fn hear(&mut self) {
        let (from, datagram) = self.reports.pop_front().expect("one for each event, in order");
        let others = self.gateways.iter_mut().enumerate().filter(|(at, _)| *at != from);
        others.for_each(|(_, other)| other.policy.hear(&datagram, self.now));
    }

    fn fault(&mut self, number: usize) {
        let fault = self.scenario.faults[number];
        let pod = &mut self.pods[fault.pod];
        match fault.what {
            Trouble::Slow(times) => pod.engine.slow_down(times),
            Trouble::Freezes => pod.frozen = Some(pod.signals()),
            Trouble::Dies => {
                pod.alive = false;
                pod.wake = None;
                let mut lost: Vec<(u64, usize)> = pod.flights.drain().collect();
                lost.sort_unstable();
                for (id, number) in lost {
                    self.pods[fault.pod].engine.abort(id);
                    self.cut(number);
                }
                self.push(self.now + NOTICED, Happens::Gone { pod: fault.pod });
            }
        }
    }

    /// The request's pod is gone: another one if the client has seen nothing yet.
    fn cut(&mut self, number: usize) {
        let flight = self.flights[number].as_mut().expect("it is under way");
        if flight.first.is_some() {
            return self.end(number, End::Failed);
        }
        let pod = flight.pod;
        flight.tried.push(pod);
        let gateway = &mut self.gateways[flight.ask.gateway as usize];
        gateway.seen[pod].in_flight -= 1;
        gateway.policy.ended(pod, &flight.ask, 0, self.now);
        self.dispatch(number);
    }

    fn gone(&mut self, pod: usize) {
        for gateway in &mut self.gateways {
            gateway.seen[pod].ready = false;
            gateway.policy.gone(pod);
        }
    }

    fn end(&mut self, number: usize, how: End) {
        let mut flight = self.flights[number].take().expect("it is under way");
        self.free.push(number);
        self.live -= 1;
        self.over += 1;
        let sent = how == End::Answered || flight.first.is_some();
        if sent {
            let gateway = &mut self.gateways[flight.ask.gateway as usize];
            gateway.seen[flight.pod].in_flight -= 1;
            gateway.policy.ended(flight.pod, &flight.ask, flight.tokens, self.now);
        }
        let counted = u64::from(flight.counted);
        match how {
            End::Rejected => self.totals.rejected += counted,
            End::Failed => self.totals.failed += counted,
            End::Answered => {
                if flight.counted {
                    self.answers.push(flight.answer(self.now));
                }
                if let Some((at, ask)) = self.traffic.after(&mut flight.ask, self.now)
                    && (at as f64) < self.scenario.seconds * SECOND as f64
                {
                    self.turns.push(Some(ask));
                    self.push(at, Happens::Turn { number: self.turns.len() - 1 });
                }
            }
        }
    }

    /// Tokens, prompt tokens and cached prompt tokens of all engines so far.
    fn engines(&self) -> [u64; 3] {
        let counters = self.pods.iter().map(|pod| pod.engine.counters());
        counters.fold([0; 3], |[tokens, queries, hits], counters| {
            [
                tokens + counters.generation_tokens,
                queries + counters.prefix_queries,
                hits + counters.prefix_hits,
            ]
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Answered,
    Rejected,
    Failed,
}

impl Pod {
    fn new(gpu: &Gpu, limits: Limits) -> Self {
        Self {
            engine: Engine::new(gpu, limits),
            alive: true,
            wake: None,
            frozen: None,
            flights: HashMap::new(),
        }
    }

    /// What its metrics say now.
    fn signals(&self) -> (Signals, Vec<u32>) {
        let (running, waiting) = self.engine.adapters();
        let mut adapters = running;
        adapters.extend(waiting);
        adapters.sort_unstable();
        adapters.dedup();
        let slots = self.engine.limits().max_loras;
        let signals = Signals {
            kv_usage: Some(self.engine.kv_usage() as f32),
            waiting: Some(self.engine.waiting() as u32),
            running: Some(self.engine.running() as u32),
            adapter_slots: (slots > 0).then_some(slots),
            adapters_active: (slots > 0).then_some(adapters.len() as u32),
        };
        (signals, adapters)
    }
}

impl Flight {
    fn answer(&self, now: u64) -> Answer {
        let ms = |from: u64, to: u64| (to - from) as f64 / 1e3;
        let first = self.first.unwrap_or(now);
        Answer {
            pod: self.pod,
            ttft_ms: ms(self.came, first),
            tpot_ms: (self.tokens > 1).then(|| ms(first, now) / f64::from(self.tokens - 1)),
            e2e_ms: ms(self.came, now),
        }
    }
}

/// Share of a run whose requests do not count: caches fill and speeds are learned.
pub const WARM_UP: f64 = 0.1;

/// From a pod's death to when every gateway leaves it out: three failed probes.
const NOTICED: u64 = 5 * SECOND;

#[cfg(test)]
#[path = "world_test.rs"]
mod tests;
