//! Benchmarks.
use clap::Args;
/// Options.
#[derive(Args)]
pub(crate) struct Options {}
pub(crate) fn run(_: &Options) -> anyhow::Result<()> {
    anyhow::bail!("not written yet")
}
