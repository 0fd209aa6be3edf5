//! The Sluice daemon.
pub mod config;
pub mod schedule;
