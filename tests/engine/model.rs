//! One engine: continuous batching with chunked prefill, a KV cache with prefix reuse, LoRA slots.
//!
//! Pure: no clock, no IO, no randomness. Time is a number of microseconds that the caller passes
//! in, so the server runs it against the wall clock and the simulator as fast as it can. It follows
//! the scheduler of vLLM's V1 engine: running requests first, then waiting ones in order of
//! arrival; when the KV cache is full the newest running request is put back and later computed
//! again.
//!
//! ```text
//! let mut engine = Engine::new(&gpu, Limits::of(&gpu));
//! engine.submit(0, Request::of_text(prompt, 16))?;
//! while let Some(due) = engine.next() {
//!     engine.step(due, &mut events);
//! }
//! ```

use std::collections::VecDeque;

use super::gpu::Gpu;
use super::kv::{BLOCK_TOKENS, KvCache};
use super::request::mix;
pub use super::request::{Rejected, Request};

/// What an engine may hold at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Most sequences in a batch.
    pub max_num_seqs: u32,
    /// Most tokens in a step.
    pub max_num_batched_tokens: u32,
    /// Most tokens of a prompt and its answer; never more than the KV cache holds.
    pub max_model_len: u32,
    /// KV cache, in blocks of [`BLOCK_TOKENS`].
    pub kv_blocks: u32,
    /// Whether prompts are remembered.
    pub prefix_caching: bool,
    /// Most adapters in a batch, and on the GPU; 0 turns adapters off.
    pub max_loras: u32,
}

impl Limits {
    /// The defaults for a GPU.
    pub fn of(gpu: &Gpu) -> Self {
        Self {
            max_num_seqs: gpu.max_num_seqs,
            max_num_batched_tokens: gpu.max_num_batched_tokens,
            max_model_len: 131_072,
            kv_blocks: gpu.kv_blocks,
            prefix_caching: true,
            max_loras: 4,
        }
    }
}

/// What happened in a step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// The request entered the batch for the first time, this many prompt tokens cached.
    Started {
        /// Which request.
        id: u64,
        /// Prompt tokens that need no computing.
        cached: u32,
    },
    /// A token is there.
    Token {
        /// Which request.
        id: u64,
        /// How many it has now.
        count: u32,
    },
    /// The request lost its KV blocks and waits again.
    Preempted {
        /// Which request.
        id: u64,
    },
    /// The request is complete and its blocks are free.
    Finished {
        /// Which request.
        id: u64,
    },
}

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Steps done.
    pub steps: u64,
    /// Prompt tokens of the requests that started.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generation_tokens: u64,
    /// Tokens looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Tokens found there.
    pub prefix_hits: u64,
    /// Requests that lost their blocks.
    pub preemptions: u64,
    /// Requests completed.
    pub finished: u64,
    /// Requests given up by the caller.
    pub aborted: u64,
    /// Adapters loaded into a slot.
    pub lora_loads: u64,
}

/// One engine.
#[derive(Debug)]
pub struct Engine {
    gpu: Gpu,
    limits: Limits,
    kv: KvCache,
    /// Not yet seen by the scheduler, in order of arrival.
    arriving: VecDeque<Sequence>,
    waiting: VecDeque<Sequence>,
    /// In order of admission: the last is preempted first.
    running: Vec<Sequence>,
    /// Adapters on the GPU, the one used longest ago first.
    slots: Vec<u32>,
    /// End of the step under way.
    step_end: Option<u64>,
    next_id: u64,
    adapter_changes: u64,
    /// How many times as long a step takes.
    slowness: f64,
    counters: Counters,
}

impl Engine {
    /// An idle engine with an empty cache. Limits that could stop it for good are widened.
    pub fn new(gpu: &Gpu, limits: Limits) -> Self {
        let kv_blocks = limits.kv_blocks.max(1);
        let max_num_seqs = limits.max_num_seqs.max(1);
        let limits = Limits {
            max_num_seqs,
            // Else decoding requests could take turns, which no real engine does.
            max_num_batched_tokens: limits.max_num_batched_tokens.max(max_num_seqs),
            max_model_len: limits.max_model_len.min(kv_blocks.saturating_mul(BLOCK_TOKENS)),
            kv_blocks,
            ..limits
        };
        Self {
            gpu: gpu.clone(),
            limits,
            kv: KvCache::new(kv_blocks),
            arriving: VecDeque::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            slots: Vec::new(),
            step_end: None,
            next_id: 0,
            adapter_changes: 0,
            slowness: 1.0,
            counters: Counters::default(),
        }
    }

