//! Tokens and key sets, good and bad. Keys are made anew for each run.

use std::sync::LazyLock;

use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
};
use jsonwebtoken::{EncodingKey, Header, encode};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::config::KeySource;

/// Seconds since 1970: the tests' now.
const NOW: u64 = 1_800_000_000;

/// A private key, and its public part as an issuer lists it.
struct Pair {
    algorithm: Algorithm,
    private: EncodingKey,
    public: Value,
}

impl Pair {
    fn new(id: &str, algorithm: Algorithm) -> Self {
        let random = &aws_lc_rs::rand::SystemRandom::new();
        let private = match algorithm {
            Algorithm::ES256 | Algorithm::ES384 => {
                let curve = match algorithm {
                    Algorithm::ES256 => &ECDSA_P256_SHA256_FIXED_SIGNING,
                    _ => &ECDSA_P384_SHA384_FIXED_SIGNING,
                };
                let key = EcdsaKeyPair::generate_pkcs8(curve, random).unwrap();
                EncodingKey::from_ec_der(key.as_ref())
            }
            Algorithm::EdDSA => {
                let key = Ed25519KeyPair::generate_pkcs8v1(random).unwrap();
                EncodingKey::from_ed_der(key.as_ref())
            }
            _ => {
                let key = KeyPair::generate(KeySize::Rsa2048).unwrap();
                let der = key.as_der().unwrap();
                // Within PKCS #8 stands the form that is wanted.
                EncodingKey::from_rsa_der(&der.as_ref()[26..])
            }
        };
        let mut public =
            serde_json::to_value(Jwk::from_encoding_key(&private, algorithm).unwrap()).unwrap();
        public["kid"] = id.into();
        Self { algorithm, private, public }
    }

    fn sign(&self, claims: &Value) -> String {
        let kid = self.public["kid"].as_str().map(Into::into);
        self.sign_as(&Header { kid, ..Header::new(self.algorithm) }, claims)
    }

    fn sign_as(&self, header: &Header, claims: &Value) -> String {
        encode(header, claims, &self.private).unwrap()
    }
}

static EC: LazyLock<Pair> = LazyLock::new(|| Pair::new("ec", Algorithm::ES256));
static RSA_PAIR: LazyLock<Pair> = LazyLock::new(|| Pair::new("rsa", Algorithm::RS256));

fn set(keys: &[&Value]) -> KeySet {
    KeySet::read(json!({ "keys": keys }).to_string().as_bytes()).unwrap()
}

fn provider() -> Provider {
    Provider {
        name: "corp".into(),
        issuer: "https://idp.example.org/".into(),
        keys: KeySource::Inline(String::new()),
        audiences: vec!["llm-edge".into(), "llm-lab".into()],
        required_claims: Vec::new(),
    }
}

/// What a good token says.
fn good() -> Value {
    json!({
        "iss": "https://idp.example.org/", "aud": "llm-edge", "sub": "u1", "exp": NOW + 300,
    })
}

fn with(field: &str, value: Value) -> Value {
    let mut claims = good();
    match value {
        Value::Null => drop(claims.as_object_mut().unwrap().remove(field)),
        value => claims[field] = value,
    }
    claims
}

#[test]
fn every_kind_of_key() {
    for algorithm in [
        Algorithm::ES256,
        Algorithm::ES384,
        Algorithm::EdDSA,
        Algorithm::RS256,
        Algorithm::RS512,
        Algorithm::PS256,
    ] {
        let pair = Pair::new("k", algorithm);
        let keys = set(&[&EC.public, &pair.public]);
        let token = pair.sign(&good());
        let subject = check(&token, &keys, &provider(), NOW).unwrap();
        assert_eq!(subject.as_deref(), Some("u1"), "{algorithm:?}");
        // One bit of the signature.
        let at = token.rfind('.').unwrap() + 2;
        let other = if token.as_bytes()[at] == b'A' { "B" } else { "A" };
        let mut broken = token;
        broken.replace_range(at..=at, other);
        assert_eq!(check(&broken, &keys, &provider(), NOW), Err(Denied::Signature));
    }
}

