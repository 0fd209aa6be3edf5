//! Writes what becomes of the objects, as the one of all gateways that holds the lease: the status of the gateway's
//! object, that of the `InferencePool`s, and events.
//!
//! Nothing waits for it: a status that cannot be written is written later, and requests are served meanwhile.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info};

use super::cluster::{CONFIGS, Cluster, State};
use super::conditions::{Report, Unapplied, status};
use super::events::{Entry, Journal, Note, notes};
use super::hold::{Held, Holder};
use super::lease::RENEW;
use super::objects::{InferencePool, Meta};
use super::parents::{has_orphan, parents, standing};
use super::resolve::Resolved;
use super::signals::Lack;
use super::writes::{APPLY, Api, JSON, MERGE, Troubles};
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
            api: Api { client: cluster.client.clone(), namespace: cluster.namespace.clone() },
            state: Rc::clone(&cluster.state),
            holder: Holder::new(identity.clone()),
            journal: Journal::new(identity.clone()),
            identity,
            written: None,
            sweeping: None,
            troubles: Troubles::default(),
            doing: LEASE,
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

struct Writer {
    api: Api,
    state: Rc<State>,
    holder: Holder,
    journal: Journal,
    identity: String,
    written: Option<Written>,
    /// When the entries in pools are to be taken out whose object is gone, if there are some.
    sweeping: Option<Instant>,
    troubles: Troubles,
    /// What is being written.
    doing: &'static str,
    /// Events are refused.
    is_silenced: bool,
}

/// The status that was written last.
struct Written {
    status: Status,
    at: Instant,
    /// The state of the object that it was written to, and the one that came of it.
    before: String,
    after: String,
}

