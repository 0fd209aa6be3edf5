//! The exposition as a whole.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::schedule::{PodView, Signals};

/// A request that ended so, with nothing else known.
pub(crate) fn record(outcome: Outcome) -> Record {
    Record {
        status: 200,
        outcome,
        rejection: None,
        flow: None,
        relayed_bytes: 0,
        carried_bytes: None,
        duration: Duration::from_millis(800),
        ttft: None,
        decode: None,
        prompt_tokens: None,
        cached_tokens: None,
        completion_tokens: None,
        overhead: None,
        retries: 0,
    }
}

#[test]
fn a_finished_request_is_counted_at_every_level() {
    let metrics = metrics();
    metrics.pool("chat").finished(&Record {
        flow: Some((Path::Local, PathReason::Best)),
        ttft: Some(Duration::from_millis(90)),
        decode: Some(Duration::from_millis(600)),
        prompt_tokens: Some(1000),
        cached_tokens: Some(640),
        completion_tokens: Some(61),
        overhead: Some(Duration::from_micros(15)),
        retries: 2,
        ..record(Outcome::Ok)
    });
    let page = metrics.encode(Format::Text).unwrap();
    for line in [
        "sluice_pool_requests_total{pool=\"chat\",outcome=\"ok\"} 1",
        "sluice_pool_requests_total{pool=\"chat\",outcome=\"aborted\"} 0",
        "sluice_pool_retries_total{pool=\"chat\"} 2",
        "sluice_pool_request_duration_seconds_sum{pool=\"chat\"} 0.8",
        "sluice_pool_time_to_first_token_seconds_bucket{pool=\"chat\",le=\"0.08\"} 0",
        "sluice_pool_time_to_first_token_seconds_bucket{pool=\"chat\",le=\"0.1\"} 1",
        "sluice_pool_time_per_output_token_seconds_sum{pool=\"chat\"} 0.01",
        "sluice_pool_prompt_tokens_total{pool=\"chat\"} 1000",
        "sluice_pool_cached_prompt_tokens_total{pool=\"chat\"} 640",
        "sluice_pool_generation_tokens_total{pool=\"chat\"} 61",
        "sluice_pool_request_generation_tokens_bucket{pool=\"chat\",le=\"64\"} 1",
        "sluice_gateway_overhead_seconds_bucket{le=\"1e-05\"} 0",
        "sluice_gateway_overhead_seconds_bucket{le=\"2e-05\"} 1",
        "sluice_flow_responses_total{path=\"local\",reason=\"best\"} 1",
        "sluice_gateway_error_ratio 0.0",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\nis not in\n{page}");
    }
}

#[test]
fn a_rejected_request_has_a_reason_and_no_latency() {
    let metrics = metrics();
    let pool = metrics.pool("chat");
    pool.finished(&Record { rejection: Some(Rejection::Saturated), ..record(Outcome::Rejected) });
    pool.finished(&record(Outcome::ClientGone));
    let page = metrics.encode(Format::Text).unwrap();
    for line in [
        "sluice_pool_requests_total{pool=\"chat\",outcome=\"rejected\"} 1",
        "sluice_pool_rejected_total{pool=\"chat\",reason=\"saturated\"} 1",
        "sluice_pool_rejected_total{pool=\"chat\",reason=\"no_pod\"} 0",
        "sluice_pool_request_duration_seconds_count{pool=\"chat\"} 0",
        "sluice_gateway_overhead_seconds_count 0",
        "sluice_gateway_error_ratio 0.5",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\nis not in\n{page}");
    }
}

/// The kernel's counts begin anew when its programs do.
#[test]
fn what_the_kernel_counts_never_goes_back() {
    let metrics = metrics();
    let (pool, gateway) = (metrics.pool("chat"), metrics.gateway());
    for now in [3, 5, 1] {
        pool.direct(now, now + 1, now + 2);
        gateway.steered(now, now + 1);
    }
    let page = metrics.encode(Format::Text).unwrap();
    for line in [
        "sluice_steering_retries_total 5",
        "sluice_steering_dropped_total 6",
        "sluice_direct_fallbacks_total{pool=\"chat\"} 5",
        "sluice_direct_stale_total{pool=\"chat\"} 6",
        "sluice_direct_retries_total{pool=\"chat\"} 7",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\nis not in\n{page}");
    }
}

