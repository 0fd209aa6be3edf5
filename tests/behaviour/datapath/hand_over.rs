//! The moments at which a flow changes hands, many thousands of times: first the daemon's view and the program
//! alone, as fast as the two can, and then through a gateway.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use gateway_common::flow::Standing;
use gateway_common::framing::Framing;
use gateway_user::config::KernelLog;
use gateway_user::kernel::{Flows, Link, Path, Receiver};
use sluice_tests::client::{Client, chat};
use sluice_tests::gateway::PATIENCE;
use sluice_tests::netns;
use sluice_tests::pod::RawPod;
use socket2::{Domain, Socket, Type};

use super::{Carrier, assert_nothing_left};

#[test]
fn a_flow_is_never_seen_to_come_back_before_it_does() {
    netns::run(&[], || {
        let (flows, _) = Flows::start(KernelLog::Off, &[], |_| true).unwrap();
        let paths = [Path::Local, Path::Splice].into_iter().cycle().take(CONNECTIONS);
        for path in paths {
            let mut ends = Ends::new(&flows, path);
            for turn in 0..TURNS {
                let (relayed, written) = (turn * 7, turn * 5);
                ends.link.offer(relayed, written, &Framing::length(10), &ends.receiver);
                // The program takes it in the pod's thread, at some moment of this one's looking.
                ends.pod.send(b"12345").unwrap();
                let seen = ends.wait_taken();
                assert_eq!(seen, Standing::Carrying, "{path:?}, turn {turn}");
                // More than is left of the body: the daemon's.
                ends.pod.send(b"1234567").unwrap();
                ends.upstream.read_exact(&mut [0; 7]).unwrap();
                assert_eq!(ends.link.standing(), Standing::Returned, "{path:?}, turn {turn}");
                ends.client.read_exact(&mut [0; 5]).unwrap();
            }
        }
    });
}

/// A pod's thread, the gateway's ends of two connections, and a client.
struct Ends {
    pod: Sender<&'static [u8]>,
    upstream: TcpStream,
    link: Link,
    receiver: Receiver,
    client: TcpStream,
    _near_client: TcpStream,
}

impl Ends {
    fn new(flows: &Flows, path: Path) -> Self {
        let pods = TcpListener::bind("127.0.0.1:0").unwrap();
        let front = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(front.local_addr().unwrap()).unwrap();
        let (near_client, _) = front.accept().unwrap();
        let receiver = flows.receiver(&near_client).unwrap();
        let upstream = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let to = pods.local_addr().unwrap().into();
        let mut link = match path {
            Path::Local => {
                let link = flows.link(&upstream).unwrap();
                upstream.connect(&to).unwrap();
                link
            }
            // Known only when it is established, so that the pod is not found on this node.
            Path::Splice => {
                upstream.connect(&to).unwrap();
                flows.link(&upstream).unwrap()
            }
        };
        let (mut stream, _) = pods.accept().unwrap();
        assert_eq!(link.settle(&upstream).unwrap(), Some(path));
        stream.set_nodelay(true).unwrap();
        let (pod, writes) = channel::<&[u8]>();
        thread::spawn(move || writes.iter().for_each(|bytes| stream.write_all(bytes).unwrap()));
        let upstream = TcpStream::from(upstream);
        for socket in [&client, &upstream] {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        Self { pod, upstream, link, receiver, client, _near_client: near_client }
    }

    /// What the daemon sees first of an offer that is taken, if it looks without a pause.
    fn wait_taken(&self) -> Standing {
        let deadline = Instant::now() + PATIENCE;
        loop {
            for _ in 0..1000 {
                let standing = self.link.standing();
                if standing != Standing::Waiting {
                    return standing;
                }
            }
            assert!(Instant::now() < deadline, "the offer is not taken");
        }
    }
}

pub(super) fn thousands_of_hand_overs_in_one_answer(carrier: Carrier) {
    let pod = RawPod::start();
    let gateway = carrier.raw_gateway(&pod);
    let mut client = Client::connect(gateway.address);
    let mut random = fastrand::Rng::with_seed(9);
    // A length, so that nothing falls into step again once somebody has missed an event.
    let length = HAND_OVERS as usize * (error(0).len() + 2 * event(0).len());
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length:";
    for answer in 0..2 {
        client.post("/v1/chat/completions", &chat("base", 9, true));
        let mut taken = pod.take();
        taken.send(format!("{head} {length}\r\n\r\n"));
        for turn in 0..HAND_OVERS {
            let (error, event) = (error(turn), event(turn));
            // The daemon's, whatever carries. When it has passed it on it offers the rest, and looks what becomes
            // of that: about now.
            taken.send(&error);
            let pause = Duration::from_nanos(random.u64(..200_000));
            let start = Instant::now();
            while start.elapsed() < pause {}
            taken.send(&event);
            read(&mut client, &[error, event.clone()].concat());
            taken.send(&event);
            read(&mut client, &event);
        }
        taken.keep();
        let ended = "sluice_pool_requests_total{pool=\"pool-0\",outcome=\"pod_error\"}";
        gateway.wait_metric(ended, f64::from(answer + 1));
    }
    drop(client);
    carrier.assert_moved(&gateway, u64::from(HAND_OVERS) * event(0).len() as u64);
    assert_nothing_left(&gateway);
}

/// Reads this and nothing else, but for a head.
fn read(client: &mut Client, events: &str) {
    let came = client.read_until(events);
    let rest = came.strip_suffix(events);
    assert!(rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("HTTP/")), "{came:?}");
}

fn error(turn: u32) -> String {
    format!("data: {{\"error\":{turn:08}}}\n\n")
}

fn event(turn: u32) -> String {
    format!("data: {turn:08}\n\n")
}

const CONNECTIONS: usize = 16;
/// Of one connection: fewer than the messages for which there is credit, as nobody follows what these clients
/// acknowledge.
const TURNS: u64 = 1500;
const HAND_OVERS: u32 = 2000;
