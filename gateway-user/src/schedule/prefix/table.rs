//! A map from block hashes to 32 bits, in as little memory as an index of millions of blocks can afford.
//!
//! Open addressing with linear probing, 12 bytes a slot and at most [`FULLEST`] full: a growing step is an eighth, where
//! the general hash maps double and so may stand half empty. A key's home follows from its high bits, and a run of
//! slots is kept in the order of the keys, so that the whole table is a sorted list with gaps: a search for what is not
//! there ends at the first larger key, and growing or sweeping is one pass in order.
//!
//! Keys must be spread evenly, as hashes are; the caller's secret sees to it that no client can choose them.

/// The map. Its memory is what [`Table::bytes`] says.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Side by side with `values`; 0 is an empty slot.
    keys: Box<[u64]>,
    values: Box<[u32]>,
    /// Slots that can be a home; the rest is for what spills over at the end.
    homes: usize,
    len: usize,
}

impl Table {
    /// How many keys it holds.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Memory that it takes, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.keys.len() * (size_of::<u64>() + size_of::<u32>())
    }

    /// The value of a key.
    pub(super) fn get(&self, key: u64) -> Option<u32> {
        let at = self.find(key).ok()?;
        self.values.get(at).copied()
    }

    /// Sets the value of a key. Returns the one that it had.
    pub(super) fn insert(&mut self, key: u64, value: u32) -> Option<u32> {
        if let Ok(at) = self.find(key) {
            return self.values.get_mut(at).map(|slot| std::mem::replace(slot, value));
        }
        if self.len as f64 >= self.homes as f64 * FULLEST {
            self.rebuild(self.homes + (self.homes / 8).max(FEWEST), SPILL);
        }
        while let Err(at) = self.find(key)
            && !self.put(at, key, value)
        {
            self.rebuild(self.homes, (self.keys.len() - self.homes) * 2);
        }
        self.len += 1;
        None
    }

    /// Removes a key. Returns the value that it had.
    pub(super) fn remove(&mut self, key: u64) -> Option<u32> {
        let at = self.find(key).ok()?;
        let value = self.values.get(at).copied();
        // What stands behind it moves up, as far as it is away from home.
        let behind = self.keys.iter().enumerate().skip(at + 1);
        let end = behind
            .take_while(|&(place, &next)| next != EMPTY && self.home(next) < place)
            .last()
            .map_or(at, |(place, _)| place);
        self.keys.copy_within(at + 1..=end, at);
        self.values.copy_within(at + 1..=end, at);
        if let Some(slot) = self.keys.get_mut(end) {
            *slot = EMPTY;
        }
        self.len -= 1;
        value
    }

    /// All keys with their values, in the order of the keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        let slots = self.keys.iter().copied().zip(self.values.iter().copied());
        slots.filter(|&(key, _)| key != EMPTY)
    }

    /// Keeps what `keep` says, which may change the values.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(u64, &mut u32) -> bool) {
        let mut next = 0;
        self.len = 0;
        for at in 0..self.keys.len() {
            let (Some(slot), Some(value)) = (self.keys.get_mut(at), self.values.get_mut(at)) else {
                return;
            };
            let (key, mut value) = (std::mem::replace(slot, EMPTY), *value);
            if key == EMPTY || !keep(key, &mut value) {
                continue;
            }
            // Never behind `at`: what is ahead only became less.
            let place = self.home(key).max(next);
            self.set(place, key, value);
            next = place + 1;
            self.len += 1;
        }
    }

    /// Where a key is, or where it would have to be put.
    fn find(&self, key: u64) -> Result<usize, usize> {
        let home = self.home(key);
        let run = self.keys.iter().enumerate().skip(home);
        for (at, &other) in run {
            if other == key {
                return Ok(at);
            }
            if other == EMPTY || other > key {
                return Err(at);
            }
        }
        Err(self.keys.len())
    }

    /// Puts a key at its place and moves what is there on. `false`: there is no slot left behind it.
    fn put(&mut self, at: usize, key: u64, value: u32) -> bool {
        let gap = self.keys.iter().enumerate().skip(at).find(|&(_, &other)| other == EMPTY);
        let Some((gap, _)) = gap else { return false };
        self.keys.copy_within(at..gap, at + 1);
        self.values.copy_within(at..gap, at + 1);
        self.set(at, key, value);
        true
    }

    fn set(&mut self, at: usize, key: u64, value: u32) {
        if let (Some(slot), Some(old)) = (self.keys.get_mut(at), self.values.get_mut(at)) {
            (*slot, *old) = (key, value);
        }
    }

    /// Moves everything to so many slots, with more of them behind the last home if need be.
    fn rebuild(&mut self, homes: usize, mut spill: usize) {
        loop {
            let slots = homes + spill;
            let mut larger = Self {
                keys: vec![EMPTY; slots].into(),
                values: vec![0; slots].into(),
                homes,
                len: self.len,
            };
            let mut next = 0;
            for (key, value) in self.iter() {
                let place = larger.home(key).max(next);
                larger.set(place, key, value);
                next = place + 1;
            }
            if next < slots {
                *self = larger;
                return;
            }
            spill *= 2;
        }
    }

    /// Where a key belongs: the share of all homes that the key is of all keys.
    fn home(&self, key: u64) -> usize {
        ((u128::from(key) * self.homes as u128) >> 64) as usize
    }
}

