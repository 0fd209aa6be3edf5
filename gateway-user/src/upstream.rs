//! Connections to pods: kept while they are surely alive, opened anew otherwise.
//!
//! One set for each worker, so nothing is shared and nothing is locked. A connection that has carried a
//! whole response is kept for under four seconds: uvicorn closes idle ones after five, and one that is used
//! in that very moment is lost with its request.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::pool::{Pod, PodId};

/// A worker's connections to pods.
#[derive(Debug, Default)]
pub struct Upstreams {
    idle: RefCell<HashMap<PodId, Vec<Idle>>>,
}

/// A connection to a pod, for one request.
#[derive(Debug)]
pub struct Upstream {
    /// The socket.
    pub stream: TcpStream,
    /// It has carried a request before: if it fails before a byte of the answer, the pod may just have
    /// closed it, and the request may be sent again on a new one.
    pub reused: bool,
}

#[derive(Debug)]
struct Idle {
    stream: TcpStream,
    since: Instant,
}

impl Upstreams {
    /// An idle connection to `pod` that has not been closed, if there is one.
    pub fn idle(&self, pod: &Pod, now: Instant) -> Option<Upstream> {
        let mut idle = self.idle.borrow_mut();
        let kept = idle.get_mut(&pod.id)?;
        while let Some(Idle { stream, since }) = kept.pop() {
            if now.saturating_duration_since(since) < KEEP_IDLE && is_quiet(&stream) {
                return Some(Upstream { stream, reused: true });
            }
        }
        None
    }

    /// A new connection to `pod`.
    pub async fn connect(&self, pod: &Pod, within: Duration) -> io::Result<Upstream> {
        let stream = match timeout(within, TcpStream::connect(pod.address)).await {
            Ok(connected) => connected?,
            Err(_) => return Err(io::Error::from(io::ErrorKind::TimedOut)),
        };
        // A request is written whole; Nagle could only delay its end.
        stream.set_nodelay(true)?;
        Ok(Upstream { stream, reused: false })
    }

    /// Keeps a connection whose response was complete.
    pub fn keep(&self, pod: PodId, upstream: Upstream, now: Instant) {
        let mut idle = self.idle.borrow_mut();
        idle.entry(pod).or_default().push(Idle { stream: upstream.stream, since: now });
    }

    /// Closes what has been idle for too long. Called about once a second.
    pub fn sweep(&self, now: Instant) {
        self.idle.borrow_mut().retain(|_, kept| {
            kept.retain(|idle| now.saturating_duration_since(idle.since) < KEEP_IDLE);
            !kept.is_empty()
        });
    }
}

/// Whether nothing has arrived on an idle connection: neither its end nor bytes that belong to no request.
/// Costs a system call only when the kernel has reported something.
fn is_quiet(stream: &TcpStream) -> bool {
    matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// uvicorn, and with it vLLM and SGLang, closes idle connections after 5 s.
const KEEP_IDLE: Duration = Duration::from_millis(3900);
