//! The KV cache of one engine: blocks, who holds them, and which prompts they still remember.
//!
//! A block that nobody holds keeps its content until it is needed again; the block freed longest
//! ago goes first. Memory grows with the blocks ever used, not with the capacity, so that a
//! thousand simulated pods fit in one process.

use std::collections::HashMap;

/// Tokens in a block, vLLM's default.
pub const BLOCK_TOKENS: u32 = 16;

/// Blocks of one engine.
#[derive(Debug)]
pub struct KvCache {
    capacity: u32,
    used: u32,
    blocks: Vec<Block>,
    /// The blocks that nobody holds, oldest first.
    oldest: Option<u32>,
    newest: Option<u32>,
    by_hash: HashMap<u64, u32>,
    /// What changed since it was last asked for; none while nobody wants to know.
    changes: Option<Vec<Change>>,
}

/// A change of what is remembered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Change {
    /// A block with this content came, behind `parent` in its prompt.
    Stored {
        /// Its content.
        hash: u64,
        /// That of the block ahead of it.
        parent: Option<u64>,
    },
    /// A block with this content went.
    Removed {
        /// Its content.
        hash: u64,
    },
}

impl KvCache {
    /// An empty cache of `capacity` blocks.
    pub fn new(capacity: u32) -> Self {
        Self {
            capacity,
            used: 0,
            blocks: Vec::new(),
            oldest: None,
            newest: None,
            by_hash: HashMap::new(),
            changes: None,
        }
    }

    /// Notes changes from now on.
    pub fn note_changes(&mut self) {
        self.changes = Some(Vec::new());
    }

    /// The changes since the last time, in their order.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Blocks in all.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Blocks that a request holds.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Blocks that can be had, remembered ones among them.
    pub fn free(&self) -> u32 {
        self.capacity - self.used
    }

    /// How many of these blocks, from the first on, are cached; and how many of those nobody holds,
    /// so that taking them uses up free ones.
    pub fn cached(&self, hashes: &[u64]) -> (u32, u32) {
        let (mut hits, mut idle) = (0, 0);
        for hash in hashes {
            let Some(&index) = self.by_hash.get(hash) else { break };
            hits += 1;
            idle += u32::from(self.block(index).holders == 0);
        }
        (hits, idle)
    }

    /// Holds the cached block with this content.
    pub fn hold(&mut self, hash: u64) -> Option<u32> {
        let index = *self.by_hash.get(&hash)?;
        if self.block(index).holders == 0 {
            self.unlink(index);
            self.used += 1;
        }
        self.block_mut(index).holders += 1;
        Some(index)
    }

    /// Holds a block with no content, and forgets an old one if need be. `None` when all are held.
    pub fn allocate(&mut self) -> Option<u32> {
        let fresh = u32::try_from(self.blocks.len()).ok().filter(|len| *len < self.capacity);
        let index = if let Some(index) = fresh {
            self.blocks.push(Block { hash: None, holders: 0, older: None, newer: None });
            index
        } else {
            let index = self.oldest?;
            self.unlink(index);
            if let Some(hash) = self.block_mut(index).hash.take() {
                self.by_hash.remove(&hash);
                self.note(Change::Removed { hash });
            }
            index
        };
        self.block_mut(index).holders = 1;
        self.used += 1;
        Some(index)
    }

    /// Names the content of a held block. Content that another block has stays with that one.
    pub fn name(&mut self, index: u32, hash: u64) {
        self.name_behind(index, hash, None);
    }

    /// As [`Self::name`]; `parent` is the content of the block ahead of it.
    pub fn name_behind(&mut self, index: u32, hash: u64, parent: Option<u64>) {
        if self.block(index).hash.is_none() && !self.by_hash.contains_key(&hash) {
            self.by_hash.insert(hash, index);
            self.block_mut(index).hash = Some(hash);
            self.note(Change::Stored { hash, parent });
        }
    }

