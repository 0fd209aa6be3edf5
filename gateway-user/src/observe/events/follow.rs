//! One task for each pod whose KV events are wanted: subscribes, follows, and subscribes again when it is cut off.

use std::net::SocketAddr;
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::Sink;
use super::learn::Observation;
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
    loop {
        tokio::select! {
            message = subscription.next() => match message {
                Ok(message) => {
                    let change = tracker.message(message.number, &message.payload, Instant::now());
                    sink.changed(&change);
                }
                Err(failure) => return failure,
            },
            Some(prompt) = prompts.recv() => sink.learned(tracker.learn(&prompt)),
        }
    }
}

/// After the first failure; doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// The longest pause, and how long a connection must have lasted for the next pause to be short.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
