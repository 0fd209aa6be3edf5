//! JSON web tokens: the issuer's key set, and whether a token is one of the issuer's for this gateway. Pure: the time is
//! passed in.
//!
//! The issuer's keys say which algorithms they are for, and the token only which of these it uses: a token cannot have
//! itself checked by `none`, nor have a public key taken for a shared secret. Everything that is not asked for and found
//! right is refused, in this order: form, key, signature, time, issuer, audience, claims.

use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse,
};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde_json::Value;

use crate::config::{Claim, Provider};

/// The keys of an issuer that tokens can be checked with.
#[derive(Clone)]
pub struct KeySet {
    keys: Vec<Key>,
}

#[derive(Clone)]
struct Key {
    id: Option<Box<str>>,
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

/// A key set that no token can be checked with.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unusable {
    /// It is something else.
    #[error("is not a JSON web key set")]
    Form,
    /// It is too large to be meant.
    #[error("has more than {MAX_KEYS} keys")]
    TooMany,
    /// It has no public key for signatures.
    #[error("has no RSA, P-256, P-384 or Ed25519 key for signatures")]
    None,
}

/// Why a token does not let its bearer in.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Denied {
    /// It is no token that could be checked.
    #[error("it is not a signed JSON web token")]
    Malformed,
    /// The issuer has no such key, or has it for other algorithms.
    #[error("no key of the issuer is for it")]
    UnknownKey,
    /// It was not signed with the issuer's key.
    #[error("its signature is wrong")]
    Signature,
    /// It is too late for it, or it does not say when that is.
    #[error("it has expired, or has no `exp`")]
    Expired,
    /// It is too early for it.
    #[error("it is not valid yet")]
    NotYet,
    /// Somebody else issued it.
    #[error("its `iss` is another issuer")]
    Issuer,
    /// It is for somebody else.
    #[error("its `aud` is for something else")]
    Audience,
    /// It lacks a claim, or has it with another value.
    #[error("its claim `{0}` is not as required")]
    Claim(Box<str>),
}

impl KeySet {
    /// Reads a JSON web key set (RFC 7517). Keys that are for something else are left out.
    ///
    /// # Errors
    /// [`Unusable`].
    pub fn read(text: &[u8]) -> Result<Self, Unusable> {
        let set: Value = serde_json::from_slice(text).map_err(|_| Unusable::Form)?;
        let listed = set.get("keys").and_then(Value::as_array).ok_or(Unusable::Form)?;
        if listed.len() > MAX_KEYS {
            return Err(Unusable::TooMany);
        }
        let keys: Vec<Key> = listed.iter().filter_map(Key::read).collect();
        if keys.is_empty() {
            return Err(Unusable::None);
        }
        Ok(Self { keys })
    }

    /// How many keys it has.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Never: [`KeySet::read`] sees to it.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

impl Key {
    fn read(value: &Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value.clone()).ok()?;
        let common = &jwk.common;
        if common.public_key_use.as_ref().is_some_and(|usage| *usage != PublicKeyUse::Signature) {
            return None;
        }
        let operations = common.key_operations.as_ref();
        if operations.is_some_and(|operations| !operations.contains(&KeyOperations::Verify)) {
            return None;
        }
        // By the kind of the key, never by the token. A shared secret has no business in a public set.
        let fitting: &[Algorithm] = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => &RSA,
            AlgorithmParameters::EllipticCurve(key) => match key.curve {
                EllipticCurve::P256 => &[Algorithm::ES256],
                EllipticCurve::P384 => &[Algorithm::ES384],
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
                &[Algorithm::EdDSA]
            }
            _ => return None,
        };
        let named = common.key_algorithm;
        let is_meant =
            |fits: &&Algorithm| named.is_none_or(|named| named == KeyAlgorithm::from(**fits));
        let algorithms: Vec<_> = fitting.iter().filter(is_meant).copied().collect();
        if algorithms.is_empty() {
            return None;
        }
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        Some(Self { id: common.key_id.as_deref().map(Into::into), algorithms, key })
    }
}

