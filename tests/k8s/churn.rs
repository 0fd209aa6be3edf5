//! Everything changes all the time: 500 pods in 50 pools.
//!
//! How long the gateway took to be where the cluster is, and what it used, is printed: `cargo xtask k8s test -- churn
//! --nocapture`. docs/reliability.md has the figures of a run.

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_tests::engine::{Options, Server};
use sluice_tests::gateway::Gateway;
use sluice_tests::load::Load;
use tokio::time::{MissedTickBehavior, interval};

use crate::api::Api;
use crate::pods::{kubeconfig, object};

const PODS: usize = 500;
const POOLS: usize = 50;
const CHANGES: usize = 20 * 60;

/// What a pod should be.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    exists: bool,
    ready: bool,
    pool: usize,
}

/// The cluster as it should be.
struct World {
    pods: Vec<Wanted>,
    pools: Vec<bool>,
    port: u16,
}

impl World {
    fn app(pool: usize) -> String {
        format!("app-{pool}")
    }

    fn ip(pod: usize) -> Ipv4Addr {
        let pod = u16::try_from(pod).unwrap().to_be_bytes();
        Ipv4Addr::new(127, 1, pod[0], pod[1])
    }

    async fn make(&self, api: &Api, pod: usize) {
        let wanted = self.pods[pod];
        api.make_pod(&format!("p{pod}"), &Self::app(wanted.pool), Self::ip(pod).into()).await;
    }

    async fn set_pool(&self, api: &Api, pool: usize) {
        let name = format!("pool-{pool}");
        let group = "inference.networking.k8s.io/v1";
        let path = format!("/apis/{group}/namespaces/{}/inferencepools/{name}", api.namespace);
        if !self.pools[pool] {
            return api.delete(&path).await;
        }
        let pool = json!({
            "apiVersion": group, "kind": "InferencePool", "metadata": { "name": name },
            "spec": {
                "selector": { "matchLabels": { "app": Self::app(pool) } },
                "targetPorts": [{ "number": self.port }],
                "endpointPickerRef": { "name": "none", "port": { "number": 9002 } },
            },
        });
        api.apply(&path, &pool).await.unwrap();
    }

    /// One change, drawn by lot. The first pod and the first pool stay, as requests are for them.
    async fn change(&mut self, api: &Api, random: &mut fastrand::Rng) {
        let (pod, pool) = (random.usize(1..PODS), random.usize(1..POOLS));
        let name = format!("p{pod}");
        match random.u8(0..100) {
            0..10 => {
                self.pools[pool] ^= true;
                self.set_pool(api, pool).await;
            }
            10..60 if self.pods[pod].exists => {
                self.pods[pod].ready ^= true;
                api.set_ready(&name, self.pods[pod].ready).await;
            }
            10..80 if self.pods[pod].exists => {
                self.pods[pod].exists = false;
                api.delete(&api.pod(&name)).await;
            }
            80.. if self.pods[pod].exists => {
                self.pods[pod].pool = pool;
                let labels = json!({ "metadata": { "labels": { "app": Self::app(pool) } } });
                api.merge(&api.pod(&name), &labels).await.unwrap();
            }
            _ => {
                self.pods[pod] = Wanted { exists: true, ready: true, pool };
                self.make(api, pod).await;
            }
        }
    }

    /// Which pods each pool has, of those that may get requests.
    fn expected(&self) -> BTreeSet<(String, String)> {
        let pods = self.pods.iter().enumerate();
        let serving = pods.filter(|(_, pod)| pod.exists && pod.ready && self.pools[pod.pool]);
        serving.map(|(number, pod)| (format!("pool-{}", pod.pool), format!("p{number}"))).collect()
    }
}

fn known(status: &Value) -> BTreeSet<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let pools = status["pools"].as_array().into_iter().flatten();
    pools
        .flat_map(|pool| {
            let pods = pool["pods"].as_array().into_iter().flatten();
            pods.map(|pod| (text(&pool["name"]), text(&pod["name"]))).collect::<Vec<_>>()
        })
        .collect()
}

/// Seconds of a processor that the gateway has used.
fn processor(gateway: &Gateway) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", gateway.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // User and system time, in the kernel's hundredths.
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap() / 100.0).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn five_hundred_pods_and_fifty_pools() {
    let api = Api::new().await;
    let everywhere = Options {
        listen: (Ipv4Addr::UNSPECIFIED, 0).into(),
        models: vec!["base".to_owned()],
        ..Options::default()
    };
    let server = Server::start(everywhere).unwrap();
    let pods = (0..PODS).map(|pod| Wanted { exists: true, ready: true, pool: pod % POOLS });
    let mut world =
        World { pods: pods.collect(), pools: vec![true; POOLS], port: server.addr.port() };
    // Requests are for the first pool.
    let mut edge = object(json!({ "name": "pool-0" }));
    edge["spec"]["schedulers"][0]["name"] = "pool-0".into();
    api.apply(&api.config("edge"), &edge).await.unwrap();
    for pool in 0..POOLS {
        world.set_pool(&api, pool).await;
    }
    for pod in 0..PODS {
        world.make(&api, pod).await;
    }
    let gateway = Gateway::of_cluster(&kubeconfig(), &api.namespace);
    gateway.wait("all pods", |status| known(status) == world.expected());
    let load = Load::start([gateway.address].into_iter());
    load.wait_for_more();

    let (resident, used) = (gateway.resident(), processor(&gateway));
    let mut random = fastrand::Rng::with_seed(7);
    let mut pace = interval(Duration::from_secs(1) / 20);
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let begun = Instant::now();
    for _ in 0..CHANGES {
        pace.tick().await;
        world.change(&api, &mut random).await;
    }
    let last = Instant::now();
    let expected = world.expected();
    gateway.wait("what the cluster has come to", |status| known(status) == expected);
    let converged = last.elapsed();
    let changed = last.duration_since(begun);
    let used = processor(&gateway) - used;
    load.wait_for_more();
    let answered = load.answered();
    load.stop();
    gateway.wait_idle();
    let peak = gateway.peak_resident();
    println!(
        "{CHANGES} changes in {:.1} s; the gateway was there {} ms after the last one; it used {:.2} processors, with \
         {answered} requests; {} MB before, {} MB at most",
        changed.as_secs_f64(),
        converged.as_millis(),
        used / changed.as_secs_f64(),
        resident >> 20,
        peak >> 20,
    );
    assert!(peak < resident + (64 << 20), "{resident} bytes have become {peak}");
}
