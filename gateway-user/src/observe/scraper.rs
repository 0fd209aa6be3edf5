//! One task for each pod asks for its metrics and models, for as long as the pod is known.
//!
//! One question at a time, each with a time limit. How often depends on what there is to see and on
//! what an answer costs the pod (the pace). Time is tokio's and chance comes from the caller, so a
//! test can replay a day in no time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use hyper::header::HeaderValue;
use hyper::http::uri::PathAndQuery;
use tokio::time::{Instant, sleep_until, timeout};

use super::exposition::{Shape, shape};
use super::failure::{Cause, Failure, Question};
use super::link::{Connect, Link, Tcp};
use super::pace::{Pace, Seen};
use super::{Models, Reading, Sink, engines, models};
use crate::auth::PodKey;
use crate::config::MetricsSource;
use crate::tls::PodTls;

/// Whom to ask, and how.
#[derive(Clone, Debug)]
pub struct Target {
    address: SocketAddr,
    metrics: SocketAddr,
    path: PathAndQuery,
    busy_interval: Duration,
    idle_interval: Duration,
    key: Option<Arc<PodKey>>,
    tls: Option<Arc<PodTls>>,
    timeout: Duration,
}

impl Target {
    /// The pod at `address`, which wants `key` as a bearer token if it has one.
    ///
    /// # Errors
    ///
    /// [`InvalidTarget`] when the path is no path of a URL.
    pub fn new(
        address: SocketAddr,
        source: &MetricsSource,
        key: Option<Arc<PodKey>>,
    ) -> Result<Self, InvalidTarget> {
        let path = PathAndQuery::try_from(source.path.as_str())
            .ok()
            .filter(|path| path.as_str().starts_with('/'))
            .ok_or(InvalidTarget::Path)?;
        Ok(Self {
            address,
            metrics: SocketAddr::new(address.ip(), source.port.unwrap_or(address.port())),
            path,
            busy_interval: source.busy_interval,
            idle_interval: source.idle_interval,
            key,
            tls: None,
            timeout: TIMEOUT,
        })
    }

    /// Over TLS, if the pod speaks that.
    pub fn with_tls(self, tls: Option<Arc<PodTls>>) -> Self {
        Self { tls, ..self }
    }

    /// Another time limit for one question than 1 s.
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }
}

/// A pod cannot be asked this way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTarget {
    /// The path is no path of a URL.
    #[error("the metrics path must begin with a slash and be valid in a URL")]
    Path,
}

/// Asks a pod again and again, and tells `sink`. Runs until dropped.
pub async fn watch(target: Target, sink: impl Sink, rng: Rng) {
    let connect = Tcp { tls: target.tls.clone() };
    watch_over(connect, target, sink, rng).await;
}

async fn watch_over<C: Connect + Clone>(connect: C, target: Target, sink: impl Sink, rng: Rng) {
    let mut pace = Pace::new(target.busy_interval, target.idle_interval, rng);
    let mut pod = Pod::new(connect, target);
    let mut up = false;
    let mut models_due = Instant::now();
    let mut placed = sink.placed();
    loop {
        let started = Instant::now();
        let before = std::mem::replace(&mut placed, sink.placed());
        let given = sink.given();
        let outcome = pod.metrics().await;
        let took = started.elapsed();
        let was_up = up;
        up = outcome.as_ref().err().is_none_or(|cause| cause.answered());
        let seen = match outcome {
            Ok(reading) => {
                let loaded = is_loaded(&reading);
                sink.reading(reading);
                match loaded || sink.busy() {
                    true if placed != before => Seen::Busy,
                    true => Seen::Steady,
                    false => Seen::Idle,
                }
            }
            Err(cause) => {
                sink.failed(Failure { question: Question::Metrics, cause });
                Seen::Failed
            }
        };

        if up && !was_up {
            models_due = Instant::now();
        }
        // Asking the same silent address twice tells nothing.
        if models_due <= Instant::now() && (up || pod.models_link.is_some()) {
            let pause = match pod.models().await {
                Ok(models) => {
                    sink.models(models);
                    match seen {
                        Seen::Busy | Seen::Steady => MODELS_BUSY,
                        Seen::Failed | Seen::Idle => MODELS_IDLE,
                    }
                }
                Err(cause) => {
                    sink.failed(Failure { question: Question::Models, cause });
                    if cause.answered() { MODELS_IDLE } else { pod.target.idle_interval }
                }
            };
            models_due = Instant::now() + pace.spread(pause);
        }

        let pause = pace.pause(seen, took);
        let from = Instant::now();
        pod.rest(from + pause.least).await;
        tokio::select! {
            () = pod.rest(from + pause.full) => {}
            () = sink.wanted(given) => {}
        }
    }
}

