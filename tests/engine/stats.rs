//! What a pod has seen, for tests to look at.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use serde_json::{Value, json};

use super::api::digest;
use super::wire::Head;

/// Counts since the start, and the last requests.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Requests by path, probes among them.
    pub requests: BTreeMap<String, u64>,
    /// Inference requests that were answered well, to the end.
    pub completed: u64,
    /// Inference requests that were refused, or ended by a fault.
    pub failed: u64,
    /// Inference requests whose client went away.
    pub aborted: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Connections open now.
    pub open: u64,
    /// Bytes read from clients.
    pub bytes_in: u64,
    /// Bytes written to clients.
    pub bytes_out: u64,
    /// Calls that wrote them.
    pub writes: u64,
    /// Requests in the batch, of all engines.
    pub running: u64,
    /// Requests that wait, those on their way to the engine included.
    pub waiting: u64,
    /// Share of the KV cache in use, of the fullest engine.
    pub kv_usage: f64,
    /// Tokens generated.
    pub tokens: u64,
    /// Prompt tokens found in the prefix cache.
    pub prefix_hits: u64,
    /// The last inference requests, the newest last.
    pub last: VecDeque<Seen>,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The head, to its empty line.
    pub head: Bytes,
    /// The body without its framing; empty when it was longer than 1 MiB.
    pub body: Bytes,
    /// Length of the body.
    pub body_len: usize,
}

impl Stats {
    /// Requests to this path.
    pub fn requests_to(&self, path: &str) -> u64 {
        self.requests.get(path).copied().unwrap_or(0)
    }

    /// Counts a request.
    pub(super) fn count(&mut self, path: &str) {
        if let Some(count) = self.requests.get_mut(path) {
            *count += 1;
        } else if self.requests.len() < MAX_PATHS {
            self.requests.insert(path.to_owned(), 1);
        }
    }

    /// Keeps an inference request.
    pub(super) fn keep(&mut self, head: &Head, body: &Bytes) {
        if self.last.len() >= MAX_LAST {
            self.last.pop_front();
        }
        let kept = if body.len() <= MAX_KEPT_BODY { body.clone() } else { Bytes::new() };
        self.last.push_back(Seen { head: head.raw.clone(), body: kept, body_len: body.len() });
    }

    /// The same as JSON.
    pub fn json(&self) -> Value {
        let last: Vec<Value> = self
            .last
            .iter()
            .map(|seen| {
                json!({
                    "head": String::from_utf8_lossy(&seen.head),
                    "body": String::from_utf8_lossy(&seen.body),
                    "body_len": seen.body_len,
                    "body_fnv1a": format!("{:016x}", digest(&seen.body)),
                })
            })
            .collect();
        json!({
            "requests": self.requests,
            "completed": self.completed,
            "failed": self.failed,
            "aborted": self.aborted,
            "connections": self.connections,
            "open": self.open,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "writes": self.writes,
            "running": self.running,
            "waiting": self.waiting,
            "kv_usage": self.kv_usage,
            "tokens": self.tokens,
            "prefix_hits": self.prefix_hits,
            "last": last,
        })
    }
}

/// Requests kept.
const MAX_LAST: usize = 8;
/// Longest body kept.
const MAX_KEPT_BODY: usize = 1 << 20;
/// Paths counted.
const MAX_PATHS: usize = 256;
