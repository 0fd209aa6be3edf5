//! Bounds that the kernel programs and the daemon agree on, each with what it costs.

/// Longest chunk-size line (size, extensions, line end) of a chunked body, in bytes. Real servers send
/// under 10; the rest is room for extensions.
pub const CHUNK_LINE: u32 = 4 * 1024;

/// Longest trailer section of a chunked body, in bytes.
pub const TRAILERS: u32 = 16 * 1024;
