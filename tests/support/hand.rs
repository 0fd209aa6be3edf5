//! A model server whose TCP is made by hand: the test decides which bytes of an answer are in which
//! segment, how often each is sent, and in which order. A kernel's own TCP does such things only after
//! losses.
//!
//! It speaks just enough TCP for one careful peer on a line that loses nothing: it never sends again by
//! itself, and looks at no window. Its address is no system's, so nobody else answers there.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::gateway::PATIENCE;
use crate::pod::{self, Signals};
use crate::tun::{MTU, Tun};

/// A pod at the far end of a device.
#[derive(Debug)]
pub struct HandPod {
    /// Where it is.
    pub address: SocketAddr,
    taken: Receiver<HandTaken>,
}

/// A request that a test is to answer, segment by segment.
#[derive(Debug)]
pub struct HandTaken {
    line: Arc<Line>,
    /// The answer so far, sent or not.
    stream: Vec<u8>,
    /// The sequence number of its first byte.
    first: u32,
}

/// A connection.
#[derive(Debug)]
struct Line {
    tun: Tun,
    own: (Ipv4Addr, u16),
    peer: (Ipv4Addr, u16),
    state: Mutex<State>,
    acknowledged: Condvar,
}

#[derive(Debug)]
struct State {
    /// The sequence number of the next byte to be sent.
    next: u32,
    /// That of the next byte to come.
    expected: u32,
    /// What the peer has acknowledged.
    acked: u32,
    /// What has come and belongs to no request yet.
    input: Vec<u8>,
    ended: bool,
}

/// What is looked at of a segment.
struct Segment {
    own: (Ipv4Addr, u16),
    peer: (Ipv4Addr, u16),
    sequence: u32,
    ack: u32,
    flags: u8,
    payload: Vec<u8>,
}

impl HandPod {
    /// A pod at port 8000 of `address`, which must be at the device's far end.
    pub fn start(tun: Tun, address: Ipv4Addr) -> Self {
        let (next, taken) = channel();
        thread::spawn(move || {
            let mut lines = HashMap::new();
            loop {
                if let Some(segment) = Segment::read(&tun.read()) {
                    let key = segment.peer;
                    let line = lines.entry(key).or_insert_with(|| Line::new(&tun, &segment));
                    let line = Arc::clone(line);
                    if line.receive(&segment, &next).is_none() {
                        lines.remove(&key);
                    }
                }
            }
        });
        Self { address: (address, 8000).into(), taken }
    }

    /// The next request that comes.
    ///
    /// # Panics
    /// None does.
    pub fn take(&self) -> HandTaken {
        self.taken.recv_timeout(PATIENCE).expect("the gateway sends a request")
    }
}

impl HandTaken {
    /// Appends to the answer, without sending. Returns where in the answer it is.
    pub fn append(&mut self, bytes: impl AsRef<[u8]>) -> Range<usize> {
        let start = self.stream.len();
        self.stream.extend_from_slice(bytes.as_ref());
        start..self.stream.len()
    }

    /// Sends these bytes of the answer in one segment, whether or not they were sent before.
    ///
    /// # Panics
    /// There are none, or too many.
    pub fn segment(&self, of: Range<usize>) {
        let bytes = self.stream.get(of.clone()).expect("bytes of the answer");
        let sequence = self.first.wrapping_add(of.start as u32);
        let mut state = self.line.state();
        let end = sequence.wrapping_add(bytes.len() as u32);
        if (end.wrapping_sub(state.next) as i32) > 0 {
            state.next = end;
        }
        self.line.send(sequence, state.expected, PSH | ACK, bytes);
    }

    /// Appends to the answer and sends it.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let at = self.append(bytes);
        self.segment(at);
    }

    /// All of the answer.
    pub fn stream(&self) -> &[u8] {
        &self.stream
    }

    /// Waits until the gateway's kernel has acknowledged all of the answer.
    ///
    /// # Panics
    /// It does not.
    pub fn wait_acknowledged(&self) {
        let end = self.first.wrapping_add(self.stream.len() as u32);
        let state = self.line.state();
        let waiting = |state: &mut State| state.acked != end && !state.ended;
        let waited = self.line.acknowledged.wait_timeout_while(state, PATIENCE, waiting);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        assert_eq!(state.acked, end, "the gateway's kernel takes the answer");
    }
}

