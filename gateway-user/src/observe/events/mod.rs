//! What pods say about their prefix caches: KV events, which vLLM and SGLang publish over ZeroMQ.
//!
//! - [`batch`]: one message becomes changes of a cache.

pub mod batch;