impl Writer {
    async fn run(mut self, wanted: Rc<Wanted>) {
        let state = Rc::clone(&self.state);
        loop {
            let due = async {
                tokio::select! {
                    () = wanted.changed.notified() => sleep(PACE).await,
                    () = state.said.notified() => sleep(PACE).await,
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
            if timeout(PATIENCE, self.write(&report)).await.is_err() {
                self.failed(self.doing, &kube::Error::Service("no answer in time".into()));
            }
        }
    }

    fn failed(&mut self, what: &'static str, error: &kube::Error) {
        self.troubles.tell(what, error, Instant::now());
    }

    async fn write(&mut self, report: &Report) {
        let time = jiff::Timestamp::now().strftime(TIME).to_string();
        let Some(object) = &report.resolved.object else { return self.sweep(report, &time).await };
        self.sweeping = None;
        // It is gone, or another has its name: what comes of that is on its way.
        let Some((object, reported)) = self.current(object) else { return };
        if !self.troubles.may(LEASE, Instant::now()) {
            return;
        }
        self.doing = LEASE;
        let is_idle = report.applied == Err(Unapplied::Nothing);
        // Where nobody says that it writes, this one may.
        let is_vacant = reported.writer.is_empty();
        match self.holder.hold(&self.api, &object, is_vacant, is_idle).await {
            Ok(held) => {
                self.troubles.over(LEASE);
                match held {
                    Held::No => return,
                    Held::Still => {}
                    Held::Now => {
                        // Another one may have written since.
                        self.written = None;
                        let message =
                            format!("gateway {} writes the status and these events", self.identity);
                        let note = Note { is_warning: false, reason: "Writer".into(), message };
                        self.tell(&object, vec![note]).await;
                    }
                }
            }
            Err(error) => return self.failed(LEASE, &error),
        }
        self.write_status(report, &object, reported, &time).await;
        self.write_parents(report, Some(&object), &time).await;
    }

    /// The object as it is now, and its status: what is only said of it makes no other report.
    fn current(&self, object: &Meta) -> Option<(Meta, Status)> {
        let snapshot = self.state.snapshot.borrow();
        let known = snapshot.configs.get(&object.name)?;
        let status = Status::deserialize(&known.status).unwrap_or_default();
        (known.metadata.uid == object.uid).then(|| (known.metadata.clone(), status))
    }

    async fn write_status(&mut self, report: &Report, object: &Meta, reported: Status, time: &str) {
        let (before, version) = self.known(object, reported);
        let mut status = status(report, &before, time);
        status.writer.clone_from(&self.identity);
        let is_old = self.written.as_ref().is_none_or(|written| written.at.elapsed() >= RENEW);
        if status == before || !is_old && !is_urgent(&before, &status) {
            return;
        }
        if !self.troubles.may(STATUS, Instant::now()) {
            return;
        }
        self.doing = STATUS;
        match self.send_status(object, &version, &status).await {
            Ok(after) => {
                self.troubles.over(STATUS);
                let (at, before_it) = (Instant::now(), object.resource_version.clone());
                self.written =
                    Some(Written { status: status.clone(), at, before: before_it, after });
                self.tell(object, notes(&before, &status)).await;
            }
            // It has changed, or is gone; what has become of it comes by the watch, and leads here again.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => self.failed(STATUS, &error),
        }
    }

    /// The status of an object and the state that has it, of which the watch may be behind what was written.
    fn known(&self, object: &Meta, reported: Status) -> (Status, String) {
        match &self.written {
            Some(written) if written.before == object.resource_version => {
                (written.status.clone(), written.after.clone())
            }
            _ => (reported, object.resource_version.clone()),
        }
    }

    /// Writes the status of this state of the object, and of none that another gateway has written since: the state that
    /// comes of it.
    async fn send_status(
        &self,
        object: &Meta,
        version: &str,
        status: &Status,
    ) -> Result<String, kube::Error> {
        let path = format!(
            "/apis/gateway.sluice.dev/v1alpha1/namespaces/{}/inferencegatewayconfigs/{}/status\
             ?fieldManager=sluice&force=true",
            self.api.namespace, object.name
        );
        let body = json!({
            "apiVersion": "gateway.sluice.dev/v1alpha1",
            "kind": "InferenceGatewayConfig",
            // Not of another object that has its name now.
            "metadata": { "name": object.name, "uid": object.uid, "resourceVersion": version },
            "status": status,
        });
        let answer = self.api.send::<Value>("PATCH", &path, APPLY, &body).await?;
        let version = answer.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        Ok(version.unwrap_or_default().to_owned())
    }

    /// Takes out what was said of pools in the name of an object that is gone. Whoever wrote it may be gone as well, so
    /// that every gateway does, and not all at once.
    async fn sweep(&mut self, report: &Report, time: &str) {
        let has_written = self.holder.let_go();
        let is_due = {
            let snapshot = self.state.snapshot.borrow();
            let exists = |name: &str| snapshot.configs.contains_key(name);
            // Who may not read the objects does not know that they are gone.
            !self.state.is_troubled(CONFIGS)
                && snapshot.pools.values().any(|pool| has_orphan(pool, exists))
        };
        if !is_due {
            self.sweeping = None;
            return;
        }
        let now = Instant::now();
        let later = if has_written { 0.0 } else { 1.0 + fastrand::f64() };
        if *self.sweeping.get_or_insert_with(|| now + RENEW.mul_f64(later)) <= now {
            self.write_parents(report, None, time).await;
        }
    }

    /// Says of each `InferencePool` whether it is served.
    async fn write_parents(&mut self, report: &Report, object: Option<&Meta>, time: &str) {
        let changes: Vec<(Meta, Vec<Value>)> = {
            let snapshot = self.state.snapshot.borrow();
            let exists = |name: &str| snapshot.configs.contains_key(name);
            let change = |(name, pool): (&String, &InferencePool)| {
                let list = parents(pool, object, &standing(name, report), exists, time)?;
                Some((pool.metadata.clone(), list))
            };
            snapshot.pools.iter().filter_map(change).collect()
        };
        if changes.is_empty() || !self.troubles.may(POOLS, Instant::now()) {
            return;
        }
        self.doing = POOLS;
        let mut failed = None;
        for (pool, list) in changes {
            let path = format!(
                "/apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools/{}/status\
                 ?fieldManager=sluice",
                self.api.namespace, pool.name
            );
            let body = json!({
                // The list is one value: it must not take back what another controller has written meanwhile.
                "metadata": { "resourceVersion": pool.resource_version, "uid": pool.uid },
                "status": { "parents": list },
            });
            match self.api.send::<Value>("PATCH", &path, MERGE, &body).await {
                Ok(_) => {}
                // It has changed, or is gone; what has become of it comes by the watch, and leads here again.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                // Nor are the others this gateway's to write.
                Err(kube::Error::Api(status)) if matches!(status.code, 401 | 403) => {
                    failed = Some(kube::Error::Api(status));
                    break;
                }
                // One that cannot be written keeps none of the others.
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            None => self.troubles.over(POOLS),
            Some(error) => self.failed(POOLS, &error),
        }
    }

    /// Writes events. That they fail is no trouble: nothing hangs on them.
    async fn tell(&mut self, object: &Meta, notes: Vec<Note>) {
        let all = format!("/api/v1/namespaces/{}/events", self.api.namespace);
        for note in notes {
            let time = jiff::Timestamp::now().strftime(TIME).to_string();
            let mut entry = self.journal.enter(note.clone(), object, Instant::now(), &time);
            if let Some(Entry::Again(name, change)) = &entry {
                let path = format!("{all}/{name}?fieldManager=sluice");
                match self.api.send::<Value>("PATCH", &path, MERGE, change).await {
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
                let sent = self.api.send::<Value>("POST", &path, JSON, event).await;
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

    /// Gives the lease back, and says so where the other gateways see it.
    async fn leave(&mut self) -> Result<(), kube::Error> {
        let Some(object) = self.holder.release(&self.api).await? else { return Ok(()) };
        let Some(Written { mut status, before, after, .. }) = self.written.take() else {
            return Ok(());
        };
        status.writer.clear();
        // Whoever comes next may have written already, and is not to be undone.
        let version = match self.current(&object) {
            Some((meta, known))
                if meta.resource_version != before && known.writer == self.identity =>
            {
                meta.resource_version
            }
            _ => after,
        };
        self.send_status(&object, &version, &status).await?;
        info!("this gateway no longer writes the status of {}", object.name);
        Ok(())
    }
}

/// Whether somebody should see this at once, and not only how many pods there are or what is written of them.
fn is_urgent(before: &Status, after: &Status) -> bool {
    let said = |status: &Status| -> Vec<(String, String, String)> {
        let conditions = status.conditions.iter();
        conditions.map(|of| (of.kind.clone(), of.status.clone(), of.reason.clone())).collect()
    };
    let pools = |status: &Status| -> Vec<(String, bool)> {
        status.schedulers.iter().map(|pool| (pool.name.clone(), pool.ready > 0)).collect()
    };
    before.observed_generation != after.observed_generation
        || before.writer != after.writer
        || said(before) != said(after)
        || pools(before) != pools(after)
}

const LEASE: &str = "the lease";
const STATUS: &str = "the status of the InferenceGatewayConfig";
const POOLS: &str = "the status of InferencePools";
/// Times as the API server writes them.
const TIME: &str = "%Y-%m-%dT%H:%M:%SZ";
/// From a change until it is written, so that many are written as one.
const PACE: Duration = Duration::from_millis(500);
/// For all that one round needs.
const PATIENCE: Duration = Duration::from_secs(10);
/// For giving the lease back.
const LEAVE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_urgent() {
        let status = json!({
            "observedGeneration": 1, "writer": "me", "pods": "1/2",
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Ready", "message": "",
                "lastTransitionTime": "",
            }],
            "schedulers": [{ "name": "a", "matched": 2, "ready": 1 }],
        });
        let read = |status: &Value| Status::deserialize(status).unwrap();
        for (path, value, expected) in [
            ("/pods", json!("2/2"), false),
            ("/schedulers/0/ready", json!(2), false),
            ("/schedulers/0/message", json!("p0: vllm does not tell its load"), false),
            ("/conditions/0/message", json!("of another pod"), false),
            ("/schedulers/0/ready", json!(0), true),
            ("/schedulers/0/name", json!("b"), true),
            ("/conditions/0/status", json!("False"), true),
            ("/conditions/0/reason", json!("Other"), true),
            ("/observedGeneration", json!(2), true),
            ("/writer", json!("you"), true),
        ] {
            let mut after = status.clone();
            after["schedulers"][0]["message"] = "".into();
            let before = read(&after);
            *after.pointer_mut(path).unwrap() = value;
            assert_ne!(before, read(&after), "{path}");
            assert_eq!(is_urgent(&before, &read(&after)), expected, "{path}");
        }
    }
}
