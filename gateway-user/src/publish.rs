//! What the daemon tells the kernel: which sockets take connections, and the pods' scores.
//!
//! Lives on the control thread. Without steering it remembers why, and everything else goes on as before.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::config::{Listener, Steering as Wanted, VirtualAddress};
use crate::direct::{DirectPools, DirectView};
use crate::gateway::Gateway;
use crate::kernel::{KernelLogReader, PublishedScore, ScoreEntry, Steering};
use crate::listen::bind_dual;
use crate::pool::Pool;
use crate::status::{ListenerView, SteeringStatus};

/// The kernel's part of a running gateway.
pub struct Steered {
    steering: RefCell<Option<Steering>>,
    direct: RefCell<DirectPools>,
    reason: Option<String>,
    listeners: Vec<(String, SocketAddr)>,
}

/// A listener that is about to be served: its configuration and its bound sockets.
#[derive(Debug)]
pub struct Bound {
    /// As configured.
    pub listener: Listener,
    /// Where it is bound, with the port that the kernel chose if 0 was asked for.
    pub address: SocketAddr,
    /// One socket for each worker, or those of the daemon that ran before.
    pub sockets: Vec<TcpListener>,
    /// As many at each virtual address that is bound like any other.
    pub bound_virtual: Vec<(SocketAddr, Vec<TcpListener>)>,
    /// As many more if IPv6 addresses are steered to an IPv4 listener.
    pub dual: Vec<TcpListener>,
}

impl std::fmt::Debug for Steered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Steered").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl Steered {
    /// Has sk_lookup steer connections to the sockets of `bound`, if that is wanted and works. Says in one
    /// log line which it is.
    pub fn start(gateway: &Gateway, bound: &mut [Bound]) -> Self {
        let config = gateway.config();
        let listeners =
            bound.iter().map(|bound| (bound.listener.name.clone(), bound.address)).collect();
        let mut direct = DirectPools::default();
        let (steering, reason) = match config.kernel.steering {
            Wanted::Off => (None, Some("turned off by kernel.steering".to_owned())),
            Wanted::Auto => match steer(gateway, bound, &mut direct) {
                Ok(steering) => (Some(steering), None),
                Err(reason) => {
                    direct = DirectPools::default();
                    (None, Some(reason))
                }
            },
        };
        match &reason {
            None => info!("steering: sk_lookup gives connections to the workers"),
            // As wanted, and nothing to look into.
            Some(reason) if config.kernel.steering == Wanted::Off => {
                info!("steering: ordinary listeners give connections to the workers: {reason}");
            }
            Some(reason) => {
                warn!("steering: ordinary listeners give connections to the workers: {reason}");
            }
        }
        if direct.is_empty() && config.schedulers.iter().any(|pool| pool.direct.is_some()) {
            warn!("direct: no connection goes whole to a pod; requests are relayed one by one");
        }
        let direct = RefCell::new(direct);
        Self { steering: RefCell::new(steering), direct, reason, listeners }
    }

    /// Whether connections to the listener go whole to the pods of the pool that it serves alone.
    pub fn is_direct(&self, listener: &str) -> bool {
        self.direct.borrow().number(listener).is_some()
    }

    /// What `/status` says of a pool that takes whole connections.
    pub fn direct(&self, pool: &Arc<Pool>) -> Option<DirectView> {
        self.direct.borrow().view(pool)
    }

    /// Takes what the kernel has counted into the counts of pods, pools and the gateway.
    pub fn count(&self, gateway: &Gateway) {
        let sum = |of: fn(&ListenerView) -> u64| self.status().listeners.iter().map(of).sum();
        let counted = &gateway.counted;
        counted.steering_enabled.set(self.is_on().into());
        counted.steered(sum(|listener| listener.retried), sum(|listener| listener.dropped));
        if let Some(steering) = self.steering.borrow_mut().as_mut() {
            // What cannot be read stays as it was.
            let _ = self.direct.borrow_mut().count(steering);
        }
    }

    /// Whether sk_lookup steers.
    pub fn is_on(&self) -> bool {
        self.reason.is_none()
    }

    /// What `/status` says of it.
    pub fn status(&self) -> SteeringStatus {
        let steering = self.steering.borrow();
        let counters =
            steering.as_ref().and_then(|steering| steering.counters().ok()).unwrap_or_default();
        let listeners = self.listeners.iter().enumerate().map(|(index, (name, address))| {
            let of_this =
                || counters.iter().filter(|counted| counted.listener as usize / 2 == index);
            ListenerView {
                name: name.clone(),
                address: address.to_string(),
                steered: of_this().map(|counted| counted.steered).sum(),
                retried: of_this().map(|counted| counted.retried).sum(),
                dropped: of_this().map(|counted| counted.dropped).sum(),
            }
        });
        SteeringStatus {
            path: if self.is_on() { "sk_lookup" } else { "userspace" }.into(),
            reason: self.reason.clone(),
            listeners: listeners.collect(),
        }
    }

    /// What the kernel programs say, if they may say anything.
    pub fn take_log(&self) -> Option<KernelLogReader> {
        self.steering.borrow_mut().as_mut().and_then(Steering::take_log)
    }

    /// The scores as the kernel has them; empty without steering.
    pub fn scores(&self) -> Vec<PublishedScore> {
        let steering = self.steering.borrow();
        steering.as_ref().and_then(|steering| steering.scores().ok()).unwrap_or_default()
    }

    /// Publishes the scores at every change of signals, until dropped.
    pub async fn publish(&self, gateway: &Gateway, changed: &Notify) {
        if self.steering.borrow().is_none() {
            return;
        }
        let mut complained = false;
        let direct = !self.direct.borrow().is_empty();
        loop {
            let entries = entries(gateway);
            let published = self.steering.borrow_mut().as_mut().map(|steering| {
                let direct = self.direct.borrow_mut().publish(steering);
                steering.publish(&entries).and(direct)
            });
            if let Some(Err(error)) = published
                && !std::mem::replace(&mut complained, true)
            {
                warn!("publishing the pods' scores failed: {error}");
            }
            // Many pods answer within a moment; they are written together.
            sleep(TOGETHER).await;
            // Without changes too: an old entry tells that nobody publishes any more.
            let most = if direct { AT_LEAST_DIRECT } else { AT_LEAST };
            let _ = timeout(most, changed.notified()).await;
        }
    }

    /// Steers nothing any more: connections find the ordinary listeners, until these close.
    pub fn stop(&self) {
        self.steering.borrow_mut().take();
    }
}

