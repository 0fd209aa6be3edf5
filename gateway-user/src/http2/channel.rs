//! One request's bytes: its body on the way in, its answer on the way out.
//!
//! The answer is written as it is for HTTP/1.1, head first; the head becomes header fields here, and what follows it,
//! which has no framing of its own, DATA frames.

use std::io;
use std::task::{Context, Poll, Waker, ready};

use bytes::{BufMut, Bytes};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use tokio::task::yield_now;

use crate::flow::head::MAX_HEAD;
use crate::request::head::{MAX_HEADERS, is_hop_by_hop};

/// A request and its answer.
#[derive(Debug)]
pub struct Channel {
    body: RecvStream,
    /// Of the body: came, and has not been read.
    received: Bytes,
    answer: Answer,
}

#[derive(Debug)]
enum Answer {
    /// Its head is not complete.
    Head(SendResponse<Bytes>, Vec<u8>),
    /// Its body goes out.
    Body(SendStream<Bytes>),
    /// It has ended.
    Over,
}

impl Channel {
    /// A request whose head has come.
    pub fn new(body: RecvStream, respond: SendResponse<Bytes>) -> Self {
        Self { body, received: Bytes::new(), answer: Answer::Head(respond, Vec::new()) }
    }

    /// Reads of the body what has come. 0 is its end.
    pub fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        to: &mut impl BufMut,
    ) -> Poll<io::Result<usize>> {
        while self.received.is_empty() {
            match ready!(self.body.poll_data(context)) {
                Some(bytes) => self.received = bytes.map_err(io::Error::other)?,
                None => return Poll::Ready(Ok(0)),
            }
        }
        let count = self.received.len().min(to.remaining_mut());
        to.put(self.received.split_to(count));
        self.body.flow_control().release_capacity(count).map_err(io::Error::other)?;
        Poll::Ready(Ok(count))
    }

    /// Returns once the client has reset the request, or its connection has ended.
    pub fn poll_reset(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.answer {
            Answer::Head(respond, _) => respond.poll_reset(context).map(drop),
            Answer::Body(stream) => stream.poll_reset(context).map(drop),
            Answer::Over => Poll::Pending,
        }
    }

    /// Whether the client has reset the request by now.
    pub fn is_reset(&mut self) -> bool {
        self.poll_reset(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Writes of the answer what the client's window takes, and returns how much that was.
    pub fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let stream = match &mut self.answer {
            Answer::Head(..) => return Poll::Ready(self.write_head(bytes)),
            Answer::Body(stream) => stream,
            Answer::Over => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        };
        stream.reserve_capacity(bytes.len());
        while stream.capacity() == 0 && !bytes.is_empty() {
            match ready!(stream.poll_capacity(context)) {
                Some(capacity) => capacity.map_err(io::Error::other)?,
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            };
        }
        Poll::Ready(send(stream, bytes))
    }

    /// Writes of the answer's body what the client's window takes at once.
    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Answer::Body(stream) = &mut self.answer else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        stream.reserve_capacity(bytes.len());
        match stream.capacity() {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => send(stream, bytes),
        }
    }

    /// Ends the answer. Without a head it is reset when this is dropped.
    pub fn finish(&mut self) -> io::Result<()> {
        match &mut self.answer {
            Answer::Body(stream) => {
                stream.send_data(Bytes::new(), true).map_err(io::Error::other)?;
                self.answer = Answer::Over;
                Ok(())
            }
            Answer::Head(..) | Answer::Over => Ok(()),
        }
    }

    /// Ends the answer such that the client sees that it is not whole, at once.
    pub fn reset(&mut self) {
        match &mut self.answer {
            Answer::Head(respond, _) => respond.send_reset(Reason::INTERNAL_ERROR),
            Answer::Body(stream) => stream.send_reset(Reason::INTERNAL_ERROR),
            Answer::Over => {}
        }
        self.answer = Answer::Over;
    }

    /// The same behind what has been written.
    pub async fn reset_behind(&mut self) {
        // A reset drops what h2 still holds. It holds no more than the client's window takes, so that all of it
        // goes out with the next turns of the connection's task.
        for _ in 0..TURNS {
            yield_now().await;
        }
        self.reset();
    }

    fn write_head(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Answer::Head(respond, head) = &mut self.answer else { return Ok(0) };
        let before = head.len();
        head.extend_from_slice(bytes);
        let Some((len, response)) = parse(head)? else {
            return match head.len() > MAX_HEAD + OWN_HEADERS {
                true => Err(io::ErrorKind::InvalidData.into()),
                false => Ok(bytes.len()),
            };
        };
        *head = Vec::new();
        if response.status().is_informational() {
            respond.send_informational(response).map_err(io::Error::other)?;
        } else {
            let stream = respond.send_response(response, false).map_err(io::Error::other)?;
            self.answer = Answer::Body(stream);
        }
        Ok(len.saturating_sub(before))
    }
}

fn send(stream: &mut SendStream<Bytes>, bytes: &[u8]) -> io::Result<usize> {
    let count = stream.capacity().min(bytes.len());
    let piece = Bytes::copy_from_slice(bytes.get(..count).unwrap_or_default());
    stream.send_data(piece, false).map_err(io::Error::other)?;
    Ok(count)
}

/// Reads the head of an answer. `None`: it is not complete. RFC 9113 section 8.2.2: what concerns a connection is no
/// field there.
fn parse(head: &[u8]) -> io::Result<Option<(usize, Response<()>)>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS + 16];
    let mut parsed = httparse::Response::new(&mut headers);
    let len = match parsed.parse(head).map_err(io::Error::other)? {
        httparse::Status::Complete(len) => len,
        httparse::Status::Partial => return Ok(None),
    };
    let mut response = Response::new(());
    let status = StatusCode::from_u16(parsed.code.unwrap_or_default());
    *response.status_mut() = status.map_err(io::Error::other)?;
    for header in parsed.headers.iter().filter(|header| !is_hop_by_hop(header.name)) {
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(io::Error::other)?;
        let value = HeaderValue::from_bytes(header.value).map_err(io::Error::other)?;
        response.headers_mut().append(name, value);
    }
    Ok(Some((len, response)))
}

/// How often other tasks run before a reset: the connection's, which writes, is among them.
const TURNS: u32 = 4;

/// What the gateway adds to a pod's head is less than this, in bytes.
const OWN_HEADERS: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_becomes_fields() {
        let text = b"HTTP/1.1 429 Too Many\r\nContent-Type: a/b\r\nconnection: close\r\nRetry-After: 1\r\n\
                     transfer-encoding: chunked\r\nset-cookie: a\r\nset-cookie: b\r\n\r\nrest";
        let (len, response) = parse(text).unwrap().unwrap();
        assert_eq!(&text[len..], b"rest");
        assert_eq!(response.status(), 429);
        let names: Vec<_> = response.headers().iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["content-type", "retry-after", "set-cookie", "set-cookie"]);
        for end in 0..len {
            assert!(parse(&text[..end]).unwrap().is_none(), "{end}");
        }
    }
}
