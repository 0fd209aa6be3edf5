use std::collections::{BTreeMap, BTreeSet};
use std::thread;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// The same, as plainly as can be: each pod's blocks with the time of their last use.
#[derive(Debug, Default)]
struct Model {
    pods: BTreeMap<u16, Pod>,
}

#[derive(Debug)]
struct Pod {
    capacity: usize,
    /// Block to the time of its last use.
    blocks: BTreeMap<u64, u64>,
    now: u64,
}

impl Pod {
    fn insert(&mut self, blocks: &[u64]) {
        let blocks = &blocks[..blocks.len().min(self.capacity)];
        for (place, &block) in blocks.iter().enumerate() {
            self.blocks.insert(block, self.now + (blocks.len() - place) as u64);
        }
        self.now += blocks.len() as u64;
        self.trim();
    }

    fn trim(&mut self) {
        if self.blocks.len() > self.capacity {
            self.shrink(self.capacity - self.capacity / 16);
        }
    }

    fn shrink(&mut self, count: usize) {
        while self.blocks.len() > count {
            let oldest = *self.blocks.iter().min_by_key(|(_, time)| **time).unwrap().0;
            self.blocks.remove(&oldest);
        }
    }

    fn run(&self, blocks: &[u64]) -> u32 {
        blocks.iter().take_while(|block| self.blocks.contains_key(block)).count() as u32
    }
}

