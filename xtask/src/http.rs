//! A small HTTP/1.1 client: one connection, one request at a time, the body line by line.
//!
//! It knows what the gateway sends and no more: lengths and chunks, no redirects, no compression.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail};

/// A connection that is kept between requests, and opened anew after an error.
pub(crate) struct Connection {
    to: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

impl Connection {
    /// Not open yet.
    pub(crate) fn new(to: SocketAddr) -> Self {
        Self { to, stream: None }
    }

    /// Sends a request, calls `take` for each line of the body as it arrives, and returns the status.
    ///
    /// # Errors
    /// The connection failed, the answer is not HTTP or ended before its end, or `take` wants no more.
    pub(crate) fn request(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
        take: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<u16> {
        // Not put back on an error: what follows on it would be the rest of this answer.
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.open()?,
        };
        let message = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            self.to,
            body.len()
        );
        stream.get_mut().write_all(message.as_bytes()).context("send a request")?;
        let head = Head::read(&mut stream).context("read the head of an answer")?;
        let body = Body { stream: &mut stream, left: head.left, chunked: head.chunked };
        let mut body = BufReader::new(body).take(MOST);
        let mut line = String::new();
        while body.read_line(&mut line).context("read the body of an answer")? > 0 {
            take(line.trim_end())?;
            line.clear();
        }
        if !head.close {
            self.stream = Some(stream);
        }
        Ok(head.status)
    }

    /// The body of a page; none unless its status is 200.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub(crate) fn page(&mut self, path: &str) -> anyhow::Result<Option<String>> {
        let mut page = String::new();
        let status = self.request("GET", path, "", &mut |line| {
            page.push_str(line);
            page.push('\n');
            Ok(())
        })?;
        Ok((status == 200).then_some(page))
    }

    fn open(&self) -> anyhow::Result<BufReader<TcpStream>> {
        let stream = TcpStream::connect_timeout(&self.to, CONNECT)
            .with_context(|| format!("connect to {}", self.to))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        Ok(BufReader::new(stream))
    }
}

/// What matters of an answer's head.
#[derive(Debug, Default, PartialEq)]
struct Head {
    status: u16,
    chunked: bool,
    /// Bytes of a body that is not chunked.
    left: u64,
    close: bool,
}

impl Head {
    fn read(stream: &mut impl BufRead) -> anyhow::Result<Self> {
        let line = read_line(stream)?;
        let status = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.split(' ').next());
        let Some(Ok(status)) = status.map(str::parse) else {
            bail!("no status: {line:?}");
        };
        let mut head = Self { status, ..Self::default() };
        for _ in 0..MOST_HEADERS {
            let line = read_line(stream)?;
            let Some((name, value)) = line.split_once(':') else {
                if line.is_empty() {
                    return Ok(head);
                }
                bail!("no header: {line:?}");
            };
            let value = value.trim().to_ascii_lowercase();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => head.left = value.parse().context("content-length")?,
                "transfer-encoding" => head.chunked = value == "chunked",
                "connection" => head.close = value == "close",
                _ => {}
            }
        }
        bail!("more than {MOST_HEADERS} headers");
    }
}

/// A body without its framing. It ends where the framing says so; if the connection ends earlier, that is
/// an error.
struct Body<'a, S> {
    stream: &'a mut S,
    /// Bytes of the chunk, or of the whole body if it is not chunked.
    left: u64,
    chunked: bool,
}

impl<S: BufRead> Read for Body<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && self.chunked {
            self.left = self.next_chunk()?;
        }
        if self.left == 0 {
            return Ok(0);
        }
        let count = self.stream.by_ref().take(self.left).read(buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count as u64;
        if self.left == 0 && self.chunked {
            self.line_end()?;
        }
        Ok(count)
    }
}

impl<S: BufRead> Body<'_, S> {
    fn next_chunk(&mut self) -> io::Result<u64> {
        let line = read_line(self.stream)?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = u64::from_str_radix(size, 16)
            .map_err(|_| invalid(format!("not the size of a chunk: {line:?}")))?;
        if size == 0 {
            self.chunked = false;
            self.line_end()?;
        }
        Ok(size)
    }

    /// What stands behind a chunk, and behind the last one: the gateway sends no trailers.
    fn line_end(&mut self) -> io::Result<()> {
        match read_line(self.stream)?.as_str() {
            "" => Ok(()),
            line => Err(invalid(format!("not the end of a chunk: {line:?}"))),
        }
    }
}

/// A line without its end; an error if the connection ends before.
fn read_line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    stream.by_ref().take(MOST_LINE).read_until(b'\n', &mut line)?;
    match line.strip_suffix(b"\n") {
        Some(line) => Ok(String::from_utf8_lossy(line).trim_end().to_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// For a connection to this machine.
const CONNECT: Duration = Duration::from_secs(5);
/// Longest silence within an answer; a token of the slowest pod takes a tenth of a second.
const SILENCE: Duration = Duration::from_secs(60);
/// Longest body, in bytes.
const MOST: u64 = 16 * 1024 * 1024;
/// Longest line of a head, in bytes.
const MOST_LINE: u64 = 16 * 1024;
/// Most headers of an answer.
const MOST_HEADERS: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Head, io::Result<String>, String) {
        let mut stream = text.as_bytes();
        let head = Head::read(&mut stream).unwrap();
        let mut body = Body { stream: &mut stream, left: head.left, chunked: head.chunked };
        let mut read = String::new();
        let result = body.read_to_string(&mut read).map(|_| read);
        (head, result, String::from_utf8(stream.to_vec()).unwrap())
    }

    #[test]
    fn bodies_end_where_their_framing_says() {
        let table = [
            ("content-length: 5\r\n\r\nhelloHTTP", "hello", "HTTP"),
            ("Content-Length: 0\r\n\r\nHTTP", "", "HTTP"),
            (
                "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=1\r\n0123456789\r\n0\r\n\r\nHTTP",
                "abc0123456789",
                "HTTP",
            ),
            ("transfer-encoding: chunked\r\n\r\n0\r\n\r\n", "", ""),
        ];
        for (text, body, rest) in table {
            let (head, read, left) = read(&format!("HTTP/1.1 200 OK\r\n{text}"));
            assert_eq!((head.status, read.unwrap().as_str(), left.as_str()), (200, body, rest));
        }
    }

    #[test]
    fn a_body_that_breaks_off_is_an_error() {
        for text in [
            "content-length: 5\r\n\r\nhell",
            "transfer-encoding: chunked\r\n\r\n3\r\nab",
            "transfer-encoding: chunked\r\n\r\n3\r\nabc",
            "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
            "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
            "transfer-encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
            "transfer-encoding: chunked\r\n\r\nx\r\n",
        ] {
            assert!(read(&format!("HTTP/1.1 200 OK\r\n{text}")).1.is_err(), "{text}");
        }
    }

    #[test]
    fn heads() {
        let (head, ..) = read("HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\n");
        assert_eq!(head, Head { status: 503, close: true, ..Head::default() });
        for text in ["", "HTTP/1.1 200 OK\r\n", "SSH-2.0\r\n\r\n", "HTTP/1.1 200 OK\r\nx\r\n\r\n"] {
            assert!(Head::read(&mut text.as_bytes()).is_err(), "{text}");
        }
    }
}
