//! Who may send requests, and what pods see of how that was found out.

mod names;
mod tokens;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gateway_user::auth::keys::hex;
use serde_json::json;
use sluice_tests::client::{Client, chat, get_with, post_with};
use sluice_tests::engine::{Options, Server};
use sluice_tests::gateway::{Gateway, PATIENCE, Plan, binary};
use sluice_tests::http2::{Connection, run};
use sluice_tests::pod::{RawPod, answer, plan};

#[test]
fn who_has_a_key_is_let_in_and_nobody_else() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let folder = Folder::new();
    let keys = folder.keys(&[("alice", "sk-a", ""), ("bob", "sk-b", "")]);
    let gateway = Gateway::start(&Plan::pool("base", &pods).spec(&keys));
    for (lines, name) in [
        ("authorization: Bearer sk-a\r\n", Some("alice")),
        ("Authorization: bearer sk-b\r\n", Some("bob")),
        ("x-api-key: sk-a\r\n", Some("alice")),
        ("api-key: sk-b\r\n", Some("bob")),
        ("authorization: Bearer none\r\nx-api-key: sk-a\r\n", Some("alice")),
        ("", None),
        ("authorization: Bearer\r\n", None),
        ("authorization: Bearer sk-\r\n", None),
        ("authorization: Bearer SK-A\r\n", None),
        ("authorization: Basic sk-a\r\n", None),
        ("authorization: sk-a\r\n", None),
        ("cookie: sk-a\r\n", None),
        ("x-api-key: a.b.c\r\n", None),
        (&format!("authorization: Bearer {}\r\n", hex("sk-a")), None),
    ] {
        let body = chat("base", 1, false);
        let answer = post_with(gateway.address, "/v1/chat/completions", lines, &body);
        match name {
            Some(_) => assert_eq!(answer.status, 200, "{lines}"),
            None => {
                answer.assert_error(401, "invalid_api_key", None);
                let challenge = answer.header("www-authenticate").unwrap();
                assert!(challenge.starts_with("Bearer"), "{challenge}");
            }
        }
    }
    let ok = |key| format!("sluice_key_requests_total{{key=\"{key}\",outcome=\"ok\"}}");
    gateway.wait_metric(&ok("alice"), 3.0);
    gateway.wait_metric(&ok("bob"), 2.0);
    let refused = "sluice_gateway_refused_total{reason=\"unauthorized\"}";
    gateway.wait_metric(refused, 9.0);
    let status = gateway.wait_idle();
    assert_eq!(status["pools"][0]["pods"][0]["requests"], 5, "what is refused reaches no pod");
    // Twice the same header, of which a pod might take the other one.
    let twice = "x-api-key: sk-a\r\nx-api-key: other\r\n";
    let answer = get_with(gateway.address, "/v1/models", twice);
    answer.assert_error(400, "malformed_request", None);
}

#[test]
fn every_path_but_health_asks_for_a_key() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let folder = Folder::new();
    let keys = folder.keys(&[("alice", "sk-a", "")]);
    let gateway = Gateway::start(&Plan::pool("base", &pods).spec(&keys));
    for path in ["/health", "/ping", "/health/"] {
        assert_eq!(get_with(gateway.address, path, "").status, 200, "{path}");
    }
    for path in ["/v1/models", "/v1/models/base", "/metrics", "/", "/health/x", "//health"] {
        let answer = get_with(gateway.address, path, "");
        answer.assert_error(401, "invalid_api_key", None);
    }
    for path in ["/health", "/ping", "/v1/load_lora_adapter", "/v1/embeddings", "/anything"] {
        let answer = post_with(gateway.address, path, "", &chat("base", 1, false));
        answer.assert_error(401, "invalid_api_key", None);
    }
    let mut client = Client::connect(gateway.address);
    client.send("DELETE /v1/files/x HTTP/1.1\r\nhost: g\r\n\r\n");
    client.response().assert_error(401, "invalid_api_key", None);
    // Without a body the connection goes on, and the next request may do better.
    client.send("GET /v1/models HTTP/1.1\r\nhost: g\r\napi-key: sk-a\r\n\r\n");
    assert_eq!(client.response().status, 200);
    // The body of one that is refused is not asked for.
    let mut client = Client::connect(gateway.address);
    client.send(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nexpect: 100-continue\r\n\
         content-length: 1000000\r\n\r\n",
    );
    client.response().assert_error(401, "invalid_api_key", None);
    assert!(client.is_closed());
}

