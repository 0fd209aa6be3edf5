//! A wire tap between a gateway and a pod: passes every byte on, and keeps what requests and
//! answers said.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// A tap. Its threads end with the connections.
#[derive(Debug)]
pub(crate) struct Tap {
    /// Where the gateway connects.
    pub(crate) address: SocketAddr,
    calls: Arc<Mutex<Vec<Call>>>,
}

/// What passed on one connection since it was last taken.
#[derive(Debug, Default)]
pub(crate) struct Call {
    /// Towards the pod.
    pub(crate) request: Vec<u8>,
    /// From the pod.
    pub(crate) answer: Vec<u8>,
}

impl Tap {
    /// Listens, and connects to `pod` for each connection.
    pub(crate) fn start(pod: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let calls: Arc<Mutex<Vec<Call>>> = Arc::default();
        let kept = Arc::clone(&calls);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(pod) else { continue };
                let mut calls = kept.lock().unwrap_or_else(PoisonError::into_inner);
                let index = calls.len();
                calls.push(Call::default());
                drop(calls);
                for (from, to, is_answer) in [(&client, &server, false), (&server, &client, true)] {
                    let from = from.try_clone().expect("a socket can be cloned");
                    let to = to.try_clone().expect("a socket can be cloned");
                    let kept = Arc::clone(&kept);
                    thread::spawn(move || {
                        pass(from, to, |bytes| {
                            let mut calls = kept.lock().unwrap_or_else(PoisonError::into_inner);
                            let call = &mut calls[index];
                            if is_answer { &mut call.answer } else { &mut call.request }
                                .extend_from_slice(bytes);
                        })
                    });
                }
            }
        });
        Self { address, calls }
    }

    /// The one POST since the last time, with its answer.
    pub(crate) fn take_post(&self) -> Call {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let mut posts: Vec<_> = calls
            .iter_mut()
            .map(std::mem::take)
            .filter(|call| call.request.starts_with(b"POST "))
            .collect();
        assert_eq!(posts.len(), 1, "one request was sent");
        posts.remove(0)
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, keep: impl Fn(&[u8])) {
    let mut piece = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut piece) {
        let bytes = &piece[..count];
        // Before it is passed on, so that it is there when the receiver has it.
        keep(bytes);
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
