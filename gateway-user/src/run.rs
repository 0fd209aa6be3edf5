//! Starts the daemon, in the order in which a failure is cheapest to tell, and stops it.

use std::io;
use std::mem::take;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, LocalSet, spawn_local};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::admin::{self, Admin};
use crate::auth;
use crate::config::{Config, Loaded, Protocol, Scheduler, VirtualAddress};
use crate::direct::Exclusive;
use crate::discover::{self, Cluster, Reporter, Unapplied};
use crate::exchange::Exchange;
use crate::flow::path::Paths;
use crate::gateway::Gateway;
use crate::kernel::{Flows, give_back_large_blocks};
use crate::listen::{self, bind, bind_all, bind_alone};
use crate::metrics::Arrival;
use crate::publish::{Bound, Steered};
use crate::reload::{Origin, Reloader};
use crate::takeover::{Description, Handed, Handover, Inherited, Predecessor, Role, Successor};
use crate::tls::Tls;
use crate::watch::Watchers;

/// Where the configuration is from; it is looked at again while the daemon runs.
#[derive(Debug)]
pub enum Source {
    /// A file, and what it holds.
    File(Box<Loaded>, PathBuf),
    /// Objects of a Kubernetes cluster.
    Cluster(discover::Options),
}

/// Runs the daemon until a signal or a successor stops it. Fails only before it serves.
///
/// With `takeover`, it takes the sockets of the daemon that runs, if one does.
pub fn run(source: Source, takeover: bool) -> anyhow::Result<()> {
    raise_descriptors();
    give_back_large_blocks();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stopped = LocalSet::new().block_on(&runtime, async {
        // First of all: as the first process of a container it would not be ended by a signal that it does not take.
        let mut signals = Signals::take()?;
        match source {
            Source::File(loaded, file) => {
                let origin = Origin::File(file, loaded.clone());
                start(*loaded, origin, takeover, signals).await.map(Some)
            }
            Source::Cluster(options) => {
                let mut cluster = Cluster::follow(&options).await?;
                let reporter = Rc::new(Reporter::start(&cluster, identity()));
                let first = tokio::select! {
                    first = cluster.first(&reporter) => first,
                    () = signals.any() => {
                        reporter.release().await;
                        return Ok(None);
                    }
                };
                let (loaded, resolved) = first;
                let origin = Origin::Cluster(Box::new(cluster), Rc::clone(&reporter));
                let stopped = start(loaded, origin, takeover, signals).await;
                if let Err(error) = &stopped {
                    // It is valid and cannot be used: for a file that is missing, or a port that another one has.
                    reporter.report(resolved, Err(Unapplied::Refused(format!("{error:#}"))));
                    sleep(REPORTED).await;
                    reporter.release().await;
                }
                stopped.map(Some)
            }
        }
    })?;
    let Some((threads, cut)) = stopped else {
        info!("stopped before there was anything to serve");
        return Ok(());
    };
    for thread in threads {
        if thread.join().is_err() {
            warn!("a worker ended by a panic");
        }
    }
    info!("stopped; {cut} connections were cut");
    Ok(())
}