// Field reports 42: neither the gateway's own credential nor another's leaks to a pod, and where the pods have a key of
// their own they get that.
#[test]
fn field_report_42_what_lets_in_never_reaches_a_pod() {
    let folder = Folder::new();
    let keys = folder.keys(&[("alice", "sk-a", "")]);
    let own = folder.write("pods.key", "sk-pods\n");
    let own = format!("    apiKeyFile: {}", own.display());
    let off = "  auth: {mode: \"off\"}";
    for (spec, scheduler, authorization, others) in [
        (keys.as_str(), "", None, None),
        (&keys, own.as_str(), Some("Bearer sk-pods"), None),
        (off, &own, Some("Bearer sk-pods"), None),
        // What clients bring along is theirs and the pods' where the gateway has no part in it.
        (off, "", Some("Bearer sk-a"), Some("sk-a")),
        ("", "", Some("Bearer sk-a"), Some("sk-a")),
    ] {
        let pods = [RawPod::start()];
        let gateway = Gateway::start(&plan(&pods).spec(spec).scheduler(scheduler));
        let mut client = Client::connect(gateway.address);
        client.post_with(
            "/v1/chat/completions",
            "AUTHORIZATION: Bearer sk-a\r\nX-Api-Key: sk-a\r\nApi-Key: sk-a\r\n\
             connection: keep-alive, x-api-key\r\nx-kept: 1\r\n",
            &chat("base", 1, false),
        );
        let mut taken = pods[0].take();
        let case = format!("{spec} {scheduler}: {}", taken.head);
        assert_eq!(taken.header("authorization"), authorization, "{case}");
        assert_eq!(taken.header("api-key"), others, "{case}");
        assert_eq!(taken.header("x-api-key"), others, "{case}");
        assert_eq!(taken.header("x-kept"), Some("1"), "{case}");
        let count = taken.head.to_ascii_lowercase().matches("authorization:").count();
        assert_eq!(count, usize::from(authorization.is_some()), "{case}");
        taken.send(answer(200, "", "{}"));
        assert_eq!(client.response().status, 200);
    }
}

// Field reports 43: pods with `--api-key` answer 401 to whoever asks for metrics or models without it.
#[test]
fn field_report_43_pods_with_a_key_get_it_with_every_question() {
    let folder = Folder::new();
    let file = folder.write("pods.key", "sk-pods");
    let pods = [RawPod::start()];
    pods[0].want_key("sk-pods");
    let without = Gateway::launch(&plan(&pods));
    without.wait("the pod to refuse", |status| {
        let pod = &status["pools"][0]["pods"][0];
        pod["trouble"].as_str().is_some_and(|trouble| trouble.contains("401"))
    });
    drop(without);
    let line = format!("    apiKeyFile: {}", file.display());
    let gateway = Gateway::start(&plan(&pods).scheduler(&line));
    let is_well = |status: &serde_json::Value| {
        let pod = &status["pools"][0]["pods"][0];
        pod["trouble"].is_null() && pod["signals_age_ms"].as_u64().is_some_and(|age| age < 3000)
    };
    gateway.wait("the pod to be asked with the key", is_well);
    // A new key, as Secrets are changed.
    folder.write("pods.key", "sk-new");
    pods[0].want_key("sk-new");
    gateway.wait_metric("sluice_auth_reloads_total{source=\"pod_key\",result=\"done\"}", 1.0);
    gateway.wait("the pod to be asked with the new key", is_well);
    let mut client = Client::connect(gateway.address);
    client.post("/v1/chat/completions", &chat("base", 1, false));
    let mut taken = pods[0].take();
    assert_eq!(taken.header("authorization"), Some("Bearer sk-new"));
    taken.send(answer(200, "", "{}"));
    assert_eq!(client.response().status, 200);
    // What is no key leaves the old one in force.
    folder.write("pods.key", "two words");
    gateway.wait_metric("sluice_auth_reloads_total{source=\"pod_key\",result=\"failed\"}", 1.0);
    gateway.wait("the pod to be asked with the old key", is_well);
    assert!(!gateway.log().contains("two words") && !gateway.log().contains("sk-"));
}

