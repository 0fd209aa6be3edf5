//! API keys: the file that lists them, and whether one that a request shows is among them. Pure.
//!
//! The file has no key, only the SHA-256 of each: who reads it cannot use it. Keys are random and long, so a plain hash is
//! as good as a slow one, and can be had for every request.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::config::RateLimits;

/// One entry of a key file, as users write it.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Listed {
    /// What logs and metrics call it.
    pub name: Box<str>,
    /// The hash of the key, in hexadecimal digits.
    sha256: String,
    /// The models that it may use; all if the line is left out.
    pub models: Option<HashSet<Box<str>>>,
    /// How much it may use; what is left out is as `auth.apiKeys.limits` says.
    #[serde(default)]
    pub limits: RateLimits,
}

/// What is wrong with a key file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct Wrong(String);

/// Reads the text of a key file. Says nothing of what stands in it: it may be a key in the wrong place.
///
/// # Errors
/// [`Wrong`], with what and where.
pub fn read(text: &str) -> Result<Vec<Listed>, Wrong> {
    // A file that is being written is empty for a moment. That nobody is to be let in is written as `[]`.
    if text.trim().is_empty() {
        return Err(Wrong("is empty; a file without keys holds `[]`".into()));
    }
    let listed: Vec<Listed> = serde_saphyr::from_str(text).map_err(|error| {
        let at = error.location().map(|at| format!("line {}", at.line()));
        Wrong(format!(
            "is not a list of keys, each with name and sha256, and perhaps models and limits ({})",
            at.unwrap_or_else(|| "line unknown".into())
        ))
    })?;
    for (number, key) in listed.iter().enumerate() {
        let fail = |what: &str| Err(Wrong(format!("key {}: {what}", number + 1)));
        if !is_name(&key.name) {
            return fail("its name is not 1 to 63 letters, digits, `-`, `_`, `.`, `@` or `/`");
        }
        if digest_of_hex(&key.sha256).is_none() {
            return fail("its sha256 is not 64 hexadecimal digits");
        }
        if let Some(what) = key.limits.wrong() {
            return fail(&format!("its limits: {what}"));
        }
    }
    Ok(listed)
}

/// Whether these, of all files together, can be in force: each name and each key once, none with the name `reserved`.
///
/// # Errors
/// [`Wrong`].
pub fn agree(listed: &[Listed], reserved: Option<&str>) -> Result<(), Wrong> {
    if listed.len() > MAX_KEYS {
        return Err(Wrong(format!("has {} keys, at most {MAX_KEYS} are allowed", listed.len())));
    }
    let mut names = HashSet::new();
    let mut hashes = HashMap::new();
    for Listed { name, sha256, .. } in listed {
        if reserved == Some(&**name) {
            return Err(Wrong(format!("the name `{name}` is that of auth.jwt.provider")));
        }
        if !names.insert(name) {
            return Err(Wrong(format!("the name `{name}` is given twice")));
        }
        if let Some(other) = hashes.insert(sha256.to_ascii_lowercase(), name) {
            return Err(Wrong(format!("`{other}` and `{name}` are the same key")));
        }
    }
    Ok(())
}

/// The keys in force, each with what belongs to it.
#[derive(Debug)]
pub struct Keys<T> {
    /// By a hash of the hash with a secret of this process: how long a search takes says nothing about the hashes.
    by_hash: HashMap<u64, Vec<([u8; 32], T)>>,
    state: RandomState,
}

impl<T> Default for Keys<T> {
    fn default() -> Self {
        Self { by_hash: HashMap::new(), state: RandomState::new() }
    }
}

impl<T> Keys<T> {
    /// These keys; `of` makes what belongs to each.
    pub fn new(listed: Vec<Listed>, of: impl Fn(Listed) -> T) -> Self {
        let mut keys = Self::default();
        for key in listed {
            // All have one: they have been read.
            let Some(digest) = digest_of_hex(&key.sha256) else { continue };
            let bucket = keys.state.hash_one(digest);
            keys.by_hash.entry(bucket).or_default().push((digest, of(key)));
        }
        keys
    }

    /// What belongs to the key that a request shows.
    pub fn find(&self, shown: &str) -> Option<&T> {
        let digest = digest(shown);
        let candidates = self.by_hash.get(&self.state.hash_one(digest))?;
        let (_, found) =
            candidates.iter().find(|(hash, _)| verify_slices_are_equal(hash, &digest).is_ok())?;
        Some(found)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_hash.values().map(Vec::len).sum()
    }

