//! Where an HTTP/1.1 body ends (RFC 9112 sections 6 and 7.1).
//!
//! A machine over bytes without buffers: it is told what arrives, in pieces of any size, and knows after
//! each byte whether it was payload, framing, or the end. The daemon runs it over slices ([`Framing::advance`]);
//! the kernel programs run the same two steps ([`Framing::skip`], [`Framing::control`]) over segments: neither
//! has a loop, a slice or a panic, so the verifier sees straight code.
//!
//! It never reads a head: the caller decides from the head which kind of body follows. It never changes,
//! keeps or copies a byte, and it does not read what a trailer says.
//!
//! What it accepts is what hyper's decoder accepts, and less where hyper is lax, as the client behind the
//! gateway may read the same bytes in another way:
//!
//! - a bare line feed ends no line, in a size line as in trailers (hyper takes one within trailers);
//! - a size has 16 hex digits at most, leading zeros included (hyper: any number of leading zeros);
//! - extensions are bounded by size line, not over the body ([`limits::CHUNK_LINE`]), trailers in
//!   bytes ([`limits::TRAILERS`]), not in number.

use core::fmt;

use crate::limits;

/// The machine's whole state. `repr(C)` without padding: it is also the part of a flow's map value that
/// the kernel programs and the daemon hand to each other, see [`Framing::parts`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Framing {
    /// Payload bytes left of the body or the chunk; while in [`State::Size`], the size read so far.
    remaining: u64,
    /// Chunks whose payload has been seen whole.
    chunks: u64,
    /// A [`State`] as number, as the kernel side may not hold an invalid enum; [`BROKEN`] is added once
    /// the body was malformed.
    state: u32,
    /// Bytes of the current chunk-size line, or of the trailers, so far.
    line: u32,
}

impl Framing {
    /// No body: responses to HEAD, and 1xx, 204, 304.
    pub const fn none() -> Self {
        Self::new(State::Done, 0)
    }

    /// `remaining` bytes of body (Content-Length).
    pub const fn length(remaining: u64) -> Self {
        match remaining {
            0 => Self::none(),
            _ => Self::new(State::Length, remaining),
        }
    }

    /// A body that only the end of the connection ends.
    pub const fn until_close() -> Self {
        Self::new(State::UntilClose, 0)
    }

    /// Transfer-Encoding: chunked.
    pub const fn chunked() -> Self {
        Self::new(State::Size, 0)
    }

    /// Takes what [`Framing::parts`] gave. Numbers that this machine never gives do no harm: the
    /// body is over, or its next framing byte is malformed.
    pub const fn from_parts(parts: [u64; 3]) -> Self {
        let [remaining, chunks, packed] = parts;
        Self { remaining, chunks, state: (packed >> 32) as u32, line: packed as u32 }
    }

    /// The whole state as plain words for a map value.
    pub const fn parts(&self) -> [u64; 3] {
        let packed = ((self.state as u64) << 32) | self.line as u64;
        [self.remaining, self.chunks, packed]
    }

    /// The body has been seen whole; the next byte is not part of it.
    pub const fn is_done(&self) -> bool {
        self.state == State::Done as u32
    }

    /// The connection may end here without the body being cut short.
    pub const fn may_close(&self) -> bool {
        self.state == State::Done as u32 || self.state == State::UntilClose as u32
    }

    /// Chunks whose payload has been seen whole.
    pub const fn chunks(&self) -> u64 {
        self.chunks
    }

    /// What the machine expects next; none once the body was malformed.
    pub const fn state(&self) -> Option<State> {
        State::from_raw(self.state)
    }

    /// Consumes from the front of `input` up to the end of one run of payload, the end of the body, or
    /// the end of the input, whichever is first. Whoever wants all of the input calls again with the rest
    /// until nothing is consumed.
    ///
    /// # Errors
    /// [`Malformed`] at the first byte that breaks the rules; it is for good. Payload ahead of that byte
    /// has been reported by earlier calls.
    pub fn advance(&mut self, input: &[u8]) -> Result<Advance, Malformed> {
        let mut rest = input;
        while let [byte, behind @ ..] = rest
            && !self.is_done()
        {
            let framing = input.len().saturating_sub(rest.len());
            // A slice is never longer than isize::MAX, and skip gives no more than it got.
            let payload = self.skip(rest.len() as u64) as usize;
            if payload > 0 {
                let consumed = framing.saturating_add(payload);
                return Ok(Advance { consumed, payload });
            }
            self.control(*byte)?;
            rest = behind;
        }
        Ok(Advance { consumed: input.len().saturating_sub(rest.len()), payload: 0 })
    }

