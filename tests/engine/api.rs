//! The OpenAI requests that the engine reads, and the JSON that vLLM answers with. Pure.

use std::fmt::Write as _;
use std::io::Write as _;

use serde::Deserialize;
use serde_json::Value;

use super::model::Request;
use super::wire::Answer;

/// Which endpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completion,
    /// `/v1/embeddings`
    Embedding,
}

impl Endpoint {
    /// The endpoint at a path.
    pub fn at(path: &str) -> Option<Self> {
        match path {
            "/v1/chat/completions" => Some(Self::Chat),
            "/v1/completions" => Some(Self::Completion),
            "/v1/embeddings" => Some(Self::Embedding),
            _ => None,
        }
    }

    /// The `id` of an answer, from the client's `x-request-id` or a number.
    pub fn id(self, request_id: Option<&str>, random: u64) -> String {
        let prefix = match self {
            Self::Chat => "chatcmpl",
            Self::Completion => "cmpl",
            Self::Embedding => "embd",
        };
        match request_id {
            Some(id) => format!("{prefix}-{id}"),
            None => format!("{prefix}-{random:016x}"),
        }
    }
}

/// What matters of a request body; other fields are accepted and ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Body {
    /// The model or adapter; absent means the first served model.
    pub model: Option<String>,
    messages: Option<Vec<Message>>,
    prompt: Option<Prompt>,
    input: Option<Prompt>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    /// Whether to answer as events.
    pub stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    cache_salt: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Message {
    role: String,
    #[serde(default)]
    content: Option<Content>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Value>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Prompt {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

impl Body {
    /// Reads a body, or says what vLLM says when it cannot.
    ///
    /// # Errors
    /// The answer to send.
    pub fn parse(endpoint: Endpoint, json: &[u8]) -> Result<Self, Box<Answer>> {
        if json.is_empty() {
            return Err(invalid("missing", "body", "Field required", "None"));
        }
        let body: Self = serde_json::from_slice(json).map_err(|error| {
            let at = format!("body.{}", offset(json, error.line(), error.column()));
            match error.classify() {
                serde_json::error::Category::Data => {
                    invalid("type_error", &at, &error.to_string(), "<dict>")
                }
                _ => invalid("json_invalid", &at, "JSON decode error", "<dict of 0 items>"),
            }
        })?;
        let (present, name) = match endpoint {
            Endpoint::Chat => (body.messages.is_some(), "body.messages"),
            Endpoint::Completion => (body.prompt.is_some(), "body.prompt"),
            Endpoint::Embedding => (body.input.is_some(), "body.input"),
        };
        if !present {
            return Err(invalid("missing", name, "Field required", "<dict>"));
        }
        Ok(body)
    }

    /// Tokens to generate.
    ///
    /// # Errors
    /// The answer to send when the number makes no sense for a context of `max_model_len`.
    pub fn max_tokens(&self, max_model_len: u32) -> Result<u32, Box<Answer>> {
        let wanted = self.max_completion_tokens.or(self.max_tokens).unwrap_or(DEFAULT_MAX_TOKENS);
        let message = if wanted < 1 {
            format!("max_tokens must be at least 1, got {wanted}.")
        } else if wanted > i64::from(max_model_len) {
            format!(
                "max_tokens={wanted} cannot be greater than max_model_len={max_model_len}. \
                 Please request fewer output tokens."
            )
        } else {
            return Ok(u32::try_from(wanted).unwrap_or(u32::MAX));
        };
        let message = format!("{message} (parameter=max_tokens, value={wanted})");
        Err(Box::new(Answer::error(400, "BadRequestError", &message, Some("max_tokens"))))
    }

    /// The request for the engine, without its adapter.
    pub fn request(&self, max_tokens: u32) -> Request {
        let text = match (&self.messages, self.prompt.as_ref().or(self.input.as_ref())) {
            (Some(messages), _) => template(messages),
            (None, Some(prompt)) => prompt.text(),
            (None, None) => String::new(),
        };
        let salt = self.cache_salt.as_deref().map_or(0, |salt| digest(salt.as_bytes()));
        Request { salt, ..Request::of_text(&text, max_tokens) }
    }

    /// Whether the client wants usage at the end of a stream.
    pub fn include_usage(&self) -> bool {
        self.stream_options.and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// Whether the client wants usage in every event.
    pub fn continuous_usage(&self) -> bool {
        self.include_usage()
            && self.stream_options.and_then(|o| o.continuous_usage_stats).unwrap_or(false)
    }
}

impl Prompt {
    fn text(&self) -> String {
        // Four characters make a token, so a token in digits counts as one.
        let tokens = |tokens: &[u32]| {
            tokens.iter().fold(String::new(), |mut text, token| {
                let _ = write!(text, "{token:04}");
                text
            })
        };
        match self {
            Self::Text(text) => text.clone(),
            Self::Texts(texts) => texts.concat(),
            Self::Tokens(list) => tokens(list),
            Self::TokenLists(lists) => lists.iter().map(|list| tokens(list)).collect(),
        }
    }
}

/// Everything that the events and the body of one answer share.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Which form.
    pub endpoint: Endpoint,
    /// The `id`.
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    /// The name that the client used.
    pub model: String,
    /// The pod, as `system_fingerprint`.
    pub pod: String,
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// Cached tokens of the prompt, when the server tells.
    pub cached_tokens: Option<u32>,
    /// A usage event at the end.
    pub include_usage: bool,
    /// Usage in every event.
    pub continuous_usage: bool,
    /// Tokens in all.
    pub max_tokens: u32,
    /// The time in nanoseconds in every event, to measure what lies between.
    pub stamp: bool,
}

impl Reply {
    /// Appends the event before the first token, which only chat has.
    pub fn put_role(&self, out: &mut Vec<u8>) {
        if self.endpoint == Endpoint::Chat {
            self.put_start(out);
            let _ = write!(
                out,
                "{{\"index\":0,\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\
                 \"logprobs\":null,\"finish_reason\":null}}],\
                 \"prompt_token_ids\":null,\"prompt_text\":null"
            );
            self.put_end(out, 0, None);
        }
    }

    /// Appends the event of token `count` (from 1); `now` is for its stamp.
    pub fn put_token(&self, out: &mut Vec<u8>, count: u32, now: u64) {
        let last = count >= self.max_tokens;
        let finish = if last { "\"length\"" } else { "null" };
        self.put_start(out);
        let _ = match self.endpoint {
            Endpoint::Chat => write!(
                out,
                "{{\"index\":0,\"delta\":{{\"content\":\" w{count:04}\"}},\"logprobs\":null,\
                 \"finish_reason\":{finish}{},\"token_ids\":null}}]",
                if last { ",\"stop_reason\":null" } else { "" }
            ),
            _ => write!(
                out,
                "{{\"index\":0,\"text\":\" w{count:04}\",\"logprobs\":null,\
                 \"finish_reason\":{finish},\"stop_reason\":null,\"prompt_token_ids\":null,\
                 \"token_ids\":null}}]"
            ),
        };
        if self.stamp {
            let _ = write!(out, ",\"ts\":{now}");
        }
        let fingerprint = (last && !self.include_usage).then_some(self.pod.as_str());
        self.put_end(out, count, fingerprint);
    }

    /// Appends the usage event, when it is wanted.
    pub fn put_usage(&self, out: &mut Vec<u8>, count: u32) {
        if self.include_usage {
            self.put_start(out);
            let usage = self.usage(count);
            let pod = &self.pod;
            let _ = write!(out, "],\"usage\":{usage},\"system_fingerprint\":\"{pod}\"}}\n\n");
        }
    }

    /// The body of an answer that is not streamed.
    pub fn body(&self) -> String {
        let Self { id, created, model, pod, max_tokens, .. } = self;
        let mut text = String::with_capacity(*max_tokens as usize * 6);
        for count in 1..=*max_tokens {
            let _ = write!(text, " w{count:04}");
        }
        let cached = match self.cached_tokens {
            Some(cached) => format!("{{\"cached_tokens\":{cached}}}"),
            None => "null".to_owned(),
        };
        let (prompt, total) = (self.prompt_tokens, self.prompt_tokens + max_tokens);
        let usage = format!(
            "\"usage\":{{\"prompt_tokens\":{prompt},\"total_tokens\":{total},\
             \"completion_tokens\":{max_tokens},\"prompt_tokens_details\":{cached},\
             \"completion_tokens_details\":null}}"
        );
        match self.endpoint {
            Endpoint::Chat => format!(
                "{{\"id\":\"{id}\",\"object\":\"chat.completion\",\"created\":{created},\
                 \"model\":\"{model}\",\"choices\":[{{\"index\":0,\"message\":{{\
                 \"role\":\"assistant\",\"content\":\"{text}\",\"refusal\":null,\
                 \"annotations\":null,\"audio\":null,\"function_call\":null,\"reasoning\":null}},\
                 \"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,\
                 \"token_ids\":null,\"routed_experts\":null}}],\"service_tier\":null,\
                 \"system_fingerprint\":\"{pod}\",{usage},\"prompt_logprobs\":null,\
                 \"prompt_token_ids\":null,\"prompt_text\":null,\"kv_transfer_params\":null,\
                 \"ec_transfer_params\":null,\"metrics\":null}}"
            ),
            Endpoint::Completion => format!(
                "{{\"id\":\"{id}\",\"object\":\"text_completion\",\"created\":{created},\
                 \"model\":\"{model}\",\"choices\":[{{\"index\":0,\"text\":\"{text}\",\
                 \"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,\
                 \"token_ids\":null,\"prompt_logprobs\":null,\"prompt_token_ids\":null,\
                 \"routed_experts\":null}}],\"service_tier\":null,\
                 \"system_fingerprint\":\"{pod}\",{usage},\"kv_transfer_params\":null,\
                 \"ec_transfer_params\":null,\"metrics\":null}}"
            ),
            Endpoint::Embedding => format!(
                "{{\"id\":\"{id}\",\"object\":\"list\",\"created\":{created},\
                 \"model\":\"{model}\",\"data\":[{{\"index\":0,\"object\":\"embedding\",\
                 \"embedding\":[0.25,-0.5,0.75,0.125]}}],\"usage\":{{\"prompt_tokens\":{prompt},\
                 \"total_tokens\":{prompt},\"completion_tokens\":0,\
                 \"prompt_tokens_details\":null}},\"system_fingerprint\":\"{pod}\"}}"
            ),
        }
    }

    fn put_start(&self, out: &mut Vec<u8>) {
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            _ => "text_completion",
        };
        let Self { id, created, model, .. } = self;
        let _ = write!(
            out,
            "data: {{\"id\":\"{id}\",\"object\":\"{object}\",\"created\":{created},\
             \"model\":\"{model}\",\"choices\":["
        );
    }

    fn put_end(&self, out: &mut Vec<u8>, count: u32, fingerprint: Option<&str>) {
        if self.continuous_usage {
            let (prompt, total) = (self.prompt_tokens, self.prompt_tokens + count);
            let _ = write!(
                out,
                ",\"usage\":{{\"prompt_tokens\":{prompt},\"total_tokens\":{total},\
                 \"completion_tokens\":{count}}}"
            );
        }
        if let Some(pod) = fingerprint {
            let _ = write!(out, ",\"system_fingerprint\":\"{pod}\"");
        }
        out.extend_from_slice(b"}\n\n");
    }

    fn usage(&self, count: u32) -> String {
        let (prompt, total) = (self.prompt_tokens, self.prompt_tokens + count);
        let details = match self.cached_tokens {
            Some(cached) => format!(",\"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}"),
            None => String::new(),
        };
        format!(
            "{{\"prompt_tokens\":{prompt},\"total_tokens\":{total},\
             \"completion_tokens\":{count}{details}}}"
        )
    }
}

/// The event that ends every stream.
pub const DONE: &[u8] = b"data: [DONE]\n\n";

/// What streams say when the engine process has died; with blanks, unlike all other events.
pub const ENGINE_DEAD_EVENT: &[u8] =
    b"data: {\"error\": {\"message\": \"EngineCore encountered an \
issue. See stack trace (above) for the root cause.\", \"type\": \"InternalServerError\", \
\"param\": null, \"code\": 500}}\n\n";

/// The same for answers that are not streamed.
pub fn engine_dead() -> Answer {
    let message = "EngineCore encountered an issue. See stack trace (above) for the root cause.";
    Answer::error(500, "InternalServerError", message, None)
}

/// The answer to a model that is not there.
pub fn unknown_model(name: &str, served: &str) -> Answer {
    let message = format!("The model `{name}` does not exist. Valid aliases: {served}.");
    Answer::error(404, "NotFoundError", &message, Some("model"))
}

/// The answer to a prompt that does not fit.
pub fn too_long(prompt: u32, max_tokens: u32, limit: u32) -> Answer {
    let message = format!(
        "This model's maximum context length is {limit} tokens. However, you requested \
         {max_tokens} output tokens and your prompt contains {prompt} input tokens. Please reduce \
         the length of the input prompt or the number of requested output tokens. \
         (parameter=input_tokens, value={prompt})"
    );
    Answer::error(400, "BadRequestError", &message, Some("input_tokens"))
}

/// The answer to a body that is not declared as JSON.
pub fn not_json() -> Answer {
    let message =
        "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed";
    Answer::error(400, "Bad Request", message, None)
}

/// Text as it stands between the quotes of a JSON string.
pub fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default().to_owned()
}

