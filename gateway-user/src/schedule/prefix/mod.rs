//! Which pod has how much of a prompt in its cache: a guess, from what was sent where.
//!
//! - [`Prompt`]: a request's prompt as a chain of hashes, one for each block of tokens, and about how long it is.
//! - [`Index`]: the blocks that each pod is thought to hold.
//!
//! A request is read once ([`Prompt::read`]), looked up ([`Index::matched`]), and once it has been given to a pod its
//! blocks are noted there ([`Index::insert`]). A pod that comes, goes or is restarted is told to the index by
//! whoever learns of it. Pure: no IO, no clock.

mod chain;
mod cursor;
mod holders;
mod index;
mod lru;
mod matches;
mod prompt;
mod table;

pub use chain::{MAX_BLOCKS, Secret};
pub use index::{Index, MAX_PODS, Slot, Usage};
pub use matches::Matches;
pub use prompt::{BYTES_PER_TOKEN, HEAD_TOKENS, Prompt, Scope};

/// Tokens in a block of the index, for a pool whose pods have KV blocks of these sizes: a whole number of the largest,
/// and at least [`LEAST_BLOCK`], as smaller ones take more memory and tell no more.
pub fn block_tokens(kv_block_sizes: impl IntoIterator<Item = u32>) -> u32 {
    let largest = kv_block_sizes.into_iter().filter(|size| *size > 0).max().unwrap_or(1);
    if largest > MOST_BLOCK {
        return MOST_BLOCK;
    }
    largest * LEAST_BLOCK.div_ceil(largest)
}

/// How many blocks of `block_tokens` a pod holds that has a KV cache of `kv_tokens`.
pub fn capacity(kv_tokens: Option<u64>, block_tokens: u32) -> usize {
    let blocks = kv_tokens.unwrap_or(UNKNOWN_KV_TOKENS) / u64::from(block_tokens.max(1));
    usize::try_from(blocks).unwrap_or(usize::MAX).clamp(1, lru::MOST)
}

/// Fewest tokens in a block.
pub const LEAST_BLOCK: u32 = 64;

/// Most tokens in a block: vLLM has some KV blocks of more than 1,000 tokens for hybrid models.
const MOST_BLOCK: u32 = 2048;

/// KV cache of a pod that does not tell, in tokens: an 8B model on a GPU of 80 GB.
const UNKNOWN_KV_TOKENS: u64 = 500_000;
