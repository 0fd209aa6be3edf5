//! Which pods a label selector means, and one that the API server can be asked for in place of many.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::config::document::{LabelSelector, Operator, Requirement};

impl LabelSelector {
    /// Whether it asks for nothing, and so would match every pod.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    /// Whether labels are what it asks for. As in Kubernetes, one that asks for nothing matches all.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let equal = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        self.match_labels.iter().all(equal)
            && self.match_expressions.iter().all(|asked| holds(asked, labels))
    }

    /// What no label can be, or no API server takes, of what it asks for.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let wrong_key = |key: &str| format!("{key:.80?} is not the name of a label");
        let wrong_value = |value: &str| format!("{value:.80?} is not the value of a label");
        for (key, value) in &self.match_labels {
            if !is_key(key) {
                return Some(wrong_key(key));
            }
            if !is_value(value) {
                return Some(wrong_value(value));
            }
        }
        for Requirement { key, operator, values } in &self.match_expressions {
            if !is_key(key) {
                return Some(wrong_key(key));
            }
            if let Some(value) = values.iter().find(|value| !is_value(value)) {
                return Some(wrong_value(value));
            }
            if matches!(operator, Operator::In | Operator::NotIn) == values.is_empty() {
                return Some("values are for In and NotIn, which need some".into());
            }
        }
        None
    }

    /// As a query of the API server, and as people write it: `app=vllm,tier in (a,b)`.
    #[must_use]
    pub fn query(&self) -> String {
        let mut parts: Vec<String> =
            self.match_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        parts.extend(self.match_expressions.iter().map(|Requirement { key, operator, values }| {
            let values = values.join(",");
            match operator {
                Operator::In => format!("{key} in ({values})"),
                Operator::NotIn => format!("{key} notin ({values})"),
                Operator::Exists => key.clone(),
                Operator::DoesNotExist => format!("!{key}"),
            }
        }));
        parts.join(",")
    }
}

/// Whether a label can have this name: of 63 characters, and before a `/` a domain's name if there is one.
fn is_key(key: &str) -> bool {
    let (domain, name) = match key.split_once('/') {
        Some((domain, name)) => (Some(domain), name),
        None => (None, key),
    };
    let is_part =
        |part: &str| is_word(part, "-") && !part.contains(|c: char| c.is_ascii_uppercase());
    let is_domain = |domain: &str| domain.len() <= 253 && domain.split('.').all(is_part);
    domain.is_none_or(is_domain) && name.len() <= 63 && is_word(name, "-_.")
}

/// Whether a label can have this value.
fn is_value(value: &str) -> bool {
    value.is_empty() || value.len() <= 63 && is_word(value, "-_.")
}

