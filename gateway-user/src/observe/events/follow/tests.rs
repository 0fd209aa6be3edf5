//! Against another implementation of the protocol, and against peers that do not keep to it.

use std::cell::Cell;
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::*;
use crate::observe::events::testing::{cleared, payload, removed, stored};
use crate::observe::events::wire::MAX_MESSAGE;
use crate::observe::events::{Change, Knowledge};

/// What a sink was told.
#[derive(Debug, PartialEq)]
enum Told {
    Connected,
    Changed(Change),
    Learned(bool),
    Failed(String),
}

/// Passes everything on.
struct Recorder(mpsc::UnboundedSender<Told>);

impl Sink for Recorder {
    fn connected(&self) {
        let _ = self.0.send(Told::Connected);
    }

    fn changed(&self, change: &Change) {
        let _ = self.0.send(Told::Changed(change.clone()));
    }

    fn takes(&self, _bytes: usize) {}

    fn learned(&self, recognised: bool) {
        let _ = self.0.send(Told::Learned(recognised));
    }

    fn failed(&self, failure: &Failure) {
        let _ = self.0.send(Told::Failed(failure.to_string()));
    }
}

/// Ends what it follows when dropped.
struct Following {
    told: mpsc::UnboundedReceiver<Told>,
    prompts: mpsc::Sender<Observation>,
    task: JoinHandle<()>,
}

impl Following {
    fn new(address: SocketAddr, topic: &str) -> Self {
        Self::with_replay(address, topic, None)
    }

    fn with_replay(address: SocketAddr, topic: &str, replay: Option<SocketAddr>) -> Self {
        let (sender, told) = mpsc::unbounded_channel();
        let (prompts, receiver) = mpsc::channel(4);
        let target = Target { address, topic: topic.into(), replay };
        let task = follow(target, Recorder(sender), receiver, Rng::with_seed(1));
        Self { told, prompts, task: tokio::task::spawn_local(task) }
    }

    async fn next(&mut self) -> Told {
        timeout(LONG, self.told.recv()).await.expect("told in time").expect("still following")
    }

