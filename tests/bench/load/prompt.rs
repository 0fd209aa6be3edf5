//! Chat requests as agents send them: a long system prompt that many share, then text of its own.

use bytes::Bytes;
use fastrand::Rng;
use sluice_tests::bench::event::PACE;

/// Makes request bodies.
pub(crate) struct Prompts {
    text: String,
    model: String,
    stream: bool,
    max_tokens: u64,
    pace_us: u64,
    size: usize,
}

impl Prompts {
    /// Bodies of about `size` bytes, asking for tokens at once.
    pub(crate) fn new(model: &str, stream: bool, max_tokens: u64, size: usize) -> Self {
        let mut rng = Rng::with_seed(1);
        let words: Vec<String> =
            (0..3_000).map(|_| (0..rng.usize(2..10)).map(|_| rng.lowercase()).collect()).collect();
        let length = 2 * size + GROUPS * GROUP_STEP + 1_000_000;
        let mut text = String::with_capacity(length + 16);
        while text.len() < length {
            // Common words come often, as in prose.
            let index = rng.usize(0..words.len()) * rng.usize(0..words.len()) / words.len();
            text.push_str(words.get(index).map_or("", String::as_str));
            text.push(' ');
        }
        Self { text, model: model.to_owned(), stream, max_tokens, pace_us: 0, size }
    }

    /// The same, asking for a token every so many microseconds.
    pub(crate) fn paced(self, pace_us: u64) -> Self {
        Self { pace_us, ..self }
    }

    /// The body of request `number`: 60 % of it is one of eight shared prompts.
    pub(crate) fn body(&self, number: u64) -> Bytes {
        let group = number as usize % GROUPS;
        let room = self.size.saturating_sub(OVERHEAD + self.model.len());
        let shared = self.piece(group * GROUP_STEP, room * 6 / 10);
        let offset = GROUPS * GROUP_STEP + (number as usize).wrapping_mul(7_919) % 900_000;
        let own = self.piece(offset, room - room * 6 / 10);
        let Self { model, stream, max_tokens, pace_us, .. } = self;
        let pace = String::from_utf8_lossy(PACE);
        format!(
            "{{\"model\":\"{model}\",\"stream\":{stream},\"max_tokens\":{max_tokens},\
             \"temperature\":0.7,\"messages\":[\
             {{\"role\":\"system\",\"content\":\"{pace}{pace_us} Prompt {group}: {shared}\"}},\
             {{\"role\":\"user\",\"content\":\"Request {number}: {own}\"}}]}}"
        )
        .into()
    }

    fn piece(&self, start: usize, length: usize) -> &str {
        self.text.get(start..start + length).unwrap_or_default()
    }
}

/// Shared system prompts.
const GROUPS: usize = 8;
/// Bytes of text between the starts of two of them.
const GROUP_STEP: usize = 50_000;
/// Bytes of a body that are not prompt.
const OVERHEAD: usize = 195;

#[cfg(test)]
mod tests {
    use super::Prompts;

    #[test]
    fn bodies_are_json_of_about_the_size_asked_for() {
        for size in [1_024, 225_280] {
            let body = Prompts::new("m", true, 4, size).body(123_456_789);
            let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(value["messages"][1]["role"], "user");
            assert!(body.len().abs_diff(size) < 32, "{} for {size}", body.len());
        }
    }

    #[test]
    fn requests_share_the_prompt_of_their_group_only() {
        let prompts = Prompts::new("m", false, 1, 1_024);
        let [a, b, c] = [1, 9, 10].map(|n| prompts.body(n));
        assert_eq!(a[..600], b[..600]);
        assert_ne!(a[..600], c[..600]);
        assert_ne!(a[700..], b[700..]);
    }
}