/// What can be seen of a token by itself: three parts, none empty, and no longer than [`MAX_TOKEN`].
pub fn is_token(text: &str) -> bool {
    text.len() <= MAX_TOKEN
        && text.split('.').count() == 3
        && text.split('.').all(|part| !part.is_empty())
}

/// Whether `provider` has issued `token` for this gateway, by `keys`, at `now` in seconds since 1970. Returns the token's
/// subject, if it has one.
///
/// # Errors
/// [`Denied`].
pub fn check(
    token: &str,
    keys: &KeySet,
    provider: &Provider,
    now: u64,
) -> Result<Option<Box<str>>, Denied> {
    if !is_token(token) {
        return Err(Denied::Malformed);
    }
    let header = decode_header(token).map_err(|_| Denied::Malformed)?;
    // RFC 7515 section 4.1.11: what must be understood is not understood here.
    if header.crit.is_some() {
        return Err(Denied::Malformed);
    }
    let mut denied = Denied::UnknownKey;
    let is_fit = |key: &&Key| {
        (header.kid.is_none() || header.kid.as_deref() == key.id.as_deref())
            && key.algorithms.contains(&header.alg)
    };
    for key in keys.keys.iter().filter(is_fit).take(MAX_TRIED) {
        // The rest is looked at below, with the time that is passed in.
        let mut validation = Validation::new(header.alg);
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_aud = false;
        match decode::<Value>(token, &key.key, &validation) {
            Ok(decoded) => return claims(&decoded.claims, provider, now),
            Err(_) => denied = Denied::Signature,
        }
    }
    Err(denied)
}

fn claims(claims: &Value, provider: &Provider, now: u64) -> Result<Option<Box<str>>, Denied> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    let time = |name: &str| claims.get(name).map(Value::as_f64);
    let now = now as f64;
    match time("exp").flatten() {
        Some(until) if now < until + LEEWAY => {}
        _ => return Err(Denied::Expired),
    }
    match time("nbf") {
        None => {}
        Some(Some(from)) if now + LEEWAY >= from => {}
        Some(_) => return Err(Denied::NotYet),
    }
    if text("iss") != Some(provider.issuer.as_str()) {
        return Err(Denied::Issuer);
    }
    let is_ours = |audience: &str| provider.audiences.iter().any(|ours| ours == audience);
    let is_for_us = match claims.get("aud") {
        _ if provider.audiences.is_empty() => true,
        Some(Value::String(audience)) => is_ours(audience),
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).any(is_ours),
        _ => false,
    };
    if !is_for_us {
        return Err(Denied::Audience);
    }
    for required in &provider.required_claims {
        if !has(claims, required) {
            return Err(Denied::Claim(required.name.as_str().into()));
        }
    }
    Ok(text("sub").map(|subject| {
        subject.chars().filter(|c| !c.is_control()).take(MAX_SUBJECT).collect::<String>().into()
    }))
}

/// Whether a claim is there, of the required kind, with one of the required values.
fn has(claims: &Value, Claim { name, is_list, values }: &Claim) -> bool {
    let is_one = |value: &str| values.iter().any(|wanted| wanted == value);
    // A claim in another is named with dots, unless there is one with dots in its name.
    let found = claims
        .get(name)
        .or_else(|| name.split('.').try_fold(claims, |inner, part| inner.get(part)));
    match found {
        Some(Value::String(value)) => !is_list && is_one(value),
        Some(Value::Array(all)) => *is_list && all.iter().filter_map(Value::as_str).any(is_one),
        _ => false,
    }
}

impl std::fmt::Debug for KeySet {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_list().entries(self.keys.iter().map(|key| &key.id)).finish()
    }
}

/// What an RSA key may be for.
const RSA: [Algorithm; 6] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

/// Seconds that the issuer's clock and ours may be apart.
const LEEWAY: f64 = 30.0;

/// Keys in one set.
const MAX_KEYS: usize = 64;

/// Keys that one token is tried with, where several may be meant: each costs a check of a signature.
const MAX_TRIED: usize = 4;

/// Longest token looked at, in bytes; those with many groups come to some KB.
const MAX_TOKEN: usize = 16 << 10;

/// Characters of a subject that are kept for the log.
const MAX_SUBJECT: usize = 128;

#[cfg(test)]
mod tests;
