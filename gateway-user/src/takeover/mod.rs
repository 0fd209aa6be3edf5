//! Takeover: a new daemon gets the listening sockets of the one that runs, and that one leaves.
//!
//! The old daemon waits on an abstract Unix socket, named after its admin address, which is gone
//! with its process however it ends. Sockets are shared, not closed and opened again: what waits in
//! their queues is accepted by whichever daemon comes first, and at no time is a connection refused.
//! Until the new daemon says that it accepts, the old one goes on as if nothing had been asked.
//!
//! Only what runs as the same user or as root is spoken to. Nothing here binds, accepts or closes a
//! listener of the gateway: [`crate::run`] does.

mod inherit;
mod wire;

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net as unix;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

pub use inherit::Inherited;
use wire::{BATCH, HEADER, Message};
pub use wire::{Description, Role, WireError};

/// A listening socket on its way from one daemon to the next.
#[derive(Debug)]
pub struct Handed {
    /// What it is.
    pub description: Description,
    /// The socket.
    pub socket: TcpListener,
}

/// The daemon that runs, as the one that takes over sees it. Dropped, it goes on.
#[derive(Debug)]
pub struct Predecessor {
    stream: UnixStream,
    /// Its process.
    pub pid: i32,
}

/// Why a running daemon's sockets could not be had.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// Somebody else answers in its name.
    #[error("it runs as user {0}, and takeover is only from the same user or root")]
    Stranger(u32),
    /// It says no.
    #[error("{0}")]
    Refused(String),
    /// It says something that makes no sense there.
    #[error("it answered out of turn")]
    Unexpected,
    /// It does not speak the protocol.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A socket is not what it is said to be.
    #[error("the socket for {0} is no TCP socket that listens there")]
    Socket(SocketAddr),
    /// Reading, writing or connecting failed.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// The side of the daemon that runs: hands its sockets to the next.
#[derive(Debug)]
pub struct Handover {
    listener: UnixListener,
    sockets: RefCell<Option<Vec<Handed>>>,
}

/// The daemon that has taken over, waiting to hear that this one has let go.
#[derive(Debug)]
pub struct Successor {
    stream: UnixStream,
    /// Its process.
    pub pid: i32,
}

impl Predecessor {
    /// Asks the daemon whose admin address this is for its sockets. `None`: there is none.
    ///
    /// # Errors
    /// There is one, and it does not give them.
    pub async fn ask(admin: SocketAddr) -> Result<Option<(Self, Vec<Handed>)>, TakeoverError> {
        let stream = match unix::UnixStream::connect_addr(&name(admin)?) {
            Ok(stream) => stream,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        stream.set_nonblocking(true)?;
        let stream = UnixStream::from_std(stream)?;
        let peer = stream.peer_cred()?;
        if !is_trusted(peer.uid()) {
            return Err(TakeoverError::Stranger(peer.uid()));
        }
        let predecessor = Self { stream, pid: peer.pid().unwrap_or_default() };
        let sockets = timeout(PROMPT, predecessor.receive_all())
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(Some((predecessor, sockets)))
    }

    /// Tells it that this daemon accepts connections, and waits until it has let go. An error is
    /// none for the takeover: it has left, or is stuck.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn relieve(self) -> Result<(), TakeoverError> {
        let answer = timeout(PROMPT, async {
            send(&self.stream, &Message::TakenOver, &[]).await?;
            receive(&self.stream).await
        });
        match answer.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? {
            (Message::Released, _) => Ok(()),
            _ => Err(TakeoverError::Unexpected),
        }
    }

    async fn receive_all(&self) -> Result<Vec<Handed>, TakeoverError> {
        // If it was refused and is not read, the refusal is.
        let asked = send(&self.stream, &Message::Ask, &[]).await;
        let mut all = Vec::new();
        for _ in 0..MAX_OFFERS {
            match receive(&self.stream).await {
                Ok((Message::Offer { sockets, more }, descriptors)) => {
                    for (description, descriptor) in sockets.into_iter().zip(descriptors) {
                        all.push(Handed::new(description, descriptor)?);
                    }
                    if !more {
                        return Ok(all);
                    }
                }
                Ok((Message::Refused { reason }, _)) => return Err(TakeoverError::Refused(reason)),
                Ok(_) => return Err(TakeoverError::Unexpected),
                Err(error) => return Err(asked.err().map_or(error, Into::into)),
            }
        }
        Err(TakeoverError::Unexpected)
    }
}