    async fn change(&mut self) -> Change {
        match self.next().await {
            Told::Changed(change) => change,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A publisher as the engines have one.
struct Publisher {
    socket: PubSocket,
    address: SocketAddr,
}

impl Publisher {
    async fn bind(address: &str) -> Self {
        let mut socket = PubSocket::new();
        let endpoint = socket.bind(&format!("tcp://{address}")).await.expect("a free port");
        let address = endpoint.to_string();
        let address = address.strip_prefix("tcp://").expect("TCP").parse().expect("an address");
        Self { socket, address }
    }

    async fn send(&mut self, topic: &str, number: u64, payload: Vec<u8>) {
        let frames = [topic.as_bytes().to_vec(), number.to_be_bytes().into(), payload];
        let frames: Vec<_> = frames.into_iter().map(bytes::Bytes::from).collect();
        let message = ZmqMessage::try_from(frames).expect("frames");
        self.socket.send(message).await.expect("sent");
    }

    /// Sends until it arrives: when a subscription has reached the publisher cannot be seen.
    async fn reach(
        &mut self,
        topic: &str,
        number: u64,
        payload: &[u8],
        to: &mut Following,
    ) -> Told {
        loop {
            self.send(topic, number, payload.to_vec()).await;
            if let Ok(told) = timeout(Duration::from_millis(20), to.told.recv()).await {
                return told.expect("still following");
            }
        }
    }
}

/// Runs a test whose tasks are this thread's own.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    tokio::task::LocalSet::new().block_on(&runtime.expect("a runtime"), test);
}

#[test]
fn follows_a_publisher() {
    run(async {
        let mut publisher = Publisher::bind("127.0.0.1:0").await;
        let mut following = Following::new(publisher.address, "kv@");
        assert_eq!(following.next().await, Told::Connected);
        let sent = Instant::now();
        // Its number makes repetitions harmless: each is a restart.
        let first = payload(&[stored(&[1, 2, 3, 4], None)]);
        publisher.reach("kv@pod@model", 0, &first, &mut following).await;

        publisher.send("other", 1, payload(&[cleared()])).await;
        publisher.send("kv@pod@model", 1, payload(&[stored(&[5], Some(4))])).await;
        let mut change = following.change().await;
        while change.is_cleared {
            change = following.change().await;
        }
        let expected = Change { events: 1, knowledge: Knowledge::All, ..Change::default() };
        assert_eq!(change, expected);

        let answered = Instant::now();
        let prompt = Observation {
            blocks: vec![77],
            block_tokens: 64,
            guessed_tokens: 64,
            tokens: 64,
            sent,
            answered,
        };
        following.prompts.send(prompt).await.expect("there is room");
        assert_eq!(following.next().await, Told::Learned(true));
        publisher.send("kv@", 2, payload(&[removed(&[5, 4])])).await;
        let change = following.change().await;
        assert_eq!((change.removed, change.tokens), (vec![77], Some(48)));
        publisher.send("kv@", 4, payload(&[cleared()])).await;
        assert_eq!(following.change().await.lost, 1);
    });
}

#[test]
fn takes_large_messages_in_pieces() {
    run(async {
        let mut publisher = Publisher::bind("127.0.0.1:0").await;
        let mut following = Following::new(publisher.address, "");
        assert_eq!(following.next().await, Told::Connected);
        publisher.reach("", 0, &payload(&[]), &mut following).await;
        let hashes: Vec<u64> = (0..200_000).map(|n| u64::MAX - n).collect();
        publisher.send("", 1, payload(&[stored(&hashes, None)])).await;
        publisher.send("", 2, payload(&[removed(&[5, u64::MAX])])).await;
        let mut change = following.change().await;
        while change.tokens.is_none() {
            change = following.change().await;
        }
        assert_eq!(change.tokens, Some(199_999 * 16));
    });
}

#[test]
fn comes_back_when_the_pod_does() {
    run(async {
        let mut publisher = Publisher::bind("127.0.0.1:0").await;
        let address = publisher.address;
        let mut following = Following::new(address, "");
        assert_eq!(following.next().await, Told::Connected);
        let message = payload(&[stored(&[1], None)]);
        publisher.reach("", 7, &message, &mut following).await;
        publisher.socket.close().await;
        while !matches!(following.next().await, Told::Failed(_)) {}
        let mut publisher = Publisher::bind(&address.to_string()).await;
        while following.next().await != Told::Connected {}
        // A new process, which counts from 0.
        let told = publisher.reach("", 0, &message, &mut following).await;
        let Told::Changed(change) = told else { panic!("{told:?}") };
        assert!(change.is_cleared);
        assert_eq!(change.knowledge, Knowledge::All);
    });
}

/// Answers questions for old messages as vLLM does, with or without the topic, from those that it has.
async fn keeper(kept: Vec<(u64, Vec<u8>)>, with_topic: bool) -> SocketAddr {
    let mut socket = RouterSocket::new();
    let endpoint = socket.bind("tcp://127.0.0.1:0").await.expect("a free port").to_string();
    tokio::task::spawn_local(async move {
        loop {
            let question = socket.recv().await.expect("a question").into_vec();
            let [asker, empty, from] = &question[..] else { panic!("{question:?}") };
            assert!(empty.is_empty());
            let from = u64::from_be_bytes(from[..].try_into().expect("8 bytes"));
            let kept = kept.iter().filter(|message| message.0 >= from).cloned();
            for (number, payload) in kept.chain([(u64::MAX, Vec::new())]) {
                let mut frames = vec![asker.clone(), bytes::Bytes::new()];
                frames.extend(with_topic.then(bytes::Bytes::new));
                frames.push(bytes::Bytes::copy_from_slice(&number.to_be_bytes()));
                frames.push(payload.into());
                let answer = ZmqMessage::try_from(frames).expect("frames");
                socket.send(answer).await.expect("sent");
            }
        }
    });
    endpoint.strip_prefix("tcp://").expect("TCP").parse().expect("an address")
}

#[test]
fn asks_for_what_it_missed() {
    run(async {
        for with_topic in [false, true] {
            let old = |number: u64| (number, payload(&[stored(&[number], number.checked_sub(1))]));
            let replay = keeper((0..4).map(old).collect(), with_topic).await;
            let mut publisher = Publisher::bind("127.0.0.1:0").await;
            let mut following = Following::with_replay(publisher.address, "", Some(replay));
            assert_eq!(following.next().await, Told::Connected);
            // The first that it hears is the third, with what went in it.
            let third = payload(&[removed(&[0])]);
            publisher.reach("", 2, &third, &mut following).await;
            let mut change = following.change().await;
            while change.tokens.is_none() {
                change = following.change().await;
            }
            assert_eq!((change.lost, change.knowledge), (0, Knowledge::All));
            assert_eq!(change.tokens, Some(16), "two came, and one went");
        }
    });
}

#[test]
fn old_messages_of_another_process_are_no_continuation() {
    run(async {
        // The new process has stored a block with each, the old one another with its only one.
        let old = |number: u64| (number, payload(&[stored(&[number], number.checked_sub(1))]));
        let replay = keeper((0..9).map(old).collect(), false).await;
        let mut publisher = Publisher::bind("127.0.0.1:0").await;
        let address = publisher.address;
        let mut following = Following::with_replay(address, "", Some(replay));
        assert_eq!(following.next().await, Told::Connected);
        publisher.reach("", 0, &payload(&[stored(&[77], None)]), &mut following).await;
        publisher.socket.close().await;
        while !matches!(following.next().await, Told::Failed(_)) {}
        let mut publisher = Publisher::bind(&address.to_string()).await;
        while following.next().await != Told::Connected {}
        publisher.reach("", 4, &payload(&[removed(&[0])]), &mut following).await;
        let mut change = following.change().await;
        while change.tokens.is_none() {
            change = following.change().await;
        }
        assert_eq!((change.lost, change.knowledge), (0, Knowledge::All));
        assert_eq!(change.tokens, Some(3 * 16), "four came, and one went");
    });
}

#[test]
fn a_pod_that_does_not_answer_is_not_asked_at_each_gap() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let replay = listener.local_addr().expect("an address");
        let asked = Rc::new(Cell::new(0));
        let count = Rc::clone(&asked);
        tokio::task::spawn_local(async move {
            while listener.accept().await.is_ok() {
                count.set(count.get() + 1);
            }
        });
        let mut publisher = Publisher::bind("127.0.0.1:0").await;
        let mut following = Following::with_replay(publisher.address, "", Some(replay));
        assert_eq!(following.next().await, Told::Connected);
        publisher.reach("", 2, &payload(&[]), &mut following).await;
        assert_eq!(asked.get(), 1);
        for number in [100, 200, 300] {
            publisher.send("", number, payload(&[])).await;
        }
        let mut lost = 0;
        while lost < 97 + 99 + 99 {
            lost += following.change().await.lost;
        }
        assert_eq!(asked.get(), 1);
    });
}

