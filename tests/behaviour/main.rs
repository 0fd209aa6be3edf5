//! What the gateway does, seen from outside: one module for each subject.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::type_complexity,
    clippy::unwrap_used,
    reason = "helpers of tests fail by panic as tests do"
)]

mod access;
mod adapters;
mod affinity;
mod auth;
mod balance;
mod bodies;
mod budget;
mod chaos;
mod cli;
mod clients;
mod comments;
mod cuts;
mod datapath;
mod demo;
mod direct;
mod disconnects;
mod events;
mod exchange;
mod flows;
mod framing;
mod health;
mod herding;
mod hostile;
mod http;
mod http2;
mod kernel;
mod lifecycle;
mod limits;
mod metrics;
mod models;
mod objectives;
mod outages;
mod pod_tls;
mod prefixes;
mod promises;
mod rates;
mod realtime;
mod recorder;
mod relay;
mod reload;
mod requests;
mod retries;
mod rewrites;
mod signals;
mod smuggling;
mod steer;
mod streams;
mod surface;
mod takeover;
mod tls;
mod upstream;
mod usage;
