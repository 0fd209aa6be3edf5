//! What the kernel programs and the daemon share.
//!
//! One noun, one file, the same name on both sides:
//!
//! - [`direct`]: which model server's own socket a connection goes to, and how many did.
//! - [`enrol`]: how the pods' ends of our connections are recognised.
//! - [`flow`]: a response that the kernel may carry, as both sides hand it to each other.
//! - [`framing`]: where an HTTP/1.1 body ends; both sides run this very machine.
//! - [`limits`]: the bounds that both sides must agree on.
//! - [`score`]: what the gateway makes of each pod, as published in a map.
//! - [`steer`]: which connections go to which workers, and how many did.
#![no_std]

pub mod direct;
pub mod enrol;
pub mod flow;
pub mod framing;
pub mod limits;
pub mod score;
pub mod steer;
