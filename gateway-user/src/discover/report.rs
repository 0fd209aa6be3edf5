//! Writes what becomes of the objects, as the one of all gateways that holds the lease: the status of the gateway's
//! object, that of the `InferencePool`s, and events.
//!
//! Nothing waits for it: a status that cannot be written is written later, and requests are served meanwhile.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use http::{Method, Request};
use kube::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use super::cluster::{Cluster, State};
use super::conditions::{Report, Unapplied, status};
use super::events::{Entry, Journal, Note, notes};
use super::lease::{Candidate, RENEW, Spec, Step};
use super::objects::Meta;
use super::parents::{parents, standing};
use super::resolve::Resolved;
use super::signals::Lack;
use crate::config::document::Status;

/// Has it written, for as long as it is there.
#[derive(Debug)]
pub struct Reporter {
    wanted: Rc<Wanted>,
    task: AbortHandle,
}

#[derive(Debug, Default)]
struct Wanted {
    last: RefCell<Option<Report>>,
    lacks: RefCell<Vec<Lack>>,
    changed: Notify,
    leaving: Notify,
    is_leaving: Cell<bool>,
    left: Notify,
}

impl Reporter {
    /// Of one gateway, which no other is called like. On a [`LocalSet`](tokio::task::LocalSet).
    #[must_use]
    pub fn start(cluster: &Cluster, identity: String) -> Self {
        let wanted = Rc::new(Wanted::default());
        let writer = Writer {
            client: cluster.client.clone(),
            namespace: cluster.namespace.clone(),
            state: Rc::clone(&cluster.state),
            candidate: Candidate::new(identity.clone()),
            journal: Journal::new(identity.clone()),
            identity,
            looked: None,
            holding: None,
            written: None,
            is_troubled: false,
            is_silenced: false,
        };
        let task = spawn_local(writer.run(Rc::clone(&wanted))).abort_handle();
        Self { wanted, task }
    }

    /// Says what the objects have come to, and whether the gateway serves that or why not.
    pub fn report(&self, resolved: Resolved, applied: Result<(), Unapplied>) {
        let lacks = self.wanted.lacks.borrow().clone();
        self.wanted.last.replace(Some(Report { resolved, applied, lacks }));
        self.wanted.changed.notify_one();
    }

    /// Says what is not known of pods.
    pub fn lacks(&self, lacks: Vec<Lack>) {
        if *self.wanted.lacks.borrow() == lacks {
            return;
        }
        if let Some(report) = &mut *self.wanted.last.borrow_mut() {
            report.lacks.clone_from(&lacks);
        }
        self.wanted.lacks.replace(lacks);
        self.wanted.changed.notify_one();
    }

