//! What the gateway does, seen from outside: one module for each subject.

mod bodies;
mod framing;
mod http;
mod models;
mod recorder;
mod requests;
mod steer;
