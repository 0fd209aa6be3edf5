//! The Sluice daemon: the life of a request, module by module.
//!
//! 1. [`listen`]: sk_lookup, or an ordinary listener, hands a connection to a worker; [`connection`] serves its
//!    requests one after the other.
//! 2. [`request`]: head, [`auth`] by its credentials, body, and in the body the model.
//! 3. [`rewrites`]: another model may be served in its place. [`route`]: its name leads to a pool, and perhaps to an
//!    adapter.
//! 4. [`schedule`]: filter, score, pick; [`pool`] reserves the place in the same step.
//! 5. [`limit`]: the key or the model has used up what it may: 429. [`admit`]: no pod fits: 429 or 503.
//! 6. [`upstream`]: a kept connection to the pod, or a new one.
//! 7. [`flow`]: the answer is held until its first content, then carried to the client. It ends once.
//! 8. [`account`]: what is left of the request: counts, times, a log line.
//!
//! Beside it: [`config`], [`discover`] (Kubernetes, as its source), [`observe`] (what pods say of themselves), [`watch`]
//! (into the pools), [`publish`] (into the kernel), [`direct`] (whole connections to pods of this host), [`exchange`]
//! (with other gateways), [`metrics`], [`admin`], [`status`] and [`explain`] (for operators), [`run`] (start and stop),
//! [`reload`] (another configuration while it runs), [`takeover`] (from one daemon to
//! the next), [`cli`]. [`kernel`] is the only
//! module that names aya. [`gateway`] is what all parts share, [`responses`] which pod has which stored response, [`client`] the client's socket, [`error`] what a
//! client is told.

#![deny(unsafe_code)]

pub mod account;
pub mod admin;
pub mod admit;
pub mod auth;
pub mod cli;
pub mod client;
pub mod config;
pub mod connection;
pub mod direct;
pub mod discover;
pub mod error;
pub mod exchange;
pub mod explain;
pub mod flow;
pub mod gateway;
pub mod http2;
#[allow(unsafe_code, reason = "sockets and maps are handed to the kernel by descriptor")]
pub mod kernel;
pub mod limit;
pub mod listen;
pub mod metrics;
pub mod observe;
pub mod pool;
pub mod publish;
pub mod reload;
pub mod request;
pub mod responses;
pub mod rewrites;
pub mod route;
pub mod run;
pub mod schedule;
pub mod staleness;
pub mod status;
pub mod takeover;
pub mod tls;
pub mod upstream;
pub mod watch;
