//! Checks against model servers as their projects ship them.

use clap::Args;

/// Which servers.
#[derive(Args)]
pub(crate) struct Options {
    /// Install and start a real vLLM on the CPU with a tiny random model (1 GB to download).
    #[arg(long)]
    pub(crate) real_vllm: bool,
}

/// Fails: not written yet.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let Options { real_vllm } = options;
    anyhow::ensure!(*real_vllm, "name the servers to test against: --real-vllm");
    anyhow::bail!("not written yet")
}
