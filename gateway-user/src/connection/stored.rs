//! Requests about a response that a pod has made before: it is read, cancelled or deleted, by its id.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::time::Instant;

use super::{finish_head, refuse};
use crate::account::log::Asked;
use crate::account::{self, Exchanged};
use crate::client::Client;
use crate::error::Refusal;
use crate::flow::head::ClientSide;
use crate::flow::{self, Pin, Request};
use crate::limit;
use crate::listen::Worker;
use crate::pool::{PodId, Pool};
use crate::request::body::{Body, Unread, read_body};
use crate::request::head::{BodyLength, Head, Method};
use crate::responses::Found;
use crate::route;
use crate::schedule::prefix::Prompt;

/// Has the pod that made the response answer. Returns whether the connection goes on.
pub(super) async fn exchange(
    client: &mut Client,
    head: &Head,
    asked: Asked<'_>,
    keep_alive: bool,
    exclusive: Option<&Arc<Pool>>,
    worker: &Worker,
) -> bool {
    let to_head = head.method == Method::Head;
    let id = route::response_id(&head.path).unwrap_or_default();
    let owner = asked.owner();
    let Some((pool, pod)) = find(id, owner.as_deref(), exclusive, worker) else {
        let refusal = Refusal::response_not_found(id);
        return refuse(client, &refusal, &asked, keep_alive, to_head, worker).await;
    };
    let (body, reserved) = if head.body == BodyLength::Known(0) {
        (Vec::new(), worker.gateway.memory())
    } else {
        match read_body(client, head, worker, |_| None::<Infallible>).await {
            Ok(Some(Body { bytes, reserved, .. })) => (bytes, reserved),
            Ok(None) => return false,
            Err(Unread::Refused(refusal)) => {
                return refuse(client, &refusal, &asked, keep_alive, to_head, worker).await;
            }
            Err(Unread::Useless(never)) => match never {},
        }
    };
    let asked = Asked { model: Some(&pool.model), body: body.len(), ..asked };
    let admitted = limit::of_request(asked.caller, &pool, 0, None, Instant::now());
    let admitted = match admitted {
        Ok(admitted) => admitted,
        Err(refusal) => return refuse(client, &refusal, &asked, keep_alive, to_head, worker).await,
    };
    let named = worker.gateway.responses.named(id);
    let limits = admitted.headers().to_owned();
    let mut forward = head.forward.clone();
    forward.extend(worker.gateway.auth().for_pod(&head.credentials, asked.caller, &pool));
    finish_head(&mut forward, body.len(), asked.id);
    let request = Request {
        head: forward,
        body,
        reserved,
        adapter: None,
        prompt: Prompt::default(),
        session: None,
        priority: 0,
        max_tokens: None,
        stream: false,
        pin: Some(Pin { pod, is_strict: true }),
        is_stored: false,
        background: false,
        owner: None,
        is_again: true,
        strips_usage: false,
        rename: named.as_deref(),
        usage_unsaid: false,
        keep_alive: None,
        for_kernel: false,
        upgrades: false,
        grant: None,
        to_head,
        side: ClientSide { limits: &limits, ..ClientSide::new(head, keep_alive, asked.id) },
    };
    let ready = Instant::now();
    client.answering = true;
    let exchange = flow::exchange(request, &pool, client, worker).await;
    client.answering = false;
    let keep_alive = exchange.keep_alive;
    // What tokens it may tell have been taken of the limits by the request that had them made.
    drop(admitted);
    let (pool, admitted) = (&pool, None);
    account::finish(Exchanged { exchange, pool, asked, admitted, ready }, worker);
    keep_alive
}

/// The pod that has the response, and its pool.
fn find(
    id: &str,
    owner: Option<&str>,
    exclusive: Option<&Arc<Pool>>,
    worker: &Worker,
) -> Option<(Arc<Pool>, PodId)> {
    let gateway = &worker.gateway;
    let is_within = |pool: &&Arc<Pool>| exclusive.is_none_or(|own| Arc::ptr_eq(own, pool));
    let pools = gateway.pools();
    let mut pools = pools.iter().filter(is_within);
    match gateway.responses.find(id, owner) {
        Found::At(pod) => {
            let has = |pool: &&Arc<Pool>| pool.pods().iter().any(|own| own.id == pod);
            Some((Arc::clone(pools.find(has)?), pod))
        }
        // Where there is one pod only, it can be no other's, whoever started when: but perhaps another caller's.
        Found::Nowhere if owner.is_none() => match (pools.next(), pools.next()) {
            (Some(pool), None) => match pool.pods().as_slice() {
                [only] => Some((Arc::clone(pool), only.id)),
                _ => None,
            },
            _ => None,
        },
        Found::Others | Found::Nowhere => None,
    }
}