    /// Gives the lease back, so that another gateway need not wait for its end. Nothing is written after that.
    pub async fn release(&self) {
        if !self.wanted.is_leaving.replace(true) {
            self.wanted.leaving.notify_one();
            // Whoever cannot say so in time has said nothing: the lease ends by itself.
            drop(timeout(LEAVE, self.wanted.left.notified()).await);
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Lease {
    metadata: Meta,
    spec: Spec,
}

struct Writer {
    client: Client,
    namespace: String,
    state: Rc<State>,
    candidate: Candidate,
    journal: Journal,
    identity: String,
    /// When it last looked at a lease that another gateway has.
    looked: Option<Instant>,
    /// The object whose lease this gateway holds, and when it renewed it.
    holding: Option<(Meta, Instant)>,
    /// The status that it wrote last, and of which state of the object.
    written: Option<(String, Status)>,
    is_troubled: bool,
    /// Events are refused.
    is_silenced: bool,
}

impl Writer {
    async fn run(mut self, wanted: Rc<Wanted>) {
        loop {
            let due = async {
                tokio::select! {
                    () = wanted.changed.notified() => sleep(PACE).await,
                    () = sleep(RENEW) => {}
                }
            };
            tokio::select! {
                () = due => {}
                () = wanted.leaving.notified() => {
                    if let Err(error) = self.leave().await {
                        debug!("the lease is not given back: {error}");
                    }
                    wanted.left.notify_one();
                    return;
                }
            }
            let Some(report) = wanted.last.borrow().clone() else { continue };
            match timeout(PATIENCE, self.write(&report)).await {
                Ok(Ok(())) => self.is_troubled = false,
                Ok(Err(error)) => self.trouble(&error.to_string()),
                Err(_) => self.trouble("no answer in time"),
            }
        }
    }

    /// Once for each outage.
    fn trouble(&mut self, why: &str) {
        if std::mem::replace(&mut self.is_troubled, true) {
            debug!("the status is not written: {why}");
        } else {
            warn!("the status is not written: {why}");
        }
    }

    async fn write(&mut self, report: &Report) -> Result<(), kube::Error> {
        let now = jiff::Timestamp::now().strftime(TIME).to_string();
        let Some(object) = &report.resolved.object else {
            // What was said of pools in the name of an object that is gone.
            return match self.holding.clone() {
                Some((held, _)) if self.hold(&held, false).await? => {
                    self.write_parents(report, None, &now).await
                }
                _ => Ok(()),
            };
        };
        let reported = Status::deserialize(&report.resolved.reported).unwrap_or_default();
        let is_new = self.holding.is_none();
        // Where nobody says that it writes, this one may.
        if !self.hold(object, reported.writer.is_empty()).await? {
            return Ok(());
        }
        if is_new {
            let message = format!("gateway {} writes the status and these events", self.identity);
            let note = Note { is_warning: false, reason: "Writer".into(), message };
            self.tell(object, vec![note]).await;
        }
        let before = match &self.written {
            // What came back is older than what was written.
            Some((version, status)) if *version == object.resource_version => status.clone(),
            _ => reported,
        };
        let mut status = status(report, &before, &now);
        status.writer.clone_from(&self.identity);
        if status != before {
            self.write_status(object, &status).await?;
            self.written = Some((object.resource_version.clone(), status.clone()));
            self.tell(object, notes(&before, &status)).await;
        }
        self.write_parents(report, Some(object), &now).await
    }

    async fn write_status(&self, object: &Meta, status: &Status) -> Result<(), kube::Error> {
        let path = format!(
            "/apis/gateway.sluice.dev/v1alpha1/namespaces/{}/inferencegatewayconfigs/{}/status\
             ?fieldManager=sluice&force=true",
            self.namespace, object.name
        );
        let body = json!({
            "apiVersion": "gateway.sluice.dev/v1alpha1",
            "kind": "InferenceGatewayConfig",
            // Not of another object that has its name now.
            "metadata": { "name": object.name, "uid": object.uid },
            "status": status,
        });
        let kind = "application/apply-patch+yaml";
        self.send::<Value>(Method::PATCH, &path, kind, &body).await.map(drop)
    }

    /// Says of each `InferencePool` whether it is served.
    async fn write_parents(
        &self,
        report: &Report,
        object: Option<&Meta>,
        now: &str,
    ) -> Result<(), kube::Error> {
        let changes: Vec<(Meta, Vec<Value>)> = {
            let snapshot = self.state.snapshot.borrow();
            let exists = |name: &str| snapshot.configs.contains_key(name);
            let change = |(name, pool): (&String, _)| -> Option<(Meta, Vec<Value>)> {
                let pool: &super::objects::InferencePool = pool;
                let list = parents(pool, object, &standing(name, report), exists, now)?;
                Some((pool.metadata.clone(), list))
            };
            snapshot.pools.iter().filter_map(change).collect()
        };
        let mut failed = Ok(());
        for (pool, list) in changes {
            let path = format!(
                "/apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools/{}/status\
                 ?fieldManager=sluice",
                self.namespace, pool.name
            );
            let body = json!({
                // The list is one value: it must not take back what another controller has written meanwhile.
                "metadata": { "resourceVersion": pool.resource_version, "uid": pool.uid },
                "status": { "parents": list },
            });
            match self.send::<Value>(Method::PATCH, &path, MERGE, &body).await {
                Ok(_) => {}
                // It has changed, or is gone; what has become of it comes by the watch, and leads here again.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                // One that cannot be written keeps none of the others.
                Err(error) => failed = Err(error),
            }
        }
        failed
    }

    /// Writes events. That they fail is no trouble: nothing hangs on them.
    async fn tell(&mut self, object: &Meta, notes: Vec<Note>) {
        let all = format!("/api/v1/namespaces/{}/events", self.namespace);
        for note in notes {
            let time = jiff::Timestamp::now().strftime(TIME).to_string();
            let mut entry = self.journal.enter(note.clone(), object, Instant::now(), &time);
            if let Some(Entry::Again(name, change)) = &entry {
                let path = format!("{all}/{name}?fieldManager=sluice");
                match self.send::<Value>(Method::PATCH, &path, MERGE, change).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => {
                        self.journal.forget(name);
                        entry = self.journal.enter(note, object, Instant::now(), &time);
                    }
                    sent => {
                        self.sent(sent);
                        continue;
                    }
                }
            }
            if let Some(Entry::New(event)) = &entry {
                let path = format!("{all}?fieldManager=sluice");
                let sent = self.send::<Value>(Method::POST, &path, JSON, event).await;
                self.sent(sent);
            }
        }
    }

    /// Once for each outage.
    fn sent(&mut self, sent: Result<Value, kube::Error>) {
        match sent {
            Ok(_) => self.is_silenced = false,
            Err(error) if std::mem::replace(&mut self.is_silenced, true) => {
                debug!("an event is not written: {error}");
            }
            Err(error) => info!("an event is not written: {error}"),
        }
    }

    /// Whether this gateway holds the lease of an object, after a look at it. `is_vacant`: nobody may have it.
    async fn hold(&mut self, object: &Meta, is_vacant: bool) -> Result<bool, kube::Error> {
        let held = self.holding.as_ref().filter(|(of, _)| of.name == object.name);
        if held.is_some_and(|(_, renewed)| renewed.elapsed() < RENEW) {
            return Ok(true);
        }
        // Pods that come and go are no reason to look who has it.
        let is_recent = self.looked.is_some_and(|looked| looked.elapsed() < RENEW);
        if held.is_none() && is_recent && !is_vacant {
            return Ok(false);
        }
        let was_held = self.holding.take().is_some_and(|(of, _)| of.name == object.name);
        let lease = self.lease(&object.name).await?;
        let time = jiff::Timestamp::now().strftime(MICRO_TIME).to_string();
        let known = lease.as_ref().map(|lease| &lease.spec);
        let Step::Hold(spec) = self.candidate.step(known, Instant::now(), &time) else {
            self.looked = Some(Instant::now());
            return Ok(false);
        };
        if !self.write_lease(&object.name, lease.as_ref(), &spec).await? {
            return Ok(false);
        }
        if !was_held {
            info!("this gateway writes the status of InferenceGatewayConfig {}", object.name);
            // Another one may have written since.
            self.written = None;
        }
        self.holding = Some((object.clone(), Instant::now()));
        Ok(true)
    }

    /// Gives the lease back, and says so where the other gateways see it.
    async fn leave(&mut self) -> Result<(), kube::Error> {
        let Some((object, _)) = self.holding.take() else { return Ok(()) };
        let Some(lease) = self.lease(&object.name).await? else { return Ok(()) };
        let Some(spec) = self.candidate.release(&lease.spec) else { return Ok(()) };
        if self.write_lease(&object.name, Some(&lease), &spec).await?
            && let Some((_, mut status)) = self.written.take()
        {
            status.writer.clear();
            self.write_status(&object, &status).await?;
            info!("this gateway no longer writes the status of {}", object.name);
        }
        Ok(())
    }

    async fn lease(&self, object: &str) -> Result<Option<Lease>, kube::Error> {
        let path = format!("{}/sluice-{object}", self.leases());
        match self.send(Method::GET, &path, JSON, &Value::Null).await {
            Ok(lease) => Ok(Some(lease)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether it could be written: only if nobody else was faster.
    async fn write_lease(
        &self,
        object: &str,
        before: Option<&Lease>,
        spec: &Spec,
    ) -> Result<bool, kube::Error> {
        let (all, name) = (self.leases(), format!("sluice-{object}"));
        let version = before.map(|lease| lease.metadata.resource_version.as_str());
        let body = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": name, "namespace": self.namespace, "resourceVersion": version },
            "spec": spec,
        });
        let written: Result<Value, _> = match version {
            None => self.send(Method::POST, &all, JSON, &body).await,
            Some(_) => self.send(Method::PUT, &format!("{all}/{name}"), JSON, &body).await,
        };
        match written {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn leases(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace)
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: &Value,
    ) -> Result<T, kube::Error> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(path).header("content-type", kind);
        self.client.request(request.body(body).map_err(kube::Error::HttpError)?).await
    }
}

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
/// Times as the API server writes them, of most objects and of leases.
const TIME: &str = "%Y-%m-%dT%H:%M:%SZ";
const MICRO_TIME: &str = "%Y-%m-%dT%H:%M:%S%.6fZ";
/// From a change until it is written, so that many are written as one.
const PACE: Duration = Duration::from_millis(500);
/// For all that one status needs.
const PATIENCE: Duration = Duration::from_secs(10);
/// For giving the lease back.
const LEAVE: Duration = Duration::from_secs(2);
