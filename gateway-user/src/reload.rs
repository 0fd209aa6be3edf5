//! Another configuration while the daemon runs: pools, pods, limits, keys and all else that no socket hangs on.
//!
//! All that is wrong with it is found before any of it holds; then the old one stays, and the log, the metrics and the
//! status say so. What cannot change under open sockets ([`fixed`]) stays as it was, which they say as well: a takeover
//! brings it in.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::task::{AbortHandle, spawn_blocking, spawn_local};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::auth::reload::{follow_issuer, prepare};
use crate::auth::{Auth, Unusable};
use crate::config::{self, Config, Errors, Loaded, Scheduler};
use crate::discover::signals::Signals;
use crate::discover::{Cluster, Reporter, Resolved, Unapplied};
use crate::gateway::{Configured, Gateway};
use crate::metrics::Reload;
use crate::pool::Settings;
use crate::watch::Watchers;

/// Where the configuration is from.
#[derive(Debug)]
pub enum Origin {
    /// A file, and what it held when the daemon began.
    File(PathBuf, Box<Loaded>),
    /// A cluster, and who writes what becomes of it.
    Cluster(Box<Cluster>, Rc<Reporter>),
}

/// Follows the configuration. Lives on the control thread.
#[derive(Debug)]
pub struct Reloader {
    gateway: Arc<Gateway>,
    watchers: Watchers,
}

impl Reloader {
    /// Of a daemon that runs.
    pub fn new(gateway: &Arc<Gateway>, watchers: Watchers) -> Self {
        Self { gateway: Arc::clone(gateway), watchers }
    }

    /// Takes what becomes of the configuration. Never ends.
    pub async fn follow(self, origin: Origin, hangup: Signal) {
        match origin {
            Origin::File(file, begun) => self.follow_file(&file, *begun, hangup).await,
            Origin::Cluster(cluster, reporter) => self.follow_cluster(*cluster, &reporter).await,
        }
    }

    /// Takes what a cluster's objects come to, which changes with every pod that is or is not ready.
    async fn follow_cluster(&self, mut cluster: Cluster, reporter: &Rc<Reporter>) {
        let name = format!("namespace {}", cluster.namespace);
        let (hearing, gateway) = (cluster.hearing(), Arc::clone(&self.gateway));
        let told = Rc::clone(reporter);
        let looking = spawn_local(async move {
            let mut signals = Signals::default();
            loop {
                gateway.staleness.set(hearing.age());
                gateway.counted.cluster_age(hearing.age());
                told.lacks(signals.look(&gateway.pools(), Instant::now()));
                sleep(LOOK).await;
            }
        });
        let _looking = Ended(looking.abort_handle());
        let mut resolved = cluster.next(Some(Duration::ZERO)).await;
        let mut taken: Option<Result<Loaded, Errors>> = None;
        // What the specification in force came to, while the object's is another.
        let mut kept: Option<Config> = None;
        loop {
            let found = match resolved.config.clone() {
                Some(Ok(loaded)) if resolved.object.is_none() => {
                    let config = beside(&self.gateway.config(), loaded.config);
                    Ok(Loaded { config, ..loaded })
                }
                Some(found) => found,
                // Without an object or a pool there is nothing to serve; listeners and all else stay as they were.
                None => {
                    let mut config = (**self.gateway.config()).clone();
                    config.schedulers.clear();
                    Ok(Loaded { config, notes: Vec::new(), meanings: Vec::new() })
                }
            };
            // Pods come and go, and nobody has changed the configuration.
            let is_pods = match (&taken, &found) {
                (Some(Ok(before)), Ok(now)) => podless(before) == podless(now),
                (before, now) => before.as_ref() == Some(now),
            };
            match (&taken, &found) {
                (Some(before), now) if before == now && (self.holds() || now.is_err()) => {}
                // What the daemon has begun with.
                (None, Ok(now)) if now.config == **self.gateway.config() => {}
                (Some(_), Ok(now)) if self.holds() && is_pods => {
                    if self.take_pods(now.config.clone()).await.is_err() {
                        self.take(&name, found.clone(), true).await;
                    }
                }
                _ => self.take(&name, found.clone(), !is_pods).await,
            }
            taken = Some(found);
            cluster.taken(self.holds());
            let in_force = cluster.in_force().filter(|_| !self.holds());
            let config = match &in_force {
                Some(Resolved { config: Some(Ok(loaded)), .. }) => {
                    let config = loaded.config.clone();
                    Some(match cluster.is_of_object() {
                        true => config,
                        false => beside(&self.gateway.config(), config),
                    })
                }
                _ => None,
            };
            // The pods of what is served come and go all the same.
            if let Some(config) = config.filter(|config| kept.as_ref() != Some(config)) {
                match apply(&self.gateway, config.clone()).await {
                    Ok(_) => self.watchers.settle(),
                    Err(why) => warn!("{name}: its pods are not followed: {why}"),
                }
                kept = Some(config);
            }
            match in_force {
                // What is said of pods is said of those that are served.
                Some(Resolved { pools, left_out, .. }) => {
                    (resolved.pools, resolved.left_out) = (pools, left_out);
                }
                None => kept = None,
            }
            reporter.report(resolved, applied(&self.gateway.configured()));
            resolved = match self.holds() || taken.as_ref().is_some_and(Result::is_err) {
                true => cluster.next(None).await,
                // A file that it names may come later than it does.
                false => cluster.next(Some(RETRY_LOOKS * LOOK)).await,
            };
        }
    }

