//! A scenario in real time: each request to all fleets at the moment when it comes in the simulator.

use std::sync::Arc;
use std::time::Duration;

use sluice_tests::sim::figures::{Answer, Figures, Totals};
use sluice_tests::sim::report::Row;
use sluice_tests::sim::traffic::Traffic;
use sluice_tests::sim::{Scenario, WARM_UP};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::client::{Outcome, ask};
use crate::fleet::Fleet;
use crate::machine::{Machine, Processors};
use crate::requests::body;

/// Plays it, to the last answer; one row for each fleet, and how busy the machine was.
///
/// # Errors
/// There is no runtime.
pub(crate) fn play(
    scenario: &Scenario,
    seed: u64,
    fleets: &[Fleet],
) -> anyhow::Result<(Vec<Row>, Machine)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(Play::new(scenario, fleets).run(seed)))
}

struct Play<'a> {
    scenario: &'a Scenario,
    fleets: &'a [Fleet],
    tallies: Vec<Tally>,
    /// Number of the fleet, whether the request counts, and how it ended.
    flights: JoinSet<(usize, bool, anyhow::Result<Outcome>)>,
    begun: Instant,
    spoken: Instant,
    processors: Processors,
    /// How long after its time the latest request was sent.
    late: Duration,
}

/// One fleet's answers.
#[derive(Default)]
struct Tally {
    answers: Vec<Answer>,
    totals: Totals,
    before: [u64; 3],
    under_way: usize,
    trouble: Option<String>,
}

impl<'a> Play<'a> {
    fn new(scenario: &'a Scenario, fleets: &'a [Fleet]) -> Self {
        let now = Instant::now();
        Self {
            scenario,
            fleets,
            tallies: fleets.iter().map(|_| Tally::default()).collect(),
            flights: JoinSet::new(),
            begun: now,
            spoken: now,
            processors: Processors::now(fleets.iter().map(Fleet::pid)),
            late: Duration::ZERO,
        }
    }

    async fn run(mut self, seed: u64) -> (Vec<Row>, Machine) {
        let Scenario { seconds, shape, arrivals, .. } = *self.scenario;
        let [window, end] = [seconds * WARM_UP, seconds].map(Duration::from_secs_f64);
        let mut counts = false;
        for (number, (at, mut ask)) in
            Traffic::new((shape, arrivals), self.scenario.whole_rate(), seconds, 1, seed)
                .enumerate()
        {
            let at = Duration::from_micros(at);
            if at >= window && !counts {
                self.until(window).await;
                counts = true;
                for (tally, fleet) in self.tallies.iter_mut().zip(self.fleets) {
                    tally.before = fleet.counted();
                }
            }
            ask.id = number as u64;
            // Before its time, for a long prompt takes a moment to write.
            let body: Arc<str> = body(&ask).into();
            self.until(at).await;
            self.late = self.late.max(self.begun.elapsed().saturating_sub(at));
            let fleets = self.fleets.iter().zip(&mut self.tallies).enumerate();
            for (number, (fleet, tally)) in fleets {
                let (to, body) = (fleet.address, Arc::clone(&body));
                tally.under_way += 1;
                self.flights
                    .spawn(async move { (number, counts, self::ask(to, &body, ask.answer).await) });
            }
        }
        self.until(end).await;
        for (tally, fleet) in self.tallies.iter_mut().zip(self.fleets) {
            tally.totals.seconds = seconds * (1.0 - WARM_UP);
            let [tokens, queries, hits] = fleet.counted();
            tally.totals.tokens = tokens - tally.before[0];
            tally.totals.queries = queries - tally.before[1];
            tally.totals.hits = hits - tally.before[2];
        }
        let now = Processors::now(self.fleets.iter().map(Fleet::pid));
        let machine = Machine::between(self.scenario.name, self.processors, now, self.late);
        eprintln!("sim-real: {}", machine.text());
        while !self.flights.is_empty() {
            self.until(self.begun.elapsed() + PAUSE).await;
        }
        (self.rows(), machine)
    }

    /// Takes answers until then, at least those that are there.
    async fn until(&mut self, at: Duration) {
        let at = self.begun + at;
        loop {
            self.speak();
            let left = at.saturating_duration_since(Instant::now());
            match timeout(left, self.flights.join_next()).await {
                Ok(Some(Ok((number, counts, outcome)))) => {
                    let tally = self.tallies.get_mut(number);
                    tally.into_iter().for_each(|tally| tally.take(counts, &outcome));
                }
                // A task that panicked has said so.
                Ok(Some(Err(_))) => {}
                Ok(None) => return sleep_until(at).await,
                Err(_) => return,
            }
        }
    }

    /// Says now and then how far it is.
    fn speak(&mut self) {
        if self.spoken.elapsed() < PROGRESS {
            return;
        }
        self.spoken = Instant::now();
        let under_way: Vec<String> = self
            .fleets
            .iter()
            .zip(&self.tallies)
            .map(|(fleet, tally)| format!("{} {}", fleet.policy.as_str(), tally.under_way))
            .collect();
        eprintln!(
            "sim-real: {} {:.0} of {:.0} s; under way: {}",
            self.scenario.name,
            self.begun.elapsed().as_secs_f64(),
            self.scenario.seconds,
            under_way.join(", ")
        );
    }

    fn rows(self) -> Vec<Row> {
        let rows = self.fleets.iter().zip(self.tallies).map(|(fleet, tally)| {
            if let Some(trouble) = tally.trouble {
                eprintln!("sim-real: {}: {trouble}", fleet.policy.as_str());
            }
            let figures = Figures::of(&tally.answers, &tally.totals, &self.scenario.slo);
            Row::of(self.scenario.name, fleet.policy, 1.0, &[figures])
        });
        rows.collect()
    }
}

impl Tally {
    fn take(&mut self, counts: bool, outcome: &anyhow::Result<Outcome>) {
        self.under_way -= 1;
        match *outcome {
            _ if !counts => {}
            Ok(Outcome::Answered { pod, first, last, tokens }) => {
                let ms = |time: Duration| 1e3 * time.as_secs_f64();
                let tpot_ms = (tokens > 1).then(|| ms(last - first) / f64::from(tokens - 1));
                self.answers.push(Answer { pod, ttft_ms: ms(first), tpot_ms, e2e_ms: ms(last) });
            }
            Ok(Outcome::Rejected) => self.totals.rejected += 1,
            Err(ref error) => {
                self.totals.failed += 1;
                self.trouble = Some(format!("{error:#}"));
            }
        }
    }
}

/// Between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(15);
/// Between two looks whether all have been answered.
const PAUSE: Duration = Duration::from_millis(200);
