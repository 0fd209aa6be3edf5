//! The answer to a chat request.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::{Body, Frame, Incoming};
use memchr::memmem;
use sluice_tests::bench::event::{Event, PACE, now_ns};
use tokio::time::{Interval, interval};

use crate::Running;

/// What a pod makes of a request.
pub(crate) enum Answer {
    Bad(&'static str),
    Whole(String),
    Stream(Tokens),
}

impl Answer {
    /// Reads the request to its end and takes from it: `stream`, `max_tokens`, and how far apart
    /// the tokens are to come (`pace_us=` in a message, 0 for at once: some gateways drop headers
    /// and fields that they do not know).
    pub(crate) async fn to(request: Request<Incoming>, model: &str) -> hyper::Result<Self> {
        let mut body = request.into_body();
        let (mut front, mut pieces) = (Vec::new(), Vec::new());
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            let room = FRONT.saturating_sub(front.len()).min(data.len());
            front.extend(data.iter().take(room));
            pieces.push(data);
        }
        let last = pieces.last().and_then(|piece| piece.last());
        if front.first() != Some(&b'{') || last != Some(&b'}') {
            return Ok(Self::Bad("the body is no JSON object"));
        }
        // As the load generator writes it, all of it stands in front, and the rest of a long prompt
        // need not be read; as some gateways write it anew, it stands behind the messages.
        Ok(Self::told_by(&front, model)
            .or_else(|| Self::told_by(&pieces.concat(), model))
            .unwrap_or(Self::Bad("no stream, max_tokens or pace")))
    }

    fn told_by(text: &[u8], model: &str) -> Option<Self> {
        if memmem::find(text, b"\"stream\":false").is_some() {
            return Some(Self::Whole(whole(model)));
        }
        memmem::find(text, b"\"stream\":true")?;
        let tokens = number_after(text, b"\"max_tokens\":")
            .or_else(|| number_after(text, b"\"max_completion_tokens\":"))?;
        Some(Self::Stream(Tokens::new(model, tokens, number_after(text, PACE)?)))
    }
}

/// A streamed answer: one event a token, then the usage and the end mark.
pub(crate) struct Tokens {
    model: String,
    tokens: u64,
    next: u64,
    ended: bool,
    interval: Option<Interval>,
    running: Option<Running>,
}

impl Tokens {
    fn new(model: &str, tokens: u64, gap_us: u64) -> Self {
        let gap = (gap_us > 0).then(|| Duration::from_micros(gap_us));
        Self {
            model: model.to_owned(),
            tokens,
            next: 0,
            ended: false,
            interval: gap.map(interval),
            running: None,
        }
    }

    /// Counts the pod as busy with it for as long as it lasts.
    pub(crate) fn counted(mut self, running: Running) -> Self {
        self.running = Some(running);
        self
    }

    fn event(&self, seq: u64) -> String {
        let mut text = String::with_capacity(320);
        let chunk = Chunk { model: &self.model };
        chunk.open(&mut text);
        text.push_str("{\"index\":0,\"delta\":{\"content\":\"");
        Event { seq, sent_ns: now_ns() }.append(&mut text);
        text.push_str("\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n");
        text
    }

    fn end(&self) -> String {
        let Self { tokens, .. } = self;
        let mut text = String::with_capacity(320);
        Chunk { model: &self.model }.open(&mut text);
        text.push_str(&format!(
            "],\"usage\":{{\"prompt_tokens\":200,\"completion_tokens\":{tokens},\"total_tokens\":{}}}}}\n\n\
             data: [DONE]\n\n",
            tokens.saturating_add(200)
        ));
        text
    }
}

impl Body for Tokens {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.next == self.tokens {
            self.ended = true;
            return Poll::Ready(Some(Ok(Frame::data(self.end().into()))));
        }
        if let Some(interval) = &mut self.interval {
            ready!(interval.poll_tick(context));
        }
        let seq = self.next;
        self.next += 1;
        Poll::Ready(Some(Ok(Frame::data(self.event(seq).into()))))
    }
}

/// The list of models.
pub(crate) fn models(model: &str) -> String {
    format!(
        "{{\"object\":\"list\",\"data\":[{{\"id\":\"{model}\",\"object\":\"model\",\
         \"created\":1764400000,\"owned_by\":\"vllm\",\"root\":\"{model}\",\"parent\":null,\
         \"max_model_len\":131072}}]}}"
    )
}

fn whole(model: &str) -> String {
    let mut token = String::new();
    Event { seq: 0, sent_ns: now_ns() }.append(&mut token);
    format!(
        "{{\"id\":\"{ID}\",\"object\":\"chat.completion\",\"created\":1764400000,\
         \"model\":\"{model}\",\"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\
         \"content\":\"{token}\"}},\"logprobs\":null,\"finish_reason\":\"stop\"}}],\
         \"usage\":{{\"prompt_tokens\":200,\"completion_tokens\":1,\"total_tokens\":201}}}}"
    )
}

/// The part that all events of a stream begin with, up to the list of choices.
struct Chunk<'a> {
    model: &'a str,
}

impl Chunk<'_> {
    fn open(&self, text: &mut String) {
        text.push_str("data: {\"id\":\"");
        text.push_str(ID);
        text.push_str(
            "\",\"object\":\"chat.completion.chunk\",\"created\":1764400000,\"model\":\"",
        );
        text.push_str(self.model);
        text.push_str("\",\"choices\":[");
    }
}

fn number_after(text: &[u8], key: &[u8]) -> Option<u64> {
    let rest = text.get(memmem::find(text, key)? + key.len()..)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(rest.get(..digits)?).ok()?.parse().ok()
}

/// Bytes of a request's body that are looked at first.
const FRONT: usize = 256;
/// Every answer's, as long as a real one.
const ID: &str = "chatcmpl-0123456789abcdef0123456789abcdef";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_what_it_wants_in_any_order() {
        let told = |text: &str| match Answer::told_by(text.as_bytes(), "m") {
            Some(Answer::Stream(tokens)) => Some(Some((tokens.tokens, tokens.interval.is_some()))),
            Some(_) => Some(None),
            None => None,
        };
        for (text, expected) in [
            (
                r#"{"stream":true,"max_tokens":12,"messages":[{"content":"pace_us=0 x"#,
                Some(Some((12, false))),
            ),
            (
                r#"{"messages":["pace_us=0"],"max_completion_tokens":7,"stream":true}"#,
                Some(Some((7, false))),
            ),
            (r#"{"stream":false,"max_tokens":1"#, Some(None)),
            (r#"{"stream":true,"max_tokens":12}"#, None),
            (r#"{"stream":true,"messages":["pace_us=0"]}"#, None),
            (r#"{"messages":["pace_us=0"]}"#, None),
        ] {
            assert_eq!(told(text), expected, "{text}");
        }
    }
}
