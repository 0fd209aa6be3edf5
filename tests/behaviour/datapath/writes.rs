//! Pods that write by any call that the system has, and read as before: their sockets are theirs,
//! and what is attached to them must not show.

use std::io::{IoSlice, Read as _, Seek as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::thread;
use std::time::Duration;
use std::{fs, io};

use sluice_tests::client::{Client, chat};
use sluice_tests::pattern::Pattern;
use sluice_tests::pod::{LAST, RawPod, STREAM, chunk};
use socket2::SockRef;

use super::{Carrier, assert_nothing_left, event, flowing, pass_events};

/// Writes all of it.
struct Call {
    name: &'static str,
    write: fn(&mut TcpStream, &[u8]) -> io::Result<()>,
}

pub(super) fn every_call_that_writes(carrier: Carrier) {
    let pod = RawPod::start();
    let gateway = carrier.raw_gateway(&pod);
    let calls = [
        Call { name: "write", write: |stream, bytes| stream.write_all(bytes) },
        Call { name: "writev", write: in_parts },
        Call { name: "MSG_MORE", write: with_more_to_come },
        Call {
            name: "TCP_CORK",
            write: |stream, bytes| {
                let (first, second) = bytes.split_at(bytes.len() / 2);
                SockRef::from(&*stream).set_tcp_cork(true)?;
                stream.write_all(first)?;
                stream.write_all(second)?;
                SockRef::from(&*stream).set_tcp_cork(false)
            },
        },
        Call { name: "sendfile", write: from_a_file },
    ];
    for (id, Call { name, write }) in calls.iter().enumerate() {
        let mut client = Client::connect(gateway.address);
        client.post("/v1/chat/completions", &chat("base", 9, true));
        let mut taken = pod.take();
        taken.send(STREAM);
        let mut pattern = Pattern::new(id as u32);
        let mut offset = 0;
        // Each call between plain writes, with a pause for the kernel to take over.
        for size in [300, 500, 200, 1, 40_000, 200, 7000, 200, 100_000, 300, 300] {
            let mut data = Vec::new();
            pattern.extend(&mut data, offset, size);
            offset += size as u64;
            let bytes = chunk(data);
            let writing = thread::spawn({
                let mut stream = taken.stream.try_clone().unwrap();
                let write = *write;
                move || write(&mut stream, &bytes)
            });
            writing.join().unwrap().unwrap_or_else(|error| panic!("{name}: {error}"));
            thread::sleep(Duration::from_millis(3));
        }
        taken.send(LAST);
        let response = client.response();
        assert!(response.complete, "{name}");
        pattern.check(0, &response.body).unwrap_or_else(|mismatch| panic!("{name}: {mismatch}"));
        assert_eq!(response.body.len() as u64, offset, "{name}");
        drop(client);
        taken.keep();
    }
    carrier.assert_moved(&gateway, 1000);
    assert_nothing_left(&gateway);
}

fn in_parts(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let (head, rest) = bytes.split_at(3);
    let (data, end) = rest.split_at(rest.len() - 2);
    let mut parts = [IoSlice::new(head), IoSlice::new(data), IoSlice::new(end)];
    let mut parts = &mut parts[..];
    while !parts.is_empty() {
        let count = stream.write_vectored(parts)?;
        IoSlice::advance_slices(&mut parts, count);
    }
    Ok(())
}

fn with_more_to_come(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let socket = SockRef::from(&*stream);
    let (first, last) = bytes.split_at(bytes.len() / 2);
    for (mut part, flags) in [(first, libc::MSG_MORE), (last, 0)] {
        while !part.is_empty() {
            let count = socket.send_with_flags(part, flags)?;
            part = part.get(count..).unwrap_or_default();
        }
    }
    Ok(())
}

fn from_a_file(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let path = std::env::temp_dir().join(format!("sluice-sendfile-{}", std::process::id()));
    let mut file =
        fs::File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
    fs::remove_file(&path)?;
    file.write_all(bytes)?;
    file.rewind()?;
    let mut left = bytes.len();
    while left > 0 {
        // SAFETY: both descriptors are open, and no offset is passed.
        let count = unsafe {
            libc::sendfile(stream.as_raw_fd(), file.as_raw_fd(), std::ptr::null_mut(), left)
        };
        match count {
            1.. => left -= count as usize,
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

/// A socket without room takes part of a write, and the rest is shown to whatever looks at writes once more. It
/// must not spoil what comes later, on this connection or another.
pub(super) fn writes_that_are_taken_in_part(carrier: Carrier) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Accepted sockets inherit it.
    SockRef::from(&listener).set_send_buffer_size(16 * 1024).unwrap();
    let pod = RawPod::serve(listener);
    let gateway = carrier.raw_gateway(&pod);
    let rounds = 4;
    let mut client = Client::connect(gateway.address);
    for round in 0..rounds {
        client.post("/v1/chat/completions", &chat("base", 9, true));
        let mut taken = pod.take();
        taken.send(STREAM);
        pass_events(&mut client, &mut taken, 0..20);
        let large = chunk(Pattern::new(round).bytes(1_000_000));
        let reader = client.stream.try_clone().unwrap();
        let reading = thread::spawn({
            let mut came = vec![0; large.len()];
            move || (&reader).read_exact(&mut came).map(|()| came)
        });
        taken.stream.set_nonblocking(true).unwrap();
        let (mut written, mut in_part) = (0, 0);
        while written < large.len() {
            match taken.stream.write(&large[written..]) {
                Ok(count) => {
                    written += count;
                    in_part += u32::from(written < large.len());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("the pod cannot write: {error}"),
            }
        }
        taken.stream.set_nonblocking(false).unwrap();
        assert!(in_part > 0, "every write was taken whole");
        assert!(reading.join().unwrap().unwrap() == large, "round {round}");
        taken.send(LAST);
        client.read_until(LAST);
        taken.keep();
    }
    drop(client);
    // The kernel carried events, in one round at least: a client that falls behind is served by the daemon meanwhile.
    carrier.assert_moved_of(&gateway, 15 * event(1).len() as u64, 0);
    assert_nothing_left(&gateway);
}

/// What comes from the gateway is read as ever on a connection on which a stream was carried.
pub(super) fn large_requests_on_a_connection_that_carried_a_stream(carrier: Carrier) {
    let pod = RawPod::start();
    let gateway = carrier.raw_gateway(&pod);
    let mut connection = None;
    let (mut client, mut taken) = flowing(&gateway, &pod, 30);
    for round in 0..4 {
        let own = taken.stream.peer_addr().unwrap();
        assert_eq!(*connection.get_or_insert(own), own, "another connection is used");
        // Made before the connection is idle: it is not kept for long.
        let mut body = chat("base", 9, true);
        body["pad"] = String::from_utf8(Pattern::new(round).bytes(5_000_000)).unwrap().into();
        let body = body.to_string();
        taken.send(LAST);
        client.read_until(LAST);
        taken.keep();
        client.post_bytes("/v1/chat/completions", body.as_bytes());
        taken = pod.take();
        assert!(taken.body == body.as_bytes(), "the request differs");
        taken.send(STREAM);
        pass_events(&mut client, &mut taken, 0..30);
    }
    taken.send(LAST);
    client.read_until(LAST);
    drop(client);
    carrier.assert_moved(&gateway, 5000);
    assert_nothing_left(&gateway);
}
