//! The exchange between gateways on the wire: UDP datagrams, each signed with the key that all gateways have.
//!
//! A datagram is a pool's message ([`crate::schedule::exchange`]) and the first half of its HMAC-SHA256. What is
//! not signed is counted and dropped before it is read. Nothing here waits for a peer or answers one: what is lost of
//! loads is told again within 200 ms, of prompts when they come again. Nothing tells when a datagram was made: who records one can send it again once its sender
//! is silent, and it counts for as long as he repeats it. What is told is no secret: numbers and hashes.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::{info, warn};

use crate::config;
use crate::gateway::Gateway;
use crate::metrics::Datagram;
use crate::pool::{INTERVAL, Member};
use crate::schedule::exchange::{MAX_DATAGRAM, decode};
use crate::schedule::prefix::Secret;

/// The exchange of a gateway that is about to start.
#[derive(Debug)]
pub struct Exchange {
    key: Key,
    address: SocketAddr,
    /// None while the daemon before this one has the address.
    hears: Option<UdpSocket>,
    tells: UdpSocket,
    peers: Vec<SocketAddr>,
    member: Member,
}

/// What all gateways of a fleet have in common, and nobody else.
#[derive(Clone)]
pub struct Key(Hmac<Sha256>);

impl Exchange {
    /// Reads the key and binds the sockets. A gateway that takes over may find its address taken for now.
    ///
    /// # Errors
    /// The key cannot be read or is too short, or an address cannot be bound.
    pub fn open(config: &config::Exchange, takes_over: bool) -> anyhow::Result<Self> {
        let config::Exchange { address, peers, key_file } = config;
        let key = Key::read(Path::new(key_file))
            .with_context(|| format!("spec.exchange.keyFile: {key_file}"))?;
        let cannot = || format!("spec.exchange: cannot use {address} (UDP)");
        let hears = match bind(*address) {
            Ok(socket) => Some(socket),
            Err(error) if takes_over && error.kind() == io::ErrorKind::AddrInUse => None,
            Err(error) => return Err(error).with_context(cannot),
        };
        // Of its own: it goes on telling what is left in flight when a successor has the address.
        let tells = bind(SocketAddr::new(address.ip(), 0)).with_context(cannot)?;
        let dispatched = Arc::new(Notify::new());
        let member = Member { me: fastrand::u64(..), secret: key.secret(), dispatched };
        let peers = peers.iter().map(|peer| reached_from(address.ip(), *peer)).collect();
        Ok(Self { key, address: *address, hears, tells, peers, member })
    }

    /// What the pools need of it.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// Tells and hears from now on, in tasks on this thread.
    pub fn start(self, gateway: &Arc<Gateway>) {
        let Self { key, address, hears, tells, peers, member } = self;
        info!(
            "telling {} gateways what is in flight, hearing them at {address} (UDP)",
            peers.len()
        );
        spawn_local(hear(Arc::clone(gateway), key.clone(), address, hears));
        spawn_local(tell(Arc::clone(gateway), key, tells, peers, member.dispatched));
    }
}

