//! One gateway's requests at one pod: what they amount to now, and what was learned from them.
//!
//! The pool and the simulator keep one for each pod. Pure: times are passed in, as time since any
//! moment that is the same for all calls. Every count goes back to where it was once all tickets
//! are finished, in whatever order and however often calls come.

use std::collections::VecDeque;
use std::time::Duration;

use super::cost::Estimate;
use super::speed::{self, Known, Learner, Speed};
use super::view::{Own, Signals, Since};

/// One gateway's requests at one pod.
#[derive(Clone, Debug)]
pub struct Ledger {
    flights: Vec<Flight>,
    free: Vec<u32>,
    /// Those without a first token, in the order in which they were sent; some may have got it since.
    waiting: VecDeque<Ticket>,
    in_flight: u32,
    pending: u32,
    prefill_tokens: u64,
    /// Prompt tokens of all that ever got their first token.
    prefilled: u64,
    tokens: u64,
    since: Totals,
    /// When the pod last gave a first token, or began on the first of those that wait.
    progress: Duration,
    told_running: u32,
    learner: Learner,
}

/// What a request brings with it, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Its prompt.
    pub prompt: u32,
    /// What of that the pod has to compute.
    pub uncached: u32,
    /// The answer, as expected.
    pub output: u32,
}

/// A request in the ledger. Of a finished one, every call does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    place: u32,
    generation: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    sent: u32,
    tokens: u64,
    finished: u32,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    generation: u32,
    sent: Sent,
    at: Duration,
    estimate: Estimate,
    /// The last scrape shows it.
    shown: bool,
    /// Its first token will not be seen.
    unseen: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Free,
    Pending,
    /// Its prompt should be computed.
    Unseen,
    /// Its first token came then, so many sequences ran, and so many prompt tokens had been computed.
    Decoding {
        at: Duration,
        running: u32,
        prefilled: u64,
    },
}

impl Ledger {
    /// Nothing in flight, and no more known than the prior.
    pub fn new(prior: Speed) -> Self {
        Self {
            flights: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            in_flight: 0,
            pending: 0,
            prefill_tokens: 0,
            prefilled: 0,
            tokens: 0,
            since: Totals::default(),
            progress: Duration::ZERO,
            told_running: 0,
            learner: Learner::new(prior),
        }
    }

    /// A request was sent to the pod, of which `estimate` was expected.
    pub fn dispatch(&mut self, estimate: &Estimate, sent: Sent, now: Duration) -> Ticket {
        if self.pending == 0 {
            self.progress = now;
        }
        self.in_flight += 1;
        self.pending += 1;
        self.prefill_tokens += u64::from(sent.uncached);
        self.tokens += sent.tokens();
        self.since.sent += 1;
        self.since.tokens += sent.tokens();
        let flight = Flight {
            generation: 0,
            sent,
            at: now,
            estimate: *estimate,
            shown: false,
            unseen: false,
            state: State::Pending,
        };
        let reused = self.free.pop().and_then(|place| Some((place, self.flight_at(place)?)));
        let ticket = match reused {
            Some((place, old)) => {
                let generation = old.generation.wrapping_add(1);
                *old = Flight { generation, ..flight };
                Ticket { place, generation }
            }
            None => {
                self.flights.push(flight);
                Ticket { place: (self.flights.len() - 1) as u32, generation: 0 }
            }
        };
        // Behind one that waits for very long, thousands may have come and gone.
        if self.waiting.len() > 2 * self.in_flight as usize + SPARE {
            let flights = &self.flights;
            self.waiting.retain(|ticket| {
                flights.get(ticket.place as usize).is_some_and(|flight| {
                    flight.generation == ticket.generation && flight.state == State::Pending
                })
            });
        }
        self.waiting.push_back(ticket);
        ticket
    }

    /// A request's first token will not be seen, as its answer comes in one piece: its prompt counts as
    /// computed when that was expected.
    pub fn unseen(&mut self, ticket: Ticket) {
        if let Some(flight) = self.flight(ticket) {
            flight.unseen = true;
        }
    }

