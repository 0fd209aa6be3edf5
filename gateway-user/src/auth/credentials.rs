//! What a request shows to be let in, and what of it the pod gets. Pure.
//!
//! OpenAI's clients send `Authorization: Bearer KEY`, Anthropic's `x-api-key` or a bearer, Azure's `api-key`. None of the
//! three is forwarded once the gateway checks them, or once the pods have a key of their own: a pod could use what it
//! sees, and write it to its log.

use std::fmt;

/// The credentials in a request's head.
#[derive(Clone, Default, PartialEq)]
pub struct Credentials {
    /// The headers as they came, as lines with their ends.
    lines: Vec<u8>,
    /// What stands in them, in the order of [`HEADERS`].
    shown: [Option<Box<str>>; HEADERS.len()],
}

/// A header with a credential came twice: which one counts is anyone's guess.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Twice(pub &'static str);

impl Credentials {
    /// Takes a header, if it is one of those. Returns whether it was.
    ///
    /// # Errors
    /// [`Twice`].
    pub fn take(&mut self, name: &str, value: &[u8]) -> Result<bool, Twice> {
        let Some((known, slot)) =
            HEADERS.iter().zip(&mut self.shown).find(|(known, _)| known.eq_ignore_ascii_case(name))
        else {
            return Ok(false);
        };
        if slot.is_some() {
            return Err(Twice(known));
        }
        // What is no text is no credential of ours, and no reason to let it pass twice.
        *slot = Some(std::str::from_utf8(value).unwrap_or_default().trim().into());
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            self.lines.extend_from_slice(part);
        }
        Ok(true)
    }

    /// The headers as they came, as lines with their ends.
    pub fn lines(&self) -> &[u8] {
        &self.lines
    }

    /// Keys and tokens, the bearer first.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let [authorization, keys @ ..] = &self.shown;
        let bearer = authorization.as_deref().and_then(bearer);
        let keys = keys.iter().flatten().map(|key| &**key);
        bearer.into_iter().chain(keys).filter(|secret| !secret.is_empty())
    }
}

/// Never what they are: this ends up in logs.
impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = HEADERS.iter().zip(&self.shown).filter(|(_, value)| value.is_some());
        formatter.debug_set().entries(shown.map(|(name, _)| name)).finish()
    }
}

/// Whether a header holds a credential.
pub fn is_one(name: &str) -> bool {
    HEADERS.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// RFC 6750 section 2.1; RFC 9110 section 11.1: the scheme's case does not matter.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The headers that may hold one, `authorization` first.
const HEADERS: [&str; 3] = ["authorization", "x-api-key", "api-key"];

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&str, &str)]) -> Result<Credentials, Twice> {
        let mut credentials = Credentials::default();
        for (name, value) in headers {
            credentials.take(name, value.as_bytes())?;
        }
        Ok(credentials)
    }

    #[test]
    fn where_keys_stand() {
        for (headers, secrets) in [
            (&[("Authorization", "Bearer k")][..], &["k"][..]),
            (&[("authorization", "bearer  k ")], &["k"]),
            (&[("Authorization", "Basic k")], &[]),
            (&[("Authorization", "Bearer")], &[]),
            (&[("Authorization", "Bearer ")], &[]),
            (&[("Authorization", "k")], &[]),
            (&[("X-Api-Key", " k ")], &["k"]),
            (&[("api-key", "k")], &["k"]),
            (&[("api-key", "")], &[]),
            (&[("cookie", "k")], &[]),
            (
                &[("api-key", "c"), ("x-api-key", "b"), ("authorization", "Bearer a")],
                &["a", "b", "c"],
            ),
        ] {
            let credentials = read(headers).unwrap();
            assert_eq!(credentials.secrets().collect::<Vec<_>>(), secrets, "{headers:?}");
        }
    }

    #[test]
    fn one_header_one_credential() {
        let twice = [("authorization", "Bearer a"), ("Authorization", "Bearer b")];
        assert_eq!(read(&twice), Err(Twice("authorization")));
        assert_eq!(read(&[("x-api-key", ""), ("x-api-key", "")]), Err(Twice("x-api-key")));
    }

    #[test]
    fn nothing_secret_is_printed() {
        let credentials = read(&[("Authorization", "Bearer hidden"), ("api-key", "too")]).unwrap();
        assert_eq!(format!("{credentials:?}"), r#"{"authorization", "api-key"}"#);
        assert_eq!(credentials.lines(), b"Authorization: Bearer hidden\r\napi-key: too\r\n");
    }

    #[test]
    fn bytes_that_are_no_text() {
        let mut credentials = Credentials::default();
        assert_eq!(credentials.take("x-api-key", b"\xff"), Ok(true));
        assert_eq!(credentials.secrets().count(), 0);
    }
}
