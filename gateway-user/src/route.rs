//! Which pool: a model's name, an alias or an adapter's name leads to the pool of its base model. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use crate::pool::Pool;

/// Every name that clients may use. Made anew when a pod's adapters change.
#[derive(Debug, Default)]
pub struct Routes {
    by_name: HashMap<Arc<str>, Target>,
}

/// Where a name leads.
#[derive(Clone, Debug)]
pub struct Target {
    /// The pool.
    pub pool: Arc<Pool>,
    /// The adapter, when the name is an adapter's.
    pub adapter: Option<Arc<str>>,
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
            for name in std::iter::once(&pool.model).chain(&pool.aliases) {
                add(name, pool, None);
            }
        }
        for pool in pools {
            for name in &pool.adapters {
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

/// Whether a path steers a model server rather than asking it something: loading adapters, sleeping, clearing
/// caches. Clients of the gateway have no business there, whatever `model` they name.
pub fn is_control(path: &str) -> bool {
    // Servers decode a path before they look at it.
    let path = unescape(path);
    let last = path.rsplit('/').find(|segment| !segment.is_empty()).unwrap_or_default();
    CONTROL.contains(&last)
}

/// Last segments of such paths: vLLM's and SGLang's.
const CONTROL: [&str; 18] = [
    "abort_request",
    "abort_requests",
    "collective_rpc",
    "flush_cache",
    "load_lora_adapter",
    "pause",
    "release_memory_occupation",
    "reset_mm_cache",
    "reset_prefix_cache",
    "resume",
    "resume_memory_occupation",
    "scale_elastic_ep",
    "sleep",
    "start_profile",
    "stop_profile",
    "unload_lora_adapter",
    "update_weights_from_disk",
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
        ] {
            assert!(is_control(path), "{path}");
        }
        for path in ["/v1/chat/completions", "/", "", "/v1/sleep/completions", "/v1/responses"] {
            assert!(!is_control(path), "{path}");
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
