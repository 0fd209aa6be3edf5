//! Every metric, declared once: name, type, labels, and the doc comment that is its HELP text.
//!
//! Unknown is absent and never 0: a pod whose KV usage is not known has no such sample.

use prometheus_client::metrics::MetricType;

/// What a metric is.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// Without the `sluice_` in front and, for counters, the `_total` behind.
    pub(super) name: &'static str,
    /// One sentence without its full stop.
    pub help: &'static str,
    pub(super) kind: MetricType,
    /// In the order of their values.
    pub labels: &'static [&'static str],
}

impl Descriptor {
    /// As queries name it.
    pub fn name(&self) -> String {
        let suffix = if self.kind == MetricType::Counter { "_total" } else { "" };
        format!("{PREFIX}_{}{suffix}", self.name)
    }

    /// Its type, as docs name it.
    pub fn kind(&self) -> &'static str {
        match self.kind {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
            MetricType::Info | MetricType::Unknown => "unknown",
        }
    }
}

/// In front of every name.
pub(super) const PREFIX: &str = "sluice";

macro_rules! describe {
    ($(
        #[doc = $help:literal]
        $constant:ident: $kind:ident $name:literal [$($label:literal),*];
    )+) => {
        $(
            #[doc = $help]
            pub(super) const $constant: Descriptor = Descriptor {
                name: $name,
                help: sentence($help),
                kind: MetricType::$kind,
                labels: &[$($label),*],
            };
        )+

        /// Every metric, in the order of the exposition and of the docs.
        pub const ALL: &[Descriptor] = &[$($constant),+];
    };
}