impl Line {
    fn new(tun: &Tun, first: &Segment) -> Arc<Self> {
        let state = State {
            // So that the numbers begin anew within an answer.
            next: u32::MAX - 3000,
            expected: first.sequence,
            acked: 0,
            input: Vec::new(),
            ended: false,
        };
        let Segment { own, peer, .. } = *first;
        let (state, acknowledged) = (Mutex::new(state), Condvar::new());
        Arc::new(Self { tun: tun.clone(), own, peer, state, acknowledged })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: that was the connection's end.
    fn receive(self: &Arc<Self>, segment: &Segment, taken: &Sender<HandTaken>) -> Option<()> {
        let mut state = self.state();
        if segment.flags & ACK != 0 {
            state.acked = segment.ack;
            self.acknowledged.notify_all();
        }
        if segment.flags & SYN != 0 {
            state.expected = segment.sequence.wrapping_add(1);
            self.send(state.next, state.expected, SYN | ACK, &[]);
            state.next = state.next.wrapping_add(1);
            return Some(());
        }
        if segment.flags & RST != 0 {
            state.ended = true;
            return None;
        }
        if segment.sequence == state.expected {
            state.input.extend_from_slice(&segment.payload);
            let fin = u32::from(segment.flags & FIN != 0);
            state.expected = state.expected.wrapping_add(segment.payload.len() as u32 + fin);
            state.ended |= fin != 0;
        }
        if !segment.payload.is_empty() || state.ended {
            self.send(state.next, state.expected, ACK, &[]);
        }
        if state.ended {
            self.send(state.next, state.expected, RST | ACK, &[]);
            return None;
        }
        let Some(head) = pod::take_request(&mut state.input) else { return Some(()) };
        let first = state.next;
        match pod::own_page(&head, Signals::default()) {
            Some(page) => {
                self.send(first, state.expected, PSH | ACK, page.as_bytes());
                state.next = first.wrapping_add(page.len() as u32);
            }
            None => {
                let line = Arc::clone(self);
                // A test that is over takes no more.
                let _ = taken.send(HandTaken { line, stream: Vec::new(), first });
            }
        }
        Some(())
    }

    /// Sends one segment.
    fn send(&self, sequence: u32, ack: u32, flags: u8, payload: &[u8]) {
        // How large a segment may be is said with the first.
        let options: &[u8] = if flags & SYN != 0 { &MAXIMUM } else { &[] };
        let mut tcp = Vec::new();
        tcp.extend_from_slice(&self.own.1.to_be_bytes());
        tcp.extend_from_slice(&self.peer.1.to_be_bytes());
        tcp.extend_from_slice(&sequence.to_be_bytes());
        tcp.extend_from_slice(&ack.to_be_bytes());
        let length = 20 + options.len();
        tcp.extend_from_slice(&[(length as u8 / 4) << 4, flags]);
        // The window, the checksum, and nothing urgent.
        tcp.extend_from_slice(&[0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend_from_slice(options);
        tcp.extend_from_slice(payload);
        let total = u16::try_from(20 + tcp.len()).expect("a packet has less than 64 KiB");
        let mut packet = vec![0x45, 0];
        packet.extend_from_slice(&total.to_be_bytes());
        packet.extend_from_slice(&[0, 0, 0x40, 0, 64, TCP, 0, 0]);
        packet.extend_from_slice(&self.own.0.octets());
        packet.extend_from_slice(&self.peer.0.octets());
        let sum = checksum(&packet);
        packet[10..12].copy_from_slice(&sum);
        let mut sealed = packet[12..20].to_vec();
        sealed.extend_from_slice(&[0, TCP]);
        sealed.extend_from_slice(&(total - 20).to_be_bytes());
        sealed.extend_from_slice(&tcp);
        let sum = checksum(&sealed);
        tcp[16..18].copy_from_slice(&sum);
        packet.append(&mut tcp);
        self.tun.write(&packet);
    }
}

impl Segment {
    /// Reads an IPv4 packet, if it carries TCP.
    fn read(packet: &[u8]) -> Option<Self> {
        if packet.first()? >> 4 != 4 || *packet.get(9)? != TCP {
            return None;
        }
        let address = |at: usize| {
            let octets: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
            Some(Ipv4Addr::from(octets))
        };
        let header = usize::from(packet.first()? & 15) * 4;
        let tcp = packet.get(header..)?;
        let port = |at: usize| Some(u16::from_be_bytes(tcp.get(at..at + 2)?.try_into().ok()?));
        let word = |at: usize| Some(u32::from_be_bytes(tcp.get(at..at + 4)?.try_into().ok()?));
        let data = usize::from(tcp.get(12)? >> 4) * 4;
        Some(Self {
            own: (address(16)?, port(2)?),
            peer: (address(12)?, port(0)?),
            sequence: word(4)?,
            ack: word(8)?,
            flags: *tcp.get(13)?,
            payload: tcp.get(data..)?.to_vec(),
        })
    }
}

/// The checksum of IP and TCP.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        let low = pair.get(1).copied().unwrap_or(0);
        sum += u32::from(u16::from_be_bytes([pair[0], low]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// The option that tells how much a segment may carry.
const MAXIMUM: [u8; 4] = {
    let [high, low] = (MTU as u16 - 40).to_be_bytes();
    [2, 4, high, low]
};

const TCP: u8 = 6;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;
