//! The effective configuration as a document with every default, which reads back as the same
//! configuration.

use super::document::{
    Admin, ApiVersion, AppProtocol, Bbr, Certificate, Debugging, Exchange, FlowPath, HealthCheck,
    InferenceGatewayConfig, Kernel, Kind, KvEvents, Limits, Listener, Metadata, Metrics, Mode, Pod,
    PodTls, RetryBudget, SaturationLimits, Scheduler, Spec, Tls, VirtualAddress,
};
use super::units::{Block, KubeDuration, Size};
use super::{Config, EventSource, MetricsSource, ModelRewrite, Objective, auth, policy};
use crate::schedule::Policy;

impl Config {
    /// The configuration as YAML.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        let options = serde_saphyr::ser_options! { compact_list_indent: true };
        let document = self.to_document();
        // A string takes whatever is written, and the document has no type that YAML lacks.
        serde_saphyr::to_string_with_options(&document, options).unwrap_or_default()
    }

    /// The configuration as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(&self.to_document()).unwrap_or_default()
    }

    fn to_document(&self) -> InferenceGatewayConfig {
        InferenceGatewayConfig {
            api_version: ApiVersion::Sluice,
            kind: Kind::InferenceGatewayConfig,
            metadata: Metadata { name: self.name.clone(), ..Metadata::default() },
            spec: self.to_spec(),
            status: None,
        }
    }

    fn to_spec(&self) -> Spec {
        Spec {
            listeners: self.listeners.iter().map(listener).collect(),
            admin: Admin { address: self.admin.ip(), port: self.admin.port() },
            bbr: Bbr { max_request_body_bytes: size(self.limits.max_body_bytes), ..Bbr::default() },
            kernel: Kernel {
                steering: self.kernel.steering,
                log_level: self.kernel.log,
                paths: [
                    self.kernel.local.then_some(FlowPath::Local),
                    self.kernel.splice.then_some(FlowPath::Splice),
                    Some(FlowPath::Relay),
                ]
                .into_iter()
                .flatten()
                .collect(),
            },
            limits: limits(&self.limits),
            tls: self.tls.as_ref().map(tls),
            exchange: self.exchange.as_ref().map(exchange),
            auth: self.auth.as_ref().map(auth::to_document),
            workers: count(self.workers),
            access_log: self.access_log,
            include_usage: self.include_usage,
            debug: Debugging { explain_header: self.explain_header },
            schedulers: self.schedulers.iter().map(scheduler).collect(),
            profiles: (self.profiles.iter())
                .map(|(name, policy)| policy::to_profile(name, policy))
                .collect(),
            model_rewrites: self.model_rewrites.iter().map(ModelRewrite::to_document).collect(),
            objectives: self.objectives.iter().map(Objective::to_document).collect(),
            ..Spec::default()
        }
    }
}

fn listener(listener: &super::Listener) -> Listener {
    let super::Listener { name, address, port, virtual_addresses, protocol } = listener;
    Listener {
        name: Some(name.clone()),
        address: *address,
        port: *port,
        protocol: *protocol,
        virtual_addresses: virtual_addresses.iter().map(virtual_address).collect(),
    }
}

fn virtual_address(address: &super::VirtualAddress) -> VirtualAddress {
    let super::VirtualAddress { address, prefix, port } = *address;
    VirtualAddress { address: Block { address, prefix }, port }
}

fn limits(limits: &super::Limits) -> Limits {
    Limits {
        max_connections: count(limits.max_connections),
        max_streams_per_connection: limits.max_streams,
        max_connections_per_address: limits.max_connections_per_address,
        max_head_bytes: size(limits.max_head_bytes),
        max_buffered_bytes: size(limits.max_buffered_bytes),
        max_decompressed_bytes: size(limits.max_decompressed_bytes),
        header_timeout: KubeDuration(limits.header_timeout),
        body_timeout: KubeDuration(limits.body_timeout),
        idle_timeout: KubeDuration(limits.idle_timeout),
        connect_timeout: KubeDuration(limits.connect_timeout),
        first_byte_timeout: KubeDuration(limits.first_byte_timeout),
        stream_idle_timeout: KubeDuration(limits.stream_idle_timeout),
        keep_alive_comments: KubeDuration(limits.keep_alive_comments.unwrap_or_default()),
        max_attempts: limits.max_attempts,
        retry_budget: RetryBudget {
            ratio: limits.retry_budget.ratio,
            min_per_second: limits.retry_budget.min_per_second,
        },
        drain_timeout: KubeDuration(limits.drain_timeout),
    }
}

