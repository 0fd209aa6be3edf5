//! One task for each pod whose KV events are wanted: subscribes, follows, and subscribes again when it is cut off. It asks
//! for messages that it missed, if the pod keeps some. New ones wait meanwhile, so that this is short, and seldom where it
//! does not succeed.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::debug;

use super::Sink;
use super::learn::{Observation, SLACK};
use super::tracker::Tracker;
use super::wire::{Failure, Message, Wire};

/// Where a pod's events are had.
#[derive(Clone, Debug)]
pub struct Target {
    /// Where its publisher listens.
    pub address: SocketAddr,
    /// What the topics of its messages start with.
    pub topic: String,
    /// Where it answers questions for old messages, if it does.
    pub replay: Option<SocketAddr>,
}

/// Follows a pod's events and tells `sink`. `prompts` are those that the pod has answered, to be recognised in its
/// cache. Runs until dropped.
pub async fn follow(
    target: Target,
    sink: impl Sink,
    mut prompts: mpsc::Receiver<Observation>,
    mut rng: Rng,
) {
    let mut tracker = Tracker::default();
    let mut replay = target.replay.map(Replay::new);
    let mut pause = FIRST_PAUSE;
    loop {
        let failure = match Wire::subscribe(target.address, &target.topic).await {
            Ok(wire) => {
                sink.connected();
                let started = Instant::now();
                let failure =
                    listen(wire, replay.as_mut(), &mut tracker, &sink, &mut prompts).await;
                if started.elapsed() > LONGEST_PAUSE {
                    pause = FIRST_PAUSE;
                }
                failure
            }
            Err(failure) => failure,
        };
        if !failure.is_silence() {
            tracker.cut_off();
            sink.takes(tracker.bytes());
        }
        sink.failed(&failure);
        // Not all at once, when a network comes back.
        sleep(pause.mul_f64(0.5 + rng.f64())).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Takes what comes until it ends.
async fn listen(
    mut wire: Wire,
    mut replay: Option<&mut Replay>,
    tracker: &mut Tracker,
    sink: &impl Sink,
    prompts: &mut mpsc::Receiver<Observation>,
) -> Failure {
    // Answered, and to be looked for as soon as all events of that time are here.
    let mut waiting: VecDeque<Observation> = VecDeque::new();
    loop {
        let due = async {
            match waiting.front() {
                Some(prompt) => sleep_until(prompt.answered + SLACK).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            message = wire.next() => match message {
                Ok(message) => {
                    let missing = tracker.missing(message.number);
                    if let Some((from, replay)) = missing.zip(replay.as_deref_mut()) {
                        replay.catch_up(from..message.number, tracker, sink).await;
                    }
                    let change = tracker.message(message.number, &message.payload, Instant::now());
                    sink.changed(&change);
                    sink.takes(tracker.bytes());
                }
                Err(failure) => return failure,
            },
            () = due => {
                let prompt = waiting.pop_front();
                sink.learned(prompt.is_some_and(|prompt| tracker.learn(&prompt)));
            }
            Some(prompt) = prompts.recv(), if waiting.len() < MAX_WAITING => {
                waiting.push_back(prompt);
            }
        }
    }
}

/// Where a pod answers questions for old messages.
struct Replay {
    at: SocketAddr,
    /// Not asked again ahead of this.
    next: Instant,
    /// How long it is not asked after the next failure.
    pause: Duration,
}

impl Replay {
    fn new(at: SocketAddr) -> Self {
        Self { at, next: Instant::now(), pause: FIRST_REST }
    }

    /// Takes the messages of these numbers that the pod has kept. What it does not have is missing as before.
    async fn catch_up(&mut self, numbers: Range<u64>, tracker: &mut Tracker, sink: &impl Sink) {
        if Instant::now() < self.next {
            return;
        }
        let catch_up = async {
            let mut wire = Wire::replay(self.at, numbers.start).await?;
            loop {
                let Message { number, payload } = match wire.next().await? {
                    message if message.is_end() => return Ok::<_, Failure>(()),
                    message => message,
                };
                // What has come since is in the subscription as well.
                if number >= numbers.end {
                    return Ok(());
                }
                if numbers.contains(&number) && tracker.missing(number + 1).is_some() {
                    sink.changed(&tracker.message(number, &payload, None));
                }
            }
        };
        let result = timeout(CATCH_UP, catch_up).await;
        match result {
            Ok(Ok(())) => return self.pause = FIRST_REST,
            Ok(Err(failure)) => debug!("no old KV events: {failure}"),
            Err(_) => debug!("no old KV events in time"),
        }
        self.next = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_REST);
    }
}

/// After the first failure; doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// The longest pause, and how long a connection must have lasted for the next pause to be short.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How long old messages may take to come; new ones wait meanwhile. vLLM keeps 10,000 unless it is told otherwise, some 10
/// MB.
const CATCH_UP: Duration = Duration::from_secs(2);

/// How long the pod is not asked for old messages after a first failure; doubles with each further one.
const FIRST_REST: Duration = Duration::from_secs(30);

/// The longest that it is not asked.
const LONGEST_REST: Duration = Duration::from_secs(600);

/// Most prompts that wait to be looked for; more stay in the channel.
const MAX_WAITING: usize = 256;

#[cfg(test)]
mod tests;