    /// Gives a held block back.
    pub fn release(&mut self, index: u32) {
        let block = self.block_mut(index);
        block.holders -= 1;
        if block.holders > 0 {
            return;
        }
        self.used -= 1;
        let newest = self.newest.replace(index);
        let block = self.block_mut(index);
        (block.older, block.newer) = (newest, None);
        match newest {
            Some(newest) => self.block_mut(newest).newer = Some(index),
            None => self.oldest = Some(index),
        }
    }

    fn note(&mut self, change: Change) {
        if let Some(changes) = &mut self.changes {
            changes.push(change);
        }
    }

    /// Takes a block that nobody holds out of the list of those.
    fn unlink(&mut self, index: u32) {
        let block = self.block_mut(index);
        let (older, newer) = (block.older.take(), block.newer.take());
        match older {
            Some(older) => self.block_mut(older).newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => self.block_mut(newer).older = older,
            None => self.newest = older,
        }
    }

    #[expect(clippy::indexing_slicing, reason = "indexes come from allocate; blocks never go away")]
    fn block(&self, index: u32) -> &Block {
        &self.blocks[index as usize]
    }

    #[expect(clippy::indexing_slicing, reason = "indexes come from allocate; blocks never go away")]
    fn block_mut(&mut self, index: u32) -> &mut Block {
        &mut self.blocks[index as usize]
    }
}

#[derive(Debug)]
struct Block {
    hash: Option<u64>,
    holders: u32,
    older: Option<u32>,
    newer: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_free_block_is_forgotten_first() {
        let mut cache = KvCache::new(3);
        let held: Vec<u32> = (0..3).map(|_| cache.allocate().unwrap()).collect();
        assert_eq!(cache.allocate(), None);
        for (index, hash) in held.iter().zip([10, 11, 12]) {
            cache.name(*index, hash);
        }
        for index in [1, 0, 2] {
            cache.release(held[index]);
        }
        assert_eq!((cache.used(), cache.free()), (0, 3));
        assert_eq!(cache.cached(&[10, 11, 12]), (3, 3));
        cache.allocate().unwrap();
        assert_eq!(cache.cached(&[10, 11]), (1, 1), "11 was freed first");
        assert_eq!(cache.hold(10), Some(held[0]));
        assert_eq!(cache.cached(&[10, 12]), (2, 1));
        cache.allocate().unwrap();
        assert_eq!(cache.cached(&[12]), (0, 0));
        assert_eq!(cache.allocate(), None);
    }

    #[test]
    fn a_block_is_shared_and_freed_by_its_last_holder() {
        let mut cache = KvCache::new(2);
        let index = cache.allocate().unwrap();
        cache.name(index, 7);
        assert_eq!(cache.hold(7), Some(index));
        assert_eq!(cache.used(), 1);
        cache.release(index);
        assert_eq!(cache.used(), 1);
        cache.release(index);
        assert_eq!(cache.used(), 0);
    }

    #[test]
    fn first_block_with_a_content_keeps_it() {
        let mut cache = KvCache::new(2);
        let (a, b) = (cache.allocate().unwrap(), cache.allocate().unwrap());
        cache.name(a, 7);
        cache.name(b, 7);
        assert_eq!(cache.hold(7), Some(a));
    }

    #[test]
    fn changes_are_noted_once_they_are_wanted() {
        let mut cache = KvCache::new(1);
        let block = cache.allocate().unwrap();
        cache.name(block, 1);
        assert_eq!(cache.take_changes(), []);
        cache.note_changes();
        cache.release(block);
        let block = cache.allocate().unwrap();
        cache.name_behind(block, 2, Some(1));
        cache.name_behind(block, 3, Some(1));
        let expected = [Change::Removed { hash: 1 }, Change::Stored { hash: 2, parent: Some(1) }];
        assert_eq!(cache.take_changes(), expected);
        assert_eq!(cache.take_changes(), []);
    }
}
