use proptest::prelude::*;

use super::*;

macro_rules! golden {
    ($name:literal) => {
        include_bytes!(concat!("../../../../tests/golden/metrics/", $name))
    };
}

/// Signals in the order kv_usage, waiting, running, adapter_slots, adapters_active.
fn signals(
    kv_usage: impl Into<Option<f32>>,
    waiting: impl Into<Option<u32>>,
    running: impl Into<Option<u32>>,
    adapter_slots: impl Into<Option<u32>>,
    adapters_active: impl Into<Option<u32>>,
) -> Signals {
    Signals {
        kv_usage: kv_usage.into(),
        waiting: waiting.into(),
        running: running.into(),
        adapter_slots: adapter_slots.into(),
        adapters_active: adapters_active.into(),
    }
}

fn names(names: &[&str]) -> Vec<Box<str>> {
    names.iter().map(|&name| name.into()).collect()
}

fn signals_of(body: &str) -> Signals {
    read(body.as_bytes()).unwrap().signals
}

/// What each kind of server and version says, from one trimmed answer of each.
#[test]
fn golden() {
    use EngineKind::*;
    let blank = Reading::default;
    let llama = names(&["meta-llama/Llama-3.1-8B-Instruct"]);
    for (name, body, expected) in [
        (
            "V0: no engine label, the CPU cache is another one",
            &golden!("vllm-0.6-v0.txt")[..],
            Reading {
                engine: Vllm,
                signals: signals(0.37214, 3, 12, 4, 1),
                adapters_active: names(&["sql-lora"]),
                block_size: Some(16),
                blocks: Some(27_853),
                kv_tokens: Some(445_648),
                models: llama.clone(),
                ..blank()
            },
        ),
        (
            // Case 53: only the old name.
            "V1 under the old name of the KV gauge",
            golden!("vllm-0.8.txt"),
            Reading {
                engine: Vllm,
                signals: signals(0.37214, 3, 12, 4, 1),
                adapters_active: names(&["sql-lora"]),
                block_size: Some(16),
                blocks: Some(27_853),
                kv_tokens: Some(445_648),
                models: llama,
                ..blank()
            },
        ),
        (
            // Case 54: two engines behind one endpoint.
            "two engines: sums, but the fullest cache; the two lists differ",
            golden!("vllm-0.11-two-engines.txt"),
            Reading {
                engine: Vllm,
                signals: signals(0.812_593_4, 7, 79, 4, 3),
                adapters_active: names(&["sql-lora", "support-lora", "tweet-lora"]),
                is_split: true,
                block_size: Some(16),
                blocks: Some(39_818),
                kv_tokens: Some(637_088),
                models: names(&["Qwen/Qwen3-32B"]),
                ..blank()
            },
        ),
        (
            "both lists hold the same, times are summed over processes",
            golden!("vllm-0.16-lora.txt"),
            Reading {
                engine: Vllm,
                signals: signals(None, None, None, 4, 3),
                adapters_active: names(&["sql-lora", "support-lora", "tweet-lora"]),
                ..blank()
            },
        ),
        (
            // Picker case 23: no lora_requests_info is no error.
            "a real idle pod: zeros are zeros, no adapter was ever used",
            golden!("vllm-0.33-idle.txt"),
            Reading {
                engine: Vllm,
                signals: signals(0.0, 0, 0, None, 0),
                block_size: Some(128),
                blocks: Some(16_384),
                kv_tokens: Some(2_097_152),
                models: names(&["tiny-llama"]),
                ..blank()
            },
        ),
        (
            "a real loaded pod: the newest of three adapter series is not the first",
            golden!("vllm-0.33-load.txt"),
            Reading {
                engine: Vllm,
                signals: signals(0.000_488_311_06, 4, 8, 2, 0),
                block_size: Some(128),
                blocks: Some(16_384),
                kv_tokens: Some(2_097_152),
                models: names(&["tiny-llama"]),
                ..blank()
            },
        ),
        (
            "a real pod that preempts: its cache never says 1",
            golden!("vllm-0.33-kv-full.txt"),
            Reading {
                engine: Vllm,
                signals: signals(0.957_894_74, 8, 6, 2, 2),
                adapters_active: names(&["chat-lora", "sql-lora"]),
                block_size: Some(32),
                blocks: Some(96),
                kv_tokens: Some(3072),
                models: names(&["tiny-llama"]),
                ..blank()
            },
        ),
        (
            "the Rust front end: OpenMetrics, no max_lora",
            golden!("vllm-rust-openmetrics.txt"),
            Reading {
                engine: Vllm,
                signals: signals(0.125, 0, 3, None, 2),
                adapters_active: names(&["sql-lora", "tweet-lora"]),
                models: names(&["Qwen/Qwen3-0.6B"]),
                ..blank()
            },
        ),
        (
            "SGLang, two data-parallel ranks",
            golden!("sglang-dp2.txt"),
            Reading {
                engine: Sglang,
                signals: signals(0.632, 4, 62, 8, 2),
                is_split: true,
                block_size: Some(64),
                blocks: Some(9954),
                kv_tokens: Some(637_090),
                models: names(&["Qwen/Qwen3-32B"]),
                ..blank()
            },
        ),
        (
            "TGI: the KV cache is estimated",
            golden!("tgi.txt"),
            Reading {
                engine: Tgi,
                signals: signals((61_440.0 / 189_399.0) as f32, 6, 24, None, None),
                kv_tokens: Some(189_399),
                ..blank()
            },
        ),
        (
            "Triton with TensorRT-LLM",
            golden!("triton-trtllm.txt"),
            Reading {
                engine: Triton,
                signals: signals(0.41, 3, 21, None, None),
                block_size: Some(64),
                blocks: Some(6239),
                kv_tokens: Some(399_296),
                max_num_seqs: Some(512),
                models: names(&["tensorrt_llm"]),
                ..blank()
            },
        ),
        (
            "trtllm-serve in text",
            golden!("trtllm-serve.txt"),
            Reading {
                engine: TrtllmServe,
                signals: signals(0.412, 3, 24, None, None),
                block_size: Some(32),
                models: names(&["Qwen3-32B"]),
                ..blank()
            },
        ),
        (
            "trtllm-serve in JSON: the last iteration",
            golden!("trtllm-serve-iterations.json"),
            Reading {
                engine: TrtllmServe,
                signals: signals(0.412, 3, 24, None, None),
                block_size: Some(32),
                blocks: Some(1000),
                kv_tokens: Some(32_000),
                max_num_seqs: Some(2048),
                ..blank()
            },
        ),
        (
            "llama.cpp: nothing about its KV cache",
            golden!("llamacpp.txt"),
            Reading { engine: LlamaCpp, signals: signals(None, 2, 4, None, None), ..blank() },
        ),
    ] {
        assert_eq!(read(body), Ok(expected), "{name}");
    }
}

