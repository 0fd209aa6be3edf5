//! A client's connection: one request after the other, each through the phases of the crate's front
//! page.

mod realtime;
mod rewritten;
mod stored;

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;

use crate::account::log::Asked;
use crate::account::{self, Exchanged};
use crate::auth;
use crate::client::{Client, Stream};
use crate::direct::Exclusive;
use crate::error::{Refusal, local_response};
use crate::flow::comments::KeepAlive;
use crate::flow::head::ClientSide;
use crate::flow::{self, Pin, Request};
use crate::gateway::{Admission, RequestId};
use crate::http2;
use crate::listen::Worker;
use crate::pool::Pool;
use crate::request::body::{Body, Unread, read_body};
use crate::request::head::{self, Head, Method, Version};
use crate::request::rewrite::{self, UsageWish};
use crate::request::scan::{Adapter, Fields};
use crate::responses::Found;
use crate::route::{self, Deployment, Target};

use self::rewritten::Rewritten;

/// What a connection came in by.
#[derive(Clone, Debug)]
pub struct Inlet {
    /// The worker that accepted it.
    pub worker: Rc<Worker>,
    /// It came by the listener of one pool, which then answers whatever is asked.
    pub exclusive: Option<Exclusive>,
    /// Its place among those that may be open at once.
    pub place: Rc<Admission>,
}

/// Serves a connection until it ends. `is_http2`: nothing else is spoken on it. `due`: until when its first head, and
/// with it all that comes before, must have come.
pub async fn serve(mut stream: Stream, is_http2: bool, due: Instant, inlet: Inlet) {
    let worker = &*inlet.worker;
    let limits = worker.limits();
    stream.reset_on_close(true);
    let Some(read) = beginning(&mut stream, due, worker).await else {
        return Client::new(stream, Vec::new()).close().await;
    };
    if http2::begins(&read) == Some(true) {
        // Its frames tell what is whole, however the connection ends.
        stream.reset_on_close(false);
        return match stream {
            // Boxed, as the room for it would be every connection's.
            Stream::Plain(stream) => Box::pin(http2::serve(stream, read, due, inlet)).await,
            Stream::Tls(stream) => {
                Box::pin(http2::serve(stream.into_inner(), read, due, inlet)).await;
            }
            // One of its requests, which has no such beginning.
            Stream::Http2(_) => {}
        };
    }
    let mut client = Client::new(stream, read);
    if is_http2 {
        // An answer in HTTP/1.1 is nothing that it could read.
        return client.end(&worker.scratch, limits.stream_idle_timeout).await;
    }
    // A client that connects has something to say; only between requests may it take its time.
    let (mut begun, mut whole) = (due, Some(due));
    while let Some(head) = next_head(&mut client, begun, whole, worker).await {
        if !request(&mut client, head, &inlet).await {
            client.end(&worker.scratch, limits.stream_idle_timeout).await;
            return;
        }
        (begun, whole) = (Instant::now() + limits.idle_timeout, None);
    }
    client.close().await;
}

/// A connection's first bytes, as many as tell what it speaks. `None`: it is over.
async fn beginning(stream: &mut Stream, due: Instant, worker: &Worker) -> Option<Vec<u8>> {
    let mut read = Vec::new();
    while http2::begins(&read).is_none() {
        let mut reader = stream.reader();
        let more = worker.scratch.read(&mut reader, |bytes| read.extend_from_slice(bytes));
        let more = tokio::select! {
            // What has come before the stop is still answered.
            biased;
            more = timeout_at(due, more) => more,
            () = worker.stopping() => return None,
        };
        if !matches!(more, Ok(Ok(1..))) {
            // What there is says what is wrong with it.
            return Some(read).filter(|read| !read.is_empty());
        }
    }
    Some(read)
}