/// A stable digest (FNV-1a) of bytes, by which tests compare bodies.
pub fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |state, byte| {
        (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Tokens when the client does not say, as in the completions API.
const DEFAULT_MAX_TOKENS: i64 = 16;

/// The prompt of a conversation, as a chat template would write it.
fn template(messages: &[Message]) -> String {
    let mut text = String::new();
    for Message { role, content } in messages {
        let _ = write!(text, "<|{role}|>");
        match content {
            Some(Content::Text(content)) => text.push_str(content),
            Some(Content::Parts(parts)) => {
                for part in parts {
                    match part.get("text").and_then(Value::as_str) {
                        Some(content) => text.push_str(content),
                        // An image counts as a few tokens, which depend on its content.
                        None => {
                            let _ = write!(text, "{:016x}", digest(part.to_string().as_bytes()));
                        }
                    }
                }
            }
            None => {}
        }
        text.push('\n');
    }
    text.push_str("<|assistant|>");
    text
}

/// A validation error in pydantic's words.
fn invalid(kind: &str, at: &str, message: &str, input: &str) -> Box<Answer> {
    let context = match kind {
        "json_invalid" => ", 'ctx': {'error': 'Expecting value'}",
        _ => "",
    };
    let message = format!(
        "1 validation error:\n  {{'type': '{kind}', 'loc': '{at}', 'msg': '{message}', \
         'input': '{input}'{context}}}"
    );
    Box::new(Answer::error(400, "Bad Request", &message, Some(at)))
}

/// The byte at a line and column, both from 1.
fn offset(text: &[u8], line: usize, column: usize) -> usize {
    let before: usize = text
        .split_inclusive(|byte| *byte == b'\n')
        .take(line.saturating_sub(1))
        .map(<[u8]>::len)
        .sum();
    before + column.saturating_sub(1)
}
