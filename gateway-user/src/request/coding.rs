//! Undoes the Content-Encoding of a request's body, a piece at a time, to see what it asks for.
//!
//! The pod gets the body as it came, so whoever reads it here must read what the pod reads: what has been cut short,
//! has anything behind its end, or fails its checksum is refused. It never holds more than the coding's own window
//! and what it was asked for: how much that may be in all is the caller's to say, as a kilobyte may stand for
//! gigabytes.

use std::fmt;
use std::io::{self, BufRead, Read as _};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// A coding that is undone here.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Coding {
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
}

/// A body that is being decoded.
pub struct Decoder<'a> {
    inner: Inner<'a>,
    /// Turns that gave nothing, and bytes that the others gave.
    vain: usize,
    given: usize,
}

enum Inner<'a> {
    Gzip(MultiGzDecoder<Sips<'a>>),
    Zstd(Box<Zstd<'a>>),
}

/// Gives a few kilobytes, and then nothing until it is asked for more: what decodes to nothing would be gone through
/// in one go otherwise, however much there is of it.
struct Sips<'a> {
    rest: &'a [u8],
    left: usize,
}

/// A body is not what its Content-Encoding says.
#[derive(Debug, thiserror::Error)]
#[error("the body is not valid {coding}: {what}")]
pub struct Corrupt {
    coding: Coding,
    what: String,
}

struct Zstd<'a> {
    frames: FrameDecoder,
    rest: &'a [u8],
    /// Within a frame.
    open: bool,
}

impl Coding {
    /// The coding that `value` of a Content-Encoding names, if it is one of these and the only one.
    pub fn named(value: &str) -> Option<Self> {
        let is = |name: &str| value.eq_ignore_ascii_case(name);
        match value {
            _ if is("gzip") || is("x-gzip") => Some(Self::Gzip),
            _ if is("zstd") => Some(Self::Zstd),
            _ => None,
        }
    }

    /// The most memory that decoding takes beside the `decoded` bytes themselves, in bytes.
    pub fn window(self, decoded: usize) -> usize {
        match self {
            Self::Gzip => 64 * 1024,
            // The window is a ring that doubles as it fills.
            Self::Zstd => FIXED + 2 * decoded.min(MAX_WINDOW),
        }
    }
}

impl fmt::Display for Coding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        })
    }
}

impl<'a> Decoder<'a> {
    /// Of a whole body.
    pub fn new(coding: Coding, body: &'a [u8]) -> Self {
        let inner = match coding {
            Coding::Gzip => Inner::Gzip(MultiGzDecoder::new(Sips { rest: body, left: SIP })),
            Coding::Zstd => {
                let mut frames = FrameDecoder::new();
                frames.set_max_window_size(MAX_WINDOW as u64);
                Inner::Zstd(Box::new(Zstd { frames, rest: body, open: false }))
            }
        };
        Self { inner, vain: 0, given: 0 }
    }

    /// Puts the next bytes into `out`, and says how many; 0 is the end, and `None` that there is more to do and nothing
    /// to show yet.
    ///
    /// # Errors
    /// The body is not what its coding says, or is far more work than what it holds.
    pub fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Corrupt> {
        let (coding, read, patience) = match &mut self.inner {
            Inner::Gzip(decoder) => {
                decoder.get_mut().left = SIP;
                let read = match decoder.read(out) {
                    Ok(count) => Ok(Some(count)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                        Err("it ends too early".to_owned())
                    }
                    Err(error) => Err(error.to_string()),
                };
                (Coding::Gzip, read, VAIN_SIPS)
            }
            Inner::Zstd(decoder) => (Coding::Zstd, decoder.read(out), VAIN_BLOCKS),
        };
        let read = read.map_err(|what| Corrupt { coding, what })?;
        match read {
            Some(count) => self.given += count,
            None => self.vain += 1,
        }
        if self.vain > patience + self.given / 1024 {
            let what = "it is far longer than what it holds".to_owned();
            return Err(Corrupt { coding, what });
        }
        Ok(read)
    }
}

impl fmt::Debug for Decoder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder").finish_non_exhaustive()
    }
}

