//! Which blocks one pod is thought to hold: as many as fit, the ones used last.
//!
//! Each block has the time of its last use, and of one prompt's blocks the first is the youngest: so a block is never
//! older than one behind it, and the blocks that are held of a prompt are always its first ones. That is what the model
//! servers do as well, which give a prompt's blocks back from its end, and what lets [`super::Index`] look up a few
//! blocks of a prompt instead of all.
//!
//! Old blocks go in batches, found by one sweep: links for an exact order would take as much memory as all the rest.

use super::table::{EMPTY, Table};

/// The blocks of one pod.
#[derive(Debug, Default)]
pub(super) struct Lru {
    /// Block to the time of its last use.
    used: Table,
    /// Later than every use.
    now: u32,
    capacity: usize,
}

impl Lru {
    /// Of a pod that holds `capacity` blocks.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity: capacity.clamp(1, MOST), ..Self::default() }
    }

    /// How many blocks are held.
    pub(super) fn len(&self) -> usize {
        self.used.len()
    }

    /// Memory that it takes, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.used.bytes()
    }

    /// Notes the use of a prompt's blocks, the first ones that fit, and calls `come` for each that is new.
    pub(super) fn touch(&mut self, blocks: &[u64], mut come: impl FnMut(u64)) {
        let blocks = blocks.get(..self.capacity).unwrap_or(blocks);
        self.make_time(blocks.len());
        for (age, &block) in blocks.iter().rev().enumerate().rev() {
            let block = key(block);
            let time = self.now.saturating_add(u32::try_from(age).unwrap_or(u32::MAX));
            if self.used.insert(block, time).is_none() {
                come(block);
            }
        }
        self.now = self.now.saturating_add(u32::try_from(blocks.len()).unwrap_or(u32::MAX));
    }

    /// Sets how many blocks are held at most; [`Lru::trim`] has to follow.
    pub(super) fn resize(&mut self, capacity: usize) {
        self.capacity = capacity.clamp(1, MOST);
    }

    /// Drops the oldest blocks if there are too many, and some more so that the next time is not soon; calls `gone`
    /// for each.
    pub(super) fn trim(&mut self, gone: impl FnMut(u64)) {
        if self.used.len() > self.capacity {
            self.shrink(self.capacity - self.capacity / BATCH, gone);
        }
    }

    /// Drops the oldest blocks if there are clearly more than `count`; calls `gone` for each.
    pub(super) fn keep(&mut self, count: usize, gone: impl FnMut(u64)) {
        if self.used.len() > count.saturating_add(count / BATCH) {
            self.shrink(count, gone);
        }
    }

    /// Forgets one block. Says whether it was here.
    pub(super) fn remove(&mut self, block: u64) -> bool {
        self.used.remove(block).is_some()
    }

    /// Forgets everything; calls `gone` for each block.
    pub(super) fn clear(&mut self, gone: impl FnMut(u64)) {
        let old = std::mem::take(&mut self.used);
        old.iter().map(|(block, _)| block).for_each(gone);
        self.now = 0;
    }

    /// Drops all but so many blocks, the oldest, and those of the same age as the last of them.
    fn shrink(&mut self, count: usize, mut gone: impl FnMut(u64)) {
        let Some(last) = self.used.len().saturating_sub(count).checked_sub(1) else { return };
        let mut times: Vec<u32> = self.used.iter().map(|(_, time)| time).collect();
        let (_, &mut last, _) = times.select_nth_unstable(last);
        self.used.retain(|block, time| {
            let keep = *time > last;
            if !keep {
                gone(block);
            }
            keep
        });
    }

    /// Sees to it that there are `count` more moments. Now and then all ages are halved: blocks of about the same age
    /// become of the same age, and the first are still not older than the last.
    fn make_time(&mut self, count: usize) {
        let left = (u32::MAX - self.now) as usize;
        if left <= count {
            self.used.retain(|_, time| {
                *time /= 2;
                true
            });
            self.now = self.now / 2 + 1;
        }
    }
}

/// The hash as a key of the tables.
pub(super) fn key(block: u64) -> u64 {
    if block == EMPTY { 1 } else { block }
}

/// Most blocks of one pod: 8 million tokens in blocks of 64.
pub(super) const MOST: usize = 1 << 17;

/// What part of the blocks goes at a time: a sweep looks at all, so few at a time would cost a lot each.
const BATCH: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_run_out() {
        let mut lru = Lru::new(64);
        let (old, new) = ([11, 12, 13], [21, 22, 23]);
        lru.touch(&old, |_| {});
        lru.now = u32::MAX - 4;
        lru.touch(&new, |_| {});
        lru.touch(&new, |_| {});
        assert!(lru.now < u32::MAX, "{}", lru.now);
        // Both still known, the old still older.
        assert_eq!(lru.len(), 6);
        lru.resize(3);
        let mut gone = Vec::new();
        lru.trim(|block| gone.push(block));
        gone.sort_unstable();
        assert_eq!(gone, old);
    }

    #[test]
    fn a_prompt_goes_from_its_end() {
        let mut lru = Lru::new(32);
        let prompt: Vec<u64> = (1..=32).collect();
        lru.touch(&prompt, |_| {});
        let mut gone = Vec::new();
        lru.touch(&[100], |_| {});
        lru.trim(|block| gone.push(block));
        gone.sort_unstable();
        assert_eq!(gone, [30, 31, 32], "one too many, and a sixteenth of 32");
    }
}
