//! Requests, and what is compared of their answers.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_tests::client::{Client, Response};

/// A connection that is patient enough for a server on a busy machine.
pub(crate) fn dial(address: SocketAddr) -> Client {
    let client = Client::connect(address);
    client.stream.set_read_timeout(Some(SILENCE)).expect("a timeout can be set");
    client
}

/// A request sent, whose answer is still to be read.
pub(crate) fn open(address: SocketAddr, path: &str, body: &Value) -> Client {
    let mut client = dial(address);
    client.post(path, body);
    client
}

/// An answer on its way.
pub(crate) struct Stream {
    client: Client,
    answer: Option<Response>,
}

impl Stream {
    /// Sends a request for it.
    pub(crate) fn open(address: SocketAddr, path: &str, body: &Value) -> Self {
        Self { client: open(address, path, body), answer: None }
    }

    /// Waits for its beginning. The gateway sends an answer's head with its first content.
    pub(crate) fn begin(&mut self) {
        self.answer = Some(self.client.head());
    }

    /// Reads it to its end; returns when that was, too.
    pub(crate) fn finish(mut self) -> (Response, Instant) {
        let mut answer = self.answer.take().unwrap_or_else(|| self.client.head());
        self.client.body(&mut answer);
        (answer, Instant::now())
    }
}

/// A whole exchange.
pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    open(address, path, body).response()
}

/// A whole exchange with any bytes.
pub(crate) fn post_bytes(address: SocketAddr, path: &str, body: &[u8]) -> Response {
    let mut client = dial(address);
    client.post_bytes(path, body);
    client.response()
}

/// A page.
pub(crate) fn get(address: SocketAddr, path: &str) -> Response {
    let mut client = dial(address);
    client.send(format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n"));
    client.response()
}

/// A page of a server that may not be there.
pub(crate) fn try_get(address: SocketAddr, path: &str) -> Option<Response> {
    TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()?;
    Some(get(address, path))
}

/// Many exchanges at once, each on a connection of its own, in the order of the bodies.
pub(crate) fn all(address: SocketAddr, path: &str, bodies: &[Value]) -> Vec<Response> {
    std::thread::scope(|scope| {
        let running: Vec<_> =
            bodies.iter().map(|body| scope.spawn(move || post(address, path, body))).collect();
        running.into_iter().map(|done| done.join().expect("an exchange goes well")).collect()
    })
}

/// A chat of exactly `tokens` tokens, always the same for the same words.
pub(crate) fn chat(model: &str, words: &str, tokens: u32, stream: bool) -> Value {
    let mut body = json!({
        "model": model,
        "messages": [{"role": "user", "content": words}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": true,
        "stream": stream,
    });
    if stream {
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

/// A chat without its token limit's end in sight: only leaving ends it soon.
pub(crate) fn endless(stream: bool) -> Value {
    chat("tiny-llama", "Go on.", 1900, stream)
}

/// The events of a stream that are JSON.
pub(crate) fn events(response: &Response) -> Vec<Value> {
    let events = response.events();
    let json = events.iter().filter(|event| event.starts_with('{'));
    json.map(|event| serde_json::from_str(event).expect("an event is JSON")).collect()
}

/// The text of an answer, streamed or not, of chat or of completion.
pub(crate) fn text(response: &Response) -> String {
    let parts = if is_stream(response) { events(response) } else { vec![response.json()] };
    let mut text = String::new();
    for part in &parts {
        let choice = &part["choices"][0];
        for found in [&choice["delta"]["content"], &choice["message"]["content"], &choice["text"]] {
            text.push_str(found.as_str().unwrap_or_default());
        }
    }
    text
}

/// The counts of an answer: prompt and completion tokens.
pub(crate) fn usage(response: &Response) -> (u64, u64) {
    let parts = if is_stream(response) { events(response) } else { vec![response.json()] };
    let usage = parts.iter().rev().map(|part| &part["usage"]).find(|usage| usage.is_object());
    let usage = usage.unwrap_or_else(|| panic!("no usage: {}", response.text()));
    let count = |name: &str| usage[name].as_u64().unwrap_or_else(|| panic!("no {name}: {usage}"));
    (count("prompt_tokens"), count("completion_tokens"))
}

/// A stream that came to its proper end.
pub(crate) fn is_whole_stream(response: &Response) -> bool {
    response.status == 200
        && response.complete
        && is_stream(response)
        && response.events().last().is_some_and(|last| last == "[DONE]")
        && !has_error(response)
}

/// A stream in which the engine reports a failure.
pub(crate) fn has_error(response: &Response) -> bool {
    events(response).iter().any(|event| event["error"].is_object())
}

/// The body with what differs from answer to answer made equal.
pub(crate) fn normal(response: &Response) -> String {
    let mut out = String::new();
    let text = response.text();
    let mut rest = text.as_str();
    // `"id":"chatcmpl-…"` and `"created":1764…`, in the bytes, so that everything else must be the
    // same.
    while let Some((at, key)) =
        ["\"id\":\"", "\"created\":"].iter().filter_map(|key| Some((rest.find(key)?, *key))).min()
    {
        let (before, behind) = rest.split_at(at + key.len());
        out += before;
        out.push('#');
        rest = behind.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || "-_.".contains(c));
    }
    out + rest
}

/// The sum of the samples of an exposition whose labels hold every one of `labels`; `None` if there
/// are none.
pub(crate) fn samples(page: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let values = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let (own, value) = rest.rsplit_once(' ')?;
        let fits = own.is_empty() || own.starts_with('{');
        (fits && labels.iter().all(|label| own.contains(label))).then(|| value.parse().ok())?
    });
    values.fold(None, |sum: Option<f64>, value: f64| Some(sum.unwrap_or_default() + value))
}

fn is_stream(response: &Response) -> bool {
    response.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"))
}

/// Longest silence within an answer: a queued request waits for others to end.
const SILENCE: Duration = Duration::from_secs(120);
