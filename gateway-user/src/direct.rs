//! Pools of whole connections: their pods' scores to the kernel, their connections' counts from it.
//!
//! Lives on the control thread, beside [`crate::publish`]. It reads no request: what a client says
//! goes to the pod unseen. Connections that the gateway's own listener gets, as no pod was fit, are
//! served as any other, by [`crate::connection`].

use std::fmt::Write as _;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use gateway_common::score::{ONE, Score};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::gateway::Gateway;
use crate::kernel::{DirectCounters, ServerSocket, SteerError, Steering, Worth};
use crate::pool::{Pod, PodStatus, Pool};

/// The listener of one pool, as its workers need it.
#[derive(Clone, Debug)]
pub struct Exclusive {
    /// The pool.
    pub pool: Arc<Pool>,
    /// One answer ends the connection: the next finds a pod's own socket, if one is fit by then.
    pub once: bool,
}

/// The pools whose connections go to the pods' own sockets.
#[derive(Debug, Default)]
pub struct DirectPools {
    all: Vec<DirectPool>,
    looked: Option<Instant>,
    complained: bool,
}

/// One pool's share of [`DirectPools`].
#[derive(Debug)]
struct DirectPool {
    number: u32,
    pool: Arc<Pool>,
    listener: String,
    pods: Vec<Arc<Pod>>,
    sockets: Vec<ServerSocket>,
    counters: DirectCounters,
}

/// What `/status` says of a pool's direct mode.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct DirectView {
    /// The listener whose connections go to the pods.
    pub listener: String,
    /// Connections that the gateway took itself, as no pod was fit.
    pub fallbacks: u64,
    /// Connections given without regard to load, as the gateway had not published for 3 s.
    pub stale: u64,
    /// The pods, in the order of the configuration.
    pub pods: Vec<DirectPodView>,
}

/// One pod of a [`DirectView`].
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct DirectPodView {
    /// Its name.
    pub name: String,
    /// Connections given to it.
    pub given: u64,
    /// Connections open.
    pub open: u64,
    /// Why no connection can be given to it.
    pub trouble: Option<String>,
}

impl DirectPools {
    /// Tells the kernel of the pools that take whole connections. Says in the log what works less
    /// well than it could.
    ///
    /// # Errors
    /// The kernel refused, in words for the log.
    pub fn start(steering: &mut Steering, gateway: &Gateway) -> Result<Self, String> {
        let mut all = Vec::new();
        for (scheduler, pool) in gateway.config().schedulers.iter().zip(gateway.pools().iter()) {
            let Some(listener) = scheduler.direct.clone() else { continue };
            let pods = pool.pods();
            let addresses: Vec<_> = pods.iter().map(|pod| pod.address).collect();
            let added = steering.direct().add_pool(&addresses);
            let number = added.map_err(|error| format!("pool `{}`: {error}", pool.name))?;
            for pod in &pods {
                if !is_here(pod) {
                    warn!(
                        pool = %pool.name, pod = %pod.name,
                        "its address is none of this host's: no connection can be given to it"
                    );
                }
            }
            let sockets = vec![ServerSocket::NotListening; pods.len()];
            let pool = Arc::clone(pool);
            let counters = DirectCounters::default();
            all.push(DirectPool { number, pool, listener, pods, sockets, counters });
        }
        if all.is_empty() {
            return Ok(Self::default());
        }
        steering.start_direct().map_err(|unfit| unfit.to_string())?;
        if let Err(unfit) = steering.watch_servers() {
            warn!(
                "direct: open connections are not counted, and a model server that starts anew is \
                 found only by looking: {unfit}"
            );
        }
        let mut pools = Self { all, looked: None, complained: false };
        pools.publish(steering).map_err(|error| error.to_string())?;
        for direct in &pools.all {
            info!(
                pool = %direct.pool.name,
                "direct: connections to listener `{}` go to the pods' own sockets", direct.listener
            );
        }
        Ok(pools)
    }

