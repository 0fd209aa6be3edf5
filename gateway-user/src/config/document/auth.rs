//! Who may send requests. `jwt.provider` is the managed product's, with its names and bounds.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::RateLimits;
use crate::config::units::KubeDuration;

/// Who may send requests. With both `apiKeys` and `jwt`, either lets a request in. What is neither is 401, whatever
/// the path, but for `/health` and `/ping`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Auth {
    /// `off` lets everyone in who reaches the port, as does leaving out `auth`, and says that this is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<AuthMode>,
    /// API keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_keys: Option<ApiKeys>,
    /// JSON web tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt: Option<Jwt>,
}

/// Whether requests are checked.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthMode {
    /// Everyone is let in.
    Off,
    /// Only who shows a key or a token.
    #[default]
    Required,
}

/// API keys.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApiKeys {
    /// A file with the keys' hashes, as `sluice key` prints them, or a folder of such files. Read again when it changes.
    #[schemars(length(min = 2, max = 4096), extend("format" = "path", "x-example" = "/etc/sluice/keys.yaml"))]
    pub file: String,
    /// What each key may use for which the file says nothing else; nothing is limited by default.
    #[serde(default, skip_serializing_if = "RateLimits::is_none")]
    pub limits: RateLimits,
}

/// JSON web tokens.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Jwt {
    /// Who issues them.
    pub provider: Provider,
}

/// An issuer of tokens.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Provider {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// What a token's `iss` must be.
    #[schemars(length(max = 2048), extend("format" = "https"))]
    pub issuer: String,
    /// Where the signing keys are. Either this or `localJWKS`.
    #[serde(rename = "remoteJWKS", default, skip_serializing_if = "Option::is_none")]
    pub remote_jwks: Option<RemoteJwks>,
    /// The signing keys themselves.
    #[serde(rename = "localJWKS", default, skip_serializing_if = "Option::is_none")]
    pub local_jwks: Option<LocalJwks>,
    /// What a token's `aud` may be. At least one of this and `requiredClaims` must be set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 1024)))]
    pub audiences: Vec<String>,
    /// Claims that a token must have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub required_claims: Vec<Claim>,
}

/// Where signing keys are.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoteJwks {
    /// The address of the key set; over `http://`, whoever is on the way can let anyone in.
    #[schemars(length(max = 2048), extend("format" = "url"))]
    pub uri: String,
    /// How long the key set is used before it is fetched again. A token that names an unknown key has it fetched at once.
    #[serde(default = "RemoteJwks::cache")]
    #[schemars(extend("x-minimum" = "1s", "x-maximum" = "24h"))]
    pub cache_duration: KubeDuration,
    /// A file with the certificates that vouch for the server; the system's by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 4096), extend("format" = "path"))]
    pub ca_file: Option<String>,
}

impl RemoteJwks {
    fn cache() -> KubeDuration {
        KubeDuration(Duration::from_secs(300))
    }
}

/// Signing keys that are not fetched.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LocalJwks {
    /// The key set's JSON. Either this or `file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 65536))]
    pub inline: Option<String>,
    /// A file that holds it. Read again when it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 4096), extend("format" = "path"))]
    pub file: Option<String>,
}

/// A claim that a token must have.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Claim {
    /// The claim's name; of one within another, both with a dot between them.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// What the claim holds; `String` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_type: Option<ClaimType>,
    /// The values, any of which will do.
    #[schemars(length(min = 1, max = 128), inner(length(min = 1, max = 1024)))]
    pub values: Vec<String>,
}

/// What a claim holds.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub enum ClaimType {
    /// One text.
    String,
    /// A list of texts.
    StringArray,
}
