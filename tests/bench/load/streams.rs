//! Many streams open at once, each with its tokens at a steady rate.
//!
//! Whether a stream is alive is told by its tokens alone: an open socket proves nothing.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use sluice_tests::bench::event::{Event, Order, Scanner, now_ns};
use sluice_tests::bench::report::Report;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Common;
use crate::prompt::Prompts;
use crate::times::Times;
use crate::usage::{Window, ns};
use crate::wire::{Ahead, Arrival, Wire};

/// The load.
#[derive(Args)]
pub(crate) struct Options {
    /// Streams to hold open.
    #[arg(long, default_value_t = 2_000)]
    streams: u64,
    /// Tokens per second of each.
    #[arg(long, default_value_t = 1.0)]
    rate: f64,
    /// Seconds over which they are opened.
    #[arg(long, default_value_t = 5.0)]
    open: f64,
}

/// Opens the streams, holds them through the window, and counts those that are alive at its end.
pub(crate) async fn run(common: &Common, options: &Options) -> anyhow::Result<Report> {
    ensure!(!common.to.is_empty(), "nowhere to send to: --to");
    let Options { streams, rate, open } = *options;
    ensure!(streams > 0 && rate > 0.0 && open >= 0.0, "no load");
    // More than come before the end, so that none ends by itself.
    let tokens = ((open + common.warmup + common.seconds + 60.0) * rate) as u64 + 60;
    let interval = ns(1.0 / rate);
    let prompts = Prompts::new(&common.model, true, tokens, 1_024).paced(interval / 1_000);
    let ahead = Ahead::look()?;

    let window = Window::starting_in(open, common);
    let start = window.start - ns(open + common.warmup);
    let tally = Rc::new(RefCell::new(Tally::default()));
    let mut tasks = JoinSet::new();
    for (number, to) in (0..streams).zip(common.to.iter().cycle()) {
        let stream = Stream { number: number as usize, window, tally: tally.clone() };
        tally.borrow_mut().streams.push(State::default());
        // Spread over the interval by the golden ratio: the tokens of all come evenly, not in bursts.
        let phase = (number as f64 * 0.618_034).fract() * interval as f64;
        let due = start + ns(number as f64 * open / streams as f64) + phase as u64;
        let (body, to) = (prompts.body(number), *to);
        tasks.spawn_local(async move {
            sleep(Duration::from_nanos(due.saturating_sub(now_ns()))).await;
            let ended = stream.follow(to, ahead, &body).await;
            let error = ended.context("a stream").err();
            if let Some(state) = stream.tally.borrow_mut().streams.get_mut(stream.number) {
                state.error = error.map(|error| format!("{error:#}"));
            }
        });
    }
    let mut report = window.measure(common).await?;
    ahead.check()?;

    let mut tally = tally.take();
    let behind = now_ns().saturating_sub(3 * interval + ns(1.0));
    report.streams = streams;
    report.alive = tally.streams.iter().filter(|stream| stream.is_alive(behind)).count() as u64;
    report.errors = tally.streams.iter().filter(|stream| stream.error.is_some()).count() as u64;
    report.first_error = tally.streams.iter_mut().find_map(|stream| stream.error.take());
    report.tokens = tally.tokens;
    report.token_us = tally.read.quantiles();
    report.wire_us = tally.wire.quantiles();
    let stamped = report.wire_us.count;
    ensure!(stamped == report.tokens, "the kernel told of {stamped} tokens only when they came");
    Ok(report)
}

struct Stream {
    number: usize,
    window: Window,
    tally: Rc<RefCell<Tally>>,
}

impl Stream {
    /// Asks, and reads the tokens to the end, which comes too early whenever it comes.
    async fn follow(&self, to: SocketAddr, ahead: Ahead, body: &[u8]) -> anyhow::Result<()> {
        let wire = Wire::open(to, ahead).await?;
        let (mut scanner, mut order) = (Scanner::default(), Order::default());
        let answered = wire.ask(body, |piece, arrival| {
            scanner.feed(piece, |event| {
                order.take(event);
                let mut tally = self.tally.borrow_mut();
                tally.token(self.number, event, arrival, self.window.has(arrival.read));
            });
            order.count().map(drop)
        });
        answered.await?;
        bail!("ended after {} tokens", order.count()?)
    }
}

#[derive(Default)]
struct Tally {
    streams: Vec<State>,
    tokens: u64,
    read: Times,
    wire: Times,
}

impl Tally {
    fn token(&mut self, stream: usize, event: Event, arrival: Arrival, counts: bool) {
        if let Some(state) = self.streams.get_mut(stream) {
            state.last = Some(arrival.read);
        }
        if counts {
            self.tokens += 1;
            self.read.record(arrival.read.saturating_sub(event.sent_ns));
            if let Some(kernel) = arrival.kernel {
                self.wire.record(kernel.saturating_sub(event.sent_ns));
            }
        }
    }
}

/// Of one stream.
#[derive(Default)]
struct State {
    /// When its latest token came.
    last: Option<u64>,
    /// Why it is over, or which token was wrong.
    error: Option<String>,
}

impl State {
    fn is_alive(&self, behind: u64) -> bool {
        self.error.is_none() && self.last.is_some_and(|last| last > behind)
    }
}

#[cfg(test)]
mod tests {
    use super::State;

    #[test]
    fn a_stream_without_a_recent_token_is_not_alive() {
        let error = || Some("token 5 in place of 4".to_owned());
        for (last, error, alive) in [
            (None, None, false),
            (Some(100), None, false),
            (Some(101), None, true),
            (Some(101), error(), false),
        ] {
            assert_eq!(State { last, error }.is_alive(100), alive, "{last:?}");
        }
    }
}
