//! The pods' scores in their map: what the gateway makes of each pod, for kernel programs and tools
//! to see.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use aya::maps::{HashMap as BpfHashMap, MapData, MapError};
use gateway_common::score::{FRESH, MAX_PODS, PodKey, READY, Score};
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// What the gateway makes of one pod of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ScoreEntry {
    /// The pool's slot: its place in the gateway's list of pools.
    pub pool: u32,
    /// The pod.
    pub endpoint: SocketAddr,
    /// The weighted score, higher is better; kept to 1/65536.
    pub score: f64,
    /// Requests that this gateway has in flight there.
    pub in_flight: u32,
    /// The pod takes requests.
    pub ready: bool,
    /// Its metrics are recent enough to count on.
    pub fresh: bool,
}

/// A score as it was read back from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PublishedScore {
    /// The score.
    #[serde(flatten)]
    pub entry: ScoreEntry,
    /// How long ago it was written, in milliseconds. Well above 1,000 the gateway has stopped
    /// publishing.
    pub age_ms: u64,
}

/// What publishing did.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Publication {
    /// Pods written: new, changed, or written a second ago.
    pub written: usize,
    /// Pods taken out.
    pub removed: usize,
    /// Pods for which the map has no room (beyond 4096).
    pub left_out: usize,
}

/// The map, and what stands in it.
pub(super) struct Scores {
    map: BpfHashMap<MapData, PodKey, Score>,
    /// What was written, so that what did not change costs no system call.
    written: HashMap<PodKey, Score>,
}

impl Scores {
    pub(super) fn new(map: BpfHashMap<MapData, PodKey, Score>) -> Self {
        Self { map, written: HashMap::new() }
    }

    pub(super) fn publish(&mut self, entries: &[ScoreEntry]) -> Result<Publication, MapError> {
        let now = monotonic_ns();
        let mut done = Publication::default();
        let wanted: HashMap<PodKey, Score> =
            entries.iter().take(MAX_PODS as usize).map(|entry| entry.encode(now)).collect();
        done.left_out = entries.len().saturating_sub(MAX_PODS as usize);

        // Out first, so that there is room for what comes in.
        let gone: Vec<PodKey> =
            self.written.keys().filter(|key| !wanted.contains_key(key)).copied().collect();
        for key in gone {
            match self.map.remove(&key) {
                Ok(()) | Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(error),
            }
            self.written.remove(&key);
            done.removed += 1;
        }
        for (key, score) in wanted {
            if self.written.get(&key).is_some_and(|old| still_good(old, &score)) {
                continue;
            }
            self.map.insert(key, score, 0)?;
            self.written.insert(key, score);
            done.written += 1;
        }
        Ok(done)
    }

    /// In the order of pool, port and address.
    pub(super) fn read(&self) -> Result<Vec<PublishedScore>, MapError> {
        let now = monotonic_ns();
        let mut found = self.map.iter().collect::<Result<Vec<_>, _>>()?;
        found.sort_unstable_by_key(|(key, _)| *key);
        Ok(found.iter().map(|(key, score)| PublishedScore::decode(key, score, now)).collect())
    }
}

impl ScoreEntry {
    fn encode(&self, now: u64) -> (PodKey, Score) {
        let flag = |on: bool, bit: u32| if on { bit } else { 0 };
        let score = Score {
            published_ns: now,
            score: Score::fixed(self.score),
            in_flight: self.in_flight,
            flags: flag(self.ready, READY) | flag(self.fresh, FRESH),
            zero: 0,
        };
        (PodKey::new(self.pool, self.endpoint), score)
    }
}

impl PublishedScore {
    fn decode(key: &PodKey, score: &Score, now: u64) -> Self {
        let entry = ScoreEntry {
            pool: key.pool,
            endpoint: key.endpoint(),
            score: score.value(),
            in_flight: score.in_flight,
            ready: score.flags & READY != 0,
            fresh: score.flags & FRESH != 0,
        };
        Self { entry, age_ms: now.saturating_sub(score.published_ns) / 1_000_000 }
    }
}

/// Whether what stands in the map says the same as `new` and is not so old that readers would doubt
/// it.
fn still_good(old: &Score, new: &Score) -> bool {
    let same = Score { published_ns: old.published_ns, ..*new } == *old;
    same && new.published_ns.saturating_sub(old.published_ns) < REWRITE_NS
}

/// CLOCK_MONOTONIC in nanoseconds, the clock that kernel programs read.
pub(super) fn monotonic_ns() -> u64 {
    // It exists on every Linux; it counts from the start of the machine and is never negative.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    now.as_nanos() as u64
}

/// An unchanged score is written again after this long, so that its age shows whether anyone still
/// publishes.
const REWRITE_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> ScoreEntry {
        ScoreEntry {
            pool: 3,
            endpoint: "[2001:db8::1]:8000".parse().unwrap(),
            score: 7.25,
            in_flight: 12,
            ready: true,
            fresh: false,
        }
    }

    #[test]
    fn an_entry_comes_back_as_it_went_in() {
        let (key, score) = entry().encode(5_000_000_000);
        let back = PublishedScore::decode(&key, &score, 7_500_000_000);
        assert_eq!(back, PublishedScore { entry: entry(), age_ms: 2500 });
    }

    #[test]
    fn only_a_change_or_age_is_written() {
        let at = |now, entry: ScoreEntry| entry.encode(now).1;
        let old = at(1, entry());
        assert!(still_good(&old, &at(REWRITE_NS, entry())));
        assert!(!still_good(&old, &at(REWRITE_NS + 1, entry())));
        let changes = [
            ScoreEntry { score: 7.5, ..entry() },
            ScoreEntry { in_flight: 13, ..entry() },
            ScoreEntry { ready: false, ..entry() },
            ScoreEntry { fresh: true, ..entry() },
        ];
        for change in changes {
            assert!(!still_good(&old, &at(2, change)), "{change:?}");
        }
    }
}