    /// Consumes all of `input` that belongs to the body, and hands on each run of payload. Returns how many
    /// bytes that were.
    ///
    /// # Errors
    /// As [`Framing::advance`].
    pub fn run(
        &mut self,
        input: &[u8],
        mut payload: impl FnMut(&[u8]),
    ) -> Result<usize, Malformed> {
        let mut rest = input;
        loop {
            let step = self.advance(rest)?;
            let (taken, behind) = rest.split_at_checked(step.consumed).unwrap_or((rest, &[]));
            if step.payload > 0 {
                payload(taken.get(step.consumed - step.payload..).unwrap_or_default());
            }
            if step.consumed == 0 {
                return Ok(input.len() - rest.len());
            }
            rest = behind;
        }
    }

    /// Steps over payload: how many of the next `available` bytes are payload. 0 when the next byte is
    /// framing, or none is left.
    #[inline(always)]
    pub fn skip(&mut self, available: u64) -> u64 {
        let behind = match self.state() {
            Some(State::UntilClose) => return available,
            Some(State::Length) => State::Done,
            Some(State::Data) => State::DataEnd,
            _ => return 0,
        };
        let payload = self.remaining.min(available);
        self.remaining = self.remaining.saturating_sub(payload);
        if self.remaining == 0 {
            self.state = behind as u32;
            if matches!(behind, State::DataEnd) {
                self.chunks = self.chunks.saturating_add(1);
            }
        }
        payload
    }

    /// Steps over one framing byte, for when [`Framing::skip`] gives 0.
    ///
    /// # Errors
    /// [`Malformed`] when the byte breaks the rules, or is behind the end of the body.
    #[inline(always)]
    pub fn control(&mut self, byte: u8) -> Result<(), Malformed> {
        let known = State::from_raw(self.state & !BROKEN);
        let at = known.unwrap_or(State::Done);
        let next = match self.state() {
            Some(state) => self.next(state, byte),
            None => None,
        };
        match next {
            Some(next) => {
                self.state = next as u32;
                Ok(())
            }
            None => {
                // Done stays done: a byte too many spoils what comes next, not this body.
                if !self.is_done() {
                    self.state |= BROKEN;
                }
                Err(Malformed { at })
            }
        }
    }

    const fn new(state: State, remaining: u64) -> Self {
        Self { remaining, chunks: 0, state: state as u32, line: 0 }
    }

    /// The state behind `byte`; none if it is malformed.
    #[inline(always)]
    fn next(&mut self, state: State, byte: u8) -> Option<State> {
        match state {
            State::Done | State::Length | State::UntilClose | State::Data => None,
            State::Size => {
                let digits = self.line;
                self.count(limits::CHUNK_LINE)?;
                match (hex(byte), byte) {
                    // 16 digits fill the number: it cannot overflow.
                    (Some(digit), _) if digits < SIZE_DIGITS => {
                        self.remaining = (self.remaining << 4) | digit;
                        Some(State::Size)
                    }
                    (None, b'\r') if digits > 0 => Some(State::SizeEnd),
                    (None, b';') if digits > 0 => Some(State::Extension),
                    (None, b' ' | b'\t') if digits > 0 => Some(State::Blank),
                    _ => None,
                }
            }
            State::Blank => {
                self.count(limits::CHUNK_LINE)?;
                match byte {
                    b' ' | b'\t' => Some(State::Blank),
                    b';' => Some(State::Extension),
                    b'\r' => Some(State::SizeEnd),
                    _ => None,
                }
            }
            State::Extension => {
                self.count(limits::CHUNK_LINE)?;
                match byte {
                    b'\r' => Some(State::SizeEnd),
                    b'\n' => None,
                    _ => Some(State::Extension),
                }
            }
            State::SizeEnd if byte == b'\n' => {
                self.line = 0;
                match self.remaining {
                    0 => Some(State::TrailerStart),
                    _ => Some(State::Data),
                }
            }
            State::DataEnd if byte == b'\r' => Some(State::DataEndLf),
            State::DataEndLf if byte == b'\n' => Some(State::Size),
            State::TrailerStart => {
                self.count(limits::TRAILERS)?;
                match byte {
                    b'\r' => Some(State::TrailerEnd),
                    b'\n' => None,
                    _ => Some(State::Trailer),
                }
            }
            State::Trailer => {
                self.count(limits::TRAILERS)?;
                match byte {
                    b'\r' => Some(State::TrailerLf),
                    b'\n' => None,
                    _ => Some(State::Trailer),
                }
            }
            State::TrailerLf if byte == b'\n' => {
                self.count(limits::TRAILERS)?;
                Some(State::TrailerStart)
            }
            State::TrailerEnd if byte == b'\n' => Some(State::Done),
            State::SizeEnd
            | State::DataEnd
            | State::DataEndLf
            | State::TrailerLf
            | State::TrailerEnd => None,
        }
    }