fn tls(tls: &super::Tls) -> Tls {
    let super::Tls { certificates, client_ca_file } = tls.clone();
    let of = |of: super::Certificate| Certificate {
        certificate_file: of.certificate_file,
        key_file: of.key_file,
    };
    let certificates = certificates.into_iter().map(of).collect();
    Tls { acm_arn: None, certificates, client_ca_file }
}

fn exchange(exchange: &super::Exchange) -> Exchange {
    let super::Exchange { address, peers, key_file } = exchange;
    Exchange {
        address: address.ip(),
        port: address.port(),
        peers: peers.iter().map(ToString::to_string).collect(),
        key_file: key_file.clone(),
    }
}

fn scheduler(scheduler: &super::Scheduler) -> Scheduler {
    let weights = match (&scheduler.profile, &scheduler.policy) {
        (None, Policy::Scorers { scorers, .. }) => Some(policy::to_weights(scorers).0),
        _ => None,
    };
    let super::Saturation { queue_depth, kv_cache: kv_cache_full, in_flight } =
        scheduler.saturation;
    Scheduler {
        name: scheduler.name.clone(),
        model_name: scheduler.model_name.clone(),
        aliases: scheduler.aliases.clone(),
        lora_adapters: scheduler.lora_adapters.clone(),
        pods: scheduler.pods.iter().map(pod).collect(),
        // Every pod names its own.
        target_port: Scheduler::port(),
        app_protocol: match scheduler.tls {
            None => AppProtocol::Http,
            Some(_) => AppProtocol::Https,
        },
        health_check: scheduler.health.as_ref().map(health_check),
        tls: scheduler.tls.as_ref().map(pod_tls),
        metrics: metrics(&scheduler.metrics),
        kv_events: scheduler.kv_events.as_ref().map(|events| {
            let EventSource { port, topic, replay_port } = events.clone();
            KvEvents { port, topic, replay_port }
        }),
        api_key_file: scheduler.api_key_file.clone(),
        limits: scheduler.limits,
        profile: scheduler.profile.clone(),
        weights,
        picker_config: None,
        saturation: SaturationLimits {
            queue_depth,
            kv_cache: kv_cache_full,
            in_flight,
            expected_wait: KubeDuration(scheduler.max_wait),
            wait: KubeDuration(scheduler.admission_wait),
        },
        mode: if scheduler.direct.is_some() { Mode::Connection } else { Mode::Request },
        listener: scheduler.direct.clone(),
        model_selector: None,
        scheduler: None,
        engine_type: None,
        config_map_ref: None,
        replicas: None,
        env: None,
        env_from: None,
        route_timeout: None,
        log_level: None,
    }
}

fn pod(pod: &super::Pod) -> Pod {
    let super::Pod { name, address, uid: _, gpu, context_range } = pod;
    Pod {
        address: address.ip(),
        port: Some(address.port()),
        name: Some(name.clone()),
        gpu: gpu.clone(),
        context_length_range: context_range.map(|(least, most)| format!("{least}-{most}")),
    }
}

fn health_check(check: &super::HealthCheck) -> HealthCheck {
    let super::HealthCheck { path, interval, timeout, unhealthy_after, healthy_after } =
        check.clone();
    HealthCheck {
        path,
        interval: KubeDuration(interval),
        timeout: KubeDuration(timeout),
        unhealthy_after,
        healthy_after,
    }
}

fn pod_tls(tls: &super::PodTls) -> PodTls {
    let super::PodTls { ca_file, server_name, insecure_skip_verify, certificate } = tls.clone();
    let (certificate_file, key_file) =
        certificate.map(|of| (of.certificate_file, of.key_file)).unzip();
    PodTls { ca_file, server_name, insecure_skip_verify, certificate_file, key_file }
}

fn metrics(metrics: &MetricsSource) -> Metrics {
    Metrics {
        port: metrics.port,
        path: metrics.path.clone(),
        busy_interval: KubeDuration(metrics.busy_interval),
        idle_interval: KubeDuration(metrics.idle_interval),
        stale_after: KubeDuration(metrics.stale_after),
    }
}

fn size(bytes: usize) -> Size {
    Size(u64::try_from(bytes).unwrap_or(u64::MAX))
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
