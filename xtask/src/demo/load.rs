//! The demonstration's own requests: so many, or a few at a time until it ends.

use std::collections::{BTreeMap, VecDeque};
use std::f64::consts::TAU;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::chat::{Answer, ask};
use crate::http::Connection;
use crate::stop::Stop;

/// What requests came to.
#[derive(Default)]
pub(super) struct Results {
    inner: Mutex<Tally>,
}

/// The sums of it.
#[derive(Clone, Default)]
pub(super) struct Tally {
    /// Whole answers.
    pub(super) ok: u64,
    /// Requests without a whole answer.
    pub(super) errors: u64,
    /// What the last of them said.
    pub(super) last_error: Option<String>,
    /// Answers and tokens of each pod.
    pub(super) pods: BTreeMap<String, (u64, u64)>,
    /// TTFT of every answer, microseconds; kept only where the number of requests is known.
    pub(super) ttft_us: Vec<u64>,
    /// When, by which pod, TTFT in microseconds: of the last [`WINDOW`].
    pub(super) recent: VecDeque<(Instant, String, u64)>,
}

impl Results {
    /// A copy of the sums.
    pub(super) fn tally(&self) -> Tally {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, answer: anyhow::Result<Answer>, keep: bool) {
        let mut tally = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        while tally.recent.front().is_some_and(|(at, ..)| now - *at > WINDOW) {
            tally.recent.pop_front();
        }
        match answer {
            Ok(Answer { pod, tokens, ttft }) => {
                let ttft_us = ttft.as_micros() as u64;
                tally.ok += 1;
                let (answers, sum) = tally.pods.entry(pod.clone()).or_default();
                *answers += 1;
                *sum += tokens;
                if keep {
                    tally.ttft_us.push(ttft_us);
                }
                tally.recent.push_back((now, pod, ttft_us));
            }
            Err(error) => {
                tally.errors += 1;
                tally.last_error = Some(format!("{error:#}"));
            }
        }
    }
}

/// Sends that many requests, [`CONCURRENCY`] at a time; the threads end with the last answer.
pub(super) fn send<'scope>(
    scope: &'scope Scope<'scope, '_>,
    to: SocketAddr,
    requests: u32,
    results: &'scope Results,
    stop: &'scope Stop,
    next: &'scope AtomicU32,
) -> Vec<ScopedJoinHandle<'scope, ()>> {
    let work = move || {
        let mut connection = Connection::new(to);
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= requests || stop.is_set() {
                return;
            }
            results.add(ask(&mut connection, number, stop), true);
        }
    };
    (0..requests.min(CONCURRENCY)).map(|_| scope.spawn(work)).collect()
}

/// Keeps a few streams open until `stop`; how many goes up and down, so that there is something to see.
pub(super) fn keep_busy<'scope>(
    scope: &'scope Scope<'scope, '_>,
    to: SocketAddr,
    results: &'scope Results,
    stop: &'scope Stop,
    next: &'scope AtomicU32,
) {
    let start = Instant::now();
    for place in 0..MOST_STREAMS {
        scope.spawn(move || {
            let mut connection = Connection::new(to);
            while !stop.wait(PAUSE) {
                if streams(start.elapsed()) <= place {
                    continue;
                }
                let number = next.fetch_add(1, Ordering::Relaxed);
                let answer = ask(&mut connection, number, stop);
                if !stop.is_set() {
                    results.add(answer, false);
                }
            }
        });
    }
}

/// Streams that are to be open at a time.
fn streams(time: Duration) -> u32 {
    let wave = (time.as_secs_f64() / WAVE.as_secs_f64() * TAU).sin();
    let middle = f64::from(LEAST_STREAMS + MOST_STREAMS) / 2.0;
    let swing = f64::from(MOST_STREAMS - LEAST_STREAMS) / 2.0;
    (middle + swing * wave).round() as u32
}

/// What the live table calls lately.
pub(super) const WINDOW: Duration = Duration::from_secs(15);

/// Requests at a time when their number is given.
const CONCURRENCY: u32 = 16;
/// Streams at the bottom and at the top of a wave.
const LEAST_STREAMS: u32 = 2;
const MOST_STREAMS: u32 = 12;
/// From one top to the next.
const WAVE: Duration = Duration::from_secs(40);
/// Between two requests of one thread.
const PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_goes_up_and_down_between_its_bounds() {
        let at = |part: f64| streams(WAVE.mul_f64(part));
        assert_eq!((at(0.25), at(0.75)), (MOST_STREAMS, LEAST_STREAMS));
        for step in 0..100 {
            assert!((LEAST_STREAMS..=MOST_STREAMS).contains(&at(f64::from(step) / 50.0)));
        }
    }

    #[test]
    fn results_are_summed_by_pod() {
        let results = Results::default();
        let answer = |pod: &str, tokens| {
            Ok(Answer { pod: pod.to_owned(), tokens, ttft: Duration::from_millis(tokens) })
        };
        for one in [answer("a", 5), answer("b", 7), answer("a", 1), Err(anyhow::anyhow!("no"))] {
            results.add(one, true);
        }
        let tally = results.tally();
        assert_eq!((tally.ok, tally.errors, tally.last_error.as_deref()), (3, 1, Some("no")));
        assert_eq!(
            tally.pods.into_iter().collect::<Vec<_>>(),
            [("a".to_owned(), (2, 6)), ("b".to_owned(), (1, 7))]
        );
        assert_eq!(tally.ttft_us, [5_000, 7_000, 1_000]);
        assert_eq!(tally.recent.len(), 3);
    }
}
