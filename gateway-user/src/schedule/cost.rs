//! What a request costs at each pod, in seconds: the default way to score.
//!
//! Of every candidate an [`Estimate`] is made: the time to the first token (prompts ahead of it, its own
//! uncached prompt at the pod's learned speed, room in KV cache and batch, loading its adapter) and
//! the time of each further token in the batch that it would join. A [`Preset`] says what these count for
//! against each other and against what the request costs the sequences that run there already.
//!
//! Signals are a scrape old and show all gateways' requests; what this gateway has sent since is added to
//! them, and so is what its peers tell that they have there ([`exchange`](super::exchange)). What others have sent
//! since nobody knows, but gateways before one fleet do much the same: each own request stands for as many as
//! the whole load exceeds what is known of it.
//!
//! All values are finite and not negative whatever a pod says.

use std::time::Duration;

use super::view::{AdapterFit, Demand, PodView, Signals};

/// What the parts of a cost count for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preset {
    /// Seconds to the first token.
    pub first: f32,
    /// Seconds of all further tokens of the expected answer together. Little by default: between pods of one
    /// kind these hardly differ, and between kinds they differ by seconds.
    pub token: f32,
    /// Seconds by which the sequences that run there are delayed, all together.
    pub others: f32,
    /// Pods are equal whose cost is above the least by at most this share of the time to its first token,
    /// less where little of the load is other gateways': what one gateway knows alone is no guess.
    pub margin: f32,
}

/// What is expected of a request at a pod, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Until the prompts ahead of it are computed, beyond what it takes to get there.
    pub ahead: f32,
    /// Until its own prompt is computed, from its being sent.
    pub prefill: f32,
    /// Until there is room for it in the KV cache and in the batch; passes while prompts ahead are computed.
    pub room: f32,
    /// Until its adapter is loaded.
    pub adapter: f32,
    /// How much longer than expected the pod has kept an earlier request waiting.
    pub overdue: f32,
    /// Each further token.
    pub token: f32,
    /// Prompt tokens to compute until its first token: those ahead and its own.
    pub work: f32,
    /// Sequences that run or wait there, all gateways' together.
    pub running: f32,
}

/// What all pods together show; made once for each pick.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    /// All gateways' requests for each of ours, at least 1.
    share: f32,
    /// Prompt tokens that a waiting request of another gateway has left to compute.
    prompt: f32,
    /// Requests that run or wait at the busiest of those that told.
    most: f32,
}

impl Preset {
    /// Early first tokens, and even tokens after them. The default.
    pub const LATENCY: Self = Self { first: 1.0, token: 0.05, others: 0.02, margin: 0.1 };

    /// Many tokens from the whole pool: work that costs other sequences least.
    pub const THROUGHPUT: Self = Self { first: 0.3, token: 0.3, others: 0.2, margin: 0.1 };

    /// A preset by its name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "latency" => Some(Self::LATENCY),
            "throughput" => Some(Self::THROUGHPUT),
            _ => None,
        }
    }
}

impl Estimate {
    /// Seconds to the first token.
    pub fn first(&self) -> f32 {
        self.wait() + self.overdue + self.prefill
    }

    /// Seconds until the pod begins with its prompt. That another request is overdue is a reason to prefer other
    /// pods, and none to refuse what nobody else takes.
    pub fn wait(&self) -> f32 {
        // Those ahead get into the batch, and their prompts are computed, while it waits for room.
        self.ahead.max(self.room) + self.adapter
    }
}

impl Fleet {
    /// Reads what the pods show together.
    pub fn read(pods: &[PodView], demand: &Demand, stale_after: Duration) -> Self {
        let (mut told, mut own, mut most) = (0.0, 0.0, 0.0_f32);
        let (mut pending, mut tokens) = (0.0, 0.0);
        for pod in pods {
            pending += pod.own.pending as f32;
            tokens += pod.own.prefill_tokens as f32;
            // Without allocation, and cheap: signals only of pods that told what they run.
            if let Some(Signals { running: Some(running), waiting, .. }) = pod.believed(stale_after)
            {
                let busy = running as f32 + waiting.unwrap_or(0) as f32;
                told += busy;
                most = most.max(busy + 1.0);
                own += shown(pod) + pod.others.in_flight as f32;
            }
        }
        let typical = tokens + typical_prompt(demand) * FEW;
        Self {
            share: ((told + FEW) / (own + FEW)).clamp(1.0, MOST_GATEWAYS),
            prompt: typical / (pending + FEW),
            most,
        }
    }
}