impl Handed {
    fn new(description: Description, descriptor: OwnedFd) -> Result<Self, TakeoverError> {
        let socket = socket2::Socket::from(descriptor);
        let address = socket.local_addr().ok().and_then(|address| address.as_socket());
        let listens = socket.is_listener().unwrap_or(false)
            && socket.protocol().is_ok_and(|protocol| protocol == Some(socket2::Protocol::TCP));
        if !listens || address != Some(description.address) {
            return Err(TakeoverError::Socket(description.address));
        }
        // Shared with the other daemon, which has set it already.
        socket.set_nonblocking(true)?;
        Ok(Self { description, socket: socket.into() })
    }
}

impl Handover {
    /// Waits, from now on, for a daemon that wants `sockets`; `admin` is bound already.
    ///
    /// # Errors
    /// The name cannot be had.
    pub fn new(admin: SocketAddr, sockets: Vec<Handed>) -> io::Result<Self> {
        let listener = unix::UnixListener::bind_addr(&name(admin)?)?;
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        Ok(Self { listener, sockets: RefCell::new(Some(sockets)) })
    }

    /// Lets go of the sockets. Who asks from now on is told that the gateway is stopping.
    pub fn withdraw(&self) {
        self.sockets.borrow_mut().take();
    }

    /// Returns once a daemon has taken over. Dropped before, nothing has happened.
    pub async fn taken_over(&self) -> Successor {
        loop {
            let (stream, pid) = self.accept().await;
            let busy = format!("process {pid} is taking over from it already");
            let outcome = tokio::select! {
                // One that has died is no reason to turn away the next.
                biased;
                outcome = self.hand_over(&stream) => outcome,
                () = self.turn_away(&busy) => continue,
            };
            match outcome {
                Ok(()) => return Successor { stream, pid },
                Err(error) => {
                    refuse(&stream, &error.to_string());
                    info!("process {pid} asked to take over and did not: {error}; going on");
                }
            }
        }
    }

    async fn hand_over(&self, stream: &UnixStream) -> Result<(), TakeoverError> {
        let prompt = timeout(PROMPT, async {
            match receive(stream).await? {
                (Message::Ask, _) => self.offer(stream).await,
                _ => Err(TakeoverError::Unexpected),
            }
        });
        prompt.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        // It may take its time, to see its pods for example; that it lives is enough.
        match receive(stream).await? {
            (Message::TakenOver, _) => Ok(()),
            _ => Err(TakeoverError::Unexpected),
        }
    }

    async fn offer(&self, stream: &UnixStream) -> Result<(), TakeoverError> {
        let mut offers = Vec::new();
        {
            let sockets = self.sockets.borrow();
            let Some(sockets) = &*sockets else {
                return Err(TakeoverError::Refused(STOPPING.into()));
            };
            let batches = sockets.len().div_ceil(BATCH);
            for (batch, number) in sockets.chunks(BATCH).zip(1..) {
                let described = batch.iter().map(|handed| handed.description.clone()).collect();
                let more = number < batches;
                // Copies, as the sockets may be withdrawn while they are sent.
                let copies = batch.iter().map(|handed| handed.socket.as_fd().try_clone_to_owned());
                offers.push((
                    Message::Offer { sockets: described, more },
                    copies.collect::<io::Result<Vec<OwnedFd>>>()?,
                ));
            }
        }
        for (message, copies) in offers {
            let copies: Vec<BorrowedFd<'_>> = copies.iter().map(AsFd::as_fd).collect();
            send(stream, &message, &copies).await?;
        }
        Ok(())
    }

    /// Turns away, for as long as it is polled, whoever asks.
    async fn turn_away(&self, reason: &str) {
        loop {
            let (stream, _) = self.accept().await;
            refuse(&stream, reason);
        }
    }

