//! Many gateways on one API server, one for each node: what they cost it, and which of them writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use sluice_tests::gateway::Gateway;
use tokio::time::sleep;

use crate::api::{Api, Audited};
use crate::pods::{kubeconfig, selecting, servers, wait_for};
use crate::status::wait_status;

/// A KUBECONFIG of a user with every right and this name.
fn named(name: &str) -> PathBuf {
    let text = fs::read_to_string(kubeconfig()).unwrap();
    let (before, rest) = text.split_once("token: ").unwrap();
    let (token, after) = rest.split_once('}').unwrap();
    let own = kubeconfig().with_file_name(format!("kubeconfig-{name}"));
    let user = format!("token: {token}, as: {name}, as-groups: [\"system:masters\"]");
    fs::write(&own, format!("{before}{user}}}{after}")).unwrap();
    own
}

/// How often each user asked for what, of these verbs and what there is.
fn counts(audit: &[Audited], verbs: &[&str]) -> BTreeMap<String, BTreeMap<String, usize>> {
    let mut counts: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    let asked = |one: &&Audited| verbs.contains(&one.verb.as_str()) && one.code != 404;
    for one in audit.iter().filter(asked) {
        let of = format!("{} {} {}", one.verb, one.group, one.resource);
        *counts.entry(one.user.clone()).or_default().entry(of).or_default() += 1;
    }
    counts.retain(|user, _| user.starts_with("gateway-"));
    counts
}

fn writers(audit: &[Audited]) -> BTreeSet<&str> {
    let written = audit.iter().filter(|one| {
        one.verb == "patch" && one.resource == "inferencegatewayconfigs/status" && one.code == 200
    });
    written.map(|one| one.user.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn eight_gateways_ask_eight_times_as_much_and_one_writes() {
    let (api, servers) = (Api::new().await, servers(1));
    let ip = servers[0].addr.ip();
    api.apply(&api.config("edge"), &selecting("a", servers[0].addr.port())).await.unwrap();
    api.make_pod("p0", "a", ip).await;
    let names: Vec<String> = (0..8).map(|number| format!("gateway-{number}")).collect();
    let start = |name: &String| Gateway::of_cluster(&named(name), &api.namespace);
    let mut gateways: BTreeMap<&str, Gateway> =
        names.iter().map(|name| (name.as_str(), start(name))).collect();
    for gateway in gateways.values() {
        wait_for(gateway, &["p0"]);
    }
    wait_status(&api, "a status", |status| status["pods"] == "1/1").await;

    // Twenty changes are in the watches that there are: nothing is listed or watched for them.
    for round in 0..20 {
        api.set_ready("p0", round % 2 == 1).await;
    }
    api.make_pod("p1", "a", ip).await;
    api.delete(&api.pod("p1")).await;
    for gateway in gateways.values() {
        wait_for(gateway, &["p0"]);
    }
    let audit = api.audit();
    let asked = counts(&audit, &["list", "watch"]);
    assert_eq!(asked.len(), 8, "{asked:#?}");
    for (user, asked) in &asked {
        // Watches end after 45 s at least; a busy machine may take longer than that to come here.
        let again = asked.iter().filter(|(of, count)| of.starts_with("list") && **count != 1);
        assert_eq!(again.count(), 0, "{user}: {asked:#?}");
        let kinds = asked.keys().filter(|of| of.starts_with("list")).count();
        let watches = asked.keys().filter(|of| of.starts_with("watch")).count();
        assert!(kinds >= 3 && kinds == watches, "{user}: {asked:#?}");
    }
    // What this cluster lacks is looked for again now and then, and not all the time.
    let missing = audit.iter().filter(|one| one.code == 404 && one.verb == "list").count();
    assert!(missing < 8 * 6, "{missing} requests for what there is not");
    let first = writers(&audit);
    assert_eq!(first.len(), 1, "{first:?}");

    // Killed, it leaves a lease that is over in 15 s.
    let first = first.into_iter().next().unwrap().to_owned();
    gateways.remove(first.as_str()).unwrap().signal("KILL");
    api.set_ready("p0", false).await;
    wait_status(&api, "the next writer", |status| status["pods"] == "0/1").await;
    let audit = api.audit();
    let all = writers(&audit);
    assert_eq!(all.len(), 2, "{all:?}");
    let second = *all.iter().find(|user| **user != first).unwrap();
    // Those that do not write look at the lease now and then, and that is all.
    sleep(Duration::from_secs(6)).await;
    let before = counts(&audit, &["get", "create", "update", "patch"]);
    for (user, asked) in counts(&api.audit(), &["get", "create", "update", "patch"]) {
        let writes = asked.iter().filter(|(of, _)| !of.starts_with("get"));
        let idle = writes.clone().all(|(of, count)| {
            let known = before.get(&user).and_then(|known| known.get(of));
            user == second || Some(count) == known
        });
        assert!(idle, "{user} writes: {asked:#?}, before {before:#?}");
    }
}