impl Fleet {
    /// Which share of the load is other gateways', 0..1.
    pub fn others(&self) -> f32 {
        1.0 - 1.0 / self.share
    }
}

/// What is expected of a request at `pod`, whose `signals` may be believed.
pub fn estimate(
    pod: &PodView,
    signals: Option<&Signals>,
    demand: &Demand,
    fleet: &Fleet,
) -> Estimate {
    // Of a pod that is there and says neither, no less is assumed than of any other.
    let is_silent = signals.is_some_and(|of| of.running.is_none() && of.waiting.is_none());
    let signals = signals.copied().unwrap_or_default();
    let since = pod.own.since_scrape;
    let prompt = typical_prompt(demand);
    let output = typical_output(demand);
    let uncached = (prompt - pod.cached_tokens as f32).max(1.0);
    let first = pod.speed.first;

    let told_running = if is_silent { fleet.most } else { signals.running.unwrap_or(0) as f32 };
    let told_waiting = signals.waiting.unwrap_or(0) as f32;
    let told = told_running + told_waiting;
    // Others' load does not double between two scrapes; a wrong guess must not make a pod look full.
    let others = ((fleet.share - 1.0) * since.sent as f32).min(told + FEW);
    let sent = since.sent as f32 + others;
    let finished = (fleet.share * since.finished as f32).min(told);
    // At least what is known for certain, or told by those who have it.
    let running = (told + sent - finished).max(pod.in_flight as f32 + pod.others.in_flight as f32);

    // What waits there of other gateways', less what has been computed since.
    let own_waiting = pod.own.pending.saturating_sub(since.sent) as f32;
    let age = pod.age.unwrap_or_default().as_secs_f32().min(MOST_AGE);
    let foreign = (told_waiting - own_waiting - pod.others.pending as f32).max(0.0);
    let foreign = (foreign * fleet.prompt - age / first.per_one()).max(0.0) + others * fleet.prompt;
    // While those ahead are computed the request gets to the engine, which is most of what takes a lone one
    // its time without a prompt.
    let own = pod.own.busy.as_secs_f32().max(pod.own.prefill_tokens as f32 * first.per_one());
    let peers = pod.others.prefill_tokens as f32 * first.per_one();
    let peers = peers.min(pod.others.busy.as_secs_f32());
    let ahead = own + peers + foreign * first.per_one();
    let ahead = (ahead - first.at_zero()).max(0.0);

    let batch = pod.slots.map_or(running, |slots| running.min(slots.max(1) as f32));
    let token = pod.speed.token.at(batch + 1.0);
    // How long it takes until one of the sequences that run is over.
    let turn = output * token / batch.max(1.0);

    let sent_tokens = sent * since_tokens(pod) + pod.others.sent as f32 * others_tokens(pod);

    Estimate {
        ahead,
        prefill: first.at(uncached),
        room: turn * turns(pod, &signals, running, batch, sent_tokens, uncached, output),
        adapter: adapter(pod, &signals, turn * batch.max(1.0)),
        overdue: pod.own.overdue.as_secs_f32(),
        token,
        work: ahead / first.per_one() + uncached,
        running,
    }
}

