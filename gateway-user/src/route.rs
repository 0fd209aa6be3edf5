//! Which pool: a model's name, an alias or an adapter's name leads to the pool of its base model. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::Refusal;
use crate::pool::Pool;

/// Every name that clients may use. Made anew when a pod's adapters change.
#[derive(Debug, Default)]
pub struct Routes {
    by_name: HashMap<Arc<str>, Target>,
}

/// Where a request goes: by the model that it names, or to `whole`, the one pool that answers whatever is asked.
///
/// # Errors
/// No pool serves the model; `missing` where none is named.
pub fn resolve<'a>(
    routes: &'a Routes,
    whole: Option<&'a Target>,
    model: Option<&'a str>,
    missing: impl FnOnce() -> Refusal,
) -> Result<(&'a str, &'a Target), Refusal> {
    match (model, whole) {
        (Some(model), whole) => {
            let found = routes.find(model);
            let found = match whole {
                // A name that is not known there is the pod's to judge.
                Some(whole) => {
                    found.filter(|found| Arc::ptr_eq(&found.pool, &whole.pool)).or(Some(whole))
                }
                None => found,
            };
            found.map(|found| (model, found)).ok_or_else(|| Refusal::model_not_found(model))
        }
        (None, Some(whole)) => Ok((&whole.pool.model, whole)),
        (None, None) => Err(missing()),
    }
}

/// Where a name leads.
#[derive(Clone, Debug)]
pub struct Target {
    /// The pool.
    pub pool: Arc<Pool>,
    /// The adapter, when the name is an adapter's.
    pub adapter: Option<Arc<str>>,
}

impl Target {
    /// A name that only the pods of a pool know, and so most likely that of an adapter.
    pub fn within(pool: &Arc<Pool>, name: &str) -> Self {
        Self { pool: Arc::clone(pool), adapter: Some(name.into()) }
    }
}

impl Routes {
    /// The names of `pools`. What the configuration names comes first: an adapter that a pod lists cannot
    /// take over a configured name. Of two pods' adapters with one name, the first pool's wins.
    pub fn new(pools: &[Arc<Pool>]) -> Self {
        let mut by_name = HashMap::new();
        let mut add = |name: &Arc<str>, pool: &Arc<Pool>, adapter: Option<&Arc<str>>| {
            by_name
                .entry(Arc::clone(name))
                .or_insert_with(|| Target { pool: Arc::clone(pool), adapter: adapter.cloned() });
        };
        for pool in pools {
            for name in std::iter::once(&pool.model).chain(&pool.settings().aliases) {
                add(name, pool, None);
            }
        }
        for pool in pools {
            for name in &pool.settings().adapters {
                add(name, pool, Some(name));
            }
        }
        for pool in pools {
            for name in &pool.loaded_adapters() {
                add(name, pool, Some(name));
            }
        }
        Self { by_name }
    }

    /// Where `model` leads.
    pub fn find(&self, model: &str) -> Option<&Target> {
        self.by_name.get(model)
    }

    /// Every name with its target, sorted by name.
    pub fn all(&self) -> Vec<(&str, &Target)> {
        let mut all: Vec<_> = self.by_name.iter().map(|(name, to)| (&**name, to)).collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        all
    }
}

/// Undoes percent-encoding: model names have slashes, which some clients encode in a path. What is not
/// valid is left as it is, and is then simply no model's name.
pub fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, behind @ ..] = rest {
        rest = behind;
        if let (b'%', Some(code)) = (byte, behind.get(..2))
            && let Some(decoded) =
                std::str::from_utf8(code).ok().and_then(|hex| u8::from_str_radix(hex, 16).ok())
        {
            out.push(decoded);
            rest = behind.get(2..).unwrap_or_default();
            continue;
        }
        out.push(*byte);
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// What a path of Azure's form, `/openai/deployments/NAME/...`, names: a model, and the path that pods know it by.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Deployment {
    /// The model.
    pub model: String,
    /// The path without it.
    pub path: String,
}

impl Deployment {
    /// Of a path that has this form.
    pub fn of(path: &str) -> Option<Self> {
        let (name, rest) = path.strip_prefix("/openai/deployments/")?.split_once('/')?;
        let named = !name.is_empty() && !rest.is_empty();
        named.then(|| Self { model: unescape(name), path: format!("/v1/{rest}") })
    }
}

