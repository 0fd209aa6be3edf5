//! The clients that people use, and what an operator reads.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::rig::Rig;
use crate::wire;

pub(super) fn curl(rig: &mut Rig) -> String {
    rig.revive();
    let url = format!("http://{}/v1/chat/completions", rig.gateway.address);
    let mut seen = Vec::new();
    for (flags, stream) in
        [(&["-N"][..], true), (&[], false), (&["-N", "--http1.0"], true), (&["--http1.0"], false)]
    {
        let body = wire::chat("tiny-llama", "Say something.", 20, stream).to_string();
        let out = Command::new("curl")
            .args(["-sS", "--max-time", "60", "-H", "content-type: application/json", "-d", &body])
            .args(flags)
            .arg(&url)
            .output()
            .expect("curl runs");
        let text = String::from_utf8_lossy(&out.stdout);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "curl {flags:?}: {} {said}", out.status);
        assert!(text.contains("\"completion_tokens\":20"), "curl {flags:?}: {text}");
        assert_eq!(text.ends_with("data: [DONE]\n\n"), stream, "curl {flags:?}: {text}");
        let kind = if stream { "streamed" } else { "whole" };
        seen.push(format!("{} {kind}: {} B", flags.join(" "), text.len()));
    }
    // More than a kilobyte: curl asks first whether it may send it.
    let long = wire::chat("tiny-llama", &"lo ".repeat(500), 4, false).to_string();
    let out = Command::new("curl")
        .args([
            "-sS",
            "--max-time",
            "60",
            "-H",
            "content-type: application/json",
            "-w",
            "%{http_code}",
        ])
        .args(["-H", "expect: 100-continue", "-d", &long, &url])
        .output()
        .expect("curl runs");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.ends_with("200"), "with expect: {text}");
    seen.push("expect: 100-continue: 200".into());
    seen.join("; ")
}

pub(super) fn sdk(rig: &mut Rig) -> String {
    rig.revive();
    let out = Command::new(&rig.python)
        .arg(rig.scripts.join("sdk.py"))
        .arg(format!("http://{}/v1", rig.gateway.address))
        .output()
        .expect("python runs");
    let said = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    assert!(out.status.success(), "{said}\n{}", String::from_utf8_lossy(&out.stderr));
    rig.settle();
    said
}

pub(super) fn idle(rig: &mut Rig) -> String {
    rig.revive();
    // uvicorn ends a connection that was idle for 5 s. Clients that come back just then, at many
    // moments around it, each over a connection that the gateway may have kept.
    let pauses: Vec<u64> = (0..24).map(|n| 3600 + 75 * n).collect();
    let gateway = rig.gateway.address;
    let failures = |rig: &Rig| rig.gateway.metric("sluice_pool_retries_total", &[]);
    let before = failures(rig);
    thread::scope(|scope| {
        for pause in &pauses {
            scope.spawn(move || {
                let mut client = wire::dial(gateway);
                for _ in 0..3 {
                    client.post("/v1/chat/completions", &wire::chat("tiny-llama", "Hi.", 3, true));
                    let answer = client.response();
                    assert!(wire::is_whole_stream(&answer), "after {pause} ms: {}", answer.text());
                    thread::sleep(Duration::from_millis(*pause));
                }
            });
        }
    });
    let retried = failures(rig) - before;
    assert_eq!(retried, 0.0, "no request had to go to another pod");
    format!(
        "24 clients, 3 requests each, {} to {} ms apart: 72 whole streams, none retried",
        pauses[0],
        pauses[pauses.len() - 1]
    )
}

pub(super) fn metrics(rig: &mut Rig) -> String {
    rig.revive();
    let gateway = &rig.gateway;
    let models = || gateway.metric("sluice_pool_model_requests_total", &[]);
    let before = models();
    for n in 0..4 {
        let body = wire::chat("tiny-llama", &format!("Item {n}."), 4, n % 2 == 0);
        assert_eq!(wire::post(gateway.address, "/v1/chat/completions", &body).status, 200);
    }
    rig.settle();
    let text = page(gateway.admin, "text/plain");
    let said = promtool(&text);
    let open = page(gateway.admin, "application/openmetrics-text");
    assert!(open.trim_end().ends_with("# EOF"), "OpenMetrics ends with its mark");
    let sum = |name: &str| wire::samples(&text, name, &[]).unwrap_or_else(|| panic!("no {name}"));
    let finished = sum("sluice_pool_requests_total");
    let ok =
        wire::samples(&text, "sluice_pool_requests_total", &["outcome=\"ok\""]).unwrap_or_default();
    assert_eq!(models() - before, 4.0, "each request named one model");
    assert_eq!(
        sum("sluice_pool_request_duration_seconds_count"),
        ok,
        "durations of what ended well"
    );
    assert_eq!(sum("sluice_pod_requests_in_flight"), 0.0);
    assert_eq!(sum("sluice_pod_ready"), 2.0);
    assert!(sum("sluice_pod_signal_age_seconds") < 6.0);
    let bad: Vec<_> =
        text.lines().filter(|line| line.contains("NaN") || line.ends_with(" -1")).collect();
    assert!(bad.is_empty(), "{bad:?}");
    let (added, count) = mean(&text, "sluice_gateway_overhead_seconds");
    let (ttft, _) = mean(&text, "sluice_pool_time_to_first_token_seconds");
    let (tpot, _) = mean(&text, "sluice_pool_time_per_output_token_seconds");
    format!(
        "{} lines, promtool says: {said}; {finished} requests, {ok} of them ok; {} scrapes failed; \
         on average: overhead {:.0} us ({count} answers), TTFT {:.0} ms, TPOT {:.1} ms",
        text.lines().count(),
        wire::samples(&text, "sluice_pool_scrape_failures_total", &[]).unwrap_or_default(),
        added * 1e6,
        ttft * 1e3,
        tpot * 1e3
    )
}

fn page(admin: SocketAddr, accept: &str) -> String {
    let mut client = wire::dial(admin);
    client.send(format!("GET /metrics HTTP/1.1\r\nhost: admin\r\naccept: {accept}\r\n\r\n"));
    let page = client.response();
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").is_some_and(|kind| kind.starts_with(accept)), "{accept}");
    page.text()
}

/// Prometheus' own opinion.
fn promtool(page: &str) -> String {
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool runs");
    let mut stdin = child.stdin.take().expect("stdin is piped");
    stdin.write_all(page.as_bytes()).expect("promtool reads");
    drop(stdin);
    let out = child.wait_with_output().expect("promtool ends");
    let said = [out.stdout, out.stderr].concat();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    assert!(out.status.success(), "promtool: {said}");
    if said.is_empty() { "nothing to complain of".into() } else { said }
}

/// A histogram's mean and count.
fn mean(page: &str, name: &str) -> (f64, f64) {
    let of =
        |suffix: &str| wire::samples(page, &format!("{name}_{suffix}"), &[]).unwrap_or(f64::NAN);
    (of("sum") / of("count"), of("count"))
}
