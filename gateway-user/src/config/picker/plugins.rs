//! The reference picker's plugins: what each is here, and which parameters it takes.

use serde_json::{Map, Value as Json, json};

use crate::schedule::{Picker, Scorer};

/// A type of plugin.
#[derive(Debug)]
pub(super) struct Plugin {
    /// Its type, and names that it had before.
    names: &'static [&'static str],
    pub(super) role: Role,
    parameters: Parameters,
}

/// What a plugin is here.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// A scorer, made from its parameters.
    Scorer(fn(&Json) -> Scorer),
    /// A scorer that counts nothing here; the text says why.
    NoScorer(&'static str),
    /// A picker.
    Picker(Picker),
    /// Thresholds for pods that take no more.
    Detector,
    /// It has no effect, and the text says why; without text, as what it does goes without saying.
    Nothing(&'static str),
    /// It must not be ignored; the text says why.
    Refused(&'static str),
}

#[derive(Debug)]
enum Parameters {
    /// These and no others.
    Known(&'static [Parameter]),
    /// Whatever stands there, as none has an effect.
    Any,
}

/// A parameter: its name, its schema, and why it has no effect if it has none.
type Parameter = (&'static str, Form, &'static str);

#[derive(Clone, Copy, Debug)]
enum Form {
    Count,
    Share,
    Number,
    Flag,
    Text,
    /// A map of anything.
    Map,
    /// A count of which 1 is what happens anyway.
    One,
    /// What is counted, of which requests is what happens anyway.
    Mode,
}

/// The plugin of this type.
pub(super) fn find(kind: &str) -> Option<&'static Plugin> {
    PLUGINS.iter().find(|plugin| plugin.names.contains(&kind))
}

/// Every type.
pub(super) fn names() -> Vec<&'static str> {
    PLUGINS.iter().flat_map(|plugin| plugin.names.iter().copied()).collect()
}

/// What a scorer prefers.
pub(super) fn of_scorer(scorer: Scorer) -> String {
    match scorer {
        Scorer::ActiveRequest { idle_threshold, .. } => {
            format!(
                "few requests of this gateway in flight, up to {idle_threshold} being as good as none"
            )
        }
        Scorer::ContextLengthAware => "pods that are meant for prompts of this length".into(),
        Scorer::KvCacheUtilization => "free KV cache".into(),
        Scorer::LoadAware { threshold } => {
            format!("a short queue in the engine; {threshold} is full")
        }
        Scorer::LoraAffinity => "the request's adapter is resident".into(),
        Scorer::NoHitLru => {
            "for a prompt that no pod has cached, long without such a prompt".into()
        }
        Scorer::PrefixCache { match_length_weight, .. } if match_length_weight > 0.0 => format!(
            "the prompt's beginning is cached, {match_length_weight} of it by length and the rest by share"
        ),
        Scorer::PrefixCache { .. } => "the prompt's beginning is cached, by its share".into(),
        Scorer::Queue => "a short queue in the engine, against the other pods'".into(),
        Scorer::RunningRequests => "few requests running, against the other pods".into(),
        Scorer::SessionAffinity => "the request's session was served there".into(),
        Scorer::TokenLoad { threshold } => {
            format!("few tokens of this gateway in flight; {threshold} is full")
        }
    }
}

/// How a picker picks.
pub(super) fn of_picker(picker: Picker) -> &'static str {
    match picker {
        Picker::MaxScore => "the highest score is taken, equals by lot",
        Picker::Random => "any pod is taken, by lot, whatever its score",
        Picker::WeightedRandom => "a pod is taken by lot, in which each counts for its score",
    }
}

/// What counts when a file names no plugin.
pub(super) const DEFAULT: [(&str, f64); 3] =
    [("queue-scorer", 2.0), ("kv-cache-utilization-scorer", 2.0), ("prefix-cache-scorer", 3.0)];

impl Plugin {
    /// The schema of its parameters.
    pub(super) fn schema(&self) -> Json {
        let Parameters::Known(known) = &self.parameters else { return json!({"type": "object"}) };
        let properties: Map<String, Json> = known
            .iter()
            .map(|(name, form, note)| {
                let mut schema = form.schema();
                if let Some(schema) = schema.as_object_mut()
                    && !note.is_empty()
                {
                    schema.insert("x-note".into(), (*note).into());
                }
                ((*name).to_owned(), schema)
            })
            .collect();
        json!({"type": "object", "properties": properties})
    }
}

