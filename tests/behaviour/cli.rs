//! The command line and the admin pages: what an operator types and sees.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use sluice_tests::client::{Client, chat, get, post};
use sluice_tests::engine::{Options, Server};
use sluice_tests::gateway::{Gateway, Plan, binary, free_port};

#[test]
fn every_command_explains_itself_with_an_example() {
    let whole = stdout(&sluice(&["--help"]));
    for command in ["run", "check", "crd", "key", "probe", "status", "explain"] {
        assert!(whole.contains(&format!("\n  {command} ")), "{whole}");
        let help = sluice(&[command, "--help"]);
        assert!(help.status.success());
        let help = stdout(&help);
        let examples = help.lines().filter_map(|line| line.strip_prefix("Example: "));
        let examples: Vec<_> = examples.collect();
        assert!(!examples.is_empty(), "{help}");
        for example in examples {
            assert!(example.starts_with(&format!("sluice {command} ")), "{example}");
            // Its flags exist.
            let (own, _) = example.split_once(" | ").unwrap_or((example, ""));
            for flag in own.split(' ').filter(|word| word.starts_with("--")) {
                let is_listed = |before| help.contains(&format!("{before} {flag}"));
                assert!(is_listed(" ") || is_listed(","), "{flag}: {help}");
            }
        }
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    }
    assert!(stdout(&sluice(&["--version"])).starts_with("sluice 0."));
    for wrong in [&[][..], &["serve"], &["run"], &["check"], &["status", "--admin", "nowhere"]] {
        let output = sluice(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(
            stderr(&output).contains("--help") || stderr(&output).contains("Usage"),
            "{wrong:?}"
        );
    }
}

// "A configuration error names file, line, field and the allowed values."
#[test]
fn a_wrong_configuration_is_refused_with_places_and_allowed_values() {
    let file = File::new(
        "apiVersion: gateway.sluice.dev/v1alpha1\n\
         kind: InferenceGatewayConfig\n\
         metadata: {name: edge}\n\
         spec:\n  \
           kernel: {steering: maybe}\n  \
           limits: {maxConnections: 0, headerTimout: 3s}\n  \
           schedulers:\n  \
           - name: llama\n    \
             modelName: llama\n    \
             pods: [{address: 10.0.0.1, port: 80000}]\n",
    );
    let shown = file.0.display();
    let expected = [
        format!("{shown}:5:22: spec.kernel.steering: "),
        format!("{shown}:6:28: spec.limits.maxConnections: "),
        format!("{shown}:6:31: spec.limits.headerTimout: "),
        format!("{shown}:10:38: spec.schedulers[0].pods[0].port: "),
    ];
    let values = ["auto", "1..1048576", "headerTimeout", "1..65535"];
    for command in ["check", "run"] {
        let output = sluice(&[command, "--config", file.path()]);
        assert_eq!(output.status.code(), Some(1), "{command}");
        assert_eq!(stdout(&output), "");
        let said = stderr(&output);
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), expected.len(), "{said}");
        for ((line, start), value) in lines.iter().zip(&expected).zip(values) {
            assert!(
                line.starts_with(start) && line.contains(value),
                "{line}\nis not: {start} {value}"
            );
        }
    }
    for command in ["check", "run"] {
        let output = sluice(&[command, "--config", "/nowhere/gateway.yaml"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).starts_with("/nowhere/gateway.yaml: "), "{}", stderr(&output));
    }
}