#[test]
fn claims_one_by_one() {
    for (claims, expected) in [
        (good(), Ok(())),
        // Time, with half a minute of leeway.
        (with("exp", json!(NOW - 29)), Ok(())),
        (with("exp", json!(NOW - 30)), Err(Denied::Expired)),
        (with("exp", json!(NOW as f64 - 29.5)), Ok(())),
        (with("exp", json!(null)), Err(Denied::Expired)),
        (with("exp", json!("never")), Err(Denied::Expired)),
        (with("exp", json!(-1)), Err(Denied::Expired)),
        (with("nbf", json!(NOW + 30)), Ok(())),
        (with("nbf", json!(NOW + 31)), Err(Denied::NotYet)),
        (with("nbf", json!("soon")), Err(Denied::NotYet)),
        (with("iss", json!("https://idp.example.org")), Err(Denied::Issuer)),
        (with("iss", json!(["https://idp.example.org/"])), Err(Denied::Issuer)),
        (with("iss", json!(null)), Err(Denied::Issuer)),
        (with("aud", json!("llm-lab")), Ok(())),
        (with("aud", json!(["other", "llm-lab"])), Ok(())),
        (with("aud", json!("other")), Err(Denied::Audience)),
        (with("aud", json!(["other"])), Err(Denied::Audience)),
        (with("aud", json!([])), Err(Denied::Audience)),
        (with("aud", json!({"llm-edge": 1})), Err(Denied::Audience)),
        (with("aud", json!(null)), Err(Denied::Audience)),
        (json!([]), Err(Denied::Malformed)),
    ] {
        let token = EC.sign(&claims);
        let found = check(&token, &set(&[&EC.public]), &provider(), NOW).map(drop);
        // What is no object of claims is found wrong by the library, where it is found.
        let expected = match claims {
            Value::Array(_) => Err(Denied::Signature),
            _ => expected,
        };
        assert_eq!(found, expected, "{claims}");
    }
}

#[test]
fn required_claims() {
    let claim = |name: &str, is_list, values: &[&str]| Claim {
        name: name.into(),
        is_list,
        values: values.iter().map(|value| (*value).to_owned()).collect(),
    };
    let groups = claim("groups", true, &["ml-users", "ml-admins"]);
    let tier = claim("tier", false, &["gold"]);
    let nested = claim("realm.role", false, &["user"]);
    let dotted = claim("https://x.org/a", false, &["1"]);
    let denied = |claim: &Claim| Err(Denied::Claim(claim.name.as_str().into()));
    for (required, claims, expected) in [
        (vec![&groups], json!({"groups": ["x", "ml-admins"]}), Ok(())),
        (vec![&groups], json!({"groups": ["x"]}), denied(&groups)),
        (vec![&groups], json!({"groups": "ml-admins"}), denied(&groups)),
        (vec![&groups], json!({"groups": [["ml-admins"]]}), denied(&groups)),
        (vec![&groups], json!({}), denied(&groups)),
        (vec![&tier], json!({"tier": "gold"}), Ok(())),
        (vec![&tier], json!({"tier": ["gold"]}), denied(&tier)),
        (vec![&tier], json!({"tier": "Gold"}), denied(&tier)),
        (vec![&tier], json!({"tier": 1}), denied(&tier)),
        // All of them.
        (vec![&tier, &groups], json!({"tier": "gold"}), denied(&groups)),
        (vec![&nested], json!({"realm": {"role": "user"}}), Ok(())),
        (vec![&nested], json!({"realm": {"role": "guest"}}), denied(&nested)),
        (vec![&dotted], json!({"https://x.org/a": "1"}), Ok(())),
    ] {
        let mut provider = provider();
        provider.audiences.clear();
        provider.required_claims = required.into_iter().cloned().collect();
        let mut all = good();
        all.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
        let found = check(&EC.sign(&all), &set(&[&EC.public]), &provider, NOW).map(drop);
        assert_eq!(found, expected, "{claims}");
    }
}

