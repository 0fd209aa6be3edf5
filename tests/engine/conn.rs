//! One client connection: requests in, answers out, each write as a real server makes it.
//!
//! A stream is a head, then one write for each event with its chunk framing, then `[DONE]`, then
//! the last chunk; any other answer is a head and a body. A client that closes, or half-closes,
//! aborts its request.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::api::{self, Body, Endpoint, Reply};
use super::faults::{Faults, MetricsFault};
use super::model::Rejected;
use super::peer::{Over, Peer};
use super::pod::{Control, End, Pod, Span, Submitted, Target, lock, unix};
use super::routes;
use super::wire::{self, Answer, Framing, Head};

/// Serves a connection until it ends.
pub(super) async fn serve(socket: TcpStream, pod: Arc<Pod>) {
    {
        let mut stats = lock(&pod.stats);
        stats.connections += 1;
        stats.open += 1;
    }
    let _open = Open(Arc::clone(&pod));
    // Without it a token could wait for the client's acknowledgement; uvicorn sets it too.
    if socket.set_nodelay(true).is_err() {
        return;
    }
    let mut conn = Conn { peer: Peer::new(socket, Arc::clone(&pod)), pod };
    // Every way out is a closed connection; there is nobody to tell.
    let _ = conn.run().await;
}

/// Counts the connection as open while it lives.
struct Open(Arc<Pod>);

impl Drop for Open {
    fn drop(&mut self) {
        lock(&self.0.stats).open -= 1;
    }
}

/// How an inference request was answered to its end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Outcome {
    Completed,
    /// An error, by status or by event.
    Failed,
}

struct Conn {
    peer: Peer,
    pod: Arc<Pod>,
}

impl Conn {
    async fn run(&mut self) -> Result<(), Over> {
        let mut first = true;
        loop {
            let head = self.head(first).await?;
            first = false;
            let mut close = !head.keep_alive;
            let body = self.body(&head).await?;
            lock(&self.pod.stats).count(&head.path);
            match Endpoint::at(&head.path) {
                Some(endpoint) if head.method == "POST" => {
                    let faults = self.faults(&head, &body);
                    self.peer.split = faults.split;
                    close |= faults.close;
                    let outcome = self.infer(endpoint, &head, &body, &faults, close).await;
                    self.count(outcome);
                    outcome?;
                    close |= faults.close_silently || faults.until_close;
                    self.peer.split = None;
                }
                _ if head.path == "/metrics" => self.metrics(&head, close).await?,
                _ => {
                    let answer = routes::answer(&self.pod, &head, &body);
                    self.answer(&head, &answer, close).await?;
                }
            }
            if close {
                return Ok(());
            }
        }
    }

    fn count(&self, outcome: Result<Outcome, Over>) {
        let mut stats = lock(&self.pod.stats);
        match outcome {
            Ok(Outcome::Completed) => stats.completed += 1,
            Ok(Outcome::Failed) | Err(Over::Fault) => stats.failed += 1,
            Err(Over::Client) => stats.aborted += 1,
        }
    }

    /// The next request's head.
    async fn head(&mut self, first: bool) -> Result<Head, Over> {
        loop {
            match Head::parse(&mut self.peer.inbox) {
                Ok(Some(head)) => return Ok(head),
                Ok(None) => {}
                Err(wire::Malformed) => {
                    self.peer.write(wire::invalid_request().as_bytes()).await?;
                    return Err(Over::Client);
                }
            }
            // Only between requests: uvicorn waits for ever for the first one, or the rest of one.
            if first || !self.peer.inbox.is_empty() {
                self.peer.fill().await?;
            } else {
                let idle = self.pod.options.keep_alive;
                timeout(idle, self.peer.fill()).await.map_err(|_| Over::Client)??;
            }
        }
    }

