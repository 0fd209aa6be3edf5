//! What `demo --requests` prints at its end.

use std::collections::BTreeMap;

use serde::Serialize;

use super::load::Tally;
use super::pods::PODS;
use super::view::percentile;

/// The result of so many requests; its JSON has these fields.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    requests: u64,
    ok: u64,
    errors: u64,
    tokens: u64,
    ttft_ms: Times,
    pods: Vec<PodShare>,
    paths: Paths,
    /// `sk_lookup`, or `userspace: ` and why.
    steering: String,
}

/// Null without an answer.
#[derive(Debug, Serialize)]
struct Times {
    p50: Option<f64>,
    p99: Option<f64>,
}

#[derive(Debug, Serialize)]
struct PodShare {
    name: String,
    requests: u64,
    tokens: u64,
}

/// Answers by what carried their bodies, as the gateway counted them.
#[derive(Debug, Default, Serialize)]
struct Paths {
    relay: u64,
    splice: u64,
    local: u64,
}

impl Summary {
    /// Puts together what clients and gateway counted.
    pub(super) fn new(tally: &Tally, paths: &BTreeMap<String, u64>, steering: String) -> Self {
        let ms = |share| percentile(&tally.ttft_us, share).map(|us| (us / 100) as f64 / 10.0);
        let path = |name: &str| paths.get(name).copied().unwrap_or_default();
        // All four, also those without a request.
        let pods = PODS.iter().map(|pod| {
            let (requests, tokens) = tally.pods.get(pod.name).copied().unwrap_or_default();
            PodShare { name: pod.name.to_owned(), requests, tokens }
        });
        Self {
            requests: tally.ok + tally.errors,
            ok: tally.ok,
            errors: tally.errors,
            tokens: tally.pods.values().map(|(_, tokens)| tokens).sum(),
            ttft_ms: Times { p50: ms(0.5), p99: ms(0.99) },
            pods: pods.collect(),
            paths: Paths { relay: path("relay"), splice: path("splice"), local: path("local") },
            steering,
        }
    }

    /// For people.
    pub(super) fn table(&self) -> String {
        let Self { requests, ok, errors, tokens, ttft_ms, pods, paths, steering } = self;
        let mut lines = vec![
            format!("{requests} requests: {ok} ok, {errors} failed; {tokens} tokens"),
            String::new(),
            format!("{:<8} {:<6} {:>8} {:>6} {:>8}", "pod", "GPU", "requests", "share", "tokens"),
        ];
        for (PodShare { name, requests, tokens }, pod) in pods.iter().zip(&PODS) {
            let share = *requests as f64 / (*ok).max(1) as f64 * 100.0;
            let gpu = pod.gpu;
            lines.push(format!("{name:<8} {gpu:<6} {requests:>8} {share:>5.0}% {tokens:>8}"));
        }
        let ms = |time: Option<f64>| time.map_or("-".to_owned(), |ms| format!("{ms:.1} ms"));
        let Paths { relay, splice, local } = paths;
        lines.extend([
            String::new(),
            format!("TTFT       p50 {}, p99 {}", ms(ttft_ms.p50), ms(ttft_ms.p99)),
            format!("paths      relay {relay}, splice {splice}, local {local}"),
            format!("steering   {steering}"),
        ]);
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> Summary {
        let tally = Tally {
            ok: 3,
            errors: 1,
            pods: [("pod-2".into(), (2, 40)), ("pod-4".into(), (1, 9))].into(),
            ttft_us: vec![30_000, 10_060, 20_000],
            ..Tally::default()
        };
        Summary::new(&tally, &[("relay".into(), 3)].into(), "userspace: no rights".into())
    }

    #[test]
    fn the_json_has_these_fields_in_this_order() {
        assert_eq!(
            serde_json::to_string(&summary()).unwrap(),
            "{\"requests\":4,\"ok\":3,\"errors\":1,\"tokens\":49,\
             \"ttft_ms\":{\"p50\":20.0,\"p99\":30.0},\
             \"pods\":[{\"name\":\"pod-1\",\"requests\":0,\"tokens\":0},\
             {\"name\":\"pod-2\",\"requests\":2,\"tokens\":40},\
             {\"name\":\"pod-3\",\"requests\":0,\"tokens\":0},\
             {\"name\":\"pod-4\",\"requests\":1,\"tokens\":9}],\
             \"paths\":{\"relay\":3,\"splice\":0,\"local\":0},\
             \"steering\":\"userspace: no rights\"}"
        );
    }

    #[test]
    fn without_an_answer_there_is_no_time() {
        let none = Summary::new(&Tally::default(), &BTreeMap::new(), "sk_lookup".into());
        let json = serde_json::to_value(&none).unwrap();
        assert_eq!(json["ttft_ms"], serde_json::json!({"p50": null, "p99": null}));
        assert!(none.table().contains("p50 -, p99 -"), "{}", none.table());
    }

    #[test]
    fn the_table_has_each_pod_with_its_share() {
        let table = summary().table();
        for line in
            ["pod-2    l40s          2    67%       40", "pod-1    h100          0     0%        0"]
        {
            assert!(table.lines().any(|own| own == line), "{table}");
        }
    }
}
