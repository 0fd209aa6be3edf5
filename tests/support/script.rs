//! Answers by a script that client and pod both have: what the pod writes and how, down to each
//! chunk and write, follows from a few numbers, so the client knows every byte that must come.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::gateway::PATIENCE;
use crate::pattern::{Mismatch, Pattern, RECORD};
use crate::pod::{self, Signals};

/// One answer.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Script {
    /// Names the response in every byte of it, and seeds what is drawn by lot.
    pub id: u32,
    /// Bytes of the body, without [`Script::tail`].
    pub length: u64,
    /// How the body is framed.
    pub frame: Frame,
    /// Sizes of chunks, least and most.
    pub chunks: (usize, usize),
    /// Sizes of the pod's writes, least and most.
    pub writes: (usize, usize),
    /// Of 1,000 writes, how many the pod pauses after.
    pub pauses: u32,
    /// Whether the head is written together with the body's start.
    pub head_with_body: bool,
    /// What the body ends with.
    pub tail: String,
    /// What the pod does then.
    pub end: End,
}

/// How a body is framed.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub enum Frame {
    /// Chunks as engines write them.
    Chunks,
    /// Chunks with extensions, sizes in capitals and with zeros before them.
    Extended,
    /// Chunks, and trailers behind the last.
    Trailers,
    /// A content-length.
    Length,
    /// The connection's end is the body's.
    UntilClose,
}

/// What a pod does at the end of an answer, or before it.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub enum End {
    /// It keeps the connection, unless that is how the body ends.
    Keep,
    /// It says that it closes the connection, and does.
    Close,
    /// It closes the connection and did not say that it would.
    CloseUnsaid,
    /// It ends the connection by FIN once it has written so many bytes of framing and body.
    Fin(u64),
    /// The same by RST.
    Rst(u64),
}

/// All framings.
pub const FRAMES: [Frame; 5] =
    [Frame::Chunks, Frame::Extended, Frame::Trailers, Frame::Length, Frame::UntilClose];

impl Script {
    /// A body of so many bytes, in chunks of a token or a few, each in a write of its own or nearly.
    pub fn new(id: u32, length: u64) -> Self {
        Self {
            id,
            length,
            frame: Frame::Chunks,
            chunks: (20, 400),
            writes: (20, 800),
            pauses: 100,
            head_with_body: false,
            tail: String::new(),
            end: End::Keep,
        }
    }

    /// An answer of any kind, of about so many bytes, that comes whole.
    pub fn draw(id: u32, length: u64, random: &mut fastrand::Rng) -> Self {
        let sizes = [(1, 1), (1, 40), (32, 32), (20, 400), (200, 300), (1, 70_000), (1, 1 << 20)];
        let mut script = Self::new(id, random.u64(1..=length.max(2) * 2));
        script.frame = FRAMES[random.usize(..FRAMES.len())];
        script.chunks = sizes[random.usize(..sizes.len())];
        script.writes = sizes[random.usize(..sizes.len())];
        // What is written byte by byte is short, or it takes for ever.
        if script.writes.1 <= 40 || script.chunks.1 <= 40 {
            script.length = script.length.min(3000);
        }
        // A stream that ends with its connection, and is not known to say something, counts as cut.
        if script.frame == Frame::UntilClose {
            script.length = script.length.max(RECORD as u64);
        }
        // Whatever the sizes, about so many pauses.
        let writes = script.length / script.writes.1.min(script.chunks.1 + 7).div_ceil(2) as u64;
        script.pauses = random.u32(0..=10_000 / u32::try_from(writes).unwrap_or(u32::MAX).max(20));
        script.head_with_body = random.bool();
        if random.bool() {
            script.tail = usage(random.u32(1..1000));
        }
        script.end = match (script.frame, random.u8(..10)) {
            (Frame::UntilClose, 0..5) | (_, 0) => End::Close,
            (Frame::UntilClose, _) | (_, 1) => End::CloseUnsaid,
            _ => End::Keep,
        };
        script
    }

