//! How a pool's pods compare, and when they take no more: weights, profiles, saturation.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::config::units::KubeDuration;
use crate::schedule::{Picker, Preset};

/// What each scorer counts for; 0 turns it off. Each gives a pod 0 to 1.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WeightMap {
    /// A short queue in the engine, against the other pods'.
    #[serde(serialize_with = "number")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub queue: f64,
    /// Free KV cache.
    #[serde(serialize_with = "number")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub kv_cache: f64,
    /// The prompt's beginning is in its prefix cache.
    #[serde(serialize_with = "number")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub prefix: f64,
    /// Few requests running in the engine, against the other pods.
    #[serde(serialize_with = "number")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub running_requests: f64,
    /// Few requests that this gateway has in flight there.
    #[serde(serialize_with = "number")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub active_request: f64,
    /// The request's adapter is resident there.
    #[serde(serialize_with = "number")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub lora_affinity: f64,
    /// For a prompt that no pod has cached: long without such a prompt. Not with `scheduler: epp`.
    #[serde(serialize_with = "number")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub lru: f64,
    /// Few tokens that this gateway has in flight there.
    #[serde(serialize_with = "number")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub token_load: f64,
    /// A short queue in the engine, whatever the other pods' are.
    #[serde(serialize_with = "number")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub load_aware: f64,
    /// The request's session was served there.
    #[serde(serialize_with = "number")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub session: f64,
    /// The prompt's length is what the pod is meant for.
    #[serde(serialize_with = "number")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub context_length: f64,
    /// The managed product's predicted latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 0, max = 2147483647),
        extend("x-unless" = 0, "x-note" = "has no effect: profile latency predicts it, instead of weights")
    )]
    pub predicted_latency: Option<u32>,
}

impl Default for WeightMap {
    fn default() -> Self {
        Self { queue: 2.0, kv_cache: 2.0, prefix: 3.0, running_requests: 1.0, ..Self::with_own() }
    }
}

impl WeightMap {
    /// No scorer at all.
    pub const NONE: Self = Self {
        queue: 0.0,
        kv_cache: 0.0,
        prefix: 0.0,
        running_requests: 0.0,
        active_request: 0.0,
        lora_affinity: 0.0,
        lru: 0.0,
        token_load: 0.0,
        load_aware: 0.0,
        session: 0.0,
        context_length: 0.0,
        predicted_latency: None,
    };

    /// The defaults that the managed product does not have.
    fn with_own() -> Self {
        Self { active_request: 2.0, lora_affinity: 4.0, ..Self::NONE }
    }
}

/// Parameters of scorers that have some.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ScorerParameters {
    /// Of `activeRequest`.
    pub active_request: ActiveRequestParameters,
    /// Of `loadAware`.
    pub load_aware: LoadAwareParameters,
    /// Of `prefix`.
    pub prefix: PrefixParameters,
    /// Of `tokenLoad`.
    pub token_load: TokenLoadParameters,
}

/// Parameters of the scorer `activeRequest`.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ActiveRequestParameters {
    /// Up to so many requests are as good as none.
    #[schemars(range(min = 0, max = 1000000))]
    pub idle_threshold: u32,
    /// The most that a pod above that may have.
    #[serde(serialize_with = "number")]
    #[schemars(range(min = 0, max = 1))]
    pub max_busy_score: f64,
}

impl Default for ActiveRequestParameters {
    fn default() -> Self {
        Self { idle_threshold: 0, max_busy_score: 1.0 }
    }
}

/// Parameters of the scorer `loadAware`.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LoadAwareParameters {
    /// A queue this long has 0.
    #[schemars(range(min = 1, max = 1000000))]
    pub threshold: u32,
}

impl Default for LoadAwareParameters {
    fn default() -> Self {
        Self { threshold: 128 }
    }
}

/// Parameters of the scorer `prefix`.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PrefixParameters {
    /// How much the length of the match counts; the rest goes by its share of the prompt.
    #[serde(serialize_with = "number")]
    #[schemars(range(min = 0, max = 1))]
    pub match_length_weight: f64,
    /// A match of so many tokens is as good as any longer one.
    #[schemars(range(min = 1, max = 16777216))]
    pub match_length_scale_tokens: u32,
}

impl Default for PrefixParameters {
    fn default() -> Self {
        Self { match_length_weight: 0.0, match_length_scale_tokens: 8192 }
    }
}