/// The model in a path of Triton's form, `/v2/models/NAME/...`, as servers read it: decoded, and whatever slashes there are.
pub fn model_in_path(path: &str) -> Option<String> {
    let decoded = unescape(path);
    let mut segments = decoded.split('/').filter(|segment| !segment.is_empty());
    let is_form = segments.next() == Some("v2") && segments.next() == Some("models");
    let (true, Some(model), Some(_)) = (is_form, segments.next(), segments.next()) else {
        return None;
    };
    Some(model.to_owned())
}

/// A path of Triton's form with another model in it.
pub fn with_model_in_path(path: &str, model: &str) -> String {
    let decoded = unescape(path);
    let rest = decoded.split('/').filter(|segment| !segment.is_empty()).skip(3);
    let mut out = String::from("/v2/models");
    for segment in std::iter::once(model).chain(rest) {
        out.push('/');
        escape(segment, &mut out);
    }
    out
}

/// RFC 3986 section 2.3: what is not reserved stands for itself.
fn escape(text: &str, out: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
}

/// The model that a query names, `model=NAME`, if it names one and only one.
pub fn model_in_query(query: &str) -> Option<String> {
    let mut models = query.split('&').filter_map(|pair| pair.strip_prefix("model="));
    let (Some(model), None) = (models.next(), models.next()) else { return None };
    Some(unescape(model)).filter(|model| !model.is_empty())
}

/// The id in a path about one response, `/v1/responses/ID...`.
pub fn response_id(path: &str) -> Option<&str> {
    let id = path.strip_prefix("/v1/responses/")?.split('/').next()?;
    Some(id).filter(|id| !id.is_empty())
}

/// Whether pods would take a path for one about one response, though it is not written as one: servers decode a path
/// before they look at it, and a deployment's is forwarded without its name.
pub fn hides_response(path: &str) -> bool {
    let inner = Deployment::of(path).map(|deployment| deployment.path);
    let decoded = unescape(inner.as_deref().unwrap_or(path));
    let mut segments = decoded.split('/').filter(|segment| !segment.is_empty());
    let is_about_one = segments.next() == Some("v1")
        && segments.next() == Some("responses")
        && segments.next().is_some();
    is_about_one && response_id(path).is_none()
}

/// Whether requests to a path need not name a model, as servers of one model do not ask for it: SGLang's and TGI's own
/// interfaces, and tokenizers.
pub fn needs_no_model(path: &str) -> bool {
    MODELLESS.contains(&path.trim_end_matches('/'))
}

/// Whether a path is one of chat or completions, whose streams tell their usage when asked.
pub fn streams_usage(path: &str) -> bool {
    let path = path.trim_end_matches('/');
    path.ends_with("/chat/completions") || path.ends_with("/completions")
}

/// Whether a path is one whose streams are events that take comments: chat, completions, Anthropic's messages, and the
/// Responses interface.
pub fn streams_events(path: &str) -> bool {
    streams_usage(path) || is_anthropic(path) || path.trim_end_matches('/').ends_with("/responses")
}

/// Whether a path is Anthropic's.
pub fn is_anthropic(path: &str) -> bool {
    path.trim_end_matches('/').ends_with("/messages")
}

/// Paths of requests that need no model.
const MODELLESS: [&str; 8] = [
    "",
    "/chat_tokenize",
    "/detokenize",
    "/encode",
    "/generate",
    "/generate_stream",
    "/invocations",
    "/tokenize",
];

/// Whether a path steers a model server rather than asking it something: loading adapters, sleeping, clearing
/// caches. Clients of the gateway have no business there, whatever `model` they name.
pub fn is_control(path: &str) -> bool {
    // Servers decode a path before they look at it.
    let path = unescape(path);
    let last = path.rsplit('/').find(|segment| !segment.is_empty()).unwrap_or_default();
    CONTROL.contains(&last) || last.contains("weights") || last.ends_with("_generation")
}

