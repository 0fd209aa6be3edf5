//! What all parts of the daemon share: pools, routes, metrics, limits, and the way to stop.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::auth::{Auth, Key};
use crate::config::{Config, Scheduler};
use crate::error::Refusal;
use crate::flow::path::Paths;
use crate::limit::addresses::{self, Addresses};
use crate::metrics::{Build, Format, GatewayMetrics, Metrics, PodSample};
use crate::pool::{Member, Pool, Settings};
use crate::responses::Responses;
use crate::rewrites::Rewrites;
use crate::route::Routes;
use crate::staleness::{Stale, Staleness};

/// The daemon's shared state.
#[derive(Debug)]
pub struct Gateway {
    /// How the kernel carries responses.
    pub paths: Paths,
    /// What is counted, with the handles by pool and listener.
    pub metrics: Metrics,
    /// What is counted of the gateway as a whole.
    pub counted: Arc<GatewayMetrics>,
    /// Which pod has which response.
    pub responses: Responses,
    /// How old what it knows of a cluster is.
    pub staleness: Staleness,
    /// When the daemon started.
    pub started: Instant,
    config: ArcSwap<Config>,
    configured: ArcSwap<Configured>,
    pools: Arc<ArcSwap<Vec<Arc<Pool>>>>,
    auth: ArcSwap<Auth>,
    routes: ArcSwap<Routes>,
    rewrites: ArcSwap<Rewrites>,
    /// What pools need that are shared with other gateways.
    member: Option<Member>,
    body_memory: Arc<AtomicUsize>,
    connections: AtomicUsize,
    addresses: Addresses,
    stop: watch::Sender<bool>,
    handed_over: AtomicBool,
    cut: watch::Sender<bool>,
    listening: AtomicBool,
}

/// What has become of the configuration that was read last.
#[derive(Clone, Debug, Default)]
pub struct Configured {
    /// Parts of it that cannot change while the daemon runs, and have not.
    pub waiting: Vec<&'static str>,
    /// Why it is not in force.
    pub trouble: Option<String>,
}

/// A part of the memory that request bodies may take together; given back when dropped.
#[derive(Debug)]
pub struct Memory {
    taken: usize,
    total: Arc<AtomicUsize>,
    most: usize,
}

/// A connection's place among those that may be open at once; given back when dropped.
#[derive(Debug)]
pub struct Admission {
    gateway: Arc<Gateway>,
    /// Its place among those of its address; none if it has been sent away.
    _of_address: Option<addresses::Place>,
}

/// There is no place for a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Full {
    /// As many as may be are open.
    All,
    /// As many as may be of one address are.
    Address,
}

/// A request's id: the client's own, or a new one.
#[derive(Clone, Debug)]
pub struct RequestId(Box<str>);

impl Gateway {
    /// The state of a daemon that is about to start; `member`: as one of several gateways.
    pub fn new(config: Config, paths: Paths, seed: u64, member: Option<&Member>) -> Self {
        // The metrics show the pools, and the pools count into the metrics.
        let pools: Arc<ArcSwap<Vec<Arc<Pool>>>> = Arc::default();
        let metrics = Metrics::new(BUILD, {
            let pools = Arc::clone(&pools);
            move || samples(&pools.load())
        });
        let all = (config.schedulers.iter())
            .zip(0..)
            .map(|(scheduler, index)| {
                let counted = metrics.pool(&scheduler.name);
                let settings = Settings::new(scheduler, None);
                Arc::new(Pool::new(scheduler, settings, counted, seed.wrapping_add(index), member))
            })
            .collect();
        pools.store(Arc::new(all));
        metrics.set_rewrites(config.model_rewrites.iter().map(|of| of.name.as_str()));
        let gateway = Self {
            routes: ArcSwap::default(),
            rewrites: ArcSwap::from_pointee(Rewrites::new(&config.model_rewrites)),
            auth: ArcSwap::from_pointee(Auth::new(config.auth.as_ref(), &metrics, None)),
            config: ArcSwap::from_pointee(config),
            configured: ArcSwap::default(),
            paths,
            pools,
            member: member.cloned(),
            counted: metrics.gateway(),
            metrics,
            responses: Responses::default(),
            started: Instant::now(),
            body_memory: Arc::default(),
            connections: AtomicUsize::new(0),
            addresses: Addresses::default(),
            stop: watch::Sender::new(false),
            handed_over: AtomicBool::new(false),
            cut: watch::Sender::new(false),
            listening: AtomicBool::new(false),
            staleness: Staleness::default(),
        };
        gateway.reroute();
        gateway
    }

