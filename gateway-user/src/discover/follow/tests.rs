//! Against an API server that says what each test has it say; time is what the test makes of it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::StreamBody;
use hyper::body::Frame;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::{LocalSet, spawn_local};

use super::*;

/// What it answers by now, and what it was asked.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<Script>>);

#[derive(Default)]
struct Script {
    /// The labels that are listed: the names, or a failure.
    lists: BTreeMap<String, Result<Vec<&'static str>, u16>>,
    /// How a watch goes that begins.
    watch: Option<u16>,
    /// The watches that are open.
    open: Vec<mpsc::UnboundedSender<Bytes>>,
    /// How often it was asked for a list, and for a watch.
    asked: (u32, u32),
}

impl Server {
    fn with<R>(&self, act: impl FnOnce(&mut Script) -> R) -> R {
        act(&mut self.0.lock().unwrap())
    }

    fn list(&self, labels: &str, answer: Result<Vec<&'static str>, u16>) {
        self.with(|script| script.lists.insert(labels.to_owned(), answer));
    }

    /// To all who watch.
    fn tell(&self, kind: &str, name: &str) {
        let event = json!({ "type": kind, "object": pod(name, 11) });
        let line = Bytes::from(format!("{event}\n"));
        self.with(|script| script.open.retain(|open| open.send(line.clone()).is_ok()));
    }
}

fn pod(name: &str, version: u32) -> Value {
    json!({ "metadata": { "name": name, "uid": name, "resourceVersion": version.to_string() } })
}

type Stream =
    StreamBody<futures_util::stream::BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;

impl tower_service::Service<Request<Body>> for Server {
    type Response = Response<Stream>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let is_watch = query.contains("watch=true");
        let labels = query.split('&').find_map(|part| part.strip_prefix("labelSelector="));
        let labels = labels.unwrap_or_default().replace("%3D", "=");
        self.with(|script| {
            let (sender, mut receiver) = mpsc::unbounded_channel();
            let code = if is_watch {
                script.asked.1 += 1;
                script.watch
            } else {
                script.asked.0 += 1;
                script.lists.get(&labels).and_then(|answer| answer.as_ref().err()).copied()
            };
            if let Some(code) = code {
                let status = json!({
                    "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                    "reason": "", "message": "no",
                });
                let _ = sender.send(status.to_string().into());
            } else if is_watch {
                script.open.push(sender);
            } else {
                let names = script.lists.get(&labels).and_then(|answer| answer.as_ref().ok());
                let items: Vec<_> = names.into_iter().flatten().map(|name| pod(name, 9)).collect();
                let list = json!({ "metadata": { "resourceVersion": "10" }, "items": items });
                let _ = sender.send(list.to_string().into());
            }
            let body = futures_util::stream::poll_fn(move |cx| {
                receiver.poll_recv(cx).map(|data| data.map(|data| Ok(Frame::data(data))))
            });
            let body: Stream = StreamBody::new(Box::pin(body));
            ready(Ok(Response::builder().status(code.unwrap_or(200)).body(body).unwrap()))
        })
    }
}

/// A follower of pods, and what it knows.
struct Follower {
    server: Server,
    labels: watch::Sender<Option<String>>,
    heard: Rc<Cell<Instant>>,
    trouble: Rc<RefCell<Option<Trouble>>>,
    /// Their names, and by which labels they were listed.
    known: Rc<RefCell<(Vec<String>, String)>>,
}

impl Follower {
    fn start(server: Server, labels: &str) -> Self {
        let (labels, asked) = watch::channel(Some(labels.to_owned()));
        let heard = Rc::new(Cell::new(Instant::now()));
        let known: Rc<RefCell<(Vec<String>, String)>> = Rc::default();
        let trouble = Rc::default();
        let kind = Kind {
            name: "Pods",
            path: "/api/v1/namespaces/n/pods".into(),
            metadata_only: false,
            by_fields: false,
            labels: asked,
            heard: Rc::clone(&heard),
            trouble: Rc::clone(&trouble),
        };
        let told = Rc::clone(&known);
        let take = move |change: Change<Pod>| {
            let mut known = told.borrow_mut();
            match change {
                Change::All(all, labels) => {
                    *known = (all.into_iter().map(|pod| pod.metadata.name).collect(), labels);
                }
                Change::Set(pod) => known.0.push(pod.metadata.name),
                Change::Gone(pod) => known.0.retain(|name| *name != pod.metadata.name),
            }
        };
        let client = Client::new(server.clone(), "n");
        spawn_local(follow(client, kind, take));
        Self { server, labels, heard, trouble, known }
    }

