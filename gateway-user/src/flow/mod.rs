//! One response on its way from a pod to a client. It ends exactly once, with one outcome.
//!
//! [`exchange`] reserves a place, sends, and looks at the first content; while nothing has been passed on,
//! another pod may take over unseen. [`carry`] brings the rest, with the [`carrier`] of its [`path`].

pub mod carrier;
pub mod carry;
pub mod comments;
pub mod head;
pub mod hold;
pub mod path;
pub mod rename;
pub mod send;
pub mod strip;
pub mod tunnel;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use crate::account::tail::Tail;
use crate::account::usage::Usage;
use crate::admit;
use crate::auth::Grant;
use crate::client::Client;
use crate::error::Refusal;
use crate::explain;
use crate::flow::carrier::{Local, Relay, Splice};
use crate::flow::carry::{Delivered, To, carry};
use crate::flow::comments::{Comments, Early, KeepAlive};
use crate::flow::head::ClientSide;
use crate::flow::hold::Trouble;
use crate::flow::path::{Bytes, Plan, Response};
use crate::flow::rename::Rename;
use crate::flow::send::{Answer, Failure, Watch};
use crate::flow::tunnel::{Tunnelled, tunnel};
use crate::gateway::Memory;
use crate::kernel;
use crate::listen::Worker;
use crate::metrics::{Outcome, PathReason, Rejection};
use crate::pool::{Answered, Ask, Place, Pod, PodId, Pool};
use crate::request::head::Version;
use crate::schedule::NoPod;
use crate::schedule::prefix::Prompt;
use crate::tls::Fault;
use crate::upstream::Use;

/// A request that is ready to be sent.
#[derive(Debug)]
pub struct Request<'a> {
    /// The whole head for the pod, with the empty line.
    pub head: Vec<u8>,
    /// The body's bytes as the client sent them.
    pub body: Vec<u8>,
    /// Their part of the memory that bodies may take together.
    pub reserved: Memory,
    /// The adapter that it names.
    pub adapter: Option<&'a str>,
    /// Its prompt.
    pub prompt: Prompt,
    /// The session that it says it belongs to.
    pub session: Option<&'a str>,
    /// Of those that wait for a place, the higher ones have theirs first; below 0 it does not wait.
    pub priority: i32,
    /// The most tokens that the answer may have.
    pub max_tokens: Option<u64>,
    /// The answer is asked for as a stream.
    pub stream: bool,
    /// The kernel could write to the client.
    pub for_kernel: bool,
    /// The pod that it should go to.
    pub pin: Option<Pin>,
    /// Which pod has made the answer will matter to later requests that name it.
    pub is_stored: bool,
    /// It is made in the background: its first answer tells no tokens.
    pub background: bool,
    /// Whose the answer is, where callers are told apart.
    pub owner: Option<Box<str>>,
    /// It is about an answer that was counted before, and not for a new one.
    pub is_again: bool,
    /// The gateway has asked for usage, and not the client.
    pub strips_usage: bool,
    /// The client has asked for a model of this name, and another one serves it.
    pub rename: Option<&'a str>,
    /// The client has sent `stream_options` that leave it to the engine.
    pub usage_unsaid: bool,
    /// Its client gets comments until there is content.
    pub keep_alive: Option<KeepAlive>,
    /// It asks to switch to WebSocket.
    pub upgrades: bool,
    /// What must hold as long as it goes on switched.
    pub grant: Option<Grant<'a>>,
    /// It was a HEAD: the answer has no body.
    pub to_head: bool,
    /// How the client takes the answer.
    pub side: ClientSide<'a>,
}

/// The pod that has what a request is about.
#[derive(Clone, Copy, Debug)]
pub struct Pin {
    /// The pod.
    pub pod: PodId,
    /// No other one can serve it.
    pub is_strict: bool,
}

/// How an exchange went.
#[derive(Debug)]
pub struct Exchange {
    /// How it ended.
    pub outcome: Outcome,
    /// The status that the client got, or would have got had it not been told 200 before; 0 when there was none.
    pub status: u16,
    /// Why the pool sent it away, if it did.
    pub rejection: Option<Rejection>,
    /// Which way the answer was to go, and how its bytes went.
    pub flow: Option<(Plan, Bytes)>,
    /// The client's connection can carry another request.
    pub keep_alive: bool,
    /// The pod that answered, or was asked last.
    pub pod: Option<Arc<Pod>>,
    /// Pods that were asked in vain before.
    pub retries: u32,
    /// The answer was a stream of events.
    pub stream: bool,
    /// Chunks of the answer's body.
    pub chunks: u64,
    /// The end of the answer's body.
    pub tail: Tail,
    /// How long it waited until there was room for it at a pod.
    pub queued: Duration,
    /// When the request had been written to the pod that answered.
    pub sent: Option<Instant>,
    /// When the first content came.
    pub first_received: Option<Instant>,
    /// When the first content had been written to the client.
    pub first_written: Option<Instant>,
    /// When the last content came.
    pub last_received: Option<Instant>,
}

