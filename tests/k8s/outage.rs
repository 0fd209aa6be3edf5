//! The API server is away, or the way to it: traffic goes on, and what changed meanwhile holds afterwards.

use std::thread::sleep;
use std::time::Duration;

use sluice_tests::gateway::{Gateway, pods};
use sluice_tests::load::Load;

use crate::api::Api;
use crate::pods::{selecting, servers, wait_for};
use crate::proxy::Proxy;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_changes_during_an_outage_holds_after_it() {
    let (api, servers) = (Api::new().await, servers(3));
    let proxy = Proxy::start("outage");
    api.apply(&api.config("edge"), &selecting("a", servers[0].addr.port())).await.unwrap();
    api.make_pod("p0", "a", servers[0].addr.ip()).await;
    api.make_pod("p1", "a", servers[1].addr.ip()).await;
    let gateway = Gateway::of_cluster(&proxy.kubeconfig, &api.namespace);
    wait_for(&gateway, &["p0", "p1"]);
    let load = Load::start([gateway.address].into_iter());
    load.wait_for_more();

    // A cut is no change.
    proxy.cut();
    load.wait_for_more();
    wait_for(&gateway, &["p0", "p1"]);

    proxy.down();
    let before = proxy.count();
    api.make_pod("p2", "a", servers[2].addr.ip()).await;
    api.delete(&api.pod("p0")).await;
    // It is tried again and again, and more and more seldom.
    while proxy.count() < before + 20 {
        load.wait_for_more();
        sleep(Duration::from_millis(20));
    }
    wait_for(&gateway, &["p0", "p1"]);
    assert!(gateway.metric("sluice_cluster_age_seconds").is_some());
    proxy.up();
    wait_for(&gateway, &["p1", "p2"]);

    load.wait_for_more();
    load.stop();
    let status = gateway.wait_idle();
    assert!(pods(&status).all(|pod| pod["failures"] == 0), "{status:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_gateway_waits_for_a_cluster_that_is_not_there_yet() {
    let (api, servers) = (Api::new().await, servers(1));
    let proxy = Proxy::start("late");
    proxy.down();
    api.make_pod("p0", "a", servers[0].addr.ip()).await;
    let (kubeconfig, namespace) = (proxy.kubeconfig.clone(), api.namespace.clone());
    let gateway = std::thread::spawn(move || Gateway::of_cluster(&kubeconfig, &namespace));
    while proxy.count() < 5 {
        sleep(Duration::from_millis(20));
    }
    proxy.up();
    // There is no object either.
    api.apply(&api.config("edge"), &selecting("a", servers[0].addr.port())).await.unwrap();
    let gateway = gateway.join().unwrap();
    wait_for(&gateway, &["p0"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_slow_api_server_holds_up_nothing_but_news() {
    let (api, servers) = (Api::new().await, servers(2));
    let proxy = Proxy::start("slow");
    proxy.slow(Duration::from_millis(700));
    api.apply(&api.config("edge"), &selecting("a", servers[0].addr.port())).await.unwrap();
    api.make_pod("p0", "a", servers[0].addr.ip()).await;
    let gateway = Gateway::of_cluster(&proxy.kubeconfig, &api.namespace);
    wait_for(&gateway, &["p0"]);
    let load = Load::start([gateway.address].into_iter());
    api.make_pod("p1", "a", servers[1].addr.ip()).await;
    wait_for(&gateway, &["p0", "p1"]);
    api.delete(&api.pod("p0")).await;
    wait_for(&gateway, &["p1"]);
    load.wait_for_more();
    load.stop();
    let status = gateway.wait_idle();
    assert!(pods(&status).all(|pod| pod["failures"] == 0), "{status:#}");
}
