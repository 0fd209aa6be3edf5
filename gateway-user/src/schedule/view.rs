//! What a pick is made from: the request's [`Demand`], and of every pod a [`PodView`].

use std::time::Duration;

use super::cost::TYPICAL_PROMPT;
use super::speed::Speed;

/// What a request asks for, as far as it is known before it has been answered.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    /// Tokens of its prompt; 0 when unknown, and then a typical prompt is assumed.
    pub prompt_tokens: u32,
    /// Tokens that the answer is expected to have; 0 when unknown, and then a typical answer is assumed.
    pub output_tokens: u32,
    /// A hash of the prompt's beginning with all that it depends on (model, adapter, salt). Near-ties of a
    /// prompt that no pod has in its cache are broken by it, so that several gateways choose the same pod.
    pub prefix: Option<u64>,
}

impl Demand {
    /// Tokens of the prompt, as far as anybody can tell.
    pub fn prompt(&self) -> u32 {
        if self.prompt_tokens == 0 { TYPICAL_PROMPT } else { self.prompt_tokens }
    }
}

/// What a pod's metrics say. `None` is "unknown", which is never the same as "idle".
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Signals {
    /// KV cache in use, 0..1. Of several engines behind one endpoint, the fullest.
    pub kv_usage: Option<f32>,
    /// Requests waiting; of several engines, the sum.
    pub waiting: Option<u32>,
    /// Requests running; of several engines, the sum.
    pub running: Option<u32>,
    /// Adapters that fit at once (`max_lora`).
    pub adapter_slots: Option<u32>,
    /// Adapters with live requests.
    pub adapters_active: Option<u32>,
}

/// How a pod stands to the adapter that a request names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdapterFit {
    /// The request names none.
    #[default]
    NotNeeded,
    /// It has live requests there: it is in GPU memory.
    Active,
    /// The pod lists it as loaded.
    Loaded,
    /// It is not there now, and would be loaded for the request.
    Absent,
    /// The pod lists what it has, and this is not among it. It may load it, or answer 404.
    Unlisted,
}

/// One pod as the scheduler sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct PodView {
    /// The same for this pod at every gateway and unlike other pods': a hash of its address.
    pub key: u64,
    /// It may be given requests at all: reachable and not draining.
    pub ready: bool,
    /// What it may have of what other pods have, as it has just come back; `None`: all of that, and more.
    pub share: Option<f32>,
    /// This request has been tried there and failed.
    pub tried: bool,
    /// Requests that this gateway has in flight there.
    pub in_flight: u32,
    /// What these amount to.
    pub own: Own,
    /// What its peers have told that they have there; nothing without an exchange.
    pub others: Others,
    /// What it last said.
    pub signals: Signals,
    /// How old that is; `None` when it has never said anything.
    pub age: Option<Duration>,
    /// How it stands to the request's adapter.
    pub adapter: AdapterFit,
    /// Tokens of this request's prompt that are in its prefix cache.
    pub cached_tokens: u32,
    /// Tokens that fit into its KV cache.
    pub kv_tokens: Option<u32>,
    /// Sequences that may run at once (vLLM: `max_num_seqs`).
    pub slots: Option<u32>,
    /// How fast it is.
    pub speed: Speed,
    /// The request's session has been served there.
    pub session: bool,
    /// The place, in the order of dispatch, of the last request sent there that no pod had cached; 0 is
    /// never.
    pub last_used: u64,
    /// Lengths of prompts, in tokens, that it is meant for.
    pub context_range: Option<(u32, u32)>,
}

/// What one gateway's requests at a pod amount to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Own {
    /// Requests whose first token has not come.
    pub pending: u32,
    /// Their prompt tokens that are still to be computed.
    pub prefill_tokens: u32,
    /// How long that should take from now.
    pub busy: Duration,
    /// Prompt and expected output of all in flight, in tokens.
    pub tokens: u64,
    /// What the last scrape cannot show.
    pub since_scrape: Since,
    /// How much longer the oldest request without a first token has waited than was expected.
    pub overdue: Duration,
}

/// What a gateway's peers together have at a pod, as they told it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Others {
    /// Requests in flight.
    pub in_flight: u32,
    /// Those whose first token has not come.
    pub pending: u32,
    /// Their prompt tokens that were still to be computed when they told.
    pub prefill_tokens: u32,
    /// How long that should take from now.
    pub busy: Duration,
    /// Requests that the scrape of who sent them does not show.
    pub sent: u32,
    /// Prompt and expected output of all in flight, in tokens.
    pub tokens: u64,
}

/// What one gateway has sent and got back since a pod was last scraped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Since {
    /// Requests sent, and still in flight.
    pub sent: u32,
    /// Their prompt and expected output, in tokens.
    pub tokens: u32,
    /// Requests that the scrape shows and that are over.
    pub finished: u32,
}

impl PodView {
    /// What may be believed of its signals: nothing when they are older than `stale_after`, and of a
    /// KV usage only what is a share.
    ///
    /// A known engine that answered without a number is believed too, with scorers giving what is missing a
    /// neutral value: TGI has no gauges before its first request, and to wait for them would send that
    /// one pod all requests which got the first.
    pub fn believed(&self, stale_after: Duration) -> Option<Signals> {
        if self.age? > stale_after {
            return None;
        }
        let kv_usage = self.signals.kv_usage.filter(|usage| usage.is_finite() && *usage >= 0.0);
        Some(Signals { kv_usage: kv_usage.map(|usage| usage.min(1.0)), ..self.signals })
    }
}