/// Case 53: gone under one name, there under the other; the new one wins.
#[test]
fn field_report_53_kv_under_either_name() {
    let kv = |body: &str| signals_of(body).kv_usage;
    assert_eq!(kv("vllm:gpu_cache_usage_perc 0.25\n"), Some(0.25));
    assert_eq!(kv("vllm:kv_cache_usage_perc 0.5\n"), Some(0.5));
    let (new, old) = ("vllm:kv_cache_usage_perc 0.5\n", "vllm:gpu_cache_usage_perc 0.25\n");
    assert_eq!(kv(&format!("{new}{old}")), Some(0.5));
    assert_eq!(kv(&format!("{old}{new}")), Some(0.5));
    assert_eq!(kv(&format!("vllm:kv_cache_usage_perc NaN\n{old}")), Some(0.25));
    assert_eq!(kv("vllm:num_requests_running 1\n"), None);
}

/// Case 54: one series for each engine.
#[test]
fn field_report_54_several_engines() {
    let body = |waiting: &str| {
        format!(
            "vllm:num_requests_waiting{{engine=\"0\"}} 2\n\
             vllm:num_requests_waiting{{engine=\"1\"}} {waiting}\n\
             vllm:kv_cache_usage_perc{{engine=\"0\"}} 0.2\n\
             vllm:kv_cache_usage_perc{{engine=\"1\"}} 0.9\n"
        )
    };
    let found = signals_of(&body("5"));
    assert_eq!((found.waiting, found.kv_usage), (Some(7), Some(0.9)));
    // A sum that lacks an engine would be too small.
    for senseless in ["NaN", "-1", "+Inf"] {
        let found = signals_of(&body(senseless));
        assert_eq!((found.waiting, found.kv_usage), (None, Some(0.9)), "{senseless}");
    }
}

