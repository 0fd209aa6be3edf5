//! What the gateway does, seen from outside: one module for each subject.

mod bodies;
mod cuts;
mod framing;
mod http;
mod models;
mod recorder;
mod relay;
mod requests;
mod retries;
mod steer;
mod streams;
