//! One streamed chat request: which, and whether its answer was whole.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use super::pods::{ADAPTERS, MODEL};
use crate::http::Connection;
use crate::stop::Stop;

/// A whole answer.
pub(super) struct Answer {
    /// The pod that says it gave it.
    pub(super) pod: String,
    /// Tokens generated, as the pod counted them.
    pub(super) tokens: u64,
    /// From the request to its first token.
    pub(super) ttft: Duration,
}

/// Sends the request with this number and reads the answer to its end.
///
/// # Errors
/// The answer was not whole, or told of an error, or the demonstration is to end.
pub(super) fn ask(connection: &mut Connection, number: u32, stop: &Stop) -> anyhow::Result<Answer> {
    let start = Instant::now();
    let (mut stream, mut ttft) = (Stream::default(), None);
    let status =
        connection.request("POST", "/v1/chat/completions", &body(number), &mut |line| {
            ensure!(!stop.is_set(), "interrupted");
            stream.take(line)?;
            if stream.begun {
                ttft.get_or_insert_with(|| start.elapsed());
            }
            Ok(())
        })?;
    ensure!(status == 200, "status {status}: {}", stream.other);
    let (pod, tokens) = stream.end()?;
    Ok(Answer { pod, tokens, ttft: ttft.context("an answer without tokens")? })
}

/// A mix that is the same in every run: half for the base model, half for its adapters; three system
/// prompts that many share; short and long answers.
fn body(number: u32) -> String {
    let model = match number % 4 {
        0 => ADAPTERS[0],
        2 => ADAPTERS[1],
        _ => MODEL,
    };
    let role = match number % 3 {
        0 => "You answer questions about orders, returns and invoices.",
        1 => "You turn questions into queries of a database of parts.",
        _ => "You review changes to code and name what is missing.",
    };
    // As long as real ones, so that prefill takes time and the KV cache fills.
    let system = format!("{role} ").repeat(SYSTEM_REPEATS);
    serde_json::json!({
        "model": model,
        "stream": true,
        "stream_options": {"include_usage": true},
        "max_tokens": SHORTEST + (number * 7) % (LONGEST - SHORTEST),
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": format!("Question {number}: what is next?")},
        ],
    })
    .to_string()
}

/// What has been seen of a stream.
#[derive(Default)]
struct Stream {
    /// The first token was there.
    begun: bool,
    done: bool,
    pod: Option<String>,
    tokens: Option<u64>,
    /// The first line that is no event, for a message.
    other: String,
}

impl Stream {
    fn take(&mut self, line: &str) -> anyhow::Result<()> {
        let Some(data) = line.strip_prefix("data:").map(str::trim) else {
            if self.other.is_empty() {
                line.clone_into(&mut self.other);
            }
            return Ok(());
        };
        ensure!(!self.done, "an event behind [DONE]: {data}");
        if data == "[DONE]" {
            self.done = true;
            return Ok(());
        }
        let event: Event =
            serde_json::from_str(data).with_context(|| format!("an event: {data}"))?;
        if let Some(error) = event.error {
            bail!("an error event: {error}");
        }
        self.begun |= event.choices.iter().any(|choice| !choice.delta.content.is_empty());
        if let Some(usage) = event.usage {
            self.tokens = Some(usage.completion_tokens);
        }
        if event.system_fingerprint.is_some() {
            self.pod = event.system_fingerprint;
        }
        Ok(())
    }

    fn end(self) -> anyhow::Result<(String, u64)> {
        ensure!(self.done, "the stream ended without [DONE]");
        let tokens = self.tokens.context("a stream without usage")?;
        Ok((self.pod.context("a stream that does not name its pod")?, tokens))
    }
}

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    choices: Vec<Choice>,
    error: Option<serde_json::Value>,
    usage: Option<Usage>,
    /// The simulated model servers put their name here.
    system_fingerprint: Option<String>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Delta,
}

#[derive(Default, Deserialize)]
struct Delta {
    #[serde(default)]
    content: String,
}

#[derive(Deserialize)]
struct Usage {
    completion_tokens: u64,
}

/// About 700 tokens of four characters.
const SYSTEM_REPEATS: usize = 50;
/// Tokens of the shortest answer.
const SHORTEST: u32 = 16;
/// Tokens of the longest answer.
const LONGEST: u32 = 80;

#[cfg(test)]
mod tests {
    use super::*;

    const ROLE: &str = r#"data: {"choices":[{"delta":{"role":"assistant","content":""}}]}"#;
    const TOKEN: &str = r#"data: {"choices":[{"delta":{"content":" hi"},"finish_reason":null}]}"#;
    const USAGE: &str =
        r#"data: {"choices":[],"usage":{"completion_tokens":1},"system_fingerprint":"pod-1"}"#;
    const ERROR: &str = r#"data: {"error":{"message":"EngineCore died","code":500}}"#;
    const DONE: &str = "data: [DONE]";

    fn read(lines: &[&str]) -> anyhow::Result<(String, u64)> {
        let mut stream = Stream::default();
        for line in lines {
            stream.take(line)?;
            stream.take("")?;
        }
        stream.end()
    }

    #[test]
    fn a_whole_stream() {
        assert_eq!(read(&[ROLE, TOKEN, USAGE, DONE]).unwrap(), ("pod-1".to_owned(), 1));
    }

    #[test]
    fn what_is_not_whole_is_an_error() {
        for (lines, why) in [
            (&[ROLE, TOKEN, USAGE][..], "without [DONE]"),
            (&[ROLE, TOKEN, DONE], "without usage"),
            (&[ROLE, TOKEN, ERROR, DONE], "EngineCore died"),
            (&[ROLE, TOKEN, USAGE, DONE, TOKEN], "behind [DONE]"),
            (&["data: {"], "an event"),
            (&["<html>"], "without [DONE]"),
        ] {
            let error = format!("{:#}", read(lines).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn the_first_token_is_the_first_text() {
        let mut stream = Stream::default();
        stream.take(ROLE).unwrap();
        assert!(!stream.begun);
        stream.take(TOKEN).unwrap();
        assert!(stream.begun);
    }

    #[test]
    fn the_mix_has_every_model_with_every_prompt() {
        let kinds: std::collections::BTreeSet<_> = (0..12)
            .map(|number| {
                let body: serde_json::Value = serde_json::from_str(&body(number)).unwrap();
                (body["model"].to_string(), body["messages"][0].to_string())
            })
            .collect();
        assert_eq!(kinds.len(), 9);
    }
}