describe! {
    /// Share of the pod's KV cache in use, 0 to 1; of several engines, the fullest.
    POD_KV: Gauge "pod_kv_cache_usage_ratio" ["pool", "pod"];
    /// Requests that wait in the pod's engine.
    POD_WAITING: Gauge "pod_requests_waiting" ["pool", "pod"];
    /// Requests that the pod's engine runs.
    POD_RUNNING: Gauge "pod_requests_running" ["pool", "pod"];
    /// Requests that this gateway has in flight at the pod.
    POD_IN_FLIGHT: Gauge "pod_requests_in_flight" ["pool", "pod"];
    /// LoRA adapters with live requests at the pod.
    POD_ADAPTERS: Gauge "pod_adapters_active" ["pool", "pod"];
    /// Time since the pod last told its load.
    POD_AGE: Gauge "pod_signal_age_seconds" ["pool", "pod"];
    /// 1 while the pod may be given requests, else 0.
    POD_READY: Gauge "pod_ready" ["pool", "pod"];

    /// Requests finished, by how they ended.
    POOL_REQUESTS: Counter "pool_requests" ["pool", "outcome"];
    /// Requests that this model served; "other" is any name that is not configured.
    POOL_MODEL_REQUESTS: Counter "pool_model_requests" ["pool", "model"];
    /// Tokens of requests that this model served, as pods counted them, by kind.
    POOL_MODEL_TOKENS: Counter "pool_model_tokens" ["pool", "model", "kind"];
    /// Requests that the pool sent away, by why.
    POOL_REJECTED: Counter "pool_rejected" ["pool", "reason"];
    /// Requests refused as the model's own limit was used up, by which.
    POOL_LIMITED: Counter "pool_limited" ["pool", "reason"];
    /// Further pods tried after one failed.
    POOL_RETRIES: Counter "pool_retries" ["pool"];
    /// Requests that were not sent to another pod after one had failed them, as limits.retryBudget was used up.
    POOL_RETRIES_REFUSED: Counter "pool_retries_refused" ["pool"];
    /// Requests that wait for a place at a pod, where the pool lets them.
    POOL_QUEUED: Gauge "pool_requests_queued" ["pool"];
    /// From the end of the request's head to the answer's last byte, of requests that ended well.
    POOL_DURATION: Histogram "pool_request_duration_seconds" ["pool"];
    /// From the end of the request's head to the first token (TTFT).
    POOL_TTFT: Histogram "pool_time_to_first_token_seconds" ["pool"];
    /// From the first token to the last, for each token after the first (TPOT).
    POOL_TPOT: Histogram "pool_time_per_output_token_seconds" ["pool"];
    /// Prompt tokens, as pods counted them.
    POOL_PROMPT_TOKENS: Counter "pool_prompt_tokens" ["pool"];
    /// Prompt tokens that pods had in their prefix caches, as they counted them.
    POOL_CACHED_TOKENS: Counter "pool_cached_prompt_tokens" ["pool"];
    /// Tokens generated, as pods counted them, or chunks of a stream that does not tell.
    POOL_GENERATION_TOKENS: Counter "pool_generation_tokens" ["pool"];
    /// Prompt tokens of one request.
    POOL_REQUEST_PROMPT_TOKENS: Histogram "pool_request_prompt_tokens" ["pool"];
    /// Tokens generated for one request.
    POOL_REQUEST_GENERATION_TOKENS: Histogram "pool_request_generation_tokens" ["pool"];
    /// Prompt tokens of requests that were given to a pod, as the gateway guesses them.
    POOL_PREFIX_QUERIED: Counter "pool_prefix_queried_tokens" ["pool"];
    /// Of these, tokens that the pod is thought to have had in its prefix cache.
    POOL_PREFIX_CACHED: Counter "pool_prefix_cached_tokens" ["pool"];
    /// Blocks in the prefix index; a block that two pods have counts twice.
    POOL_PREFIX_BLOCKS: Gauge "pool_prefix_index_blocks" ["pool"];
    /// Memory that the prefix index takes.
    POOL_PREFIX_BYTES: Gauge "pool_prefix_index_bytes" ["pool"];
    /// Scrapes of pods' metrics that told nothing, by why.
    POOL_SCRAPE_FAILURES: Counter "pool_scrape_failures" ["pool", "reason"];
    /// Health checks of pods that failed, where healthCheck wants them.
    POOL_HEALTH_CHECK_FAILURES: Counter "pool_health_check_failures" ["pool"];

    /// Mean share of KV cache in use over the pods that tell it, 0 to 1.
    GATEWAY_KV: Gauge "gateway_kv_cache_usage_ratio" [];
    /// Share of the last minute's requests that a pod or the gateway failed, 0 to 1.
    GATEWAY_ERRORS: Gauge "gateway_error_ratio" [];
    /// Open client connections.
    GATEWAY_CONNECTIONS: Gauge "gateway_client_connections" [];
    /// Request bodies held in memory.
    GATEWAY_BUFFERED: Gauge "gateway_buffered_body_bytes" [];
    /// Time that the gateway itself added to one request.
    GATEWAY_OVERHEAD: Histogram "gateway_overhead_seconds" [];
    /// Requests refused before they came to a pool, by why.
    GATEWAY_REFUSED: Counter "gateway_refused" ["reason"];
    /// Lines of the access log that were dropped as whoever reads it is too slow.
    GATEWAY_LOG_DROPPED: Counter "gateway_access_log_dropped" [];

    /// Requests for this model that another one was chosen for; "*" is any, of a rule for all.
    MODEL_REWRITES: Counter "model_rewrites" ["rewrite", "model", "target"];

    /// Times that the configuration was read anew, by what came of it.
    CONFIG_RELOADS: Counter "config_reloads" ["result"];
    /// 1 while the configuration as it was read last is not or not wholly in force, else 0.
    CONFIG_PENDING: Gauge "config_pending" [];
    /// Seconds since the API server of Kubernetes was last heard; without a change that is once a minute.
    CLUSTER_AGE: Gauge "cluster_age_seconds" [];

    /// Keys in force, by what they are from.
    AUTH_KEYS: Gauge "auth_keys" ["source"];
    /// Times that keys were read anew, by what came of it.
    AUTH_RELOADS: Counter "auth_reloads" ["source", "result"];
    /// Requests with this key that are over, by how they ended.
    KEY_REQUESTS: Counter "key_requests" ["key", "outcome"];
    /// Requests refused as the key's limit was used up, by which.
    KEY_LIMITED: Counter "key_limited" ["key", "reason"];
    /// Requests with this key that run.
    KEY_IN_FLIGHT: Gauge "key_requests_in_flight" ["key"];
    /// Prompt tokens of this key's requests, as pods counted them.
    KEY_PROMPT_TOKENS: Counter "key_prompt_tokens" ["key"];
    /// Tokens generated for this key's requests, as pods counted them, or chunks of a stream that does not tell.
    KEY_GENERATION_TOKENS: Counter "key_generation_tokens" ["key"];

    /// Client connections, by how they came to a worker.
    STEERING_CONNECTIONS: Counter "steering_connections" ["listener", "path"];
    /// Connections that the kernel program dropped for want of a listener to give them to.
    STEERING_DROPPED: Counter "steering_dropped" [];
    /// Workers' sockets that the kernel program passed over, as they listened no more.
    STEERING_RETRIES: Counter "steering_retries" [];
    /// 1 while the kernel steers connections, else 0.
    STEERING_ON: Gauge "steering_enabled" [];

    /// Connections that the kernel gave to the pod's own socket.
    DIRECT_CONNECTIONS: Counter "direct_connections" ["pool", "pod"];
    /// Open connections of these.
    DIRECT_OPEN: Gauge "direct_connections_open" ["pool", "pod"];
    /// Connections to a pool's own listener that the gateway took itself, as no pod was fit.
    DIRECT_FALLBACKS: Counter "direct_fallbacks" ["pool"];
    /// Connections that were given without regard to load, as the gateway had not published for 3 s.
    DIRECT_STALE: Counter "direct_stale" ["pool"];
    /// Pods' sockets that the kernel passed over, as they were not there.
    DIRECT_RETRIES: Counter "direct_retries" ["pool"];

    /// 1 while all that the pod's prefix cache holds is known from its own events, else 0.
    EVENTS_KNOWN: Gauge "kv_events_complete" ["pool", "pod"];
    /// Memory for what is known of the pods' prefix caches from their events, in bytes.
    EVENTS_BYTES: Gauge "kv_events_bytes" ["pool"];
    /// Changes of pods' prefix caches that they told.
    EVENTS: Counter "kv_events" ["pool"];
    /// Messages with such events that never came.
    EVENTS_LOST: Counter "kv_events_lost_messages" ["pool"];
    /// Messages that could not be read.
    EVENTS_MALFORMED: Counter "kv_events_malformed_messages" ["pool"];
    /// Answered prompts that were looked for among what the pod had stored meanwhile.
    EVENTS_PROMPTS: Counter "kv_events_prompts" ["pool", "result"];

    /// Answers, by what carried the body and why that.
    FLOW_RESPONSES: Counter "flow_responses" ["path", "reason"];
    /// Bytes of answers' bodies with their framing, by what carried them.
    FLOW_BYTES: Counter "flow_bytes" ["path"];

    /// Gateways with this pool that are heard.
    EXCHANGE_PEERS: Gauge "exchange_peers" ["pool"];
    /// Datagrams of the exchange between gateways, by what became of them.
    EXCHANGE_DATAGRAMS: Counter "exchange_datagrams" ["result"];

    /// TLS handshakes of clients, by how they went.
    TLS_HANDSHAKES: Counter "tls_handshakes" ["result"];
    /// Changes of the files with certificates and keys, by what became of them.
    TLS_RELOADS: Counter "tls_reloads" ["result"];
    /// When the certificate in this file, which is in use, ends: seconds since 1970.
    TLS_EXPIRY: Gauge "tls_certificate_expiry_timestamp_seconds" ["certificate"];

    /// Always 1; its labels say what is running.
    BUILD: Gauge "build_info" ["version", "revision"];
}

/// A doc comment's text as prometheus-client wants it, which adds the full stop itself.
const fn sentence(doc: &'static str) -> &'static str {
    let (_, text) = doc.split_at(1);
    text.split_at(text.len() - 1).0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_help_is_a_sentence() {
        let names: BTreeSet<String> = ALL.iter().map(Descriptor::name).collect();
        assert_eq!(names.len(), ALL.len());
        for metric in ALL {
            assert!(!metric.help.starts_with(' ') && !metric.help.ends_with('.'), "{metric:?}");
        }
    }
}
