//! A client's connection of which the kernel tells when bytes came.
//!
//! The client shares its processor with the pods, so when it gets to read says more of them than of
//! a gateway. And it is made of little, for what it uses is missing to the pods.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use anyhow::{Context, ensure};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use sluice_tests::bench::event::now_ns;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::TcpStream;

use crate::chunks::Chunks;

/// How far the clock of the kernel's stamps is ahead of [`now_ns`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead(i64);

impl Ahead {
    /// Both clocks run at one speed, so once is enough, unless somebody sets the clock.
    pub(crate) fn look() -> anyhow::Result<Self> {
        let mut best = (u64::MAX, 0);
        for _ in 0..20 {
            let before = now_ns();
            let real = nanoseconds(clock_gettime(ClockId::CLOCK_REALTIME)?);
            let took = now_ns() - before;
            // The closer the two looks at one clock, the surer the other's time between them.
            best = best.min((took, real - (before + took / 2) as i64));
        }
        Ok(Self(best.1))
    }

    /// Checks that nobody has set the clock since.
    ///
    /// # Errors
    /// Somebody did: times that were taken by it mean nothing.
    pub(crate) fn check(self) -> anyhow::Result<()> {
        let moved = Self::look()?.0 - self.0;
        ensure!(moved.abs() < SET, "the machine's clock was set by {moved} ns meanwhile");
        Ok(())
    }

    fn convert(self, stamp: TimeSpec) -> u64 {
        (nanoseconds(stamp) - self.0).max(0) as u64
    }
}

/// A connection with one request on it.
pub(crate) struct Wire {
    stream: TcpStream,
    ahead: Ahead,
    buffer: Vec<u8>,
    control: Vec<u8>,
}

/// When some bytes came, by [`now_ns`].
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    /// The last of them, at the socket; none for a moment after the first connection, for the
    /// kernel begins to stamp when it is first asked to, and takes its time over it.
    pub(crate) kernel: Option<u64>,
    /// To the client.
    pub(crate) read: u64,
}

