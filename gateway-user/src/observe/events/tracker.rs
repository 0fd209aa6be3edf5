//! What one pod holds in its prefix cache, by its own events.
//!
//! Every block that was stored is held until as many removals of it came as it was stored: vLLM may have several copies
//! of a block and tells of each. Only the GPU's memory counts, and of a model with several groups of layers the first
//! group that keeps all of a prompt: a prompt's other parts are of no use without it.
//!
//! Messages are numbered from 0. One that is missing, or cannot be read, may have taken any block away: all is forgotten
//! then, and what is stored from there on is known again. A number that goes back means that the pod was restarted, and
//! its cache is empty. Where the process may have been replaced unseen, all is forgotten as well: the numbers of
//! another process are not the continuation of its own, even where they are higher. What the pod stored before is not known
//! until it clears its cache or is restarted: see [`Knowledge`].
//!
//! Pure: no IO, and the time comes from the caller.

use std::collections::{HashMap, HashSet, VecDeque};
use std::num::NonZeroU64;

use tokio::time::Instant;

use super::batch::{Batch, Event, Place, Removed, Stored};

/// What one pod holds.
#[derive(Debug, Default)]
pub struct Tracker {
    /// The number of the next message, once there was one.
    next: Option<u64>,
    /// The number that was next when the process may have been replaced, until there is a new message.
    before: Option<u64>,
    knowledge: Knowledge,
    /// The group of layers that is followed, and the tokens of its blocks.
    followed: Option<(u32, u32)>,
    pub(super) blocks: HashMap<u64, Block>,
    /// The last blocks of what was stored in one step, the oldest first.
    pub(super) tips: VecDeque<Tip>,
}

/// How much of a pod's cache is known.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Knowledge {
    /// Nothing: there was no message yet.
    #[default]
    Nothing,
    /// What was stored since some moment, but not whether there is anything older.
    Recent,
    /// All that it holds.
    All,
}

/// What a message changed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Change {
    /// The cache was emptied, ahead of all else in the message that is still true.
    pub is_cleared: bool,
    /// Blocks of the prefix index that the pod holds no more: those that were learned to be its blocks.
    pub removed: Vec<u64>,
    /// How many tokens the pod holds now; only if some went and all is known.
    pub tokens: Option<u64>,
    /// How much is known from now on.
    pub knowledge: Knowledge,
    /// The data-parallel rank that it is about.
    pub rank: u32,
    /// Events of kinds that are known.
    pub events: usize,
    /// Messages that never came.
    pub lost: u64,
    /// The message could not be read.
    pub is_broken: bool,
}

/// A block that the pod holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// The block ahead of it. One of hash 0 is taken for none, which is as likely as any other mistake of one in 2⁶⁴.
    pub(super) parent: Option<NonZeroU64>,
    /// Of the prefix index, the block that this is a part of; 0 as above.
    pub(super) ours: Option<NonZeroU64>,
    /// Blocks from the prompt's start to this one, itself included; or [`UNKNOWN`].
    pub(super) depth: u32,
    copies: u16,
}

/// A block that nothing was stored behind in the same step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tip {
    pub(super) at: Instant,
    pub(super) hash: u64,
    pub(super) depth: u32,
}

impl Tracker {
    /// The number of the first message that is missing ahead of this one, if there is one.
    pub fn missing(&self, number: u64) -> Option<u64> {
        // A number that goes back is of a new process, which has counted from 0.
        let next = self.next.filter(|next| *next <= number).unwrap_or(0);
        (next < number).then_some(next)
    }

    /// The pod may be another process from now on: nothing is known of its cache until it tells.
    pub fn cut_off(&mut self) {
        self.before = self.next.take().or(self.before);
        self.forget(Knowledge::Nothing);
    }

    /// Takes the payload of the message with this number, which came just now. No time: it is an old one.
    pub fn message(
        &mut self,
        number: u64,
        payload: &[u8],
        now: impl Into<Option<Instant>>,
    ) -> Change {
        let now = now.into();
        let mut change = Change::default();
        match self.next {
            None if number == 0 => self.knowledge = Knowledge::All,
            None => self.knowledge = Knowledge::Recent,
            Some(next) if number == next => {}
            Some(next) if number > next => {
                change.lost = number - next;
                self.forget(Knowledge::Recent);
            }
            // Restarted.
            Some(_) => {
                change.is_cleared = true;
                change.lost = number;
                self.forget(if number == 0 { Knowledge::All } else { Knowledge::Recent });
            }
        }
        // Not of an old message, which this process may have sent ahead of the cut.
        if now.is_some() && self.before.take().is_some_and(|before| number < before) {
            change.is_cleared = true;
        }
        self.next = Some(number.wrapping_add(1));
        match Batch::read(payload) {
            Ok(batch) => self.batch(&batch, now, &mut change),
            Err(_) => {
                change.is_broken = true;
                self.forget(Knowledge::Recent);
            }
        }
        change.knowledge = self.knowledge;
        change
    }

    /// How much is known.
    pub fn knowledge(&self) -> Knowledge {
        self.knowledge
    }

    /// Tokens in the blocks that the pod is known to hold.
    pub fn tokens(&self) -> u64 {
        self.blocks.len() as u64 * u64::from(self.block_size())
    }

