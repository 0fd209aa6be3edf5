//! What the simulator's traffic is on the wire: prompts of real text, so that gateways and pods have
//! something to hash. Pure.

use fastrand::Rng;
use sluice_tests::engine::kv::BLOCK_TOKENS;
use sluice_tests::sim::traffic::Ask;

/// The name of an adapter.
pub(crate) fn adapter(number: u32) -> String {
    format!("adapter-{number:03}")
}

/// The name of the base model.
pub(crate) const MODEL: &str = "base";

/// The body of a request: so many tokens of prompt as the simulated one has, and the same words where that
/// has the same blocks.
pub(crate) fn body(ask: &Ask) -> String {
    let model = ask.adapter.map_or_else(|| MODEL.to_owned(), adapter);
    let mut prompt = String::with_capacity(ask.prompt as usize * TOKEN.len());
    let (blocks, rest) = (ask.prompt / BLOCK_TOKENS, ask.prompt % BLOCK_TOKENS);
    for block in ask.blocks.iter().take(blocks as usize) {
        words(*block, BLOCK_TOKENS, &mut prompt);
    }
    words(ask.blocks.last().copied().unwrap_or(ask.id), rest, &mut prompt);
    format!(
        "{{\"model\":\"{model}\",\"stream\":true,\"max_tokens\":{},\"prompt\":\"{prompt}\"}}",
        ask.answer
    )
}

/// So many words of one token each, always the same for a seed.
fn words(seed: u64, count: u32, into: &mut String) {
    let mut rng = Rng::with_seed(seed);
    for _ in 0..count {
        into.extend([rng.lowercase(), rng.lowercase(), rng.lowercase(), ' ']);
    }
}

/// Four characters make a token, for the simulated model server.
const TOKEN: &str = "abc ";

#[cfg(test)]
mod tests {
    use sluice_tests::engine::api::{Body, Endpoint};
    use sluice_tests::engine::model::Request;
    use sluice_tests::sim::traffic::Traffic;

    use super::*;
    use crate::scenarios;

    fn sent(ask: &Ask) -> Request {
        let body = Body::parse(Endpoint::Completion, body(ask).as_bytes()).unwrap();
        body.request(body.max_tokens(100_000).unwrap())
    }

    fn alike(one: &[u64], two: &[u64]) -> usize {
        one.iter().zip(two).take_while(|(one, two)| one == two).count()
    }

    #[test]
    fn a_pod_reads_the_request_that_the_simulator_has() {
        for small in scenarios::all(20.0) {
            let kind = (small.shape, small.arrivals);
            let asks: Vec<Ask> =
                Traffic::new(kind, small.rate, small.seconds, 1, 1).map(|(_, ask)| ask).collect();
            let first = sent(&asks[0]);
            for ask in &asks {
                let sent = sent(ask);
                assert_eq!((sent.prompt_tokens, sent.max_tokens), (ask.prompt, ask.answer));
                let whole = (ask.prompt / BLOCK_TOKENS) as usize;
                let shared = alike(&ask.blocks, &asks[0].blocks).min(whole);
                let shared = shared.min((asks[0].prompt / BLOCK_TOKENS) as usize);
                assert_eq!(alike(&sent.blocks, &first.blocks), shared, "{}", small.name);
            }
        }
    }

    #[test]
    fn an_adapter_is_asked_by_its_name() {
        let mut ask = Ask::default();
        (ask.prompt, ask.answer, ask.adapter) = (3, 1, Some(7));
        let body = Body::parse(Endpoint::Completion, body(&ask).as_bytes()).unwrap();
        assert_eq!((body.model.as_deref(), body.stream), (Some("adapter-007"), Some(true)));
    }
}