/// The cost of a request at `pod`, in seconds of `preset`'s making.
pub fn cost(
    pod: &PodView,
    estimate: &Estimate,
    demand: &Demand,
    preset: &Preset,
    stale_after: Duration,
) -> f32 {
    let output = typical_output(demand);
    let uncached = (typical_prompt(demand) - pod.cached_tokens as f32).max(1.0);
    let batch = pod.slots.map_or(estimate.running, |slots| estimate.running.min(slots as f32));
    // They wait while its prompt is computed, and each of their steps has one sequence more while it runs.
    let others =
        batch * (uncached * pod.speed.first.per_one() + output * pod.speed.token.per_one());
    // Nothing runs while an adapter is loaded, and another one may have to go for it.
    let loading = LOAD_HARM * batch * load(pod.adapter);
    // The fuller the cache, the likelier it is that something must go for it.
    let usage = pod.believed(stale_after).and_then(|signals| signals.kv_usage).unwrap_or(0.0);
    // An adapter that is loaded for the request stays, and has more requests to follow.
    let lasting = match pod.adapter {
        AdapterFit::Absent | AdapterFit::Unlisted => output.max(TYPICAL_OUTPUT),
        AdapterFit::NotNeeded | AdapterFit::Active | AdapterFit::Loaded => output,
    };
    let crowding = KV_RISK * usage * usage * lasting * estimate.token;
    let own = uncached * pod.speed.first.per_one();
    // Prompts that end in the same step get their first tokens together, when all are computed.
    let pending = pod.own.pending as f32 + pod.others.pending as f32;
    let joined = SHARED * pending * uncached.min(STEP) * pod.speed.first.per_one();
    let cost = preset.first * (estimate.first() + loading + crowding + joined + NEXT * own)
        + preset.token * output * estimate.token
        + preset.others * others;
    let cost = cost * (1.0 + doubt(pod, stale_after));
    // Weights are as configured; nothing else could make it senseless.
    if cost >= 0.0 { cost.min(MOST_COST) } else { MOST_COST }
}

/// Sequences that must end before there is room for the request.
fn turns(
    pod: &PodView,
    signals: &Signals,
    running: f32,
    batch: f32,
    sent_tokens: f32,
    uncached: f32,
    output: f32,
) -> f32 {
    let by_slots = pod.slots.map_or(0.0, |slots| (running + 1.0 - slots as f32).max(0.0));
    let Some(usage) = signals.kv_usage.filter(|_| batch >= 1.0) else { return by_slots };
    let waiting = signals.waiting.unwrap_or(0) as f32;
    let by_kv = match pod.kv_tokens {
        Some(capacity) => {
            let capacity = capacity as f32;
            let used = usage * capacity + sent_tokens;
            // Answers that have begun grow, and each that waits needs room as well.
            let growing = GROWTH * batch * output + (waiting + 1.0) * (uncached + output);
            let missing = (used + growing - capacity).max(0.0);
            // No more can be missing than all that wait would take; a cache that is full of one gateway's
            // guesses says little.
            missing / (used / batch).max(1.0)
        }
        // Full and with a queue before it: as many must end as wait.
        None if usage >= FULL && waiting > 0.0 => waiting + 1.0,
        None => 0.0,
    };
    by_slots.max(by_kv).min(running + 1.0)
}

/// Prompt and answer of what this gateway has sent since the scrape, on average.
fn since_tokens(pod: &PodView) -> f32 {
    let since = pod.own.since_scrape;
    since.tokens as f32 / since.sent.max(1) as f32
}

/// Prompt and answer of a peer's request, on average.
fn others_tokens(pod: &PodView) -> f32 {
    pod.others.tokens as f32 / pod.others.in_flight.max(1) as f32
}

/// Until the request's adapter is in GPU memory; `answer` is how long an answer takes there.
fn adapter(pod: &PodView, signals: &Signals, answer: f32) -> f32 {
    let load = load(pod.adapter);
    match signals.adapter_slots.zip(signals.adapters_active) {
        // One of the adapters there must come to its end first, and before that one for each that waits.
        Some((slots, active)) if active >= slots && load > 0.0 => {
            let turns = 1.0 + signals.waiting.unwrap_or(0) as f32 / slots.max(1) as f32;
            load + answer * turns
        }
        _ => load,
    }
}