    /// About how much memory it takes, in bytes.
    pub fn bytes(&self) -> usize {
        // A table is full at seven eighths, and has a byte more for each place.
        let places = self.blocks.capacity() / 7 * 8;
        places * (size_of::<(u64, Block)>() + 1) + self.tips.capacity() * size_of::<Tip>()
    }

    /// Tokens in a block; 0 before there is one.
    pub(super) fn block_size(&self) -> u32 {
        self.followed.map_or(0, |(_, size)| size)
    }
}

impl Tracker {
    fn batch(&mut self, batch: &Batch, now: Option<Instant>, change: &mut Change) {
        let mut tips = Vec::new();
        let mut went = false;
        change.events = batch.events.len();
        change.rank = batch.rank;
        for event in &batch.events {
            match event {
                Event::Stored(stored) => self.stored(stored, &mut tips),
                Event::Removed(removed) => went |= self.removed(removed, &mut change.removed),
                Event::Cleared => {
                    change.is_cleared = true;
                    change.removed.clear();
                    tips.clear();
                    self.forget(Knowledge::All);
                }
            }
            if self.blocks.len() > MAX_BLOCKS {
                tips.clear();
                self.forget(Knowledge::Recent);
            }
        }
        change.removed.sort_unstable();
        change.removed.dedup();
        // Of a pod whose groups of layers are all partial nothing is followed, which is not a cache that is empty.
        let is_told = went && self.followed.is_some() && self.knowledge == Knowledge::All;
        change.tokens = is_told.then(|| self.tokens());
        if let Some(now) = now {
            self.note_tips(&tips, now);
        }
    }

    fn stored(&mut self, stored: &Stored, tips: &mut Vec<u64>) {
        let Stored { hashes, parent, block_size, place, is_whole } = stored;
        if !place.is_local_gpu || !is_whole {
            return;
        }
        let (group, size) = *self.followed.get_or_insert((place.group, *block_size));
        if group != place.group {
            return;
        }
        if size != *block_size {
            // Not what it was, whatever it is.
            self.forget(Knowledge::Recent);
            self.followed = Some((group, *block_size));
        }
        let mut parent = *parent;
        let mut depth = match parent {
            None => 0,
            Some(parent) => self.blocks.get(&parent).map_or(UNKNOWN, |block| block.depth),
        };
        for &hash in hashes {
            // Too many: all is forgotten behind this event.
            if self.blocks.len() > MAX_BLOCKS {
                break;
            }
            depth = if depth == UNKNOWN { UNKNOWN } else { depth.saturating_add(1) };
            let new =
                Block { parent: parent.and_then(NonZeroU64::new), ours: None, depth, copies: 0 };
            let block = self.blocks.entry(hash).or_insert(new);
            block.copies = block.copies.saturating_add(1);
            parent = Some(hash);
        }
        tips.extend(hashes.last());
    }

    /// Whether a block that was followed went.
    fn removed(&mut self, removed: &Removed, ours: &mut Vec<u64>) -> bool {
        let Place { is_local_gpu, group } = removed.place;
        if !is_local_gpu || self.followed.is_none_or(|(followed, _)| followed != group) {
            return false;
        }
        let mut went = false;
        for hash in &removed.hashes {
            let Some(block) = self.blocks.get_mut(hash) else { continue };
            block.copies = block.copies.saturating_sub(1);
            if block.copies == 0 {
                ours.extend(block.ours.map(NonZeroU64::get));
                self.blocks.remove(hash);
                went = true;
            }
        }
        went
    }

    fn forget(&mut self, knowledge: Knowledge) {
        self.blocks = HashMap::new();
        self.tips.clear();
        self.followed = None;
        self.knowledge = knowledge;
    }

    /// SGLang tells of each block by itself, so that a block is a tip only if no other of the message follows it.
    fn note_tips(&mut self, tips: &[u64], now: Instant) {
        let block = |tip: &u64| self.blocks.get(tip).map(|block| (*tip, *block));
        let parents = tips.iter().filter_map(block).filter_map(|(_, block)| block.parent);
        let parents: HashSet<u64> = parents.map(NonZeroU64::get).collect();
        let tips = tips.iter().filter_map(block);
        let tips = tips.filter(|(tip, block)| block.depth != UNKNOWN && !parents.contains(tip));
        let tips = tips.map(|(hash, block)| Tip { at: now, hash, depth: block.depth });
        for tip in tips.collect::<Vec<_>>() {
            if self.tips.len() >= MAX_TIPS {
                self.tips.pop_front();
            }
            self.tips.push_back(tip);
        }
    }
}

/// The depth of a block whose prompt's start is not known.
pub(super) const UNKNOWN: u32 = u32::MAX;

/// Most blocks that are followed: 7 million tokens in blocks of 16, and with SGLang's blocks of a single token what an 8B
/// model has in 80 GB. It takes some 40 to 75 bytes for each, so 35 MB for a pod at most.
const MAX_BLOCKS: usize = 7 << 16;

/// How many ends of prompts are remembered: of some minutes, as answers are that long.
const MAX_TIPS: usize = 1 << 15;

#[cfg(test)]
mod tests;
