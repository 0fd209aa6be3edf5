//! What the pods say about themselves.

pub mod engines;
pub mod exposition;