#[test]
fn field_report_79_a_right_configuration_is_shown_with_every_default() {
    let file = File::new(&document(8080, 9901));
    let output = sluice(&["check", "--config", file.path(), "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["spec"]["limits"]["maxConnections"], 65536);
    // Field reports 79: a long prefill, or an answer that is not streamed, is silent for long.
    assert_eq!(shown["spec"]["limits"]["firstByteTimeout"], "30m");
    // What is shown is a configuration, and means the same.
    let yaml = sluice(&["check", "--config", file.path()]);
    let again = File::new(&stdout(&yaml));
    assert_eq!(stdout(&sluice(&["check", "--config", again.path()])), stdout(&yaml));
    let defaults = sluice(&["check", "--defaults"]);
    assert!(defaults.status.success() && stdout(&defaults).contains("firstByteTimeout: 30m"));
}

#[test]
fn a_taken_port_is_named_with_its_listener() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (other, admin) = (free_port(), free_port());
    for (port, admin, said) in [
        (address.port(), admin, format!("listener `edge`: cannot listen on {address}: ")),
        (other, address.port(), format!("admin: cannot listen on {address}: ")),
    ] {
        let file = File::new(&document(port, admin));
        let output = sluice(&["run", "--config", file.path()]);
        assert_eq!(output.status.code(), Some(1));
        let last = stderr(&output).lines().last().unwrap().to_owned();
        assert!(last.contains(&said) && last.to_lowercase().contains("in use"), "{last}");
    }
}

// Sockets that workers share could be shared by two daemons, each of which would get half of
// everything.
#[test]
fn a_second_gateway_does_not_share_the_first_ones_ports() {
    let gateway = Gateway::launch(&Plan { pools: unreachable_pool(), ..Plan::pool("base", &[]) });
    let free = free_port();
    for (port, admin, taken) in [
        (gateway.address.port(), free, gateway.address),
        (free, gateway.admin.port(), gateway.admin),
    ] {
        let file = File::new(&document(port, admin));
        let mut child = Command::new(binary("sluice"))
            .args(["run", "--config", file.path()])
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while child.try_wait().unwrap().is_none() && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let _ = child.kill();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "it shares {taken}: {}", stderr(&output));
        assert!(stderr(&output).contains(&taken.to_string()));
    }
}

#[test]
fn probe_names_every_feature_and_why() {
    let table = sluice(&["probe"]);
    let json = sluice(&["probe", "--json"]);
    assert!(table.status.success() && json.status.success());
    let features: Vec<Value> = serde_json::from_slice(&json.stdout).unwrap();
    let table = stdout(&table);
    assert_eq!(table.lines().count(), features.len());
    assert!(features.iter().any(|feature| feature["name"] == "sk_lookup"));
    for (line, feature) in table.lines().zip(&features) {
        let (name, reason) =
            (feature["name"].as_str().unwrap(), feature["reason"].as_str().unwrap());
        let mark = if feature["available"] == true { "yes" } else { "no" };
        assert!(!reason.is_empty() && line.starts_with(name), "{line}");
        assert_eq!(line[name.len()..].split_whitespace().next(), Some(mark), "{line}");
    }
}

#[test]
fn status_shows_pools_and_pods_as_a_table_and_as_json() {
    let pods = Server::start_all(vec![Options::default(), Options::default()]).unwrap();
    let plan = Plan { paths: vec!["relay"], ..Plan::pool("base", &pods) };
    let gateway = Gateway::start(&plan);
    let admin = gateway.admin.to_string();
    let answer = post(gateway.address, CHAT, &chat("base", 2, false));
    assert_eq!(answer.status, 200);
    gateway.wait("the response to be counted", |status| status["paths"][2]["responses"] == 1);
    let table = stdout(&sluice(&["status", "--admin", &admin]));
    assert!(table.contains("\nresponses: relay 1\n  no local, no splice: turned off"), "{table}");
    assert!(table.contains(", ready\n") && table.contains("pool pool-0 (base)"), "{table}");
    for pod in &pods {
        let line = table.lines().find(|line| line.contains(&pod.addr.to_string())).unwrap();
        assert!(line.contains("vllm"), "{line}");
    }
    let by_variable = Command::new(binary("sluice"))
        .args(["status", "--json"])
        .env("SLUICE_ADMIN", &admin)
        .output();
    let status: Value = serde_json::from_slice(&by_variable.unwrap().stdout).unwrap();
    assert_eq!(status["pools"][0]["pods"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&status["ready"], &status["steering"]["path"]),
        (&true.into(), &"userspace".into())
    );
    let scores = sluice(&["status", "--admin", &admin, "--scores"]);
    assert!(scores.status.success() && serde_json::from_slice::<Value>(&scores.stdout).is_ok());
}

