//! Threads and listeners: pods that run until their handle is dropped.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::conn;
use super::events;
use super::faults::Faults;
use super::kv::Change;
use super::options::Options;
use super::pod::{Control, Pod, Span, lock};
use super::stats::Stats;

/// A running pod. It stops when dropped.
pub struct Server {
    /// Where it listens.
    pub addr: SocketAddr,
    /// Where it publishes changes of its KV cache, if it does.
    pub kv_events: Option<SocketAddr>,
    pod: Arc<Pod>,
    /// The thread, shared with the pods that were started together.
    _host: Arc<Host>,
}

impl Server {
    /// Starts a pod on a thread of its own.
    ///
    /// # Errors
    /// When the address cannot be had.
    pub fn start(options: Options) -> io::Result<Self> {
        let mut servers = Self::start_all(vec![options])?;
        servers.pop().ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// Starts many pods on one thread.
    ///
    /// # Errors
    /// When an address cannot be had, or the speed is not above 0.
    pub fn start_all(all: Vec<Options>) -> io::Result<Vec<Self>> {
        let mut pods = Vec::new();
        for mut options in all {
            if !(options.speed > 0.0 && options.speed.is_finite()) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "the speed must be above 0",
                ));
            }
            let listener = listen(options.listen)?;
            options.listen = listener.local_addr()?;
            let publisher = options.kv_events.map(listen).transpose()?;
            options.kv_events =
                publisher.as_ref().map(|listener| listener.local_addr()).transpose()?;
            let (changes, publisher) = publisher
                .map(|listener| {
                    let (changes, steps) = mpsc::unbounded_channel();
                    (changes, (listener, steps))
                })
                .unzip();
            if options.name.is_empty() {
                options.name = format!("pod-{}", options.listen.port());
            }
            let (control, orders) = mpsc::unbounded_channel();
            let (addr, away) = (options.listen, !options.start_after.is_zero());
            let refuse = away && !options.start_busy;
            let pod = Arc::new(Pod::new(options, control, changes));
            pods.push((addr, pod, (!refuse).then_some(listener), publisher, orders));
        }
        let (servers, tasks): (Vec<_>, Vec<_>) = pods
            .into_iter()
            .map(|(addr, pod, listener, publisher, orders)| {
                ((addr, Arc::clone(&pod)), serve(pod, listener, publisher, orders))
            })
            .unzip();
        let host = Arc::new(Host::run(tasks)?);
        let server = |(addr, pod): (_, Arc<Pod>)| Self {
            addr,
            kv_events: pod.options.kv_events,
            pod,
            _host: Arc::clone(&host),
        };
        Ok(servers.into_iter().map(server).collect())
    }

    /// The pod's name.
    pub fn name(&self) -> &str {
        &self.pod.options.name
    }

    /// What it has seen.
    pub fn stats(&self) -> Stats {
        self.pod.stats()
    }

    /// The metrics page as it is now.
    pub fn metrics(&self) -> String {
        self.pod.page(false)
    }

    /// Sets the faults; the default heals.
    pub fn fault(&self, faults: Faults) {
        self.pod.set_faults(faults);
    }

    /// The faults in force.
    pub fn faults(&self) -> Faults {
        lock(&self.pod.faults).clone()
    }

    /// Refuses connections for so long, or until [`Self::revive`]; those that are open stay.
    pub fn refuse(&self, lasting: Option<Duration>) {
        self.pod.control(Control::Refuse(Span(lasting)));
    }

    /// Closes the port and all connections, as when the process dies.
    pub fn die(&self, lasting: Option<Duration>) {
        self.pod.control(Control::Die(Span(lasting)));
    }

    /// The engine process dies: requests in flight end in an error, then it is as in [`Self::die`].
    pub fn kill_engine(&self, lasting: Option<Duration>) {
        self.pod.control(Control::KillEngine(Span(lasting)));
    }

    /// Opens the port again.
    pub fn revive(&self) {
        self.pod.control(Control::Revive);
    }

    /// Stops it; the same as dropping it.
    pub fn stop(self) {}
}

