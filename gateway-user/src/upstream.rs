//! Connections to pods: kept while they are surely alive, opened anew otherwise.
//!
//! One set for each worker, so nothing is shared and nothing is locked. A connection that has carried a
//! whole response is kept for under four seconds: uvicorn closes idle ones after five, and one that is used
//! in that very moment is lost with its request.

mod stream;

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpSocket;
use tokio::time::{Instant, timeout_at};

pub use self::stream::{Reader, Stream, Writer};
use crate::flow::path::Paths;
use crate::kernel::Link;
use crate::metrics::PathReason;
use crate::pool::{Pod, PodId};

/// A worker's connections to pods.
#[derive(Debug, Default)]
pub struct Upstreams {
    idle: RefCell<HashMap<(PodId, Use), Vec<Idle>>>,
}

/// What a connection is for. Those for streams are known to the kernel, which costs a little at each
/// message; those for other answers are ordinary ones.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Use {
    /// Answers that come at once.
    Answers,
    /// Streams.
    Streams,
}

/// A connection to a pod, for one request.
#[derive(Debug)]
pub struct Upstream {
    /// What its bytes come and go by.
    pub stream: Stream,
    /// Bytes read from it since it was made.
    pub received: u64,
    /// Its link, or why it has none.
    pub link: Result<Link, PathReason>,
}

#[derive(Debug)]
struct Idle {
    upstream: Upstream,
    since: Instant,
}

impl Upstream {
    /// Its link, which it has no more then.
    pub fn take_link(&mut self) -> Option<Link> {
        std::mem::replace(&mut self.link, Err(PathReason::Unfit)).ok()
    }
}

impl Upstreams {
    /// An idle connection to `pod` that has not been closed, if there is one.
    pub fn idle(&self, pod: &Pod, usage: Use, now: Instant) -> Option<Upstream> {
        let mut idle = self.idle.borrow_mut();
        let kept = idle.get_mut(&(pod.id, usage))?;
        while let Some(Idle { mut upstream, since }) = kept.pop() {
            if now.saturating_duration_since(since) < KEEP_IDLE && upstream.stream.is_quiet() {
                return Some(upstream);
            }
        }
        None
    }

    /// A new connection to `pod`, for streams if there are `paths` that carry them. What comes over TLS, no path
    /// carries.
    pub async fn connect(
        &self,
        pod: &Pod,
        within: Duration,
        paths: Option<&Paths>,
    ) -> io::Result<Upstream> {
        let until = Instant::now() + within;
        let tls = pod.tls.as_deref();
        let paths = paths.filter(|_| tls.is_none());
        let socket = match pod.address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        if paths.is_some() {
            // Left to itself it grows with what arrives, as of a stream that the kernel carries
            // everything counts as read at once; and all of it is filled when the client then stops.
            socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
        }
        // Before it is connected, so that the pod's end is recognised and no byte goes uncounted.
        let mut link = match paths {
            Some(paths) => paths.link(&socket),
            None if tls.is_some() => Err(PathReason::Tls),
            None => Err(PathReason::Short),
        };
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        let stream = timeout_at(until, socket.connect(pod.address)).await.map_err(late)??;
        // A request is written whole; Nagle could only delay its end.
        stream.set_nodelay(true)?;
        if let Some(paths) = paths {
            link = link.and_then(|link| paths.settle(link, &stream));
        }
        let begin = Stream::begin(stream, pod.address, tls);
        let stream = timeout_at(until, begin).await.map_err(late)??;
        Ok(Upstream { stream, received: 0, link })
    }

    /// Keeps a connection whose response was complete.
    pub fn keep(&self, pod: PodId, usage: Use, upstream: Upstream, now: Instant) {
        let mut idle = self.idle.borrow_mut();
        idle.entry((pod, usage)).or_default().push(Idle { upstream, since: now });
    }

    /// Closes what has been idle for too long. Called about once a second.
    pub fn sweep(&self, now: Instant) {
        self.idle.borrow_mut().retain(|_, kept| {
            kept.retain(|idle| now.saturating_duration_since(idle.since) < KEEP_IDLE);
            !kept.is_empty()
        });
    }
}

