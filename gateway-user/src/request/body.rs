//! Reads a request's body into bounded memory, and finds the model in it while it arrives.

use bytes::BufMut;
use gateway_common::framing::{Framing, Malformed};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::Client;
use crate::error::Refusal;
use crate::flow::send::run;
use crate::gateway::Memory;
use crate::listen::Worker;
use crate::request::head::{BodyLength, Head};
use crate::request::multipart::{self, Boundary};
use crate::request::scan::{Fault, Fields, Scanner};

/// A whole body.
#[derive(Debug)]
pub struct Body {
    /// Its bytes as the client sent them, without chunk framing.
    pub bytes: Vec<u8>,
    /// What was found in it.
    pub fields: Fields,
    /// Its part of the memory that bodies may take together.
    pub reserved: Memory,
}

/// Reads the body behind `head`. `None`: the client left.
pub async fn read_body(
    client: &mut Client,
    head: &Head,
    worker: &Worker,
) -> Result<Option<Body>, Refusal> {
    let cap = worker.limits().max_body_bytes;
    if let Some(coding) = &head.content_encoding {
        return Err(Refusal {
            close: true,
            ..Refusal::client(
                415,
                "content_encoding",
                format!(
                    "Request bodies in Content-Encoding `{}` are not read here. Send it uncompressed.",
                    coding.chars().take(40).collect::<String>()
                ),
            )
        });
    }
    match head.body {
        BodyLength::Known(length) if length > cap as u64 => {
            return Err(Refusal::body_too_large(cap));
        }
        _ => {}
    }
    let mut finder = Finder::for_head(head)?;
    if head.expects_continue && client.input.is_empty() {
        let go =
            timeout(worker.limits().body_timeout, client.write(b"HTTP/1.1 100 Continue\r\n\r\n"));
        if !matches!(go.await, Ok(Ok(()))) {
            return Ok(None);
        }
    }
    let mut bytes = Vec::new();
    let mut reserved = worker.gateway.memory();
    let whole = match head.body {
        BodyLength::Known(length) => {
            // Checked against the cap, which is a usize.
            let length = length as usize;
            read_known(client, length, &mut bytes, &mut finder, &mut reserved, worker).await?
        }
        BodyLength::Chunked => {
            read_chunked(client, cap, &mut bytes, &mut finder, &mut reserved, worker).await?
        }
    };
    if !whole {
        return Ok(None);
    }
    let fields = finder.finish().map_err(|fault| refusal(&fault))?;
    Ok(Some(Body { bytes, fields, reserved }))
}

/// What finds the model in a body of this type.
enum Finder {
    Json(Box<Scanner>),
    Form(Box<multipart::Scanner>),
}

impl Finder {
    fn for_head(head: &Head) -> Result<Self, Refusal> {
        let content_type = head.content_type.as_deref().unwrap_or_default();
        Ok(match Boundary::from_content_type(content_type.as_bytes()) {
            Ok(Some(boundary)) => Self::Form(Box::new(multipart::Scanner::new(boundary))),
            // Servers decide about other types themselves; a JSON body with a wrong type is common.
            Ok(None) => Self::Json(Box::default()),
            Err(fault) => return Err(cut(&fault)),
        })
    }

    fn feed(&mut self, piece: &[u8]) -> Result<(), Fault> {
        match self {
            Self::Json(scanner) => scanner.feed(piece),
            Self::Form(scanner) => scanner.feed(piece),
        }
    }

    fn finish(self) -> Result<Fields, Fault> {
        match self {
            Self::Json(scanner) => scanner.finish(),
            Self::Form(scanner) => scanner.finish(),
        }
    }
}

fn refusal(fault: &Fault) -> Refusal {
    let message = fault.to_string();
    match fault.param() {
        Some(param) => Refusal::bad_field(param, "invalid_model", message),
        None => Refusal::bad_request("invalid_body", message),
    }
}

