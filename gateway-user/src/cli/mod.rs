//! The commands of `sluice`.
pub mod check;
