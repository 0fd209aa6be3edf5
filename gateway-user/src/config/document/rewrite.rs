//! Models that are served as others, and how important requests are: in the form of the inference extension's objects
//! InferenceModelRewrite and InferenceObjective, whose specifications stand here as they are.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Requests for some models are served by others: canaries, and adapters under one name. The client sees the name that it
/// asked for.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelRewrite {
    /// Its name in metrics.
    #[schemars(length(min = 1, max = 253), extend("format" = "name", "x-example" = "canary"))]
    pub name: String,
    /// The pool whose requests it concerns, and where its targets are served, also those that only the pods know. Without
    /// it, it concerns every request, and a target leads where its name does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_ref: Option<PoolRef>,
    /// Of several that match, one with `matches` comes before one without, then the first entry of `modelRewrites`, then
    /// the first of its rules.
    #[schemars(length(max = 100))]
    pub rules: Vec<RewriteRule>,
}

/// A pool.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PoolRef {
    /// The API group of the pool's kind; not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub group: Option<String>,
    /// The pool's kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<PoolKind>,
    /// The name of a scheduler.
    #[schemars(length(min = 1, max = 253), extend("format" = "name"))]
    pub name: String,
}

/// What a pool can be.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub enum PoolKind {
    /// The only kind.
    InferencePool,
}

/// What is served instead of what.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewriteRule {
    /// Models, any of which is meant. Without one, every model is, and a request that names none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub matches: Vec<RewriteMatch>,
    /// What is served, one of them for each request by lot.
    #[schemars(length(min = 1, max = 100))]
    pub targets: Vec<RewriteTarget>,
}

/// Which requests.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewriteMatch {
    /// The model that they name.
    pub model: ModelMatch,
}

/// A model, as clients name it.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelMatch {
    /// How it is compared.
    #[serde(default, rename = "type")]
    pub kind: MatchType,
    /// Its name.
    #[schemars(length(min = 1, max = 1024), extend("format" = "model"))]
    pub value: String,
}

/// How a model's name is compared.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub enum MatchType {
    /// It is the name.
    #[default]
    Exact,
}

/// A model that may be served.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewriteTarget {
    /// Its name.
    #[schemars(length(min = 1, max = 1024), extend("format" = "model"))]
    pub model_rewrite: String,
    /// Its share, in parts of all weights of the rule. Where no target has one, all have the same share; where some have,
    /// those without have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000))]
    pub weight: Option<u32>,
}

/// How important requests are that name it in the header `x-gateway-inference-objective` or
/// `x-llm-d-inference-objective`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Objective {
    /// The name that requests give.
    #[schemars(length(min = 1, max = 253), extend("format" = "name", "x-example" = "interactive"))]
    pub name: String,
    /// The pool whose requests may name it; those of every pool by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_ref: Option<PoolRef>,
    /// Of requests that wait for a place, those of a higher priority have theirs first. Those below 0 do not wait: they are
    /// told 429 while all pods are full, or while others wait. Requests without an objective have 0.
    #[serde(default)]
    #[schemars(range(min = -2147483648, max = 2147483647))]
    pub priority: i32,
}
