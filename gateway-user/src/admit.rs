//! What a client is told when no pod fits: 429 when waiting will help, 503 when it will not. Pure.

use std::time::Duration;

use crate::error::Refusal;
use crate::metrics::Rejection;
use crate::pool::Pool;
use crate::schedule::NoPod;

/// The refusal for a pool where no pod fits.
pub fn refusal(pool: &Pool, none: NoPod) -> (Refusal, Rejection) {
    match none {
        NoPod::Saturated => (Refusal::saturated(&pool.name, RETRY_AFTER), Rejection::Saturated),
        NoPod::Empty => (Refusal::no_pod(&pool.name), Rejection::NoPod),
        NoPod::Exhausted => (Refusal::no_pod(&pool.name), Rejection::Exhausted),
    }
}

/// A saturated engine finishes some request within about a second: decoding answers takes seconds, and
/// hundreds run at once.
const RETRY_AFTER: Duration = Duration::from_secs(1);