/// What asks the process to end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// They do not end the process from now on.
    fn take() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// The next one.
    async fn any(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Starts everything and goes on with [`control`]. Returns the workers, and how many connections had to be cut.
async fn start(
    loaded: Loaded,
    origin: Origin,
    takeover: bool,
    mut signals: Signals,
) -> anyhow::Result<(Vec<JoinHandle<()>>, usize)> {
    let Loaded { config, notes, .. } = loaded;
    notes.iter().for_each(|note| warn!("{note}"));
    // First, as it would end the process.
    let hangup = signal(SignalKind::hangup())?;
    let workers = match config.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        workers => workers,
    };
    let (predecessor, mut inherited) = match takeover {
        true => ask_predecessor(config.admin).await?,
        false => (None, Inherited::default()),
    };
    let tls = config.tls.as_ref().map(Tls::load).transpose()?;
    let exchange = config.exchange.as_ref();
    let exchange =
        exchange.map(|exchange| Exchange::open(exchange, predecessor.is_some())).transpose()?;
    let mut bound = bind_listeners(&config, workers, &mut inherited)?;
    let admin = match inherited.take_admin(config.admin) {
        Some(socket) => socket,
        None => bind_alone(config.admin)
            .with_context(|| format!("admin: cannot listen on {}", config.admin))?,
    };
    for address in inherited.left() {
        warn!("{address} is not served any more: it is not in the configuration");
    }
    drop(inherited);
    let paths = Paths::start(&config, &ports(&bound));
    let member = exchange.as_ref().map(Exchange::member);
    let gateway = Arc::new(Gateway::new(config, paths, fastrand::u64(..), member));
    let reporter = match &origin {
        Origin::File(..) => None,
        Origin::Cluster(cluster, reporter) => {
            cluster.max_age.into_iter().for_each(|age| gateway.staleness.set_most(age));
            Some(Rc::clone(reporter))
        }
    };
    let before = Arc::clone(&gateway.auth());
    let settings: Vec<_> =
        gateway.pools().iter().map(|pool| Arc::clone(&pool.settings())).collect();
    auth::reload::prepare(Some(&before), settings.iter().map(|settings| &**settings), &gateway)
        .await
        .context("auth")?;
    auth::reload::follow_issuer(&before, &gateway);
    spawn_local(auth::reload::watch(Arc::clone(&gateway)));
    if gateway.config().auth.is_none() {
        warn!(
            "everyone who reaches a listener may send requests: the configuration has no auth \
             (`auth: {{mode: off}}` says that this is meant)"
        );
    }
    let changed = Rc::new(Notify::new());
    if let Some(tls) = &tls {
        spawn_local(tls.clone().follow(Arc::clone(&gateway)));
    }
    let watchers = Watchers::new(&gateway, &changed);
    watchers.settle();
    if let Some(exchange) = exchange {
        exchange.start(&gateway);
    }
    if predecessor.is_some() {
        // It serves meanwhile, and knows the adapters, which this one has to learn first.
        see_pods(&gateway).await;
    }
    let steered = Rc::new(Steered::start(&gateway, &mut bound));
    if !steered.is_on() {
        bind_virtual(&mut bound, workers);
    }
    let addresses: Vec<SocketAddr> = bound.iter().map(|bound| bound.address).collect();
    let handed = copies(&bound, &admin)?;
    let (threads, mut ended) =
        start_workers(&gateway, bound, workers, &steered, tls.as_ref()).await?;
    gateway.set_listening();
    if let Some(predecessor) = predecessor {
        let pid = predecessor.pid;
        match predecessor.relieve().await {
            Ok(()) => info!("taken over from process {pid}, which finishes its streams and leaves"),
            Err(error) => warn!("taken over from process {pid}, which has not said so: {error}"),
        }
    }
    let handover = Handover::new(admin.local_addr()?, handed)
        .inspect_err(|error| warn!("no other gateway can take over from this one: {error}"))
        .ok();
    info!(
        version = env!("CARGO_PKG_VERSION"),
        workers,
        pools = gateway.pools().len(),
        "listening on {}, admin on {}",
        addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        admin.local_addr().unwrap_or(gateway.config().admin),
    );
    let supervised = matches!(origin, Origin::Cluster(..));
    let reloading = spawn_local(Reloader::new(&gateway, watchers).follow(origin, hangup));
    let reloading = reloading.abort_handle();
    let relieved =
        control(&gateway, reloading, admin, &steered, handover, &changed, &mut signals).await?;
    let draining = drain(&gateway, &mut ended, &mut signals, supervised && relieved);
    // While the streams end, another gateway has the lease.
    let releasing = async {
        if let Some(reporter) = reporter {
            reporter.release().await;
        }
    };
    let (cut, ()) = tokio::join!(draining, releasing);
    Ok((threads, cut))
}