/// Seconds in which a pod does nothing but get an adapter.
fn load(adapter: AdapterFit) -> f32 {
    match adapter {
        AdapterFit::NotNeeded | AdapterFit::Active => 0.0,
        AdapterFit::Loaded => SWAP_IN,
        AdapterFit::Absent | AdapterFit::Unlisted => LOAD,
    }
}

/// What is added to the cost of a pod whose signals say little: nothing while scrapes come as they should.
fn doubt(pod: &PodView, stale_after: Duration) -> f32 {
    let Some(age) = pod.age else { return 0.0 };
    let share = age.as_secs_f32() / stale_after.as_secs_f32().max(1e-3);
    let old = (share.min(1.0) - 0.5).max(0.0);
    // What it is taken to run is a guess, and it must not come before one that says so.
    let is_silent = pod.signals.running.is_none() && pod.signals.waiting.is_none();
    if is_silent { old.max(SILENT) } else { old }
}

/// Requests that this gateway has at a pod and that its last scrape shows.
fn shown(pod: &PodView) -> f32 {
    let since = pod.own.since_scrape;
    pod.in_flight.saturating_sub(since.sent).saturating_add(since.finished) as f32
}

pub(super) fn typical_prompt(demand: &Demand) -> f32 {
    demand.prompt() as f32
}

fn typical_output(demand: &Demand) -> f32 {
    if demand.output_tokens == 0 { TYPICAL_OUTPUT } else { demand.output_tokens as f32 }
}

/// The prompt of a request of which nothing is known, and its answer below: between the medians of public traces
/// of chat (1,020 and 129 tokens) and of code (1,469 and 13).
pub(super) const TYPICAL_PROMPT: u32 = 1024;
/// The answer to a request of which nothing is known, in tokens: as above.
pub const TYPICAL_OUTPUT: f32 = 128.0;

/// Requests that must be seen before what they show counts more than what is assumed.
const FEW: f32 = 4.0;

/// More gateways than this are not before one fleet.
const MOST_GATEWAYS: f32 = 16.0;

/// The oldest that signals count for, in seconds.
const MOST_AGE: f32 = 60.0;

/// Half of an answer is still to come on average, and half of those that run end before that matters.
const GROWTH: f32 = 0.25;

/// How much dearer a pod is that tells neither what it runs nor what waits there.
const SILENT: f32 = 0.25;

/// A KV cache without room for another request.
const FULL: f32 = 0.9;

/// How much of an answer's time a full cache is expected to cost.
const KV_RISK: f32 = 0.02;

/// Seconds to bring an adapter from the host's memory to the GPU's, and to load one from storage.
const SWAP_IN: f32 = 0.05;
const LOAD: f32 = 1.0;

/// How likely a prompt is computed in the step in which one before it would be done, and how much of it at most:
/// half of the prompt tokens that engines take into a step by default (vLLM: 2,048, more on large GPUs).
const SHARED: f32 = 0.5;
const STEP: f32 = 1024.0;

/// How much of the time that a prompt takes is lost to those that come next, who wait behind it: as much as the pod is
/// busy with prompts on average, which is a third where a fleet is used well and still answers soon. It is what
/// a cached prompt saves beyond its own time.
const NEXT: f32 = 0.3;

/// What a second of loading counts for each sequence that runs there.
const LOAD_HARM: f32 = 0.1;