    /// The request that has a pod answer by this script.
    pub fn request(&self) -> String {
        let body = crate::client::chat("base", 1, true).to_string();
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\n\
             content-type: application/json\r\n{SCRIPT}: {}\r\ncontent-length: {}\r\n\r\n{body}",
            serde_json::to_string(self).expect("numbers and names"),
            body.len()
        )
    }

    /// The head of the answer.
    pub fn head(&self, pod: usize, connection: u64) -> String {
        let framing = match self.frame {
            Frame::Chunks | Frame::Extended => "transfer-encoding: chunked\r\n".into(),
            Frame::Trailers => "transfer-encoding: chunked\r\ntrailer: x-sum\r\n".into(),
            Frame::Length => format!("content-length: {}\r\n", self.body_length()),
            Frame::UntilClose => String::new(),
        };
        let close = if self.end == End::Close { "connection: close\r\n" } else { "" };
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
             x-pod: {pod}\r\nx-pod-connection: {connection}\r\n{framing}{close}\r\n"
        )
    }

    /// Bytes of the body.
    pub fn body_length(&self) -> u64 {
        self.length + self.tail.len() as u64
    }

    /// All that is behind the head, framing and body, piece by piece.
    pub fn wire(&self) -> Wire<'_> {
        Wire {
            script: self,
            pattern: Pattern::new(self.id),
            random: fastrand::Rng::with_seed(u64::from(self.id)),
            at: 0,
            ended: false,
        }
    }

    /// How many bytes of what is behind the head the pod writes, if it breaks off.
    pub fn cut(&self) -> Option<u64> {
        match self.end {
            End::Fin(at) | End::Rst(at) => Some(at),
            End::Keep | End::Close | End::CloseUnsaid => None,
        }
    }

    fn is_chunked(&self) -> bool {
        matches!(self.frame, Frame::Chunks | Frame::Extended | Frame::Trailers)
    }
}

/// The event with which a stream tells its tokens, and the last event.
pub fn usage(tokens: u32) -> String {
    format!(
        "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":3,\"total_tokens\":{},\
         \"completion_tokens\":{tokens}}}}}\n\ndata: [DONE]\n\n",
        tokens + 3
    )
}

/// What is behind an answer's head: each item is a piece and where in the body it is.
#[derive(Debug)]
pub struct Wire<'a> {
    script: &'a Script,
    pattern: Pattern,
    random: fastrand::Rng,
    at: u64,
    ended: bool,
}

/// A part of what is behind a head.
#[derive(Debug)]
pub struct Piece {
    /// The bytes: a whole chunk with its framing, or some of the body.
    pub bytes: Vec<u8>,
    /// The body's offset before it.
    pub offset: u64,
    /// Where in `bytes` the body's bytes start.
    pub lead: usize,
}

impl Iterator for Wire<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let (script, offset) = (self.script, self.at);
        let left = script.body_length() - offset;
        if left == 0 {
            let last = match script.frame {
                Frame::Chunks => "0\r\n\r\n",
                Frame::Extended => "000;last=\"1\"\r\n\r\n",
                Frame::Trailers => "0\r\nx-sum: 12\r\nX-Other:y\r\n\r\n",
                Frame::Length | Frame::UntilClose => return None,
            };
            let piece = Piece { bytes: last.into(), offset, lead: last.len() };
            return (!std::mem::replace(&mut self.ended, true)).then_some(piece);
        }
        let (least, most) = script.chunks;
        let size = self.random.usize(least..=most).min(usize::try_from(left).unwrap_or(most));
        let mut bytes = Vec::with_capacity(size + 32);
        match script.frame {
            Frame::Chunks | Frame::Trailers => {
                bytes.extend_from_slice(format!("{size:x}\r\n").as_bytes());
            }
            Frame::Extended => {
                let zeros = self.random.usize(1..6);
                let name = ["", ";a", ";name=value", " ; q=\"a;b\""][self.random.usize(..4)];
                bytes.extend_from_slice(format!("{size:0zeros$X}{name}\r\n").as_bytes());
            }
            Frame::Length | Frame::UntilClose => {}
        }
        let lead = bytes.len();
        let patterned =
            size.min(usize::try_from(script.length.saturating_sub(offset)).unwrap_or(size));
        self.pattern.extend(&mut bytes, offset, patterned);
        let told = offset.saturating_sub(script.length) as usize;
        bytes.extend_from_slice(&script.tail.as_bytes()[told..told + size - patterned]);
        if script.is_chunked() {
            bytes.extend_from_slice(b"\r\n");
        }
        self.at += size as u64;
        Some(Piece { bytes, offset, lead })
    }
}