/// The next request's head, taken off the connection's input. `None`: the connection is over, and
/// whatever there was to say has been said. `begun`: until when its first byte may take; `whole`: until when all of
/// it, if not as long as any head from that byte on.
async fn next_head(
    client: &mut Client,
    begun: Instant,
    whole: Option<Instant>,
    worker: &Worker,
) -> Option<Head> {
    let limits = worker.limits();
    skip_empty_lines(client);
    if client.input.is_empty() {
        let more = tokio::select! {
            // What has come before the stop is still answered.
            biased;
            more = timeout_at(begun, client.fill(&worker.scratch)) => more,
            // Between requests a stopping gateway owes the client nothing.
            () = worker.stopping() => return None,
        };
        if !matches!(more, Ok(Ok(true))) {
            return None;
        }
    }
    let deadline = whole.unwrap_or_else(|| Instant::now() + worker.spread(limits.header_timeout));
    let mut seen = 0;
    loop {
        if seen == 0 {
            skip_empty_lines(client);
        }
        // Bytes that end no line complete no head; parsing at each of them would cost their square.
        let new = client.input.get(seen..).unwrap_or_default();
        let worth =
            seen == 0 || new.contains(&b'\n') || client.input.len() >= limits.max_head_bytes;
        seen = client.input.len();
        let parsed =
            if worth { head::parse(&client.input, limits.max_head_bytes) } else { Ok(None) };
        let refusal = match parsed {
            Ok(Some(head)) => {
                client.consume(head.len);
                return Some(head);
            }
            Ok(None) => match timeout_at(deadline, client.fill(&worker.scratch)).await {
                Ok(Ok(true)) => continue,
                Ok(_) => return None,
                Err(_) if client.input.is_empty() => return None,
                Err(_) => Refusal {
                    close: true,
                    ..Refusal::client(
                        408,
                        "header_timeout",
                        format!(
                            "The request's head took longer than {} s.",
                            limits.header_timeout.as_secs_f32()
                        ),
                    )
                },
            },
            Err(refusal) => refusal,
        };
        let id = worker.request_id(None);
        refuse(client, &refusal, &Asked::new(&id, None), false, false, worker).await;
        client.end(&worker.scratch, limits.stream_idle_timeout).await;
        return None;
    }
}

/// RFC 9112 section 2.2: they may stand before a request. A carriage return alone is no line.
fn skip_empty_lines(client: &mut Client) {
    let mut count = 0;
    loop {
        match client.input.get(count..) {
            Some([b'\r', b'\n', ..]) => count += 2,
            Some([b'\n', ..]) => count += 1,
            _ => break,
        }
    }
    if count > 0 {
        client.consume(count);
    }
}

/// Answers a request of HTTP/2 whose head has been read.
pub async fn answer(client: &mut Client, head: Result<Head, Refusal>, inlet: &Inlet) {
    let worker = &*inlet.worker;
    match head {
        Ok(head) => request(client, head, inlet).await,
        Err(refusal) => {
            let id = worker.request_id(None);
            refuse(client, &refusal, &Asked::new(&id, None), false, false, worker).await
        }
    };
}

/// One request. Returns whether the connection goes on.
async fn request(client: &mut Client, head: Head, inlet: &Inlet) -> bool {
    let Inlet { worker, exclusive, .. } = inlet;
    let id = worker.request_id(head.request_id.as_deref());
    let once = exclusive.as_ref().is_some_and(|exclusive| exclusive.once);
    let keep_alive = head.keep_alive && !worker.is_stopping() && !once;
    let pool = exclusive.as_ref().map(|exclusive| &exclusive.pool);
    let to_head = head.method == Method::Head;
    let asked = Asked::new(&id, Some(&head.path));
    let path = head.path.trim_end_matches('/');
    // A load balancer asks without a key.
    let is_open = head.method != Method::Post && matches!(path, "/health" | "/ping");
    let caller = match worker.gateway.auth().check(&head.credentials, SystemTime::now()) {
        Ok(caller) => caller,
        Err(_) if is_open => None,
        Err(refusal) => {
            // Its body is not worth reading.
            let close = refusal.close || head.body != head::BodyLength::Known(0);
            let refusal = Refusal { close, ..refusal };
            return refuse(client, &refusal, &asked, keep_alive, to_head, worker).await;
        }
    };
    let key = caller.as_ref().map(|caller| &*caller.key);
    let asked = Asked { caller: caller.as_ref(), ..asked };
    match head.method {
        Method::Post if route::is_control(path) || route::hides_response(path) => {
            let refusal = Refusal { close: true, ..unknown_path(&head) };
            refuse(client, &refusal, &asked, false, false, worker).await
        }
        Method::Get if path == realtime::PATH => {
            realtime::exchange(client, &head, asked, pool, worker).await
        }
        Method::Get | Method::Head | Method::Delete
            if head.body == head::BodyLength::Known(0) && route::response_id(path).is_some() =>
        {
            stored::exchange(client, &head, asked, keep_alive, pool, worker).await
        }
        Method::Post if route::response_id(path).is_some() => {
            stored::exchange(client, &head, asked, keep_alive, pool, worker).await
        }
        Method::Post => inference(client, &head, asked, keep_alive, pool, worker).await,
        Method::Get | Method::Head => {
            let answer = match path {
                "/v1/models" => Ok(worker.gateway.models_page(pool, key)),
                "/health" | "/ping" => worker.gateway.health_page(pool),
                _ => match path.strip_prefix("/v1/models/") {
                    Some(name) => worker.gateway.model_page(&route::unescape(name), pool, key),
                    None => Err(unknown_path(&head)),
                },
            };
            // A body on a GET means nothing here, and reading it is not worth keeping the
            // connection.
            let keep_alive = keep_alive && head.body == head::BodyLength::Known(0);
            match answer {
                Ok(page) => {
                    let response = local_response(
                        200,
                        "application/json",
                        "",
                        page.as_bytes(),
                        &id,
                        keep_alive,
                        to_head,
                    );
                    answer_locally(client, &response, keep_alive).await
                }
                Err(refusal) => refuse(client, &refusal, &asked, keep_alive, to_head, worker).await,
            }
        }
        Method::Delete | Method::Other => {
            let refusal = Refusal {
                close: head.body != head::BodyLength::Known(0),
                ..Refusal::client(
                    405,
                    "method_not_allowed",
                    "Only GET, HEAD and POST are served here, and DELETE of responses.",
                )
            };
            refuse(client, &refusal, &asked, keep_alive, false, worker).await
        }
    }
}