/// More than any request costs, in seconds.
const MOST_COST: f32 = 1e9;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::speed::{Line, Speed};
    use crate::schedule::tests::idle;
    use crate::schedule::view::{Others, Own, Since};

    /// A pod with round numbers: 1,000 prompt tokens a second and 10 ms a token, 1 ms more for each sequence.
    fn pod() -> PodView {
        let speed = Speed { first: Line::new(0.02, 0.001), token: Line::new(0.01, 0.001) };
        let signals = Signals { waiting: Some(0), running: Some(0), ..Signals::default() };
        PodView { ready: true, age: Some(Duration::ZERO), signals, speed, ..PodView::default() }
    }

    const DEMAND: Demand = Demand { prompt_tokens: 500, output_tokens: 100, prefix: None };

    fn of(pod: &PodView) -> Estimate {
        let fleet = Fleet { share: 1.0, prompt: 200.0, most: 0.0 };
        estimate(pod, Some(&pod.signals), &DEMAND, &fleet)
    }

    fn is_near(found: f32, expected: f32) -> bool {
        (found - expected).abs() <= 1e-4 * expected.max(1.0)
    }

    #[test]
    fn an_idle_pod_takes_the_prompt_at_its_speed() {
        let found = of(&pod());
        assert!(is_near(found.first(), 0.52) && is_near(found.token, 0.011), "{found:?}");
        assert!(is_near(of(&PodView { cached_tokens: 400, ..pod() }).first(), 0.12));
        // More than the whole prompt cannot be cached.
        assert!(is_near(of(&PodView { cached_tokens: 9000, ..pod() }).first(), 0.021));
    }

    #[test]
    fn prompts_ahead_are_waited_for() {
        let own = Own { pending: 2, prefill_tokens: 800, ..Own::default() };
        let ours = PodView { in_flight: 2, own, ..pod() };
        // It gets there within 20 ms of them.
        assert!(is_near(of(&ours).ahead, 0.78) && is_near(of(&ours).first(), 0.78 + 0.52));
        let busy = Own { busy: Duration::from_millis(900), ..own };
        assert!(is_near(of(&PodView { own: busy, ..ours }).ahead, 0.88));
        let nearly = Own { prefill_tokens: 15, ..own };
        assert_eq!(of(&PodView { own: nearly, ..ours }).ahead, 0.0);
        // Two of the five that wait are ours, and counted already.
        let mut all = ours;
        all.signals.waiting = Some(5);
        assert!(is_near(of(&all).ahead, 0.78 + 3.0 * 0.2));
        assert!(is_near(of(&all).work, 780.0 + 3.0 * 200.0 + 500.0));
        // What was told a while ago has been computed since.
        all.age = Some(Duration::from_millis(400));
        assert!(is_near(of(&all).ahead, 0.78 + 0.2));
        all.age = Some(Duration::from_secs(9));
        assert!(is_near(of(&all).ahead, 0.78));
    }

    #[test]
    fn what_a_scrape_cannot_show_is_added() {
        let mut pod = pod();
        pod.signals.running = Some(10);
        assert_eq!(of(&pod).running, 10.0);
        pod.in_flight = 4;
        pod.own.since_scrape = Since { sent: 3, tokens: 1800, finished: 2 };
        assert_eq!(of(&pod).running, 11.0);
        // Each stands for all gateways', but only for as much as was there.
        let fleet = Fleet { share: 4.0, prompt: 200.0, most: 0.0 };
        let running = |pod: &PodView| estimate(pod, Some(&pod.signals), &DEMAND, &fleet).running;
        assert_eq!(running(&pod), 10.0 + 3.0 + 9.0 - 8.0);
        pod.own.since_scrape = Since { sent: 30, tokens: 18_000, finished: 0 };
        assert_eq!(running(&pod), 10.0 + 30.0 + 14.0);
        // And never less than our own.
        pod.in_flight = 100;
        assert_eq!(running(&pod), 100.0);
    }

    // Field report 55.
    #[test]
    fn a_pod_that_says_nothing_is_taken_for_the_busiest() {
        let mut silent = pod();
        silent.signals = Signals::default();
        let busy = |running| {
            let signals =
                Signals { running: Some(running), waiting: Some(2), ..Signals::default() };
            PodView { signals, ..pod() }
        };
        for (others, expected) in
            [(vec![], 0.0), (vec![busy(0)], 3.0), (vec![busy(5), busy(1)], 8.0)]
        {
            let fleet = Fleet::read(&others, &DEMAND, Duration::from_secs(3));
            let running = estimate(&silent, Some(&silent.signals), &DEMAND, &fleet).running;
            assert_eq!(running, expected);
        }
    }

    #[test]
    fn the_share_of_others_is_read_from_the_pods() {
        let told = |running, in_flight| {
            let signals = Signals { running: Some(running), ..Signals::default() };
            PodView { in_flight, signals, ..pod() }
        };
        for (pods, share) in [
            (vec![], 1.0),
            (vec![told(0, 0)], 1.0),
            (vec![told(50, 50), told(30, 30)], 1.0),
            (vec![told(46, 10), told(50, 10)], 100.0 / 24.0),
            (vec![told(0, 500)], 1.0),
            (vec![told(u32::MAX, 0)], MOST_GATEWAYS),
        ] {
            let fleet = Fleet::read(&pods, &DEMAND, Duration::from_secs(3));
            assert!(is_near(fleet.share, share), "{fleet:?} of {share}");
        }
    }

    #[test]
    fn what_peers_tell_counts_once() {
        let mut pod = pod();
        pod.signals.running = Some(10);
        pod.signals.waiting = Some(2);
        pod.in_flight = 2;
        pod.others = Others {
            in_flight: 14,
            pending: 2,
            prefill_tokens: 400,
            busy: Duration::from_millis(300),
            ..Others::default()
        };
        // The two that wait are those that are told of, and a part is computed since.
        let found = of(&pod);
        assert!(is_near(found.ahead, 0.3 - 0.02) && found.running == 16.0, "{found:?}");
        pod.others.busy = Duration::from_secs(9);
        assert!(is_near(of(&pod).ahead, 0.4 - 0.02));
        // With all of the load known, own requests stand for themselves.
        let fleet = Fleet::read(&[pod], &DEMAND, Duration::from_secs(3));
        assert_eq!(fleet.others(), 0.0);
        pod.others = Others::default();
        assert!(Fleet::read(&[pod], &DEMAND, Duration::from_secs(3)).others() > 0.5);
    }

    #[test]
    fn a_full_batch_is_waited_for() {
        let mut pod = PodView { slots: Some(4), ..pod() };
        pod.signals.running = Some(3);
        assert_eq!(of(&pod).room, 0.0);
        pod.signals.running = Some(4);
        // One of four must end, which takes a quarter of an answer.
        assert!(is_near(of(&pod).room, 100.0 * 0.015 / 4.0), "{:?}", of(&pod));
        pod.signals.waiting = Some(4);
        assert!(is_near(of(&pod).room, 5.0 * 100.0 * 0.015 / 4.0), "{:?}", of(&pod));
        assert!(is_near(of(&pod).token, 0.015), "no more run than fit");
    }

    #[test]
    fn kv_room_is_waited_for() {
        let mut pod = PodView { kv_tokens: Some(10_000), ..pod() };
        pod.signals.running = Some(8);
        pod.signals.kv_usage = Some(0.5);
        assert_eq!(of(&pod).room, 0.0);
        pod.signals.kv_usage = Some(0.95);
        let one = of(&pod).room;
        assert!(one > 0.0, "{one}");
        pod.signals.waiting = Some(6);
        assert!(of(&pod).room > one);
        // Another 600 tokens fit where the prompt is cached.
        pod.signals.waiting = Some(0);
        pod.signals.kv_usage = Some(0.93);
        let cold = of(&pod).room;
        assert!(of(&PodView { cached_tokens: 500, ..pod }).room < cold);
        // Of unknown size: only a queue shows that it is full.
        let mut unknown = PodView { kv_tokens: None, ..pod };
        unknown.signals.kv_usage = Some(1.0);
        assert_eq!(of(&unknown).room, 0.0);
        unknown.signals.waiting = Some(2);
        assert!(of(&unknown).room > 0.0);
    }

    #[test]
    fn an_adapter_is_waited_for() {
        let with = |adapter, slots: Option<(u32, u32)>| {
            let mut pod = PodView { adapter, ..pod() };
            pod.signals.adapter_slots = slots.map(|slots| slots.0);
            pod.signals.adapters_active = slots.map(|slots| slots.1);
            of(&pod).adapter
        };
        use AdapterFit::{Absent, Active, Loaded, NotNeeded, Unlisted};
        for (adapter, slots, expected) in [
            (NotNeeded, Some((4, 4)), 0.0),
            (Active, Some((4, 4)), 0.0),
            (Loaded, None, SWAP_IN),
            (Loaded, Some((4, 3)), SWAP_IN),
            (Absent, Some((4, 3)), LOAD),
            (Unlisted, None, LOAD),
            // An answer of 100 tokens must come to its end first.
            (Loaded, Some((4, 4)), SWAP_IN + 1.1),
            (Absent, Some((4, 9)), LOAD + 1.1),
        ] {
            let found = with(adapter, slots);
            assert!(is_near(found, expected), "{adapter:?} {slots:?}: {found}");
        }
    }

    #[test]
    fn each_part_costs_what_it_counts_for() {
        let stale = Duration::from_secs(3);
        let preset = |first, token, others| Preset { first, token, others, margin: 0.0 };
        let mut busy = pod();
        busy.signals.running = Some(10);
        let estimate = of(&busy);
        let of = |preset| cost(&busy, &estimate, &DEMAND, &preset, stale);
        // Half a second of its own, of which a part is lost to those that come next.
        assert!(is_near(of(preset(1.0, 0.0, 0.0)), 0.52 + NEXT * 0.5));
        assert!(is_near(of(preset(0.0, 1.0, 0.0)), 100.0 * 0.021));
        // Ten sequences stand still for half a second, and then have 100 slower steps.
        assert!(is_near(of(preset(0.0, 0.0, 1.0)), 10.0 * (0.5 + 0.1)));
        assert!(is_near(of(preset(2.0, 1.0, 1.0)), 1.04 + NEXT + 2.1 + 6.0));
        for broken in [f32::NAN, f32::INFINITY, -1.0] {
            assert_eq!(of(preset(broken, 0.0, 0.0)), MOST_COST);
        }
    }

    #[test]
    fn old_signals_are_doubted() {
        let stale = Duration::from_secs(2);
        for (age, expected) in [(0, 0.0), (1000, 0.0), (1500, 0.25), (2000, 0.5), (9000, 0.5)] {
            assert!(
                is_near(
                    doubt(&PodView { age: Some(Duration::from_millis(age)), ..idle() }, stale),
                    expected
                ),
                "{age}"
            );
        }
        assert_eq!(doubt(&PodView { age: None, ..idle() }, stale), 0.0);
        let silent = PodView { signals: Signals::default(), ..idle() };
        assert_eq!(doubt(&PodView { age: Some(Duration::ZERO), ..silent }, stale), SILENT);
        assert_eq!(doubt(&PodView { age: Some(stale), ..silent }, stale), 0.5);
    }

    #[test]
    fn prompts_that_wait_are_held_up() {
        let stale = Duration::from_secs(3);
        let with = |own, others| {
            let own = Own { pending: own, ..Own::default() };
            let others = Others { pending: others, ..Others::default() };
            let of = |pod: &PodView| cost(pod, &of(pod), &DEMAND, &Preset::LATENCY, stale);
            of(&PodView { own, others, ..pod() }) - of(&pod())
        };
        // Half a second for each, half as likely as not.
        assert!(is_near(with(2, 0), 0.5) && is_near(with(1, 2), 0.75), "{}", with(2, 0));
    }

    // Field reports 61 and 64: neither is the cache given up, nor is a pod that drowns held on to.
    #[test]
    fn a_cached_prompt_is_worth_what_it_saves() {
        let stale = Duration::from_secs(3);
        let of = |pod: &PodView| cost(pod, &of(pod), &DEMAND, &Preset::LATENCY, stale);
        let idle = of(&pod());
        let cached = |prefill_tokens| {
            let own = Own { pending: 1, prefill_tokens, ..Own::default() };
            of(&PodView { cached_tokens: 450, in_flight: 1, own, ..pod() })
        };
        assert!(cached(0) < idle && cached(350) < idle);
        assert!(cached(600) > idle);
    }
}