    /// What belongs to each.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.by_hash.values().flatten().map(|(_, of)| of)
    }
}

/// The hash of a key as the file has it.
pub fn hex(key: &str) -> String {
    digest(key).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether logs and metrics can call a key so.
pub fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@/".contains(c);
    (1..=63).contains(&name.len()) && name.chars().all(plain)
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

fn digest_of_hex(text: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if text.len() != 2 * digest.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}

/// Keys in all: each has its own series in the metrics, about 20 of them.
pub const MAX_KEYS: usize = 4096;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys(text: &str) -> Result<Keys<Box<str>>, Wrong> {
        let listed = read(text)?;
        agree(&listed, Some("corp"))?;
        Ok(Keys::new(listed, |key| key.name))
    }

    fn two() -> Keys<Box<str>> {
        let text = format!(
            "- {{name: alice, sha256: {}}}\n- {{name: bob, sha256: {}}}\n",
            hex("sk-a"),
            hex("sk-b").to_uppercase()
        );
        keys(&text).unwrap()
    }

    #[test]
    fn a_key_is_found_by_itself_only() {
        let keys = two();
        assert_eq!(keys.len(), 2);
        for (shown, name) in [
            ("sk-a", Some("alice")),
            ("sk-b", Some("bob")),
            ("sk-A", None),
            ("sk-", None),
            ("", None),
            (hex("sk-a").as_str(), None),
        ] {
            assert_eq!(keys.find(shown).map(|name| &**name), name, "{shown}");
        }
        assert!(Keys::<()>::default().find("sk-a").is_none());
    }

    #[test]
    fn every_field() {
        let text = format!(
            "- name: team/a\n  sha256: {}\n  models: [base, sql]\n  limits: {{requestsPerMinute: 60, \
             tokensPerMinute: 1000, concurrentRequests: 4}}\n",
            hex("k")
        );
        let [key] = &read(&text).unwrap()[..] else { panic!("one key") };
        assert!(key.models.as_ref().unwrap().contains("sql"));
        assert_eq!(key.limits.concurrent_requests, Some(4));
        assert_eq!(read("[]"), Ok(Vec::new()));
    }

    #[test]
    fn what_is_wrong_is_told_without_what_it_is() {
        let hash = hex("k");
        let some = |count: usize| -> String {
            (0..count)
                .map(|number| {
                    format!("- {{name: k{number}, sha256: {}}}\n", hex(&number.to_string()))
                })
                .collect()
        };
        assert_eq!(keys(&some(MAX_KEYS)).unwrap().len(), MAX_KEYS);
        for (text, says) in [
            (String::new(), "is empty"),
            ("  \n".into(), "is empty"),
            ("sk-secret".into(), "is not a list of keys"),
            ("- sk-secret".into(), "is not a list of keys"),
            ("- {name: a, key: sk-secret}".into(), "is not a list of keys"),
            ("- {name: a, sha256: sk-secret}".into(), "key 1: its sha256"),
            (format!("- {{name: 'a b', sha256: {hash}}}"), "key 1: its name"),
            (format!("- {{name: '', sha256: {hash}}}"), "key 1: its name"),
            (
                format!("- {{name: a, sha256: {hash}}}\n- {{name: a, sha256: {hash}}}"),
                "`a` is given",
            ),
            (format!("- {{name: a, sha256: {hash}}}\n- {{name: b, sha256: {hash}}}"), "same key"),
            (format!("- {{name: corp, sha256: {hash}}}"), "auth.jwt.provider"),
            (
                format!("- {{name: a, sha256: {hash}, limits: {{requestsPerMinute: 0}}}}"),
                "its limits",
            ),
            (format!("- {{name: a, sha256: {hash}, model: [x]}}"), "is not a list of keys"),
            (some(MAX_KEYS + 1), "has 4097 keys"),
        ] {
            let error = keys(&text).unwrap_err().to_string();
            assert!(error.contains(says), "{says}: {error}");
            assert!(!error.contains("sk-secret"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,200}|[-\\[\\]{}:,&*!|>'\"#a1 \n]{0,80}") {
            let _ = keys(&text);
        }
    }
}