    /// Takes the file's content whenever it has changed and has then stayed the same for a second, or at once when
    /// `hangup` comes.
    async fn follow_file(&self, file: &Path, begun: Loaded, mut hangup: Signal) {
        let name = file.display().to_string();
        let mut taken = Ok(begun);
        let mut before = taken.clone();
        let mut looks: u32 = 0;
        loop {
            let asked = tokio::select! {
                () = sleep(LOOK) => false,
                _ = hangup.recv() => true,
            };
            let now = load(file).await;
            // Who writes a file may not be done yet.
            let is_settled = now == std::mem::replace(&mut before, now.clone());
            looks = looks.wrapping_add(1);
            // A file that it names may come later than it does.
            let is_due = now.is_ok() && !self.holds() && looks.is_multiple_of(RETRY_LOOKS);
            let is_other = now != taken;
            if asked || is_settled && (is_other || is_due) {
                taken = now.clone();
                self.take(&name, now, asked || is_other).await;
            }
        }
    }

    /// Whether what was read last is in force.
    fn holds(&self) -> bool {
        self.gateway.configured().trouble.is_none()
    }

    /// Nobody has written anything, but other pods may have to wait for a takeover, or no longer.
    async fn take_pods(&self, config: Config) -> Result<(), Unusable> {
        let waiting = apply(&self.gateway, config).await?;
        self.watchers.settle();
        let before = self.gateway.configured();
        if before.waiting != waiting {
            self.gateway.counted.config_pending(before.trouble.is_some() || !waiting.is_empty());
            self.gateway.set_configured(Configured { waiting, trouble: before.trouble.clone() });
        }
        Ok(())
    }

