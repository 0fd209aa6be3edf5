//! Takes the chunk framing off a body that comes in pieces of any size.

use anyhow::{bail, ensure};

/// Where in the framing the next byte stands.
#[derive(Debug, Default)]
pub(crate) struct Chunks(Place);

#[derive(Clone, Copy, Debug)]
enum Place {
    /// In the size, as far as it is read; `None` before its first digit.
    Size(Option<u64>),
    /// In an extension behind the size, or in its line end.
    Extension(u64),
    Data(u64),
    /// Behind the data of a chunk: so many bytes of the line end are still to come.
    DataEnd(u8),
    /// Behind the last chunk, with so many bytes in the current line: trailers, then an empty line.
    Trailer(u64),
    End,
}

impl Default for Place {
    fn default() -> Self {
        Self::Size(None)
    }
}

impl Chunks {
    /// Calls `data` for what the piece has of the body; true when the body has ended.
    ///
    /// # Errors
    /// It is not framed so, something follows on the end, or `data` wants no more.
    pub(crate) fn feed(
        &mut self,
        mut piece: &[u8],
        mut data: impl FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<bool> {
        while let Some((&byte, rest)) = piece.split_first() {
            if let Place::Data(left) = self.0 {
                let count = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let (now, later) = piece.split_at(count);
                data(now)?;
                piece = later;
                self.0 = match left - count as u64 {
                    0 => Place::DataEnd(2),
                    left => Place::Data(left),
                };
                continue;
            }
            piece = rest;
            self.0 = self.0.after(byte)?;
        }
        Ok(matches!(self.0, Place::End))
    }
}

impl Place {
    fn after(self, byte: u8) -> anyhow::Result<Self> {
        Ok(match (self, byte) {
            (Self::Size(size), _) if byte.is_ascii_hexdigit() => {
                let digit = (byte as char).to_digit(16).unwrap_or(0);
                let size = size.unwrap_or(0);
                ensure!(size < MOST, "a chunk of more than {MOST} bytes");
                Self::Size(Some(size * 16 + u64::from(digit)))
            }
            (Self::Size(Some(size)), b';' | b' ' | b'\r') => Self::Extension(size),
            (Self::Extension(0), b'\n') => Self::Trailer(0),
            (Self::Extension(size), b'\n') => Self::Data(size),
            (Self::Extension(_), _) => self,
            (Self::DataEnd(2), b'\r') => Self::DataEnd(1),
            (Self::DataEnd(1), b'\n') => Self::Size(None),
            (Self::Trailer(0), b'\n') => Self::End,
            (Self::Trailer(_), b'\n') => Self::Trailer(0),
            (Self::Trailer(_), b'\r') => self,
            (Self::Trailer(length), _) => Self::Trailer(length + 1),
            (place, byte) => bail!("not chunked: byte {byte:#04x} at {place:?}"),
        })
    }
}

/// Size of a chunk that no token comes near to.
const MOST: u64 = 1 << 32;

#[cfg(test)]
mod tests {
    use super::Chunks;

    fn read(text: &str, size: usize) -> anyhow::Result<(String, bool)> {
        let (mut chunks, mut body, mut ended) = (Chunks::default(), Vec::new(), false);
        for piece in text.as_bytes().chunks(size) {
            ended = chunks.feed(piece, |data| {
                body.extend_from_slice(data);
                Ok(())
            })?;
        }
        Ok((String::from_utf8(body)?, ended))
    }

    #[test]
    fn a_body_is_the_same_however_it_is_cut() {
        for (text, body, ended) in [
            ("3\r\nabc\r\nA;x=1\r\n0123456789\r\n0\r\n\r\n", "abc0123456789", true),
            ("1a \r\nabcdefghijklmnopqrstuvwxyz\r\n", "abcdefghijklmnopqrstuvwxyz", false),
            ("2\r\n\r\n\r\n0\r\nx-trailer: 1\r\n\r\n", "\r\n", true),
            ("0\r\n\r", "", false),
            ("5\r\nab", "ab", false),
        ] {
            for size in 1..=text.len() {
                let read = read(text, size).unwrap();
                assert_eq!(read, (body.to_owned(), ended), "{text:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn wrong_framing_is_an_error() {
        for text in ["x", "\r\n", "1\r\nabc", "1\r\na\n", "fffffffffffffffff", "0\r\n\r\nHTTP"] {
            for size in 1..=text.len() {
                assert!(read(text, size).is_err(), "{text:?} in pieces of {size}");
            }
        }
    }
}