impl Form {
    fn schema(self) -> Json {
        match self {
            Self::Count => json!({"type": "integer", "minimum": 0, "maximum": i64::MAX}),
            Self::Share => json!({"type": "number", "minimum": 0, "maximum": 1}),
            Self::Number => json!({"type": "number", "minimum": 0, "maximum": f64::MAX}),
            Self::Flag => json!({"type": "boolean"}),
            Self::Map => json!({"type": "object"}),
            Self::Text => json!({"type": "string", "maxLength": 253}),
            Self::One => json!({"type": "integer", "minimum": 1, "maximum": 1000, "x-unless": 1}),
            Self::Mode => {
                json!({"type": "string", "enum": ["requests", "tokens", "hybrid"], "x-unless": "requests"})
            }
        }
    }
}

fn count(parameters: &Json, name: &str, default: u32) -> u32 {
    let number = parameters.get(name).and_then(Json::as_u64);
    number.map_or(default, |number| u32::try_from(number).unwrap_or(u32::MAX))
}

fn share(parameters: &Json, name: &str, default: f32) -> f32 {
    parameters.get(name).and_then(Json::as_f64).map_or(default, |number| number as f32)
}

fn prefix_cache(parameters: &Json) -> Scorer {
    Scorer::PrefixCache {
        match_length_weight: share(parameters, "matchLengthWeight", 0.0),
        match_length_scale: count(parameters, "matchLengthScaleTokens", 8192).max(1),
    }
}

fn active_request(parameters: &Json) -> Scorer {
    Scorer::ActiveRequest {
        idle_threshold: count(parameters, "idleThreshold", 0),
        max_busy_score: share(parameters, "maxBusyScore", 1.0),
    }
}

fn load_aware(parameters: &Json) -> Scorer {
    Scorer::LoadAware { threshold: count(parameters, "threshold", 128).max(1) }
}

fn token_load(parameters: &Json) -> Scorer {
    let threshold = count(parameters, "queueThresholdTokens", 4_194_304).max(1);
    Scorer::TokenLoad { threshold }
}

const fn plugin(names: &'static [&'static str], role: Role, parameters: Parameters) -> Plugin {
    Plugin { names, role, parameters }
}

const NONE: Parameters = Parameters::Known(&[]);

const OWN_INDEX: &str = "has no effect: the gateway sizes its prefix index by each pod's KV cache";
const OWN_EVENTS: &str = "has no effect: the scheduler's kvEvents says where pods publish them, and without \
    it what a pod has cached is guessed from what was sent there";
const NO_TOKENS: &str = "has no effect: the gateway has no tokenizer, and finds its own blocks in what kvEvents \
    brings";
const ALWAYS_GUESSED: &str =
    "has no effect: a prompt counts as cached from when it is sent, with kvEvents or without";
const ONE_POD: &str = "has no effect: when a pod fails, the next is picked anew";
const OWN_SESSIONS: &str = "has no effect: the gateway has its own way to know a session";
const OWN_SIGNALS: &str = "has no effect: the gateway reads pods' metrics itself";
pub(super) const OWN_STALE: &str =
    "has no effect: metrics.staleAfter says when signals are too old";
const NO_QUEUES: &str = "has no effect: nothing is queued by priority";
const NO_PRIORITY: &str = "has no effect: no request is refused for its priority";
const WHOLE: &str = "has no effect: each listed pod takes whole requests, prefill and decode";
const NO_SCORE: &str = "is not supported, and counts nothing";
const NO_SPLIT: &str = "is not supported: prefill and decode are not split between pods, so that requests \
    would go to pods that serve one part only";
const NO_CHOICE: &str = "is not supported: requests would go to pods that it leaves out";
const OWN_LIMITS: &str = "has no effect: a pool's saturation says when a pod takes no more";
const NO_STICKING: &str =
    "has no effect: pods are compared by their scores, and none is left out for it";

const PICKER: Parameters = Parameters::Known(&[("maxNumOfEndpoints", Form::One, ONE_POD)]);