/// A POST: body, model, pool, pod, answer, account.
async fn inference(
    client: &mut Client,
    head: &Head,
    asked: Asked<'_>,
    keep_alive: bool,
    pool: Option<&Arc<Pool>>,
    worker: &Worker,
) -> bool {
    let routes = worker.gateway.routes();
    let deployment = Deployment::of(&head.path);
    let in_path = route::model_in_path(&head.path);
    let named = deployment.as_ref().map(|deployment| &*deployment.model).or(in_path.as_deref());
    // A pool that would send the request away, whatever is in its body.
    let full = |model: Option<&str>| {
        let refuses = |of: &Arc<Pool>| of.refuses(Instant::now());
        match (pool, model.or(named)) {
            (Some(pool), _) => Some(pool).cloned().filter(refuses),
            (None, Some(model)) => {
                let own = routes.find(model).map(|target| &target.pool);
                let rewrites = worker.gateway.rewrites();
                // Another one may serve it.
                let stays = rewrites.find(Some(model), own.map(|pool| &*pool.name)).is_none();
                own.filter(|_| stays).cloned().filter(refuses)
            }
            // Where there is one pool only, it is that one's or nobody's.
            (None, None) => worker.gateway.only_pool().filter(refuses),
        }
    };
    let read = read_body(client, head, worker, full).await;
    let Body { mut bytes, mut decoded, fields, reserved } = match read {
        Ok(Some(body)) => body,
        // The client left, or was too slow to be told so.
        Ok(None) => return false,
        Err(Unread::Refused(refusal)) => {
            return refuse(client, &refusal, &asked, keep_alive, false, worker).await;
        }
        Err(Unread::Useless(pool)) => {
            let side = ClientSide::new(head, false, asked.id);
            let exchange = flow::turn_away(&pool, side, client, worker).await;
            let ready = Instant::now();
            let (pool, admitted) = (&pool, None);
            account::finish(Exchanged { exchange, pool, asked, admitted, ready }, worker);
            return false;
        }
    };
    let ready = Instant::now();
    let asked = Asked { model: fields.model.as_deref().or(named), body: bytes.len(), ..asked };
    if let (Some(own), Some(named)) = (fields.model.as_deref(), named)
        && own != named
    {
        let refusal = Refusal::bad_field(
            "model",
            "invalid_model",
            "`model` in the body is not the one in the path. Leave one of them out.",
        );
        return refuse(client, &refusal, &asked, keep_alive, false, worker).await;
    }
    let previous = fields.previous_response.as_deref();
    let pin = match previous.map(|id| worker.gateway.responses.find(id, asked.owner().as_deref())) {
        Some(Found::Others) => {
            let refusal = Refusal::response_not_found(previous.unwrap_or_default());
            return refuse(client, &refusal, &asked, keep_alive, false, worker).await;
        }
        // Where callers are told apart it may be another's.
        Some(Found::Nowhere) if asked.caller.is_some() => {
            let refusal = Refusal::response_not_found(previous.unwrap_or_default());
            return refuse(client, &refusal, &asked, keep_alive, false, worker).await;
        }
        Some(Found::At(pod)) => Some(Pin { pod, is_strict: false }),
        Some(Found::Nowhere) | None => None,
    };
    // The body may have taken its time, and names have changed meanwhile.
    let routes = worker.gateway.routes();
    let readable = decoded.as_deref().unwrap_or(&bytes);
    let is_json = rewrite::is_json(readable);
    let only = worker.gateway.only_pool().filter(|_| route::needs_no_model(&head.path));
    // Servers that do not ask for a model are not told one.
    let may_name = is_json && !route::needs_no_model(&head.path);
    let names_one = asked.model.is_some();
    // Where the other name has no place in the request, the pod would not hear of it.
    let has_place = is_json || fields.model.is_some() || in_path.is_some();
    // What comes by a pool's own listener is that pool's, as it is where the kernel hands the connection on.
    let rewritten = match pool.is_none() && has_place && (names_one || may_name) {
        true => rewritten::of(&worker.gateway, &routes, asked.model, pin.map(|pin| pin.pod)),
        false => Ok(None),
    };
    let rewritten = match rewritten {
        Ok(rewritten) => rewritten,
        Err(refusal) => return refuse(client, &refusal, &asked, keep_alive, false, worker).await,
    };
    let whole = pool.cloned().or(only.filter(|_| asked.model.is_none()));
    let whole = whole.map(|pool| Target { pool, adapter: None });
    let found = match &rewritten {
        Some(Rewritten { model, target, .. }) => Ok((&**model, target)),
        None => route::resolve(&routes, whole.as_ref(), asked.model, Refusal::model_missing),
    };
    let (model, target) = match found {
        Ok(found) => found,
        Err(refusal) => return refuse(client, &refusal, &asked, keep_alive, false, worker).await,
    };
    let renamed = asked.model.filter(|named| rewritten.is_some() && *named != model);
    // One that is named beside the model is what the prompt is computed with.
    let mut beside = fields.adapters.iter().flatten().filter_map(|adapter| match adapter {
        Adapter::Name(name) => routes.find(name),
        Adapter::Unread => None,
    });
    let beside =
        beside.find(|found| Arc::ptr_eq(&found.pool, &target.pool) && found.adapter.is_some());
    let adapter = beside.unwrap_or(target).adapter.as_deref();
    let served = renamed.map(|_| model);
    let asked = Asked { model: asked.model.or(Some(model)), served, adapter, ..asked };
    let prompt = target.pool.read_prompt(readable, &fields.prompt, adapter);
    let supplied = deployment.is_some() || rewritten.is_some() && !names_one;
    let unnamed = supplied && fields.model.is_none() && is_json;
    let renames = renamed.is_some() && fields.model.is_some();
    let wish = rewrite::usage_wish(readable, &fields);
    let strips_usage = worker.gateway.config().include_usage
        && fields.stream
        && matches!(wish, UsageWish::No | UsageWish::Unsaid)
        && route::streams_usage(&route::unescape(&head.path))
        && is_json;
    let mut forward = head.forward.clone();
    if let Some(plain) = decoded.take_if(|_| unnamed || strips_usage || renames) {
        bytes = plain;
        rewrite::without(&mut forward, "content-encoding");
    }
    drop(decoded);
    let (tokens, most, now) = (prompt.tokens, fields.max_tokens, Instant::now());
    let beside = &fields.adapters;
    // Who may ask for a model may have what is served in its place.
    let permitted = match &rewritten {
        Some(rewritten) => (asked.model.unwrap_or(model), &rewritten.named),
        None => (model, target),
    };
    let of = &target.pool;
    let admitted = match auth::permit(asked.caller, permitted, of, beside, tokens, most, now) {
        Ok(admitted) => admitted,
        Err(refusal) => return refuse(client, &refusal, &asked, keep_alive, false, worker).await,
    };
    let limits = admitted.headers().to_owned();
    let side = ClientSide { limits: &limits, ..ClientSide::new(head, keep_alive, asked.id) };
    if renames {
        rewrite::rename_model(&mut bytes, &fields, model, strips_usage);
    } else if strips_usage {
        rewrite::ask_for_usage(&mut bytes, &fields);
    }
    if unnamed {
        rewrite::name_model(&mut bytes, model);
    }
    if let Some(deployment) = &deployment {
        rewrite::target(&mut forward, &deployment.path);
    } else if renamed.is_some() && in_path.is_some() {
        rewrite::target(&mut forward, &route::with_model_in_path(&head.path, model));
    }
    forward.extend(worker.gateway.auth().for_pod(&head.credentials, asked.caller, &target.pool));
    finish_head(&mut forward, bytes.len(), asked.id);
    let request = Request {
        head: forward,
        body: bytes,
        reserved,
        adapter,
        prompt,
        session: head.session.as_deref(),
        priority: worker.gateway.priority(head.objective.as_deref(), &target.pool),
        max_tokens: fields.max_tokens,
        stream: fields.stream,
        pin,
        owner: asked.owner(),
        is_stored: route::unescape(&head.path).trim_end_matches('/').ends_with("/responses"),
        background: fields.background,
        is_again: false,
        strips_usage,
        rename: renamed,
        usage_unsaid: wish == UsageWish::Unsaid,
        keep_alive: keep_alive_comments(head, &fields, worker),
        for_kernel: client.stream.for_kernel().is_ok() && !strips_usage && renamed.is_none(),
        upgrades: false,
        grant: None,
        to_head: false,
        side,
    };
    target.pool.metrics.requested(model);
    client.answering = true;
    let exchange = flow::exchange(request, &target.pool, client, worker).await;
    client.answering = false;
    let keep_alive = exchange.keep_alive;
    let (pool, admitted) = (&target.pool, Some(admitted));
    account::finish(Exchanged { exchange, pool, asked, admitted, ready }, worker);
    keep_alive
}