    /// The configuration in force.
    pub fn config(&self) -> Guard<Arc<Config>> {
        self.config.load()
    }

    /// What has become of the configuration that was read last.
    pub fn configured(&self) -> Guard<Arc<Configured>> {
        self.configured.load()
    }

    /// Remembers what has become of the configuration that was read last.
    pub fn set_configured(&self, configured: Configured) {
        self.configured.store(Arc::new(configured));
    }

    /// The pools, in the order of the configuration.
    pub fn pools(&self) -> Guard<Arc<Vec<Arc<Pool>>>> {
        self.pools.load()
    }

    /// Who may send requests.
    pub fn auth(&self) -> Guard<Arc<Auth>> {
        self.auth.load()
    }

    /// Has `auth` decide from now on who may send requests.
    pub fn set_auth(&self, auth: Arc<Auth>, now: Instant) {
        auth.hold(&self.metrics, now);
        self.auth.store(auth);
    }

    /// Has `config` hold from now on, with the pools' `settings`, one for each scheduler. A pool of the same name and
    /// model goes on, with what is known of its pods; requests in flight at any other go on as well.
    pub fn configure(&self, config: Config, settings: Vec<Settings>, now: Instant) {
        let before = self.pools.load();
        let pools: Vec<Arc<Pool>> = (config.schedulers.iter().zip(settings))
            .map(|(scheduler, settings)| match find(&before, scheduler) {
                Some(pool) => {
                    pool.configure(scheduler, settings, now);
                    Arc::clone(pool)
                }
                None => {
                    let counted = self.metrics.pool(&scheduler.name);
                    let member = self.member.as_ref();
                    let seed = fastrand::u64(..);
                    Arc::new(Pool::new(scheduler, settings, counted, seed, member))
                }
            })
            .collect();
        self.pools.store(Arc::new(pools));
        self.rewrites.store(Arc::new(Rewrites::new(&config.model_rewrites)));
        self.metrics
            .retain_pools(|name| config.schedulers.iter().any(|scheduler| scheduler.name == name));
        self.metrics.set_rewrites(config.model_rewrites.iter().map(|of| of.name.as_str()));
        self.config.store(Arc::new(config));
        self.reroute();
    }

    /// The names in force.
    pub fn routes(&self) -> Guard<Arc<Routes>> {
        self.routes.load()
    }

    /// The models in force that are served as others.
    pub fn rewrites(&self) -> Guard<Arc<Rewrites>> {
        self.rewrites.load()
    }

    /// How important a request to `pool` is that names this objective; 0 if there is none of that name.
    pub fn priority(&self, objective: Option<&str>, pool: &Pool) -> i32 {
        let Some(name) = objective else { return 0 };
        let config = self.config();
        let is_of = |own: &Option<String>| own.as_ref().is_none_or(|own| **own == *pool.name);
        let mut all = config.objectives.iter();
        all.find(|of| of.name == name && is_of(&of.pool)).map_or(0, |of| of.priority)
    }

    /// Takes the adapters that pods list now into the names.
    pub fn reroute(&self) {
        let (pools, rewrites) = (self.pools(), self.rewrites());
        let routes = Routes::new(&pools);
        for pool in pools.iter() {
            let names = routes.all().into_iter().filter(|(_, to)| Arc::ptr_eq(&to.pool, pool));
            let names = names.map(|(name, _)| name).chain(rewrites.targets_of(&pool.name));
            pool.metrics.set_models(names);
        }
        self.routes.store(Arc::new(routes));
    }

    /// The pool, where there is one only.
    pub fn only_pool(&self) -> Option<Arc<Pool>> {
        match self.pools().as_slice() {
            [only] => Some(Arc::clone(only)),
            _ => None,
        }
    }

    /// A share, empty yet, of the memory for request bodies.
    pub fn memory(&self) -> Memory {
        Memory {
            taken: 0,
            total: Arc::clone(&self.body_memory),
            most: self.config().limits.max_buffered_bytes,
        }
    }

    /// Bytes of request bodies held now.
    pub fn buffered_bytes(&self) -> usize {
        self.body_memory.load(Ordering::Relaxed)
    }

