//! The Sluice daemon.
pub mod cli;
pub mod config;
pub mod kernel;
pub mod metrics;
pub mod request;
pub mod schedule;
