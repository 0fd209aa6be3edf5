//! What a pool's pods are thought to have in their prefix caches, and the size of the blocks that it is kept in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::learned::Ratio;
use super::pod::Pod;
use crate::observe::events::Held;
use crate::request::scan::Parts;
use crate::schedule::exchange::mark;
use crate::schedule::prefix::{Index, Prompt, Scope, Secret, Slot, block_tokens};

/// The prefix index of one pool.
#[derive(Debug)]
pub(super) struct Cache {
    pub(super) index: Arc<Index>,
    secret: Secret,
    block_tokens: AtomicU32,
    /// What was learned last ([`Ratio`]), and what the pods' capacities were made of, as the bits of floats.
    ratio: AtomicU32,
    applied: AtomicU32,
}

impl Cache {
    /// Nothing is known of any pod.
    pub(super) fn new(secret: Secret) -> Self {
        Self {
            index: Arc::new(Index::new()),
            secret,
            block_tokens: AtomicU32::new(block_tokens([])),
            ratio: AtomicU32::new(1.0_f32.to_bits()),
            applied: AtomicU32::new(1.0_f32.to_bits()),
        }
    }

    /// Reads the prompt of a body whose parts have been found.
    pub(super) fn read(
        &self,
        body: &[u8],
        parts: &Parts,
        model: &str,
        adapter: Option<&str>,
    ) -> Prompt {
        let scope = Scope { model, adapter, block_tokens: self.block_tokens() };
        Prompt::read(body, parts, &scope, &self.secret)
    }

    /// A pod does not have these blocks, nor what other gateways have told of them.
    pub(super) fn forget(&self, slot: Slot, blocks: &[u64]) {
        self.index.remove(slot, blocks);
        let marks: Vec<u64> = blocks.iter().copied().map(mark).collect();
        self.index.remove(slot, &marks);
    }

    /// Tokens in each block of prompts that are read from now on.
    pub(super) fn block_tokens(&self) -> u32 {
        self.block_tokens.load(Ordering::Relaxed)
    }

    /// Takes the sizes of the pods' KV blocks. Returns whether that changes the size of ours; blocks of another
    /// size are then found no more, and are forgotten as the oldest.
    pub(super) fn set_block_sizes(&self, sizes: impl IntoIterator<Item = u32>) -> bool {
        let tokens = block_tokens(sizes);
        self.block_tokens.swap(tokens, Ordering::Relaxed) != tokens
    }

    /// Takes what was learned of how pods count tokens.
    pub(super) fn set_ratio(&self, ratio: Ratio) {
        self.ratio.store(ratio.0.to_bits(), Ordering::Relaxed);
    }

    /// How many guessed tokens there are in so many by a pod's own count: blocks are of guessed ones.
    pub(super) fn guessed(&self, tokens: u64) -> u64 {
        Ratio(f32::from_bits(self.ratio.load(Ordering::Relaxed))).guessed(tokens)
    }

    /// Whether pods have turned out to count clearly otherwise than when this was last asked: what their caches hold is
    /// another number of blocks then.
    pub(super) fn is_recounted(&self) -> bool {
        let ratio = self.ratio.load(Ordering::Relaxed);
        let of = f32::from_bits(ratio) / f32::from_bits(self.applied.load(Ordering::Relaxed));
        let is_other = (of - 1.0).abs() > CLEARLY;
        if is_other {
            self.applied.store(ratio, Ordering::Relaxed);
        }
        is_other
    }
}

/// A pod's part of the cache, for what its own events say of it.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) cache: Arc<Cache>,
    pub(super) slot: Slot,
    pub(super) pod: Arc<Pod>,
}

impl Held for Share {
    fn is_split(&self) -> bool {
        self.pod.is_split.load(Ordering::Relaxed)
    }

    fn cleared(&self) {
        self.cache.index.clear(self.slot);
    }

    fn removed(&self, blocks: &[u64]) {
        self.cache.forget(self.slot, blocks);
    }

    fn holds(&self, tokens: u64) {
        let blocks = self.cache.guessed(tokens).div_ceil(self.cache.block_tokens().max(1).into());
        self.cache.index.keep(self.slot, usize::try_from(blocks).unwrap_or(usize::MAX));
    }
}

/// By what share counts differ clearly.
const CLEARLY: f32 = 0.05;
