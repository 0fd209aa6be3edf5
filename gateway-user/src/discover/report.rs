//! Writes the object's status, as the one of all gateways that holds the lease.
//!
//! Nothing waits for it: a status that cannot be written is written later, and requests are served meanwhile.

use std::cell::RefCell;
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

use super::cluster::Cluster;
use super::conditions::{Unapplied, status};
use super::lease::{Candidate, RENEW, Spec, Step};
use super::objects::Meta;
use super::resolve::Resolved;
use crate::config::document::Status;

/// Has the status written, for as long as it is there.
#[derive(Debug)]
pub struct Reporter {
    wanted: Rc<Wanted>,
    task: AbortHandle,
}

#[derive(Debug, Default)]
struct Wanted {
    last: RefCell<Option<(Resolved, Result<(), Unapplied>)>>,
    changed: Notify,
}

impl Reporter {
    /// Of one gateway, which no other is called like. On a [`LocalSet`](tokio::task::LocalSet).
    #[must_use]
    pub fn start(cluster: &Cluster, identity: String) -> Self {
        let wanted = Rc::new(Wanted::default());
        let writer = Writer {
            client: cluster.client.clone(),
            namespace: cluster.namespace.clone(),
            candidate: Candidate::new(identity),
            holding: None,
            written: None,
            is_troubled: false,
        };
        let task = spawn_local(writer.run(Rc::clone(&wanted))).abort_handle();
        Self { wanted, task }
    }

    /// Says what the objects have come to, and whether the gateway serves that or why not.
    pub fn report(&self, resolved: Resolved, applied: Result<(), Unapplied>) {
        self.wanted.last.replace(Some((resolved, applied)));
        self.wanted.changed.notify_one();
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
    candidate: Candidate,
    /// The object whose lease this gateway holds, and when it renewed it.
    holding: Option<(String, Instant)>,
    /// The status that it wrote last, and of which state of the object.
    written: Option<(String, Status)>,
    is_troubled: bool,
}

impl Writer {
    async fn run(mut self, wanted: Rc<Wanted>) {
        loop {
            tokio::select! {
                () = wanted.changed.notified() => sleep(PACE).await,
                () = sleep(RENEW) => {}
            }
            let Some((resolved, applied)) = wanted.last.borrow().clone() else { continue };
            let Some(object) = resolved.object.clone() else { continue };
            match timeout(PATIENCE, self.write(&object, &resolved, &applied)).await {
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

    async fn write(
        &mut self,
        object: &Meta,
        resolved: &Resolved,
        applied: &Result<(), Unapplied>,
    ) -> Result<(), kube::Error> {
        if !self.hold(&object.name).await? {
            return Ok(());
        }
        let before = match &self.written {
            // What came back is older than what was written.
            Some((version, status)) if *version == object.resource_version => status.clone(),
            _ => Status::deserialize(&resolved.reported).unwrap_or_default(),
        };
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let status = status(resolved, applied, &before, &now);
        if status == before {
            return Ok(());
        }
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
        self.send::<Value>(Method::PATCH, &path, kind, &body).await?;
        self.written = Some((object.resource_version.clone(), status));
        Ok(())
    }

    /// Whether this gateway holds the lease of an object, after a look at it.
    async fn hold(&mut self, object: &str) -> Result<bool, kube::Error> {
        let held = self.holding.as_ref().filter(|(of, _)| of == object);
        if held.is_some_and(|(_, renewed)| renewed.elapsed() < RENEW) {
            return Ok(true);
        }
        let was_held = self.holding.take().is_some_and(|(of, _)| of == object);
        let name = format!("sluice-{object}");
        let all = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace);
        let path = format!("{all}/{name}");
        let lease: Option<Lease> = match self.send(Method::GET, &path, JSON, &Value::Null).await {
            Ok(lease) => Some(lease),
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            Err(error) => return Err(error),
        };
        let time = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
        let known = lease.as_ref().map(|lease| &lease.spec);
        let Step::Hold(spec) = self.candidate.step(known, Instant::now(), &time) else {
            return Ok(false);
        };
        // With the version, only if nobody else was faster.
        let version = lease.as_ref().map(|lease| lease.metadata.resource_version.as_str());
        let body = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": name, "namespace": self.namespace, "resourceVersion": version },
            "spec": spec,
        });
        let written: Result<Value, _> = match version {
            None => self.send(Method::POST, &all, JSON, &body).await,
            Some(_) => self.send(Method::PUT, &path, JSON, &body).await,
        };
        match written {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => return Ok(false),
            Err(error) => return Err(error),
        }
        if !was_held {
            info!("this gateway writes the status of InferenceGatewayConfig {object}");
            // Another one may have written since.
            self.written = None;
        }
        self.holding = Some((object.to_owned(), Instant::now()));
        Ok(true)
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
/// From a change until it is written, so that many are written as one.
const PACE: Duration = Duration::from_millis(500);
/// For all that one status needs.
const PATIENCE: Duration = Duration::from_secs(10);
