//! Writes every metric when it is scraped: counters from their handles, pods from a view taken
//! then.
//!
//! One collector and no families, so that a pool that leaves the configuration takes its series
//! with it, and the order of the exposition is the same each time.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabel, EncodeLabelSet, EncodeMetric, LabelSetEncoder, MetricEncoder,
};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::ConstGauge;

use super::descriptor::{self as metric, Descriptor};
use super::labels::{ByLabel, Label};
use super::pool::ModelMetrics;
use super::{GatewayMetrics, PoolMetrics, Shared, TlsMetrics};
use crate::schedule::{PodView, Signals};

/// One pod as it is now.
#[derive(Clone, Debug)]
pub struct PodSample {
    /// Its pool's name.
    pub pool: Arc<str>,
    /// Its name.
    pub pod: Arc<str>,
    /// Of a pool that takes whole connections: how many were given to it, and are open.
    pub direct: Option<(u64, u32)>,
    /// What the scheduler sees of it.
    pub view: PodView,
    /// Signals older than this are unknown, and so left out.
    pub stale_after: Duration,
}

/// All that a scrape reads.
pub(super) struct Exposition {
    pub(super) shared: Arc<Shared>,
    pub(super) pods: Box<dyn Fn() -> Vec<PodSample> + Send + Sync>,
}

impl Debug for Exposition {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Exposition").field("shared", &self.shared).finish_non_exhaustive()
    }
}

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = Writer(&mut encoder);
        let pods = (self.pods)();
        pod_level(&mut writer, &pods)?;
        pool_level(&mut writer, &self.shared.pools.read())?;
        gateway_level(&mut writer, &self.shared.gateway, mean_kv(&pods))?;
        rewrites(&mut writer, &self.shared)?;
        keys(&mut writer, &self.shared)?;
        steering(&mut writer, &self.shared)?;
        direct(&mut writer, &pods, &self.shared.pools.read())?;
        events(&mut writer, &self.shared.pools.read())?;
        flow(&mut writer, &self.shared.gateway)?;
        exchange(&mut writer, &self.shared)?;
        tls(&mut writer, self.shared.gateway.tls.get())?;
        let build = &self.shared.build;
        writer
            .family(&metric::BUILD)?
            .add(&[build.version, build.revision], &ConstGauge::new(1_u32))
    }
}

fn pod_level(writer: &mut Writer<'_, '_>, pods: &[PodSample]) -> fmt::Result {
    writer.pods(&metric::POD_KV, pods, |pod| pod.signals().kv_usage)?;
    writer.pods(&metric::POD_WAITING, pods, |pod| pod.signals().waiting)?;
    writer.pods(&metric::POD_RUNNING, pods, |pod| pod.signals().running)?;
    writer.pods(&metric::POD_IN_FLIGHT, pods, |pod| Some(pod.view.in_flight))?;
    writer.pods(&metric::POD_ADAPTERS, pods, |pod| pod.signals().adapters_active)?;
    writer.pods(&metric::POD_AGE, pods, |pod| pod.view.age.map(|age| age.as_secs_f64()))?;
    writer.pods(&metric::POD_READY, pods, |pod| Some(u32::from(pod.view.ready)))
}

