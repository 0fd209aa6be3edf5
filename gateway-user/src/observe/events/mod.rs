//! What pods say about their prefix caches: KV events, which vLLM and SGLang publish over ZeroMQ.
//!
//! - [`batch`]: one message becomes changes of a cache.
//! - [`tracker`]: the changes become what one pod holds.
//! - [`learn`]: which of it are the prompts that the gateway knows.

pub mod batch;
pub mod learn;
#[cfg(test)]
mod testing;
pub mod tracker;