/// Has a pod of `pool` answer `request` to `client`.
pub async fn exchange(
    request: Request<'_>,
    pool: &Pool,
    client: &mut Client,
    worker: &Worker,
) -> Exchange {
    let Client { stream, input, sent, .. } = &mut *client;
    let (reader, writer) = stream.split(sent);
    let patience = worker.limits().stream_idle_timeout;
    let comments =
        request.keep_alive.map(|with| Comments::new(writer, with, request.side, patience));
    let mut watch = Watch { reader, input, scratch: &worker.scratch, comments };
    let mut tried = Vec::new();
    let mut attempts = 0;
    let admitted = tokio::select! {
        biased;
        admitted = pool.admit(request.priority, || reserve(pool, &request, &tried, worker)) => admitted,
        () = watch.gone() => {
            let was_begun = watch.early().is_some();
            return left(was_begun, None, 0, client);
        }
    };
    let ((mut place, mut explained), queued) = match admitted {
        Ok(admitted) => admitted,
        Err(none) => {
            let (refusal, rejection) = turned_away(pool, request.ask(&tried), none, worker);
            let exchange = Exchange::without_answer(Outcome::Rejected, None, 0);
            let exchange = Exchange { rejection: Some(rejection), ..exchange };
            let to = (request.side, request.to_head, watch.early());
            return refuse(refusal, exchange, to, client).await;
        }
    };
    pool.began(Instant::now());
    loop {
        let sent = send::send(&request, &place, &mut watch, worker).await;
        match &sent {
            Ok(Answer { begun, .. }) if (200..300).contains(&begun.head.status) => {}
            Err(Failure::ClientGone) => {}
            _ => place.refused(&request.prompt),
        }
        let failure = match sent {
            Ok(answer) if answer.trouble.is_none() => {
                pool.served(place.pod.id, answer.sent, Instant::now());
                let granted = (place, explained, queued);
                let early = watch.early();
                return pass(answer, granted, tried.len(), request, early, client, worker).await;
            }
            Ok(answer) => Ok(answer),
            Err(Failure::Local(error)) => {
                warn!("connecting to a pod failed for want of the gateway's own: {error}");
                let refusal = Refusal::overloaded(
                    "out_of_sockets",
                    "The gateway has no descriptor or port left to reach a pod. Try again later.",
                );
                let exchange = Exchange::without_answer(Outcome::Rejected, None, tried.len());
                let to = (request.side, request.to_head, watch.early());
                return refuse(refusal, exchange, to, client).await;
            }
            Err(Failure::ClientGone) => {
                let was_begun = watch.early().is_some();
                return left(was_begun, Some(&place.pod), tried.len(), client);
            }
            Err(failure) => Err(failure),
        };
        note(pool, &place, &failure);
        tried.push(place.pod.id);
        // Where nothing listens, nothing was sent and no time was lost: it must not keep the request from
        // the pod that would have served it.
        let is_refused = failure.as_ref().is_err_and(Failure::is_refused);
        attempts += u32::from(!is_refused);
        let limits = worker.limits();
        // A pod that was silent for the whole time has cost the client its patience already.
        let may_retry = attempts < limits.max_attempts
            && !matches!(failure, Err(Failure::Timeout(_)))
            && (is_refused || pool.may_retry(limits.retry_budget, Instant::now()));
        let none = match may_retry.then(|| reserve(pool, &request, &tried, worker)) {
            Some(Ok(next)) => {
                if !is_refused {
                    pool.retried(Instant::now());
                }
                // The place at the pod that failed is given back here.
                (place, explained) = next;
                continue;
            }
            Some(Err(none)) => Some(none),
            None => None,
        };
        let retries = tried.len() - 1;
        let failure = match failure {
            Ok(answer) => {
                let granted = (place, explained, queued);
                let early = watch.early();
                return pass(answer, granted, retries, request, early, client, worker).await;
            }
            Err(failure) => failure,
        };
        let own = || refusal_for(&failure, &place.pod.name);
        let (outcome, refusal, rejection) = match (&failure, none) {
            // No pod was there to fail: it is as if all had been known to be out of reach, or full.
            (Failure::Connect(_), Some(none)) => {
                let (refusal, rejection) = turned_away(pool, request.ask(&tried), none, worker);
                (Outcome::Rejected, refusal, Some(rejection))
            }
            (Failure::Timeout(_), _) => (Outcome::TimedOut, own(), None),
            _ => (Outcome::PodError, own(), None),
        };
        let exchange = Exchange::without_answer(outcome, Some(&place.pod), retries);
        let to = (request.side, request.to_head, watch.early());
        return refuse(refusal, Exchange { rejection, ..exchange }, to, client).await;
    }
}

