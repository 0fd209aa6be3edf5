//! What the gateway does, seen from outside: one module for each subject.

mod framing;
mod recorder;
mod requests;
mod steer;
