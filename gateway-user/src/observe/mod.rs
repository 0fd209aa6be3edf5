//! What the pods say about themselves.

pub mod exposition;