impl Zstd<'_> {
    /// One block, or one frame that has none.
    fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, String> {
        let Self { frames, rest, open } = self;
        if !*open {
            if rest.is_empty() {
                return Ok(Some(0));
            }
            match frames.init(&mut *rest) {
                Ok(()) => *open = true,
                // RFC 8878 section 3.1.2: a frame of something else, to be passed over.
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => match rest.get(length as usize..) {
                    Some(behind) => {
                        *rest = behind;
                        return Ok(None);
                    }
                    None => return Err("it ends too early".into()),
                },
                Err(error @ FrameDecoderError::WindowSizeTooBig { .. }) => {
                    return Err(format!("{error}; compress it at a lower level"));
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        if frames.can_collect() == 0 && !frames.is_finished() {
            frames
                .decode_blocks(&mut *rest, BlockDecodingStrategy::UptoBlocks(1))
                .map_err(|error| error.to_string())?;
        }
        let count = io::Read::read(frames, out).map_err(|error| error.to_string())?;
        if frames.is_finished() && frames.can_collect() == 0 {
            let told = frames.get_checksum_from_data();
            if told.is_some() && told != frames.get_calculated_checksum() {
                return Err("its checksum is wrong".into());
            }
            *open = false;
        }
        Ok(Some(count).filter(|count| *count > 0 || out.is_empty()))
    }
}

impl io::Read for Sips<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(out)?;
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for Sips<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match self.left {
            0 if !self.rest.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
            left => Ok(self.rest.get(..left).unwrap_or(self.rest)),
        }
    }

    fn consume(&mut self, count: usize) {
        self.rest = self.rest.get(count..).unwrap_or_default();
        self.left = self.left.saturating_sub(count);
    }
}

/// The block that is being read, and its tables. A block is 128 KiB, but its literals may be 1 MiB.
const FIXED: usize = 2560 * 1024;

/// Bytes of gzip that are looked at in one turn: some 200 empty members, each of which costs as much as 32 KiB.
const SIP: usize = 4 * 1024;

/// Turns that may give nothing, beside one for each KiB that others gave. A window of zstd may fill before any of it
/// is given, in blocks as small as encoders flush.
const VAIN_SIPS: usize = 256;
const VAIN_BLOCKS: usize = 16 * 1024;