/// Compares what a client reads behind a head with what the script says.
#[derive(Debug)]
pub struct Reading<'a> {
    wire: Wire<'a>,
    piece: Option<Piece>,
    within: usize,
    /// Bytes behind the head so far.
    pub bytes: u64,
}

impl<'a> Reading<'a> {
    /// Before the first byte.
    pub fn new(script: &'a Script) -> Self {
        let mut wire = script.wire();
        let piece = wire.next();
        Self { wire, piece, within: 0, bytes: 0 }
    }

    /// Takes what belongs to this answer; returns how much that was.
    ///
    /// # Errors
    /// It is not what the pod wrote.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, Mismatch> {
        let mut taken = 0;
        while let Some(piece) = &self.piece {
            let (seen, want) = (&bytes[taken..], &piece.bytes[self.within..]);
            if seen.is_empty() {
                break;
            }
            let both = seen.len().min(want.len());
            if seen[..both] != want[..both] {
                let same = seen.iter().zip(want).take_while(|(seen, want)| seen == want).count();
                let offset = piece.offset + (self.within + same).saturating_sub(piece.lead) as u64;
                return Err(Mismatch::at(self.wire.script.id, offset, &seen[same..]));
            }
            taken += both;
            self.within += both;
            self.bytes += both as u64;
            if both == want.len() {
                (self.piece, self.within) = (self.wire.next(), 0);
            }
        }
        Ok(taken)
    }

    /// Whether all has come.
    pub fn is_whole(&self) -> bool {
        self.piece.is_none()
    }
}

/// Model servers that answer by the script in each request's head.
#[derive(Debug)]
pub struct ScriptPod {
    /// Where it listens.
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    connections: AtomicU64,
    answered: AtomicU64,
    /// Connections with an answer under way.
    busy: AtomicU64,
}

impl ScriptPod {
    /// Starts one that calls itself by this number.
    pub fn start(number: usize) -> Self {
        Self::serve(number, TcpListener::bind("127.0.0.1:0").expect("a free port"))
    }

    /// The same on a socket that listens already.
    pub fn serve(number: usize, listener: TcpListener) -> Self {
        let address = listener.local_addr().expect("a bound socket has an address");
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = Arc::clone(&shared);
                // A client that leaves is its own affair.
                thread::spawn(move || drop(connection(stream, number, &state)));
            }
        });
        Self { address, state }
    }

    /// Starts some, numbered from 0.
    pub fn start_all(count: usize) -> Vec<Self> {
        (0..count).map(Self::start).collect()
    }

    /// Answers begun so far.
    pub fn answered(&self) -> u64 {
        self.state.answered.load(Ordering::Relaxed)
    }

    /// Connections on which a script was asked for so far.
    pub fn connections(&self) -> u64 {
        self.state.connections.load(Ordering::Relaxed)
    }

    /// Answers under way.
    pub fn busy(&self) -> u64 {
        self.state.busy.load(Ordering::Relaxed)
    }
}