/// Bytes of a stream that may wait for the daemon, which the kernel doubles for its own overhead: at 1 ms
/// to the pod it lets over 100 MB/s pass.
const RECEIVE_BUFFER: u32 = 64 * 1024;

/// uvicorn, and with it vLLM and SGLang, closes idle connections after 5 s.
const KEEP_IDLE: Duration = Duration::from_millis(3900);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::pool::tests::pool;

    /// Two ends of a connection.
    async fn pair() -> (Upstream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (far, _) = listener.accept().await.unwrap();
        let stream = Stream::Plain(near);
        (Upstream { stream, received: 0, link: Err(PathReason::Short) }, far)
    }

    fn socket(upstream: &Upstream) -> &TcpStream {
        match &upstream.stream {
            Stream::Plain(stream) => stream,
            Stream::Tls(_) => panic!("it is plain"),
        }
    }

    fn pods() -> Vec<Arc<Pod>> {
        pool(2, "").pods()
    }

    #[tokio::test]
    async fn a_connection_is_kept_for_its_pod_and_for_a_while() {
        let pods = pods();
        let upstreams = Upstreams::default();
        let now = Instant::now();
        let (near, _far) = pair().await;
        let address = socket(&near).local_addr().unwrap();
        upstreams.keep(pods[0].id, Use::Answers, near, now);
        assert!(upstreams.idle(&pods[1], Use::Answers, now).is_none(), "another pod's");
        let kept = upstreams
            .idle(&pods[0], Use::Answers, now + KEEP_IDLE - Duration::from_millis(1))
            .unwrap();
        assert_eq!(socket(&kept).local_addr().unwrap(), address);
        assert!(upstreams.idle(&pods[0], Use::Answers, now).is_none(), "it was taken");
        upstreams.keep(pods[0].id, Use::Answers, kept, now);
        assert!(
            upstreams.idle(&pods[0], Use::Answers, now + KEEP_IDLE).is_none(),
            "the pod may close it now"
        );
    }

    #[tokio::test]
    async fn the_newest_is_used_and_the_oldest_are_swept() {
        let pods = pods();
        let upstreams = Upstreams::default();
        let now = Instant::now();
        let (old, mut old_far) = pair().await;
        let (new, _new_far) = pair().await;
        let address = socket(&new).local_addr().unwrap();
        upstreams.keep(pods[0].id, Use::Answers, old, now);
        upstreams.keep(pods[0].id, Use::Answers, new, now + Duration::from_secs(1));
        upstreams.sweep(now + KEEP_IDLE);
        // Closed, not forgotten: the pod sees its end.
        assert_eq!(tokio::io::AsyncReadExt::read(&mut old_far, &mut [0; 1]).await.unwrap(), 0);
        let kept = upstreams.idle(&pods[0], Use::Answers, now + KEEP_IDLE).unwrap();
        assert_eq!(socket(&kept).local_addr().unwrap(), address);
        upstreams.sweep(now + 2 * KEEP_IDLE);
        assert!(upstreams.idle.borrow().is_empty());
    }

    #[tokio::test]
    async fn one_that_was_closed_or_has_unasked_bytes_is_passed_over() {
        let pods = pods();
        let upstreams = Upstreams::default();
        let now = Instant::now();
        let (quiet, _quiet_far) = pair().await;
        let (closed, closed_far) = pair().await;
        let (talks, mut talks_far) = pair().await;
        let address = socket(&quiet).local_addr().unwrap();
        drop(closed_far);
        talks_far.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").await.unwrap();
        for upstream in [&closed, &talks] {
            socket(upstream).readable().await.unwrap();
        }
        for upstream in [quiet, closed, talks] {
            upstreams.keep(pods[0].id, Use::Answers, upstream, now);
        }
        let kept = upstreams.idle(&pods[0], Use::Answers, now).unwrap();
        assert_eq!(socket(&kept).local_addr().unwrap(), address);
        assert!(upstreams.idle(&pods[0], Use::Answers, now).is_none());
    }
}
