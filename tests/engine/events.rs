//! Publishes what changes in a KV cache, as vLLM does since 0.25: a message for each step that changed something.

use std::net::TcpListener;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::mpsc;
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

use super::kv::{BLOCK_TOKENS, Change};

/// Publishes the changes of each step, until there will be no more.
pub(super) async fn publish(
    listener: TcpListener,
    mut steps: mpsc::UnboundedReceiver<Vec<Change>>,
) {
    let mut socket = PubSocket::new();
    if let Err(error) = socket.bind_listener(listener).await {
        eprintln!("no KV events: {error}");
        return;
    }
    let mut number: u64 = 0;
    while let Some(changes) = steps.recv().await {
        let payload = payload(&changes);
        let frames = [Bytes::new(), Bytes::copy_from_slice(&number.to_be_bytes()), payload.into()];
        number += 1;
        // With nobody there it goes nowhere.
        if let Ok(message) = ZmqMessage::try_from(frames.to_vec()) {
            let _ = socket.send(message).await;
        }
    }
}

/// An event as msgpack has it.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
enum Event {
    BlockStored {
        block_hashes: Vec<u64>,
        parent_block_hash: Option<u64>,
        token_ids: Vec<u32>,
        block_size: u32,
        lora_id: Option<u32>,
        medium: &'static str,
        group_idx: u32,
        kv_cache_spec_kind: &'static str,
    },
    BlockRemoved {
        block_hashes: Vec<u64>,
        medium: &'static str,
        group_idx: u32,
    },
}

fn payload(changes: &[Change]) -> Vec<u8> {
    let mut events: Vec<Event> = Vec::new();
    for &change in changes {
        match (change, events.last_mut()) {
            // One event for as many blocks as follow each other.
            (
                Change::Stored { hash, parent },
                Some(Event::BlockStored { block_hashes, token_ids, .. }),
            ) if parent.is_some() && block_hashes.last().copied() == parent => {
                block_hashes.push(hash);
                token_ids.extend([TOKEN; BLOCK_TOKENS as usize]);
            }
            (Change::Stored { hash, parent }, _) => events.push(Event::BlockStored {
                block_hashes: vec![hash],
                parent_block_hash: parent,
                token_ids: vec![TOKEN; BLOCK_TOKENS as usize],
                block_size: BLOCK_TOKENS,
                lora_id: None,
                medium: "GPU",
                group_idx: 0,
                kv_cache_spec_kind: "full_attention",
            }),
            (Change::Removed { hash }, _) => events.push(Event::BlockRemoved {
                block_hashes: vec![hash],
                medium: "GPU",
                group_idx: 0,
            }),
        }
    }
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    // Only a value that cannot be serialised fails.
    rmp_serde::to_vec_named(&(time, events, 0_u32)).unwrap_or_default()
}

/// In place of every token: the engine sees lengths and hashes only.
const TOKEN: u32 = 7;
