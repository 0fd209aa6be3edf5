//! A metrics page with the names that a gateway reads, and as long as a real server's.

use std::fmt::Write;

/// The page of a pod with so many requests running, about 50 KB.
pub(crate) fn page(model: &str, running: u64) -> String {
    let labels = format!("engine=\"0\",model_name=\"{model}\"");
    let mut page = String::with_capacity(56 * 1_024);
    for (name, value) in [
        ("num_requests_running", running as f64),
        ("num_requests_waiting", 0.0),
        ("kv_cache_usage_perc", running as f64 / 4_096.0),
    ] {
        family(&mut page, name, "gauge");
        let _ = writeln!(page, "vllm:{name}{{{labels}}} {value:?}");
    }
    family(&mut page, "cache_config_info", "gauge");
    let _ = writeln!(
        page,
        "vllm:cache_config_info{{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"65536\"}} 1.0"
    );
    family(&mut page, "lora_requests_info", "gauge");
    let _ = writeln!(
        page,
        "vllm:lora_requests_info{{max_lora=\"0\",running_lora_adapters=\"\",\
         waiting_lora_adapters=\"\"}} 1.7959845664809654e+09"
    );
    for name in HISTOGRAMS {
        family(&mut page, name, "histogram");
        for bound in BOUNDS {
            let _ = writeln!(page, "vllm:{name}_bucket{{{labels},le=\"{bound:?}\"}} 1234.0");
        }
        let _ = writeln!(page, "vllm:{name}_bucket{{{labels},le=\"+Inf\"}} 1234.0");
        let _ = writeln!(page, "vllm:{name}_count{{{labels}}} 1234.0");
        let _ = writeln!(page, "vllm:{name}_sum{{{labels}}} 345.67891234567");
    }
    page
}

fn family(page: &mut String, name: &str, kind: &str) {
    let _ = writeln!(page, "# HELP vllm:{name} {}.", name.replace('_', " "));
    let _ = writeln!(page, "# TYPE vllm:{name} {kind}");
}

const HISTOGRAMS: [&str; 18] = [
    "e2e_request_latency_seconds",
    "inter_token_latency_seconds",
    "iteration_tokens_total",
    "prompt_tokens_per_request",
    "generation_tokens_per_request",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_max_num_generation_tokens",
    "request_params_max_tokens",
    "request_params_n",
    "request_prefill_kv_computed_tokens",
    "request_prefill_time_seconds",
    "request_prompt_tokens",
    "request_queue_time_seconds",
    "request_time_per_output_token_seconds",
    "request_generation_tokens",
    "time_per_output_token_seconds",
    "time_to_first_token_seconds",
];

const BOUNDS: [f64; 30] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 0.8, 1.0, 1.5,
    2.0, 2.5, 5.0, 7.5, 10.0, 15.0, 20.0, 40.0, 80.0, 160.0, 640.0, 1280.0, 2560.0,
];

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_is_as_long_as_a_real_one() {
        let page = super::page("bench", 3);
        assert!((45_000..60_000).contains(&page.len()), "{}", page.len());
        assert!(
            page.contains("\nvllm:num_requests_running{engine=\"0\",model_name=\"bench\"} 3.0\n")
        );
    }
}