#[test]
fn status_of_something_else_fails_clearly() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let silent = SocketAddr::from(([127, 0, 0, 1], free_port()));
    for (address, why) in [(silent, "refused"), (pods[0].addr, "404")] {
        let output = sluice(&["status", "--admin", &address.to_string()]);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""));
        let said = stderr(&output);
        assert!(said.contains(&address.to_string()) && said.contains("--admin"), "{said}");
        assert!(said.contains(why) && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn explain_shows_why_a_request_goes_where() {
    let options = || Options { adapters: vec!["sql".into()], ..Options::default() };
    let pods = Server::start_all(vec![options(), options()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let gone = pods[0].addr.to_string();
    pods[0].die(None);
    gateway.wait("one to be gone", |status| status["pools"][0]["pods"][0]["ready"] == false);
    let admin = gateway.admin.to_string();
    let request = File::new(&chat("base", 2, true).to_string());
    let asked = ["explain", "--request", request.path(), "--admin", &admin];
    let table = stdout(&sluice(&asked));
    let (left, taken) = (format!("  {gone}  not ready"), format!("  {}  fresh", pods[1].addr));
    assert!(table.starts_with("model base, streamed: pool pool-0\n"), "{table}");
    assert!(table.contains(&format!("goes to {}: the only pod that may take it", pods[1].addr)));
    assert!(table.contains(&left) && table.contains(&taken), "{table}");
    let json = stdout(&sluice(&[&asked[..], &["--json"]].concat()));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["pick"]["pods"][0], pods[1].addr.to_string());
    assert_eq!((&json["pods"][0]["score"], &json["adapter"]), (&Value::Null, &Value::Null));
    assert!(json["pods"][1]["parts"].as_array().is_some_and(|parts| !parts.is_empty()), "{json}");
    // The configuration tells the admin address.
    let file = File::new(&document(free_port(), gateway.admin.port()));
    let by_file = sluice(&["explain", "--request", request.path(), "--config", file.path()]);
    assert!(stdout(&by_file).starts_with("model base"), "{}", stderr(&by_file));
    // Nothing was sent to a pod.
    assert_eq!(gateway.status()["pools"][0]["pods"][1]["requests"], 0);
    for (body, why) in [
        (chat("nobody", 1, false).to_string(), "`nobody` does not exist here"),
        ("{}".into(), "has no `model`"),
        ("{\"model\": ".into(), "400"),
    ] {
        let request = File::new(&body);
        let output = sluice(&["explain", "--request", request.path(), "--admin", &admin]);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""));
        assert!(stderr(&output).contains(why) && stderr(&output).contains(&admin));
    }
}

#[test]
fn responses_tell_why_their_pod_was_picked_if_that_is_wanted() {
    let pods = Server::start_all(vec![Options::default(), Options::default()]).unwrap();
    let quiet = Gateway::start(&Plan::pool("base", &pods));
    assert_eq!(post(quiet.address, CHAT, &chat("base", 1, false)).header("x-sluice-explain"), None);
    let plan = Plan::pool("base", &pods).spec("  debug: {explainHeader: true}");
    let gateway = Gateway::start(&plan.scheduler("    saturation: {inFlight: 1}"));
    for stream in [false, true] {
        let response = post(gateway.address, CHAT, &chat("base", 1, stream));
        let said = response.header("x-sluice-explain").unwrap().to_owned();
        let (first, others) = said.split_once(", ").unwrap();
        assert!(first.contains(";picked;score=") && !others.contains(";picked"), "{said}");
        for pod in &pods {
            assert!(said.contains(&format!("\"{}\";", pod.addr)), "{said}");
        }
    }
    pods.iter().for_each(|pod| pod.die(None));
    gateway.wait("both to be gone", |status| status["ready"] == false);
    let refused = post(gateway.address, CHAT, &chat("base", 1, false));
    refused.assert_error(503, "no_pod_available", None);
    let said = refused.header("x-sluice-explain").unwrap();
    assert_eq!(said.matches(";filter=\"not ready\"").count(), 2, "{said}");
}

#[test]
fn a_refused_request_is_explained_too() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    pods[0].die(None);
    gateway.wait("it to be gone", |status| status["ready"] == false);
    let mut client = Client::connect(gateway.admin);
    client.post("/explain", &chat("base", 1, false));
    let page: Value = serde_json::from_str(&client.response().text()).unwrap();
    assert_eq!((&page["pick"], &page["pods"][0]["filter"]), (&Value::Null, &"not ready".into()));
    assert_eq!(page["refused"], "no pod of this pool is ready");
    let wrong = get(gateway.admin, "/explain");
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("POST")));
}