    /// A place for one more connection, of a client at `address`.
    ///
    /// # Errors
    /// [`Full`]: too many are open.
    pub fn admit(self: &Arc<Self>, address: IpAddr) -> Result<Admission, Full> {
        let config = self.config();
        let limits = &config.limits;
        let before = self.connections.fetch_add(1, Ordering::Relaxed);
        let mut place = Admission { gateway: Arc::clone(self), _of_address: None };
        if before >= limits.max_connections {
            return Err(Full::All);
        }
        let of_address = self.addresses.admit(address, limits.max_connections_per_address);
        place._of_address = Some(of_address.ok_or(Full::Address)?);
        Ok(place)
    }

    /// Client connections open now.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// All listeners accept from now on.
    pub fn set_listening(&self) {
        self.listening.store(true, Ordering::Release);
    }

    /// Begins to stop: no new connections, no new requests on the old ones.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// As [`Gateway::stop`], when another daemon has the listeners now.
    pub fn hand_over(&self) {
        self.handed_over.store(true, Ordering::Release);
        self.stop();
    }

    /// Whether another daemon has the listeners now.
    pub fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Acquire)
    }

    /// Whether the daemon is stopping.
    pub fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Ends the connections that are left, whatever they are doing.
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// Tells when connections are to be ended whatever they are doing.
    pub fn cut_signal(&self) -> watch::Receiver<bool> {
        self.cut.subscribe()
    }

    /// The metrics as they are now.
    pub fn exposition(&self, format: Format) -> String {
        let counted = &self.counted;
        counted.client_connections.set(self.connections() as i64);
        counted.buffered_body_bytes.set(self.buffered_bytes() as i64);
        // Only the encoder's own failure would be an error, and a String takes everything.
        self.metrics.encode(format).unwrap_or_default()
    }

    /// Tells when the daemon begins to stop.
    pub fn stop_signal(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Why requests should go to another gateway, if they should.
    pub fn unready(&self) -> Option<String> {
        if self.is_stopping() {
            return Some("stopping".into());
        }
        if !self.listening.load(Ordering::Acquire) {
            return Some("starting".into());
        }
        if let stale @ Stale::TooOld(..) = self.staleness.now() {
            return Some(stale.to_string());
        }
        if let Some(why) = self.auth().unready() {
            return Some(why);
        }
        let now = Instant::now();
        let pools = self.pools();
        match pools.iter().find(|pool| !pool.ready(now)) {
            // One pool that works is worth having: the others' requests are told 503 by themselves.
            Some(pool) if !pools.iter().any(|pool| pool.ready(now)) => {
                Some(format!("no pod is reachable (pool {})", pool.name))
            }
            _ => None,
        }
    }

    /// `GET /health` on the clients' side, of all pools or of `only` one.
    pub fn health_page(&self, only: Option<&Arc<Pool>>) -> Result<String, Refusal> {
        let unready = self.unready().or_else(|| match only {
            Some(pool) if !pool.ready(Instant::now()) => {
                Some(format!("no pod is reachable (pool {})", pool.name))
            }
            _ => None,
        });
        match unready {
            None => Ok("{}".into()),
            Some(why) => Err(Refusal::overloaded("not_ready", format!("Not ready: {why}."))),
        }
    }

    /// `GET /v1/models`: every name, from the gateway's own state, so that no pod is asked; of all pools or of `only` one,
    /// and of them what `key` may use.
    pub fn models_page(&self, only: Option<&Arc<Pool>>, key: Option<&Key>) -> String {
        let (routes, rewrites, pools) = (self.routes(), self.rewrites(), self.pools());
        let others = rewrites.names(&routes, &pools);
        let mut all = routes.all();
        all.extend(others.iter().map(|(name, to)| (*name, to)));
        all.sort_unstable_by_key(|(name, _)| *name);
        let data: Vec<_> = (all.into_iter())
            .filter(|(_, to)| only.is_none_or(|pool| Arc::ptr_eq(pool, &to.pool)))
            .filter(|(name, to)| key.is_none_or(|key| key.allows(name, to)))
            .map(|(name, to)| model_card(name, to))
            .collect();
        json!({"object": "list", "data": data}).to_string()
    }

    /// `GET /v1/models/{name}`, of all pools or of `only` one. What `key` may not use is as if it did not exist.
    pub fn model_page(
        &self,
        name: &str,
        only: Option<&Arc<Pool>>,
        key: Option<&Key>,
    ) -> Result<String, Refusal> {
        let (routes, rewrites, pools) = (self.routes(), self.rewrites(), self.pools());
        let others = rewrites.names(&routes, &pools);
        let other = || others.iter().find(|(other, _)| *other == name).map(|(_, to)| to);
        let found = (routes.find(name).or_else(other))
            .filter(|to| only.is_none_or(|pool| Arc::ptr_eq(pool, &to.pool)))
            .filter(|to| key.is_none_or(|key| key.allows(name, to)));
        match found {
            Some(to) => Ok(model_card(name, to).to_string()),
            None => Err(Refusal::model_not_found(name)),
        }
    }
}

