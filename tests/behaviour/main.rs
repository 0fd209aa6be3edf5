//! What the gateway does, seen from outside: one module for each subject.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::type_complexity,
    clippy::unwrap_used,
    reason = "helpers of tests fail by panic as tests do"
)]

mod bodies;
mod cli;
mod clients;
mod cuts;
mod demo;
mod framing;
mod http;
mod kernel;
mod lifecycle;
mod limits;
mod models;
mod recorder;
mod relay;
mod requests;
mod retries;
mod steer;
mod streams;
mod upstream;