    /// The kernel's number of the pool that a listener serves alone.
    pub fn number(&self, listener: &str) -> Option<u32> {
        self.all.iter().find(|direct| direct.listener == listener).map(|direct| direct.number)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Reads how many connections the pods have, and says what the pods are worth.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn publish(&mut self, steering: &mut Steering) -> Result<(), SteerError> {
        if self.all.is_empty() {
            return Ok(());
        }
        self.look(steering);
        self.count(steering)?;
        let now = Instant::now();
        for direct in &self.all {
            let most = direct.pool.most_score();
            let worth = |(status, socket): (PodStatus, &ServerSocket)| {
                // What is not known to be missing may be there: the kernel passes over what is not.
                let held = matches!(socket, ServerSocket::Held | ServerSocket::Unknown);
                Worth {
                    score: Score::fixed(f64::from(status.score.unwrap_or_default() / most)),
                    ready: held && status.view.ready,
                    fit: status.score.is_some(),
                }
            };
            let pods: Vec<Worth> =
                direct.pool.status(now).into_iter().zip(&direct.sockets).map(worth).collect();
            steering.direct().publish(direct.number, MARGIN, &pods)?;
        }
        Ok(())
    }

    /// Takes over what the kernel has counted: open connections are the pods' load, as requests in
    /// flight are.
    ///
    /// # Errors
    /// The kernel refused to tell.
    pub fn count(&mut self, steering: &mut Steering) -> Result<(), SteerError> {
        for direct in &mut self.all {
            direct.counters = steering.direct().counters(direct.number)?;
            for (pod, counted) in direct.pods.iter().zip(&direct.counters.pods) {
                direct.pool.set_connections(pod, counted.given, counted.open);
            }
            let DirectCounters { fallbacks, retried, stale, .. } = direct.counters;
            direct.pool.metrics.direct(fallbacks, stale, retried);
        }
        Ok(())
    }

    /// What `/status` says of the pool.
    pub fn view(&self, pool: &Arc<Pool>) -> Option<DirectView> {
        let direct = self.all.iter().find(|direct| Arc::ptr_eq(&direct.pool, pool))?;
        let pods = direct.pods.iter().zip(&direct.counters.pods).zip(&direct.sockets);
        Some(DirectView {
            listener: direct.listener.clone(),
            fallbacks: direct.counters.fallbacks,
            stale: direct.counters.stale,
            pods: pods
                .map(|((pod, counted), socket)| DirectPodView {
                    name: pod.name.to_string(),
                    given: counted.given,
                    open: counted.open,
                    trouble: match socket {
                        ServerSocket::Held | ServerSocket::Unknown => None,
                        ServerSocket::NotListening => Some("nobody listens at its address".into()),
                        ServerSocket::OutOfReach(why) => {
                            Some(format!("its listening socket is out of reach: {why}"))
                        }
                    },
                })
                .collect(),
        })
    }

    /// Looks where the pods' sockets are, now and then.
    fn look(&mut self, steering: &mut Steering) {
        if self.looked.is_some_and(|at| at.elapsed() < LOOK) {
            return;
        }
        self.looked = Some(Instant::now());
        match steering.direct().look() {
            Ok(all) => {
                for (direct, sockets) in self.all.iter_mut().zip(all) {
                    direct.sockets = sockets;
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.complained, true) {
                    warn!("direct: model servers that run already are not found: {error}");
                }
                for direct in &mut self.all {
                    direct.sockets.fill(ServerSocket::Unknown);
                }
            }
        }
    }
}

impl DirectView {
    /// Lines for people.
    pub fn write(&self, out: &mut String) {
        let sum = |of: fn(&DirectPodView) -> u64| self.pods.iter().map(of).sum::<u64>();
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "  listener {}: connections go to the pods' own sockets: {} given, {} open; {} taken by \
             the gateway, {} given blindly",
            self.listener,
            sum(|pod| pod.given),
            sum(|pod| pod.open),
            self.fallbacks,
            self.stale
        );
        for pod in &self.pods {
            if let Some(trouble) = &pod.trouble {
                let _ = writeln!(out, "      {}: {trouble}", pod.name);
            }
        }
    }
}

/// Whether the pod's address is one of this network namespace's: only then can it be bound.
fn is_here(pod: &Pod) -> bool {
    TcpListener::bind((pod.address.ip(), 0))
        .is_ok_and(|socket| socket.local_addr().is_ok_and(|at| at.ip() == pod.address.ip()))
}

/// A pod this far below the best gets no connection: an eighth of the most that a score can be. The
/// scores are at least 50 ms old, and always taking the very best would have it take all of a burst.
const MARGIN: u32 = ONE / 8;

/// How often it is looked who listens. A server that starts anew is there at once, by the kernel;
/// this finds the ones that the kernel did not see.
const LOOK: Duration = Duration::from_millis(250);