/// What RFC 8878 section 3.1.1.1.2 asks a decoder to take, in bytes; encoders go beyond it when told to only.
const MAX_WINDOW: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(plain: &[u8]) -> Vec<u8> {
        compress_to_vec(plain, CompressionLevel::Fastest)
    }

    fn decode(coding: Coding, body: &[u8], step: usize) -> Result<Vec<u8>, Corrupt> {
        let mut decoder = Decoder::new(coding, body);
        let (mut all, mut piece) = (Vec::new(), vec![0; step]);
        loop {
            match decoder.read(&mut piece)? {
                None => {}
                Some(0) => return Ok(all),
                Some(count) => all.extend_from_slice(&piece[..count]),
            }
        }
    }

    fn encode(coding: Coding, plain: &[u8]) -> Vec<u8> {
        match coding {
            Coding::Gzip => gzip(plain),
            Coding::Zstd => zstd(plain),
        }
    }

    const CODINGS: [Coding; 2] = [Coding::Gzip, Coding::Zstd];

    #[test]
    fn names() {
        for (value, coding) in [
            ("gzip", Some(Coding::Gzip)),
            ("GZip", Some(Coding::Gzip)),
            ("x-gzip", Some(Coding::Gzip)),
            ("zstd", Some(Coding::Zstd)),
            ("br", None),
            ("deflate", None),
            ("identity, gzip", None),
            ("gzip, gzip", None),
            ("", None),
        ] {
            assert_eq!(Coding::named(value), coding, "{value}");
        }
    }

    proptest! {
        #[test]
        fn what_was_encoded_comes_out(
            pieces in proptest::collection::vec((any::<u8>(), 1_usize..3000), 0..200),
            step in 1_usize..200_000,
        ) {
            let plain: Vec<u8> = pieces
                .iter()
                .flat_map(|&(byte, count)| (0..count).map(move |i| byte.wrapping_add((i / 97) as u8)))
                .collect();
            for coding in CODINGS {
                let body = encode(coding, &plain);
                prop_assert!(decode(coding, &body, step).unwrap() == plain);
                // Several, one behind the other, are one body.
                let twice = [&body[..], &body].concat();
                prop_assert!(decode(coding, &twice, step).unwrap() == [&plain[..], &plain].concat());
            }
        }

        #[test]
        fn nothing_that_comes_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), flip in 0_usize..100) {
            for coding in CODINGS {
                let _ = decode(coding, &bytes, 1000);
                let mut body = encode(coding, &bytes);
                if let Some(byte) = body.get_mut(flip) {
                    *byte ^= 1 << (flip % 8);
                }
                let _ = decode(coding, &body, 1000);
            }
        }
    }

    #[test]
    fn cut_or_changed_it_is_no_body() {
        let plain = br#"{"model":"base","messages":[1,1,1,1,1,1,1,1,1,1,1,1,1]}"#;
        for coding in CODINGS {
            let body = encode(coding, plain);
            assert_eq!(decode(coding, &body, 7).unwrap(), plain);
            for end in 1..body.len() {
                assert!(decode(coding, &body[..end], 7).is_err(), "{coding} cut at {end}");
            }
            let trailing = [&body[..], b"x"].concat();
            assert!(decode(coding, &trailing, 7).is_err(), "{coding} with more behind it");
            let last = body.len() - 5;
            let mut changed = body.clone();
            changed[last] ^= 1;
            assert!(decode(coding, &changed, 7).is_err(), "{coding} changed");
            assert!(decode(coding, plain, 7).is_err());
        }
    }

    #[test]
    fn frames_of_something_else_are_passed_over() {
        let skipped = b"\x50\x2a\x4d\x18\x03\0\0\0xyz";
        let body = [&skipped[..], &zstd(b"{}"), skipped].concat();
        assert_eq!(decode(Coding::Zstd, &body, 9).unwrap(), b"{}");
        assert!(decode(Coding::Zstd, &body[..body.len() - 1], 9).is_err());
        // It announces 4 GiB.
        assert!(decode(Coding::Zstd, b"\x50\x2a\x4d\x18\xff\xff\xff\xffxyz", 9).is_err());
    }

    #[test]
    fn what_holds_nothing_is_not_gone_through_for_ever() {
        let many = |body: &[u8], count: usize| body.repeat(count);
        // Members and frames without a byte, and one with blocks of none.
        let frames = many(&zstd(b""), 100_000);
        let raw_blocks = [&[0x28, 0xb5, 0x2f, 0xfd, 0, 0][..], &[0; 3 * 100_000]].concat();
        let skipped = b"\x50\x2a\x4d\x18\0\0\0\0".repeat(100_000);
        for (coding, body) in [
            (Coding::Gzip, many(&gzip(b""), 100_000)),
            (Coding::Zstd, frames),
            (Coding::Zstd, raw_blocks),
            (Coding::Zstd, skipped),
        ] {
            let error = decode(coding, &body, 4096).unwrap_err().to_string();
            assert!(error.contains("far longer"), "{coding}: {error}");
        }
        // A few among others are nobody's attack.
        let some = [many(&gzip(b""), 500), gzip(b"{}")].concat();
        assert_eq!(decode(Coding::Gzip, &some, 4096).unwrap(), b"{}");
    }

    #[test]
    fn a_window_that_is_too_large_is_refused_before_it_is_made() {
        // Windows of 8 MiB and of 16 MiB, each with one raw block.
        let frame = |exponent: u8| {
            let descriptor = [0x28, 0xb5, 0x2f, 0xfd, 0, (exponent - 10) << 3];
            [&descriptor[..], &[17, 0, 0, b'{', b'}']].concat()
        };
        assert_eq!(decode(Coding::Zstd, &frame(23), 9).unwrap(), b"{}");
        let error = decode(Coding::Zstd, &frame(24), 9).unwrap_err().to_string();
        assert!(error.contains("lower level"), "{error}");
    }

    #[test]
    fn a_bomb_is_read_no_further_than_asked() {
        let plain = vec![b' '; 50 << 20];
        for coding in CODINGS {
            let body = encode(coding, &plain);
            assert!(body.len() < plain.len() / 400, "{coding}: {}", body.len());
            let mut decoder = Decoder::new(coding, &body);
            let mut piece = [0; 4096];
            while decoder.read(&mut piece).unwrap().is_none() {}
            assert!(decoder.given > 0);
            if let Inner::Zstd(zstd) = &decoder.inner {
                assert!(zstd.rest.len() > body.len() / 2, "only a block has been decoded");
            }
        }
    }
}
