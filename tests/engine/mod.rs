//! A simulated model server: speaks like vLLM, runs like a GPU, fails on command.
//!
//! Tests start it in process ([`Server::start`]), demos and benchmarks run the binary `engine`, and
//! the simulator drives the pure part alone ([`model::Engine`] with a [`gpu::Gpu`]). It never talks
//! to anything but its clients, and shares no code with the gateway.
//!
//! ```
//! use sluice_tests::engine::{Faults, Gpu, Options, Server};
//!
//! let pod = Server::start(Options { speed: 10.0, ..Options::on(Gpu::named("l4").unwrap()) })?;
//! pod.fault(Faults { status: Some(503), times: Some(2), ..Faults::default() });
//! // … requests to pod.addr …
//! assert_eq!(pod.stats().requests_to("/v1/chat/completions"), 0);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! - [`model`], [`request`], [`kv`], [`gpu`]: the engine; no clock, no IO.
//! - [`api`], [`wire`], [`metrics`], [`exposition`]: what goes over the wire; pure.
//! - [`faults`], [`stats`]: what tests set and look at.
//! - `pod`, `routes`, `conn`, `events`, `peer`, `server`: clock, endpoints, answers, sockets, threads.

pub mod api;
mod conn;
mod events;
pub mod exposition;
pub mod faults;
pub mod gpu;
pub mod kv;
pub mod metrics;
pub mod model;
mod options;
mod peer;
mod pod;
pub mod request;
mod routes;
mod server;
pub mod stats;
#[cfg(test)]
mod test_client;
pub mod wire;
#[cfg(test)]
mod wire_test;

pub use api::digest;
pub use faults::{Faults, MetricsFault};
pub use gpu::Gpu;
pub use metrics::Style;
pub use model::Limits;
pub use options::Options;
pub use server::Server;
pub use stats::Stats;