fn pool_level(
    writer: &mut Writer<'_, '_>,
    pools: &BTreeMap<Arc<str>, Arc<PoolMetrics>>,
) -> fmt::Result {
    writer.each_by(&metric::POOL_REQUESTS, pools, |pool| &pool.requests)?;
    let mut family = writer.family(&metric::POOL_MODEL_REQUESTS)?;
    for (name, pool) in pools {
        for (model, counted) in &*pool.models.read() {
            family.add(&[name, model], &counted.requests)?;
        }
        family.add(&[name, OTHER_MODELS], &pool.other_models.requests)?;
    }
    let mut family = writer.family(&metric::POOL_MODEL_TOKENS)?;
    for (name, pool) in pools {
        let mut add = |model: &str, counted: &ModelMetrics| {
            counted
                .tokens
                .iter()
                .try_for_each(|(kind, counter)| family.add(&[name, model, kind.as_str()], counter))
        };
        for (model, counted) in &*pool.models.read() {
            add(model, counted)?;
        }
        add(OTHER_MODELS, &pool.other_models)?;
    }
    writer.each_by(&metric::POOL_REJECTED, pools, |pool| &pool.rejected)?;
    writer.each_by(&metric::POOL_LIMITED, pools, |pool| &pool.limited)?;
    writer.each(&metric::POOL_RETRIES, pools, |pool| &pool.retries)?;
    writer.each(&metric::POOL_RETRIES_REFUSED, pools, |pool| &pool.retries_refused)?;
    writer.each(&metric::POOL_QUEUED, pools, |pool| &pool.queued)?;
    writer.each(&metric::POOL_DURATION, pools, |pool| &pool.duration)?;
    writer.each(&metric::POOL_TTFT, pools, |pool| &pool.ttft)?;
    writer.each(&metric::POOL_TPOT, pools, |pool| &pool.tpot)?;
    writer.each(&metric::POOL_PROMPT_TOKENS, pools, |pool| &pool.prompt_tokens)?;
    writer.each(&metric::POOL_CACHED_TOKENS, pools, |pool| &pool.cached_tokens)?;
    writer.each(&metric::POOL_GENERATION_TOKENS, pools, |pool| &pool.generation_tokens)?;
    writer.each(&metric::POOL_REQUEST_PROMPT_TOKENS, pools, |pool| &pool.request_prompt_tokens)?;
    writer.each(&metric::POOL_REQUEST_GENERATION_TOKENS, pools, |pool| {
        &pool.request_generation_tokens
    })?;
    writer.each(&metric::POOL_PREFIX_QUERIED, pools, |pool| &pool.prefix_queried)?;
    writer.each(&metric::POOL_PREFIX_CACHED, pools, |pool| &pool.prefix_cached)?;
    let usage: Vec<_> =
        pools.iter().filter_map(|(name, pool)| Some((name, pool.prefix_usage()?))).collect();
    let mut family = writer.family(&metric::POOL_PREFIX_BLOCKS)?;
    for (name, usage) in &usage {
        family.add(&[name], &ConstGauge::new(usage.entries as u64))?;
    }
    let mut family = writer.family(&metric::POOL_PREFIX_BYTES)?;
    for (name, usage) in &usage {
        family.add(&[name], &ConstGauge::new(usage.bytes as u64))?;
    }
    writer.each_by(&metric::POOL_SCRAPE_FAILURES, pools, |pool| &pool.scrape_failures)?;
    writer.each(&metric::POOL_HEALTH_CHECK_FAILURES, pools, |pool| &pool.health_check_failures)
}

fn gateway_level(
    writer: &mut Writer<'_, '_>,
    gateway: &GatewayMetrics,
    mean_kv: Option<f64>,
) -> fmt::Result {
    writer.one(&metric::GATEWAY_KV, mean_kv.map(ConstGauge::new).as_ref())?;
    let errors = gateway.error_ratio().map(ConstGauge::new);
    writer.one(&metric::GATEWAY_ERRORS, errors.as_ref())?;
    writer.one(&metric::GATEWAY_CONNECTIONS, Some(&gateway.client_connections))?;
    writer.one(&metric::GATEWAY_BUFFERED, Some(&gateway.buffered_body_bytes))?;
    writer.one(&metric::GATEWAY_OVERHEAD, Some(&gateway.overhead))?;
    writer.family(&metric::GATEWAY_REFUSED)?.add_each(None, &gateway.refused)?;
    let dropped = ConstCounter::new(crate::account::log::dropped());
    writer.one(&metric::GATEWAY_LOG_DROPPED, Some(&dropped))
}

fn rewrites(writer: &mut Writer<'_, '_>, shared: &Shared) -> fmt::Result {
    let mut family = writer.family(&metric::MODEL_REWRITES)?;
    for (rewrite, own) in &*shared.rewrites.read() {
        for (target, models) in &own.targets {
            for (model, counter) in models {
                family.add(&[rewrite, model, target], counter)?;
            }
        }
    }
    Ok(())
}

fn keys(writer: &mut Writer<'_, '_>, shared: &Shared) -> fmt::Result {
    let gateway = &shared.gateway;
    writer.family(&metric::CONFIG_RELOADS)?.add_each(None, &gateway.config_reloads)?;
    writer.one(&metric::CONFIG_PENDING, Some(&gateway.config_pending))?;
    writer.one(&metric::CLUSTER_AGE, gateway.cluster_age.get())?;
    let auth = shared.gateway.auth.get();
    let mut family = writer.family(&metric::AUTH_KEYS)?;
    for (source, known) in auth.into_iter().flat_map(|auth| auth.known.iter()) {
        family.add(&[source.as_str()], known)?;
    }
    let mut family = writer.family(&metric::AUTH_RELOADS)?;
    for (source, results) in auth.into_iter().flat_map(|auth| auth.reloads.iter()) {
        family.add_each(Some(source.as_str()), results)?;
    }
    let keys = shared.keys.read();
    let mut family = writer.family(&metric::KEY_REQUESTS)?;
    keys.iter().try_for_each(|(name, key)| family.add_each(Some(name), &key.requests))?;
    let mut family = writer.family(&metric::KEY_LIMITED)?;
    keys.iter().try_for_each(|(name, key)| family.add_each(Some(name), &key.limited))?;
    let mut family = writer.family(&metric::KEY_IN_FLIGHT)?;
    keys.iter().try_for_each(|(name, key)| family.add(&[name], &key.in_flight))?;
    let mut family = writer.family(&metric::KEY_PROMPT_TOKENS)?;
    keys.iter().try_for_each(|(name, key)| family.add(&[name], &key.prompt_tokens))?;
    let mut family = writer.family(&metric::KEY_GENERATION_TOKENS)?;
    keys.iter().try_for_each(|(name, key)| family.add(&[name], &key.generation_tokens))
}

