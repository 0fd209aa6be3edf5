use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// Messages of vLLM 0.32 and of older forms: name, payload in hexadecimal.
fn samples() -> Vec<(String, Vec<u8>)> {
    let text = include_str!("../../../../../tests/golden/events/batches.json");
    let samples: Value = serde_json::from_str(text).expect("a sample");
    let samples = samples.as_array().expect("a list").iter();
    samples
        .map(|sample| {
            let field = |name: &str| sample[name].as_str().expect("text");
            (field("name").into(), hex(field("payload")))
        })
        .collect()
}

fn sample(name: &str) -> Vec<u8> {
    samples().into_iter().find(|sample| sample.0 == name).expect("a sample of this name").1
}

fn hex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| {
            let pair = str::from_utf8(pair).expect("ASCII");
            u8::from_str_radix(pair, 16).expect("hexadecimal")
        })
        .collect()
}

fn pack(value: &Value) -> Vec<u8> {
    rmp_serde::to_vec(value).expect("JSON fits")
}

fn gpu(group: u32) -> Place {
    Place { is_local_gpu: true, group }
}

fn stored(hashes: &[u64], parent: Option<u64>, block_size: u32) -> Event {
    Event::Stored(Stored {
        hashes: hashes.into(),
        parent,
        block_size,
        place: gpu(0),
        is_whole: true,
    })
}

fn removed(hashes: &[u64]) -> Event {
    Event::Removed(Removed { hashes: hashes.into(), place: gpu(0) })
}

#[test]
fn reads_both_encodings() {
    let hashes = [0x1122_10f4_7de9_8115, 0xce3a_de68_b1c0_dc00];
    for name in ["arrays", "maps"] {
        let batch = Batch::read(&sample(name)).expect("a batch");
        let Event::Stored(first) = &batch.events[0] else { panic!("{batch:?}") };
        assert_eq!((first.hashes[0], first.parent), (hashes[0], None), "{name}");
        assert_eq!((first.block_size, first.place), (16, gpu(0)), "{name}");
        assert_eq!(first.hashes.len(), 2, "{name}");
        assert_eq!(batch.events[1..], [removed(&[55]), Event::Cleared], "{name}");
        assert_eq!(batch.unknown, 0, "{name}");
    }
}

#[test]
fn reads_hashes_that_are_bytes() {
    let batch = Batch::read(&sample("bytes")).expect("a batch");
    let expected = stored(&[0x1111_1111_1111_1111], Some(0x2222_2222_2222_2222), 16);
    assert_eq!(batch.events, [expected]);
}

#[test]
fn reads_what_vllm_sends() {
    let batch = Batch::read(&sample("vllm-0.32")).expect("a batch");
    let expected = [
        removed(&[8_125_284_976_130_831_545]),
        removed(&[8_620_782_969_628_501_888]),
        stored(&[15_349_329_973_577_602_712, 6_877_173_505_582_386_406], None, 32),
    ];
    assert_eq!(batch.events, expected);
    let batch = Batch::read(&sample("vllm-0.32 evicting")).expect("a batch");
    assert_eq!((batch.events.len(), batch.unknown), (22, 0));
    let kinds = batch.events.iter().filter(|event| matches!(event, Event::Removed(_)));
    assert_eq!(kinds.count(), 21);
}

#[test]
fn a_signed_hash_is_the_unsigned_one_of_the_same_bits() {
    // SGLang: no medium, no rank.
    let batch = pack(&json!([1.5, [["BlockStored", [-2, 3], -1, [1, 2], 1, null]]]));
    let batch = Batch::read(&batch).expect("a batch");
    assert_eq!(batch.events, [stored(&[u64::MAX - 1, 3], Some(u64::MAX), 1)]);
}

