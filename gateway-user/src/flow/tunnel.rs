//! A connection that a pod has switched to another protocol: bytes go both ways until either side ends it.
//!
//! They are not looked into. It counts as in flight all that time. Silence of both sides ends it as it ends a stream,
//! and so does a side that takes nothing of what the other one sends, whatever it says itself. Who is let in no more has
//! it ended as well.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::auth::Grant;
use crate::client::Client;
use crate::flow::head::ClientSide;
use crate::flow::send::Begun;
use crate::listen::Worker;
use crate::metrics::Outcome;
use crate::upstream::Upstream;

/// How it went.
#[derive(Clone, Copy, Debug)]
pub struct Tunnelled {
    /// How it ended.
    pub outcome: Outcome,
    /// Bytes that went to the client.
    pub received: u64,
    /// When the head had been written.
    pub first_written: Instant,
    /// When the last bytes came, from either side.
    pub last: Instant,
}

/// Passes on the pod's head, and then everything. Only now does the client get to say anything to the pod: a pod that
/// does not switch has not heard a byte that it could take for a request.
pub async fn tunnel(
    begun: &Begun,
    upstream: &mut Upstream,
    side: ClientSide<'_>,
    grant: Option<Grant<'_>>,
    client: &mut Client,
    worker: &Worker,
) -> Tunnelled {
    let pause = worker.limits().stream_idle_timeout;
    let Client { stream, input, sent, .. } = client;
    let early = std::mem::take(input);
    let (mut client_reader, client_writer) = stream.split(sent);
    let (mut pod_reader, pod_writer) = upstream.stream.split();
    let last = Cell::new(Instant::now());
    let first_written = Cell::new(Instant::now());
    let received = Cell::new(begun.body.len() as u64);
    let down = async {
        let mut bytes = Vec::new();
        begun.head.write_switch(side, &mut bytes);
        bytes.extend_from_slice(&begun.body);
        loop {
            if !matches!(timeout(pause, client_writer.write_all(&bytes)).await, Ok(Ok(()))) {
                return Outcome::ClientGone;
            }
            if received.get() == begun.body.len() as u64 {
                first_written.set(Instant::now());
            }
            last.set(Instant::now());
            bytes.clear();
            let read = worker.scratch.read(&mut pod_reader, |read| bytes.extend_from_slice(read));
            match read.await {
                Ok(0) => return Outcome::Ok,
                Ok(count) => received.set(received.get() + count as u64),
                Err(_) => return Outcome::Aborted,
            }
            last.set(Instant::now());
        }
    };
    let up = async {
        let mut bytes = early;
        loop {
            match timeout(pause, pod_writer.write_all([&bytes, &[]])).await {
                Ok(Ok(())) => {}
                // What the pod has said before it left is still passed on, and tells how it ended.
                Ok(Err(_)) => return std::future::pending().await,
                Err(_) => return Outcome::TimedOut,
            }
            last.set(Instant::now());
            bytes.clear();
            let read =
                worker.scratch.read(&mut client_reader, |read| bytes.extend_from_slice(read));
            match read.await {
                Ok(0) => return Outcome::Ok,
                Ok(_) => last.set(Instant::now()),
                Err(_) => return Outcome::ClientGone,
            }
        }
    };
    let idle = async {
        loop {
            let due = last.get() + pause;
            if due <= Instant::now() {
                return Outcome::TimedOut;
            }
            sleep_until(due).await;
        }
    };
    let revoked = async {
        match grant {
            None => std::future::pending().await,
            Some(grant) => {
                while grant.holds() {
                    sleep(GRANT_POLL).await;
                }
            }
        }
    };
    let outcome = tokio::select! {
        biased;
        outcome = down => outcome,
        outcome = up => outcome,
        outcome = idle => outcome,
        // As if it had been refused.
        () = revoked => Outcome::ClientError,
    };
    Tunnelled {
        outcome,
        received: received.get(),
        first_written: first_written.get(),
        last: last.get(),
    }
}

/// How often it is looked whether the client would still be let in. Files with keys are read about as often.
const GRANT_POLL: Duration = Duration::from_secs(1);
