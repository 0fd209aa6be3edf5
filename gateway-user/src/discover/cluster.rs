//! A cluster as the source of the configuration: follows all kinds of objects and resolves them together.
//!
//! On one thread, the control thread's. An object's change is in the configuration after [`SETTLE`], in which others
//! may come that belong with it; nothing is resolved before all kinds have been listed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use kube::{Client, Config};
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{Instant, sleep, timeout};
use tracing::info;

use super::follow::{Change, Kind, Object, follow};
use super::resolve::{Asked, Resolved, Snapshot, resolve, selectors};
use super::selector::covering;
use crate::config::Loaded;

/// Which cluster, and what in it.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The namespace; the one of the gateway's own service account, or of the KUBECONFIG, by default.
    pub namespace: Option<String>,
    /// The `InferenceGatewayConfig`'s name; the only one, or the oldest, by default.
    pub name: Option<String>,
    /// The node that the gateway runs on.
    pub node: Option<String>,
}

/// A cluster that is followed. Dropped, it is not any more.
pub struct Cluster {
    /// The namespace.
    pub namespace: String,
    pub(super) client: Client,
    asked: Asked,
    state: Rc<State>,
    /// The labels that pods are asked for by.
    labels: watch::Sender<Option<String>>,
    /// The same of all other kinds, which never changes.
    _all: watch::Sender<Option<String>>,
    tasks: Vec<AbortHandle>,
}

/// How long ago the API server was heard.
#[derive(Debug)]
pub struct Hearing(Rc<State>);

#[derive(Debug, Default)]
struct State {
    snapshot: RefCell<Snapshot>,
    /// How many kinds have been listed.
    listed: Cell<usize>,
    /// The labels by which the pods were listed.
    pods_by: RefCell<Option<String>>,
    changed: Notify,
    heard: RefCell<Vec<Rc<Cell<Instant>>>>,
}

