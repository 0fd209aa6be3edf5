//! What a pool's requests have turned out to be: the next one is expected to be like them.

use std::time::Duration;

use crate::schedule::Demand;
use crate::schedule::drain::Drain;

/// Means over about the last hundred answers, and the rate at which requests end.
#[derive(Debug, Default)]
pub(super) struct Learned {
    bytes_per_token: Option<f32>,
    output: Option<f32>,
    seconds: Option<f32>,
    /// When refused clients may come back.
    pub(super) drain: Drain,
}

impl Learned {
    /// What a request with a body of this size is expected to ask for.
    pub(super) fn demand(&self, prompt_bytes: usize) -> Demand {
        // A float's conversion saturates.
        let tokens = prompt_bytes as f32 / self.bytes_per_token.unwrap_or(BYTES_PER_TOKEN);
        Demand {
            prompt_tokens: tokens as u32,
            output_tokens: self.output.unwrap_or(0.0) as u32,
            prefix: None,
        }
    }

    /// Takes what an answer turned out to be.
    pub(super) fn answered(
        &mut self,
        prompt_bytes: usize,
        prompt_tokens: Option<u64>,
        output: Option<u32>,
        took: Duration,
    ) {
        if let Some(tokens) = prompt_tokens.filter(|tokens| *tokens > 0) {
            let ratio = prompt_bytes as f32 / tokens as f32;
            // Anything else is no text: token ids, pictures, or a server that counts otherwise.
            mean(&mut self.bytes_per_token, ratio.clamp(LEAST_BYTES, MOST_BYTES));
        }
        if let Some(output) = output {
            mean(&mut self.output, output as f32);
        }
        mean(&mut self.seconds, took.as_secs_f32());
    }

    /// When a client that was refused at `now` may come back.
    pub(super) fn retry_after(&mut self, now: Duration) -> Duration {
        let expected = Duration::from_secs_f32(self.seconds.unwrap_or(0.0).clamp(0.0, 3600.0));
        self.drain.refused(0, expected, now)
    }
}

fn mean(of: &mut Option<f32>, value: f32) {
    *of = Some(of.map_or(value, |mean| mean + (value - mean) / LAST));
}

/// A token of English text, with the JSON around it.
const BYTES_PER_TOKEN: f32 = 4.5;

/// Bounds of what a token takes in a body.
const LEAST_BYTES: f32 = 0.5;
const MOST_BYTES: f32 = 64.0;

/// Answers that a mean is about.
const LAST: f32 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_request_is_expected_to_be_like_the_last_ones() {
        let mut learned = Learned::default();
        let tokens = |learned: &Learned, bytes| {
            let Demand { prompt_tokens, output_tokens, .. } = learned.demand(bytes);
            (prompt_tokens, output_tokens)
        };
        assert_eq!(tokens(&learned, 9000), (2000, 0));
        assert_eq!(tokens(&learned, 0), (0, 0));
        let second = Duration::from_secs(1);
        learned.answered(6000, Some(2000), Some(500), second);
        assert_eq!(tokens(&learned, 9000), (3000, 500));
        for _ in 0..1000 {
            learned.answered(6000, Some(1000), Some(100), second);
        }
        let (prompt, output) = tokens(&learned, 6000);
        assert!((999..=1001).contains(&prompt) && (99..=101).contains(&output));
        // What says nothing, and what cannot be.
        learned.answered(6000, None, None, second);
        learned.answered(6000, Some(0), None, second);
        assert_eq!(tokens(&learned, 6000), (prompt, output));
        learned.answered(usize::MAX, Some(1), Some(u32::MAX), Duration::MAX);
        learned.answered(0, Some(u64::MAX), Some(0), Duration::ZERO);
        assert!(tokens(&learned, usize::MAX).0 > 0);
        assert!(learned.retry_after(second) >= second);
    }
}