/// Case 55: whatever a gauge says that makes no sense is unknown, for every server.
#[test]
fn field_report_55_senseless_is_unknown() {
    let servers = [
        ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"],
        ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:gpu_cache_usage_perc"],
        ["sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage"],
        [
            "trtllm_num_requests_running",
            "trtllm_num_requests_waiting",
            "trtllm_kv_cache_utilization",
        ],
        [
            "nv_trt_llm_request_metrics{request_type=\"scheduled\"}",
            "nv_trt_llm_request_metrics{request_type=\"waiting\"}",
            "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\"}",
        ],
        [
            "llamacpp:requests_processing",
            "llamacpp:requests_deferred",
            "llamacpp:kv_cache_usage_ratio",
        ],
    ];
    for [running, waiting, kv] in servers {
        let found = |value: &str| {
            signals_of(&format!("{running} {value}\n{waiting} {value}\n{kv} {value}\n"))
        };
        let load = |found: Signals| (found.running, found.waiting, found.kv_usage);
        assert_eq!(load(found("1")), (Some(1), Some(1), Some(1.0)), "{running}");
        assert_eq!(load(found("0.0")), (Some(0), Some(0), Some(0.0)), "{running}");
        for value in ["NaN", "+Inf", "-Inf", "-1", "-0.5", "1e400", "-1e400", "1e10"] {
            assert_eq!(load(found(value)), (None, None, None), "{running} {value}");
        }
    }
}

#[test]
fn kv_usage_above_one() {
    let kv = |value: &str| signals_of(&format!("vllm:kv_cache_usage_perc {value}\n")).kv_usage;
    for (value, expected) in [
        ("1", Some(1.0)),
        ("1.0000001", Some(1.0)),
        ("1.01", Some(1.0)),
        ("1.02", None),
        // Per cent, not a fraction.
        ("81.25", None),
        ("-0.0", Some(0.0)),
        ("1e-300", Some(0.0)),
    ] {
        assert_eq!(kv(value), expected, "{value}");
    }
}

/// Case 55: answers that hold no metrics, and metrics that hold nothing for us.
#[test]
fn field_report_55_no_metrics() {
    for (body, expected) in [
        ("", Shape::Empty),
        ("\n\n", Shape::Empty),
        ("<html><body>502 Bad Gateway</body></html>", Shape::Html),
        ("{\"detail\":\"Not Found\"}", Shape::Json),
        ("{\"error\":{\"message\":\"vllm:num_requests_running 0\"}}", Shape::Json),
        ("[1,2]", Shape::Json),
        ("[{\"id\":\"x\"}]", Shape::Json),
        ("[{\"numActiveRequests\":1}", Shape::Json),
        ("no healthy upstream", Shape::Other),
    ] {
        assert_eq!(read(body.as_bytes()), Err(NotMetrics(expected)), "{body:?}");
    }
    for body in [
        "# EOF\n",
        "up 1\n",
        "python_info{version=\"3.11.7\"} 1.0\n",
        "# TYPE tgi_queue_size gauge\n",
    ] {
        assert_eq!(read(body.as_bytes()), Ok(Reading::default()), "{body:?}");
    }
}

