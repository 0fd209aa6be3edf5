//! JSON web tokens, by key sets from an issuer on loopback.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use sluice_tests::client::{Response, chat, get_with, post_with};
use sluice_tests::engine::{Options, Server};
use sluice_tests::gateway::{Gateway, PATIENCE, Plan};
use sluice_tests::pod::{RawPod, answer, plan};
use sluice_tests::tls::{Authority, Identity};

use super::Folder;

#[test]
fn tokens_of_the_issuer_let_in_and_no_others() {
    let issuer = Issuer::start();
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods).spec(&issuer.spec("5m")));
    // Nothing is known of the issuer's keys yet: nobody is let in, and load balancers look elsewhere.
    let (one, other) = (Pair::new("one"), Pair::new("one"));
    ask(&gateway, &one.sign(&claims())).assert_error(503, "signing_keys_missing", None);
    get_with(gateway.address, "/health", "").assert_error(503, "not_ready", None);
    ask(&gateway, "sk-a").assert_error(401, "invalid_api_key", None);
    issuer.serve(&[&one]);
    gateway.wait_metric("sluice_auth_keys{source=\"key_set\"}", 1.0);
    assert_eq!(ask(&gateway, &one.sign(&claims())).status, 200);
    assert_eq!(get_with(gateway.address, "/health", "").status, 200);

    let with = |field: &str, value: Value| {
        let mut all = claims();
        all[field] = value;
        one.sign(&all)
    };
    let public = serde_json::to_string(&one.public["x"]).unwrap();
    let header = Header { kid: Some("one".into()), ..Header::new(Algorithm::HS256) };
    let secret = EncodingKey::from_secret(public.as_bytes()).unwrap();
    let confused = encode(&header, &claims(), &secret).unwrap();
    let good = one.sign(&claims());
    let payload = good.split('.').nth(1).unwrap();
    for (what, token) in [
        ("signature", other.sign(&claims())),
        ("expired", with("exp", json!(now() - 60))),
        ("not valid yet", with("nbf", json!(now() + 600))),
        ("iss", with("iss", json!("https://elsewhere.example.org/"))),
        ("aud", with("aud", json!("something-else"))),
        ("claim `tier`", with("tier", json!("bronze"))),
        ("no key of the issuer", confused),
        ("not a signed", format!("eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{payload}.AA")),
        ("not a JSON web token", format!("eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{payload}.")),
    ] {
        let answer = ask(&gateway, &token);
        answer.assert_error(401, "invalid_api_key", None);
        assert!(answer.text().contains(what), "{what}: {}", answer.text());
        assert!(answer.header("www-authenticate").unwrap().contains("invalid_token"));
    }
    gateway.wait_metric("sluice_key_requests_total{key=\"corp\",outcome=\"ok\"}", 1.0);
    assert!(!gateway.log().contains(&good));
}

#[test]
fn an_issuer_changes_its_keys() {
    let issuer = Issuer::start();
    let (old, new) = (Pair::new("old"), Pair::new("new"));
    issuer.serve(&[&old]);
    let pods = Server::start_all(vec![Options { speed: 50.0, ..Options::default() }]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods).spec(&issuer.spec("1h")));
    gateway.wait_metric("sluice_auth_keys{source=\"key_set\"}", 1.0);
    let (by_old, by_new) = (old.sign(&claims()), new.sign(&claims()));
    assert_eq!(ask(&gateway, &by_old).status, 200);
    // The set is good for an hour; a token by a key that is not in it has it fetched before.
    issuer.serve(&[&old, &new]);
    let deadline = Instant::now() + PATIENCE;
    while ask(&gateway, &by_new).status != 200 {
        assert_eq!(ask(&gateway, &by_old).status, 200, "who is let in stays in");
        assert!(Instant::now() < deadline, "the issuer is not asked again");
    }
    // What is no key set leaves the keys in force.
    issuer.say(200, "<html>");
    ask(&gateway, &Pair::new("third").sign(&claims())).assert_error(401, "invalid_api_key", None);
    gateway.wait_metric("sluice_auth_reloads_total{source=\"key_set\",result=\"failed\"}", 1.0);
    assert_eq!((ask(&gateway, &by_old).status, ask(&gateway, &by_new).status), (200, 200));
    // A key that the issuer takes back is not good any more.
    issuer.serve(&[&new]);
    let deadline = Instant::now() + PATIENCE;
    while ask(&gateway, &by_old).status != 401 {
        ask(&gateway, &Pair::new("fourth").sign(&claims()));
        assert!(Instant::now() < deadline, "the issuer is not asked again");
    }
    assert_eq!(ask(&gateway, &by_new).status, 200);
}