fn steering(writer: &mut Writer<'_, '_>, shared: &Shared) -> fmt::Result {
    let gateway = &shared.gateway;
    let mut family = writer.family(&metric::STEERING_CONNECTIONS)?;
    for (name, listener) in &*shared.listeners.read() {
        family.add_each(Some(name), &listener.connections)?;
    }
    writer.one(&metric::STEERING_DROPPED, Some(&gateway.steering_dropped))?;
    writer.one(&metric::STEERING_RETRIES, Some(&gateway.steering_retries))?;
    writer.one(&metric::STEERING_ON, Some(&gateway.steering_enabled))
}

fn direct(
    writer: &mut Writer<'_, '_>,
    pods: &[PodSample],
    pools: &BTreeMap<Arc<str>, Arc<PoolMetrics>>,
) -> fmt::Result {
    let mut family = writer.family(&metric::DIRECT_CONNECTIONS)?;
    for pod in pods {
        if let Some((given, _)) = pod.direct {
            family.add(&[&pod.pool, &pod.pod], &ConstCounter::new(given))?;
        }
    }
    writer.pods(&metric::DIRECT_OPEN, pods, |pod| pod.direct.map(|(_, open)| open))?;
    let direct = || pools.iter().filter_map(|(name, pool)| Some((name, pool.direct.get()?)));
    let mut family = writer.family(&metric::DIRECT_FALLBACKS)?;
    direct().try_for_each(|(name, direct)| family.add(&[name], &direct.fallbacks))?;
    let mut family = writer.family(&metric::DIRECT_STALE)?;
    direct().try_for_each(|(name, direct)| family.add(&[name], &direct.stale))?;
    let mut family = writer.family(&metric::DIRECT_RETRIES)?;
    direct().try_for_each(|(name, direct)| family.add(&[name], &direct.retries))
}

fn events(
    writer: &mut Writer<'_, '_>,
    pools: &BTreeMap<Arc<str>, Arc<PoolMetrics>>,
) -> fmt::Result {
    let events = || pools.iter().filter_map(|(name, pool)| Some((name, pool.events.get()?)));
    let mut family = writer.family(&metric::EVENTS_KNOWN)?;
    for (name, events) in events() {
        for (pod, &known) in &*events.known.read() {
            family.add(&[name, pod], &ConstGauge::new(u32::from(known)))?;
        }
    }
    let mut family = writer.family(&metric::EVENTS_BYTES)?;
    events()
        .try_for_each(|(name, events)| family.add(&[name], &ConstGauge::new(events.bytes())))?;
    let mut family = writer.family(&metric::EVENTS)?;
    events().try_for_each(|(name, events)| family.add(&[name], &events.events))?;
    let mut family = writer.family(&metric::EVENTS_LOST)?;
    events().try_for_each(|(name, events)| family.add(&[name], &events.lost))?;
    let mut family = writer.family(&metric::EVENTS_MALFORMED)?;
    events().try_for_each(|(name, events)| family.add(&[name], &events.malformed))?;
    let mut family = writer.family(&metric::EVENTS_PROMPTS)?;
    events().try_for_each(|(name, events)| family.add_each(Some(name), &events.prompts))
}

fn flow(writer: &mut Writer<'_, '_>, gateway: &GatewayMetrics) -> fmt::Result {
    let mut family = writer.family(&metric::FLOW_RESPONSES)?;
    for (path, reasons) in gateway.responses.iter() {
        family.add_each(Some(path.as_str()), reasons)?;
    }
    writer.family(&metric::FLOW_BYTES)?.add_each(None, &gateway.bytes)
}

fn exchange(writer: &mut Writer<'_, '_>, shared: &Shared) -> fmt::Result {
    let mut family = writer.family(&metric::EXCHANGE_PEERS)?;
    for (name, pool) in &*shared.pools.read() {
        if let Some(peers) = pool.peers.get() {
            family.add(&[name], peers)?;
        }
    }
    let mut family = writer.family(&metric::EXCHANGE_DATAGRAMS)?;
    let counted = shared.gateway.datagrams.get();
    counted.map_or(Ok(()), |counted| family.add_each(None, counted))
}

