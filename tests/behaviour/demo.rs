//! `cargo xtask demo`, as a newcomer runs it, with the programs that the tests were built with.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_tests::gateway::{PATIENCE, binary, free_port};

#[test]
fn every_request_is_answered_and_the_summary_is_one_object() {
    let (port, admin) = (free_port(), free_port());
    let output = demo(port, admin, &["--requests", "40", "--json"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();

    let keys: Vec<_> = summary.as_object().unwrap().keys().map(String::as_str).collect();
    let wanted = ["requests", "ok", "errors", "tokens", "ttft_ms", "pods", "paths", "steering"];
    assert_eq!(keys.len(), wanted.len(), "{keys:?}");
    assert!(wanted.iter().all(|key| keys.contains(key)), "{keys:?}");
    assert_eq!(
        (&summary["requests"], &summary["ok"], &summary["errors"]),
        (&json!(40), &json!(40), &json!(0))
    );
    let pods = summary["pods"].as_array().unwrap();
    let sum = |field| pods.iter().filter_map(|pod| pod[field].as_u64()).sum::<u64>();
    assert_eq!((pods.len(), sum("requests")), (4, 40));
    assert_eq!(summary["tokens"], sum("tokens"));
    let (p50, p99) = (&summary["ttft_ms"]["p50"], &summary["ttft_ms"]["p99"]);
    assert!(p50.as_f64().unwrap() <= p99.as_f64().unwrap(), "{p50} {p99}");
    // What the gateway counted by itself.
    let paths = ["relay", "splice", "local"].map(|path| summary["paths"][path].as_u64().unwrap());
    assert_eq!(paths.iter().sum::<u64>(), 40);
    let steering = summary["steering"].as_str().unwrap();
    assert!(steering == "sk_lookup" || steering.starts_with("userspace: "), "{steering}");
    for port in [port, admin] {
        assert!(TcpStream::connect(local(port)).is_err(), "{port} is still served");
    }
}

#[test]
fn a_taken_port_is_named_with_the_option_that_chooses_another() {
    let taken = TcpListener::bind(local(0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    for (port, admin, option) in [(port, 0, "--port"), (0, port, "--admin-port")] {
        let output = demo(port, admin, &["--requests", "1", "--json"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(output.stdout.is_empty());
        assert!(said.contains("is taken") && said.contains(&format!("with {option} ")), "{said}");
    }
}

#[test]
fn nothing_is_left_behind_however_it_ends() {
    for (signal, code) in [("INT", Some(0)), ("TERM", Some(0)), ("KILL", None)] {
        let port = free_port();
        let mut child = demo(port, 0, &[]).stdout(Stdio::piped()).spawn().unwrap();
        // The introduction names the pods' processes; behind it comes the table, with the load under way.
        let mut pods = Vec::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        for line in lines.by_ref().take_while(|line| !line.starts_with("gateway  ")) {
            pods.extend(line.split_once(" process ").map(|(_, pid)| pid.trim().to_owned()));
        }
        assert_eq!(pods.len(), 4);
        assert!(pods.iter().all(|pid| runs(pid)));
        TcpStream::connect(local(port)).unwrap();

        let id = child.id().to_string();
        assert!(
            Command::new("kill").args([&format!("-{signal}"), &id]).status().unwrap().success()
        );
        // To the end of stdout, which whoever is left would hold open.
        lines.for_each(drop);
        assert_eq!(child.wait().unwrap().code(), code, "{signal}");
        let deadline = Instant::now() + PATIENCE;
        while pods.iter().any(|pid| runs(pid)) || TcpStream::connect(local(port)).is_ok() {
            assert!(Instant::now() < deadline, "SIG{signal} left something behind");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn demo(port: u16, admin: u16, args: &[&str]) -> Command {
    let xtask = binary("xtask");
    let profile = xtask.parent().unwrap();
    let mut command = Command::new(&xtask);
    command.args(["demo", "--no-build", "--port", &port.to_string()]);
    command.args(["--admin-port", &admin.to_string()]).args(args);
    if profile.ends_with("release") {
        command.arg("--release");
    }
    command.env("CARGO_TARGET_DIR", profile.parent().unwrap()).stdin(Stdio::null());
    command
}

fn local(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// Whether a process runs; one that has ended and is not waited for has no command line.
fn runs(pid: &str) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}