    /// A request's first token came: its prompt is computed.
    pub fn first_token(&mut self, ticket: Ticket, now: Duration) {
        let running = self.running();
        let Some(flight) = self.flight(ticket) else { return };
        if flight.state != State::Pending {
            return;
        }
        let Flight { sent, at, estimate, .. } = *flight;
        flight.state = State::Unseen;
        self.computed(sent);
        self.progress = self.progress.max(now);
        let prefilled = self.prefilled(now);
        if let Some(flight) = self.flight(ticket) {
            flight.state = State::Decoding { at: now, running, prefilled };
        }
        // What waited for room or for an adapter tells nothing of how fast prompts are computed.
        let waited = estimate.room.max(estimate.adapter);
        if waited <= estimate.first() * WAITED {
            let seconds = now.saturating_sub(at).as_secs_f32();
            self.learner.first_token(estimate.work, seconds, now);
        }
    }

    /// A request is over: with `tokens` generated, if it was a stream that told or showed them. `None` too
    /// when it failed or was given up.
    pub fn finish(&mut self, ticket: Ticket, tokens: Option<u32>, now: Duration) {
        let running_now = self.running();
        let Some(flight) = self.flight(ticket) else { return };
        let Flight { sent, shown, state, .. } = *flight;
        flight.state = State::Free;
        self.free.push(ticket.place);
        self.in_flight = self.in_flight.saturating_sub(1);
        self.tokens = self.tokens.saturating_sub(sent.tokens());
        if shown {
            self.since.finished = self.since.finished.saturating_add(1);
        } else {
            self.since.sent = self.since.sent.saturating_sub(1);
            self.since.tokens = self.since.tokens.saturating_sub(sent.tokens());
        }
        match (state, tokens) {
            (State::Pending, _) => self.computed(sent),
            (State::Decoding { at, running, prefilled }, Some(tokens @ FEW_TOKENS..)) => {
                // While prompts were computed it stood still, which is nothing of the pod's own.
                let prompts = self.prefilled(now).saturating_sub(prefilled) as f32;
                let stood = prompts * self.learner.speed().first.per_one();
                let seconds = now.saturating_sub(at).as_secs_f32();
                let seconds = (seconds - stood).max(seconds * LEAST_DECODING) / (tokens - 1) as f32;
                let running = (running as f32 + running_now as f32) / 2.0;
                self.learner.token(running, seconds, now);
            }
            _ => {}
        }
    }