    /// `is_news`: it has not been tried before, or somebody wants to know.
    async fn take(&self, name: &str, loaded: Result<Loaded, Errors>, is_news: bool) {
        let result = match loaded {
            Ok(loaded) => {
                if is_news {
                    loaded.notes.iter().for_each(|note| warn!("{note}"));
                }
                apply(&self.gateway, loaded.config).await.map_err(|why| why.to_string())
            }
            Err(errors) => Err(errors.to_string()),
        };
        match &result {
            Ok(waiting) => {
                self.watchers.settle();
                info!("{name}: read anew");
                if !waiting.is_empty() {
                    warn!(
                        "{name}: {} cannot change while the gateway runs and stays as it was: \
                         start another with --takeover",
                        waiting.join(", ")
                    );
                }
            }
            Err(_) if !is_news => return,
            Err(why) => warn!("{name}: {why}; the configuration before stays in force"),
        }
        let outcome = if result.is_ok() { Reload::Done } else { Reload::Failed };
        let (waiting, trouble) = match result {
            Ok(waiting) => (waiting, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        self.gateway.counted.config_read(outcome, trouble.is_some() || !waiting.is_empty());
        self.gateway.set_configured(Configured { waiting, trouble });
    }
}

/// The pools of `pools`, which are of no object, with all else as it was: that an object is deleted must not open to
/// everyone what it had closed.
fn beside(before: &Config, pools: Config) -> Config {
    let before = before.clone();
    Config {
        name: before.name,
        listeners: before.listeners,
        admin: before.admin,
        tls: before.tls,
        kernel: before.kernel,
        limits: before.limits,
        profiles: before.profiles,
        exchange: before.exchange,
        auth: before.auth,
        workers: before.workers,
        access_log: before.access_log,
        include_usage: before.include_usage,
        explain_header: before.explain_header,
        ..pools
    }
}

/// Whether all of the configuration is in force, or why not.
fn applied(configured: &Configured) -> Result<(), Unapplied> {
    match (&configured.trouble, configured.waiting.as_slice()) {
        (Some(why), _) => Err(Unapplied::Refused(why.clone())),
        (None, []) => Ok(()),
        (None, parts) => Err(Unapplied::NeedsTakeover(parts.join(", "))),
    }
}

/// Has a task end with whoever started it.
struct Ended(AbortHandle);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What somebody has written.
fn podless(loaded: &Loaded) -> Loaded {
    let mut loaded = loaded.clone();
    loaded.config.schedulers.iter_mut().for_each(|scheduler| scheduler.pods.clear());
    loaded
}

async fn load(file: &Path) -> Result<Loaded, Errors> {
    let file = file.to_owned();
    let loaded = spawn_blocking(move || config::load(&file)).await;
    // It neither panics nor is cancelled.
    loaded.unwrap_or_else(|error| Err(Errors::whole("the configuration", error.to_string())))
}

/// Has `config` hold from now on, but for what is [`fixed`], of which it returns what would have changed.
///
/// # Errors
/// A file that it needs cannot be used. Nothing has changed then.
pub async fn apply(
    gateway: &Arc<Gateway>,
    mut config: Config,
) -> Result<Vec<&'static str>, Unusable> {
    let waiting = fixed(&gateway.config(), &mut config);
    let before = Arc::clone(&gateway.auth());
    let is_other_auth = gateway.config().auth != config.auth;
    let auth = match is_other_auth {
        true => Arc::new(Auth::new(config.auth.as_ref(), &gateway.metrics, Some(&before))),
        false => before,
    };
    let settings: Vec<Settings> = (config.schedulers.iter())
        .map(|scheduler| {
            let pools = gateway.pools();
            let before = pools.iter().find(|pool| *pool.name == *scheduler.name);
            Settings::new(scheduler, before.map(|pool| pool.settings()).as_deref().map(|of| &**of))
        })
        .collect();
    // What decides already is looked at by itself; a file of its that is broken now is no reason against this.
    let prepared = prepare(Some(&auth).filter(|_| is_other_auth), &settings, gateway).await;
    if prepared.is_err() {
        let auth = gateway.auth();
        gateway.metrics.retain_keys(|name| auth.has_key(name));
    }
    prepared?;
    // Ahead of the pools, so that none of them is served for a moment to whom it is closed.
    if is_other_auth {
        gateway.set_auth(Arc::clone(&auth), Instant::now());
        follow_issuer(&auth, gateway);
    }
    gateway.configure(config, settings, Instant::now());
    Ok(waiting)
}

/// Takes into `new` from `old` what open sockets, the kernel's programs and threads are made of, and names what would
/// have changed, as the configuration does. A pool of whole connections is the kernel's as well.
fn fixed(old: &Config, new: &mut Config) -> Vec<&'static str> {
    let mut waiting = Vec::new();
    keep("spec.listeners", &old.listeners, &mut new.listeners, &mut waiting);
    keep("spec.admin", &old.admin, &mut new.admin, &mut waiting);
    keep("spec.tls", &old.tls, &mut new.tls, &mut waiting);
    keep("spec.kernel", &old.kernel, &mut new.kernel, &mut waiting);
    keep("spec.exchange", &old.exchange, &mut new.exchange, &mut waiting);
    keep("spec.workers", &old.workers, &mut new.workers, &mut waiting);
    let direct = |config: &Config| -> Vec<Scheduler> {
        let all = config.schedulers.iter();
        all.filter(|scheduler| scheduler.direct.is_some()).cloned().collect()
    };
    let (before, mut after) = (direct(old), direct(new));
    keep("a scheduler of mode connection", &before, &mut after, &mut waiting);
    let is_direct = |name: &str| before.iter().any(|scheduler| scheduler.name == name);
    new.schedulers.retain(|of| of.direct.is_none() && !is_direct(&of.name));
    // Behind the others: where two serve one model the first has it, and that is to be the wanted one.
    new.schedulers.extend(after);
    waiting
}

fn keep<T: Clone + PartialEq>(
    name: &'static str,
    old: &T,
    new: &mut T,
    waiting: &mut Vec<&'static str>,
) {
    if old != new {
        new.clone_from(old);
        waiting.push(name);
    }
}

/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// One that could not be used is tried again each so many looks.
const RETRY_LOOKS: u32 = 3;

#[cfg(test)]
mod tests {
    use tokio::task::LocalSet;

    use super::*;
    use crate::flow::path::Paths;

    fn config(spec: &str, schedulers: &str) -> Config {
        let text = format!(
            "apiVersion: gateway.sluice.dev/v1alpha1\nkind: InferenceGatewayConfig\n\
             metadata: {{name: test}}\nspec:\n{spec}\n  schedulers:\n{schedulers}"
        );
        config::parse(&text, "test.yaml").unwrap().config
    }

    const POOL: &str = "  - {name: a, modelName: a, pods: ['127.0.0.1:1']}\n";

