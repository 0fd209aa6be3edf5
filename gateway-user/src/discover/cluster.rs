//! A cluster as the source of the configuration: follows all kinds of objects and resolves them together.
//!
//! On one thread, the control thread's. An object's change is in the configuration after [`SETTLE`], in which others
//! may come that belong with it; nothing is resolved before all kinds have been listed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::mem::take;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{Instant, sleep, timeout};
use tracing::info;

use super::adapters;
use super::conditions::Unapplied;
use super::extension::Extension;
use super::follow::{Change, Kind, Object, Trouble, follow};
use super::pickers::{self, PickerMap};
use super::report::Reporter;
use super::resolve::{Asked, Resolved, Snapshot, resolve, resolve_as, selectors, specification};
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
    /// The gateway is not ready when the API server has not been heard for longer than this.
    pub max_age: Option<Duration>,
}

/// A cluster that is followed. Dropped, it is not any more.
pub struct Cluster {
    /// The namespace.
    pub namespace: String,
    /// From when on the gateway is not ready for want of news.
    pub max_age: Option<Duration>,
    pub(super) client: Client,
    asked: Asked,
    pub(super) state: Rc<State>,
    in_force: InForce,
    /// All objects but pods and nodes as they were resolved last, and the labels of the pods.
    settled: Option<(String, Snapshot)>,
    /// The labels that pods are asked for by.
    labels: watch::Sender<Option<String>>,
    /// The ConfigMaps that are asked for, by a field.
    pickers: watch::Sender<Option<String>>,
    /// The same of all other kinds, which never changes.
    _all: watch::Sender<Option<String>>,
    _managed: watch::Sender<Option<String>>,
    tasks: Vec<AbortHandle>,
}

/// How long ago the API server was heard.
#[derive(Debug)]
pub struct Hearing(Rc<State>);

/// What the gateway serves, which need not be what the object says.
#[derive(Debug, Default)]
struct InForce {
    /// The specification that was taken last; an empty one where there was none.
    spec: Option<Wanted>,
    /// The one that the caller has been given last.
    offered: Option<Wanted>,
    /// The object's, which is valid, was not taken for another reason.
    is_refused: bool,
    /// The pods of that specification are followed.
    is_covered: bool,
}

/// A specification, and the ConfigMaps that it names.
#[derive(Clone, Debug, Default, PartialEq)]
struct Wanted {
    spec: Value,
    pickers: BTreeMap<String, PickerMap>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) snapshot: RefCell<Snapshot>,
    /// How many kinds have been listed.
    listed: Cell<usize>,
    /// The labels by which the pods were listed.
    pods_by: RefCell<Option<String>>,
    /// The field by which the ConfigMaps were.
    pickers_by: RefCell<Option<String>>,
    changed: Notify,
    /// Something was said of an object, which changes nothing else.
    pub(super) said: Notify,
    /// When each kind was heard, of those that are asked for.
    heard: RefCell<Vec<Heard>>,
}

#[derive(Debug)]
struct Heard {
    asked: watch::Receiver<Option<String>>,
    at: Rc<Cell<Instant>>,
    trouble: Rc<RefCell<Option<Trouble>>>,
}

impl State {
    /// Whether the objects of this kind cannot be heard now.
    pub(super) fn is_troubled(&self, kind: &str) -> bool {
        self.troubles().iter().any(|trouble| trouble.kind == kind)
    }

    fn troubles(&self) -> Vec<Trouble> {
        self.heard.borrow().iter().filter_map(|heard| heard.trouble.borrow().clone()).collect()
    }