/// How the client of a stream is kept waiting, if it is.
fn keep_alive_comments(head: &Head, fields: &Fields, worker: &Worker) -> Option<KeepAlive> {
    let every = worker.limits().keep_alive_comments?;
    let path = route::unescape(&head.path);
    let fits = fields.stream && head.version != Version::Http10 && route::streams_events(&path);
    fits.then(|| KeepAlive { every, named: route::is_anthropic(&path) })
}

fn finish_head(forward: &mut Vec<u8>, body: usize, id: &RequestId) {
    // Model servers compress nothing; what stands before one might, and then no count could be read.
    forward.extend_from_slice(b"accept-encoding: identity\r\ncontent-length: ");
    forward.extend_from_slice(body.to_string().as_bytes());
    forward.extend_from_slice(b"\r\nx-request-id: ");
    forward.extend_from_slice(id.as_bytes());
    forward.extend_from_slice(b"\r\n\r\n");
}

fn unknown_path(head: &Head) -> Refusal {
    let shown: String = head.path.chars().take(PATH_SHOWN).collect();
    let method = match head.method {
        Method::Head => "HEAD",
        Method::Post => "POST",
        _ => "GET",
    };
    Refusal::client(404, "unknown_url", format!("Unknown URL: {method} {shown}."))
}

