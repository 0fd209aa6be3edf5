//! `sluice status`: asks a running gateway.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::say;
use crate::status::Status;

/// What `sluice status` can be told.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The gateway's admin address.
    #[arg(long, default_value = "127.0.0.1:9901", env = "SLUICE_ADMIN", value_parser = host_and_port)]
    admin: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print the scores as the kernel's map has them, as JSON.
    #[arg(long)]
    scores: bool,
}

/// Asks and prints.
pub fn run(options: &Options) -> ExitCode {
    let path = if options.scores { "/status/scores" } else { "/status" };
    let page = match fetch(&options.admin, path) {
        Ok(page) => page,
        Err(error) => {
            eprintln!(
                "sluice: no answer from a gateway's admin address {}: {error}. Is it running there? \
                 --admin names another.",
                options.admin
            );
            return ExitCode::FAILURE;
        }
    };
    if options.json || options.scores {
        return say(&page);
    }
    match serde_json::from_str::<Status>(&page) {
        Ok(status) => say(&status.table()),
        Err(error) => {
            eprintln!(
                "sluice: what answers at {} is no gateway of this version: {error}",
                options.admin
            );
            ExitCode::FAILURE
        }
    }
}

/// The body of a page, which is small and comes with a length or the connection's end.
fn fetch(admin: &str, path: &str) -> io::Result<String> {
    let mut stream = connect(admin)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(MOST).read_to_end(&mut answer)?;
    let answer = String::from_utf8(answer)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the answer is not text"))?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(body.to_owned()),
        Some((head, _)) => {
            Err(io::Error::other(head.lines().next().unwrap_or_default().to_owned()))
        }
        None => Err(io::Error::other("it does not speak HTTP")),
    }
}

/// A host's name or address with a port, as it was written.
fn host_and_port(text: &str) -> Result<String, &'static str> {
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