    /// The next that connects and may ask, with its process.
    async fn accept(&self) -> (UnixStream, i32) {
        loop {
            let accepted = match self.listener.accept().await {
                Ok((stream, _)) => stream.peer_cred().map(|peer| (stream, peer)),
                Err(error) => Err(error),
            };
            match accepted {
                Ok((stream, peer)) if is_trusted(peer.uid()) => {
                    return (stream, peer.pid().unwrap_or_default());
                }
                Ok((stream, peer)) => {
                    debug!("user {} asked to take over and may not", peer.uid());
                    refuse(&stream, NOT_YOURS);
                }
                Err(error) => {
                    warn!("accepting a request to take over failed: {error}");
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

impl Successor {
    /// Tells it that this daemon accepts no more, and has given up `handover`'s name.
    pub async fn release(self, handover: Handover) {
        drop(handover);
        // It serves already; without the answer it goes on a little later.
        let _ = timeout(PROMPT, send(&self.stream, &Message::Released, &[])).await;
    }
}

/// The socket's name. Abstract ones are of a network namespace, as the admin address is.
fn name(admin: SocketAddr) -> io::Result<unix::SocketAddr> {
    unix::SocketAddr::from_abstract_name(format!("sluice/{admin}"))
}

fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == nix::unistd::geteuid().as_raw()
}

/// Best effort, as the peer may have gone; a new connection has room for it.
fn refuse(stream: &UnixStream, reason: &str) {
    let frame = wire::encode(&Message::Refused { reason: reason.into() });
    let _ = rustix::net::send(stream, &frame, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Sends a message and, with its first byte, descriptors.
async fn send(
    stream: &UnixStream,
    message: &Message,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let frame = wire::encode(message);
    let mut sent = 0;
    while let Some(rest) = frame.get(sent..).filter(|rest| !rest.is_empty()) {
        sent += stream
            .async_io(Interest::WRITABLE, || {
                let mut space = [MaybeUninit::uninit(); SPACE];
                let mut control = SendAncillaryBuffer::new(&mut space);
                if sent == 0 && !descriptors.is_empty() {
                    control.push(SendAncillaryMessage::ScmRights(descriptors));
                }
                Ok(sendmsg(stream, &[IoSlice::new(rest)], &mut control, SendFlags::NOSIGNAL)?)
            })
            .await?;
    }
    Ok(())
}

/// Receives a message with its descriptors.
async fn receive(stream: &UnixStream) -> Result<(Message, Vec<OwnedFd>), TakeoverError> {
    let mut descriptors = Vec::new();
    let mut header = [0; HEADER];
    fill(stream, &mut header, &mut descriptors).await?;
    let mut body = vec![0; wire::body_length(header)?];
    fill(stream, &mut body, &mut descriptors).await?;
    Ok((wire::decode(&body, descriptors.len())?, descriptors))
}

async fn fill(
    stream: &UnixStream,
    mut bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> Result<(), TakeoverError> {
    while !bytes.is_empty() {
        let count = stream
            .async_io(Interest::READABLE, || {
                let mut space = [MaybeUninit::uninit(); SPACE];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let received = recvmsg(
                    stream,
                    &mut [IoSliceMut::new(bytes)],
                    &mut control,
                    RecvFlags::CMSG_CLOEXEC,
                )?;
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(more) = message {
                        descriptors.extend(more);
                    }
                }
                // More than fit, or than this process may have.
                if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > BATCH {
                    return Err(io::Error::other("descriptors were lost on the way"));
                }
                Ok(received.bytes)
            })
            .await?;
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        bytes = bytes.get_mut(count..).unwrap_or_default();
    }
    Ok(())
}

/// What a gateway that is draining says.
const STOPPING: &str = "it is stopping and has closed its listeners; start again when it has left";

/// What another user is told.
const NOT_YOURS: &str = "only the same user or root may take over";

/// For what a living daemon does at once.
const PROMPT: Duration = Duration::from_secs(10);

/// How long accepting rests after it failed.
const PAUSE: Duration = Duration::from_millis(50);

/// More sockets than any gateway has.
const MAX_OFFERS: usize = 1024;

/// Room for the descriptors of one message.
const SPACE: usize = rustix::cmsg_space!(ScmRights(BATCH));

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use super::*;

    fn listener() -> TcpListener {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
    }

    fn own(address: SocketAddr) -> Description {
        Description { role: Role::Own, listener: "http".into(), address }
    }

    /// Sockets that are copies of one, to spare ports.
    fn handed(count: usize) -> Vec<Handed> {
        let socket = listener();
        let description = own(socket.local_addr().unwrap());
        let copy =
            |_| Handed { description: description.clone(), socket: socket.try_clone().unwrap() };
        (0..count).map(copy).collect()
    }

    /// A name that no other test has, for as long as the socket lives.
    fn admin() -> (TcpListener, SocketAddr) {
        let socket = listener();
        let address = socket.local_addr().unwrap();
        (socket, address)
    }

    #[tokio::test]
    async fn sockets_go_over_in_as_many_messages_as_it_takes() {
        for count in [1, BATCH, BATCH + 1, 3 * BATCH] {
            let (_admin, address) = admin();
            let old = Handover::new(address, handed(count)).unwrap();
            let new = async {
                let (predecessor, sockets) = Predecessor::ask(address).await.unwrap().unwrap();
                assert_eq!(sockets.len(), count);
                assert_eq!(predecessor.pid, std::process::id() as i32);
                predecessor.relieve().await.unwrap();
                // The name is free.
                Handover::new(address, sockets).unwrap();
            };
            let old = async { old.taken_over().await.release(old).await };
            tokio::join!(old, new);
        }
    }

    #[tokio::test]
    async fn nobody_there_is_no_error() {
        assert!(Predecessor::ask("127.0.0.1:1".parse().unwrap()).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn whatever_is_said_it_goes_on() {
        let (_admin, address) = admin();
        let old = Handover::new(address, handed(2)).unwrap();
        let ask = wire::encode(&Message::Ask);
        let says: [(&[u8], bool); 6] = [
            (b"", false),
            (b"GET / HTTP/1.1\r\nhost: sluice\r\n\r\n", false),
            (&[0, 0, 0, 1, 255, 255, 255, 255], false),
            (&wire::encode(&Message::TakenOver), false),
            (&ask, true),
            (&[&*ask, &*ask].concat(), false),
        ];
        let stray = async {
            for (said, with_descriptor) in says {
                let stream = unix::UnixStream::connect_addr(&name(address).unwrap()).unwrap();
                stream.set_nonblocking(true).unwrap();
                let stream = UnixStream::from_std(stream).unwrap();
                let copy = listener();
                let descriptors = [copy.as_fd()];
                let mut space = [MaybeUninit::uninit(); SPACE];
                let mut control = SendAncillaryBuffer::new(&mut space);
                if with_descriptor {
                    control.push(SendAncillaryMessage::ScmRights(&descriptors));
                }
                if !said.is_empty() {
                    let said = [IoSlice::new(said)];
                    sendmsg(&stream, &said, &mut control, SendFlags::NOSIGNAL).unwrap();
                    // Until it is answered; then the connection ends.
                    stream.readable().await.unwrap();
                }
            }
        };
        tokio::select! {
            _ = old.taken_over() => panic!("nobody has taken over"),
            () = stray => {}
        }
        let asked = tokio::select! {
            _ = old.taken_over() => panic!("nobody has taken over"),
            asked = Predecessor::ask(address) => asked,
        };
        assert_eq!(asked.unwrap().unwrap().1.len(), 2);
    }

    #[tokio::test]
    async fn what_is_withdrawn_is_not_given() {
        let (_admin, address) = admin();
        let old = Handover::new(address, handed(1)).unwrap();
        old.withdraw();
        tokio::select! {
            _ = old.taken_over() => panic!("nobody has taken over"),
            asked = Predecessor::ask(address) => {
                assert_eq!(asked.unwrap_err().to_string(), STOPPING);
            }
        }
    }

    #[test]
    fn only_sockets_that_listen_as_described_are_taken() {
        let socket = listener();
        let address = socket.local_addr().unwrap();
        let client = std::net::TcpStream::connect(address).unwrap();
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let udp_address = udp.local_addr().unwrap();
        let elsewhere = listener().local_addr().unwrap();
        let table: [(OwnedFd, SocketAddr, bool); 5] = [
            (socket.try_clone().unwrap().into(), address, true),
            (socket.into(), elsewhere, false),
            (client.try_clone().unwrap().into(), client.local_addr().unwrap(), false),
            (udp.into(), udp_address, false),
            (std::fs::File::open("/dev/null").unwrap().into(), address, false),
        ];
        for (row, (descriptor, described, taken)) in table.into_iter().enumerate() {
            assert_eq!(Handed::new(own(described), descriptor).is_ok(), taken, "row {row}");
        }
    }
}