/// Last segments of such paths: vLLM's, SGLang's and Triton's, beside whatever has to do with weights or ends with
/// `_generation`. Bodies in the form of Vertex name adapters where they are not read, and keys may be for certain models.
const CONTROL: [&str; 26] = [
    "abort_request",
    "abort_requests",
    "close_session",
    "collective_rpc",
    "configure_logging",
    "flush_cache",
    "load",
    "load_lora_adapter",
    "open_session",
    "pause",
    "release_memory_occupation",
    "reset_mm_cache",
    "reset_prefix_cache",
    "resume",
    "resume_memory_occupation",
    "scale_elastic_ep",
    "set_internal_state",
    "sleep",
    "slow_down",
    "start_profile",
    "stop_profile",
    "unload",
    "unload_lora_adapter",
    "vertex",
    "vertex_generate",
    "wake_up",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_paths() {
        for path in [
            "/v1/load_lora_adapter",
            "/v1/load_lora_adapter/",
            "//v1//unload_lora_adapter//",
            "/v1/load%5flora%5Fadapter",
            "/sleep",
            "/v2/repository/models/a/load",
            "/pause_generation",
            "/update_weights_from_disk",
            "/init_weights_update_group",
        ] {
            assert!(is_control(path), "{path}");
        }
        for path in ["/v1/chat/completions", "/", "", "/v1/sleep/completions", "/v1/responses"] {
            assert!(!is_control(path), "{path}");
        }
    }

    #[test]
    fn deployments() {
        let of = |path| Deployment::of(path).map(|found| (found.model, found.path));
        for (path, expected) in [
            ("/openai/deployments/gpt/chat/completions", Some(("gpt", "/v1/chat/completions"))),
            ("/openai/deployments/meta%2FLlama/embeddings", Some(("meta/Llama", "/v1/embeddings"))),
            ("/openai/deployments//embeddings", None),
            ("/openai/deployments/gpt/", None),
            ("/openai/deployments/gpt", None),
            ("/v1/openai/deployments/gpt/embeddings", None),
        ] {
            let expected = expected.map(|(model, path): (&str, &str)| (model.into(), path.into()));
            assert_eq!(of(path), expected, "{path}");
        }
    }

    #[test]
    fn no_other_spelling_of_a_path_about_one_response() {
        for path in [
            "/openai/deployments/m/responses/resp_1/cancel",
            "/openai/deployments/m/%72esponses/resp_1",
            "/v1/responses%2Fresp_1%2Fcancel",
            "/v1/%72esponses/resp_1",
            "//v1//responses//resp_1",
        ] {
            assert!(hides_response(path), "{path}");
        }
        for path in [
            "/v1/responses",
            "/v1/responses/",
            "/v1/responses/resp_1",
            "/v1/responses/resp_1/cancel",
            "/openai/deployments/m/responses",
            "/v1/chat/completions",
        ] {
            assert!(!hides_response(path), "{path}");
        }
    }

    #[test]
    fn models_in_paths() {
        for (path, model) in [
            ("/v2/models/a/generate", Some("a")),
            ("/v2/models/a/versions/1/infer", Some("a")),
            ("//v2//models/a%20b/generate_stream/", Some("a b")),
            ("/v2%2Fmodels%2Fa%2Fgenerate", Some("a")),
            ("/v2/models/a", None),
            ("/v2/models//", None),
            ("/v2/rerank", None),
            ("/v1/models/a/generate", None),
        ] {
            assert_eq!(model_in_path(path).as_deref(), model, "{path}");
        }
    }

    #[test]
    fn another_model_in_a_path() {
        for (path, model, expected) in [
            ("/v2/models/a/generate", "b", "/v2/models/b/generate"),
            ("//v2/models/a/versions/1/infer/", "b c", "/v2/models/b%20c/versions/1/infer"),
            ("/v2/models/a%20b/x%3Fy", "org/é", "/v2/models/org%2F%C3%A9/x%3Fy"),
        ] {
            assert_eq!(with_model_in_path(path, model), expected, "{path}");
        }
    }

    #[test]
    fn models_in_queries() {
        for (query, model) in [
            ("model=a", Some("a")),
            ("x=1&model=org%2Fa&y", Some("org/a")),
            ("model=a&model=b", None),
            ("model=a&model=a", None),
            ("model=", None),
            ("xmodel=a", None),
            ("", None),
        ] {
            assert_eq!(model_in_query(query).as_deref(), model, "{query}");
        }
    }

    #[test]
    fn ids_in_paths() {
        for (path, id) in [
            ("/v1/responses/resp_1", Some("resp_1")),
            ("/v1/responses/resp_1/cancel", Some("resp_1")),
            ("/v1/responses/", None),
            ("/v1/responses", None),
            ("/v1/models/resp_1", None),
        ] {
            assert_eq!(response_id(path), id, "{path}");
        }
    }

    #[test]
    fn names_in_paths() {
        for (text, name) in [
            ("meta%2FLlama", "meta/Llama"),
            ("meta/Llama", "meta/Llama"),
            ("a%2", "a%2"),
            ("a%zz", "a%zz"),
            ("%", "%"),
            ("%C3%A9", "é"),
        ] {
            assert_eq!(unescape(text), name, "{text}");
        }
    }
}
