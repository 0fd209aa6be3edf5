//! What pods say about their prefix caches: KV events, which vLLM and SGLang publish over ZeroMQ if they are told to.
//!
//! In the order in which a message goes through them:
//!
//! - [`follow()`]: one task for each pod subscribes, and again when it is cut off.
//! - [`batch`]: one message becomes changes of a cache.
//! - [`tracker`]: the changes become what one pod holds.
//! - [`learn`]: which of that are the prompts that the gateway knows.
//! - [`CacheSink`]: corrects the prefix index.
//!
//! # What is exact, and what is a guess
//!
//! The prefix index ([`crate::schedule::prefix`]) has blocks of text, a pod has blocks of tokens, and the gateway no
//! tokenizer. So events correct the index and do not replace it: a prompt's blocks are put into it when a request is given to
//! a pod, with or without events.
//!
//! Exact is
//!
//! - that a pod's cache was emptied, or the pod restarted and counts from 0 again: the index forgets all of its blocks;
//! - which blocks of tokens were stored and removed since the first message, the last gap or the last cut, and with [`Knowledge::All`] how
//!   many tokens the pod holds. The index never takes it to hold clearly more, once the pod has removed any.
//!
//! A guess is
//!
//! - which blocks of tokens a prompt has ([`learn`] says how it is made). Requests of other gateways and clients are never
//!   recognised, and of ours those only whose number of tokens the pod tells;
//! - where in a chain of tokens a block of text ends: by its share of the whole;
//! - of which prompts the oldest blocks are, when the index is held to the number of tokens: the ones that this gateway
//!   used last are kept.
//!
//! A prompt whose start the pod stored before the gateway listened, or before a gap, is not recognised until the pod has
//! forgotten that start.
//!
//! Prompts that are lists of tokens are treated as text too: the index has them in blocks of their letters. A pod with
//! several data-parallel ranks behind one address has a publisher for each; only the one at the port is followed. As soon as
//! the pod's metrics or a message show that there are several, the index is neither emptied nor held to a number
//! of tokens by what that one tells.

pub mod batch;
mod follow;
pub mod learn;
mod sink;
#[cfg(test)]
mod testing;
pub mod tracker;
mod wire;

pub use follow::{Target, follow};
pub use learn::Observation;
pub use sink::{CacheSink, Held};
pub use tracker::{Change, Knowledge};
pub use wire::Failure;

/// Where what was learned about one pod's cache goes. Called from the pod's task: cheap implementations only.
pub trait Sink {
    /// A subscription was made.
    fn connected(&self);

    /// The pod has told of changes.
    fn changed(&self, change: &Change);

    /// What is known of the pod's cache takes this much memory.
    fn takes(&self, bytes: usize);

    /// A prompt was recognised in the pod's cache, or not.
    fn learned(&self, recognised: bool);

    /// The subscription could not be made, or is over. What was learned before stays true until a change says otherwise.
    fn failed(&self, failure: &Failure);
}
