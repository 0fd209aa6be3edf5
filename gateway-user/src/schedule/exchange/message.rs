//! One datagram of the exchange: fixed parts, little endian, no more than an Ethernet frame carries.
//!
//! ```text
//! version u8 | pool u64 | from u64 | sequence u32 | pods u16 | speeds u16 | chains u16
//! pods:   key u64 | in flight, pending, prefill tokens, busy us, sent, tokens: u32 each
//! speeds: key u64 | first token: at zero, per one, count | token: at zero, per one, count: f32 each
//! chains: key u64 | 0x80 if cold, marks u8 | marks: u64 each
//! ```

use super::super::speed::{Known, Line, Speed};
use super::{Load, MAX_MARKS};

/// What a gateway says once.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Which pool it is about.
    pub pool: u64,
    /// Who says it.
    pub from: u64,
    /// The round of that gateway.
    pub sequence: u32,
    /// Pods by their keys, and what the gateway has there.
    pub loads: Vec<(u64, Load)>,
    /// Pods by their keys, and what it has seen of their speed.
    pub speeds: Vec<(u64, Known)>,
    /// Prompts that it sent.
    pub chains: Vec<Chain>,
}

/// A prompt that was sent to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The pod's key.
    pub pod: u64,
    /// No pod had any of it cached.
    pub is_cold: bool,
    /// Its [`marks`](super::marks), to be inserted into the prefix index.
    pub marks: Vec<u64>,
}

/// Reads a message; `None` of what is not exactly one of this version.
pub fn decode(datagram: &[u8]) -> Option<Message> {
    if datagram.len() > MAX_DATAGRAM {
        return None;
    }
    let mut bytes = Bytes(datagram);
    if bytes.u8()? != VERSION {
        return None;
    }
    let (pool, from, sequence) = (bytes.u64()?, bytes.u64()?, bytes.u32()?);
    let (pods, speeds, chains) = (bytes.u16()?, bytes.u16()?, bytes.u16()?);
    let mut message = Message::new(pool, from, sequence);
    for _ in 0..pods {
        let key = bytes.u64()?;
        let load = Load {
            in_flight: bytes.u32()?,
            pending: bytes.u32()?,
            prefill_tokens: bytes.u32()?,
            busy_us: bytes.u32()?,
            sent: bytes.u32()?,
            tokens: bytes.u32()?,
        };
        message.loads.push((key, load));
    }
    for _ in 0..speeds {
        let key = bytes.u64()?;
        let (first, first_count) = bytes.line()?;
        let (token, token_count) = bytes.line()?;
        let known = Known { speed: Speed { first, token }, counts: (first_count, token_count) };
        message.speeds.push((key, known));
    }
    for _ in 0..chains {
        let (pod, count) = (bytes.u64()?, bytes.u8()?);
        let len = usize::from(count & !COLD);
        if len > MAX_MARKS {
            return None;
        }
        let marks = (0..len).map(|_| bytes.u64()).collect::<Option<_>>()?;
        message.chains.push(Chain { pod, is_cold: count & COLD != 0, marks });
    }
    bytes.0.is_empty().then_some(message)
}

impl Message {
    pub(super) fn new(pool: u64, from: u64, sequence: u32) -> Self {
        Self { pool, from, sequence, loads: Vec::new(), speeds: Vec::new(), chains: Vec::new() }
    }

    /// The datagram, of at most [`MAX_DATAGRAM`] bytes; what does not fit is left out.
    pub fn encode(&self) -> Vec<u8> {
        let mut left = MAX_DATAGRAM - HEAD;
        let loads = self.loads.len().min(left / LOAD);
        left -= loads * LOAD;
        let speeds = self.speeds.len().min(left / LOAD);
        left -= speeds * LOAD;
        let mut chains = Vec::with_capacity(self.chains.len());
        for chain in &self.chains {
            let Some(rest) = left.checked_sub(size(chain)) else { break };
            if chain.marks.len() <= MAX_MARKS {
                chains.push(chain);
                left = rest;
            }
        }
        let mut to = Vec::with_capacity(MAX_DATAGRAM);
        to.push(VERSION);
        to.extend(self.pool.to_le_bytes());
        to.extend(self.from.to_le_bytes());
        to.extend(self.sequence.to_le_bytes());
        to.extend((loads as u16).to_le_bytes());
        to.extend((speeds as u16).to_le_bytes());
        to.extend((chains.len() as u16).to_le_bytes());
        for (key, load) in self.loads.iter().take(loads) {
            to.extend(key.to_le_bytes());
            let Load { in_flight, pending, prefill_tokens, busy_us, sent, tokens } = *load;
            for value in [in_flight, pending, prefill_tokens, busy_us, sent, tokens] {
                to.extend(value.to_le_bytes());
            }
        }
        for (key, Known { speed, counts }) in self.speeds.iter().take(speeds) {
            to.extend(key.to_le_bytes());
            for (line, count) in [(speed.first, counts.0), (speed.token, counts.1)] {
                for value in [line.at_zero(), line.per_one(), count] {
                    to.extend(value.to_le_bytes());
                }
            }
        }
        for chain in chains {
            to.extend(chain.pod.to_le_bytes());
            to.push(chain.marks.len() as u8 | if chain.is_cold { COLD } else { 0 });
            chain.marks.iter().for_each(|mark| to.extend(mark.to_le_bytes()));
        }
        to
    }

    /// Whether there is room for another pod or speed.
    pub(super) fn fits_more(&self) -> bool {
        self.len() + LOAD <= MAX_DATAGRAM
    }

    pub(super) fn fits(&self, chain: &Chain) -> bool {
        self.len() + size(chain) <= MAX_DATAGRAM
    }

    fn len(&self) -> usize {
        HEAD + (self.loads.len() + self.speeds.len()) * LOAD
            + self.chains.iter().map(size).sum::<usize>()
    }
}

fn size(chain: &Chain) -> usize {
    8 + 1 + 8 * chain.marks.len()
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// A line, brought within what any pod can be, and how many observations it stands on.
    fn line(&mut self) -> Option<(Line, f32)> {
        let [at_zero, per_one, count] =
            [self.take()?, self.take()?, self.take()?].map(f32::from_le_bytes);
        // Not `clamp`, which keeps a NaN.
        let count = if count > 0.0 { count.min(MOST_COUNT) } else { 0.0 };
        Some((Line::new(at_zero, per_one), count))
    }
}

/// Most bytes of a datagram: with the headers of IPv6 and UDP, and room for a seal, within 1,280 bytes, which every
/// path carries whole.
pub const MAX_DATAGRAM: usize = 1200;

/// Others are not understood.
const VERSION: u8 = 1;

/// More observations than a gateway remembers.
const MOST_COUNT: f32 = 100.0;

/// Bytes before the first pod, and of a pod or a speed.
const HEAD: usize = 1 + 8 + 8 + 4 + 2 + 2 + 2;
const LOAD: usize = 8 + 6 * 4;

const COLD: u8 = 0x80;