impl Drop for Server {
    fn drop(&mut self) {
        self.pod.control(Control::Stop);
    }
}

/// A thread with a runtime, for some pods.
struct Host {
    thread: Option<JoinHandle<()>>,
}

impl Host {
    fn run(tasks: Vec<impl Future<Output = ()> + Send + 'static>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new().name("engine".to_owned()).spawn(move || {
            runtime.block_on(async {
                let mut pods = JoinSet::new();
                for task in tasks {
                    pods.spawn(task);
                }
                while pods.join_next().await.is_some() {}
            });
        })?;
        Ok(Self { thread: Some(thread) })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}

/// Runs a pod until it is told to stop.
async fn serve(
    pod: Arc<Pod>,
    listener: Option<StdListener>,
    publisher: Option<(StdListener, mpsc::UnboundedReceiver<Vec<Change>>)>,
    mut orders: mpsc::UnboundedReceiver<Control>,
) {
    let mut engines = JoinSet::new();
    for rank in 0..pod.options.data_parallel.max(1) {
        engines.spawn(Arc::clone(&pod).drive(rank));
    }
    if let Some((listener, steps)) = publisher {
        engines.spawn(events::publish(listener, steps));
    }
    let mut later = JoinSet::new();
    if listener.is_none() {
        later.spawn(send_later(Arc::clone(&pod), pod.options.start_after, Control::Revive));
    }
    let mut listener = listener.and_then(|listener| TcpListener::from_std(listener).ok());
    let mut connections = JoinSet::new();
    loop {
        let accept = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            accepted = accept => {
                // Out of file descriptors: those who wait may get one later.
                let Ok((socket, _)) = accepted else {
                    tokio::time::sleep(RETRY).await;
                    continue;
                };
                connections.spawn(conn::serve(socket, Arc::clone(&pod)));
            }
            Some(_) = connections.join_next() => {}
            Some(_) = later.join_next() => {}
            order = orders.recv() => match order {
                Some(Control::Revive) => {
                    pod.set_engine_dead(false);
                    if listener.is_none() {
                        listener = open(pod.options.listen).await;
                    }
                }
                Some(Control::Refuse(span)) => {
                    listener = None;
                    revive_later(&mut later, &pod, span);
                }
                Some(Control::Die(span)) => {
                    if pod.options.exit_process {
                        std::process::exit(EXIT_CODE);
                    }
                    listener = None;
                    connections.shutdown().await;
                    revive_later(&mut later, &pod, span);
                }
                Some(Control::KillEngine(span)) => {
                    pod.set_engine_dead(true);
                    later.spawn(send_later(Arc::clone(&pod), SURVIVES, Control::Die(span)));
                }
                Some(Control::Stop) | None => break,
            }
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<StdListener> {
    let listener = StdListener::bind(address).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn revive_later(later: &mut JoinSet<()>, pod: &Arc<Pod>, span: Span) {
    if let Span(Some(after)) = span {
        later.spawn(send_later(Arc::clone(pod), after, Control::Revive));
    }
}

async fn send_later(pod: Arc<Pod>, after: Duration, control: Control) {
    tokio::time::sleep(after).await;
    pod.control(control);
}

/// Opens a port that this pod had before; another process may have it for a moment.
async fn open(addr: SocketAddr) -> Option<TcpListener> {
    for _ in 0..100 {
        if let Ok(listener) = TcpListener::bind(addr).await {
            return Some(listener);
        }
        tokio::time::sleep(RETRY).await;
    }
    None
}

/// How long the server outlives its engine; real ones took up to 0.3 s.
const SURVIVES: Duration = Duration::from_millis(200);
/// Between tries to get a socket.
const RETRY: Duration = Duration::from_millis(10);
/// As for a process that got SIGKILL.
const EXIT_CODE: i32 = 137;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_address_is_named() {
        let first = Server::start(Options::default()).unwrap();
        let again = Server::start(Options { listen: first.addr, ..Options::default() });
        let said = again.map(|_| ()).unwrap_err().to_string();
        assert!(said.starts_with(&format!("cannot listen on {}: ", first.addr)), "{said}");
    }
}