/// Letters and digits, and between them `others` as well.
fn is_word(text: &str, others: &str) -> bool {
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    is_end(text.chars().next())
        && is_end(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
}

fn holds(asked: &Requirement, labels: &BTreeMap<String, String>) -> bool {
    let value = labels.get(&asked.key);
    let listed = value.is_some_and(|value| asked.values.contains(value));
    match asked.operator {
        Operator::In => listed,
        Operator::NotIn => !listed,
        Operator::Exists => value.is_some(),
        Operator::DoesNotExist => value.is_none(),
    }
}

/// One query that every pod of every selector matches, and few others; empty for all pods.
///
/// Kubernetes has no "or" between selectors, but a label may have one of several values. So this is a label that all
/// of them name, with all their values, and what all of them ask for alike.
#[must_use]
pub fn covering<'a>(selectors: impl IntoIterator<Item = &'a LabelSelector>) -> String {
    let mut selectors = selectors.into_iter();
    let Some(first) = selectors.next() else { return String::new() };
    let mut values: BTreeMap<&str, BTreeSet<&str>> = first
        .match_labels
        .iter()
        .map(|(key, value)| (key.as_str(), [value.as_str()].into()))
        .collect();
    let mut alike: Vec<&Requirement> = first.match_expressions.iter().collect();
    for selector in selectors {
        values.retain(|key, _| selector.match_labels.contains_key(*key));
        for (key, values) in &mut values {
            values.extend(selector.match_labels.get(*key).map(String::as_str));
        }
        alike.retain(|asked| selector.match_expressions.contains(asked));
    }
    let mut query = String::new();
    for (key, values) in values {
        let mut values = values.into_iter();
        let Some(first) = values.next() else { continue };
        let rest: String = values.flat_map(|value| [",", value]).collect();
        let comma = if query.is_empty() { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = if rest.is_empty() {
            write!(query, "{comma}{key}={first}")
        } else {
            write!(query, "{comma}{key} in ({first}{rest})")
        };
    }
    let alike = LabelSelector {
        match_labels: BTreeMap::new(),
        match_expressions: alike.into_iter().cloned().collect(),
    };
    if !alike.is_empty() {
        let comma = if query.is_empty() { "" } else { "," };
        let _ = write!(query, "{comma}{}", alike.query());
    }
    // It goes into a URL, which servers and what stands before them bound.
    if query.len() > MAX_QUERY { String::new() } else { query }
}

/// Longest query, in bytes.
const MAX_QUERY: usize = 4096;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn selector(value: serde_json::Value) -> LabelSelector {
        serde_json::from_value(value).unwrap()
    }

    fn labels(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn matches_as_kubernetes_does() {
        let asks = |operator: &str, values: &[&str]| json!({ "matchExpressions": [{ "key": "tier", "operator": operator, "values": values }] });
        let (none, a, b) =
            (labels(&[]), labels(&[("tier", "a")]), labels(&[("tier", "b"), ("app", "x")]));
        for (asked, expected) in [
            (json!({}), [true, true, true]),
            (json!({ "matchLabels": { "tier": "a" } }), [false, true, false]),
            (json!({ "matchLabels": { "tier": "b", "app": "x" } }), [false, false, true]),
            (json!({ "matchLabels": { "tier": "a", "app": "x" } }), [false, false, false]),
            (asks("In", &["a", "c"]), [false, true, false]),
            (asks("NotIn", &["a", "c"]), [true, false, true]),
            (asks("Exists", &[]), [false, true, true]),
            (asks("DoesNotExist", &[]), [true, false, false]),
        ] {
            let found = [&none, &a, &b].map(|labels| selector(asked.clone()).matches(labels));
            assert_eq!(found, expected, "{asked}");
        }
    }

    #[test]
    fn what_can_be_no_label() {
        let long = "x".repeat(64);
        let key = |key: &str| json!({ "matchLabels": { key: "a" } });
        let value = |value: &str| json!({ "matchLabels": { "app": value } });
        let asks = |key: &str, operator: &str, values: &[&str]| json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] });
        for (asked, is_right) in [
            (json!({}), true),
            (key("app"), true),
            (key("app.kubernetes.io/name"), true),
            (key("A-b_c.9"), true),
            (key(""), false),
            (key("a b"), false),
            (key("-a"), false),
            (key("a/b/c"), false),
            (key("/a"), false),
            (key("a/"), false),
            (key("Up.io/a"), false),
            (key("a..b/a"), false),
            (key(&long), false),
            (key(&long[1..]), true),
            (key("ä"), false),
            (value(""), true),
            (value("v1.2_x-Y"), true),
            (value("a b"), false),
            (value("a,app=b"), false),
            (value("a."), false),
            (value(&long), false),
            (asks("tier", "In", &["a", "b"]), true),
            (asks("tier", "In", &["a", "b)"]), false),
            (asks("tier", "In", &[]), false),
            (asks("ti er", "In", &["a"]), false),
            (asks("tier", "Exists", &[]), true),
            (asks("tier", "DoesNotExist", &["a"]), false),
        ] {
            assert_eq!(selector(asked.clone()).fault().is_none(), is_right, "{asked}");
        }
    }

    #[test]
    fn one_query_for_many() {
        let app = |name: &str| json!({ "matchLabels": { "app": name } });
        let with = |name: &str| json!({ "matchLabels": { "app": name, "team": "ml" } });
        let gpu = json!({ "matchExpressions": [{ "key": "gpu", "operator": "Exists" }] });
        for (asked, expected) in [
            (vec![], ""),
            (vec![app("a")], "app=a"),
            (vec![app("a"), app("b"), app("a")], "app in (a,b)"),
            (vec![with("a"), with("b")], "app in (a,b),team=ml"),
            (vec![with("a"), app("b")], "app in (a,b)"),
            (vec![app("a"), json!({ "matchLabels": { "name": "a" } })], ""),
            (vec![gpu.clone()], "gpu"),
            (vec![gpu.clone(), gpu.clone()], "gpu"),
            (vec![gpu, app("a")], ""),
            (vec![app(&"x".repeat(5000))], ""),
        ] {
            let selectors: Vec<_> = asked.iter().cloned().map(selector).collect();
            assert_eq!(covering(&selectors), expected, "{asked:?}");
        }
    }

    #[test]
    fn a_query_is_as_people_write_it() {
        let all = json!({
            "matchLabels": { "app": "vllm", "team": "ml" },
            "matchExpressions": [
                { "key": "tier", "operator": "In", "values": ["a", "b"] },
                { "key": "zone", "operator": "NotIn", "values": ["c"] },
                { "key": "gpu", "operator": "Exists" },
                { "key": "old", "operator": "DoesNotExist" },
            ],
        });
        assert_eq!(selector(all).query(), "app=vllm,team=ml,tier in (a,b),zone notin (c),gpu,!old");
    }

    proptest! {
        /// Read as `key=value` and `key in (...)` again, the one query matches whatever one of the many does.
        #[test]
        fn the_one_query_misses_no_pod(
            many in prop::collection::vec(prop::collection::btree_map("[ab]", "[xy]", 0..3), 1..4),
            pod in prop::collection::btree_map("[ab]", "[xy]", 0..3),
        ) {
            let many: Vec<_> = many
                .into_iter()
                .map(|match_labels| LabelSelector { match_labels, ..LabelSelector::default() })
                .collect();
            let query = covering(&many);
            let takes = |part: &str| {
                let (key, values) = match part.split_once(" in (") {
                    Some((key, values)) => (key, values.trim_end_matches(')')),
                    None => part.split_once('=').unwrap(),
                };
                pod.get(key).is_some_and(|value| values.split(',').any(|one| one == value))
            };
            // Commas within brackets part no terms.
            let terms = query.replace("x,y", "x|y");
            let taken = terms.split(',').filter(|part| !part.is_empty()).all(|part| takes(&part.replace('|', ",")));
            if many.iter().any(|selector| selector.matches(&pod)) {
                prop_assert!(taken, "{query:?} misses {pod:?}");
            }
        }
    }
}