impl Cluster {
    /// Begins to follow: as a pod of the cluster, or as the KUBECONFIG says. On a [`LocalSet`](tokio::task::LocalSet).
    ///
    /// # Errors
    /// It is not known how to reach it. That it cannot be reached is none: it may come up later.
    pub async fn follow(options: &Options) -> anyhow::Result<Self> {
        let config =
            Config::infer().await.context("this is no pod, and KUBECONFIG leads to no cluster")?;
        let namespace =
            options.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).context("the API server")?;
        let (labels, pod_labels) = watch::channel(None);
        let (all, of_all) = watch::channel(Some(String::new()));
        let asked = Asked { name: options.name.clone(), node: options.node.clone() };
        let state = Rc::new(State::default());
        let mut cluster =
            Self { namespace, client, asked, state, labels, _all: all, tasks: Vec::new() };
        let group = |group: &str, plural: &str| {
            let namespace = &cluster.namespace;
            format!("/apis/{group}/namespaces/{namespace}/{plural}")
        };
        let configs = group("gateway.sluice.dev/v1alpha1", "inferencegatewayconfigs");
        let pools = group("inference.networking.k8s.io/v1", "inferencepools");
        let legacy_pools = group("inference.networking.x-k8s.io/v1alpha2", "inferencepools");
        let pods = format!("/api/v1/namespaces/{}/pods", cluster.namespace);
        cluster.start("InferenceGatewayConfigs", configs, &of_all, |s| &mut s.configs);
        cluster.start("InferencePools", pools, &of_all, |s| &mut s.pools);
        cluster.start("InferencePools of v1alpha2", legacy_pools, &of_all, |s| &mut s.legacy_pools);
        cluster.start("Nodes", NODES.to_owned(), &of_all, |s| &mut s.nodes);
        cluster.start(PODS, pods, &pod_labels, |s| &mut s.pods);
        Ok(cluster)
    }

    /// The first configuration. Waits until the cluster has one that is valid.
    pub async fn first(&mut self) -> Loaded {
        info!("waiting for the configuration in namespace {}", self.namespace);
        loop {
            match self.next(None).await {
                Resolved { config: Some(Ok(loaded)), .. } => return loaded,
                Resolved { config: Some(Err(errors)), .. } => {
                    info!("the InferenceGatewayConfig is not valid yet: {errors}");
                }
                Resolved { config: None, .. } => info!(
                    "namespace {} has neither an InferenceGatewayConfig{} nor an InferencePool yet",
                    self.namespace,
                    self.asked.name.iter().map(|name| format!(" {name}")).collect::<String>()
                ),
            }
        }
    }

    /// What the objects come to that are known now.
    #[must_use]
    pub fn now(&self) -> Resolved {
        resolve(&self.state.snapshot.borrow(), &self.asked)
    }

    /// What the objects come to after the next change of any of them, or `within` that time in any case.
    pub async fn next(&mut self, within: Option<Duration>) -> Resolved {
        loop {
            let changed = self.state.changed.notified();
            match within {
                // Without a change it is the same as before.
                Some(within) => drop(timeout(within, changed).await),
                None => changed.await,
            }
            sleep(SETTLE).await;
            let snapshot = self.state.snapshot.borrow();
            if self.state.listed.get() < KINDS_BEFORE_PODS {
                continue;
            }
            let labels = covering(&selectors(&snapshot, &self.asked));
            self.labels.send_if_modified(|before| {
                let is_other = before.as_ref() != Some(&labels);
                *before = Some(labels.clone());
                is_other
            });
            // The pods of another selector are on their way.
            if self.state.pods_by.borrow().as_ref() == Some(&labels) {
                return resolve(&snapshot, &self.asked);
            }
        }
    }

    /// Tells how long ago the API server was heard.
    #[must_use]
    pub fn hearing(&self) -> Hearing {
        Hearing(Rc::clone(&self.state))
    }

    fn start<T: Object + std::fmt::Debug + 'static>(
        &mut self,
        name: &'static str,
        path: String,
        labels: &watch::Receiver<Option<String>>,
        objects: fn(&mut Snapshot) -> &mut BTreeMap<String, T>,
    ) {
        let heard = Rc::new(Cell::new(Instant::now()));
        self.state.heard.borrow_mut().push(Rc::clone(&heard));
        let metadata_only = path == NODES;
        let kind = Kind { name, path, metadata_only, labels: labels.clone(), heard };
        let state = Rc::clone(&self.state);
        let is_listed = Cell::new(false);
        let take = move |change| {
            let mut snapshot = state.snapshot.borrow_mut();
            let objects = objects(&mut snapshot);
            match change {
                Change::All(all, labels) => {
                    *objects = all
                        .into_iter()
                        .map(|object: T| (object.meta().name.clone(), object))
                        .collect();
                    if name == PODS {
                        state.pods_by.replace(Some(labels));
                    } else if !is_listed.replace(true) {
                        state.listed.set(state.listed.get() + 1);
                    }
                }
                Change::Set(object) => drop(objects.insert(object.meta().name.clone(), object)),
                // One of the same name that came after it is another.
                Change::Gone(object) => {
                    let meta = object.meta();
                    if objects.get(&meta.name).is_some_and(|known| known.meta().uid == meta.uid) {
                        objects.remove(&meta.name);
                    }
                }
            }
            state.changed.notify_one();
        };
        self.tasks.push(spawn_local(follow(self.client.clone(), kind, take)).abort_handle());
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Hearing {
    /// For how long the API server has not been heard of the kind of objects of which that is longest. Without a change,
    /// it is heard once a minute.
    #[must_use]
    pub fn age(&self) -> Duration {
        let heard = self.0.heard.borrow();
        heard.iter().map(|heard| heard.get().elapsed()).max().unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// From a change until it is resolved.
const SETTLE: Duration = Duration::from_millis(50);
/// Kinds that are listed before pods, as they say which pods.
const KINDS_BEFORE_PODS: usize = 4;
const PODS: &str = "Pods";
const NODES: &str = "/api/v1/nodes";