#[test]
fn a_pools_events_are_counted_from_the_first_on() {
    let metrics = metrics();
    let page = metrics.encode(Format::Text).unwrap();
    assert!(!page.contains("sluice_kv_events_total{"), "{page}");
    let events = metrics.pool("chat");
    let events = events.events();
    events.known("one", true);
    events.known("two", true);
    events.known("one", false);
    for (pod, bytes) in [("one", 500), ("two", 70), ("three", 7), ("one", 300)] {
        events.takes(pod, bytes);
    }
    events.left("two");
    events.message(5, 0, false);
    events.message(2, 7, true);
    events.prompt(Recognition::Unclear);
    let page = metrics.encode(Format::Text).unwrap();
    for line in [
        "sluice_kv_events_complete{pool=\"chat\",pod=\"one\"} 0",
        "sluice_kv_events_bytes{pool=\"chat\"} 307",
        "sluice_kv_events_total{pool=\"chat\"} 7",
        "sluice_kv_events_lost_messages_total{pool=\"chat\"} 7",
        "sluice_kv_events_malformed_messages_total{pool=\"chat\"} 1",
        "sluice_kv_events_prompts_total{pool=\"chat\",result=\"recognised\"} 0",
        "sluice_kv_events_prompts_total{pool=\"chat\",result=\"unclear\"} 1",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\nis not in\n{page}");
    }
    assert!(!page.contains("pod=\"two\""), "{page}");
}

#[test]
fn what_is_unknown_is_absent() {
    let page = metrics().encode(Format::Text).unwrap();
    let of = |pod: &str| -> Vec<&str> {
        let label = format!("pod=\"{pod}\"");
        let lines = page.lines().filter(|line| line.contains(&label));
        lines.map(|line| line.split('{').next().unwrap()).collect()
    };
    assert_eq!(
        of("known"),
        [
            "sluice_pod_kv_cache_usage_ratio",
            "sluice_pod_requests_waiting",
            "sluice_pod_requests_running",
            "sluice_pod_requests_in_flight",
            "sluice_pod_adapters_active",
            "sluice_pod_signal_age_seconds",
            "sluice_pod_ready",
            "sluice_direct_connections_total",
            "sluice_direct_connections_open",
        ]
    );
    let own = ["sluice_pod_requests_in_flight", "sluice_pod_ready"];
    assert_eq!(of("never scraped"), own);
    assert_eq!(of("stale"), [own[0], "sluice_pod_signal_age_seconds", own[1]]);
    assert_eq!(
        of("NaN"),
        ["sluice_pod_requests_waiting", own[0], "sluice_pod_signal_age_seconds", own[1]]
    );
    assert!(page.contains("sluice_gateway_kv_cache_usage_ratio 0.25\n"), "{page}");
    // No request has ended yet.
    assert!(!page.contains("\nsluice_gateway_error_ratio "), "{page}");
}

#[test]
fn without_pods_there_is_no_mean() {
    let page = Metrics::new(BUILD, Vec::new).encode(Format::Text).unwrap();
    assert!(!page.contains("\nsluice_gateway_kv_cache_usage_ratio"), "{page}");
}

#[test]
fn only_configured_models_are_named() {
    let metrics = metrics();
    let pool = metrics.pool("chat");
    pool.set_models(["llama", "sql-lora"]);
    for model in ["llama", "sql-lora", "llama", "made\"up\n", "made up too"] {
        pool.requested(model);
    }
    pool.used(
        "llama",
        &Record { prompt_tokens: Some(9), cached_tokens: Some(4), ..record(Outcome::Ok) },
    );
    pool.used("made up", &Record { completion_tokens: Some(8), ..record(Outcome::Ok) });
    pool.set_models(["llama"]);
    let page = metrics.encode(Format::Text).unwrap();
    let lines = page.lines().filter(|line| line.starts_with("sluice_pool_model_requests_total{"));
    assert_eq!(
        lines.collect::<Vec<_>>(),
        [
            "sluice_pool_model_requests_total{pool=\"chat\",model=\"llama\"} 2",
            "sluice_pool_model_requests_total{pool=\"chat\",model=\"other\"} 2",
        ]
    );
    let lines = page.lines().filter_map(|line| line.strip_prefix("sluice_pool_model_tokens_total"));
    assert_eq!(
        lines.collect::<Vec<_>>(),
        [
            "{pool=\"chat\",model=\"llama\",kind=\"prompt\"} 9",
            "{pool=\"chat\",model=\"llama\",kind=\"cached\"} 4",
            "{pool=\"chat\",model=\"llama\",kind=\"generated\"} 0",
            "{pool=\"chat\",model=\"other\",kind=\"prompt\"} 0",
            "{pool=\"chat\",model=\"other\",kind=\"cached\"} 0",
            "{pool=\"chat\",model=\"other\",kind=\"generated\"} 8",
        ]
    );
}

