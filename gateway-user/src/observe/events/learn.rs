//! Which of a pod's blocks are a prompt's: learned from what came into its cache while it worked on the prompt.
//!
//! The gateway has no tokenizer, and the pod's hashes are over tokens. So this is a guess with a strong check. When
//! a request has ended, the gateway knows how many tokens its prompt had, and when it was sent and answered first. Of all
//! chains of blocks from a prompt's start, the request's own ends as many whole blocks deep as the prompt has, and
//! was stored within that time. If there is one such chain, and nothing that was learned before speaks against it, it is
//! taken to be the prompt's. If there are several, nothing is learned: neither when the pod had the whole prompt
//! already.
//!
//! Within the prompt, the n-th token is taken to be at the same share of the text: text of which some parts have more
//! letters for a token than others is off by so much. What follows from a mistake is a block that the prefix index
//! forgets too early, or keeps until it is old.

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::time::Duration;

use tokio::time::Instant;

use super::tracker::{Tip, Tracker, UNKNOWN};

/// What is known of a prompt that a pod has answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Its blocks in the prefix index.
    pub blocks: Vec<u64>,
    /// Tokens in such a block.
    pub block_tokens: u32,
    /// How many tokens the index takes it to have.
    pub guessed_tokens: u64,
    /// How many it has, by the pod's own word.
    pub tokens: u64,
    /// When the request was sent to the pod.
    pub sent: Instant,
    /// When the answer's first content came; of one in a single piece, when that came.
    pub answered: Instant,
}

impl Tracker {
    /// Learns which blocks are this prompt's. Says whether there is just one chain that can be.
    pub fn learn(&mut self, prompt: &Observation) -> bool {
        let Some(depth) = prompt.tokens.checked_div(u64::from(self.block_size())) else {
            return false;
        };
        let Some(depth) = u32::try_from(depth).ok().filter(|depth| (1..UNKNOWN).contains(depth))
        else {
            return false;
        };
        let until = prompt.answered + SLACK;
        // The newest first: an answer that has just ended mostly began not long ago.
        let recent = self.tips.iter().rev().skip_while(|tip| tip.at > until);
        let recent = recent.take_while(|tip| tip.at >= prompt.sent);
        let mut ends: Vec<u64> = Vec::new();
        for &Tip { hash, .. } in recent.filter(|tip| tip.depth == depth) {
            if !ends.contains(&hash) {
                ends.push(hash);
            }
            if ends.len() > MAX_CHAINS {
                return false;
            }
        }
        let blocks: HashSet<u64> = prompt.blocks.iter().copied().collect();
        let mut chains = ends.iter().filter_map(|&end| self.chain(end, prompt, &blocks));
        let (Some(chain), None) = (chains.next(), chains.next()) else { return false };
        for (place, hash) in (0..).zip(&chain) {
            let ours = self.ours(place, prompt);
            if let Some(block) = self.blocks.get_mut(hash) {
                block.ours = ours.and_then(NonZeroU64::new);
            }
        }
        true
    }

    /// The chain that ends here, from its start; none if it is not held as a whole, or is known to be of other prompts.
    fn chain(&self, end: u64, prompt: &Observation, blocks: &HashSet<u64>) -> Option<Vec<u64>> {
        let mut chain = Vec::new();
        let (mut same, mut strange) = (0, 0);
        let mut next = Some(end);
        let depth = self.blocks.get(&end)?.depth;
        // Counted, as what a pod tells may go round in circles.
        for place in (0..depth).rev() {
            let hash = next?;
            let block = self.blocks.get(&hash).filter(|block| block.depth == place + 1)?;
            chain.push(hash);
            next = block.parent.map(NonZeroU64::get);
            let at = self.position(place, prompt);
            match block.ours.map(NonZeroU64::get) {
                Some(known) if blocks.contains(&known) => same += 1,
                // Behind the last whole block of the index nothing can be said.
                Some(_) if at + at / 8 + 1 < prompt.blocks.len() => strange += 1,
                _ => {}
            }
        }
        // Where prompts part, some of the engine's blocks are still common while the index's larger one is not.
        let ratio = (prompt.block_tokens / self.block_size().max(1)) as usize;
        let is_other = strange > same / 4 + 2 * ratio || strange > chain.len() / 2;
        chain.reverse();
        (!is_other).then_some(chain)
    }

    /// The block of the index that the engine's block at `place` is a part of.
    fn ours(&self, place: u32, prompt: &Observation) -> Option<u64> {
        prompt.blocks.get(self.position(place, prompt)).copied()
    }

    /// The place in the index's blocks of the middle of the engine's block at `place`.
    fn position(&self, place: u32, prompt: &Observation) -> usize {
        let middle = (f64::from(place) + 0.5) * f64::from(self.block_size());
        let guessed = middle * prompt.guessed_tokens as f64 / prompt.tokens.max(1) as f64;
        (guessed / f64::from(prompt.block_tokens.max(1))) as usize
    }
}

/// How much later than the first token the news of its prompt's blocks may come: they take another way.
pub(super) const SLACK: Duration = Duration::from_millis(100);

/// Most chains that are compared for one prompt: with more of the same length at the same time it is not worth it.
const MAX_CHAINS: usize = 8;

#[cfg(test)]
mod tests;
