//! What a pool's requests have turned out to be: the next one is expected to be like them.

use std::time::Duration;

use crate::schedule::cost::TYPICAL_OUTPUT;
use crate::schedule::drain::Drain;
use crate::schedule::prefix::Prompt;
use crate::schedule::{Demand, Excess};

/// Means over about the last hundred answers, and the rate at which requests end.
#[derive(Debug, Default)]
pub(super) struct Learned {
    /// Tokens by the pods' count for each that was guessed from the text.
    tokens: Option<f32>,
    output: Option<f32>,
    seconds: Option<f32>,
    /// When refused clients may come back.
    pub(super) drain: Drain,
}

impl Learned {
    /// What a request is expected to ask for, whose answer may have `max_tokens`.
    pub(super) fn demand(&self, prompt: &Prompt, max_tokens: Option<u64>) -> Demand {
        let most = max_tokens.map_or(f32::MAX, |most| most.max(1) as f32);
        let output = match self.output {
            Some(mean) => mean.min(most),
            None if most < TYPICAL_OUTPUT => most,
            None => 0.0,
        };
        Demand {
            prompt_tokens: self.ratio().counted(prompt.tokens),
            output_tokens: output as u32,
            prefix: prompt.head,
        }
    }

    /// How pods are expected to count guessed tokens.
    pub(super) fn ratio(&self) -> Ratio {
        Ratio(self.tokens.unwrap_or(1.0))
    }

    /// Takes what an answer turned out to be.
    pub(super) fn answered(
        &mut self,
        guessed: u64,
        prompt_tokens: Option<u64>,
        output: Option<u32>,
        took: Duration,
    ) {
        if let Some(tokens) = prompt_tokens.filter(|tokens| guessed > 0 && *tokens > 0) {
            // Anything else is a server that counts otherwise.
            let ratio = (tokens as f32 / guessed as f32).clamp(LEAST_RATIO, MOST_RATIO);
            mean(&mut self.tokens, ratio);
        }
        if let Some(output) = output {
            mean(&mut self.output, output.min(MOST_OUTPUT) as f32);
        }
        mean(&mut self.seconds, took.as_secs_f32());
    }

    /// When a client that was refused at `now` may come back.
    pub(super) fn retry_after(&mut self, excess: Excess, now: Duration) -> Duration {
        let expected = Duration::from_secs_f32(self.seconds.unwrap_or(0.0).clamp(0.0, 3600.0));
        self.drain.refused(excess, expected, now)
    }
}

/// Tokens by the pods' count for each that was guessed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio(pub(super) f32);

impl Ratio {
    /// Guessed tokens as pods are expected to count them.
    pub(super) fn counted(self, guessed: u64) -> u32 {
        // A float's conversion saturates.
        (guessed as f32 * self.0) as u32
    }

    /// How many guessed tokens there are in so many by the pods' count.
    pub(super) fn guessed(self, counted: u64) -> u64 {
        (counted as f64 / f64::from(self.0)) as u64
    }
}

fn mean(of: &mut Option<f32>, value: f32) {
    *of = Some(of.map_or(value, |mean| mean + (value - mean) / LAST));
}

/// Bounds of how many tokens a pod counts for each that was guessed: Chinese in an old vocabulary has several
/// times as many, tool calls and chat templates add to short prompts.
const LEAST_RATIO: f32 = 0.1;
const MOST_RATIO: f32 = 10.0;

/// The longest answer that says something of the next: more than a model's context is no count of tokens.
const MOST_OUTPUT: u32 = 1 << 17;

/// Answers that a mean is about.
const LAST: f32 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(tokens: u64) -> Prompt {
        Prompt { tokens, ..Prompt::default() }
    }

    #[test]
    fn the_next_request_is_expected_to_be_like_the_last_ones() {
        let mut learned = Learned::default();
        let tokens = |learned: &Learned, guessed| {
            let Demand { prompt_tokens, output_tokens, .. } =
                learned.demand(&prompt(guessed), None);
            (prompt_tokens, output_tokens)
        };
        assert_eq!(tokens(&learned, 2000), (2000, 0));
        assert_eq!(tokens(&learned, 0), (0, 0));
        let second = Duration::from_secs(1);
        learned.answered(2000, Some(3000), Some(500), second);
        assert_eq!(tokens(&learned, 2000), (3000, 500));
        for _ in 0..1000 {
            learned.answered(1500, Some(1000), Some(100), second);
        }
        let (prompt_tokens, output) = tokens(&learned, 1500);
        assert!((999..=1001).contains(&prompt_tokens) && (99..=101).contains(&output));
        // What says nothing, and what cannot be.
        learned.answered(1500, None, None, second);
        learned.answered(1500, Some(0), None, second);
        learned.answered(0, Some(1000), None, second);
        assert_eq!(tokens(&learned, 1500), (prompt_tokens, output));
        learned.answered(u64::MAX, Some(1), Some(u32::MAX), Duration::MAX);
        assert!(tokens(&learned, 1).1 < 1500, "a hundredth of the longest answer");
        learned.answered(1, Some(u64::MAX), Some(0), Duration::ZERO);
        assert!(tokens(&learned, u64::MAX).0 > 0);
        assert!(learned.retry_after(Excess::default(), second) >= second);
    }

    #[test]
    fn no_more_is_expected_than_is_allowed() {
        let mut learned = Learned::default();
        let output = |learned: &Learned, most| learned.demand(&prompt(1), Some(most)).output_tokens;
        // Nothing is known: a typical answer, if that is allowed.
        assert_eq!([0, 1, 16, 4096].map(|most| output(&learned, most)), [1, 1, 16, 0]);
        learned.answered(1, None, Some(300), Duration::ZERO);
        assert_eq!([0, 1, 16, 4096].map(|most| output(&learned, most)), [1, 1, 16, 300]);
    }
}