#[test]
fn knows_other_places_and_kinds_of_layers() {
    let event = |medium: &str, kind: &str, locality: &str| {
        let fields = json!(["BlockStored", [1], null, [], 16, null, medium, null, null, 2, kind]);
        let Value::Array(mut fields) = fields else { panic!("an array") };
        fields.extend([Value::Null, locality.into(), "later".into()]);
        let map = json!({
            "type": "BlockStored", "block_hashes": [1], "parent_block_hash": null, "token_ids": [],
            "block_size": 16, "medium": medium, "group_idx": 2, "kv_cache_spec_kind": kind,
            "locality": locality, "later": {"a": [1]},
        });
        let batches = [Value::from(fields), map].map(|event| {
            let batch = Batch::read(&pack(&json!([0, [event], 0, "later"]))).expect("a batch");
            let [Event::Stored(stored)] = &batch.events[..] else { panic!("{batch:?}") };
            (stored.place, stored.is_whole)
        });
        assert_eq!(batches[0], batches[1]);
        batches[0]
    };
    assert_eq!(event("GPU", "full_attention", "LOCAL"), (gpu(2), true));
    assert_eq!(event("GPU", "mla_attention", "LOCAL"), (gpu(2), true));
    assert_eq!(event("GPU", "sliding_window", "LOCAL"), (gpu(2), false));
    assert_eq!(event("GPU", "mamba", "LOCAL"), (gpu(2), false));
    let elsewhere = Place { is_local_gpu: false, group: 2 };
    assert_eq!(event("CPU", "full_attention", "LOCAL"), (elsewhere, true));
    assert_eq!(event("CPU_PINNED", "full_attention", "LOCAL"), (elsewhere, true));
    assert_eq!(event("GPU", "full_attention", "REMOTE"), (elsewhere, true));
}

#[test]
fn passes_over_events_that_it_does_not_know() {
    let batch = json!([0, [
        {"type": "BlockMigrated", "block_hashes": {"a": 1}, "block_size": "large"},
        ["BlockMigrated", [1], [[[]]], "GPU"],
        ["AllBlocksCleared"],
        {"type": "AllBlocksCleared"},
        [],
        {},
    ]]);
    let batch = Batch::read(&pack(&batch)).expect("a batch");
    assert_eq!((batch.events, batch.unknown), (vec![Event::Cleared, Event::Cleared], 4));
}

#[test]
fn refuses_what_is_no_batch() {
    let nested = (0..100).fold(json!([]), |inner, _| json!([inner]));
    let wrong = [
        json!(null),
        json!({"ts": 0}),
        json!([0]),
        json!([0, "none"]),
        json!([0, [["BlockStored", [1], null, [], 0]]]),
        json!([0, [["BlockStored", [1], null, []]]]),
        json!([0, [["BlockStored", ["text"], null, [], 16]]]),
        json!([0, [["BlockRemoved", 7]]]),
        json!([0, [{"type": "BlockRemoved", "block_hashes": [1.5]}]]),
        json!([0, [["Unknown", nested]]]),
    ];
    for value in wrong {
        assert!(Batch::read(&pack(&value)).is_err(), "{value}");
    }
    // Lengths of gigabytes, and nothing behind them.
    for start in
        [&b"\x92\xc0\xdd\xff\xff\xff\xff"[..], b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]
    {
        assert!(Batch::read(start).is_err(), "{start:x?}");
    }
}

/// Every extension and odd value within an event is passed over as a whole.
#[test]
fn passes_over_extensions() {
    let mut batch = b"\x92\xcb0000000\x30\x92\x92\xa1x".to_vec();
    batch.extend(b"\xd6\x01abcd");
    batch.extend(b"\x91\xb0AllBlocksCleared");
    let batch = Batch::read(&batch).expect("a batch");
    assert_eq!((batch.events, batch.unknown), (vec![Event::Cleared], 1));
}

proptest! {
    #[test]
    fn survives_any_bytes(bytes in vec(any::<u8>(), 0..200)) {
        let _ = Batch::read(&bytes);
    }

    /// As what is random is mostly refused at its first byte.
    #[test]
    fn survives_damage(
        which in any::<prop::sample::Index>(),
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        end in any::<prop::sample::Index>(),
    ) {
        let (_, mut bytes) = which.get(&samples()).clone();
        let place = place.index(bytes.len());
        bytes[place] = byte;
        let _ = Batch::read(&bytes);
        let _ = Batch::read(&bytes[..end.index(bytes.len())]);
    }
}
