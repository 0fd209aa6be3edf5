//! The clients that people use: the official OpenAI SDK for Python, and curl.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use sluice_tests::client::{Client, chat};
use sluice_tests::engine::{Faults, Options, Server};
use sluice_tests::gateway::{Gateway, Plan, binary};

use crate::recorder::Recorder;

#[test]
fn the_openai_sdk_gets_its_answers() {
    let pods = Server::start_all(vec![fast(), fast()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods).scheduler("    aliases: [org/alias]"));
    let mut sdk = Sdk::start(&gateway);
    sdk.run("answers");
    sdk.run("at_once");
    let status = gateway.wait_idle();
    assert!(status["pools"][0]["pods"].as_array().unwrap().iter().all(|pod| pod["requests"] != 0));
    assert!(pods.iter().all(|pod| pod.stats().aborted == 0));
}

#[test]
fn the_openai_sdk_raises_its_own_errors() {
    let pods = Server::start_all(vec![fast()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    Sdk::start(&gateway).run("errors");
}

// The SDK's own retries, by the header that it sends with them: told when, it comes back and is
// served.
#[test]
fn the_openai_sdk_comes_back_when_it_is_told() {
    let pods = Server::start_all(vec![fast()]).unwrap();
    let plan =
        Plan::pool("base", &pods).scheduler("    saturation: {inFlight: 1}").spec("  workers: 1");
    let gateway = Gateway::start(&plan);
    let mut sdk = Sdk::start(&gateway);
    let retry = |pods: &[Server]| {
        let last = pods[0].stats().last.pop_back().unwrap();
        let head = String::from_utf8_lossy(&last.head).to_lowercase();
        head.lines()
            .find_map(|line| line.strip_prefix("x-stainless-retry-count: ")?.parse::<u32>().ok())
    };
    // The pod's own refusal.
    for status in [429, 503] {
        pods[0].fault(Faults {
            status: Some(status),
            times: Some(1),
            retry_after: Some(1),
            ..Faults::default()
        });
        sdk.run("retried");
        assert_eq!(retry(&pods), Some(1), "after {status}");
    }
    // The gateway's, as the pod is full for a moment, and as it is away for a moment.
    pods[0].fault(Faults { stall_after: Some(1), times: Some(1), ..Faults::default() });
    let mut other = Client::connect(gateway.address);
    other.post("/v1/chat/completions", &chat("base", 5, true));
    assert_eq!(other.head().status, 200);
    sdk.run("saturated");
    thread::scope(|scope| {
        scope.spawn(|| sdk.run("retried"));
        while gateway.metric(r#"sluice_pool_rejected_total{pool="pool-0",reason="saturated"}"#)
            != Some(2.0)
        {
            thread::sleep(Duration::from_millis(10));
        }
        drop(other);
    });
    assert_eq!(retry(&pods), Some(1));
    pods[0].die(None);
    gateway.wait("no pod to be ready", |status| status["ready"] == false);
    thread::scope(|scope| {
        scope.spawn(|| sdk.run("retried"));
        while gateway.metric(r#"sluice_pool_rejected_total{pool="pool-0",reason="no_pod"}"#)
            != Some(1.0)
        {
            thread::sleep(Duration::from_millis(10));
        }
        pods[0].revive();
    });
    // The gateway asks absent pods once a second: the first time may be too soon.
    assert!(matches!(retry(&pods), Some(1 | 2)));
}

#[test]
fn curl_gets_answers_streamed_and_whole() {
    let pods = Server::start_all(vec![fast()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let url = format!("http://{}", gateway.address);
    let completions = format!("{url}/v1/chat/completions");
    let json_type = ["-H", "content-type: application/json"];
    for version in ["--http1.1", "--http1.0", "--http2"] {
        let body = chat("base", 3, true).to_string();
        let stream =
            curl(&[&[version, "-N", "-d", &body, &*completions][..], &json_type].concat(), b"");
        assert!(
            stream.contains("w0003") && stream.ends_with("data: [DONE]\n\n"),
            "{version}: {stream}"
        );
        let body = chat("base", 3, false).to_string();
        let whole = curl(&[&[version, "-d", &body, &*completions][..], &json_type].concat(), b"");
        let whole: Value = serde_json::from_str(&whole).unwrap();
        assert_eq!(whole["usage"]["completion_tokens"], 3, "{version}");
    }
    // Two at one address: the connection is kept.
    let models = format!("{url}/v1/models");
    let twice = curl(
        &[
            "-w",
            "%{num_connects} %{http_code}\n",
            "-o",
            "/dev/null",
            &models,
            "-o",
            "/dev/null",
            &models,
        ],
        b"",
    );
    assert_eq!(twice, "1 200\n0 200\n");
    let head = curl(&["-I", &models], b"");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let error =
        curl(&[&["-d", r#"{"model":"nope"}"#, &*completions][..], &json_type].concat(), b"");
    let error: Value = serde_json::from_str(&error).unwrap();
    assert_eq!(error["error"]["code"], "model_not_found");
}

#[test]
fn curl_sends_bodies_of_every_kind() {
    let pod = Recorder::start();
    let gateway = Gateway::start(&pod.plan());
    let url = format!("http://{}/v1/x", gateway.address);
    let body = json!({"x": "y".repeat(3_000_000), "model": "base"}).to_string();
    // Above a megabyte curl asks first, and waits a second for the answer.
    for framing in ["expect: 100-continue", "transfer-encoding: chunked", "expect:"] {
        let args =
            ["-H", framing, "-H", "content-type: application/json", "--data-binary", "@-", &url];
        assert_eq!(curl(&args, body.as_bytes()), "{}", "{framing}");
        assert!(pod.last().body == body.as_bytes(), "{framing}");
    }
    let timed =
        ["-H", "expect: 100-continue", "--expect100-timeout", "60", "--data-binary", "@-", &url];
    assert_eq!(curl(&timed, body.as_bytes()), "{}");
    let form = [
        "-F",
        "file=@-;filename=a.wav;type=audio/wav",
        "-F",
        "model=base",
        "-F",
        "language=en",
        &url,
    ];
    assert_eq!(curl(&form, &vec![0; 2_000_000]), "{}");
    let seen = pod.last();
    assert!(seen.header("content-type").concat().starts_with("multipart/form-data; boundary="));
    assert!(seen.body.len() > 2_000_000);
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let refused = curl(
            &[version, "--data-binary", "@-", "-w", "%{http_code}", &url],
            &vec![b' '; 80_000_000],
        );
        assert!(refused.contains("maxRequestBodyBytes"), "{version}: {refused}");
        assert!(refused.ends_with("413"), "{version}: {refused}");
    }
    assert_eq!(pod.recorded().len(), 5);
}

fn fast() -> Options {
    Options { speed: 20.0, ..Options::default() }
}

/// A Python that runs `sdk.py`; starting one takes seconds.
struct Sdk {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Sdk {
    fn start(gateway: &Gateway) -> Self {
        let python = std::env::var_os("SLUICE_TEST_PYTHON").map_or_else(
            || binary("sluice").parent().unwrap().with_file_name("test-python").join("bin/python"),
            PathBuf::from,
        );
        assert!(
            python.exists(),
            "there is no Python with the OpenAI SDK at {}: `cargo xtask test` makes it and \
             runs the tests; `cargo xtask test -- -p sluice-tests clients` runs these alone",
            python.display()
        );
        let mut child = Command::new(python)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/behaviour/sdk.py"))
            .arg(format!("http://{}", gateway.address))
            .env("NO_PROXY", "*")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    /// Runs a scenario.
    fn run(&mut self, scenario: &str) {
        let _ = writeln!(self.input, "{scenario}");
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        if line != "ok\n" {
            let mut said = String::new();
            let _ = self.child.stderr.take().unwrap().read_to_string(&mut said);
            panic!("{scenario}: {line}{said}");
        }
    }
}

impl Drop for Sdk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs curl with this on its input; returns its output.
fn curl(args: &[&str], input: &[u8]) -> String {
    let mut child = Command::new("curl")
        .args(["-sS", "--max-time", "20", "--noproxy", "*"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("curl does not start: {error}"));
    // It may have had enough before the end.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
