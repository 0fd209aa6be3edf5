//! How much a key or a model may use: requests and tokens a minute, and requests at once.
//!
//! Tokens are known when an answer is over, and a limit has to hold before: so the prompt, as the gateway guesses it, and
//! `max_tokens` where the client gave it are taken when a request is let in, and set right by what the pod counted. What is
//! refused takes nothing. Time is passed in; the state is the gateway's own, and other gateways have theirs.

pub mod addresses;
mod bucket;
mod headers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::Instant;

use self::bucket::{Bucket, Short, State};
use crate::auth::Caller;
use crate::config::RateLimits;
use crate::error::{Lines, Refusal};
use crate::metrics::{Limit, Outcome, Record};
use crate::pool::Pool;

/// What a key or a model has used of its limits.
#[derive(Debug)]
pub struct Limiter {
    /// Whether there is a limit at all: most have none, and the lock would be every worker's.
    limits: AtomicBool,
    inner: Mutex<Inner>,
}

/// A request that was let in. Dropped, it is not running any more.
#[derive(Debug)]
pub struct Admitted {
    limiters: Vec<Arc<Limiter>>,
    /// Tokens that were taken for it.
    reserved: u64,
    /// Of these, those of its prompt.
    prompt: u64,
    headers: String,
    /// Counts it as running.
    in_flight: Option<Gauge>,
}

/// A request that was not let in.
#[derive(Debug)]
pub struct Refused {
    /// What there is too much of.
    pub limit: Limit,
    /// Which of the limiters said so.
    pub by: usize,
    short: Short,
    most: u64,
    headers: String,
}

#[derive(Debug)]
struct Inner {
    rates: RateLimits,
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    running: u32,
}

/// How the buckets of a limiter stand.
#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    requests: Option<State>,
    tokens: Option<State>,
}

/// Lets a request in, with about `prompt` tokens and at most `most_generated` in the answer where that is known, if every one of `limiters` has room for it.
///
/// # Errors
/// [`Refused`]: one of them has not. Nothing was taken from any.
pub fn admit(
    limiters: impl IntoIterator<Item = Arc<Limiter>>,
    prompt: u64,
    most_generated: Option<u64>,
    now: Instant,
) -> Result<Admitted, Refused> {
    let tokens = prompt.saturating_add(most_generated.unwrap_or(0));
    let mut admitted = Admitted {
        limiters: Vec::new(),
        reserved: tokens,
        prompt,
        headers: String::new(),
        in_flight: None,
    };
    let mut standing = Standing::default();
    for (by, limiter) in limiters.into_iter().enumerate() {
        if !limiter.limits.load(Ordering::Relaxed) {
            continue;
        }
        let mut inner = limiter.inner.lock();
        let refused = inner.take(tokens, now).err();
        standing = standing.and(inner.standing(now));
        drop(inner);
        if let Some((limit, short, most)) = refused {
            admitted.withdraw();
            let headers = headers::lines(standing.requests, standing.tokens);
            return Err(Refused { limit, by, short, most, headers });
        }
        admitted.limiters.push(limiter);
    }
    admitted.headers = headers::lines(standing.requests, standing.tokens);
    Ok(admitted)
}

/// Lets a request of `caller` for `pool` in, by the limits of both. What is refused is counted.
///
/// # Errors
/// 429.
pub fn of_request(
    caller: Option<&Caller>,
    pool: &Pool,
    prompt: u64,
    most_generated: Option<u64>,
    now: Instant,
) -> Result<Admitted, Refusal> {
    let key = caller.map(|caller| &caller.key);
    let limiters = key.map(|key| &key.limiter).into_iter().chain([&pool.limiter]).map(Arc::clone);
    match (admit(limiters, prompt, most_generated, now), key) {
        (Ok(admitted), None) => Ok(admitted),
        (Ok(admitted), Some(key)) => Ok(admitted.counted_in(&key.metrics.in_flight)),
        (Err(refused), Some(key)) if refused.by == 0 => {
            key.metrics.limited(refused.limit);
            Err(refused.refusal(&format!("key `{}`", key.name)))
        }
        (Err(refused), _) => {
            pool.metrics.limited(refused.limit);
            Err(refused.refusal(&format!("model `{}`", pool.model)))
        }
    }
}

