//! Which pods hold a block: one part of the blocks that all pods hold.
//!
//! Most blocks are held by one pod, which fits beside the hash. The others have a row of one bit for each pod.

use super::table::Table;

/// Sets of pods by block.
#[derive(Debug)]
pub(super) struct Holders {
    /// Block to its pod, or with [`ROW`] to the number of its row.
    sets: Table,
    /// Rows one behind the other, each `words` long. A row that is not in use starts with the number of the next
    /// such row, as in `free`.
    rows: Vec<u64>,
    words: usize,
    /// 1 and the number of a row that is not in use; 0 for none.
    free: u64,
}

impl Holders {
    /// No blocks, of `words * 64` pods.
    pub(super) fn new(words: usize) -> Self {
        Self { sets: Table::default(), rows: Vec::new(), words, free: 0 }
    }

    /// How many blocks are held.
    pub(super) fn len(&self) -> usize {
        self.sets.len()
    }

    /// Memory that it takes, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.sets.bytes() + self.rows.capacity() * size_of::<u64>()
    }

    /// A pod holds the block now.
    pub(super) fn add(&mut self, block: u64, pod: u16) {
        match self.sets.get(block) {
            None => {
                self.sets.insert(block, u32::from(pod));
            }
            Some(code) if code & ROW != 0 => self.mark(code & !ROW, pod),
            Some(code) if code == u32::from(pod) => {}
            Some(code) => {
                let Some(row) = self.take_row() else { return };
                self.mark(row, u16::try_from(code).unwrap_or_default());
                self.mark(row, pod);
                self.sets.insert(block, row | ROW);
            }
        }
    }

    /// A pod holds the block no longer.
    pub(super) fn remove(&mut self, block: u64, pod: u16) {
        match self.sets.get(block) {
            Some(code) if code & ROW != 0 => {
                let row = code & !ROW;
                let Some(words) = self.row(row) else { return };
                if let Some(word) = words.get_mut(usize::from(pod) / 64) {
                    *word &= !(1 << (pod % 64));
                }
                let Some(last) = only(words) else { return };
                self.give_row(row);
                self.sets.insert(block, u32::from(last));
            }
            Some(code) if code == u32::from(pod) => {
                self.sets.remove(block);
            }
            _ => {}
        }
    }

    /// Writes the block's pods into `set`, a bit for each.
    pub(super) fn read(&mut self, block: u64, set: &mut [u64]) {
        set.fill(0);
        match self.sets.get(block) {
            Some(code) if code & ROW != 0 => {
                let Some(words) = self.row(code & !ROW) else { return };
                for (to, from) in set.iter_mut().zip(words) {
                    *to = *from;
                }
            }
            Some(pod) => {
                if let Some(word) = set.get_mut(pod as usize / 64) {
                    *word |= 1 << (pod % 64);
                }
            }
            None => {}
        }
    }

    /// Makes the rows as long as `words`, which is more than before.
    pub(super) fn widen(&mut self, words: usize) {
        let old = self.words.max(1);
        let mut rows = Vec::with_capacity(self.rows.len() / old * words);
        for row in self.rows.chunks(old) {
            rows.extend_from_slice(row);
            rows.resize(rows.len() + words.saturating_sub(row.len()), 0);
        }
        self.rows = rows;
        self.words = words;
    }

    fn mark(&mut self, row: u32, pod: u16) {
        let word = self.row(row).and_then(|words| words.get_mut(usize::from(pod) / 64));
        if let Some(word) = word {
            *word |= 1 << (pod % 64);
        }
    }

    fn row(&mut self, row: u32) -> Option<&mut [u64]> {
        let start = row as usize * self.words;
        self.rows.get_mut(start..start + self.words)
    }

    /// A row without a pod.
    fn take_row(&mut self) -> Option<u32> {
        if let Some(free) = self.free.checked_sub(1) {
            let free = u32::try_from(free).ok()?;
            let words = self.row(free)?;
            let next = words.first().copied()?;
            words.fill(0);
            self.free = next;
            return Some(free);
        }
        let row = self.rows.len().checked_div(self.words)?;
        if self.rows.len() + self.words > self.rows.capacity() {
            self.rows.reserve_exact((row / 8 + 1) * self.words);
        }
        self.rows.resize(self.rows.len() + self.words, 0);
        u32::try_from(row).ok().filter(|row| row & ROW == 0)
    }

    fn give_row(&mut self, row: u32) {
        let next = self.free;
        if let Some(first) = self.row(row).and_then(<[u64]>::first_mut) {
            *first = next;
            self.free = u64::from(row) + 1;
        }
    }
}

/// The only pod of a set; none if there are more.
fn only(words: &[u64]) -> Option<u16> {
    let mut only = None;
    for (place, &word) in words.iter().enumerate() {
        match (word.count_ones(), only) {
            (0, _) => {}
            (1, None) => only = u16::try_from(place * 64 + word.trailing_zeros() as usize).ok(),
            _ => return None,
        }
    }
    only
}

/// Marks the number of a row.
const ROW: u32 = 1 << 31;
