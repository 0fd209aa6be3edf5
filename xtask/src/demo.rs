//! The demonstration: gateway and simulated model servers on this machine, in one command.

use clap::Args;

/// What the demonstration sends and prints.
#[derive(Args)]
pub(crate) struct Options {
    /// Requests to send [default: until interrupted]
    #[arg(long)]
    pub(crate) requests: Option<u32>,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Port of the gateway.
    #[arg(long, default_value_t = 8080)]
    pub(crate) port: u16,
}

/// Fails: not written yet.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let Options { requests: _, json: _, port: _ } = options;
    anyhow::bail!("not written yet")
}