#[test]
fn a_dropped_pool_takes_its_series_with_it() {
    let metrics = metrics();
    metrics.pool("old").finished(&record(Outcome::Ok));
    metrics.pool("new").finished(&record(Outcome::Ok));
    metrics.retain_pools(|name| name == "new");
    let page = metrics.encode(Format::Text).unwrap();
    assert!(!page.contains("pool=\"old\"") && page.contains("pool=\"new\""), "{page}");
}

#[test]
fn a_rewrite_that_has_left_takes_its_series_with_it() {
    let metrics = metrics();
    metrics.set_rewrites(["a", "b"]);
    for (rewrite, model) in [("a", "llama"), ("a", "llama"), ("a", "*"), ("b", "llama")] {
        metrics.rewritten(&rewrite.into(), model, &"llama-2".into());
    }
    let sample = |rewrite: &str, model: &str| {
        format!(
            "sluice_model_rewrites_total{{rewrite=\"{rewrite}\",model=\"{model}\",target=\"llama-2\"}} "
        )
    };
    let page = metrics.encode(Format::Text).unwrap();
    assert!(page.contains(&(sample("a", "llama") + "2\n")), "{page}");
    assert!(page.contains(&(sample("a", "*") + "1\n")), "{page}");
    metrics.set_rewrites(["a"]);
    // A request that was on its way.
    metrics.rewritten(&"b".into(), "llama", &"llama-2".into());
    let page = metrics.encode(Format::Text).unwrap();
    assert!(
        page.contains(&(sample("a", "llama") + "2\n")) && !page.contains(&sample("b", "llama"))
    );
}

#[test]
fn names_of_the_configuration_cannot_break_the_page() {
    let metrics = metrics();
    metrics.pool("a\"b\\c\nd").finished(&record(Outcome::Ok));
    let page = metrics.encode(Format::Text).unwrap();
    assert!(page.contains("{pool=\"a\\\"b\\\\c\\nd\"}"), "{page}");
}

#[test]
fn the_page_has_every_metric_and_no_other() {
    let declared: BTreeSet<String> = ALL
        .iter()
        .map(|metric| {
            format!("# TYPE {} {}", metric.name(), metric.kind().replace("info", "gauge"))
        })
        .collect();
    let page = full().encode(Format::Text).unwrap();
    let written: Vec<&str> = page.lines().filter(|line| line.starts_with("# TYPE")).collect();
    assert_eq!(written.iter().map(ToString::to_string).collect::<BTreeSet<_>>(), declared);
    assert_eq!(written.len(), declared.len(), "declared twice");
    for metric in ALL {
        let sample = format!("\n{}", metric.name());
        assert!(page.contains(&sample), "no sample of {}", metric.name());
    }
}

#[test]
fn openmetrics_ends_as_it_must() {
    let page = full().encode(Format::OpenMetrics).unwrap();
    assert!(page.ends_with("# EOF\n"));
    assert!(page.contains("# TYPE sluice_pool_requests counter\n"));
}

/// It reads the text format only; of OpenMetrics it says that counters lack their HELP.
#[test]
fn promtool_finds_nothing_to_say() {
    let page = full().encode(Format::Text).unwrap();
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this test needs promtool: install the Debian package `prometheus`");
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success() && said.is_empty(), "{}\n{said}\n{page}", output.status);
}

