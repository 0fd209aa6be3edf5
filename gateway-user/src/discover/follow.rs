//! Keeps up with the objects of one kind: lists them, then hears of every change.
//!
//! A watch begins where the list or the watch before it ended, so that nothing is missed and nothing is listed twice. It
//! is listed anew only when the API server no longer knows that place (410) or refuses again and again to begin there, or
//! when other labels are asked for. The API server ends each watch after about a minute and bookmarks say how far it got:
//! whoever hears nothing for longer has lost it, and is not told so by a connection that is dead without a word.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use kube::Client;
use kube::core::Request;
use kube::core::Status;
use kube::core::WatchEvent;
use kube::core::params::{ListParams, WatchParams};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use super::adapters::ConfigMap;
use super::extension::Extension;
use super::objects::{GatewayConfig, InferencePool, Meta, Node, Pod};

/// An object of some kind.
pub(super) trait Object: Clone + DeserializeOwned {
    /// Its name and so on.
    fn meta(&self) -> &Meta;

    /// Whether something else may come of it than of what it was, and not only another status.
    fn is_news(&self, _before: &Self) -> bool {
        true
    }
}

/// What became of the objects of one kind.
#[derive(Debug)]
pub(super) enum Change<T> {
    /// These are all, with the labels that were asked for.
    All(Vec<T>, String),
    /// This one is new, or other than it was.
    Set(T),
    /// This one is gone.
    Gone(T),
}

/// Which objects.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    /// Their name in messages.
    pub(super) name: &'static str,
    /// Their path.
    pub(super) path: String,
    /// Of each no more than its name and labels.
    pub(super) metadata_only: bool,
    /// The selector that they are asked for by is of fields, and not of labels.
    pub(super) by_fields: bool,
    /// The labels that they must have; `None` until that is known.
    pub(super) labels: Receiver<Option<String>>,
    /// When the API server was last heard.
    pub(super) heard: Rc<Cell<Instant>>,
    /// Why it cannot be heard now.
    pub(super) trouble: Rc<RefCell<Option<Trouble>>>,
}

/// Why the objects of one kind are not known.
#[derive(Clone, Debug, PartialEq)]
pub struct Trouble {
    /// The kind's name.
    pub kind: &'static str,
    /// The HTTP status of the API server's answer, if there was one.
    pub code: Option<u16>,
    /// What was answered, or why nothing was.
    pub message: String,
}

impl Kind {
    fn troubled(&self, error: &kube::Error) {
        let (code, message) = match error {
            kube::Error::Api(status) => (Some(status.code), status.message.clone()),
            other => (None, other.to_string()),
        };
        self.trouble.replace(Some(Trouble { kind: self.name, code, message }));
    }
}

/// Why a watch is over.
enum Over {
    /// In order: the next one begins at this version.
    Next(String),
    /// The list has to be made anew.
    Relist,
}

/// Calls `take` for all that becomes of these objects. Never ends.
///
/// What was listed once stays known while the API server refuses to tell more, until it tells otherwise.
pub(super) async fn follow<T: Object>(client: Client, mut kind: Kind, take: impl Fn(Change<T>)) {
    let (failures, is_known) = (Cell::new(0), Cell::new(false));
    // It is an error as soon as nobody is interested any more.
    while kind.labels.has_changed().is_ok() {
        if kind.labels.borrow_and_update().is_none() {
            let _ = kind.labels.changed().await;
            kind.heard.set(Instant::now());
            continue;
        }
        let mut listed = list_until(&client, &kind, &failures, &is_known, &take).await;
        while let Some((labels, version)) = listed {
            let others = async {
                let mut asked = kind.labels.clone();
                let _ = asked.wait_for(|asked| asked.as_ref() != Some(&labels)).await;
                list_until(&client, &kind, &failures, &is_known, &take).await
            };
            listed = tokio::select! {
                () = watch(&client, &kind, &labels, version, &failures, &take) => None,
                // Those of before are watched until these have been listed.
                others = others => others,
            };
        }
    }
}

