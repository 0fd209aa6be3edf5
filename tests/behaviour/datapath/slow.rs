//! Clients that do not read, or read and stop: each holds its window and no more, the pod is not
//! kept busy by it, others are served meanwhile, and when it reads again everything arrives.

use std::io::{ErrorKind, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sluice_tests::client::chat;
use sluice_tests::gateway::{Gateway, PATIENCE};
use sluice_tests::pattern::Pattern;
use sluice_tests::pod::{RawPod, Taken};
use sluice_tests::script::{Script, ScriptPod};
use sluice_tests::soak::{Pace, ScriptClient};
use socket2::SockRef;

use super::{Carrier, assert_nothing_left, exact, read_exact};

pub(super) fn a_client_that_does_not_read_holds_its_window_and_no_more(carrier: Carrier) {
    carrier.apart(move || stalled(carrier, 1, EVENT));
}

pub(super) fn five_hundred_clients_that_do_not_read(carrier: Carrier) {
    carrier.apart(move || stalled(carrier, 500, EVENT));
}

pub(super) fn five_hundred_clients_that_do_not_read_token_by_token(carrier: Carrier) {
    carrier.apart(move || stalled(carrier, 500, TOKEN));
}

fn stalled(carrier: Carrier, count: usize, event: usize) {
    // Small buffers at both ends and on the way, so that what is beyond them is the gateway's.
    fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 65536 65536").unwrap();
    fs::write("/proc/sys/net/ipv4/tcp_wmem", "4096 16384 65536").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listen_with_small_buffer(&listener);
    let pod = RawPod::serve(listener);
    let others = ScriptPod::start_all(2);
    let mut plan = carrier.plan(others.iter().map(|pod| pod.address));
    plan.pools.push(("stalled".into(), vec![pod.address]));
    let gateway = Gateway::start(&plan);
    exact(&mut ScriptClient::connect(gateway.address), &Script::new(1, 100_000));
    let rss_before = rss(gateway.pid());

    let mut streams: Vec<TcpStream> = Vec::new();
    let mut writers: Vec<Writer> = (0..count)
        .map(|number| {
            let mut client = TcpStream::connect(gateway.address).unwrap();
            let body = chat("stalled", 1, true).to_string();
            let length = body.len();
            write!(
                client,
                "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}"
            )
            .unwrap();
            streams.push(client);
            Writer::new(pod.take(), number as u32, event)
        })
        .collect();
    // Event by event at first, as tokens come: so the kernel takes over before anything is full.
    for _ in 0..FIRST {
        writers.iter_mut().for_each(Writer::write_event);
        thread::sleep(Duration::from_millis(5));
    }
    let pods = Pods::start(writers);
    pods.wait_stuck();
    let written = pods.written();
    let (spins, wakeups) = (pods.spins(), wakeups(gateway.pid()));
    thread::sleep(PAUSE);
    let most = count as u64 * (WINDOW + BUFFERS);
    assert!(
        written <= most,
        "the pod could write {written} bytes; {most} is what there is room for"
    );
    assert!(written >= count as u64 * 64 * 1024, "{written} bytes are not even the buffers");
    let spun = pods.spins() - spins;
    assert!(spun <= count as u64, "the pod was told {spun} times to write what was not taken");
    let woken = self::wakeups(gateway.pid()) - wakeups;
    assert!(
        woken < 1000 + count as u64,
        "the daemon woke {woken} times for clients that do nothing"
    );
    let grown = rss(gateway.pid()).saturating_sub(rss_before);
    let allowed = 20_000_000 + count as u64 * 80_000;
    assert!(grown < allowed, "the daemon has grown by {grown} bytes for {count} clients");
    let held = socket_memory(gateway.address.port());
    // What a byte costs the kernel is more than a byte, by its own bookkeeping.
    let allowed = count as u64 * 2 * (WINDOW + 64 * 1024);
    assert!(held <= allowed, "{held} bytes are held for {count} clients; {allowed} are allowed");

    // Others notice nothing.
    let mut other = ScriptClient::connect(gateway.address);
    for id in 10..20 {
        exact(&mut other, &Script::new(id, 20_000));
    }

    // Everything comes, to the last byte.
    pods.finish();
    // All at once: for one that waits for its turn, the pod's own kernel asks ever more rarely whether there
    // is room.
    let readers: Vec<_> = streams
        .into_iter()
        .enumerate()
        .map(|(number, stream)| {
            let reader = thread::Builder::new().stack_size(128 * 1024);
            reader.spawn(move || read_all(number as u32, stream)).unwrap()
        })
        .collect();
    let came: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    assert_eq!(came, pods.end());
    drop(other);
    carrier.assert_moved(&gateway, count as u64 * (FIRST * event) as u64 / 2);
    assert_nothing_left(&gateway);
}

/// Reads to the end of the body and returns how long it was.
fn read_all(id: u32, stream: TcpStream) -> u64 {
    use std::io::Read as _;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = Vec::new();
    (&stream).read_to_end(&mut bytes).unwrap();
    let body = memchr::memmem::find(&bytes, b"\r\n\r\n").expect("a head") + 4;
    let body = &bytes[body..];
    Pattern::new(id).check(0, body).unwrap_or_else(|mismatch| panic!("{mismatch}"));
    body.len() as u64
}

pub(super) fn readers_that_stop_and_go(carrier: Carrier) {
    let pods = ScriptPod::start_all(2);
    let gateway = carrier.gateway(&pods);
    // On a busy machine every reader may fall behind from its first bytes on, and the daemon writes all. What is to be
    // seen is the kernel's part.
    for turn in 0..10 {
        thread::scope(|scope| {
            for number in 0..4 {
                let gateway = &gateway;
                scope.spawn(move || stop_and_go(gateway, turn * 100 + number * 10));
            }
        });
        if carrier == Carrier::Relay || carrier.moved(&gateway) >= STOP_AND_GO {
            break;
        }
    }
    carrier.assert_moved_of(&gateway, STOP_AND_GO as u64, 0);
    assert_nothing_left(&gateway);
}

/// The window fills and empties over and over, with events small and large, and with long stops.
fn stop_and_go(gateway: &Gateway, first: u32) {
    let mut client = ScriptClient::connect(gateway.address);
    for (id, most) in (first..).zip([400, 60_000]) {
        let script = Script {
            chunks: (20, most),
            writes: (20, most * 2),
            pauses: 5,
            ..Script::new(id, 2_000_000)
        };
        client.send(&script);
        let pace = Pace { piece: 16 * 1024, pauses: 200 };
        let seen = client.answer(&script, pace, u64::MAX);
        let seen = seen.unwrap_or_else(|problem| panic!("{problem}"));
        seen.judge(&script).unwrap_or_else(|problem| panic!("{problem}"));
        client.send(&script);
        thread::sleep(Duration::from_millis(300));
        read_exact(&mut client, &script);
    }
}

/// The pod's side of one stalled answer.
struct Writer {
    taken: Taken,
    event: usize,
    pattern: Pattern,
    ready: Vec<u8>,
    at: usize,
    offset: u64,
    done: bool,
}

impl Writer {
    fn new(taken: Taken, id: u32, event: usize) -> Self {
        taken.stream.set_nonblocking(true).unwrap();
        let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n".to_vec();
        let pattern = Pattern::new(id);
        Self { taken, event, pattern, ready: head, at: 0, offset: 0, done: false }
    }

    /// Writes what is ready and one event more, of which the socket must have room.
    fn write_event(&mut self) {
        self.pattern.extend(&mut self.ready, self.offset, self.event);
        self.offset += self.event as u64;
        self.taken.stream.write_all(&self.ready).unwrap();
        self.ready.clear();
    }

    /// Writes as long as the socket takes it, event by event as an engine does. Returns the bytes of
    /// the body that were written.
    fn write(&mut self, finish: bool) -> u64 {
        let mut written = 0;
        loop {
            if self.at == self.ready.len() {
                if finish {
                    let _ = self.taken.stream.shutdown(std::net::Shutdown::Write);
                    self.done = true;
                    return written;
                }
                self.ready.clear();
                self.pattern.extend(&mut self.ready, self.offset, self.event);
                self.offset += self.event as u64;
                self.at = 0;
            }
            match self.taken.stream.write(&self.ready[self.at..]) {
                Ok(count) => {
                    self.at += count;
                    written += count as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return written,
                Err(error) => panic!("the pod cannot write: {error}"),
            }
        }
    }
}

/// All stalled answers, written by one thread that waits for room as an event loop does.
struct Pods {
    written: Arc<AtomicU64>,
    /// Times that a socket was said to have room and took nothing.
    spins: Arc<AtomicU64>,
    finish: Arc<AtomicBool>,
    end: Arc<AtomicU64>,
}

impl Pods {
    fn start(mut writers: Vec<Writer>) -> Self {
        let pods = Self {
            written: Arc::default(),
            spins: Arc::default(),
            finish: Arc::default(),
            end: Arc::default(),
        };
        let (written, spins) = (Arc::clone(&pods.written), Arc::clone(&pods.spins));
        let (finish, end) = (Arc::clone(&pods.finish), Arc::clone(&pods.end));
        thread::spawn(move || {
            while writers.iter().any(|writer| !writer.done) {
                let open: Vec<usize> = (0..writers.len()).filter(|at| !writers[*at].done).collect();
                let room = {
                    let mut sockets: Vec<PollFd<'_>> = open
                        .iter()
                        .map(|at| {
                            PollFd::new(writers[*at].taken.stream.as_fd(), PollFlags::POLLOUT)
                        })
                        .collect();
                    poll(&mut sockets, PollTimeout::from(50_u16)).unwrap();
                    sockets
                        .iter()
                        .map(|socket| socket.revents().is_some_and(|events| !events.is_empty()))
                        .collect::<Vec<_>>()
                };
                for (at, room) in open.into_iter().zip(room) {
                    if !room {
                        continue;
                    }
                    let count = writers[at].write(finish.load(Ordering::Relaxed));
                    written.fetch_add(count, Ordering::Relaxed);
                    spins.fetch_add(u64::from(count == 0), Ordering::Relaxed);
                    if writers[at].done {
                        end.fetch_add(writers[at].offset, Ordering::Relaxed);
                    }
                }
            }
        });
        pods
    }

    fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    fn spins(&self) -> u64 {
        self.spins.load(Ordering::Relaxed)
    }

    /// Waits until nothing more is taken.
    fn wait_stuck(&self) {
        let deadline = Instant::now() + PATIENCE;
        let mut before = 0;
        loop {
            thread::sleep(PAUSE);
            let now = self.written();
            if now > 0 && now == before {
                return;
            }
            assert!(Instant::now() < deadline, "after {now} bytes the pod can still write");
            before = now;
        }
    }

    /// Has each answer end where it is.
    fn finish(&self) {
        self.finish.store(true, Ordering::Relaxed);
    }

    /// How long all bodies together were.
    fn end(&self) -> u64 {
        self.end.load(Ordering::Relaxed)
    }
}

/// Accepted sockets inherit it.
fn listen_with_small_buffer(listener: &TcpListener) {
    SockRef::from(listener).set_send_buffer_size(16 * 1024).unwrap();
}

/// Resident memory of a process, in bytes.
fn rss(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// How often the threads of a process have gone to sleep.
fn wakeups(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks
        .filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok())
        .filter_map(|status| {
            let count =
                status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            count?.trim().parse::<u64>().ok()
        })
        .sum()
}

/// What the kernel holds of bytes that are to be sent to clients, in bytes.
fn socket_memory(port: u16) -> u64 {
    let output = Command::new("ss").args(["-tmn", &format!("sport = :{port}")]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let queued = |line: &str| line.split_once(",w")?.1.split(',').next()?.parse::<u64>().ok();
    text.lines().filter(|line| line.contains("skmem:")).filter_map(queued).sum()
}

/// What the gateway may have on its way to one client.
const WINDOW: u64 = 256 * 1024;
/// What sockets of pod and client, and the gateway's towards the pod, may hold of one answer, the
/// daemon's one piece included; and what the last segments are larger than the room that was left.
const BUFFERS: u64 = (64 + 64 + 32 + 64 + 16) * 1024;
/// Of some tokens, and of one.
const EVENT: usize = 2000;
const TOKEN: usize = 230;
/// Bytes that the kernel must have carried to readers that stop and go.
const STOP_AND_GO: f64 = 100_000.0;
/// Events that are written one by one.
const FIRST: usize = 10;
/// Long enough for whatever moves to have moved.
const PAUSE: Duration = Duration::from_secs(1);
