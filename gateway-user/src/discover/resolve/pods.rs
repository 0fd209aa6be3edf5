//! The pods of one pool.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use super::{Finding, MAX_PODS, PoolFacts, Snapshot, Source};
use crate::config::{self, Scheduler};
use crate::discover::objects::{Node, Pod};

/// Finds the pods that may get requests, and puts them into the scheduler if there is one.
pub(super) fn find(
    source: &Source,
    snapshot: &Snapshot,
    node: Option<&str>,
    scheduler: Option<&mut Scheduler>,
) -> PoolFacts {
    let mut facts = PoolFacts { name: source.name.clone(), ..PoolFacts::default() };
    facts.is_inference_pool = source.is_pool;
    facts.findings.extend(source.protocol.clone().map(Finding::Protocol));
    facts.matched = count(source.listed);
    facts.ready = facts.matched;
    let selector = source.selector.as_ref().filter(|selector| !selector.is_empty());
    let Some(selector) = selector else {
        if source.listed == 0 {
            facts.findings.push(Finding::NoSelector);
        }
        return facts;
    };
    let mut matched: Vec<&Pod> =
        snapshot.pods.values().filter(|pod| selector.matches(&pod.metadata.labels)).collect();
    // Of two pods with one address, the older one has lost it.
    matched.sort_by(|a, b| {
        let key =
            |pod: &'_ Pod| (pod.metadata.creation_timestamp.clone(), pod.metadata.name.clone());
        key(b).cmp(&key(a))
    });
    let mut taken: HashMap<SocketAddr, ()> = scheduler
        .iter()
        .flat_map(|scheduler| &scheduler.pods)
        .map(|pod| (pod.address, ()))
        .collect();
    let mut found = Vec::new();
    for pod in matched {
        facts.matched = facts.matched.saturating_add(count(source.ports.len()));
        if !pod.is_ready() {
            continue;
        }
        let address = pod.status.pod_ip.parse::<IpAddr>().ok().filter(|ip| !ip.is_unspecified());
        for port in &source.ports {
            let place = address.map(|ip| SocketAddr::new(ip.to_canonical(), *port));
            let Some(place) = place.filter(|place| taken.insert(*place, ()).is_none()) else {
                let name = pod.metadata.name.clone();
                facts.findings.push(Finding::BadAddress(name, pod.status.pod_ip.clone()));
                break;
            };
            let gpu_of = |node: &Node| node.gpu().map(str::to_owned);
            let name = match source.ports.as_slice() {
                [_] => pod.metadata.name.clone(),
                _ => format!("{}:{port}", pod.metadata.name),
            };
            facts.local += u32::from(node.is_some_and(|node| node == pod.spec.node_name));
            let context = pod.metadata.labels.get(CONTEXT_LENGTH);
            found.push(config::Pod {
                name,
                address: place,
                uid: Some(pod.metadata.uid.clone()).filter(|uid| !uid.is_empty()),
                gpu: snapshot.nodes.get(&pod.spec.node_name).and_then(gpu_of),
                context_range: context.and_then(|text| config::context_range(text)),
            });
        }
    }
    // Always in one order, so that nothing seems to change when nothing does.
    found.sort_by(|a, b| a.name.cmp(&b.name));
    let room = MAX_PODS.saturating_sub(source.listed);
    if found.len() > room {
        facts.findings.push(Finding::TooMany(count(found.len() - room)));
        found.truncate(room);
    }
    facts.ready = facts.ready.saturating_add(count(found.len()));
    // Those who look for the reason look here first.
    if facts.matched == 0 {
        facts.findings.insert(0, Finding::NoPods(selector.query()));
    } else if facts.ready == 0 {
        facts.findings.insert(0, Finding::NoneReady(facts.matched));
    }
    facts.findings.truncate(MAX_FINDINGS);
    if let Some(scheduler) = scheduler {
        scheduler.pods.extend(found);
    }
    facts
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The label of a pod with the lengths of prompts that it is meant for.
const CONTEXT_LENGTH: &str = "llm-d.ai/context-length-range";
/// More than these nobody reads.
const MAX_FINDINGS: usize = 8;