/// A place at a pod, and why that one if responses are to tell.
fn reserve(
    pool: &Pool,
    request: &Request<'_>,
    tried: &[PodId],
    worker: &Worker,
) -> Result<(Place, Option<String>), NoPod> {
    let ask = request.ask(tried);
    let now = Instant::now();
    // Looked at a moment before: a request of another worker may come between, in rare cases.
    let explain = worker.gateway.config().explain_header;
    let seen = explain.then(|| explain::lines(pool.explain(ask, now)));
    let place = match request.pin.filter(|pin| !tried.contains(&pin.pod)) {
        Some(Pin { pod, is_strict }) => match pool.reserve(Ask { only: Some(pod), ..ask }, now) {
            Err(_) if !is_strict => pool.reserve(ask, now)?,
            place => place?,
        },
        None if request.pin.is_some_and(|pin| pin.is_strict) => return Err(NoPod::Exhausted),
        None => pool.reserve(ask, now)?,
    };
    let picked = Some((&*place.pod.name, place.score));
    let explained = seen.map(|seen| explain::header(&seen, picked, pool.near()));
    Ok((place, explained))
}

/// What a client is told for whose request there is no pod.
fn turned_away(pool: &Pool, ask: Ask<'_>, none: NoPod, worker: &Worker) -> (Refusal, Rejection) {
    let none = match none {
        // Those that were tried may be out by now for that very reason.
        NoPod::Empty if !ask.tried.is_empty() => NoPod::Exhausted,
        none => none,
    };
    let (refusal, rejection) = admit::refusal(pool, none);
    let explain = worker.gateway.config().explain_header.then(|| {
        let seen = explain::lines(pool.explain(ask, Instant::now()));
        explain::header(&seen, None, pool.near()).into()
    });
    (Refusal { explain, ..refusal }, rejection)
}

/// What a failure says about the pod, and the log line of it.
fn note(pool: &Pool, place: &Place, failure: &Result<Answer, Failure>) {
    let pod = &place.pod;
    let now = Instant::now();
    match failure {
        Ok(Answer { trouble: Some(Trouble::Stopping), .. }) => {
            pool.eject(pod.id, "its engine is stopping or dead", false, now);
        }
        Ok(Answer { begun, trouble, .. }) => {
            // Being full says nothing about the pod's health.
            if matches!(trouble, Some(Trouble::Broken | Trouble::Failed)) {
                pod.failed();
            }
            debug!(pool = %pool.name, pod = %pod.name, status = begun.head.status, "pod refused a request");
            return;
        }
        Err(Failure::Connect(error)) => {
            // A connection that was made before, such as the one for scrapes, does not show that the next can be.
            let silent = Fault::behind(error).is_none();
            pool.eject(pod.id, &format!("connecting failed: {error}"), silent, now);
        }
        // The last two are no fault of the pod's, and are dealt with before.
        Err(Failure::Timeout(_) | Failure::ClientGone | Failure::Local(_)) => pod.failed(),
        Err(failure) => pool.broke(pod.id, &failure.to_string(), now),
    }
    let what = match failure {
        Ok(_) => "its engine is stopping or dead".to_owned(),
        Err(failure) => failure.to_string(),
    };
    warn!(pool = %pool.name, pod = %pod.name, "a request failed at the pod: {what}");
}

fn refusal_for(failure: &Failure, pod: &str) -> Refusal {
    match failure {
        Failure::Timeout(after) => {
            Refusal::pod_timeout(format!("Pod `{pod}` did not begin to answer within {after:?}."))
        }
        _ => Refusal::pod_failed(format!(
            "Pod `{pod}` failed ({failure}), and no other pod could take over."
        )),
    }
}

/// Answers a request whose body has not been read whole: its pool takes none. The connection ends with it.
pub async fn turn_away(
    pool: &Pool,
    side: ClientSide<'_>,
    client: &mut Client,
    worker: &Worker,
) -> Exchange {
    let (refusal, rejection) = turned_away(pool, Ask::default(), NoPod::Saturated, worker);
    let exchange = Exchange::without_answer(Outcome::Rejected, None, 0);
    let exchange = Exchange { rejection: Some(rejection), ..exchange };
    refuse(Refusal { close: true, ..refusal }, exchange, (side, false, None), client).await
}

