//! The reference picker of the inference extension with the configuration that it has by default:
//! queue 2, KV cache 2, prefix cache 3, highest sum, equals by lot.
//!
//! It knows what metrics said, up to 50 ms ago, and which prompts it sent where; it does not count
//! its own requests in flight. It refuses nothing: without priorities every request is admitted.

use fastrand::Rng;
use gateway_user::schedule::NoPod;

use super::index::Index;
use super::{Policy, least, open};
use crate::sim::gateway::{Looks, Seen};
use crate::sim::traffic::Ask;

/// The picker's state.
pub(super) struct Reference {
    index: Index,
    /// KV blocks of each pod, as its metrics told.
    kv_blocks: Vec<u32>,
    rng: Rng,
}

impl Reference {
    /// Nothing known of so many pods.
    pub(super) fn new(pods: usize, rng: Rng) -> Self {
        // Its hashes are of 64 tokens at the least, 4 blocks.
        Self { index: Index::new(pods, 4), kv_blocks: vec![0; pods], rng }
    }

    fn scores(&self, ask: &Ask, pods: &[Seen], open: &[usize]) -> Vec<f64> {
        let waiting = |pod: usize| pods[pod].signals.waiting.unwrap_or(0);
        let least = open.iter().map(|pod| waiting(*pod)).min().unwrap_or(0);
        let most = open.iter().map(|pod| waiting(*pod)).max().unwrap_or(0);
        let all = ask.keys.len().min(MOST_KEYS);
        let score = |pod: usize| {
            let queue = match most - least {
                0 => 1.0,
                range => f64::from(most - waiting(pod)) / f64::from(range),
            };
            let kv = 1.0 - f64::from(pods[pod].signals.kv_usage.unwrap_or(0.0));
            let prefix = match all {
                0 => 0.0,
                all => f64::from(self.index.matched(pod, &ask.keys[..all])) / all as f64,
            };
            QUEUE * queue + KV_CACHE * kv + PREFIX * prefix
        };
        open.iter().map(|pod| score(*pod)).collect()
    }
}

impl Policy for Reference {
    fn looks(&self) -> Looks {
        Looks::Steadily
    }

    fn pick(&mut self, ask: &Ask, pods: &[Seen], _: u64) -> Result<usize, NoPod> {
        let open = open(pods)?;
        let scores = self.scores(ask, pods, &open);
        let places: Vec<usize> = (0..open.len()).collect();
        least(&places, &mut self.rng, |place| -scores[place]).map(|place| open[place])
    }

    fn sent(&mut self, pod: usize, ask: &Ask, _: u64) {
        let keys = &ask.keys[..ask.keys.len().min(MOST_KEYS)];
        self.index.insert(pod, self.kv_blocks[pod], keys);
    }

    fn looked(&mut self, pod: usize, seen: &Seen, _: u64) {
        self.kv_blocks[pod] = seen.kv_blocks;
    }

    fn gone(&mut self, pod: usize) {
        self.index.forget(pod);
    }
}

const QUEUE: f64 = 2.0;
const KV_CACHE: f64 = 2.0;
const PREFIX: f64 = 3.0;
/// Most hashes of a prompt that are looked up: 131,072 tokens of 64 each.
const MOST_KEYS: usize = 2_048;

#[cfg(test)]
mod tests {
    use super::super::tests::seen;
    use super::*;

    #[test]
    fn scores_are_those_of_its_formulas() {
        let mut pods = [seen(0, 0, 50), seen(9, 4, 0), seen(0, 1, 0)];
        pods[2].signals.kv_usage = Some(0.25);
        let ask = Ask { keys: vec![1, 2, 3, 4], ..Ask::default() };
        let mut reference = Reference::new(3, Rng::with_seed(1));
        let open = [0, 1, 2];
        assert_eq!(reference.scores(&ask, &pods, &open), [4.0, 2.0, 1.5 + 1.5]);
        let half = Ask { keys: vec![1, 2, 8], ..Ask::default() };
        reference.sent(1, &half, 0);
        assert_eq!(reference.scores(&ask, &pods, &open), [4.0, 3.5, 3.0]);
        assert_eq!(reference.pick(&ask, &pods, 0), Ok(0), "its own in flight do not count");
        reference.gone(1);
        let none = Ask::default();
        assert_eq!(reference.scores(&none, &pods[..1], &open[..1]), [4.0], "all queues are equal");
    }
}