/// Marks an empty slot; as a key it cannot be used.
pub(super) const EMPTY: u64 = 0;

/// How full a table may be: at 0.85, a search looks at 4 slots on average.
const FULLEST: f64 = 0.85;

/// The first and the least step of growing, in slots.
const FEWEST: usize = 16;

/// Slots behind the last home. A run longer than this at the very end makes the table grow.
const SPILL: usize = 16;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Keys of few values all over the range, many of them close together.
    fn key() -> impl Strategy<Value = u64> {
        (0..40_u64, 1..6_u64).prop_map(|(high, low)| (high % 7) << 61 | high << 56 | low)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64, u32),
        Remove(u64),
        Retain(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (key(), any::<u32>()).prop_map(|(key, value)| Step::Insert(key, value)),
            4 => key().prop_map(Step::Remove),
            1 => (1..5_u32).prop_map(Step::Retain),
        ]
    }

    fn check(table: &Table, model: &BTreeMap<u64, u32>) {
        assert_eq!(table.len(), model.len());
        let all: Vec<_> = model.iter().map(|(&key, &value)| (key, value)).collect();
        assert_eq!(table.iter().collect::<Vec<_>>(), all);
        for (&key, &value) in model {
            assert_eq!(table.get(key), Some(value), "{key:x}");
        }
    }

    proptest! {
        #[test]
        fn is_a_map(steps in vec(step(), 0..300)) {
            let (mut table, mut model) = (Table::default(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Insert(key, value) => {
                        assert_eq!(table.insert(key, value), model.insert(key, value));
                    }
                    Step::Remove(key) => assert_eq!(table.remove(key), model.remove(&key)),
                    Step::Retain(n) => {
                        let keep = |_: u64, value: &mut u32| {
                            *value = value.wrapping_add(1);
                            !value.is_multiple_of(n)
                        };
                        table.retain(keep);
                        model.retain(|key, value| keep(*key, value));
                    }
                }
                check(&table, &model);
            }
        }
    }

    #[test]
    fn keys_at_the_very_end_find_room() {
        let mut table = Table::default();
        for key in (0..200).map(|n| u64::MAX - n) {
            assert_eq!(table.insert(key, 7), None);
        }
        assert_eq!(table.len(), 200);
        for key in (0..200).map(|n| u64::MAX - n) {
            assert_eq!(table.remove(key), Some(7));
        }
        assert_eq!((table.len(), table.iter().count()), (0, 0));
    }

    #[test]
    fn takes_little_memory_at_any_size() {
        let (mut table, mut random) = (Table::default(), fastrand::Rng::with_seed(3));
        for len in 1..200_000_usize {
            table.insert(random.u64(1..), 0);
            if len > 1_000 {
                let each = table.bytes() as f64 / len as f64;
                assert!(each < 16.5, "{each} bytes a key at {len}");
            }
        }
    }
}