    fn without_pods(&self) -> Snapshot {
        let mut snapshot = self.snapshot.borrow_mut();
        let (pods, nodes) = (take(&mut snapshot.pods), take(&mut snapshot.nodes));
        let rest = snapshot.clone();
        (snapshot.pods, snapshot.nodes) = (pods, nodes);
        rest
    }
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
        let (pickers, picker_fields) = watch::channel(None);
        let (managed, of_managed) = watch::channel(Some(adapters::LABELS.to_owned()));
        let asked = Asked { name: options.name.clone(), node: options.node.clone() };
        let (state, in_force) = (Rc::new(State::default()), InForce::default());
        let mut cluster = Self {
            namespace,
            max_age: options.max_age,
            client,
            asked,
            state,
            in_force,
            settled: None,
            labels,
            pickers,
            _all: all,
            _managed: managed,
            tasks: Vec::new(),
        };
        let namespace = cluster.namespace.clone();
        let group =
            |group: &str, plural: &str| format!("/apis/{group}/namespaces/{namespace}/{plural}");
        let configs = group("gateway.sluice.dev/v1alpha1", "inferencegatewayconfigs");
        let pools = group("inference.networking.k8s.io/v1", "inferencepools");
        let legacy_pools = group(LEGACY, "inferencepools");
        let pods = format!("/api/v1/namespaces/{}/pods", cluster.namespace);
        cluster.start(CONFIGS, configs, &of_all, |s| &mut s.configs);
        cluster.start("InferencePools", pools, &of_all, |s| &mut s.pools);
        cluster.start("InferencePools of v1alpha2", legacy_pools, &of_all, |s| &mut s.legacy_pools);
        let start = |cluster: &mut Self, name, of, plural, objects: fn(&mut Snapshot) -> &mut _| {
            cluster.start::<Extension>(name, group(of, plural), &of_all, objects);
        };
        let (rewrites, objectives) = ("inferencemodelrewrites", "inferenceobjectives");
        let name = "InferenceModelRewrites of llm-d";
        start(&mut cluster, name, LLM_D, rewrites, |s| &mut s.rewrites);
        let name = "InferenceModelRewrites";
        start(&mut cluster, name, LEGACY, rewrites, |s| &mut s.legacy_rewrites);
        let name = "InferenceObjectives of llm-d";
        start(&mut cluster, name, LLM_D, objectives, |s| &mut s.objectives);
        let name = "InferenceObjectives";
        start(&mut cluster, name, LEGACY, objectives, |s| &mut s.legacy_objectives);
        let maps = format!("/api/v1/namespaces/{}/configmaps", cluster.namespace);
        cluster.start("ConfigMaps of adapters", maps.clone(), &of_managed, |s| &mut s.adapters);
        cluster.start("Nodes", NODES.to_owned(), &of_all, |s| &mut s.nodes);
        cluster.start(PICKERS, maps, &picker_fields, |s| &mut s.pickers);
        cluster.start(PODS, pods, &pod_labels, |s| &mut s.pods);
        Ok(cluster)
    }

    /// The first configuration, and what it is from. Waits until the cluster has one that is valid, and reports those that
    /// are not.
    pub async fn first(&mut self, reporter: &Reporter) -> (Loaded, Resolved) {
        info!("waiting for the configuration in namespace {}", self.namespace);
        let mut before = None;
        loop {
            let resolved = self.next(None).await;
            let why = match &resolved.config {
                Some(Ok(loaded)) => {
                    let loaded = loaded.clone();
                    self.taken(true);
                    return (loaded, resolved);
                }
                Some(Err(errors)) => {
                    format!("the InferenceGatewayConfig is not valid yet: {errors}")
                }
                None => format!(
                    "namespace {} has neither an InferenceGatewayConfig{} nor an InferencePool yet",
                    self.namespace,
                    self.asked.name.iter().map(|name| format!(" {name}")).collect::<String>()
                ),
            };
            // Every pod that comes leads here.
            if before.as_ref() != Some(&why) {
                info!("{why}");
            }
            reporter.report(resolved, Err(Unapplied::Nothing));
            before = Some(why);
        }
    }

    /// Says whether the gateway serves what [`next`](Self::next) has returned last.
    pub fn taken(&mut self, taken: bool) {
        let in_force = &mut self.in_force;
        if taken && (in_force.spec.is_none() || in_force.spec != in_force.offered) {
            let none = || Wanted { spec: json!({}), ..Wanted::default() };
            in_force.spec = Some(in_force.offered.clone().unwrap_or_else(none));
        }
        in_force.is_refused = !taken;
        if in_force.spec.is_some() && in_force.is_refused != in_force.is_covered {
            // Other pods are to be followed than are.
            self.state.changed.notify_one();
        }
    }

    /// Whether the specification in force is an object's; pools by themselves say nothing of listeners and the like.
    #[must_use]
    pub fn is_of_object(&self) -> bool {
        self.in_force.spec.as_ref().is_some_and(|wanted| wanted.spec != json!({}))
    }

    /// What the specification comes to that is in force, where the object's is not; none as long as its pods are not
    /// known.
    #[must_use]
    pub fn in_force(&self) -> Option<Resolved> {
        let wanted = self.in_force.spec.as_ref().filter(|_| self.in_force.is_covered)?;
        let Wanted { spec, pickers } = wanted.clone();
        Some(resolve_as(spec, &pickers, &self.state.snapshot.borrow(), &self.asked))
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
            let resolved = resolve(&snapshot, &self.asked);
            let is_wrong = matches!(resolved.config, Some(Err(_)));
            let own = specification(&snapshot, &self.asked);
            let in_force = self.in_force.spec.as_ref().map(|wanted| &wanted.spec);
            // What is wrong may be so for want of what it names.
            let pickers = pickers::query(own);
            self.pickers.send_if_modified(|before| {
                let is_other = *before != pickers;
                if is_other {
                    before.clone_from(&pickers);
                    // What was known is as old as the question.
                    self.state.pickers_by.replace(None);
                }
                is_other
            });
            let is_pending = pickers.is_some() && *self.state.pickers_by.borrow() != pickers;
            if is_pending {
                match self.meanwhile(&snapshot) {
                    Some(resolved) => return resolved,
                    None => continue,
                }
            }
            let in_force = in_force.filter(|_| is_wrong || self.in_force.is_refused);
            let own = own.filter(|_| !is_wrong || in_force.is_none());
            let specs = own.into_iter().chain(in_force);
            let labels = covering(&selectors(specs, &snapshot));
            let is_covered = in_force.is_some();
            self.labels.send_if_modified(|before| {
                let is_other = before.as_ref() != Some(&labels);
                *before = Some(labels.clone());
                is_other
            });
            // The pods of another selector are on their way.
            if self.state.pods_by.borrow().as_ref() == Some(&labels) {
                self.in_force.is_covered = is_covered;
                self.in_force.offered = specification(&snapshot, &self.asked).map(|spec| Wanted {
                    pickers: pickers::named(spec, &snapshot.pickers),
                    spec: spec.clone(),
                });
                drop(snapshot);
                self.settled = Some((labels, self.state.without_pods()));
                return resolved;
            }
            if let Some(resolved) = self.meanwhile(&snapshot) {
                return resolved;
            }
        }
    }

    /// What the objects come to that were there before others wanted to know what is not there yet, with the pods of now:
    /// who waits for one pool's must not miss the others'.
    fn meanwhile(&self, snapshot: &Snapshot) -> Option<Resolved> {
        let (labels, settled) = self.settled.as_ref()?;
        if self.state.pods_by.borrow().as_ref() != Some(labels) {
            return None;
        }
        let (pods, nodes) = (snapshot.pods.clone(), snapshot.nodes.clone());
        let mut settled = Snapshot { pods, nodes, ..settled.clone() };
        // What is reported is compared with what has been.
        for (name, object) in &mut settled.configs {
            let now = snapshot.configs.get(name);
            if let Some(now) = now.filter(|now| now.metadata.uid == object.metadata.uid) {
                object.status.clone_from(&now.status);
                object.metadata.resource_version.clone_from(&now.metadata.resource_version);
            }
        }
        Some(resolve(&settled, &self.asked))
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
        let trouble = Rc::default();
        let watched =
            Heard { asked: labels.clone(), at: Rc::clone(&heard), trouble: Rc::clone(&trouble) };
        self.state.heard.borrow_mut().push(watched);
        let metadata_only = path == NODES;
        let by_fields = name == PICKERS;
        let kind =
            Kind { name, path, metadata_only, by_fields, labels: labels.clone(), heard, trouble };
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
                    } else if name == PICKERS {
                        state.pickers_by.replace(Some(labels));
                    } else if !is_listed.replace(true) {
                        state.listed.set(state.listed.get() + 1);
                    }
                }
                Change::Set(object) => {
                    let before = objects.get(&object.meta().name);
                    let is_news = before.is_none_or(|before| object.is_news(before));
                    objects.insert(object.meta().name.clone(), object);
                    if !is_news {
                        state.said.notify_one();
                        return;
                    }
                }
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
    /// The kinds of objects that cannot be heard now, and why.
    #[must_use]
    pub fn troubles(&self) -> Vec<Trouble> {
        self.0.troubles()
    }

    /// For how long the API server has not been heard of the kind of objects of which that is longest. Without a change,
    /// it is heard once a minute.
    #[must_use]
    pub fn age(&self) -> Duration {
        let heard = self.0.heard.borrow();
        let asked = heard.iter().filter(|heard| heard.asked.borrow().is_some());
        asked.map(|heard| heard.at.get().elapsed()).max().unwrap_or_default()
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
const KINDS_BEFORE_PODS: usize = 9;
/// Where InferenceModelRewrite and InferenceObjective were first, and where they are.
const LEGACY: &str = "inference.networking.x-k8s.io/v1alpha2";
const LLM_D: &str = "llm-d.ai/v1alpha2";
/// Names of kinds.
pub(crate) const CONFIGS: &str = "InferenceGatewayConfigs";
pub(crate) const PODS: &str = "Pods";
const PICKERS: &str = "ConfigMaps";
const NODES: &str = "/api/v1/nodes";