/// Answers connections with these bytes and hangs up.
async fn impostor(answer: &[u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let answer = answer.to_vec();
    tokio::task::spawn_local(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket.write_all(&answer).await;
            let _ = socket.shutdown().await;
            let _ = socket.read_to_end(&mut Vec::new()).await;
        }
    });
    address
}

/// The greeting and the handshake of a publisher.
fn handshake(socket_type: &str) -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0];
    bytes.extend(b"NULL");
    bytes.resize(64, 0);
    let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
    ready.extend((socket_type.len() as u32).to_be_bytes());
    ready.extend(socket_type.as_bytes());
    bytes.extend([4, ready.len() as u8]);
    bytes.extend(ready);
    bytes
}

#[test]
fn gives_up_on_what_is_no_publisher() {
    run(async {
        let huge = [&handshake("PUB")[..], &[2], &(1_u64 << 62).to_be_bytes(), b"x"].concat();
        let many = [handshake("PUB"), [1, 0].repeat(MAX_MESSAGE / 16)].concat();
        let numberless = [&handshake("PUB")[..], &[1, 0], &[1, 1, b'7'], &[0, 1, b'x']].concat();
        let cases = [
            (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "no ZeroMQ publisher"),
            (b"", "no connection"),
            (&handshake("PUB"), "no connection"),
            (&handshake("REP"), "no ZeroMQ publisher"),
            (&huge, "no ZeroMQ publisher"),
            (&many, "no ZeroMQ publisher"),
            (&numberless, "something else than KV events"),
            (&[&handshake("PUB")[..], &[0, 1, b'x']].concat(), "something else than KV events"),
        ];
        for (bytes, expected) in cases {
            let mut following = Following::new(impostor(bytes).await, "");
            let said = loop {
                match following.next().await {
                    Told::Failed(said) => break said,
                    Told::Connected => {}
                    other => panic!("{other:?} of {bytes:x?}"),
                }
            };
            assert!(said.contains(expected), "{said} of {bytes:x?}");
        }
    });
}

/// Longer than anything takes.
const LONG: Duration = Duration::from_secs(20);
