//! What the gateway does not know of its pods and would have to, to choose well among them.
//!
//! A pod that has just come is given time to tell, and so is one whose metrics fail now and then: only what is missing
//! for [`PATIENCE`] is named.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::pool::{PodId, Pool};

/// Something that a pod does not tell.
#[derive(Clone, Debug, PartialEq)]
pub struct Lack {
    /// The pool's name.
    pub pool: String,
    /// The pod's name.
    pub pod: String,
    /// What is missing, or why nothing is known.
    pub what: String,
    /// It gets no requests for it: it is out of reach.
    pub is_down: bool,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.pool, self.pod, self.what)
    }
}

/// Remembers since when something is missing.
#[derive(Debug, Default)]
pub struct Signals {
    since: HashMap<PodId, Instant>,
}

impl Signals {
    /// What is missing now, in the order of pools and pods. To be asked every second or so.
    pub fn look(&mut self, pools: &[Arc<Pool>], now: Instant) -> Vec<Lack> {
        let before = std::mem::take(&mut self.since);
        let mut lacks = Vec::new();
        // A pool of whole connections asks its pods as well, as its scores are by their load.
        for pool in pools {
            for status in pool.status(now) {
                let Some(what) = status.lacks else { continue };
                let since = before.get(&status.pod.id).copied().unwrap_or(now);
                self.since.insert(status.pod.id, since);
                if now.saturating_duration_since(since) >= PATIENCE {
                    let (pool, pod) = (pool.name.to_string(), status.pod.name.to_string());
                    lacks.push(Lack { pool, pod, what, is_down: !status.view.ready });
                }
            }
        }
        lacks
    }
}

/// How long something must be missing.
const PATIENCE: Duration = Duration::from_secs(5);