/// A fault in the middle of a body: what follows of it is not worth reading.
fn cut(fault: &Fault) -> Refusal {
    Refusal { close: true, ..refusal(fault) }
}

async fn read_known(
    client: &mut Client,
    length: usize,
    bytes: &mut Vec<u8>,
    finder: &mut Finder,
    reserved: &mut Memory,
    worker: &Worker,
) -> Result<bool, Refusal> {
    let ready = client.input.len().min(length);
    reserve(reserved, ready)?;
    bytes.extend_from_slice(client.input.get(..ready).unwrap_or_default());
    client.consume(ready);
    // A fault in a body that is here whole leaves the connection in order.
    let last = ready == length;
    finder.feed(bytes).map_err(|fault| if last { refusal(&fault) } else { cut(&fault) })?;
    while bytes.len() < length {
        let left = length - bytes.len();
        if bytes.spare_capacity_mut().is_empty() {
            // Memory follows what has arrived, not what is announced.
            let more = left.min(bytes.len().max(FIRST_READ));
            reserve(reserved, bytes.len() + more)?;
            bytes.reserve_exact(more);
        }
        let before = bytes.len();
        if !read_into(&mut client.stream, bytes, left, worker).await? {
            return Ok(false);
        }
        finder.feed(bytes.get(before..).unwrap_or_default()).map_err(|fault| cut(&fault))?;
    }
    Ok(true)
}

async fn read_chunked(
    client: &mut Client,
    cap: usize,
    bytes: &mut Vec<u8>,
    finder: &mut Finder,
    reserved: &mut Memory,
    worker: &Worker,
) -> Result<bool, Refusal> {
    let mut framing = Framing::chunked();
    loop {
        let before = bytes.len();
        let mut over = false;
        let used = run(&mut framing, &client.input, |payload| {
            over |= bytes.len() + payload.len() > cap;
            if !over {
                bytes.extend_from_slice(payload);
            }
        })
        .map_err(|malformed: Malformed| {
            Refusal::malformed(format!("The body's chunks are malformed: {malformed}."))
        })?;
        if over {
            return Err(Refusal::body_too_large(cap));
        }
        reserve(reserved, bytes.len())?;
        client.consume(used);
        finder.feed(bytes.get(before..).unwrap_or_default()).map_err(|fault| cut(&fault))?;
        if framing.is_done() {
            return Ok(true);
        }
        match timeout(worker.limits().body_timeout, client.fill(&worker.scratch)).await {
            Ok(Ok(true)) => {}
            Ok(_) => return Ok(false),
            Err(_) => return Err(slow(worker)),
        }
    }
}

/// Reads once, straight into `bytes`, at most `left` bytes. `false`: the client left.
async fn read_into(
    stream: &mut TcpStream,
    bytes: &mut Vec<u8>,
    left: usize,
    worker: &Worker,
) -> Result<bool, Refusal> {
    let room = (bytes.capacity() - bytes.len()).min(left);
    let mut rest = bytes.limit(room);
    match timeout(worker.limits().body_timeout, stream.read_buf(&mut rest)).await {
        Ok(Ok(count)) => Ok(count > 0),
        Ok(Err(_)) => Ok(false),
        Err(_) => Err(slow(worker)),
    }
}

fn reserve(reserved: &mut Memory, bytes: usize) -> Result<(), Refusal> {
    if reserved.grow_to(bytes) {
        return Ok(());
    }
    Err(Refusal::overloaded(
        "body_memory",
        "Too many large request bodies are being read at once. Try again later.",
    ))
}

fn slow(worker: &Worker) -> Refusal {
    Refusal {
        close: true,
        ..Refusal::client(
            408,
            "body_timeout",
            format!(
                "Nothing came of the request's body for {} s.",
                worker.limits().body_timeout.as_secs_f32()
            ),
        )
    }
}

/// First memory for a body of which nothing has come yet, in bytes.
const FIRST_READ: usize = 16 * 1024;
