//! Why a pod: how the scheduler sees each pod for one request, in words and numbers.
//!
//! [`Explained`] answers `sluice explain`, [`header`] is the short form that a response carries with
//! `debug.explainHeader`. Here is only what is said; what decides is in [`crate::schedule`] and
//! [`crate::pool`]. Nothing is reserved, and no pod is asked.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::error::Refusal;
use crate::gateway::Gateway;
use crate::pool::{Ask, PodStatus};
use crate::request::body;
use crate::request::scan::Scanner;
use crate::schedule::NoPod;
use crate::schedule::filter::Tier;

/// The response header that tells why a request went where it went (`debug.explainHeader`).
pub const EXPLAIN_HEADER: &str = "x-sluice-explain";

/// What would become of one request now.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Explained {
    /// The model that it names.
    pub model: String,
    /// The pool that serves it.
    pub pool: String,
    /// The adapter, when the name is an adapter's.
    pub adapter: Option<String>,
    /// The answer is asked for as a stream.
    pub stream: bool,
    /// Which pod it would go to; none when it would be refused.
    pub pick: Option<Pick>,
    /// Why it would be refused.
    pub refused: Option<String>,
    /// The pool's pods, in the order of the configuration.
    pub pods: Vec<PodLine>,
}

/// Which pod a request would go to.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Pick {
    /// Its name; of several with the same score one is taken by lot.
    pub pods: Vec<String>,
    /// Why.
    pub reason: String,
}

/// One pod, for one request.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct PodLine {
    /// Its name.
    pub name: String,
    /// Where requests go.
    pub address: String,
    /// Where the filter put it: pods of the best kind alone are scored.
    pub filter: String,
    /// What is wrong with it.
    pub trouble: Option<String>,
    /// Its score; none when it is left out.
    pub score: Option<f32>,
    /// What the score is made of, by scorer and unweighted.
    pub parts: Vec<(String, f32)>,
    /// Requests that this gateway has in flight there.
    pub in_flight: u32,
    /// KV cache in use, 0..1.
    pub kv_usage: Option<f32>,
    /// Requests waiting in its engine.
    pub waiting: Option<u32>,
    /// Requests running in its engine.
    pub running: Option<u32>,
    /// Age of the signals.
    pub signals_age_ms: Option<u64>,
    /// Tokens of the prompt that it is thought to have cached.
    pub cached_tokens: u32,
}

impl Explained {
    /// Reads a request's JSON body, and looks at the pods of its pool.
    ///
    /// # Errors
    /// What a client would be told that sends it, before a pod is looked for.
    pub fn read(gateway: &Gateway, request: &[u8]) -> Result<Self, Refusal> {
        let mut scanner = Scanner::new();
        let fields = scanner.feed(request).and_then(|()| scanner.finish());
        let fields = fields.map_err(|fault| body::refusal(&fault))?;
        let model = fields.model.ok_or_else(Refusal::model_missing)?;
        let routes = gateway.routes();
        let to = routes.find(&model).ok_or_else(|| Refusal::model_not_found(&model))?;
        let adapter = to.adapter.as_deref();
        let prompt = to.pool.read_prompt(request, &fields.prompt, adapter);
        let ask = Ask {
            adapter,
            prompt: &prompt,
            session: None,
            max_tokens: fields.max_tokens,
            stream: fields.stream,
            tried: &[],
            only: None,
        };
        let pods = lines(to.pool.explain(ask, Instant::now()));
        let near = to.pool.near();
        let best = best(&pods, near);
        let pick = (!best.is_empty()).then(|| Pick {
            pods: best.iter().map(|pod| pod.name.clone()).collect(),
            reason: reason(&pods, near),
        });
        Ok(Self {
            model: model.into(),
            pool: to.pool.name.to_string(),
            adapter: to.adapter.as_deref().map(Into::into),
            stream: fields.stream,
            refused: pick.is_none().then(|| none(&pods).to_string()),
            pick,
            pods,
        })
    }

