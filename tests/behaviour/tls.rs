//! TLS: what comes through, which certificate is shown, and what happens when the files change.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use sluice_tests::client::{Client, chat};
use sluice_tests::gateway::{Gateway, PATIENCE, Plan};
use sluice_tests::pod::{RawPod, STREAM, answer, chunk, plan};
use sluice_tests::script::ScriptPod;
use sluice_tests::soak::{Progress, Traffic};
use sluice_tests::tls::{Authority, Identity, is_cut};

#[test]
fn mixed_traffic_comes_whole() {
    let (authority, pods) = (Authority::new(), ScriptPod::start_all(3));
    let gateway = Gateway::start(&secure(&authority, &pods));
    let address = authority.speaker(&["http/1.1"], None).tunnel(gateway.address);
    let progress = Progress::default();
    let traffic = Traffic { bytes: 40_000_000, ..Traffic::mixed(7) };
    traffic.run(address, &progress).unwrap_or_else(|problem| panic!("{problem}"));
    assert!(progress.counts().whole > 100, "{:?}", progress.counts());
    gateway.wait_idle();
    let relayed = gateway.metric("sluice_flow_responses_total{path=\"relay\",reason=\"tls\"}");
    assert!(relayed > Some(0.0), "{relayed:?}");
}

#[test]
fn what_clients_and_pods_cut_is_seen_as_cut() {
    let (authority, pods) = (Authority::new(), ScriptPod::start_all(3));
    let gateway = Gateway::start(&secure(&authority, &pods));
    let address = authority.speaker(&["http/1.1"], None).tunnel(gateway.address);
    let progress = Progress::default();
    let traffic = Traffic { requests: 400, aborts: true, length: 20_000, ..Traffic::mixed(8) };
    traffic.run(address, &progress).unwrap_or_else(|problem| panic!("{problem}"));
    let counts = progress.counts();
    assert!(counts.cut > 0 && counts.left > 0, "{counts:?}");
    gateway.wait_idle();
}

// Field report 13, over TLS: the pod is let go before it has written anything.
#[test]
fn field_report_13_the_pod_is_let_go_when_a_tls_client_leaves() {
    let (authority, pod) = (Authority::new(), RawPod::start());
    let gateway = Gateway::start(&secure_raw(&authority, &pod));
    let mut client = authority.speaker(&[], None).connect(gateway.address, "127.0.0.1").unwrap();
    client.write_all(request().as_bytes()).unwrap();
    let taken = pod.take();
    drop(client);
    taken.wait_closed();
    gateway.wait_idle();
}

#[test]
fn the_certificate_is_the_one_for_the_name() {
    let authority = Authority::new();
    let (first, second) =
        (authority.issue("a", &["a.test", "127.0.0.1"]), authority.issue("b", &["*.b.test"]));
    let pod = RawPod::start();
    let spec = Identity::spec(&[&first, &second]);
    let gateway = Gateway::start(&https(plan(&[pod])).spec(&spec));
    let speaker = authority.speaker(&[], None);
    let shown = |name: &str| {
        let client = speaker.connect(gateway.address, name)?;
        Ok::<_, std::io::Error>(client.conn.peer_certificates().unwrap()[0].clone())
    };
    assert_eq!(shown("a.test").unwrap(), first.chain()[0]);
    assert_eq!(shown("x.b.test").unwrap(), second.chain()[0]);
    // Without a name, the first.
    assert_eq!(shown("127.0.0.1").unwrap(), first.chain()[0]);
    // For another name the first is shown as well, and the client sees that it is not for it.
    assert!(shown("c.test").unwrap_err().to_string().contains("not valid for name"));
}

