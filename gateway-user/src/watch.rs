//! Has the pods of all pools observed, and takes what is observed of one into its pool.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::auth::PodKey;
use crate::config::{HealthCheck, MetricsSource};
use crate::gateway::Gateway;
use crate::metrics::ScrapeFailure;
use crate::observe::events::{self, CacheSink};
use crate::observe::health::{self, Finding, Patient};
use crate::observe::{self, Cause, EngineKind, Failure, Models, Reading, Sink, Target};
use crate::pool::{Pod, PodId, Pool, Settings};

/// The tasks that observe pods, one or two for each.
#[derive(Debug)]
pub struct Watchers {
    gateway: Arc<Gateway>,
    changed: Rc<Notify>,
    running: RefCell<HashMap<PodId, Watching>>,
}

#[derive(Debug)]
struct Watching {
    source: MetricsSource,
    api_key: Option<Arc<PodKey>>,
    health: Option<HealthCheck>,
    metrics: Option<AbortHandle>,
    checks: Option<AbortHandle>,
    events: Option<AbortHandle>,
}

/// Where the observations of one pod go.
#[derive(Debug)]
pub struct PodSink {
    /// The daemon, whose names change with the adapters that pods list.
    pub gateway: Arc<Gateway>,
    /// The pod's pool.
    pub pool: Arc<Pool>,
    /// The pod.
    pub pod: Arc<Pod>,
    /// Told at every change.
    pub changed: Rc<Notify>,
}

impl Watchers {
    /// Observes nothing yet; `changed` is told whatever is found.
    pub fn new(gateway: &Arc<Gateway>, changed: &Rc<Notify>) -> Self {
        let (gateway, changed) = (Arc::clone(gateway), Rc::clone(changed));
        Self { gateway, changed, running: RefCell::default() }
    }

    /// Has all pods observed that there are now, each where the configuration says, and no others. On the control
    /// thread.
    pub fn settle(&self) {
        let mut running = self.running.borrow_mut();
        let mut before = std::mem::take(&mut *running);
        for pool in self.gateway.pools().iter() {
            let settings = pool.settings();
            for pod in pool.pods() {
                let (source, api_key) = (settings.source.clone(), settings.api_key.clone());
                let health = settings.health.clone();
                let mut watching = before.remove(&pod.id).unwrap_or_else(|| Watching {
                    source: source.clone(),
                    api_key: api_key.clone(),
                    health: health.clone(),
                    metrics: None,
                    checks: None,
                    events: self.follow_events(pool, &settings, &pod),
                });
                let same_key =
                    watching.api_key.as_ref().map(Arc::as_ptr) == api_key.as_ref().map(Arc::as_ptr);
                if watching.source != source || !same_key {
                    watching.metrics.take().inspect(AbortHandle::abort);
                }
                if watching.health != health || !same_key {
                    watching.checks.take().inspect(AbortHandle::abort);
                }
                if watching.checks.is_none() {
                    watching.checks = self.check_health(pool, &settings, &pod);
                }
                if watching.metrics.is_none() {
                    watching.metrics = self.follow_metrics(pool, &settings, &pod);
                }
                running.insert(pod.id, Watching { source, api_key, health, ..watching });
            }
        }
        for gone in before.into_values() {
            gone.metrics.inspect(AbortHandle::abort);
            gone.checks.inspect(AbortHandle::abort);
            gone.events.inspect(AbortHandle::abort);
        }
        self.changed.notify_one();
    }

    fn follow_metrics(
        &self,
        pool: &Arc<Pool>,
        settings: &Settings,
        pod: &Arc<Pod>,
    ) -> Option<AbortHandle> {
        let target = Target::new(pod.address, &settings.source, settings.api_key.clone());
        let target = target.map(|target| target.with_tls(pod.tls.clone())).inspect_err(
            |error| warn!(pool = %pool.name, pod = %pod.name, "its metrics cannot be read: {error}"),
        );
        let sink = PodSink {
            gateway: Arc::clone(&self.gateway),
            pool: Arc::clone(pool),
            pod: Arc::clone(pod),
            changed: Rc::clone(&self.changed),
        };
        let task = spawn_local(observe::watch(target.ok()?, sink, fastrand::Rng::new()));
        Some(task.abort_handle())
    }

