//! A request as the engine sees it: lengths and hashes, no text. Pure.

use std::fmt;

use super::kv::BLOCK_TOKENS;

/// A request as the engine sees it.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Length of the prompt; 0 counts as 1.
    pub prompt_tokens: u32,
    /// A hash for each full block, which stands for the block and all before it. It may go on into
    /// the answer, for conversations that come back with it.
    pub blocks: Vec<u64>,
    /// Tokens to generate; 0 computes the prompt only (embeddings).
    pub max_tokens: u32,
    /// Which adapter, by a number of the caller's.
    pub adapter: Option<u32>,
    /// Keeps the cached prompts of tenants apart.
    pub salt: u64,
}

impl Request {
    /// A request for this prompt: about four characters a token.
    pub fn of_text(prompt: &str, max_tokens: u32) -> Self {
        let tokens = prompt.len().div_ceil(CHARS_PER_TOKEN).max(1);
        let mut chain = 0;
        let blocks = prompt
            .as_bytes()
            .chunks_exact(CHARS_PER_TOKEN * BLOCK_TOKENS as usize)
            .map(|block| {
                chain = hash(chain, block);
                chain
            })
            .collect();
        let prompt_tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        Self { prompt_tokens, blocks, max_tokens, ..Self::default() }
    }
}

/// Why a request cannot be taken at all.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Rejected {
    /// Prompt and answer need more tokens than this limit.
    TooLong(u32),
    /// Adapters are off.
    NoAdapters,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(limit) => write!(f, "more than {limit} tokens"),
            Self::NoAdapters => f.write_str("adapters are off"),
        }
    }
}

impl std::error::Error for Rejected {}

/// Characters (bytes) that count as one token.
const CHARS_PER_TOKEN: usize = 4;

/// Hash of some text behind a text with hash `chain`; never changes between runs.
fn hash(chain: u64, text: &[u8]) -> u64 {
    let mut state = mix(chain, text.len() as u64);
    for word in text.chunks(8) {
        let mut bytes = [0; 8];
        bytes.iter_mut().zip(word).for_each(|(to, from)| *to = *from);
        state = mix(state, u64::from_le_bytes(bytes));
    }
    state
}

/// Folds `b` into `a`: both halves of a 128-bit product with odd constants.
pub(super) fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0x9e37_79b9_7f4a_7c15) * u128::from(b ^ 0xd1b5_4a32_d192_ed03);
    (product as u64) ^ ((product >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_tokens_and_blocks() {
        for (length, tokens, blocks) in [(0, 1, 0), (1, 1, 0), (5, 2, 0), (64, 16, 1), (200, 50, 3)]
        {
            let request = Request::of_text(&"x".repeat(length), 1);
            assert_eq!((request.prompt_tokens, request.blocks.len()), (tokens, blocks), "{length}");
        }
    }

    #[test]
    fn a_block_stands_for_all_before_it() {
        let blocks = |text: &str| Request::of_text(text, 1).blocks;
        let same = "a".repeat(64);
        let (one, two) =
            (blocks(&format!("{same}{same}")), blocks(&format!("b{}{same}", &same[1..])));
        assert_ne!(one[0], one[1]);
        assert_ne!(one[0], two[0]);
        assert_ne!(one[1], two[1], "the same text behind another one");
        assert_eq!(one[0], blocks(&same)[0]);
    }
}
