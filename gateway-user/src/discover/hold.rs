//! Holds the `Lease` of an object, which makes this gateway the one that writes.

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::info;

use super::lease::{Candidate, RENEW, Spec, Step};
use super::objects::Meta;
use super::writes::{Api, JSON};

/// The lease of one object, as one gateway has it or has it not.
#[derive(Debug)]
pub(super) struct Holder {
    candidate: Candidate,
    /// The object whose lease this gateway holds, and when it renewed it. One that could not be renewed is held until it
    /// is known to be another's.
    holding: Option<(Meta, Instant)>,
}

/// Whether this gateway holds the lease.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Held {
    No,
    Still,
    /// It did not before.
    Now,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Lease {
    metadata: Meta,
    spec: Spec,
}

impl Holder {
    /// Of the gateway of this name, which holds nothing yet.
    pub(super) fn new(identity: String) -> Self {
        Self { candidate: Candidate::new(identity), holding: None }
    }

    /// Whether this gateway holds the lease of an object, after a look at it if one is due. `is_vacant`: nobody says that
    /// it writes; `is_idle`: this gateway serves nothing.
    ///
    /// # Errors
    /// It cannot be read or written. Whoever held it may hold it still.
    pub(super) async fn hold(
        &mut self,
        api: &Api,
        object: &Meta,
        is_vacant: bool,
        is_idle: bool,
    ) -> Result<Held, kube::Error> {
        let held = self.holding.as_ref().filter(|(of, _)| of.name == object.name);
        let was_held = held.is_some();
        if held.is_some_and(|(_, renewed)| renewed.elapsed() < RENEW) {
            return Ok(Held::Still);
        }
        if !was_held && !self.candidate.is_due(&object.uid, is_vacant, Instant::now()) {
            return Ok(Held::No);
        }
        let lease = lease(api, &object.name).await?;
        // From before it is written: others count from when they see it.
        let now = Instant::now();
        let time = jiff::Timestamp::now().strftime(MICRO_TIME).to_string();
        let known = lease.as_ref().map(|lease| &lease.spec);
        let step = self.candidate.step(known, is_idle, now, &time);
        let is_written = match &step {
            Step::Hold(spec) => write(api, object, lease.as_ref(), spec).await?,
            Step::Wait => false,
        };
        if !is_written {
            self.holding = None;
            return Ok(Held::No);
        }
        self.holding = Some((object.clone(), now));
        if was_held {
            return Ok(Held::Still);
        }
        info!("this gateway writes the status of InferenceGatewayConfig {}", object.name);
        Ok(Held::Now)
    }

    /// Holds nothing any more, as there is no object; whether it did. The lease goes with the object.
    pub(super) fn let_go(&mut self) -> bool {
        self.holding.take().is_some()
    }

    /// Gives the lease back, if it is this gateway's: the object's name.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub(super) async fn release(&mut self, api: &Api) -> Result<Option<Meta>, kube::Error> {
        let Some((object, _)) = self.holding.take() else { return Ok(None) };
        let Some(lease) = lease(api, &object.name).await? else { return Ok(None) };
        let Some(spec) = self.candidate.release(&lease.spec) else { return Ok(None) };
        let is_written = write(api, &object, Some(&lease), &spec).await?;
        Ok(is_written.then_some(object))
    }
}

async fn lease(api: &Api, object: &str) -> Result<Option<Lease>, kube::Error> {
    let path = format!("{}/sluice-{object}", leases(api));
    match api.send("GET", &path, JSON, &Value::Null).await {
        Ok(lease) => Ok(Some(lease)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether it could be written: only if nobody else was faster.
async fn write(
    api: &Api,
    object: &Meta,
    before: Option<&Lease>,
    spec: &Spec,
) -> Result<bool, kube::Error> {
    let all = leases(api);
    let body = body(&api.namespace, object, before, spec);
    let written: Result<Value, _> = match before {
        None => api.send("POST", &all, JSON, &body).await,
        Some(_) => {
            let path = format!("{all}/sluice-{}", object.name);
            api.send("PUT", &path, JSON, &body).await
        }
    };
    match written {
        Ok(_) => Ok(true),
        // 404: it has gone since it was read.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
        Err(error) => Err(error),
    }
}

fn body(namespace: &str, object: &Meta, before: Option<&Lease>, spec: &Spec) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": format!("sluice-{}", object.name),
            "namespace": namespace,
            "resourceVersion": before.map(|lease| lease.metadata.resource_version.as_str()),
            // It is deleted with its object.
            "ownerReferences": [{
                "apiVersion": "gateway.sluice.dev/v1alpha1",
                "kind": "InferenceGatewayConfig",
                "name": object.name,
                "uid": object.uid,
            }],
        },
        "spec": spec,
    })
}

fn leases(api: &Api) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", api.namespace)
}

/// Times as the API server writes them of leases.
const MICRO_TIME: &str = "%Y-%m-%dT%H:%M:%S%.6fZ";