#[test]
fn each_request_of_an_http2_connection_shows_a_key_of_its_own() {
    let pods = [RawPod::start()];
    let folder = Folder::new();
    let limits = ", limits: {concurrentRequests: 1}";
    let keys = folder.keys(&[("alice", "sk-a", limits), ("bob", "sk-b", "")]);
    let gateway = Gateway::start(&plan(&pods).spec(&keys));
    let chat = chat("base", 1, false);
    let path = "/v1/chat/completions";
    run(async {
        let connection = Connection::plain(gateway.address).await;
        let by = |key: &'static str| {
            let (connection, chat) = (&connection, &chat);
            async move { connection.post_with(path, &[("authorization", key)], chat).await }
        };
        let first = by("Bearer sk-a").await;
        let taken = pods[0].take();
        assert_eq!(taken.header("authorization"), None, "{}", taken.head);
        // Who is refused does not end the connection for the others.
        let nobody = connection.post(path, &chat).await.response().await.unwrap();
        nobody.assert_error(401, "invalid_api_key", None);
        let one_more = by("Bearer sk-a").await.response().await.unwrap();
        one_more.assert_error(429, "rate_limit_exceeded", None);
        let other = by("Bearer sk-b").await;
        let mut others = pods[0].take();
        others.send(answer(200, "", "{}"));
        assert_eq!(other.response().await.unwrap().status, 200);
        // One that is given up leaves its place.
        first.cancel();
        taken.wait_closed();
        gateway.wait_metric("sluice_key_requests_in_flight{key=\"alice\"}", 0.0);
        others.keep();
        let again = by("Bearer sk-a").await;
        pods[0].take().send(answer(200, "", "{}"));
        assert_eq!(again.response().await.unwrap().status, 200);
        assert!(!connection.is_over());
    });
}

#[test]
fn keys_change_under_load() {
    let pods = Server::start_all(vec![Options { speed: 50.0, ..Options::default() }]).unwrap();
    // As a Secret in a volume: a link to a folder that is swapped as a whole.
    let folder = Folder::new();
    let version = |number: u32, text: &str| {
        let own = folder.0.join(format!("..{number}"));
        fs::create_dir(&own).unwrap();
        fs::write(own.join("keys.yaml"), text).unwrap();
        let link = folder.0.join("..next");
        symlink(&own, &link).unwrap();
        fs::rename(link, folder.0.join("..data")).unwrap();
    };
    let (a, b) = (entry("alice", "sk-a", ""), entry("bob", "sk-b", ""));
    version(1, &a);
    symlink("..data/keys.yaml", folder.0.join("keys.yaml")).unwrap();
    let spec = format!("  auth: {{apiKeys: {{file: {}}}}}", folder.0.display());
    let gateway = Gateway::start(&Plan::pool("base", &pods).spec(&spec));
    let ask = |key: &str| {
        let lines = format!("authorization: Bearer {key}\r\n");
        post_with(gateway.address, "/v1/chat/completions", &lines, &chat("base", 1, false)).status
    };
    assert_eq!((ask("sk-a"), ask("sk-b")), (200, 401));
    let done = "sluice_auth_reloads_total{source=\"keys\",result=\"done\"}";
    let failed = "sluice_auth_reloads_total{source=\"keys\",result=\"failed\"}";
    let until = |sample: &str, value: f64, key: &str| {
        let deadline = Instant::now() + PATIENCE;
        while gateway.metric(sample) != Some(value) {
            assert_eq!(ask(key), 200, "a key that stays is let in all the time");
            assert!(Instant::now() < deadline, "{sample} is not {value}");
        }
        assert_eq!(ask(key), 200);
    };
    version(2, &format!("{a}{b}"));
    until(done, 1.0, "sk-a");
    assert_eq!(ask("sk-b"), 200);
    // What cannot be read changes nothing.
    version(3, "- {name: alice, sha256: sk-secret}");
    until(failed, 1.0, "sk-b");
    assert_eq!(ask("sk-a"), 200);
    fs::remove_file(folder.0.join("..data")).unwrap();
    until(failed, 2.0, "sk-a");
    version(4, &b);
    until(done, 2.0, "sk-b");
    assert_eq!(ask("sk-a"), 401);
    assert_eq!(gateway.metric("sluice_auth_keys{source=\"keys\"}"), Some(1.0));
    let page = gateway.get("/metrics").unwrap();
    assert!(!page.contains("key=\"alice\""), "a key that is gone takes its series with it");
    version(5, "[]");
    gateway.wait_metric(done, 3.0);
    assert_eq!((ask("sk-a"), ask("sk-b")), (401, 401));
    let log = gateway.log();
    assert!(log.contains("key 1: its sha256 is not 64 hexadecimal digits"), "{log}");
    assert!(!log.contains("sk-"), "{log}");
}