    /// What it knows after so many seconds.
    async fn after(&self, seconds: u64) -> (Vec<String>, String) {
        sleep(Duration::from_secs(seconds)).await;
        self.known.borrow().clone()
    }
}

fn names(names: &[&str], labels: &str) -> (Vec<String>, String) {
    (names.iter().map(|name| (*name).to_owned()).collect(), labels.to_owned())
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_later_stays_known() {
    LocalSet::new()
        .run_until(async {
            for code in [403, 404] {
                let server = Server::default();
                server.list("app=a", Err(code));
                let follower = Follower::start(server, "app=a");
                // Of what has never been listed, there is none.
                assert_eq!(follower.after(1).await, names(&[], "app=a"));
                follower.server.list("app=a", Ok(vec!["p"]));
                assert_eq!(follower.after(60).await, names(&["p"], "app=a"));

                follower.server.list("app=a", Err(code));
                follower.server.with(|script| {
                    script.watch = Some(410);
                    script.open.clear();
                });
                assert_eq!(follower.after(120).await, names(&["p"], "app=a"), "{code}");
                assert!(follower.heard.get().elapsed() < Duration::from_secs(30), "{code}");

                follower.server.list("app=a", Ok(vec!["p", "q"]));
                follower.server.with(|script| script.watch = None);
                assert_eq!(follower.after(10).await, names(&["p", "q"], "app=a"), "{code}");
            }
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_watched_is_listed_again() {
    LocalSet::new()
        .run_until(async {
            for code in [403, 404, 500, 504] {
                let server = Server::default();
                server.list("app=a", Ok(vec!["p"]));
                server.with(|script| script.watch = Some(code));
                let follower = Follower::start(server, "app=a");
                assert_eq!(follower.after(1).await, names(&["p"], "app=a"));
                follower.server.list("app=a", Ok(vec!["q"]));
                assert_eq!(follower.after(120).await, names(&["q"], "app=a"), "{code}");
                let age = follower.heard.get().elapsed();
                assert!(age < Duration::from_secs(45), "{code}: {age:?}");
                let (lists, watches) = follower.server.with(|script| script.asked);
                assert!(lists < 10 && watches > 4 * lists, "{code}: {lists}, {watches}");
            }
            // One that is not there for some time is not asked for everything.
            let server = Server::default();
            server.list("app=a", Ok(vec!["p"]));
            server.with(|script| script.watch = Some(503));
            let follower = Follower::start(server, "app=a");
            follower.after(600).await;
            assert_eq!(follower.server.with(|script| script.asked.0), 1);
            let code = || follower.trouble.borrow().as_ref().and_then(|trouble| trouble.code);
            assert_eq!(code(), Some(503));
            // As soon as it answers, and not when the watch ends.
            follower.server.with(|script| script.watch = None);
            follower.after(10).await;
            assert_eq!(code(), None);
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn those_of_before_are_followed_until_others_are_listed() {
    LocalSet::new()
        .run_until(async {
            let server = Server::default();
            server.list("app=a", Ok(vec!["p"]));
            server.list("app=b", Err(400));
            let follower = Follower::start(server, "app=a");
            assert_eq!(follower.after(1).await, names(&["p"], "app=a"));
            follower.labels.send_replace(Some("app=b".into()));
            follower.after(20).await;
            follower.server.tell("ADDED", "q");
            assert_eq!(follower.after(1).await, names(&["p", "q"], "app=a"));
            // At once, whatever it waits for.
            follower.server.list("app=c", Ok(vec!["r"]));
            follower.labels.send_replace(Some("app=c".into()));
            sleep(Duration::from_millis(10)).await;
            assert_eq!(*follower.known.borrow(), names(&["r"], "app=c"));
            // And what has never been told is not waited for either.
            let server = Server::default();
            server.list("app=a", Err(403));
            server.list("app=b", Ok(vec!["p"]));
            let follower = Follower::start(server, "app=a");
            assert_eq!(follower.after(1).await, names(&[], "app=a"));
            follower.labels.send_replace(Some("app=b".into()));
            sleep(Duration::from_millis(10)).await;
            assert_eq!(*follower.known.borrow(), names(&["p"], "app=b"));
        })
        .await;
}