fn tls(writer: &mut Writer<'_, '_>, tls: Option<&TlsMetrics>) -> fmt::Result {
    let mut family = writer.family(&metric::TLS_HANDSHAKES)?;
    tls.map_or(Ok(()), |tls| family.add_each(None, &tls.handshakes))?;
    let mut family = writer.family(&metric::TLS_RELOADS)?;
    tls.map_or(Ok(()), |tls| family.add_each(None, &tls.reloads))?;
    let mut family = writer.family(&metric::TLS_EXPIRY)?;
    let expiries = tls.map(|tls| tls.expiries.read());
    expiries
        .iter()
        .flat_map(|all| all.iter())
        .try_for_each(|expiry| family.add(&[&expiry.file], &ConstGauge::new(expiry.at)))
}

/// Over the pods whose usage is known; `None` without any.
fn mean_kv(pods: &[PodSample]) -> Option<f64> {
    let known = pods.iter().filter_map(|pod| pod.signals().kv_usage);
    let (sum, count) =
        known.fold((0.0, 0_u32), |(sum, count), usage| (sum + f64::from(usage), count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

impl PodSample {
    fn signals(&self) -> Signals {
        self.view.believed(self.stale_after).unwrap_or_default()
    }
}

/// Writes metrics one after the other.
struct Writer<'a, 'e>(&'a mut DescriptorEncoder<'e>);

impl Writer<'_, '_> {
    fn describe(
        &mut self,
        descriptor: &'static Descriptor,
    ) -> Result<MetricEncoder<'_>, fmt::Error> {
        self.0.encode_descriptor(descriptor.name, descriptor.help, None, descriptor.kind)
    }

    fn family(&mut self, descriptor: &'static Descriptor) -> Result<Family<'_>, fmt::Error> {
        Ok(Family { encoder: self.describe(descriptor)?, labels: descriptor.labels })
    }

    /// A metric without labels; the name alone when its value is unknown.
    fn one(
        &mut self,
        descriptor: &'static Descriptor,
        metric: Option<&impl EncodeMetric>,
    ) -> fmt::Result {
        let encoder = self.describe(descriptor)?;
        metric.map_or(Ok(()), |metric| metric.encode(encoder))
    }

    /// A gauge of each pod that has a value.
    fn pods<V: Into<f64>>(
        &mut self,
        descriptor: &'static Descriptor,
        pods: &[PodSample],
        value: impl Fn(&PodSample) -> Option<V>,
    ) -> fmt::Result {
        let mut family = self.family(descriptor)?;
        for pod in pods {
            if let Some(value) = value(pod) {
                family.add(&[&pod.pool, &pod.pod], &ConstGauge::new(value.into()))?;
            }
        }
        Ok(())
    }

    /// A metric of each pool.
    fn each<M: EncodeMetric>(
        &mut self,
        descriptor: &'static Descriptor,
        pools: &BTreeMap<Arc<str>, Arc<PoolMetrics>>,
        metric: impl Fn(&PoolMetrics) -> &M,
    ) -> fmt::Result {
        let mut family = self.family(descriptor)?;
        pools.iter().try_for_each(|(name, pool)| family.add(&[name], metric(pool)))
    }

    /// Counters of each pool, one for each value of a label.
    fn each_by<L: Label>(
        &mut self,
        descriptor: &'static Descriptor,
        pools: &BTreeMap<Arc<str>, Arc<PoolMetrics>>,
        counters: impl Fn(&PoolMetrics) -> &ByLabel<L, Counter>,
    ) -> fmt::Result {
        let mut family = self.family(descriptor)?;
        pools.iter().try_for_each(|(name, pool)| family.add_each(Some(name), counters(pool)))
    }
}

/// Writes the series of one metric.
struct Family<'a> {
    encoder: MetricEncoder<'a>,
    labels: &'static [&'static str],
}

impl Family<'_> {
    fn add(&mut self, values: &[&str], metric: &impl EncodeMetric) -> fmt::Result {
        let series = Series { labels: self.labels, values };
        metric.encode(self.encoder.encode_family(&series)?)
    }

    /// One series for each value of the last label.
    fn add_each<L: Label>(
        &mut self,
        first: Option<&str>,
        counters: &ByLabel<L, Counter>,
    ) -> fmt::Result {
        counters.iter().try_for_each(|(label, counter)| match first {
            Some(first) => self.add(&[first, label.as_str()], counter),
            None => self.add(&[label.as_str()], counter),
        })
    }
}

/// The labels of one series.
struct Series<'a> {
    labels: &'static [&'static str],
    values: &'a [&'a str],
}

impl EncodeLabelSet for Series<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        debug_assert_eq!(self.labels.len(), self.values.len(), "a value for each label");
        self.labels
            .iter()
            .zip(self.values)
            .try_for_each(|(&label, &value)| (label, value).encode(encoder.encode_label()))
    }
}

/// In place of a model that the configuration does not name.
const OTHER_MODELS: &str = "other";
