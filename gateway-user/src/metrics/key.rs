//! One key's handles.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use super::labels::{ByLabel, Limit, Outcome};
use super::pool::count;

/// What is counted of one API key, or of all tokens of an issuer.
#[derive(Debug, Default)]
pub struct KeyMetrics {
    pub(super) requests: ByLabel<Outcome, Counter>,
    pub(super) limited: ByLabel<Limit, Counter>,
    /// Requests that run now: add when one begins, take away when it ends.
    pub in_flight: Gauge,
    pub(super) prompt_tokens: Counter,
    pub(super) generation_tokens: Counter,
}

impl KeyMetrics {
    /// Counts a request that is over, and the tokens of its prompt and its answer.
    pub fn finished(&self, outcome: Outcome, prompt: Option<u64>, generated: Option<u64>) {
        count(self.requests.get(outcome));
        self.prompt_tokens.inc_by(prompt.unwrap_or(0));
        self.generation_tokens.inc_by(generated.unwrap_or(0));
    }

    /// Counts a request that was refused as the key's limit was used up.
    pub fn limited(&self, limit: Limit) {
        count(self.limited.get(limit));
    }
}
