//! What the load generator and the mock pod of the benchmarks agree on.

pub mod event;
pub mod report;