/// Lists those that are asked for until that has succeeded: by which labels, and where a watch can begin. `None` when
/// none are asked for any more.
async fn list_until<T: Object>(
    client: &Client,
    kind: &Kind,
    failures: &Cell<u32>,
    is_known: &Cell<bool>,
    take: &impl Fn(Change<T>),
) -> Option<(String, String)> {
    let mut asked = kind.labels.clone();
    loop {
        let labels = asked.borrow_and_update().clone()?;
        let listed = tokio::select! {
            listed = list::<T>(client, kind, &labels) => listed,
            changed = asked.changed() => {
                changed.ok()?;
                continue;
            }
        };
        let wait = match listed {
            Ok((objects, version)) => {
                debug!("{}: {} listed", kind.name, objects.len());
                is_known.set(true);
                kind.trouble.take();
                take(Change::All(objects, labels.clone()));
                return Some((labels, version));
            }
            // Not known here, or none of the gateway's business: as good as none, and looked for again.
            Err(kube::Error::Api(status)) if is_refused(&status) && !is_known.get() => {
                kind.heard.set(Instant::now());
                if failures.get() == 0 {
                    info!("{}: {}; taken for none", kind.name, status.message);
                }
                kind.troubled(&kube::Error::Api(status));
                failures.set(failures.get().saturating_add(1));
                take(Change::All(Vec::new(), labels));
                MISSING.mul_f64(0.5 + fastrand::f64() / 2.0)
            }
            Err(error) => {
                told(kind, failures.get(), &error);
                pause(failures)
            }
        };
        // Others that are asked for meanwhile may be told.
        let _ = timeout(wait, asked.changed()).await;
    }
}

async fn list<T: Object>(
    client: &Client,
    kind: &Kind,
    labels: &str,
) -> Result<(Vec<T>, String), kube::Error> {
    let request = Request::new(&kind.path);
    let params = ListParams::default().limit(PAGE);
    let mut params = match kind.by_fields {
        true => params.fields(labels),
        false => params.labels(labels),
    };
    let mut objects = Vec::new();
    loop {
        let asked = match kind.metadata_only {
            true => request.list_metadata(&params),
            false => request.list(&params),
        };
        let asked = client.request::<List<T>>(asked.map_err(kube::Error::BuildRequest)?);
        let Ok(answer) = timeout(LIST, asked).await else { return Err(silence()) };
        let List { metadata, items } = answer?;
        kind.heard.set(Instant::now());
        objects.extend(items);
        if metadata.r#continue.is_empty() {
            return Ok((objects, metadata.resource_version));
        }
        params = params.continue_token(&metadata.r#continue);
    }
}

/// Watches from a version on, for as long as one watch can follow on another.
async fn watch<T: Object>(
    client: &Client,
    kind: &Kind,
    labels: &str,
    mut version: String,
    failures: &Cell<u32>,
    take: &impl Fn(Change<T>),
) {
    let mut answers: u32 = 0;
    loop {
        let begun = version.clone();
        let mut place = version.clone();
        match watch_once(client, kind, labels, &begun, &mut place, take).await {
            Ok(Over::Next(next)) => {
                (answers, version) = (0, next);
                failures.set(0);
                kind.trouble.take();
            }
            Ok(Over::Relist) => return,
            Err(error) => {
                if place != begun {
                    answers = 0;
                    failures.set(0);
                }
                told(kind, failures.get(), &error);
                // What came before the failure is known.
                version = place;
                answers = answers.saturating_add(u32::from(is_answer(&error)));
                sleep(pause(failures)).await;
                if answers >= MAX_ANSWERS {
                    return;
                }
            }
        }
    }
}

