//! The cluster's own programs end and come back: etcd with all that is in it, and the API server. `cargo xtask k8s test`
//! runs this alone, as no other test would survive it.

use std::fs;
use std::future::Future;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use sluice_tests::gateway::{Gateway, PATIENCE, pods};
use sluice_tests::load::Load;
use tokio::time::sleep;

use crate::api::{Api, cluster};
use crate::pods::{kubeconfig, selecting, servers, wait_for};
use crate::proxy::Proxy;

/// Ends one of the programs without a word; it is started again by whoever runs the tests.
fn end(name: &str) {
    let pid = fs::read_to_string(cluster().join(format!("{name}.pid"))).unwrap();
    kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL).unwrap();
}

/// Tries until it works: for a while there is nobody to ask.
async fn until_it_works<T, F: Future<Output = Result<T, String>>>(mut ask: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask().await {
            Ok(said) => return said,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Asks etcd by its interface for JSON.
fn etcd(path: &str, body: &Value) -> Value {
    let address = fs::read_to_string(cluster().join("etcd.address")).unwrap();
    let mut stream = TcpStream::connect(&address).unwrap();
    let body = body.to_string();
    let length = body.len();
    write!(stream, "POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    let (head, body) = said.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(" 200 "), "{said}");
    serde_json::from_str(body).unwrap()
}

/// Has etcd forget all that was before now.
fn compact() {
    let now = etcd("/v3/kv/range", &json!({ "key": "AA==" }))["header"]["revision"].clone();
    etcd("/v3/kv/compaction", &json!({ "revision": now, "physical": true }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn etcd_and_the_api_server_restart_under_load() {
    let (api, servers) = (Api::new().await, servers(3));
    api.apply(&api.config("edge"), &selecting("a", servers[0].addr.port())).await.unwrap();
    api.make_pod("p0", "a", servers[0].addr.ip()).await;
    let gateway = Gateway::of_cluster(&kubeconfig(), &api.namespace);
    wait_for(&gateway, &["p0"]);
    let load = Load::start([gateway.address].into_iter());
    for (name, program, server) in [("p1", "etcd", &servers[1]), ("p2", "apiserver", &servers[2])] {
        end(program);
        load.wait_for_more();
        until_it_works(|| api.try_pod(name, "a", server.addr.ip())).await;
        gateway.wait(name, |status| pods(status).any(|pod| pod["name"] == name));
        load.wait_for_more();
    }
    load.stop();
    let status = gateway.wait_idle();
    assert!(pods(&status).all(|pod| pod["failures"] == 0), "{status:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_history_that_is_forgotten_is_no_loss() {
    let (api, servers) = (Api::new().await, servers(3));
    let proxy = Proxy::start("compaction");
    api.apply(&api.config("edge"), &selecting("a", servers[0].addr.port())).await.unwrap();
    api.make_pod("p0", "a", servers[0].addr.ip()).await;
    api.make_pod("p1", "a", servers[1].addr.ip()).await;
    let gateway = Gateway::of_cluster(&proxy.kubeconfig, &api.namespace);
    wait_for(&gateway, &["p0", "p1"]);
    let load = Load::start([gateway.address].into_iter());

    // What happens now is in nobody's memory afterwards: neither etcd's, nor the API server's own.
    proxy.down();
    api.delete(&api.pod("p0")).await;
    api.make_pod("p2", "a", servers[2].addr.ip()).await;
    compact();
    end("apiserver");
    let edge = api.config("edge");
    until_it_works(|| api.get(&edge)).await;
    let lists = api.lists_of_pods();
    proxy.up();
    wait_for(&gateway, &["p1", "p2"]);
    assert_eq!(api.lists_of_pods(), lists + 1, "the watch could not go on");

    load.wait_for_more();
    load.stop();
    let status = gateway.wait_idle();
    assert!(pods(&status).all(|pod| pod["failures"] == 0), "{status:#}");
}