#[test]
fn a_key_is_for_its_models() {
    let options = || Options { adapters: vec!["sql".into()], ..Options::default() };
    let one = Server::start_all(vec![options()]).unwrap();
    let two =
        Server::start_all(vec![Options { models: vec!["other".into()], ..Options::default() }])
            .unwrap();
    let folder = Folder::new();
    let keys = folder.keys(&[
        ("all", "sk-all", ""),
        ("base", "sk-base", ", models: [base]"),
        ("sql", "sk-sql", ", models: [sql]"),
        ("none", "sk-none", ", models: []"),
    ]);
    let mut plan = Plan::pool("base", &one).spec(&keys);
    plan.pools.push(("other".into(), two.iter().map(|server| server.addr).collect()));
    let gateway = Gateway::start(&plan);
    gateway.wait("the adapter to be known", |status| {
        status["pools"][0]["names"] == json!(["base", "sql"])
    });
    for (key, models) in [
        ("sk-all", &["base", "other", "sql"][..]),
        ("sk-base", &["base"]),
        ("sk-sql", &["sql"]),
        ("sk-none", &[]),
    ] {
        let lines = format!("x-api-key: {key}\r\n");
        let list = get_with(gateway.address, "/v1/models", &lines).json();
        let listed: Vec<&str> = list["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|card| card["id"].as_str().unwrap())
            .collect();
        assert_eq!(listed, models, "{key}");
        for model in ["base", "other", "sql"] {
            let body = chat(model, 1, false);
            let answer = post_with(gateway.address, "/v1/chat/completions", &lines, &body);
            let card = get_with(gateway.address, &format!("/v1/models/{model}"), &lines);
            match models.contains(&model) {
                true => assert_eq!((answer.status, card.status), (200, 200), "{key} {model}"),
                false => {
                    answer.assert_error(403, "model_not_allowed", Some("model"));
                    card.assert_error(404, "model_not_found", Some("model"));
                }
            }
        }
        let body = chat("nobody", 1, false);
        let answer = post_with(gateway.address, "/v1/chat/completions", &lines, &body);
        answer.assert_error(404, "model_not_found", Some("model"));
    }
    assert_eq!(gateway.metric("sluice_gateway_refused_total{reason=\"forbidden\"}"), Some(7.0));
}

// Its id is known to who made it, but an id is no credential.
#[test]
fn a_stored_response_is_for_the_key_that_made_it() {
    let folder = Folder::new();
    let keys = folder.keys(&[("alice", "sk-a", ""), ("bob", "sk-b", "")]);
    let own = format!("    apiKeyFile: {}", folder.write("pods.key", "sk-pods\n").display());
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods).spec(&keys).scheduler(&own));
    let mut client = Client::connect(gateway.address);
    let made = json!({"model": "base", "input": "x"});
    client.post_with("/v1/responses", "x-api-key: sk-a\r\n", &made);
    let mut taken = pods[0].take();
    taken.send(answer(200, "", "{\"id\":\"resp_1\"}"));
    taken.keep();
    assert_eq!(client.response().status, 200);
    let get = |key: &str| {
        format!("GET /v1/responses/resp_1 HTTP/1.1\r\nhost: g\r\nx-api-key: {key}\r\n\r\n")
    };
    client.send(get("sk-a"));
    let mut taken = pods[0].take();
    assert_eq!(taken.header("authorization"), Some("Bearer sk-pods"));
    assert_eq!(taken.header("x-api-key"), None);
    taken.send(answer(200, "", "{\"id\":\"resp_1\"}"));
    taken.keep();
    assert_eq!(client.response().status, 200);
    client.send(get("sk-b"));
    client.response().assert_error(404, "response_not_found", None);
    client.send(get("sk-b").replace("resp_1", "resp_2"));
    client.response().assert_error(404, "response_not_found", None);
    let goes_on = json!({"model": "base", "input": "x", "previous_response_id": "resp_1"});
    client.post_with("/v1/responses", "x-api-key: sk-b\r\n", &goes_on);
    client.response().assert_error(404, "response_not_found", None);
    assert!(pods[0].take_within(Duration::ZERO).is_none());
}

