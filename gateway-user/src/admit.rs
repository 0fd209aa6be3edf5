//! What a client is told when no pod fits: 429 when waiting will help, 503 when it will not.

use tokio::time::Instant;

use crate::error::Refusal;
use crate::metrics::Rejection;
use crate::pool::Pool;
use crate::schedule::NoPod;

/// The refusal for a pool where no pod fits.
pub fn refusal(pool: &Pool, none: NoPod) -> (Refusal, Rejection) {
    match none {
        NoPod::Saturated => {
            let retry_after = pool.retry_after(Instant::now());
            (Refusal::saturated(&pool.name, retry_after), Rejection::Saturated)
        }
        NoPod::Empty => (Refusal::no_pod(&pool.name), Rejection::NoPod),
        NoPod::Exhausted => (Refusal::no_pod(&pool.name), Rejection::Exhausted),
    }
}
