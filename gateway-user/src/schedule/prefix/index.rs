//! Which pods hold which blocks, for all workers.
//!
//! Two sides: hash to the set of pods that hold the block, for [`Index::matched`], and each pod's own blocks in the
//! order of their last use, for forgetting ([`Lru`]). Both are compact tables, together about 30 bytes for each
//! block of each pod.
//!
//! Locks: the sets are in [`SHARDS`] parts by the hash's low bits, each behind a lock that is held for one look-up, about
//! 50 ns, and never together with another part's. A match takes about `log2(blocks)` look-ups for each length of
//! match that pods differ by, not one for each block, so that a prompt of a million tokens holds nobody up. Each pod's own side
//! has a lock of its own, which only dispatches to this very pod meet; it is held while the prompt's blocks are put in.
//! The order is: list of pods, pod, part. A match may see half of a dispatch that is being noted: it then finds
//! fewer blocks, never wrong ones.
//!
//! It is a guess, made of what this gateway sent where; it has no clock, and a pod that is not told to have left or
//! restarted is remembered.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use super::holders::Holders;
use super::lru::{Lru, key};
use super::matches::Matches;

/// Hash to pods, and pods' blocks.
#[derive(Debug)]
pub struct Index {
    shards: Box<[Mutex<Holders>]>,
    members: RwLock<Members>,
    /// Words of 64 pods that a set of pods needs.
    words: AtomicUsize,
}

/// A pod's place in an [`Index`]. Once the pod has left, it stands for nothing.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Slot {
    pub(super) index: u16,
    epoch: u32,
}

/// What an index takes up.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// Memory, in bytes.
    pub bytes: usize,
    /// Blocks of all pods; a block that two pods hold counts twice.
    pub entries: usize,
    /// Different blocks.
    pub hashes: usize,
}

#[derive(Debug, Default)]
struct Members {
    all: Vec<Mutex<Member>>,
    /// Places in `all` where no pod is any more.
    free: Vec<u16>,
}

#[derive(Debug, Default)]
struct Member {
    /// Counts up when the pod leaves, so that its slot is known to be an old one.
    epoch: u32,
    lru: Lru,
}

impl Index {
    /// An empty index.
    pub fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(Holders::new(1))).collect(),
            members: RwLock::default(),
            words: AtomicUsize::new(1),
        }
    }

    /// Takes a pod in that holds `capacity` blocks. `None` when there are [`MAX_PODS`].
    pub fn join(&self, capacity: usize) -> Option<Slot> {
        let mut members = self.members.write();
        let Members { all, free } = &mut *members;
        let index = match free.pop() {
            Some(index) => index,
            None if all.len() >= MAX_PODS => return None,
            None => {
                all.push(Mutex::default());
                self.widen(all.len());
                u16::try_from(all.len() - 1).ok()?
            }
        };
        let member = all.get_mut(usize::from(index))?.get_mut();
        member.lru = Lru::new(capacity);
        Some(Slot { index, epoch: member.epoch })
    }

    /// The pod holds `capacity` blocks from now on.
    pub fn resize(&self, slot: Slot, capacity: usize) {
        self.with(slot, |member| {
            member.lru.resize(capacity);
            self.trim(slot, &mut member.lru);
        });
    }

    /// The pod has been restarted, or has said that its cache is empty.
    pub fn clear(&self, slot: Slot) {
        self.with(slot, |member| member.lru.clear(|block| self.forget(slot, block)));
    }

    /// The pod has gone; `slot` stands for nothing from now on.
    pub fn leave(&self, slot: Slot) {
        let was_here = self.with(slot, |member| {
            member.lru.clear(|block| self.forget(slot, block));
            member.epoch = member.epoch.wrapping_add(1);
        });
        if was_here {
            self.members.write().free.push(slot.index);
        }
    }

    /// The pod has been given a prompt of these blocks: it holds them, and of others the oldest no more if they do
    /// not all fit.
    pub fn insert(&self, slot: Slot, blocks: &[u64]) {
        self.with(slot, |member| {
            member.lru.touch(blocks, |block| self.shard(block).lock().add(block, slot.index));
            self.trim(slot, &mut member.lru);
        });
    }

    /// The pod has said that it holds these blocks no longer. A prompt's blocks go from its end: as long as those behind
    /// one of these are still here, a match may be taken to be longer than it is.
    pub fn remove(&self, slot: Slot, blocks: &[u64]) {
        self.with(slot, |member| {
            for block in blocks.iter().map(|&block| key(block)) {
                if member.lru.remove(block) {
                    self.forget(slot, block);
                }
            }
        });
    }

    /// The pod has said that it holds no more than `blocks` just now: if it is thought to hold clearly more, the oldest
    /// go. It may hold more again later.
    pub fn keep(&self, slot: Slot, blocks: usize) {
        self.with(slot, |member| member.lru.keep(blocks, |block| self.forget(slot, block)));
    }

    /// Finds for each pod how many of these blocks it holds from the first one on without a gap.
    pub fn matched(&self, blocks: &[u64], into: &mut Matches) {
        into.find(blocks, self.words.load(Ordering::Relaxed), |block, pods| {
            let block = key(block);
            self.shard(block).lock().read(block, pods);
        });
    }

    /// What it takes up.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for shard in &self.shards {
            let shard = shard.lock();
            usage.bytes += shard.bytes();
            usage.hashes += shard.len();
        }
        let members = self.members.read();
        for member in &members.all {
            let member = member.lock();
            usage.bytes += member.lru.bytes();
            usage.entries += member.lru.len();
        }
        usage.bytes += members.all.capacity() * size_of::<Mutex<Member>>();
        usage.bytes += self.shards.len() * size_of::<Mutex<Holders>>();
        usage
    }
}

impl Index {
    /// Drops the pod's oldest blocks if it holds too many.
    fn trim(&self, slot: Slot, lru: &mut Lru) {
        lru.trim(|block| self.forget(slot, block));
    }

    fn forget(&self, slot: Slot, block: u64) {
        self.shard(block).lock().remove(block, slot.index);
    }

    /// Makes room for this many pods in every set.
    fn widen(&self, pods: usize) {
        let words = pods.div_ceil(64);
        if words <= self.words.load(Ordering::Relaxed) {
            return;
        }
        for shard in &self.shards {
            shard.lock().widen(words);
        }
        self.words.store(words, Ordering::Relaxed);
    }

    /// Works on the pod, if it is still here: says whether it is.
    fn with(&self, slot: Slot, work: impl FnOnce(&mut Member)) -> bool {
        let members = self.members.read();
        let Some(member) = members.all.get(usize::from(slot.index)) else { return false };
        let mut member = member.lock();
        let is_here = member.epoch == slot.epoch;
        if is_here {
            work(&mut member);
        }
        is_here
    }

    fn shard(&self, block: u64) -> &Mutex<Holders> {
        #[expect(clippy::indexing_slicing, reason = "there are SHARDS of them, a power of two")]
        &self.shards[block as usize & (SHARDS - 1)]
    }
}

impl Default for Index {
    fn default() -> Self {
        Self::new()
    }
}

/// Most pods in one index. A block that several hold takes a bit for each that there may be.
pub const MAX_PODS: usize = 4096;

/// Parts of the sets: so many that 64 workers seldom want the same, and so few that an empty index is small.
const SHARDS: usize = 64;

#[cfg(test)]
mod tests;