impl Limiter {
    /// With nothing used yet.
    pub fn new(rates: RateLimits, now: Instant) -> Self {
        let inner =
            Inner { rates: RateLimits::default(), requests: None, tokens: None, running: 0 };
        let limiter = Self { limits: AtomicBool::new(false), inner: Mutex::new(inner) };
        limiter.set(rates, now);
        limiter
    }

    /// Has other limits hold from now on. What has been used stays used.
    pub fn set(&self, rates: RateLimits, now: Instant) {
        self.limits.store(!rates.is_none(), Ordering::Relaxed);
        self.inner.lock().set(rates, now);
    }
}

impl Inner {
    fn set(&mut self, rates: RateLimits, now: Instant) {
        let adjust = |bucket: &mut Option<Bucket>, rate: Option<u64>| match (&mut *bucket, rate) {
            (Some(bucket), Some(rate)) => bucket.set_rate(rate, now),
            (_, rate) => *bucket = rate.map(|rate| Bucket::new(rate, now)),
        };
        adjust(&mut self.requests, rates.requests_per_minute.map(u64::from));
        adjust(&mut self.tokens, rates.tokens_per_minute);
        self.rates = rates;
    }

    /// All or nothing.
    fn take(&mut self, tokens: u64, now: Instant) -> Result<(), (Limit, Short, u64)> {
        if let Some(most) = self.rates.concurrent_requests.filter(|most| self.running >= *most) {
            return Err((Limit::Concurrent, Short::Wait(AGAIN), most.into()));
        }
        let most = |rate: Option<u64>| rate.unwrap_or(u64::MAX);
        if let Some(bucket) = &mut self.requests {
            let full = most(self.rates.requests_per_minute.map(u64::from));
            bucket.check(1, now).map_err(|short| (Limit::Requests, short, full))?;
        }
        if let Some(bucket) = &mut self.tokens {
            let full = most(self.rates.tokens_per_minute);
            bucket.check(tokens, now).map_err(|short| (Limit::Tokens, short, full))?;
            bucket.take(tokens);
        }
        if let Some(bucket) = &mut self.requests {
            bucket.take(1);
        }
        self.running += 1;
        Ok(())
    }

    fn standing(&mut self, now: Instant) -> Standing {
        Standing {
            requests: self.requests.as_mut().map(|bucket| bucket.state(now)),
            tokens: self.tokens.as_mut().map(|bucket| bucket.state(now)),
        }
    }
}

impl Standing {
    /// Of two that both hold, the one that a client meets first.
    fn and(self, other: Self) -> Self {
        let tighter = |a: Option<State>, b: Option<State>| match (a, b) {
            (Some(a), Some(b)) if b.remaining < a.remaining => Some(b),
            (a, b) => a.or(b),
        };
        Self {
            requests: tighter(self.requests, other.requests),
            tokens: tighter(self.tokens, other.tokens),
        }
    }
}

impl Admitted {
    /// What the answer's head says of the limits: lines, each with its end; none without limits.
    pub fn headers(&self) -> &str {
        &self.headers
    }

    /// Counts it in `in_flight` until it is over.
    #[must_use]
    pub fn counted_in(mut self, in_flight: &Gauge) -> Self {
        in_flight.inc();
        self.in_flight = Some(in_flight.clone());
        self
    }

    /// The request is over, as `record` says. One that no pod has answered has cost nothing, but for its prompt where the
    /// client left while a pod was at it (`asked`); one of which the pod tells nothing costs what it was guessed to.
    pub fn settle_by(self, record: &Record, asked: bool) {
        let answered = (200..300).contains(&record.status);
        let guessed = (self.reserved, self.prompt);
        let used = match (record.prompt_tokens, record.completion_tokens) {
            (None, None) if !answered && asked && record.outcome == Outcome::ClientGone => {
                guessed.1
            }
            (None, None) if !answered => 0,
            (None, None) => guessed.0,
            (prompt, generated) => {
                prompt.unwrap_or(guessed.1).saturating_add(generated.unwrap_or(0))
            }
        };
        self.settle(used);
    }

    fn settle(self, used: u64) {
        for limiter in &self.limiters {
            if let Some(bucket) = &mut limiter.inner.lock().tokens {
                match used.checked_sub(self.reserved) {
                    Some(more) => bucket.take(more),
                    None => bucket.give(self.reserved - used),
                }
            }
        }
    }

