//! Every metric of the gateway: of pods, pools, the gateway, steering, flows and the exchange.
//!
//! The one module that knows names of metrics and labels. Others hold handles ([`PoolMetrics`],
//! [`GatewayMetrics`], [`ListenerMetrics`]) and call them with typed values, so nothing that a peer
//! sends can add a series. What is only known at the moment of a scrape, such as the age of a
//! signal, is asked for then. What is unknown has no sample: a 0 would read as idle.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

mod collect;
mod descriptor;
mod events;
mod format;
mod gateway;
mod key;
mod labels;
mod pool;
mod record;
mod tls;
mod window;

pub use collect::PodSample;
pub use descriptor::{ALL, Descriptor};
pub use events::EventMetrics;
pub use format::Format;
pub use gateway::{GatewayMetrics, ListenerMetrics};
pub use key::KeyMetrics;
pub use labels::{
    Arrival, AuthSource, Datagram, Handshake, Label, Limit, Outcome, Path, PathReason, Recognition,
    Refusal, Rejection, Reload, ScrapeFailure, TokenKind,
};
pub use pool::PoolMetrics;
pub use record::Record;
pub use tls::{Expiry, TlsMetrics};

/// Every metric, and where to get the handles.
#[derive(Debug)]
pub struct Metrics {
    shared: Arc<Shared>,
    registry: Registry,
}

/// What is running.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    /// The release.
    pub version: &'static str,
    /// The commit that it was built from.
    pub revision: &'static str,
}

impl Metrics {
    /// `pods` is asked at each scrape for every pod of every pool.
    pub fn new(build: Build, pods: impl Fn() -> Vec<PodSample> + Send + Sync + 'static) -> Self {
        let shared = Arc::new(Shared {
            build,
            gateway: Arc::new(GatewayMetrics::new()),
            pools: RwLock::default(),
            listeners: RwLock::default(),
            keys: RwLock::default(),
            rewrites: RwLock::default(),
        });
        let mut registry = Registry::with_prefix(descriptor::PREFIX);
        let exposition = collect::Exposition { shared: Arc::clone(&shared), pods: Box::new(pods) };
        registry.register_collector(Box::new(exposition));
        Self { shared, registry }
    }

    /// The handles that belong to no pool. Keep them; this is no hot path.
    pub fn gateway(&self) -> Arc<GatewayMetrics> {
        Arc::clone(&self.shared.gateway)
    }

    /// A pool's handles, made on first use. Keep them; this takes a lock.
    pub fn pool(&self, name: &str) -> Arc<PoolMetrics> {
        let mut pools = self.shared.pools.write();
        let new = || Arc::new(PoolMetrics::new(Arc::clone(&self.shared.gateway)));
        Arc::clone(pools.entry(name.into()).or_insert_with(new))
    }

    /// Forgets the pools that `keep` refuses, with their series: for a configuration that dropped
    /// them.
    pub fn retain_pools(&self, keep: impl Fn(&str) -> bool) {
        self.shared.pools.write().retain(|name, _| keep(name));
    }

    /// A listener's handles, made on first use. Keep them; this takes a lock.
    pub fn listener(&self, name: &str) -> Arc<ListenerMetrics> {
        let mut listeners = self.shared.listeners.write();
        Arc::clone(listeners.entry(name.into()).or_default())
    }

    /// A key's handles, made on first use. Keep them; this takes a lock.
    pub fn key(&self, name: &str) -> Arc<KeyMetrics> {
        Arc::clone(self.shared.keys.write().entry(name.into()).or_default())
    }

    /// Forgets the keys that `keep` refuses, with their series.
    pub fn retain_keys(&self, keep: impl Fn(&str) -> bool) {
        self.shared.keys.write().retain(|name, _| keep(name));
    }

    /// Counts a request for `model` that a rewrite has chosen `target` for; these are names of the configuration. A rewrite
    /// that has left meanwhile counts nothing: its series would never go.
    pub fn rewritten(&self, rewrite: &Arc<str>, model: &str, target: &Arc<str>) {
        let known = self.shared.rewrites.read();
        let own = known.get(rewrite).and_then(|own| own.targets.get(target)?.get(model));
        if let Some(counter) = own {
            counter.inc();
            return;
        }
        drop(known);
        let mut rewrites = self.shared.rewrites.write();
        let Some(own) = rewrites.get_mut(rewrite) else { return };
        own.targets.entry(Arc::clone(target)).or_default().entry(model.into()).or_default().inc();
    }

    /// Forgets all rewrites but these, with their series.
    pub fn set_rewrites<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        let mut rewrites = self.shared.rewrites.write();
        let mut before = std::mem::take(&mut *rewrites);
        for name in names {
            let (name, own) = before
                .remove_entry(name)
                .unwrap_or_else(|| (name.into(), RewriteMetrics::default()));
            rewrites.insert(name, own);
        }
    }

    /// The exposition.
    ///
    /// # Errors
    /// Only if the encoder itself fails; a `String` takes everything.
    pub fn encode(&self, format: Format) -> Result<String, fmt::Error> {
        let mut page = String::new();
        match format {
            Format::OpenMetrics => text::encode(&mut page, &self.registry)?,
            Format::Text => prometheus_text::encode(&mut page, &self.registry)?,
        }
        Ok(page)
    }
}

#[derive(Debug)]
struct Shared {
    build: Build,
    gateway: Arc<GatewayMetrics>,
    pools: RwLock<BTreeMap<Arc<str>, Arc<PoolMetrics>>>,
    listeners: RwLock<BTreeMap<Arc<str>, Arc<ListenerMetrics>>>,
    keys: RwLock<BTreeMap<Arc<str>, Arc<KeyMetrics>>>,
    rewrites: RwLock<BTreeMap<Arc<str>, RewriteMetrics>>,
}

/// What is counted of one rewrite: by its target, then by the model that was asked for.
#[derive(Debug, Default)]
struct RewriteMetrics {
    targets: BTreeMap<Arc<str>, BTreeMap<Box<str>, Counter>>,
}

#[cfg(test)]
pub(crate) mod tests;
