//! GPU profiles: how fast a model runs on a GPU and how much KV cache is left for it.
//!
//! The numbers are fits for simulation, not measurements of one machine. An idle engine has
//! `TTFT = base + uncached prompt tokens / prefill speed` and
//! `TPOT = decode + per_seq * running`.
//!
//! Sources:
//! - Decode floor: bytes of weights read once per step, divided by the memory bandwidth of the GPU
//!   (H100 3350, A100 2039, L40S 864, A10 600, L4 300 GB/s): 4.8, 18.6, 26.8 and 53.5 ms for 8B in BF16.
//! - Prefill: the floating point operations of the model at 40-50 % use of the GPU, which agrees
//!   with 15-25 thousand tokens a second for 8B on an H100.
//! - KV blocks: memory left of 90 % after the weights and 1.85 GiB a GPU, over 128 KiB (8B),
//!   320 KiB (70B), 256 KiB (32B) or 188 KiB (235B) a token; fitted to the 27,853 blocks that vLLM
//!   logs for 8B on one H100.
//! - Batch limits: vLLM's defaults (256 sequences; 2,048 tokens, 8,192 on large GPUs), fewer
//!   sequences where the KV cache holds few prompts.
//! - `lora_load_us` is an estimate: an adapter of 100 MB from host memory, with its set-up.

/// How fast one engine runs, and its default limits. Times are in microseconds of simulated time.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// The name on the command line.
    pub name: &'static str,
    /// Before the engine sees a request: HTTP, chat template, tokens, hand-over.
    pub base_us: u64,
    /// Prompt tokens computed per second; 0 means in no time.
    pub prefill_per_s: u64,
    /// A decode step, without the part of each sequence.
    pub decode_us: u64,
    /// What each running sequence adds to a decode step.
    pub decode_per_seq_us: u64,
    /// KV cache, in blocks of 16 tokens.
    pub kv_blocks: u32,
    /// Most sequences in a batch.
    pub max_num_seqs: u32,
    /// Most tokens in a step: where long prompts are cut into chunks.
    pub max_num_batched_tokens: u32,
    /// Loading an adapter into a slot of the GPU.
    pub lora_load_us: u64,
}

impl Gpu {
    /// The profile of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        PROFILES.iter().find(|gpu| gpu.name == name)
    }

    /// The names of all profiles, for messages and help texts.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PROFILES.iter().map(|gpu| gpu.name)
    }
}

impl Default for Gpu {
    fn default() -> Self {
        H100
    }
}

/// An 8B model in BF16 on one H100, the default.
const H100: Gpu = gpu("h100", [20_000, 20_000, 7_000, 60], 27_850, 256, 8_192);

/// Every profile. A bare GPU name runs an 8B model in BF16; the others say model and GPUs.
const PROFILES: &[Gpu] = &[
    H100,
    gpu("a100", [25_000, 9_000, 11_000, 110], 27_850, 256, 8_192),
    gpu("l40s", [35_000, 7_000, 20_000, 250], 11_840, 256, 2_048),
    gpu("a10", [50_000, 2_500, 29_000, 800], 1_560, 32, 2_048),
    gpu("l4", [60_000, 2_000, 56_000, 900], 1_515, 32, 2_048),
    gpu("70b-fp8-2xh100", [45_000, 5_000, 14_000, 250], 14_600, 256, 8_192),
    gpu("70b-4xh100", [50_000, 6_000, 15_000, 180], 29_900, 256, 8_192),
    gpu("70b-4xa100", [80_000, 2_800, 24_000, 300], 29_900, 256, 8_192),
    gpu("32b-2xh100", [35_000, 9_000, 12_000, 150], 19_900, 256, 8_192),
    gpu("32b-2xa100", [50_000, 4_200, 19_000, 250], 19_900, 256, 8_192),
    gpu("32b-4xa10", [70_000, 1_600, 40_000, 900], 2_860, 32, 2_048),
    gpu("235b-fp8-4xh100", [60_000, 9_000, 18_000, 120], 19_700, 256, 8_192),
    gpu("235b-fp8-8xh100", [60_000, 15_000, 14_000, 120], 58_000, 256, 8_192),
    // Not a GPU: takes no time, to measure what is around it.
    Gpu { lora_load_us: 0, ..gpu("instant", [0, 0, 0, 0], 65_536, 4_096, 65_536) },
];

/// A row of the table; `times` is base, prefill per second, decode, decode per sequence.
const fn gpu(
    name: &'static str,
    times: [u64; 4],
    kv_blocks: u32,
    max_num_seqs: u32,
    max_num_batched_tokens: u32,
) -> Gpu {
    let [base_us, prefill_per_s, decode_us, decode_per_seq_us] = times;
    Gpu {
        name,
        base_us,
        prefill_per_s,
        decode_us,
        decode_per_seq_us,
        kv_blocks,
        max_num_seqs,
        max_num_batched_tokens,
        lora_load_us: 30_000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for name in Gpu::names() {
            assert_eq!(Gpu::names().filter(|other| *other == name).count(), 1, "{name}");
            assert_eq!(Gpu::named(name).map(|gpu| gpu.name), Some(name));
        }
        assert_eq!(Gpu::named("tpu"), None);
    }

    #[test]
    fn better_gpus_are_better() {
        let row = |name| Gpu::named(name).unwrap();
        for (slow, fast) in [("l4", "a10"), ("a10", "l40s"), ("l40s", "a100"), ("a100", "h100")] {
            let (slow, fast) = (row(slow), row(fast));
            assert!(slow.base_us > fast.base_us && slow.prefill_per_s < fast.prefill_per_s);
            assert!(slow.decode_us > fast.decode_us && slow.kv_blocks <= fast.kv_blocks);
        }
    }
}
