//! Starts the daemon, in the order in which a failure is cheapest to tell, and stops it.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::{LocalSet, spawn_local};
use tracing::{info, warn};

use crate::admin::{self, Admin};
use crate::config::{Config, Loaded};
use crate::flow::path::Paths;
use crate::gateway::Gateway;
use crate::kernel::Flows;
use crate::listen::{self, bind, bind_all, bind_alone};
use crate::metrics::Arrival;
use crate::observe::{self, Target};
use crate::publish::{Bound, Steered};
use crate::watch::PodSink;

/// Runs the daemon until a signal stops it. Fails only before it serves.
pub fn run(loaded: Loaded) -> anyhow::Result<()> {
    let Loaded { config, notes } = loaded;
    for note in &notes {
        warn!("{note}");
    }
    raise_descriptors();
    let workers = match config.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        workers => workers,
    };
    let mut bound = bind_listeners(&config, workers)?;
    let admin = bind_alone(config.admin)
        .with_context(|| format!("admin: cannot listen on {}", config.admin))?;
    let paths = Paths::start(&config, &ports(&bound));
    let gateway = Arc::new(Gateway::new(config, paths, fastrand::u64(..)));
    let steered = Rc::new(Steered::start(&gateway.config, &mut bound));
    if !steered.is_on() {
        bind_virtual(&mut bound);
    }
    let addresses: Vec<SocketAddr> = bound.iter().map(|bound| bound.address).collect();
    let threads = start_workers(&gateway, bound, workers, steered.is_on())?;
    gateway.set_listening();
    info!(
        version = env!("CARGO_PKG_VERSION"),
        workers,
        pools = gateway.pools.len(),
        "listening on {}, admin on {}",
        addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        admin.local_addr().unwrap_or(gateway.config.admin),
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let cut = LocalSet::new().block_on(&runtime, control(&gateway, admin, &steered))?;
    for thread in threads {
        if thread.join().is_err() {
            warn!("a worker ended by a panic");
        }
    }
    info!("stopped; {cut} connections were cut");
    Ok(())
}

/// Where clients arrive.
fn ports(bound: &[Bound]) -> Vec<u16> {
    let virtual_ports = |bound: &Bound| {
        let addresses = bound.listener.virtual_addresses.clone();
        addresses.into_iter().map(|address| address.port)
    };
    let mut ports: Vec<u16> = bound
        .iter()
        .flat_map(|bound| std::iter::once(bound.address.port()).chain(virtual_ports(bound)))
        .collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

fn bind_listeners(config: &Config, workers: usize) -> anyhow::Result<Vec<Bound>> {
    let mut all = Vec::with_capacity(config.listeners.len());
    for listener in &config.listeners {
        let sockets = bind(listener, workers)?;
        let address = match sockets.first() {
            Some(socket) => socket.local_addr()?,
            None => SocketAddr::new(listener.address, listener.port),
        };
        all.push(Bound { listener: listener.clone(), address, sockets, dual: Vec::new() });
    }
    Ok(all)
}

/// Without steering, single virtual addresses are bound like any other; blocks cannot be.
fn bind_virtual(bound: &mut [Bound]) {
    for Bound { listener, sockets, .. } in bound {
        let workers = sockets.len();
        for block in &listener.virtual_addresses {
            let address = SocketAddr::new(block.address, block.port);
            let single = block.prefix == if block.address.is_ipv4() { 32 } else { 128 };
            match bind_all(address, workers) {
                Ok(more) if single => sockets.extend(more),
                Ok(_) => warn!(
                    "listener `{}`: {}/{} port {} is not served: only steering can take a block of \
                     addresses",
                    listener.name, block.address, block.prefix, block.port
                ),
                Err(error) => {
                    warn!("listener `{}`: {address} is not served: {error}", listener.name);
                }
            }
        }
    }
}

fn start_workers(
    gateway: &Arc<Gateway>,
    bound: Vec<Bound>,
    workers: usize,
    steered: bool,
) -> io::Result<Vec<JoinHandle<()>>> {
    let arrival = if steered { Arrival::SkLookup } else { Arrival::Userspace };
    let mut shares: Vec<Vec<listen::Socket>> = (0..workers).map(|_| Vec::new()).collect();
    for Bound { listener, sockets, dual, .. } in bound {
        let metrics = gateway.metrics.listener(&listener.name);
        let name: Arc<str> = listener.name.into();
        // Sockets come in groups of one for each worker.
        for (socket, worker) in sockets.into_iter().chain(dual).zip((0..workers).cycle()) {
            if let Some(share) = shares.get_mut(worker) {
                share.push(listen::Socket {
                    listener: Arc::clone(&name),
                    socket,
                    arrival,
                    metrics: Arc::clone(&metrics),
                });
            }
        }
    }
    shares
        .into_iter()
        .enumerate()
        .map(|(index, share)| {
            let gateway = Arc::clone(gateway);
            std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
                if let Err(error) = listen::run(Arc::clone(&gateway), share, fastrand::u64(..)) {
                    warn!("worker {index} could not start: {error}");
                    gateway.stop();
                }
            })
        })
        .collect()
}

