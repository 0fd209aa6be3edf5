//! One gateway's requests at one pod: what they amount to now, and what was learned from them.
//!
//! The pool and the simulator keep one for each pod. Pure: times are passed in, as time since any
//! moment that is the same for all calls. Every count goes back to where it was once all tickets
//! are finished, in whatever order and however often calls come.

use std::collections::VecDeque;
use std::time::Duration;

use super::cost::Estimate;
use super::speed::{self, Learner, Speed};
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
    /// Its first token came then, and so many sequences ran.
    Decoding {
        at: Duration,
        running: u32,
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
        flight.state = State::Decoding { at: now, running };
        let Flight { sent, at, estimate, .. } = *flight;
        self.computed(sent);
        self.progress = self.progress.max(now);
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
            (State::Decoding { at, running }, Some(tokens @ FEW_TOKENS..)) => {
                let seconds = now.saturating_sub(at).as_secs_f32() / (tokens - 1) as f32;
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
        // Of the prompt that is being computed a part is done.
        let per_token = self.learner.speed().first.per_one();
        let since = now.saturating_sub(self.progress).as_secs_f32();
        let done = oldest.map_or(0, |oldest| oldest.sent.uncached.min((since / per_token) as u32));
        let overdue = oldest.map_or(Duration::ZERO, |oldest| {
            now.saturating_sub(oldest.at).saturating_sub(oldest.expected())
        });
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        Own {
            pending: self.pending,
            prefill_tokens: narrow(self.prefill_tokens).saturating_sub(done),
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

    /// Sequences that run there: those told, and at least our own.
    fn running(&self) -> u32 {
        self.told_running.max(self.in_flight.saturating_sub(self.pending))
    }

    fn computed(&mut self, sent: Sent) {
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
        Duration::from_secs_f32(self.estimate.first().clamp(0.0, 1e6))
    }
}

/// Makes what is known of all pods of a pool each one's prior; see [`speed::share`].
pub fn share<'a>(pods: impl Iterator<Item = (Option<&'a str>, &'a mut Ledger)>) {
    let mut learners: Vec<_> = pods.map(|(gpu, ledger)| (gpu, &mut ledger.learner)).collect();
    speed::share(&mut learners);
}

impl Sent {
    fn tokens(self) -> u64 {
        u64::from(self.prompt) + u64::from(self.output)
    }
}

/// Requests sent this shortly before a scrape's answer came are not in it.
const UNDER_WAY: Duration = Duration::from_millis(5);

/// Waiting for other things than prompts, as a share of the expected time, that spoils an observation.
const WAITED: f32 = 0.2;

/// Tickets in the queue beyond twice those in flight before it is tidied.
const SPARE: usize = 64;

/// Answers shorter than this say too little about the time a token takes.
const FEW_TOKENS: u32 = 8;
