//! Which models and adapters a pod lists: the body of `GET /v1/models` in, one [`Models`] out.
//!
//! All servers answer in OpenAI's form; vLLM and SGLang add `parent` to an adapter. Pure, tolerant
//! of anything beside that, and bounded. The body must not be compared with the one before:
//! `created` is the time of the call.

use std::collections::HashSet;
use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// What a pod lists, each in the pod's order and once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Models {
    /// Names of base models: several may name the same one.
    pub bases: Vec<Box<str>>,
    /// Adapters, loaded but not necessarily in use.
    pub adapters: Vec<Adapter>,
    /// The pod lists more than [`MAX_MODELS`]; the rest was left out.
    pub truncated: bool,
}

/// A LoRA adapter as a pod lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// The name that requests use.
    pub id: Box<str>,
    /// The base model's name.
    pub parent: Box<str>,
}

/// The body is no list of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("something else than a list of models")]
pub struct NotModels;

/// Reads the body of an answer to `GET /v1/models`.
///
/// # Errors
///
/// [`NotModels`] unless it is a JSON object with a list `data`. Entries without a usable `id` are
/// left out.
pub fn read(body: &[u8]) -> Result<Models, NotModels> {
    let List { data } = serde_json::from_slice(body).map_err(|_| NotModels)?;
    let mut models = Models { truncated: data.truncated, ..Models::default() };
    let mut seen = HashSet::new();
    for Card { id, parent } in data.items {
        if !is_usable(&id) || !seen.insert(id.clone()) {
            continue;
        }
        match parent.filter(|parent| !parent.is_empty()) {
            None => models.bases.push(id),
            Some(parent) if is_usable(&parent) => models.adapters.push(Adapter { id, parent }),
            Some(_) => {}
        }
    }
    Ok(models)
}

fn is_usable(name: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len())
}

#[derive(Deserialize)]
struct List {
    data: Cards,
}

#[derive(Deserialize)]
struct Card {
    id: Box<str>,
    #[serde(default)]
    parent: Option<Box<str>>,
}

/// The first entries of a list that have the right form.
#[derive(Default)]
struct Cards {
    items: Vec<Card>,
    truncated: bool,
}

impl<'de> Deserialize<'de> for Cards {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(CardsVisitor)
    }
}

struct CardsVisitor;

impl<'de> Visitor<'de> for CardsVisitor {
    type Value = Cards;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of models")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Cards, A::Error> {
        let mut cards = Cards::default();
        while let Some(entry) = list.next_element::<Value>()? {
            if cards.items.len() >= MAX_MODELS {
                cards.truncated = true;
            } else if let Ok(card) = serde_json::from_value(entry) {
                cards.items.push(card);
            }
        }
        Ok(cards)
    }
}

/// Most entries kept of one list.
pub const MAX_MODELS: usize = 1024;

/// Longest name kept, in bytes.
const MAX_NAME_BYTES: usize = 512;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn models(bases: &[&str], adapters: &[(&str, &str)]) -> Models {
        Models {
            bases: bases.iter().map(|&id| id.into()).collect(),
            adapters: adapters
                .iter()
                .map(|&(id, parent)| Adapter { id: id.into(), parent: parent.into() })
                .collect(),
            truncated: false,
        }
    }

    #[test]
    fn lists() {
        let vllm = include_str!("../../../tests/golden/metrics/models-vllm-0.33.json");
        for (body, expected) in [
            (
                vllm,
                models(&["tiny-llama"], &[("sql-lora", "tiny-llama"), ("chat-lora", "tiny-llama")]),
            ),
            (r#"{"data":[]}"#, models(&[], &[])),
            (r#"{"object":"list","data":[{"id":"a"},{"id":"b"}]}"#, models(&["a", "b"], &[])),
            (
                r#"{"models":[{"name":"x"}],"data":[{"id":"llama.gguf"}]}"#,
                models(&["llama.gguf"], &[]),
            ),
            (r#"{"data":[{"id":"a"},{"id":"a"}]}"#, models(&["a"], &[])),
            (
                r#"{"data":[{"id":"l","parent":"a"},{"id":"l","parent":"b"}]}"#,
                models(&[], &[("l", "a")]),
            ),
            (
                r#"{"data":[{"id":"a","parent":""},{"id":"b","parent":null}]}"#,
                models(&["a", "b"], &[]),
            ),
            (
                r#"{"data":[7,null,"x",{},{"id":5},{"id":""},{"id":"a","parent":3},{"id":"b"}]}"#,
                models(&["b"], &[]),
            ),
            (r#"{"data":[{"id":"org\/m\u00e9"}]}"#, models(&["org/mé"], &[])),
        ] {
            assert_eq!(read(body.as_bytes()), Ok(expected), "{body}");
        }
    }

    #[test]
    fn other_bodies() {
        let deep = "[".repeat(100_000);
        for body in [
            "",
            "<html>",
            "Not Found",
            "[]",
            "{}",
            r#"{"data":null}"#,
            r#"{"data":{"id":"a"}}"#,
            r#"{"error":"Unauthorized"}"#,
            r#"{"data":[{"id":"a"}"#,
            &deep,
        ] {
            assert_eq!(read(body.as_bytes()), Err(NotModels));
        }
    }

    #[test]
    fn bounded() {
        let long = "x".repeat(MAX_NAME_BYTES + 1);
        let mut data = vec![json!({ "id": long })];
        data.extend((0..2 * MAX_MODELS).map(|n| json!({ "id": format!("m{n}") })));
        let found = read(json!({ "data": data }).to_string().as_bytes()).unwrap();
        assert_eq!(found.bases.len(), MAX_MODELS - 1);
        assert!(found.truncated);
    }

    proptest! {
        #[test]
        fn any_bytes(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&body);
        }

        /// What is listed is found, in its order.
        #[test]
        fn round_trip(ids in prop::collection::btree_set("\\PC{1,12}", 0..20)) {
            let card = |id| json!({ "id": id, "created": 1.5 });
            let data: Vec<_> = ids.iter().map(card).collect();
            let found = read(json!({ "data": data }).to_string().as_bytes()).unwrap();
            prop_assert!(found.bases.iter().map(|id| &**id).eq(ids.iter().map(|id| &**id)));
        }
    }
}