/// One pod's connections and what was found out about its paths.
struct Pod<C: Connect> {
    target: Target,
    link: Link<C>,
    /// Only where metrics have a port of their own.
    models_link: Option<Link<C>>,
    fallback: Fallback,
}

/// `trtllm-serve` may answer JSON at `/metrics` and have the text elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fallback {
    /// It has no text there.
    Absent,
    /// It has: only that is asked.
    InUse,
    /// Not needed so far.
    Untried,
}

impl<C: Connect + Clone> Pod<C> {
    fn new(connect: C, target: Target) -> Self {
        let link = |address: SocketAddr| {
            // An address is always a valid header value.
            let host = HeaderValue::try_from(address.to_string())
                .unwrap_or_else(|_| HeaderValue::from_static(""));
            Link::new(connect.clone(), address, host, target.key.clone())
        };
        let models_link = (target.metrics != target.address).then(|| link(target.address));
        let link = link(target.metrics);
        Self { target, link, models_link, fallback: Fallback::Untried }
    }

    /// Asks for the load.
    async fn metrics(&mut self) -> Result<Reading, Cause> {
        let limit = self.target.timeout;
        let outcome = timeout(limit, self.ask_metrics()).await.unwrap_or(Err(Cause::Timeout));
        if outcome.as_ref().is_err_and(|cause| *cause != Cause::Timeout) {
            // It may come back as something else.
            self.fallback = Fallback::Untried;
        }
        outcome
    }

    async fn ask_metrics(&mut self) -> Result<Reading, Cause> {
        if self.fallback == Fallback::InUse {
            return Ok(engines::read(
                self.link.get(PathAndQuery::from_static(FALLBACK_PATH)).await?,
            )?);
        }
        let body = self.link.get(self.target.path.clone()).await?;
        let reading = engines::read(body);
        if shape(body) == Shape::Json && self.fallback == Fallback::Untried {
            self.fallback = Fallback::Absent;
            if let Ok(body) = self.link.get(PathAndQuery::from_static(FALLBACK_PATH)).await
                && let Ok(better) = engines::read(body)
            {
                self.fallback = Fallback::InUse;
                return Ok(better);
            }
        }
        Ok(reading?)
    }

    /// Asks for the models.
    async fn models(&mut self) -> Result<Models, Cause> {
        let link = self.models_link.as_mut().unwrap_or(&mut self.link);
        let body = timeout(self.target.timeout, link.get(PathAndQuery::from_static(MODELS_PATH)))
            .await
            .unwrap_or(Err(Cause::Timeout))?;
        Ok(models::read(body)?)
    }

    /// Waits, with an eye on the idle connections.
    async fn rest(&mut self, until: Instant) {
        let Self { link, models_link, .. } = self;
        let other = async {
            match models_link {
                Some(link) => link.idle().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sleep_until(until) => {}
            () = link.idle() => {}
            () = other => {}
        }
    }
}

/// Whether the pod has work, be it from us or from others.
fn is_loaded(reading: &Reading) -> bool {
    let some = |count: Option<u32>| count.is_some_and(|count| count > 0);
    some(reading.signals.running) || some(reading.signals.waiting)
}

/// How long one question may take, connecting included.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Between two readings of a busy pod's models: an adapter loaded at run time is seen within this.
const MODELS_BUSY: Duration = Duration::from_secs(2);

/// Between two readings of an idle pod's models.
const MODELS_IDLE: Duration = Duration::from_secs(5);

/// Where `trtllm-serve` has its metrics as text when `/metrics` is JSON.
const FALLBACK_PATH: &str = "/prometheus/metrics";

/// Where every server lists its models.
const MODELS_PATH: &str = "/v1/models";

#[cfg(test)]
mod tests;
