//! What is known of a request once it has ended.

use std::time::Duration;

use super::labels::{Outcome, Path, PathReason, Rejection};

/// One finished request of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// The status that the client got; 0 when it got none.
    pub status: u16,
    /// How it ended.
    pub outcome: Outcome,
    /// Why it was sent away, when it was.
    pub rejection: Option<Rejection>,
    /// What carried the answer's body and why that; `None` when no pod answered.
    pub flow: Option<(Path, PathReason)>,
    /// Bytes of the answer's body that the daemon relayed, with their framing.
    pub relayed_bytes: u64,
    /// Bytes of it that the kernel carried, and along which path.
    pub carried_bytes: Option<(Path, u64)>,
    /// From the request's first byte to the answer's last.
    pub duration: Duration,
    /// From the request's first byte to the first token.
    pub ttft: Option<Duration>,
    /// From the first token to the last.
    pub decode: Option<Duration>,
    /// Prompt tokens, as the pod counted them.
    pub prompt_tokens: Option<u64>,
    /// Prompt tokens that were in the pod's prefix cache, as it counted them.
    pub cached_tokens: Option<u64>,
    /// Tokens generated, as the pod counted them.
    pub completion_tokens: Option<u64>,
    /// Time that the gateway itself added; `None` when no pod answered.
    pub overhead: Option<Duration>,
    /// Further pods tried after the first.
    pub retries: u32,
}

impl Record {
    /// Time per output token: what the tokens after the first took, each. Unknown of a single
    /// token.
    pub fn tpot(&self) -> Option<Duration> {
        let gaps = self.completion_tokens?.checked_sub(1).filter(|&gaps| gaps > 0)?;
        Some(self.decode?.div_f64(gaps as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::record;

    #[test]
    fn tpot_is_the_mean_gap() {
        let second = Some(Duration::from_secs(1));
        let table = [
            (Some(101), second, Some(Duration::from_millis(10))),
            (Some(2), second, second),
            (Some(1), second, None),
            (Some(0), second, None),
            (None, second, None),
            (Some(9), None, None),
            (Some(u64::MAX), second, Some(Duration::ZERO)),
        ];
        for (completion_tokens, decode, expected) in table {
            let record = Record { completion_tokens, decode, ..record(Outcome::Ok) };
            assert_eq!(record.tpot(), expected, "{completion_tokens:?} {decode:?}");
        }
    }
}