#[test]
fn both_versions_of_tls_and_both_protocols_are_spoken() {
    let (authority, pods) = (Authority::new(), ScriptPod::start_all(1));
    let gateway = Gateway::start(&secure(&authority, &pods));
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for (offered, agreed) in [
            (&["http/1.1"][..], Some("http/1.1")),
            (&["h2", "http/1.1"], Some("h2")),
            (&["http/1.1", "h2"], Some("h2")),
            (&[], None),
        ] {
            let speaker = authority.speaker_of(offered, None, &[version]);
            let client = speaker.connect(gateway.address, "127.0.0.1").unwrap();
            assert_eq!(client.conn.alpn_protocol(), agreed.map(str::as_bytes), "{offered:?}");
        }
        let speaker = authority.speaker_of(&["spdy/1"], None, &[version]);
        assert!(speaker.connect(gateway.address, "127.0.0.1").is_err());
    }
    gateway.wait_metric("sluice_tls_handshakes_total{result=\"done\"}", 8.0);
    gateway.wait_metric("sluice_tls_handshakes_total{result=\"failed\"}", 2.0);
}

#[test]
fn clients_must_show_a_certificate_where_that_is_asked() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = authority.issue("server", &["127.0.0.1"]);
    let (known, unknown) =
        (authority.issue("known", &["known"]), stranger.issue("unknown", &["unknown"]));
    let pod = RawPod::start();
    let spec = format!(
        "{}    clientCaFile: \"{}\"\n",
        Identity::spec(&[&server]),
        authority.file().display()
    );
    let gateway = Gateway::start(&https(plan(&[pod])).spec(&spec));
    let asked = |identity: Option<&Identity>| {
        let mut client = authority.speaker(&[], identity).connect(gateway.address, "127.0.0.1")?;
        client.write_all(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
        let mut text = String::new();
        client.read_to_string(&mut text).map(|_| text)
    };
    assert!(asked(Some(&known)).unwrap().starts_with("HTTP/1.1 200 OK\r\n"));
    // In TLS 1.3 the client has done its part when it is refused, and hears of it in what it reads.
    assert!(asked(None).is_err());
    assert!(asked(Some(&unknown)).is_err());
}

#[test]
fn a_client_is_not_let_in_by_its_earlier_session() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = authority.issue("server", &["127.0.0.1"]);
    let known = authority.issue("known", &["known"]);
    let pod = RawPod::start();
    let trusted = authority.file().with_file_name("trusted.crt");
    fs::copy(authority.file(), &trusted).unwrap();
    let spec =
        format!("{}    clientCaFile: \"{}\"\n", Identity::spec(&[&server]), trusted.display());
    let gateway = Gateway::start(&https(plan(&[pod])).spec(&spec));
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        fs::copy(authority.file(), &trusted).unwrap();
        // One that remembers sessions.
        let speaker = authority.speaker_of(&[], Some(&known), &[version]);
        let asked = || {
            let mut client = speaker.connect(gateway.address, "127.0.0.1")?;
            client.write_all(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
            let mut text = String::new();
            client.read_to_string(&mut text).map(|_| text)
        };
        gateway.wait("the client to be trusted", |_| asked().is_ok());
        fs::copy(other.file(), &trusted).unwrap();
        gateway.wait("the client to be trusted no more", |_| asked().is_err());
        assert!(asked().is_err());
    }
}

#[test]
fn certificates_change_under_load_and_no_handshake_fails() {
    let authority = Authority::new();
    let mut identity = authority.issue("server", &["127.0.0.1"]);
    let pods = ScriptPod::start_all(2);
    let plan = Plan { pools: pools(&pods), ..Plan::pool("base", &[]) };
    let gateway = Gateway::start(&https(plan).spec(&Identity::spec(&[&identity])));
    let speaker = authority.speaker(&["http/1.1"], None);
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _stops = Stops(&stop);
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let mut client = speaker.connect(gateway.address, "127.0.0.1").unwrap();
                    let ask = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
                    client.write_all(ask).unwrap();
                    let mut text = String::new();
                    client.read_to_string(&mut text).unwrap();
                    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for count in 1..=5 {
            identity = authority.issue("server", &["127.0.0.1"]);
            // Between the two files' changes it may have found them not to fit: then it kept what it had.
            gateway.wait("the new files to be in use", |_| {
                // One that has not been there: who resumes a session remembers the certificate of its beginning.
                let client = authority.speaker(&[], None).connect(gateway.address, "127.0.0.1");
                client.unwrap().conn.peer_certificates().unwrap()[0] == identity.chain()[0]
            });
            gateway.wait("the change to be counted", |_| {
                let changes = gateway.metric("sluice_tls_reloads_total{result=\"done\"}");
                changes >= Some(f64::from(count))
            });
        }
    });
    assert!(done.into_inner() > 20);
    assert_eq!(gateway.metric("sluice_tls_handshakes_total{result=\"failed\"}"), Some(0.0));
}

