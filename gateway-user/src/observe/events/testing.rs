//! Messages for tests, in both encodings.

use serde_json::{Value, json};

/// The payload of a message with these events.
pub(super) fn payload(events: &[Value]) -> Vec<u8> {
    rmp_serde::to_vec(&json!([0.5, events, 0])).expect("JSON fits")
}

/// Blocks of 16 tokens came in.
pub(super) fn stored(hashes: &[u64], parent: Option<u64>) -> Value {
    json!({
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent,
        "token_ids": [], "block_size": 16, "medium": "GPU", "group_idx": 0,
    })
}

/// Blocks went.
pub(super) fn removed(hashes: &[u64]) -> Value {
    json!(["BlockRemoved", hashes, "GPU"])
}

/// All went.
pub(super) fn cleared() -> Value {
    json!(["AllBlocksCleared"])
}
