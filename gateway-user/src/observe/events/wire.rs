//! Connections to a pod's KV events, over TCP: a subscription, or a question for old ones.
//!
//! The protocol is ZeroMQ's, and its machine a library's: [`Connection`] has no IO of its own, and refuses a
//! message that is too large before anything is kept of it. A frame that has not come as a whole is read into one piece of memory,
//! however small the pieces are that it comes in. While nobody waits in [`Wire::next`] nothing is read, so that a
//! pod that tells more than can be followed fills its own queue, and drops what does not fit.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use omq_proto::proto::SocketType;
use omq_proto::proto::command::Command;
use omq_proto::proto::connection::{Connection, ConnectionConfig, Role};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A connection to a pod.
pub(super) struct Wire {
    socket: TcpStream,
    wire: Connection,
    buffer: BytesMut,
    /// A frame that has not come as a whole, and how long it will be.
    frame: Option<(BytesMut, usize)>,
}

/// A message about a pod's cache.
#[derive(Debug, PartialEq)]
pub(super) struct Message {
    /// Its number.
    pub(super) number: u64,
    /// What happened.
    pub(super) payload: Bytes,
}

impl Message {
    /// There are no more old messages.
    pub(super) fn is_end(&self) -> bool {
        self.number == u64::MAX && self.payload.is_empty()
    }
}

/// Why there are no events of a pod.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The connection could not be made, or broke off.
    #[error("no connection: {0}")]
    Connection(#[from] io::Error),
    /// What listens there does not speak the protocol, or is not a publisher.
    #[error("it is no ZeroMQ publisher: {0}")]
    Protocol(#[from] omq_proto::Error),
    /// A message without its number.
    #[error("it publishes something else than KV events")]
    Numberless,
    /// The handshake took too long.
    #[error("it does not answer")]
    Timeout,
}

impl Failure {
    /// Whether nothing was heard of the other side. Else its end of the connection was closed, as that of a process is
    /// that ends, or nobody listened, or somebody else.
    pub(super) fn is_silence(&self) -> bool {
        use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
        match self {
            Self::Timeout => true,
            Self::Connection(error) => {
                matches!(error.kind(), HostUnreachable | NetworkUnreachable | TimedOut)
            }
            Self::Protocol(_) | Self::Numberless => false,
        }
    }
}

impl Wire {
    /// Subscribes to all messages whose topic starts like this.
    pub(super) async fn subscribe(address: SocketAddr, topic: &str) -> Result<Self, Failure> {
        let topic = Bytes::copy_from_slice(topic.as_bytes());
        let first = |wire: &mut Connection| wire.send_command(&Command::Subscribe(topic));
        Self::open(address, SocketType::Sub, first).await
    }

    /// Asks for the messages from this number on that the pod has kept. The last that comes is [`Message::is_end`].
    pub(super) async fn replay(address: SocketAddr, from: u64) -> Result<Self, Failure> {
        let question = [Bytes::new(), Bytes::copy_from_slice(&from.to_be_bytes())];
        let question = omq_proto::Message::multipart(question);
        Self::open(address, SocketType::Dealer, |wire| wire.send_message(&question)).await
    }

    async fn open(
        address: SocketAddr,
        socket_type: SocketType,
        first: impl FnOnce(&mut Connection) -> omq_proto::Result<()>,
    ) -> Result<Self, Failure> {
        let start = async {
            let socket = TcpStream::connect(address).await?;
            // A pod may be silent for hours, and gone for as long.
            SockRef::from(&socket).set_tcp_keepalive(
                &TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE),
            )?;
            let config = ConnectionConfig::new(Role::Client, socket_type);
            let mut this = Self {
                socket,
                wire: Connection::new(config.max_message_size(MAX_MESSAGE)),
                buffer: BytesMut::new(),
                frame: None,
            };
            while !this.wire.is_ready() {
                this.step().await?;
            }
            first(&mut this.wire)?;
            this.flush().await?;
            Ok(this)
        };
        timeout(HANDSHAKE, start).await.unwrap_or(Err(Failure::Timeout))
    }

    /// The next message. Nothing is lost when this is dropped early.
    pub(super) async fn next(&mut self) -> Result<Message, Failure> {
        loop {
            if let Some(message) = self.wire.poll_message() {
                // What is ahead of these two differs between releases.
                let last = |back: usize| message.part_bytes(message.len().checked_sub(back)?);
                let number =
                    last(2).and_then(|number| Some(u64::from_be_bytes(*number.as_array()?)));
                let message = number.zip(last(1));
                let (number, payload) = message.ok_or(Failure::Numberless)?;
                return Ok(Message { number, payload });
            }
            self.step().await?;
        }
    }

    /// Sends what is to be sent, then takes in a piece of what comes.
    async fn step(&mut self) -> Result<(), Failure> {
        self.flush().await?;
        let Self { socket, buffer, frame, wire, .. } = self;
        if let Some((body, length)) = frame {
            let left = length.saturating_sub(body.len());
            body.reserve(left.min(PIECE));
            read(&mut socket.take(left as u64), body).await?;
            if body.len() == *length {
                let body = body.split().freeze();
                *frame = None;
                wire.supply_payload(body)?;
            }
        } else {
            buffer.reserve(PIECE);
            read(socket, buffer).await?;
            wire.handle_input(buffer.split().freeze())?;
        }
        if let Some((length, start)) = wire.begin_supplied_payload_with_prefix() {
            *frame = Some((BytesMut::from(&*start.as_bytes()), length));
        }
        // Nothing else is of interest; unread, they would pile up.
        while wire.poll_event().is_some() {}
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Failure> {
        while self.wire.has_pending_transmit() {
            let sent = self.socket.write(&self.wire.poll_transmit()).await?;
            self.wire.advance_transmit(sent);
        }
        Ok(())
    }
}

/// Reads some bytes; the end is an error.
async fn read(
    from: &mut (impl tokio::io::AsyncRead + Unpin),
    into: &mut BytesMut,
) -> Result<(), Failure> {
    match from.read_buf(into).await? {
        0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        _ => Ok(()),
    }
}

/// Largest message, in bytes. A step's prompts of 64,000 tokens take some 400 KB of vLLM's messages, and with blocks of
/// a single token 13 MB of SGLang's.
pub(super) const MAX_MESSAGE: usize = 16 << 20;

/// How much is read at once, in bytes.
const PIECE: usize = 32 << 10;

/// How long a connection and its handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// After this much silence the connection is probed, and again after as much.
const KEEPALIVE: Duration = Duration::from_secs(30);