#[test]
fn files_that_cannot_be_used_change_nothing_and_are_told() {
    let authority = Authority::new();
    let identity = authority.issue("server", &["127.0.0.1"]);
    let pod = RawPod::start();
    let gateway = Gateway::start(&https(plan(&[pod])).spec(&Identity::spec(&[&identity])));
    let before = identity.chain();
    fs::write(&identity.key, "no key\n").unwrap();
    gateway.wait_metric("sluice_tls_reloads_total{result=\"failed\"}", 1.0);
    let told = format!(
        "spec.tls.certificates[0].keyFile: {}: holds no private key",
        identity.key.display()
    );
    // Counted before it is said.
    gateway.wait("the fault to be told", |_| gateway.log().contains(&told));
    let client = authority.speaker(&[], None).connect(gateway.address, "127.0.0.1").unwrap();
    assert_eq!(client.conn.peer_certificates().unwrap(), before);
    let sample = format!(
        "sluice_tls_certificate_expiry_timestamp_seconds{{certificate=\"{}\"}}",
        identity.certificate.display()
    );
    assert!(gateway.metric(&sample) > Some(1.7e9));
}

#[test]
fn no_start_with_files_that_cannot_be_used() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (good, odd) = (authority.issue("good", &["a"]), other.issue("odd", &["a"]));
    let missing = good.key.with_file_name("missing");
    let table = [
        (Identity { key: missing.clone(), ..good.clone() }, "keyFile", "No such file"),
        (Identity { certificate: missing, ..good.clone() }, "certificateFile", "No such file"),
        (
            Identity { key: good.certificate.clone(), ..good.clone() },
            "keyFile",
            "holds no private key",
        ),
        (
            Identity { certificate: good.key.clone(), ..good.clone() },
            "certificateFile",
            "holds no certificate",
        ),
        (
            Identity { key: odd.key.clone(), ..good.clone() },
            "keyFile",
            "is not the key of the certificate",
        ),
    ];
    for (identity, field, problem) in table {
        let pod = RawPod::start();
        let plan = https(plan(&[pod])).spec(&Identity::spec(&[&identity]));
        let log = Gateway::try_launch(&plan).expect_err("it starts");
        let named = format!("spec.tls.certificates[0].{field}: ");
        assert!(log.contains(&named) && log.contains(problem), "{log}");
    }
}

#[test]
fn who_does_not_speak_tls_is_let_go_and_harms_nobody() {
    let (authority, pods) = (Authority::new(), ScriptPod::start_all(1));
    let plan = secure(&authority, &pods).spec("  limits: {headerTimeout: 500ms}");
    let gateway = Gateway::start(&plan);
    // In clear text.
    let mut client = Client::connect(gateway.address);
    client.send(request());
    let mut came = Vec::new();
    // An alert, if anything.
    let _ = client.stream.read_to_end(&mut came);
    assert!(came.is_empty() || came[0] == 21, "{}", came.escape_ascii());
    gateway.wait_metric("sluice_tls_handshakes_total{result=\"failed\"}", 1.0);
    // A handshake that does not go on.
    let mut silent = TcpStream::connect(gateway.address).unwrap();
    silent.write_all(&[22, 3, 1, 2, 0, 1]).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!(silent.read(&mut [0]), Ok(0) | Err(_)));
    gateway.wait_metric("sluice_tls_handshakes_total{result=\"timed_out\"}", 1.0);
    gateway.wait("the connections to be gone", |status| status["connections"] == 0);
}

