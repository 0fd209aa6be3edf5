//! The operators' side, on its own address: `/metrics`, `/healthz`, `/readyz`, `/status`, `/explain`.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::error::Refusal;
use crate::explain::Explained;
use crate::gateway::Gateway;
use crate::metrics::Format;
use crate::publish::Steered;
use crate::staleness::Stale;
use crate::status::Status;

/// What the pages show.
#[derive(Debug)]
pub struct Admin {
    /// The daemon.
    pub gateway: Arc<Gateway>,
    /// The kernel's part.
    pub steered: Rc<Steered>,
}

/// Serves the pages until dropped.
pub async fn serve(listener: TcpListener, admin: Admin) {
    let admin = Rc::new(admin);
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!("accepting an admin connection failed: {error}");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let admin = Rc::clone(&admin);
        spawn_local(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let admin = Rc::clone(&admin);
                async move {
                    Ok::<_, Infallible>(match (request.uri().path(), request.method()) {
                        (EXPLAIN, &Method::POST) => explain(request, &admin.gateway).await,
                        _ => page(&request, &admin),
                    })
                }
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).keep_alive(true);
            let served =
                timeout(LIFETIME, http.serve_connection(TokioIo::new(stream), service)).await;
            if let Ok(Err(error)) = served {
                debug!("an admin connection failed: {error}");
            }
            drop(slot);
        });
    }
}

/// What would become of the request whose body this is.
async fn explain(request: Request<Incoming>, gateway: &Gateway) -> Response<Full<Bytes>> {
    let refused = |refusal: &Refusal| {
        let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::BAD_REQUEST);
        text(status, format!("{}\n", refusal.message))
    };
    let most = gateway.config().limits.max_body_bytes;
    let mut memory = gateway.memory();
    let mut body = request.into_body();
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return text(StatusCode::BAD_REQUEST, "the request broke off\n".into());
        };
        let Ok(data) = frame.into_data() else { continue };
        let length = bytes.len().saturating_add(data.len());
        if length > most {
            return refused(&Refusal::body_too_large(most));
        }
        if !memory.grow_to(length) {
            return text(
                StatusCode::SERVICE_UNAVAILABLE,
                "request bodies take all their memory now\n".into(),
            );
        }
        bytes.extend_from_slice(&data);
    }
    match Explained::read(gateway, &bytes) {
        Ok(explained) => json(&explained),
        Err(refusal) => refused(&refusal),
    }
}

fn page(request: &Request<Incoming>, admin: &Admin) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    let (allowed, said) = match path {
        EXPLAIN => ("POST", "a request's body is wanted here, by POST\n"),
        _ => ("GET, HEAD", "only GET and HEAD are served here\n"),
    };
    if path == EXPLAIN || request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, said.into());
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
        return refused;
    }
    let gateway = &admin.gateway;
    match path {
        "/metrics" => {
            let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
            let format = Format::negotiate(accept);
            admin.steered.count(gateway);
            let page = gateway.exposition(format);
            with_type(StatusCode::OK, format.content_type(), page)
        }
        // Alive, whatever the pods do: a restart would not help them.
        "/healthz" => text(StatusCode::OK, "ok\n".into()),
        "/readyz" => match gateway.unready() {
            None => match gateway.staleness.now() {
                Stale::No => text(StatusCode::OK, "ok\n".into()),
                stale => text(StatusCode::OK, format!("ok, but {stale}\n")),
            },
            Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        "/status" => json(&Status::read(gateway, &admin.steered)),
        "/status/scores" => json(&admin.steered.scores()),
        _ => text(
            StatusCode::NOT_FOUND,
            "served here: /metrics /healthz /readyz /status /status/scores, and POST /explain\n"
                .into(),
        ),
    }
}

fn json(value: &impl serde::Serialize) -> Response<Full<Bytes>> {
    match serde_json::to_string(value) {
        Ok(page) => with_type(StatusCode::OK, "application/json", page),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    with_type(status, "text/plain; charset=utf-8", body)
}

fn with_type(
    status: StatusCode,
    content_type: &'static str,
    body: String,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Takes a request's body, and says which pod it would go to.
const EXPLAIN: &str = "/explain";

/// Connections at once: a few scrapers, probes and people.
const CONNECTIONS: usize = 64;

/// From a connection's start to a request's head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// How long one connection may stay; scrapers that keep theirs open connect anew.
const LIFETIME: Duration = Duration::from_secs(600);

/// How long accepting rests after it failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
