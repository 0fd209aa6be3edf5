use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::observe::events::testing::{cleared, payload, removed, stored};

fn feed(tracker: &mut Tracker, number: u64, events: &[Value]) -> Change {
    tracker.message(number, &payload(events), Instant::now())
}

fn held(tracker: &Tracker) -> Vec<u64> {
    let mut held: Vec<u64> = tracker.blocks.keys().copied().collect();
    held.sort_unstable();
    held
}

#[test]
fn follows_what_comes_and_goes() {
    let mut tracker = Tracker::default();
    assert_eq!(tracker.knowledge(), Knowledge::Nothing);
    let change = feed(&mut tracker, 0, &[stored(&[1, 2], None), stored(&[3], Some(2))]);
    let all = Change { events: 2, knowledge: Knowledge::All, ..Change::default() };
    assert_eq!(change, all);
    assert_eq!((held(&tracker), tracker.tokens()), (vec![1, 2, 3], 48));
    assert_eq!(tracker.blocks[&3].depth, 3);
    let change = feed(&mut tracker, 1, &[removed(&[3, 77]), stored(&[4], Some(1))]);
    assert_eq!(change.tokens, Some(48));
    assert_eq!((held(&tracker), tracker.blocks[&4].depth), (vec![1, 2, 4], 2));
    let change = feed(&mut tracker, 2, &[removed(&[4]), cleared(), stored(&[9], None)]);
    assert!(change.is_cleared);
    assert_eq!((held(&tracker), change.tokens), (vec![9], Some(16)));
}

#[test]
fn a_block_goes_with_its_last_copy() {
    let mut tracker = Tracker::default();
    feed(&mut tracker, 0, &[stored(&[1], None), stored(&[1], None), removed(&[1])]);
    assert_eq!(held(&tracker), [1]);
    feed(&mut tracker, 1, &[removed(&[1])]);
    assert!(tracker.blocks.is_empty());
}

#[test]
fn a_gap_or_nonsense_makes_all_doubtful() {
    let mut tracker = Tracker::default();
    feed(&mut tracker, 0, &[stored(&[1], None)]);
    let change = feed(&mut tracker, 3, &[stored(&[2], Some(1)), removed(&[1])]);
    assert_eq!((change.lost, change.knowledge), (2, Knowledge::Recent));
    // Not how many there are: there may be others.
    assert_eq!((change.tokens, change.is_cleared), (None, false));
    assert_eq!((held(&tracker), tracker.blocks[&2].depth), (vec![2], UNKNOWN));

    let change = feed(&mut tracker, 4, &[cleared(), stored(&[3], None)]);
    assert_eq!((change.lost, change.knowledge), (0, Knowledge::All));
    assert_eq!(held(&tracker), [3]);

    let change = tracker.message(5, b"\xc1", Instant::now());
    assert!(change.is_broken);
    assert_eq!((change.knowledge, held(&tracker)), (Knowledge::Recent, vec![]));
}

#[test]
fn knows_what_is_missing() {
    let mut tracker = Tracker::default();
    assert_eq!([0, 3].map(|number| tracker.missing(number)), [None, Some(0)]);
    feed(&mut tracker, 4, &[]);
    // 5 is next; what is below is of a new process.
    assert_eq!([5, 6, 9].map(|number| tracker.missing(number)), [None, Some(5), Some(5)]);
    assert_eq!([4, 1, 0].map(|number| tracker.missing(number)), [Some(0), Some(0), None]);
}

#[test]
fn old_messages_tell_nothing_of_the_time() {
    let mut tracker = Tracker::default();
    tracker.message(0, &payload(&[stored(&[1], None)]), None);
    assert!(tracker.tips.is_empty());
    assert_eq!(held(&tracker), [1]);
}

#[test]
fn starts_with_what_it_is_told() {
    let mut tracker = Tracker::default();
    let change = feed(&mut tracker, 490, &[removed(&[7]), stored(&[1], None)]);
    assert_eq!((change.lost, change.knowledge, change.tokens), (0, Knowledge::Recent, None));
    assert_eq!(held(&tracker), [1]);
}