#[test]
fn vllm_adapters() {
    let series = |value: &str, running: &str, waiting: &str| {
        format!(
            "vllm:lora_requests_info{{max_lora=\"4\",running_lora_adapters=\"{running}\",\
             waiting_lora_adapters=\"{waiting}\"}} {value}\n"
        )
    };
    let old = series("1", "old", "");
    for (body, slots, expected) in [
        (format!("{old}{}", series("2", "b,a", "a,c")), Some(4), Some(&["a", "b", "c"][..])),
        (format!("{}{old}", series("2", " b , a ", ",,")), Some(4), Some(&["a", "b"])),
        (format!("{old}{}", series("2", "", "")), Some(4), Some(&[])),
        (format!("{old}{}", series("NaN", "x", "")), Some(4), Some(&["old"])),
        (series("+Inf", "x", ""), None, None),
        ("vllm:num_requests_running 1\n".into(), None, Some(&[])),
        ("vllm:lora_requests_info{max_lora=\"many\"} 1\n".into(), None, Some(&[])),
        (series("3", r#"q\"uote"#, r"back\\slash"), Some(4), Some(&["back\\slash", "q\"uote"])),
    ] {
        let reading = read(body.as_bytes()).unwrap();
        assert_eq!(reading.adapters_active, names(expected.unwrap_or_default()), "{body}");
        let active = expected.map(|names| names.len() as u32);
        assert_eq!(reading.signals.adapters_active, active, "{body}");
        assert_eq!(reading.signals.adapter_slots, slots, "{body}");
    }
}

#[test]
fn vllm_adapters_are_bounded() {
    let many: Vec<String> = (0..100_000).map(|n| format!("a{n}")).collect();
    let body = format!(
        "vllm:lora_requests_info{{running_lora_adapters=\"{}\",waiting_lora_adapters=\"{}\"}} 1\n",
        many.join(","),
        "x".repeat(1 << 20),
    );
    let reading = read(body.as_bytes()).unwrap();
    assert_eq!(reading.adapters_active.len(), MAX_ADAPTERS);
    assert_eq!(reading.signals.adapters_active, Some(MAX_ADAPTERS as u32));
}

#[test]
fn vllm_cache_config() {
    for (labels, block_size, blocks, kv_tokens) in [
        (r#"block_size="16",num_gpu_blocks="10""#, Some(16), Some(10), Some(160)),
        (r#"block_size="16",num_gpu_blocks="None""#, Some(16), None, None),
        (r#"block_size="0",num_gpu_blocks="0""#, None, None, None),
        // A hybrid model: blocks are shared by layers of several kinds.
        (
            r#"block_size="1056",kv_cache_size_tokens="5000",num_gpu_blocks="10""#,
            Some(1056),
            Some(10),
            Some(5000),
        ),
        (
            r#"block_size="16",kv_cache_size_tokens="None",num_gpu_blocks="10""#,
            Some(16),
            Some(10),
            Some(160),
        ),
    ] {
        let body = format!("vllm:cache_config_info{{{labels}}} 1.0\n");
        let reading = read(body.as_bytes()).unwrap();
        assert_eq!(
            (reading.block_size, reading.blocks, reading.kv_tokens),
            (block_size, blocks, kv_tokens),
            "{labels}"
        );
    }
}

#[test]
fn vllm_asleep() {
    let body = |awake: u8| {
        format!(
            "vllm:num_requests_running 0\n\
             vllm:engine_sleep_state{{sleep_state=\"awake\"}} {awake}\n\
             vllm:engine_sleep_state{{sleep_state=\"discard_all\"}} 0\n"
        )
    };
    assert!(read(body(0).as_bytes()).unwrap().asleep);
    assert!(!read(body(1).as_bytes()).unwrap().asleep);
}

/// Ranks that work on the same requests count once; a priority's share is not added to the total.
#[test]
fn sglang_counts_a_request_once() {
    let body = "\
        sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"0\",pp_rank=\"0\",priority=\"\"} 8\n\
        sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"1\",pp_rank=\"0\",priority=\"\"} 8\n\
        sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"0\",pp_rank=\"1\",priority=\"\"} 7\n\
        sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"0\",pp_rank=\"0\",priority=\"5\"} 3\n\
        sglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"2\",pp_rank=\"0\",priority=\"\"} 1\n\
        sglang:num_running_reqs_offline_batch{dp_rank=\"0\"} 50\n\
        sglang:num_queue_reqs{tp_rank=\"0\"} 2\n\
        sglang:num_queue_reqs{tp_rank=\"1\"} 2\n";
    assert_eq!(signals_of(body), signals(None, 2, 9, None, None));
    let is_split = |body: &str| read(body.as_bytes()).unwrap().is_split;
    assert!(is_split(body));
    assert!(!is_split(&body.replace("dp_rank=\"1\"", "dp_rank=\"0\"")));
}

#[test]
fn triton_variants() {
    let requests = |kind: &str, value: u32| {
        format!("nv_trt_llm_request_metrics{{model=\"m\",request_type=\"{kind}\"}} {value}\n")
    };
    let blocks = |kind: &str, value: u32| {
        format!("nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type=\"{kind}\"}} {value}\n")
    };
    let pending = "nv_inference_pending_request_count{model=\"a\"} 2\n\
                   nv_inference_pending_request_count{model=\"b\"} 1\n";
    for (name, body, expected) in [
        (
            "waiting is what is active but not scheduled",
            requests("active", 24) + &requests("scheduled", 21),
            signals(None, 3, 21, None, None),
        ),
        (
            "taken between two updates",
            requests("active", 20) + &requests("scheduled", 21),
            signals(None, 0, 21, None, None),
        ),
        (
            "Triton's own queue says nothing of the back end's",
            requests("scheduled", 21) + pending,
            signals(None, None, 21, None, None),
        ),
        ("another back end", pending.into(), signals(None, 3, None, None, None)),
        (
            "use from block counts",
            blocks("used", 25) + &blocks("max", 100),
            signals(0.25, None, None, None, None),
        ),
        (
            "no blocks yet",
            blocks("used", 0) + &blocks("max", 0),
            signals(None, None, None, None, None),
        ),
        (
            "vLLM as a back end knows more",
            pending.to_owned() + "vllm:num_requests_waiting{model=\"a\"} 9\n",
            signals(None, 9, None, None, 0),
        ),
    ] {
        assert_eq!(signals_of(&body), expected, "{name}");
    }
}

#[test]
fn tgi_estimate() {
    let kv =
        |used: &str, all: &str| signals_of(&format!("tgi_queue_size 0\n{used}\n{all}\n")).kv_usage;
    let used = "tgi_batch_current_max_tokens 50";
    assert_eq!(kv(used, "tgi_batch_total_tokens 100"), Some(0.5));
    assert_eq!(kv(used, "tgi_batch_total_tokens 0"), None);
    assert_eq!(kv(used, "tgi_batch_total_tokens NaN"), None);
    assert_eq!(kv(used, ""), None);
    assert_eq!(kv("", "tgi_batch_total_tokens 100"), None);
}

#[test]
fn trtllm_iterations() {
    for (body, expected) in [
        ("[]", signals(None, None, None, None, None)),
        (" [ ] ", signals(None, None, None, None, None)),
        ("[{\"numActiveRequests\":7}]", signals(None, None, 7, None, None)),
        (
            "[{\"numActiveRequests\":-1,\"numQueuedRequests\":\"3\",\
             \"kvCacheStats\":{\"maxNumBlocks\":0,\"usedNumBlocks\":0}}]",
            signals(None, None, None, None, None),
        ),
    ] {
        let reading = read(body.as_bytes()).unwrap();
        assert_eq!(
            (reading.engine, reading.signals),
            (EngineKind::TrtllmServe, expected),
            "{body}"
        );
    }
}

#[test]
fn unreadable_lines_are_counted() {
    let body = "vllm:num_requests_running{engine=\"0\" 1\nvllm:num_requests_waiting 2\n\
                vllm:kv_cache_usage_perc 0.\nvllm:kv_cache_usage_perc";
    let reading = read(body.as_bytes()).unwrap();
    assert_eq!(reading.signals, signals(0.0, 2, None, None, 0));
    assert_eq!(reading.unreadable, 2);
}

fn check(body: &[u8]) -> Result<(), TestCaseError> {
    let Ok(reading) = read(body) else { return Ok(()) };
    if let Some(kv) = reading.signals.kv_usage {
        prop_assert!((0.0..=1.0).contains(&kv) && !kv.is_sign_negative());
    }
    prop_assert!(reading.block_size != Some(0));
    prop_assert!(reading.blocks != Some(0));
    prop_assert!(reading.kv_tokens != Some(0));
    prop_assert!(reading.max_num_seqs != Some(0));
    prop_assert!(reading.adapters_active.len() <= MAX_ADAPTERS);
    prop_assert!(reading.models.len() <= MAX_MODELS);
    prop_assert!(reading.engine != EngineKind::Unknown || reading.signals == Signals::default());
    Ok(())
}

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "vllm:lora_requests_info",
        "vllm:cache_config_info",
        "sglang:num_running_reqs",
        "sglang:token_usage",
        "sglang:page_size",
        "tgi_batch_current_max_tokens",
        "tgi_batch_total_tokens",
        "nv_trt_llm_request_metrics",
        "nv_trt_llm_kv_cache_block_metrics",
        "trtllm_kv_cache_utilization",
        "trtllm_num_requests_running",
        "llamacpp:requests_processing",
    ])
}

fn label() -> impl Strategy<Value = String> {
    (
        prop::sample::select(vec![
            "engine",
            "dp_rank",
            "request_type",
            "kv_cache_block_type",
            "block_size",
            "num_gpu_blocks",
            "max_lora",
            "running_lora_adapters",
            "model_name",
        ]),
        "[0-9]{1,3}|active|scheduled|fraction|max|used|a,b|\\PC{0,4}",
    )
        .prop_map(|(name, value)| format!("{name}=\"{value}\""))
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<f64>().prop_map(|value| value.to_string()),
        (0u32..9).prop_map(|value| value.to_string()),
        (0.0..1.2f64).prop_map(|value| value.to_string()),
        Just("NaN".to_owned()),
        Just("1e400".to_owned()),
        "\\PC{0,4}",
    ]
}

proptest! {
    #[test]
    fn any_bytes(body in prop::collection::vec(any::<u8>(), 0..300)) {
        check(&body)?;
    }

    /// Lines of the right kind with any values: nothing out of range comes out.
    #[test]
    fn any_values(
        lines in prop::collection::vec(
            (name(), prop::collection::vec(label(), 0..4), value()),
            0..12,
        ),
    ) {
        let body: String = lines
            .iter()
            .map(|(name, labels, value)| format!("{name}{{{}}} {value}\n", labels.join(",")))
            .collect();
        check(body.as_bytes())?;
    }

    /// A real answer with some bytes changed.
    #[test]
    fn changed_bytes(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut body = golden!("vllm-0.33-load.txt").to_vec();
        for (at, byte) in changes {
            let at = at.index(body.len());
            body[at] = byte;
        }
        check(&body)?;
    }

    /// The sum over engines is the sum, whatever their order.
    #[test]
    fn engines_add_up(loads in prop::collection::vec((0u32..1000, 0.0..=1.0f32), 1..20)) {
        let body: String = loads
            .iter()
            .enumerate()
            .map(|(engine, (waiting, kv))| format!(
                "vllm:num_requests_waiting{{engine=\"{engine}\"}} {waiting}\n\
                 vllm:kv_cache_usage_perc{{engine=\"{engine}\"}} {kv}\n"
            ))
            .collect();
        let found = signals_of(&body);
        prop_assert_eq!(found.waiting, Some(loads.iter().map(|(waiting, _)| waiting).sum()));
        prop_assert_eq!(found.kv_usage, loads.iter().map(|(_, kv)| *kv).reduce(f32::max));
    }
}