    /// Counts a byte of a line; none when that is one more than `limit`.
    #[inline(always)]
    fn count(&mut self, limit: u32) -> Option<()> {
        self.line = self.line.saturating_add(1);
        match self.line <= limit {
            true => Some(()),
            false => None,
        }
    }
}

// SAFETY: four integers, `repr(C)`, no padding (asserted below): any bytes make a value, and
// values that the machine never gives are handled by it.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Framing {}

const _: () = assert!(size_of::<Framing>() == 24 && align_of::<Framing>() == 8);

/// What [`Framing::advance`] did.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Advance {
    /// Bytes taken from the front of the input.
    pub consumed: usize,
    /// Of those, the last `payload` bytes are payload; the ones before are framing.
    pub payload: usize,
}

/// What the machine expects next.
#[repr(u32)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum State {
    /// All of the body has been seen.
    Done = 0,
    /// `remaining` bytes of payload, then the end (Content-Length).
    Length = 1,
    /// Payload until the connection closes.
    UntilClose = 2,
    /// A digit of a chunk's size, or what ends it.
    Size = 3,
    /// Blanks behind a chunk's size.
    Blank = 4,
    /// A chunk's extensions, skipped.
    Extension = 5,
    /// The line feed that ends a chunk-size line.
    SizeEnd = 6,
    /// `remaining` bytes of a chunk's payload.
    Data = 7,
    /// The carriage return behind a chunk's payload.
    DataEnd = 8,
    /// The line feed behind a chunk's payload.
    DataEndLf = 9,
    /// First byte of a trailer line, or of the empty line that ends the body.
    TrailerStart = 10,
    /// Within a trailer line.
    Trailer = 11,
    /// The line feed that ends a trailer line.
    TrailerLf = 12,
    /// The line feed that ends the body.
    TrailerEnd = 13,
}

impl State {
    #[inline(always)]
    const fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            0 => Self::Done,
            1 => Self::Length,
            2 => Self::UntilClose,
            3 => Self::Size,
            4 => Self::Blank,
            5 => Self::Extension,
            6 => Self::SizeEnd,
            7 => Self::Data,
            8 => Self::DataEnd,
            9 => Self::DataEndLf,
            10 => Self::TrailerStart,
            11 => Self::Trailer,
            12 => Self::TrailerLf,
            13 => Self::TrailerEnd,
            _ => return None,
        })
    }
}

/// The body breaks the framing rules: nothing from this byte on can be trusted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Malformed {
    /// What the machine expected when the wrong byte came.
    pub at: State,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.at {
            State::Size => "chunk size is not 1 to 16 hex digits",
            State::Blank | State::Extension => {
                "chunk-size line has bytes that do not belong there, or is too long"
            }
            State::SizeEnd => "chunk-size line does not end in CR LF",
            State::DataEnd | State::DataEndLf => "chunk is longer than its size says",
            State::TrailerStart | State::Trailer | State::TrailerLf => {
                "trailers hold a bare CR or LF, or are too long"
            }
            State::TrailerEnd => "chunked body does not end in CR LF",
            State::Done => "bytes behind the end of the body",
            State::Length | State::UntilClose | State::Data => "payload was taken for framing",
        })
    }
}

impl core::error::Error for Malformed {}

#[inline(always)]
const fn hex(byte: u8) -> Option<u64> {
    // The arms bound the byte: no subtraction wraps.
    let digit = match byte {
        b'0'..=b'9' => byte.wrapping_sub(b'0'),
        b'a'..=b'f' => byte.wrapping_sub(b'a').wrapping_add(10),
        b'A'..=b'F' => byte.wrapping_sub(b'A').wrapping_add(10),
        _ => return None,
    };
    Some(digit as u64)
}

/// Hex digits of the largest size that fits 64 bits.
const SIZE_DIGITS: u32 = 16;

/// Set in the state's number once the body was malformed.
const BROKEN: u32 = 1 << 31;

#[cfg(test)]
mod tests;