impl Wire {
    /// Connects and asks for the kernel's stamps.
    pub(crate) async fn open(to: SocketAddr, ahead: Ahead) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(to).await.context("connect")?;
        stream.set_nodelay(true)?;
        setsockopt(&stream, sockopt::ReceiveTimestampns, &true)?;
        let control = nix::cmsg_space!(TimeSpec);
        Ok(Self { stream, ahead, buffer: vec![0; BUFFER], control })
    }

    /// Sends a chat request, and calls `take` for each piece of the answer's body as it comes.
    ///
    /// # Errors
    /// The status is not 200, the framing is wrong, the answer breaks off, or `take` wants no more;
    /// returns only then or at the answer's end.
    pub(crate) async fn ask(
        mut self,
        body: &[u8],
        mut take: impl FnMut(&[u8], Arrival) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut message = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\naccept: */*\r\n\
             authorization: Bearer sk-0123456789abcdef\r\ncontent-type: application/json\r\n\
             user-agent: bench-load\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        message.extend_from_slice(body);
        self.stream.write_all(&message).await.context("request")?;

        let mut head = Vec::new();
        let (mut chunks, rest, arrival) = loop {
            let (count, arrival) = self.receive().await?;
            head.extend_from_slice(self.buffer.get(..count).unwrap_or_default());
            ensure!(count > 0, "closed before the head");
            if let Some((chunks, end)) = parse(&head)? {
                break (chunks, head.split_off(end), arrival);
            }
        };
        let mut ended = chunks.feed(&rest, |piece| take(piece, arrival))?;
        while !ended {
            let (count, arrival) = self.receive().await?;
            ensure!(count > 0, "the answer broke off");
            let bytes = self.buffer.get(..count).unwrap_or_default();
            ended = chunks.feed(bytes, |piece| take(piece, arrival))?;
        }
        Ok(())
    }

    /// Waits for bytes; none is the connection's end.
    async fn receive(&mut self) -> anyhow::Result<(usize, Arrival)> {
        let Self { stream, ahead, buffer, control } = self;
        loop {
            stream.readable().await?;
            let mut got = None;
            let tried = stream.try_io(Interest::READABLE, || {
                let length = buffer.len();
                let mut parts = [IoSliceMut::new(buffer)];
                let flags = MsgFlags::MSG_DONTWAIT;
                let message = recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(control), flags)?;
                let stamp = message.cmsgs()?.find_map(|control| match control {
                    ControlMessageOwned::ScmTimestampns(stamp) => Some(stamp),
                    _ => None,
                });
                got = Some((message.bytes, stamp));
                // As tokio's own read does: less than there is room for is all there was, which
                // saves asking once more.
                let all = message.bytes > 0 && message.bytes < length;
                if all { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            let Some((count, stamp)) = got else {
                match tried {
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                        return Err(error).context("response");
                    }
                    _ => continue,
                }
            };
            let kernel = stamp.map(|stamp| ahead.convert(stamp));
            return Ok((count, Arrival { kernel, read: now_ns() }));
        }
    }
}

/// The framing of the body, and where it begins; none while the head is not complete.
fn parse(head: &[u8]) -> anyhow::Result<Option<(Chunks, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(end) = response.parse(head).context("head")? else {
        return Ok(None);
    };
    let status = response.code.unwrap_or(0);
    ensure!(status == 200, "status {status}");
    let chunked = response.headers.iter().any(|header| {
        header.name.eq_ignore_ascii_case("transfer-encoding")
            && header.value.eq_ignore_ascii_case(b"chunked")
    });
    ensure!(chunked, "the answer is not chunked");
    Ok(Some((Chunks::default(), end)))
}

fn nanoseconds(time: TimeSpec) -> i64 {
    time.tv_sec() * 1_000_000_000 + time.tv_nsec()
}

/// Bytes that one read may bring; a token has some 270, and there may be thousands of connections.
const BUFFER: usize = 8 * 1_024;
/// Nanoseconds between two looks at the clocks that are more than their doing.
const SET: i64 = 20_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_chunked_200_is_an_answer() {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        for end in 0..head.len() {
            assert!(parse(&head.as_bytes()[..end]).unwrap().is_none(), "{end}");
        }
        let (_, end) = parse(format!("{head}5\r\n").as_bytes()).unwrap().unwrap();
        assert_eq!(end, head.len());
        for head in [
            "HTTP/1.1 429 Too Many Requests\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",
            "SSH-2.0\r\n",
        ] {
            assert!(parse(head.as_bytes()).is_err(), "{head}");
        }
    }

    #[tokio::test]
    async fn bytes_come_with_the_kernels_time() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let ahead = Ahead::look().unwrap();
        let before = now_ns();
        let arrivals = std::cell::RefCell::new(Vec::new());
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            stream.write_all(head.as_bytes()).await.unwrap();
            // For as long as the kernel takes to begin with its stamps.
            while arrivals.borrow().iter().all(|arrival: &Arrival| arrival.kernel.is_none()) {
                stream.write_all(b"5\r\nhe").await.unwrap();
                tokio::task::yield_now().await;
                stream.write_all(b"llo\r\n").await.unwrap();
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            stream.write_all(b"0\r\n\r\n").await.unwrap();
            stream
        };
        let client = async {
            let mut body = String::new();
            let wire = Wire::open(to, ahead).await.unwrap();
            wire.ask(b"{}", |piece, arrival| {
                body.push_str(std::str::from_utf8(piece)?);
                arrivals.borrow_mut().push(arrival);
                Ok(())
            })
            .await
            .unwrap();
            body
        };
        let (_stream, body) = tokio::join!(server, client);
        assert_eq!(body.replace("hello", ""), "");
        for Arrival { kernel, read } in arrivals.take() {
            let kernel = kernel.unwrap_or(read) + SET as u64;
            assert!(before < kernel && kernel < read + 2 * SET as u64, "{before} {kernel} {read}");
        }
        ahead.check().unwrap();
    }
}
