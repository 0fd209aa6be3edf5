//! Another configuration while the gateway runs.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_tests::client::{Client, chat, get, post, post_with};
use sluice_tests::engine::{Options, Server};
use sluice_tests::gateway::{Gateway, PATIENCE, Plan, pods};
use sluice_tests::load::Load;
use sluice_tests::pod::{RawPod, answer, plan};

#[test]
fn pods_come_and_go_under_load() {
    let servers = Server::start_all(vec![Options::default(); 4]).unwrap();
    let with = |places: &[usize]| {
        let pods = places.iter().map(|place| servers[*place].addr).collect();
        Plan { pools: vec![("base".into(), pods)], ..Plan::pool("base", &[]) }
    };
    let gateway = Gateway::start(&with(&[0, 1]));
    let load = Load::start([gateway.address].into_iter());
    load.wait_for_more();
    for places in [&[1, 2][..], &[3], &[3, 2, 1, 0], &[0], &[2, 0]] {
        gateway.reload(&with(places));
        let status = gateway.status();
        let names: Vec<_> = pods(&status).map(|pod| pod["name"].clone()).collect();
        let expected: Vec<_> = places.iter().map(|at| servers[*at].addr.to_string()).collect();
        assert_eq!(json!(names), json!(expected), "in the order of the configuration");
        // A request that was placed before is on its way.
        thread::sleep(Duration::from_millis(100));
        let gone: Vec<_> = (0..4).filter(|place| !places.contains(place)).collect();
        let before: Vec<_> = gone.iter().map(|place| asked(&servers[*place])).collect();
        load.wait_for_more();
        load.wait_for_more();
        let after: Vec<_> = gone.iter().map(|place| asked(&servers[*place])).collect();
        assert_eq!(before, after, "a pod that has left gets no request");
        // One that has come is asked how it is, and a request goes to it where it is the only one.
        gateway.wait("all pods to be observed", |status| {
            pods(status).all(|pod| !pod["signals_age_ms"].is_null())
        });
    }
    load.stop();
    let status = gateway.wait_idle();
    assert!(pods(&status).all(|pod| pod["failures"] == 0), "{status:#}");
    assert!(servers.iter().all(|server| asked(server) > 0));
}

#[test]
fn a_stream_goes_on_at_a_pod_that_leaves() {
    let servers = Server::start_all(vec![Options::default(); 2]).unwrap();
    let with = |place: usize| Plan::pool("base", &servers[place..=place]);
    let gateway = Gateway::start(&with(0));
    let mut client = Client::connect(gateway.address);
    client.post("/v1/chat/completions", &chat("base", 200, true));
    let mut stream = client.head();
    gateway.reload(&with(1));
    let next = post(gateway.address, "/v1/chat/completions", &chat("base", 1, false));
    assert_eq!(next.status, 200);
    client.body(&mut stream);
    assert_eq!((stream.complete, stream.events().len()), (true, 203));
    let requests: Vec<_> = servers.iter().map(asked).collect();
    assert_eq!(requests, [1, 1]);
    // And its usage counts, though nobody shows the pod any more.
    gateway.wait_metric("sluice_pool_requests_total{pool=\"pool-0\",outcome=\"ok\"}", 2.0);
}

#[test]
fn what_is_known_of_a_pod_that_stays_is_kept() {
    let servers = Server::start_all(vec![Options::default(); 2]).unwrap();
    let both = Plan::pool("base", &servers);
    let one = Plan::pool("base", &servers[..1]);
    let gateway = Gateway::start(&both);
    for _ in 0..6 {
        let response = post(gateway.address, "/v1/chat/completions", &chat("base", 1, false));
        assert_eq!(response.status, 200);
    }
    let of = |status: &Value, place: usize| status["pools"][0]["pods"][place]["requests"].clone();
    let before = of(&gateway.wait_idle(), 0);
    assert_ne!(before, 0);
    gateway.reload(&one);
    assert_eq!(of(&gateway.status(), 0), before);
    gateway.reload(&both.scheduler("    profile: throughput"));
    let status = gateway.status();
    assert_eq!((of(&status, 0), of(&status, 1)), (before, json!(0)), "who left comes back as new");
}

#[test]
fn pools_come_and_go() {
    let servers = Server::start_all(vec![
        Options::default(),
        Options { models: vec!["other".into()], ..Options::default() },
    ])
    .unwrap();
    let base = Plan::pool("base", &servers[..1]);
    let mut both = base.clone();
    both.pools.push(("other".into(), vec![servers[1].addr]));
    let gateway = Gateway::start(&base);
    let load = Load::start([gateway.address].into_iter());
    let ask =
        |model: &str| post(gateway.address, "/v1/chat/completions", &chat(model, 1, false)).status;
    assert_eq!((ask("base"), ask("other")), (200, 404));
    for _ in 0..3 {
        gateway.reload(&both);
        assert_eq!((ask("base"), ask("other")), (200, 200));
        let page = get(gateway.address, "/v1/models").json();
        assert_eq!(page["data"].as_array().unwrap().len(), 2);
        let of_other = "sluice_pool_requests_total{pool=\"pool-1\",outcome=\"ok\"}";
        gateway.wait_metric(of_other, 1.0);
        gateway.reload(&base);
        assert_eq!((ask("base"), ask("other")), (200, 404));
        assert_eq!(gateway.metric(of_other), None, "a pool that is gone has no series");
        load.wait_for_more();
    }
    // Another model under the same name is another pool.
    let mut swapped = base.clone();
    swapped.pools = vec![("other".into(), vec![servers[1].addr])];
    load.stop();
    gateway.reload(&swapped);
    assert_eq!((ask("base"), ask("other")), (404, 200));
}