    /// Takes a request; the scheduler sees it [`Gpu::base_us`] later.
    ///
    /// # Errors
    /// When the request could never run.
    pub fn submit(&mut self, now: u64, request: Request) -> Result<u64, Rejected> {
        let prompt = request.prompt_tokens.max(1);
        if prompt.saturating_add(request.max_tokens) > self.limits.max_model_len {
            return Err(Rejected::TooLong(self.limits.max_model_len));
        }
        if request.adapter.is_some() && self.limits.max_loras == 0 {
            return Err(Rejected::NoAdapters);
        }
        let id = self.next_id;
        self.next_id += 1;
        let seed = mix(request.salt, request.adapter.map_or(0, |adapter| u64::from(adapter) + 1));
        let mut hashes = request.blocks;
        if self.limits.prefix_caching {
            hashes.iter_mut().for_each(|hash| *hash = mix(*hash, seed));
        } else {
            hashes.clear();
        }
        self.arriving.push_back(Sequence {
            id,
            ready: now + self.gpu.base_us,
            prompt,
            max_tokens: request.max_tokens,
            generated: 0,
            computed: 0,
            scheduled: 0,
            started: false,
            adapter: request.adapter,
            hashes,
            blocks: Vec::new(),
        });
        Ok(id)
    }

    /// Gives a request up and frees what it holds; false when it is not there (any more).
    pub fn abort(&mut self, id: u64) -> bool {
        let sequence = if let Some(at) = self.running.iter().position(|s| s.id == id) {
            Some(self.running.remove(at))
        } else {
            [&mut self.waiting, &mut self.arriving].into_iter().find_map(|queue| {
                let at = queue.iter().position(|s| s.id == id)?;
                queue.remove(at)
            })
        };
        let Some(mut sequence) = sequence else { return false };
        sequence.free(&mut self.kv);
        self.adapter_changes += u64::from(sequence.adapter.is_some());
        self.counters.aborted += 1;
        true
    }

    /// When [`Self::step`] next has something to do; `None` when idle.
    pub fn next(&self) -> Option<u64> {
        self.step_end.or_else(|| self.arriving.front().map(|sequence| sequence.ready))
    }

    /// Ends the step that is due, if any, and begins the next one. Call it with what [`Self::next`]
    /// said; before that it does nothing.
    pub fn step(&mut self, now: u64, events: &mut Vec<Event>) {
        match self.step_end {
            Some(end) if now < end => return,
            Some(_) => self.finish(events),
            None => {}
        }
        let length = self.begin(now, events);
        self.step_end = length.map(|length| now + (length as f64 * self.slowness) as u64);
    }

    /// Lets each step from the next one on take so many times as long as the GPU would.
    pub fn slow_down(&mut self, times: f64) {
        self.slowness = times.max(0.0);
    }

    /// Requests in the batch.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests that the scheduler has seen and not admitted.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Requests in any state.
    pub fn live(&self) -> usize {
        self.arriving.len() + self.waiting.len() + self.running.len()
    }

    /// The KV cache.
    pub fn kv(&self) -> &KvCache {
        &self.kv
    }

    /// The KV cache, to have its changes noted.
    pub fn kv_mut(&mut self) -> &mut KvCache {
        &mut self.kv
    }

    /// Share of the KV cache that requests hold, 0 to 1.
    pub fn kv_usage(&self) -> f64 {
        f64::from(self.kv.used()) / f64::from(self.kv.capacity())
    }

    /// The limits in force.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Totals since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Changes whenever [`Self::adapters`] may.
    pub fn adapter_changes(&self) -> u64 {
        self.adapter_changes
    }