fn steer(
    gateway: &Gateway,
    bound: &mut [Bound],
    direct: &mut DirectPools,
) -> Result<Steering, String> {
    let log = gateway.config().kernel.log;
    let mut steering = Steering::start(log).map_err(|unfit| unfit.to_string())?;
    match DirectPools::start(&mut steering, gateway) {
        Ok(pools) => *direct = pools,
        Err(reason) => warn!("direct: {reason}"),
    }
    for (bound, index) in bound.iter_mut().zip(0_u32..) {
        let (v4, v6): (Vec<_>, Vec<_>) =
            destinations(bound).into_iter().partition(|block| block.address.is_ipv4());
        if !v6.is_empty() && bound.address.is_ipv4() && bound.dual.is_empty() {
            bound.dual = bind_dual(bound.sockets.len()).map_err(|error| {
                format!("listener `{}`: no IPv6 sockets: {error}", bound.listener.name)
            })?;
        }
        let v6_sockets = if bound.dual.is_empty() { &bound.sockets } else { &bound.dual };
        // An IPv6 listener takes IPv4 as well.
        for (blocks, sockets, part) in [(v4, &bound.sockets, 0), (v6, v6_sockets, 1)] {
            if !blocks.is_empty() {
                let number = 2 * index + part;
                match direct.number(&bound.listener.name) {
                    Some(pool) => steering.set_direct_listener(number, pool, &blocks, sockets),
                    None => steering.set_listener(number, &blocks, sockets),
                }
                .map_err(|error| format!("listener `{}`: {error}", bound.listener.name))?;
            }
        }
    }
    Ok(steering)
}

/// All that a listener is to serve: where it is bound, and its virtual addresses.
fn destinations(bound: &Bound) -> Vec<VirtualAddress> {
    let Bound { listener, address, .. } = bound;
    let whole = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
    let own = |ip: IpAddr, prefix| VirtualAddress { address: ip, prefix, port: address.port() };
    let mut all = match address.ip() {
        ip if !ip.is_unspecified() => vec![own(ip, whole(ip))],
        ip @ IpAddr::V4(_) => vec![own(ip, 0)],
        ip @ IpAddr::V6(_) => vec![own(ip, 0), own(Ipv4Addr::UNSPECIFIED.into(), 0)],
    };
    all.extend(&listener.virtual_addresses);
    all
}

/// Every pod of every pool, for the kernel's map.
fn entries(gateway: &Gateway) -> Vec<ScoreEntry> {
    let now = Instant::now();
    let mut entries = Vec::new();
    for (pool, slot) in gateway.pools().iter().zip(0..) {
        let stale_after = pool.settings().source.stale_after;
        for status in pool.status(now) {
            entries.push(ScoreEntry {
                pool: slot,
                endpoint: status.pod.address,
                score: status.score.unwrap_or_default().into(),
                in_flight: status.view.in_flight,
                ready: status.view.ready,
                fresh: status.view.age.is_some_and(|age| age <= stale_after),
            });
        }
    }
    entries
}

/// How often the scores are written when nothing changes.
const AT_LEAST: Duration = Duration::from_secs(1);

/// The same with pools of whole connections: only the kernel knows when those come and go.
const AT_LEAST_DIRECT: Duration = Duration::from_millis(100);

/// How long changes are gathered before they are written.
const TOGETHER: Duration = Duration::from_millis(50);