#[test]
fn what_cannot_be_used_changes_nothing_and_says_so() {
    let servers = Server::start_all(vec![Options::default()]).unwrap();
    let good = Plan::pool("base", &servers);
    let gateway = Gateway::start(&good);
    let load = Load::start([gateway.address].into_iter());
    let failed = "sluice_config_reloads_total{result=\"failed\"}";
    assert_eq!(gateway.metric(failed), Some(0.0));
    let missing = "    apiKeyFile: /nonexistent/sluice.key";
    for (number, (plan, said)) in [
        (good.clone().spec("  limitz: {}"), "spec.limitz"),
        (good.clone().spec("  auth: {apiKeys: {file: /nonexistent/keys}}"), "/nonexistent/keys"),
        (good.clone().scheduler(missing), "/nonexistent/sluice.key"),
    ]
    .into_iter()
    .enumerate()
    {
        gateway.write(&plan);
        gateway.signal("HUP");
        gateway.wait_metric(failed, number as f64 + 1.0);
        let status = gateway.status();
        let trouble = status["config_trouble"].as_str().unwrap();
        assert!(trouble.contains(said), "{trouble}");
        assert!(gateway.log().contains(said), "{}", gateway.log());
        assert_eq!(gateway.metric("sluice_config_pending"), Some(1.0));
        load.wait_for_more();
    }
    gateway.reload(&good);
    assert_eq!(gateway.status()["config_trouble"], Value::Null);
    assert_eq!(gateway.metric("sluice_config_pending"), Some(0.0));
    load.stop();
}

#[test]
fn a_file_that_changes_is_read_without_a_signal() {
    let servers = Server::start_all(vec![Options::default(); 2]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &servers[..1]));
    // As a program does that is not done yet, for longer than it takes to be seen.
    for part in 1..=12 {
        let half = "apiVersion: gateway.sluice.dev/v1alpha1\nkind: InferenceGatewayConfig";
        gateway.write_text(&half[..half.len() - part]);
        thread::sleep(Duration::from_millis(200));
    }
    gateway.write(&Plan::pool("base", &servers));
    gateway.wait("the second pod", |status| pods(status).count() == 2);
    assert_eq!(gateway.metric("sluice_config_reloads_total{result=\"failed\"}"), Some(0.0));
    gateway.write_text("no: configuration");
    gateway.wait("the complaint", |status| status["config_trouble"].is_string());
    assert_eq!(pods(&gateway.status()).count(), 2);
}

// A key file may come later than the configuration that names it.
#[test]
fn what_could_not_be_used_is_tried_again() {
    let servers = Server::start_all(vec![Options::default()]).unwrap();
    let open = Plan::pool("base", &servers);
    let gateway = Gateway::start(&open);
    let file = std::env::temp_dir().join(format!("sluice-late-{}.key", std::process::id()));
    gateway.write(&open.clone().scheduler(&format!("    apiKeyFile: {}", file.display())));
    gateway.wait("the complaint", |status| status["config_trouble"].is_string());
    fs::write(&file, "sk-pod\n").unwrap();
    gateway.wait("the configuration to be in force", |status| status["config_trouble"].is_null());
    // Told once, however often it was tried.
    let counts = ["failed", "done"].map(|result| {
        gateway.metric(&format!("sluice_config_reloads_total{{result=\"{result}\"}}"))
    });
    assert_eq!(counts, [Some(1.0), Some(1.0)]);
    fs::remove_file(&file).unwrap();
}