    /// Asks a pod whether it is well, if that is wanted.
    fn check_health(
        &self,
        pool: &Arc<Pool>,
        settings: &Settings,
        pod: &Arc<Pod>,
    ) -> Option<AbortHandle> {
        let check = settings.health.as_ref()?;
        let patient = Patient::new(pod.address, check, settings.api_key.clone(), pod.tls.clone());
        let patient = patient.inspect_err(
            |error| warn!(pool = %pool.name, pod = %pod.name, "its health cannot be checked: {error}"),
        );
        let (pool, pod, changed) = (Arc::clone(pool), Arc::clone(pod), Rc::clone(&self.changed));
        let path = check.path.clone();
        let mut why = String::new();
        let tell = move |Finding { failed, is_well }: Finding| {
            let answered = failed.is_none();
            if let Some(cause) = failed {
                pool.metrics.health_check_failures.inc();
                why = format!("its health check, {path}, fails: {cause}");
            }
            let health = if is_well { Ok(()) } else { Err(why.clone()) };
            if !pool.checked(pod.id, health, answered, Instant::now()) {
                return;
            }
            match is_well {
                true => info!(pool = %pool.name, pod = %pod.name, "the pod is well again"),
                false => warn!(pool = %pool.name, pod = %pod.name, "the pod is not well: {why}"),
            }
            changed.notify_one();
        };
        let task = spawn_local(health::watch(patient.ok()?, tell, fastrand::Rng::new()));
        Some(task.abort_handle())
    }

    /// Follows what a pod says of its prefix cache, if that is wanted.
    fn follow_events(&self, pool: &Pool, settings: &Settings, pod: &Pod) -> Option<AbortHandle> {
        let source = settings.kv_events.as_ref()?;
        let (held, prompts) = pool.cache_of(pod.id)?;
        let at = |port| SocketAddr::new(pod.address.ip(), port);
        let target = events::Target {
            address: at(source.port),
            topic: source.topic.clone(),
            replay: source.replay_port.map(at),
        };
        let metrics = Arc::clone(&pool.metrics);
        let sink = CacheSink::new(held, metrics, Arc::clone(&pool.name), Arc::clone(&pod.name));
        let task = spawn_local(events::follow(target, sink, prompts, fastrand::Rng::new()));
        Some(task.abort_handle())
    }
}

impl Sink for PodSink {
    fn busy(&self) -> bool {
        self.pod.in_flight() > 0
    }

    fn placed(&self) -> u64 {
        self.pool.placed()
    }

    fn given(&self) -> u64 {
        self.pod.taken()
    }

    async fn wanted(&self, before: u64) {
        self.pod.wanted(before).await;
    }

    fn reading(&self, reading: Reading) {
        if reading.engine == EngineKind::Unknown {
            self.pool.metrics.scrape_failed(ScrapeFailure::NoSignals);
        }
        if self.pool.observed(self.pod.id, reading, Instant::now()) {
            info!(pool = %self.pool.name, pod = %self.pod.name, "the pod is back");
        }
        self.changed.notify_one();
    }

    fn models(&self, models: Models) {
        if self.pool.listed(self.pod.id, &models) {
            self.gateway.reroute();
        }
    }

    fn failed(&self, failure: Failure) {
        self.pool.metrics.scrape_failed(reason(failure.cause));
        let lost = self.pool.unobserved(self.pod.id, &failure, Instant::now());
        if lost.reach {
            warn!(pool = %self.pool.name, pod = %self.pod.name, "the pod is out of reach: {failure}");
        }
        if lost.adapters {
            self.gateway.reroute();
        }
        self.changed.notify_one();
    }
}

fn reason(cause: Cause) -> ScrapeFailure {
    match cause {
        Cause::Refused | Cause::Tls(_) | Cause::Unreachable(_) => ScrapeFailure::Connect,
        Cause::Timeout => ScrapeFailure::Timeout,
        Cause::Status(_) => ScrapeFailure::Status,
        Cause::TooLarge => ScrapeFailure::TooLarge,
        Cause::Broken | Cause::NotMetrics(_) | Cause::NotModels(_) => ScrapeFailure::Malformed,
    }
}
