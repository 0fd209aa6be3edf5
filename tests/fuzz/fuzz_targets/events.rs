//! The reader of KV events: no panic, and no more made of a message than there is in it.
#![no_main]

use gateway_user::observe::events::batch::{Batch, Event};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    let Ok(batch) = Batch::read(payload) else { return };
    let hashes = batch.events.iter().map(|event| match event {
        Event::Stored(stored) => stored.hashes.len(),
        Event::Removed(removed) => removed.hashes.len(),
        Event::Cleared => 0,
    });
    let all = batch.events.len() + batch.unknown + hashes.sum::<usize>();
    assert!(all < payload.len());
});