#[test]
fn admin_pages_are_those_that_are_named() {
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let pages = ["/metrics", "/healthz", "/readyz", "/status", "/status/scores"];
    for path in pages {
        assert_eq!(get(gateway.admin, path).status, 200, "{path}");
    }
    for path in ["/", "/metrics/x", "/v1/models", "/Status"] {
        let response = get(gateway.admin, path);
        assert_eq!(response.status, 404, "{path}");
        assert!(pages.iter().all(|page| response.text().contains(page)), "{}", response.text());
    }
    for method in ["POST", "PUT", "DELETE"] {
        let mut client = Client::connect(gateway.admin);
        client.send(format!("{method} /status HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"));
        let response = client.response();
        assert_eq!(
            (response.status, response.header("allow")),
            (405, Some("GET, HEAD")),
            "{method}"
        );
    }
    let mut client = Client::connect(gateway.admin);
    client.send("HEAD /status HTTP/1.1\r\nhost: a\r\n\r\nGET /healthz HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!((client.head().status, client.response().text().as_str()), (200, "ok\n"));
    // The clients' side has none of them, and the operators' side serves no models.
    for path in ["/metrics", "/status", "/readyz", "/healthz"] {
        get(gateway.address, path).assert_error(404, "unknown_url", None);
    }
}

#[test]
fn a_gateway_is_ready_while_any_pod_can_be_reached() {
    let pods = Server::start_all(vec![Options::default(), Options::default()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods));
    let both = || (get(gateway.admin, "/readyz"), get(gateway.address, "/health"));
    assert_eq!((both().0.status, both().1.status), (200, 200));
    pods.iter().for_each(|pod| pod.die(None));
    let status = gateway.wait("no pod to be ready", |status| status["ready"] == false);
    let (readyz, health) = both();
    assert_eq!((readyz.status, health.status), (503, 503));
    assert!(readyz.text().contains("no pod is reachable"), "{}", readyz.text());
    assert_eq!(status["reason"].as_str(), Some(readyz.text().trim_end()));
    health.assert_error(503, "not_ready", None);
    // Alive all the same: a restart would not bring the pods back.
    assert_eq!(get(gateway.admin, "/healthz").status, 200);
    pods[1].revive();
    gateway.wait("one pod to be ready", |status| status["ready"] == true);
    assert_eq!((both().0.status, both().1.status), (200, 200));
}

#[test]
fn the_log_is_plain_text_or_json_and_without_colours() {
    let run = |flags: &[&str]| {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let file = File::new(&document(free_port(), taken.local_addr().unwrap().port()));
        let file =
            File::new(&(std::fs::read_to_string(&file.0).unwrap() + "  profiles: []\n  tls: {}\n"));
        stderr(&sluice(&[&["run", "--config", file.path()], flags].concat()))
    };
    let text = run(&[]);
    assert!(text.contains(" WARN ") && !text.contains('\u{1b}'), "{text:?}");
    let json = run(&["--log-format", "json"]);
    let line: Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(line["level"], "WARN", "{json}");
}

/// A configuration file, gone with the test.
struct File(PathBuf);

impl File {
    fn new(text: &str) -> Self {
        let name = format!("sluice-cli-{}-{}.yaml", std::process::id(), free_port());
        let path = std::env::temp_dir().join(name);
        std::fs::File::create_new(&path).unwrap().write_all(text.as_bytes()).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn document(port: u16, admin: u16) -> String {
    format!(
        "apiVersion: gateway.sluice.dev/v1alpha1\nkind: InferenceGatewayConfig\n\
         metadata: {{name: edge}}\nspec:\n  \
         listeners: [{{name: edge, address: 127.0.0.1, port: {port}}}]\n  \
         admin: {{port: {admin}}}\n  \
         kernel: {{steering: off}}\n  schedulers:\n  \
         - {{name: m, modelName: m, pods: [\"127.0.0.1:1\"]}}\n"
    )
}

fn unreachable_pool() -> Vec<(String, Vec<SocketAddr>)> {
    vec![("base".into(), vec![SocketAddr::from(([127, 0, 0, 1], 1))])]
}

fn sluice(args: &[&str]) -> Output {
    Command::new(binary("sluice")).args(args).env_remove("RUST_LOG").output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const CHAT: &str = "/v1/chat/completions";
