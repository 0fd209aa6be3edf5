//! Comments for the client of a stream whose first content takes its time, so that nothing on the way takes the silence
//! for the end: a head of the gateway's own, and then a line that clients skip, again and again.
//!
//! Nothing of a pod has come by then, so that another pod can still take over. But the client has been told 200: what
//! goes wrong from then on, a pod's own error answer as well, is told by an event, and the stream ends behind it.

use std::io;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};

use crate::client::{Client, Scratch, Writer};
use crate::error::Refusal;
use crate::flow::head::{self, ClientSide};
use crate::flow::send::{Begun, Watch};
use crate::flow::{Exchange, REFUSAL_WRITE};
use crate::listen::Worker;
use crate::metrics::Outcome;
use crate::request::head::Version;
use crate::upstream::Upstream;

/// How a client is kept waiting.
#[derive(Clone, Copy, Debug)]
pub struct KeepAlive {
    /// How often it gets a comment.
    pub every: Duration,
    /// Its events have names, and it passes over those without: Anthropic's interface.
    pub named: bool,
}

/// Writes the comments of one stream.
#[derive(Debug)]
pub struct Comments<'a> {
    writer: Writer<'a>,
    keep_alive: KeepAlive,
    /// How long the client may take nothing.
    patience: Duration,
    due: Instant,
    /// The head, while it has not been begun.
    head: Option<Vec<u8>>,
    /// What is being written, and how much had been written to the client before.
    batch: Vec<u8>,
    before: u64,
    chunks: bool,
}

/// A stream that the gateway has begun.
#[derive(Clone, Debug)]
pub struct Early {
    /// The rest of the last comment.
    pub unwritten: Vec<u8>,
    chunks: bool,
    named: bool,
}

impl<'a> Comments<'a> {
    /// For the client of `side`; `patience` is how long it may take nothing.
    pub fn new(
        writer: Writer<'a>,
        keep_alive: KeepAlive,
        side: ClientSide<'_>,
        patience: Duration,
    ) -> Self {
        let mut head = Vec::new();
        if let Ok(Some(own)) = head::parse(HEAD, false) {
            own.write(side, &mut head);
        }
        Self {
            writer,
            keep_alive,
            patience,
            due: Instant::now() + keep_alive.every,
            head: Some(head),
            batch: Vec::new(),
            before: 0,
            chunks: side.version == Version::Http11,
        }
    }

    /// Writes whenever it is time. Returns when the client takes nothing any more. Dropped while it waits, it goes on
    /// where it was.
    pub async fn run(&mut self) {
        loop {
            if !matches!(
                timeout(self.patience, self.writer.write_all(self.rest())).await,
                Ok(Ok(()))
            ) {
                return;
            }
            self.batch.clear();
            sleep_until(self.due).await;
            self.due = Instant::now() + self.keep_alive.every;
            self.before = self.writer.sent();
            self.batch = self.head.take().unwrap_or_default();
            put(&mut self.batch, COMMENT, self.chunks);
        }
    }

    /// The stream, if it has been begun.
    pub fn early(&self) -> Option<Early> {
        self.head.is_none().then(|| Early {
            unwritten: self.rest().to_vec(),
            chunks: self.chunks,
            named: self.keep_alive.named,
        })
    }

    fn rest(&self) -> &[u8] {
        let written = self.writer.sent().wrapping_sub(self.before);
        self.batch.get(usize::try_from(written).unwrap_or(usize::MAX)..).unwrap_or_default()
    }
}

impl Early {
    /// What is left to write of a stream that ends with an error.
    pub fn end(self, error: &Value) -> Vec<u8> {
        let Self { unwritten: mut out, chunks, named } = self;
        let event = match named {
            true => {
                format!("event: error\ndata: {{\"type\":\"error\",\"error\":{error}}}\n\n")
            }
            false => format!("data: {}\n\n", json!({"error": error})),
        };
        put(&mut out, event.as_bytes(), chunks);
        if chunks {
            out.extend_from_slice(b"0\r\n\r\n");
        }
        out
    }
}

/// Tells a client that has been promised a stream of a pod's answer that is none.
pub(super) async fn tell(
    begun: Begun,
    mut upstream: Upstream,
    early: Early,
    (exchange, was_fine): (Exchange, bool),
    side: ClientSide<'_>,
    client: &mut Client,
    worker: &Worker,
) -> Exchange {
    let pause = worker.limits().stream_idle_timeout;
    let Client { stream, input, .. } = &mut *client;
    let (reader, scratch) = (stream.reader(), &worker.scratch);
    let mut watch = Watch { reader, input, scratch, comments: None };
    let outcome = match exchange.status {
        400..=499 => Outcome::ClientError,
        _ => Outcome::PodError,
    };
    if was_fine
        && outcome == Outcome::PodError
        && let Some(pod) = &exchange.pod
    {
        pod.failed();
    }
    let error = error_in(begun, &mut upstream, &mut watch, scratch, pause).await;
    let written = match error {
        Some(error) => timeout(REFUSAL_WRITE, client.write(&early.end(&error))).await,
        None => Ok(Err(io::ErrorKind::ConnectionAborted.into())),
    };
    if !matches!(written, Ok(Ok(()))) {
        client.reset_on_close(false);
        return Exchange { outcome: Outcome::ClientGone, ..exchange };
    }
    Exchange { outcome, keep_alive: side.keep_alive, ..exchange }
}