async fn watch_once<T: Object>(
    client: &Client,
    kind: &Kind,
    labels: &str,
    version: &str,
    place: &mut String,
    take: &impl Fn(Change<T>),
) -> Result<Over, kube::Error> {
    let seconds = fastrand::u32(WATCH.start..WATCH.end);
    let params = WatchParams::default().timeout(seconds);
    let params = match kind.by_fields {
        true => params.fields(labels),
        false => params.labels(labels),
    };
    let request = Request::new(&kind.path);
    let asked = match kind.metadata_only {
        true => request.watch_metadata(&params, version),
        false => request.watch(&params, version),
    };
    let asked = client.request_events::<T>(asked.map_err(kube::Error::BuildRequest)?);
    let over = async {
        let mut events = std::pin::pin!(asked.await?);
        kind.heard.set(Instant::now());
        kind.trouble.take();
        while let Some(event) = events.try_next().await? {
            kind.heard.set(Instant::now());
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    place.clone_from(&object.meta().resource_version);
                    take(Change::Set(object));
                }
                WatchEvent::Deleted(object) => {
                    place.clone_from(&object.meta().resource_version);
                    take(Change::Gone(object));
                }
                WatchEvent::Bookmark(mark) => place.clone_from(&mark.metadata.resource_version),
                WatchEvent::Error(status) if is_forgotten(status.code) => return Ok(Over::Relist),
                WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
            }
        }
        Ok(Over::Next(place.clone()))
    };
    match timeout(Duration::from_secs(seconds.into()) + GRACE, over).await {
        Ok(Err(kube::Error::Api(status))) if is_forgotten(status.code) => Ok(Over::Relist),
        Ok(over) => over,
        Err(_) => Err(silence()),
    }
}

/// Whether the API server no longer knows the place where a watch is to begin.
fn is_forgotten(code: u16) -> bool {
    code == 410
}

/// Whether the API server does not know the kind, or does not tell who asks.
fn is_refused(status: &Status) -> bool {
    matches!(status.code, 403 | 404)
}

/// Whether the API server itself says that it cannot be watched so. One that cannot be reached, or that is overloaded,
/// would be asked for everything by all gateways at once.
fn is_answer(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => !matches!(status.code, 429 | 502 | 503),
        kube::Error::SerdeError(_) => true,
        _ => false,
    }
}

fn silence() -> kube::Error {
    kube::Error::Service("no answer in time".into())
}

fn told(kind: &Kind, failures: u32, error: &kube::Error) {
    kind.troubled(error);
    // No news, but the API server is there.
    if matches!(error, kube::Error::Api(status) if is_refused(status)) {
        kind.heard.set(Instant::now());
    }
    // Once for each outage; the metrics say how long it lasts.
    if failures == 0 {
        warn!("{}: {error}; what is known so far stays in force", kind.name);
    } else {
        debug!("{}: {error}", kind.name);
    }
}

/// How long to wait: longer from failure to failure, and never as long as another gateway.
fn pause(failures: &Cell<u32>) -> Duration {
    let before = failures.get();
    failures.set(before.saturating_add(1));
    let longest = FIRST_PAUSE.saturating_mul(1 << before.min(16)).min(LAST_PAUSE);
    longest.mul_f64(0.5 + fastrand::f64() / 2.0)
}

#[derive(Debug, Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
struct List<T> {
    metadata: ListMeta,
    // `null` if a server in Go had none to put in.
    #[serde(default = "Vec::new", deserialize_with = "or_none")]
    items: Vec<T>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
    #[serde(default)]
    r#continue: String,
}

fn or_none<'de, D: serde::Deserializer<'de>, T: DeserializeOwned>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl Object for GatewayConfig {
    fn meta(&self) -> &Meta {
        &self.metadata
    }

    fn is_news(&self, before: &Self) -> bool {
        self.spec != before.spec || self.metadata.has_changed(&before.metadata)
    }
}

impl Object for InferencePool {
    fn meta(&self) -> &Meta {
        &self.metadata
    }

    fn is_news(&self, before: &Self) -> bool {
        self.spec != before.spec || self.metadata.has_changed(&before.metadata)
    }
}

impl Object for Pod {
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl Object for Node {
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl Object for Extension {
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl Object for ConfigMap {
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// Objects in one answer of a list.
const PAGE: u32 = 500;
/// For one such answer.
const LIST: Duration = Duration::from_secs(30);
/// How many seconds a watch lasts: by lot, so that gateways that began together part.
const WATCH: std::ops::Range<u32> = 45..75;
/// How much longer than that it is waited for its end.
const GRACE: Duration = Duration::from_secs(15);
/// Between the first failure and the next attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Between attempts, at most.
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// Answers of the API server that it cannot be watched from that place, one after another, until it is listed anew.
const MAX_ANSWERS: u32 = 8;
/// A kind that is not there, as most clusters lack some, is looked for again after this at most.
const MISSING: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;