    /// The adapters of running, and of waiting requests, each in the order of first use.
    pub fn adapters(&self) -> (Vec<u32>, Vec<u32>) {
        let distinct = |sequences: &mut dyn Iterator<Item = &Sequence>| {
            let mut adapters = Vec::new();
            for adapter in sequences.filter_map(|sequence| sequence.adapter) {
                if !adapters.contains(&adapter) {
                    adapters.push(adapter);
                }
            }
            adapters
        };
        (distinct(&mut self.running.iter()), distinct(&mut self.waiting.iter()))
    }

    /// Adapters that are on the GPU, used or not.
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Forms a batch; its length in microseconds, or `None` when there is nothing to run.
    fn begin(&mut self, now: u64, events: &mut Vec<Event>) -> Option<u64> {
        while self.arriving.front().is_some_and(|sequence| sequence.ready <= now) {
            self.waiting.extend(self.arriving.pop_front());
        }
        let mut batch = Batch { budget: self.limits.max_num_batched_tokens, ..Batch::default() };
        let preempted = self.schedule_running(&mut batch, events);
        if !preempted {
            self.schedule_waiting(&mut batch, events);
        }
        if self.running.is_empty() {
            return None;
        }
        let prefill = (batch.prefill * 1_000_000).checked_div(self.gpu.prefill_per_s).unwrap_or(0);
        let decode = match batch.decode {
            0 => 0,
            running => self.gpu.decode_us + self.gpu.decode_per_seq_us * running,
        };
        Some(prefill + decode + batch.lora_loads * self.gpu.lora_load_us)
    }

    /// Gives each running request its tokens; true when one had to go back to the queue.
    fn schedule_running(&mut self, batch: &mut Batch, events: &mut Vec<Event>) -> bool {
        let mut preempted = false;
        let mut at = 0;
        while let Some(sequence) = self.running.get_mut(at) {
            let tokens = sequence.missing().min(batch.budget);
            if !sequence.grow(tokens, &mut self.kv) {
                // The newest request goes, perhaps the one that asked.
                let Some(mut victim) = self.running.pop() else { break };
                victim.free(&mut self.kv);
                victim.computed = 0;
                events.push(Event::Preempted { id: victim.id });
                self.counters.preemptions += 1;
                self.adapter_changes += u64::from(victim.adapter.is_some());
                self.waiting.push_front(victim);
                preempted = true;
                continue;
            }
            batch.add(sequence, tokens);
            at += 1;
        }
        preempted
    }

    /// Admits waiting requests in order, past those whose adapter has no slot.
    fn schedule_waiting(&mut self, batch: &mut Batch, events: &mut Vec<Event>) {
        let (mut in_batch, _) = self.adapters();
        let most = self.limits.max_loras as usize;
        let mut at = 0;
        while at < self.waiting.len()
            && self.running.len() < self.limits.max_num_seqs as usize
            && batch.budget > 0
        {
            let Some(sequence) = self.waiting.get(at) else { break };
            let adapter = sequence.adapter;
            if adapter.is_some_and(|adapter| !in_batch.contains(&adapter) && in_batch.len() >= most)
            {
                at += 1;
                continue;
            }
            // The last token of the prompt is always computed: its output is the first new token.
            let whole = ((sequence.total() - 1) / BLOCK_TOKENS) as usize;
            let (hits, idle) =
                self.kv.cached(sequence.hashes.get(..whole).unwrap_or(&sequence.hashes));
            let cached = hits * BLOCK_TOKENS;
            let tokens = (sequence.total() - cached).min(batch.budget);
            let needed = (cached + tokens).div_ceil(BLOCK_TOKENS) - hits;
            if needed + idle > self.kv.free() {
                break;
            }
            let Some(mut sequence) = self.waiting.remove(at) else { break };
            for hash in sequence.hashes.iter().take(hits as usize) {
                sequence.blocks.extend(self.kv.hold(*hash));
            }
            sequence.computed = cached;
            sequence.grow(tokens, &mut self.kv);
            if !sequence.started {
                sequence.started = true;
                self.counters.prompt_tokens += u64::from(sequence.prompt);
                self.counters.prefix_queries += u64::from(sequence.prompt);
                self.counters.prefix_hits += u64::from(cached);
                events.push(Event::Started { id: sequence.id, cached });
            }
            if let Some(adapter) = adapter {
                batch.lora_loads += u64::from(self.take_slot(adapter, &in_batch));
                self.adapter_changes += 1;
                if !in_batch.contains(&adapter) {
                    in_batch.push(adapter);
                }
            }
            batch.add(&mut sequence, tokens);
            self.running.push(sequence);
        }
    }

