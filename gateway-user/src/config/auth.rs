//! Who may send requests, and how much: the effective settings, and the document that means the same.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::document;
use super::units::KubeDuration;

/// Who may send requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Auth {
    /// Everyone, and that is meant.
    pub off: bool,
    /// API keys, if they let in.
    pub api_keys: Option<ApiKeys>,
    /// The issuer whose tokens let in, if one does.
    pub jwt: Option<Provider>,
}

/// API keys.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiKeys {
    /// A file with the keys' hashes, or a folder of such files.
    pub file: String,
    /// What each key may use for which the file says nothing else.
    pub limits: RateLimits,
}

/// An issuer of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Provider {
    /// Its name.
    pub name: String,
    /// What a token's `iss` must be.
    pub issuer: String,
    /// Where its signing keys are.
    pub keys: KeySource,
    /// What a token's `aud` may be; anything if there is none.
    pub audiences: Vec<String>,
    /// Claims that a token must have, all of them.
    pub required_claims: Vec<Claim>,
}

/// Where signing keys are.
#[derive(Clone, Debug, PartialEq)]
pub enum KeySource {
    /// In a file.
    File(String),
    /// In the configuration.
    Inline(String),
    /// Elsewhere.
    Remote {
        /// The address.
        uri: String,
        /// A file with the certificates that vouch for it; the system's otherwise.
        ca_file: Option<String>,
        /// How long they are used before they are fetched again. Default 5 min.
        cache: Duration,
    },
}

/// A claim that a token must have.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// Its name.
    pub name: String,
    /// It is a list of texts, and not one.
    pub is_list: bool,
    /// The values, any of which will do.
    pub values: Vec<String>,
}

/// How much may be used. What is left out is not limited.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RateLimits {
    /// Requests per minute; a minute's worth may come at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000000))]
    pub requests_per_minute: Option<u32>,
    /// Tokens per minute, of prompts and answers. A request is let in by the gateway's guess and its `max_tokens`, and
    /// counts in the end as what the pod says.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000000000_i64))]
    pub tokens_per_minute: Option<u64>,
    /// Requests at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000000))]
    pub concurrent_requests: Option<u32>,
}

impl RateLimits {
    /// Nothing is limited.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// With `other` for what is left out.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            requests_per_minute: self.requests_per_minute.or(other.requests_per_minute),
            tokens_per_minute: self.tokens_per_minute.or(other.tokens_per_minute),
            concurrent_requests: self.concurrent_requests.or(other.concurrent_requests),
        }
    }

    /// What is out of bounds, where that has not been checked by the schema.
    pub(crate) fn wrong(&self) -> Option<&'static str> {
        let &Self { requests_per_minute, tokens_per_minute, concurrent_requests } = self;
        let counts = [requests_per_minute.map(u64::from), concurrent_requests.map(u64::from)];
        let fits = |most: u64| move |value: u64| !(1..=most).contains(&value);
        if counts.into_iter().flatten().any(fits(1_000_000_000))
            || tokens_per_minute.is_some_and(fits(1_000_000_000_000))
        {
            return Some("a limit is 0 or too large");
        }
        None
    }
}

/// As a document.
pub(super) fn to_document(auth: &Auth) -> document::Auth {
    let Auth { off, api_keys, jwt } = auth;
    document::Auth {
        mode: off.then_some(document::AuthMode::Off),
        api_keys: api_keys.as_ref().map(|ApiKeys { file, limits }| document::ApiKeys {
            file: file.clone(),
            limits: *limits,
        }),
        jwt: jwt.as_ref().map(|provider| document::Jwt { provider: to_provider(provider) }),
    }
}

fn to_provider(provider: &Provider) -> document::Provider {
    let Provider { name, issuer, keys, audiences, required_claims } = provider;
    let local = match keys {
        KeySource::File(file) => {
            Some(document::LocalJwks { file: Some(file.clone()), inline: None })
        }
        KeySource::Inline(text) => {
            Some(document::LocalJwks { inline: Some(text.clone()), file: None })
        }
        KeySource::Remote { .. } => None,
    };
    let remote = match keys {
        KeySource::Remote { uri, ca_file, cache } => Some(document::RemoteJwks {
            uri: uri.clone(),
            cache_duration: KubeDuration(*cache),
            ca_file: ca_file.clone(),
        }),
        _ => None,
    };
    let claim = |Claim { name, is_list, values }: &Claim| document::Claim {
        name: name.clone(),
        value_type: Some(match is_list {
            true => document::ClaimType::StringArray,
            false => document::ClaimType::String,
        }),
        values: values.clone(),
    };
    document::Provider {
        name: name.clone(),
        issuer: issuer.clone(),
        remote_jwks: remote,
        local_jwks: local,
        audiences: audiences.clone(),
        required_claims: required_claims.iter().map(claim).collect(),
    }
}