    #[test]
    fn what_stays_as_it_was_is_named() {
        let tls = "  tls: {certificates: [{certificateFile: /a, keyFile: /b}]}";
        let exchange = "  exchange: {peers: ['10.0.0.1:9903'], keyFile: /k}";
        for (spec, waiting) in [
            ("", &[][..]),
            ("  limits: {drainTimeout: 1s}\n  accessLog: true", &[]),
            ("  auth: {mode: 'off'}", &[]),
            ("  listeners: [{name: other}]", &["spec.listeners"]),
            ("  admin: {port: 1}", &["spec.admin"]),
            (tls, &["spec.tls"]),
            ("  kernel: {logLevel: warn}", &["spec.kernel"]),
            (exchange, &["spec.exchange"]),
            ("  workers: 3\n  kernel: {paths: [relay]}", &["spec.kernel", "spec.workers"]),
        ] {
            let old = config("", POOL);
            let mut new = config(spec, POOL);
            let wanted = new.clone();
            assert_eq!(fixed(&old, &mut new), waiting, "{spec}");
            // And nothing else is kept back.
            assert_eq!(new == wanted, waiting.is_empty(), "{spec}");
            let rest = Config {
                limits: wanted.limits,
                auth: wanted.auth,
                access_log: wanted.access_log,
                ..old
            };
            assert_eq!(new, rest, "{spec}");
        }
    }

    #[test]
    fn pools_without_an_object_change_nothing_else() {
        let spec = "  auth: {apiKeys: {file: /keys}}\n  limits: {drainTimeout: 1s}\n  accessLog: true\n  \
                    listeners: [{name: other}]\n  workers: 3";
        let before = config(spec, POOL);
        let pools = config("", &POOL.replace("name: a", "name: b"));
        let found = beside(&before, pools.clone());
        assert_eq!(found.schedulers, pools.schedulers);
        assert_eq!(Config { schedulers: before.schedulers.clone(), ..found }, before);
    }

    #[test]
    fn pools_of_whole_connections_stay() {
        let listeners = "  listeners: [{name: one, port: 8001}, {name: two, port: 8002}]";
        let direct = |name: &str, port: u16| {
            format!(
                "  - {{name: {name}, modelName: {name}, mode: connection, listener: one, \
                 pods: ['127.0.0.1:{port}']}}\n"
            )
        };
        let old = config(listeners, &format!("{POOL}{}", direct("d", 2)));
        let names = |config: &Config| -> Vec<String> {
            config.schedulers.iter().map(|scheduler| scheduler.name.clone()).collect()
        };
        let as_request = "  - {name: d, modelName: other, pods: ['127.0.0.1:9']}\n";
        for (schedulers, waits, expected) in [
            (format!("{POOL}{}", direct("d", 2)), false, &["a", "d"][..]),
            (direct("d", 2), false, &["d"]),
            (format!("{POOL}{}", direct("d", 3)), true, &["a", "d"]),
            (POOL.to_owned(), true, &["a", "d"]),
            (format!("{as_request}{POOL}"), true, &["a", "d"]),
        ] {
            let mut new = config(listeners, &schedulers);
            let waiting = fixed(&old, &mut new);
            assert_eq!(!waiting.is_empty(), waits, "{schedulers}");
            assert_eq!(names(&new), expected, "{schedulers}");
            let kept = new.schedulers.iter().find(|scheduler| scheduler.name == "d").unwrap();
            assert_eq!(kept.pods[0].address.port(), 2, "{schedulers}");
        }
    }

    #[tokio::test]
    async fn pods_that_wait_for_a_takeover_are_told() {
        let direct = |port: u16| {
            let listeners = "  listeners: [{name: one, port: 8001}, {name: two, port: 8002}]";
            let pool = format!(
                "  - {{name: d, modelName: d, mode: connection, listener: one, \
                 pods: ['127.0.0.1:{port}']}}\n"
            );
            config(listeners, &pool)
        };
        let paths = Paths { flows: None, local: None, splice: None };
        let gateway = Arc::new(Gateway::new(direct(2), paths, 1, None));
        let watchers = Watchers::new(&gateway, &Rc::default());
        let reloader = Reloader::new(&gateway, watchers);
        LocalSet::new()
            .run_until(async {
                for (port, waits) in [(2, false), (3, true), (4, true), (2, false)] {
                    reloader.take_pods(direct(port)).await.unwrap();
                    let part = || Unapplied::NeedsTakeover("a scheduler of mode connection".into());
                    let expected = if waits { Err(part()) } else { Ok(()) };
                    assert_eq!(applied(&gateway.configured()), expected, "{port}");
                }
            })
            .await;
    }
}