    /// A table for people.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let adapter = if self.adapter.is_some() { ", an adapter" } else { "" };
        let stream = if self.stream { ", streamed" } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "model {}{adapter}{stream}: pool {}", self.model, self.pool);
        match (&self.pick, &self.refused) {
            (Some(Pick { pods, reason }), _) => {
                let _ = writeln!(out, "goes to {}: {reason}", pods.join(" or "));
            }
            (None, Some(why)) => {
                let _ = writeln!(out, "refused: {why}");
            }
            (None, None) => {}
        }
        let parts: Vec<&str> = match self.pods.iter().find(|pod| !pod.parts.is_empty()) {
            Some(pod) => pod.parts.iter().map(|(name, _)| name.as_str()).collect(),
            None => Vec::new(),
        };
        let width = |text: fn(&PodLine) -> &str, least: usize| {
            self.pods.iter().map(|pod| text(pod).chars().count()).fold(least, usize::max)
        };
        let (names, filters) = (width(|pod| &pod.name, 3), width(|pod| &pod.filter, 6));
        let _ = write!(
            out,
            "\n  {:<names$}  {:<filters$}  {:>7}  {:>9}  {:>4}  {:>7}  {:>7}  {:>6}  {:>6}",
            "pod", "filter", "score", "in flight", "KV %", "waiting", "running", "age ms", "cached"
        );
        for part in &parts {
            let _ = write!(out, "  {part:>7}");
        }
        out.push('\n');
        for pod in &self.pods {
            let _ = write!(
                out,
                "  {:<names$}  {:<filters$}  {:>7}  {:>9}  {:>4}  {:>7}  {:>7}  {:>6}  {:>6}",
                pod.name,
                pod.filter,
                show(pod.score.map(|score| format!("{score:.3}"))),
                pod.in_flight,
                show(pod.kv_usage.map(|usage| format!("{:.0}", usage * 100.0))),
                show(pod.waiting),
                show(pod.running),
                show(pod.signals_age_ms),
                pod.cached_tokens,
            );
            for part in &parts {
                let value = pod.parts.iter().find(|(name, _)| name == part);
                let value = show(value.map(|(_, value)| format!("{value:.3}")));
                let _ = write!(out, "  {value:>0$}", part.chars().count().max(7));
            }
            out.push('\n');
            if let Some(trouble) = &pod.trouble {
                let _ = writeln!(out, "      {trouble}");
            }
        }
        out
    }
}

/// The pods as they are explained.
pub fn lines(pods: Vec<PodStatus>) -> Vec<PodLine> {
    let line = |status: PodStatus| PodLine {
        name: status.pod.name.to_string(),
        address: status.pod.address.to_string(),
        filter: filter(status.tier).to_owned(),
        trouble: status.trouble,
        score: status.score,
        parts: status.parts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        in_flight: status.view.in_flight,
        kv_usage: status.view.signals.kv_usage,
        waiting: status.view.signals.waiting,
        running: status.view.signals.running,
        signals_age_ms: status.view.age.map(|age| age.as_millis() as u64),
        cached_tokens: status.view.cached_tokens,
    };
    pods.into_iter().map(line).collect()
}