    /// Signals arrived that show the pod as of now.
    pub fn scraped(&mut self, signals: &Signals, now: Duration) {
        self.told_running = signals.running.unwrap_or(0);
        self.since = Totals::default();
        for flight in &mut self.flights {
            if flight.state == State::Free {
                continue;
            }
            // What was sent while the scrape was under way is not in it.
            flight.shown |= now.saturating_sub(flight.at) > UNDER_WAY;
            if !flight.shown {
                self.since.sent += 1;
                self.since.tokens += flight.sent.tokens();
            }
        }
        self.learner.refresh(now);
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// What the requests in flight amount to now.
    pub fn own(&mut self, now: Duration) -> Own {
        let oldest = self.oldest(now);
        let (left, busy) = self.left(now);
        let overdue = oldest.map_or(Duration::ZERO, |oldest| {
            // A pod that gives others their first tokens is at work, whatever became of this one.
            let waited = now.saturating_sub(oldest.at.max(self.progress));
            waited.saturating_sub(oldest.expected())
        });
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        Own {
            pending: self.pending,
            prefill_tokens: narrow(left),
            busy,
            tokens: self.tokens,
            since_scrape: Since {
                sent: self.since.sent,
                tokens: narrow(self.since.tokens),
                finished: self.since.finished,
            },
            overdue,
        }
    }

    /// How fast the pod is.
    pub fn speed(&self) -> Speed {
        self.learner.speed()
    }

    /// What this gateway has seen of its speed, for its peers.
    pub fn known(&self, now: Duration) -> Known {
        self.learner.known(now)
    }

    /// What peers have seen of its speed ([`Peers::known`](super::exchange::Peers::known)), for the next [`share`].
    pub fn hear(&mut self, known: Option<Known>) {
        self.learner.hear(known);
    }

    /// Sequences that run there: those told, and at least our own.
    fn running(&self) -> u32 {
        self.told_running.max(self.in_flight.saturating_sub(self.pending))
    }

    /// What is left to compute of the prompts that wait for their first token, and how long that takes from
    /// now: one after the other, and none before it has reached the engine. First tokens come step by step,
    /// often several at once, so that the oldest alone does not tell.
    fn left(&self, now: Duration) -> (u64, Duration) {
        let line = self.learner.speed().first;
        let seconds = |value: f32| Duration::from_secs_f32(value.clamp(0.0, MOST_SECONDS));
        let reach = seconds(line.at_zero());
        let (mut free, mut left) = (self.progress, self.prefill_tokens);
        let mut walked = 0;
        for ticket in self.waiting.iter().take(WALK) {
            let Some(flight) = self.flights.get(ticket.place as usize) else { continue };
            if flight.generation != ticket.generation || flight.state != State::Pending {
                continue;
            }
            let Sent { uncached, .. } = flight.sent;
            let begin = free.max(flight.at + reach);
            let done = (now.saturating_sub(begin).as_secs_f32() / line.per_one()) as u32;
            left = left.saturating_sub(uncached.min(done).into());
            walked += u64::from(uncached);
            free = begin + seconds(uncached as f32 * line.per_one());
        }
        let beyond = self.prefill_tokens.saturating_sub(walked);
        free += seconds(beyond as f32 * line.per_one());
        (left, if self.pending == 0 { Duration::ZERO } else { free.saturating_sub(now) })
    }

    /// Prompt tokens that the pod has computed so far, as far as is expected.
    fn prefilled(&self, now: Duration) -> u64 {
        let (left, _) = self.left(now);
        self.prefilled.saturating_add(self.prefill_tokens.saturating_sub(left))
    }

    fn computed(&mut self, sent: Sent) {
        self.prefilled = self.prefilled.saturating_add(sent.uncached.into());
        self.pending = self.pending.saturating_sub(1);
        self.prefill_tokens = self.prefill_tokens.saturating_sub(sent.uncached.into());
    }

    fn flight(&mut self, ticket: Ticket) -> Option<&mut Flight> {
        let found = self.flight_at(ticket.place)?;
        (found.generation == ticket.generation && found.state != State::Free).then_some(found)
    }

    fn flight_at(&mut self, place: u32) -> Option<&mut Flight> {
        self.flights.get_mut(place as usize)
    }

    /// The oldest that waits for its first token; forgets those before it that do not any more.
    fn oldest(&mut self, now: Duration) -> Option<Flight> {
        while let Some(&ticket) = self.waiting.front() {
            match self.flight(ticket) {
                Some(flight) if flight.state == State::Pending => {
                    let Flight { sent, at, .. } = *flight;
                    if !flight.unseen || now < at + flight.expected() {
                        return Some(*flight);
                    }
                    // No observation: nothing was observed.
                    flight.state = State::Unseen;
                    self.computed(sent);
                    self.progress = self.progress.max(now);
                }
                _ => {}
            }
            self.waiting.pop_front();
        }
        None
    }
}

impl Flight {
    /// How long it was expected to take to its first token.
    fn expected(&self) -> Duration {
        Duration::from_secs_f32(self.estimate.first().clamp(0.0, MOST_SECONDS))
    }
}

/// Makes what is known of all pods of a pool each one's prior; see [`speed::share`].
pub fn share<'a>(pods: impl Iterator<Item = (Option<&'a str>, &'a mut Ledger)>, now: Duration) {
    let mut learners: Vec<_> = pods.map(|(gpu, ledger)| (gpu, &mut ledger.learner)).collect();
    speed::share(&mut learners, now);
}

impl Sent {
    fn tokens(self) -> u64 {
        u64::from(self.prompt) + u64::from(self.output)
    }
}

/// Requests sent this shortly before a scrape's answer came are not in it.
const UNDER_WAY: Duration = Duration::from_millis(5);

/// No request is expected to take longer.
const MOST_SECONDS: f32 = 1e6;

/// Requests without a first token whose progress is followed: as many as a step of an engine computes.
const WALK: usize = 32;

/// Waiting for other things than prompts, as a share of the expected time, that spoils an observation.
const WAITED: f32 = 0.2;

/// The share of an answer's time that at least was its own.
const LEAST_DECODING: f32 = 0.1;

/// Tickets in the queue beyond twice those in flight before it is tidied.
const SPARE: usize = 64;