impl Full {
    /// What the client is told.
    pub fn refusal(self) -> Refusal {
        match self {
            Self::All => Refusal::overloaded(
                "too_many_connections",
                "The gateway has as many connections as limits.maxConnections allows. Try again later.",
            ),
            Self::Address => Refusal {
                kind: "rate_limit_error",
                retry_after: Some(Duration::from_secs(1)),
                close: true,
                ..Refusal::client(
                    429,
                    "too_many_connections_of_address",
                    "This address has as many connections as limits.maxConnectionsPerAddress \
                     allows. Use those, or close some.",
                )
            },
        }
    }
}

fn samples(pools: &[Arc<Pool>]) -> Vec<PodSample> {
    let now = Instant::now();
    let mut all = Vec::new();
    for pool in pools {
        all.extend(pool.status(now).into_iter().map(|status| PodSample {
            pool: Arc::clone(&pool.name),
            pod: Arc::clone(&status.pod.name),
            direct: pool.is_direct.then(|| (status.pod.given(), status.pod.connections())),
            view: status.view,
            stale_after: pool.settings().source.stale_after,
        }));
    }
    all
}

/// The pool that goes on as this scheduler's.
fn find<'a>(pools: &'a [Arc<Pool>], scheduler: &Scheduler) -> Option<&'a Arc<Pool>> {
    let is_same = |pool: &&Arc<Pool>| {
        *pool.name == *scheduler.name
            && *pool.model == *scheduler.model_name
            && pool.is_direct == scheduler.direct.is_some()
    };
    pools.iter().find(is_same)
}

fn model_card(name: &str, to: &crate::route::Target) -> serde_json::Value {
    json!({
        "id": name,
        "object": "model",
        // OpenAI's field for the time of making; nothing here knows it.
        "created": 0,
        "owned_by": "sluice",
        "root": &*to.pool.model,
        "parent": to.adapter.as_ref().map(|_| &*to.pool.model),
    })
}

impl Memory {
    /// Takes up to `bytes` in all. `false`: there is not that much left, and nothing has changed.
    pub fn grow_to(&mut self, bytes: usize) -> bool {
        let Some(more) = bytes.checked_sub(self.taken).filter(|more| *more > 0) else {
            return true;
        };
        // Some is left to bodies of ordinary size, so that a few large ones that come slowly do not keep all out.
        let most = if bytes > ORDINARY_BODY { self.most - self.most / 8 } else { self.most };
        // In one step: a body that is too much for what is left must not keep another one out meanwhile.
        let fitting = |total: usize| total.checked_add(more).filter(|total| *total <= most);
        let is_taken =
            self.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fitting).is_ok();
        if is_taken {
            self.taken = bytes;
        }
        is_taken
    }

    /// Gives back what is over `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        let over = self.taken.saturating_sub(bytes);
        self.total.fetch_sub(over, Ordering::Relaxed);
        self.taken -= over;
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.taken > 0 {
            self.total.fetch_sub(self.taken, Ordering::Relaxed);
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.gateway.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl RequestId {
    /// The client's own id, or a new one from `rng`.
    pub fn new(own: Option<&str>, rng: &mut fastrand::Rng) -> Self {
        Self(match own {
            Some(own) => own.into(),
            None => format!("{:016x}{:016x}", rng.u64(..), rng.u64(..)).into(),
        })
    }
}

impl Deref for RequestId {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// A body up to this size, in bytes, may have the last eighth of the memory: a prompt of some 60,000 tokens.
const ORDINARY_BODY: usize = 256 * 1024;

/// What is running. Releases set the commit when they are built.
const BUILD: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    revision: match option_env!("SLUICE_REVISION") {
        Some(revision) => revision,
        None => "unknown",
    },
};
