//! The handles that belong to no pool.

use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use tokio::time::Instant;

use super::labels::{
    Arrival, AuthSource, ByLabel, Datagram, Outcome, Path, PathReason, Refusal, Reload,
};
use super::pool::{count, raise};
use super::record::Record;
use super::tls::TlsMetrics;
use super::window::Window;

/// What is counted of the gateway as a whole.
#[derive(Debug)]
pub struct GatewayMetrics {
    /// Open client connections: add at accept, take away at close.
    pub client_connections: Gauge,
    /// Bytes of request bodies in memory.
    pub buffered_body_bytes: Gauge,
    /// 1 while the kernel steers connections.
    pub steering_enabled: Gauge,
    pub(super) steering_dropped: Counter,
    pub(super) steering_retries: Counter,
    pub(super) overhead: Histogram,
    pub(super) refused: ByLabel<Refusal, Counter>,
    pub(super) responses: ByLabel<Path, ByLabel<PathReason, Counter>>,
    pub(super) bytes: ByLabel<Path, Counter>,
    pub(super) datagrams: OnceLock<ByLabel<Datagram, Counter>>,
    pub(super) tls: OnceLock<TlsMetrics>,
    pub(super) auth: OnceLock<AuthCounts>,
    pub(super) config_reloads: ByLabel<Reload, Counter>,
    pub(super) config_pending: Gauge,
    pub(super) cluster_age: OnceLock<Gauge>,
    recent: Mutex<Window>,
    start: Instant,
}

/// What is counted of keys and key sets.
#[derive(Debug, Default)]
pub(super) struct AuthCounts {
    pub(super) known: ByLabel<AuthSource, Gauge>,
    pub(super) reloads: ByLabel<AuthSource, ByLabel<Reload, Counter>>,
}

impl GatewayMetrics {
    pub(super) fn new() -> Self {
        Self {
            client_connections: Gauge::default(),
            buffered_body_bytes: Gauge::default(),
            steering_enabled: Gauge::default(),
            steering_dropped: Counter::default(),
            steering_retries: Counter::default(),
            overhead: Histogram::new(OVERHEAD),
            refused: ByLabel::default(),
            responses: ByLabel::default(),
            bytes: ByLabel::default(),
            datagrams: OnceLock::new(),
            tls: OnceLock::new(),
            auth: OnceLock::new(),
            config_reloads: ByLabel::default(),
            config_pending: Gauge::default(),
            cluster_age: OnceLock::new(),
            recent: Mutex::default(),
            start: Instant::now(),
        }
    }

    /// Counts a request that was refused before it came to a pool.
    pub fn refused(&self, reason: Refusal) {
        count(self.refused.get(reason));
    }

    /// Counts a datagram of the exchange between gateways. Its series begin with the first call.
    pub fn datagram(&self, became: Datagram) {
        count(self.datagrams.get_or_init(ByLabel::default).get(became));
    }

    /// What is counted of TLS. Its series begin with the first call.
    pub fn tls(&self) -> &TlsMetrics {
        self.tls.get_or_init(TlsMetrics::default)
    }

    /// Says how many keys are in force. Its series begin with the first call to this or to
    /// [`reloaded`](Self::reloaded).
    pub fn auth_keys(&self, source: AuthSource, known: usize) {
        let auth = self.auth.get_or_init(AuthCounts::default);
        if let Some(gauge) = auth.known.get(source) {
            gauge.set(i64::try_from(known).unwrap_or(i64::MAX));
        }
    }

    /// Counts what came of reading keys anew.
    pub fn reloaded(&self, source: AuthSource, result: Reload) {
        let auth = self.auth.get_or_init(AuthCounts::default);
        count(auth.reloads.get(source).and_then(|results| results.get(result)));
    }

    /// Counts what came of reading the configuration anew, and whether some of it is not in force now.
    pub fn config_read(&self, result: Reload, is_pending: bool) {
        count(self.config_reloads.get(result));
        self.config_pending(is_pending);
    }

    /// Says whether something of the configuration is not in force.
    pub fn config_pending(&self, is_pending: bool) {
        self.config_pending.set(is_pending.into());
    }

    /// Says for how long the API server has not been heard. Its series begins with the first call.
    pub fn cluster_age(&self, age: Duration) {
        let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
        self.cluster_age.get_or_init(Gauge::default).set(seconds);
    }

    /// Takes what the kernel has counted since the start: workers' sockets passed over, and
    /// connections dropped.
    pub fn steered(&self, retried: u64, dropped: u64) {
        raise(&self.steering_retries, retried);
        raise(&self.steering_dropped, dropped);
    }

    /// Responses that a path has carried.
    pub fn responses(&self, path: Path) -> u64 {
        let reasons = self.responses.get(path).into_iter().flat_map(|reasons| reasons.iter());
        reasons.map(|(_, counter)| counter.get()).sum()
    }

    /// Its part of a finished request.
    pub(super) fn finished(&self, record: &Record) {
        if let Some((path, reason)) = record.flow {
            count(self.responses.get(path).and_then(|reasons| reasons.get(reason)));
        }
        let relayed = (Path::Relay, record.relayed_bytes);
        for (path, bytes) in [Some(relayed), record.carried_bytes].into_iter().flatten() {
            if let Some(counter) = self.bytes.get(path) {
                counter.inc_by(bytes);
            }
        }
        if let Some(overhead) = record.overhead {
            self.overhead.observe(overhead.as_secs_f64());
        }
        let failed = matches!(
            record.outcome,
            Outcome::PodError | Outcome::Aborted | Outcome::Rejected | Outcome::TimedOut
        );
        self.recent.lock().count(self.start.elapsed(), failed);
    }

    /// The share of failures in the last minute; `None` without requests.
    pub(super) fn error_ratio(&self) -> Option<f64> {
        self.recent.lock().ratio(self.start.elapsed())
    }
}

/// What is counted of one listener.
#[derive(Debug, Default)]
pub struct ListenerMetrics {
    pub(super) connections: ByLabel<Arrival, Counter>,
}

impl ListenerMetrics {
    /// Counts a connection.
    pub fn accepted(&self, arrival: Arrival) {
        count(self.connections.get(arrival));
    }
}

/// Seconds. What a gateway may add: from 10 us, and far enough to see a stall.
const OVERHEAD: [f64; 16] = [
    0.000_01, 0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_3, 0.000_5, 0.001, 0.002, 0.005, 0.01,
    0.02, 0.05, 0.1, 0.5, 1.0,
];