/// Answers shorter than this say too little about the time a token takes.
const FEW_TOKENS: u32 = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::speed::prior;
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn sent(prompt: u32, uncached: u32) -> Sent {
        Sent { prompt, uncached, output: 100 }
    }

    fn expected(seconds: f32) -> Estimate {
        Estimate { prefill: seconds, work: 1000.0, ..Estimate::default() }
    }

    #[test]
    fn counts_follow_a_request() {
        let mut ledger = Ledger::new(prior(None));
        let a = ledger.dispatch(&expected(9.0), sent(1000, 800), ms(0));
        let b = ledger.dispatch(&expected(9.0), sent(500, 500), ms(0));
        let own = ledger.own(ms(0));
        assert_eq!((own.pending, own.prefill_tokens, own.tokens), (2, 1300, 1700));
        assert_eq!(own.since_scrape, Since { sent: 2, tokens: 1700, finished: 0 });
        // After 30 ms they are at the engine, which computes 8 tokens a millisecond.
        let [at_once, later, last] = [0, 40, 140].map(|at| ledger.own(ms(at)));
        assert!(later.prefill_tokens.abs_diff(1220) <= 1 && last.prefill_tokens.abs_diff(420) <= 1);
        assert!(at_once.busy.abs_diff(Duration::from_micros(192_500)) < ms(1), "{at_once:?}");
        assert!(last.busy.abs_diff(Duration::from_micros(52_500)) < ms(1), "{last:?}");
        ledger.first_token(a, ms(20));
        ledger.first_token(a, ms(30));
        let own = ledger.own(ms(20));
        assert_eq!((own.pending, own.prefill_tokens, own.tokens), (1, 500, 1700));
        ledger.scraped(&Signals::default(), ms(21));
        assert_eq!(ledger.own(ms(21)).since_scrape, Since::default());
        ledger.finish(a, Some(100), ms(1000));
        assert_eq!(ledger.own(ms(1000)).since_scrape, Since { finished: 1, ..Since::default() });
        ledger.finish(b, None, ms(1000));
        ledger.finish(b, None, ms(1000));
        let own = ledger.own(ms(1000));
        assert_eq!((own.pending, own.prefill_tokens, own.tokens), (0, 0, 0));
        assert_eq!(ledger.in_flight(), 0);
    }

    #[test]
    fn what_was_sent_while_a_scrape_was_under_way_is_not_in_it() {
        let mut ledger = Ledger::new(prior(None));
        ledger.dispatch(&expected(1.0), sent(10, 10), ms(0));
        let late = ledger.dispatch(&expected(1.0), sent(20, 20), ms(98));
        ledger.scraped(&Signals::default(), ms(100));
        assert_eq!(ledger.own(ms(100)).since_scrape, Since { sent: 1, tokens: 120, finished: 0 });
        ledger.finish(late, None, ms(101));
        assert_eq!(ledger.own(ms(101)).since_scrape, Since::default());
    }

    #[test]
    fn the_oldest_says_how_late_a_pod_is() {
        let mut ledger = Ledger::new(prior(None));
        let first = ledger.dispatch(&expected(0.5), sent(10, 10), ms(0));
        ledger.dispatch(&expected(0.5), sent(10, 10), ms(300));
        assert_eq!(ledger.own(ms(400)).overdue, ms(0));
        assert_eq!(ledger.own(ms(700)).overdue, ms(200));
        ledger.finish(first, None, ms(700));
        assert_eq!(ledger.own(ms(900)).overdue, ms(100));
    }

    #[test]
    fn an_answer_in_one_piece_is_not_late() {
        let mut ledger = Ledger::new(prior(None));
        let ticket = ledger.dispatch(&expected(0.5), sent(1000, 1000), ms(0));
        ledger.unseen(ticket);
        assert_eq!(ledger.own(ms(499)).pending, 1);
        let own = ledger.own(ms(9000));
        assert_eq!((own.pending, own.prefill_tokens, own.overdue), (0, 0, ms(0)));
        assert_eq!((own.tokens, ledger.in_flight()), (1100, 1));
        ledger.finish(ticket, Some(100), ms(9001));
        assert_eq!(ledger.speed(), prior(None), "nothing is learned from it");
        assert_eq!(ledger.in_flight(), 0);
    }

    #[test]
    fn speeds_are_learned_unless_something_else_was_waited_for() {
        for (estimate, is_learned) in [
            (expected(0.1), true),
            (Estimate { room: 5.0, ..expected(0.1) }, false),
            (Estimate { adapter: 1.0, ..expected(0.1) }, false),
        ] {
            let mut ledger = Ledger::new(prior(None));
            for n in 0..10 {
                let ticket = ledger.dispatch(&estimate, sent(1000, 1000), ms(n * 10_000));
                ledger.first_token(ticket, ms(n * 10_000 + 5000));
                ledger.finish(ticket, None, ms(n * 10_000 + 6000));
            }
            assert_eq!(ledger.speed().first != prior(None).first, is_learned, "{estimate:?}");
        }
    }

    #[test]
    fn what_prompts_take_is_not_the_time_of_a_token() {
        // 99 tokens in a second, or in two of which one was a prompt's of 8,000 tokens.
        let whole = Estimate { prefill: 1.03, work: 8000.0, ..Estimate::default() };
        let learned = |prompt: Option<u32>| {
            let mut ledger = Ledger::new(prior(None));
            for n in 0..10 {
                let at = n * 10_000;
                let one = ledger.dispatch(&expected(0.1), sent(8, 8), ms(at));
                ledger.first_token(one, ms(at));
                let end = at + if prompt.is_some() { 2000 } else { 1000 };
                let other = prompt.map(|it| ledger.dispatch(&whole, sent(it, it), ms(at)));
                other.into_iter().for_each(|other| ledger.first_token(other, ms(at + 1030)));
                ledger.finish(one, Some(100), ms(end));
                other.into_iter().for_each(|other| ledger.finish(other, None, ms(end)));
            }
            ledger.speed().token.at(1.0)
        };
        let (alone, beside) = (learned(None), learned(Some(8000)));
        assert!((beside / alone - 1.0).abs() < 0.1, "{alone} {beside}");
    }

    #[test]
    fn a_request_that_never_begins_does_not_make_the_queue_grow() {
        let mut ledger = Ledger::new(prior(None));
        ledger.dispatch(&expected(1.0), sent(10, 10), ms(0));
        for n in 0..10_000 {
            let ticket = ledger.dispatch(&expected(1.0), sent(10, 10), ms(n));
            ledger.first_token(ticket, ms(n));
            ledger.finish(ticket, None, ms(n));
        }
        assert!(ledger.waiting.len() <= 2 + SPARE + 1, "{}", ledger.waiting.len());
        assert!(ledger.flights.len() <= 2);
    }

    #[derive(Clone, Debug)]
    enum Call {
        Dispatch(u32, u32),
        Unseen(usize),
        FirstToken(usize),
        Finish(usize, Option<u32>),
        Scraped,
    }

    fn any_call() -> impl Strategy<Value = Call> {
        prop_oneof![
            (any::<u32>(), any::<u32>())
                .prop_map(|(prompt, uncached)| Call::Dispatch(prompt, uncached)),
            (0..40usize).prop_map(Call::Unseen),
            (0..40usize).prop_map(Call::FirstToken),
            (0..40usize, prop::option::of(any::<u32>()))
                .prop_map(|(of, tokens)| Call::Finish(of, tokens)),
            Just(Call::Scraped),
        ]
    }

    proptest! {
        /// However calls come, nothing leaks and nothing goes below 0.
        #[test]
        fn picker_report_30_everything_comes_back(
            calls in prop::collection::vec((any_call(), 0..5000u64), 0..120),
        ) {
            let mut ledger = Ledger::new(prior(None));
            let mut tickets = Vec::new();
            let mut finished = std::collections::HashSet::new();
            let mut now = Duration::ZERO;
            for (call, passed) in calls {
                now += ms(passed);
                match call {
                    Call::Dispatch(prompt, uncached) => {
                        tickets.push(ledger.dispatch(&expected(0.2), sent(prompt, uncached), now));
                    }
                    Call::Unseen(of) => {
                        if let Some(ticket) = tickets.get(of) {
                            ledger.unseen(*ticket);
                        }
                    }
                    Call::FirstToken(of) => {
                        if let Some(ticket) = tickets.get(of) {
                            ledger.first_token(*ticket, now);
                        }
                    }
                    Call::Finish(of, tokens) => {
                        if let Some(ticket) = tickets.get(of) {
                            ledger.finish(*ticket, tokens, now);
                            finished.insert(of);
                        }
                    }
                    Call::Scraped => ledger.scraped(&Signals::default(), now),
                }
                let own = ledger.own(now);
                prop_assert_eq!(ledger.in_flight() as usize, tickets.len() - finished.len());
                prop_assert!(own.pending <= ledger.in_flight());
                prop_assert!(own.since_scrape.sent <= ledger.in_flight());
            }
            for ticket in tickets {
                ledger.finish(ticket, None, now);
            }
            let own = ledger.own(now);
            prop_assert_eq!((ledger.in_flight(), own.pending, own.prefill_tokens, own.tokens), (0, 0, 0, 0));
            prop_assert_eq!((own.since_scrape.sent, own.since_scrape.tokens), (0, 0));
        }
    }
}
