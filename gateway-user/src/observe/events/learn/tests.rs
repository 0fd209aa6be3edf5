use tokio::time::Instant;

use super::*;
use crate::observe::events::testing::{payload, removed, stored};

/// A pod, and the time as it goes by.
struct Pod {
    tracker: Tracker,
    number: u64,
    now: Instant,
}

impl Pod {
    fn new() -> Self {
        Self { tracker: Tracker::default(), number: 0, now: Instant::now() }
    }

    fn tells(&mut self, events: &[serde_json::Value]) -> Vec<u64> {
        let change = self.tracker.message(self.number, &payload(events), self.now);
        self.number += 1;
        change.removed
    }

    fn wait(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
    }

    /// A prompt of this many tokens that took the last 50 ms, in blocks of 64 tokens from `first` on.
    fn prompt(&self, first: u64, tokens: u64) -> Observation {
        let blocks = (first..first + tokens / 64).collect();
        let sent = self.now - Duration::from_millis(50);
        Observation {
            blocks,
            block_tokens: 64,
            guessed_tokens: tokens,
            tokens,
            sent,
            answered: self.now,
        }
    }

    fn ours(&self, hash: u64) -> Option<u64> {
        self.tracker.blocks[&hash].ours.map(NonZeroU64::get)
    }
}

fn chain(first: u64, blocks: u64) -> Vec<u64> {
    (first..first + blocks).collect()
}

#[test]
fn learns_a_prompt_by_its_length_and_time() {
    let mut pod = Pod::new();
    pod.tells(&[stored(&chain(1000, 20), None)]);
    pod.wait(1000);
    // 10 whole blocks of the engine, 2 of the index; the answer comes behind them.
    pod.tells(&[stored(&chain(2000, 10), None)]);
    let prompt = pod.prompt(1, 165);
    pod.wait(300);
    pod.tells(&[stored(&[2010], Some(2009))]);
    assert!(pod.tracker.learn(&prompt));
    let ours: Vec<_> = (2000..2011).map(|hash| pod.ours(hash)).collect();
    let (first, second) = ([Some(1); 4], [Some(2); 4]);
    assert_eq!(ours, [&first[..], &second, &[None; 3]].concat());

    // From its end on, as the engines do it.
    assert!(pod.tells(&[removed(&[2010, 2009, 2008])]).is_empty());
    assert_eq!(pod.tells(&[removed(&[2007, 2006])]), [2]);
    assert_eq!(pod.tells(&[removed(&[2005, 2004, 2003])]), [1, 2]);
}

#[test]
fn does_not_guess_between_chains_of_one_length() {
    let mut pod = Pod::new();
    pod.tells(&[stored(&chain(1000, 8), None), stored(&chain(2000, 8), None)]);
    let prompt = pod.prompt(1, 128);
    assert!(!pod.tracker.learn(&prompt));
    // Too early, and too late.
    let before = Observation { sent: pod.now + SLACK, answered: pod.now + SLACK, ..prompt.clone() };
    assert!(!pod.tracker.learn(&before));
    let after = pod.now - SLACK - Duration::from_millis(1);
    assert!(!pod.tracker.learn(&Observation { sent: after, answered: after, ..prompt.clone() }));
    // Another length, none at all, and what is gone.
    for tokens in [0, 15, 112, 144, u64::MAX] {
        assert!(!pod.tracker.learn(&Observation { tokens, ..prompt.clone() }), "{tokens}");
    }
    pod.tells(&[removed(&[2007])]);
    assert!(pod.tracker.learn(&prompt));
    assert_eq!((pod.ours(1000), pod.ours(2000)), (Some(1), None));
}

#[test]
fn what_was_learned_tells_chains_apart() {
    let mut pod = Pod::new();
    pod.tells(&[stored(&chain(1000, 16), None)]);
    assert!(pod.tracker.learn(&pod.prompt(1, 256)));
    pod.wait(1000);
    // Two conversations go on, one of them known.
    pod.tells(&[stored(&chain(1016, 8), Some(1015)), stored(&chain(2000, 24), None)]);
    let other = pod.prompt(501, 384);
    assert!(pod.tracker.learn(&other));
    assert_eq!((pod.ours(2000), pod.ours(2023)), (Some(501), Some(506)));
    assert!(pod.tracker.learn(&pod.prompt(1, 384)));
    assert_eq!((pod.ours(1000), pod.ours(1023)), (Some(1), Some(6)));
}

/// A system prompt that ends within a block of the index.
#[test]
fn prompts_may_part_within_a_block() {
    let mut pod = Pod::new();
    pod.tells(&[stored(&chain(1000, 16), None)]);
    assert!(pod.tracker.learn(&pod.prompt(1, 256)));
    pod.wait(1000);
    // 10 blocks of the engine are common, so that 2 of the index are.
    pod.tells(&[stored(&chain(2000, 6), Some(1009))]);
    let mut other = pod.prompt(1, 256);
    other.blocks = vec![1, 2, 603, 604];
    assert!(pod.tracker.learn(&other));
    assert_eq!([1007, 1008, 2000, 2002].map(|hash| pod.ours(hash)), [2, 603, 603, 604].map(Some));
}

#[test]
fn letters_and_tokens_need_not_agree() {
    let mut pod = Pod::new();
    pod.tells(&[stored(&chain(1000, 64), None)]);
    // 1024 tokens, which the gateway takes for 512.
    let mut prompt = pod.prompt(1, 512);
    prompt.tokens = 1024;
    assert!(pod.tracker.learn(&prompt));
    assert_eq!([1000, 1007, 1008, 1063].map(|hash| pod.ours(hash)), [1, 1, 2, 8].map(Some));
}

#[test]
fn nothing_is_learned_of_a_start_that_is_not_known() {
    let mut pod = Pod::new();
    pod.tells(&[stored(&chain(1001, 7), Some(1000))]);
    assert!(!pod.tracker.learn(&pod.prompt(1, 112)));
    assert!(!pod.tracker.learn(&pod.prompt(1, 128)));
}

#[test]
fn chains_that_go_round_in_circles_end() {
    let mut pod = Pod::new();
    pod.tells(&[stored(&[2], None), stored(&[1], Some(2)), removed(&[2]), stored(&[2], Some(1))]);
    assert!(!pod.tracker.learn(&pod.prompt(1, 48)));
}
