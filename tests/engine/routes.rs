//! Everything that is not inference: health, models, adapters, metrics, and the tests' own
//! endpoints.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::api::{digest, escaped};
use super::faults::{Faults, MetricsFault};
use super::metrics::Style;
use super::pod::{Adapter, Control, Pod, Span, lock, unix};
use super::wire::{Answer, Head};

/// The answer to a request that needs no engine.
pub(super) fn answer(pod: &Pod, head: &Head, body: &[u8]) -> Answer {
    let (health, models) = {
        let faults = lock(&pod.faults);
        (faults.health, faults.models)
    };
    match (head.method.as_str(), head.path.as_str()) {
        ("GET", "/_stats") => Answer::json(200, pod.stats().json().to_string()),
        ("GET" | "POST" | "DELETE", "/_fault") => fault(pod, &head.method, body),
        ("POST", "/_refuse") => order(pod, Control::Refuse, body),
        ("POST", "/_die") => order(pod, Control::Die, body),
        ("POST", "/_kill_engine") => order(pod, Control::KillEngine, body),
        _ if pod.starting() => starting(),
        ("GET", "/health" | "/ping") => match health {
            Some(status) => Answer::plain(status, ""),
            None => Answer::plain(200, ""),
        },
        ("GET", "/version") => Answer::json(200, json!({"version": VERSION}).to_string()),
        ("GET", "/load") => {
            let stats = pod.stats();
            let load = json!({"server_load": stats.running + stats.waiting});
            Answer::json(200, load.to_string())
        }
        ("GET", "/v1/models") => match models {
            Some(status) => Answer::error(status, "InternalServerError", "no models", None),
            None => Answer::json(200, cards(pod)),
        },
        ("POST", "/v1/load_lora_adapter") => load_adapter(pod, body),
        ("POST", "/v1/unload_lora_adapter") => unload_adapter(pod, body),
        (_, "/health" | "/version" | "/load" | "/v1/models") => not_allowed("GET"),
        (_, path) if path.starts_with("/v1/") && POSTS.contains(&path) => not_allowed("POST"),
        _ => Answer::json(404, r#"{"detail":"Not Found"}"#),
    }
}

/// The answer of a server that is not ready yet.
pub(super) fn starting() -> Answer {
    Answer::error(503, "ServiceUnavailableError", "The server is starting.", None)
}

/// The metrics page, or what a fault makes of it.
pub(super) fn metrics(pod: &Pod, fault: MetricsFault) -> Answer {
    let style = pod.options.metrics;
    if style == Style::None {
        return Answer::json(404, r#"{"detail":"Not Found"}"#);
    }
    let mut last = lock(&pod.last_page);
    let body = match (fault, last.take()) {
        (MetricsFault::Html, _) => {
            let page = "<html><body><h1>502 Bad Gateway</h1></body></html>\n";
            let content_type = Some("text/html");
            return Answer { content_type, ..Answer::plain(200, page) };
        }
        (MetricsFault::Error, _) => return Answer::plain(500, "Internal Server Error"),
        (MetricsFault::Empty, _) => String::new(),
        (MetricsFault::Stuck, Some(page)) => page,
        (MetricsFault::Nan, _) => pod.page(true),
        _ => pod.page(false),
    };
    if fault == MetricsFault::Stuck {
        *last = Some(body.clone());
    }
    Answer { content_type: Some(style.content_type()), ..Answer::plain(200, body) }
}

/// The load report (ORCA) that a client asks for by header.
pub(super) fn load_header(pod: &Pod, head: &Head) -> String {
    let Some(format) = head.header("endpoint-load-metrics-format") else { return String::new() };
    let (waiting, usage) = (pod.waiting() as f64, pod.kv_usage());
    match format {
        "TEXT" => format!(
            "endpoint-load-metrics: TEXT named_metrics.num_requests_waiting={waiting:?}, \
             named_metrics.kv_cache_usage_perc={usage:?}\r\n"
        ),
        "JSON" => format!(
            "endpoint-load-metrics: JSON {{\"named_metrics\": \
             {{\"num_requests_waiting\": {waiting:?}, \"kv_cache_usage_perc\": {usage:?}}}}}\r\n"
        ),
        _ => String::new(),
    }
}

fn fault(pod: &Pod, method: &str, body: &[u8]) -> Answer {
    let now = lock(&pod.faults).clone();
    let faults = match method {
        "POST" => now.with(body),
        "DELETE" => Ok(Faults::default()),
        _ => Ok(now),
    };
    match faults {
        Ok(faults) => {
            let text = serde_json::to_string(&faults).unwrap_or_default();
            if method != "GET" {
                pod.set_faults(faults);
            }
            Answer::json(200, text)
        }
        Err(error) => Answer::json(400, json!({"error": error.to_string()}).to_string()),
    }
}

fn order(pod: &Pod, control: fn(Span) -> Control, body: &[u8]) -> Answer {
    #[derive(Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Order {
        for_ms: Option<u64>,
    }
    let order = if body.is_empty() { Ok(Order::default()) } else { serde_json::from_slice(body) };
    match order {
        Ok(Order { for_ms }) => {
            pod.control(control(Span(for_ms.map(Duration::from_millis))));
            Answer::json(200, "{}")
        }
        Err(error) => Answer::json(400, json!({"error": error.to_string()}).to_string()),
    }
}

/// Base models and adapters.
fn cards(pod: &Pod) -> String {
    let created = unix().as_secs();
    let options = &pod.options;
    let root = options.models.first().map_or("", String::as_str);
    let card = |id: &str, root: &str, parent: Option<&str>, len: Option<u32>| {
        let (id, root) = (escaped(id), escaped(root));
        let parent = parent.map_or("null".to_owned(), |name| format!("\"{}\"", escaped(name)));
        let len = len.map_or("null".to_owned(), |len| len.to_string());
        format!(
            "{{\"id\":\"{id}\",\"object\":\"model\",\"created\":{created},\
             \"owned_by\":\"vllm\",\"root\":\"{root}\",\"parent\":{parent},\
             \"max_model_len\":{len},\"permission\":[{{\"id\":\"modelperm-{:016x}\",\
             \"object\":\"model_permission\",\"created\":{created},\
             \"allow_create_engine\":false,\"allow_sampling\":true,\"allow_logprobs\":true,\
             \"allow_search_indices\":false,\"allow_view\":true,\"allow_fine_tuning\":false,\
             \"organization\":\"*\",\"group\":null,\"is_blocking\":false}}]}}",
            digest(id.as_bytes()),
        )
    };
    let len = Some(pod.max_model_len());
    let bases = options.models.iter().map(|name| card(name, root, None, len));
    let adapters = pod.adapters();
    let loaded = adapters.iter().filter(|adapter| adapter.loaded);
    let loaded = loaded.map(|adapter| card(&adapter.name, &adapter.path, Some(root), None));
    let data: Vec<String> = bases.chain(loaded).collect();
    format!("{{\"object\":\"list\",\"data\":[{}]}}", data.join(","))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AdapterRequest {
    lora_name: String,
    lora_path: String,
    load_inplace: bool,
}

fn load_adapter(pod: &Pod, body: &[u8]) -> Answer {
    let request: AdapterRequest = serde_json::from_slice(body).unwrap_or_default();
    let AdapterRequest { lora_name: name, lora_path: path, load_inplace } = request;
    if name.is_empty() || path.is_empty() {
        let message = "Both 'lora_name' and 'lora_path' must be provided.";
        return Answer::error(400, "InvalidUserInput", message, None);
    }
    let mut adapters = pod.adapters();
    let full = adapters.len() >= MAX_ADAPTERS;
    match adapters.iter_mut().find(|adapter| adapter.name == name) {
        Some(adapter) if adapter.loaded && !load_inplace => {
            let message = format!(
                "The lora adapter '{name}' has already been loaded. If you want to load the \
                 adapter in place, set 'load_inplace' to True."
            );
            return Answer::error(400, "InvalidUserInput", &message, None);
        }
        Some(adapter) => (adapter.loaded, adapter.path) = (true, path),
        None if full => {
            return Answer::error(500, "InternalServerError", "too many adapters", None);
        }
        None => adapters.push(Adapter { name: name.clone(), path, loaded: true }),
    }
    Answer::plain(200, format!("Success: LoRA adapter '{name}' added successfully."))
}

fn unload_adapter(pod: &Pod, body: &[u8]) -> Answer {
    let request: AdapterRequest = serde_json::from_slice(body).unwrap_or_default();
    let name = request.lora_name;
    let mut adapters = pod.adapters();
    match adapters.iter_mut().find(|adapter| adapter.loaded && adapter.name == name) {
        Some(adapter) => {
            adapter.loaded = false;
            Answer::plain(200, format!("Success: LoRA adapter '{name}' removed successfully."))
        }
        None => {
            let message = format!("The lora adapter '{name}' cannot be found.");
            Answer::error(404, "NotFoundError", &message, None)
        }
    }
}

fn not_allowed(allow: &str) -> Answer {
    let headers = format!("allow: {allow}\r\n");
    Answer { headers, ..Answer::json(405, r#"{"detail":"Method Not Allowed"}"#) }
}

/// Paths that take POST alone.
const POSTS: [&str; 5] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
];
/// Adapters ever loaded.
const MAX_ADAPTERS: usize = 10_000;
/// The release whose form this follows.
const VERSION: &str = "0.32.0";
