//! Asks a running gateway's admin address: one small request, one page.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

/// The page at `path`, or the answer to `body` there. It comes with a length or the connection's end.
///
/// # Errors
/// Nothing answers, or not with a page; then its status and the first line of what it says.
pub(super) fn ask(admin: &str, path: &str, body: Option<&[u8]>) -> io::Result<String> {
    let mut stream = connect(admin)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (method, length) = match body {
        Some(body) => ("POST", format!("content-length: {}\r\n", body.len())),
        None => ("GET", String::new()),
    };
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {admin}\r\n{length}connection: close\r\n\r\n"
    )?;
    // What is refused early is answered all the same.
    let sent = body.map_or(Ok(()), |body| stream.write_all(body));
    let mut answer = Vec::new();
    match stream.take(MOST).read_to_end(&mut answer) {
        Err(error) if answer.is_empty() => return Err(sent.err().unwrap_or(error)),
        _ => {}
    }
    let answer = String::from_utf8(answer)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the answer is not text"))?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(body.to_owned()),
        Some((head, body)) => {
            let line = |text: &str| text.lines().next().unwrap_or_default().to_owned();
            Err(io::Error::other(format!("{}: {}", line(head), line(body))))
        }
        None => Err(io::Error::other("it does not speak HTTP")),
    }
}

/// A host's name or address with a port, as it was written.
///
/// # Errors
/// It is no such thing.
pub(super) fn host_and_port(text: &str) -> Result<String, &'static str> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
            Ok(text.to_owned())
        }
        _ => Err("a host and a port are wanted, such as 127.0.0.1:9901"),
    }
}

fn connect(admin: &str) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name leads to no address");
    for address in admin.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// How long a gateway may take; it answers from memory.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest page read, in bytes: 100 pools of 1,000 pods.
const MOST: u64 = 256 * 1024 * 1024;