/// Answers with an error. Returns whether the connection goes on.
async fn refuse(
    client: &mut Client,
    refusal: &Refusal,
    asked: &Asked<'_>,
    keep_alive: bool,
    to_head: bool,
    worker: &Worker,
) -> bool {
    debug!(
        id = &**asked.id,
        status = refusal.status,
        code = refusal.code,
        "refused: {}",
        refusal.message
    );
    worker.gateway.counted.refused(refusal.reason());
    if worker.gateway.config().access_log {
        account::log::refused(asked, refusal);
    }
    let keep_alive = keep_alive && !refusal.close;
    let response = refusal.response(asked.id, keep_alive, to_head);
    answer_locally(client, &response, keep_alive).await
}

/// Writes a response of the gateway's own. Returns whether the connection goes on.
async fn answer_locally(client: &mut Client, response: &[u8], keep_alive: bool) -> bool {
    match timeout(LOCAL_WRITE, client.write(response)).await {
        Ok(Ok(())) => keep_alive,
        _ => {
            // What has come of it is not all of it.
            client.reset_on_close(false);
            false
        }
    }
}

/// Characters of a path that an error or the log quotes.
pub(crate) const PATH_SHOWN: usize = 200;

/// The gateway's own answers fit into any socket buffer; a client that has filled it is not
/// reading.
const LOCAL_WRITE: Duration = Duration::from_secs(5);