// A limit of a configuration that is refused does not hold, and a file of the keys in force that is broken for a moment
// is no reason to refuse another change.
#[test]
fn what_is_refused_leaves_no_trace_and_keys_in_force_are_left_alone() {
    let servers = Server::start_all(vec![Options::default(); 2]).unwrap();
    let file = std::env::temp_dir().join(format!("sluice-kept-{}.yaml", std::process::id()));
    let hash = gateway_user::auth::keys::hex("sk-a");
    let whole = format!("- {{name: alice, sha256: {hash}}}\n");
    fs::write(&file, &whole).unwrap();
    let auth = |limits: &str| {
        format!("  auth: {{apiKeys: {{file: {}, limits: {{{limits}}}}}}}", file.display())
    };
    let plan =
        |count: usize, limits: &str| Plan::pool("base", &servers[..count]).spec(&auth(limits));
    let gateway = Gateway::start(&plan(1, ""));
    let ask = || {
        let body = chat("base", 1, false);
        post_with(gateway.address, "/v1/chat/completions", "x-api-key: sk-a\r\n", &body).status
    };
    let refused = plan(1, "requestsPerMinute: 1").scheduler("    apiKeyFile: /nonexistent/key");
    gateway.write(&refused);
    gateway.signal("HUP");
    gateway.wait("the complaint", |status| status["config_trouble"].is_string());
    assert_eq!([ask(), ask(), ask()], [200; 3]);
    gateway.reload(&plan(1, ""));
    fs::write(&file, "nonsense").unwrap();
    gateway.reload(&plan(2, ""));
    assert_eq!(pods(&gateway.status()).count(), 2);
    assert_eq!(ask(), 200);
    fs::write(&file, &whole).unwrap();
    gateway.reload(&plan(2, "requestsPerMinute: 1"));
    assert_eq!([ask(), ask()], [200, 429]);
    fs::remove_file(&file).unwrap();
}

#[test]
fn what_sockets_hang_on_waits_for_a_takeover() {
    let servers = Server::start_all(vec![Options::default(); 2]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &servers[..1]));
    let mut plan = Plan::pool("base", &servers);
    plan.listener = ", protocol: h2c".into();
    gateway.reload(&plan.spec("  workers: 7"));
    let status = gateway.status();
    assert_eq!(status["config_waiting"], json!(["spec.listeners", "spec.workers"]));
    assert_eq!(pods(&status).count(), 2, "all else is in force");
    assert_eq!(gateway.metric("sluice_config_pending"), Some(1.0));
    let response = post(gateway.address, "/v1/chat/completions", &chat("base", 1, false));
    assert_eq!(response.status, 200);
}

#[test]
fn limits_and_keys_change_without_a_restart() {
    let servers = Server::start_all(vec![Options::default()]).unwrap();
    let open = Plan::pool("base", &servers);
    let gateway = Gateway::start(&open);
    let file = std::env::temp_dir().join(format!("sluice-reload-{}.yaml", std::process::id()));
    let hash = gateway_user::auth::keys::hex("sk-a");
    fs::write(&file, format!("- {{name: alice, sha256: {hash}}}\n")).unwrap();
    let spec =
        |file: &std::path::Path| format!("  auth: {{apiKeys: {{file: {}}}}}", file.display());
    let ask = |lines: &str| {
        post_with(gateway.address, "/v1/chat/completions", lines, &chat("base", 1, false)).status
    };
    let key = "x-api-key: sk-a\r\n";
    assert_eq!(ask(""), 200);
    gateway.reload(&open.clone().spec(&spec(&file)));
    assert_eq!((ask(""), ask(key)), (401, 200));
    let of_alice = "sluice_key_requests_total{key=\"alice\",outcome=\"ok\"}";
    gateway.wait_metric(of_alice, 1.0);
    // What has been used of a limit stays used through a change that has nothing to do with it.
    let once = format!("- {{name: alice, sha256: {hash}, limits: {{requestsPerMinute: 1}}}}\n");
    fs::write(&file, once).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while ask(key) != 429 {
        assert!(Instant::now() < deadline, "the limit does not hold: {}", gateway.log());
    }
    let limits = open.clone().spec(&spec(&file)).spec("  limits: {maxHeadBytes: 2Ki}");
    gateway.reload(&limits);
    assert_eq!(ask(key), 429);
    assert_eq!(ask(&format!("x-long: {}\r\n", "x".repeat(3000))), 431);
    gateway.reload(&open);
    assert_eq!((ask(""), gateway.metric(of_alice)), (200, None));
    fs::remove_file(&file).unwrap();
}

#[test]
fn pods_metrics_are_asked_for_where_the_new_configuration_says() {
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods));
    let file = std::env::temp_dir().join(format!("sluice-reload-pod-{}.key", std::process::id()));
    fs::write(&file, "sk-pod\n").unwrap();
    pods[0].want_key("sk-pod");
    gateway
        .wait("the pod to refuse", |status| status["pools"][0]["pods"][0]["trouble"].is_string());
    gateway.reload(&plan(&pods).scheduler(&format!("    apiKeyFile: {}", file.display())));
    gateway.wait("the pod to answer", |status| status["pools"][0]["pods"][0]["trouble"].is_null());
    let mut client = Client::connect(gateway.address);
    client.post("/v1/chat/completions", &chat("base", 1, false));
    let mut taken = pods[0].take();
    assert_eq!(taken.header("authorization"), Some("Bearer sk-pod"));
    taken.send(answer(200, "", "{}"));
    assert_eq!(client.response().status, 200);
    fs::remove_file(&file).unwrap();
}

/// Chat requests that a pod has been given.
fn asked(server: &Server) -> u64 {
    server.stats().requests_to("/v1/chat/completions")
}
