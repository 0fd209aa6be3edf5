//! One task for each pod whose KV events are wanted: subscribes, follows, and subscribes again when it is cut off.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::Sink;
use super::learn::{Observation, SLACK};
use super::tracker::Tracker;
use super::wire::{Failure, Subscription};

/// Where a pod's events are had.
#[derive(Clone, Debug)]
pub struct Target {
    /// Where its publisher listens.
    pub address: SocketAddr,
    /// What the topics of its messages start with.
    pub topic: String,
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
    let mut pause = FIRST_PAUSE;
    loop {
        match Subscription::open(target.address, &target.topic).await {
            Ok(subscription) => {
                sink.connected();
                let started = Instant::now();
                let failure = listen(subscription, &mut tracker, &sink, &mut prompts).await;
                sink.failed(&failure);
                if started.elapsed() > LONGEST_PAUSE {
                    pause = FIRST_PAUSE;
                }
            }
            Err(failure) => sink.failed(&failure),
        }
        // Not all at once, when a network comes back.
        sleep(pause.mul_f64(0.5 + rng.f64())).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Takes what comes until it ends.
async fn listen(
    mut subscription: Subscription,
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
            message = subscription.next() => match message {
                Ok(message) => {
                    let change = tracker.message(message.number, &message.payload, Instant::now());
                    sink.changed(&change);
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

/// After the first failure; doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// The longest pause, and how long a connection must have lasted for the next pause to be short.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Most prompts that wait to be looked for; more stay in the channel.
const MAX_WAITING: usize = 256;

#[cfg(test)]
mod tests;