/// The error in a pod's answer that is no stream, in OpenAI's form. `None`: the client has left.
async fn error_in(
    begun: Begun,
    upstream: &mut Upstream,
    watch: &mut Watch<'_>,
    scratch: &Scratch,
    pause: Duration,
) -> Option<Value> {
    let Begun { head, body, mut framing, mut closed, .. } = begun;
    let mut payload = Vec::new();
    // Well formed: `begun` was made by running the same machine over it.
    let _ = head.framing.clone().run(&body, |piece| payload.extend_from_slice(piece));
    let (mut reader, _) = upstream.stream.split();
    while !framing.is_done() && !closed && payload.len() < LONGEST_ERROR {
        let mut broken = false;
        let read = scratch.read(&mut reader, |bytes| {
            broken = framing.run(bytes, |piece| payload.extend_from_slice(piece)).is_err();
        });
        tokio::select! {
            biased;
            read = timeout(pause, read) => closed = !matches!(read, Ok(Ok(1..))) || broken,
            () = watch.gone() => return None,
        }
    }
    Some(match head.status {
        200..=299 => Refusal::pod_failed("The pod did not answer with a stream.").error(),
        status => openai_error(status, &payload),
    })
}

/// What an engine's error answer says. Engines have several forms; the status is told as the code, as the client gets no
/// other.
fn openai_error(status: u16, payload: &[u8]) -> Value {
    let answer = serde_json::from_slice::<Value>(payload).unwrap_or_default();
    let inner = [answer.get("error"), Some(&answer)].into_iter().flatten();
    let mut inner = inner.filter(|inner| inner.get("message").is_some_and(Value::is_string));
    let kind = match status {
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    };
    if let Some(inner) = inner.next() {
        let own = |name: &str| inner.get(name).filter(|value| !value.is_null()).cloned();
        return json!({
            "message": own("message"),
            "type": own("type").unwrap_or_else(|| kind.into()),
            "param": own("param"),
            "code": own("code").unwrap_or_else(|| status.into()),
        });
    }
    let text = ["error", "detail"].iter().find_map(|name| answer.get(name)?.as_str());
    let text = text.map_or_else(|| String::from_utf8_lossy(payload), Into::into);
    let text: String = text.trim().chars().take(MOST_QUOTED).collect();
    json!({"message": text, "type": kind, "param": null, "code": status})
}

fn put(out: &mut Vec<u8>, event: &[u8], chunks: bool) {
    match chunks {
        true => {
            out.extend_from_slice(format!("{:x}\r\n", event.len()).as_bytes());
            out.extend_from_slice(event);
            out.extend_from_slice(b"\r\n");
        }
        false => out.extend_from_slice(event),
    }
}

/// What the head of the stream says; the rest is the client's.
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
    cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";

const COMMENT: &[u8] = b": keep-alive\n\n";

/// As much of a pod's error as is read, in bytes.
const LONGEST_ERROR: usize = 64 * 1024;

/// Characters that are quoted of one in no form that is known.
const MOST_QUOTED: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_every_form_become_openais() {
        for (status, payload, expected) in [
            (
                400,
                r#"{"error":{"message":"m","type":"BadRequestError","param":null,"code":400}}"#,
                json!({"message":"m","type":"BadRequestError","param":null,"code":400}),
            ),
            (
                404,
                r#"{"object":"error","message":"m","type":"NotFoundError","param":"model","code":404}"#,
                json!({"message":"m","type":"NotFoundError","param":"model","code":404}),
            ),
            (
                422,
                r#"{"error":"too long","error_type":"validation"}"#,
                json!({"message":"too long","type":"invalid_request_error","param":null,"code":422}),
            ),
            (
                503,
                r#"{"detail":"no"}"#,
                json!({"message":"no","type":"server_error","param":null,"code":503}),
            ),
            (
                429,
                "busy\n",
                json!({"message":"busy","type":"rate_limit_error","param":null,"code":429}),
            ),
            (500, "", json!({"message":"","type":"server_error","param":null,"code":500})),
        ] {
            assert_eq!(openai_error(status, payload.as_bytes()), expected, "{payload}");
        }
        let long = openai_error(500, &[b'x'; 100_000]);
        assert_eq!(long["message"].as_str().map(str::len), Some(MOST_QUOTED));
    }

    #[test]
    fn an_error_ends_the_stream_in_its_framing() {
        let early = |chunks, named| Early { unwritten: b"rest".to_vec(), chunks, named };
        let text = |early: Early| String::from_utf8(early.end(&json!({"code": 1}))).unwrap();
        assert_eq!(text(early(false, false)), "restdata: {\"error\":{\"code\":1}}\n\n");
        assert_eq!(
            text(early(true, false)),
            "rest1c\r\ndata: {\"error\":{\"code\":1}}\n\n\r\n0\r\n\r\n"
        );
        assert_eq!(
            text(early(false, true)),
            "restevent: error\ndata: {\"type\":\"error\",\"error\":{\"code\":1}}\n\n"
        );
    }
}