impl Key {
    /// The content of a file, without line ends behind it.
    ///
    /// # Errors
    /// It cannot be read, or is too short or too long.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let mut bytes = Vec::new();
        let file = File::open(path).context("cannot be read")?;
        file.take(MAX_KEY + 1).read_to_end(&mut bytes).context("cannot be read")?;
        anyhow::ensure!(bytes.len() as u64 <= MAX_KEY, "has more than {MAX_KEY} bytes");
        while let Some(b'\n' | b'\r') = bytes.last() {
            bytes.pop();
        }
        Self::new(&bytes).with_context(|| {
            format!("has {} bytes without line ends, must have {LEAST_KEY} or more", bytes.len())
        })
    }

    /// None of fewer than 16 bytes.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        // HMAC itself takes a key of any length.
        (bytes.len() >= LEAST_KEY).then(|| Hmac::new_from_slice(bytes).ok().map(Self)).flatten()
    }

    /// Puts the signature behind a message.
    pub fn sign(&self, message: &mut Vec<u8>) {
        let tag = self.0.clone().chain_update(&*message).finalize().into_bytes();
        message.extend(tag.iter().take(TAG));
    }

    /// The message of a datagram that was signed with this key.
    pub fn open<'a>(&self, datagram: &'a [u8]) -> Option<&'a [u8]> {
        let (message, tag) = datagram.split_at_checked(datagram.len().checked_sub(TAG)?)?;
        // In constant time.
        self.0.clone().chain_update(message).verify_truncated_left(tag).ok()?;
        Some(message)
    }

    /// For the hashes of prompts. No message begins as what is hashed here does: it has its version there.
    fn secret(&self) -> Secret {
        Secret::from_words(|place| {
            let place = (place as u64).to_le_bytes();
            let word = self.0.clone().chain_update(b"prefix").chain_update(place).finalize();
            let bytes = word.into_bytes();
            bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
        })
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

/// Takes in what peers tell, until the daemon stops or another takes over.
async fn hear(gateway: Arc<Gateway>, key: Key, address: SocketAddr, mut socket: Option<UdpSocket>) {
    while socket.is_none() && !gateway.is_stopping() {
        sleep(INTERVAL).await;
        socket = bind(address).ok();
    }
    let Some(Ok(socket)) = socket.map(tokio::net::UdpSocket::from_std) else { return };
    let mut stopped = gateway.stop_signal();
    // One byte more than there may be: what is longer is not taken for what is whole.
    let mut buffer = [0; MAX_DATAGRAM + TAG + 1];
    loop {
        let read = tokio::select! {
            _ = stopped.wait_for(|stop| *stop) => return,
            read = socket.recv(&mut buffer) => read,
        };
        match read {
            Ok(length) => {
                let datagram = buffer.get(..length).unwrap_or_default();
                gateway.counted.datagram(take(&gateway, &key, datagram));
            }
            // Some error of the network before; the next datagram may be well.
            Err(_) => sleep(INTERVAL).await,
        }
    }
}

fn take(gateway: &Gateway, key: &Key, datagram: &[u8]) -> Datagram {
    let Some(message) = key.open(datagram) else { return Datagram::Refused };
    let Some(message) = decode(message) else { return Datagram::Malformed };
    let now = Instant::now();
    match gateway.pools().iter().any(|pool| pool.hear(&message, now)) {
        true => Datagram::Taken,
        false => Datagram::Passed,
    }
}

/// Tells the peers what is in flight, for as long as the process runs: also while it stops.
async fn tell(
    gateway: Arc<Gateway>,
    key: Key,
    socket: UdpSocket,
    peers: Vec<SocketAddr>,
    dispatched: Arc<Notify>,
) {
    let mut failed = vec![false; peers.len()];
    loop {
        let now = Instant::now();
        for mut datagram in gateway.pools().iter().flat_map(|pool| pool.report(now)) {
            key.sign(&mut datagram);
            for (peer, failed) in peers.iter().zip(&mut failed) {
                let became = match socket.send_to(&datagram, peer) {
                    Ok(_) => Datagram::Sent,
                    Err(error) => {
                        if !std::mem::replace(failed, true) {
                            warn!(
                                "the gateway at {peer} cannot be told what is in flight: {error}"
                            );
                        }
                        Datagram::Unsent
                    }
                };
                gateway.counted.datagram(became);
            }
        }
        let soon = async {
            dispatched.notified().await;
            sleep_until(now + SOON).await;
        };
        let _ = timeout_at(now + INTERVAL, soon).await;
    }
}

fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A peer's address as a socket of this one's family wants it.
fn reached_from(own: IpAddr, peer: SocketAddr) -> SocketAddr {
    match (own, peer.ip()) {
        (IpAddr::V6(_), IpAddr::V4(ip)) => SocketAddr::new(ip.to_ipv6_mapped().into(), peer.port()),
        _ => peer,
    }
}

/// Bytes of a signature.
const TAG: usize = 16;

/// Bytes of a key.
const LEAST_KEY: usize = 16;
const MAX_KEY: u64 = 64 << 10;

/// The least time between two reports.
const SOON: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_signed_is_opened() {
        let (key, other) = (Key::new(&[1; 16]).unwrap(), Key::new(&[2; 16]).unwrap());
        let signed = |message: &[u8]| {
            let mut datagram = message.to_vec();
            key.sign(&mut datagram);
            datagram
        };
        let whole = signed(b"in flight: 3");
        assert_eq!(whole.len(), 12 + TAG);
        let changed = |place: usize| {
            let mut bytes = whole.clone();
            bytes[place] ^= 1;
            bytes
        };
        let longest = [7; MAX_DATAGRAM];
        let table = [
            ("right", &key, whole.clone(), Some(&b"in flight: 3"[..])),
            ("nothing, signed", &key, signed(b""), Some(&[])),
            ("the longest", &key, signed(&longest), Some(&longest)),
            ("wrong key", &other, whole.clone(), None),
            ("cut at the end", &key, whole[..whole.len() - 1].to_vec(), None),
            ("cut at the start", &key, whole[1..].to_vec(), None),
            ("another message", &key, changed(0), None),
            ("another signature", &key, changed(whole.len() - 1), None),
            ("too short to be signed", &key, vec![0; TAG - 1], None),
            ("zeros", &key, vec![0; TAG], None),
            ("empty", &key, Vec::new(), None),
        ];
        for (what, key, datagram, message) in table {
            assert_eq!(key.open(&datagram), message, "{what}");
        }
    }

    #[test]
    fn keys_have_a_least_length_and_no_line_ends() {
        let folder = std::env::temp_dir();
        let path =
            folder.join(format!("sluice-key-{}-{:x}", std::process::id(), fastrand::u64(..)));
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            Key::read(&path).map_err(|error| format!("{error:#}"))
        };
        let mut datagram = b"message".to_vec();
        read(b"0123456789abcdef\r\n").unwrap().sign(&mut datagram);
        assert!(read(b"0123456789abcdef").unwrap().open(&datagram).is_some());
        let short = "has 15 bytes without line ends, must have 16 or more";
        assert_eq!(read(b"0123456789abcde\n").unwrap_err(), short);
        assert_eq!(read(&[b'x'; 65537]).unwrap_err(), "has more than 65536 bytes");
        std::fs::remove_file(&path).unwrap();
        let missing = Key::read(&path).unwrap_err();
        assert!(format!("{missing:#}").starts_with("cannot be read: "), "{missing:#}");
    }

    #[test]
    fn a_socket_of_ipv6_reaches_ipv4() {
        let peer = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let socket = bind("[::]:0".parse().unwrap()).unwrap();
        let to = reached_from("::".parse().unwrap(), peer.local_addr().unwrap());
        socket.send_to(b"hello", to).unwrap();
        peer.set_nonblocking(false).unwrap();
        assert_eq!(peer.recv(&mut [0; 9]).unwrap(), 5);
    }
}