#[test]
fn a_number_that_goes_back_is_a_restart() {
    let mut tracker = Tracker::default();
    feed(&mut tracker, 0, &[stored(&[1], None)]);
    feed(&mut tracker, 1, &[stored(&[2], None)]);
    let change = feed(&mut tracker, 0, &[stored(&[3], None)]);
    assert!(change.is_cleared);
    assert_eq!((change.knowledge, held(&tracker)), (Knowledge::All, vec![3]));
    // The first of the new ones were missed.
    feed(&mut tracker, 1, &[]);
    feed(&mut tracker, 2, &[]);
    let change = feed(&mut tracker, 1, &[stored(&[4], None)]);
    assert!(change.is_cleared);
    assert_eq!((change.lost, change.knowledge), (1, Knowledge::Recent));
}

fn block(hash: u64, medium: &str, group: u64, kind: &str) -> Value {
    json!({
        "type": "BlockStored", "block_hashes": [hash], "parent_block_hash": null, "token_ids": [],
        "block_size": 16, "medium": medium, "group_idx": group, "kv_cache_spec_kind": kind,
    })
}

#[test]
fn another_process_does_not_go_on_with_the_numbers_of_the_last() {
    let mut tracker = Tracker::default();
    feed(&mut tracker, 0, &[stored(&[1], None)]);
    feed(&mut tracker, 1, &[stored(&[2], None)]);
    // Its number is the next one, or a higher one: that it was restarted is not certain.
    for number in [2, 7] {
        tracker.cut_off();
        assert_eq!((tracker.knowledge(), held(&tracker)), (Knowledge::Nothing, vec![]));
        assert_eq!(tracker.missing(number), Some(0));
        let change = feed(&mut tracker, number, &[stored(&[3], None)]);
        assert_eq!((change.lost, change.knowledge), (0, Knowledge::Recent));
        assert_eq!((change.is_cleared, held(&tracker)), (false, vec![3]));
    }
    // Cut off twice, and then a number that goes back.
    tracker.cut_off();
    tracker.cut_off();
    let change = tracker.message(0, &payload(&[stored(&[4], None)]), None);
    assert_eq!((change.is_cleared, change.knowledge), (false, Knowledge::All));
    let change = feed(&mut tracker, 1, &[stored(&[5], None)]);
    assert_eq!((change.is_cleared, change.knowledge), (true, Knowledge::All));
    assert_eq!(held(&tracker), [4, 5]);
    assert!(!feed(&mut tracker, 2, &[]).is_cleared, "said once");
}

#[test]
fn what_is_not_followed_tells_no_tokens() {
    let mut tracker = Tracker::default();
    feed(&mut tracker, 0, &[block(1, "GPU", 0, "sliding_window")]);
    let change = feed(&mut tracker, 1, &[removed(&[1])]);
    assert_eq!((change.knowledge, change.tokens), (Knowledge::All, None));
    // Neither does a removal of a block that is not there, or of one of several copies.
    feed(&mut tracker, 2, &[stored(&[2], None), stored(&[2], None)]);
    let change = feed(&mut tracker, 3, &[removed(&[1]), removed(&[2])]);
    assert_eq!((change.knowledge, change.tokens), (Knowledge::All, None));
    assert_eq!(feed(&mut tracker, 4, &[removed(&[2])]).tokens, Some(0));
}

#[test]
fn only_whole_prompts_on_the_gpu_count() {
    let mut tracker = Tracker::default();
    let events = [
        block(1, "GPU", 0, "sliding_window"),
        block(2, "CPU", 1, "full_attention"),
        block(3, "GPU", 1, "full_attention"),
        block(4, "GPU", 2, "full_attention"),
    ];
    feed(&mut tracker, 0, &events);
    assert_eq!(held(&tracker), [3]);
    let gone = |medium: &str, group: u64| json!(["BlockRemoved", [3], medium, group]);
    feed(&mut tracker, 1, &[gone("CPU", 1), gone("GPU", 0), gone("GPU", 2)]);
    assert_eq!(held(&tracker), [3]);
    feed(&mut tracker, 2, &[gone("GPU", 1)]);
    assert!(tracker.blocks.is_empty());
}

