//! Takes what is observed of one pod into its pool.

use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::gateway::Gateway;
use crate::metrics::ScrapeFailure;
use crate::observe::{Cause, EngineKind, Failure, Models, Reading, Sink};
use crate::pool::{Pod, Pool};

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
        Cause::Refused | Cause::Unreachable(_) => ScrapeFailure::Connect,
        Cause::Timeout => ScrapeFailure::Timeout,
        Cause::Status(_) => ScrapeFailure::Status,
        Cause::TooLarge => ScrapeFailure::TooLarge,
        Cause::Broken | Cause::NotMetrics(_) | Cause::NotModels(_) => ScrapeFailure::Malformed,
    }
}