#[test]
fn a_websocket_asks_for_a_key_like_all_else() {
    let folder = Folder::new();
    let keys = folder.keys(&[("alice", "sk-a", ""), ("bob", "sk-b", ", models: [other]")]);
    let own = format!("    apiKeyFile: {}", folder.write("pods.key", "sk-pods\n").display());
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods).spec(&keys).scheduler(&own));
    let switch = |lines: &str| {
        let mut client = Client::connect(gateway.address);
        client.send(format!(
            "GET /v1/realtime?model=base HTTP/1.1\r\nhost: g\r\nconnection: upgrade\r\n\
             upgrade: websocket\r\n{lines}\r\n"
        ));
        client
    };
    switch("").response().assert_error(401, "invalid_api_key", None);
    switch("x-api-key: sk-b\r\n").response().assert_error(403, "model_not_allowed", Some("model"));
    assert!(pods[0].take_within(Duration::ZERO).is_none());
    let protocols = "Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.sk-a\r\n";
    let mut client = switch(&format!("x-api-key: sk-a\r\n{protocols}"));
    let mut taken = pods[0].take();
    assert_eq!(taken.header("sec-websocket-protocol"), Some("realtime"));
    assert_eq!(taken.header("authorization"), Some("Bearer sk-pods"));
    assert_eq!(taken.header("x-api-key"), None);
    taken.send(
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    );
    assert_eq!(client.head().status, 101);
    gateway.wait_metric("sluice_key_requests_in_flight{key=\"alice\"}", 1.0);
    drop((client, taken));
    gateway.wait_metric("sluice_key_requests_in_flight{key=\"alice\"}", 0.0);
}

#[test]
fn the_log_and_the_metrics_have_the_name_and_never_the_key() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let folder = Folder::new();
    let keys = folder.keys(&[("alice", "sk-secret-a", "")]);
    let plan = Plan {
        command: vec!["env".into(), "RUST_LOG=debug".into()],
        ..Plan::pool("base", &pods).spec(&keys).spec("  accessLog: true")
    };
    let gateway = Gateway::start(&plan);
    let lines = "authorization: Bearer sk-secret-a\r\n";
    let body = chat("base", 3, false);
    assert_eq!(post_with(gateway.address, "/v1/chat/completions", lines, &body).status, 200);
    post_with(gateway.address, "/v1/chat/completions", "x-api-key: sk-secret-b\r\n", &body);
    gateway.wait_metric("sluice_key_generation_tokens_total{key=\"alice\"}", 3.0);
    assert!(gateway.metric("sluice_key_prompt_tokens_total{key=\"alice\"}").unwrap() > 0.0);
    gateway.wait_metric("sluice_key_requests_in_flight{key=\"alice\"}", 0.0);
    let log = gateway.log();
    assert!(
        log.lines().any(|line| line.contains("\"access\"") && line.contains("\"key\":\"alice\"")),
        "{log}"
    );
    for page in [log, gateway.get("/metrics").unwrap(), gateway.status().to_string()] {
        assert!(!page.contains("sk-secret"), "{page}");
    }
}

