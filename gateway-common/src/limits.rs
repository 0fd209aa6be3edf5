//! Bounds that the kernel programs and the daemon agree on, each with what it costs.

/// Longest chunk-size line (size, extensions, line end) of a chunked body, in bytes. Real servers send
/// under 10; the rest is room for extensions.
pub const CHUNK_LINE: u32 = 4 * 1024;

/// Longest trailer section of a chunked body, in bytes.
pub const TRAILERS: u32 = 16 * 1024;

/// Bytes that may be on their way to one client, unacknowledged, before its response goes back to the
/// daemon: what a client that stops reading costs.
pub const WINDOW: u64 = 256 * 1024;

/// Messages that may be on their way to one client, unacknowledged. Each costs the send buffer about 1.3 KiB
/// besides its bytes, and with the window all fit into [`SEND_BUFFER`].
pub const MESSAGES: u32 = 3072;

/// For how many of those the daemon's own writes are taken, as nobody counts them.
pub const UNCOUNTED: u32 = 1024;

/// What the daemon sets a client's send buffer to. The kernel doubles it for its own overhead; only what is
/// in it costs memory.
pub const SEND_BUFFER: usize = 4 * 1024 * 1024;

/// Largest message that the `local` program looks through, in bytes: what the verifier follows in an
/// offset. Larger ones go to the daemon.
pub const MESSAGE: u32 = 0x7fff;

/// Steps of the framing machine within one message: a step is a run of payload or a byte of framing.
/// Messages that need more go to the daemon.
pub const STEPS: u32 = 16 * 1024;
