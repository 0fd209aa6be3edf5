//! Hashes of a prompt's blocks, each over its own content and the hash of the one before.
//!
//! A block's hash thus stands for everything up to its end: two prompts with the same hash of a block are the same
//! as far as that. XXH3 with a secret of this process: it is fast, and a client that could predict the hashes could
//! have its prompts taken for those of others and so fill one pod.

use std::hash::BuildHasher as _;

use twox_hash::xxhash3_64::{DEFAULT_SECRET_LENGTH, Hasher};

/// What makes the hashes of this process unlike any other's.
#[derive(Clone)]
pub struct Secret([u8; DEFAULT_SECRET_LENGTH]);

impl Secret {
    /// One that nobody knows: the keys of [`std::hash::RandomState`] come from the operating system.
    pub fn random() -> Self {
        let state = std::hash::RandomState::new();
        Self::from_words(|place| state.hash_one(place))
    }

    /// Always the same, for the simulator and tests.
    pub fn from_seed(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        Self::from_words(|_| random.u64(..))
    }

    /// The hash of some bytes.
    pub(super) fn hash(&self, bytes: &[u8]) -> u64 {
        // Fails for a secret that is too short, which this is not.
        Hasher::oneshot_with_secret(&self.0, bytes).unwrap_or_default()
    }

    /// Of 64 bits for each place.
    pub fn from_words(mut word: impl FnMut(usize) -> u64) -> Self {
        let mut bytes = [0; DEFAULT_SECRET_LENGTH];
        for (place, chunk) in bytes.chunks_mut(8).enumerate() {
            let word = word(place).to_le_bytes();
            for (to, from) in chunk.iter_mut().zip(word) {
                *to = from;
            }
        }
        Self(bytes)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// The blocks of one prompt, while it is being written.
#[derive(Debug)]
pub(super) struct Chain<'a> {
    secret: &'a Secret,
    /// The hash before this block, then the block's bytes so far.
    buffer: Vec<u8>,
    /// Length of the buffer when it is full.
    full: usize,
    hashes: Vec<u64>,
    /// Bytes in blocks that are done.
    done: u64,
    /// A hash of the first blocks without the secret, and how many bytes are to go into it yet.
    head: (u64, usize),
}

impl<'a> Chain<'a> {
    /// A prompt in blocks of `block_bytes` in the scope that `scope` spells out. Its head is `head_bytes` long, and at
    /// least a block.
    pub(super) fn new(
        secret: &'a Secret,
        block_bytes: usize,
        head_bytes: usize,
        scope: &[u8],
    ) -> Self {
        let full = HASH + block_bytes.max(1);
        let mut buffer = Vec::with_capacity(full);
        buffer.extend_from_slice(&secret.hash(scope).to_le_bytes());
        let head = (Hasher::oneshot(scope), head_bytes.max(1));
        Self { secret, buffer, full, hashes: Vec::new(), done: 0, head }
    }

    /// The next bytes of the prompt.
    #[inline]
    pub(super) fn write(&mut self, bytes: &[u8]) {
        if self.buffer.len() + bytes.len() < self.full {
            self.buffer.extend_from_slice(bytes);
        } else {
            self.write_over(bytes);
        }
    }

    /// So many bytes of the prompt, all alike but for the content that `digest` stands for.
    pub(super) fn fill(&mut self, digest: u64, mut bytes: usize) {
        let pattern = [digest.to_le_bytes(); 16];
        let pattern = pattern.as_flattened();
        while bytes > 0 && !self.is_full() {
            let part = pattern.get(..bytes).unwrap_or(pattern);
            self.write(part);
            bytes -= part.len();
        }
    }

    /// No more blocks will be hashed.
    pub(super) fn is_full(&self) -> bool {
        self.hashes.len() >= MAX_BLOCKS
    }

    /// Bytes written so far.
    pub(super) fn written(&self) -> u64 {
        self.done + self.buffer.len().saturating_sub(HASH) as u64
    }

    /// The hash of the head, if there is a whole block: every process has the same.
    pub(super) fn head(&self) -> Option<u64> {
        (!self.hashes.is_empty()).then_some(self.head.0)
    }

    /// The hashes of all whole blocks.
    pub(super) fn finish(self) -> Vec<u64> {
        self.hashes
    }

    #[inline(never)]
    fn write_over(&mut self, mut bytes: &[u8]) {
        while let Some((front, back)) = bytes.split_at_checked(self.full - self.buffer.len()) {
            if self.is_full() {
                return;
            }
            self.buffer.extend_from_slice(front);
            let hash = self.secret.hash(&self.buffer);
            self.hashes.push(hash);
            let (head, left) = self.head;
            if left > 0 {
                let content = self.buffer.get(HASH..).unwrap_or_default();
                let head = Hasher::oneshot_with_seed(head, content);
                self.head = (head, left.saturating_sub(content.len()));
            }
            self.done += (self.full - HASH) as u64;
            self.buffer.clear();
            self.buffer.extend_from_slice(&hash.to_le_bytes());
            bytes = back;
        }
        self.buffer.extend_from_slice(bytes);
    }
}

/// Most blocks that are hashed of a prompt, which is 2 million tokens in blocks of 64: what is behind them is not
/// matched.
pub const MAX_BLOCKS: usize = 1 << 15;

/// Bytes of a hash.
const HASH: usize = size_of::<u64>();