#[test]
fn a_gateway_without_auth_says_so_once() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let warning = "everyone who reaches a listener may send requests";
    let folder = Folder::new();
    let keys = folder.keys(&[("alice", "sk-a", "")]);
    for (spec, times) in [("", 1), ("  auth: {mode: \"off\"}", 0), (&keys, 0)] {
        let gateway = Gateway::start(&Plan::pool("base", &pods).spec(spec));
        assert_eq!(gateway.log().matches(warning).count(), times, "{}", gateway.log());
    }
}

#[test]
fn a_gateway_does_not_start_without_its_keys() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let folder = Folder::new();
    let file = folder.write("keys.yaml", "");
    let missing = folder.0.join("missing");
    let empty = folder.0.join("empty");
    fs::create_dir(&empty).unwrap();
    for (path, says) in [
        (&file, "is empty; a file without keys holds"),
        (&missing, "cannot be read"),
        (&empty, "the folder has no file"),
    ] {
        let spec = format!("  auth: {{apiKeys: {{file: {}}}}}", path.display());
        let log = Gateway::try_launch(&Plan::pool("base", &pods).spec(&spec)).unwrap_err();
        assert!(log.contains(says) && log.contains(&path.display().to_string()), "{log}");
        let line = format!("    apiKeyFile: {}", path.display());
        assert!(Gateway::try_launch(&Plan::pool("base", &pods).scheduler(&line)).is_err());
    }
}

#[test]
fn a_key_that_the_command_line_makes_lets_in() {
    let sluice = |words: &[&str]| Command::new(binary("sluice")).args(words).output().unwrap();
    let text = String::from_utf8(sluice(&["key", "team/a"]).stdout).unwrap();
    let key = text.lines().find(|line| line.starts_with("sk-")).expect("a key is printed");
    let entry = text.lines().find(|line| line.starts_with("- ")).expect("an entry is printed");
    assert!(key.len() > 40 && text.matches(key).count() == 1, "{text}");
    let json: serde_json::Value =
        serde_json::from_slice(&sluice(&["key", "b", "--json"]).stdout).unwrap();
    assert_eq!(json["sha256"], hex(json["key"].as_str().unwrap()));
    assert_ne!(json["key"], key);
    assert!(!sluice(&["key", "two words"]).status.success());
    let folder = Folder::new();
    let file = folder.write("keys.yaml", &format!("{entry}\n"));
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let spec = format!("  auth: {{apiKeys: {{file: {}}}}}", file.display());
    let gateway = Gateway::start(&Plan::pool("base", &pods).spec(&spec));
    let lines = format!("authorization: Bearer {key}\r\n");
    assert_eq!(get_with(gateway.address, "/v1/models", &lines).status, 200);
}

/// A folder of a test's own, which goes with it.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("sluice-keys-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Writes a file as a whole: nobody sees half of it.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let (new, path) = (self.0.join(format!(".{name}")), self.0.join(name));
        fs::write(&new, text).unwrap();
        fs::rename(new, &path).unwrap();
        path
    }

    /// Writes these keys, each with further fields of its entry; returns the line for `spec`.
    pub(crate) fn keys(&self, keys: &[(&str, &str, &str)]) -> String {
        let text: String = keys.iter().map(|(name, key, more)| entry(name, key, more)).collect();
        let file = self.write("keys.yaml", &text);
        format!("  auth: {{apiKeys: {{file: {}}}}}", file.display())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An entry of a key file.
pub(crate) fn entry(name: &str, key: &str, more: &str) -> String {
    format!("- {{name: {name}, sha256: {}{more}}}\n", hex(key))
}