#[test]
fn the_docs_list_every_metric() {
    let page = include_str!("../../../docs/metrics.md");
    let listed: Vec<&str> = page.lines().filter(|line| line.starts_with("| `sluice_")).collect();
    let declared: Vec<String> = ALL
        .iter()
        .map(|metric| {
            let labels = metric.labels.join(", ");
            format!("| `{}` | {} | {labels} | {} |", metric.name(), metric.kind(), metric.help)
        })
        .collect();
    assert_eq!(listed, declared, "docs/metrics.md should have the rows\n{}", declared.join("\n"));
}

#[test]
fn the_docs_list_every_value_of_a_label() {
    let page = include_str!("../../../docs/metrics.md");
    fn texts<L: Label>() -> Vec<&'static str> {
        L::ALL.iter().map(|label| label.as_str()).collect()
    }
    let all = [
        texts::<Outcome>(),
        texts::<Rejection>(),
        texts::<Refusal>(),
        texts::<Path>(),
        texts::<PathReason>(),
        texts::<Arrival>(),
        texts::<ScrapeFailure>(),
        texts::<Recognition>(),
        texts::<Datagram>(),
        texts::<Handshake>(),
        texts::<Limit>(),
        texts::<AuthSource>(),
        texts::<Reload>(),
    ];
    for text in all.concat() {
        assert!(page.contains(&format!("`{text}`")), "docs/metrics.md does not explain `{text}`");
    }
}

const BUILD: Build = Build { version: "0.1.0", revision: "abc" };

/// With pods of every kind, and nothing counted.
fn metrics() -> Metrics {
    Metrics::new(BUILD, || {
        let known = Signals {
            kv_usage: Some(0.25),
            waiting: Some(3),
            running: Some(8),
            adapter_slots: Some(4),
            adapters_active: Some(1),
        };
        let age = |seconds| Some(Duration::from_secs(seconds));
        let pods = [
            ("known", PodView { ready: true, signals: known, age: age(1), ..PodView::default() }),
            ("never scraped", PodView { ready: true, ..PodView::default() }),
            ("stale", PodView { signals: known, age: age(9), ..PodView::default() }),
            (
                "NaN",
                PodView {
                    signals: Signals {
                        kv_usage: Some(f32::NAN),
                        waiting: Some(0),
                        ..Signals::default()
                    },
                    age: age(1),
                    ..PodView::default()
                },
            ),
        ];
        let sample = |(name, view): (&str, PodView)| PodSample {
            direct: (name == "known").then_some((12, 3)),
            pool: "chat".into(),
            pod: name.into(),
            view,
            stale_after: Duration::from_secs(3),
        };
        pods.map(sample).into()
    })
}

/// With something counted everywhere.
fn full() -> Metrics {
    let metrics = metrics();
    let pool = metrics.pool("chat");
    pool.set_models(["llama"]);
    pool.requested("llama");
    pool.direct(4, 1, 2);
    pool.set_prefix_index(&Arc::default());
    pool.placed(900, 300);
    pool.events().known("known", true);
    pool.events().message(3, 0, false);
    pool.events().prompt(Recognition::Recognised);
    pool.scrape_failed(ScrapeFailure::Timeout);
    for &outcome in Outcome::ALL {
        pool.finished(&Record {
            flow: Some((Path::Relay, PathReason::Off)),
            ttft: Some(Duration::from_millis(50)),
            overhead: Some(Duration::from_micros(30)),
            ..record(outcome)
        });
    }
    metrics.listener("http").accepted(Arrival::SkLookup);
    let gateway = metrics.gateway();
    gateway.client_connections.inc();
    gateway.buffered_body_bytes.inc_by(4096);
    gateway.steering_enabled.set(1);
    gateway.steered(2, 1);
    gateway.refused(Refusal::UnknownModel);
    gateway.datagram(Datagram::Taken);
    gateway.tls().handshake(Handshake::Done);
    gateway.tls().certificates(&[Expiry { file: "tls.crt".into(), at: 1_800_000_000 }]);
    gateway.cluster_age(std::time::Duration::from_secs(7));
    gateway.auth_keys(AuthSource::Keys, 2);
    gateway.reloaded(AuthSource::Keys, Reload::Done);
    metrics.set_rewrites(["canary"]);
    metrics.rewritten(&"canary".into(), "llama", &"llama-2".into());
    pool.peers(1);
    pool.limited(Limit::Tokens);
    let key = metrics.key("team");
    key.limited(Limit::Requests);
    key.finished(Outcome::Ok, Some(3), None);
    metrics
}
