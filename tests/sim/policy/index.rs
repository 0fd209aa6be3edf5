//! What a gateway thinks that each pod's prefix cache holds: the prompts that it sent there.

use crate::engine::kv::KvCache;

/// For each pod the hashes of prompts sent there, those used longest ago forgotten first.
pub(super) struct Index {
    pods: Vec<Option<KvCache>>,
    /// Of the blocks that a pod's metrics tell of, how many make one hash.
    share: u32,
}

impl Index {
    /// Nothing known of so many pods; hashes are of `share` KV blocks each.
    pub(super) fn new(pods: usize, share: u32) -> Self {
        Self { pods: (0..pods).map(|_| None).collect(), share }
    }

    /// How many of the hashes, from the first on, the pod has.
    pub(super) fn matched(&self, pod: usize, keys: &[u64]) -> u32 {
        self.pods[pod].as_ref().map_or(0, |cache| cache.cached(keys).0)
    }

    /// The pod, of so many KV blocks, gets a prompt.
    pub(super) fn insert(&mut self, pod: usize, kv_blocks: u32, keys: &[u64]) {
        let capacity = if kv_blocks == 0 { DEFAULT } else { (kv_blocks / self.share).max(1) };
        let cache = self.pods[pod].get_or_insert_with(|| KvCache::new(capacity));
        // The last first: the start of a prompt is worth most.
        for key in keys.iter().rev() {
            let held = cache.hold(*key);
            if let Some(entry) = held.or_else(|| cache.allocate()) {
                cache.name(entry, *key);
                cache.release(entry);
            }
        }
    }

    /// The pod has nothing any more.
    pub(super) fn forget(&mut self, pod: usize) {
        self.pods[pod] = None;
    }
}

/// Hashes of a pod that does not tell its blocks: the reference picker's own number.
const DEFAULT: u32 = 31_250;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_what_it_got_last() {
        let mut index = Index::new(2, 4);
        index.insert(0, 16, &[1, 2, 3]);
        assert_eq!((index.matched(0, &[1, 2, 9]), index.matched(1, &[1, 2])), (2, 0));
        index.insert(0, 16, &[4, 5]);
        assert_eq!(index.matched(0, &[1, 2, 3]), 2, "the end of the older prompt went first");
        assert_eq!(index.matched(0, &[4, 5]), 2);
        index.forget(0);
        assert_eq!(index.matched(0, &[4]), 0);
    }
}