/// A prompt of a small family: any two share their first blocks.
fn prompt(branch: u64, len: u64) -> Vec<u64> {
    // Each digit of the branch, base 3, is a choice at a depth; a block stands for all choices up to it.
    (0..len)
        .map(|depth| {
            let choices = branch % 3_u64.pow(depth.div_ceil(4).min(6) as u32);
            (choices * 1000 + depth + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        })
        .collect()
}

#[derive(Clone, Debug)]
enum Step {
    Join(usize),
    Insert(usize, u64, u64),
    Leave(usize),
    Clear(usize),
    Resize(usize, usize),
    Keep(usize, usize),
    /// The last blocks of all that start like this.
    Remove(usize, u64, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let pod = 0..8_usize;
    prop_oneof![
        2 => (1..60_usize).prop_map(Step::Join),
        20 => (pod.clone(), 0..729_u64, 0..24_u64).prop_map(|(pod, branch, len)| Step::Insert(pod, branch, len)),
        1 => pod.clone().prop_map(Step::Leave),
        1 => pod.clone().prop_map(Step::Clear),
        1 => (pod.clone(), 1..60_usize).prop_map(|(pod, capacity)| Step::Resize(pod, capacity)),
        2 => (pod.clone(), 0..60_usize).prop_map(|(pod, count)| Step::Keep(pod, count)),
        2 => (pod, 0..729_u64, 0..24_usize).prop_map(|(pod, branch, len)| Step::Remove(pod, branch, len)),
    ]
}

fn check(index: &Index, model: &Model, slots: &[Slot], blocks: &[u64], matches: &mut Matches) {
    index.matched(blocks, matches);
    let mut most = 0;
    for slot in slots {
        // A slot that is in use again is told apart by its place only, as the pods of one moment are.
        let expected = model.pods.get(&slot.index).map_or(0, |pod| pod.run(blocks));
        assert_eq!(matches.blocks(*slot), expected, "{slot:?} of {blocks:?}");
        most = most.max(expected);
    }
    assert_eq!(matches.most(), most);
    let usage = index.usage();
    let all: Vec<u64> = model.pods.values().flat_map(|pod| pod.blocks.keys().copied()).collect();
    assert_eq!(usage.entries, all.len());
    assert_eq!(usage.hashes, all.iter().collect::<BTreeSet<_>>().len());
}

proptest! {
    #[test]
    fn is_what_a_plain_model_is(steps in vec(step(), 1..120), asked in vec((0..729_u64, 0..30_u64), 4)) {
        let (index, mut model, mut matches) = (Index::new(), Model::default(), Matches::default());
        let mut slots: Vec<Slot> = Vec::new();
        for step in steps {
            match step {
                Step::Join(capacity) => {
                    let slot = index.join(capacity).unwrap();
                    let pod = Pod { capacity, blocks: BTreeMap::new(), now: 0 };
                    assert!(model.pods.insert(slot.index, pod).is_none(), "a slot in use");
                    slots.push(slot);
                }
                Step::Insert(pod, branch, len) => {
                    let Some(slot) = slots.get(pod) else { continue };
                    index.insert(*slot, &prompt(branch, len));
                    if is_current(&slots, pod)
                        && let Some(pod) = model.pods.get_mut(&slot.index)
                    {
                        pod.insert(&prompt(branch, len));
                    }
                }
                Step::Leave(pod) => {
                    let Some(slot) = slots.get(pod) else { continue };
                    index.leave(*slot);
                    if is_current(&slots, pod) {
                        model.pods.remove(&slot.index);
                    }
                }
                Step::Clear(pod) => {
                    let Some(slot) = slots.get(pod) else { continue };
                    index.clear(*slot);
                    if is_current(&slots, pod)
                        && let Some(pod) = model.pods.get_mut(&slot.index)
                    {
                        pod.blocks.clear();
                        pod.now = 0;
                    }
                }
                Step::Resize(pod, capacity) => {
                    let Some(slot) = slots.get(pod) else { continue };
                    index.resize(*slot, capacity);
                    if is_current(&slots, pod)
                        && let Some(pod) = model.pods.get_mut(&slot.index)
                    {
                        pod.capacity = capacity;
                        pod.trim();
                    }
                }
                Step::Keep(pod, count) => {
                    let Some(slot) = slots.get(pod) else { continue };
                    index.keep(*slot, count);
                    if is_current(&slots, pod)
                        && let Some(pod) = model.pods.get_mut(&slot.index)
                        && pod.blocks.len() > count + count / 16
                    {
                        pod.shrink(count);
                    }
                }
                Step::Remove(pod, branch, len) => {
                    let Some(slot) = slots.get(pod) else { continue };
                    let start = prompt(branch, 24);
                    let Some(&last) = start.get(len) else { continue };
                    // No block may stay behind one that goes.
                    let behind = |branch: u64| {
                        let prompt = prompt(branch, 24);
                        prompt[len] == last && prompt != start
                    };
                    let others = (0..729).filter(|branch| behind(*branch));
                    let ends = others.flat_map(|branch| prompt(branch, 24).split_off(len));
                    let gone: Vec<u64> = ends.chain(start[len..].iter().copied()).collect();
                    index.remove(*slot, &gone);
                    if is_current(&slots, pod)
                        && let Some(pod) = model.pods.get_mut(&slot.index)
                    {
                        pod.blocks.retain(|block, _| !gone.contains(block));
                    }
                }
            }
            for &(branch, len) in &asked {
                check(&index, &model, &slots, &prompt(branch, len), &mut matches);
            }
        }
    }
}

/// No later pod has been given the same place.
fn is_current(slots: &[Slot], pod: usize) -> bool {
    !slots[pod + 1..].iter().any(|later| later.index == slots[pod].index)
}

#[test]
fn many_pods_that_hold_the_same() {
    let index = Index::new();
    let slots: Vec<Slot> = (0..200).map(|_| index.join(1_000).unwrap()).collect();
    let blocks = prompt(5, 40);
    for (place, slot) in slots.iter().enumerate() {
        index.insert(*slot, &blocks[..place % 41]);
    }
    let mut matches = Matches::default();
    index.matched(&blocks, &mut matches);
    for (place, slot) in slots.iter().enumerate() {
        assert_eq!(matches.blocks(*slot), (place % 41) as u32);
    }
    // One after the other leaves; what the others hold stays.
    for (place, slot) in slots.iter().enumerate() {
        index.leave(*slot);
        index.matched(&blocks, &mut matches);
        assert_eq!(matches.blocks(*slot), 0);
        let next = (place + 1) % 41;
        if let Some(slot) = slots.get(place + 1) {
            assert_eq!(matches.blocks(*slot), next as u32);
        }
    }
    let Usage { entries, hashes, .. } = index.usage();
    assert_eq!((entries, hashes), (0, 0));
}

#[test]
fn a_pod_that_left_stands_for_nothing() {
    let (index, mut matches) = (Index::new(), Matches::default());
    let old = index.join(100).unwrap();
    index.insert(old, &[1, 2, 3]);
    index.leave(old);
    index.insert(old, &[1, 2, 3]);
    let new = index.join(100).unwrap();
    assert_eq!(new.index, old.index);
    index.insert(old, &[1, 2, 3]);
    index.clear(old);
    index.resize(old, 1);
    index.leave(old);
    index.matched(&[1, 2, 3], &mut matches);
    assert_eq!(matches.blocks(new), 0, "the old pod's blocks");
    index.insert(new, &[1, 2]);
    index.matched(&[1, 2, 3], &mut matches);
    assert_eq!(matches.blocks(new), 2);
}

#[test]
fn a_hash_of_zero_is_a_hash() {
    let (index, mut matches) = (Index::new(), Matches::default());
    let slot = index.join(100).unwrap();
    index.matched(&[0], &mut matches);
    assert_eq!(matches.blocks(slot), 0);
    index.insert(slot, &[0, 7]);
    index.matched(&[0, 7], &mut matches);
    assert_eq!(matches.blocks(slot), 2);
}

#[test]
fn of_a_prompt_that_does_not_fit_the_front_is_held() {
    let (index, mut matches) = (Index::new(), Matches::default());
    let slot = index.join(10).unwrap();
    let blocks = prompt(1, 24);
    index.insert(slot, &blocks);
    index.matched(&blocks, &mut matches);
    assert_eq!(matches.blocks(slot), 10);
}

#[test]
fn there_is_a_last_pod() {
    let index = Index::new();
    let slots: Vec<Slot> = (0..MAX_PODS).map(|_| index.join(1).unwrap()).collect();
    assert_eq!(index.join(1), None);
    let last = slots[MAX_PODS - 1];
    index.insert(slots[0], &[9]);
    index.insert(last, &[9]);
    let mut matches = Matches::default();
    index.matched(&[9], &mut matches);
    assert_eq!((matches.blocks(slots[0]), matches.blocks(last)), (1, 1));
    assert_eq!(matches.blocks(slots[1]), 0);
    index.leave(slots[7]);
    assert_eq!(index.join(1).map(|slot| slot.index), Some(7));
}

/// 100 pods of 3,000 blocks, each block at one pod only, at two, or at all. The benchmark does it with 30,000.
#[test]
fn takes_less_than_33_bytes_for_each_block_of_a_pod() {
    for together in [1, 2, 100] {
        let index = Index::new();
        let slots: Vec<Slot> = (0..100).map(|_| index.join(3_000).unwrap()).collect();
        let mut random = fastrand::Rng::with_seed(1);
        for group in slots.chunks(together) {
            for _ in 0..30 {
                let blocks: Vec<u64> = (0..100).map(|_| random.u64(..)).collect();
                for slot in group {
                    index.insert(*slot, &blocks);
                }
            }
        }
        let usage = index.usage();
        assert_eq!(usage.entries, 300_000);
        assert_eq!(usage.hashes, 300_000 / together);
        assert!(usage.bytes < 10_000_000, "{usage:?}");
        assert!(usage.bytes > 12 * (usage.entries + usage.hashes), "{usage:?}");
        // More prompts change nothing about it.
        for slot in &slots {
            for _ in 0..10 {
                let blocks: Vec<u64> = (0..100).map(|_| random.u64(..)).collect();
                index.insert(*slot, &blocks);
            }
        }
        assert!(index.usage().entries <= 300_000);
        assert!(index.usage().bytes < 110_000_000, "{:?}", index.usage());
    }
}

#[test]
fn workers_do_not_disturb_each_other() {
    let index = Index::new();
    let slots: Vec<Slot> = (0..4).map(|_| index.join(200).unwrap()).collect();
    thread::scope(|scope| {
        for worker in 0..4_u64 {
            let (index, slots) = (&index, &slots);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(worker);
                let mut matches = Matches::default();
                for _ in 0..2_000 {
                    let slot = slots[random.usize(0..4)];
                    let blocks = prompt(random.u64(0..729), random.u64(0..24));
                    match random.u8(0..100) {
                        0 => index.clear(slot),
                        1..50 => index.insert(slot, &blocks),
                        _ => {
                            index.matched(&blocks, &mut matches);
                            assert!(matches.most() as usize <= blocks.len());
                        }
                    }
                }
            });
        }
    });
    for slot in slots {
        index.leave(slot);
    }
    let usage = index.usage();
    assert_eq!((usage.entries, usage.hashes), (0, 0), "both sides agree when all is over");
}
