//! How much of one prompt each pod holds, while it is being found and afterwards.

use super::index::Slot;

/// How many leading blocks of a prompt each pod holds. Reused from request to request.
#[derive(Clone, Debug, Default)]
pub struct Matches {
    /// By the slots' indices; what is missing is 0.
    blocks: Vec<u32>,
    most: u32,
    /// Words of a set of pods.
    words: usize,
    /// Sets of pods one behind the other; the last is the one at hand, the others wait.
    sets: Vec<u64>,
    /// How many blocks the pods of the sets that wait hold, at least and at most.
    waiting: Vec<(usize, usize)>,
    /// The pods that hold the block at hand.
    pub(super) found: Vec<u64>,
}

/// What holding a block tells about a set of pods.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Split {
    All,
    None,
    Some,
}

impl Matches {
    /// How many blocks the pod holds of the prompt, from the first one on.
    pub fn blocks(&self, slot: Slot) -> u32 {
        self.blocks.get(usize::from(slot.index)).copied().unwrap_or(0)
    }

    /// The most that any pod holds.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// Finds the longest run for every pod of `words * 64`. `read` gives the pods that hold a block, and no pod may
    /// hold a block without those ahead of it.
    pub(super) fn find(&mut self, blocks: &[u64], words: usize, read: impl Fn(u64, &mut [u64])) {
        self.start(words);
        let Some(&first) = blocks.first() else { return };
        read(first, &mut self.found);
        self.sets.extend_from_slice(&self.found);
        if self.found.iter().all(|&word| word == 0) {
            return;
        }
        let (mut least, mut most) = (1, blocks.len());
        loop {
            while least < most {
                let middle = least + (most - least).div_ceil(2);
                let Some(&block) = blocks.get(middle - 1) else { break };
                read(block, &mut self.found);
                match self.split() {
                    Split::All => least = middle,
                    Split::None => most = middle - 1,
                    Split::Some => {
                        self.waiting.push((least, middle - 1));
                        least = middle;
                    }
                }
            }
            self.settle(u32::try_from(least).unwrap_or(u32::MAX));
            let Some(range) = self.waiting.pop() else { return };
            (least, most) = range;
        }
    }

    fn start(&mut self, words: usize) {
        self.words = words;
        self.most = 0;
        self.blocks.clear();
        self.sets.clear();
        self.waiting.clear();
        self.found.clear();
        self.found.resize(words, 0);
    }

    /// Splits the set at hand by the pods in `found`: those wait that are not among them.
    fn split(&mut self) -> Split {
        let start = self.sets.len().saturating_sub(self.words);
        let at_hand = self.sets.get_mut(start..).unwrap_or_default();
        let (mut within, mut without) = (false, false);
        for (&set, &found) in at_hand.iter().zip(&self.found) {
            within |= set & found != 0;
            without |= set & !found != 0;
        }
        match (within, without) {
            (false, _) => Split::None,
            (true, false) => Split::All,
            (true, true) => {
                for (set, found) in at_hand.iter_mut().zip(&mut self.found) {
                    *found &= *set;
                    *set &= !*found;
                }
                self.sets.extend_from_slice(&self.found);
                Split::Some
            }
        }
    }

    /// The pods of the set at hand hold this many blocks.
    fn settle(&mut self, blocks: u32) {
        let start = self.sets.len().saturating_sub(self.words);
        for (place, &word) in self.sets.get(start..).unwrap_or_default().iter().enumerate() {
            let mut left = word;
            while left != 0 {
                let pod = place * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                if self.blocks.len() <= pod {
                    self.blocks.resize(pod + 1, 0);
                }
                if let Some(place) = self.blocks.get_mut(pod) {
                    *place = blocks;
                }
            }
        }
        self.sets.truncate(start);
        self.most = self.most.max(blocks);
    }
}
