//! The parameters of a Content-Type or Content-Disposition (RFC 9110 section 5.6.6), read so that no other
//! parser can read them in another way: what is ambiguous is refused.

/// One parameter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Param<'a> {
    pub(super) name: &'a [u8],
    /// Without the quotes.
    pub(super) value: &'a [u8],
    /// A backslash stands in the quoted value, of which parsers make different things.
    pub(super) escaped: bool,
}

impl Param<'_> {
    /// The name, whatever its case; also with the `*` of an encoded or continued value (RFC 2231), as some parsers
    /// take that for the parameter itself.
    pub(super) fn is(&self, name: &str) -> bool {
        let mut parts = self.name.split(|byte| *byte == b'*');
        parts.next().is_some_and(|bare| bare.eq_ignore_ascii_case(name.as_bytes()))
    }

    /// The value as it stands, if all parsers agree on it.
    pub(super) fn plain(&self) -> Option<&[u8]> {
        let agreed = !self.escaped && !self.name.contains(&b'*');
        agreed.then_some(self.value)
    }
}

/// Splits `type; name=value; name="value"`. None if it is not of that form.
pub(super) fn split(header: &[u8]) -> Option<(&[u8], Vec<Param<'_>>)> {
    let end = header.iter().position(|byte| *byte == b';').unwrap_or(header.len());
    let (kind, mut rest) = header.split_at_checked(end)?;
    let mut params = Vec::new();
    while let [b';', behind @ ..] = rest {
        let behind = behind.trim_ascii_start();
        if behind.is_empty() || behind.starts_with(b";") {
            rest = behind;
            continue;
        }
        let equals = behind.iter().position(|byte| *byte == b'=')?;
        let (name, value) = behind.split_at_checked(equals)?;
        let value = value.get(1..)?.trim_ascii_start();
        let (value, escaped, behind) = match value {
            [b'"', quoted @ ..] => quoted_value(quoted)?,
            _ => bare_value(value)?,
        };
        let name = name.trim_ascii();
        if !name.iter().all(|byte| is_token_character(*byte)) {
            return None;
        }
        params.push(Param { name, value, escaped });
        rest = behind.trim_ascii_start();
    }
    // Behind a quoted value only the next parameter may stand.
    rest.is_empty().then_some((kind.trim_ascii(), params))
}

fn quoted_value(quoted: &[u8]) -> Option<(&[u8], bool, &[u8])> {
    let mut escaped = false;
    let mut at = 0;
    loop {
        match quoted.get(at)? {
            b'"' => return Some((quoted.get(..at)?, escaped, quoted.get(at + 1..)?)),
            b'\\' => {
                escaped = true;
                at += 2;
            }
            _ => at += 1,
        }
    }
}

fn bare_value(value: &[u8]) -> Option<(&[u8], bool, &[u8])> {
    let end = value.iter().position(|byte| *byte == b';').unwrap_or(value.len());
    let (value, behind) = value.split_at_checked(end)?;
    let value = value.trim_ascii_end();
    let clear = value.iter().all(|byte| !matches!(byte, b'"' | b'\\' | b' ' | b'\t'));
    clear.then_some((value, false, behind))
}

/// RFC 9110 section 5.6.2, `tchar`.
fn is_token_character(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