/// The client has left before there was an answer.
fn left(was_begun: bool, pod: Option<&Arc<Pod>>, retries: usize, client: &mut Client) -> Exchange {
    if was_begun {
        client.reset_on_close(false);
    }
    Exchange::without_answer(Outcome::ClientGone, pod, retries)
}

/// Answers with an error, and completes `exchange` with how that went.
async fn refuse(
    refusal: Refusal,
    mut exchange: Exchange,
    (side, to_head, early): (ClientSide<'_>, bool, Option<Early>),
    client: &mut Client,
) -> Exchange {
    let response = match early {
        None => refusal.response(side.request_id, side.keep_alive, to_head),
        Some(early) => early.end(&refusal.error()),
    };
    match timeout(REFUSAL_WRITE, client.write(&response)).await {
        Ok(Ok(())) => {
            exchange.status = refusal.status;
            exchange.keep_alive = side.keep_alive && !refusal.close;
        }
        _ => {
            exchange.outcome = Outcome::ClientGone;
            // What has come of it is not all of it.
            client.reset_on_close(false);
        }
    }
    exchange
}

/// Carries an answer to the client.
async fn pass(
    answer: Answer,
    (place, explained, queued): (Place, Option<String>, Duration),
    retries: usize,
    request: Request<'_>,
    early: Option<Early>,
    client: &mut Client,
    worker: &Worker,
) -> Exchange {
    // No other pod will need the body, and the answer may take minutes.
    let usage = request.usage(&place.pod);
    let Request { side, head, body, reserved, prompt, is_stored, owner, is_again, .. } = request;
    let owes_usage = is_stored && request.background;
    let strips = request.strips_usage
        && answer.begun.head.event_stream
        && (!request.usage_unsaid || place.pod.keeps_usage());
    let rename = request.rename.and_then(|name| Rename::of(&answer.begun.head, name));
    drop((head, body, reserved));
    let learn = |tail: &Tail| {
        if let Some(id) = tail.id().filter(|_| is_stored) {
            let named = request.rename.map(Into::into);
            worker.gateway.responses.learn(id, place.pod.id, owner.clone(), named);
        }
    };
    learn(&answer.begun.tail);
    let prompt = Some(prompt).filter(|_| place.pod.wants_prompts());
    let Answer { mut upstream, begun, trouble, sent } = answer;
    let too_many = begun.head.status == 429 && !begun.head.retry_after;
    let side = ClientSide {
        explain: explained.as_deref(),
        session: place.session(),
        retry_after: too_many.then(|| place.retry_after(Instant::now())),
        ..side
    };
    let (status, stream, first_received) =
        (begun.head.status, begun.head.event_stream, begun.received);
    if status == 101 {
        let tunnelled = tunnel(&begun, &mut upstream, side, request.grant, client, worker).await;
        let Tunnelled { outcome, received, first_written, last } = tunnelled;
        if outcome != Outcome::Ok {
            client.reset_on_close(outcome != Outcome::ClientGone);
        }
        let bytes = Bytes { relayed: received, ..Bytes::default() };
        return Exchange {
            status,
            flow: Some((Plan::Relay(PathReason::Upgraded), bytes)),
            queued,
            sent: Some(sent),
            first_received: Some(first_received),
            first_written: Some(first_written),
            last_received: Some(last),
            ..Exchange::without_answer(outcome, Some(&place.pod), retries)
        };
    }
    let early = match early {
        Some(early) if status != 200 || !stream || begun.head.encoded => {
            let exchange = Exchange {
                status,
                queued,
                sent: Some(sent),
                first_received: Some(first_received),
                ..Exchange::without_answer(Outcome::PodError, Some(&place.pod), retries)
            };
            let was_fine = trouble.is_none();
            return comments::tell(
                begun,
                upstream,
                early,
                (exchange, was_fine),
                side,
                client,
                worker,
            )
            .await;
        }
        early => early.map(|early| early.unwritten),
    };
    if stream && trouble.is_none() {
        match begun.announces {
            true => place.unseen(),
            false => place.began(first_received),
        }
    }
    // What was wrong before the content has been counted.
    let was_fine = trouble.is_none();
    let unchanged = !(strips
        || rename.is_some()
        || begun.head.chunked && side.version == Version::Http10
        || early.is_some() && !begun.head.chunked);
    let response = Response { event_stream: stream, unchanged };
    let Client { stream: socket, input, sent: counted, receiver, .. } = &mut *client;
    let link = upstream.link.as_ref().map_err(|reason| *reason);
    let mut plan = Plan::new(response, socket.for_kernel().and(link));
    if let (Plan::Kernel(_), Ok(socket), None) = (plan, socket.for_kernel(), &receiver) {
        match worker.gateway.paths.receiver(socket) {
            Ok(taken) => *receiver = Some(taken),
            Err(reason) => plan = Plan::Relay(reason),
        }
    }
    let (reader, writer) = socket.split(counted);
    let watch = Watch { reader, input, scratch: &worker.scratch, comments: None };
    let to = To { side, strips, rename, early, watch, writer, worker };
    let kernel = match (plan, receiver) {
        (Plan::Kernel(path), Some(receiver)) => {
            upstream.take_link().map(|link| (path, link, &*receiver))
        }
        _ => None,
    };
    let delivered = match kernel {
        Some((kernel::Path::Local, link, receiver)) => {
            carry(begun, Local::new(upstream, link, receiver), to).await
        }
        Some((kernel::Path::Splice, link, receiver)) => {
            carry(begun, Splice::new(upstream, link, receiver), to).await
        }
        None => carry(begun, Relay { upstream }, to).await,
    };
    let Delivered { mut outcome, keep_alive, reset, mut chunks, bytes, mut tail, .. } = delivered;
    learn(&tail);
    let Delivered { first_written, last_received, .. } = delivered;
    if let Some(upstream) = delivered.upstream {
        worker.upstreams.keep(place.pod.id, usage, upstream, Instant::now());
    }
    // What a client that is gone has not taken is not kept for it.
    let gone = outcome == Outcome::ClientGone;
    if reset || gone {
        client.reset_on_close(!gone);
    }
    if stream && outcome == Outcome::Ok && tail.has_error_event() {
        outcome = Outcome::PodError;
    }
    if was_fine && matches!(outcome, Outcome::PodError | Outcome::Aborted | Outcome::TimedOut) {
        place.pod.failed();
    }
    let is_good = was_fine && outcome == Outcome::Ok && status == 200;
    let taught = if is_again { Usage::default() } else { tail.usage() };
    let responses = &worker.gateway.responses;
    if is_again {
        let tells = is_good && tail.is_completed() && tail.usage().completion_tokens.is_some();
        if !(tells && tail.id().is_some_and(|id| responses.settle_usage(id))) {
            tail = Tail::new(false);
        }
        chunks = 0;
    } else if owes_usage && is_good && !stream && taught.completion_tokens.is_none() {
        tail.id().inspect(|id| responses.owe_usage(id));
    }
    let pod = Arc::clone(&place.pod);
    if is_good {
        let usage = taught;
        let counted = Some(chunks).filter(|chunks| stream && *chunks > 0);
        if let Some((prompt, tokens)) = prompt.zip(usage.prompt_tokens) {
            place.answered(prompt, tokens, sent, first_received);
        }
        place.end(Answered {
            prompt_tokens: usage.prompt_tokens,
            output_tokens: usage.completion_tokens.or(counted),
            last_received: Some(last_received),
        });
    }
    Exchange {
        outcome,
        status,
        rejection: None,
        flow: Some((plan, bytes)),
        keep_alive,
        pod: Some(pod),
        retries: retries as u32,
        stream,
        chunks,
        tail,
        queued,
        sent: Some(sent),
        first_received: Some(first_received),
        first_written: Some(first_written),
        last_received: Some(last_received),
    }
}

impl Request<'_> {
    fn ask<'a>(&'a self, tried: &'a [PodId]) -> Ask<'a> {
        let &Self { adapter, ref prompt, session, max_tokens, stream, .. } = self;
        Ask { adapter, prompt, session, max_tokens, stream, tried, only: None }
    }

    /// What its connection to `pod` is for.
    fn usage(&self, pod: &Pod) -> Use {
        // The kernel reads no TLS.
        let by_kernel = self.stream && self.for_kernel && pod.tls.is_none();
        if by_kernel { Use::Streams } else { Use::Answers }
    }
}

impl Exchange {
    fn without_answer(outcome: Outcome, pod: Option<&Arc<Pod>>, retries: usize) -> Self {
        Self {
            outcome,
            status: 0,
            rejection: None,
            flow: None,
            keep_alive: false,
            pod: pod.cloned(),
            retries: retries as u32,
            stream: false,
            chunks: 0,
            tail: Tail::new(false),
            queued: Duration::ZERO,
            sent: None,
            first_received: None,
            first_written: None,
            last_received: None,
        }
    }
}

/// A refusal fits into any socket buffer; a client that has filled it is not reading.
const REFUSAL_WRITE: Duration = Duration::from_secs(1);