#[test]
fn a_key_set_at_its_cap_and_one_byte_more() {
    let issuer = Issuer::start();
    let pair = Pair::new("one");
    let set = json!({ "keys": [pair.public] }).to_string();
    let of_length = |length: usize| set.clone() + &" ".repeat(length - set.len());
    issuer.say(200, &of_length((256 << 10) + 1));
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods).spec(&issuer.spec("5m")));
    gateway.wait_metric("sluice_auth_reloads_total{source=\"key_set\",result=\"failed\"}", 1.0);
    ask(&gateway, &pair.sign(&claims())).assert_error(503, "signing_keys_missing", None);
    issuer.say(200, &of_length(256 << 10));
    gateway.wait_metric("sluice_auth_reloads_total{source=\"key_set\",result=\"done\"}", 1.0);
    assert_eq!(ask(&gateway, &pair.sign(&claims())).status, 200);
}

#[test]
fn keys_from_a_file_and_api_keys_beside_them() {
    let folder = Folder::new();
    let (old, new) = (Pair::new("old"), Pair::new("new"));
    let set = |pair: &Pair| json!({ "keys": [pair.public] }).to_string();
    let file = folder.write("keys.json", &set(&old));
    folder.keys(&[("alice", "sk-a", ""), ("bob", "sk-b", "")]);
    let spec = format!(
        "  auth:\n    apiKeys: {{file: {}}}\n    jwt:\n      provider: {{name: corp, \
         issuer: \"https://idp.example.org/\", audiences: [llm-edge], localJWKS: {{file: {}}}}}",
        folder.0.join("keys.yaml").display(),
        file.display()
    );
    let pods = [RawPod::start()];
    let gateway = Gateway::start(&plan(&pods).spec(&spec));
    let (by_old, by_new) = (old.sign(&claims()), new.sign(&claims()));
    let models = |token: &str| {
        get_with(gateway.address, "/v1/models", &format!("authorization: Bearer {token}\r\n"))
            .status
    };
    assert_eq!(
        (models(&by_old), models("sk-a"), models(&by_new), models("sk-c")),
        (200, 200, 401, 401)
    );
    folder.write("keys.json", &set(&new));
    gateway.wait_metric("sluice_auth_reloads_total{source=\"key_set\",result=\"done\"}", 1.0);
    assert_eq!((models(&by_old), models("sk-a"), models(&by_new)), (401, 200, 200));
    // The issuer's name is taken.
    folder.keys(&[("corp", "sk-c", "")]);
    gateway.wait_metric("sluice_auth_reloads_total{source=\"keys\",result=\"failed\"}", 1.0);
    assert_eq!((models("sk-c"), models("sk-b")), (401, 200));
    // A token goes to a pod as little as a key does.
    let address = gateway.address;
    let client = thread::spawn(move || {
        let lines = format!("authorization: Bearer {by_new}\r\n");
        post_with(address, "/v1/chat/completions", &lines, &chat("base", 1, false)).status
    });
    let mut taken = pods[0].take();
    assert_eq!(taken.header("authorization"), None, "{}", taken.head);
    taken.send(answer(200, "", "{}"));
    assert_eq!(client.join().unwrap(), 200);
}

#[test]
fn keys_over_https_by_whom_the_configuration_trusts() {
    let (trusted, other) = (Authority::new(), Authority::new());
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let one = Pair::new("one");
    for (identity, authority, is_had) in [
        (trusted.issue("good", &["127.0.0.1"]), &trusted, true),
        (trusted.issue("misnamed", &["idp.example.org"]), &trusted, false),
        (other.issue("stranger", &["127.0.0.1"]), &trusted, false),
    ] {
        let issuer = Issuer::start_with(Some(&identity));
        issuer.serve(&[&one]);
        let ca_file = format!(", caFile: {}", authority.file().display());
        let spec = issuer
            .spec("5m")
            .replace("http://", "https://")
            .replace(", cacheDuration", &format!("{ca_file}, cacheDuration"));
        let gateway = Gateway::start(&Plan::pool("base", &pods).spec(&spec));
        let result = if is_had { "done" } else { "failed" };
        let sample = format!("sluice_auth_reloads_total{{source=\"key_set\",result=\"{result}\"}}");
        gateway.wait_metric(&sample, 1.0);
        let answer = ask(&gateway, &one.sign(&claims()));
        match is_had {
            true => assert_eq!(answer.status, 200, "{}", gateway.log()),
            false => {
                answer.assert_error(503, "signing_keys_missing", None);
                assert!(gateway.log().contains("TLS failed"), "{}", gateway.log());
            }
        }
    }
}

