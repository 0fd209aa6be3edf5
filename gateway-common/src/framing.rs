//! Where an HTTP/1.1 body ends (RFC 9112 section 6).
//!
//! A machine over bytes without buffers: it is told what arrives, in pieces of any size, and knows after
//! each byte whether it was payload, framing, or the end. The daemon runs it over slices ([`Framing::advance`]);
//! the kernel programs run the same two steps ([`Framing::skip`], [`Framing::control`]) over segments.

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
    /// A digit of a chunk's size.
    Size = 3,
    /// The rest of a chunk-size line: blanks and extensions, skipped.
    Extension = 4,
    /// The line feed that ends a chunk-size line.
    SizeEnd = 5,
    /// `remaining` bytes of a chunk's payload.
    Data = 6,
    /// The carriage return behind a chunk's payload.
    DataEnd = 7,
    /// The line feed behind a chunk's payload.
    DataEndLf = 8,
    /// First byte of a trailer line, or of the empty line that ends the body.
    TrailerStart = 9,
    /// Within a trailer line.
    Trailer = 10,
    /// The line feed that ends the body.
    TrailerEnd = 11,
}

/// The body breaks the framing rules: nothing after this byte can be trusted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Malformed;

/// What [`Framing::advance`] did.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Advance {
    /// Bytes taken from the front of the input.
    pub consumed: usize,
    /// Of those, the last `payload` bytes are payload; the ones before are framing.
    pub payload: usize,
}

/// The machine's whole state. `repr(C)`: it is also the part of a flow's map value that the kernel
/// programs and the daemon hand to each other.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Framing {
    /// Payload bytes left of the body or the chunk; while in [`State::Size`], the size read so far.
    remaining: u64,
    /// Chunks with payload that have been seen whole.
    chunks: u64,
    /// A [`State`] as number, as the kernel side may not hold an invalid enum.
    state: u32,
    /// Bytes of the current chunk-size line, or of the trailers so far.
    line: u32,
}