// RFC 8725 section 2.1: what a token says of its algorithm is the attacker's word.
#[test]
fn a_token_does_not_choose_how_it_is_checked() {
    let keys = set(&[&RSA_PAIR.public, &EC.public]);
    let denied = |token: &str| check(token, &keys, &provider(), NOW).unwrap_err();
    let good_one = RSA_PAIR.sign(&good());
    let (_, rest) = good_one.split_once('.').unwrap();
    let (payload, _) = rest.split_once('.').unwrap();
    // {"alg":"none","typ":"JWT"}, with a signature and without.
    let none = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0";
    assert_eq!(denied(&format!("{none}.{payload}.")), Denied::Malformed);
    assert_eq!(denied(&format!("{none}.{payload}.AA")), Denied::Malformed);
    // The public key, in the forms in which it is had, as a shared secret.
    let modulus = RSA_PAIR.public["n"].as_str().unwrap();
    for secret in [modulus.to_owned(), RSA_PAIR.public.to_string()] {
        for id in [Some("rsa".to_owned()), None] {
            let header = Header { kid: id, ..Header::new(Algorithm::HS256) };
            let key = EncodingKey::from_secret(secret.as_bytes()).unwrap();
            assert_eq!(denied(&encode(&header, &good(), &key).unwrap()), Denied::UnknownKey);
        }
    }
    // Another algorithm of the same kind of key, where the issuer has named one.
    let header = Header { kid: Some("rsa".into()), ..Header::new(Algorithm::RS512) };
    assert_eq!(denied(&RSA_PAIR.sign_as(&header, &good())), Denied::UnknownKey);
    // A key that comes along in the token itself.
    let stranger = Pair::new("stranger", Algorithm::ES256);
    let jwk = serde_json::from_value(stranger.public.clone()).unwrap();
    let header = Header { jwk: Some(jwk), ..Header::new(Algorithm::ES256) };
    assert_eq!(denied(&stranger.sign_as(&header, &good())), Denied::Signature);
    // The id of a key that is another's.
    let header = Header { kid: Some("ec".into()), ..Header::new(Algorithm::ES256) };
    assert_eq!(denied(&stranger.sign_as(&header, &good())), Denied::Signature);
    assert_eq!(denied(&stranger.sign(&good())), Denied::UnknownKey);
    // RFC 7515 section 4.1.11.
    let crit = Some(vec!["exp".to_owned()]);
    let header = Header { kid: Some("ec".into()), crit, ..Header::new(Algorithm::ES256) };
    assert_eq!(denied(&EC.sign_as(&header, &good())), Denied::Malformed);
}

#[test]
fn keys_without_an_id() {
    let nameless = |pair: &Pair| {
        let mut public = pair.public.clone();
        public.as_object_mut().unwrap().remove("kid");
        public
    };
    let other = Pair::new("other", Algorithm::ES256);
    let header = Header::new(Algorithm::ES256);
    let token = EC.sign_as(&header, &good());
    // Each that fits is tried, and one with an id for a token without as well.
    for keys in [[&nameless(&other), &nameless(&EC)], [&other.public, &EC.public]] {
        assert!(check(&token, &set(&keys), &provider(), NOW).is_ok());
    }
    // At the cap, and one key more before the right one.
    let others: Vec<Pair> = (0..MAX_TRIED).map(|_| Pair::new("other", Algorithm::ES256)).collect();
    for (before, expected) in [(MAX_TRIED - 1, true), (MAX_TRIED, false)] {
        let mut keys: Vec<&Value> = others.iter().take(before).map(|pair| &pair.public).collect();
        keys.insert(0, &RSA_PAIR.public);
        keys.push(&EC.public);
        assert_eq!(check(&token, &set(&keys), &provider(), NOW).is_ok(), expected, "{before}");
    }
    let named = EC.sign(&good());
    assert_eq!(
        check(&named, &set(&[&nameless(&EC)]), &provider(), NOW),
        Err(Denied::UnknownKey),
        "a token that names a key is not tried with a nameless one"
    );
}

