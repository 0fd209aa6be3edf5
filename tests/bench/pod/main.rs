//! `bench-pod`: model servers that cost next to nothing, for the benchmarks.
//!
//! One process serves many pods, each on an address of its own, in one thread. A pod answers every
//! chat request at once, with numbered and timed tokens (see `bench::event`), and shows a metrics
//! page as long as that of a real server. It is no simulation: it has no queue and no KV cache.

mod answer;
mod metrics;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use bytes::Bytes;
use clap::Parser;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use answer::{Answer, Tokens};

/// Instant model servers for the benchmarks.
#[derive(Parser)]
#[command(
    name = "bench-pod",
    after_help = "Example: bench-pod --model bench 127.0.1.1:28000 127.0.1.2:28000"
)]
struct Cli {
    /// Model that the pods serve.
    #[arg(long, default_value = "bench")]
    model: String,
    /// One address for each pod.
    #[arg(required = true)]
    addresses: Vec<SocketAddr>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let Cli { model, addresses } = Cli::parse();
    let count = addresses.len();
    let mut listeners = Vec::new();
    for address in addresses {
        listeners.push(TcpListener::bind(address).await.with_context(|| address.to_string())?);
    }
    let mut pods = tokio::task::JoinSet::new();
    for listener in listeners {
        pods.spawn(serve(listener, Arc::new(Pod { model: model.clone(), running: 0.into() })));
    }
    eprintln!("bench-pod: {count} pods of {model} listen");
    while let Some(ended) = pods.join_next().await {
        ended??;
    }
    Ok(())
}

/// One model server.
struct Pod {
    model: String,
    running: AtomicU64,
}

async fn serve(listener: TcpListener, pod: Arc<Pod>) -> anyhow::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(connection(stream, pod.clone()));
    }
}

async fn connection(stream: TcpStream, pod: Arc<Pod>) {
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let service = service_fn(move |request| respond(request, pod.clone()));
    // A client that goes away is its own affair.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn respond(
    request: Request<Incoming>,
    pod: Arc<Pod>,
) -> hyper::Result<Response<Either<Full<Bytes>, Tokens>>> {
    let path = request.uri().path();
    let (status, kind, body) = match (request.method(), path) {
        (&Method::POST, "/v1/chat/completions") => {
            let (status, kind, body) = match Answer::to(request, &pod.model).await? {
                Answer::Bad(why) => (StatusCode::BAD_REQUEST, JSON, full(error(why))),
                Answer::Whole(text) => (StatusCode::OK, JSON, full(text)),
                Answer::Stream(tokens) => {
                    (StatusCode::OK, EVENTS, Either::Right(tokens.counted(Running::one(&pod))))
                }
            };
            (status, kind, body)
        }
        (&Method::GET, "/metrics") => {
            let running = pod.running.load(Ordering::Relaxed);
            (StatusCode::OK, TEXT, full(metrics::page(&pod.model, running)))
        }
        (&Method::GET, "/v1/models") => (StatusCode::OK, JSON, full(answer::models(&pod.model))),
        (&Method::GET, "/version") => {
            (StatusCode::OK, JSON, full("{\"version\":\"0.32.0\"}".to_owned()))
        }
        (&Method::GET, "/health") => (StatusCode::OK, TEXT, full(String::new())),
        _ => (StatusCode::NOT_FOUND, JSON, full("{\"detail\":\"Not Found\"}".to_owned())),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

/// A request in flight, until it is dropped.
pub(crate) struct Running(Arc<Pod>);

impl Running {
    fn one(pod: &Arc<Pod>) -> Self {
        pod.running.fetch_add(1, Ordering::Relaxed);
        Self(pod.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

fn full(text: String) -> Either<Full<Bytes>, Tokens> {
    Either::Left(Full::new(text.into()))
}

fn error(why: &str) -> String {
    format!(
        "{{\"error\":{{\"message\":\"{why}\",\"type\":\"BadRequestError\",\"param\":null,\"code\":400}}}}"
    )
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream; charset=utf-8";
const TEXT: &str = "text/plain; version=1.0.0; charset=utf-8";
