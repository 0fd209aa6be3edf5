//! What the tests share.
#[path = "../engine/mod.rs"]
pub mod engine;

#[path = "../bench/mod.rs"]
pub mod bench;

pub mod netns;
