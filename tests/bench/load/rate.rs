//! Requests at a fixed rate over keep-alive connections, whatever becomes of the earlier ones.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use clap::Args;
use sluice_tests::bench::event::now_ns;
use sluice_tests::bench::report::Report;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::Common;
use crate::client::{Connection, read};
use crate::pace::Pace;
use crate::prompt::Prompts;
use crate::times::Times;
use crate::usage::{Window, ns};

/// The load.
#[derive(Args)]
pub(crate) struct Options {
    /// Requests per second.
    #[arg(long)]
    rate: f64,
    /// Keep-alive connections; a request that finds none free waits, and its time runs.
    #[arg(long, default_value_t = 128)]
    connections: usize,
    /// Bytes of a request's body.
    #[arg(long, default_value_t = 1_024)]
    size: usize,
    /// Ask for a streamed answer.
    #[arg(long)]
    stream: bool,
    /// Tokens to ask for.
    #[arg(long, default_value_t = 1)]
    tokens: u64,
}

/// Runs the load and measures.
pub(crate) async fn run(common: &Common, options: &Options) -> anyhow::Result<Report> {
    ensure!(!common.to.is_empty(), "nowhere to send to: --to");
    ensure!(options.rate > 0.0 && options.connections > 0, "no load");
    let Options { rate, connections, size, stream, tokens } = *options;
    let prompts = Prompts::new(&common.model, stream, tokens, size);

    let window = Window::starting_in(OPENING, common);
    let tally = Rc::new(RefCell::new(Tally::default()));
    let (send, receive) = mpsc::unbounded_channel();
    let queue = Rc::new(Mutex::new(receive));
    let mut workers = JoinSet::new();
    for to in common.to.iter().cycle().take(connections) {
        let worker = Worker {
            connection: Connection::new(*to, common.speech)?,
            window,
            tally: tally.clone(),
            expected: if stream { tokens } else { 1 },
        };
        workers.spawn_local(worker.run(queue.clone()));
    }

    let measured = window.measure(common);
    let offered = offer(send, &prompts, rate, window, common.warmup);
    let (mut report, _) = tokio::try_join!(measured, offered)?;
    while workers.join_next().await.is_some() {}

    let tally = tally.take();
    report.responses = tally.responses;
    report.tokens = tally.tokens;
    report.errors = tally.errors;
    report.first_error = tally.first_error;
    report.latency_us = tally.latency.quantiles();
    report.ttft_us = tally.ttft.quantiles();
    report.token_us = tally.token.quantiles();
    Ok(report)
}

/// A request to send, and the instant it should go.
struct Job {
    due: u64,
    body: Bytes,
}

/// Puts each request into the queue at its instant, until the window has closed.
async fn offer(
    queue: mpsc::UnboundedSender<Job>,
    prompts: &Prompts,
    rate: f64,
    window: Window,
    warmup: f64,
) -> anyhow::Result<()> {
    let pace = Pace::new()?;
    let start = window.start - ns(warmup);
    for number in 0.. {
        let due = start + ns(number as f64 / rate);
        if due >= window.end {
            break;
        }
        // Made before its time, so that the making is not part of the measure.
        let body = prompts.body(number);
        pace.until(due).await?;
        queue.send(Job { due, body }).ok().context("nobody takes requests")?;
    }
    Ok(())
}

struct Worker {
    connection: Connection,
    window: Window,
    tally: Rc<RefCell<Tally>>,
    /// Tokens that a whole answer has.
    expected: u64,
}

impl Worker {
    async fn run(mut self, queue: Rc<Mutex<mpsc::UnboundedReceiver<Job>>>) {
        // All connections are there before the first request; an error shows with a request.
        let _ = self.connection.open().await;
        loop {
            // Waiters are served in order, so the connections take turns.
            let job = queue.lock().await.recv().await;
            let Some(job) = job else { return };
            let result = timeout(PATIENCE, self.request(job)).await;
            if let Err(error) = result.context("no answer in time").flatten() {
                self.connection.close();
                self.tally.borrow_mut().error(&error);
            }
        }
    }

    async fn request(&mut self, Job { due, body }: Job) -> anyhow::Result<()> {
        let response = self.connection.post(body).await?;
        let (mut first, window, tally) = (None, self.window, &self.tally);
        let got = read(response, |event, now| {
            first.get_or_insert(now);
            if window.has(now) {
                let mut tally = tally.borrow_mut();
                tally.tokens += 1;
                tally.token.record(now.saturating_sub(event.sent_ns));
            }
        })
        .await?;
        let now = now_ns();
        ensure!(got == self.expected, "{got} tokens in place of {}", self.expected);
        let mut tally = self.tally.borrow_mut();
        if window.has(now) {
            tally.responses += 1;
        }
        if window.has(due) {
            tally.latency.record(now - due);
            tally.ttft.record(first.unwrap_or(now) - due);
        }
        Ok(())
    }
}

#[derive(Default)]
struct Tally {
    responses: u64,
    tokens: u64,
    errors: u64,
    first_error: Option<String>,
    latency: Times,
    ttft: Times,
    token: Times,
}

impl Tally {
    fn error(&mut self, error: &anyhow::Error) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| format!("{error:#}"));
    }
}

/// Seconds in which the connections are opened.
const OPENING: f64 = 0.3;
/// After this a request counts as failed.
const PATIENCE: Duration = Duration::from_secs(10);
