//! What the tests share.
#[path = "../engine/mod.rs"]
pub mod engine;