#[test]
fn tells_the_ends_of_what_was_stored() {
    let mut tracker = Tracker::default();
    // As vLLM and as SGLang tell it.
    feed(&mut tracker, 0, &[stored(&[1, 2, 3], None), stored(&[11, 12], None)]);
    feed(&mut tracker, 1, &[stored(&[21], None), stored(&[22], Some(21)), stored(&[23], Some(22))]);
    feed(&mut tracker, 2, &[stored(&[31], Some(99))]);
    let tips: Vec<_> = tracker.tips.iter().map(|tip| (tip.hash, tip.depth)).collect();
    assert_eq!(tips, [(3, 3), (12, 2), (23, 3)]);
}

#[test]
fn memory_is_bounded() {
    let mut tracker = Tracker::default();
    let hashes: Vec<u64> = (0..MAX_BLOCKS as u64).collect();
    feed(&mut tracker, 0, &[stored(&hashes, None)]);
    assert_eq!((tracker.blocks.len(), tracker.knowledge()), (MAX_BLOCKS, Knowledge::All));
    let change = feed(&mut tracker, 1, &[stored(&[u64::MAX], None)]);
    assert_eq!((tracker.blocks.len(), change.knowledge), (0, Knowledge::Recent));
    // In a single event, as in several.
    let hashes: Vec<u64> = (0..3 * MAX_BLOCKS as u64).collect();
    let mut tips = Vec::new();
    let mut greedy = Tracker::default();
    let Ok(batch) = Batch::read(&payload(&[stored(&hashes, None)])) else { panic!("a batch") };
    let [Event::Stored(all)] = &batch.events[..] else { panic!("{:?}", batch.events.len()) };
    greedy.stored(all, &mut tips);
    assert!((1 << 24..35_000_000).contains(&greedy.bytes()), "{}", greedy.bytes());

    let single: Vec<Value> = (0..MAX_TIPS as u64 + 5).map(|n| stored(&[n], None)).collect();
    feed(&mut tracker, 2, &single);
    assert_eq!(tracker.tips.len(), MAX_TIPS);
    assert!((1 << 20..4_000_000).contains(&tracker.bytes()), "{}", tracker.bytes());
    assert_eq!(tracker.tips[0].hash, 5);
}

fn event() -> impl Strategy<Value = Value> {
    let hashes = || vec(0..12_u64, 0..4);
    prop_oneof![
        6 => (hashes(), prop::option::of(0..12_u64)).prop_map(|(new, parent)| stored(&new, parent)),
        4 => hashes().prop_map(|old| removed(&old)),
        1 => Just(cleared()),
    ]
}

proptest! {
    /// Against a plain count of copies.
    #[test]
    fn counts_copies(events in vec(event(), 0..40)) {
        let mut tracker = Tracker::default();
        let mut model: HashMap<u64, u32> = HashMap::new();
        for (number, event) in events.iter().enumerate() {
            feed(&mut tracker, number as u64, std::slice::from_ref(event));
            let hashes = |of: &Value| -> Vec<u64> {
                of.as_array().expect("a list").iter().filter_map(Value::as_u64).collect()
            };
            match event {
                Value::Object(map) => {
                    for hash in hashes(&map["block_hashes"]) {
                        *model.entry(hash).or_default() += 1;
                    }
                }
                Value::Array(list) if list.len() > 1 => {
                    for hash in hashes(&list[1]) {
                        model.entry(hash).and_modify(|copies| *copies = copies.saturating_sub(1));
                    }
                    model.retain(|_, copies| *copies > 0);
                }
                _ => model.clear(),
            }
            let mut expected: Vec<u64> = model.keys().copied().collect();
            expected.sort_unstable();
            prop_assert_eq!(held(&tracker), expected);
        }
    }
}