#[test]
fn a_ca_file_that_was_wrong_is_read_again() {
    let (trusted, other) = (Authority::new(), Authority::new());
    let issuer = Issuer::start_with(Some(&trusted.issue("good", &["127.0.0.1"])));
    let one = Pair::new("one");
    issuer.serve(&[&one]);
    let folder = Folder::new();
    let file = folder.write("ca.pem", &fs::read_to_string(other.file()).unwrap());
    let ca_file = format!(", caFile: {}, cacheDuration", file.display());
    let spec =
        issuer.spec("5m").replace("http://", "https://").replace(", cacheDuration", &ca_file);
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods).spec(&spec));
    gateway.wait_metric("sluice_auth_reloads_total{source=\"key_set\",result=\"done\"}", 0.0);
    ask(&gateway, &one.sign(&claims())).assert_error(503, "signing_keys_missing", None);
    folder.write("ca.pem", &fs::read_to_string(trusted.file()).unwrap());
    gateway.wait_metric("sluice_auth_reloads_total{source=\"key_set\",result=\"done\"}", 1.0);
    assert_eq!(ask(&gateway, &one.sign(&claims())).status, 200);
}

#[test]
fn api_keys_are_served_without_the_issuers_keys() {
    let issuer = Issuer::start();
    let folder = Folder::new();
    folder.keys(&[("alice", "sk-a", "")]);
    let keys = format!("    apiKeys: {{file: {}}}", folder.0.join("keys.yaml").display());
    let spec = issuer.spec("5m").replace("  auth:\n", &format!("  auth:\n{keys}\n"));
    let pods = Server::start_all(vec![Options::default()]).unwrap();
    let gateway = Gateway::start(&Plan::pool("base", &pods).spec(&spec));
    assert_eq!(get_with(gateway.address, "/health", "").status, 200);
    assert_eq!(ask(&gateway, "sk-a").status, 200);
    ask(&gateway, &Pair::new("one").sign(&claims())).assert_error(
        503,
        "signing_keys_missing",
        None,
    );
}

/// A private key of an issuer, and its public part.
struct Pair {
    id: &'static str,
    private: EncodingKey,
    public: Value,
}

impl Pair {
    fn new(id: &'static str) -> Self {
        let key =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        let private = EncodingKey::from_ec_der(key.unwrap().as_ref());
        let public = Jwk::from_encoding_key(&private, Algorithm::ES256).unwrap();
        let mut public = serde_json::to_value(public).unwrap();
        public["kid"] = id.into();
        Self { id, private, public }
    }

    fn sign(&self, claims: &Value) -> String {
        let header = Header { kid: Some(self.id.into()), ..Header::new(Algorithm::ES256) };
        encode(&header, claims, &self.private).unwrap()
    }
}

/// What a good token says.
fn claims() -> Value {
    json!({
        "iss": "https://idp.example.org/", "aud": ["llm-edge", "other"], "sub": "u1",
        "exp": now() + 3600, "tier": "gold",
    })
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn ask(gateway: &Gateway, token: &str) -> Response {
    let lines = format!("authorization: Bearer {token}\r\n");
    post_with(gateway.address, "/v1/chat/completions", &lines, &chat("base", 1, false))
}

/// A server of key sets. Until it is told otherwise it answers 404.
struct Issuer {
    address: SocketAddr,
    says: Arc<Mutex<(u16, String)>>,
}

impl Issuer {
    fn start() -> Self {
        Self::start_with(None)
    }

    /// The same over HTTPS with this certificate.
    fn start_with(identity: Option<&Identity>) -> Self {
        let config = identity.map(|identity| {
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let config = rustls::ServerConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(identity.chain(), identity.private_key());
            Arc::new(config.unwrap())
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let says = Arc::new(Mutex::new((404, String::new())));
        let shared = Arc::clone(&says);
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let says = shared.lock().unwrap().clone();
                match &config {
                    None => answer_with(&mut stream, &says),
                    Some(config) => {
                        let session = rustls::ServerConnection::new(Arc::clone(config)).unwrap();
                        answer_with(&mut rustls::StreamOwned::new(session, stream), &says);
                    }
                }
            }
        });
        Self { address, says }
    }

    fn say(&self, status: u16, text: &str) {
        *self.says.lock().unwrap() = (status, text.to_owned());
    }

    fn serve(&self, keys: &[&Pair]) {
        let keys: Vec<&Value> = keys.iter().map(|pair| &pair.public).collect();
        self.say(200, &json!({ "keys": keys }).to_string());
    }

    fn spec(&self, cache: &str) -> String {
        format!(
            "  auth:\n    jwt:\n      provider:\n        name: corp\n        \
             issuer: \"https://idp.example.org/\"\n        \
             remoteJWKS: {{uri: \"http://{}/keys.json\", cacheDuration: {cache}}}\n        \
             audiences: [llm-edge, llm-lab]\n        \
             requiredClaims: [{{name: tier, values: [gold, silver]}}]",
            self.address
        )
    }
}

/// Answers one question, if it comes whole.
fn answer_with(stream: &mut (impl Read + Write), (status, text): &(u16, String)) {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut piece) {
            Ok(count @ 1..) => head.extend_from_slice(&piece[..count]),
            _ => return,
        }
    }
    assert!(head.starts_with(b"GET /keys.json HTTP/1.1\r\n"));
    let _ = stream.write_all(answer(*status, "connection: close\r\n", text).as_bytes());
}
