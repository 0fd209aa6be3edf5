//! What reading one pod's metrics costs: `cargo bench -p sluice-tests --bench scrape`.
//!
//! The body is as long as a used vLLM's: about 1,000 lines, of which a dozen matter. A gateway with
//! 100 busy pods reads some 2,000 of them a second.
#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::fmt::Write;

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use gateway_user::observe::exposition::Samples;
use gateway_user::observe::{engines, models};

fn main() {
    divan::main();
}

/// From the body to the reading, for so many engines behind one endpoint.
#[divan::bench(args = [1, 8])]
fn vllm(bencher: Bencher, engines: usize) {
    let body = vllm_body(engines);
    assert!(engines::read(body.as_bytes()).unwrap().signals.kv_usage.is_some());
    bencher
        .counter(BytesCount::new(body.len()))
        .bench(|| engines::read(black_box(body.as_bytes())));
}

/// Every sample of the same body, to show what passing lines over saves.
#[divan::bench]
fn all_samples(bencher: Bencher) {
    let body = vllm_body(1);
    bencher
        .counter(BytesCount::new(body.len()))
        .bench(|| Samples::new(black_box(body.as_bytes()), &[""]).count());
}

/// A list of one base model and some adapters.
#[divan::bench(args = [0, 8, 1000])]
fn list_of_models(bencher: Bencher, adapters: usize) {
    let mut body = r#"{"object":"list","data":[{"id":"base","object":"model"}"#.to_owned();
    for adapter in 0..adapters {
        let created = "\"created\":1764441377,\"owned_by\":\"vllm\",\"permission\":[]";
        write!(body, ",{{\"id\":\"adapter-{adapter}\",\"parent\":\"base\",{created}}}").unwrap();
    }
    body.push_str("]}");
    bencher.counter(BytesCount::new(body.len())).bench(|| models::read(black_box(body.as_bytes())));
}

/// A body of vLLM's form and length: gauges, counters and histograms for each engine.
fn vllm_body(engines: usize) -> String {
    let mut body = String::new();
    let mut line = |name: &str, labels: &str, value: f64| {
        let model = "model_name=\"meta-llama/Llama-3.1-8B-Instruct\"";
        writeln!(body, "vllm:{name}{{{labels}{model}}} {value:?}").unwrap();
    };
    for engine in (0..engines).map(|engine| format!("engine=\"{engine}\",")) {
        for (gauge, value) in [
            ("num_requests_running", 12.0),
            ("num_requests_waiting", 3.0),
            ("kv_cache_usage_perc", 0.37214),
        ] {
            line(gauge, &engine, value);
        }
        for counter in 0..60 {
            line(&format!("some_tokens_{counter}_total"), &engine, 1_834_112.0);
        }
        for histogram in 0..26 {
            for bucket in 0..32 {
                let labels = format!("{engine}le=\"{bucket}.5\",");
                line(&format!("request_time_{histogram}_seconds_bucket"), &labels, 987.0);
            }
            line(&format!("request_time_{histogram}_seconds_sum"), &engine, 185.48);
            line(&format!("request_time_{histogram}_seconds_count"), &engine, 987.0);
        }
        line("cache_config_info", &format!("block_size=\"16\",{engine}num_gpu_blocks=\"9\","), 1.0);
    }
    for adapter in 0..20 {
        let labels = format!("max_lora=\"4\",running_lora_adapters=\"adapter-{adapter}\",");
        line("lora_requests_info", &labels, 1_764_441_377.5 + f64::from(adapter));
    }
    body
}
