//! Tokens and key sets: no panic, and no token is let in that the issuer has not signed.
#![no_main]

use std::sync::LazyLock;

use gateway_user::auth::jwt::{KeySet, check};
use gateway_user::config::{KeySource, Provider};
use libfuzzer_sys::fuzz_target;

/// The public P-256 key of RFC 7515, appendix A.3.
const KEY: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"k",
    "x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;

static KNOWN: LazyLock<KeySet> = LazyLock::new(|| KeySet::read(KEY.as_bytes()).expect("a key"));

static PROVIDER: LazyLock<Provider> = LazyLock::new(|| Provider {
    name: "p".into(),
    issuer: "https://idp.example.org/".into(),
    keys: KeySource::Inline(String::new()),
    audiences: vec!["a".into()],
    required_claims: Vec::new(),
});

fuzz_target!(|input: &[u8]| {
    // A token, a line end, a key set.
    let (token, set) = match input.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&input[..at], &input[at + 1..]),
        None => (input, &[][..]),
    };
    let token = String::from_utf8_lossy(token);
    // No input of the corpus is signed with the key's private part.
    assert!(check(&token, &KNOWN, &PROVIDER, 1_800_000_000).is_err());
    if let Ok(set) = KeySet::read(set) {
        assert!(!set.is_empty());
        let _ = check(&token, &set, &PROVIDER, 1_800_000_000);
    }
});
