//! WebSocket: `GET /v1/realtime?model=NAME`. There is no body, so the pod is picked by the head, and then both sides
//! talk through the gateway for as long as they like ([`crate::flow::tunnel`]).
//!
//! A pod that does not switch is passed on as any answer; the connection ends with it, as what the client has sent
//! meanwhile is no request.

use std::sync::Arc;

use tokio::time::Instant;

use super::refuse;
use crate::account::log::Asked;
use crate::account::{self, Exchanged};
use crate::auth::{self, Grant};
use crate::client::Client;
use crate::error::Refusal;
use crate::flow::head::ClientSide;
use crate::flow::{self, Request};
use crate::listen::Worker;
use crate::pool::Pool;
use crate::request::head::{BodyLength, Head, Version};
use crate::request::rewrite;
use crate::route::{self, Target};
use crate::schedule::prefix::Prompt;

/// Has a pod switch, and passes on until the end. Returns whether the connection goes on.
pub(super) async fn exchange(
    client: &mut Client,
    head: &Head,
    asked: Asked<'_>,
    exclusive: Option<&Arc<Pool>>,
    worker: &Worker,
) -> bool {
    if !head.websocket || head.version != Version::Http11 || head.body != BodyLength::Known(0) {
        let refusal = Refusal::bad_request(
            "websocket_required",
            "This URL speaks WebSocket over HTTP/1.1: send `Upgrade: websocket` and no body.",
        );
        return refuse(client, &refusal, &asked, false, false, worker).await;
    }
    let routes = worker.gateway.routes();
    let model = head.query.as_deref().and_then(route::model_in_query);
    let asked = Asked { model: model.as_deref(), ..asked };
    let whole = exclusive.map(|pool| Target { pool: Arc::clone(pool), adapter: None });
    let missing = || {
        Refusal::bad_field(
            "model",
            "model_missing",
            "Name the model once in the URL: /v1/realtime?model=NAME.",
        )
    };
    let (model, target) = match route::resolve(&routes, whole.as_ref(), asked.model, missing) {
        Ok(found) => found,
        Err(refusal) => return refuse(client, &refusal, &asked, false, false, worker).await,
    };
    let adapter = target.adapter.as_deref();
    let asked = Asked { model: Some(model), adapter, ..asked };
    let (of, now) = (&target.pool, Instant::now());
    let admitted = match auth::permit(asked.caller, (model, target), of, &[], 0, None, now) {
        Ok(admitted) => admitted,
        Err(refusal) => return refuse(client, &refusal, &asked, false, false, worker).await,
    };
    let limits = admitted.headers().to_owned();
    let (gateway, credentials) = (&*worker.gateway, &head.credentials);
    let grant = asked.caller.map(|caller| Grant { gateway, credentials, caller, model, target });
    let mut forward = head.forward.clone();
    if worker.gateway.auth().checks() {
        rewrite::without_key_as_protocol(&mut forward);
    }
    forward.extend(worker.gateway.auth().for_pod(&head.credentials, asked.caller, &target.pool));
    forward.extend_from_slice(b"connection: Upgrade\r\nupgrade: websocket\r\nx-request-id: ");
    forward.extend_from_slice(asked.id.as_bytes());
    forward.extend_from_slice(b"\r\n\r\n");
    let request = Request {
        head: forward,
        body: Vec::new(),
        reserved: worker.gateway.memory(),
        adapter,
        prompt: Prompt::default(),
        session: head.session.as_deref(),
        priority: gateway.priority(head.objective.as_deref(), &target.pool),
        max_tokens: None,
        stream: false,
        pin: None,
        is_stored: false,
        background: false,
        owner: None,
        is_again: false,
        strips_usage: false,
        rename: None,
        usage_unsaid: false,
        keep_alive: None,
        for_kernel: false,
        upgrades: true,
        grant,
        to_head: false,
        side: ClientSide { limits: &limits, ..ClientSide::new(head, false, asked.id) },
    };
    target.pool.metrics.requested(model);
    let ready = Instant::now();
    client.answering = true;
    let exchange = flow::exchange(request, &target.pool, client, worker).await;
    client.answering = false;
    let (pool, admitted) = (&target.pool, Some(admitted));
    account::finish(Exchanged { exchange, pool, asked, admitted, ready }, worker);
    false
}

/// Where it is spoken.
pub(super) const PATH: &str = "/v1/realtime";