    /// Puts the adapter on the GPU; true when it had to be loaded.
    fn take_slot(&mut self, adapter: u32, in_batch: &[u32]) -> bool {
        if let Some(at) = self.slots.iter().position(|slot| *slot == adapter) {
            self.slots.remove(at);
            self.slots.push(adapter);
            return false;
        }
        let unused = self.slots.iter().position(|slot| !in_batch.contains(slot));
        if let Some(at) = unused.filter(|_| self.slots.len() >= self.limits.max_loras as usize) {
            self.slots.remove(at);
        }
        self.slots.push(adapter);
        self.counters.lora_loads += 1;
        true
    }

    /// Ends the step: what was computed is there, complete requests go.
    fn finish(&mut self, events: &mut Vec<Event>) {
        self.counters.steps += 1;
        let Self { running, kv, counters, adapter_changes, .. } = self;
        running.retain_mut(|sequence| {
            sequence.computed += std::mem::take(&mut sequence.scheduled);
            if sequence.computed < sequence.total() {
                return true;
            }
            if sequence.max_tokens > 0 {
                sequence.generated += 1;
                counters.generation_tokens += 1;
                events.push(Event::Token { id: sequence.id, count: sequence.generated });
            }
            if sequence.generated < sequence.max_tokens {
                return true;
            }
            sequence.free(kv);
            *adapter_changes += u64::from(sequence.adapter.is_some());
            counters.finished += 1;
            events.push(Event::Finished { id: sequence.id });
            false
        });
    }
}

/// What a step computes.
#[derive(Default)]
struct Batch {
    /// Tokens that still fit.
    budget: u32,
    prefill: u64,
    /// Sequences that get their next token from one computed token.
    decode: u64,
    lora_loads: u64,
}

impl Batch {
    fn add(&mut self, sequence: &mut Sequence, tokens: u32) {
        sequence.scheduled = tokens;
        self.budget -= tokens;
        if tokens == 1 && sequence.generated > 0 {
            self.decode += 1;
        } else {
            self.prefill += u64::from(tokens);
        }
    }
}

#[derive(Debug)]
struct Sequence {
    id: u64,
    /// When the scheduler sees it.
    ready: u64,
    prompt: u32,
    max_tokens: u32,
    generated: u32,
    /// Tokens whose KV entries are there.
    computed: u32,
    /// Tokens that the step under way computes.
    scheduled: u32,
    started: bool,
    adapter: Option<u32>,
    hashes: Vec<u64>,
    blocks: Vec<u32>,
}

impl Sequence {
    /// Tokens known so far.
    fn total(&self) -> u32 {
        self.prompt + self.generated
    }

    /// Tokens known and not computed.
    fn missing(&self) -> u32 {
        self.total() - self.computed
    }

    /// Gets the blocks for so many more tokens and names the full ones; false when there are too
    /// few.
    fn grow(&mut self, tokens: u32, kv: &mut KvCache) -> bool {
        let end = self.computed + tokens;
        let needed = end.div_ceil(BLOCK_TOKENS) as usize;
        if needed.saturating_sub(self.blocks.len()) > kv.free() as usize {
            return false;
        }
        while self.blocks.len() < needed {
            self.blocks.extend(kv.allocate());
        }
        let full = (self.computed / BLOCK_TOKENS) as usize..(end / BLOCK_TOKENS) as usize;
        let (Some(blocks), Some(hashes)) =
            (self.blocks.get(full.clone()), self.hashes.get(full.start..))
        else {
            return true;
        };
        let mut parent = full.start.checked_sub(1).and_then(|at| self.hashes.get(at).copied());
        for (block, hash) in blocks.iter().zip(hashes) {
            kv.name_behind(*block, *hash, parent.replace(*hash));
        }
        true
    }

    /// Gives all blocks back, the last first: the start of a prompt is worth most.
    fn free(&mut self, kv: &mut KvCache) {
        self.scheduled = 0;
        for block in self.blocks.drain(..).rev() {
            kv.release(block);
        }
    }
}

#[cfg(test)]
#[path = "model_test.rs"]
mod tests;
