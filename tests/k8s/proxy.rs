//! Stands between a gateway and the API server, and fails as networks do.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A way to the API server.
pub(crate) struct Proxy {
    state: Arc<Mutex<State>>,
    /// The KUBECONFIG that leads through it.
    pub(crate) kubeconfig: PathBuf,
}

#[derive(Default)]
struct State {
    /// Whether connections are taken on; else they are closed at once.
    down: bool,
    /// How long each piece is held up on the way from the server.
    delay: Duration,
    open: Vec<TcpStream>,
    count: usize,
}

impl Proxy {
    pub(crate) fn start(name: &str) -> Self {
        let file = std::env::var("KUBECONFIG").unwrap();
        let text = fs::read_to_string(&file).unwrap();
        let (_, rest) = text.split_once("https://").unwrap();
        let server = rest.split('"').next().unwrap();
        let to: SocketAddr = server.parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().to_string();
        let kubeconfig = PathBuf::from(format!("{file}-{name}"));
        fs::write(&kubeconfig, text.replace(server, &own)).unwrap();
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = Arc::clone(&state);
        // Ends with the test's process.
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let mut state = shared.lock().unwrap();
                state.count += 1;
                if state.down {
                    continue;
                }
                let server = TcpStream::connect(to).unwrap();
                let streams = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || carry(streams.0, streams.1, || Duration::ZERO));
                let (from, to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                let shared = Arc::clone(&shared);
                thread::spawn(move || carry(from, to, || shared.lock().unwrap().delay));
                state.open.extend([client, server]);
            }
        });
        Self { state, kubeconfig }
    }

    /// Closes all connections, and every new one until [`Self::up`].
    pub(crate) fn down(&self) {
        self.state.lock().unwrap().down = true;
        self.cut();
    }

    /// Takes connections on again.
    pub(crate) fn up(&self) {
        self.state.lock().unwrap().down = false;
    }

    /// Holds up each piece that the server sends, for so long.
    pub(crate) fn slow(&self, delay: Duration) {
        self.state.lock().unwrap().delay = delay;
    }

    /// Closes all connections.
    pub(crate) fn cut(&self) {
        for stream in self.state.lock().unwrap().open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Connections so far, those included that were closed at once.
    pub(crate) fn count(&self) -> usize {
        self.state.lock().unwrap().count
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, delay: impl Fn() -> Duration) {
    let mut buffer = [0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        thread::sleep(delay());
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