static PLUGINS: [Plugin; 31] = [
    plugin(&["queue-scorer"], Role::Scorer(|_| Scorer::Queue), NONE),
    plugin(
        &["kv-cache-utilization-scorer", "kv-cache-scorer"],
        Role::Scorer(|_| Scorer::KvCacheUtilization),
        NONE,
    ),
    plugin(&["running-requests-size-scorer"], Role::Scorer(|_| Scorer::RunningRequests), NONE),
    plugin(&["lora-affinity-scorer"], Role::Scorer(|_| Scorer::LoraAffinity), NONE),
    plugin(
        &["prefix-cache-scorer", "prefix-cache"],
        Role::Scorer(prefix_cache),
        Parameters::Known(&[
            ("matchLengthWeight", Form::Share, ""),
            ("matchLengthScaleTokens", Form::Count, ""),
            ("prefixMatchInfoProducerName", Form::Text, OWN_INDEX),
            ("autoTune", Form::Flag, OWN_INDEX),
            ("blockSize", Form::Count, OWN_INDEX),
            ("blockSizeTokens", Form::Count, OWN_INDEX),
            ("hashBlockSize", Form::Count, OWN_INDEX),
            ("maxPrefixBlocksToMatch", Form::Count, OWN_INDEX),
            ("maxPrefixTokensToMatch", Form::Count, OWN_INDEX),
            ("lruCapacityPerServer", Form::Count, OWN_INDEX),
        ]),
    ),
    plugin(
        &["precise-prefix-cache-scorer"],
        Role::Scorer(prefix_cache),
        Parameters::Known(&[
            ("kvEventsConfig", Form::Map, OWN_EVENTS),
            ("tokenProcessorConfig", Form::Map, NO_TOKENS),
            ("indexerConfig", Form::Map, NO_TOKENS),
            ("speculativeIndexing", Form::Flag, ALWAYS_GUESSED),
            ("speculativeTTL", Form::Text, ALWAYS_GUESSED),
            ("prefixMatchInfoProducerName", Form::Text, OWN_INDEX),
        ]),
    ),
    plugin(
        &["token-load-scorer"],
        Role::Scorer(token_load),
        Parameters::Known(&[("queueThresholdTokens", Form::Count, "")]),
    ),
    plugin(
        &["active-request-scorer"],
        Role::Scorer(active_request),
        Parameters::Known(&[
            ("idleThreshold", Form::Count, ""),
            ("maxBusyScore", Form::Share, ""),
            ("requestTimeout", Form::Text, "has no effect: a request counts until it has ended"),
        ]),
    ),
    plugin(
        &["load-aware-scorer"],
        Role::Scorer(load_aware),
        Parameters::Known(&[("threshold", Form::Count, "")]),
    ),
    plugin(
        &["session-affinity-scorer"],
        Role::Scorer(|_| Scorer::SessionAffinity),
        Parameters::Known(&[
            ("strategy", Form::Text, OWN_SESSIONS),
            ("headerName", Form::Text, OWN_SESSIONS),
            ("evictionTtlSeconds", Form::Count, OWN_SESSIONS),
            ("profileName", Form::Text, OWN_SESSIONS),
        ]),
    ),
    plugin(
        &["no-hit-lru-scorer"],
        Role::Scorer(|_| Scorer::NoHitLru),
        Parameters::Known(&[
            ("lruSize", Form::Count, "has no effect: each pod's last cold request is known"),
            ("prefixPluginType", Form::Text, OWN_INDEX),
            ("prefixPluginName", Form::Text, OWN_INDEX),
            ("prefixMatchInfoProducerName", Form::Text, OWN_INDEX),
        ]),
    ),
    plugin(
        &["context-length-aware", "context-length-aware-scorer"],
        Role::Scorer(|_| Scorer::ContextLengthAware),
        Parameters::Known(&[
            (
                "label",
                Form::Text,
                "has no effect: a pod's range is not read from a label of choice",
            ),
            ("enableFiltering", Form::Flag, NO_STICKING),
        ]),
    ),
    plugin(
        &[
            "latency-scorer",
            "topology-affinity-scorer",
            "header-label-affinity",
            "endpoint-attribute-scorer",
            "mm-cache-affinity",
            "mm-cache-affinity-scorer",
        ],
        Role::NoScorer(NO_SCORE),
        Parameters::Any,
    ),
    plugin(&["max-score-picker", "max-score"], Role::Picker(Picker::MaxScore), PICKER),
    plugin(&["random-picker", "random"], Role::Picker(Picker::Random), PICKER),
    plugin(&["weighted-random-picker"], Role::Picker(Picker::WeightedRandom), PICKER),
    plugin(
        &["utilization-detector"],
        Role::Detector,
        Parameters::Known(&[
            ("queueDepthThreshold", Form::Number, ""),
            ("kvCacheUtilThreshold", Form::Number, ""),
            ("metricsStalenessThreshold", Form::Text, OWN_STALE),
            ("headroom", Form::Number, "has no effect: the threshold is the limit"),
        ]),
    ),
    plugin(
        &["concurrency-detector"],
        Role::Detector,
        Parameters::Known(&[
            ("maxConcurrency", Form::Count, ""),
            (
                "concurrencyMode",
                Form::Mode,
                "is not supported: only requests are limited, and with tokens nothing is",
            ),
            ("maxTokenConcurrency", Form::Count, "has no effect: tokens are not limited"),
            ("headroom", Form::Number, "has no effect: the threshold is the limit"),
        ]),
    ),
    plugin(&["single-profile-handler", "single-profile"], Role::Nothing(""), NONE),
    plugin(&["decode-filter"], Role::Nothing(WHOLE), Parameters::Any),
    plugin(
        &["prefill-header-handler", "disagg-headers-handler"],
        Role::Nothing(WHOLE),
        Parameters::Any,
    ),
    plugin(
        &[
            "approx-prefix-cache-producer",
            "precise-prefix-cache-producer",
            "burst-prefix-cache-producer",
            "token-producer",
            "tokenizer",
        ],
        Role::Nothing(OWN_INDEX),
        Parameters::Any,
    ),
    plugin(
        &[
            "inflight-load-producer",
            "metrics-data-source",
            "core-metrics-extractor",
            "models-data-source",
            "models-extractor",
            "endpoint-notification-source",
            "dcgm-data-source",
            "dcgm-extractor",
            "predicted-latency-producer",
            "mm-encoder-cache-producer",
        ],
        Role::Nothing(OWN_SIGNALS),
        Parameters::Any,
    ),
    plugin(
        &["session-id-producer", "agent-identity", "agent-identity-producer"],
        Role::Nothing(OWN_SESSIONS),
        Parameters::Any,
    ),
    plugin(
        &["openai-parser", "passthrough-parser", "vllmgrpc-parser"],
        Role::Nothing("has no effect: requests are read as OpenAI's API has them"),
        Parameters::Any,
    ),
    plugin(
        &[
            "round-robin-fairness-policy",
            "global-strict-fairness-policy",
            "program-aware-fairness-policy",
            "fcfs-ordering-policy",
            "edf-ordering-policy",
            "slo-deadline-ordering-policy",
            "static-usage-limit-policy",
            "priority-holdback-policy",
            "soft-reflective-ceiling-policy",
        ],
        Role::Nothing(NO_QUEUES),
        Parameters::Any,
    ),
    plugin(
        &["probabilistic-admitter", "latency-slo-admitter"],
        Role::Nothing(NO_PRIORITY),
        Parameters::Any,
    ),
    plugin(&["utilization-filter"], Role::Nothing(OWN_LIMITS), Parameters::Any),
    plugin(
        &["prefix-cache-affinity-filter", "session-affinity-filter", "slo-headroom-tier-filter"],
        Role::Nothing(NO_STICKING),
        Parameters::Any,
    ),
    plugin(
        &[
            "prefill-filter",
            "encode-filter",
            "pd-profile-handler",
            "disagg-profile-handler",
            "prefix-based-pd-decider",
            "always-disagg-pd-decider",
            "always-disagg-multimodal-decider",
            "data-parallel-profile-handler",
        ],
        Role::Refused(NO_SPLIT),
        Parameters::Any,
    ),
    plugin(
        &[
            "label-selector-filter",
            "by-label-selector",
            "endpoint-attribute-filter",
            "topology-affinity-filter",
            "header-profile-handler",
        ],
        Role::Refused(NO_CHOICE),
        Parameters::Any,
    ),
];
