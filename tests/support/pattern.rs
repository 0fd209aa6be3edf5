//! Bodies that say of every byte which response it belongs to and where in it.
//!
//! A body is a row of events of [`RECORD`] bytes, each with the response's id and its own place, so
//! that a byte lost, repeated, out of its order or in the wrong response is named by its offset.

use std::fmt;

/// Bytes of one event.
pub const RECORD: usize = 32;

/// The body of one response, without end.
#[derive(Clone, Debug)]
pub struct Pattern {
    id: u32,
    /// A part of the body of [`BLOCK`] bytes, and its number in the body.
    block: Vec<u8>,
    number: u64,
}

/// What differs from a pattern, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// The response's id.
    pub id: u32,
    /// The first byte that differs, counted from the body's start.
    pub offset: u64,
    /// Id and offset of the first whole event that came there, if one did.
    pub found: Option<(u32, u64)>,
    /// The bytes that came.
    pub bytes: Vec<u8>,
}

impl Pattern {
    /// The body of the response `id`.
    pub fn new(id: u32) -> Self {
        let mut block = Vec::with_capacity(BLOCK);
        for record in 0..BLOCK / RECORD {
            block.extend_from_slice(
                format!("data: {id:08x}-00000000-{record:04x}..\n\n").as_bytes(),
            );
        }
        Self { id, block, number: 0 }
    }

    /// Appends `length` bytes of the body from `offset` on.
    pub fn extend(&mut self, out: &mut Vec<u8>, mut offset: u64, length: usize) {
        let mut left = length;
        while left > 0 {
            let part = self.part(offset, left);
            out.extend_from_slice(part);
            (offset, left) = (offset + part.len() as u64, left - part.len());
        }
    }

    /// `length` bytes of the body from its start.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(length);
        self.extend(&mut out, 0, length);
        out
    }

    /// Compares bytes with those that belong at `offset`.
    ///
    /// # Errors
    /// They differ.
    pub fn check(&mut self, mut offset: u64, bytes: &[u8]) -> Result<(), Mismatch> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let id = self.id;
            let want = self.part(offset, rest.len());
            let (seen, behind) = rest.split_at(want.len());
            if seen != want {
                let same = seen.iter().zip(want).take_while(|(seen, want)| seen == want).count();
                let at = rest.get(same..).unwrap_or_default();
                return Err(Mismatch::at(id, offset + same as u64, at));
            }
            (offset, rest) = (offset + seen.len() as u64, behind);
        }
        Ok(())
    }

    /// As much of the body from `offset` on as lies in one block, at most `most` bytes.
    fn part(&mut self, offset: u64, most: usize) -> &[u8] {
        let (number, within) = (offset / BLOCK as u64, (offset % BLOCK as u64) as usize);
        if number != self.number {
            let digits = format!("{number:08x}");
            for record in self.block.chunks_exact_mut(RECORD) {
                record[NUMBER..NUMBER + 8].copy_from_slice(digits.as_bytes());
            }
            self.number = number;
        }
        &self.block[within..(within + most).min(BLOCK)]
    }
}

impl Mismatch {
    /// What came in place of the byte at `offset` of the response `id`.
    pub fn at(id: u32, offset: u64, bytes: &[u8]) -> Self {
        let found = memchr::memmem::find_iter(bytes, b"data: ")
            .find_map(|start| Some((start, place(bytes.get(start..start + RECORD)?)?)))
            // Of an event that follows later, back to the first byte.
            .map(|(start, (id, place))| (id, place.saturating_sub(start as u64)));
        let bytes = bytes.get(..bytes.len().min(80)).unwrap_or_default().to_vec();
        Self { id, offset, found, bytes }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, offset, found, bytes } = self;
        write!(f, "response {id:#x} at offset {offset}: ")?;
        match found {
            Some((other, at)) if other != id => {
                write!(f, "offset {at} of response {other:#x} came")?;
            }
            Some((_, at)) if at > offset => write!(f, "{} bytes are lost", at - offset)?,
            Some((_, at)) if at < offset => write!(f, "{} bytes came again", offset - at)?,
            _ => write!(f, "other bytes came")?,
        }
        write!(f, ": \"{}\"", bytes.escape_ascii())
    }
}

/// Id and offset that an event names.
fn place(record: &[u8]) -> Option<(u32, u64)> {
    let text = std::str::from_utf8(record).ok()?.strip_prefix("data: ")?.strip_suffix("..\n\n")?;
    let mut parts = text.split('-');
    let mut next = || u64::from_str_radix(parts.next()?, 16).ok();
    let (id, number, record) = (next()?, next()?, next()?);
    Some((u32::try_from(id).ok()?, number * BLOCK as u64 + record * RECORD as u64))
}

const BLOCK: usize = 64 * 1024;
/// Where in an event the number of its block is.
const NUMBER: usize = 15;

#[cfg(test)]
mod tests {
    use super::{BLOCK, Pattern, RECORD};

    #[test]
    fn every_event_is_unlike_all_others() {
        let body = Pattern::new(7).bytes(3 * BLOCK);
        let events: std::collections::BTreeSet<&[u8]> = body.chunks(RECORD).collect();
        assert_eq!(events.len(), 3 * BLOCK / RECORD);
        assert_eq!(Pattern::new(7).check(0, &body), Ok(()));
        // From any place, in any order.
        let mut pattern = Pattern::new(7);
        for at in [2 * BLOCK + 5, 3, BLOCK - 1, 0] {
            assert_eq!(pattern.check(at as u64, &body[at..]), Ok(()), "{at}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_by_its_offset() {
        let body = Pattern::new(7).bytes(2 * BLOCK);
        let other = Pattern::new(9).bytes(BLOCK);
        let lost = [&body[..100], &body[165..]].concat();
        let again = [&body[..BLOCK + 10], &body[BLOCK - 90..]].concat();
        let changed = [&body[..40], b"x", &body[41..60]].concat();
        let foreign = [&body[..64], &other[..640]].concat();
        for (bytes, offset, said) in [
            (lost, 100, "65 bytes are lost"),
            // Three digits are the same here and there.
            (again, BLOCK + 13, "100 bytes came again"),
            (changed, 40, "other bytes came"),
            // The events are alike as far as their id.
            (foreign, 64 + 13, "offset 13 of response 0x9 came"),
        ] {
            let mismatch = Pattern::new(7).check(0, &bytes).unwrap_err();
            let text = mismatch.to_string();
            assert!(
                text.starts_with(&format!("response 0x7 at offset {offset}: {said}")),
                "{text}"
            );
        }
    }
}
