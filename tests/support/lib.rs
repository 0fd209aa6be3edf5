//! What the tests share: [`gateway`] starts the real binary, [`client`] says and sees every byte,
//! [`engine`] is a simulated model server, [`pod`] one that a test writes by hand, [`script`] one
//! whose every byte a client can foretell by [`pattern`], [`soak`] traffic between such two,
//! [`smuggling`] messages that may be read in two ways, [`hostile`] clients that are slow on purpose, [`chaos`] pods
//! that fail in every way, [`load`] clients that fail at anything but a whole answer, [`netns`] a network of a test's
//! own, [`tun`] a device whose far end the test is, [`hand`] a pod there that makes its own segments, [`steering`] what
//! is steered, [`tls`] and [`http2`] clients of both, [`front`] TLS before a pod, [`sim`] a whole fleet in no time, [`bench`] what the benchmarks
//! have in common.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests fail by panic as tests do"
)]

#[path = "../bench/mod.rs"]
pub mod bench;
pub mod chaos;
pub mod client;
#[path = "../engine/mod.rs"]
pub mod engine;
pub mod front;
pub mod gateway;
pub mod hand;
pub mod hostile;
pub mod http2;
pub mod load;
pub mod netns;
pub mod pattern;
pub mod pod;
pub mod script;
#[path = "../sim/mod.rs"]
pub mod sim;
pub mod smuggling;
pub mod soak;
pub mod steering;
pub mod tls;
pub mod tun;
