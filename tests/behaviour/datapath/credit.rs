//! Messages of a byte each: what bounds them on their way to a client is their number.

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use gateway_common::limits::{MESSAGES, UNCOUNTED};
use sluice_tests::client::{Client, chat};
use sluice_tests::gateway::{Gateway, PATIENCE};
use sluice_tests::netns::Neighbour;
use sluice_tests::pattern::Pattern;
use sluice_tests::pod::RawPod;
use sluice_tests::script::{Frame, Script, ScriptPod};
use sluice_tests::soak::ScriptClient;
use socket2::{Domain, Socket, Type};

use super::{Carrier, assert_nothing_left, exact};

pub(super) fn single_bytes_to_a_client_far_away(carrier: Carrier) {
    carrier.apart(move || {
        let far = Neighbour::far(Duration::from_millis(40));
        let pods = ScriptPod::start_all(1);
        let mut plan = carrier.plan([pods[0].address]);
        plan.address = [10, 8, 1, 1].into();
        let gateway = Gateway::start(&plan);
        let address = gateway.address;
        far.run(move || {
            let mut client = ScriptClient::connect(address);
            let answers = [
                (Frame::Length, (1, 1), 20_000),
                (Frame::Chunks, (1, 40), 10_000),
                (Frame::Chunks, (1, 1), 2000),
            ];
            for (id, (frame, chunks, length)) in answers.into_iter().enumerate() {
                let script = Script::new(id as u32, length);
                exact(&mut client, &Script { frame, chunks, writes: (1, 1), pauses: 5, ..script });
            }
        });
        carrier.assert_moved_of(&gateway, 1000, 0);
        assert_nothing_left(&gateway);
    });
}

pub(super) fn single_bytes_to_a_client_that_does_not_read(carrier: Carrier) {
    let pod = RawPod::start();
    let gateway = carrier.raw_gateway(&pod);
    let mut client = Client::over(connect_with_small_buffer(gateway.address));
    client.post("/v1/chat/completions", &chat("base", 9, true));
    let mut taken = pod.take();
    taken.stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let body = Pattern::new(7).bytes(READ + UNREAD);
    let (read, unread) = body.split_at(READ);
    let length = body.len();
    taken.send(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {length}\r\n\r\n"
    ));
    // The kernel takes over while the client reads.
    for event in read.chunks(PIECE) {
        taken.send(event);
        client.read_until(std::str::from_utf8(event).unwrap());
    }
    unread.iter().for_each(|byte| taken.send([*byte]));
    // The client's socket has room for all of it, as bytes: so the answer is over before any more is read.
    gateway.wait_metric("sluice_pool_requests_total{pool=\"pool-0\",outcome=\"ok\"}", 1.0);
    if carrier != Carrier::Relay {
        let moved = carrier.moved(&gateway) as usize;
        // As many as may be under way, and as many as the client's own kernel took.
        let most = READ + 2 * MESSAGES as usize + BUFFER;
        assert!(moved <= most, "the kernel moved {moved} bytes one by one, and not {most}");
        let least = (MESSAGES - UNCOUNTED) as usize;
        assert!(moved >= least, "the kernel moved {moved} bytes, and not {least}");
        gateway
            .wait_metric("sluice_flow_responses_total{path=\"relay\",reason=\"slow_client\"}", 1.0);
    }
    let mut came = vec![0; UNREAD];
    client.stream.read_exact(&mut came).unwrap();
    Pattern::new(7).check(READ as u64, &came).unwrap_or_else(|mismatch| panic!("{mismatch}"));
    drop(client);
    taken.keep();
    assert_nothing_left(&gateway);
}

/// What it says that it has room for is a few kilobytes.
fn connect_with_small_buffer(to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(BUFFER / 2).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

/// Bytes of the body that the client reads as they come, and those that come one by one and are left unread.
const READ: usize = 30 * PIECE;
const UNREAD: usize = 30_000;
const PIECE: usize = 64;
/// Of the client, as the kernel counts it: twice what it is asked for.
const BUFFER: usize = 8 * 1024;