/// The daemon that runs, if one does, and its sockets.
async fn ask_predecessor(admin: SocketAddr) -> anyhow::Result<(Option<Predecessor>, Inherited)> {
    let asked = Predecessor::ask(admin).await;
    let asked = asked.with_context(|| {
        format!("cannot take over from the gateway whose admin address is {admin}")
    })?;
    Ok(match asked {
        Some((predecessor, sockets)) => {
            let (pid, count) = (predecessor.pid, sockets.len());
            info!("taking over {count} sockets from process {pid}");
            (Some(predecessor), Inherited::new(sockets))
        }
        None => {
            info!("no gateway runs with the admin address {admin}: nothing to take over");
            (None, Inherited::default())
        }
    })
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

fn bind_listeners(
    config: &Config,
    workers: usize,
    inherited: &mut Inherited,
) -> anyhow::Result<Vec<Bound>> {
    let mut all = Vec::with_capacity(config.listeners.len());
    for listener in &config.listeners {
        let wanted = SocketAddr::new(listener.address, listener.port);
        let shared = inherited.has_port(listener.port);
        let mut sockets = inherited.take_at(&listener.name, wanted);
        if sockets.is_empty() {
            sockets = bind(listener, workers, shared)?;
        }
        let address = match sockets.first() {
            Some(socket) => socket.local_addr()?,
            None => wanted,
        };
        // Steered to or not, what waits in their queues is to be served.
        let bound_virtual = (listener.virtual_addresses.iter().filter(|block| is_single(block)))
            .map(|block| SocketAddr::new(block.address, block.port))
            .map(|address| (address, inherited.take_at(&listener.name, address)))
            .filter(|(_, sockets)| !sockets.is_empty())
            .collect();
        let dual = inherited.take_dual(&listener.name);
        all.push(Bound { listener: listener.clone(), address, sockets, bound_virtual, dual });
    }
    Ok(all)
}

/// Without steering, single virtual addresses are bound like any other; blocks cannot be.
fn bind_virtual(bound: &mut [Bound], workers: usize) {
    for Bound { listener, bound_virtual, .. } in bound {
        for block in &listener.virtual_addresses {
            let address = SocketAddr::new(block.address, block.port);
            if bound_virtual.iter().any(|(bound, _)| *bound == address) {
                continue;
            }
            match bind_all(address, workers) {
                Ok(sockets) if is_single(block) => bound_virtual.push((address, sockets)),
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

fn is_single(block: &VirtualAddress) -> bool {
    block.prefix == if block.address.is_ipv4() { 32 } else { 128 }
}

/// What is handed to a successor: a copy of every listening socket.
fn copies(bound: &[Bound], admin: &TcpListener) -> io::Result<Vec<Handed>> {
    let mut all = Vec::new();
    let mut add = |role, listener: &str, sockets: &[TcpListener]| {
        for socket in sockets {
            let (listener, address) = (listener.to_owned(), socket.local_addr()?);
            let description = Description { role, listener, address };
            all.push(Handed { description, socket: socket.try_clone()? });
        }
        io::Result::Ok(())
    };
    for Bound { listener, sockets, bound_virtual, dual, .. } in bound {
        add(Role::Own, &listener.name, sockets)?;
        for (_, sockets) in bound_virtual {
            add(Role::Virtual, &listener.name, sockets)?;
        }
        add(Role::Dual, &listener.name, dual)?;
    }
    add(Role::Admin, "", std::slice::from_ref(admin))?;
    Ok(all)
}

/// Starts the workers, and returns when they accept, with what is closed when they have ended.
async fn start_workers(
    gateway: &Arc<Gateway>,
    bound: Vec<Bound>,
    workers: usize,
    steered: &Steered,
    tls: Option<&Tls>,
) -> anyhow::Result<(Vec<JoinHandle<()>>, mpsc::UnboundedReceiver<()>)> {
    let shares = share(gateway, bound, workers, steered, tls)?;
    let (accepting, mut ended) = mpsc::unbounded_channel();
    let mut threads = Vec::with_capacity(workers);
    for (index, share) in shares.into_iter().enumerate() {
        let gateway = Arc::clone(gateway);
        let accepting = accepting.clone();
        let work = move || {
            let accepting = || {
                // Nobody waits for it any more if another worker has failed.
                let _ = accepting.send(());
            };
            let ran = listen::run(Arc::clone(&gateway), share, fastrand::u64(..), accepting);
            if let Err(error) = ran {
                warn!("worker {index} could not start: {error}");
                gateway.stop();
            }
        };
        threads.push(std::thread::Builder::new().name(format!("worker-{index}")).spawn(work)?);
    }
    drop(accepting);
    for _ in 0..workers {
        ended.recv().await.context("a worker could not start")?;
    }
    Ok((threads, ended))
}

/// The sockets that each worker is to have.
fn share(
    gateway: &Gateway,
    bound: Vec<Bound>,
    workers: usize,
    steered: &Steered,
    tls: Option<&Tls>,
) -> io::Result<Vec<Vec<listen::Socket>>> {
    let mut shares: Vec<Vec<listen::Socket>> = (0..workers).map(|_| Vec::new()).collect();
    for Bound { listener, sockets, bound_virtual, dual, .. } in bound {
        let metrics = gateway.metrics.listener(&listener.name);
        let exclusive = exclusive(gateway, &listener.name, steered);
        let tls = tls.filter(|_| listener.protocol == Protocol::Https);
        let name: Arc<str> = listener.name.into();
        let arrival = if steered.is_on() { Arrival::SkLookup } else { Arrival::Userspace };
        let groups = [(sockets, arrival), (dual, arrival)].into_iter();
        let bound_virtual = bound_virtual.into_iter().map(|(_, group)| (group, Arrival::Userspace));
        for (group, arrival) in groups.chain(bound_virtual) {
            for (socket, worker) in spread(group, workers)?.into_iter().zip((0..workers).cycle()) {
                if let Some(share) = shares.get_mut(worker) {
                    share.push(listen::Socket {
                        listener: Arc::clone(&name),
                        socket,
                        arrival,
                        metrics: Arc::clone(&metrics),
                        exclusive: exclusive.clone(),
                        protocol: listener.protocol,
                        tls: tls.cloned(),
                    });
                }
            }
        }
    }
    Ok(shares)
}

/// The pool that a listener serves alone, if it does.
fn exclusive(gateway: &Gateway, listener: &str, steered: &Steered) -> Option<Exclusive> {
    let (config, pools) = (gateway.config(), gateway.pools());
    let mut pools = config.schedulers.iter().zip(pools.iter());
    let own = |scheduler: &Scheduler| scheduler.direct.as_deref() == Some(listener);
    let (_, pool) = pools.find(|(scheduler, _)| own(scheduler))?;
    Some(Exclusive { pool: Arc::clone(pool), once: steered.is_direct(listener) })
}

/// At least one of the sockets for each worker: a daemon before this one may have had fewer. To
/// bind more would add queues that go with this process if it does not come to take over.
fn spread(mut sockets: Vec<TcpListener>, workers: usize) -> io::Result<Vec<TcpListener>> {
    let missing = workers.saturating_sub(sockets.len());
    let copies = sockets.iter().cycle().take(missing).map(TcpListener::try_clone);
    let copies: Vec<TcpListener> = copies.collect::<io::Result<_>>()?;
    sockets.extend(copies);
    Ok(sockets)
}

/// The control thread's work: signals, successors, scores, admin pages. Returns when the daemon takes nothing new any
/// more, and whether that is since another one has taken over.
async fn control(
    gateway: &Arc<Gateway>,
    reloading: AbortHandle,
    admin: TcpListener,
    steered: &Rc<Steered>,
    handover: Option<Handover>,
    changed: &Rc<Notify>,
    signals: &mut Signals,
) -> io::Result<bool> {
    let admin = tokio::net::TcpListener::from_std(admin)?;
    let pages = Admin { gateway: Arc::clone(gateway), steered: Rc::clone(steered) };
    let mut serving = spawn_local(admin::serve(admin, pages));
    let publisher = {
        let (gateway, steered, changed) =
            (Arc::clone(gateway), Rc::clone(steered), Rc::clone(changed));
        spawn_local(async move { steered.publish(&gateway, &changed).await })
    };
    let flows = gateway.paths.flows.as_ref();
    for log in [steered.take_log(), flows.and_then(Flows::take_log)].into_iter().flatten() {
        spawn_local(log.follow());
    }
    let mut stopped = gateway.stop_signal();
    let successor = tokio::select! {
        _ = signals.terminate.recv() => {
            info!("stopping: SIGTERM");
            None
        }
        _ = signals.interrupt.recv() => {
            info!("stopping: SIGINT");
            None
        }
        // A worker gave up.
        _ = stopped.wait_for(|stop| *stop) => None,
        successor = taken_over(handover.as_ref()) => {
            info!("stopping: process {} has taken over", successor.pid);
            Some(successor)
        }
    };
    let relieved = successor.is_some();
    publisher.abort();
    reloading.abort();
    if relieved {
        gateway.hand_over();
    } else {
        gateway.stop();
    }
    steered.stop();
    match (handover, successor) {
        (Some(handover), Some(successor)) => {
            serving.abort();
            // Ended, it has closed its socket.
            let _ = (&mut serving).await;
            successor.release(handover).await;
        }
        (Some(handover), None) => {
            handover.withdraw();
            spawn_local(async move { handover.taken_over().await });
        }
        (None, _) => {}
    }
    Ok(relieved)
}

/// Returns once another daemon has taken over.
async fn taken_over(handover: Option<&Handover>) -> Successor {
    match handover {
        Some(handover) => handover.taken_over().await,
        None => std::future::pending().await,
    }
}

/// Waits for the workers to end, which they do with their connections, but no longer than the limit; a second signal
/// ends the wait. Then has the workers cut those that are left, and says how many.
///
/// One that is `supervised` has been relieved as a pod of a cluster. Its kubelet starts again what ends, and sends
/// SIGTERM as soon as the successor is ready: that is no second signal, and there is no end before it.
async fn drain(
    gateway: &Gateway,
    ended: &mut mpsc::UnboundedReceiver<()>,
    signals: &mut Signals,
    mut supervised: bool,
) -> usize {
    let mut wait = pin!(timeout(gateway.config().limits.drain_timeout, ended.recv()));
    loop {
        tokio::select! {
            _ = &mut wait => break,
            _ = signals.terminate.recv() => if !take(&mut supervised) { break },
            _ = signals.interrupt.recv() => break,
        }
    }
    let left = gateway.connections();
    gateway.cut();
    if supervised {
        info!("relieved and done; waiting for SIGTERM");
        signals.any().await;
    }
    left
}

/// Waits until every pod has been asked or found unreachable, but not long.
async fn see_pods(gateway: &Gateway) {
    let seen = async {
        while !gateway.pools().iter().all(|pool| {
            let status = pool.status(Instant::now());
            status.iter().all(|pod| pod.view.age.is_some() || pod.trouble.is_some())
        }) || gateway.auth().unready().is_some()
        {
            sleep(LOOK).await;
        }
    };
    // Later than that, requests go to pods that are not known yet, as after any start.
    let _ = timeout(SEE_PODS, seen).await;
}

/// What no other gateway of the cluster is called.
fn identity() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    format!("{}_{:08x}", host.unwrap_or_default(), fastrand::u32(..))
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

/// How often it is looked whether all pods have been seen.
const LOOK: Duration = Duration::from_millis(10);

/// How long a daemon that takes over looks for its pods first.
const SEE_PODS: Duration = Duration::from_secs(2);

/// For a status to be written before the daemon gives up; it is written half a second after it has become known.
const REPORTED: Duration = Duration::from_secs(2);
