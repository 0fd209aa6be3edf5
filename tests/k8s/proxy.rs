//! Stands between a gateway and the API server, and fails as networks do.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

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
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    thread::spawn(move || carry(from, to));
                }
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

fn carry(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