fn connection(mut stream: TcpStream, number: usize, state: &State) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut buffer = Vec::new();
    let mut named = None;
    while let Some((head, _)) = pod::request(&mut stream, &mut buffer) {
        if let Some(page) = pod::own_page(&head, Signals::default()) {
            stream.write_all(page.as_bytes())?;
            continue;
        }
        let script = head.lines().find_map(|line| line.strip_prefix(SCRIPT)?.strip_prefix(": "));
        let script: Script = serde_json::from_str(script.unwrap_or_default())?;
        let connection =
            *named.get_or_insert_with(|| state.connections.fetch_add(1, Ordering::Relaxed));
        state.answered.fetch_add(1, Ordering::Relaxed);
        state.busy.fetch_add(1, Ordering::Relaxed);
        let answered = answer(&mut stream, &script, number, connection);
        state.busy.fetch_sub(1, Ordering::Relaxed);
        answered?;
        match script.end {
            End::Keep if script.frame != Frame::UntilClose => {}
            End::Keep | End::Close | End::CloseUnsaid | End::Fin(_) => {
                stream.shutdown(Shutdown::Write)?;
                // A close with a request unread would be a reset, which may overtake the answer.
                while stream.read(&mut [0; 1024])? > 0 {}
                return Ok(());
            }
            End::Rst(_) => {
                return socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
            }
        }
    }
    Ok(())
}

/// Writes an answer, in writes and with pauses as drawn by lot.
fn answer(stream: &mut TcpStream, script: &Script, pod: usize, connection: u64) -> io::Result<()> {
    let mut random = fastrand::Rng::with_seed(u64::from(script.id) ^ 0xABCD);
    let mut ready = script.head(pod, connection).into_bytes();
    if !script.head_with_body {
        stream.write_all(&ready)?;
        ready.clear();
    }
    let mut written = 0;
    let mut left = script.cut().unwrap_or(u64::MAX);
    let (least, most) = script.writes;
    let mut size = random.usize(least..=most);
    let mut wire = script.wire();
    let mut more = true;
    while more || written < ready.len() {
        if ready.len() - written < size && more {
            ready.drain(..written);
            written = 0;
            match wire.next() {
                Some(mut piece) => {
                    let most = usize::try_from(left).unwrap_or(usize::MAX);
                    piece.bytes.truncate(most);
                    left -= piece.bytes.len() as u64;
                    ready.append(&mut piece.bytes);
                    more = left > 0;
                }
                None => more = false,
            }
            continue;
        }
        let end = (written + size).min(ready.len());
        stream.write_all(&ready[written..end])?;
        written = end;
        if random.u32(..1000) < script.pauses {
            thread::sleep(PAUSE);
        }
        size = random.usize(least..=most);
    }
    Ok(())
}

/// The header that carries a script.
pub const SCRIPT: &str = "x-script";

/// Between two writes, so that they are not read as one.
const PAUSE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::{FRAMES, Reading, Script};

    #[test]
    fn a_reading_takes_its_own_answer_whole_and_nothing_else() {
        let mut random = fastrand::Rng::with_seed(1);
        for frame in FRAMES {
            for number in 0..20 {
                let mut script = Script::draw(number, 5000, &mut random);
                script.frame = frame;
                let whole: Vec<u8> = script.wire().flat_map(|piece| piece.bytes).collect();
                let mut reading = Reading::new(&script);
                let (first, rest) = whole.split_at(random.usize(..whole.len()));
                assert_eq!(reading.take(first), Ok(first.len()));
                assert!(!reading.is_whole());
                let behind = [rest, b"HTTP/1.1 200"].concat();
                assert_eq!(reading.take(&behind), Ok(rest.len()));
                assert!(reading.is_whole());

                let mut changed = whole.clone();
                let at = random.usize(..changed.len());
                changed[at] ^= 1;
                assert!(Reading::new(&script).take(&changed).is_err(), "{script:?} at {at}");
            }
        }
    }

    #[test]
    fn a_request_carries_its_script() {
        let script = Script::draw(5, 900, &mut fastrand::Rng::with_seed(2));
        let request = script.request();
        let line = request.lines().find_map(|line| line.strip_prefix("x-script: ")).unwrap();
        assert_eq!(serde_json::from_str::<Script>(line).unwrap(), script);
    }
}