/// The control thread's work: signals, scrapes, scores, admin pages. Returns when the daemon has
/// stopped, with how many connections had to be cut for that.
async fn control(
    gateway: &Arc<Gateway>,
    admin: std::net::TcpListener,
    steered: &Rc<Steered>,
) -> io::Result<usize> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let admin = tokio::net::TcpListener::from_std(admin)?;
    let pages = Admin { gateway: Arc::clone(gateway), steered: Rc::clone(steered) };
    let serving = spawn_local(admin::serve(admin, pages));
    let changed = Rc::new(Notify::new());
    watch_pods(gateway, &changed);
    let publisher = {
        let (gateway, steered, changed) =
            (Arc::clone(gateway), Rc::clone(steered), Rc::clone(&changed));
        spawn_local(async move { steered.publish(&gateway, &changed).await })
    };
    let flows = gateway.paths.flows.as_ref();
    for log in [steered.take_log(), flows.and_then(Flows::take_log)].into_iter().flatten() {
        spawn_local(log.follow());
    }
    let mut stopped = gateway.stop_signal();
    tokio::select! {
        _ = terminate.recv() => info!("stopping: SIGTERM"),
        _ = interrupt.recv() => info!("stopping: SIGINT"),
        // A worker gave up.
        _ = stopped.wait_for(|stop| *stop) => {}
    }
    gateway.stop();
    publisher.abort();
    steered.stop();
    let cut = drain(gateway, &mut terminate, &mut interrupt).await;
    serving.abort();
    Ok(cut)
}

/// Waits for the connections to end, but no longer than the limit; a second signal ends the wait.
/// Then has the workers cut those that are left, and says how many.
async fn drain(
    gateway: &Gateway,
    terminate: &mut tokio::signal::unix::Signal,
    interrupt: &mut tokio::signal::unix::Signal,
) -> usize {
    let wait = tokio::time::timeout(gateway.config.limits.drain_timeout, async {
        while gateway.connections() > 0 {
            tokio::time::sleep(listen::DRAIN_POLL).await;
        }
    });
    tokio::select! {
        _ = wait => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    let left = gateway.connections();
    gateway.cut();
    left
}

fn watch_pods(gateway: &Arc<Gateway>, changed: &Rc<Notify>) {
    for pool in &gateway.pools {
        for pod in pool.pods() {
            let target = match Target::new(pod.address, &pool.source, None) {
                Ok(target) => target,
                Err(error) => {
                    warn!(pool = %pool.name, pod = %pod.name, "its metrics cannot be read: {error}");
                    continue;
                }
            };
            let sink = PodSink {
                gateway: Arc::clone(gateway),
                pool: Arc::clone(pool),
                pod,
                changed: Rc::clone(changed),
            };
            spawn_local(observe::watch(target, sink, fastrand::Rng::new()));
        }
    }
}

/// As many descriptors as the process may have: two for each request under way.
fn raise_descriptors() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(error) = raised {
        warn!("the limit of open descriptors could not be raised: {error}");
    }
}
