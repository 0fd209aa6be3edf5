//! Whole TLS handshakes, and nothing behind them.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::ensure;
use clap::Args;
use sluice_tests::bench::event::now_ns;
use sluice_tests::bench::report::Report;
use tokio::task::JoinSet;

use crate::client::Trusting;
use crate::usage::Window;
use crate::{Common, Speech};

/// The load.
#[derive(Args)]
pub(crate) struct Options {
    /// Handshakes at once.
    #[arg(long, default_value_t = 8)]
    connections: usize,
}

/// Runs the load and measures; a handshake counts as a response.
pub(crate) async fn run(common: &Common, options: &Options) -> anyhow::Result<Report> {
    ensure!(!common.to.is_empty(), "nowhere to connect to: --to");
    let window = Window::starting_in(0.1, common);
    let done = Rc::new(Cell::new(0_u64));
    let mut workers = JoinSet::new();
    for to in common.to.iter().copied().cycle().take(options.connections) {
        let done = Rc::clone(&done);
        // Without a memory of sessions, so that each handshake is a whole one.
        let trusting = Trusting::new(Speech::Https, false)?;
        workers.spawn_local(async move {
            while now_ns() < window.end {
                trusting.connect(to).await?;
                if window.has(now_ns()) {
                    done.set(done.get() + 1);
                }
            }
            anyhow::Ok(())
        });
    }
    let mut report = window.measure(common).await?;
    report.responses = done.get();
    while let Some(ended) = workers.join_next().await {
        ended??;
    }
    Ok(report)
}
