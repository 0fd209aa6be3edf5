//! The product rule (LMetric): least prompt tokens to compute times requests in the batch.
//!
//! Prompt tokens are those of this request that the pod has not cached, and those of this gateway's
//! requests there that have no first token yet. A factor is never 0, so that the other one counts.

use fastrand::Rng;
use gateway_user::schedule::NoPod;

use super::index::Index;
use super::{Policy, least, open};
use crate::sim::gateway::{Looks, Seen};
use crate::sim::traffic::{Ask, KEY_TOKENS};

/// The rule's state.
pub(super) struct Product {
    index: Index,
    pods: Vec<Pod>,
    rng: Rng,
}

#[derive(Clone, Debug, Default)]
struct Pod {
    kv_blocks: u32,
    /// Requests without a first token, and the prompt tokens that each has to compute.
    waiting: Vec<(u64, u32)>,
}

impl Product {
    /// Nothing known of so many pods.
    pub(super) fn new(pods: usize, rng: Rng) -> Self {
        Self { index: Index::new(pods, 4), pods: vec![Pod::default(); pods], rng }
    }

    fn fresh(&self, pod: usize, ask: &Ask) -> u32 {
        ask.prompt - (self.index.matched(pod, &ask.keys) * KEY_TOKENS).min(ask.prompt)
    }

    fn cost(&self, pod: usize, ask: &Ask, seen: &Seen) -> f64 {
        let queued: u32 = self.pods[pod].waiting.iter().map(|(_, tokens)| tokens).sum();
        let told = seen.signals.running.unwrap_or(0) + seen.signals.waiting.unwrap_or(0);
        let batch = seen.in_flight.max(told);
        f64::from(queued + self.fresh(pod, ask) + 1) * f64::from(batch + 1)
    }
}

impl Policy for Product {
    fn looks(&self) -> Looks {
        Looks::Steadily
    }

    fn pick(&mut self, ask: &Ask, pods: &[Seen], _: u64) -> Result<usize, NoPod> {
        let open = open(pods)?;
        let costs: Vec<f64> = open.iter().map(|pod| self.cost(*pod, ask, &pods[*pod])).collect();
        let places: Vec<usize> = (0..open.len()).collect();
        least(&places, &mut self.rng, |place| costs[place]).map(|place| open[place])
    }

    fn sent(&mut self, pod: usize, ask: &Ask, _: u64) {
        let fresh = self.fresh(pod, ask);
        self.pods[pod].waiting.push((ask.id, fresh));
        self.index.insert(pod, self.pods[pod].kv_blocks, &ask.keys);
    }

    fn began(&mut self, pod: usize, ask: &Ask, _: u64) {
        self.pods[pod].waiting.retain(|(id, _)| *id != ask.id);
    }

    fn ended(&mut self, pod: usize, ask: &Ask, _: u32, now: u64) {
        self.began(pod, ask, now);
    }

    fn looked(&mut self, pod: usize, seen: &Seen, _: u64) {
        self.pods[pod].kv_blocks = seen.kv_blocks;
    }

    fn gone(&mut self, pod: usize) {
        self.index.forget(pod);
        self.pods[pod].waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::seen;
    use super::*;

    #[test]
    fn the_cost_is_the_product() {
        let ask = Ask { prompt: 130, keys: vec![1, 2], ..Ask::default() };
        let mut rule = Product::new(2, Rng::with_seed(1));
        assert_eq!(rule.cost(0, &ask, &seen(0, 0, 0)), 131.0);
        assert_eq!(rule.cost(0, &ask, &seen(3, 1, 2)), 131.0 * 5.0);
        assert_eq!(rule.cost(0, &ask, &seen(3, 1, 9)), 131.0 * 10.0);
        rule.sent(0, &ask, 7);
        assert_eq!(rule.cost(0, &ask, &seen(0, 0, 1)), (130.0 + 2.0 + 1.0) * 2.0);
        rule.began(0, &ask, 99);
        assert_eq!(rule.cost(0, &ask, &seen(0, 0, 1)), 3.0 * 2.0);
        assert_eq!(rule.pick(&ask, &[seen(0, 0, 9), seen(0, 0, 0)], 100), Ok(0));
        assert_eq!(rule.pick(&ask, &[seen(99, 0, 9), seen(0, 0, 0)], 100), Ok(1));
        rule.gone(0);
        assert_eq!(rule.cost(0, &ask, &seen(0, 0, 0)), 131.0);
    }
}