#[test]
fn what_is_no_token() {
    let keys = set(&[&EC.public]);
    let long = format!("{}.{}.{}", "a".repeat(MAX_TOKEN), "b", "c");
    for text in ["", ".", "..", "a.b", "a.b.c.d", "a.b.c", "sk-0123", "a b.c.d", &long] {
        assert_eq!(check(text, &keys, &provider(), NOW), Err(Denied::Malformed), "{text}");
    }
    let deep = "[".repeat(5000) + &"]".repeat(5000);
    let token = EC.sign(&with("deep", serde_json::from_str("[[[1]]]").unwrap()));
    assert!(check(&token, &keys, &provider(), NOW).is_ok());
    assert_eq!(KeySet::read(deep.as_bytes()).unwrap_err(), Unusable::Form);
}

#[test]
fn key_sets() {
    let symmetric = json!({"kty": "oct", "k": "c2VjcmV0", "kid": "s", "alg": "HS256"});
    let with = |name: &str, value: Value| {
        let mut key = EC.public.clone();
        key[name] = value;
        key
    };
    let many = |count: usize| vec![EC.public.clone(); count];
    for (text, expected) in [
        (json!({"keys": [EC.public]}), Ok(1)),
        (json!({"keys": [with("use", json!("sig"))]}), Ok(1)),
        (
            json!({"keys": [with("x5t", json!("abc")), 7, null, {"kty": "new"}, RSA_PAIR.public]}),
            Ok(2),
        ),
        (json!({"keys": [symmetric]}), Err(Unusable::None)),
        (json!({"keys": [with("use", json!("enc"))]}), Err(Unusable::None)),
        (json!({"keys": [with("key_ops", json!(["sign"]))]}), Err(Unusable::None)),
        (json!({"keys": [with("alg", json!("RS256"))]}), Err(Unusable::None)),
        (json!({"keys": [with("alg", json!("HS256"))]}), Err(Unusable::None)),
        (json!({"keys": [with("crv", json!("P-521"))]}), Err(Unusable::None)),
        (json!({"keys": []}), Err(Unusable::None)),
        (json!({"keys": {}}), Err(Unusable::Form)),
        (json!([]), Err(Unusable::Form)),
        (json!({"keys": many(MAX_KEYS)}), Ok(MAX_KEYS)),
        (json!({"keys": many(MAX_KEYS + 1)}), Err(Unusable::TooMany)),
    ] {
        let found = KeySet::read(text.to_string().as_bytes()).map(|set| set.len());
        assert_eq!(found, expected, "{text}");
    }
    assert_eq!(KeySet::read(b"<html>").unwrap_err(), Unusable::Form);
}

proptest! {
    #[test]
    fn no_token_panics(text in "[A-Za-z0-9_-]{0,60}(\\.[A-Za-z0-9_-]{0,60}){0,4}|\\PC{0,60}") {
        prop_assert!(check(&text, &set(&[&EC.public]), &provider(), NOW).is_err());
    }

    /// A good token with one place changed.
    #[test]
    fn no_damaged_token_is_let_in(at in any::<prop::sample::Index>(), by in "[A-Za-z0-9_.-]") {
        let token = EC.sign(&good());
        let at = at.index(token.len());
        let mut damaged = token.clone();
        damaged.replace_range(at..=at, &by);
        // The last letter of a part may hold bits that mean nothing.
        let found = check(&damaged, &set(&[&EC.public]), &provider(), NOW);
        prop_assert!(damaged == token || found.is_err(), "{}", at);
    }

    #[test]
    fn no_key_set_panics(text in "\\PC{0,100}|\\{\"keys\": ?\\[\\{(\"(kty|n|e|x|y|crv|alg|use)\":\"(RSA|EC|OKP|P-256|AQAB|sig)\",?){0,6}\\}\\]\\}") {
        let _ = KeySet::read(text.as_bytes());
    }
}
