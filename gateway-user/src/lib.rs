//! The Sluice daemon.
pub mod config;
pub mod metrics;
pub mod schedule;
