//! The key that a pool's pods want, from a file.

use std::fmt;

use arc_swap::ArcSwapOption;
use hyper::header::HeaderValue;

/// A pool's key for its pods: in the requests of clients, and in all that the gateway asks on its own account.
pub struct PodKey {
    /// Where it is read.
    pub file: String,
    bearer: ArcSwapOption<HeaderValue>,
}

impl PodKey {
    /// The key in `file`, not read yet.
    pub fn new(file: &str) -> Self {
        Self { file: file.to_owned(), bearer: ArcSwapOption::empty() }
    }

    /// Takes what the file holds.
    ///
    /// # Errors
    /// A text that completes "FILE ": it is no key.
    pub fn set(&self, text: &str) -> Result<(), &'static str> {
        let key = text.trim();
        if key.is_empty() {
            return Err("is empty, and should hold the pods' key");
        }
        if key.len() > MAX_KEY {
            return Err("is too long for a key");
        }
        if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("is no key: it holds more than one word, or characters that no header can");
        }
        let bearer = HeaderValue::try_from(format!("Bearer {key}"));
        let mut bearer = bearer.map_err(|_| "holds characters that cannot stand in a header")?;
        bearer.set_sensitive(true);
        self.bearer.store(Some(bearer.into()));
        Ok(())
    }

    /// The value of `Authorization`, once the file has been read.
    pub fn bearer(&self) -> Option<HeaderValue> {
        self.bearer.load().as_deref().cloned()
    }

    /// The header's line for a request's head, with its end.
    pub fn line(&self) -> Vec<u8> {
        let bearer = self.bearer.load();
        let value = bearer.as_deref().map(HeaderValue::as_bytes).unwrap_or_default();
        [b"authorization: ", value, b"\r\n"].concat()
    }
}

impl fmt::Debug for PodKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PodKey").field("file", &self.file).finish_non_exhaustive()
    }
}

/// Longest key, in bytes.
const MAX_KEY: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_may_hold() {
        for (text, line) in [
            ("sk-1", Some("authorization: Bearer sk-1\r\n")),
            ("  sk-1\n", Some("authorization: Bearer sk-1\r\n")),
            ("", None),
            ("\n", None),
            ("a b", None),
            ("a\r\nx: y", None),
            ("a\0", None),
            ("schlüssel", None),
        ] {
            let key = PodKey::new("f");
            assert_eq!(key.set(text).is_ok(), line.is_some(), "{text:?}");
            if let Some(line) = line {
                assert_eq!(key.line(), line.as_bytes());
                assert!(!format!("{key:?}{:?}", key.bearer()).contains("sk-1"));
            }
        }
    }

    #[test]
    fn what_is_wrong_changes_nothing() {
        let key = PodKey::new("f");
        assert!(key.bearer().is_none());
        key.set("a").unwrap();
        key.set("b c").unwrap_err();
        assert_eq!(key.bearer().unwrap(), "Bearer a");
    }
}