    async fn body(&mut self, head: &Head) -> Result<Bytes, Over> {
        if head.expects_continue {
            self.peer.write(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        match head.body {
            Framing::Length(length) => {
                while self.peer.inbox.len() < length {
                    self.peer.fill().await?;
                }
                Ok(self.peer.inbox.split_to(length).freeze())
            }
            Framing::Chunked => {
                let mut body = BytesMut::new();
                loop {
                    match wire::take_chunks(&mut self.peer.inbox, &mut body) {
                        Ok(true) => return Ok(body.freeze()),
                        Ok(false) => self.peer.fill().await?,
                        Err(wire::Malformed) => {
                            self.peer.write(wire::invalid_request().as_bytes()).await?;
                            return Err(Over::Client);
                        }
                    }
                }
            }
        }
    }

    /// The faults for this request.
    fn faults(&self, head: &Head, body: &Bytes) -> Faults {
        lock(&self.pod.stats).keep(head, body);
        let faults = lock(&self.pod.faults).for_request();
        match head.header("x-engine-fault").map(|json| faults.with(json.as_bytes())) {
            Some(Ok(changed)) => changed,
            _ => faults,
        }
    }

    /// Answers an inference request.
    async fn infer(
        &mut self,
        endpoint: Endpoint,
        head: &Head,
        body: &Bytes,
        faults: &Faults,
        close: bool,
    ) -> Result<Outcome, Over> {
        if faults.no_answer {
            return Err(self.peer.gone().await);
        }
        let prepared = match refusal(&self.pod, faults) {
            Some(answer) => Err(Box::new(answer)),
            None => self.prepare(endpoint, head, body),
        };
        let (mut reply, submitted, stream) = match prepared {
            Ok(prepared) => prepared,
            Err(answer) => {
                self.answer(head, &answer, close).await?;
                return Ok(Outcome::Failed);
            }
        };
        if let Some(status) = faults.interim {
            let hint = if status == 103 { "link: </style.css>; rel=preload\r\n" } else { "" };
            self.peer.write(format!("HTTP/1.1 {status} Interim\r\n{hint}\r\n").as_bytes()).await?;
        }
        if stream {
            self.stream(&mut reply, &submitted, faults, close).await
        } else {
            self.whole(head, &mut reply, &submitted, faults, close).await
        }
    }

    /// Reads the request and gives it to an engine, or says why not.
    fn prepare(
        &self,
        endpoint: Endpoint,
        head: &Head,
        body: &Bytes,
    ) -> Result<(Reply, Submitted, bool), Box<Answer>> {
        let pod = &self.pod;
        let options = &pod.options;
        let media = head.header("content-type").and_then(|text| text.split(';').next());
        if !media.is_some_and(|media| media.trim().eq_ignore_ascii_case("application/json")) {
            return Err(Box::new(api::not_json()));
        }
        let body = Body::parse(endpoint, body)?;
        let Some(target) = pod.resolve(body.model.as_deref()) else {
            let name = body.model.as_deref().unwrap_or_default();
            return Err(Box::new(api::unknown_model(name, &options.models.join(", "))));
        };
        if options.max_queued.is_some_and(|most| pod.waiting() >= most) {
            let message = "The request queue is full, please try again later.";
            return Err(Box::new(Answer::error(503, "Service Unavailable", message, None)));
        }
        let max_tokens = match endpoint {
            Endpoint::Embedding => 0,
            _ => body.max_tokens(pod.max_model_len())?,
        };
        let mut request = body.request(max_tokens);
        if let Target::Adapter(adapter) = target {
            request.adapter = Some(adapter);
        }
        let prompt_tokens = request.prompt_tokens;
        let rank = head.header("x-data-parallel-rank").and_then(|rank| rank.parse().ok());
        let submitted = pod.submit(request, rank).map_err(|rejected| match rejected {
            Rejected::TooLong(limit) => api::too_long(prompt_tokens, max_tokens, limit),
            Rejected::NoAdapters => api::unknown_model("adapter", &options.models.join(", ")),
        })?;
        let random = lock(&pod.random).u64(..);
        let model = body.model.as_deref().or(options.models.first().map(String::as_str));
        let reply = Reply {
            endpoint,
            id: api::escaped(&endpoint.id(head.header("x-request-id"), random)),
            created: unix().as_secs(),
            model: api::escaped(model.unwrap_or_default()),
            pod: api::escaped(&options.name),
            prompt_tokens,
            cached_tokens: None,
            include_usage: body.include_usage(),
            continuous_usage: body.continuous_usage(),
            max_tokens,
            stamp: options.stamp,
        };
        let stream = body.stream.unwrap_or(false) && endpoint != Endpoint::Embedding;
        Ok((reply, submitted, stream))
    }

    /// Answers with events.
    async fn stream(
        &mut self,
        reply: &mut Reply,
        submitted: &Submitted,
        faults: &Faults,
        close: bool,
    ) -> Result<Outcome, Over> {
        // The head says nothing of the engine: it goes out before the request is there.
        self.peer.pause_until(self.pod.front_end_done().into()).await?;
        let chunked = !faults.until_close;
        let date = wire::date(unix().as_secs());
        self.peer.write(wire::stream_head(&date, close, chunked).as_bytes()).await?;
        let ticket = &submitted.ticket;
        let mut sent = 0;
        loop {
            // In this order: once it has ended, all tokens are there.
            let end = ticket.end();
            let tokens = ticket.tokens();
            while sent < tokens {
                self.strike(faults, sent).await?;
                if faults.error_after == Some(sent) {
                    return self.dead(chunked).await;
                }
                if sent == 0 {
                    if self.pod.options.prompt_tokens_details {
                        reply.cached_tokens = Some(ticket.cached());
                    }
                    self.peer.event(chunked, faults, |out| reply.put_role(out)).await?;
                }
                sent += 1;
                let now = if reply.stamp { unix().as_nanos() as u64 } else { 0 };
                self.peer.event(chunked, faults, |out| reply.put_token(out, sent, now)).await?;
            }
            match end {
                End::NotYet => {
                    self.strike(faults, sent).await?;
                    let alive = faults.keep_alive_ms.filter(|_| sent == 0);
                    self.peer.news(submitted, alive.map(Duration::from_millis), chunked).await?;
                }
                End::Finished => break,
                End::EngineDead => return self.dead(chunked).await,
            }
        }
        self.strike(faults, sent).await?;
        if faults.error_after == Some(sent) {
            return self.dead(chunked).await;
        }
        self.peer.event(chunked, faults, |out| reply.put_usage(out, sent)).await?;
        self.peer.event(chunked, faults, |out| out.extend_from_slice(api::DONE)).await?;
        if chunked {
            self.peer.write(wire::last_chunk(faults.trailers)).await?;
        }
        Ok(Outcome::Completed)
    }

    /// Answers with one body.
    async fn whole(
        &mut self,
        head: &Head,
        reply: &mut Reply,
        submitted: &Submitted,
        faults: &Faults,
        close: bool,
    ) -> Result<Outcome, Over> {
        if faults.stall_after.is_some() {
            return Err(self.peer.gone().await);
        }
        if faults.exit_after.is_some() {
            self.pod.control(Control::Die(Span(None)));
            self.peer.gone().await;
            return Err(Over::Fault);
        }
        while submitted.ticket.end() == End::NotYet {
            self.peer.news(submitted, None, false).await?;
        }
        if submitted.ticket.end() == End::EngineDead || faults.error_after.is_some() {
            self.answer(head, &api::engine_dead(), close).await?;
            return Ok(Outcome::Failed);
        }
        if self.pod.options.prompt_tokens_details {
            reply.cached_tokens = Some(submitted.ticket.cached());
        }
        let mut answer = Answer::json(200, reply.body());
        answer.headers = routes::load_header(&self.pod, head);
        if let Some(tokens) = faults.crash_after {
            if tokens > 0 {
                let date = wire::date(unix().as_secs());
                self.peer.write(answer.head(&date, close).as_bytes()).await?;
                let half = answer.body.as_bytes().get(..answer.body.len() / 2);
                self.peer.write(half.unwrap_or_default()).await?;
            }
            return Err(self.crash(faults));
        }
        if faults.until_close {
            let date = wire::date(unix().as_secs());
            let head = answer.head(&date, close);
            let head: String = head
                .split_inclusive('\n')
                .filter(|line| !line.starts_with("content-length"))
                .collect();
            self.peer.write(head.as_bytes()).await?;
            self.peer.write(answer.body.as_bytes()).await?;
        } else {
            self.answer(head, &answer, close).await?;
        }
        Ok(Outcome::Completed)
    }

    /// Does what a fault says should happen to the connection after `sent` tokens.
    async fn strike(&mut self, faults: &Faults, sent: u32) -> Result<(), Over> {
        let now = Some(sent);
        if faults.stall_after == now {
            return Err(self.peer.gone().await);
        }
        if faults.crash_after == now {
            return Err(self.crash(faults));
        }
        if faults.exit_after == now {
            self.pod.control(Control::Die(Span(None)));
            self.peer.gone().await;
            return Err(Over::Fault);
        }
        Ok(())
    }

    /// Ends a stream whose engine has died.
    async fn dead(&mut self, chunked: bool) -> Result<Outcome, Over> {
        let healthy = Faults::default();
        for event in [api::ENGINE_DEAD_EVENT, api::DONE] {
            self.peer.event(chunked, &healthy, |out| out.extend_from_slice(event)).await?;
        }
        if chunked {
            self.peer.write(wire::last_chunk(false)).await?;
        }
        Ok(Outcome::Failed)
    }

    /// Lets the connection end in the way that the fault says.
    fn crash(&mut self, faults: &Faults) -> Over {
        if !faults.crash_fin {
            self.peer.reset();
        }
        Over::Fault
    }

    /// Answers at once, head and body in a write each.
    async fn answer(&mut self, head: &Head, answer: &Answer, close: bool) -> Result<(), Over> {
        let date = wire::date(unix().as_secs());
        self.peer.write(answer.head(&date, close).as_bytes()).await?;
        if head.method == "HEAD" { Ok(()) } else { self.peer.write(answer.body.as_bytes()).await }
    }

    /// Answers `/metrics`, truly or not.
    async fn metrics(&mut self, head: &Head, close: bool) -> Result<(), Over> {
        let (fault, delay) = {
            let faults = lock(&self.pod.faults);
            (faults.metrics, Duration::from_millis(faults.metrics_delay_ms))
        };
        if !delay.is_zero() {
            self.peer.pause_until(Instant::now() + delay).await?;
        }
        if fault == MetricsFault::Silent {
            return Err(self.peer.gone().await);
        }
        let mut answer = routes::metrics(&self.pod, fault);
        if fault == MetricsFault::Garbage {
            answer.body = "\0".repeat(64);
        }
        if fault == MetricsFault::Cut {
            let date = wire::date(unix().as_secs());
            self.peer.write(answer.head(&date, close).as_bytes()).await?;
            let half = answer.body.as_bytes().get(..answer.body.len() / 2);
            self.peer.write(half.unwrap_or_default()).await?;
            return Err(Over::Fault);
        }
        self.answer(head, &answer, close).await
    }
}

/// What a pod that takes no requests answers.
fn refusal(pod: &Pod, faults: &Faults) -> Option<Answer> {
    if pod.starting() {
        return Some(routes::starting());
    }
    if pod.engine_dead() {
        return Some(api::engine_dead());
    }
    if let Some(status) = faults.status {
        let kind = match status {
            429 => "rate_limit_error",
            503 => "Service Unavailable",
            _ => "InternalServerError",
        };
        let mut answer = Answer::error(status, kind, "simulated failure", None);
        if let Some(seconds) = faults.retry_after {
            answer.headers = format!("retry-after: {seconds}\r\n");
        }
        return Some(answer);
    }
    let message = "cannot schedule new futures after shutdown";
    faults.draining.then(|| Answer::error(500, "InternalServerError", message, None))
}