// Field report 77, over TLS.
#[test]
fn field_report_77_a_tls_stream_finishes_after_sigterm() {
    let (authority, pod) = (Authority::new(), RawPod::start());
    let mut gateway = Gateway::start(&secure_raw(&authority, &pod));
    let mut client = authority.speaker(&[], None).connect(gateway.address, "127.0.0.1").unwrap();
    client.write_all(request().as_bytes()).unwrap();
    let mut taken = pod.take();
    taken.send(STREAM);
    taken.send(chunk("data: 1\n\n"));
    let mut text = vec![0; 4096];
    let count = client.read(&mut text).unwrap();
    assert!(text[..count].starts_with(b"HTTP/1.1 200"));
    gateway.signal("TERM");
    thread::sleep(Duration::from_millis(200));
    taken.send(chunk("data: 2\n\n"));
    taken.send("0\r\n\r\n");
    let mut rest = String::new();
    // It ends in order, as TLS says that it does.
    client.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("data: 2\n\n\r\n0\r\n\r\n"), "{rest:?}");
    assert!(gateway.wait_exit(PATIENCE).success());
}

#[test]
fn a_body_that_ends_with_the_connection_is_not_cut_unseen() {
    let (authority, pod) = (Authority::new(), RawPod::start());
    let gateway = Gateway::start(&secure_raw(&authority, &pod));
    for breaks in [false, true] {
        let mut client =
            authority.speaker(&[], None).connect(gateway.address, "127.0.0.1").unwrap();
        client.write_all(request().as_bytes()).unwrap();
        let mut taken = pod.take();
        taken.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n");
        let mut text = vec![0; 4096];
        assert!(client.read(&mut text).unwrap() > 0);
        match breaks {
            true => taken.reset(),
            false => taken.close(),
        }
        let rest = client.read_to_end(&mut text);
        match (breaks, rest) {
            (true, Err(error)) => assert!(is_cut(&error), "{error}"),
            (false, Ok(_)) => {}
            (_, rest) => panic!("{breaks}: {rest:?}"),
        }
    }
}

#[test]
fn one_address_that_serves_in_clear_text_beside() {
    let (authority, pod) = (Authority::new(), RawPod::start());
    let identity = authority.issue("server", &["127.0.0.1"]);
    let port = sluice_tests::gateway::free_port();
    let mut plan = https(plan(std::slice::from_ref(&pod))).spec(&Identity::spec(&[&identity]));
    plan.listener.push_str(&format!("}}, {{name: clear, address: 127.0.0.1, port: {port}"));
    let gateway = Gateway::start(&plan);
    let mut client = Client::connect((gateway.address.ip(), port).into());
    client.post("/v1/chat/completions", &chat("base", 1, false));
    let mut taken = pod.take();
    taken.send(answer(200, "", "{}"));
    assert_eq!(client.response().status, 200);
}

/// Sets a flag when it is dropped, as by a panic.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A gateway that speaks TLS before these pods.
fn secure(authority: &Authority, pods: &[ScriptPod]) -> Plan {
    let identity = authority.issue("server", &["127.0.0.1"]);
    let plan = Plan { pools: pools(pods), ..Plan::pool("base", &[]) };
    https(plan).spec(&Identity::spec(&[&identity]))
}

pub(crate) fn secure_raw(authority: &Authority, pod: &RawPod) -> Plan {
    let identity = authority.issue("server", &["127.0.0.1"]);
    https(plan(std::slice::from_ref(pod))).spec(&Identity::spec(&[&identity]))
}

fn pools(pods: &[ScriptPod]) -> Vec<(String, Vec<std::net::SocketAddr>)> {
    vec![("base".into(), pods.iter().map(|pod| pod.address).collect())]
}

fn https(plan: Plan) -> Plan {
    Plan { listener: ", protocol: https".into(), ..plan }
}

fn request() -> String {
    let body = chat("base", 9, true).to_string();
    let length = body.len();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}