/// The value of the response header: a list as RFC 9651 has it, of the pods from the best on. `picked`
/// is the pod that the request went to, and its score. Bounded; what does not fit is counted.
pub fn header(pods: &[PodLine], picked: Option<(&str, f32)>, near: f32) -> String {
    let is_picked = |pod: &PodLine| picked.is_some_and(|(name, _)| name == pod.name);
    let mut ranked: Vec<&PodLine> = pods.iter().collect();
    ranked.sort_by(|a, b| {
        let score = |pod: &PodLine| pod.score.unwrap_or(f32::NEG_INFINITY);
        is_picked(b).cmp(&is_picked(a)).then_with(|| score(b).total_cmp(&score(a)))
    });
    let mut out = String::new();
    for (place, pod) in ranked.iter().enumerate() {
        let mut item = quoted(&pod.name);
        // Writing to a String cannot fail.
        if let Some((_, score)) = picked.filter(|_| is_picked(pod)) {
            let _ = write!(item, ";picked;score={score:.3};reason={}", quoted(&reason(pods, near)));
        } else if let Some(score) = pod.score {
            let _ = write!(item, ";score={score:.3}");
        }
        if pod.score.is_some() {
            for (name, value) in &pod.parts {
                let _ = write!(item, ";{name}={value:.3}");
            }
        } else {
            let _ = write!(item, ";filter={}", quoted(&pod.filter));
        }
        if out.len() + item.len() > MOST_HEADER {
            let _ = write!(out, ", more;pods={}", ranked.len() - place);
            break;
        }
        if place > 0 {
            out.push_str(", ");
        }
        out.push_str(&item);
    }
    out
}

/// The pods whose score is below the highest by at most a share `near` of it.
fn best(pods: &[PodLine], near: f32) -> Vec<&PodLine> {
    let highest = pods.iter().filter_map(|pod| pod.score).fold(f32::NEG_INFINITY, f32::max);
    let least = highest - highest.abs() * near.max(TIE);
    pods.iter().filter(|pod| pod.score.is_some_and(|score| score >= least)).collect()
}

/// Why the best are the best.
fn reason(pods: &[PodLine], near: f32) -> String {
    let best = best(pods, near);
    let mut others: Vec<(f32, &PodLine)> = (pods.iter())
        .filter(|pod| best.iter().all(|best| !std::ptr::eq(*best, *pod)))
        .filter_map(|pod| Some((pod.score?, pod)))
        .collect();
    others.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let candidates = best.len() + others.len();
    let left_out = match pods.len() - candidates {
        0 => String::new(),
        count => format!("; {count} of {} pods left out", pods.len()),
    };
    let Some(first) = best.first() else { return none(pods).to_string() };
    let what = match (best.len(), others.first()) {
        (1, None) => "the only pod that may take it".to_owned(),
        (1, Some((score, next))) => format!(
            "the highest score of {candidates}; next is {} with {score:.3}{}",
            next.name,
            apart(first, next)
        ),
        (count, _) => {
            format!("{count} of {candidates} are as good as the best, and one is taken by lot")
        }
    };
    what + &left_out
}

/// In what two pods differ most.
fn apart(one: &PodLine, other: &PodLine) -> String {
    let difference = |(a, b): (&(String, f32), &(String, f32))| (a.1 - b.1).abs();
    let pairs = one.parts.iter().zip(&other.parts).filter(|(a, b)| a.0 == b.0 && a.0 != SUM);
    let most = pairs.max_by(|a, b| difference(*a).total_cmp(&difference(*b)));
    match most {
        Some(((name, mine), (_, theirs))) if mine != theirs => {
            format!(", most apart in {name} ({mine:.3} and {theirs:.3})")
        }
        _ => String::new(),
    }
}

/// Why there is no pod.
fn none(pods: &[PodLine]) -> NoPod {
    let any = |tier| pods.iter().any(|pod| pod.filter == filter(tier));
    match () {
        () if any(Tier::Saturated) => NoPod::Saturated,
        () if any(Tier::Tried) => NoPod::Exhausted,
        () => NoPod::Empty,
    }
}

fn filter(tier: Tier) -> &'static str {
    match tier {
        Tier::Fresh => "fresh",
        Tier::FreshElsewhere => "fresh, without the adapter",
        Tier::Unknown => "load unknown",
        Tier::UnknownElsewhere => "load unknown, without the adapter",
        Tier::Saturated => "saturated",
        Tier::Tried => "tried before",
        Tier::NotReady => "not ready",
    }
}

/// A text as a string of RFC 9651: visible ASCII in quotes.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => out.extend(['\\', char]),
            ' '..='~' => out.push(char),
            _ => out.push('?'),
        }
    }
    out.push('"');
    out
}