    /// As if it had never been.
    fn withdraw(self) {
        for limiter in &self.limiters {
            let mut inner = limiter.inner.lock();
            if let Some(bucket) = &mut inner.tokens {
                bucket.give(self.reserved);
            }
            if let Some(bucket) = &mut inner.requests {
                bucket.give(1);
            }
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if let Some(in_flight) = &self.in_flight {
            in_flight.dec();
        }
        for limiter in &self.limiters {
            let mut inner = limiter.inner.lock();
            inner.running = inner.running.saturating_sub(1);
        }
    }
}

impl Refused {
    /// What the client is told; `whose` names the key or the model.
    pub fn refusal(self, whose: &str) -> Refusal {
        let Self { limit, short, most, mut headers, .. } = self;
        let what = match limit {
            Limit::Requests => "requests per minute",
            Limit::Tokens => "tokens per minute",
            Limit::Concurrent => "requests at once",
        };
        let (advice, retry_after) = match short {
            Short::Wait(after) => ("Try again later.", Some(after.max(SHORTEST))),
            Short::Never => {
                // No SDK should try this one again.
                headers.push_str("x-should-retry: false\r\n");
                ("This request alone is more: shorten it, or lower max_tokens.", None)
            }
        };
        Refusal {
            kind: "rate_limit_error",
            retry_after,
            headers: (!headers.is_empty()).then(|| Box::new(Lines(headers))),
            ..Refusal::client(
                429,
                "rate_limit_exceeded",
                format!("The limit of {whose} is {most} {what}, which are used up. {advice}"),
            )
        }
    }
}

/// When a place among the requests at once may be free: nobody knows.
const AGAIN: Duration = Duration::from_secs(1);

/// A client that is told to wait no time at all comes back too early.
const SHORTEST: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::record;

    fn rates(requests: Option<u32>, tokens: Option<u64>, concurrent: Option<u32>) -> RateLimits {
        RateLimits {
            requests_per_minute: requests,
            tokens_per_minute: tokens,
            concurrent_requests: concurrent,
        }
    }

    fn limiter(rates: RateLimits, now: Instant) -> Arc<Limiter> {
        Arc::new(Limiter::new(rates, now))
    }

    fn left(limiter: &Limiter, now: Instant) -> (Option<u64>, Option<u64>, u32) {
        let mut inner = limiter.inner.lock();
        let standing = inner.standing(now);
        let left = |state: Option<State>| state.map(|state| state.remaining);
        (left(standing.requests), left(standing.tokens), inner.running)
    }

    #[test]
    fn each_limit_at_its_cap_and_one_more() {
        let now = Instant::now();
        for (rates, limit) in [
            (rates(Some(2), None, None), Limit::Requests),
            (rates(None, Some(20), None), Limit::Tokens),
            (rates(None, None, Some(2)), Limit::Concurrent),
        ] {
            let limiter = limiter(rates, now);
            let admit = || admit([Arc::clone(&limiter)], 10, None, now);
            let running = [admit().unwrap(), admit().unwrap()];
            let before = left(&limiter, now);
            assert_eq!(admit().unwrap_err().limit, limit);
            assert_eq!(left(&limiter, now), before, "what is refused takes nothing");
            drop(running);
            assert_eq!(admit().is_ok(), limit == Limit::Concurrent, "{limit:?}");
        }
    }

    #[test]
    fn tokens_are_set_right_at_the_end() {
        let now = Instant::now();
        for (used, left_over) in
            [(0, 1000), (10, 990), (100, 900), (400, 600), (1000, 0), (5000, 0)]
        {
            let limiter = limiter(rates(None, Some(1000), None), now);
            let admitted = admit([Arc::clone(&limiter)], 100, None, now).unwrap();
            assert_eq!(left(&limiter, now), (None, Some(900), 1));
            admitted.settle(used);
            assert_eq!(left(&limiter, now), (None, Some(left_over), 0));
        }
        // A debt is paid off first.
        let limiter = limiter(rates(None, Some(1000), None), now);
        admit([Arc::clone(&limiter)], 100, None, now).unwrap().settle(2000);
        let refused = admit([Arc::clone(&limiter)], 1, None, now).unwrap_err();
        assert_eq!(refused.short, Short::Wait(Duration::from_millis(60_060)));
    }

