//! What the kernel programs and the daemon share.
//!
//! One noun, one file, the same name on both sides:
//!
//! - [`framing`]: where an HTTP/1.1 body ends; both sides run this very machine.
//! - [`limits`]: the bounds that both sides must agree on.
#![no_std]

pub mod framing;
pub mod limits;