/// A dash stands for unknown: it is not zero.
fn show(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

/// Scores closer than this share of them are equal.
const TIE: f32 = 1e-5;

/// The part that is the sum of the others.
const SUM: &str = "cost";

/// Longest header, in bytes, but for one pod more: clients and proxies refuse long ones.
const MOST_HEADER: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, score: f32, queue: f32, kv: f32) -> PodLine {
        PodLine {
            name: name.into(),
            filter: "fresh".into(),
            score: Some(score),
            parts: vec![("queue".into(), queue), ("kv-cache-utilization".into(), kv)],
            ..PodLine::default()
        }
    }

    fn out(name: &str, tier: Tier) -> PodLine {
        PodLine { name: name.into(), filter: filter(tier).into(), ..PodLine::default() }
    }

    #[test]
    fn reasons() {
        let table = [
            (vec![], "no pod of this pool is ready"),
            (vec![out("a", Tier::NotReady)], "no pod of this pool is ready"),
            (
                vec![out("a", Tier::NotReady), out("b", Tier::Saturated)],
                "every ready pod of this pool is saturated",
            ),
            (vec![pod("a", 0.0, 0.0, 0.0)], "the only pod that may take it"),
            (
                vec![out("b", Tier::Saturated), pod("a", 2.0, 1.0, 0.0)],
                "the only pod that may take it; 1 of 2 pods left out",
            ),
            (
                vec![pod("a", 2.0, 1.0, 1.0), pod("b", 2.0, 1.0, 1.0), pod("c", 1.0, 1.0, 0.0)],
                "2 of 3 are as good as the best, and one is taken by lot",
            ),
            (
                vec![pod("c", 0.5, 0.0, 0.5), pod("b", 1.2, 0.3, 0.9), pod("a", 1.8, 1.0, 0.8)],
                "the highest score of 3; next is b with 1.200, most apart in queue (1.000 and 0.300)",
            ),
        ];
        for (pods, expected) in table {
            assert_eq!(reason(&pods, 0.0), expected);
        }
    }

    #[test]
    fn near_scores_are_as_good() {
        let pods = [pod("a", 1.0, 1.0, 1.0), pod("b", 0.96, 1.0, 1.0), pod("c", 0.5, 1.0, 1.0)];
        let names = |near| best(&pods, near).iter().map(|pod| &*pod.name).collect::<String>();
        assert_eq!([0.0, 0.03, 0.05, 1.0].map(names), ["a", "a", "ab", "abc"]);
    }

    #[test]
    fn the_header_begins_with_the_pick_and_is_bounded() {
        let pods = [out("full", Tier::Saturated), pod("b", 1.5, 0.5, 1.0), pod("a", 1.2, 0.4, 0.8)];
        assert_eq!(
            header(&pods, Some(("a", 1.25)), 0.0),
            "\"a\";picked;score=1.250;reason=\"the highest score of 2; next is a with 1.200, most apart in \
             kv-cache-utilization (1.000 and 0.800); 1 of 3 pods left out\";queue=0.400;\
             kv-cache-utilization=0.800, \"b\";score=1.500;queue=0.500;kv-cache-utilization=1.000, \
             \"full\";filter=\"saturated\""
        );
        assert_eq!(header(&pods[..1], None, 0.0), "\"full\";filter=\"saturated\"");
        let many: Vec<_> = (0..1000).map(|n| pod(&format!("pod {n}"), 1.0, 0.0, 0.0)).collect();
        let value = header(&many, None, 0.0);
        let shown = value.matches(";score=").count();
        assert!(value.len() < MOST_HEADER + 100 && shown > 10, "{value}");
        assert!(value.ends_with(&format!(", more;pods={}", 1000 - shown)), "{value}");
    }

    #[test]
    fn a_name_cannot_break_the_header() {
        assert_eq!(quoted("a\"b\\c\r\nx: é"), r#""a\"b\\c??x: ?""#);
    }
}