    #[test]
    fn what_a_request_costs_in_the_end() {
        use Outcome::{Aborted, ClientError, ClientGone, Ok, PodError, Rejected, TimedOut};
        let now = Instant::now();
        // Of a prompt guessed to be 100 tokens, and an answer of at most 300.
        for (outcome, status, asked, prompt, generated, cost) in [
            (Ok, 200, true, Some(90), Some(50), 140),
            (Ok, 200, true, None, Some(50), 150),
            (Ok, 200, true, Some(90), None, 90),
            (Ok, 200, true, None, None, 400),
            (ClientError, 400, true, None, None, 0),
            (PodError, 502, true, None, None, 0),
            (TimedOut, 504, true, None, None, 0),
            (Rejected, 429, false, None, None, 0),
            // Before a pod was asked, while it computed the prompt, and within its answer.
            (ClientGone, 0, false, None, None, 0),
            (ClientGone, 0, true, None, None, 100),
            (ClientGone, 200, true, None, Some(7), 107),
            (Aborted, 200, true, None, Some(7), 107),
        ] {
            let limiter = limiter(rates(None, Some(1000), None), now);
            let admitted = admit([Arc::clone(&limiter)], 100, Some(300), now).unwrap();
            let record = Record {
                status,
                prompt_tokens: prompt,
                completion_tokens: generated,
                ..record(outcome)
            };
            admitted.settle_by(&record, asked);
            assert_eq!(left(&limiter, now).1, Some(1000 - cost), "{outcome:?} {status} {asked}");
        }
    }

    #[test]
    fn one_that_refuses_leaves_the_others_as_they_were() {
        let now = Instant::now();
        let key = limiter(rates(Some(5), Some(500), Some(5)), now);
        let model = limiter(rates(Some(1), None, None), now);
        let both = || [Arc::clone(&key), Arc::clone(&model)];
        let first = admit(both(), 100, None, now).unwrap();
        let before = left(&key, now);
        let refused = admit(both(), 100, None, now).unwrap_err();
        assert_eq!((refused.limit, refused.by), (Limit::Requests, 1));
        assert_eq!(left(&key, now), before);
        // The client is told of the tighter one.
        assert!(first.headers().contains("x-ratelimit-limit-requests: 1\r\n"), "{first:?}");
        assert!(first.headers().contains("x-ratelimit-limit-tokens: 500\r\n"), "{first:?}");
    }

    #[test]
    fn what_a_client_is_told() {
        let now = Instant::now();
        let limiter = limiter(rates(Some(1), Some(50), None), now);
        let first = admit([Arc::clone(&limiter)], 10, None, now).unwrap();
        assert_eq!(
            first.headers(),
            "x-ratelimit-limit-requests: 1\r\nx-ratelimit-remaining-requests: 0\r\n\
             x-ratelimit-reset-requests: 1m0s\r\nx-ratelimit-limit-tokens: 50\r\n\
             x-ratelimit-remaining-tokens: 40\r\nx-ratelimit-reset-tokens: 12s\r\n"
        );
        let told = admit([Arc::clone(&limiter)], 10, None, now).unwrap_err().refusal("key `a`");
        let text = String::from_utf8(told.response("id", true, false)).unwrap();
        assert!(text.starts_with("HTTP/1.1 429 "), "{text}");
        for part in [
            "\r\nretry-after: 60\r\nretry-after-ms: 60000\r\n",
            "\r\nx-ratelimit-remaining-requests: 0\r\n",
            "\"code\":\"rate_limit_exceeded\"",
            "key `a` is 1 requests per minute",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let limiter = super::tests::limiter(rates(None, Some(50), None), now);
        let told = admit([limiter], 51, None, now).unwrap_err().refusal("key `a`");
        let text = String::from_utf8(told.response("id", true, false)).unwrap();
        assert!(text.contains("\r\nx-should-retry: false\r\n") && !text.contains("retry-after"));
    }

    #[test]
    fn other_limits_while_requests_run() {
        let now = Instant::now();
        let limiter = limiter(rates(Some(1), None, Some(1)), now);
        let running = admit([Arc::clone(&limiter)], 1, None, now).unwrap();
        limiter.set(rates(Some(3), Some(100), Some(2)), now);
        assert_eq!(left(&limiter, now), (Some(2), Some(100), 1));
        running.settle(7);
        assert_eq!(left(&limiter, now), (Some(2), Some(94), 0));
        limiter.set(RateLimits::default(), now);
        assert_eq!(left(&limiter, now), (None, None, 0));
    }
}