/// Parameters of the scorer `tokenLoad`.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TokenLoadParameters {
    /// So many tokens in flight have 0.
    #[schemars(range(min = 1, max = 2147483647))]
    pub queue_threshold_tokens: u32,
}

impl Default for TokenLoadParameters {
    fn default() -> Self {
        Self { queue_threshold_tokens: 4_194_304 }
    }
}

/// What the parts of a request's expected cost, in seconds, count for against each other.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Cost {
    /// Time to its first token.
    #[serde(serialize_with = "number")]
    #[schemars(range(min = 0, max = 1000))]
    pub first_token: f64,
    /// Time of all its further tokens together.
    #[serde(serialize_with = "number")]
    #[schemars(range(min = 0, max = 1000))]
    pub tokens: f64,
    /// Time by which it delays the requests that run there, all together.
    #[serde(serialize_with = "number")]
    #[schemars(range(min = 0, max = 1000))]
    pub others: f64,
    /// Pods whose cost is above the least by at most this share of it are equal, and one of them is taken by lot.
    #[serde(serialize_with = "number")]
    #[schemars(range(min = 0, max = 1))]
    pub margin: f64,
}

impl Default for Cost {
    fn default() -> Self {
        Preset::LATENCY.into()
    }
}

impl From<Preset> for Cost {
    fn from(preset: Preset) -> Self {
        let Preset { first, token, others, margin } = preset;
        Self {
            first_token: exact(first),
            tokens: exact(token),
            others: exact(others),
            margin: exact(margin),
        }
    }
}

/// A named way to compare pods: by expected cost, or by weights.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Profile {
    /// Its name.
    #[schemars(length(min = 1, max = 63), extend("format" = "name"))]
    pub name: String,
    /// By what a request is expected to cost at a pod, as the profiles `latency` and `throughput` do. One that
    /// is left out counts as in `latency`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// By a weighted sum of scores; not with `cost`. One that is left out keeps its default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<WeightMap>,
    /// With `weights`: their parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<ScorerParameters>,
    /// With `weights`: how scores lead to a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "max-score"))]
    pub picker: Option<PickerName>,
}

/// How scores lead to a pod.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PickerName {
    /// The highest score, equals by lot.
    MaxScore,
    /// Any pod, whatever its score.
    Random,
    /// A lot in which each pod counts for its score.
    WeightedRandom,
}

impl From<PickerName> for Picker {
    fn from(name: PickerName) -> Self {
        match name {
            PickerName::MaxScore => Self::MaxScore,
            PickerName::Random => Self::Random,
            PickerName::WeightedRandom => Self::WeightedRandom,
        }
    }
}

impl From<Picker> for PickerName {
    fn from(picker: Picker) -> Self {
        match picker {
            Picker::MaxScore => Self::MaxScore,
            Picker::Random => Self::Random,
            Picker::WeightedRandom => Self::WeightedRandom,
        }
    }
}

/// When a pod takes no more requests: at any of these. When none of a pool's takes more, it answers 429.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SaturationLimits {
    /// Requests waiting in the engine.
    #[schemars(range(min = 1, max = 1000000))]
    pub queue_depth: u32,
    /// KV cache in use, as a share; 1 is never by KV cache alone.
    #[schemars(range(min = 0.01, max = 1.0))]
    pub kv_cache: f32,
    /// Requests that this gateway has in flight there.
    #[schemars(range(min = 1, max = 1000000))]
    pub in_flight: u32,
    /// How long the next request is expected to wait there before the pod begins with it.
    #[schemars(extend("x-minimum" = "10ms", "x-maximum" = "24h"))]
    pub expected_wait: KubeDuration,
    /// How long a request waits in the gateway for a pod that takes it before it gets 429; 0s: not at all.
    #[schemars(extend("x-minimum" = "0s", "x-maximum" = "1m"))]
    pub wait: KubeDuration,
}

impl Default for SaturationLimits {
    fn default() -> Self {
        Self {
            queue_depth: 128,
            kv_cache: 1.0,
            in_flight: 1024,
            expected_wait: KubeDuration(Duration::from_secs(120)),
            wait: KubeDuration(Duration::ZERO),
        }
    }
}

/// The number that somebody wrote who meant this one: 0.05 and not 0.05000000074505806.
pub(in crate::config) fn exact(number: f32) -> f64 {
    number.to_string().parse().unwrap_or_else(|_| number.into())
}

/// Whole numbers without a fraction.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
fn number<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(number) {
        serializer.serialize_u64(*number as u64)
    } else {
        serializer.serialize_f64(*number)
    }
}
